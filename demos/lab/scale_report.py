"""Many suspended rollouts, as a report: what each holds, who notices, and which setting of the collector is taken. From the file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from demos.lab import plots
from demos.lab.plots import Series
from demos.lab.report import Check, Report, Section, Table
from demos.lab.results import ResultsReader
from demos.lab.scale import SCALE
from demos.lab.statistics import median
from demos.lab.wording import known_environment

MEMORY_BOUND_BYTES: Final = 12_000
LATENESS_BOUND_MS: Final = 5.0
DEFAULT: Final = "default"
METHOD: Final = (
    "Each count under each collector has a server process of its own; client and server are two processes on loopback.",
    "The same streams run in turn without suspended rollouts and with them, who come and go; medians of such windows.",
    "What two measurements of the same differ by: every other window without them against the rest of those.",
    "Lateness: arrival at the client against the line through the stream's earliest token; steps of the engine are in it.",
    "Memory: growth of the server's resident memory after full collections, in a server without streams.",
    "A rollout's context, as the engine counts it against its limits, is taken off its memory.",
    "One more rollout suspends and resumes all the time: from its append to its next token, by the client's clock.",
)
NOT_MEASURED: Final = (
    "A connection for each rollout: here a connection carries many.",
    "Large contexts, TLS, and all suspended rollouts waking at once.",
)

Detail = Mapping[str, Any]


def report_of(path: Path) -> Report:
    """The report of a result file of `scale`; it is to be written beside it. `ResultsError`."""
    reader = ResultsReader(path)
    notes = [*reader.notes()]
    details = [note.detail for note in notes if note.topic == SCALE]
    config = reader.header.config
    loads = [load for detail in details for load in detail["load"]]
    choice, why = chosen(details, config["tick_ms"])
    return Report(
        title=f"Up to {max(config['counts']):,} suspended rollouts beside {config['streams']} streams",
        header=reader.header,
        summary=(
            f"{config['streams']} streams of {config['tokens_per_second']:g} tokens/s, steps of {config['tick_ms']:g} ms.",
            f"The machine's load was {min(loads):.1f} to {max(loads):.1f} while it ran.",
            f"Collector: {config['settings'][choice]}. {why}",
        ),
        sections=tuple(_sections(details, config, path.name)),
        method=METHOD,
        checks=(*_checks(details, choice), known_environment(reader.header, notes)),
        files=(path.name,),
        not_measured=NOT_MEASURED,
    )


# --- what is read off the file -------------------------------------------------------------------------------------


def beyond_context(detail: Detail) -> float | None:
    """Bytes of a suspended rollout without its context; None: too few to tell."""
    memory = detail["memory"]
    return None if memory is None else memory["bytes_each"] - memory["context_bytes_each"]


def middle(detail: Detail, when: str, what: str) -> float:
    """The median of the windows."""
    found = median(window[what] for window in detail["windows"][when])
    assert found is not None, "a note has windows"
    return found


def added(detail: Detail, what: str = "late_p99_ms") -> float:
    """With the suspended ones more than without."""
    return middle(detail, "with", what) - _without(detail, what)


def noise(details: Sequence[Detail], what: str = "late_p99_ms") -> float:
    """The most by which two measurements without suspended rollouts differ: every other window, and the rest."""
    return max(_apart([window[what] for window in one["windows"]["without"]]) for one in details)


def _apart(values: Sequence[float]) -> float:
    one, other = median(values[::2]), median(values[1::2])
    assert one is not None, "there is a window before and one after"
    assert other is not None, "there is a window before and one after"
    return abs(one - other)


def _without(detail: Detail, what: str) -> float:
    return middle(detail, "without", what)


def chosen(details: Sequence[Detail], tick_ms: float) -> tuple[str, str]:
    """Which setting of the collector is taken at the largest count, and why.

    Whoever streams waits for the collector's longest pause: the shortest one wins, among settings that make no token
    later once the rollouts only wait. What is no more than measurements of the same differ, or a step, is no difference.
    """
    top = max(detail["count"] for detail in details)
    there = {detail["collector"]: detail for detail in details if detail["count"] == top}
    least = max(noise(details), tick_ms)
    punctual = [name for name, one in there.items() if added(one) - added(there[DEFAULT]) <= least]
    best = min(punctual, key=lambda name: _pause(there[name]))
    if _pause(there[DEFAULT]) - _pause(there[best]) <= least:
        best = DEFAULT
    paused = ", ".join(
        f"{name} {_pause(one):.0f} ms ({one['suspending']['collector_ms']:.0f} ms in all)"
        for name, one in there.items()
    )
    late = ", ".join(f"{name} {_signed(added(one))} ms" for name, one in there.items())
    verdict = "no other is better by more than that" if best == DEFAULT else "its pauses are the shortest"
    return best, (
        f"The collector's longest pause while {top:,} rollouts came: {paused}. What they then add to the 99th percentile "
        f"of lateness: {late}. Two measurements of the same differ by up to {noise(details):.1f} ms, a step is "
        f"{tick_ms:g} ms: taken is {best}, as {verdict}."
    )


def _pause(detail: Detail) -> float:
    longest: float = detail["suspending"]["longest_pause_ms"]
    return longest


# --- sections ------------------------------------------------------------------------------------------------------


def _sections(details: Sequence[Detail], config: Mapping[str, Any], source: str) -> Iterator[Section]:
    top = max(config["counts"])
    yield _section(
        details,
        config,
        source,
        title="Memory of a suspended rollout beyond its context",
        unit="kB",
        of=_kilobytes,
        level=MEMORY_BOUND_BYTES / 1e3,
        bound=f"dashed: the bound of {MEMORY_BOUND_BYTES / 1e3:g} kB",
    )
    yield _section(
        details,
        config,
        source,
        title=f"Lateness that they add to the tokens of {config['streams']} streams",
        unit="ms at the 99th percentile",
        of=added,
        level=LATENESS_BOUND_MS,
        bound=f"dashed: the bound of {LATENESS_BOUND_MS:g} ms",
        caveat=f"Two measurements without them differ by up to {noise(details):.1f} ms.",
    )
    yield _section(
        details,
        config,
        source,
        title="Resuming one rollout beside them",
        unit="ms at the median",
        of=lambda detail: middle(detail, "with", "resume_p50_ms"),
        caveat="Without them: "
        + ", ".join(
            f"{_without(one, 'resume_p50_ms'):.2f} ms ({one['collector']})"
            for one in details
            if one["count"] == top
        )
        + ".",
    )
    yield _section(
        details,
        config,
        source,
        title="The longest pause of the collector while they came",
        unit="ms",
        of=_pause,
        caveat="Full collections come while the heap grows; none came while rollouts only waited, streamed and resumed."
        if _no_full(details)
        else "",
    )
    yield _all(details, source)


def _section(
    details: Sequence[Detail],
    config: Mapping[str, Any],
    source: str,
    *,
    title: str,
    unit: str,
    of: Callable[[Detail], float | None],
    level: float | None = None,
    bound: str = "",
    caveat: str = "",
) -> Section:
    counts: Sequence[int] = config["counts"]
    found = {(one["collector"], one["count"]): of(one) for one in details}
    lines = [
        Series(name, counts, [found.get((name, count)) for count in counts]) for name in config["collectors"]
    ]
    top = max(counts)
    told = ", ".join(_figure(line.label, found.get((line.label, top)), unit) for line in lines)
    return Section(
        title=title,
        sentence=f"With {top:,} of them: {told}." + (f" The bound is {level:g}." if level else ""),
        source=source,
        picture=plots.lines(
            lines,
            title=title,
            x_label="suspended rollouts; lines: settings of the collector" + (f"; {bound}" if bound else ""),
            y_label=unit,
            log_x=True,
            level=level,
        ),
        table=Table(
            ("suspended rollouts", *(f"{line.label}, {unit}" for line in lines)),
            tuple((count, *(line.y[index] for line in lines)) for index, count in enumerate(counts)),
        ),
        caveat=caveat,
    )


def _all(details: Sequence[Detail], source: str) -> Section:
    columns = (
        "suspended",
        "collector",
        "p50 late without, ms",
        "p50 with",
        "p99 without, ms",
        "p99 with",
        "resume p99 without, ms",
        "resume p99 with",
        "a full collection, ms",
        "server's CPU, cores",
    )
    rows = [
        (
            one["count"],
            one["collector"],
            _without(one, "late_p50_ms"),
            middle(one, "with", "late_p50_ms"),
            _without(one, "late_p99_ms"),
            middle(one, "with", "late_p99_ms"),
            _without(one, "resume_p99_ms"),
            middle(one, "with", "resume_p99_ms"),
            one["full_collection_ms"],
            middle(one, "with", "cpu_share"),
        )
        for one in details
    ]
    slowest = max(details, key=lambda one: one["full_collection_ms"])
    return Section(
        title="All figures",
        sentence=f"A full collection takes up to {slowest['full_collection_ms']:.0f} ms, with {slowest['count']:,} "
        f"suspended rollouts ({slowest['collector']}).",
        source=source,
        table=Table(columns, tuple(rows)),
    )


def _checks(details: Sequence[Detail], choice: str) -> Iterator[Check]:
    wrong = [one for one in details if one["suspended"] != one["count"]]
    yield Check(
        "all of them were suspended", not wrong, f"{len(wrong)} of {len(details)} runs had another number"
    )
    top = max(one["count"] for one in details)
    kept = [one for one in details if one["count"] == top and one["collector"] == choice]
    for one in kept:
        memory = beyond_context(one)
        yield Check(
            "memory within its bound",
            None if memory is None else memory <= MEMORY_BOUND_BYTES,
            "too few to tell" if memory is None else f"{memory:,.0f} bytes, bound {MEMORY_BOUND_BYTES:,}",
        )
        yield Check(
            "lateness within its bound",
            added(one) <= LATENESS_BOUND_MS,
            f"{_signed(added(one))} ms at the 99th percentile, bound {LATENESS_BOUND_MS:g} ms",
        )
    unsure = noise(details)
    yield Check(
        "quiet enough to tell",
        unsure <= LATENESS_BOUND_MS,
        f"{unsure:.1f} ms between two measurements without any",
    )


def _kilobytes(detail: Detail) -> float | None:
    found = beyond_context(detail)
    return None if found is None else found / 1e3


def _no_full(details: Sequence[Detail]) -> bool:
    return not any(
        window["collections"][2]
        for detail in details
        for seen in detail["windows"].values()
        for window in seen
    )


def _figure(name: str, value: float | None, unit: str) -> str:
    return f"{name} no data" if value is None else f"{name} {value:.2f} {unit}".replace("-", "\N{MINUS SIGN}")


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")
