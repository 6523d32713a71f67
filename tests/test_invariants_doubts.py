"""What looks like a fault in a trace and is none, each beside the same trace with the fault."""

from collections.abc import Mapping
from typing import Any

import pytest

from protocol.invariants import Checker
from tests.invariant_traces import ALL_HOOKS, Talk, alter, find, output

HURRY = {"type": "message", "role": "user", "content": "hurry"}
DEADLINE_S = 60.0


def broken_rules(talk: Talk, profile: str = "this-engine") -> list[str]:
    """The rules that a trace breaks, in the order of the records."""
    checker = Checker(talk.header, profile=profile)
    found = [one for record in talk.records for one in checker.feed(record)]
    return [one.rule for one in (*found, *checker.finish())]


def hooked(dialect: str, *hooks: str, **header: object) -> Talk:
    """A trace with the engine's hooks."""
    return Talk(dialect, *ALL_HOOKS, *hooks, **header)


def begun(story: Talk, response_id: str = "r1", parent: str | None = None) -> Talk:
    """A response begins, as the hooks tell it."""
    return story.hook("pre_inference", response_id=response_id).begin(response_id, parent)


def over(story: Talk, status: str = "completed") -> Talk:
    """A response ends, as the hooks tell it."""
    return story.hook("post_inference", response_id=story.current).end(status)


# --- words before a response says that it has begun ----------------------------------------------------------------


def test_words_may_be_taken_by_a_response_that_has_not_said_that_it_began() -> None:
    """The engine puts them behind the create's own input; an output can be for no call of it (S8)."""

    def talk(item: Mapping[str, object], *call_ids: str) -> Talk:
        story = hooked("append").ask().append(input=[item])
        story.current = "r1"
        return over(begun(story.accepted(*call_ids)).message())

    assert broken_rules(talk(HURRY)) == []
    assert broken_rules(talk(output("c1"), "c1")) == ["S8"]


def test_words_may_be_refused_before_a_response_says_that_it_began() -> None:
    """Whether it has begun does not show; without a create there is nothing that could take them (S8)."""
    refused = Talk("append").ask().append(input=[HURRY]).error("no_response_in_progress")
    assert broken_rules(refused.begin().message().end()) == []
    accepted = hooked("append").append(input=[HURRY])
    accepted.current = "r1"
    assert broken_rules(accepted.accepted()) == ["S8"]


# --- a steered response and a create that waits ------------------------------------------------------------------


def steered(*, calls: bool = False) -> Talk:
    """A response was steered and has ended, and a create that names it waits behind it."""
    story = Talk().ask().begin("r1")
    story = story.call("c1") if calls else story.message()
    story.sends("response.steer", previous_response_id="r1", input="shorter")
    steer = {"previous_response_id": "r1", "id": "steer_1"}
    story.out("response.steer.accepted", steer=steer)
    story.ask(previous_response_id="r1", input=[output("c1")] if calls else "and then?")
    if calls:
        return story.end().out("response.steer.pending", reason="waiting_for_required_input", steer=steer)
    return story.end("incomplete", incomplete_details={"reason": "steered"})


def test_the_successor_of_a_steered_response_answers_no_create() -> None:
    """The create that names the same parent still waits for its own answer (R7), and gets one."""
    successor = steered().begin("r2", "r1").message().end()
    assert broken_rules(successor) == ["R7"]
    assert broken_rules(successor.missing("r1")) == []
    assert broken_rules(successor.begin("r3", "r2").message().end()) == ["R6"]


def test_words_that_wait_for_outputs_go_with_the_create_that_brings_them() -> None:
    """There is no successor then: one response, and a second one would answer nothing (R6)."""
    taken = steered(calls=True).begin("r2", "r1").message().end()
    assert broken_rules(taken) == []
    assert broken_rules(taken.begin("r3", "r1").message().end()) == ["R6"]


# --- ended without a word ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["append", "inject"])
def test_a_response_is_abandoned_also_by_a_create_that_is_refused(dialect: str) -> None:
    """Its pause was never told, as the create waited already; without that create its end is missing (R3)."""

    def talk(*, create: bool) -> Talk:
        story = begun(hooked(dialect, "connection_close").ask()).call("c1")
        if create:
            story.ask(previous_response_id="zz")
        story.hook("post_inference", response_id="r1")
        if create:
            story.missing("zz")
        return story.hook("connection_close", by="server", code=1001)

    assert broken_rules(talk(create=True)) == []
    assert broken_rules(talk(create=False)) == ["R3"]


