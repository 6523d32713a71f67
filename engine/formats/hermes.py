"""Reads what a model of the Hermes kind writes, token by token: text, thoughts, and calls as JSON between two marks.

    text <tool_call>
    {"name": "read", "arguments": {"path": "a.py"}}
    </tool_call>

A mark is a control token where the vocabulary has it, and then its spelling is only text; else it is text to be found.
What may become a mark, half a character, or the white space around a call is held until it is known.
Arguments leave as they come, in the model's own spelling, as soon as the call's name is known.

Malformed calls are a `ValueError` if `strict`. Otherwise one without a name is text, and one with broken arguments goes
to the client as it is, who validates them anyway.
"""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import attrs

from engine.formats.base import Tokenizer
from engine.formats.hermes_call import HermesCall
from engine.formats.json_pieces import MalformedError
from engine.formats.shown_tools import ShownTools
from engine.samplers.base import CallEnd, End, Part, StopReason, Text, Thought

CALL_OPEN: Final = "<tool_call>"
CALL_CLOSE: Final = "</tool_call>"
THINK_OPEN: Final = "<think>"
THINK_CLOSE: Final = "</think>"

_MAX_HELD_WHITESPACE: Final = 256

State = Literal["text", "thought", "call", "after call"]


@attrs.frozen(kw_only=True)
class Reading:
    """How a segment is to be read."""

    tools: ShownTools
    calls: bool = True
    """Are marks of calls read as such?"""
    thinks: bool = False
    strict: bool = False
    in_call: bool = False
    """The opening mark was written in the model's place."""


