"""JSON that arrives in pieces, taken apart without being parsed: whose value a piece belongs to, and where it ends.

A model's arguments go to the client as the model wrote them, piece by piece; to re-serialise them would be to wait for
their end and to change them. So this only follows brackets and quotes; whether a value is JSON is for others to say.
"""

import json
import re
from typing import Final

import attrs

WHITESPACE: Final = " \t\r\n"
_IN_STRING: Final = re.compile(r'["\\]')
_SCALAR_END: Final = re.compile(r"[,}\] \t\r\n]")
_DECODABLE: Final = re.compile(
    r'(?:[^\\"]+|\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*"
)
_HALF: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_MAYBE_WHOLE: Final = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]{0,2})?)?)?)?")
_UNFINISHED: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")


class MalformedError(ValueError):
    """It is no JSON object; the message says what stands where something else should."""


class ValueEnd:
    """Finds where one JSON value ends."""

    __slots__ = ("_depth", "_escaped", "_scalar", "_string", "over")

    def __init__(self) -> None:
        self._depth = 0
        self._string = self._escaped = self._scalar = False
        self.over = False

    def take(self, text: str, at: int) -> int:
        """Where the part of `text` that belongs to the value, from `at` on, ends; `over` if the value does."""
        while at < len(text) and not self.over:
            at = self._take_string(text, at) if self._string else self._take_other(text, at)
        return at

    def _take_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return len(text)
        if found.group() == "\\":
            self._escaped = True
        else:
            self._string = False
            self.over = self._depth == 0
        return found.end()

    def _take_other(self, text: str, at: int) -> int:
        char = text[at]
        if self._scalar:
            found = _SCALAR_END.search(text, at)
            self.over = found is not None
            return len(text) if found is None else found.start()
        if char == '"':
            self._string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth < 0:
                raise MalformedError(f"{char!r} where a value should be")
            self.over = self._depth == 0
        else:
            self._scalar = self._depth == 0 and char not in WHITESPACE
        return at + 1


@attrs.frozen
class Piece:
    """A piece of the value of one member, as it was written."""

    key: str
    text: str
    over: bool = False


class ObjectReader:
    """Reads one JSON object in pieces."""

    __slots__ = ("_expects", "_key", "_value", "over")

    def __init__(self) -> None:
        self.over = False
        self._expects = "{"
        self._key = ""
        self._value = ValueEnd()

    def take(self, text: str) -> tuple[list[Piece], int]:
        """The pieces of values in `text`, and where the object ends in it. `MalformedError`."""
        pieces: list[Piece] = []
        at = 0
        while at < len(text) and not self.over:
            if self._expects in ("key", "value"):
                at = self._take_value(text, at, pieces)
            elif text[at] in WHITESPACE:
                at += 1
            else:
                at = self._take_mark(text[at], at)
        return pieces, at

    def _take_value(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._value.take(text, at)
        part = text[at:end]
        if self._expects == "key":
            self._key += part
            if self._value.over:
                self._key = read_string(self._key)
                self._expects = ":"
        else:
            pieces.append(Piece(self._key, part, self._value.over))
            if self._value.over:
                self._expects = ","
        return end

    def _take_mark(self, char: str, at: int) -> int:
        expected = self._expects
        if char == "}" and expected in (",", "first key"):
            self.over = True
        elif char == expected:
            self._expects = {"{": "first key", ":": "new value", ",": "new key"}[char]
        elif char == '"' and expected in ("first key", "new key"):
            self._expects, self._key, self._value = "key", "", ValueEnd()
            return at
        elif expected == "new value":
            self._expects, self._value = "value", ValueEnd()
            return at
        else:
            raise MalformedError(f"{char!r} where {expected!r} should be")
        return at + 1


class StringDecoder:
    """The text of one JSON string that arrives in pieces; half an escape is held until it is whole."""

    __slots__ = ("_begun", "_held")

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def take(self, piece: str) -> str:
        """What is certain now. The quotes are part of the pieces; what follows the closing one is ignored."""
        self._held += piece if self._begun else piece.removeprefix('"')
        self._begun = self._begun or bool(piece)
        text = []
        while True:
            found = _DECODABLE.match(self._held)
            end = found.end() if found else 0
            text.append(json.loads(f'"{self._held[:end]}"', strict=False))
            self._held = self._held[end:]
            if not self._drop_malformed(text):
                return whole_characters("".join(text))

    def _drop_malformed(self, text: list[str]) -> bool:
        """Step over an escape that means nothing; False: what is held is half a one, or the end."""
        held = self._held
        if not held or held[0] == '"' or _UNFINISHED.fullmatch(held):
            return False
        half = _HALF.match(held)
        if half is None:
            text.append(held[1])  # `\x`: the backslash is superfluous
            self._held = held[2:]
            return True
        if _MAYBE_WHOLE.fullmatch(held, half.end()):
            return False
        text.append("\ufffd")
        self._held = held[half.end() :]
        return True


def read_string(text: str) -> str:
    """The text of one whole JSON string. `MalformedError`."""
    try:
        value = json.loads(text, strict=False)
    except ValueError as error:
        raise MalformedError(f"{text[:100]!r} where a string should be") from error
    if not isinstance(value, str):
        raise MalformedError(f"{text[:100]!r} where a string should be")
    return whole_characters(value)


def whole_characters(text: str) -> str:
    """The text with a replacement for each half of a character that stands alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