# --- how long a pause is -----------------------------------------------------------------------------------------


def paused(dialect: str = "append", *call_ids: str) -> Talk:
    """A response waits for its outputs, in a trace that names a deadline."""
    story = hooked(dialect, "slot_acquire", suspend_deadline_s=DEADLINE_S).ask()
    return begun(story).call(*call_ids or ("c1",)).suspend(*call_ids or ("c1",))


def test_who_waits_for_a_place_is_not_suspended() -> None:
    """With all outputs in, the deadline is over; with one missing it is not (S13)."""

    def talk(*call_ids: str) -> Talk:
        story = paused("inject", "c1", "c2").inject(*call_ids).accepted(*call_ids).taken()
        return story.wait(4 * DEADLINE_S).hook("tick")

    assert broken_rules(over(talk("c1", "c2").resume("c1", "c2").message())) == []
    assert broken_rules(over(talk("c1"))) == ["S13"]


def test_the_header_of_the_append_form_does_not_name_the_deadline_of_the_inject_form() -> None:
    """A connection may have responses of both; it is known for those of its own form (S13)."""

    def talk(**members: object) -> Talk:
        story = hooked("append", suspend_deadline_s=DEADLINE_S).ask(**members)
        story = begun(story).call("c1").hook("suspend", response_id="r1", pending=["c1"])
        return story if members else story.pause()

    inject = talk(multi_agent={"enabled": True}).wait(4 * DEADLINE_S)
    assert broken_rules(over(inject)) == []
    assert broken_rules(over(talk().wait(4 * DEADLINE_S), "failed")) == ["S13"]


def test_with_some_outputs_in_a_pause_lasts_to_its_deadline() -> None:
    """A response that gives up sooner, on a connection that goes on, did not stay suspended (S6)."""

    def talk(seconds: float) -> Talk:
        return over(
            paused("append", "c1", "c2").append("c1").accepted("c1").wait(seconds),
            "failed",
        )

    assert broken_rules(talk(DEADLINE_S)) == []
    assert broken_rules(talk(1.0)) == []  # the server may be going away
    for seconds, rules in ((DEADLINE_S, []), (1.0, ["S6"])):
        assert broken_rules(over(begun(talk(seconds).ask(), "r2").message())) == rules


# --- refused on the way to the end -------------------------------------------------------------------------------


def test_a_response_whose_sampling_has_stopped_for_good_takes_nothing_more() -> None:
    """Its end is still to come; while it may go on its calls are answered (S4)."""

    def talk(reason: str) -> Talk:
        story = begun(hooked("inject", "sampler_stop").ask()).call("c1")
        story.hook("sampler_stop", response_id="r1", reason=reason).inject("c1")
        error = {"code": "response_already_completed", "message": "It has completed."}
        story.out("response.inject.failed", response_id="r1", input=[output("c1")], error=error)
        return over(story, "failed")

    assert broken_rules(talk("cancel")) == []
    assert broken_rules(talk("tool_call")) == ["S4"]


def test_a_warm_up_takes_words_or_does_not() -> None:
    """It samples nothing, so nobody sees when it is too late; another response waits for words too (S24)."""

    def talk(**members: object) -> Talk:
        story = Talk("append").ask(**members).begin()
        return story.append(input=[HURRY]).error("no_response_in_progress")

    used = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 0}
    used |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 3}
    assert broken_rules(talk(generate=False).end(segment=used)) == []
    assert broken_rules(talk().message().end()) == ["S24"]


