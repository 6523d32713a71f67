"""Plots of comparisons: a saving step by step, lines with bands, intervals beside each other, where the time went.

Each function takes plain data and draws it with units on its axes. What is not there is not drawn: None is a gap, never
a point at 0.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

import attrs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from demos.lab import canvas
from demos.lab.records import RESIDUAL_STAGE

ROW_INCHES: Final = 0.36
MARGIN_INCHES: Final = 1.3
"""Title, axis and legend."""
_TICK_ROOM: Final = 0.05
"""Of the axis, between two numbers at it."""
_MOST_TICKS: Final = 10


@attrs.frozen
class Series:
    """A line: where `low` and `high` are given, the band between them is its interval."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@attrs.frozen
class Step:
    """What one change adds (negative: saves), with its interval."""

    label: str
    change: float
    low: float | None = None
    high: float | None = None
    marked: bool = False
    """Is it part of what the plot asks about (say, of what *is* the WebSocket)? Drawn hatched."""


@attrs.frozen
class Estimate:
    """A figure with its interval; None: nothing was measured."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None


@canvas.picture
def lines(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    percent: bool = False,
    level: float | None = None,
    level_name: str = "",
) -> Figure:
    """Lines with interval bands. Labels carry the units; `percent` shows shares; `level` is a line to compare with."""
    sheet = canvas.figure(4.6, title)
    axes = sheet.add_subplot()
    for index, one in enumerate(series):
        _line(axes, one, index)
    if level is not None:
        axes.axhline(level, color=canvas.INK, linewidth=1, linestyle=(0, (5, 3)), label=level_name)
    _scale(axes, series, log_x=log_x, log_y=log_y)
    axes.set(xlabel=x_label, ylabel=y_label)
    if percent:
        axes.yaxis.set_major_formatter(PERCENT)
    if len(series) > 1 or level_name:
        sheet.legend(loc="outside right center")  # a long title reaches into the upper corner
    return sheet


@canvas.picture
def waterfall(
    start: tuple[str, float],
    steps: Sequence[Step],
    end: str,
    *,
    title: str,
    unit: str,
    marked: str = "",
) -> Figure:
    """From a total to another, one change at a time; `marked` says in the legend what the hatched steps are."""
    levels = [*accumulate((step.change for step in steps), initial=start[1])]
    labels = [start[0], *(step.label for step in steps), end]
    sheet = canvas.figure(MARGIN_INCHES + 1.25 * ROW_INCHES * len(labels), title)
    axes = sheet.add_subplot()
    totals = ((0, start[1]), (len(labels) - 1, levels[-1]))
    for row, total in totals:
        axes.barh(row, total, height=0.62, color=canvas.TOTAL)
        canvas.beside(axes, total, row, f"{_figure(total)} {unit}")
    for row, (step, before) in enumerate(zip(steps, levels, strict=False), 1):
        _step(axes, row, step, before, start[1], unit)
    for row, at in enumerate(levels):
        axes.plot([at, at], [row + 0.31, row + 0.69], color=canvas.FAINT, linewidth=0.8)
    canvas.rows(axes, labels)
    axes.set_xlim(min(0.0, *levels), max(levels))
    axes.xaxis.set_major_formatter(THOUSANDS)
    known = any(step.low is not None for step in steps)
    axes.set_xlabel(f"mean of a rollout, {unit}" + "; whiskers: 95 % interval of the change" * known)
    if any(step.marked for step in steps):
        hatched = Patch(facecolor=canvas.LESS, hatch="////", label=marked)
        sheet.legend(handles=[hatched], loc="outside lower left", fontsize=9)
    canvas.fit(sheet)
    return sheet


@canvas.picture
def intervals(
    estimates: Sequence[Estimate],
    *,
    title: str,
    x_label: str,
    level: float | None = None,
    percent: bool = False,
    least: float | None = None,
) -> Figure:
    """Figures below each other with their intervals; `level` is what they are to be compared with.

    `least`: smaller ones are told at the edge as numbers, as on their scale the others could not be told apart.
    """
    edge = _edge(estimates, least)
    sheet = canvas.figure(MARGIN_INCHES + ROW_INCHES * len(estimates), title)
    axes = sheet.add_subplot()
    if level is not None:
        axes.axvline(level, color=canvas.INK, linewidth=1, linestyle=(0, (5, 3)))
    for row, one in enumerate(estimates):
        if one.value is None:
            axes.text(
                0.99,
                row,
                "no data",
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
                color=canvas.FAINT,
            )
            continue
        text = canvas.percent(one.value) if percent else _figure(one.value).replace("-", "\N{MINUS SIGN}")
        if least is not None and one.value < least:
            axes.plot(edge, row, "<", color=canvas.LESS, markersize=6)
            canvas.beside(axes, edge, row, f"{text}: off the scale")
            continue
        if one.low is not None and one.high is not None:
            axes.plot([one.low, one.high], [row, row], color=canvas.LESS, linewidth=2.2)
        axes.plot(one.value, row, "o", color=canvas.LESS, markersize=6)
        canvas.beside(axes, max(one.value, one.high or one.value), row, text)
    canvas.rows(axes, [one.label for one in estimates])
    axes.margins(x=0.12)
    axes.set_xlabel(x_label)
    axes.xaxis.set_major_formatter(PERCENT if percent else THOUSANDS)
    canvas.fit(sheet)
    return sheet


def _edge(estimates: Sequence[Estimate], least: float | None) -> float:
    """Where what is smaller than `least` stands: as near to the others as they are to each other."""
    shown = [one for one in estimates if one.value is not None and (least is None or one.value >= least)]
    ends = [end for one in shown for end in (one.low, one.value, one.high) if end is not None]
    return min(ends) - 0.4 * (max(ends) - min(ends)) if ends else 0.0


@canvas.picture
def beside(panels: Mapping[str, Sequence[Estimate]], *, title: str, x_label: str) -> Figure:
    """Several figures of the same rows, each with an axis of its own from 0; a panel's estimates have the same labels."""
    columns = [*panels.values()]
    labels = [one.label for one in columns[0]]
    sheet = canvas.figure(MARGIN_INCHES + 0.3 + ROW_INCHES * len(labels), title)
    for axes, (name, estimates) in zip(
        sheet.subplots(1, len(columns), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        for row, one in enumerate(estimates):
            _point(axes, row, one)
        axes.set_title(name)
        ends = [value for one in estimates for value in (one.value, one.high) if value is not None]
        axes.set_xlim(0, max(ends, default=1.0))
        canvas.rows(axes, labels)
    sheet.supxlabel(x_label, fontsize=10)
    canvas.fit(sheet)
    return sheet


def _point(axes: Axes, row: int, one: Estimate) -> None:
    if one.value is None:
        canvas.beside(axes, 0.0, row, "no data")
        return
    right = one.value
    if one.low is not None and one.high is not None:
        axes.plot([one.low, one.high], [row, row], color=canvas.LESS, linewidth=2.2)
        right = max(right, one.high)
    axes.plot(one.value, row, "o", color=canvas.LESS, markersize=5)
    canvas.beside(axes, right, row, _figure(one.value))


@canvas.picture
def stages(
    bars: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    unit: str,
    x_label: str = "",
    residual: str = RESIDUAL_STAGE,
) -> Figure:
    """A bar for each arm, made of its stages; what is unexplained has a colour of its own and is named."""
    names = [*dict.fromkeys(stage for bar in bars.values() for stage in bar if stage != residual)]
    sheet = canvas.figure(MARGIN_INCHES + 0.6 + 1.3 * ROW_INCHES * len(bars), title)
    axes = sheet.add_subplot()
    longest = max((sum(bar.values()) for bar in bars.values()), default=0.0) or 1.0
    for row, bar in enumerate(bars.values()):
        _stacked(axes, row, bar, [*names, residual], residual, longest, unit)
    canvas.rows(axes, [*bars])
    axes.set_xlim(0, longest)
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.set_xlabel(x_label or f"server time of a rollout, {unit}")
    handles = [
        Patch(facecolor=canvas.colour(index), hatch=canvas.hatch(index), label=name)
        for index, name in enumerate(names)
    ]
    handles.append(Patch(facecolor=canvas.RESIDUAL, label="residual (unexplained)"))
    sheet.legend(handles=handles, loc="outside lower left", ncols=5, fontsize=9)
    canvas.fit(sheet)
    return sheet


THOUSANDS: Final = FuncFormatter(lambda value, _: f"{value:,g}".replace("-", "\N{MINUS SIGN}"))
PERCENT: Final = FuncFormatter(lambda value, _: canvas.percent(value))


def _line(axes: Axes, one: Series, index: int) -> None:
    heights = [math.nan if value is None else value for value in one.y]
    axes.plot(one.x, heights, label=one.label, markersize=4.5, linewidth=1.6, **canvas.tell_apart(index))
    if one.low and one.high:
        low, high = ([math.nan if value is None else value for value in ends] for ends in (one.low, one.high))
        axes.fill_between(one.x, low, high, color=canvas.colour(index), alpha=0.18, linewidth=0)


def _scale(axes: Axes, series: Sequence[Series], *, log_x: bool, log_y: bool) -> None:
    """Logarithmic where asked for, with the measured positions as ticks; else from 0, so that heights compare."""
    if log_x:
        places = sorted({x for one in series for x in one.x})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:,g}" for place in places])
        axes.minorticks_off()
    else:
        _measured_places(axes, series)
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    axes.yaxis.set_major_formatter(THOUSANDS)
    if all(value is None or value >= 0 for one in series for value in one.y):
        axes.set_ylim(bottom=0)


def _measured_places(axes: Axes, series: Sequence[Series]) -> None:
    """Ticks where something was measured, if they are few and leave each other room."""
    places = sorted({x for one in series for x in one.x})
    room = _TICK_ROOM * (places[-1] - places[0]) if places else 0.0
    if 1 < len(places) <= _MOST_TICKS and all(after - before >= room for before, after in pairwise(places)):
        axes.set_xticks(places, [f"{place:,g}" for place in places])
    else:
        axes.xaxis.set_major_formatter(THOUSANDS)


def _step(axes: Axes, row: int, step: Step, before: float, whole: float, unit: str) -> None:
    axes.barh(
        row,
        step.change,
        left=before,
        height=0.62,
        color=canvas.LESS if step.change <= 0 else canvas.MORE,
        hatch="////" if step.marked else "",
    )
    right = max(before, before + step.change)
    if step.low is not None and step.high is not None:
        ends = [before + step.low, before + step.high]
        axes.plot(ends, [row, row], color=canvas.INK, linewidth=1.4, marker="|", markersize=7)
        right = max(right, *ends)
    canvas.beside(axes, right, row, _change(step.change, whole, unit))


def _change(change: float, whole: float, unit: str) -> str:
    """With its sign, and as a share of the whole; nothing is nothing."""
    if not change:
        return f"0 {unit}"
    share = f" ({100 * change / whole:+.1f} %)" if whole else ""
    return f"{_figure(change, '+')} {unit}{share}".replace("-", "\N{MINUS SIGN}")


def _stacked(
    axes: Axes,
    row: int,
    bar: Mapping[str, float],
    names: Sequence[str],
    residual: str,
    longest: float,
    unit: str,
) -> None:
    left = 0.0
    for index, name in enumerate(names):
        width = bar.get(name, 0.0)
        fill = canvas.RESIDUAL if name == residual else canvas.colour(index)
        pattern = "" if name == residual else canvas.hatch(index)
        axes.barh(row, width, left=left, height=0.62, color=fill, hatch=pattern)
        if width > 0.07 * longest:
            axes.annotate(
                f"{width:,.3g}",
                (left + width / 2, row),
                ha="center",
                va="center",
                fontsize=9,
                color=canvas.ink_on(fill),
                fontweight="bold",
            )
        left += width
    rest = f", {_figure(bar[residual])} {unit} of it unexplained" if left and residual in bar else ""
    canvas.beside(axes, left, row, f"{_figure(left)} {unit}{rest}")


def _figure(value: float, sign: str = "") -> str:
    """Three digits that count, and no exponent: 1,260."""
    return format(float(f"{value:.3g}"), f"{sign},.10g")
