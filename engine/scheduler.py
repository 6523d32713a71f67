"""Who may sample: a bounded number of slots, given first to resumed rollouts, then to owners in turn, then by arrival.

A slot is held for one segment; a suspended rollout holds none.
Resumed ones go first because their context is warm and a client waits inside its tool loop; so does a create that brings
the output of a tool, which is what a resumption is in the forms that end at their calls.
New ones are not starved by them: after `max_resumed_in_a_row` resumed ones that passed it, a new one has its turn.

Inside each of the two classes the owners (keys) take turns, so a key with a thousand rollouts delays another key's one
by a turn and not by a thousand. Slots are paid for by time: an owner whose segments are longer than the others' misses
turns until that is evened out (deficit round robin, the price known afterwards), but never more than `MAX_MISSED_TURNS`.
Who holds a slot while nobody else waits owes nothing for it.

So every wait ends: `wait_bound` says after how many grants at the latest, and as each slot is granted anew when its
segment ends, n grants take no longer than ⌈n / slots⌉ times the longest segment.
A slot that is lent (`SlotPool.lent`) is granted to others meanwhile and comes back before any further grant, in order:
who wants it back waits for `loan_bound` segments at most, and each that does counts as one grant more for the others.
Its holder pays for the time in which it was not lent.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager

import attrs
import trio

MAX_MISSED_TURNS = 8
"""What an owner can owe: enough to even out segments nine times as long as another's, and a bound for its next wait."""
_NEWEST_SHARE = 0.05
"""Of the newest segment in the running mean of an owner's."""


@attrs.frozen
class SlotStatistics:
    """What waits, and what is held."""

    free: int
    held: int
    waiting_resumed: int
    waiting_new: int
    granted: int
    returning: int = 0
    """Those who wait for a slot that they lent."""
    returned: int = attrs.field(default=0, eq=False)
    """Those who had to, and have it."""
    longest_wait_seconds: float = attrs.field(default=0.0, eq=False)
    """Of those that were granted a slot."""


def wait_bound(*, resumed: bool, ahead: int, owners: int, max_resumed_in_a_row: int) -> int:
    """How many grants there may be, the own one included, until a rollout that waits has its slot.

    `ahead`: how many of its owner's wait before it in its class. `owners`: how many have one waiting there, at most.
    """
    place = ahead + 1
    in_class = place + place * (owners - 1) * (1 + MAX_MISSED_TURNS)
    if not resumed:
        return in_class * (max_resumed_in_a_row + 1)
    return in_class + in_class // max_resumed_in_a_row + 1


def loan_bound(*, ahead: int, slots: int) -> int:
    """For how many segments, the longest there are, one waits for a lent slot when so many others want theirs back."""
    return ahead // slots + 1


