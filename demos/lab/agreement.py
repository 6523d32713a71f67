"""Do the two clocks agree? The same rollouts were run by both; their medians are held against each other."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from demos.lab.records import CellKey, Rollout, cell_key, cell_name
from demos.lab.results import ResultsReader

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
