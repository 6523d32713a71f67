"""A simulated model: any sampler's words, at a model's pace.

It takes a source (a policy, a script), cuts its text into real tokens, and lets them out at so many tokens a second,
after a time that grows with the tokens it had to prefill. The jitter comes from a seed.

All streams share one *ticker*: a task that wakes once an engine step and wakes every stream that has tokens due.
A timer per stream would cost more than everything else in the event path (performance reference 2).
Tokens are let out by deadline, several at once where the rate is above the tick; lateness is counted.
"""

import codecs
import math
import random
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import starmap

import attrs
import trio

from engine import vocabulary
from engine.samplers.base import (
    Appended,
    CallInput,
    End,
    Part,
    Prefilled,
    Prompt,
    Sampler,
    Sampling,
    Step,
    Steps,
    Text,
    Thought,
)
from protocol.items import Item


class Ticker:
    """Wakes all waiting streams together, once a step; asleep when nobody waits, or nobody's time has come."""

    def __init__(self, tick_seconds: float) -> None:
        self.tick_seconds = tick_seconds
        self._waiting: dict[trio.lowlevel.Task, float] = {}
        """Without an event for each wait: that is a quarter of a wait's cost."""
        self._someone = trio.Event()
        self._nap = trio.CancelScope()
        self._due = math.inf
        """When the nap ends, but for the rest of a tick."""

    async def run(self) -> None:
        """The one task behind all streams. Runs until cancelled."""
        while True:
            now = trio.current_time()
            # if nobody waits a whole tick more: streams that were just woken have not come back yet
            self._due = min(self._waiting.values(), default=now)
            self._nap = trio.CancelScope(deadline=self._tick_for(self._due, now))
            with self._nap:
                await trio.sleep_forever()
            if self._waiting:
                self._wake(trio.current_time())
            else:
                self._someone = trio.Event()
                await self._someone.wait()

    def _tick_for(self, due: float, now: float) -> float:
        """The first tick that is both at or after `due` and after `now`."""
        tick = self._next_tick(max(now, due - self.tick_seconds))
        return tick if tick >= due else self._next_tick(tick)

    def _next_tick(self, now: float) -> float:
        number = math.floor(now / self.tick_seconds) + 1
        # 8.004 / 0.004 is 2000.9999999999998: the tick after it is not 8.004 again
        return (number if number * self.tick_seconds > now else number + 1) * self.tick_seconds

    def _wake(self, now: float) -> None:
        for task in [task for task, due in self._waiting.items() if due <= now]:
            del self._waiting[task]
            trio.lowlevel.reschedule(task)

    async def wait_until(self, due: float) -> None:
        """Wait for the first tick at or after `due`, in `trio.current_time()`. A checkpoint."""
        task = trio.lowlevel.current_task()

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiting[task] = due
        self._someone.set()
        if due < self._due:
            self._due = due
            self._nap.deadline = self._tick_for(due, trio.current_time())
        await trio.lowlevel.wait_task_rescheduled(give_up)


@attrs.frozen(kw_only=True)
class Pace:
    """How fast the model is."""

    tokens_per_second: float = 200.0
    first_token_seconds: float = 0.05
    """Before the first token of each segment, whatever its length."""
    prefill_tokens_per_second: float = 20_000.0
    """Tokens the model must still read; those of its warm state cost nothing."""
    moved_tokens_per_second: float = 0.0
    """State that is written away or brought back; 0 = this model cannot."""
    jitter: float = 0.0
    """Standard deviation of the logarithm of each step's duration; 0 = none."""
    seed: int = 0


@attrs.define
class PacedStatistics:
    """What the pacing did."""

    tokens: int = 0
    late_seconds_max: float = 0.0
    """The longest time by which a step left after it was due; a tick at the least."""


class Paced:
    """`source` at `pace`. Its `run` must be running, in a nursery of the server's."""

    def __init__(self, source: Sampler, pace: Pace, *, tick_seconds: float) -> None:
        self._source = source
        self._pace = pace
        self._ticker = Ticker(tick_seconds)
        self.statistics = PacedStatistics()

    reads_ahead = True

    @property
    def keeps_text_format(self) -> bool:
        """As the source."""
        return getattr(self._source, "keeps_text_format", False)

    async def run(self) -> None:
        """The engine step of all streams of this sampler. Runs until cancelled."""
        await self._ticker.run()

    def open(self, prompt: Prompt) -> Sampling:
        """Start a rollout; its jitter depends on the seed and the response's id."""
        jitter = None
        if self._pace.jitter:  # a generator has 2.5 kB of state
            jitter = random.Random(f"{self._pace.seed}:{prompt.response_id}")  # noqa: S311  # no secret comes of it
        return _Stream(self, self._source.open(prompt), jitter)


