"""Spans on tracks: on one track spans stand in each other or after each other, and never across each other.

What does not fit goes on another track of the same name. Times are whole microseconds, each rounded by itself: then what
nested still nests, and lengths that follow each other still add up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.define(eq=False)
class Slice:
    """Something that lasts."""

    name: str
    category: str
    start_us: int
    end_us: int
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    track: int = 0
    """Which of the tracks of one name."""
    thread: int = 0
    """The number of that track in the whole picture."""


def microseconds(seconds: float) -> int:
    """A time as a trace viewer wants it."""
    return round(seconds * 1e6)


def lay(slices: Sequence[Slice], *, nest: bool = True) -> list[Slice]:
    """Give each its track, and put them in an order in which what encloses comes first. Of equals the first given encloses.

    `nest`: may one stand in another? Things that go on side by side may not.
    """
    ordered = sorted(slices, key=lambda one: (one.start_us, -one.end_us))
    open_on: list[list[int]] = []
    for one in ordered:
        one.track = next(
            (track for track, ends in enumerate(open_on) if _fits(one, ends, nest=nest)),
            len(open_on),
        )
        if one.track == len(open_on):
            open_on.append([])
        open_on[one.track].append(one.end_us)
    return ordered


def _fits(one: Slice, ends: list[int], *, nest: bool) -> bool:
    """Does it stand in what is open there? What ends before it begins is closed."""
    while ends and ends[-1] <= one.start_us and ends[-1] < one.end_us:
        ends.pop()
    return not ends or (nest and one.end_us <= ends[-1])
