"""With `store: true` the store answers where the connection's memory does not (reference 4.4, lookup 2)."""

import attrs
import trio

from engine.config import DEFAULT_LIMITS
from engine.storage import MemoryStore, StoredResponse
from tests.create_form import STALL_SECONDS, Caller, connect, not_found, run, text_in
from tests.scenarios import Talk

NOBODY = {"type": "function_call_output", "call_id": "call_nobody", "output": "?"}


def test_an_older_response_is_found_in_the_store():
    """Any of the chain may be continued again: each continuation has exactly its own past."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one", store=True)
        second = await caller.turn("two", previous_response_id=first["id"], store=True)
        await caller.turn("three", previous_response_id=second["id"], store=True)
        again = await caller.turn("four", previous_response_id=first["id"])
        assert text_in(again) == "You said four."

    left = run(program)

    assert left.heard() == ["one", "You said one.", "four"]


def test_all_that_was_said_is_there_before_the_store_is():
    """The end is told when the response is kept; what the model wrote last does not wait for that."""

    async def program(caller: Caller) -> None:
        caller.served.server.engine.store = store = StoreInNoHurry()
        caller.create("wait with the end", store=True)
        await store.asked.wait()
        await caller.until("response.output_item.done")
        store.go.set()
        await caller.until("response.completed")

    run(program)


def test_what_was_said_last_does_not_wait_for_a_slot():
    """A client that answers before the segment is over leads straight to the next one, which may have to wait for its turn."""

    async def program(caller: Caller) -> None:
        async with caller.served.connect_raw(append=True) as raw:
            talk = Talk(raw, "append", caller.served)
            talk.create("call, and wait with the end")
            await talk.until_calls(1)
            talk.answer(0)
            caller.create("wait")  # has the only slot next
            with trio.fail_after(STALL_SECONDS * 1.5):
                await talk.until("response.output_text.done")
            await talk.until("response.completed")
        await caller.until("response.completed")

    run(program, limits=attrs.evolve(DEFAULT_LIMITS, sampler_slots=1))


class StoreInNoHurry(MemoryStore):
    """Keeps nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = trio.Event(), trio.Event()

    async def put_soon(self, record: StoredResponse) -> None:
        self.asked.set()
        await self.go.wait()
        await super().put_soon(record)


def test_a_stored_response_outlives_its_connection():
    """On a new socket the chain goes on, its open call too."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call", store=True)
        await caller.raw.transport.aclose()
        async with connect(caller.served) as again:
            second = await again.turn([caller.output(0)], previous_response_id=first["id"])
            assert text_in(second) == "You said ok."

    left = run(program)

    assert left.kinds() == ["message", "function_call", "function_call_output"]


def test_an_evicted_parent_is_still_in_the_store():
    """The failed continuation took it from the connection only."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call", store=True)
        await caller.refused([NOBODY], previous_response_id=first["id"])
        second = await caller.turn([caller.output(0)], previous_response_id=first["id"])
        assert second["status"] == "completed"

    run(program)


def test_a_failed_or_cancelled_response_is_no_parent_in_the_store_either():
    """It misses like an unknown one."""

    async def program(caller: Caller) -> None:
        failed = await caller.turn("fail", store=True)
        caller.create("wait", store=True)
        await caller.until("response.output_text.delta")
        assert caller.served.server.cancel(caller.response_ids[-1])
        cancelled = (await caller.until("response.failed"))["response"]
        for each in (failed, cancelled):
            frame = await caller.refused(previous_response_id=each["id"])
            assert frame == not_found(each["id"])

    run(program)


def test_a_stored_parent_of_a_response_that_is_not_stored():
    """The continuation lives on the connection only: elsewhere its id is unknown, its parent's is not."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("one", store=True)
        second = await caller.turn("two", previous_response_id=first["id"])
        async with connect(caller.served) as other:
            await other.misses(second["id"])
            await other.turn("three", previous_response_id=first["id"])
        await caller.turn("four", previous_response_id=second["id"])

    left = run(program)

    assert left.heard() == ["one", "You said one.", "two", "You said two.", "four"]


def test_a_warm_up_that_is_stored_is_a_parent_elsewhere():
    """Its input is the context of a turn on another socket."""

    async def program(caller: Caller) -> None:
        warm = await caller.turn("one", generate=False, store=True)
        async with connect(caller.served) as other:
            await other.turn("two", previous_response_id=warm["id"])

    left = run(program)

    assert left.heard() == ["one", "two"]
