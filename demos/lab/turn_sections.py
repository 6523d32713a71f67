"""What turns cost: the thousandth against the second, the server's stages, bytes and CPU time."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from demos.lab import plots
from demos.lab.plots import Series
from demos.lab.records import NOT_SERVER_TIME, CellKey, Rollout
from demos.lab.report import Section, Table
from demos.lab.statistics import median

MANY_TURNS: Final = 50
"""From so many on, the cost of turn n is shown."""
_WINDOW: Final = 20
"""Turns that one point of that line stands for."""
_MODEL_STAGES: Final = frozenset({"sample", "hosted", "queue"})
"""Time of the model, and of waiting for it."""


def growth(records: Sequence[Rollout], arms: Sequence[str], name: str, source: str) -> Section:
    """The cost of turn n, in windows."""
    lines = []
    told = []
    for arm in arms:
        costs = [_turn_ms(record) for record in records if record.arm == arm and not record.failed]
        if not costs:
            continue
        count = min(map(len, costs))
        windows = range(1, count - _WINDOW + 1, _WINDOW)  # the first turn opens the connection
        y = [median(cost for one in costs for cost in one[start : start + _WINDOW]) for start in windows]
        lines.append(Series(arm, [start + _WINDOW / 2 for start in windows], y))
        first, last = y[0], y[-1]
        told.append(f"{arm} {last / first:.2f}" if first and last else f"{arm} no data")
    return Section(
        title=f"The cost of turn n, {name}",
        sentence=f"The last {_WINDOW} turns against turns 2 to {_WINDOW + 1}, medians as a ratio: {', '.join(told)}.",
        source=source,
        picture=plots.lines(
            lines,
            title="From sending to the end of a turn",
            x_label=f"turn (median of {_WINDOW})",
            y_label="time of the turn, ms",
        ),
    )


def _turn_ms(record: Rollout) -> list[float | None]:
    return [None if turn.done_s is None else 1e3 * (turn.done_s - turn.sent_s) for turn in record.turns]


def server_time(records: Sequence[Rollout], arms: Sequence[str], name: str, source: str) -> Section:
    """Without the model's own time, which would hide the rest."""
    bars: dict[str, dict[str, float]] = {}
    for arm in arms:
        costs = [record.server for record in records if record.arm == arm and record.server is not None]
        turns = max((len(record.turns) for record in records if record.arm == arm), default=1)
        stages: dict[str, float] = defaultdict(float)
        for cost in costs:
            for stage, spent_ns in cost.stages.items():
                if stage not in NOT_SERVER_TIME and stage not in _MODEL_STAGES:
                    stages[stage] += spent_ns / 1e6 / len(costs) / turns
        if costs:
            bars[arm] = {stage: ms for stage, ms in stages.items() if ms > 0}
    longest = max(bars, key=lambda arm: sum(bars[arm].values()), default="")
    shortest = min(bars, key=lambda arm: sum(bars[arm].values()), default="")
    stages_of_all = sorted({stage for bar in bars.values() for stage in bar})
    return Section(
        title=f"Where the server's time goes, {name}",
        sentence=f"Besides the model, at {name} a turn of {longest} takes {sum(bars.get(longest, {}).values()):.2f} ms of the "
        f"server, one of {shortest} {sum(bars.get(shortest, {}).values()):.2f} ms.",
        source=source,
        picture=plots.stages(bars, title=f"Server time of a turn without the model, {name}", unit="ms",
                         x_label="server time of a turn, ms (mean)"),
        table=Table(
            ("arm", *(f"{stage}, ms" for stage in stages_of_all)),
            tuple((arm, *(bar.get(stage, 0.0) for stage in stages_of_all)) for arm, bar in bars.items()),
        ),
        caveat="Wall time of the server while it works on the rollout; in it is what other processes took from it. "
        "The checklist's residual is the share of all of the server's time, the model's included.",
    )  # fmt: skip


def costs(
    cells: Mapping[CellKey, Sequence[Rollout]], names: Mapping[CellKey, str], arms: Sequence[str], source: str
) -> Section:
    """Medians of a rollout: what was sent, computed and worked."""
    rows = []
    for cell, records in cells.items():
        for arm in arms:
            mine = [record for record in records if record.arm == arm]
            cpus = [
                1e3 * record.server.cpu_s / len(record.turns)
                for record in mine
                if record.server is not None and record.server.cpu_s is not None and record.turns
            ]
            rows.append(
                (
                    names[cell],
                    arm,
                    median(record.bytes_up for record in mine),
                    median(record.bytes_down for record in mine),
                    median(record.connections for record in mine),
                    median(record.tokens.computed for record in mine),
                    median(record.tokens.reused for record in mine),
                    median(cpus),
                )
            )
    up = {
        arm: median(record.bytes_up for records in cells.values() for record in records if record.arm == arm)
        for arm in arms
    }
    told = ", ".join(f"{arm} {value:,.0f}" for arm, value in up.items() if value is not None)
    return Section(
        title="What is sent and computed",
        sentence=f"Bytes from client to server in a rollout, median: {told}.",
        source=source,
        table=Table(
            ("cell", "arm", "bytes up", "bytes down", "connections", "input tokens computed", "reused",
             "server CPU a turn, ms"),
            tuple(rows),
        ),
    )  # fmt: skip
