"""Who may sample: a bounded number of slots, given first to resumed rollouts, then in order of arrival.

A slot is held for one segment; a suspended rollout holds none.
Resumed ones go first because their context is warm and a client waits inside its tool loop; new ones are not starved by
them, for every resumption was once a new rollout that got its slot, and `max_resumed_in_a_row` bounds a burst.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio


@attrs.frozen
class SlotStatistics:
    """What waits, and what is held."""

    free: int
    held: int
    waiting_resumed: int
    waiting_new: int
    granted: int


class SlotPool:
    """`slots` places; fair inside each of the two queues."""

    max_resumed_in_a_row = 32

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held = 0
        self._granted = 0
        self._in_a_row = 0
        self._resumed: deque[trio.Event] = deque()
        self._new: deque[trio.Event] = deque()

    @asynccontextmanager
    async def slot(self, *, resumed: bool) -> AsyncIterator[None]:
        """Hold a slot for the block. Entering is a checkpoint unless a slot is free; a cancelled wait leaves no trace."""
        await self._acquire(self._resumed if resumed else self._new)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, queue: deque[trio.Event]) -> None:
        if self._free and not self._resumed and not self._new:
            self._take()
            return
        turn = trio.Event()
        queue.append(turn)
        try:
            # trio delivers the event or the cancellation, never both: a granted slot cannot be lost here
            await turn.wait()
        except trio.Cancelled:
            queue.remove(turn)
            raise

    def _take(self) -> None:
        self._free -= 1
        self._held += 1
        self._granted += 1

    def _release(self) -> None:
        self._free += 1
        self._held -= 1
        while self._free and (queue := self._next_queue()):
            queue.popleft().set()
            self._take()

    def _next_queue(self) -> deque[trio.Event]:
        turn_of_new = bool(self._new) and self._in_a_row >= self.max_resumed_in_a_row
        queue = self._resumed if self._resumed and not turn_of_new else self._new
        self._in_a_row = self._in_a_row + 1 if queue is self._resumed and self._new else 0
        return queue

    def statistics(self) -> SlotStatistics:
        """A frozen view."""
        return SlotStatistics(self._free, self._held, len(self._resumed), len(self._new), self._granted)
