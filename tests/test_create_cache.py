"""What a create may continue: the latest response of any lane, and what a failure takes away (reference 4.4).

Everything here has `store: false`: the connection is the only memory.
"""

import attrs
import pytest
import trio

from engine.config import DEFAULT_LIMITS
from engine.storage import MemoryStore, StoredResponse
from tests.create_form import STALL_SECONDS, Caller, connect, not_found, run, text_in
from tests.scenarios import TERMINAL

NOBODY = {"type": "function_call_output", "call_id": "call_nobody", "output": "?"}


# --- lookup ------------------------------------------------------------------------------------------------------


def test_the_latest_response_of_any_lane_is_a_parent():
    """Parentage has nothing to do with lanes: each continues the other's, and the default lane too."""

    async def program(caller: Caller) -> None:
        default = await caller.turn("one")
        named = await caller.turn("two", stream_id="a", previous_response_id=default["id"])
        other = await caller.turn("three", stream_id="b", previous_response_id=named["id"])
        await caller.turn("four", previous_response_id=other["id"])

    left = run(program)

    said = [word for text in ("one", "two", "three") for word in (text, f"You said {text}.")]
    assert left.heard() == [*said, "four"]


def test_an_older_response_of_a_lane_misses():
    """Only the latest is kept, although the older one lived on this socket; the latest is still there afterwards."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        second = await caller.turn("two", previous_response_id=first["id"])
        await caller.misses(first["id"], stream_id="elsewhere")
        third = await caller.turn("three", previous_response_id=second["id"])
        await caller.misses(first["id"], stream_id="elsewhere")
        await caller.misses(second["id"], stream_id="elsewhere")
        await caller.turn("four", previous_response_id=third["id"])

    run(program)


def test_a_new_conversation_replaces_the_latest_too():
    """A lane has one latest response, whichever chain it belongs to."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        await caller.turn("something else")
        await caller.misses(first["id"])

    run(program)


def test_whatever_cannot_be_continued_is_answered_in_the_same_words():
    """Unknown, older, evicted, failed, and another connection's: one frame, but for the id; nothing is created."""

    async def program(caller: Caller) -> None:
        async with connect(caller.served) as other:
            foreign = await other.turn("theirs")
            older = await caller.turn("one")
            evicted = await caller.turn("two")
            await caller.refused([NOBODY], previous_response_id=evicted["id"])
            failed = await caller.turn("fail")
            ids = ["resp_gone", foreign["id"], older["id"], evicted["id"], failed["id"]]
            frames = [await caller.refused(previous_response_id=each) for each in ids]
            assert frames == [not_found(each) for each in ids]
            await other.turn("more", previous_response_id=foreign["id"])

    run(program)


