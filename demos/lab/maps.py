"""Plots over two axes: the claim map, where a saving holds and where it does not, and tables as colours.

On the claim map each published claim is a point that has the colour of what it claims: where it vanishes in its
surroundings, the map agrees with it. Regions without a figure are grey and hatched, not the colour of 0.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, Colormap, to_hex
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import AbstractPathEffect, Normal, Stroke
from matplotlib.text import Text
from matplotlib.transforms import offset_copy

from demos.lab import canvas
from demos.lab.plots import PERCENT

COSTS: Final = "#b9b9b9"
"""Where the form takes longer: no colour of the scale."""
LEVELS: Final = tuple(round(0.1 * step, 1) for step in range(10))
CLAIM_DASHES: Final = (0, (6, 2))
BREAK_EVEN_DASHES: Final = (0, (1, 1.5))
_TICK_WIDTH: Final = 0.2
_TICK_HEIGHT: Final = 0.05
"""What the number at a tick takes up of its axis."""
_LABEL_MARGIN: Final = 0.09
"""Of a panel: a number on a line that is nearer to the edge would be cut, and one nearer to a claim covered."""
_SPREAD_POINTS: Final = 15
"""Between claims that stand at the same place."""


@attrs.frozen
class Panel:
    """One scenario of tool times: `saving[i][j]` at `calls[i]` and `tokens_per_second[j]`."""

    title: str
    tokens_per_second: Sequence[float]
    calls: Sequence[float]
    saving: Sequence[Sequence[float | None]]


@attrs.frozen
class Claim:
    """What somebody published: a saving, and the speed and depth it is said of (or was measured at)."""

    label: str
    tokens_per_second: float
    calls: float
    saving: float
    panel: str | None = None
    """Only in the panel of this title; None: in all."""


@canvas.picture
def claim_map(
    panels: Sequence[Panel],
    claims: Sequence[Claim] = (),
    *,
    title: str,
    claimed: float = 0.40,
    break_even: float = 0.02,
) -> Figure:
    """Saving over decoding speed and depth, a panel for each scenario.

    `claimed` is drawn as a line, and so is `break_even`: the saving below which the form does not matter.
    ValueError, when the picture is looked at: a panel's grid is no grid of at least two by two.
    """
    for panel in panels:
        _check(panel)
    colours = mpl.colormaps["viridis"].with_extremes(under=COSTS, bad=canvas.NO_DATA)
    norm = BoundaryNorm(LEVELS, colours.N, extend="both")
    sheet = canvas.figure(5.2 + 0.2 * ((len(claims) + 1) // 2), title)
    columns = sheet.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, panel in zip(columns, panels, strict=True):
        filled = _filled(axes, panel, colours, norm)
        _contours(axes, panel, claims, claimed, break_even)
        _claims(axes, panel, claims, colours, norm)
    columns[0].set_ylabel("tool calls of a rollout")
    bar = sheet.colorbar(filled, ax=list(columns), pad=0.01, ticks=LEVELS, format=PERCENT)
    bar.set_label("saving of time per rollout")
    _legend(sheet, panels, claims, claimed, break_even, lambda saving: colours(norm(saving)))
    return sheet


@canvas.picture
def strip(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    unit: str,
    form: str = "{:,.3g}",
    better: str = "low",
) -> Figure:
    """A table whose cells are coloured by their value, darker where it is worse; `better` is `low` or `high`.

    Each column has its own scale, as columns are different situations, and rows are what is compared in each. Where low is
    better the shade is the share of the column's largest, so that a small difference looks small.
    """
    sheet = canvas.figure(1.25 + 0.42 * len(rows), title)
    axes = sheet.add_subplot()
    worse = _worse(values, better)
    axes.imshow(
        worse,
        cmap=mpl.colormaps["Blues"].with_extremes(bad=canvas.NO_DATA),
        vmin=0,
        vmax=1.25,
        aspect="auto",
    )
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            dark = value is not None and worse[row, column] > 0.75
            text = "no data" if value is None else form.format(value)
            axes.annotate(
                text,
                (column, row),
                ha="center",
                va="center",
                color="white" if dark else canvas.INK if value is not None else canvas.FAINT,
            )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"{unit}; darker is worse, each column by itself", loc="left")
    return sheet


def _check(panel: Panel) -> None:
    shape = (len(panel.calls), len(panel.tokens_per_second))
    if min(shape) < 2 or len(panel.saving) != shape[0] or any(len(row) != shape[1] for row in panel.saving):
        found = [len(row) for row in panel.saving]
        raise ValueError(
            f"panel {panel.title!r}: {shape[0]} calls by {shape[1]} speeds, and rows of {found}; "
            "give one saving for each pair, on at least two by two"
        )


def _grid(values: Sequence[Sequence[float | None]]) -> np.ma.MaskedArray[Any, np.dtype[np.float64]]:
    """With None masked."""
    array = np.array(values, dtype=float)
    return np.ma.MaskedArray(array, np.isnan(array))


def _filled(axes: Axes, panel: Panel, colours: Colormap, norm: BoundaryNorm) -> QuadContourSet:
    axes.set(xscale="log", yscale="log", facecolor=canvas.NO_DATA)
    axes.patch.set(hatch="xx", edgecolor="#cccccc")
    filled = axes.contourf(
        panel.tokens_per_second,
        panel.calls,
        _grid(panel.saving),
        LEVELS,
        cmap=colours,
        norm=norm,
        extend="both",
    )
    axes.set_title(panel.title)
    axes.set_xlabel("decoding speed, tokens/s")
    axes.set_xticks(*_ticks(panel.tokens_per_second, _TICK_WIDTH))
    axes.set_yticks(*_ticks(panel.calls, _TICK_HEIGHT))
    axes.minorticks_off()
    axes.grid(visible=False)
    return filled


def _ticks(places: Sequence[float], share: float) -> tuple[list[float], list[str]]:
    """Those that leave room for each other on a logarithmic axis, from the greatest down."""
    room = share * math.log(places[-1] / places[0])
    chosen: list[float] = []
    for place in reversed(places):
        if not chosen or math.log(chosen[-1] / place) >= room:
            chosen.append(place)
    return chosen, [f"{place:,g}" for place in chosen]


def _contours(axes: Axes, panel: Panel, claims: Sequence[Claim], claimed: float, break_even: float) -> None:
    """Lines where the data has them: a level outside of it is no line and no warning."""
    grid = _grid(panel.saving)
    fine = [level for level in LEVELS if grid.min() < level < grid.max() and level != claimed]
    where = (panel.tokens_per_second, panel.calls, grid)
    if fine:
        drawn = axes.contour(*where, fine, colors="white", linewidths=0.7)
        _tidy(axes, axes.clabel(drawn, fmt=canvas.percent, fontsize=8), _shown(panel, claims))
    if _has_line(panel, claimed):
        axes.contour(*where, [claimed], colors=canvas.MORE, linewidths=2.2, linestyles=[CLAIM_DASHES])
    if _has_line(panel, break_even):
        axes.contour(*where, [break_even], colors="white", linewidths=2.2, linestyles=[BREAK_EVEN_DASHES])


def _shown(panel: Panel, claims: Sequence[Claim]) -> list[tuple[int, Claim]]:
    """Those of a panel, with their numbers."""
    return [(number, claim) for number, claim in enumerate(claims, 1) if claim.panel in {None, panel.title}]


def _tidy(axes: Axes, labels: Sequence[Text], claims: Sequence[tuple[int, Claim]]) -> None:
    """Without the labels that an edge would cut or a claim cover, and none of them upside down: the colours say it, too."""
    place = axes.transData + axes.transAxes.inverted()
    heights = [place.transform((claim.tokens_per_second, claim.calls))[1] for _, claim in claims]
    for label in labels:
        x, y = place.transform(label.get_position())
        in_sight = all(_LABEL_MARGIN < share < 1 - _LABEL_MARGIN for share in (x, y))
        if not in_sight or any(abs(y - height) < _LABEL_MARGIN for height in heights):
            label.remove()
        else:
            label.set_rotation((label.get_rotation() + 80) % 180 - 80)


def _has_line(panel: Panel, level: float) -> bool:
    """Is the level within the panel's values?"""
    grid = _grid(panel.saving)
    return bool(grid.min() < level < grid.max())


