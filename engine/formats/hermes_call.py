"""One call of the Hermes kind while it is written: its name, and its arguments on their way to the client."""

import orjson

from engine.formats.json_pieces import MalformedError, ObjectReader, Piece, StringDecoder, read_string
from engine.formats.shown_tools import INPUT_KEY, ShownTool, ShownTools
from engine.samplers.base import CallInput, CallStart, Part


class HermesCall:
    """One call while it is written."""

    def __init__(self, index: int, tools: ShownTools) -> None:
        self.index = index
        self.raw = ""
        """All of it, as long as it may turn out to be text."""
        self.broken = False
        self._tools = tools
        self._object = ObjectReader()
        self._name = ""
        self._tool: ShownTool | None = None
        self._input: _Input | None = None
        self._waiting = ""
        """Arguments that came before the name."""
        self._arguments_over = False
        self._said: list[Part] = []

    @property
    def started(self) -> bool:
        """Is its name known?"""
        return self._tool is not None

    @property
    def whole(self) -> bool:
        """Has the object ended?"""
        return self._object.over

    def take(self, text: str) -> int:
        """Read on; returns how much of `text` belongs to the call. `MalformedError`."""
        if not self.started:
            self.raw += text
        pieces, used = self._object.take(text)
        for piece in pieces:
            self._take_piece(piece)
        if self.whole and not self.started:
            raise MalformedError("a call without a name")
        return used

    def said(self) -> list[Part]:
        """The parts since the last time."""
        said, self._said = self._said, []
        return said

    def finished(self) -> list[Part]:
        """What belongs to it and had to wait for its end."""
        assert self._input is not None, "only of one that has started"
        rest = self._input.end()
        return [CallInput(self.index, rest, 0)] if rest else []

    def check(self) -> None:
        """`ValueError`: the arguments are no JSON object."""
        assert self._input is not None, "only of one that has started"
        self._input.check()

    def _take_piece(self, piece: Piece) -> None:
        if piece.key == "name" and not self.started:
            self._name += piece.text
            if piece.over:
                self._start(read_string(self._name))
        elif piece.key == "arguments" and not self._arguments_over:
            self._arguments_over = piece.over
            if self._input is None:
                self._waiting += piece.text
            else:
                self._write(piece.text)

    def _start(self, shown: str) -> None:
        if not shown:
            raise MalformedError("a call without a name")
        self._tool = self._tools.find(shown)
        self._input = _Input(custom=self._tool.kind == "custom")
        self._said.append(CallStart(self.index, self._tool.name, self._tool.namespace, tokens=0))
        self.raw = ""
        self._write(self._waiting)

    def _write(self, text: str) -> None:
        assert self._input is not None, "only of one that has started"
        piece = self._input.take(text)
        if piece:
            self._said.append(CallInput(self.index, piece, 0))


class _Input:
    """The arguments of one call on their way to the client.

    A function gets them as they were written; if that is a string with JSON in it, what is in it.
    A custom tool gets the text of the member `input`; if there is none, what was written.
    """

    def __init__(self, *, custom: bool) -> None:
        self._custom = custom
        self._object: ObjectReader | None = None
        self._string: StringDecoder | None = None
        self._raw: list[str] = []
        self._begun = self._said = False

    def take(self, text: str) -> str:
        """What the client may have now."""
        if not text:
            return ""
        self._raw.append(text)
        if not self._begun:
            self._begun = True
            if text[0] == '"':
                self._string = StringDecoder()
            elif self._custom and text[0] == "{":
                self._object = ObjectReader()
        written = self._written(text)
        self._said = self._said or bool(written)
        return written

    def _written(self, text: str) -> str:
        if self._object is not None:
            return self._member(text)
        if self._string is not None:
            return self._string.take(text)
        return text if self._raw[0][0] in "{[" and not self._custom else ""

    def _member(self, text: str) -> str:
        assert self._object is not None, "the caller asks"
        try:
            pieces, _ = self._object.take(text)
        except MalformedError:
            return ""
        if self._string is None:
            self._string = StringDecoder()
        return "".join(self._string.take(piece.text) for piece in pieces if piece.key == INPUT_KEY)

    def end(self) -> str:
        """What had to wait for the end."""
        if self._said or (self._string is not None and not self._custom):
            return ""
        raw = "".join(self._raw)
        if self._custom:
            return "" if self._is_empty_member(raw) else raw
        return "{}" if raw in ("", "null") else raw

    def _is_empty_member(self, raw: str) -> bool:
        try:
            value = orjson.loads(raw)
        except ValueError:
            return False
        return value in ("", None) or (isinstance(value, dict) and value.get(INPUT_KEY) == "")

    def check(self) -> None:
        """`ValueError`: it is no JSON object."""
        raw = "".join(self._raw)
        try:
            value = orjson.loads(raw) if raw else {}
            if isinstance(value, str) and not self._custom:
                value = orjson.loads(value)
        except ValueError as error:
            raise ValueError(f"malformed tool call: its arguments are no JSON ({error})") from error
        if (
            value is not None
            and not isinstance(value, dict)
            and not (self._custom and isinstance(value, str))
        ):
            raise ValueError(f"malformed tool call: its arguments are {raw[:40]!r}, which is no object")
