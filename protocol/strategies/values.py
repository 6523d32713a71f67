"""Small values: texts, ids, what JSON can say, and a text as the pieces in which it is streamed.

Everything is bounded, and small comes first: the empty text, one piece, the first name.
"""

from itertools import pairwise
from typing import Any, Final

import orjson
from hypothesis import strategies as st

MAX_PIECES: Final = 3
"""Deltas of one text. More of them find nothing that three do not."""

_plain = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=12)
_awkward = st.sampled_from(
    ("a\nb\n", "\r\n", "data: [DONE]", " ", '{"a":1}', "e\u0301", "\U0001f469\u200d\U0001f467")
)
"""Line ends, what SSE uses as marks, and characters that are more than one scalar: where servers stumble."""

texts: Final = _plain | _awkward
"""Any text that UTF-8 can say, up to 12 characters; without U+FFFD, which stands for a character that was broken.

Every other one is awkward: has line ends, looks like a frame, joins several scalars. Shrinks to the empty text.
"""

names: Final = st.sampled_from(("f", "look_up", "apply_patch", "shell"))
"""Names of tools. Shrinks to `f`."""

lanes: Final = st.sampled_from(("a", "b", "main.lane-3", "L" * 256))
"""Legal `stream_id`s. Shrinks to `a`."""

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values: Final = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
"""What JSON can say and a reader of 64-bit numbers keeps exactly, up to 6 leaves. Shrinks to null."""

json_objects: Final = st.dictionaries(texts, json_values, max_size=3)
"""JSON objects of up to three members. Shrinks to `{}`."""


def maybe(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """These, or None. Shrinks to None."""
    return st.none() | of


@st.composite
def pieces(draw: st.DrawFn, of: st.SearchStrategy[str] = texts) -> tuple[str, ...]:
    """A text as the non-empty deltas it is streamed in, one to three. No pieces for the empty text, to which it shrinks."""
    text = draw(of)
    places = st.lists(st.integers(1, max(1, len(text) - 1)), max_size=MAX_PIECES - 1, unique=True)
    cuts = [0, *sorted(cut for cut in draw(places) if cut < len(text)), len(text)]
    return tuple(text[start:end] for start, end in pairwise(cuts) if start < end)


arguments: Final = st.dictionaries(names, json_values, max_size=2).map(
    lambda value: orjson.dumps(value).decode()
)
"""Arguments of a function call: JSON text of an object. Shrinks to `{}`."""
