"""Responses after their create, over HTTP: retrieve, replay, delete, cancel, list their input (reference 10.3 to 10.6).

Whatever is not this owner's answers exactly like what never was.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import orjson

from engine.config import Limits
from engine.elsewhere import Elsewhere
from engine.exchange import Exchange
from engine.keeping import listed_input
from engine.listing import page_body
from engine.live import LiveResponses, is_retrievable, resource_body
from engine.rollout import Rollout
from engine.sse import replay_events
from engine.storage import Store, StoredResponse
from protocol.dialects import Ending
from protocol.errors import refusal
from protocol.items import Item

_TRUE: Final = frozenset({"true", "1", "True"})


@attrs.frozen
class StoredResponses:
    """The handlers."""

    store: Store
    live: LiveResponses
    limits: Limits
    elsewhere: Elsewhere

    async def retrieve(self, exchange: Exchange, response_id: str) -> None:
        """The resource, or its events from a number on. `RemoteProtocolError`; `ClientGone`."""
        query = exchange.handshake.query
        if query.get("stream") in _TRUE:
            await self._replay(exchange, response_id, _number_after(query.get("starting_after", "-1")))
            return
        rollout = self._running(exchange.owner, response_id)
        if rollout is not None and rollout.resource is not None and is_retrievable(rollout):
            await exchange.answer(200, resource_body(rollout.resource))
            return
        await exchange.answer(200, (await self._stored(exchange.owner, response_id)).resource)

    def _running(self, owner: str, response_id: str) -> Rollout | None:
        response = self.live.get(owner, response_id)
        return response.rollout if response is not None else self.elsewhere.rollout(owner, response_id)

    async def _replay(self, exchange: Exchange, response_id: str, start: int) -> None:
        response = self.live.get(exchange.owner, response_id)
        if response is not None and response.retrievable:
            await replay_events(exchange, response.events, start, self.limits)
            return
        if self.elsewhere.retrievable(exchange.owner, response_id) is not None:
            raise refusal("not_replayed", response_id=response_id)
        record = await self._stored(exchange.owner, response_id)
        events = self.live.events_of_ended(exchange.owner, record.response_id)
        if events is None:
            raise refusal("replay_gap", response_id=response_id, number=start)
        await replay_events(exchange, events, start, self.limits)

    async def delete(self, exchange: Exchange, response_id: str) -> None:
        """Forget it; a live one goes on, unstored. `RemoteProtocolError`; `ClientGone`."""
        was_live = self.live.forget(exchange.owner, response_id)
        was_elsewhere = self.elsewhere.forget(exchange.owner, response_id)
        was_stored = await self.store.delete(exchange.owner, response_id)
        if not was_live and not was_elsewhere and not was_stored:
            raise refusal("no_such_response", response_id=response_id)
        told = {"id": response_id, "object": "response", "deleted": True}
        await exchange.answer(200, orjson.dumps(told))

    async def cancel(self, exchange: Exchange, response_id: str) -> None:
        """End a live response of any form; one that has ended is shown unchanged. `RemoteProtocolError`; `ClientGone`."""
        owner = exchange.owner
        rollout = self._running(owner, response_id)
        if rollout is not None and rollout.resource is not None:
            rollout.stop(Ending.CANCELLED)
            await rollout.wait_ended()
            await exchange.answer(200, resource_body(rollout.resource))
        else:
            await exchange.answer(200, (await self._stored(owner, response_id)).resource)

    async def input_items(self, exchange: Exchange, response_id: str) -> None:
        """A page of its input. `RemoteProtocolError`; `ClientGone`."""
        items = await self._input_items(exchange.owner, response_id)
        await exchange.answer(200, page_body(items, exchange.handshake.query))

    async def _input_items(self, owner: str, response_id: str) -> Sequence[Item]:
        response = self.live.get(owner, response_id)
        if response is not None and response.retrievable:
            return response.input_items
        rollout = self.elsewhere.retrievable(owner, response_id)
        if rollout is not None:
            return listed_input(rollout)
        return (await self._stored(owner, response_id)).input_items

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
