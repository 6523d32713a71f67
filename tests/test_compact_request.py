"""Compaction before a response begins, and as a request of its own."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from engine.call_ledger import CallLedger
from engine.compact import sizes_of
from engine.compact_request import COMPACTED_TOKENS, Start, compact, start_of
from engine.context import Context, Preamble
from engine.engine import Engine
from engine.models import ModelEntry, ModelTable
from engine.samplers.scripted import Scripted
from engine.snapshot import Snapshot
from engine.stages import Streams
from engine.testing import simulated_engine
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.events import ResponseCreate
from protocol.items import FunctionCall, FunctionCallOutput, Item, Message, Opaque, text_of

LONG = tuple(Message("user", f"{number} " + "word " * 100) for number in range(20))
CALL = FunctionCall("call_1", "f", "{}")
OUTPUT = FunctionCallOutput("call_1", "ok")
MANAGED: tuple[Any, ...] = ({"type": "compaction", "compact_threshold": 1000},)


def engine() -> Engine:
    return simulated_engine(Scripted([]), seed=1, models=ModelTable((ModelEntry(name="m"),)))


def create(*items: Item, **members: Any) -> ResponseCreate:
    return ResponseCreate(model="m", input=items, **members)


def snapshot_of(items: Sequence[Item], preamble: Preamble = Preamble()) -> Snapshot:  # noqa: B008  # frozen
    context = Context.full(items, preamble)
    calls = CallLedger.full(items)
    return Snapshot(
        response_id="resp_1", context=context, calls=calls, streams=Streams(), held_tokens=len(context)
    )


# --- before a response -------------------------------------------------------------------------------------------


async def test_a_create_without_compaction_is_left_alone():
    """The same objects come back, whatever the length."""
    asked, parent = create(*LONG), snapshot_of(LONG)
    assert await start_of(engine(), asked, parent, "me") == Start(asked, parent)


@pytest.mark.parametrize("parent", [None, snapshot_of(LONG[:2])], ids=["new", "continued"])
async def test_below_the_threshold_nothing_is_compacted(parent: Snapshot | None):
    """The input is what was sent, and the parent is the one that was named."""
    asked = create(*LONG[2:3], context_management=MANAGED)
    assert await start_of(engine(), asked, parent, "me") == Start(asked, parent)


async def test_a_long_input_is_compacted():
    """To half of the threshold at most; the item that the response shows stands for exactly that."""
    made = engine()
    start = await start_of(made, create(*LONG, context_management=MANAGED), None, "me")
    assert isinstance(start.create.input, tuple)
    assert sum(sizes_of(start.create.input)) <= 500
    assert text_of(start.create.input[-1].content) == text_of(LONG[-1].content)
    assert start.preface is not None
    assert made.compactor.expanded([start.preface], "me") == start.create.input


async def test_a_long_chain_is_compacted_with_what_is_new():
    """The parent's items are in the input then, and there is no parent for the rollout."""
    parent = snapshot_of((*LONG, CALL))
    asked = create(OUTPUT, previous_response_id="resp_1", context_management=MANAGED)
    start = await start_of(engine(), asked, parent, "me")
    assert (start.parent, start.create.previous_response_id) == (None, "resp_1")
    assert isinstance(start.create.input, tuple)
    assert start.create.input[-2:] == (CALL, OUTPUT)
    assert parent.context.item_count == len(LONG) + 1


async def test_a_compacted_context_is_not_compacted_again_at_once():
    """The next turn has room for as much again."""
    made = engine()
    start = await start_of(made, create(*LONG, context_management=MANAGED), None, "me")
    assert isinstance(start.create.input, tuple)
    parent = snapshot_of(start.create.input)
    again = await start_of(made, create(Message("user", "more"), context_management=MANAGED), parent, "me")
    assert (again.parent, again.preface) == (parent, None)


async def test_compaction_items_of_the_input_are_read():
    """With a parent and without, and also where no compaction is asked for."""
    made = engine()
    item = made.compactor.item(LONG[:2], "me", "cmp_1")
    for parent in (None, snapshot_of(LONG[:1])):
        start = await start_of(made, create(item, LONG[3]), parent, "me")
        assert (start.create.input, start.parent) == ((*LONG[:2], LONG[3]), parent)


