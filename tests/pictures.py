"""Can a picture be read? What is cut off at its edge, and what lies over something else, as its own font has it."""

from collections.abc import Iterator
from itertools import combinations

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from demos.lab.canvas import PNG_DPI

TOLERANCE_PIXELS = 3.0
"""The box around a text is a little larger than its ink."""


def faults_of(sheet: Figure) -> list[str]:
    """Texts that nobody can read whole; to be called in the look in which the sheet was drawn."""
    sheet.set_dpi(PNG_DPI)
    sheet.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in _shown(sheet)]
    cut = [f"cut: {words!r}" for words, box in boxes if not _inside(box, sheet.bbox)]
    covered = [
        f"{words!r} and {others!r} lie over each other"
        for (words, box), (others, other) in combinations(boxes, 2)
        if _overlap(box, other)
    ]
    return cut + covered


def _shown(sheet: Figure) -> Iterator[Text]:
    axes = [axis for panel in sheet.axes for axis in (panel.xaxis, panel.yaxis)]
    away = {label for axis in axes for label in _out_of_view(axis)}
    for text in sheet.findobj(Text):
        if isinstance(text, Text) and text not in away and text.get_visible() and text.get_text().strip():
            yield text


def _out_of_view(axis: Axis) -> Iterator[Text]:
    """Labels of ticks beyond the ends of the axis are there, but not drawn."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
        if not low - slack <= tick.get_loc() <= high + slack:
            yield from (tick.label1, tick.label2)


def _inside(box: Bbox, paper: Bbox) -> bool:
    return (
        box.x0 >= paper.x0 - TOLERANCE_PIXELS
        and box.y0 >= paper.y0 - TOLERANCE_PIXELS
        and box.x1 <= paper.x1 + TOLERANCE_PIXELS
        and box.y1 <= paper.y1 + TOLERANCE_PIXELS
    )


def _overlap(one: Bbox, other: Bbox) -> bool:
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return min(wide, high) > TOLERANCE_PIXELS
