"""The item that is being written: its events, from `output_item.added` up to, and without, `output_item.done`.

An answer and a thought are one part of text, a call is its input; of a search for tools only the whole call is shown.
Texts are kept as lists of pieces and joined once.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import orjson

from engine.samplers.base import CallStart
from engine.stages import Tool
from protocol import events
from protocol.dialects import Dialect
from protocol.events import Delta, OutputItemAdded, ServerEvent
from protocol.items import (
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    OutputText,
    Phase,
    Reasoning,
    ReasoningText,
    ToolSearchCall,
)

Emit = Callable[[ServerEvent], None]
Deltas = Callable[[Delta], Callable[[Sequence[str]], None]]
"""As `engine.outbox.Outbox.deltas`."""
NewId = Callable[[str], str]
_ID_PREFIXES: Final = {"function": "fc", "custom": "ctc", "search": "tsc"}


@attrs.define
class SampledCall:
    """A call being sampled."""

    start: CallStart
    tool: Tool
    place: int
    """How many calls of the rollout began before it."""
    pieces: list[str] = attrs.field(factory=list)
    over: bool = False


@attrs.frozen
class _Prose:
    """What differs between an answer and a thought."""

    prefix: str
    delta: Callable[[str, int, int, str], Delta]
    done: Callable[[str, int, int, str], ServerEvent]
    part: Callable[[str], Any]


_PROSE: Final = {
    "message": _Prose("msg", events.OutputTextDelta, events.OutputTextDone, OutputText),
    "reasoning": _Prose("rs", events.ReasoningTextDelta, events.ReasoningTextDone, ReasoningText),
}


class OpenText:
    """A message or a reasoning item being written: one part."""

    def __init__(
        self, kind: str, new_id: NewId, emit: Emit, deltas: Deltas, index: int, dialect: Dialect
    ) -> None:
        self.kind = kind
        self._emit = emit
        self._index = index
        self._dialect = dialect
        self._row = _PROSE[kind]
        self._id = new_id(self._row.prefix)
        self._pieces: list[str] = []
        emit(OutputItemAdded(index, self._item("in_progress", (), None)))
        emit(events.ContentPartAdded(self._id, index, 0, self._row.part("")))
        self._emit_pieces = deltas(self._row.delta(self._id, index, 0, ""))

    def write(self, pieces: Sequence[str]) -> None:
        """Pieces of it, each an event."""
        if "" in pieces:
            pieces = [piece for piece in pieces if piece]
        self._emit_pieces(pieces)
        self._pieces += pieces

    def close(self, status: Any, phase: Phase | None = None) -> Item:
        """It is over; the item."""
        text = "".join(self._pieces)
        part = self._row.part(text)
        self._emit(self._row.done(self._id, self._index, 0, text))
        self._emit(events.ContentPartDone(self._id, self._index, 0, part))
        return self._item(status, (part,), phase)

    def _item(self, status: Any, content: Any, phase: Phase | None) -> Item:
        agent = self._dialect.agent
        if self.kind == "reasoning":
            return Reasoning(self._id, content=content, status=status, agent=agent)
        return Message(
            "assistant", content, self._id, status, phase if self._dialect.marks_phase else None, agent
        )


class OpenCall:
    """A client's call being written; that of a search has no events but its first and last."""

    def __init__(
        self,
        index: int,
        call: SampledCall,
        call_id: str,
        new_id: NewId,
        emit: Emit,
        deltas: Deltas,
        output_index: int,
        dialect: Dialect,
    ) -> None:
        self.index = index
        self._call = call
        self._call_id = call_id
        self._kind = call.tool.kind
        self._id = new_id(_ID_PREFIXES[self._kind])
        self._emit = emit
        self._output_index = output_index
        self._dialect = dialect
        self._pieces: list[str] = []
        delta = (
            events.CustomToolCallInputDelta if self._kind == "custom" else events.FunctionCallArgumentsDelta
        )
        emit(OutputItemAdded(output_index, self._item("in_progress", "")))
        self._emit_pieces = deltas(delta(self._id, output_index, ""))
        for piece in call.pieces:
            self.write(piece)

    def write(self, piece: str) -> None:
        """A piece of its input."""
        if piece:
            if self._kind != "search":
                self._emit_pieces((piece,))
            self._pieces.append(piece)

    def close(self, status: Any, _phase: Phase | None = None) -> Item:
        """It is over; the item."""
        if not self._pieces and self._kind == "function":
            self.write("{}")  # a call without arguments still has some (maximhq/bifrost#7235)
        text = "".join(self._pieces)
        if self._kind == "custom":
            self._emit(events.CustomToolCallInputDone(self._id, self._output_index, text))
        elif self._kind == "function":
            name = self._call.start.name
            self._emit(events.FunctionCallArgumentsDone(self._id, self._output_index, text, name))
        return self._item(status, text)

    def _item(self, status: Any, text: str) -> Item:
        start = self._call.start
        if self._kind == "search":
            arguments = _as_json(text or "{}")
            return ToolSearchCall(
                self._call_id, arguments, self._id, status=status, agent=self._dialect.agent
            )
        cls = CustomToolCall if self._kind == "custom" else FunctionCall
        return cls(self._call_id, start.name, text, self._id, start.namespace, status, self._dialect.agent)


def _as_json(text: str) -> Any:
    """What the model wrote, as JSON; the text itself if it is none, or is nested too deeply to be written again."""
    try:
        value = orjson.loads(text)
        orjson.dumps([[[[[[[[value]]]]]]]])
    except (ValueError, TypeError):
        return text
    return value
