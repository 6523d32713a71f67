"""The keeper of one sampler's states: within a budget of tokens, whose state is in memory, and who makes room for whom.

Nothing runs in the background: whoever begins a segment carries out what is due, in its own time

    lapsed states are dropped → room is made, by the policy's order → a saved state is brought back → the segment

so a state that was given up costs nothing as long as nobody wants its memory. A segment that fits goes straight in.

One whose state is in memory goes in: what it grows by is taken from others, in the policy's order.
One without waits if those that could go are pinned, or all sample. It waits at a door, one at a time, owners in turn and
each one's by arrival (`SlotPool` again), and lends its sampler slot meanwhile: those whose state is here use it.
Resumed ones do not go before new ones there: neither has anything left that is warm.
Pins hold for so long as it would take to compute the first one's state again, `PATIENCE` times, and no longer than for
as much as is asked for. Then the policy's order alone counts, and nobody passes the one at the door any more, so that
each wait has a bound: `engine.residency.bounds`.

The budget is soft. A prompt's size is the engine's own count, what will be sampled is guessed, and a sequence that is
larger than all memory is let in when it is alone; what a segment really took is booked when it ends.
The states that sample are never taken.
"""

import heapq
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any, Final

import attrs
import trio

from engine.residency.base import Policy, View
from engine.residency.bounds import LOOK_SECONDS, PATIENCE
from engine.residency.costs import Costs, Move
from engine.residency.kept import Kept
from engine.residency.pauses import Pauses
from engine.residency.statistics import Counts, ResidencyStatistics
from engine.residency.turns import Turns
from engine.samplers.base import Prefilled
from engine.scheduler import SlotPool

log = logging.getLogger(__name__)

_NEWEST_SHARE: Final = 0.2


