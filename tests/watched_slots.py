"""Pools of slots that note each wait beside its bound, and what follows from two of them for the waits for memory."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import attrs
import trio

from engine.residency.bounds import room_bound_seconds, stand_bound_seconds
from engine.residency.statistics import ResidencyStatistics
from engine.scheduler import SlotPool, loan_bound, wait_bound

_ROUNDING_SECONDS = 1e-6


@attrs.frozen
class Bounded:
    """What came of many waits that each have a bound."""

    over: int
    """Those that took longer."""
    closest: float
    """The largest share of its own bound that one took."""

    @classmethod
    def of(cls, shares: Iterable[float]) -> "Bounded":
        """Of the share that each took."""
        all_shares = list(shares)
        return cls(sum(share > 1 for share in all_shares), max(all_shares, default=0.0))


def share(seconds: float, bound_seconds: float) -> float:
    """What part of it was taken."""
    if seconds <= bound_seconds + _ROUNDING_SECONDS:
        return min(1.0, seconds / bound_seconds) if bound_seconds else 0.0
    return seconds / bound_seconds if bound_seconds else math.inf


@attrs.frozen
class Wait:
    """One for a slot."""

    seconds: float
    grants: int
    returned: int
    """Lent slots that came back meanwhile."""
    bound: int
    """In grants."""


class WatchedSlots(SlotPool):
    """Notes of each wait how long it was, and how long it may have been. `owners`: how many there are."""

    def __init__(self, slots: int, *, owners: int = 1) -> None:
        super().__init__(slots)
        self._slots, self._owners = slots, owners
        self._waiting: Counter[tuple[bool, str]] = Counter()
        self.waits: list[Wait] = []
        self.holds: list[float] = []
        """Seconds, in the order in which they ended; without the time in which the slot was lent."""
        self.loans: list[tuple[float, int]] = []
        """Waits for what was lent: seconds, and their bound in segments."""

    async def acquire(self, *, resumed: bool, owner: str = "") -> None:
        before, began = self.statistics(), trio.current_time()
        bound = wait_bound(
            resumed=resumed,
            ahead=self._waiting[resumed, owner],
            owners=self._owners,
            max_resumed_in_a_row=self.max_resumed_in_a_row,
        )
        self._waiting[resumed, owner] += 1
        try:
            await super().acquire(resumed=resumed, owner=owner)
        finally:
            self._waiting[resumed, owner] -= 1
        after = self.statistics()
        self.waits.append(
            Wait(
                trio.current_time() - began,
                after.granted - before.granted,
                after.returned - before.returned,
                bound,
            )
        )

    def release(self, owner: str = "", held_seconds: float | None = None) -> None:
        self.holds.append(held_seconds or 0.0)
        super().release(owner, held_seconds)

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        async with super().lent():
            yield
            began, ahead = trio.current_time(), self.statistics().returning
        self.loans.append((trio.current_time() - began, loan_bound(ahead=ahead, slots=self._slots)))

    @property
    def longest_hold_seconds(self) -> float:
        """The longest segment, as far as a pool knows it."""
        return max(self.holds, default=0.0)

    def bounded(self) -> Bounded:
        """All waits that are over, those for what was lent included."""
        loans = (share(seconds, bound * self.longest_hold_seconds) for seconds, bound in self.loans)
        return Bounded.of([*map(self._share, self.waits), *loans])

    def _share(self, wait: Wait) -> float:
        # of those granted in one moment some run before it: at most the other slots
        in_grants = wait.grants / (wait.bound + self._slots - 1)
        rounds = math.ceil((wait.bound + wait.returned) / self._slots)
        return max(in_grants, share(wait.seconds, rounds * self.longest_hold_seconds))


@attrs.frozen
class RoomWaits:
    """Those for memory."""

    line: Bounded
    """Until it was one's turn to stand at the door."""
    stands: Bounded
    """At the door."""
    whole: Bounded
    """Both."""
    bound_seconds: float
    """Of the one that may have been longest, until it had its slot back."""


def room_waits(
    states: ResidencyStatistics, slots: WatchedSlots, door: WatchedSlots, *, moves_seconds: float = 0.0
) -> RoomWaits:
    """What a keeper with this door, whose rollouts have these slots, made them wait."""
    loan_seconds = max((seconds for seconds, _ in slots.loans), default=0.0)
    stand_seconds = stand_bound_seconds(
        patience_seconds=states.longest_patience_seconds,
        segment_seconds=slots.longest_hold_seconds,
        loan_seconds=loan_seconds,
        moves_seconds=moves_seconds,
    )

    def bound_seconds(wait: Wait, loan_seconds: float = 0.0) -> float:
        return room_bound_seconds(grants=wait.bound, stand_seconds=stand_seconds, loan_seconds=loan_seconds)

    waits = list(zip(door.waits, door.holds, strict=True))
    return RoomWaits(
        door.bounded(),
        Bounded.of(share(stood, stand_seconds) for _, stood in waits),
        Bounded.of(share(wait.seconds + stood, bound_seconds(wait)) for wait, stood in waits),
        max((bound_seconds(wait, loan_seconds) for wait in door.waits), default=0.0),
    )
