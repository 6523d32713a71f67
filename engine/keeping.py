"""What is kept of a response when it ends, and how one that was kept is gone on with.

The usage row is committed before the terminal event is sent: whatever a client saw the end of has been counted.
With `store: true` the response is written while the client reads the end and thinks: its place in the store's queue is
before whatever anybody can ask about it. A store that fails is logged and does not fail the response.
"""

import logging
from collections.abc import Callable
from itertools import count

from engine.context import Context, Preamble
from engine.engine import Engine
from engine.intake import breathe
from engine.listing import listed_items
from engine.live import resource_body
from engine.rollout import Rollout
from engine.snapshot import Snapshot
from engine.stages import CallLedger, Streams, tools_added_by
from engine.storage import StoredResponse, UsageRow
from protocol.errors import refusal
from protocol.items import Item

log = logging.getLogger(__name__)


async def keep(
    engine: Engine,
    owner: str,
    rollout: Rollout,
    *,
    input_items: tuple[Item, ...] | None = None,
) -> bool:
    """Commit the usage row of a rollout that has ended, and queue the response if it asks for that. A checkpoint.

    `input_items`: as they are listed; None = what the rollout itself took in. Returns whether the row is committed.
    """
    counted = False
    try:
        await engine.store.record_usage(usage_row(owner, rollout))
        counted = True
        if rollout.create.store is not False:  # not either if it was deleted meanwhile
            await engine.store.put_soon(stored(owner, rollout, input_items))
    except Exception:
        log.exception("keeping %s failed", rollout.record.response_id)
    return counted


def stored(owner: str, rollout: Rollout, input_items: tuple[Item, ...] | None) -> StoredResponse:
    """A rollout that has ended, with its whole chain."""
    resource, create = rollout.resource, rollout.create
    assert resource is not None, "a response that is kept has begun"
    return StoredResponse(
        response_id=resource.id,
        owner=owner,
        resource=resource_body(resource),
        input_items=listed_input(rollout) if input_items is None else input_items,
        output_items=resource.output,
        context_items=rollout.context.items,
        previous_response_id=create.previous_response_id,
        status=resource.status,
        created_at=resource.created_at,
        instructions=create.instructions,
        tools=create.tools or (),
    )


def listed_input(rollout: Rollout) -> tuple[Item, ...]:
    """What a rollout that has begun took in so far, as it is listed; an item's id stays what it was."""
    made = {id(item) for item in rollout.output}
    own = [item for item in rollout.context.items_from(rollout.first_item) if id(item) not in made]
    return listed_items(own, _ids_of(rollout.record.response_id))


def _ids_of(response_id: str) -> Callable[[str], str]:
    """Ids for what a client sent without: as random as the response's own, and none is drawn for a list nobody asks for."""
    numbers = count()
    return lambda prefix: f"{prefix}_{response_id.partition('_')[2]}{next(numbers):04x}"


def usage_row(owner: str, rollout: Rollout) -> UsageRow:
    """What a rollout cost, all segments together."""
    totals, resource = rollout.usage, rollout.resource
    assert resource is not None, "a response that is counted has begun"
    return UsageRow(
        response_id=resource.id,
        owner=owner,
        dialect=rollout.record.dialect.name,
        status=resource.status,
        model=resource.model,
        input_tokens=totals.uncached_input_tokens + totals.cached_input_tokens,
        cached_tokens=totals.cached_input_tokens,
        output_tokens=totals.output_tokens,
        reasoning_tokens=totals.reasoning_tokens,
        segments=totals.segments,
        created_at=resource.created_at,
    )


async def restored(engine: Engine, owner: str, response_id: str) -> Snapshot:
    """A kept response as a parent, rendered again. `RemoteProtocolError`: there is none of this owner's. A checkpoint."""
    record = await engine.store.get(owner, response_id)
    if record is None or not record.continuable:
        raise refusal("previous_not_found", response_id=response_id)
    context = Context(Preamble(record.instructions, record.tools), slice_bytes=engine.limits.work_slice_bytes)
    for _ in context.extend_in_slices(record.context_items):
        await breathe()
    tools = engine.validate.tools(record.tools)
    added = tuple(some for item in record.context_items if (some := tools_added_by(item)))
    for some in added:
        tools = engine.validate.tools(some, tools)
    return Snapshot(
        response_id=response_id,
        context=context,
        calls=CallLedger.full(record.context_items),
        streams=Streams(),
        held_tokens=len(context),
        tools=tools,
        added_tools=added,
    )