async def test_a_whole_history_begins_at_its_last_compaction():
    """What came before is in it; only rules of the client's stay in front. Without management it is taken as it is."""
    made = engine()
    rule, item = Message("developer", "Be kind."), made.compactor.item(LONG[:2], "me", "cmp_1")
    history = (rule, *LONG[:2], item, LONG[3])
    managed = await start_of(made, create(*history, context_management=MANAGED), None, "me")
    plain = await start_of(made, create(*history), None, "me")
    assert managed.create.input == (rule, *LONG[:2], LONG[3])
    assert plain.create.input == (rule, *LONG[:2], *LONG[:2], LONG[3])


@pytest.mark.parametrize("management", [None, MANAGED])
async def test_an_item_of_another_owner_is_refused(management: Any):
    """Before anything begins."""
    made = engine()
    item = made.compactor.item(LONG[:2], "you", "cmp_1")
    with pytest.raises(RemoteProtocolError) as refused:
        await start_of(made, create(item, context_management=management), None, "me")
    assert (refused.value.code, refused.value.param) == ("invalid_value", "input[0].encrypted_content")


async def test_an_output_without_its_call_is_refused_also_when_compacting():
    """With the words of any create."""
    with pytest.raises(RemoteProtocolError, match="No tool call found"):
        await start_of(engine(), create(*LONG, OUTPUT, context_management=MANAGED), None, "me")


# --- a request of its own ----------------------------------------------------------------------------------------


async def test_a_history_becomes_one_item():
    """The resource is that of the reference; the item is valid input, and short."""
    made = engine()
    answer = await compact(made, create(*LONG, instructions="Be brief."), "me")
    assert {"id", "object", "created_at", "output", "usage"} == set(answer)
    assert (answer["object"], answer["created_at"]) == ("response.compaction", made.wall_seconds())
    [item] = answer["output"]
    assert {"id", "type", "encrypted_content"} == set(item)
    kept = made.compactor.expanded([Opaque(item)], "me")
    usage = answer["usage"]
    assert usage["input_tokens"] == len(Context.full(LONG, Preamble("Be brief.")))
    assert usage["output_tokens"] == sum(sizes_of(kept)) <= sum(sizes_of(LONG)) // 2
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    again = codec.client_event({"type": "response.create", "model": "m", "input": answer["output"]})
    assert isinstance(again, ResponseCreate)
    assert (await start_of(made, again, None, "me")).create.input == kept


async def test_much_is_left_of_no_history():
    """The bound holds however long it is."""
    made = engine()
    answer = await compact(made, create(*(LONG * 12)), "me")
    assert answer["usage"]["input_tokens"] > 2 * COMPACTED_TOKENS
    assert answer["usage"]["output_tokens"] <= COMPACTED_TOKENS


async def test_a_chain_is_compacted_with_its_items_and_open_calls():
    """Base and input are one history; a call that waits still waits afterwards; text input is a message."""
    made = engine()
    base = (made.compactor.item(LONG[:9], "me", "cmp_1"), CALL)
    answer = await compact(made, ResponseCreate(model="m", input="and now"), "me", base)
    kept = made.compactor.expanded([Opaque(answer["output"][0])], "me")
    assert CallLedger.full(kept).pending == ("call_1",)
    assert text_of(kept[-1].content) == "and now"
    await compact(made, create(OUTPUT), "me", base)


REFUSED = {
    "no model": (attrs.evolve(create(), model=None), "missing_required_parameter", "model"),
    "unknown model": (attrs.evolve(create(), model="gone"), "model_not_found", "model"),
    "an output without its call": (create(OUTPUT), None, "input"),
    "a forged item": (
        create(Opaque({"type": "compaction", "encrypted_content": "AQ=="})),
        "invalid_value",
        "input[0].encrypted_content",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_request_that_makes_no_sense_is_refused(name: str):
    """With the code and member of any other request."""
    asked, code, param = REFUSED[name]
    with pytest.raises(RemoteProtocolError) as refused:
        await compact(engine(), asked, "me")
    assert (refused.value.code, refused.value.param) == (code, param)
