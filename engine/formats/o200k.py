"""The engine's own vocabulary, o200k_harmony, as the tokenizer of a format."""

import functools
from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from engine import vocabulary

FIRST_SPECIAL: Final = 199998
"""Every id from here on is a control token, or none."""
END_OF_VOCABULARY: Final = 201088


class O200k:
    """`engine.formats.base.Tokenizer` over `engine.vocabulary`."""

    def encode(self, text: str) -> "array[int]":
        """The ids of untrusted text: never a control token. `ValueError`: a lone surrogate."""
        return array("I", vocabulary.encode(text))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; nothing for a control token, or for an id that stands for none."""
        return vocabulary.token_bytes(token) if token < FIRST_SPECIAL else b""

    @property
    def specials(self) -> Mapping[str, int]:
        """Every control token: its spelling and id. Two spellings lead to the end of prompt."""
        return _specials()


@functools.cache
def _specials() -> Mapping[str, int]:
    by_id = {vocabulary.decode([token]): token for token in range(FIRST_SPECIAL, END_OF_VOCABULARY)}
    reserved = {
        spelling: int(spelling.rpartition("_")[2].removesuffix("|>"))
        for spelling in vocabulary.special_spellings() - by_id.keys()
    }
    return MappingProxyType(by_id | reserved)
