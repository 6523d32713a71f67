"""The checker of event streams: every rule found where it is broken, and only there."""

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.invariants import PROFILES, RULES, Checker, Groups, Violation
from protocol.rules.differences import both
from tests import invariant_session_cases
from tests.invariant_stream_cases import CASES
from tests.invariant_traces import Talk, cut, output

SHARED = Path(__file__).parents[2] / "shared"
VECTORS = SHARED / "vectors"
RECORDINGS = SHARED / "recordings"
BY_GROUP = {"W11"}
"""Rules about several traces."""


def check(
    header: dict[str, Any], records: list[dict[str, Any]], profile: str
) -> tuple[Checker, list[Violation]]:
    checker = Checker(header, profile=profile)
    found = [one for record in records for one in checker.feed(record)]
    return checker, [*found, *checker.finish()]


def of_talk(talk: Talk, profile: str = "this-engine") -> list[Violation]:
    return check(talk.header, talk.records, profile)[1]


def said(violations: list[Violation]) -> list[str]:
    return [f"{one.rule} at {one.record}: expected {one.expected}; seen {one.seen}" for one in violations]


# --- our own traces, one pair a rule -----------------------------------------------------------------------------


def test_every_rule_has_a_clean_and_a_broken_trace() -> None:
    """The table of rules and the table of cases name the same 79 rules."""
    assert len(RULES) == 79
    assert {*CASES, *BY_GROUP} == {*RULES}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in BY_GROUP])
def test_a_clean_trace_is_clean(rule: str) -> None:
    """The trace that keeps a rule breaks none."""
    clean, _ = CASES[rule].make()
    assert said(of_talk(clean, CASES[rule].profile)) == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in BY_GROUP])
def test_a_broken_trace_breaks_this_rule(rule: str) -> None:
    """The trace that breaks a rule breaks it, and no other than the case says."""
    case = CASES[rule]
    _, broken = case.make()
    violations = of_talk(broken, case.profile)
    assert rule in {one.rule for one in violations}, said(violations)
    assert {one.rule for one in violations} <= {rule, *case.also}, said(violations)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in BY_GROUP])
def test_a_clean_trace_judges_its_rule(rule: str) -> None:
    """The clean trace is no vacuous pass: its rule is not among those that were not evaluated."""
    clean, _ = CASES[rule].make()
    checker, _ = check(clean.header, clean.records, CASES[rule].profile)
    assert rule not in checker.summary().not_evaluated


def test_traces_of_one_group_say_the_same() -> None:
    """W11: forms may split a rollout and its texts as they like, but a trace with another text is named."""
    traces = invariant_session_cases.group("gone")
    groups = Groups()
    for talk in traces:
        checker, violations = check(talk.header, talk.records, "this-engine")
        assert said(violations) == []
        groups.feed(talk.header, checker)
    assert [(one.rule, "done" in one.expected, "gone" in one.seen) for one in groups.finish()] == [
        ("W11", True, True)
    ]


def test_a_group_that_says_the_same_is_clean() -> None:
    """W11: ids, forms and the cutting of texts are no difference."""
    groups = Groups()
    for talk in invariant_session_cases.group("done"):
        groups.feed(talk.header, check(talk.header, talk.records, "this-engine")[0])
    assert said(list(groups.finish())) == []


# --- the vectors and recordings of the reference -----------------------------------------------------------------


def read(path: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    header: dict[str, Any] | None = None
    records: list[dict[str, Any]] = []
    for text in path.read_text().splitlines():
        value = json.loads(text)  # the vectors hold lone surrogates, which are no JSON to orjson
        if "trace" in value:
            if header is not None:
                yield header, records
            header, records = value, []
        else:
            records.append(value)
    assert header is not None
    yield header, records


def vectors(name: str) -> list[Any]:
    if not VECTORS.is_dir():
        return [
            pytest.param(
                None, None, marks=pytest.mark.skip(reason="the vectors are not beside the repository")
            )
        ]
    return [
        pytest.param(header, records, id=f"{header['dialect']}: {header['name']}")
        for header, records in read(VECTORS / name)
    ]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("header", "records"), vectors("clean.jsonl"))
def test_a_clean_vector_is_clean(header: dict[str, Any], records: list[dict[str, Any]], profile: str) -> None:
    """What the reference calls clean breaks no rule of any profile."""
    assert said(check(header, records, header.get("profile", profile))[1]) == []


