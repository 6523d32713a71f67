"""Steering (reference 4.6): a user's word to a response that is being made is applied, or given back, and never lost."""

from typing import Any

import pytest
import trio

from engine.config import Limits
from engine.storage import MemoryStore, UsageRow
from tests.create_form import STALL_SECONDS, Caller, run, text_in, user
from tests.scenarios import TERMINAL

STEERED = {"reason": "steered"}


def steer(response_id: str, words: Any = "please hurry", **more: Any) -> dict[str, Any]:
    return {"type": "response.steer", "previous_response_id": response_id, "input": words, **more}


async def steered(
    caller: Caller, text: str = "wait", *words: Any, **members: Any
) -> tuple[str, list[dict[str, Any]]]:
    """Begin a response, steer it in its first item; its id and the answers."""
    caller.create(text, **members)
    created = await caller.until("response.created")
    await caller.until("response.output_item.added")
    response_id = created["response"]["id"]
    answers = []
    for word in words or ("please hurry",):
        caller.raw.send(steer(response_id, word))
        answers.append(await caller.until("response.steer.accepted", "response.steer.failed"))
    return response_id, answers


def test_a_steered_response_ends_between_two_items_and_its_successor_follows():
    """Accepted, then `incomplete` for being steered, then a response with all settings that continues it."""

    async def program(caller: Caller) -> None:
        response_id, (accepted,) = await steered(caller, metadata={"a": "b"}, instructions="be nice")
        assert accepted["steer"] == {"previous_response_id": response_id, "id": accepted["steer"]["id"]}
        ended = await caller.until(*TERMINAL)
        assert (ended["type"], ended["response"]["incomplete_details"]) == ("response.incomplete", STEERED)
        assert ended["sequence_number"] > accepted["sequence_number"]
        successor = (await caller.next())["response"]
        assert (successor["previous_response_id"], successor["metadata"], successor["instructions"]) == (
            response_id,
            {"a": "b"},
            "be nice",
        )
        assert "You said please hurry." == text_in((await caller.until(*TERMINAL))["response"])

    assert "please hurry" == run(program).heard()[-1]


def test_several_words_go_in_in_the_order_they_came():
    """Each submission has an id of its own; together they are the successor's input."""

    async def program(caller: Caller) -> None:
        _, answers = await steered(caller, "wait", "first", [user("second"), user("third")])
        assert 2 == len({answer["steer"]["id"] for answer in answers})
        await caller.until("response.incomplete")
        await caller.until("response.completed")

    assert ["first", "second", "third"] == run(program).heard()[-3:]


def test_words_wait_for_outputs_when_the_response_stopped_for_them():
    """Pending after the end, one stub for each call; the create that brings the outputs takes the words along, first."""

    async def program(caller: Caller) -> None:
        response_id, (accepted,) = await steered(caller, "call slowly")
        ended = await caller.until(*TERMINAL)
        call = ended["response"]["output"][-1]
        pending = await caller.next()
        assert {**pending, "sequence_number": 0} == {
            "type": "response.steer.pending",
            "reason": "waiting_for_required_input",
            "required_input": [{"type": "function_call_output", "call_id": call["call_id"], "name": "f"}],
            "steer": accepted["steer"],
            "sequence_number": 0,
        }
        assert pending["sequence_number"] == ended["sequence_number"] + 1
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
        resource = await caller.turn(
            [output, user("and?")], previous_response_id=response_id, metadata={"own": "yes"}
        )
        assert {"own": "yes"} == resource["metadata"]

    assert ["please hurry", "and?"] == run(program).heard()[-2:]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"input": ""}, "'input' must be a non-empty string or a non-empty list of user messages."),
        ({"input": []}, "'input' must be a non-empty string or a non-empty list of user messages."),
        ({"stream_id": "a"}, "'stream_id' is not a member of 'response.steer'."),
        (
            {"input": [{"role": "system", "content": "x"}]},
            "'input[0]' must be a user message with 'type', 'role' and 'content' only.",
        ),
        (
            {"input": [user("x") | {"id": "msg_1"}]},
            "'input[0]' must be a user message with 'type', 'role' and 'content' only.",
        ),
    ],
)
def test_a_bad_submission_comes_back_unchanged(frame: dict[str, Any], message: str):
    """It is refused by number and name, and the response goes on to its own end."""

    async def program(caller: Caller) -> None:
        caller.create("wait")
        response_id = (await caller.until("response.created"))["response"]["id"]
        sent = steer(response_id, **frame) if "input" not in frame else {**steer(response_id), **frame}
        caller.raw.send(sent)
        failed = await caller.until("response.steer.failed")
        assert failed["error"] == {
            "code": "invalid_input",
            "message": message,
            "type": "invalid_request_error",
        }
        assert failed["steer"] == {"previous_response_id": response_id, "input": sent["input"]}
        assert "Wait.Done." == text_in((await caller.until(*TERMINAL))["response"])

    run(program)


