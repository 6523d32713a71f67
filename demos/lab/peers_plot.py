"""Bars of CPU time, on a logarithmic axis: two of these servers are a hundred times apart."""

from collections.abc import Sequence
from typing import Final

import attrs
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from demos.lab import canvas

ROW_INCHES: Final = 0.36
MARGIN_INCHES: Final = 1.3


@attrs.frozen
class Bar:
    """A figure with its range; None: nothing was measured."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    ours: bool = False


@canvas.picture
def bars(rows: Sequence[Bar], *, title: str, x_label: str) -> Figure:
    """One below the other, as a picture. Where nothing was measured it says so, in the place of a bar."""
    known = [value for row in rows for value in (row.value, row.low) if value]
    sheet = canvas.figure(MARGIN_INCHES + ROW_INCHES * len(rows), title)
    axes = sheet.add_subplot()
    axes.set_xscale("log")
    floor = min(known, default=1.0) / 2
    axes.set_xlim(floor, max((row.high or row.value or 1.0 for row in rows), default=1.0))
    for at, row in enumerate(rows):
        if row.value is None:
            canvas.beside(axes, floor, at, "no data")
            continue
        colour = canvas.LESS if row.ours else canvas.TOTAL
        axes.barh(at, row.value - floor, left=floor, height=0.62, color=colour)
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [at, at], color=canvas.INK, linewidth=1.4, marker="|")
        right = max(row.value, row.high or 0.0)
        canvas.beside(axes, right, at, f"{row.value:,.3g}")
    canvas.rows(axes, [row.label for row in rows])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x_label)
    canvas.fit(sheet)
    return sheet
