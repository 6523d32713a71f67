"""Compaction where requests meet it: before a response begins, and as a request of its own (reference 4.8, 10.7).

Nothing is sampled for it. A response that begins with a compaction shows it as its first output item, so a client that
keeps its own history finds in it all that came before.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from engine.compact import KIND, compacted, over_threshold, sizes_of, threshold_of
from engine.context import Context, Preamble
from engine.engine import Engine
from engine.intake import breathe, input_items
from engine.snapshot import Snapshot
from engine.stages import CallLedger
from protocol import codec
from protocol.errors import refusal
from protocol.events import ResponseCreate
from protocol.items import Item, Message, Opaque
from protocol.usage import Usage

COMPACTED_TOKENS: Final = 8192
"""At most so much is left of a history that a request of its own compacts, and at most half of it."""


@attrs.frozen
class Start:
    """How a response begins, all compaction done."""

    create: ResponseCreate
    """Its input is what enters the context."""
    parent: Snapshot | None
    """None also if the parent's items have become part of the input, shortened."""
    preface: Opaque | None = None
    """The compaction item that the response must show first."""


async def start_of(engine: Engine, create: ResponseCreate, parent: Snapshot | None, owner: str) -> Start:
    """Read the compaction items of a create, and compact its context if it asks for that and is too long.

    `RemoteProtocolError`: as `with_input_read` and `shortened`. A checkpoint only if the create asks for it.
    """
    read = with_input_read(engine, create, owner, continues=parent is not None)
    return await shortened(engine, read, parent, owner)


def with_input_read(engine: Engine, create: ResponseCreate, owner: str, *, continues: bool) -> ResponseCreate:
    """The create with each compaction item of its input replaced by what it stands for.

    One that continues nothing brings its whole history; if it wants that compacted, what its last compaction item stands
    for is left out. `RemoteProtocolError`: such an item is not this owner's, or the threshold is no number.
    """
    items, threshold = input_items(create), threshold_of(create.context_management)
    if not any(item.type == KIND for item in items):
        return create
    passed_over = 0
    if threshold is not None and not continues:
        items, passed_over = _from_last_compaction(items)
    return attrs.evolve(create, input=engine.compactor.expanded(items, owner, passed_over=passed_over))


async def shortened(engine: Engine, create: ResponseCreate, parent: Snapshot | None, owner: str) -> Start:
    """Compact a context, the parent's and the create's own input, if the create asks for that and it is too long.

    A warm-up has no output, so it leaves that to the turn after it.
    `RemoteProtocolError`: the threshold is no number, or the calls and outputs do not match.
    """
    threshold = threshold_of(create.context_management)
    if threshold is None or create.generate is False:
        return Start(create, parent)
    context = await _context_of(engine, create, parent)
    kept = over_threshold(context, threshold)
    if kept is None:
        return Start(create, parent)
    preface = engine.compactor.item(kept, owner, engine.new_id("cmp"))
    return Start(attrs.evolve(create, input=kept), None, preface)


async def _context_of(engine: Engine, create: ResponseCreate, parent: Snapshot | None) -> Context:
    calls = parent.calls.fork() if parent is not None else CallLedger()
    new = engine.validate.context(calls, input_items(create))
    preamble = Preamble(create.instructions, create.tools or ())
    context, again = parent.context.continued(preamble) if parent is not None else (Context(preamble), ())
    for _ in context.extend_in_slices((*again, *new)):
        await breathe()
    return context


def _from_last_compaction(items: Sequence[Item]) -> tuple[tuple[Item, ...], int]:
    """A whole history without what its last compaction item stands for, and by how many places that item moved up.

    Rules that the client sets stay in front.
    """
    start = max(place for place, item in enumerate(items) if item.type == KIND)
    rules = tuple(
        item for item in items[:start] if isinstance(item, Message) and item.role in {"developer", "system"}
    )
    return (*rules, *items[start:]), start - len(rules)


async def compact(
    engine: Engine, create: ResponseCreate, owner: str, base: Sequence[Item] = ()
) -> dict[str, Any]:
    """The `response.compaction` resource of a history: `base`, the chain that the request names, and its own input.

    Open calls are allowed and stay open. `RemoteProtocolError`: no model, an unknown one, an output without its call,
    an unknown reference, a compaction item that is not this owner's. A checkpoint.
    """
    if create.model is None:
        raise refusal("missing", field="model")
    engine.resolve.model(create.model)
    compactor, calls = engine.compactor, CallLedger()
    history = calls.admit(compactor.expanded(base, owner))
    items = (*history, *calls.admit(compactor.expanded(input_items(create), owner)))
    context = Context(Preamble(create.instructions), slice_bytes=engine.limits.work_slice_bytes)
    for _ in context.extend_in_slices(items):
        await breathe()
    await breathe()
    spans = map(context.span, range(context.item_count))
    sizes = [span.end - span.start for span in spans]
    kept = compacted(items, min(COMPACTED_TOKENS, sum(sizes) // 2), sizes)
    usage = Usage(input_tokens=len(context), output_tokens=sum(sizes_of(kept)))
    return {
        "id": engine.new_id("resp"),
        "object": "response.compaction",
        "created_at": engine.wall_seconds(),
        "output": [dict(compactor.item(kept, owner, engine.new_id("cmp")).raw)],
        "usage": codec.unstructure(usage),
    }
