"""What lost connections cost, as a report: a table of forms and points for each thing that is lost. From the file alone."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from demos.lab import maps
from demos.lab.faults import FAULT, NO_FAULT
from demos.lab.records import Rollout, Turn
from demos.lab.report import Check, Report, Section, Table, shown
from demos.lab.results import ResultsReader
from demos.lab.wording import known_environment

METHOD: Final = (
    "Virtual time: network, model and tools take what the plan says, processors nothing. The same seed gives the same figures.",
    "Each rollout runs without a fault, and again with its connection cut at one point; what differs is the cost of the cut.",
    "At the cut both ends see the connection reset at once, and what is on its way is lost.",
    "The client opens another connection at once, while its tools go on; it keeps the items that it heard whole.",
    "The model's state is found again by content over HTTP (optimised) and belongs to the connection over WebSocket.",
)
NOT_MEASURED: Final = (
    "A connection that falls silent without a reset: until a time-out finds it lost, nothing goes on.",
    "Losses in a row, a server that restarts, TLS.",
    "What could hide a part of it: getting a stored response with GET, a warm-up (generate: false) while a tool runs.",
)
COLUMN_CHARACTERS: Final = 14
"""Of a line above a column of the pictures."""
_OVER: Final = 1e-9
"""Differences of virtual times are exact but for the last bit."""


@attrs.frozen
class Loss:
    """What a cut cost, against the same rollout without it."""

    form: str
    point: str
    seconds: float | None
    """None: it did not end."""
    sampled: int
    read: int
    bytes_up: int
    tools_again: int


@attrs.frozen
class _What:
    """One thing that is lost."""

    title: str
    unit: str
    of: Callable[[Loss], float | None]
    lead: str
    """How the sentence on it begins."""
    form: str
    """Of its numbers in the picture."""


_WHATS: Final = (
    _What("Time lost", "s", lambda loss: loss.seconds, "Time lost at the dearest point", "{:,.3f}"),
    _What(
        "Tokens sampled again",
        "tokens",
        lambda loss: loss.sampled,
        "Tokens sampled twice, at most",
        "{:,.0f}",
    ),
    _What(
        "Tokens read again",
        "tokens",
        lambda loss: loss.read,
        "Tokens the model reads once more, at most",
        "{:,.0f}",
    ),
    _What("Bytes sent again", "kB", lambda loss: loss.bytes_up / 1e3, "Sent again, at most", "{:,.1f}"),
)


def report_of(path: Path) -> Report:
    """The report of a result file of `faults`; it is to be written beside it. `ResultsError`."""
    reader = ResultsReader(path)
    config = reader.header.config
    rollouts = [*reader.rollouts()]
    details = {
        (note.detail["form"], note.detail["point"]): note.detail
        for note in reader.notes()
        if note.topic == FAULT
    }
    losses = losses_of(rollouts, details)
    sections = [_section(what, losses, config, path.name) for what in _WHATS]
    return Report(
        title="A connection is lost: what each form loses",
        header=reader.header,
        summary=tuple(_summary(losses, config)),
        sections=(*sections, _tools(losses, rollouts, config, path.name)),
        method=(*METHOD, *(f"After a loss {form} {then}." for form, then in config["forms"].items())),
        checks=(*_checks(rollouts, details), known_environment(reader.header, [*reader.notes()])),
        files=(path.name,),
        not_measured=NOT_MEASURED,
    )


def losses_of(
    rollouts: Sequence[Rollout], details: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[Loss]:
    """Of each cut rollout, in the file's order."""
    whole = {one.arm: one for one in rollouts if one.cell["point"] == NO_FAULT}
    losses = []
    for one in rollouts:
        point, base = str(one.cell["point"]), whole[one.arm]
        if point == NO_FAULT:
            continue
        runs = details[one.arm, point]["tool_runs"]
        seconds = None if one.total_s is None or base.total_s is None else one.total_s - base.total_s
        losses.append(
            Loss(
                form=one.arm,
                point=point,
                seconds=0.0 if seconds is not None and abs(seconds) < _OVER else seconds,
                sampled=one.tokens.sampled - base.tokens.sampled,
                read=one.tokens.computed - base.tokens.computed,
                bytes_up=one.bytes_up - base.bytes_up,
                tools_again=sum(max(0, count - 1) for count in runs),
            )
        )
    return losses