def test_what_cannot_be_steered_is_named():
    """An unknown response has number 0; an ended one goes on with its numbers; an inject response does not support it."""

    async def program(caller: Caller) -> None:
        caller.raw.send(steer("resp_9"))
        unknown = await caller.until("response.steer.failed")
        assert ("response_not_found", 0) == (unknown["error"]["code"], unknown["sequence_number"])
        resource = await caller.turn("hi")
        caller.raw.send(steer(resource["id"]))
        ended = await caller.until("response.steer.failed")
        assert "response_already_completed" == ended["error"]["code"]
        assert ended["sequence_number"] == caller.frames[-2]["sequence_number"] + 1
        caller.create("wait", multi_agent={"enabled": True})
        inject = (await caller.until("response.created"))["response"]["id"]
        caller.raw.send(steer(inject))
        assert "steering_not_supported" == (await caller.until("response.steer.failed"))["error"]["code"]
        await caller.until(*TERMINAL)

    run(program)


def test_only_so_many_words_wait():
    """One more than the limit comes back; those accepted are applied."""

    async def program(caller: Caller) -> None:
        _, answers = await steered(caller, "wait", "one", "two", "three")
        assert ["accepted", "accepted", "failed"] == [a["type"].split(".")[-1] for a in answers]
        assert "too_many_pending_steers" == answers[-1]["error"]["code"]
        await caller.until("response.incomplete")
        await caller.until("response.completed")

    assert ["one", "two"] == run(program, limits=Limits(max_pending_steers=2)).heard()[-2:]


def test_words_to_a_response_that_fails_come_back():
    """No successor continues a failed response: each submission is given back with its id."""

    async def program(caller: Caller) -> None:
        _, (accepted,) = await steered(caller, "wait and fail")
        await caller.until("response.failed")
        failed = await caller.next()
        assert ("successor_creation_failed", accepted["steer"]["id"], "please hurry") == (
            failed["error"]["code"],
            failed["steer"]["id"],
            failed["steer"]["input"],
        )
        assert "You said again." == text_in(await caller.turn("again"))

    run(program)


def test_words_that_wait_for_outputs_are_for_that_response_only():
    """Another chain takes the lane: the words come back, once, and are neither put into it nor asked for again."""

    async def program(caller: Caller) -> None:
        first, (accepted,) = await steered(caller, "call slowly")
        pending = await caller.until("response.steer.pending")
        assert accepted["steer"] == pending["steer"]
        other = await caller.turn("call")
        failed = await caller.until("response.steer.failed")
        assert ("successor_creation_failed", accepted["steer"]["id"]) == (
            failed["error"]["code"],
            failed["steer"]["id"],
        )
        assert pending["sequence_number"] + 1 == failed["sequence_number"]
        assert first == failed["steer"]["previous_response_id"]
        await caller.turn([caller.output(-1)], previous_response_id=other["id"])

    left = run(program)
    assert "please hurry" not in left.heard()
    assert 1 == sum(frame["type"] == "response.steer.pending" for frame in left.frames)


def test_the_successor_goes_before_what_waits_on_the_lane():
    """A create that was queued behind the steered response starts after the successor."""

    async def program(caller: Caller) -> None:
        started = trio.current_time()
        _, _ = await steered(caller)
        caller.create("next")
        texts = [text_in((await caller.until(*TERMINAL))["response"]) for _ in range(3)]
        assert ["You said please hurry.", "You said next."] == texts[1:]
        assert trio.current_time() - started <= 2 * STALL_SECONDS

    run(program)


@pytest.mark.parametrize(
    ("tokens", "details"),
    [(1, {"reason": "max_output_tokens"}), (2, STEERED)],
    ids=["spent before the item ends", "just enough"],
)
def test_a_response_that_runs_out_of_tokens_is_followed_all_the_same(tokens: int, details: dict[str, str]):
    """Its end is its own, the words are not lost, and the connection lives."""

    async def program(caller: Caller) -> None:
        response_id, _ = await steered(caller, max_output_tokens=tokens)
        ended = await caller.until(*TERMINAL)
        assert ("response.incomplete", details) == (ended["type"], ended["response"]["incomplete_details"])
        successor = (await caller.until("response.created"))["response"]
        assert response_id == successor["previous_response_id"]
        await caller.until(*TERMINAL)
        await caller.turn("again", max_output_tokens=None)

    left = run(program)

    assert ["please hurry"] == left.heard(1)[-1:]


