"""The server's overhead as sections: what a turn of each form costs, and whether later turns cost more."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from demos.lab import plots
from demos.lab.arms import arm_of, with_turns
from demos.lab.overhead_cpu import (
    EDGE_TURNS,
    MANY_TURNS,
    MORE_EDGE_TURNS,
    Share,
    edge_turns,
    has_floors,
    last_against_first,
    overheads,
    raw_share,
    share,
    turn_cpu_ms,
)
from demos.lab.plots import Estimate, Series
from demos.lab.published import CONTEXT_TOKENS
from demos.lab.records import CellKey, Rollout
from demos.lab.report import Cell, Section, Table
from demos.lab.statistics import Interval, median

HISTORY: Final = "history_tokens"
RIVALS: Final = ("optimised", "naive")
"""Whose overhead that of the others is held against."""
METHOD: Final = (
    "A server's overhead is its CPU time above a floor that was run: the same work over the same transport in one "
    "response, all input in its create and all sampled tokens in one segment, at the same pace; both are of the same "
    "rollout and block. What any form must do, the model's ticks, its tokens as events and reading what is new once, is in "
    "the floor; requests, lifecycles, looking up, reading again, suspending and going on are above it."
)


def overhead_method(records: Sequence[Rollout]) -> tuple[str, ...]:
    """How it was measured, where it was."""
    return (METHOD,) if has_floors(records) else ()


def overhead_sections(
    records: Sequence[Rollout], config: Mapping[str, Any], name: str, source: str
) -> Iterator[Section]:
    """What there is to say of one cell's records: nothing where no floor was run, and no rollout had many turns."""
    if has_floors(records):
        yield overhead_section(records, config, name, source)
    if any(
        len(turn_cpu_ms(record)) >= (2 * EDGE_TURNS + 2 if has_floors(records) else MANY_TURNS)
        for record in records
    ):
        yield drift_section(records, config, name, source)


def overhead_section(
    records: Sequence[Rollout], config: Mapping[str, Any], name: str, source: str
) -> Section:
    """What a turn of each arm costs the server above its floor; the records of one cell."""
    found = overheads(records, config["arms"])
    rivals = [arm for arm in RIVALS if arm in config["arms"]]
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        shares = [
            cell
            for rival in rivals
            for cell in (*_cells(share(records, rival, one.arm)), raw_share(records, rival, one.arm).ratio)
        ]
        rows.append((one.arm, one.pairs, one.raw, one.floor, one.overhead, *_ends(one.interval), *shares))
    told = "; ".join(
        _told(share(records, rival, config["headline"]), rival)
        for rival in rivals
        if rival != config["headline"]
    )
    mine = next((one.overhead for one in found if one.arm == config["headline"]), None)
    costs = "no data" if mine is None else f"{mine:.2f} ms of CPU time above its floor"
    return Section(
        title=f"The server's overhead of a turn, {name}",
        sentence=f"A turn of {config['headline']} costs the server {costs}: {told}.",
        source=source,
        picture=plots.intervals(
            [Estimate(f"{arm_of(one.arm).rung} {one.arm}", one.overhead, *_ends(one.interval)) for one in found],
            title=f"The server's overhead of a turn, {name}",
            x_label="CPU time of a turn above the floor, ms; 95 % interval",
            level=0.0,
        ),
        table=Table(
            (
                "arm", "pairs", "CPU a turn, ms", "of it the floor, ms", "overhead, ms", "low, ms", "high, ms",
                *(
                    f"{what} {rival}"
                    for rival in rivals
                    for what in ("overhead: share of", "low: share of", "high: share of", "raw CPU: share of")
                ),
            ),
            tuple(rows),
        ),
        caveat="The floor is the same work over the same transport without turns, in one response; it was run in each "
        "block. What opens a connection and reads a history for the first time is in it.",
    )  # fmt: skip