def _claims(axes: Axes, panel: Panel, claims: Sequence[Claim], colours: Colormap, norm: BoundaryNorm) -> None:
    """Numbered as in the legend; those at one place stand in a row, centred on it."""
    shown = _shown(panel, claims)
    crowd = Counter((claim.tokens_per_second, claim.calls) for _, claim in shown)
    placed: Counter[tuple[float, float]] = Counter()
    for number, claim in shown:
        place = (claim.tokens_per_second, claim.calls)
        aside = _SPREAD_POINTS * (placed[place] - (crowd[place] - 1) / 2)
        placed[place] += 1
        moved = offset_copy(axes.transData, axes.get_figure(root=True), x=aside, units="points")
        fill = colours(norm(claim.saving))
        axes.plot(
            *place,
            "o",
            transform=moved,
            markersize=13,
            markerfacecolor=fill,
            markeredgecolor="white",
            markeredgewidth=1.4,
            clip_on=False,
            zorder=5,
        )
        axes.annotate(
            str(number),
            place,
            xycoords=moved,
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight="bold",
            color=canvas.ink_on(to_hex(fill)),
            zorder=6,
            annotation_clip=False,
        )


def _legend(
    sheet: Figure,
    panels: Sequence[Panel],
    claims: Sequence[Claim],
    claimed: float,
    break_even: float,
    fill: Callable[[float], Any],
) -> None:
    """The lines, what has no colour of the scale, and the claims by their numbers."""
    savings = [saving for panel in panels for row in panel.saving for saving in row]
    reached = any(_has_line(panel, claimed) for panel in panels)
    break_even_label = f"break-even: below {canvas.percent(break_even)} the form does not matter"
    handles: list[Artist] = [
        _sample(
            f"{canvas.percent(claimed)} saving{'' if reached else ': nowhere on this map'}",
            color=canvas.MORE,
            linestyle=CLAIM_DASHES,
        ),
        _sample(break_even_label, color="white", linestyle=BREAK_EVEN_DASHES, path_effects=_outline()),
    ]
    if any(saving is not None and saving < 0 for saving in savings):
        handles.append(Patch(facecolor=COSTS, label="costs time"))
    if None in savings:
        handles.append(Patch(facecolor=canvas.NO_DATA, edgecolor="#cccccc", hatch="xx", label="no data"))
    handles += [
        _sample(
            f"{number}  {claim.label}: {canvas.percent(claim.saving)}",
            color=fill(claim.saving),
            linestyle="",
            marker="o",
            markersize=9,
        )
        for number, claim in enumerate(claims, 1)
    ]
    legend = sheet.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=9, alignment="left")
    if claims:
        legend.set_title(
            "Points are published claims, in the colour of what they claim: one that vanishes agrees with the map."
        )
        legend.get_title().set_fontsize(9)


def _sample(label: str, **style: Any) -> Line2D:
    return Line2D([], [], linewidth=2.2, label=label, **style)


def _outline() -> list[AbstractPathEffect]:
    """For a white line on white paper."""
    return [Stroke(linewidth=3.6, foreground=canvas.FAINT), Normal()]


def _worse(
    values: Sequence[Sequence[float | None]], better: str
) -> np.ma.MaskedArray[Any, np.dtype[np.float64]]:
    """Each value between 0, or its column's best, and its column's worst (1), masked where there is no data."""
    grid = _grid(values) if better == "low" else -_grid(values)
    above = grid if better == "low" and grid.min() >= 0 else grid - grid.min(axis=0)
    worse: np.ma.MaskedArray[Any, np.dtype[np.float64]] = above / np.maximum(
        above.max(axis=0), np.finfo(float).tiny
    )
    return worse
