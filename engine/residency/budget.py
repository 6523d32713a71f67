"""The keeper of one sampler's states: within a budget of tokens, whose state is in memory, and who makes room for whom.

Nothing runs in the background: whoever begins a segment carries out what is due, in its own time

    lapsed states are dropped → room is made, by the policy's order → a saved state is brought back → the segment

so a state that was given up costs nothing as long as nobody wants its memory. A segment that fits goes straight in.

One whose state is in memory never waits for room: what it grows by is taken from others, in the policy's order.
One without waits if those that could go are pinned, or all sample. It waits at a door, one at a time, resumed before new,
owners in turn (`SlotPool` again), and lends its sampler slot meanwhile: those whose state is here use it. No wait is for
ever. Samples end, and pins hold for so long as it would take to compute the first one's state again, `PATIENCE` times;
then the policy's order alone counts. So whoever stands at the door has room after that time, and those behind after it.

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
from engine.residency.costs import Costs, Move
from engine.residency.kept import Kept
from engine.residency.pauses import Pauses
from engine.residency.turns import Turns
from engine.samplers.base import Prefilled
from engine.scheduler import SlotPool

log = logging.getLogger(__name__)

PATIENCE: Final = 4.0
"""How often over a state may be computed again in the time that somebody waits for its room."""
LOOK_SECONDS: Final = 0.5
"""Who waits for room looks again so often, besides when something changes: policies change their mind with time."""
_NEWEST_SHARE: Final = 0.2


@attrs.frozen(kw_only=True)
class ResidencyStatistics:
    """What is in memory, and what was moved; sums of all samplers where there are several."""

    sequences: int = 0
    """Samplings that are open."""
    budget_tokens: int = 0
    """0 = no budget: everything stays, and nothing here is counted."""
    resident_tokens: int = 0
    running_tokens: int = 0
    """Of these, in segments that sample; with what they are expected to sample."""
    saved_tokens: int = 0
    """Written away."""
    peak_tokens: int = 0
    """The most that was resident."""
    dropped: int = 0
    """States that made room, or lapsed, and are gone."""
    saved: int = 0
    restored: int = 0
    reused_tokens: int = 0
    """Of prompts: found in memory."""
    computed_tokens: int = 0
    waits_for_room: int = 0
    """Segments that had to wait, without a slot, until others' states could go."""
    longest_wait_seconds: float = 0.0
    """Of these."""


@attrs.define
class _Counts:
    dropped: int = 0
    saved: int = 0
    restored: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    waits_for_room: int = 0
    longest_wait_seconds: float = 0.0
    peak_tokens: int = 0


class Keeper:
    """Of one sampler."""

    def __init__(
        self,
        policy: Policy,
        *,
        budget_tokens: int,
        max_saved_tokens: int,
        max_tools: int,
        cleanup_seconds: float,
    ) -> None:
        self.costs = Costs()
        self.pauses = Pauses(max_tools)
        self.turns = Turns()
        self._policy = policy
        self._budget_tokens = budget_tokens
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
        self._counts = _Counts()
        self._door = SlotPool(1)
        self._changed = trio.Event()

    def kept(self, sampling: Any) -> Kept:
        """Keep a sampling that offers what `engine.residency.base.Movable` asks for."""
        key = next(self._keys)
        self._kept[key] = kept = Kept(self, key, sampling)
        return kept

    def statistics(self) -> ResidencyStatistics:
        """A frozen view."""
        return ResidencyStatistics(
            sequences=len(self._kept),
            budget_tokens=self._budget_tokens,
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
        return self._resident_tokens - kept.tokens + needed <= self._budget_tokens

    async def _find_room(self, kept: Kept, needed: int) -> None:
        """For a state that is not in memory. If nothing is to go yet, wait for it without a slot."""
        began = trio.current_time()
        if not self._door.statistics().held:
            await self._evict_until_fits(kept, needed, spares=True)
        if self._door.statistics().held or not self._fits(kept, needed):
            self._counts.waits_for_room += 1
            door = self._door.slot(resumed=kept.segments > 0, owner=kept.place.owner)
            async with kept.place.lent(), door:
                await self._wait_for_room(kept, needed)
                self._begin(
                    kept, needed
                )  # before the slot is there again: its room is not to be taken meanwhile
            waited = trio.current_time() - began
            self._counts.longest_wait_seconds = max(self._counts.longest_wait_seconds, waited)
        if kept.segments:
            waited = trio.current_time() - began
            self._room_seconds += _NEWEST_SHARE * (waited - self._room_seconds)

    async def _wait_for_room(self, kept: Kept, needed: int) -> None:
        began = trio.current_time()
        while True:
            impatient = trio.current_time() - began >= self._patience_seconds()
            await self._evict_until_fits(kept, needed, spares=not impatient)
            alone = not self._running_tokens and not any(one.evictable for one in self._resident.values())
            if self._fits(kept, needed) or alone:  # alone, it may be larger than the memory
                return
            self._changed = trio.Event()
            with trio.move_on_after(LOOK_SECONDS):
                await self._changed.wait()

    def _patience_seconds(self) -> float:
        """Who would go first is waited for as long as it would take to compute its state again, a few times."""
        first = next(iter(self._victims()), None)
        return PATIENCE * self.costs.prefill_seconds(first.tokens) if first is not None else 0.0

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
