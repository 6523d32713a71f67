"""One rollout as time: what client and server did when, lane under lane, and the messages between them.

Several forms of the same rollout stand below each other on one axis, so that the difference is a length.
"""

from collections.abc import Sequence
from typing import Final

import attrs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from demos.lab import canvas

LANE_INCHES: Final = 0.42
_BAR: Final = 0.62
_NARROWEST_SHARE: Final = 0.045
"""Of the axis: a span must be as long to have its label written in it."""


@attrs.frozen
class Span:
    """What happens in a lane from one time to another. Spans of one `kind` have one colour."""

    lane: str
    kind: str
    start_s: float
    end_s: float
    label: str = ""


@attrs.frozen
class Message:
    """Something on its way from one lane to another."""

    sender: str
    receiver: str
    sent_s: float
    received_s: float


@canvas.picture
def timeline(
    spans: Sequence[Span],
    messages: Sequence[Message] = (),
    *,
    title: str,
    lanes: Sequence[str] = (),
) -> Figure:
    """Lanes from top to bottom in the order given, or of their first span. ValueError, when looked at: a message of unknown lanes."""
    names = [*dict.fromkeys([*lanes, *(span.lane for span in spans)])]
    kinds = [*dict.fromkeys(span.kind for span in spans)]
    end_s = max((span.end_s for span in spans), default=0.0) or 1.0
    sheet = canvas.figure(1.5 + LANE_INCHES * len(names), title)
    axes = sheet.add_subplot()
    for span in spans:
        _draw(axes, span, names.index(span.lane), kinds.index(span.kind), end_s)
    for message in messages:
        _send(axes, message, names)
    canvas.rows(axes, names)
    axes.set_xlim(0, 1.01 * end_s)
    axes.set_xlabel("seconds from the intended start of the rollout")
    handles = [
        Patch(facecolor=canvas.colour(index), hatch=canvas.hatch(index), label=kind)
        for index, kind in enumerate(kinds)
    ]
    sheet.legend(handles=handles, loc="outside lower left", ncols=6, fontsize=9)
    return sheet


def _draw(axes: Axes, span: Span, row: int, kind: int, end_s: float) -> None:
    width = span.end_s - span.start_s
    axes.barh(
        row,
        width,
        left=span.start_s,
        height=_BAR,
        color=canvas.colour(kind),
        hatch=canvas.hatch(kind),
        edgecolor="white",
        linewidth=0.5,
    )
    if span.label and width > _NARROWEST_SHARE * end_s:
        axes.annotate(
            span.label,
            (span.start_s + width / 2, row),
            ha="center",
            va="center",
            fontsize=8,
            color=canvas.ink_on(canvas.colour(kind)),
            fontweight="bold",
        )


def _send(axes: Axes, message: Message, names: Sequence[str]) -> None:
    unknown = {message.sender, message.receiver} - set(names)
    if unknown:
        raise ValueError(f"a message between lanes {sorted(unknown)} that have no span; there are {names}")
    sender, receiver = names.index(message.sender), names.index(message.receiver)
    down = _BAR / 2 if receiver > sender else -_BAR / 2
    axes.plot(
        [message.sent_s, message.received_s],
        [sender + down, receiver - down],
        color=canvas.FAINT,
        linewidth=0.8,
    )
