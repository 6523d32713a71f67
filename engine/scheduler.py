"""Who may sample: a bounded number of slots, given first to resumed rollouts, then in order of arrival.

A slot is held for one segment; a suspended rollout holds none.
Resumed ones go first because their context is warm and a client waits inside its tool loop; new ones are not starved by
them, for every resumption was once a new rollout that got its slot, and `max_resumed_in_a_row` bounds a burst.
"""

from collections import deque

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
        self._resumed: deque[trio.lowlevel.Task] = deque()
        self._new: deque[trio.lowlevel.Task] = deque()

    def slot(self, *, resumed: bool) -> "_Slot":
        """Hold a slot for the block. Entering is a checkpoint unless a slot is free; a cancelled wait leaves no trace."""
        return _Slot(self, resumed=resumed)

    async def acquire(self, *, resumed: bool) -> None:
        """Take a slot, to be given back by `release`; as entering `slot`."""
        queue = self._resumed if resumed else self._new
        if self._free:  # then nobody waits
            self._take()
            return
        task = trio.lowlevel.current_task()

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            # leaves the queue when it is cancelled, not when it runs next: in between a holder may free its slot
            queue.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        queue.append(task)
        await trio.lowlevel.wait_task_rescheduled(give_up)

    def _take(self) -> None:
        self._free -= 1
        self._held += 1
        self._granted += 1

    def release(self) -> None:
        """Give a slot back; whoever waited longest in the queue whose turn it is has it at once."""
        self._free += 1
        self._held -= 1
        while self._free and (queue := self._next_queue()):
            trio.lowlevel.reschedule(queue.popleft())
            self._take()

    def _next_queue(self) -> deque[trio.lowlevel.Task]:
        turn_of_new = bool(self._new) and self._in_a_row >= self.max_resumed_in_a_row
        queue = self._resumed if self._resumed and not turn_of_new else self._new
        self._in_a_row = self._in_a_row + 1 if queue is self._resumed and self._new else 0
        return queue

    def statistics(self) -> SlotStatistics:
        """A frozen view."""
        return SlotStatistics(self._free, self._held, len(self._resumed), len(self._new), self._granted)


class _Slot:
    """A place in a pool, for one block."""

    __slots__ = ("_pool", "_resumed")

    def __init__(self, pool: SlotPool, *, resumed: bool) -> None:
        self._pool = pool
        self._resumed = resumed

    async def __aenter__(self) -> None:
        await self._pool.acquire(resumed=self._resumed)

    async def __aexit__(self, *_: object) -> None:
        self._pool.release()
