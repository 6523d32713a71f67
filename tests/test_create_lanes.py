"""Lanes of a connection in the create form: order, concurrency, labels and bounds (reference 4.5)."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio

from engine.config import DEFAULT_LIMITS, Limits
from tests.create_form import STALL_SECONDS, Caller, error_frame, run, text_in
from tests.scenarios import MULTI_AGENT, TERMINAL

BAD_LANE = error_frame(
    "invalid_stream_id",
    "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain letters, "
    "numbers, underscores, hyphens, and periods.",
    "stream_id",
)
QUEUE_FULL = error_frame(
    "websocket_queue_limit_reached",
    "Too many queued response.create events on this connection.",
    status=429,
    type="too_many_requests",
)


async def read_ends(caller: Caller, count: int) -> list[dict[str, Any]]:
    """Read up to so many terminal events; these."""
    return [await caller.until(*TERMINAL) for _ in range(count)]


def bounds_of(frames: Sequence[dict[str, Any]], lane: str | None) -> list[str]:
    """The beginnings and ends of responses on a lane, in the order of their frames."""
    of_lane = [frame["type"] for frame in frames if frame.get("stream_id") == lane]
    return [kind.removeprefix("response.") for kind in of_lane if kind in {"response.created", *TERMINAL}]


@pytest.mark.parametrize("lane", [None, "main"])
def test_a_lane_is_first_in_first_out_and_never_overlaps(lane: str | None):
    """Four creates sent at once, fast and slow ones: one after the other, in order."""
    texts = ["wait", "one", "wait", "two"]

    async def program(caller: Caller) -> None:
        started = trio.current_time()
        for text in texts:
            caller.create(text, stream_id=lane)
        said = [text_in(frame["response"]) for frame in await read_ends(caller, 4)]
        assert said == ["Wait.Done.", "You said one.", "Wait.Done.", "You said two."]
        assert trio.current_time() - started == pytest.approx(2 * STALL_SECONDS)

    left = run(program)

    assert bounds_of(left.frames, lane) == ["created", "completed"] * 4


def test_nothing_is_sent_of_a_create_that_waits_for_its_lane():
    """The forker relies on it: `created` and `in_progress` mean that the response has started."""

    async def program(caller: Caller) -> None:
        caller.create("wait", stream_id="a")
        caller.create("next", stream_id="a")
        await caller.until("response.output_text.delta")
        with trio.move_on_after(STALL_SECONDS - 1):
            await caller.until("response.created")
            raise AssertionError("the second response began beside the first")
        await read_ends(caller, 2)

    run(program)


def test_lanes_are_concurrent():
    """Three lanes, the default one among them, take the time of one; a fast one overtakes."""

    async def program(caller: Caller) -> None:
        started = trio.current_time()
        for lane in (None, "a", "b"):
            caller.create("wait", stream_id=lane)
        caller.create("fast", stream_id="c")
        ends = await read_ends(caller, 4)
        assert ends[0]["stream_id"] == "c"
        assert {frame.get("stream_id") for frame in ends[1:]} == {None, "a", "b"}
        assert trio.current_time() - started == pytest.approx(STALL_SECONDS)

    run(program)


def test_every_frame_of_a_named_lane_is_labelled_and_no_other():
    """From `created` to the terminal event, and in errors; frames of the default lane never carry the member."""

    async def program(caller: Caller) -> None:
        for lane in ("a", "b", None):
            caller.create("both", stream_id=lane)
        await read_ends(caller, 3)
        for lane in ("a", "b", None):
            caller.create("more", previous_response_id="resp_gone", stream_id=lane)
            await caller.until("error")

    left = run(program)

    by_lane = {
        lane: [frame["type"] for frame in left.frames if frame.get("stream_id") == lane]
        for lane in ("a", "b", None)
    }
    assert by_lane["a"] == by_lane["b"] == by_lane[None]
    assert len(left.frames) == 3 * len(by_lane["a"])
    assert not [frame for frame in left.frames if frame.get("stream_id", "a") is None]


def test_a_failed_response_is_labelled():
    """`response.failed` names its lane, and the other lane goes on (vllm-project/agentic-api#239)."""

    async def program(caller: Caller) -> None:
        caller.create("wait and fail", stream_id="a")
        caller.create("wait", stream_id="b")
        ends = await read_ends(caller, 2)
        assert sorted((frame["stream_id"], frame["type"]) for frame in ends) == [
            ("a", "response.failed"),
            ("b", "response.completed"),
        ]

    run(program)


def test_answers_to_injects_are_labelled():
    """An inject response on a named lane is answered there, for good and for bad."""

    async def program(caller: Caller) -> None:
        caller.create("call", stream_id="a", **MULTI_AGENT)
        caller.create("next", stream_id="b")
        await caller.until(*TERMINAL)
        response_id = caller.homes[0][0]
        inject = {"type": "response.inject", "response_id": response_id}
        caller.raw.send({**inject, "input": [{**caller.output(0), "call_id": "call_x"}]})
        caller.raw.send({**inject, "input": [caller.output(0)]})
        answers = [
            await caller.until("response.inject.failed"),
            await caller.until("response.inject.created"),
        ]
        assert [frame["stream_id"] for frame in answers] == ["a", "a"]
        assert (await caller.until(*TERMINAL))["stream_id"] == "a"

    run(program)


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 256, ".", "0"])
def test_a_lane_may_be_named_like_this(name: str):
    """Letters, digits, underscores, hyphens and periods, up to 256 of them."""

    async def program(caller: Caller) -> None:
        caller.create(stream_id=name)
        assert (await caller.until(*TERMINAL))["stream_id"] == name

    run(program)


