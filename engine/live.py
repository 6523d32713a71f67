"""Responses over HTTP that are being made or have just ended, by id and owner: what retrieve, cancel and replay look at."""

from collections import OrderedDict
from collections.abc import Iterator

import attrs
import orjson

from engine.config import Limits
from engine.rollout import Rollout
from engine.sse import EventLog
from protocol import codec
from protocol.events import Response
from protocol.items import Item


@attrs.define(eq=False)
class LiveResponse:
    """One response over HTTP, from its create on."""

    owner: str
    rollout: Rollout
    events: EventLog
    input_items: tuple[Item, ...]
    """As they are listed: each with an id."""

    @property
    def response_id(self) -> str:
        """Its id."""
        return self.rollout.record.response_id

    @property
    def retrievable(self) -> bool:
        """Has it begun, and is it one that is stored?"""
        return is_retrievable(self.rollout)


class LiveResponses:
    """All of a server's. Not a checkpoint anywhere."""

    def __init__(self, limits: Limits) -> None:
        self._max_kept = limits.max_kept_responses
        self._live: dict[str, LiveResponse] = {}
        self._ended: OrderedDict[str, tuple[str, EventLog]] = OrderedDict()

    def __len__(self) -> int:
        """Responses that have not ended."""
        return len(self._live)

    def __iter__(self) -> Iterator[LiveResponse]:
        """Those that have not ended, as they are now."""
        return iter(list(self._live.values()))

    def add(self, response: LiveResponse) -> None:
        """A response begins."""
        self._live[response.response_id] = response

    def end(self, response: LiveResponse) -> None:
        """It is over; of one that may be retrieved the events are kept for a while."""
        del self._live[response.response_id]
        if response.retrievable:
            self._ended[response.response_id] = (response.owner, response.events)
            if len(self._ended) > self._max_kept:
                self._ended.popitem(last=False)

    def get(self, owner: str, response_id: str) -> LiveResponse | None:
        """A response of this owner's that has not ended."""
        response = self._live.get(response_id)
        return response if response is not None and response.owner == owner else None

    def events_of_ended(self, owner: str, response_id: str) -> EventLog | None:
        """The events of a response that has ended, while they are kept."""
        kept_for, events = self._ended.get(response_id, (None, None))
        return events if kept_for == owner else None

    def forget(self, owner: str, response_id: str) -> bool:
        """It may no longer be retrieved; a live one goes on, and is not stored. False if there was none."""
        response = self.get(owner, response_id)
        if response is not None and response.retrievable:
            unstore(response.rollout)
            return True
        return self.events_of_ended(owner, response_id) is not None and bool(self._ended.pop(response_id))


def is_retrievable(rollout: Rollout) -> bool:
    """Has it begun, and is it one that is stored? Not with `store: false`, and not once it was deleted."""
    return rollout.resource is not None and rollout.create.store is not False


def unstore(rollout: Rollout) -> None:
    """It was deleted while it is made: it goes on, and nothing but its cost is kept of it."""
    rollout.create = attrs.evolve(rollout.create, store=False)


def resource_body(resource: Response) -> bytes:
    """The resource as JSON, as an HTTP body and in the store."""
    return orjson.dumps(codec.unstructure(resource))
