"""The strategies for users: what is drawn is legal, what is broken is found, and the documented example does as it says."""

import textwrap
from collections import Counter

import orjson
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import protocol.strategies
from protocol import codec, items
from protocol.dialects import DIALECTS
from protocol.errors import RemoteProtocolError
from protocol.invariants import PROFILES
from protocol.pending import PendingCalls
from protocol.strategies import (
    MUTATIONS,
    OUTPUT_ITEMS,
    Call,
    append_frame,
    broken_traces,
    creates,
    histories,
    http_exchange,
    inject_frame,
    plans,
    resource,
    steers,
    tool_output_programs,
    traces,
    violations,
    websocket_exchange,
    write,
)
from protocol.strategies.breaking import kind_of
from protocol.strategies.plans import Plan, Round, Turn, rollouts
from tests.mutants import drawn_traces

FORMS = ("http", "create", "inject", "append")
CALLS = (Call("c1"), Call("c2", "custom_tool_call"), Call("c3", "tool_search_call"))


# --- the documented example --------------------------------------------------------------------------------------


def example() -> str:
    """The program of the package's documentation."""
    text = protocol.strategies.__doc__
    start = text.index("    from hypothesis import given")
    end = text.index("\n\nLeave", start)
    return textwrap.dedent(text[start:end])


def run_example(program: str) -> tuple[set[str], str]:
    """Run it as a user's test would be run; the rules that fail it, and the smallest input with which they do."""
    seen: list = []

    def looked(trace):
        seen.append((trace, violations(trace)))
        return seen[-1][1]

    names: dict = {}
    exec(compile(program, "the example", "exec"), names)
    names["violations"] = looked
    chosen = settings(database=None, deadline=None, phases=[Phase.generate, Phase.shrink])
    try:
        chosen(names["test_toy_server"])()
    except AssertionError:
        trace, found = seen[-1]
        return {violation.rule for violation in found}, trace.records[0]["frame"]["body"]["input"]
    return set(), ""


def test_the_example_passes():
    """The documented program runs as it stands and finds nothing wrong with the server that it tests."""
    assert run_example(example()) == (set(), "")


def test_the_example_is_short():
    """The documented program tests a server in about twenty lines."""
    assert len([line for line in example().splitlines() if line.strip()]) <= 23


def test_the_example_finds_the_planted_bug():
    """The change that the documentation proposes is found, with a text of hardly more than a line break."""
    planted = example().replace("splitlines(keepends=True)", "splitlines()")
    rules, text = run_example(planted)
    assert (planted != example(), rules, len(text) < 5) == (True, {"C3"}, True)


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ('"in_progress", "content": []}', '"in_progress"}', "I3"),
        ('yield "response.content_part.done", at | {"part": part}', "pass", "C2"),
        ('"item": done}', '"item": item}', "I4"),
        ("output=[done]", "output=[]", "I6"),
        ("usage=usage(1, 1)", "usage=None", "U1"),
    ],
)
def test_other_bugs_of_the_toy_server_are_found(right, wrong, rule):
    """Other bugs in the toy server are found by the same test, each by its rule."""
    assert right in example()
    rules, text = run_example(example().replace(right, wrong))
    assert (rule in rules, text) == (True, "")


def test_every_public_name_is_documented():
    """The table in the package's documentation names what is exported, and each of it has a docstring."""
    exported = set(protocol.strategies.__all__)
    assert {name for name in exported if name not in protocol.strategies.__doc__} <= {
        "Mutated",
        "Mutation",
        "Plan",
        "Trace",
    }
    functions = [getattr(protocol.strategies, name) for name in exported]
    assert [value for value in functions if callable(value) and not value.__doc__] == []


# --- legal streams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_drawn_traces_are_clean(form):
    """A drawn trace breaks no rule, in any profile."""

    @settings(max_examples=80, deadline=None)
    @given(traces(form), st.sampled_from(PROFILES))
    def check(trace, profile):
        assert violations(trace, profile) == []

    check()


def test_drawn_traces_are_json():
    """A trace survives being written to a file and read again."""

    @given(traces())
    def check(trace):
        assert orjson.loads(orjson.dumps(trace.records)) == list(trace.records)

    check()


def test_one_plan_is_one_trace():
    """Writing a plan draws nothing: the same plan is the same trace."""

    @settings(max_examples=30)
    @given(plans("append"))
    def check(plan):
        assert write(plan) == write(plan)

    check()


def test_drawn_frames_are_read():
    """Our codec reads every frame of a drawn trace, the client's and the server's."""

    @settings(max_examples=50, deadline=None)
    @given(traces())
    def check(trace):
        for record in trace.records:
            frame = record["frame"]
            if record["dir"] == "in" and not frame["type"].startswith("http."):
                assert codec.client_event(dict(frame)).type == frame["type"]
            elif record["dir"] == "out" and kind_of(record).startswith("response."):
                assert codec.server_event(frame).type == frame["type"]

    check()


