"""A simulated model: any sampler's words, at a model's pace.

It takes a source (a policy, a script), cuts its text into real tokens (`pieces`), and lets them out at so many a second,
after a time that grows with the tokens it had to prefill. The jitter comes from a seed.

All streams share one ticker (`engine.samplers.ticker`), which pushes the steps of every stream that has tokens due.
Tokens are let out by deadline, several at once where the rate is above the tick; lateness is counted.
"""

import math
import random
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Final

import attrs
import trio

from engine.samplers.base import (
    Appended,
    End,
    Part,
    Prefilled,
    Prompt,
    Sampler,
    Sampling,
    Steps,
    Taker,
)
from engine.samplers.pieces import Stretch, in_tokens
from engine.samplers.ticker import Ticker, Timed
from protocol.items import Item

STEPS_AHEAD: Final = 16
"""So many steps of a stream are made when one is needed."""
ROUNDING: Final = 1e-9
"""Of a token: 0.007 s at 1,000 tokens/s are seven, not a hair more."""

_timed = partial(tuple.__new__, Timed)
"""`Timed` of a triple, without the call that its constructor is."""


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
        for timed in await self._read(appended):
            if timed.due > trio.current_time():
                await self._ticker.wait_until(timed.due)
            else:
                await trio.lowlevel.checkpoint()
            self._note(timed, trio.current_time())
            yield timed.step

    async def push(self, appended: Appended, taker: Taker) -> None:
        await self._ticker.push(await self._read(appended), taker, self._note)

    async def _read(self, appended: Appended) -> Iterator[Timed]:
        """What the source says, with the time of each step."""
        now = trio.current_time()
        prefilled = self._prefilled(appended)
        first = (Timed((prefilled,), now),)
        prefill_seconds = prefilled.computed / self._pace.prefill_tokens_per_second
        if appended.only_read:
            self._unsaid += appended.items
            return chain(first, (Timed((End(),), now + prefill_seconds),))
        first_due = now + self._pace.first_token_seconds + prefill_seconds
        if self._unsaid:
            appended, self._unsaid = attrs.evolve(appended, items=self._unsaid + appended.items), ()
        parts = [part async for step in self._source.sample(appended) for part in step]
        return chain(first, _ahead(self._schedule(in_tokens(parts), first_due)))

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

    def _schedule(self, stretches: Iterable[Stretch], begun: float) -> Iterator[Timed]:
        """Cut a segment into steps of a tick each, with the time at which each is due."""
        if self._jitter is None:
            return self._steadily(stretches, begun)
        return self._unsteadily(chain.from_iterable(stretches), begun, self._jitter)

    def _steadily(self, stretches: Iterable[Stretch], begun: float) -> Iterator[Timed]:
        """A tick is a number of tokens, so nobody has to look at each of them."""
        rate = self._pace.tokens_per_second
        full = max(1, math.ceil(self._ticker.tick_seconds * rate - ROUNDING))
        step: list[Part] = []
        tokens = said = 0
        for stretch in stretches:
            each, start = stretch[0].tokens, 0
            first = math.ceil((full - tokens) / each) if each else len(stretch) + 1
            for end in range(first, len(stretch) + 1, full):
                step += stretch[start:end]
                tokens += (end - start) * each
                said += tokens
                yield _timed((step, begun + said / rate, tokens))
                step, tokens, start = [], 0, end
            step += stretch[start:]
            tokens += (len(stretch) - start) * each
        if step:
            yield Timed(step, begun + (said + tokens) / rate, tokens)

    def _unsteadily(self, parts: Iterable[Part], due: float, jitter: random.Random) -> Iterator[Timed]:
        """Each part takes its own time."""
        seconds, spread = 1.0 / self._pace.tokens_per_second, self._pace.jitter
        step: list[Part] = []
        tokens, step_seconds = 0, 0.0
        for part in parts:
            step.append(part)
            tokens += part.tokens
            part_seconds = part.tokens * seconds * jitter.lognormvariate(0.0, spread)
            due += part_seconds
            # not a difference of two times, which would depend on how late it is
            step_seconds += part_seconds
            if step_seconds >= self._ticker.tick_seconds:
                yield Timed(step, due, tokens)
                step, tokens, step_seconds = [], 0, 0.0
        if step:
            yield Timed(step, due, tokens)

    def _note(self, timed: Timed, now: float) -> None:
        """A step leaves."""
        tokens = timed.tokens
        if tokens:
            statistics = self._paced.statistics
            statistics.tokens += tokens
            self.resident_tokens += tokens
            if now - timed.due > statistics.late_seconds_max:  # noqa: PLR1730  # for each step of all streams
                statistics.late_seconds_max = now - timed.due

    async def aclose(self) -> None:
        await self._source.aclose()


def _ahead(steps: Iterator[Timed]) -> Iterator[Timed]:
    """The same, but made some at once: in a tick each would be the first since the machine slept, at several times the cost."""
    return chain.from_iterable(iter(lambda: list(islice(steps, STEPS_AHEAD)), []))
