"""Lanes of a connection: which rollout runs, which creates wait (reference 3.5, 4.5).

Inside a lane one response after the other, in the order of the creates; lanes are concurrent.
A create that waits behind a rollout supersedes it: suspended, the rollout is abandoned at once; sampling, when it
suspends or ends. So a create that crosses a `response.done` ends the same way in both orders.
"""

import attrs

from engine.config import Limits
from engine.ledger import Ledger
from engine.rollout import Rollout
from engine.steering import Steering
from protocol.errors import refusal
from protocol.events import ResponseCreate


@attrs.frozen
class QueuedCreate:
    """A create that waits for its lane."""

    create: ResponseCreate
    size_bytes: int
    ledger: Ledger
    """Started when the frame came."""
    is_own: bool = False
    """The server's own, for words of a steer: no client waits for its answer."""


@attrs.define(eq=False)
class Lane:
    """One lane."""

    stream_id: str | None
    queue: list[QueuedCreate] = attrs.field(factory=list)
    """Short, and nearly always empty: an empty deque costs ten times an empty list."""
    busy: bool = False
    """A task runs a create of this lane."""
    steering: Steering = attrs.field(kw_only=True)
    rollout: Rollout | None = None
    """The response that is being made; None while pre-inference of the first has not begun."""


class Lanes:
    """The lanes of one connection, within the limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lanes: dict[str | None, Lane] = {None: Lane(None, steering=Steering(limits.max_pending_steers))}
        self._queued = 0
        self._queued_bytes = 0

    def lane(self, stream_id: str | None) -> Lane:
        """The lane of this name, made if need be. `RemoteProtocolError`: too many names."""
        lane = self._lanes.get(stream_id)
        if lane is None:
            if len(self._lanes) > self._limits.max_lanes:
                raise refusal("too_many_lanes", limit=self._limits.max_lanes)
            steering = Steering(self._limits.max_pending_steers)
            lane = self._lanes[stream_id] = Lane(stream_id, steering=steering)
        return lane

    def known(self, stream_id: str | None) -> Lane | None:
        """The lane of this name, if it exists."""
        return self._lanes.get(stream_id)

    def enqueue(self, lane: Lane, queued: QueuedCreate) -> None:
        """Let a create wait. `RemoteProtocolError`: too many wait, or too much."""
        full = self._queued >= self._limits.max_queued_creates
        if full or self._queued_bytes + queued.size_bytes > self._limits.max_queued_create_bytes:
            raise refusal("queue_full")
        self._queued += 1
        self._queued_bytes += queued.size_bytes
        lane.queue.append(queued)

    def put_first(self, lane: Lane, queued: QueuedCreate) -> None:
        """A create of the server's own goes before those of the client."""
        self._queued += 1
        self._queued_bytes += queued.size_bytes
        lane.queue.insert(0, queued)

    def dequeue(self, lane: Lane) -> QueuedCreate:
        """The next create of a lane."""
        queued = lane.queue.pop(0)
        self._queued -= 1
        self._queued_bytes -= queued.size_bytes
        return queued

    def drop_queued(self) -> list[tuple[Lane, QueuedCreate]]:
        """Nothing that waits will start. The dropped creates, each with its lane."""
        return [(lane, self.dequeue(lane)) for lane in self._lanes.values() for _ in list(lane.queue)]

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def queued(self) -> int:
        """Creates that wait."""
        return self._queued
