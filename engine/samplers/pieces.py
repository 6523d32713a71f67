"""A source's parts as a model would say them: each text token by token, a character never split; other parts as they are.

They come as *stretches*: some parts of one token each, or a single part of any number of tokens. Whoever deals with a stretch at
once pays for it once; a simulated model says thousands of tokens in a second.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from engine import vocabulary
from engine.samplers.base import CallInput, End, Part, Prefilled, Text, Thought

STRETCH_TOKENS: Final = 64
"""At most so many tokens are one stretch."""

Stretch: TypeAlias = list[Part]


def in_tokens(parts: Iterable[Part]) -> Iterator[Stretch]:
    """All that is said, up to the end; nothing for `Prefilled`."""
    for part in parts:
        if isinstance(part, Text | Thought):
            yield from _words(type(part), part.text)
        elif isinstance(part, CallInput):
            for piece, tokens in token_pieces(part.text):
                yield [CallInput(part.index, piece, tokens)]
        elif not isinstance(part, Prefilled):
            yield [part]
        if isinstance(part, End):
            return


def token_pieces(text: str) -> Iterator[tuple[str, int]]:
    """A text as pieces of whole characters, each with the number of tokens it took."""
    return _Characters().pieces(vocabulary.encode(text))


def _words(kind: Callable[[str, int], Part], text: str) -> Iterator[Stretch]:
    tokens, word_of, characters = vocabulary.encode(text), _WORD_OF[kind], _Characters()
    for start in range(0, len(tokens), STRETCH_TOKENS):
        some = tokens[start : start + STRETCH_TOKENS]
        words = list(map(word_of, some))
        if all(words):  # so no character is half said: what ends one is no word by itself
            yield words  # type: ignore[misc]  # no None among them
        else:
            for piece, count in characters.pieces(some):
                yield [kind(piece, count)]


class _Characters:
    """Tokens' bytes become whole characters, however they are split."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._tokens = 0

    def pieces(self, tokens: Iterable[int]) -> Iterator[tuple[str, int]]:
        """Each with the number of tokens since the one before; the last bytes may have to wait for more tokens."""
        for token in tokens:
            self._tokens += 1
            if piece := self._decoder.decode(vocabulary.token_bytes(token)):
                yield piece, self._tokens
                self._tokens = 0


def _whole(token: int) -> str | None:
    """The text of a token that is whole characters by itself."""
    try:
        return vocabulary.token_bytes(token).decode()
    except UnicodeDecodeError:
        return None


@lru_cache(maxsize=8192)
def _text(token: int) -> Part | None:
    """To make a part costs more than to send it, and models repeat themselves."""
    piece = _whole(token)
    return None if piece is None else Text(piece)


@lru_cache(maxsize=8192)
def _thought(token: int) -> Part | None:
    piece = _whole(token)
    return None if piece is None else Thought(piece)


_WORD_OF: Final[Mapping[Callable[[str, int], Part], Callable[[int], Part | None]]] = {
    Text: _text,
    Thought: _thought,
}
