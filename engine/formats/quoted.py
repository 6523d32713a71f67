"""Reads text that a model had to write as one JSON string, because nothing else kept it from writing something else."""

import codecs
from collections.abc import Sequence

from engine.formats.base import Tokenizer
from engine.formats.json_pieces import StringDecoder
from engine.samplers.base import End, Part, StopReason, Text


class QuotedParser:
    """A `Parser` (`engine.formats.base`)."""

    def __init__(self, tokenizer: Tokenizer, stop_tokens: frozenset[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._stop_tokens = stop_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._string = StringDecoder()
        self._unsaid_tokens = 0

    def feed(self, token: int) -> Sequence[Part]:
        """The next sampled token: the text that is certain now."""
        self._unsaid_tokens += 1
        if token in self._stop_tokens:
            return ()
        text = self._string.take(self._utf8.decode(self._token_bytes(token)))
        if not text:
            return ()
        tokens, self._unsaid_tokens = self._unsaid_tokens, 0
        return (Text(text, tokens),)

    def end(self, reason: StopReason) -> Sequence[Part]:
        """The segment is over. What was not whole is nothing: a limit of length cut it off."""
        return (End(reason, self._unsaid_tokens),)
