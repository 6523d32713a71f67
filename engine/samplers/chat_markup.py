"""What belongs into fields of its own but stands in the text: endpoints without a parser pass on the model's own markup.

`<tool_call>{"name": …, "arguments": …}</tool_call>` is a call, if a tool of that name is offered and the JSON is whole; else
it stays text. `<think>…</think>` at the very beginning is reasoning. Text that may be the beginning of a mark is held until
that is known, and whitespace until something follows it, so that nothing empty is said between two calls.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import orjson

CALL: Final = ("<tool_call>", "</tool_call>")
THINK: Final = ("<think>", "</think>")
MAX_CALL_CHARACTERS: Final = 1 << 20


@attrs.frozen
class Prose:
    """A piece of text, or of reasoning."""

    text: str
    thought: bool = False


@attrs.frozen
class MarkedCall:
    """A whole call."""

    name: str
    arguments: str


Found = Prose | MarkedCall


class Markup:
    """Reads the text of one answer. `offers` tells whether there is a function of a name."""

    def __init__(self, offers: Callable[[str], bool]) -> None:
        self._offers = offers
        self._held = ""
        """May be the beginning of a mark, or whitespace before one."""
        self._inside: list[str] | None = None
        """Pieces of a call."""
        self._inside_characters = 0
        self._thinking = False
        self._marked = False
        """Was there any mark?"""
        self._fresh = True
        """Nothing was said since the beginning, or the last mark."""

    def feed(self, piece: str) -> Iterator[Found]:
        """What is certain now."""
        rest = self._held + piece
        self._held = ""
        while rest:
            if self._inside is not None:
                found, rest = self._read_call(rest)
            elif self._thinking:
                found, rest = self._read_thought(rest)
            else:
                found, rest = self._read_text(rest)
            yield from found

    def end(self) -> Iterator[Found]:
        """The text is over; or something else follows, a call in its own field, and then perhaps another text."""
        rest, self._held = self._held, ""
        if self._inside is not None:  # some models leave the last mark out
            yield from self._call_or_text("".join(self._inside) + rest, closed=False)
            self._inside = None
        elif self._thinking or (self._fresh and not self._marked):
            yield from [Prose(rest, self._thinking)] if rest else ()
        else:
            yield from self._prose(rest)
        self._marked = self._fresh = True

    def _read_text(self, rest: str) -> tuple[list[Found], str]:
        if self._fresh and not self._marked:
            start = rest.lstrip()
            if start.startswith(THINK[0]):
                self._thinking = self._marked = True
                return [], start[len(THINK[0]) :].lstrip("\n")
            if THINK[0].startswith(start):
                self._held = rest
                return [], ""
        before, mark, after = rest.partition(CALL[0])
        if mark:
            found = self._prose(before)
            self._inside, self._inside_characters = [], 0
            self._marked = self._fresh = True
            return found, after
        certain = _without_beginning(rest, CALL[0])
        if self._fresh and not certain.strip():
            certain = ""
        self._held = rest[len(certain) :]
        return self._prose(certain), ""

    def _read_thought(self, rest: str) -> tuple[list[Found], str]:
        before, mark, after = rest.partition(THINK[1])
        if mark:
            self._thinking = False
            return [Prose(before, thought=True)] if before else [], after
        certain = _without_beginning(rest, THINK[1])
        self._held = rest[len(certain) :]
        return [Prose(certain, thought=True)] if certain else [], ""

    def _read_call(self, rest: str) -> tuple[list[Found], str]:
        assert self._inside is not None
        before, mark, after = rest.partition(CALL[1])
        if mark:
            found = self._call_or_text("".join(self._inside) + before, closed=True)
            self._inside = None
            return found, after
        certain = _without_beginning(rest, CALL[1])
        self._held = rest[len(certain) :]
        self._inside.append(certain)
        self._inside_characters += len(certain)
        if self._inside_characters > MAX_CALL_CHARACTERS:
            text, self._inside = CALL[0] + "".join(self._inside), None
            return self._prose(text), ""
        return [], ""

    def _call_or_text(self, body: str, *, closed: bool) -> list[Found]:
        call = self._call_of(body)
        if call is not None:
            return [call]
        return self._prose(f"{CALL[0]}{body}{CALL[1] if closed else ''}")

    def _call_of(self, body: str) -> MarkedCall | None:
        try:
            call: Any = orjson.loads(body)
            name, arguments = call["name"], call.get("arguments") or {}
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        if not isinstance(name, str) or not self._offers(name):
            return None
        return MarkedCall(name, arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode())

    def _prose(self, text: str) -> list[Found]:
        if self._fresh and self._marked:
            text = text.lstrip()
        if not text or (self._fresh and not text.strip()):
            return []
        self._fresh = False
        return [Prose(text)]


def _without_beginning(text: str, mark: str) -> str:
    """The text without an end that may be the beginning of `mark`."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return text[:-length]
    return text
