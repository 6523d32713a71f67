"""Is a run what another one was? The same design, and each headline figure within the other's interval.

The design is what experiment and seed fix: plan, rollouts, blocks and the order of the arms. What each rollout had to do
belongs to it: turns and sampled tokens. Of the figures, those decide that a report is about, of its headline's arm against
the baseline in each cell: the whole rollout, and the first token of its first and of its resumed turns; an arm that ran
twice is one more. What the other arms save is shown beside them: of so many intervals of 95 % some miss by chance.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from demos.lab.overhead_cpu import Share, has_floors, share
from demos.lab.records import CellKey, Header, Rollout, RolloutKey, cell_key, cell_name, differences
from demos.lab.results import ResultsReader
from demos.lab.statistics import ROUNDING, Comparison, Interval, compare, total_s
from demos.lab.turn_kinds import first_turn_s, resumed_turn_s
from demos.lab.validity import base_arm, judged

_TOTAL: Final = "whole rollout"
_MEASURES: Final[Mapping[str, Callable[[Rollout], float | None]]] = {
    _TOTAL: total_s,
    "first token, first turn": first_turn_s,
    "first token, resumed turns": resumed_turn_s,
}
_MOST_SHOWN: Final = 5
"""Differences of two designs."""


@attrs.frozen(kw_only=True)
class Figure:
    """What an arm saves in both runs, as shares of the baseline."""

    cell: CellKey
    arm: str
    base: str
    measure: str
    decides: bool
    first: float | None
    first_interval: Interval | None
    second: float | None
    second_interval: Interval | None

    @property
    def within(self) -> bool:
        """Is each within the other's interval? Not where one of them has none."""
        return _contains(self.first_interval, self.second) and _contains(self.second_interval, self.first)


@attrs.frozen
class Repetition:
    """Two runs held against each other."""

    design: Sequence[str]
    """Where their designs differ."""
    figures: Sequence[Figure]

    @property
    def holds(self) -> bool:
        """Same design, and every deciding figure within its interval."""
        deciding = [figure for figure in self.figures if figure.decides]
        return not self.design and bool(deciding) and all(figure.within for figure in deciding)


def repetition(first: Path, second: Path) -> Repetition:
    """Hold a result file against another one. `ResultsError`: one of them is none; `OSError`."""
    readers = [ResultsReader(path) for path in (first, second)]
    runs = [judged([*reader.rollouts()]) for reader in readers]
    design = [*_plans(*(reader.header for reader in readers)), *_works(*runs)]
    figures = [] if design else [*_figures(readers[0].header, *runs)]
    return Repetition(design, figures)


# --- the design ----------------------------------------------------------------------------------------------------


def _plans(first: Header, second: Header) -> Iterator[str]:
    plans = [
        {"experiment": one.experiment, "seed": one.seed, "config": one.config} for one in (first, second)
    ]
    for line in differences("", *plans):
        yield (
            line.removeprefix(".").replace("the file has", "the first has").replace("asked for", "the second")
        )


def _works(first: Sequence[Rollout], second: Sequence[Rollout]) -> Iterator[str]:
    theirs, ours = ({one.key: one for one in run} for run in (first, second))
    lines = [
        *(f"{key}: only in the first" for key in theirs if key not in ours),
        *(f"{key}: only in the second" for key in ours if key not in theirs),
        *(line for key in theirs if key in ours for line in _rollouts(key, theirs[key], ours[key])),
    ]
    yield from lines[:_MOST_SHOWN]
    if len(lines) > _MOST_SHOWN:
        yield f"and {len(lines) - _MOST_SHOWN} more rollouts"


def _rollouts(key: RolloutKey, first: Rollout, second: Rollout) -> Iterator[str]:
    """A rollout that failed did what it could, which is no matter of the design."""
    if first.order != second.order:
        yield f"{key}: place {first.order} in its block, and {second.order}"
    done = [(len(one.turns), one.tokens.sampled) for one in (first, second)]
    if done[0] != done[1] and not first.failed and not second.failed:
        yield f"{key}: {done[0][0]} turns of {done[0][1]} tokens, and {done[1][0]} of {done[1][1]}"


# --- the figures ---------------------------------------------------------------------------------------------------


def _figures(header: Header, first: Sequence[Rollout], second: Sequence[Rollout]) -> Iterator[Figure]:
    base, headline = header.config["baseline"], header.config["headline"]
    runs = [_cells(run) for run in (first, second)]
    for cell in runs[0]:
        ran = list(dict.fromkeys(one.arm for one in runs[0][cell]))
        for arm in header.config["arms"]:
            against = base_arm(arm) if "#" in arm else base
            if arm not in ran or arm == against:
                continue
            for what, measure in _MEASURES.items():
                if what != _TOTAL and arm != headline:
                    continue
                found = [compare(run[cell], against, arm, measure=measure) for run in runs]
                yield _figure(cell, what, *found, decides=arm == headline or "#" in arm)
        if base in ran and headline in ran and has_floors(runs[0][cell]):
            shares = [share(run[cell], base, headline) for run in runs]
            yield _overhead(cell, base, headline, *shares)


def _cells(rollouts: Sequence[Rollout]) -> dict[CellKey, list[Rollout]]:
    cells: dict[CellKey, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        cells[cell_key(rollout.cell)].append(rollout)
    return cells


def _figure(cell: CellKey, what: str, first: Comparison, second: Comparison, *, decides: bool) -> Figure:
    return Figure(
        cell=cell,
        arm=first.arm,
        base=first.base,
        measure=what,
        decides=decides,
        first=first.saving,
        first_interval=first.saving_interval,
        second=second.saving,
        second_interval=second.saving_interval,
    )


def _overhead(cell: CellKey, base: str, arm: str, first: Share, second: Share) -> Figure:
    return Figure(
        cell=cell,
        arm=arm,
        base=base,
        measure="server's overhead of a turn",
        decides=True,
        first=first.saving,
        first_interval=first.saving_interval,
        second=second.saving,
        second_interval=second.saving_interval,
    )


def _contains(interval: Interval | None, value: float | None) -> bool:
    if interval is None or value is None:
        return False
    return interval.low - ROUNDING <= value <= interval.high + ROUNDING


# --- for people ----------------------------------------------------------------------------------------------------


def lines(found: Repetition) -> Iterator[str]:
    """The verdict, and what it is made of."""
    for difference in found.design:
        yield f"other design: {difference}"
    cell: CellKey | None = None
    for figure in found.figures:
        if figure.cell != cell:
            cell = figure.cell
            yield cell_name(cell)
        mark = (
            ("ok  " if figure.within else "OUT ") if figure.decides else ("    " if figure.within else " out")
        )
        name = f"{figure.arm} against {figure.base}, {figure.measure}"
        yield (
            f"  {mark} {name:58} {_shown(figure.first, figure.first_interval)}   "
            f"{_shown(figure.second, figure.second_interval)}"
        )
    if found.figures:
        yield _counted(found.figures)
    yield "the second run repeats the first" if found.holds else "the second run does not repeat the first"


def _counted(figures: Sequence[Figure]) -> str:
    deciding = [figure for figure in figures if figure.decides]
    others = [figure for figure in figures if not figure.decides]
    return (
        f"{sum(one.within for one in deciding)} of {len(deciding)} headline figures are within each other's interval, "
        f"and {sum(one.within for one in others)} of {len(others)} others"
    )


def _shown(saving: float | None, interval: Interval | None) -> str:
    if saving is None:
        return "no data"
    sure = f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" if interval else " [no interval]"
    return f"{100 * saving:6.1f} %{sure:18}"