@pytest.mark.parametrize(("header", "records"), vectors("violations.jsonl"))
def test_a_violating_vector_is_found(header: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """Each rule that the reference names for a trace is reported; its groups come below."""
    violations = check(header, records, header.get("profile", "this-engine"))[1]
    assert {*header.get("expect", ())} - BY_GROUP <= {one.rule for one in violations}, said(violations)


@pytest.mark.skipif(not VECTORS.is_dir(), reason="the vectors are not beside the repository")
def test_the_groups_of_the_vectors_are_judged() -> None:
    """Three forms that say the same are clean, and of three others the one that differs is found."""
    groups = Groups()
    for name in ("clean.jsonl", "violations.jsonl"):
        for header, records in read(VECTORS / name):
            if "group" in header:
                groups.feed(header, check(header, records, header.get("profile", "this-engine"))[0])
    assert [(one.rule, one.trace) for one in groups.finish()] == [("W11", "same rollout, append dialect")]


RECORDED = sorted(path.name for path in RECORDINGS.glob("*.jsonl"))


def as_trace(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A recording in the trace format: what was left out is a gap, and of clients only their frames are there."""
    lines = [json.loads(text) for text in (RECORDINGS / name).read_text().splitlines()]
    served = any(line.get("dir") == "server" and "frame" in line for line in lines)
    dialect = next(form for form in ("inject", "append", "create", "http", "lanes") if form in name)
    records, t, begun = [], 0.0, False
    for line in lines:
        t = max(t, (line.get("t_ms") or 0) / 1000)
        place = {"t": t, "conn": f"c{line.get('conn', 1)}"}
        frame = line.get("frame")
        if "omitted" in line or (served and not begun and frame is not None and not begins(frame)):
            records.append({**place, "dir": "hook", "frame": {"hook": "gap"}})
        begun = begun or (frame is not None and begins(frame))
        if frame is not None and line.get("dir") == "server":
            records.append({**place, "dir": "out", "frame": frame})
        elif frame is not None and "http" in line:
            asked = {"type": "http.request", "method": "POST", "path": "/v1/responses", "body": frame}
            records.append({**place, "dir": "in", "frame": asked})
        elif frame is not None:
            records.append({**place, "dir": "in", "frame": frame})
        elif "close" in line:
            records.append({**place, "dir": "hook", "frame": {"hook": "connection_close", "by": line["dir"]}})
    header = {
        "trace": 1,
        "name": name,
        "dialect": "create" if dialect == "lanes" else dialect,
        "transport": "sse" if dialect == "http" else "websocket",
        "directions": ["in", "out", "hook"] if served else ["in", "hook"],
        "hooks": ["connection_close", "gap"],
        "complete": served and begun,
    }
    return header, records


def begins(frame: dict[str, Any]) -> bool:
    return frame.get("type") in ("response.create", "response.created") or "type" not in frame


@pytest.mark.parametrize(
    "name", RECORDED or [pytest.param("", marks=pytest.mark.skip(reason="no recordings"))]
)
def test_no_false_alarm_on_recordings(name: str) -> None:
    """Real exchanges are clean in profile `openai`."""
    header, records = as_trace(name)
    checker, violations = check(header, records, "openai")
    assert said(violations) == []
    assert checker.summary().records == len(records)


# --- what was not evaluated --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in BY_GROUP])
def test_without_what_it_needs_a_rule_is_not_evaluated(rule: str) -> None:
    """Without a direction, a hook or a header member that a rule needs, it is listed with the reason, and silent."""
    case = CASES[rule]
    _, broken = case.make()
    needs = RULES[rule]
    lacks: list[tuple[str, dict[str, Any]]] = []
    if "A" in needs.scope or "C" in needs.scope:
        lacks.append(("direction missing: out", {"directions": ["in", "hook"]}))
    if "C" in needs.scope and "A" not in needs.scope:
        lacks.append(("direction missing: in", {"directions": ["out", "hook"]}))
    for hook in needs.hooks:
        rest = [name for name in broken.header["hooks"] if name != hook]
        lacks.append((f"hook missing: {hook}", {"hooks": rest}))
    if needs.member is not None:
        lacks.append((f"header has no {needs.member}", {needs.member: ...}))
    if not lacks:
        lacks.append(("direction missing: hook", {"directions": ["in", "out"]}))
    for reason, change in lacks:
        header = {name: value for name, value in {**broken.header, **change}.items() if value is not ...}
        checker, violations = check(header, broken.records, case.profile)
        assert checker.summary().not_evaluated[rule] == reason
        assert rule not in {one.rule for one in violations}


def test_rules_of_the_engine_are_not_evaluated_for_others() -> None:
    """A profile that has not a rule lists it with that reason: these and no others."""
    talk = CASES["T1"].make()[0]
    missing = {
        profile: {
            rule
            for rule, reason in check(talk.header, talk.records, profile)[0].summary().not_evaluated.items()
            if reason.startswith("profile")
        }
        for profile in PROFILES
    }
    engine_only = {"T2", "I9", "U3", "U4", "W11", "W14", "S13", "S17", "S24", "S25", "D1", "D2", "L1", "L2"}
    assert missing == {"any-server": engine_only | {"I10"}, "openai": engine_only, "this-engine": set()}


def test_a_recorder_that_stopped_first_judges_no_end() -> None:
    """With `complete` false a stream may just stop, and the rules about the end are not evaluated."""
    talk = cut(CASES["R3"].make()[0], "response.output_item.done")
    assert [one.rule for one in of_talk(talk)] == ["R3"]
    talk.header["complete"] = False
    checker, violations = check(talk.header, talk.records, "this-engine")
    assert said(violations) == []
    assert checker.summary().not_evaluated["R3"] == "incomplete: the recorder stopped before the end"


def test_a_gap_silences_until_the_next_response() -> None:
    """Where frames are missing nothing about order is said; the next response of the connection is judged again."""
    talk = Talk("create", "gap").ask().begin("r1").hook("gap")
    at = {"item_id": "msg_7", "output_index": 3, "content_index": 0}
    talk.out("response.output_text.delta", **at, delta="x", sequence_number=40)
    talk.end(output=[])
    checker, violations = check(talk.header, talk.records, "any-server")
    assert said(violations) == []
    assert checker.summary().not_evaluated["N1"] == "gap: frames are missing on c1"
    talk.turn("r2", "r1")
    talk.records[-1]["frame"]["sequence_number"] = 77
    assert [one.rule for one in of_talk(talk, "any-server")] == ["N1"]


# --- what a violation says ---------------------------------------------------------------------------------------


def test_a_violation_shows_the_shortest_prefix() -> None:
    """Records of other connections and lanes have no part in it; each record of the prefix is one line."""
    talk = Talk().on("c1", "A").ask().on("c2").turn("r9").on("c1", "A").begin("r1").message().end()
    talk.records[-1]["frame"]["sequence_number"] = 77
    checker, (violation,) = check(talk.header, talk.records, "this-engine")
    assert (violation.rule, violation.conn, violation.lane, violation.response_id) == ("N1", "c1", "A", "r1")
    assert violation.record == len(talk.records)
    assert violation.prefix == (1, *range(12, 21))
    lines = checker.shown(violation)
    assert len(lines) == len(violation.prefix)
    assert lines[0].split()[:4] == ["1", "0.010", "in", "response.create"]
    assert lines[-1].split()[:5] == ["20", "0.200", "out", "response.completed", "#77"]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ("some", "none", ("'some'", "'none'")),
        (
            "x" * 90 + "END",
            "x" * 90 + "FIN",
            ("from character 80: 'xxxxxxxxxxEND'", "from character 80: 'xxxxxxxxxxFIN'"),
        ),
        (
            "x" * 90,
            "x" * 80,
            ("from character 70: 'xxxxxxxxxxxxxxxxxxxx'", "from character 70: 'xxxxxxxxxx'"),
        ),
        (["x" * 90, 1], ["x" * 90, 2], ("[1]: 1", "[1]: 2")),
        (
            {"id": "x" * 90, "content": [{"text": "a"}]},
            {"id": "x" * 90, "content": [{"text": "b"}]},
            ("content: [{'text': 'a'}]", "content: [{'text': 'b'}]"),
        ),
        (
            {"a": [{"text": "x" * 99 + "y"}]},
            {"a": [{"text": "x" * 100}]},
            ("a[0].text from character 89: 'xxxxxxxxxxy'", "a[0].text from character 89: 'xxxxxxxxxxx'"),
        ),
        ({"type": "new", "a": "x" * 90}, {"type": "new", "a": "x" * 90, "obfuscation": "x"}, None),
    ],
    ids=["short", "text", "a shorter text", "list", "member", "a text in it", "what is not compared"],
)
def test_two_values_are_shown_where_they_differ(ours: Any, theirs: Any, words: Any) -> None:
    """They are cut, but never so that they look the same while they are not."""
    one, other = both(ours, theirs)
    assert (one, other) == words if words is not None else one == other


def test_the_prefix_of_a_long_response_is_bounded() -> None:
    """Of thousands of deltas the first records and the last are kept, and what stands between is said."""
    talk = Talk().ask().begin().message(*["x"] * 5000).end()
    talk.records[-1]["frame"]["sequence_number"] = 0
    checker, (violation,) = check(talk.header, talk.records, "this-engine")
    assert len(violation.prefix) < 60
    assert [line for line in checker.shown(violation) if "…" in line] == ["    …  events of this response"]


def test_a_rule_is_reported_five_times_then_counted() -> None:
    """One fault that repeats does not fill the report, but the totals have all of it."""
    talk = Talk().ask().begin().message(*["\ufffd"] * 3)
    for _ in range(9):
        talk.message("\ufffd")
    checker, violations = check(talk.header, talk.end().records, "this-engine")
    assert [one.rule for one in violations] == ["C10"] * 5
    assert checker.summary().violations == {"C10": 12}


def test_after_a_violation_it_goes_on_from_what_the_server_claims() -> None:
    """A wrong number is the new base: one hole is one violation."""
    _, broken = CASES["N1"].make()
    assert [one.rule for one in of_talk(broken)] == ["N1"]


def test_an_unknown_profile_is_refused() -> None:
    """The message names the profiles there are."""
    with pytest.raises(ValueError, match="unknown profile 'mine'; known: any-server, openai, this-engine"):
        Checker({}, profile="mine")


def test_the_summary_has_the_totals() -> None:
    """Records, events by dialect and responses are counted; a second finish finds nothing."""
    talk = Talk("append").turn("r1").turn("r2", "r1")
    checker, _ = check(talk.header, talk.records, "this-engine")
    summary = checker.summary()
    assert (summary.records, summary.events, summary.responses) == (20, {"append": 18}, 2)
    assert list(checker.finish()) == []


# --- any input, any length ---------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
STORIES = [talk for case in CASES.values() for talk in case.make()]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[dict[str, Any], list[Any]]:
    """A trace of ours with any JSON in any member, records lost, doubled and exchanged."""
    talk = draw(st.sampled_from(STORIES))
    header, records = copy.deepcopy((talk.header, talk.records))
    for _ in range(draw(st.integers(1, 6))):
        place: Any = draw(st.sampled_from([header, *records])) if records else header
        while True:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and draw(st.booleans()):
                place = inner
                continue
            break
        if isinstance(place, dict) and draw(st.integers(0, 5)) == 0:
            del place[key]
            if not place:
                break
        else:
            place[key] = draw(JSON)
    if len(records) > 2:
        one, other = draw(st.integers(0, len(records) - 1)), draw(st.integers(0, len(records) - 1))
        records[one], records[other] = records[other], records[one]
        records.insert(one, records[other])
    return header, records


@settings(max_examples=600, deadline=None)
@given(mutated(), st.sampled_from(PROFILES))
def test_no_json_raises(trace: tuple[dict[str, Any], list[Any]], profile: str) -> None:
    """Whatever stands in a member, the checker finds violations or nothing: it never raises."""
    header, records = trace
    checker, violations = check(header, records, profile)
    for one in violations:
        assert one.rule in RULES
        assert all(isinstance(line, str) for line in checker.shown(one))
        assert list(one.prefix) == sorted(set(one.prefix))
    assert checker.summary().records == len(records)


def test_memory_does_not_grow_with_the_trace() -> None:
    """Thousands of connections, responses, calls and refusals more need no more memory than thousands before."""
    talk = Talk().on("c@").ask().begin("r@").call("call_@").end()
    talk.ask(previous_response_id="r@", input=[output("call_@")]).begin("r@b", "r@").message(*["x"] * 5).end()
    turn = json.dumps(talk.ask(previous_response_id="zz").missing("zz").records)
    checker = Checker({"dialect": "create", "transport": "websocket"}, profile="any-server")
    blocks = []
    for number in range(20_000):
        for record in orjson.loads(turn.replace("@", str(number))):
            assert checker.feed(record) == ()
        if number % 250 == 249:
            blocks.append(sys.getallocatedblocks())
    assert max(blocks[50:]) < max(blocks[20:50]) * 1.05
    assert checker.summary().responses == 40_000


def test_another_item_does_not_mean_another_look_at_all() -> None:
    """The open item, and the ids that a final output may have, are found without a walk."""

    class Walked(list[Any]):
        walks = 0

        def __iter__(self) -> Iterator[Any]:
            self.walks += 1
            return super().__iter__()

    class Compared(str):  # noqa: SLOT000  # it counts
        times = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Compared.times += 1
            return super().__eq__(other)

    talk = Talk().ask().begin().call(*map(str, range(100))).end()
    for item in talk.records[-1]["frame"]["response"]["output"]:
        item["id"] = Compared(f"other {item['id']}")
    checker = Checker(talk.header, profile="this-engine")
    items = Walked()
    for record in talk.records[:-1]:
        checker.feed(record)
        checker._run.live.get("r1", items).items = items  # type: ignore[union-attr]
    assert items.walks == 0
    checker.feed(talk.records[-1])
    assert Compared.times < 10 * len(items)


def test_lines_read_by_orjson_are_what_it_takes() -> None:
    """The records need be nothing but parsed JSON lines."""
    talk = CASES["T1"].make()[0]
    lines = [orjson.dumps(record) for record in talk.records]
    assert said(check(talk.header, [orjson.loads(line) for line in lines], "this-engine")[1]) == []
