"""Where each microsecond of a rollout went on the server.

A ledger is a stopwatch that is always in exactly one stage; to enter a stage is to leave the one before, so the stages
partition the wall time by construction. What no stage claims stays in `OTHER`, and that is the residual.
Two clock reads and two additions an event: cheap enough to be always on.

The clock is monotonic nanoseconds and comes in as an argument (a simulation brings its own).
"""

import time
from array import array
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import attrs

Clock = Callable[[], int]
monotonic_ns: Clock = time.perf_counter_ns


class Stage(IntEnum):
    """What a rollout's time is spent on."""

    OTHER = 0
    """Bookkeeping between the stages; the residual."""
    DECODE = 1
    VALIDATE = 2
    RENDER = 3
    CLASSIFY = 4
    QUEUE = 5
    """Waiting for the lane, or for a sampler slot; taking it and giving it back."""
    SAMPLE = 6
    """Inside the sampler, waiting for it, and making what it is given."""
    HOSTED = 7
    """Waiting for tools the server runs itself."""
    ENCODE = 8
    """Making items and events of a step's parts, numbered and encoded."""
    SEND = 9
    """Handing bytes to the connection, and waiting for a client that reads slowly."""
    SUSPENDED = 10
    """Waiting for the client's tools."""
    ACCOUNT = 11
    """Counting, and closing what is over: a segment, or the response."""
    PERSIST = 12
    RESOLVE = 13
    TRACE = 14
    """Telling a trace what happens between the frames."""


_STAGES = len(Stage)


@attrs.frozen
class LedgerReport:
    """One rollout's times in nanoseconds; `stages` sums up to `wall` exactly."""

    wall_ns: int
    stages: dict[str, int]
    segments: int

    @property
    def residual(self) -> float:
        """Share of the wall time that no stage claims, 0 to 1."""
        return self.stages["other"] / self.wall_ns if self.wall_ns else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain data, for logs and files."""
        return {
            "wall_ns": self.wall_ns,
            "segments": self.segments,
            "residual": round(self.residual, 6),
            **self.stages,
        }


class Ledger:
    """The stopwatch of one rollout. Not a checkpoint anywhere."""

    __slots__ = ("_since", "_spent", "_started", "clock", "segments", "stage")

    def __init__(self, clock: Clock = monotonic_ns, *, started_ns: int | None = None) -> None:
        now = clock()
        self.clock = clock
        """To measure what is to be claimed."""
        self._started = now if started_ns is None else started_ns
        self._since = self._started
        self._spent = array("q", bytes(8 * _STAGES))  # a list would hold an object for each stage
        self.stage = Stage.OTHER
        self.segments = 0

    def enter(self, stage: Stage) -> Stage:
        """Be in `stage` from now on; returns the one left, to go back to."""
        now = self.clock()
        left = self.stage
        self._spent[left] += now - self._since
        self._since = now
        self.stage = stage
        return left

    def at(self, stage: Stage) -> "_Block":
        """`stage` inside the block, what was before after it."""
        return _Block(self, stage)

    def claim(self, stage: Stage, nanoseconds: int) -> None:
        """Time just spent by someone else on this rollout's behalf: taken from the current stage, so the sum stays."""
        self.enter(self.stage)
        taken = min(nanoseconds, self._spent[self.stage])
        self._spent[self.stage] -= taken
        self._spent[stage] += taken

    def report(self) -> LedgerReport:
        """The times up to now."""
        self.enter(self.stage)
        stages = {stage.name.lower(): self._spent[stage] for stage in Stage}
        return LedgerReport(self._since - self._started, stages, self.segments)


class _Block:
    """A third of the cost of a generator."""

    __slots__ = ("_ledger", "_left", "_stage")

    def __init__(self, ledger: Ledger, stage: Stage) -> None:
        self._ledger = ledger
        self._stage = self._left = stage

    def __enter__(self) -> None:
        self._left = self._ledger.enter(self._stage)

    def __exit__(self, *_: object) -> None:
        self._ledger.enter(self._left)