# --- what was said is asked for again ------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["any-server", "this-engine"])
@pytest.mark.parametrize("query", [{"stream": "true"}, {"stream": "true", "starting_after": "2"}])
def test_the_events_of_an_ended_response_may_be_sent_again(query: Mapping[str, str], profile: str) -> None:
    """To whom asks for them with a GET, whole or from a number on; on a connection that asked for a create it is R2."""

    def talk(method: str, path: str, **members: object) -> Talk:
        story = Talk("http").turn()
        said = [
            one
            for one in story.records[2:]
            if isinstance(one["frame"], str) or "sequence_number" in one["frame"]
        ]
        again = [one for one in said if isinstance(one["frame"], str) or one["frame"]["sequence_number"] > 2]
        story.on("c2").sends("http.request", method=method, path=path, **members)
        story.record("out", {"type": "http.response", "status": 200})
        for one in said if "starting_after" not in query else again:
            story.record("out", one["frame"], **({"event": one["event"]} if "event" in one else {}))
        return story

    assert broken_rules(talk("GET", "/v1/responses/r1", query=query), profile) == []
    body = {"model": "m", "input": "hi", "stream": True}
    assert {"R1", "R2"} & set(broken_rules(talk("POST", "/v1/responses", body=body), profile))


def test_the_first_that_a_trace_shows_of_a_response_is_judged() -> None:
    """Asked for whole, and never seen before: then it must be in order, too."""

    def talk(*skipped: int) -> Talk:
        said = Talk("http").turn().records[2:]
        story = Talk("http").sends(
            "http.request", method="GET", path="/v1/responses/r1", query={"stream": "true"}
        )
        story.record("out", {"type": "http.response", "status": 200})
        for number, one in enumerate(said):
            if number not in skipped:
                story.record("out", one["frame"], **({"event": one["event"]} if "event" in one else {}))
        return story

    assert "N1" in broken_rules(talk(4), "any-server")


@pytest.mark.parametrize("readers", [("c1", "c2"), ("c2", "c1"), ("c1",), ("c2",)])
@pytest.mark.parametrize("after", [-1, 3])
def test_two_may_read_a_response_that_runs(readers: tuple[str, ...], after: int) -> None:
    """Each gets its own copy of the events, in any order or one of them only; a hole is one all the same (N1)."""

    def talk(*lost: int) -> Talk:
        said = Talk("http").turn().records
        story = Talk("http")
        story.records = said[:7]
        query = {"stream": "true", **({"starting_after": str(after)} if after >= 0 else {})}
        story.on("c2").sends("http.request", method="GET", path="/v1/responses/r1", query=query)
        story.record("out", {"type": "http.response", "status": 200})
        for one in said[3 + after : 7]:
            story.record("out", one["frame"], event=one["event"])
        for number, one in enumerate(said[7:]):
            for conn in readers if number not in lost else ():
                story.on(conn).record(
                    "out", one["frame"], **({"event": one["event"]} if "event" in one else {})
                )
        return story

    assert broken_rules(talk(), "any-server") == []
    assert "N1" in broken_rules(talk(1), "any-server")


# --- what a trace does not show ------------------------------------------------------------------------------------


def test_a_call_may_stand_in_a_conversation() -> None:
    """It holds the calls of responses that no create names; an output for no call is a fault elsewhere (W13)."""

    def talk(**members: str) -> Talk:
        story = Talk().ask(**members).begin("r1").call("c1").end()
        return story.turn("r2", input=[output("c1")], **members)

    assert broken_rules(talk(conversation="conv_1")) == []
    assert broken_rules(talk(conversation="conv_1").turn("r3", "r2", input=[output("c1")])) == []
    assert broken_rules(talk()) == ["W13"]


def test_a_response_may_have_more_calls_than_are_kept() -> None:
    """Then an output may be for one of the others."""
    names = [f"c{number}" for number in range(300)]
    story = Talk().ask().begin("r1").call(*names).end()
    assert broken_rules(story.turn("r2", "r1", input=[output(name) for name in names])) == []


def test_of_many_calls_the_open_one_is_kept() -> None:
    """Its output is missed (W13), and its id is not new again (I7)."""

    def talk(*given: str) -> Talk:
        story = Talk("inject").ask().begin("r1")
        for number in range(299):
            story.call(f"c{number}").inject(f"c{number}").taken()
        story.call("open").end()
        items: Any = [output(name) for name in given] or "never mind"
        return story.ask(previous_response_id="r1", input=items, multi_agent={}).begin("r2", "r1")

    assert broken_rules(talk("open").message().end()) == []
    assert broken_rules(talk().message().end()) == ["W13"]
    assert broken_rules(talk("open").call("open").end()) == ["I7"]