class SlotPool:
    """`slots` places; fair between owners, and in order inside of each."""

    max_resumed_in_a_row = 32

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held = 0
        self._granted = 0
        self._in_a_row = 0
        self._owed = _Owed()
        self._resumed = _Turns(self._owed)
        self._new = _Turns(self._owed)
        self._longest_wait_seconds = 0.0
        self._returning: deque[trio.lowlevel.Task] = deque()
        """Those who lent their slot and want it back, before all others."""
        self._returned = 0
        self._lent_seconds: dict[trio.lowlevel.Task, float] = {}
        """Of those who hold a slot: for how long they had lent it."""

    def slot(self, *, resumed: bool, owner: str = "") -> "Slots":
        """Hold a slot for the block. Entering is a checkpoint unless a slot is free; a cancelled wait leaves no trace."""
        return Slots((self,), owner, resumed=resumed)

    async def acquire(self, *, resumed: bool, owner: str = "") -> None:
        """Take a slot, to be given back by `release`; as entering `slot`."""
        if self._free > 0:  # then nobody waits
            self._take()
            return
        turns = self._resumed if resumed else self._new
        task = trio.lowlevel.current_task()

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            # leaves the queue when it is cancelled, not when it runs next: in between a holder may free its slot
            turns.remove(owner, task)
            return trio.lowlevel.Abort.SUCCEEDED

        began = trio.current_time()
        turns.add(owner, task)
        await trio.lowlevel.wait_task_rescheduled(give_up)
        self._longest_wait_seconds = max(self._longest_wait_seconds, trio.current_time() - began)

    def _take(self) -> None:
        self._free -= 1
        self._held += 1
        self._granted += 1

    def release(self, owner: str = "", held_seconds: float | None = None) -> None:
        """Give a slot back; whose turn it is has it at once. `held_seconds`: charge them to the owner."""
        if held_seconds is not None and (self._resumed.waiting or self._new.waiting):
            waiting = self._resumed.owners | self._new.owners
            if waiting != {owner}:
                self._owed.charge(owner, held_seconds, waiting)
        self._give_back()

    def _give_back(self) -> None:
        self._free += 1
        self._held -= 1
        while self._free > 0 and self._returning:
            trio.lowlevel.reschedule(self._returning.popleft())
            self._returned += 1
            self._take_back()
        while self._free > 0 and (self._resumed.waiting or self._new.waiting):
            trio.lowlevel.reschedule(self._next_class().take())
            self._take()
        if self._free > 0:
            self._in_a_row = 0
            self._owed.forgive()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Let others have what this task holds by `slot`, while the block runs; then it is held again, which may wait.

        Whatever happens, it is held afterwards: if that is too early because of a cancellation or an error, there is one
        slot more for the moment that it takes to release it.
        """
        task, began = trio.lowlevel.current_task(), trio.current_time()
        self._give_back()
        try:
            yield
            if self._free > 0:
                self._take_back()
            else:
                await self._wait_to_return()
        except BaseException:
            self._take_back()
            raise
        finally:
            before = self._lent_seconds.get(task, 0.0)
            self._lent_seconds[task] = before + trio.current_time() - began

    async def _wait_to_return(self) -> None:
        task = trio.lowlevel.current_task()

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._returning.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        self._returning.append(task)
        await trio.lowlevel.wait_task_rescheduled(give_up)

    def take_lent_seconds(self) -> float:
        """For how long this task had lent the slot that it gives back now."""
        return self._lent_seconds.pop(trio.lowlevel.current_task(), 0.0) if self._lent_seconds else 0.0

    def _take_back(self) -> None:
        self._free -= 1
        self._held += 1

    def _next_class(self) -> "_Turns":
        turn_of_new = self._new.waiting and self._in_a_row >= self.max_resumed_in_a_row
        turns = self._resumed if self._resumed.waiting and not turn_of_new else self._new
        self._in_a_row = self._in_a_row + 1 if turns is self._resumed and self._new.waiting else 0
        return turns

    def statistics(self) -> SlotStatistics:
        """A frozen view."""
        return SlotStatistics(
            self._free,
            self._held,
            self._resumed.waiting,
            self._new.waiting,
            self._granted,
            len(self._returning),
            self._returned,
            self._longest_wait_seconds,
        )


class _Owed:
    """Turns that owners must miss, because their segments are longer than those of the owner with the shortest."""

    def __init__(self) -> None:
        self._mean_seconds: dict[str, float] = {}
        """Of those who held a slot while others waited."""
        self._turns: dict[str, float] = {}

    def charge(self, owner: str, seconds: float, waiting: AbstractSet[str]) -> None:
        """An owner held a slot for so long while these waited."""
        mean = self._mean_seconds.get(owner, seconds)
        self._mean_seconds[owner] = mean + _NEWEST_SHARE * (seconds - mean)
        means = self._mean_seconds
        shortest = min(means[one] for one in {owner, *waiting} if one in means)
        turns = seconds / shortest - 1 if shortest > 0 else math.copysign(MAX_MISSED_TURNS, seconds)
        self._set(owner, min(self._turns.get(owner, 0.0) + turns, MAX_MISSED_TURNS))

    def misses_turn(self, owner: str) -> bool:
        """Does it owe a whole turn? Then it has paid one now."""
        owed = self._turns.get(owner, 0.0)
        if owed < 1:
            return False
        self._set(owner, owed - 1)
        return True

    def _set(self, owner: str, owed: float) -> None:
        if owed > 0:
            self._turns[owner] = owed
        else:
            self._turns.pop(owner, None)

    def forgive(self) -> None:
        """Nobody waits: what was held took nothing from anybody."""
        if self._mean_seconds:
            self._mean_seconds.clear()
            self._turns.clear()


class _Turns:
    """Those who wait in one class: each owner's in order of arrival, the owners in a ring; its first has the next turn."""

    def __init__(self, owed: _Owed) -> None:
        self._owed = owed
        self._ring: dict[str, deque[trio.lowlevel.Task]] = {}
        """In order of turns; an owner is in it as long as one of its own waits."""
        self.waiting = 0

    @property
    def owners(self) -> AbstractSet[str]:
        """Whose wait."""
        return self._ring.keys()

    def add(self, owner: str, task: trio.lowlevel.Task) -> None:
        self._ring.setdefault(owner, deque()).append(task)
        self.waiting += 1

    def remove(self, owner: str, task: trio.lowlevel.Task) -> None:
        queue = self._ring[owner]
        queue.remove(task)
        self.waiting -= 1
        if not queue:
            del self._ring[owner]

    def take(self) -> trio.lowlevel.Task:
        """Whose turn it is, out of the ring. Ends: every lap lowers what the owners owe."""
        while len(self._ring) > 1 and self._owed.misses_turn(owner := next(iter(self._ring))):
            self._ring[owner] = self._ring.pop(owner)
        owner = next(iter(self._ring))
        queue = self._ring.pop(owner)
        task = queue.popleft()
        self.waiting -= 1
        if queue:
            self._ring[owner] = queue
        return task


class Slots:
    """A place in each of some pools, for one block, taken one after the other. Entering is a checkpoint unless all are free.

    Neither a generator nor an exit stack: every resumption goes through this.
    """

    __slots__ = ("_owner", "_pools", "_resumed", "_since")

    def __init__(self, pools: Sequence[SlotPool], owner: str, *, resumed: bool) -> None:
        self._pools = pools
        self._owner = owner
        self._resumed = resumed
        self._since: list[float] = []
        """When the place was taken in each of the first of them."""

    def take_free(self) -> bool:
        """Enter, if that need not wait; else nothing is taken. Not a checkpoint."""
        for pool in self._pools:
            if pool._free <= 0:  # noqa: SLF001  # one module
                return False
        for pool in self._pools:
            pool._take()  # noqa: SLF001
        self._since = [trio.current_time()] * len(self._pools)
        return True

    async def __aenter__(self) -> None:
        try:
            for pool in self._pools:
                await pool.acquire(resumed=self._resumed, owner=self._owner)
                self._since.append(trio.current_time())
        except BaseException:
            self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        now = trio.current_time()
        while self._since:
            pool = self._pools[len(self._since) - 1]
            pool.release(self._owner, now - self._since.pop() - pool.take_lent_seconds())
