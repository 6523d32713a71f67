"""The paper that all plots are drawn on: one look, safe for the colour-blind, and the same bytes for the same data.

No global state: figures are made without pyplot, the look is set for the time of drawing, and what would differ from
run to run (dates, random ids) is fixed. Text is drawn as outlines: a picture looks the same wherever it is opened.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from hashlib import sha256
from typing import Any, Final, ParamSpec

import attrs
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Annotation
from matplotlib.textpath import text_to_path

from demos.lab.report import Picture, Sheet

Data = ParamSpec("Data")

WIDTH_INCHES: Final = 9.0
PNG_DPI: Final = 150

INK: Final = "#222222"
FAINT: Final = "#777777"
GRID: Final = "#dddddd"
TOTAL: Final = "#8c8c8c"
LESS: Final = "#0072B2"
MORE: Final = "#D55E00"
RESIDUAL: Final = "#CC0066"
"""Used for nothing else, so that what is unexplained cannot hide."""
NO_DATA: Final = "#eeeeee"
LIGHT: Final = 0.25
"""From this luminance on, dark text stands out better than white."""

PALETTE: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#444444", "#B8A800")
"""Okabe and Ito's, which people with any colour vision tell apart; its yellow is darkened for white paper."""
MARKERS: Final = "osD^vPX*"
DASHES: Final = ("-", "--", "-.", ":")
HATCHES: Final = ("", "////", "....", "xxxx")
"""What tells a second series of the same colour apart."""

_FAMILY: Final = "DejaVu Sans"
"""Comes with matplotlib: the same everywhere."""
TITLE: Final = FontProperties(family=_FAMILY, weight="bold", size=12.5)
PANEL_TITLE: Final = FontProperties(family=_FAMILY, size=11)
_POINTS_AN_INCH: Final = 72

_LOOK: Final[Mapping[Any, Any]] = {
    "svg.hashsalt": "lab",
    "svg.fonttype": "path",
    "font.family": _FAMILY,
    "font.size": 10,
    "text.parse_math": False,  # labels come from files, and a dollar is a dollar
    "axes.titlesize": PANEL_TITLE.get_size(),
    "axes.labelsize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
}


@contextmanager
def look() -> Iterator[None]:
    """The lab's look, whatever the user's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        for name, value in _LOOK.items():
            mpl.rcParams[name] = value
        yield


def figure(height_inches: float, title: str) -> Figure:
    """An empty sheet with a title that says what is seen. To be used within `look()`."""
    sheet = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    lines = wrapped(title, TITLE, 0.98 * WIDTH_INCHES)
    sheet.suptitle(lines, x=0.01, ha="left", fontproperties=TITLE)
    return sheet


def picture(draw: Callable[Data, Figure]) -> Callable[Data, Picture]:
    """What draws on a `figure`, as what gives its picture; it runs in the lab's look, when the picture is looked at."""

    @wraps(draw)
    def of(*args: Data.args, **named: Data.kwargs) -> Picture:
        return Picture(Drawing(partial(draw, *args, **named)))

    return of


@attrs.frozen
class Drawing:
    """What a picture is drawn by: `figure` is to be called within `look()`."""

    figure: partial[Figure]

    def __call__(self) -> Sheet:
        """Drawn, in both forms."""
        with look():
            sheet, png, out = self.figure(), io.BytesIO(), io.StringIO()
            sheet.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
            told = {"Date": None, "Creator": None, "Title": sheet.get_suptitle()}
            sheet.savefig(out, format="svg", metadata=told)
        text = out.getvalue()
        return Sheet(unique_ids(text[text.index("<svg") :].strip()), png.getvalue())


def unique_ids(picture: str) -> str:
    """The picture with ids of its own, so that several can stand in one page."""
    prefix = f"p{sha256(picture.encode()).hexdigest()[:8]}-"
    named = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', picture)
    return re.sub(r'(href="#|url\(#)([^")]+)', rf"\g<1>{prefix}\g<2>", named)


def colour(index: int) -> str:
    """Of the series with this index."""
    return PALETTE[index % len(PALETTE)]


def hatch(index: int) -> str:
    """Of the series with this index: a new one with each round through the colours."""
    return HATCHES[index // len(PALETTE) % len(HATCHES)]


def ink_on(fill: str) -> str:
    """Black or white, whichever is read better on a colour (relative luminance of WCAG, without its gamma table)."""
    red, green, blue = (channel**2.2 for channel in to_rgb(fill))
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > LIGHT else "white"


def percent(share: float) -> str:
    """`40 %`, to a tenth, with a sign that is a minus; what is rounded to nothing has none."""
    return f"{round(100 * share, 1) + 0.0:g} %".replace("-", "\N{MINUS SIGN}")


def tell_apart(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line: any one of them is enough to know it by."""
    return {
        "color": colour(index),
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(PALETTE) % len(DASHES)],
    }


def rows(axes: Axes, labels: Sequence[str]) -> None:
    """Name the rows of a horizontal plot, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def beside(axes: Axes, x: float, row: int, text: str) -> None:
    """Words to the right of what ends at `x`; `fit` makes room for them."""
    words = axes.annotate(text, (x, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
    words.set_in_layout(False)  # or the panel shrinks for what is to fit into it


def fit(sheet: Figure) -> None:
    """Lengthen each x axis to the right as far as what stands `beside` something needs; the last thing before it is drawn."""
    sheet.draw_without_rendering()
    for axes in sheet.axes:
        longer = max(
            (_longer(axes, text) for text in axes.texts if isinstance(text, Annotation)), default=1.0
        )
        if longer > 1:
            scale = axes.xaxis.get_transform()
            left, right = scale.transform(axes.get_xlim())
            axes.set_xlim(right=float(scale.inverted().transform(left + longer * (right - left))))


def _longer(axes: Axes, text: Annotation) -> float:
    """How many times as long the axis has to be so that a text ends before it does."""
    space, anchor = axes.bbox, axes.transData.transform(text.xy)[0]
    return float((anchor - space.x0) / (space.width - (text.get_window_extent().x1 - anchor)))


def wrapped(title: str, font: FontProperties, inches: float) -> str:
    """In lines that are at most so wide, where its words allow it."""
    lines: list[str] = []
    for word in title.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _inches(longer, font) <= inches:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def _inches(line: str, font: FontProperties) -> float:
    width, _, _ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
    return float(width) / _POINTS_AN_INCH