def test_all_of_it_dies_with_the_connection():
    """On a new socket the id is unknown, the socket stays open, and a full create works (PrimeIntellect-ai/prime-agent#2314)."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        await caller.raw.transport.aclose()
        async with connect(caller.served) as again:
            await again.misses(first["id"])
            assert text_in(await again.turn("one")) == "You said one."

    run(program)


@pytest.mark.parametrize("text", ["hi", "call", "talk"])
def test_a_parent_is_there_at_once(text: str):
    """A create that is sent on reading the terminal event finds it (Soju06/codex-lb#782)."""

    async def program(caller: Caller) -> None:
        parent = await caller.turn(text)
        for _ in range(5):
            outputs = [caller.output(0)] if parent["output"][-1]["type"] == "function_call" else "more"
            created = await _first_frame(caller, outputs, parent["id"])
            assert created["response"]["previous_response_id"] == parent["id"]
            parent = (await caller.until(*TERMINAL))["response"]

    run(program)


async def _first_frame(caller: Caller, what: object, parent: str) -> dict:
    caller.create(what, previous_response_id=parent)
    frame = await caller.next()
    assert frame["type"] == "response.created"
    return frame


# --- eviction ----------------------------------------------------------------------------------------------------


def test_a_failed_continuation_takes_its_parent():
    """Refused with a 400: the right output on the same parent finds nothing any more (openresponses/openresponses#71)."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call")
        await caller.refused([NOBODY], previous_response_id=first["id"])
        await caller.refused([caller.output(0)], previous_response_id=first["id"])
        assert caller.frames[-1] == not_found(first["id"])
        assert caller.frames[-2]["error"]["message"].endswith("with call_id call_nobody.")

    run(program)


FAILING = {
    "response.failed": {"text": "fail"},
    "no such model": {"model": "gone"},
    "a tool choice that is no tool": {"tool_choice": {"type": "function", "name": "g"}},
    "an output without its call": {"text": [NOBODY]},
    "more than fits": {"text": "long " * 5000},
    "a warm-up": {"text": [NOBODY], "generate": False},
}


@pytest.mark.parametrize("name", FAILING)
def test_every_failure_of_a_continuation_evicts(name: str):
    """Whether it ends in an `error` frame or in `response.failed`, and also if it would not have sampled."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        caller.create(**FAILING[name], previous_response_id=first["id"])
        assert (await caller.until("error", *TERMINAL))["type"] in {"error", "response.failed"}
        await caller.misses(first["id"])

    run(program)


@pytest.mark.parametrize("name", FAILING)
def test_a_failed_fork_leaves_its_source_alone(name: str):
    """The parent is another lane's latest: that lane goes on."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one", stream_id="source")
        caller.create(**FAILING[name], previous_response_id=first["id"], stream_id="fork")
        assert (await caller.until("error", *TERMINAL))["type"] in {"error", "response.failed"}
        await caller.turn("two", previous_response_id=first["id"], stream_id="source")

    run(program)


@pytest.mark.parametrize("text", ["fail", [NOBODY]], ids=["response.failed", "error"])
def test_a_failed_fork_leaves_its_own_lanes_latest_alone(text: object):
    """Only the named parent may go, and only from its own lane."""

    async def program(caller: Caller) -> None:
        source = await caller.turn("one", stream_id="source")
        latest = await caller.turn("two", stream_id="fork")
        caller.create(text, previous_response_id=source["id"], stream_id="fork")
        await caller.until("error", "response.failed")
        await caller.turn("three", previous_response_id=latest["id"], stream_id="fork")

    run(program)


@pytest.mark.parametrize("text", ["fail", [NOBODY]], ids=["response.failed", "error"])
def test_a_failure_without_a_parent_evicts_nothing(text: object):
    """A new conversation that fails has named nobody."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        caller.create(text)
        await caller.until("error", "response.failed")
        await caller.turn("two", previous_response_id=first["id"])

    run(program)


def test_a_miss_leaves_the_latest_alone():
    """An id that is not the lane's latest evicts nothing."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        await caller.misses("resp_gone")
        await caller.turn("two", previous_response_id=first["id"])

    run(program)


# --- what does not evict ------------------------------------------------------------------------------------------


def test_what_is_refused_before_its_lane_is_known_evicts_nothing():
    """No JSON, a bad lane name, a lane too many, a full queue: the parent is still there."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        parent = {"previous_response_id": first["id"]}
        caller.raw.send('{"type": "response.create",')
        caller.create("more", **parent, stream_id="no spaces")
        caller.create("warm", stream_id="a", generate=False)
        await caller.until(*TERMINAL)
        caller.create("more", **parent, stream_id="b")
        caller.create("wait", stream_id="a")
        await caller.until("response.output_text.delta")
        caller.create("more", stream_id="a")
        caller.create("more", **parent, stream_id="a")
        await trio.sleep(1.0)
        caller.create("more", **parent)
        while len([frame for frame in caller.frames if frame["type"] == "response.completed"]) < 4:
            await caller.next()
        codes = [frame["error"]["code"] for frame in caller.frames if frame["type"] == "error"]
        assert codes == [
            "invalid_json",
            "invalid_stream_id",
            "websocket_stream_limit_reached",
            "websocket_queue_limit_reached",
            "websocket_queue_limit_reached",
        ]
        await caller.turn("two", **parent)

    run(program, limits=attrs.evolve(DEFAULT_LIMITS, max_lanes=1, max_queued_creates=1))


def test_an_incomplete_response_takes_its_parents_place():
    """It is no failure: the lane has advanced to it, and the parent is an older one now."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        cut = await caller.turn("talk", max_output_tokens=2, previous_response_id=first["id"])
        assert cut["status"] == "incomplete"
        second = await caller.turn("two", previous_response_id=cut["id"])
        await caller.misses(first["id"], stream_id="elsewhere")
        await caller.misses(cut["id"], stream_id="elsewhere")
        await caller.turn("three", previous_response_id=second["id"])

    run(program)


def test_a_cancelled_response_leaves_its_parent_and_is_none_itself():
    """The parent can be continued as if nothing had happened; the cancelled response cannot."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one")
        caller.create("wait", previous_response_id=first["id"])
        await caller.until("response.output_text.delta")
        assert caller.served.server.cancel(caller.response_ids[-1])
        ended = await caller.until(*TERMINAL)
        assert (ended["type"], ended["response"]["status"]) == ("response.failed", "cancelled")
        await caller.misses(ended["response"]["id"], stream_id="elsewhere")
        await caller.turn("two", previous_response_id=first["id"])

    left = run(program)

    assert left.heard() == ["one", "You said one.", "two"]