def test_a_response_in_the_background_is_answered_before_it_has_run() -> None:
    """What it says is asked for later, and its calls may be answered; who asked for no background waits (R7)."""

    def talk(**members: object) -> Talk:
        body = {"model": "m", "input": "hi", **members}
        story = Talk("http").sends("http.request", method="POST", path="/v1/responses", body=body)
        said = {"id": "r1", "object": "response", "model": "m", "status": "queued", "output": []}
        story.record("out", {"type": "http.response", "status": 200, "body": said})
        return story.on("c2").turn("r2", "r1", input=[output("c1")])

    assert broken_rules(talk(background=True), "any-server") == []
    assert broken_rules(talk(), "any-server") == ["R7"]


# --- other names and other texts -----------------------------------------------------------------------------------


def test_reasoning_has_another_name_in_open_responses() -> None:
    """Its deltas and its done are judged like those of the usual name (C3)."""

    def talk(text: str) -> Talk:
        story = Talk().ask().begin()
        place = story.add({"id": "rs", "type": "reasoning", "summary": [], "content": []})
        part = story.part(place, 0, "Hm", ".", kind="reasoning_text")
        story.finish(place, content=[part]).message().end()
        for one in story.records:
            one["frame"]["type"] = one["frame"]["type"].replace("reasoning_text.", "reasoning.")
        return alter(story, "response.reasoning.done", text=text)

    assert broken_rules(talk("Hm."), "any-server") == []
    assert "C3" in broken_rules(talk("Ha."), "any-server")


@pytest.mark.parametrize(
    ("index", "rules"), [(0, []), (5, ["N3"])], ids=["the first part", "a part that is not next"]
)
def test_reasoning_without_parts_counts_its_texts(index: int, rules: list[str]) -> None:
    """Its parts need not be added, but their indices have no hole (N3)."""
    story = Talk().ask().begin()
    place = story.add({"id": "rs", "type": "reasoning", "summary": []})
    for kind, member in (("delta", "delta"), ("delta", "delta"), ("done", "text")):
        text = "xx" if kind == "done" else "x"
        story.out(f"response.reasoning_text.{kind}", **place, content_index=index, **{member: text})
    assert broken_rules(story.finish(place).end()) == rules


@pytest.mark.parametrize(
    ("arguments", "rules"),
    [
        (r'{"x":"\ud83d"}', []),
        ('{"x":1e400}', []),
        ('{"x":' + "1" * 5000 + "}", []),
        ("[" * 1500 + "]" * 1500, []),
        ('{"x":NaN}', ["C5"]),
        (r'{"x":"\ud8"}', ["C5"]),
        ("[" * 20, ["C5"]),
    ],
    ids=["half a pair", "beyond a double", "a long number", "deep", "no number", "half an escape", "open"],
)
def test_arguments_are_any_json(arguments: str, rules: list[str]) -> None:
    """Also what a strict reader refuses to take in."""
    assert broken_rules(Talk().ask().begin().call("c1", arguments=arguments).end()) == rules


@pytest.mark.parametrize(
    ("member", "value", "rule"),
    [
        ("sequence_number", 4.0, "N1"),
        ("output_index", 0.0, "N2"),
        ("output_index", False, "N2"),
        ("content_index", False, "N3"),
    ],
)
def test_a_number_is_an_integer(member: str, value: object, rule: str) -> None:
    """What merely equals it is none, also in a delta that would be next."""
    deltas = Talk("http").ask().begin().message("a", "b", "c").end()
    assert rule in broken_rules(alter(deltas, "response.output_text.delta", 0, **{member: value}))
    if member != "sequence_number":
        assert rule in broken_rules(alter(deltas, "response.output_text.delta", 1, **{member: value}))


# --- what is nested deep -------------------------------------------------------------------------------------------


def nested(depth: int, value: object) -> object:
    """A list in a list in a list."""
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [500, 1010])
def test_what_is_nested_deep_is_compared(depth: int) -> None:
    """The same is the same, and another value is found (I6), however deep it stands."""

    def talk(value: int) -> Talk:
        story = Talk().ask().begin()
        story.finish(story.add({"id": "x", "type": "new"})).end()
        story.records[find(story, "response.output_item.done")]["frame"]["item"]["x"] = nested(depth, 1)
        story.records[-1]["frame"]["response"]["output"][0]["x"] = nested(depth, value)
        return story

    assert broken_rules(talk(1)) == []
    assert broken_rules(talk(2)) == ["I6"]


