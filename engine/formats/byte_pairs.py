"""A byte-level BPE tokenizer made of a model file's own vocabulary and merges.

Text is cut into words by the rule that the model was trained with (`pre`), and each word's bytes are joined pair by pair,
the earliest merge first. Control tokens are no part of that, so no spelling leads to one.
A long text is cut before that (`engine.vocabulary.pieces`), so no word is longer than a piece: 0.1 s of work at the most.

A few vocabularies lack tokens for bytes that their training never saw; a character that cannot be spelled becomes U+FFFD.
"""

import functools
import heapq
import re
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from engine.formats.gguf import read_metadata
from engine.vocabulary import pieces

Rank = Callable[[bytes, bytes], int | None]
"""When two neighbours are joined, counted from 0; None = never."""

_CONTROL_TYPES: Final = frozenset({3, 4})
"""GGUF's token types "control" and "user defined"."""
_CACHED_WORDS: Final = 1 << 15
_MAX_CACHED_CHARACTERS: Final = 32
_CACHED_LONG_WORDS: Final = 8
"""Up to 0.6 MB each. A megabyte of one character is the same long word again and again: 50 times less work."""
_REPLACEMENT: Final = "\ufffd"


class BytePairs:
    """A `Tokenizer` (`engine.formats.base`)."""

    def __init__(
        self,
        ids: Mapping[bytes, int],
        rank: Rank,
        specials: Mapping[str, int],
        pre: str,
    ) -> None:
        """`ids`: of the ordinary tokens. `ValueError`: no such `pre`."""
        if pre not in _CUTTERS:
            raise ValueError(
                f"the vocabulary is cut by the rule {pre!r}; known are {', '.join(sorted(_CUTTERS))}: "
                "use a model of one of those families, or a server that is given text (sampler chat:URL)"
            )
        self._ids = ids
        self._rank = rank
        self._specials = dict(specials)
        self._cut = _CUTTERS[pre]
        _rules()  # now, and not while the first text waits
        self._bytes = {number: data for data, number in ids.items()}
        self._unspelled = frozenset(byte for byte in range(256) if bytes([byte]) not in ids)
        self._cached = functools.lru_cache(_CACHED_WORDS)(self._join)
        self._cached_long = functools.lru_cache(_CACHED_LONG_WORDS)(self._join)

    @classmethod
    def from_gguf(cls, path: Path) -> Self:
        """The vocabulary of a model file. `OSError`; `ValueError`: it has none of this kind."""
        return cls.from_metadata(read_metadata(path), str(path))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], origin: str = "the file") -> Self:
        """The vocabulary in a file's metadata. `ValueError`: it has none of this kind."""
        kind = metadata.get("tokenizer.ggml.model")
        if kind != "gpt2":
            raise ValueError(
                f"{origin}: a vocabulary of kind {kind!r}; only 'gpt2' (byte-level BPE) can be read: "
                "use a server that is given text (sampler chat:URL)"
            )
        spellings: Sequence[str] = metadata["tokenizer.ggml.tokens"]
        types = metadata.get("tokenizer.ggml.token_type") or [1] * len(spellings)
        specials = {
            text: place
            for place, (text, type_) in enumerate(zip(spellings, types, strict=True))
            if type_ in _CONTROL_TYPES
        }
        ids = {
            data: place
            for place, (text, type_) in enumerate(zip(spellings, types, strict=True))
            if type_ == 1 and (data := _bytes_of(text)) is not None
        }
        ranks = {
            (_bytes_of(left), _bytes_of(right)): place
            for place, (left, _, right) in enumerate(
                merge.partition(" ") for merge in metadata["tokenizer.ggml.merges"]
            )
        }
        return cls(
            ids,
            lambda left, right: ranks.get((left, right)),
            specials,
            metadata.get("tokenizer.ggml.pre", "default"),
        )

    @property
    def specials(self) -> Mapping[str, int]:
        """Every control token: its spelling and id."""
        return self._specials

    def encode(self, text: str) -> "array[int]":
        """The ids of untrusted text: never a control token. `ValueError`: a lone surrogate."""
        ids = array("I")
        for piece in pieces(self._spellable(text)):
            for word in self._cut(piece):
                short = len(word) <= _MAX_CACHED_CHARACTERS
                ids.extend(self._cached(word) if short else self._cached_long(word))
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; nothing for a control token, or one that there is not."""
        return self._bytes.get(token, b"")

    def _spellable(self, text: str) -> str:
        data = text.encode()  # `UnicodeEncodeError` is a `ValueError`
        if self._unspelled.isdisjoint(data):
            return text
        return "".join(char if self._unspelled.isdisjoint(char.encode()) else _REPLACEMENT for char in text)

    def _join(self, word: str) -> tuple[int, ...]:
        """The tokens of one word: a heap of pairs and a chain of what is left, so that a long word costs n log n."""
        rank, push = self._rank, heapq.heappush
        parts = [bytes([byte]) for byte in word.encode()]
        after = [*range(1, len(parts)), -1]
        before = [*range(-1, len(parts) - 1)]
        ranks = [*(rank(left, right) for left, right in pairwise(parts)), None]
        heap = [(found, at) for at, found in enumerate(ranks) if found is not None]
        heapq.heapify(heap)
        while heap:
            found, at = heapq.heappop(heap)
            if ranks[at] != found:
                continue  # one of the two was joined with another meanwhile
            gone = after[at]
            joined = parts[at] = parts[at] + parts[gone]
            parts[gone], ranks[gone], ranks[at] = b"", None, None
            right = after[at] = after[gone]
            if right >= 0:
                before[right] = at
                ranks[at] = found_right = rank(joined, parts[right])
                if found_right is not None:
                    push(heap, (found_right, at))
            left = before[at]
            if left >= 0:
                ranks[left] = found_left = rank(parts[left], joined)
                if found_left is not None:
                    push(heap, (found_left, left))
        return tuple(self._ids[part] for part in parts if part)


# --- how text is cut into words ----------------------------------------------------------------------------------------

_SPACE: Final = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space as Unicode has it; the one of `re` has four characters more."""