class Keeper:
    """Of one sampler."""

    def __init__(
        self,
        policy: Policy,
        *,
        budget_tokens: int,
        slots: int = 0,
        max_saved_tokens: int,
        max_tools: int,
        cleanup_seconds: float,
    ) -> None:
        self.costs = Costs()
        self.pauses = Pauses(max_tools)
        self.turns = Turns()
        self._policy = policy
        self._budget_tokens = budget_tokens
        self.slots = SlotPool(slots) if slots else None
        """Each holds one state: they bound how many sample, and how many states there are."""
        self._max_resident = slots or math.inf
        self._max_saved_tokens = max_saved_tokens
        self._cleanup_seconds = cleanup_seconds
        self._kept: dict[int, Kept] = {}
        self._resident: dict[int, Kept] = {}
        """Of these, those with a state in memory."""
        self._keys = count()
        self._lapses: list[tuple[float, int]] = []
        """A heap; an entry is void if its state has another time by now."""
        self._resident_tokens = 0
        self._running_tokens = 0
        self._saved_tokens = 0
        self._room_seconds = 0.0
        self._counts = Counts()
        self.door = SlotPool(1)
        """Held by the one whose room is being made. May be replaced as long as nobody waits."""
        self._impatient = False
        """Has that one waited long enough? Then nobody else goes in."""
        self._changed = trio.Event()

    def kept(self, sampling: Any) -> Kept:
        """Keep a sampling that offers what `engine.residency.base.Movable` asks for."""
        key = next(self._keys)
        self._kept[key] = kept = Kept(self, key, sampling)
        return kept

    def statistics(self) -> ResidencyStatistics:
        """A frozen view."""
        slots = self.slots.statistics() if self.slots else None
        return ResidencyStatistics(
            sequences=len(self._kept),
            budget_tokens=self._budget_tokens,
            slots_free=slots.free if slots else 0,
            slots_waiting=slots.waiting_resumed + slots.waiting_new if slots else 0,
            resident_tokens=self._resident_tokens,
            running_tokens=self._running_tokens,
            saved_tokens=self._saved_tokens,
            **attrs.asdict(self._counts),
        )

    # --- segments ------------------------------------------------------------------------------------------------

    async def enter(self, kept: Kept, context_tokens: int) -> None:
        """A segment begins over so many tokens. A checkpoint only if something has to be moved, or waited for."""
        kept.end_pause()
        kept.entering = True
        try:
            await self._drop_lapsed()
            if kept.moved is not None:  # by somebody else; nobody begins to from here on
                await kept.moved.wait()
            if kept.tokens and self._impatient:  # it comes back before who waits could take it
                await self._evict(kept)
            if kept.tokens:  # unless the backend has lost it
                self.book(kept, kept.sampling.resident_tokens)
            needed = max(context_tokens, kept.tokens, kept.saved_tokens) + round(self.costs.sampled_tokens)
            if kept.tokens:
                await self._evict_until_fits(kept, needed, spares=False)
            else:
                await self._find_room(kept, needed)
        finally:
            kept.entering = False
        kept.segments += 1
        if not kept.running:
            self._begin(kept, needed)
        await self._restore(kept)

    def _begin(self, kept: Kept, needed: int) -> None:
        self.book(kept, 0)
        kept.running = True
        self.book(kept, needed)

    def leave(self, kept: Kept) -> None:
        """The segment is over, or was given up before it began. Not a checkpoint."""
        self.book(kept, 0)
        kept.running = False
        self.book(kept, kept.sampling.resident_tokens)
        self._changed.set()

    def book(self, kept: Kept, tokens: int) -> None:
        """So many tokens are in memory for it."""
        if kept.closed:
            return
        change = tokens - kept.tokens
        kept.tokens = tokens
        if tokens:
            self._resident[kept.key] = kept
        else:
            self._resident.pop(kept.key, None)
        self._resident_tokens += change
        self._running_tokens += change * kept.running
        self._counts.peak_tokens = max(self._counts.peak_tokens, self._resident_tokens)

    def learn(self, prefilled: Prefilled, sampled_tokens: int, seconds: float) -> None:
        """A segment was sampled to its end."""
        self._counts.reused_tokens += prefilled.reused
        self._counts.computed_tokens += prefilled.computed
        self.costs.learn(prefilled.computed, sampled_tokens, seconds)

    def forget(self, kept: Kept) -> None:
        """It is closed. Not a checkpoint."""
        self.book(kept, 0)
        self._saved_tokens -= kept.saved_tokens
        kept.saved_tokens = 0
        kept.closed = True
        del self._kept[kept.key]
        self.turns.learn(kept.segments)
        self._changed.set()

    # --- pauses --------------------------------------------------------------------------------------------------

    def pause(self, kept: Kept) -> None:
        """It is known what a state waits for: ask the policy how long it may stay."""
        kept.lapses_at = self._policy.lapses_at(kept.as_paused(), self._view())
        if kept.tokens and kept.lapses_at < math.inf:
            heapq.heappush(self._lapses, (kept.lapses_at, kept.key))

    def _is_due(self) -> bool:
        return bool(self._lapses) and self._lapses[0][0] <= trio.current_time()

    async def _drop_lapsed(self) -> None:
        while self._is_due():
            lapses_at, key = heapq.heappop(self._lapses)
            kept = self._kept.get(key)
            if kept is not None and kept.lapses_at == lapses_at and kept.idle:
                await self._evict(kept)

    def _view(self) -> View:
        return View(
            now=trio.current_time(),
            running_tokens=self._running_tokens,
            resident_tokens=self._resident_tokens,
            costs=self.costs,
            pauses=self.pauses,
            room_seconds=self._room_seconds,
            eta=self.turns.eta,
        )

    # --- room ----------------------------------------------------------------------------------------------------

    def _fits(self, kept: Kept, needed: int) -> bool:
        count = len(self._resident) + (kept.key not in self._resident)
        return (
            count <= self._max_resident
            and self._resident_tokens - kept.tokens + needed <= self._budget_tokens
        )

    async def _find_room(self, kept: Kept, needed: int) -> None:
        """For a state that is not in memory. If nothing is to go yet, wait for it without a slot."""
        began = trio.current_time()
        if not self.door.statistics().held:
            await self._evict_until_fits(kept, needed, spares=True)
        if self.door.statistics().held or not self._fits(kept, needed):
            self._counts.waits_for_room += 1
            asked = trio.current_time()
            async with kept.place.lent(), self.door.slot(resumed=True, owner=kept.place.owner):
                await self._wait_for_room(kept, needed)
                # before the slot is there again: its room is not to be taken meanwhile
                self._begin(kept, needed)
            waited = trio.current_time() - asked
            self._counts.longest_wait_seconds = max(self._counts.longest_wait_seconds, waited)
        if kept.segments:
            waited = trio.current_time() - began
            self._room_seconds += _NEWEST_SHARE * (waited - self._room_seconds)

    async def _wait_for_room(self, kept: Kept, needed: int) -> None:
        began = trio.current_time()
        patience_seconds = self._patience_seconds(min(needed, self._budget_tokens))
        patient_until = began + patience_seconds
        self._counts.longest_patience_seconds = max(self._counts.longest_patience_seconds, patience_seconds)
        try:
            while not await self._makes_room(kept, needed, began):
                with trio.move_on_at(math.inf if self._impatient else self._next_look(patient_until)):
                    await self._changed.wait()
                self._impatient = trio.current_time() >= patient_until
        finally:
            self._impatient = False

    async def _makes_room(self, kept: Kept, needed: int, began: float) -> bool:
        self._changed = trio.Event()  # before looking: not to miss what changes while a state is moved
        first = next(self._victims(), None)
        spares = first is not None and trio.current_time() - began < self._patience_seconds(first.tokens)
        await self._evict_until_fits(kept, needed, spares=spares and not self._impatient)
        return self._fits(kept, needed) or not self._resident  # alone, it may be larger than the memory

    def _next_look(self, patient_until: float) -> float:
        are_spared = any(one.evictable for one in self._resident.values())
        return min(patient_until, trio.current_time() + LOOK_SECONDS) if are_spared else patient_until

    def _patience_seconds(self, tokens: int) -> float:
        """To wait pays for about as long as it would take to compute again what has to go; a few times, to be sure."""
        return PATIENCE * self.costs.prefill_seconds(tokens)

    async def _evict_until_fits(self, kept: Kept, needed: int, *, spares: bool) -> None:
        """`spares`: leave those whom the policy pins."""
        if self._fits(kept, needed):
            return
        view = self._view()
        for victim in self._victims():
            if not (spares and self._policy.pins(victim.as_paused(), view)):
                await self._evict(victim)
            if self._fits(kept, needed):
                return

    def _victims(self) -> Iterator[Kept]:
        paused = [one.as_paused() for one in self._resident.values() if one.evictable]
        for victim in self._policy.victims(paused, self._view()) if paused else ():
            kept = self._kept.get(victim.key)
            if kept is not None and kept.evictable:  # still: it may have ended while another was moved
                yield kept

    async def _evict(self, kept: Kept) -> None:
        """Save or drop; shielded and bounded, for it is another rollout's state, and this one may be cancelled."""
        tokens, sampling = kept.tokens, kept.sampling
        kept.moved = trio.Event()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._cleanup_seconds):
            if self._saves(kept) and await _done(sampling.save, self.costs.saving, tokens):
                self._counts.saved += 1
                if not kept.closed:
                    kept.saved_tokens = tokens
                    self._saved_tokens += tokens
            else:
                self._counts.dropped += 1
                await _done(sampling.drop)
        self.book(kept, 0)
        kept.moved.set()
        kept.moved = None
        self._changed.set()

    def _saves(self, kept: Kept) -> bool:
        room = self._max_saved_tokens - self._saved_tokens
        return kept.saves and kept.tokens <= room and self._policy.saves(kept.as_paused(), self._view())

    async def _restore(self, kept: Kept) -> None:
        tokens, kept.saved_tokens = kept.saved_tokens, 0
        self._saved_tokens -= tokens
        if tokens and await _done(kept.sampling.restore, self.costs.restoring, tokens):
            self._counts.restored += 1


async def _done(move: Callable[[], Awaitable[object]], cost: Move | None = None, tokens: int = 0) -> bool:
    """Move a state; did it work? Tokens are the truth: whatever a backend says here costs time at most."""
    began = trio.current_time()
    try:
        done = await move() is not False
    except Exception:
        log.exception("moving a state of %d tokens failed; it will be computed again", tokens)
        return False
    if done and cost is not None:
        cost.learn(tokens, trio.current_time() - began)
    return done
