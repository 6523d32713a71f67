"""The item that is being written: its events, from `output_item.added` up to, and without, `output_item.done`.

An answer and a thought are one part of text, a call is its input; of a search for tools only the whole call is shown.
Texts are kept as lists of pieces and joined once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import attrs
import orjson

from engine.outbox import Way, WritePieces
from engine.samplers.base import CallStart
from engine.stages import Tool
from protocol import events
from protocol.dialects import Dialect
from protocol.events import Delta, OutputItemAdded, ServerEvent
from protocol.items import (
    Agent,
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
from protocol.templates import Make

Emit = Callable[[ServerEvent], None]
NewId = Callable[[str], str]


@attrs.frozen
class OneByOne:
    """The plain way: each event is made and emitted."""

    _emit: Emit
    _agent: Agent | None

    def open(self, opening: Make, item_id: str, output_index: int, *texts: str) -> WritePieces:
        """As `Way.open`."""
        first: Any
        *before, first = opening(self._agent, item_id, output_index, *texts)
        for event in before:
            self._emit(event)

        def write(pieces: Sequence[str]) -> None:
            for piece in pieces:
                self._emit(attrs.evolve(first, delta=piece))

        return write

    def emit_made(self, make: Make, item_id: str, output_index: int, *texts: str) -> None:
        """As `Way.emit_made`."""
        for event in make(self._agent, item_id, output_index, *texts):
            self._emit(event)


# --- an answer, a thought -------------------------------------------------------------------------------------------


def _message(
    agent: Agent | None, item_id: str, status: Any, content: tuple[Any, ...], phase: Phase | None = None
) -> Item:
    return Message("assistant", content, item_id, status, phase, agent)


def _reasoning(
    agent: Agent | None, item_id: str, status: Any, content: tuple[Any, ...], _phase: Phase | None = None
) -> Item:
    return Reasoning(item_id, content=content, status=status, agent=agent)


@attrs.frozen(eq=False)
class _Prose:
    """What differs between an answer and a thought."""

    prefix: str
    delta: Callable[[str, int, int, str], Delta]
    done: Callable[[str, int, int, str], ServerEvent]
    part: Callable[[str], Any]
    item: Callable[..., Item]

    def opening(self, agent: Agent | None, item_id: str, index: int) -> tuple[ServerEvent, ...]:
        item = self.item(agent, item_id, "in_progress", ())
        added = OutputItemAdded(index, item), events.ContentPartAdded(item_id, index, 0, self.part(""))
        return (*added, self.delta(item_id, index, 0, ""))

    def closing(self, _agent: Agent | None, item_id: str, index: int, text: str) -> tuple[ServerEvent, ...]:
        done = events.ContentPartDone(item_id, index, 0, self.part(text))
        return self.done(item_id, index, 0, text), done


_PROSE: Final = {
    "message": _Prose("msg", events.OutputTextDelta, events.OutputTextDone, OutputText, _message),
    "reasoning": _Prose("rs", events.ReasoningTextDelta, events.ReasoningTextDone, ReasoningText, _reasoning),
}


class OpenText:
    """A message or a reasoning item being written: one part."""

    def __init__(self, kind: str, new_id: NewId, way: Way, index: int, dialect: Dialect) -> None:
        self.kind = kind
        self._way = way
        self._index = index
        self._dialect = dialect
        self._row = _PROSE[kind]
        self._id = new_id(self._row.prefix)
        self._pieces: list[str] = []
        self._emit_pieces = way.open(self._row.opening, self._id, index)

    def write(self, pieces: Sequence[str]) -> None:
        """Pieces of it, each an event."""
        if "" in pieces:
            pieces = [piece for piece in pieces if piece]
        self._emit_pieces(pieces)
        self._pieces += pieces

    def close(self, status: Any, phase: Phase | None = None) -> Item:
        """It is over; the item."""
        text, row = "".join(self._pieces), self._row
        self._way.emit_made(row.closing, self._id, self._index, text)
        shown = phase if self._dialect.marks_phase else None
        return row.item(self._dialect.agent, self._id, status, (row.part(text),), shown)


# --- a client's call ------------------------------------------------------------------------------------------------


@attrs.define
class SampledCall:
    """A call being sampled."""

    start: CallStart
    tool: Tool
    place: int
    """How many calls of the rollout began before it."""
    pieces: list[str] = attrs.field(factory=list)
    over: bool = False


@attrs.frozen(eq=False)
class _Call:
    """What differs between the calls of functions and of custom tools."""

    prefix: str
    item: Callable[..., Item]
    delta: Callable[[str, int, str], Delta]
    done: Callable[[str, int, str, str], ServerEvent]

    def opening(
        self, agent: Agent | None, item_id: str, index: int, call_id: str, name: str, *namespace: str
    ) -> tuple[ServerEvent, ...]:
        item = self.item(call_id, name, "", item_id, *(namespace or (None,)), "in_progress", agent)
        return OutputItemAdded(index, item), self.delta(item_id, index, "")

    def closing(
        self, _agent: Agent | None, item_id: str, index: int, text: str, name: str
    ) -> tuple[ServerEvent, ...]:
        return (self.done(item_id, index, text, name),)


def _custom_done(item_id: str, index: int, text: str, _name: str) -> ServerEvent:
    return events.CustomToolCallInputDone(item_id, index, text)


_CALLS: Final = {
    "function": _Call(
        "fc", FunctionCall, events.FunctionCallArgumentsDelta, events.FunctionCallArgumentsDone
    ),
    "custom": _Call("ctc", CustomToolCall, events.CustomToolCallInputDelta, _custom_done),
}


MAKES: Final[Mapping[str, tuple[Make, Collection[int]]]] = {
    **{f"{kind} opening": (row.opening, {0}) for kind, row in _PROSE.items()},
    **{f"{kind} closing": (row.closing, {1}) for kind, row in _PROSE.items()},
    **{f"{kind} call opening": (row.opening, {2, 3}) for kind, row in _CALLS.items()},
    **{f"{kind} call closing": (row.closing, {2}) for kind, row in _CALLS.items()},
}
"""All that items open and close with, and how many texts each takes."""


class OpenCall:
    """A client's call being written; that of a search has no events but its first and last."""

    def __init__(
        self,
        index: int,
        call: SampledCall,
        call_id: str,
        new_id: NewId,
        emit: Emit,
        way: Way,
        output_index: int,
        dialect: Dialect,
    ) -> None:
        self.index = index
        self._start = call.start
        self._call_id = call_id
        self._row = _CALLS.get(call.tool.kind)
        self._id = new_id(self._row.prefix if self._row is not None else "tsc")
        self._way = way
        self._output_index = output_index
        self._agent = dialect.agent
        self._pieces: list[str] = []
        if self._row is None:
            emit(OutputItemAdded(output_index, self._item("in_progress", "")))
        else:
            name = (call.start.name, *([call.start.namespace] if call.start.namespace is not None else ()))
            self._emit_pieces = way.open(self._row.opening, self._id, output_index, call_id, *name)
        for piece in call.pieces:
            self.write(piece)

    def write(self, piece: str) -> None:
        """A piece of its input."""
        if piece:
            if self._row is not None:
                self._emit_pieces((piece,))
            self._pieces.append(piece)

    def close(self, status: Any, _phase: Phase | None = None) -> Item:
        """It is over; the item."""
        if not self._pieces and self._row is _CALLS["function"]:
            self.write("{}")  # a call without arguments still has some (maximhq/bifrost#7235)
        text = "".join(self._pieces)
        if self._row is not None:
            self._way.emit_made(self._row.closing, self._id, self._output_index, text, self._start.name)
        return self._item(status, text)

    def _item(self, status: Any, text: str) -> Item:
        start = self._start
        if self._row is None:
            arguments = _as_json(text or "{}")
            return ToolSearchCall(self._call_id, arguments, self._id, status=status, agent=self._agent)
        return self._row.item(self._call_id, start.name, text, self._id, start.namespace, status, self._agent)


def _as_json(text: str) -> Any:
    """What the model wrote, as JSON; the text itself if it is none, or is nested too deeply to be written again."""
    try:
        value = orjson.loads(text)
        orjson.dumps([[[[[[[[value]]]]]]]])
    except (ValueError, TypeError):
        return text
    return value
