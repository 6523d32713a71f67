"""The README's figures, made from the kept result files alone: no number in them was typed.

Each experiment has a row that says how its kept results are told: the ladder as a table of ratios, the others in sentences
of their own reports. What is not kept is named as not measured. Needs the extra.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from demos.lab.arms import arm_of
from demos.lab.computed import EXPERIMENTS
from demos.lab.kept_results import KEPT, MOST_CHANGED, Kept, kept
from demos.lab.plan import experiments
from demos.lab.records import CellKey, Environment, Header, Rollout, cell_key
from demos.lab.report import Check, Report
from demos.lab.reports import made
from demos.lab.results import ResultsReader, result_files
from demos.lab.statistics import Comparison, Interval, Measure, compare, total_s
from demos.lab.turn_kinds import first_turn_s, resumed_turn_s
from demos.lab.turn_sections import costs
from demos.lab.validity import base_arm, judged
from demos.lab.wording import percent

SPEED: Final = "tokens_per_second"
_CPU: Final = "server CPU a turn, ms"
_EXPLAINED: Final = "server time explained"


Against = Mapping[tuple[str, float, Measure], Comparison]
"""By arm, speed of the model and what was compared."""


@attrs.frozen
class Told:
    """How the results of an experiment are told."""

    how: str
    """What kind of time its figures are."""
    sections: tuple[str, ...] = ()
    """How the titles of those sections begin whose sentences are quoted (patterns); none: the report's summary is."""
    titled: bool = False
    """The sentences need their titles to be understood."""
    table: Callable[[Kept, Report], Sequence[str]] | None = None
    """Lines below the sentences."""


def block(folder: Path = KEPT) -> str:
    """The generated part. `ResultsError`, `OSError`: a kept file is damaged or gone."""
    found = {one.name: one for one in kept(folder)}
    known = dict.fromkeys((*ROWS, *EXPERIMENTS, *experiments()))
    lines = [*_preamble(found)]
    for name in (*(name for name in known if name in found), *sorted(found.keys() - known.keys())):
        lines += ["", *experiment_lines(found[name])]
    missing = ", ".join(f"`{name}`" for name in known if name not in found)
    if missing:
        lines += ["", f"Not measured yet, so no figure of them stands here: {missing}."]
    return "\n".join(lines).strip()


def experiment_lines(one: Kept) -> list[str]:
    """What is said of one experiment."""
    report = made(one.directory).report
    row = ROWS.get(one.name, Told(_clock(one.header)))
    told = " ".join(quoted(report, row))
    header = one.header
    place = f"{header.began[:10]}, commit `{header.environment.commit[:10]}`, results `{one.digest}`"
    return [
        f"**`{one.command}`** ({row.how}; {place}): {told}",
        *(row.table(one, report) if row.table else ()),
    ]


def quoted(report: Report, row: Told) -> list[str]:
    """The sentences of the sections that the row names; those of the summary, if there is no such section."""
    found = [
        f"{section.title}: {section.sentence}" if row.titled else section.sentence
        for title in row.sections
        for section in report.sections
        if re.match(title, section.title)
    ]
    return found or [*report.summary]


def _preamble(found: Mapping[str, Kept]) -> Sequence[str]:
    if not found:
        return ()
    machines = dict.fromkeys(_machine(one.header.environment) for one in found.values())
    return (
        (
            "Made from the results in `demos/lab/kept`: `suspended lab kept NAME` writes them out with their report, and the "
            "command in front of a figure measures it anew."
        ),
        (
            f"Wall-clock figures are of {'; and of '.join(machines)}, where clients, network and servers shared the cores and spoke "
            "over loopback: milliseconds are of that machine, ratios travel better, and A/A says what two runs of the same differ by."
        ),
        (
            f"A test fails once more than {percent(MOST_CHANGED)} of the lines that an experiment runs stand in files that have "
            "changed since."
        ),
    )


def _machine(environment: Environment) -> str:
    host, versions = environment.host, environment.versions
    packages = "".join(f", {name} {versions[name]}" for name in ("trio", "orjson") if name in versions)
    return f"{host.cores} cores of {host.cpu}, {host.python}{packages}"


def _clock(header: Header) -> str:
    return f"{header.config['clock']} time" if "clock" in header.config else "computed"


# --- the ladder ----------------------------------------------------------------------------------------------------


def ladder_table(one: Kept, report: Report) -> list[str]:
    """Each arm against the baseline at each speed of the model."""
    reader = ResultsReader(result_files(one.directory)[0])
    config = reader.header.config
    base, arms = config["baseline"], config["arms"]
    by_speed: dict[float, list[Rollout]] = {}
    for rollout in judged([*reader.rollouts()]):
        by_speed.setdefault(float(rollout.cell[SPEED]), []).append(rollout)
    by_speed = dict(sorted(by_speed.items()))
    against: Against = {
        (arm, speed, measure): compare(records, base, arm, measure=measure)
        for speed, records in by_speed.items()
        for measure in (total_s, resumed_turn_s)
        for arm in arms
        if arm != base
    }
    fastest = [*by_speed][-1]
    cpu_ms = _cpu_ms(by_speed[fastest], arms)
    speeds = [f"{speed:,g} tokens/s" for speed in by_speed]
    columns = (
        "",
        *(f"rollout, {speed}" for speed in speeds),
        *(f"first token, {speed}" for speed in speeds),
        "CPU, ms",
    )
    rows = [
        (
            _arm_title(arm, base),
            *(
                _base_cell(against, speed, measure)
                if arm == base
                else ratio_cell(against[arm, speed, measure])
                for measure in (total_s, resumed_turn_s)
                for speed in by_speed
            ),
            "no data" if cpu_ms[arm] is None else f"{cpu_ms[arm]:.1f}",
        )
        for arm in arms
    ]
    lines = ["", *_table(columns, rows), "", _cells(by_speed), _how_to_read(config, against, speeds[-1])]
    return [*lines, _cold(by_speed, config), *_residual(report.checks)]


