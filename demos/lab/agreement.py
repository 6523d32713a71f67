"""Do the two clocks agree? The same rollouts were run by both; their medians are held against each other."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import attrs

from demos.lab import plots
from demos.lab.records import CellKey, Rollout, cell_key, cell_name
from demos.lab.report import Section, Table
from demos.lab.results import ResultsReader
from demos.lab.sections import short_names
from demos.lab.wording import percent

TOLERANCE: Final = 0.05


@attrs.frozen
class Agreement:
    """One arm in one cell."""

    cell: CellKey
    arm: str
    virtual_s: float
    wall_s: float

    @property
    def apart(self) -> float:
        """How much longer it took on the wall, as a share of the virtual time."""
        return self.wall_s / self.virtual_s - 1

    def __str__(self) -> str:
        return (
            f"{self.arm} at {cell_name(self.cell)}: virtual {self.virtual_s:.3f} s, wall {self.wall_s:.3f} s, "
            f"{100 * self.apart:+.1f} %"
        )


def agreements(virtual: Path, wall: Path) -> list[Agreement]:
    """Those that ran by both clocks, without failed rollouts. `ResultsError`."""
    seconds = [_medians(ResultsReader(path).rollouts()) for path in (virtual, wall)]
    both = sorted(seconds[0].keys() & seconds[1].keys(), key=repr)
    return [Agreement(*key, seconds[0][key], seconds[1][key]) for key in both]


def farthest(found: Iterable[Agreement]) -> float | None:
    """The largest difference, with its sign; None: nothing ran by both clocks."""
    return max((one.apart for one in found), key=abs, default=None)


def agreement_section(found: Sequence[Agreement], source: str) -> Section:
    """How far the clocks are apart, arm by arm; there must be one at least. `source`: as of each section."""
    worst = max(found, key=lambda one: abs(one.apart))
    names = short_names({one.cell: one for one in found})
    return Section(
        title="Virtual and wall clock",
        sentence=f"The two clocks are at most {percent(abs(worst.apart))} apart, and may be {percent(TOLERANCE)}: "
        f"{worst.arm} at {names[worst.cell]} takes {worst.virtual_s:.3f} s by the virtual and {worst.wall_s:.3f} s by the "
        "wall clock.",
        source=source,
        picture=plots.intervals(
            [plots.Estimate(f"{one.arm}, {names[one.cell]}", one.apart) for one in found],
            title="How much longer a rollout takes on the wall than by the virtual clock",
            x_label="longer by, of the virtual time (medians)",
            level=0.0,
            percent=True,
        ),
        table=Table(
            ("arm", "cell", "virtual, s", "wall, s", "longer, %"),
            tuple((one.arm, names[one.cell], one.virtual_s, one.wall_s, 100 * one.apart) for one in found),
        ),
        caveat="The virtual clock knows no processor: what the wall takes longer is work, and waiting for the processor.",
    )


def _medians(rollouts: Iterable[Rollout]) -> dict[tuple[CellKey, str], float]:
    seconds: dict[tuple[CellKey, str], list[float]] = defaultdict(list)
    for rollout in rollouts:
        if not rollout.failed and rollout.total_s is not None:
            seconds[cell_key(rollout.cell), rollout.arm].append(rollout.total_s)
    return {key: _median(values) for key, values in seconds.items()}


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
