"""Frames that are the same each time but for a few values: their bytes are made once, and then only filled.

An item opens and closes alike each time; what differs are its id, its place, the numbers and what was written.
Its events are made by a function (`Make`). A template calls it once, with marks in the place of values, encodes what it
made in the plain way and keeps the bytes around the marks: no event has a second description, and a property test says
that what is filled equals what is made and encoded, byte for byte.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import attrs
import orjson

from protocol import codec
from protocol.events import DELTA_CLASSES, ServerEvent
from protocol.items import Agent

Make: TypeAlias = Callable[..., tuple[ServerEvent, ...]]
"""(agent, item id, output index, texts …) → events of one item, the first `response.*` of its kind and the rest `OUTPUT`.

Each value stands in the events as it is, or not at all. The last one of an *opening* is a delta without a piece.
"""
DeltaPattern: TypeAlias = bytes
"""The frame of a delta, to be filled with its piece, as JSON, and its number."""

_INDEX: Final = 2**52 + 1
_NUMBER: Final = 2**52 + 2
_PIECE: Final = "\x02piece"
_ID: Final = "\x02id"
_ID_MARK: Final = orjson.dumps(_ID)
_INDEX_MARK: Final = orjson.dumps(_INDEX)
_TEXTS: Final = tuple(f"\x02{place}" for place in range(8))
_NAMES: Final = tuple(b"%d" % place for place in range(len(_TEXTS)))
MAX_TEMPLATES: Final = 1024
"""How many are kept: a lane of a client's choice makes its own."""


class Template:
    """The frames of one `Make`, for one agent and lane."""

    __slots__ = ("_delta", "_frames", "kinds")

    def __init__(self, make: Make, texts: int, agent: Agent | None, stream_id: str | None) -> None:
        made = list(make(agent, _ID, _INDEX, *_TEXTS[:texts]))
        self.kinds = tuple(event.type for event in made)
        """Of all its events."""
        extras = codec.extras_of(agent, stream_id)
        self._delta = b""
        if isinstance(made[-1], DELTA_CLASSES):
            last: Any = made.pop()
            delta = _escaped(attrs.evolve(last, delta=_PIECE), extras)
            self._delta = delta.replace(orjson.dumps(_PIECE), b"%b").replace(orjson.dumps(_NUMBER), b"%d")
        self._frames = tuple(_pattern(event, extras) for event in made)

    def fill(self, number: int, item_id: str, output_index: int, texts: Sequence[str]) -> list[bytes]:
        """The frames, numbered from `number` on; of an opening all but the delta. `TypeError`: half a character."""
        values: dict[bytes, Any] = {b"id": orjson.dumps(item_id), b"index": output_index}
        if texts:
            values.update(zip(_NAMES, map(orjson.dumps, texts), strict=False))
        frames = []
        for frame in self._frames:
            values[b"number"] = number
            frames.append(frame % values)
            number += 1
        return frames

    def delta(self, item_id: str, output_index: int) -> DeltaPattern:
        """The last frame of an opening, as a pattern."""
        assert self._delta, "an opening ends with a delta"
        with_id = self._delta.replace(_ID_MARK, orjson.dumps(item_id).replace(b"%", b"%%"))
        return with_id.replace(_INDEX_MARK, b"%d" % output_index)


@lru_cache(MAX_TEMPLATES)
def template_of(make: Make, texts: int, agent: Agent | None, stream_id: str | None) -> Template:
    """The template of `make` with so many texts."""
    return Template(make, texts, agent, stream_id)


def fill_pieces(pattern: DeltaPattern, pieces: Sequence[str], number: int) -> list[bytes]:
    """The frames of several deltas, numbered from `number` on. `TypeError`: half a character."""
    dumps, frames = orjson.dumps, []
    for piece in pieces:  # mostly one or two
        frames.append(pattern % (dumps(piece), number))
        number += 1
    return frames


def _pattern(event: ServerEvent, extras: Mapping[str, Any]) -> bytes:
    """The plain encoding, with `%(name)` for each mark."""
    text = _escaped(event, extras)
    text = text.replace(_ID_MARK, b"%(id)b").replace(_INDEX_MARK, b"%(index)d")
    text = text.replace(orjson.dumps(_NUMBER), b"%(number)d")
    for mark, name in zip(_TEXTS, _NAMES, strict=True):
        text = text.replace(orjson.dumps(mark), b"%%(%b)b" % name)
    return text


def _escaped(event: ServerEvent, extras: Mapping[str, Any]) -> bytes:
    return codec.encode(event, {"sequence_number": _NUMBER, **extras}).replace(b"%", b"%%")