# --- advance -----------------------------------------------------------------------------------------------------


def test_a_lane_advances_at_the_end_and_not_before():
    """While a continuation runs, its parent may be forked; when it has ended, no more."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one", stream_id="a")
        caller.create("wait", previous_response_id=first["id"], stream_id="a")
        await caller.until("response.output_text.delta")
        await caller.turn("two", previous_response_id=first["id"], stream_id="b")
        await caller.until(*TERMINAL)
        await caller.misses(first["id"], stream_id="c")

    run(program)


@pytest.mark.parametrize("source", ["more", "fail"], ids=["advances", "fails"])
def test_a_fork_holds_its_parent_from_its_start(source: str):
    """The source's lane goes on, or evicts the parent: the fork, sampling meanwhile, has the whole chain."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one", stream_id="a")
        caller.create("wait", previous_response_id=first["id"], stream_id="fork")
        await caller.until("response.in_progress")
        caller.create(source, previous_response_id=first["id"], stream_id="a")
        assert (await caller.until(*TERMINAL))["stream_id"] == "a"
        forked = (await caller.until(*TERMINAL))["response"]
        assert (forked["status"], text_in(forked)) == ("completed", "Wait.Done.")
        await caller.misses(first["id"], stream_id="late")
        await caller.turn("two", previous_response_id=forked["id"], stream_id="fork")

    left = run(program)

    assert left.heard() == ["one", "You said one.", "wait", "Wait.Done.", "two"]


def test_a_fork_that_waits_behind_an_advancing_source_misses():
    """The parent is looked up when the create starts, not when it comes (reference 4.5)."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one", stream_id="a")
        caller.create("wait", stream_id="fork")
        await caller.until("response.output_text.delta")
        caller.create("late", previous_response_id=first["id"], stream_id="fork")
        await caller.turn("two", previous_response_id=first["id"], stream_id="a")
        await trio.sleep(STALL_SECONDS)
        assert await caller.until("error") == not_found(first["id"]) | {"stream_id": "fork"}

    run(program)


class SlowStore(MemoryStore):
    """Looks for nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = trio.Event(), trio.Event()

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        self.asked.set()
        await self.go.wait()
        return await super().get(owner, response_id)


def test_a_parent_that_ends_while_it_is_looked_for_is_found():
    """Whoever has read the end of a response is not told afterwards that it is not there."""

    async def program(caller: Caller) -> None:
        store = SlowStore()
        caller.served.server.engine.store = store
        caller.create("wait", stream_id="a")
        parent = (await caller.until("response.created"))["response"]
        caller.create("late", previous_response_id=parent["id"], stream_id="fork")
        await store.asked.wait()
        await caller.until("response.completed")
        store.go.set()
        assert "You said late." == text_in((await caller.until(*TERMINAL))["response"])

    assert ["wait", "Wait.Done.", "late"] == run(program).heard()


def test_over_its_memory_a_connection_forgets_the_lane_used_longest_ago():
    """The other lanes go on; the one that was forgotten is answered like an unknown one."""

    async def program(caller: Caller) -> None:
        text = "word " * 1000
        old = await caller.turn(text, stream_id="old")
        new = await caller.turn(text, stream_id="new")
        newest = await caller.turn(text, stream_id="newest")
        await caller.misses(old["id"], stream_id="elsewhere")
        await caller.turn("more", previous_response_id=new["id"], stream_id="new")
        await caller.turn("more", previous_response_id=newest["id"], stream_id="newest")

    run(program, limits=attrs.evolve(DEFAULT_LIMITS, max_context_bytes=50_000))