@pytest.mark.parametrize("name", ["", "x" * 257, "a b", "ä", "a/b", "a\n", 7, True, ["a"], [], {}, {"a": 1}])
def test_a_lane_may_not_be_named_like_this(name: Any):
    """The error does not repeat the name, and the connection goes on."""

    async def program(caller: Caller) -> None:
        assert await caller.refused(stream_id=name) == BAD_LANE
        await caller.turn()

    run(program)


# --- bounds ------------------------------------------------------------------------------------------------------


def test_sixteen_responses_are_in_flight():
    """Of twenty lanes sixteen begin; the others begin when those have ended, and all complete."""

    async def program(caller: Caller) -> None:
        for lane in range(20):
            caller.create("wait", stream_id=str(lane))
        with trio.move_on_after(STALL_SECONDS / 2):
            await caller.until("error")
        kinds = [frame["type"] for frame in caller.frames]
        assert kinds.count("response.created") == DEFAULT_LIMITS.max_in_flight == 16
        await read_ends(caller, 20)
        assert trio.current_time() == pytest.approx(2 * STALL_SECONDS)

    left = run(program)

    assert [report.status for report in left.reports] == ["completed"] * 20


def test_a_place_in_flight_is_free_at_the_terminal_event():
    """The next create starts at once, not when the connection has time for it."""

    async def program(caller: Caller) -> None:
        for lane in ("a", "b"):
            caller.create("wait", stream_id=lane)
        caller.create("next", stream_id="c")
        ends = await read_ends(caller, 3)
        assert trio.current_time() == pytest.approx(STALL_SECONDS)
        assert ends[-1]["stream_id"] == "c"

    run(program, limits=Limits(max_in_flight=2))


