"""The vocabulary: untrusted text can never become a control token.

Control tokens (*markers*) exist here only as the numbers below; no spelling leads to them.
`encode` uses the tokenizer's ordinary mode alone, in which `<|start|>` is nine characters like any others.
Nothing is filtered or escaped: filtering would change what the user said and miss look-alikes.

The vocabulary is o200k_harmony, inside the `quicktok` package: no download. It loads once, at the first use (0.35 s).
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Final

import quicktok

ENCODING_NAME: Final = "o200k_harmony"

RETURN: Final = 200002
CONSTRAIN: Final = 200003
CHANNEL: Final = 200005
START: Final = 200006
END: Final = 200007
MESSAGE: Final = 200008
CALL: Final = 200012

MARKERS: Final = {
    "<|return|>": RETURN,
    "<|constrain|>": CONSTRAIN,
    "<|channel|>": CHANNEL,
    "<|start|>": START,
    "<|end|>": END,
    "<|message|>": MESSAGE,
    "<|call|>": CALL,
}

PIECE_CHARACTERS: Final = 16 * 1024
"""The tokenizer never sees more at once: others overflowed their stack on megabytes of one character class.
At most 64 KiB of UTF-8, and 0.1 to 7 ms of work. Fixed, because token ids depend on where a text is cut."""

_LOOK_BACK_CHARACTERS: Final = 256
"""How far before the bound a natural cut is looked for; constant work per piece, so encoding stays linear."""

_KNOWN_TEXT: Final = "The response suspends; das Wörterbuch 中 😀 <|start|>"
_KNOWN_IDS: Final = [976, 3322, 13773, 1847, 26, 2331, 191218, 49847, 25403, 88038, 464, 91, 5236, 91, 29]


class VocabularyError(RuntimeError):
    """The installed vocabulary is not the one this engine was built for: a fault of the installation."""


def check_vocabulary() -> None:
    """Load the vocabulary and prove it on known text; call it at start-up. Raises `VocabularyError`."""
    _tokenizer()


def encode(text: str) -> list[int]:
    """The ids of untrusted text: never a marker, and `decode` gives the text back.

    A text above `PIECE_CHARACTERS` is encoded piece by piece (see `pieces`), in linear time.
    `ValueError`: a lone surrogate, which the edge of the engine should have refused.
    """
    if len(text) <= PIECE_CHARACTERS:
        return _encode_piece(text)
    ids: list[int] = []
    for piece in pieces(text):
        ids += _encode_piece(piece)
    return ids


def decode(ids: Iterable[int]) -> str:
    """The text of whole characters' ids; markers come out in their spelling."""
    return str(_tokenizer().decode(list(ids)))


def token_bytes(token: int) -> bytes:
    """The bytes of one token: perhaps a part of a character only."""
    return bytes(_tokenizer().decode_single_token_bytes(token))


def each_token_bytes(ids: Iterable[int]) -> Iterator[bytes]:
    """The bytes of each token, one by one."""
    return map(_tokenizer().decode_single_token_bytes, ids)


def is_special(token: int) -> bool:
    """Whether `token` is a control token, marker or reserved."""
    return bool(_tokenizer().is_special_token(token))


def special_spellings() -> frozenset[str]:
    """Every control token of the vocabulary as people write it: for classifiers and tests."""
    return frozenset(_tokenizer().special_tokens_set)


def pieces(text: str) -> Iterator[str]:
    """Cut a text into parts of at most `PIECE_CHARACTERS`, always at the same positions.

    A cut is made before a space and an ASCII letter where they are near: there the tokenizer itself would cut,
    so prose has the ids it would have as a whole. Else the cut is at the bound, between two characters.
    """
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = _cut(text, start + PIECE_CHARACTERS)
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _cut(text: str, bound: int) -> int:
    for at in range(bound, bound - _LOOK_BACK_CHARACTERS, -1):
        if text[at] == " " and _is_letter(text[at + 1 : at + 2]):
            return at
    return bound


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalpha()


def _encode_piece(text: str) -> list[int]:
    try:
        return list(_tokenizer().encode_ordinary(text))
    except TypeError as error:  # the tokenizer's word for "not encodable as UTF-8"
        raise ValueError(
            f"text of {len(text)} characters has a lone surrogate; refuse it where it enters"
        ) from error


@functools.cache
def _tokenizer() -> quicktok.Tokenizer:
    tokenizer = quicktok.get_encoding(ENCODING_NAME)
    _check(tokenizer)
    return tokenizer


def _check(tokenizer: quicktok.Tokenizer) -> None:
    found = tokenizer.encode_ordinary(_KNOWN_TEXT)
    if found != _KNOWN_IDS:
        raise VocabularyError(
            f"{ENCODING_NAME} encodes {_KNOWN_TEXT!r} as {found}, not {_KNOWN_IDS}; install quicktok-v1==0.4.0"
        )
    for spelling, marker in MARKERS.items():
        if spelling not in tokenizer.special_tokens_set or tokenizer.encode_single_token(spelling) != marker:
            raise VocabularyError(
                f"{ENCODING_NAME} has no control token {spelling} with id {marker}; install quicktok-v1==0.4.0"
            )