class _Stream:
    """One rollout, with the size of its simulated state (`engine.residency.base.Savable`)."""

    __slots__ = (
        "_has_read",
        "_jitter",
        "_pace",
        "_paced",
        "_saved_tokens",
        "_source",
        "_ticker",
        "_unsaid",
        "resident_tokens",
    )

    def __init__(self, paced: Paced, source: Sampling, jitter: random.Random | None) -> None:
        self._paced = paced
        self._pace = paced._pace  # noqa: SLF001  # one module
        self._ticker = paced._ticker  # noqa: SLF001
        self._source = source
        self._jitter = jitter
        self._unsaid: tuple[Item, ...] = ()
        """Read already, and nothing said to it: what the source has still to be told."""
        self._has_read = False
        self.resident_tokens = 0
        self._saved_tokens = 0

    async def sample(self, appended: Appended) -> Steps:
        now = trio.current_time()
        prefilled = self._prefilled(appended)
        prefill_seconds = prefilled.computed / self._pace.prefill_tokens_per_second
        if appended.only_read:
            self._unsaid += appended.items
            yield (prefilled,)
            await self._ticker.wait_until(now + prefill_seconds)
            yield (End(),)
            return
        first_due = now + self._pace.first_token_seconds + prefill_seconds
        if self._unsaid:
            appended, self._unsaid = attrs.evolve(appended, items=self._unsaid + appended.items), ()
        parts = [part async for step in self._source.sample(appended) for part in step]
        yield (prefilled,)
        for step, due in self._schedule(_in_tokens(parts), first_due):
            if due > trio.current_time():
                await self._ticker.wait_until(due)
            else:
                await trio.lowlevel.checkpoint()
            self._note(step, due)
            yield step

    def _prefilled(self, appended: Appended) -> Prefilled:
        """Reads what is new, and again what was lost since the segment before."""
        told = appended.prefilled
        whole = told.reused + told.computed
        lost = self._has_read and not self.resident_tokens
        self._has_read, self.resident_tokens = True, whole
        return Prefilled(0, whole) if lost else told

    @property
    def saves(self) -> bool:
        return self._pace.moved_tokens_per_second > 0

    async def drop(self) -> None:
        await trio.lowlevel.checkpoint()
        self.resident_tokens = 0

    async def save(self) -> None:
        await trio.sleep(self.resident_tokens / self._pace.moved_tokens_per_second)
        self._saved_tokens, self.resident_tokens = self.resident_tokens, 0

    async def restore(self) -> bool:
        await trio.sleep(self._saved_tokens / self._pace.moved_tokens_per_second)
        self.resident_tokens, self._saved_tokens = self._saved_tokens, 0
        return self.resident_tokens > 0

    def _schedule(self, parts: Iterable[Part], due: float) -> Iterator[tuple[Step, float]]:
        """Cut a segment into steps of a tick each, with the time at which each is due."""
        step: list[Part] = []
        began = due
        for part in parts:
            step.append(part)
            due += part.tokens * self._seconds_per_token()
            if due - began >= self._ticker.tick_seconds:
                yield step, due
                step, began = [], due
        if step:
            yield step, due

    def _seconds_per_token(self) -> float:
        seconds = 1.0 / self._pace.tokens_per_second
        return seconds * self._jitter.lognormvariate(0.0, self._pace.jitter) if self._jitter else seconds

    def _note(self, step: Step, due: float) -> None:
        statistics = self._paced.statistics
        tokens = sum(part.tokens for part in step)
        statistics.tokens += tokens
        self.resident_tokens += tokens
        statistics.late_seconds_max = max(statistics.late_seconds_max, trio.current_time() - due)

    async def aclose(self) -> None:
        await self._source.aclose()


def _in_tokens(parts: Iterable[Part]) -> Iterator[Part]:
    """Each text as its tokens, a character never split; other parts as they are."""
    for part in parts:
        if isinstance(part, Text | Thought):
            yield from starmap(type(part), token_pieces(part.text))
        elif isinstance(part, CallInput):
            yield from starmap(partial(CallInput, part.index), token_pieces(part.text))
        elif not isinstance(part, Prefilled):
            yield part
        if isinstance(part, End):
            return


def token_pieces(text: str) -> Iterator[tuple[str, int]]:
    """A text as pieces of whole characters, each with the number of tokens it took."""
    unread, tokens = b"", 0
    for data in vocabulary.each_token_bytes(vocabulary.encode(text)):
        tokens += 1
        unread += data
        piece, used = codecs.utf_8_decode(unread)
        unread = unread[used:]
        if piece:
            yield piece, tokens
            tokens = 0
