"""The pictures and tables of the claim map, each with the sentence that it supports, made of the notes of a result file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from demos.lab import canvas, maps, plots
from demos.lab.claim_map import (
    ASSUMPTIONS,
    BREAK_EVEN_SAVING,
    CLAIMED_CALLS,
    CLAIMED_SAVING,
    SAVING_FORMS,
)
from demos.lab.maps import Claim, Panel
from demos.lab.plots import Series
from demos.lab.published import ALPHA, REPORTS
from demos.lab.report import Cell, Section, Table
from demos.lab.wording import percent

PANEL_TITLES: Final = {"Z": "no tool time", "A": "tools as recorded", "B": "tools as TraceLab's"}
_FORM_TITLES: Final = {
    "create": "create, a response for each call",
    "suspended": "one suspended response",
}
_HISTORY_TITLES: Final = {
    "no history term": "work on the history left out",
    "none saved": "none of the work on the history saved",
    "all saved": "all work on the history saved",
}


@attrs.frozen
class Place:
    """Where a claim stands on the map."""

    tokens_per_second: float
    calls: float
    scenario: str | None = None
    stated: bool = True
    """Did whoever claims it say so? If not the place is ours."""


_THEN, _NOW = 65.0, 1_000.0
PLACES: Final[Mapping[str, Place]] = {
    "OpenAI": Place(_NOW, CLAIMED_CALLS),
    "Vercel": Place(_NOW, CLAIMED_CALLS, stated=False),
    "Cline": Place(_NOW, CLAIMED_CALLS, stated=False),
    "Cursor": Place(_NOW, CLAIMED_CALLS, stated=False),
    "OpenAI alpha": Place(_THEN, CLAIMED_CALLS, "Z"),
    "InfoQ": Place(_THEN, 9, stated=False),
    "xAI": Place(_THEN, CLAIMED_CALLS, stated=False),
    "VS Code 1.118": Place(_THEN, CLAIMED_CALLS, stated=False),
    "sglang": Place(_THEN, CLAIMED_CALLS, stated=False),
    "smg": Place(_THEN, 40, stated=False),
    "browser-use": Place(_THEN, CLAIMED_CALLS, stated=False),
}
"""By `Report.who`."""

CLAIM_CAVEAT: Final = (
    f"Claims with * say nothing of speed or depth, or only of one: those of the launch stand at {_NOW:,g} tokens/s, the others "
    f"at {_THEN:g}, with {CLAIMED_CALLS} calls unless they say another depth. Their baselines differ and are not comparable. "
    "The alpha's timings stand in the panel without tool time alone; its rollout sampled "
    f"{ALPHA.output_tokens / ALPHA.responses:.0f} tokens a response, far fewer than those of the map. "
)
# --- the maps ------------------------------------------------------------------------------------------------------


def claims() -> list[Claim]:
    """The published ones, where they stand."""
    placed = [(report, PLACES[report.who]) for report in REPORTS]
    return [
        Claim(
            report.who + ("" if place.stated else "*") + (", up to" if report.is_upper_bound else ""),
            place.tokens_per_second,
            place.calls,
            report.saving,
            None if place.scenario is None else PANEL_TITLES[place.scenario],
        )
        for report, place in placed
    ]


def map_sections(
    points: Sequence[Mapping[str, Any]], config: Mapping[str, Any], source: str
) -> Iterator[Section]:
    """A map for each form and assumption."""
    speeds, depths = config["tokens_per_second"], config["calls"]
    for form in SAVING_FORMS:
        for history in ASSUMPTIONS:
            at = {
                (point["scenario"], point["calls"], point["tokens_per_second"]): point["p50"]
                for point in points
                if (point["form"], point["history"]) == (form, history)
            }
            panels = [
                Panel(
                    title,
                    speeds,
                    depths,
                    [[at.get((scenario, calls, speed)) for speed in speeds] for calls in depths],
                )
                for scenario, title in PANEL_TITLES.items()
            ]
            title = f"{_FORM_TITLES[form]}: {_HISTORY_TITLES[history]}"
            told = "; ".join(_told(panel) for panel in panels)
            yield Section(
                title=title[0].upper() + title[1:],
                sentence=f"{title[0].upper()}{title[1:]}: {told}.",
                source=source,
                picture=maps.claim_map(
                    panels,
                    claims() if form == "create" else (),
                    title=f"Saving of a rollout's time against HTTP, {title}",
                    claimed=CLAIMED_SAVING,
                    break_even=BREAK_EVEN_SAVING,
                ),
                table=Table(
                    ("tool times", "calls", *(f"{speed:,g} tokens/s, %" for speed in speeds)),
                    tuple(
                        (panel.title, calls, *(hundredfold(value) for value in row))
                        for panel in panels
                        for calls, row in zip(depths, panel.saving, strict=True)
                    ),
                ),
                caveat=(CLAIM_CAVEAT if form == "create" else "No claim is of this form. ")
                + "Medians; the table below has the spread.",
            )


def _told(panel: Panel) -> str:
    """Where the claimed saving begins, the most there is, and where the form does not matter."""
    known = [
        (speed, calls, saving)
        for calls, row in zip(panel.calls, panel.saving, strict=True)
        for speed, saving in zip(panel.tokens_per_second, row, strict=True)
        if saving is not None
    ]
    if not known:
        return f"{panel.title}, no data"
    reached = [speed for speed, _, saving in known if saving >= CLAIMED_SAVING]
    where = f"from {min(reached):,g} tokens/s on" if reached else "nowhere"
    most, speed, depth = max((saving, speed, calls) for speed, calls, saving in known)
    below = sum(saving < BREAK_EVEN_SAVING for _, _, saving in known)
    return (
        f"{panel.title}, {canvas.percent(CLAIMED_SAVING)} {where} (at most {percent(most)}, at {speed:,g} tokens/s and "
        f"{depth:g} call{'s' * (depth != 1)}) and less than {canvas.percent(BREAK_EVEN_SAVING)} "
        f"at {below} of {len(known)} points"
    )


# --- tables and lines ----------------------------------------------------------------------------------------------


def whole_section(points: Sequence[Mapping[str, Any]], source: str) -> Section:
    """Whole rollouts, with their spread."""
    speeds = [
        speed
        for speed in sorted({point["tokens_per_second"] for point in points})
        if speed in {65.0, 1_000.0, 4_000.0}
    ]
    rows: list[tuple[Cell, ...]] = []
    told = []
    for form in SAVING_FORMS:
        for history in ASSUMPTIONS:
            for scenario, title in PANEL_TITLES.items():
                by_speed = {
                    point["tokens_per_second"]: point
                    for point in points
                    if (point["form"], point["history"], point["scenario"]) == (form, history, scenario)
                }
                cells = [
                    hundredfold(by_speed.get(speed, {}).get(name))
                    for speed in speeds
                    for name in ("p10", "p50", "p90")
                ]
                rows.append((form, history, title, *cells))
                if history == "no history term" and scenario in {"Z", "B"}:
                    medians = [by_speed.get(speed, {}).get("p50") for speed in speeds]
                    shown = ", ".join(
                        f"{percent(value)} at {speed:,g} tokens/s"
                        for speed, value in zip(speeds, medians, strict=True)
                        if value is not None
                    )
                    told.append(f"{form}, {title}: {shown or 'no data'}")
    columns = tuple(f"{speed:,g}/s {name}, %" for speed in speeds for name in ("p10", "p50", "p90"))
    return Section(
        title=f"Whole rollouts with {CLAIMED_CALLS} calls and more",
        sentence=f"The median rollout saves against HTTP in {'; '.join(told)}.",
        source=source,
        table=Table(("form", "history", "tool times", *columns), tuple(rows)),
        caveat="p10, p50 and p90 are over the rollouts, not an interval of the median.",
    )


def history_section(points: Sequence[Mapping[str, Any]], form: str, source: str) -> Section:
    """The saving of a form along the history."""
    lengths = sorted({point["history_tokens"] for point in points})
    at = {
        (point["history"], point["tokens_per_second"], point["history_tokens"]): point["saving"]
        for point in points
        if point["form"] == form
    }
    series = [
        Series(f"{history}, {speed:,g} tokens/s", lengths, [at.get((history, speed, x)) for x in lengths])
        for history in ("all saved", "none saved")
        for speed in (1_000.0, 65.0)
    ]
    ends = "; ".join(f"{one.label} {_between(one.y[0], one.y[-1])}" for one in series)
    return Section(
        title=f"Along the history: {_FORM_TITLES[form]}",
        sentence=f"With {CLAIMED_CALLS} calls and no tool time, from {lengths[0]:,} to {lengths[-1]:,} tokens of history the "
        f"saving goes ({_FORM_TITLES[form]}): {ends}."
        if lengths
        else "No data.",
        source=source,
        picture=plots.lines(
            series,
            title=f"What work on the history is worth, {_FORM_TITLES[form]}",
            x_label="tokens of history before the first step",
            y_label="saving of time per rollout against HTTP",
            log_x=True,
            percent=True,
            level=CLAIMED_SAVING,
            level_name=f"{percent(CLAIMED_SAVING)}, as claimed",
        ),
        table=Table(
            ("history, tokens", *(f"{one.label}, %" for one in series)),
            tuple((x, *(hundredfold(one.y[index]) for one in series)) for index, x in enumerate(lengths)),
        ),
        caveat="Steps of the median size of real traffic (373 new tokens, 219 sampled).",
    )


def break_even_section(points: Sequence[Mapping[str, Any]], source: str) -> Section:
    """Where a form stops to matter."""
    speeds = sorted({point["tokens_per_second"] for point in points})
    depths = sorted({point["calls"] for point in points})
    at = {
        (point["form"], point["history"], point["calls"], point["tokens_per_second"]): point
        for point in points
    }
    depth = CLAIMED_CALLS if CLAIMED_CALLS in depths else depths[-1] if depths else CLAIMED_CALLS

    def line(form: str, history: str) -> Series:
        medians = [at.get((form, history, depth, speed), {}).get("p50") for speed in speeds]
        return Series(f"{form}, {history}", speeds, medians)

    series = [line(form, history) for form in SAVING_FORMS for history in ("none saved", "all saved")]
    fast = {one.label: one.y[speeds.index(1_000.0)] for one in series if 1_000.0 in speeds}
    told = "; ".join(f"{label} {value:,.0f} s" for label, value in fast.items() if value is not None)
    return Section(
        title="Break-even: tools so long that the form stops to matter",
        sentence=f"At 1,000 tokens/s and {depth} calls a form saves less than {canvas.percent(BREAK_EVEN_SAVING)} once a call's tool "
        f"takes, in the median rollout: {told or 'no data'}.",
        source=source,
        picture=plots.lines(
            series,
            title=f"Tool time of a call from which on less than {canvas.percent(BREAK_EVEN_SAVING)} is saved, {depth} calls",
            x_label="decoding speed, tokens/s",
            y_label="mean tool time of a call, s",
            log_x=True,
        ),
        table=Table(
            ("form", "history", "calls", *(f"{speed:,g} tokens/s: s a call" for speed in speeds)),
            tuple(
                (
                    form,
                    history,
                    calls,
                    *(at.get((form, history, calls, speed), {}).get("p50") for speed in speeds),
                )
                for form in SAVING_FORMS
                for history in ASSUMPTIONS
                for calls in depths
            ),
        ),
        caveat="Above a line the form does not matter, below it it does. Medians of the rollouts. 0: it never does.",
    )


def hundredfold(value: float | None) -> float | None:
    """In per cent."""
    return None if value is None else 100 * value


def _between(first: float | None, last: float | None) -> str:
    return "no data" if first is None or last is None else f"{percent(first)} to {percent(last)}"