@functools.cache
def _rules() -> Mapping[str, re.Pattern[str]]:
    letter, number = _classes()
    tail = rf"[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
    words = rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{letter}]+| ?[{number}]+| ?[^{_SPACE}{letter}{number}]+|{tail}"
    qwen = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n{letter}{number}]?[{letter}]+|[{number}]"
        rf"| ?[^{_SPACE}{letter}{number}]+[\r\n]*|[{_SPACE}]*[\r\n]+|{tail}"
    )
    return {
        "number": re.compile(rf"[{number}]"),
        "words": re.compile(words),
        "qwen": re.compile(qwen),
    }


def _classes() -> tuple[str, str]:
    """Letters and numbers as ranges for a character class; takes 0.2 s, once."""
    kinds = {"L": [], "N": []}  # type: dict[str, list[list[int]]]
    for code in range(sys.maxunicode + 1):
        ranges = kinds.get(unicodedata.category(chr(code))[0])
        if ranges is None:
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    letter, number = (
        "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in kinds[kind]) for kind in "LN"
    )
    return letter, number


def _cut_words(text: str) -> Iterator[str]:
    return (found.group() for found in _rules()["words"].finditer(text))


def _cut_qwen(text: str) -> Iterator[str]:
    return (found.group() for found in _rules()["qwen"].finditer(text))


def _cut_digits_first(text: str) -> Iterator[str]:
    """Each digit is a word, and what lies between two of them is cut by itself."""
    start = 0
    for digit in _rules()["number"].finditer(text):
        if start < digit.start():
            yield from _cut_words(text[start : digit.start()])
        yield digit.group()
        start = digit.end()
    yield from _cut_words(text[start:])


_CUTTERS: Final[Mapping[str, Callable[[str], Iterator[str]]]] = {
    "default": _cut_words,
    "gpt-2": _cut_words,
    "smollm": _cut_digits_first,
    "qwen2": _cut_qwen,
}


# --- how GGUF spells bytes ---------------------------------------------------------------------------------------------


@functools.cache
def _byte_spellings() -> Mapping[str, int]:
    """GPT-2's alphabet: a visible character for each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {
        **{chr(byte): byte for byte in visible},
        **{chr(256 + place): byte for place, byte in enumerate(others)},
    }


def _bytes_of(spelling: str) -> bytes | None:
    """None: it is not spelled in that alphabet."""
    alphabet = _byte_spellings()
    if any(char not in alphabet for char in spelling):
        return None
    return bytes(alphabet[char] for char in spelling)
