"""A sampling around another one: its segments enter a budget and leave it; for its rollout nothing else changes.

It knows what its state waits for, since when, and how much of it is in memory, as far as the keeper knows.
"""

import math
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from typing import Any, Protocol

import attrs
import trio

from engine.ledger import Ledger, Stage
from engine.residency.base import Paused
from engine.residency.pauses import Pauses, WaitedCall
from engine.samplers.base import Appended, End, Prefilled, Step, Steps, Taker, push
from engine.scheduler import SlotPool
from protocol.items import Item


class Keeping(Protocol):
    """What it asks of its keeper (`engine.residency.budget.Keeper`)."""

    pauses: Pauses
    slots: SlotPool | None
    """The model's own, if it has so many and no more."""

    async def enter(self, kept: "Kept", context_tokens: int) -> None:
        """A segment begins over so many tokens."""
        ...

    def leave(self, kept: "Kept") -> None:
        """The segment is over."""
        ...

    def learn(self, prefilled: Prefilled, sampled_tokens: int, seconds: float) -> None:
        """A segment was sampled to its end."""
        ...

    def pause(self, kept: "Kept") -> None:
        """It is known what it waits for."""
        ...

    def forget(self, kept: "Kept") -> None:
        """It is closed."""
        ...


@attrs.frozen
class Place:
    """Where a rollout's segments get their slots, and whose it is."""

    pools: Sequence[SlotPool]
    """In the order in which their slots were taken."""
    owner: str
    ledger: Ledger | None = None
    resumed: bool = False
    """Does the segment go on with what a client's tool said?"""

    def queueing(self) -> AbstractContextManager[object]:
        """Inside, time is booked as time in a queue."""
        return nullcontext() if self.ledger is None else self.ledger.at(Stage.QUEUE)

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """As `SlotPool.lent`, for all of them; it is booked as time in a queue.

        They come back in the order in which everybody takes them, or two could wait for each other.
        """
        async with AsyncExitStack() as lent:
            lent.enter_context(self.queueing())
            for pool in reversed(self.pools):
                await lent.enter_async_context(pool.lent())
            yield


@attrs.define
class _Seen:
    """What a segment was, as far as its steps tell."""

    prefilled: Prefilled
    tokens: int = 0
    seconds: float = 0.0
    """In which the model was waited for."""
    over: bool = False
    asked: float = 0.0
    """When the next step was asked for."""

    def note(self, step: Step) -> None:
        self.seconds += trio.current_time() - self.asked
        for part in step:
            self.tokens += part.tokens
            if type(part) is Prefilled:
                self.prefilled = part
            self.over = type(part) is End


@attrs.frozen
class _Between:
    """A taker that notes what it passes on."""

    _seen: _Seen
    _taker: Taker

    def take(self, step: Step) -> bool:
        self._seen.note(step)
        return self._taker.take(step)

    @property
    def outlet(self) -> int:
        return id(self)  # the time is noted of each

    def flush(self) -> bool:
        ready = self._taker.flush()
        self._seen.asked = trio.current_time()
        return ready

    async def rest(self) -> None:
        await self._taker.rest()
        self._seen.asked = trio.current_time()


class Kept:
    """A sampling whose state is kept within a budget; for its rollout it is a sampling."""

    __slots__ = (
        "_calls",
        "_keeper",
        "_ready_since",
        "_since",
        "closed",
        "entering",
        "key",
        "lapses_at",
        "moved",
        "place",
        "running",
        "sampling",
        "saved_tokens",
        "segments",
        "tokens",
    )

    def __init__(self, keeper: Keeping, key: int, sampling: Any) -> None:
        self.key = key
        self.sampling = sampling
        self.tokens = 0
        self.saved_tokens = 0
        self.segments = 0
        self.running = self.entering = self.closed = False
        self.lapses_at = math.inf
        self.moved: trio.Event | None = None
        """Its state is being moved, until then."""
        self.place = Place((), "")
        self._keeper = keeper
        self._since = trio.current_time()
        self._calls: tuple[WaitedCall, ...] = ()
        self._ready_since: float | None = None

    async def sample(self, appended: Appended) -> Steps:
        """As the sampling's, once there is room."""
        async with self._segment(appended) as seen, aclosing(self.sampling.sample(appended)) as steps:
            async for step in steps:
                seen.note(step)
                yield step
                seen.asked = trio.current_time()

    async def push(self, appended: Appended, taker: Taker) -> None:
        """As the sampling's, if it has that, else pulled; once there is room."""
        async with self._segment(appended) as seen:
            await push(self.sampling, appended, _Between(seen, taker))

    @asynccontextmanager
    async def _segment(self, appended: Appended) -> AsyncIterator["_Seen"]:
        async with AsyncExitStack() as held:
            await self._take_slot(held)
            seen = _Seen(appended.prefilled)
            try:
                await self._keeper.enter(self, appended.context_tokens)
                seen.asked = trio.current_time()
                yield seen
            finally:
                self._since, self._ready_since, self._calls = trio.current_time(), None, ()
                self._keeper.leave(self)
                if seen.over:
                    self._keeper.learn(seen.prefilled, seen.tokens, seen.seconds)

    async def _take_slot(self, held: AsyncExitStack) -> None:
        """One of the model's own: after those of the connection and the engine, in everybody's order."""
        place, pool = self.place, self._keeper.slots
        if pool is not None:
            with place.queueing():
                await held.enter_async_context(pool.slot(resumed=place.resumed, owner=place.owner))
            self.place = attrs.evolve(place, pools=(*place.pools, pool))

    def finished(self, items: Sequence[Item]) -> None:
        """As the sampling's, if it has one."""
        finished: Callable[[Sequence[Item]], None] | None = getattr(self.sampling, "finished", None)
        if finished is not None:
            finished(items)

    async def aclose(self) -> None:
        """As the sampling's; its state is in no budget any more."""
        if not self.closed:
            self._keeper.forget(self)
        await self.sampling.aclose()

    def pause(self, calls: tuple[WaitedCall, ...]) -> None:
        """It waits for these. Not a checkpoint."""
        self._calls = calls
        self._keeper.pause(self)

    def answered(self, call_ids: Collection[str]) -> None:
        """Outputs came. Not a checkpoint."""
        if not self._calls:
            return  # it samples, or nobody said what it waits for
        now = trio.current_time()
        for call in self._calls:
            if call.call_id in call_ids:
                self._keeper.pauses.learn(call.owner, call.tool, now - self._since)
        self._calls = tuple(call for call in self._calls if call.call_id not in call_ids)
        if not self._calls:
            self._ready_since = now
            if self.lapses_at > now:
                self.lapses_at = math.inf  # pinned until its segment begins

    def end_pause(self) -> None:
        """The next segment begins; what it waited for is here, though in some forms nobody said when it came."""
        self.answered([call.call_id for call in self._calls])

    @property
    def evictable(self) -> bool:
        """May its state make room?"""
        return self.idle and not self.entering

    @property
    def idle(self) -> bool:
        """Has it a state that neither samples nor moves?"""
        return self.tokens > 0 and self.moved is None and not (self.running or self.closed)

    @property
    def saves(self) -> bool:
        """Can its state be written away?"""
        return bool(getattr(self.sampling, "saves", False))

    def as_paused(self) -> Paused:
        """As a policy sees it."""
        return Paused(
            key=self.key,
            tokens=self.tokens,
            since=self._since,
            calls=self._calls,
            ready_since=self._ready_since,
            saves=self.saves,
        )
