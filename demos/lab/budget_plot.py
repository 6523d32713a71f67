"""Bars made of what had to be and what did not, with the line that no bar can end before.

What every form must take is grey, what a form may do without has colours: how much of a bar can be saved is seen at once.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from demos.lab import canvas
from demos.lab.plots import MARGIN_INCHES, ROW_INCHES

GREYS: Final = ("#4d4d4d", "#737373", "#969696", "#bdbdbd", "#d9d9d9")
_TITLE_INCHES: Final = 8.0
"""As wide as a panel is, next to the names of its rows."""
_NARROWEST_SHARE: Final = 0.055
"""Of the axis: a part must be as long to have its number written in it."""
_BOUND_DASHES: Final = "-"
_TARGET_DASHES: Final = (0, (2, 1.5))


@attrs.frozen(kw_only=True)
class Budget:
    """One panel: `bars` by arm and part, in seconds."""

    title: str
    bars: Mapping[str, Mapping[str, float]]
    bound_s: float
    target_s: float | None = None
    """Where a bar was expected to end."""
    target: str = ""
    """In words."""


@canvas.picture
def budgets(
    panels: Sequence[Budget], needed: Sequence[str], avoidable: Sequence[str], *, title: str
) -> Figure:
    """Panels below each other, each with an axis of its own; parts are drawn in the order given."""
    fills = dict(zip(needed, GREYS, strict=False)) | {
        name: canvas.colour(index) for index, name in enumerate(avoidable)
    }
    shown = [name for name in fills if any(bar.get(name) for panel in panels for bar in panel.bars.values())]
    rows = sum(len(panel.bars) for panel in panels)
    height = MARGIN_INCHES + 0.5 + len(panels) * 1.1 + 1.1 * ROW_INCHES * rows
    sheet = canvas.figure(height, title)
    ratios = [len(panel.bars) for panel in panels]
    places = sheet.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})
    for axes, panel in zip(places[:, 0], panels, strict=True):
        _panel(axes, panel, fills, shown)
    places[-1, 0].set_xlabel("time per rollout, s (mean)")
    handles: list[Patch | Line2D] = [Patch(facecolor=fills[name], label=name) for name in shown]
    handles.append(Line2D([], [], color=canvas.INK, linewidth=1.8, label="no form is faster"))
    targets = dict.fromkeys(panel.target for panel in panels if panel.target_s is not None)
    if targets:
        handles.append(
            Line2D(
                [],
                [],
                color=canvas.RESIDUAL,
                linewidth=1.8,
                linestyle=_TARGET_DASHES,
                label=", ".join(targets),
            )
        )
    sheet.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=9)
    canvas.fit(sheet)
    return sheet


def _middle(panel: Budget, left: float, width: float) -> float:
    """Of a part of a bar; of what is longer on one side of the target's line, if that goes through the part."""
    target, right = panel.target_s, left + width
    if target is None or not left < target < right:
        return left + width / 2
    return (left + target) / 2 if target - left > right - target else (target + right) / 2


def _panel(axes: Axes, panel: Budget, fills: Mapping[str, str], shown: Sequence[str]) -> None:
    longest = max((sum(bar.values()) for bar in panel.bars.values()), default=1.0)
    for row, bar in enumerate(panel.bars.values()):
        left = 0.0
        for name in shown:
            width = max(0.0, bar.get(name, 0.0))
            axes.barh(row, width, left=left, height=0.66, color=fills[name], edgecolor="white", linewidth=0.4)
            if width > _NARROWEST_SHARE * longest:
                axes.annotate(
                    f"{width:.2f}",
                    (_middle(panel, left, width), row),
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color=canvas.ink_on(fills[name]),
                )
            left += width
        canvas.beside(axes, left, row, f"{sum(bar.values()):.2f} s")
    axes.axvline(panel.bound_s, color=canvas.INK, linewidth=1.8, linestyle=_BOUND_DASHES)
    if panel.target_s is not None:
        axes.axvline(panel.target_s, color=canvas.RESIDUAL, linewidth=1.8, linestyle=_TARGET_DASHES)
    axes.set_title(canvas.wrapped(panel.title, canvas.PANEL_TITLE, _TITLE_INCHES))
    axes.set_xlim(0, longest)
    canvas.rows(axes, [*panel.bars])