def test_drawn_traces_reach_everything():
    """Over a few hundred traces every event, hook, ending and refusal occurs that the strategies promise."""
    kinds, codes, reasons = Counter(), Counter(), Counter()
    for form in FORMS:
        for trace in drawn_traces(form, 100):
            for record in trace.records:
                frame = record["frame"]
                kinds[kind_of(record)] += 1
                if isinstance(frame, dict):
                    body = frame.get("error") or frame.get("body", {}).get("error") or {}
                    codes[body.get("code")] += 1
                    ended = frame.get("response", {})
                    reasons[(ended.get("incomplete_details") or {}).get("reason")] += 1
                    reasons[ended.get("status")] += 1

    sent = {f"response.{name}" for name in _EVENTS.split()}
    hooks = {
        f"{{{name}}}"
        for name in ["pre_inference", "post_inference", "suspend", "accepted", "resume", "sampler_stop"]
    }
    assert (sent | hooks) - set(kinds) == set()
    assert {
        "model_not_found",
        "previous_response_not_found",
        "invalid_input",
        "no_response_in_progress",
        "response_already_completed",
        "response_not_found",
    } <= set(codes)
    assert {"max_output_tokens", "max_tool_calls", "steered", "failed", "cancelled", "completed"} <= set(
        reasons
    )


_EVENTS = """
created in_progress completed incomplete failed done output_item.added output_item.done content_part.added
content_part.done output_text.delta output_text.done output_text.annotation.added refusal.delta refusal.done
reasoning_text.delta reasoning_text.done reasoning_summary_part.added reasoning_summary_part.done
reasoning_summary_text.delta reasoning_summary_text.done function_call_arguments.delta function_call_arguments.done
custom_tool_call_input.delta custom_tool_call_input.done mcp_call.in_progress mcp_call.completed mcp_call.failed
mcp_call_arguments.delta mcp_call_arguments.done inject.created inject.failed steer.accepted
"""