def test_the_parent_is_the_one_of_the_start_also_behind_a_full_house():
    """A fork that waits for a place in flight is late: the lane it forks from has gone on, so its parent is no more."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one", stream_id="a")
        caller.create("wait", stream_id="b")
        caller.create("two", previous_response_id=first["id"], stream_id="a")
        caller.create("wait", stream_id="b2")
        caller.create("fork", previous_response_id=first["id"], stream_id="c")
        error = await caller.until("error")
        assert ("c", "previous_response_not_found") == (error["stream_id"], error["error"]["code"])

    run(program, limits=Limits(max_in_flight=1))


def test_suspended_responses_are_not_in_flight():
    """They use no compute: a create on another lane starts beside as many of them as may be in flight."""

    async def program(caller: Caller) -> None:
        for lane in range(3):
            caller.create("call", stream_id=str(lane), **MULTI_AGENT)
        await caller.until_calls(3)
        caller.create("hi", stream_id="other")
        assert (await caller.until(*TERMINAL))["stream_id"] == "other"
        assert trio.current_time() < 1.0
        await read_ends(caller, 3)

    run(program, limits=Limits(max_in_flight=2))


def test_a_connection_has_thirty_two_named_lanes_for_its_whole_life():
    """A name more is refused by name, although no lane is busy; the names it has, and the default lane, go on."""

    async def program(caller: Caller) -> None:
        for lane in range(DEFAULT_LIMITS.max_lanes):
            await caller.turn(stream_id=f"lane-{lane}", generate=False)
        refused = error_frame(
            "websocket_stream_limit_reached",
            "This WebSocket connection has reached its maximum number of distinct stream IDs (32). Reuse an existing "
            "stream_id or open a new WebSocket connection.",
            "stream_id",
        )
        assert await caller.refused(stream_id="one-more") == refused | {"stream_id": "one-more"}
        await caller.turn(stream_id="lane-0")
        await caller.turn()
        assert (await caller.refused(stream_id="one-more"))["stream_id"] == "one-more"

    run(program)


def test_a_bad_name_uses_up_no_lane():
    """What is refused before its lane is known does not count."""

    async def program(caller: Caller) -> None:
        for _ in range(3):
            assert await caller.refused(stream_id="a b") == BAD_LANE
        await caller.turn(stream_id="a")

    run(program, limits=Limits(max_lanes=1))


def test_sixty_four_creates_wait():
    """One more is refused, with the name of its lane, and all that waited are run."""

    waiting = DEFAULT_LIMITS.max_queued_creates

    async def program(caller: Caller) -> None:
        for lane in ("a", "b"):
            caller.create("wait", stream_id=lane)
            await caller.until("response.output_text.delta")
        for place in range(waiting):
            caller.create("next", stream_id="ab"[place % 2])
        caller.create("too many", stream_id="a")
        assert await caller.until("error") == QUEUE_FULL | {"stream_id": "a"}
        await read_ends(caller, waiting + 2)

    left = run(program)

    assert waiting == 64
    assert [report.status for report in left.reports] == ["completed"] * (waiting + 2)


def test_creates_wait_up_to_a_number_of_bytes():
    """A large create is refused where a small one still fits."""

    async def program(caller: Caller) -> None:
        caller.create("wait")
        await caller.until("response.output_text.delta")
        caller.create("x" * 2000)
        caller.create("small")
        assert await caller.until("error") == QUEUE_FULL
        ends = await read_ends(caller, 2)
        assert [text_in(frame["response"]) for frame in ends] == ["Wait.Done.", "You said small."]

    run(program, limits=attrs.evolve(DEFAULT_LIMITS, max_queued_create_bytes=2000))


def test_what_waits_when_the_client_leaves_is_never_begun():
    """The running response is stopped, and the queue is dropped."""

    async def program(caller: Caller) -> None:
        for text in ("wait", "one", "two"):
            caller.create(text)
        await caller.until("response.output_text.delta")

    left = run(program)

    assert [report.ending for report in left.reports] == ["disconnected"]
    assert len(left.sampler.contexts) == 1


def test_what_goes_on_with_an_output_samples_before_what_begins():
    """On one slot: a turn that answers a call overtakes a new one that waited for longer, as a resumption would."""

    async def program(caller: Caller) -> None:
        parent = await caller.turn("call", stream_id="goes-on")
        caller.create("wait", stream_id="busy")
        await caller.until("response.output_text.delta")
        caller.create("hi", stream_id="begins")
        caller.create([caller.output(0)], previous_response_id=parent["id"], stream_id="goes-on")
        await read_ends(caller, 3)

    left = run(program, limits=attrs.evolve(DEFAULT_LIMITS, sampler_slots=1))

    created = [frame["stream_id"] for frame in left.frames if frame["type"] == "response.created"]
    assert created == ["goes-on", "busy", "goes-on", "begins"]
