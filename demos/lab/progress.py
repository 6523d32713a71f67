"""How far a run is, and how long it will take: a bar for a terminal, lines for everything else."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demos.lab.plan import Case

LINE_SECONDS: Final = 10.0
"""Between two lines."""


def duration(seconds: float) -> str:
    """For people: `40 s`, `9 min 20 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


class _Estimate:
    """What is left, from what was expected, corrected by how that went so far."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._expected = self._done = 0.0

    def begin(self, expected_seconds: float) -> None:
        self._began, self._expected, self._done = self._clock(), expected_seconds, 0.0

    def ran(self, expected_seconds: float) -> None:
        self._done += expected_seconds

    @property
    def left_seconds(self) -> float:
        left = max(0.0, self._expected - self._done)
        return left * (self._clock() - self._began) / self._done if self._done else left


class Bar(AbstractContextManager["Bar"]):
    """On a terminal. `demos.lab.runner.Progress`."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )
        self._estimate = _Estimate(time.monotonic)
        self._task = self._progress.add_task("", total=None, left="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, cases: int, seconds: float) -> None:
        """As the protocol says."""
        self._estimate.begin(seconds)
        left = f"about {duration(seconds)}"
        self._progress.reset(self._task, total=cases, description=f"{what} clock", left=left)

    def ran(self, case: Case, seconds: float) -> None:
        """As the protocol says."""
        self._estimate.ran(seconds)
        left = f"{duration(self._estimate.left_seconds)} left; {case.arm}"
        self._progress.update(self._task, advance=1, left=left)


class Lines(AbstractContextManager["Lines"]):
    """Everywhere else. `demos.lab.runner.Progress`."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._estimate = _Estimate(clock)
        self._cases = self._ran = 0
        self._said = clock()

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def begin(self, what: str, cases: int, seconds: float) -> None:
        """As the protocol says."""
        self._estimate.begin(seconds)
        self._cases, self._ran, self._said = cases, 0, self._clock()
        self._say(f"{cases} rollouts by the {what} clock, about {duration(seconds)}")

    def ran(self, case: Case, seconds: float) -> None:  # noqa: ARG002  # the protocol's signature
        """As the protocol says."""
        self._estimate.ran(seconds)
        self._ran += 1
        if self._clock() - self._said >= LINE_SECONDS:
            self._said = self._clock()
            self._say(f"{self._ran} of {self._cases}, {duration(self._estimate.left_seconds)} left")
