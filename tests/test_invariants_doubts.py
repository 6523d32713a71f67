"""What looks like a fault in a trace and is none, each beside the same trace with the fault."""

from collections.abc import Mapping

import pytest

from protocol.invariants import Checker
from tests.invariant_traces import ALL_HOOKS, Talk, output

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
