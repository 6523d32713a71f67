"""With `store: true` the store answers where the connection's memory does not (reference 4.4, lookup 2)."""

from tests.create_form import Caller, connect, not_found, run, text_in

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