def smallest(strategy, condition=lambda _: True):
    """What Hypothesis shrinks to."""
    return find(
        strategy,
        condition,
        # not the phase that explains: it tries other values, and `find` gives back the last one tried
        settings=settings(
            database=None,
            max_examples=2000,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def kinds_in(trace):
    return [kind_of(record).removeprefix("response.") for record in trace.records]


def test_traces_shrink_to_one_silent_response():
    """The smallest trace is one response over HTTP that says nothing."""
    assert kinds_in(smallest(traces())) == [
        "http.request",
        "http.response",
        "created",
        "in_progress",
        "completed",
        "",
    ]


def test_suspensions_shrink_to_one_call():
    """The smallest response that pauses and is completed has one call and one output."""
    one = rollouts("append", 1, "frames").map(
        lambda rollout: write(Plan("append", "frames", (Round((Turn(None, rollout),)),)))
    )
    kinds = kinds_in(smallest(one, lambda trace: {"done", "completed"} <= set(kinds_in(trace))))
    assert [kinds.count(kind) for kind in ("output_item.added", "done", "append", "error")] == [1, 1, 1, 0]


BATCHES = 10


# --- broken streams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_mutations_are_found(form):
    """Whatever mutation is drawn, each of its rules is reported."""

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(broken_traces(form))
    def check(broken):
        found = {violation.rule for violation in violations(broken.trace, "this-engine")}
        assert set(broken.rules) <= found, broken.name

    check()


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_found(name):
    """Each mutation of the table can be done somewhere, and wherever it is done its rules are reported."""
    row, seen = MUTATIONS[name], 0
    for batch in range(
        BATCHES
    ):  # Hypothesis draws other traces where it feels like it: rare sites may need more of them
        for trace in corpus(batch):
            for site in list(row.sites(trace))[:2]:
                found = {violation.rule for violation in violations(row.apply(trace, site), "this-engine")}
                assert set(row.rules) <= found
                seen += 1
            if seen > 20:
                return
        if seen:
            return
    raise AssertionError(f"no trace of {BATCHES} batches has a place for it")


def corpus(batch=0):
    for form in FORMS:
        yield from drawn_traces(form, 80, 1 + batch)


def test_mutations_leave_the_trace_alone():
    """A mutation is done on a copy."""
    trace = next(trace for trace in corpus() if len(trace.records) > 10)
    before = orjson.dumps(trace.records)
    for row in MUTATIONS.values():
        for site in row.sites(trace):
            row.apply(trace, site)
    assert orjson.dumps(trace.records) == before


# --- items and requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_create_bodies_are_taken(form):
    """A create of any form is one that our own codec reads."""

    @given(creates(form))
    def check(body):
        frame = body if form != "http" else {"type": "response.create", **body}
        assert codec.client_event(codec.parse(orjson.dumps(frame))).model == "m"

    check()


def test_creates_go_on_from_a_parent():
    """With a parent a create names it, and begins with an output for each of its calls."""

    @given(creates("create", parent="resp_9", calls=CALLS))
    def check(body):
        assert body["previous_response_id"] == "resp_9"
        assert [item["call_id"] for item in body["input"][:3]] == ["c1", "c2", "c3"]

    check()


def test_histories_answer_every_call_once():
    """In a history each call has one output, of the right kind, behind it."""

    @given(histories())
    def check(history):
        waiting = {}
        for item in history:
            if item["type"] in ("function_call", "custom_tool_call"):
                waiting[item["call_id"]] = item["type"]
            elif item["type"].endswith("_call_output"):
                assert item["type"] == f"{waiting.pop(item['call_id'])}_output"
        assert waiting == {}

    check()


@pytest.mark.parametrize("kind", OUTPUT_ITEMS)
def test_output_items_are_read(kind):
    """An output item of any type is read by our codec, with its type."""

    @settings(max_examples=30)
    @given(OUTPUT_ITEMS[kind])
    def check(item):
        event = codec.server_event({"type": "response.output_item.done", "output_index": 0, "item": item})
        assert event.item.type == kind

    check()


def test_frames_of_outputs_and_steers_are_taken():
    """The frames for outputs and for steering are ones that our own codec reads."""

    @given(steers("resp_1"))
    def check(frame):
        event = codec.client_event(codec.parse(orjson.dumps(frame)))
        assert (event.previous_response_id, event.fault) == ("resp_1", None)

    check()
    batch = [{"type": "function_call_output", "call_id": "c1", "output": "ok"}]
    assert codec.client_event(append_frame(batch, "a")).stream_id == "a"
    assert codec.client_event(inject_frame(batch, "resp_1")).response_id == "resp_1"


def test_exchanges_are_traces():
    """A refused request and frames of a WebSocket become traces that are clean if the exchange was."""
    body = {"error": {"type": "invalid_request_error", "code": None, "message": "No.", "param": None}}
    assert violations(http_exchange({"model": "m", "input": "hi"}, [body], status=400)) == []

    create = {"type": "response.create", "model": "m", "input": "hi", "store": False}
    begun = {"type": "response.created", "sequence_number": 0, "response": resource("resp_1")}
    found = violations(websocket_exchange([("in", create), ("out", begun)]))
    assert [violation.rule for violation in found] == ["R3"]


# --- programs of outputs -----------------------------------------------------------------------------------------


def announced(call: Call) -> items.Item:
    """The call as our validator knows it."""
    made = {
        "function_call": lambda: items.FunctionCall(call.call_id, "f", "{}"),
        "custom_tool_call": lambda: items.CustomToolCall(call.call_id, "f", ""),
        "tool_search_call": lambda: items.ToolSearchCall(call.call_id, {}),
    }
    return made[call.type]()


def taken_by(pending: PendingCalls, batch: list[items.Item]) -> tuple:
    """Why our validator refuses a batch, and which calls it answers."""
    try:
        return None, pending.commit(pending.check(batch))
    except RemoteProtocolError as error:
        return (error.code, error.message), ()


@pytest.mark.parametrize("form", ["append", "inject"])
def test_programs_answer_every_call_once(form):
    """The frames that must be taken answer every call exactly once, and the last of them is the last frame."""

    @given(tool_output_programs(CALLS, form=form))
    def check(program):
        answers = [call_id for move in program for call_id in move.answers]
        assert sorted(answers) == ["c1", "c2", "c3"]
        assert program[-1].refused is None
        assert [move.after for move in program] == sorted(move.after for move in program)

    check()


@pytest.mark.parametrize("form", ["append", "inject"])
def test_programs_are_judged_as_by_the_validator(form):
    """What a program says must be refused, our validator refuses, in the same words; all else it takes."""

    @given(tool_output_programs(CALLS, form=form))
    def check(program):
        pending = PendingCalls("resp_1", DIALECTS[form])
        seen = 0
        for move in program:
            while seen < move.after:
                pending.finished(announced(CALLS[seen]))
                seen += 1
            batch = [codec.structure(item, items.Item) for item in move.input]
            assert taken_by(pending, batch) == (move.refused, move.answers)
        assert len(pending) == 0

    check()


def test_programs_shrink_to_one_frame():
    """The smallest program is one frame with all outputs in call order, sent when the server waits."""
    (move,) = smallest(tool_output_programs(CALLS))
    assert (move.answers, move.after, move.paused, move.refused) == (("c1", "c2", "c3"), 3, True, None)


def test_programs_without_faults_are_all_right():
    """Without faults nothing is to be refused, and without haste all of it waits for the pause."""

    @given(tool_output_programs(CALLS, faulty=False, early=False))
    def check(program):
        assert {(move.refused, move.paused) for move in program} == {(None, True)}

    check()