class HermesParser:
    """A `Parser` (`engine.formats.base`)."""

    def __init__(self, tokenizer: Tokenizer, stop_tokens: frozenset[int], reading: Reading) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._stop_tokens = stop_tokens
        self._reading = reading
        self._specials = tokenizer.specials
        self._spellings = {number: mark for mark, number in self._specials.items()}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._state: State = "text"
        self._held = ""
        self._after_call = False
        """The white space after a call is no text."""
        self._calls = 0
        self._call: HermesCall | None = None
        self._unsaid_tokens = 0
        self._parts: list[Part] = []
        self._readers: Mapping[State, Callable[[], bool]] = {
            "text": self._read_text,
            "thought": self._read_thought,
            "call": self._read_call,
            "after call": self._read_after_call,
        }
        if reading.in_call:
            self._open_call()

    def feed(self, token: int) -> Sequence[Part]:
        """The next sampled token: the parts that are certain now."""
        self._unsaid_tokens += 1
        if token in self._stop_tokens:
            return ()
        mark = self._spellings.get(token)
        if mark is None:
            self._read(self._utf8.decode(self._token_bytes(token)))
        else:
            self._end_character()
            self._take_mark(mark)
        return self._said()

    def end(self, reason: StopReason) -> Sequence[Part]:
        """The segment is over: what was still held, then `End`. `ValueError`: a malformed call, if strict."""
        self._end_character()
        if self._call is not None:
            self._end_call(cut=reason == "length")
        if self._held:
            self._emit(Thought(self._held, 0) if self._state == "thought" else Text(self._held, 0))
        self._emit(End(reason, 0))
        return self._said()

    def _said(self) -> Sequence[Part]:
        """The parts, the first of them standing for all tokens since the last ones."""
        if not self._parts:
            return ()
        parts, self._parts = self._parts, []
        parts[0] = attrs.evolve(parts[0], tokens=self._unsaid_tokens)
        self._unsaid_tokens = 0
        return parts

    def _emit(self, part: Part) -> None:
        self._parts.append(part)

    # --- text ------------------------------------------------------------------------------------------------------

    def _end_character(self) -> None:
        """A character that was begun and will not be finished."""
        self._read(self._utf8.decode(b"", final=True))

    def _read(self, text: str) -> None:
        if text:
            self._held += text
            while self._held and self._readers[self._state]():
                pass

    def _take_mark(self, mark: str) -> None:
        """A control token: one of ours, or one that means nothing here and is not shown."""
        if self._call is not None:
            if mark == CALL_CLOSE:
                self._end_call()
            elif mark == CALL_OPEN:
                self._end_call()
                self._open_call()
            return
        if mark == THINK_CLOSE and self._state == "thought":
            self._leave_thought(self._held)
        elif mark in self._openings():
            self._open(mark)

    def _openings(self) -> tuple[str, ...]:
        calls = (CALL_OPEN,) if self._reading.calls else ()
        return (*calls, THINK_OPEN) if self._reading.thinks else calls

    def _open(self, mark: str) -> None:
        self._write(self._held.rstrip())
        self._held = ""
        if mark == CALL_OPEN:
            self._open_call()
        else:
            self._state = "thought"

    def _write(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            self._emit(Text(text, 0))

    def _spelled(self, marks: Sequence[str]) -> Sequence[str]:
        """Those that this vocabulary has no control token for."""
        return [mark for mark in marks if mark not in self._specials]

    def _read_text(self) -> bool:
        marks = self._spelled(self._openings())
        found = min(((at, mark) for mark in marks if (at := self._held.find(mark)) >= 0), default=None)
        if found is not None:
            at, mark = found
            rest = self._held[at + len(mark) :]
            self._held = self._held[:at]
            self._open(mark)
            self._held = rest
            return True
        sure = len(self._held) - _held_back(self._held, marks)
        self._write(self._held[:sure])
        self._held = self._held[sure:]
        return False

    def _read_thought(self) -> bool:
        marks = self._spelled((THINK_CLOSE,))
        at = self._held.find(THINK_CLOSE) if marks else -1
        if at >= 0:
            rest = self._held[at + len(THINK_CLOSE) :]
            self._leave_thought(self._held[:at])
            self._held = rest
            return True
        sure = len(self._held) - _held_back(self._held, marks)
        self._think(self._held[:sure])
        self._held = self._held[sure:]
        return False

    def _leave_thought(self, rest: str) -> None:
        self._think(rest.rstrip())
        self._held, self._state, self._after_call = "", "text", True

    def _think(self, text: str) -> None:
        if text:
            self._emit(Thought(text, 0))

    # --- calls -----------------------------------------------------------------------------------------------------

    def _open_call(self) -> None:
        self._state = "call"
        self._call = HermesCall(self._calls, self._reading.tools)

    def _read_call(self) -> bool:
        call = self._call
        assert call is not None, "the state says so"
        text, self._held = self._held, ""
        try:
            used = call.take(text)
        except MalformedError as error:
            self._complain(str(error))
            if not call.started:
                self._give_up(call.raw)
                return True
            call.broken = True
            used = len(text)
        self._parts += call.said()
        if call.whole or call.broken:
            self._state = "after call"
        self._held = text[used:]
        return True

    def _read_after_call(self) -> bool:
        """Between the object and the closing mark."""
        call = self._call
        assert call is not None, "the state says so"
        if call.broken:
            return self._skip_broken()
        rest = self._held.lstrip()
        marks = self._spelled((CALL_CLOSE,))
        if marks and rest.startswith(CALL_CLOSE):
            self._end_call()
            self._held = rest.removeprefix(CALL_CLOSE)
            return True
        if not rest or any(
            mark.startswith(rest) for mark in self._spelled((CALL_CLOSE, CALL_OPEN)) if mark != rest
        ):
            self._held = rest
            return False
        if not rest.startswith(CALL_OPEN):
            self._complain(f"{rest[:20]!r} after a call where {CALL_CLOSE} should be")
        self._end_call()
        self._held = rest
        return True

    def _skip_broken(self) -> bool:
        at = self._held.find(CALL_CLOSE) if self._spelled((CALL_CLOSE,)) else -1
        if at < 0:
            self._held = self._held[-len(CALL_CLOSE) :]
            return False
        self._end_call()
        self._held = self._held[at + len(CALL_CLOSE) :]
        return True

    def _end_call(self, *, cut: bool = False) -> None:
        """The call is over, whole or not; `cut`: a limit of length ended it, which is nobody's fault."""
        call, self._call = self._call, None
        assert call is not None, "the callers ask"
        self._state, self._held, self._after_call = "text", "", True
        if cut and not call.whole:
            self._parts += call.said()
            return
        if not call.started:
            self._complain("a call without a name")
            self._write(CALL_OPEN + call.raw)
            return
        if not call.whole and not call.broken:
            self._complain("a call that ends in the middle")
        elif self._reading.strict:
            call.check()
        self._parts += call.finished()
        self._emit(CallEnd(call.index, 0))
        self._calls += 1

    def _give_up(self, raw: str) -> None:
        """What looked like a call is text."""
        self._call, self._state = None, "text"
        self._write(CALL_OPEN + raw)

    def _complain(self, fault: str) -> None:
        if self._reading.strict:
            raise ValueError(f"malformed tool call: {fault}")


def _held_back(text: str, marks: Sequence[str]) -> int:
    """How many characters of the end may belong to a mark that is not whole, or to the white space before one."""
    begun = max(
        (size for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size])), default=0
    )
    white = len(text) - begun - len(text[: len(text) - begun].rstrip())
    return begun + white if white <= _MAX_HELD_WHITESPACE else begun