def test_what_is_nested_deep_is_shown() -> None:
    """Where no reason is expected (R4)."""
    story = Talk().ask().begin().message().end()
    story.records[-1]["frame"]["response"]["error"] = nested(2000, 1)
    assert broken_rules(story) == ["R4"]


def test_what_is_nested_too_deep_is_not_judged() -> None:
    """A role that changes is I5, unless it is beyond any comparison; then nothing is said, and nothing raised."""
    story = Talk().ask().begin().message().end()
    story.records[find(story, "response.output_item.done")]["frame"]["item"]["role"] = nested(2000, 1)
    story.records[find(story, "response.output_item.added")]["frame"]["item"]["role"] = nested(2000, 1)
    assert "I3" in broken_rules(story)


# --- after the end ---------------------------------------------------------------------------------------------------


def test_an_error_before_the_end_mark_needs_its_failure() -> None:
    """Without response.failed there is no end (R3), and the error has not led to it (R6)."""
    story = Talk("http").ask().begin()
    story.out("error", code="server_error", message="No.", param=None).record("out", "[DONE]")
    assert {"R3", "R6"} <= set(broken_rules(story, "any-server"))


@pytest.mark.parametrize("dialect", ["http", "create"])
def test_an_event_of_any_type_comes_before_the_end(dialect: str) -> None:
    """When it is counted and of that response (R3); on a socket one that names none may be of the next."""

    def talk(**members: object) -> list[str]:
        story = Talk(dialect).turn()
        return broken_rules(story.record("out", {"type": "response.new", **members}), "any-server")

    named = {"sequence_number": 9, "response_id": "r1"}
    assert "R3" in talk(**named)
    assert ("R3" in talk(sequence_number=9)) == (dialect == "http")
    assert "R3" not in talk(response_id="r1")


# --- frames of a wrong form ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "rules"),
    [
        ([{"type": "input_text", "text": 5}], []),
        ([{"type": "input_text"}], []),
        ([{"type": 5}], []),
        ([5], []),
        ([{"type": "input_text", "text": "ok"}], ["S4"]),
    ],
)
def test_an_output_may_be_refused_for_its_parts(parts: list[object], rules: list[str]) -> None:
    """One whose form is right is taken (S4)."""
    story = Talk("append").ask().begin().call("c1").pause()
    story.append(input=[{**output("c1"), "output": parts}]).error("invalid_type")
    assert broken_rules(story.append("c1").message().end()) == rules


@pytest.mark.parametrize(("parent", "rules"), [(5, []), ("r1", ["S4"])])
def test_an_append_may_be_refused_for_the_name_of_its_response(parent: object, rules: list[str]) -> None:
    """A name that is no string is a wrong form."""
    story = Talk("append").ask().begin().call("c1").pause()
    story.append("c1", previous_response_id=parent).error("invalid_type")
    assert broken_rules(story.append("c1").message().end()) == rules


@pytest.mark.parametrize(("code", "rules"), [("response_not_found", []), ("invalid_input", ["S8"])])
def test_an_append_response_is_none_for_an_inject(code: str, rules: list[str]) -> None:
    """Whose answer says so, with its code (S8)."""
    story = Talk("append").ask().begin().call("c1").pause().inject("c1")
    answer = {"type": "response.inject.failed", "response_id": "r1", "input": [output("c1")]}
    number = 0 if code == "response_not_found" else story.numbers["r1"]
    story.record("out", {**answer, "sequence_number": number, "error": {"code": code, "message": "No."}})
    story.numbers["r1"] = max(story.numbers["r1"], number + 1)
    assert broken_rules(story.append("c1").message().end()) == rules


def test_a_steer_that_names_no_response_may_be_answered_by_an_error() -> None:
    """By one; a second answers nothing (R6)."""
    story = Talk().ask().begin().message().sends("response.steer").error("missing_required_parameter")
    assert broken_rules(alter(story.end(), "response.steer")) == []
    assert broken_rules(story.error("missing_required_parameter")) == ["R6"]
