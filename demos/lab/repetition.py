"""Is a run what another one was? The same design, and headline figures whose difference may be nothing but chance.

The design is what experiment and seed fix: plan, rollouts, blocks and the order of the arms. What each rollout had to do
belongs to it: turns and sampled tokens. Of the figures, those decide that a report is about, of its headline's arm against
the baseline in each cell: the whole rollout, and the first token of its first and of its resumed turns; an arm that ran
twice is one more. What the other arms save is shown beside them.

A figure is repeated where the interval of the difference of both runs contains 0. One run's interval of 95 % is no
measure of that: a second good run is within it in some 80 to 90 % of cases only, as its own figure is off too. The intervals
of all figures that decide hold together in 95 % (Bonferroni): two good runs rarely disagree, however many figures they have.
Where a figure is of many rollouts, its interval speaks of others too (`demos.lab.statistics`), and a second run of the same
seed has the same ones: there, what agrees does not contradict the first, and may still have changed by less than it states.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from demos.lab.overhead_cpu import Share, has_floors, share
from demos.lab.records import CellKey, Header, Rollout, RolloutKey, cell_key, cell_name, differences
from demos.lab.results import ResultsError, ResultsReader
from demos.lab.statistics import (
    ROUNDING,
    Comparison,
    Estimate,
    Interval,
    compare,
    difference_interval,
    total_s,
)
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
class Question:
    """What an arm saves, as a share of the baseline: a figure of every run."""

    cell: CellKey
    arm: str
    base: str
    measure: str
    decides: bool
    ask: Callable[[Sequence[Rollout]], Comparison | Share]
    """Of the rollouts of its cell."""

    def answer(self, rollouts: Sequence[Rollout]) -> Estimate:
        """By a run."""
        found = self.ask(rollouts)
        return Estimate(found.saving, found.saving_interval, found.units)


@attrs.frozen
class Figure:
    """The answers of both runs."""

    question: Question
    first: Estimate
    second: Estimate
    difference: Interval | None
    """Of the second minus the first, so wide that those of all deciding figures hold together."""

    @property
    def agrees(self) -> bool:
        """May the difference be nothing but chance? Not where a run has no interval."""
        return _contains(self.difference, 0.0)

    @property
    def within(self) -> bool:
        """Is the second within the first's own interval?"""
        return _contains(self.first.interval, self.second.value)


@attrs.frozen
class Repetition:
    """Two runs held against each other."""

    design: Sequence[str]
    """Where their designs differ."""
    figures: Sequence[Figure]

    @property
    def holds(self) -> bool:
        """Same design, and every deciding figure agrees."""
        deciding = [figure for figure in self.figures if figure.question.decides]
        return not self.design and bool(deciding) and all(figure.agrees for figure in deciding)


def repetition(first: Path, second: Path) -> Repetition:
    """Hold a result file against another one. `ResultsError`: one of them is none, or of no arms; `OSError`."""
    readers = [ResultsReader(path) for path in (first, second)]
    for reader in readers:
        if "baseline" not in reader.header.config:
            raise ResultsError(
                f"{reader.path} is of {reader.header.experiment}; compare is for experiments of arms"
            )
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
    ours, theirs = _cells(first), _cells(second)
    questions = [question for cell in ours for question in _questions(header, cell, ours[cell])]
    judged_together = max(1, sum(question.decides for question in questions))
    for question in questions:
        one, other = (question.answer(run[question.cell]) for run in (ours, theirs))
        yield Figure(question, one, other, difference_interval(one, other, of=judged_together))


def _questions(header: Header, cell: CellKey, rollouts: Sequence[Rollout]) -> Iterator[Question]:
    base, headline = header.config["baseline"], header.config["headline"]
    ran = {one.arm for one in rollouts}
    for arm in header.config["arms"]:
        against = base_arm(arm) if "#" in arm else base
        if arm in ran and arm != against:
            yield from _savings(cell, against, arm, headline)
    if base in ran and headline in ran and has_floors(rollouts):
        yield Question(
            cell=cell,
            arm=headline,
            base=base,
            measure="server's overhead of a turn",
            decides=True,
            ask=partial(share, base=base, arm=headline),
        )


def _savings(cell: CellKey, base: str, arm: str, headline: str) -> Iterator[Question]:
    """Of its time; of the headline's arm, of each kind of turn as well."""
    for name, measure in _MEASURES.items():
        if name == _TOTAL or arm == headline:
            yield Question(
                cell=cell,
                arm=arm,
                base=base,
                measure=name,
                decides=arm == headline or "#" in arm,
                ask=partial(compare, base=base, arm=arm, measure=measure),
            )


def _cells(rollouts: Sequence[Rollout]) -> dict[CellKey, list[Rollout]]:
    cells: dict[CellKey, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        cells[cell_key(rollout.cell)].append(rollout)
    return cells


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
        if figure.question.cell != cell:
            cell = figure.question.cell
            yield cell_name(cell)
        yield _line(figure)
    yield from _counted(found.figures)
    yield "the second run repeats the first" if found.holds else "the second run does not repeat the first"


def _line(figure: Figure) -> str:
    asked, apart = figure.question, figure.difference
    mark = "unknown" if apart is None else "ok" if figure.agrees else "differs"
    name = f"{asked.arm} against {asked.base}, {asked.measure}"
    told = f"   difference {100 * apart.low:.1f} to {100 * apart.high:.1f}" if apart else ""
    return (
        f"  {mark if asked.decides else f'({mark})':9} {name:58} "
        f"{_shown(figure.first)}   {_shown(figure.second)}{told}"
    )


def _counted(figures: Sequence[Figure]) -> Iterator[str]:
    for what, decide in (("headline figures", True), ("other figures", False)):
        chosen = [figure for figure in figures if figure.question.decides == decide]
        if chosen:
            agree, within = sum(one.agrees for one in chosen), sum(one.within for one in chosen)
            yield (
                f"{agree} of {len(chosen)} {what} agree; "
                f"{within} of the second run's are within the first's own interval"
            )


def _shown(estimate: Estimate) -> str:
    if estimate.value is None:
        return f"{'no data':27}"
    interval = estimate.interval
    sure = f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" if interval else " [no interval]"
    return f"{100 * estimate.value:6.1f} %{sure:18}"
