"""What is kept of a response when it ends, and how one that was kept is gone on with.

The usage row, and with `store: true` the response, are committed before the terminal event is sent: a client never sees
an end that a crash could undo (reference reliability P5). A store that fails is logged and does not fail the response.
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
    wanted: bool = True,
) -> None:
    """Commit the usage row of a rollout that has ended, and the response if it asks for that. A checkpoint.

    `input_items`: as they are listed; None = what the rollout itself took in. `wanted`: it was not deleted meanwhile.
    """
    try:
        record = stored(owner, rollout, input_items) if wanted and rollout.create.store is not False else None
        await engine.store.put_finished(record, usage_row(owner, rollout))
    except Exception:
        log.exception("keeping %s failed", rollout.record.response_id)


def stored(owner: str, rollout: Rollout, input_items: tuple[Item, ...] | None) -> StoredResponse:
    """A rollout that has ended, with its whole chain."""
    resource, create, context = rollout.resource, rollout.create, rollout.context
    assert resource is not None, "a response that is kept has begun"
    made = {id(item) for item in resource.output}
    own = tuple(item for item in context.items_from(rollout.first_item) if id(item) not in made)
    return StoredResponse(
        response_id=resource.id,
        owner=owner,
        resource=resource_body(resource),
        input_items=listed_items(own, _ids_of(resource.id)) if input_items is None else input_items,
        output_items=resource.output,
        context_items=context.items,
        previous_response_id=create.previous_response_id,
        status=resource.status,
        created_at=resource.created_at,
        instructions=create.instructions,
        tools=create.tools or (),
    )


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
