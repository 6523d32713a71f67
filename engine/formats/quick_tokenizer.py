"""Vocabularies that the `quicktok` package carries, as tokenizers of a format.

Its `qwen3` composes characters first (NFC), as Qwen's own tokenizer does: what comes out is not what went in, and a file's
name may be another one. So text that is not composed is spelled by our own tokenizer with the same vocabulary.

A long text is cut first (`engine.vocabulary.pieces`), and each piece is encoded by itself.
"""

import functools
import unicodedata
from array import array
from collections.abc import Mapping
from typing import Final

import quicktok

from engine.formats.byte_pairs import BytePairs
from engine.vocabulary import VocabularyError, pieces

NAMES: Final = ("qwen3", "llama3", "o200k_harmony")
_COMPOSES: Final = "qwen3"


class QuickTokenizer:
    """A `Tokenizer` (`engine.formats.base`) over one of `NAMES`."""

    def __init__(self, name: str) -> None:
        """`ValueError`: no such vocabulary."""
        if name not in NAMES:
            raise ValueError(f"no vocabulary {name!r}; there are {', '.join(NAMES)}")
        self._tokenizer = quicktok.get_encoding(name)
        self._composes = name == _COMPOSES
        self._specials = {
            spelling: int(self._tokenizer.encode_single_token(spelling))
            for spelling in self._tokenizer.special_tokens_set
        }
        self._special_ids = frozenset(self._specials.values())
        if any(number < 256 for number in self._special_ids):
            raise VocabularyError(f"{name} has control tokens among its bytes; install quicktok-v1==0.4.0")

    @property
    def specials(self) -> Mapping[str, int]:
        """Every control token: its spelling and id."""
        return self._specials

    def encode(self, text: str) -> "array[int]":
        """The ids of untrusted text: never a control token. `ValueError`: a lone surrogate."""
        ids = array("I")
        for piece in pieces(text):
            ids.extend(self._encode_piece(piece))
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; nothing for a control token, or one that there is not."""
        if token in self._special_ids or not 0 <= token < self._tokenizer.n_vocab:
            return b""
        return bytes(self._tokenizer.decode_single_token_bytes(token))

    def _encode_piece(self, text: str) -> "array[int]":
        if self._composes and not unicodedata.is_normalized("NFC", text):
            return self._exact.encode(text)
        try:
            return array("I", self._tokenizer.encode_ordinary(text))
        except TypeError as error:  # the tokenizer's word for "not encodable as UTF-8"
            raise ValueError(f"text of {len(text)} characters has a lone surrogate") from error

    @functools.cached_property
    def _exact(self) -> BytePairs:
        """The same vocabulary; takes 0.3 s, once."""
        ids = {
            bytes(self._tokenizer.decode_single_token_bytes(token)): token
            for token in range(min(self._special_ids))
        }
        return BytePairs(ids, lambda left, right: ids.get(left + right), self._specials, "qwen2")


@functools.cache
def quick_tokenizer(name: str) -> QuickTokenizer:
    """The tokenizer of that name, loaded once. `ValueError`: no such vocabulary."""
    return QuickTokenizer(name)
