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

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

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

_LOOK: Final[Mapping[Any, Any]] = {
    "svg.hashsalt": "lab",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 10,
    "text.parse_math": False,  # labels come from files, and a dollar is a dollar
    "axes.titlesize": 11,
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
    sheet.suptitle(wrapped(title), x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    return sheet


def picture(draw: Callable[Data, Figure]) -> Callable[Data, Picture]:
    """What draws on a `figure`, as what gives its picture; it runs in the lab's look, when the picture is looked at."""

    @wraps(draw)
    def of(*args: Data.args, **named: Data.kwargs) -> Picture:
        return Picture(partial(_drawn, partial(draw, *args, **named)))

    return of


def _drawn(draw: Callable[[], Figure]) -> Sheet:
    with look():
        sheet, png, out = draw(), io.BytesIO(), io.StringIO()
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


def wrapped(title: str, width: int = 88) -> str:
    """In lines of at most so many characters, where its words allow it."""
    lines = [""]
    for word in title.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