def _summary(losses: Sequence[Loss], config: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"A rollout of {config['calls']} calls on {config['history_tokens']:,} tokens of history, "
        f"{config['tokens_per_second']:g} tokens/s, {config['prefill_tokens_per_second']:,g} tokens/s read, "
        f"tools {config['tool_seconds']:g} s, round trip {config['rtt_ms']:g} ms."
    )
    for point, title in config["points"].items():
        told = [f"{loss.form} {_seconds(loss.seconds)}" for loss in losses if loss.point == point]
        yield f"Lost while {title}: {', '.join(told)}."


def _section(what: _What, losses: Sequence[Loss], config: Mapping[str, Any], source: str) -> Section:
    forms, points = [*dict.fromkeys(loss.form for loss in losses)], config["points"]
    values = {(loss.form, loss.point): what.of(loss) for loss in losses}
    rows = [[values.get((form, point)) for point in points] for form in forms]
    return Section(
        title=what.title,
        sentence=_dearest(what, forms, rows, [*points.values()]),
        source=source,
        picture=maps.strip(
            forms,
            [textwrap.fill(title, COLUMN_CHARACTERS) for title in points.values()],
            rows,
            title=f"{what.title}, by form and by where the connection is lost",
            unit=f"{what.unit}, against the same rollout without a loss",
            form=what.form,
        ),
        table=Table(
            ("form", *(f"{title}, {what.unit}" for title in points.values())),
            tuple((form, *row) for form, row in zip(forms, rows, strict=True)),
        ),
        caveat="Another server may keep the model's state by content over WebSocket, too; it would read less again."
        if "read" in what.title
        else "",
    )


def _dearest(
    what: _What, forms: Sequence[str], rows: Sequence[Sequence[float | None]], titles: Sequence[str]
) -> str:
    """Of each form its worst point; said once where all are the same."""
    told: dict[str, list[str]] = {}
    for form, row in zip(forms, rows, strict=True):
        known = [(value, title) for value, title in zip(row, titles, strict=True) if value is not None]
        worst, title = max(known, default=(None, ""))
        text = f"{shown(worst)} {what.unit} ({title})" if worst else "nothing"
        told.setdefault(text, []).append(form)
    parts = (f"{', '.join(who)} {text}" for text, who in told.items())
    return (
        f"{what.lead}: " + ("; ".join(parts) if len(told) > 1 else f"{next(iter(told))} in every form") + "."
    )


def _tools(
    losses: Sequence[Loss], rollouts: Sequence[Rollout], config: Mapping[str, Any], source: str
) -> Section:
    again = Counter({loss.form: 0 for loss in losses})
    for loss in losses:
        again[loss.form] += loss.tools_again
    twice = ", ".join(f"{form} {count}" for form, count in again.items() if count)
    return Section(
        title="Tools run twice",
        sentence=(
            f"Calls whose tool ran twice: {twice}."
            if twice
            else f"No tool ran twice: {len(rollouts)} rollouts of {config['calls']} calls, {len(losses)} of them cut."
        ),
        source=source,
        table=Table(("form", "calls run twice"), tuple(again.items())),
        caveat="A call that was heard whole is kept, with its output, whatever becomes of its response. "
        "A client that forgets it with the response would run its tool for the call that is sampled instead.",
    )


def _checks(
    rollouts: Sequence[Rollout], details: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Iterator[Check]:
    failed = sum(one.failed for one in rollouts)
    yield Check("every rollout ended", not failed, f"{failed} of {len(rollouts)} did not")
    findings = sum(one.findings for one in rollouts)
    yield Check("protocol kept", not findings, f"{findings} findings of the trace checker")
    losses = [detail["connections_lost"] for detail in details.values()]
    yield Check("at most one loss in a rollout", max(losses) <= 1, f"{sum(losses)} in {len(losses)} rollouts")
    whole = {one.arm: one.turns for one in rollouts if one.cell["point"] == NO_FAULT}
    apart = 0
    for one in rollouts:
        cut_s = details[one.arm, str(one.cell["point"])]["cut_s"]
        pairs = zip(one.turns, whole[one.arm], strict=False)
        apart += sum(
            _course(mine) != _course(base)
            for mine, base in pairs
            if base.done_s is not None and base.done_s < (cut_s or 0.0)
        )
    yield Check("the same until the cut", not apart, f"{apart} turns before a cut went differently")


def _course(turn: Turn) -> tuple[object, ...]:
    """Without its bytes: those of the next connection's beginning are counted with the turn before."""
    return turn.sent_s, turn.first_s, turn.done_s


def _seconds(value: float | None) -> str:
    return "no data" if value is None else f"{value:.3f} s"
