"""Responses after their create, over HTTP: retrieve, replay, delete, cancel, list their input (reference 10.3 to 10.6).

Whatever is not this owner's answers exactly like what never was.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import orjson
import trio

from engine.config import Limits
from engine.http import Exchange
from engine.listing import page_body
from engine.live import LiveResponses, resource_body
from engine.sse import replay_events
from engine.storage import Store, StoredResponse
from protocol.dialects import Ending
from protocol.errors import refusal
from protocol.events import Response

_TRUE: Final = frozenset({"true", "1", "True"})
CancelElsewhere = Callable[[str, str], Awaitable[Response | None]]


@attrs.frozen
class StoredResponses:
    """The handlers. `cancel_elsewhere`: cancels an owner's response over WebSocket, and shows it; None if there is none."""

    store: Store
    live: LiveResponses
    limits: Limits
    cancel_elsewhere: CancelElsewhere
    forget_elsewhere: Callable[[str, str], None]
    """Drops an owner's response from the caches of connections."""

    async def retrieve(self, exchange: Exchange, response_id: str) -> None:
        """The resource, or its events from a number on. `RemoteProtocolError`; `ClientGone`."""
        query = exchange.handshake.query
        if query.get("stream") in _TRUE:
            await self._replay(exchange, response_id, _number_after(query.get("starting_after", "-1")))
            return
        response = self.live.get(exchange.owner, response_id)
        if response is not None and response.retrievable:
            assert response.rollout.resource is not None, "it has begun"
            await exchange.answer(200, resource_body(response.rollout.resource))
            return
        await exchange.answer(200, (await self._stored(exchange.owner, response_id)).resource)

    async def _replay(self, exchange: Exchange, response_id: str, start: int) -> None:
        response = self.live.get(exchange.owner, response_id)
        if response is not None and response.retrievable:
            await replay_events(exchange, response.events, start, self.limits)
            return
        record = await self._stored(exchange.owner, response_id)
        events = self.live.events_of_ended(exchange.owner, record.response_id)
        if events is None:
            raise refusal("replay_gap", response_id=response_id, number=start)
        await replay_events(exchange, events, start, self.limits)

    async def delete(self, exchange: Exchange, response_id: str) -> None:
        """Forget it; a live one goes on, unstored. `RemoteProtocolError`; `ClientGone`."""
        was_live = self.live.forget(exchange.owner, response_id)
        was_stored = await self.store.delete(exchange.owner, response_id)
        if not was_live and not was_stored:
            raise refusal("no_such_response", response_id=response_id)
        self.forget_elsewhere(exchange.owner, response_id)
        told = {"id": response_id, "object": "response", "deleted": True}
        await exchange.answer(200, orjson.dumps(told))

    async def cancel(self, exchange: Exchange, response_id: str) -> None:
        """End a live response of any form; one that has ended is shown unchanged. `RemoteProtocolError`; `ClientGone`."""
        owner = exchange.owner
        response = self.live.get(owner, response_id)
        if response is not None and response.rollout.resource is not None:
            response.rollout.stop(Ending.CANCELLED)
            await response.rollout.wait_ended()
            await exchange.answer(200, resource_body(response.rollout.resource))
        elif (cancelled := await self.cancel_elsewhere(owner, response_id)) is not None:
            await exchange.answer(200, resource_body(cancelled))
        else:
            await exchange.answer(200, (await self._stored(owner, response_id)).resource)

    async def input_items(self, exchange: Exchange, response_id: str) -> None:
        """A page of its input. `RemoteProtocolError`; `ClientGone`."""
        response = self.live.get(exchange.owner, response_id)
        if response is not None and response.retrievable:
            await trio.lowlevel.checkpoint()
            items = response.input_items
        else:
            items = (await self._stored(exchange.owner, response_id)).input_items
        await exchange.answer(200, page_body(items, exchange.handshake.query))

    async def _stored(self, owner: str, response_id: str) -> StoredResponse:
        record = await self.store.get(owner, response_id)
        if record is None:
            raise refusal("no_such_response", response_id=response_id)
        return record


def _number_after(text: str) -> int:
    """The number to start from, given the one to start after."""
    if text != "-1" and not (text.isascii() and text.isdigit() and len(text) < 16):
        raise refusal("invalid_value", field="starting_after")
    return int(text) + 1