def context_section(
    cells: Mapping[CellKey, Sequence[Rollout]], config: Mapping[str, Any], source: str
) -> Iterator[Section]:
    """What a turn costs above its floor by the length of the history, where cells differ in that alone."""
    along = _histories(cells)
    if len(along) < 2:
        return
    headline = config["headline"]
    arms = with_turns(config["arms"])
    rivals = [arm for arm in RIVALS if arm in arms and arm != headline]
    costs = {tokens: overheads(records, arms) for tokens, records in along.items()}
    by_arm = {arm: [next(one for one in found if one.arm == arm) for found in costs.values()] for arm in arms}
    shares = {arm: [share(records, arm, headline) for records in along.values()] for arm in rivals}
    histories = [*along]
    told = "; ".join(
        f"{_row('{:.3g}', [one.ratio for one in found])} of what one of {arm} does"
        for arm, found in shares.items()
    )
    mine = _row("{:.2f}", [one.overhead for one in by_arm[headline]])
    yield Section(
        title="The server's overhead of a turn by the length of the history",
        sentence=f"At {_row('{:,.0f}', histories)} tokens of history a turn of {headline} costs "
        f"the server {mine} ms of CPU time above its floor: {told}.",
        source=source,
        picture=plots.lines(
            [
                Series(
                    arm,
                    histories,
                    [one.overhead for one in found],
                    [_ends(one.interval)[0] for one in found],
                    [_ends(one.interval)[1] for one in found],
                )
                for arm, found in by_arm.items()
            ],
            title="The server's overhead of a turn by the length of the history",
            x_label="history before the first turn, tokens",
            y_label="CPU time of a turn above the floor, ms; 95 % band",
            log_x=True,
            log_y=True,
        ),
        table=Table(
            (
                "history, tokens",
                *(f"{arm}, ms" for arm in arms),
                *(f"{headline}: {what} {arm}" for arm in rivals for what in ("share of", "low: share of", "high: share of")),
            ),
            tuple(
                (
                    tokens,
                    *(by_arm[arm][index].overhead for arm in arms),
                    *(cell for arm in rivals for cell in _cells(shares[arm][index])),
                )
                for index, tokens in enumerate(histories)
            ),
        ),
        caveat="Each turn adds to the history, so the mean context of a call is longer. In recorded calls of coding agents "
        f"it is {_median_context():,} tokens in the median (see `demos/lab/published.py`).",
    )  # fmt: skip


def _histories(cells: Mapping[CellKey, Sequence[Rollout]]) -> dict[float, Sequence[Rollout]]:
    """Of the cells with floors the largest group that is alike but for the history, by that."""
    groups: dict[CellKey, dict[float, Sequence[Rollout]]] = defaultdict(dict)
    for cell, records in cells.items():
        others = tuple((axis, value) for axis, value in cell if axis != HISTORY)
        tokens = dict(cell).get(HISTORY)
        if isinstance(tokens, int | float) and has_floors(records):
            groups[others][tokens] = records
    largest = max(groups.values(), key=len, default={})
    return dict(sorted(largest.items()))


def _row(form: str, values: Sequence[float | None]) -> str:
    return " / ".join("no data" if value is None else form.format(value) for value in values)


def _median_context() -> int:
    return next(round(tokens) for share_of_calls, tokens in CONTEXT_TOKENS if share_of_calls == 0.5)


def drift_section(records: Sequence[Rollout], config: Mapping[str, Any], name: str, source: str) -> Section:
    """The CPU time of turn n, without the first and the last; the records of one cell."""
    arms = with_turns(config["arms"])
    edge = edge_turns(max((len(record.turns) for record in records), default=0))
    rows: list[tuple[Cell, ...]] = []
    lines, told = [], []
    for arm in arms:
        turns = [turn_cpu_ms(record) for record in records if record.arm == arm]
        turns = [one for one in turns if one]
        found = last_against_first(records, arm)
        rows.append((arm, len(turns), *_cells(found)))
        if found.ratio is not None:
            told.append(f"{arm} {_ratio(found)}")
        lines.append(_line(arm, turns))
    return Section(
        title=f"The server's CPU time of turn n, {name}",
        sentence=f"CPU time of the {edge} turns before the last one against turns 2 to {edge + 1}: "
        f"{', '.join(told) or 'no data'}.",
        source=source,
        picture=plots.lines(
            [line for line in lines if line.x],
            title=f"CPU time of turn n, {name}",
            x_label="turn" if edge == EDGE_TURNS else f"turn (median of {edge})",
            y_label="CPU time of the server, ms (median)",
        ),
        table=Table(("arm", "rollouts", "last / first", "low", "high"), tuple(rows)),
        caveat="All CPU time, that of the model too, from one request to the next. The first turn opens the connection and "
        "reads the history, the last one ends the response: both come once in a rollout and are left out.",
    )


def _line(arm: str, turns: Sequence[Sequence[float]]) -> Series:
    """Turn by turn; in windows where there are many."""
    count = min(map(len, turns), default=0)
    width = 1 if count < MANY_TURNS else MORE_EDGE_TURNS
    starts = range(1, count - width, width)
    medians = [median(cost for one in turns for cost in one[start : start + width]) for start in starts]
    return Series(arm, [start + (width + 1) / 2 for start in starts], medians)


def _cells(found: Share) -> tuple[Cell, Cell, Cell]:
    return found.ratio, *_ends(found.interval)


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _told(found: Share, rival: str) -> str:
    if found.ratio is None:
        return f"nothing is known of {rival}"
    return f"{_ratio(found)} of what one of {rival} does"


def _ratio(found: Share) -> str:
    interval = found.interval
    sure = f" ({interval.low:.3g} to {interval.high:.3g})" if interval else ""
    return f"{found.ratio:.3g}{sure}"