def test_each_pending_call_has_a_stub_and_a_custom_one_no_name():
    """Two calls, two stubs, said once for each submission; answers to steers carry the lane they are for."""

    async def program(caller: Caller) -> None:
        response_id, accepted = await steered(caller, "call both slowly", "one", "two", stream_id="a")
        ended = await caller.until(*TERMINAL)
        pending = [await caller.next() for _ in accepted]
        one, two = (item["call_id"] for item in ended["response"]["output"])
        required = [
            {"type": "function_call_output", "call_id": one, "name": "f"},
            {"type": "custom_tool_call_output", "call_id": two},
        ]
        assert [frame["steer"] for frame in accepted] == [frame["steer"] for frame in pending]
        assert [required] * 2 == [frame["required_input"] for frame in pending]
        assert {"a"} == {frame["stream_id"] for frame in (*accepted, *pending)}
        outputs = [caller.output(0), caller.output(1)]
        await caller.turn(outputs, previous_response_id=response_id, stream_id="a")
        assert 2 == sum(frame["type"] == "response.steer.pending" for frame in caller.frames)

    assert ["one", "two"] == run(program).heard()[-2:]


@pytest.mark.parametrize("form", ["append", "compacting"])
def test_a_response_that_cannot_be_steered_goes_on(form: str):
    """Of the append form, or one that compacts its context by itself: `steering_not_supported`, with the words."""
    managed = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}

    async def steer_it(caller: Caller) -> None:
        caller.create("wait", **(managed if form == "compacting" else {}))
        response_id = (await caller.until("response.created"))["response"]["id"]
        caller.raw.send(steer(response_id))
        failed = await caller.until("response.steer.failed")
        assert "steering_not_supported" == failed["error"]["code"]
        assert {"previous_response_id": response_id, "input": "please hurry"} == failed["steer"]
        assert "Wait.Done." == text_in((await caller.until(*TERMINAL))["response"])

    async def program(caller: Caller) -> None:
        if form == "compacting":
            await steer_it(caller)
        else:
            async with caller.served.connect_raw(append=True) as raw:
                await steer_it(Caller(raw, "append", caller.served))

    run(program, may_be_empty=True)


def test_a_response_that_is_being_ended_takes_no_words():
    """Cancelled, and its terminal event not sent yet: `response_not_active`; afterwards it has completed already."""

    async def program(caller: Caller) -> None:
        store = SlowStore()
        caller.served.server.engine.store = store
        caller.create("wait")
        response_id = (await caller.until("response.created"))["response"]["id"]
        await caller.until("response.output_item.added")
        assert caller.served.server.cancel(response_id)
        await store.asked.wait()
        for code, event in (("response_not_active", store.go), ("response_already_completed", None)):
            caller.raw.send(steer(response_id))
            failed = await caller.until("response.steer.failed")
            assert code == failed["error"]["code"]
            if event is not None:
                event.set()
                await caller.until(*TERMINAL)

    run(program)


def test_a_successor_that_waits_for_its_place_when_the_server_goes_away_gives_the_words_back():
    """They come back by `response.steer.failed` alone: no create of the client's is there for an `error` frame."""

    async def program(caller: Caller) -> None:
        _, (accepted,) = await steered(caller)
        caller.create("wait", stream_id="other")
        assert "response.incomplete" == (await caller.until(*TERMINAL))["type"]
        await caller.until("response.output_text.delta")
        caller.served.server.drain()
        failed = await caller.until("response.steer.failed", "error")
        assert {**accepted["steer"], "input": "please hurry"} == failed["steer"]
        assert "successor_creation_failed" == failed["error"]["code"]
        ended = await caller.until(*TERMINAL, "error")
        assert ("response.completed", "other") == (ended["type"], ended["stream_id"])

    run(program, limits=Limits(sampler_slots=1))


class SlowStore(MemoryStore):
    """Counts nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = trio.Event(), trio.Event()

    async def record_usage(self, row: UsageRow) -> None:
        self.asked.set()
        await self.go.wait()
        await super().record_usage(row)
