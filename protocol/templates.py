"""Frames that are the same each time but for a few values: their bytes are made once, and then only filled.

An item opens and closes alike each time; what differs are its id, its place, the numbers and what was written.
Its events are made by a function (`Make`). A template calls it once, with marks in the place of values, encodes what it
made in the plain way and keeps the bytes around the marks: no event has a second description, and a property test says
that what is filled equals what is made and encoded, byte for byte.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import attrs
import orjson

from protocol import codec
from protocol.events import DELTA_CLASSES, ServerEvent
from protocol.items import Agent

Make: TypeAlias = Callable[..., tuple[ServerEvent, ...]]
"""(agent, item id, output index, texts …) → events of one item, all of them output, and no `output_item.done` among them.

Each value stands in the events as it is, or not at all. The last one of an *opening* is a delta without a piece.
A function of the engine's own: templates are kept as long as the process lives.
"""
DeltaPattern: TypeAlias = bytes
"""The frame of a delta, to be filled with its piece, as JSON, and its number."""

_INDEX: Final = 2**52 + 1
_NUMBER: Final = 2**52 + 2
_PIECE: Final = "\x02piece"
_ID: Final = "\x02id"
_TEXTS: Final = tuple(f"\x02{place}" for place in range(8))
_NAMES: Final = tuple(b"%d" % place for place in range(len(_TEXTS)))


class Template:
    """The frames of one `Make`, for one agent. Whatever comes from outside is filled in, and never looked at for marks."""

    __slots__ = ("_delta", "_frames", "kinds")

    def __init__(self, make: Make, texts: int, agent: Agent | None) -> None:
        made = list(make(agent, _ID, _INDEX, *_TEXTS[:texts]))
        self.kinds = tuple(event.type for event in made)
        """Of all its events."""
        self._delta = b""
        if isinstance(made[-1], DELTA_CLASSES):
            last: Any = made.pop()
            self._delta = _pattern(attrs.evolve(last, delta=_PIECE), agent)
        self._frames = tuple(_pattern(event, agent) for event in made)

    def fill(
        self, number: int, item_id: str, output_index: int, texts: Sequence[str], stream_id: str | None
    ) -> list[bytes]:
        """The frames, numbered from `number` on; of an opening all but the delta. `TypeError`: half a character."""
        values: dict[bytes, Any] = {
            b"id": orjson.dumps(item_id),
            b"index": output_index,
            b"lane": _lane(stream_id),
        }
        if texts:
            values.update(zip(_NAMES, map(orjson.dumps, texts), strict=False))
        frames = []
        for frame in self._frames:
            values[b"number"] = number
            frames.append(frame % values)
            number += 1
        return frames

    def delta(self, item_id: str, output_index: int, stream_id: str | None) -> DeltaPattern:
        """The last frame of an opening, as a pattern."""
        assert self._delta, "an opening ends with a delta"
        return self._delta % {
            b"id": orjson.dumps(item_id).replace(b"%", b"%%"),
            b"index": output_index,
            b"lane": _lane(stream_id).replace(b"%", b"%%"),
        }


@cache
def template_of(make: Make, texts: int, agent: Agent | None) -> Template:
    """The template of `make` with so many texts."""
    return Template(make, texts, agent)


def fill_pieces(pattern: DeltaPattern, pieces: Sequence[str], number: int) -> list[bytes]:
    """The frames of several deltas, numbered from `number` on. `TypeError`: half a character."""
    dumps, frames = orjson.dumps, []
    for piece in pieces:  # mostly one or two
        frames.append(pattern % (dumps(piece), number))
        number += 1
    return frames


def _lane(stream_id: str | None) -> bytes:
    """As it ends a frame."""
    return b"" if stream_id is None else b',"stream_id":%b' % orjson.dumps(stream_id)


def _pattern(event: ServerEvent, agent: Agent | None) -> bytes:
    """The plain encoding, with `%(name)` for each value; a delta is filled twice, with its piece and number last."""
    text = codec.encode(event, {"sequence_number": _NUMBER, **codec.extras_of(agent, None)})
    is_delta = isinstance(event, DELTA_CLASSES)
    text = text.replace(b"%", b"%%%%" if is_delta else b"%%")
    marks: dict[Any, bytes] = {
        _ID: b"%(id)b",
        _INDEX: b"%(index)d",
        _NUMBER: b"%%d" if is_delta else b"%(number)d",
        _PIECE: b"%%b",
        **{mark: b"%%(%b)b" % name for mark, name in zip(_TEXTS, _NAMES, strict=True)},
    }
    for mark, name in marks.items():
        text = text.replace(orjson.dumps(mark), name)
    return text[:-1] + b"%(lane)b}"
