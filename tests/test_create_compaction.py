"""Compaction inside a response keeps the chain (reference 4.8, 8.2, 9)."""

from typing import Any

from tests.create_form import Caller, connect, error_frame, run, text_in, user
from tests.scenarios import TERMINAL

MANAGED = {"context_management": [{"type": "compaction", "compact_threshold": 400}]}
LONG = "word " * 600


def kinds_of(resource: dict[str, Any]) -> list[str]:
    """The types of its output items."""
    return [item["type"] for item in resource["output"]]


def test_a_chain_that_is_too_long_is_compacted_and_goes_on():
    """A warm-up leaves it to the turn after it: there the compaction item comes first; the next turn needs none."""

    async def program(caller: Caller) -> None:
        first = await caller.turn(LONG, **MANAGED, generate=False)
        second = await caller.turn("two", previous_response_id=first["id"], **MANAGED)
        third = await caller.turn("three", previous_response_id=second["id"], **MANAGED)
        assert [kinds_of(each) for each in (first, second, third)] == [
            [],
            ["compaction", "message"],
            ["message"],
        ]
        assert second["usage"]["input_tokens"] <= 200 < first["usage"]["input_tokens"]
        assert third["usage"]["input_tokens"] <= 400

    left = run(program)

    assert left.heard()[-3:] == ["two", "You said two.", "three"]


def test_the_call_of_a_compacted_response_is_answered():
    """Suspension and compaction do not get into each other's way."""

    async def program(caller: Caller) -> None:
        first = await caller.turn([user(LONG), user("call")], **MANAGED)
        assert kinds_of(first) == ["compaction", "function_call"]
        second = await caller.turn([caller.output(0)], previous_response_id=first["id"], **MANAGED)
        assert text_in(second) == "You said ok."

    left = run(program)

    assert left.kinds()[-2:] == ["function_call", "function_call_output"]


def test_the_items_are_two_events_each_and_numbered():
    """`output_item.added` and `.done` with the same item, before anything that is sampled."""

    async def program(caller: Caller) -> None:
        await caller.turn([user(LONG), user("hi")], **MANAGED)

    left = run(program)

    kinds = [frame["type"].removeprefix("response.") for frame in left.frames[:5]]
    assert kinds == [
        "created",
        "in_progress",
        *["output_item.added", "output_item.done"],
        "output_item.added",
    ]
    added, done = left.frames[2:4]
    assert (added["item"], added["output_index"]) == (done["item"], 0)
    assert set(done["item"]) == {"id", "type", "encrypted_content"}


def test_a_client_that_keeps_its_own_history_sends_the_item_back():
    """On another socket, without a parent, with everything before it or without: the same context."""

    async def program(caller: Caller) -> None:
        asked = [user(LONG), user("hi")]
        first = await caller.turn(asked, **MANAGED)
        async with connect(caller.served) as other:
            for history in (first["output"], [*asked, *first["output"]]):
                resource = await other.turn([*history, user("more")], **MANAGED)
                assert kinds_of(resource) == ["message"]

    left = run(program)

    assert left.heard(1) == left.heard(2)
    assert left.heard()[-3:] == ["hi", "You said hi.", "more"]


def test_without_management_nothing_is_compacted():
    """The default, and other kinds of management."""

    async def program(caller: Caller) -> None:
        for members in ({}, {"context_management": []}, {"context_management": [{"type": "other"}]}):
            assert kinds_of(await caller.turn([user(LONG), user("hi")], **members)) == ["message"]

    run(program)


def test_a_bad_item_or_threshold_is_refused():
    """With its place; nothing is created."""

    async def program(caller: Caller) -> None:
        forged = {"type": "compaction", "encrypted_content": "AQ=="}
        field = "input[1].encrypted_content"
        assert await caller.refused([user("a"), forged]) == error_frame(
            "invalid_value", f"Invalid value for '{field}'.", field
        )
        field = "context_management[0].compact_threshold"
        frame = await caller.refused(context_management=[{"type": "compaction", "compact_threshold": 0}])
        assert frame == error_frame("invalid_value", f"Invalid value for '{field}'.", field)
        caller.create(stream_id="a")
        assert (await caller.until(*TERMINAL))["response"]["status"] == "completed"

    run(program)
