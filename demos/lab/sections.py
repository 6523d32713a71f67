"""A result file as a report: what the arms took, what they cost, and where the time went. From the file alone.

Each section answers one question for the cells that differ in nothing else, with the interval that belongs to its figure.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from demos.lab import plots, published
from demos.lab.arms import arm_of, with_turns
from demos.lab.bound import bound_sections
from demos.lab.overhead_cpu_sections import context_section, overhead_method, overhead_sections
from demos.lab.plots import Estimate, Series
from demos.lab.records import CellKey, Rollout, cell_key
from demos.lab.report import Report, Section, Table
from demos.lab.results import ResultsError, ResultsReader
from demos.lab.runner import FINDING, SAMPLER
from demos.lab.statistics import Comparison, compare, median, total_s
from demos.lab.turn_kinds import first_and_resumed
from demos.lab.turn_sections import MANY_TURNS, costs, growth, server_time
from demos.lab.validity import base_arm, judged
from demos.lab.wording import percent, saving_sentence, trust

_TOTAL: Final = "time per rollout"
_LEAST_SHOWN: Final = -0.5
"""Savings below it are numbers: next to naive HTTP all other arms are one point."""
_MOST_PICTURES: Final = 6
"""Cells with a picture of their own; more of them are lines over an axis."""

AXES: Final[Mapping[str, tuple[str, str]]] = {
    "tokens_per_second": ("the model's speed", "tokens/s"),
    "rtt_ms": ("the round trip", "ms"),
    "tool": ("the time of each tool call", "s"),
    "calls": ("the tool calls of a rollout", ""),
    "history_tokens": ("the history", "tokens"),
    "new_tokens": ("the output of each tool call", "tokens"),
    "sampled_tokens": ("what each step samples", "tokens"),
    "prefill_tokens_per_second": ("the speed of prefill", "tokens/s"),
}
"""Each axis of a plan: what it is called, and its unit."""

METHOD: Final = (
    "Each rollout ran in every arm with the same work, texts and seed; in each block the order of the arms was drawn.",
    "Every rollout had a server of its own, with empty caches; opening the connection is a part of its time.",
    "Times count from the intended start; a client waits for the end of a turn before it sends the next (closed loop).",
    "In wall time client, network and server are three processes; the network delays each byte by half a round trip.",
    "In virtual time processors cost nothing: it is the bound of what network, model and tools alone would take.",
    "Ratios are of sums over the same rollouts; intervals are bootstraps of 95 %.",
)
NOT_MEASURED: Final = (
    "TLS handshakes, packet loss and limited bandwidth.",
    "Several rollouts at once.",
    "A real model: a program says what is to be sampled, at a stated pace.",
)


def report_of(path: Path, *, clocks: tuple[float, float] | None = None) -> Report:
    """The report of a result file; it is to be written beside it. `ResultsError`: the file is none, or empty.

    `clocks`: how far virtual and wall time are apart and may be, where both were run.
    """
    reader = ResultsReader(path)
    header, config = reader.header, reader.header.config
    rollouts = judged([*reader.rollouts()])
    if not rollouts:
        raise ResultsError(f"{path} holds no rollout yet; --resume runs them")
    notes = [*reader.notes()]
    cells = _cells(rollouts)
    base: str = config["baseline"]
    others = [arm for arm in config["arms"] if base_arm(arm) != base]
    repeated = [arm for arm in config["arms"] if "#" in arm]
    compared = [compare(records, base, arm) for records in cells.values() for arm in others]
    judged_together = len(cells) * len(repeated)
    again = [
        compare(records, base_arm(arm), arm, of=judged_together)
        for records in cells.values()
        for arm in repeated
    ]
    lateness = [note.detail for note in notes if note.topic == SAMPLER]
    sections = [*_sections(cells, config, path.name)]
    return Report(
        title=config["title"],
        header=header,
        summary=(config["question"], *_summary(cells, config)),
        sections=tuple(sections),
        method=(*METHOD, *overhead_method(rollouts), *_steps_late(lateness)),
        checks=trust(header, notes, rollouts, comparisons=compared, repeated=again, clocks=clocks),
        files=(path.name,),
        not_measured=(*NOT_MEASURED, *_findings(note.detail for note in notes if note.topic == FINDING)),
    )


def _cells(rollouts: Sequence[Rollout]) -> dict[CellKey, list[Rollout]]:
    cells: dict[CellKey, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        cells[cell_key(rollout.cell)].append(rollout)
    return cells


def _summary(cells: Mapping[CellKey, Sequence[Rollout]], config: Mapping[str, Any]) -> Iterator[str]:
    """What the experiment is about, in each cell as far as they can be listed."""
    names = short_names(cells)
    for cell, records in [*cells.items()][:_MOST_PICTURES]:
        yield f"{names[cell]}: {saving_sentence(compare(records, config['baseline'], config['headline']))}"


def _steps_late(lateness: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for seen in lateness:
        yield (
            f"The latest step of the simulated model in a rollout was {1e3 * seen['late_p50_s']:.1f} ms late in the "
            f"median and {1e3 * seen['late_p99_s']:.1f} ms at the 99th percentile of {seen['rollouts']} rollouts."
        )


def _findings(details: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    for detail in details:
        yield f"The trace checker on {detail['rollout']}: {detail['finding']}"


def short_names(cells: Mapping[CellKey, object]) -> dict[CellKey, str]:
    """Cells by what tells them apart."""
    varied = [
        axis for axis in dict(next(iter(cells), ())) if len({dict(cell).get(axis) for cell in cells}) > 1
    ] or ["tokens_per_second"]
    return {
        cell: ", ".join(_spoken(axis, dict(cell)[axis]) for axis in varied if axis in dict(cell))
        for cell in cells
    }


def _spoken(axis: str, value: Any) -> str:
    shown = f"{value:,g}" if isinstance(value, int | float) else value
    match axis:
        case "tokens_per_second":
            return f"{shown} tokens/s"
        case "rtt_ms":
            return f"round trip {shown} ms"
        case "tool":
            return f"tools {shown}" + ("" if isinstance(value, str) else " s")
        case _:
            return f"{axis.replace('_', ' ')} {shown}"


def _sections(
    cells: Mapping[CellKey, Sequence[Rollout]], config: Mapping[str, Any], source: str
) -> Iterator[Section]:
    base, arms = config["baseline"], with_turns(config["arms"])
    names = short_names(cells)
    # An overhead that was added is a mean of a rollout's calls, and says nothing of the first.
    is_added = any(cell["model"]["overhead_ms"] for cell in config["cells"])
    if config["work"]["source"] == "alpha":
        yield _beside_the_timings(cells, names, source)
    if len(cells) <= _MOST_PICTURES:
        for cell, records in cells.items():
            yield _savings(records, config, names[cell], source, _TOTAL, total_s)
            if not is_added:
                yield first_and_resumed(records, arms, base, config["headline"], names[cell], source)
    else:
        yield from _sweeps(cells, arms, base, source)
    yield from bound_sections(cells, names, config, source)
    for cell, records in [*cells.items()][:_MOST_PICTURES]:
        if any(len(record.turns) >= MANY_TURNS for record in records):
            yield growth(records, arms, names[cell], source)
        if any(record.clock == "wall" for record in records):
            yield server_time(records, arms, names[cell], source)
        yield from overhead_sections(records, config, names[cell], source)
    yield from context_section(cells, config, source)
    yield costs(cells, names, arms, source)


def _savings(
    records: Sequence[Rollout],
    config: Mapping[str, Any],
    name: str,
    source: str,
    what: str,
    measure: Callable[[Rollout], float | None],
) -> Section:
    arms, base = with_turns(config["arms"]), config["baseline"]
    found = {arm: compare(records, base, arm, measure=measure) for arm in arms if arm != base}
    told = dict.fromkeys((config["headline"], next(iter(found))))
    rows = []
    for arm in arms:
        seconds = [measure(record) for record in records if record.arm == arm]
        one = found.get(arm)
        saved = ("the baseline", "", "") if one is None else _saving_cells(one)
        rows.append((arm, arm_of(arm).rung, len(seconds), median(seconds), *saved))
    columns = (
        "arm", "rung", "rollouts", "median, s", f"saving against {base}, %", "low, %", "high, %",
    )  # fmt: skip
    return Section(
        title=f"{what.capitalize()}, {name}",
        sentence=f"{name}: {' '.join(saving_sentence(found[arm], of=what) for arm in told)}",
        source=source,
        picture=plots.intervals(
            [Estimate(f"{arm_of(arm).rung} {arm}", *_saving_values(one)) for arm, one in found.items()],
            title=f"Saving of {what} against {base}, {name}",
            x_label=f"saving against {base}; 95 % interval",
            level=0.0,
            percent=True,
            least=_LEAST_SHOWN,
        ),
        table=Table(columns, tuple(rows)),
    )


def _saving_values(one: Comparison) -> tuple[float | None, float | None, float | None]:
    interval = one.saving_interval
    return one.saving, interval.low if interval else None, interval.high if interval else None


def _saving_cells(one: Comparison) -> tuple[float | None, float | None, float | None]:
    low, middle, high = (None if value is None else 100 * value for value in _ordered(one))
    return middle, low, high


def _ordered(one: Comparison) -> tuple[float | None, float | None, float | None]:
    value, low, high = _saving_values(one)
    return low, value, high


def _sweeps(
    cells: Mapping[CellKey, Sequence[Rollout]], arms: Sequence[str], base: str, source: str
) -> Iterator[Section]:
    """For each axis of numbers the saving along it, the other axes as they are in the first cell."""
    plain = [dict(cell) for cell in cells]
    first = plain[0]
    for axis in first:
        along = [cell for cell in plain if all(cell[name] == first[name] for name in first if name != axis)]
        numbers = sorted(float(cell[axis]) for cell in along if not isinstance(cell[axis], str))
        if len(numbers) < 2:
            continue
        others = [arm for arm in arms if base_arm(arm) != base]
        found = {
            arm: [compare(cells[cell_key({**first, axis: x})], base, arm) for x in numbers] for arm in others
        }
        fixed = ", ".join(_spoken(name, value) for name, value in first.items() if name != axis)
        last = {arm: ones[-1].saving for arm, ones in found.items()}
        told = ", ".join(f"{arm} {percent(value)}" for arm, value in last.items() if value is not None)
        yield Section(
            title=f"Saving along {_axis(axis)[0]}",
            sentence=f"At {_spoken(axis, numbers[-1])} against {base}: {told} ({fixed}).",
            source=source,
            picture=plots.lines(
                [Series(arm, numbers, [one.saving for one in ones]) for arm, ones in found.items()],
                title=f"Saving of time per rollout along {_axis(axis)[0]}",
                x_label=", ".join(filter(None, _axis(axis))),
                y_label=f"saving against {base}",
                percent=True,
                level=0.0,
            ),
            table=Table(
                (axis, *(f"{arm}, saving %" for arm in others)),
                tuple(
                    (x, *(_hundredfold(found[arm][index].saving) for arm in others))
                    for index, x in enumerate(numbers)
                ),
            ),
        )


def _axis(axis: str) -> tuple[str, str]:
    return AXES.get(axis, (axis.replace("_", " "), ""))


def _hundredfold(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _beside_the_timings(
    cells: Mapping[CellKey, Sequence[Rollout]], names: Mapping[CellKey, str], source: str
) -> Section:
    alpha = published.ALPHA
    rows: list[tuple[str, float | None, float | None, float | None]] = []
    for cell, records in cells.items():
        http, websocket = (
            median(record.total_s for record in records if record.arm == arm)
            for arm in ("optimised", "create")
        )
        saving = None if http is None or websocket is None else 100 * (1 - websocket / http)
        rows.append((f"here, {names[cell]}", http, websocket, saving))
    told = ", ".join(
        f"{row[3]:.1f} % ({row[0].removeprefix('here, ')})" for row in rows if row[3] is not None
    )
    means = [sum(seconds) / len(seconds) for seconds in (alpha.http_seconds, alpha.websocket_seconds)]
    http_mean, websocket_mean = means
    rows.append(("published, mean of five and five", http_mean, websocket_mean, 100 * alpha.saving))
    low, high = published.ALPHA_SAVING_INTERVAL
    inside = rows[0][3] is not None and 100 * low <= rows[0][3] <= 100 * high
    return Section(
        title="Beside the ten published timings",
        sentence=f"With the published overheads the real engine saves in the create form against HTTP: {told}; the first "
        f"is {'inside' if inside else 'outside'} the interval of the ten timings ({percent(low)} to {percent(high)}).",
        source=source,
        table=Table(("", "HTTP, s", "WebSocket create, s", "saving, %"), tuple(rows)),
        caveat="Both overheads come from these timings; what is reproduced is that they explain both speeds at once.",
    )