def ratio_cell(one: Comparison) -> str:
    """A ratio, and its interval in brackets."""
    return "no data" if one.ratio is None else f"{one.ratio:.2f}{_shown(one.ratio_interval)}"


def _shown(interval: Interval | None) -> str:
    return " (no interval)" if interval is None else f" ({interval.low:.2f}\N{EN DASH}{interval.high:.2f})"


def _base_cell(against: Against, speed: float, measure: Measure) -> str:
    means = [one.base_mean for (_, at, of), one in against.items() if (at, of) == (speed, measure)]
    return "no data" if not means or means[0] is None else f"1 = {means[0]:.3f} s"


def _arm_title(arm: str, base: str) -> str:
    row = arm_of(arm)
    if arm == base:
        return f"**{arm}**, {row.rung}"
    return f"{base_arm(arm)} again (A/A)" if "#" in arm else f"{arm}, {row.rung}"


def _cpu_ms(records: Sequence[Rollout], arms: Sequence[str]) -> dict[str, float | None]:
    """Of a turn, as the report has it."""
    cells: dict[CellKey, list[Rollout]] = {}
    for record in records:
        cells.setdefault(cell_key(record.cell), []).append(record)
    table = costs(cells, dict.fromkeys(cells, ""), arms, "").table
    assert table is not None, "this section has one"
    arm, cpu = table.columns.index("arm"), table.columns.index(_CPU)
    return {str(row[arm]): row[cpu] if isinstance(row[cpu], float) else None for row in table.rows}  # type: ignore[misc]  # narrowed


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return [lines[0], f"|---|{'--:|' * (len(columns) - 1)}", *lines[1:]]


def _how_to_read(config: Mapping[str, object], against: Against, speed: str) -> str:
    found = against.values()
    drawn = "repeats" if {one.unit for one in found} == {"repeat"} else "rollouts"
    pairs, rollouts = _range(one.pairs for one in found), _range(one.rollouts for one in found)
    return (
        f"Ratios to {config['baseline']}, with 95 % intervals over {drawn} ({pairs} pairs, of {rollouts} different rollouts). First "
        f"token: from sending a tool's output, the mean of a rollout. CPU: of the server, a turn, at {speed}."
    )


def _range(counts: Iterable[int]) -> str:
    every = [*counts]
    return " to ".join(str(count) for count in dict.fromkeys((min(every), max(every))))


def _cells(by_speed: Mapping[float, Sequence[Rollout]]) -> str:
    """What was run: axes that are the same at each speed, and those that are not."""
    told: list[str] = []
    for axis in sorted({axis for records in by_speed.values() for axis in records[0].cell} - {SPEED}):
        values = {speed: records[0].cell.get(axis) for speed, records in by_speed.items()}
        shown = {
            speed: f"{value:,g}" if isinstance(value, int | float) else str(value)
            for speed, value in values.items()
        }
        each = ", ".join(f"{value} at {speed:,g} tokens/s" for speed, value in shown.items())
        told.append(
            f"{axis.replace('_', ' ')} {each if len({*shown.values()}) > 1 else next(iter(shown.values()))}"
        )
    return f"Rollouts: {'; '.join(told)}."


def _cold(by_speed: Mapping[float, Sequence[Rollout]], config: Mapping[str, str]) -> str:
    """The very first token is another matter: the connection is opened before it, and nothing is warm."""
    told = ", ".join(
        f"{ratio_cell(compare(records, config['baseline'], config['headline'], measure=first_turn_s))} at {speed:,g} tokens/s"
        for speed, records in by_speed.items()
    )
    return f"The very first token, from the intended start, so with the opening of the connection, {config['headline']}: {told}."


def _residual(checks: Sequence[Check]) -> list[str]:
    return [f"Server time that no stage claims, {one.detail}." for one in checks if one.name == _EXPLAINED]


ROWS: Final[Mapping[str, Told]] = {
    "ladder": Told("wall clock", ("Why .* is not|The bound",), table=ladder_table),
    "first-token": Told("wall clock", ("First turn and resumed turns, history tokens 50,000",)),
    "turns": Told("wall clock", ("The server's overhead of a turn by the length",)),
    "agree": Told("both clocks", ("Virtual and wall clock",)),
    "soak": Told("wall clock", ("The cost of turn n",), titled=True),
    "scale": Told(
        "wall clock", ("Memory of a suspended", "Lateness that they add", "Resuming one"), titled=True
    ),
    "map": Told("a model, with points run by the engine", ("Whole rollouts", "Break-even")),
    "ablate": Told("a model"),
    "policies": Told("virtual time"),
    "faults": Told("virtual time", ("Time lost", "Tokens sampled again")),
    "peers": Told("wall clock"),
    "alpha": Told("the published overheads added", ("Beside the ten published timings",)),
}
"""In the order in which they are told; others follow, with their summaries."""
