"""ChatML with tool calls in the manner of Hermes and Qwen.

    <|im_start|>system ⏎ instructions, tools <|im_end|> ⏎
    <|im_start|>user ⏎ text <|im_end|> ⏎
    <|im_start|>assistant ⏎ text ⏎ <tool_call> ⏎ {"name": …, "arguments": …} ⏎ </tool_call> <|im_end|> ⏎
    <|im_start|>user ⏎ <tool_response> ⏎ output ⏎ </tool_response> <|im_end|> ⏎

Items that follow each other make one turn where a model would write or read one: a text with its calls, and outputs.
A turn is never divided between two calls of `items`, because a segment of the model lies between two such turns.

Marks are ids where the vocabulary has them, else text; `<|im_start|>` and `<|im_end|>` are always ids.
The head of a turn is encoded by itself, so what the model samples after it is spelled as a rendering would spell it.
Outputs come in the order of their calls and have neither id nor name here, so these cannot forge anything.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import orjson

from engine.formats.base import Constraint, Parser, Request, Tokenizer
from engine.formats.hermes import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN, HermesParser, Reading
from engine.formats.quoted import QuotedParser
from engine.formats.schemas import QUOTED_TEXT, calls_schema, text_schema
from engine.formats.shown_tools import INPUT_KEY, ShownTool, ShownTools, must_call
from protocol.items import (
    OUTPUTS,
    Content,
    CustomToolCall,
    FunctionCall,
    Item,
    ItemReference,
    McpCall,
    Message,
    OpaquePart,
    Reasoning,
    Refusal,
    ToolSearchCall,
)

TURN_OPEN: Final = "<|im_start|>"
TURN_CLOSE: Final = "<|im_end|>"
RESPONSE_OPEN: Final = "<tool_response>"
RESPONSE_CLOSE: Final = "</tool_response>"

_TOOLS_HEAD: Final = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""
_TOOLS_TAIL: Final = """
</tools>

For each function call, return a json object with function name and arguments within """
_CALL_EXAMPLE: Final = '\n{"name": <function-name>, "arguments": <args-json-object>}\n'


class _Seam:
    """Where text on both sides is encoded by itself."""


SEAM: Final = _Seam()
Layout = Iterator[int | str | _Seam]


@attrs.frozen(kw_only=True)
class ChatMLOptions:
    """What differs between models that speak ChatML."""

    system: str | None = None
    """The system message when the client has no instructions; None: there is none then."""
    thinks: bool = False
    """Does it write thoughts between `<think>` and `</think>`?"""
    forced_calls: int = 0
    """The first so many segments after a user message must be a call, if there are tools, and the next must be none.

    Small models call only when they are made to, and then go on calling for ever. 0 = whoever calls does so freely."""
    strict: bool = False
    """Is a malformed call an error? Otherwise it is text, or goes to the client as it is."""


class ChatML:
    """A `Format` (`engine.formats.base`). `ValueError`: the vocabulary has no marks for turns."""

    name = "chatml"
    stored_as: Mapping[int, int] = {}  # a mapping nobody writes to

    def __init__(self, tokenizer: Tokenizer, options: ChatMLOptions | None = None) -> None:
        self._tokenizer = tokenizer
        self._options = options or ChatMLOptions()
        specials = tokenizer.specials
        missing = [mark for mark in (TURN_OPEN, TURN_CLOSE) if mark not in specials]
        if missing:
            raise ValueError(
                f"the vocabulary has no control token {missing[0]}: this model does not speak ChatML"
            )
        self._open, self._close = specials[TURN_OPEN], specials[TURN_CLOSE]
        end_of_text = specials.get("<|endoftext|>")
        self.stop_tokens = frozenset({self._close} | ({end_of_text} if end_of_text is not None else set()))

    # --- the model's words -------------------------------------------------------------------------------------------

    def constraint(self, request: Request, said_items: int) -> Constraint | None:
        """A call where one is forced or asked for, else the form that the answer must have."""
        tools = ShownTools.of(request.tools).permitted(request.tool_choice)
        wanted = max(self._options.forced_calls, int(must_call(request.tool_choice)))
        if len(tools) and said_items < wanted:
            head, tail = (self._mark(CALL_OPEN), "\n"), ("\n", self._mark(CALL_CLOSE))
            return Constraint(schema=calls_schema(tools), lead=self._ids(head), tail=self._ids(tail))
        schema = text_schema(request.text_format)
        if schema is None and len(tools) and self._options.forced_calls:
            schema = QUOTED_TEXT
        return None if schema is None else Constraint(schema=schema)

    def parser(self, request: Request, constraint: Constraint | None) -> Parser:
        """A reader for one segment."""
        if constraint is not None and constraint.schema is QUOTED_TEXT:
            return QuotedParser(self._tokenizer, self.stop_tokens)
        reading = Reading(
            tools=ShownTools.of(request.tools),
            calls=request.tool_choice != "none" and request.text_format is None,
            thinks=self._options.thinks,
            strict=self._options.strict,
            in_call=constraint is not None and len(constraint.lead) > 0,
        )
        return HermesParser(self._tokenizer, self.stop_tokens, reading)

    def opening(self, request: Request) -> "array[int]":  # noqa: ARG002  # the same for all
        """What stands before the model's own words."""
        return self._ids(self._head("assistant"))

    def closing(self, last_token: int | None) -> "array[int]":
        """What makes the model's turn whole after its last sampled token; None = it was cut off before a stop token."""
        return self._ids(("\n",) if last_token == self._close else (self._close, "\n"))

    # --- everybody else's --------------------------------------------------------------------------------------------

    def preamble(self, request: Request) -> "array[int]":
        """The system message: instructions and tools. Nothing if there is neither."""
        tools = ShownTools.of(request.tools) if request.tool_choice != "none" else ShownTools({})
        system = self._options.system if request.instructions is None else request.instructions
        if not system and not len(tools):
            return array("I")
        return self._ids(self._turn("system", self._system(system or "", tools)))

    def items(self, items: Sequence[Item], before: Sequence[Item]) -> "array[int]":  # noqa: ARG002  # outputs name no call
        """These items, in order. `ValueError`: an unresolved reference, or a lone surrogate."""
        return self._ids(piece for turn in _turns(items) for piece in self._layout(turn))

    def kept_before(self, before: Sequence[Item], items: Sequence[Item]) -> int:  # noqa: ARG002  # nothing is forgotten
        """All stay as rendered."""
        return len(before)

    def _layout(self, turn: Sequence[Item]) -> Layout:
        first = turn[0]
        if _said_by_model(first):
            return self._turn("assistant", self._said(turn))
        if isinstance(first, Message):
            role = "system" if first.role == "developer" else first.role
            return self._turn(role, (_text(first.content),))
        if isinstance(first, ItemReference):
            raise ValueError(  # noqa: TRY004  # a right type, at the wrong time
                f"the item {first.id!r} is a reference; it must be resolved before"
            )
        if _is_output(first):
            return self._turn("user", self._outputs(turn))
        document = orjson.dumps(getattr(first, "raw", {}))
        return self._turn("user", (f"[{first.type}]\n", document.decode()))

    def _said(self, turn: Sequence[Item]) -> Layout:
        begun = False
        for item in turn:
            if isinstance(item, Reasoning):
                if self._options.thinks:
                    thought = _text(item.content or item.summary)
                    yield from (self._mark(THINK_OPEN), "\n", thought, "\n", self._mark(THINK_CLOSE), "\n\n")
            elif isinstance(item, Message):
                yield _text(item.content)
                begun = True
            else:
                yield "\n" if begun else ""
                yield from (self._mark(CALL_OPEN), "\n", self._call(item), "\n", self._mark(CALL_CLOSE))
                begun = True

    def _call(self, call: Item) -> str:
        if isinstance(call, McpCall):
            name, written = ShownTools({}).shown_name(call.name, call.server_label), call.arguments
        elif isinstance(call, CustomToolCall):
            name = ShownTools({}).shown_name(call.name, call.namespace)
            written = _json({INPUT_KEY: call.input})
        elif isinstance(call, ToolSearchCall):
            name, written = call.name, call.input
        else:
            assert isinstance(call, FunctionCall), "the kinds of calls there are"
            name, written = ShownTools({}).shown_name(call.name, call.namespace), call.arguments
        return f'{{"name": {_json(name)}, "arguments": {written or "{}"}}}'

    def _outputs(self, turn: Sequence[Item]) -> Layout:
        for place, item in enumerate(turn):
            yield "\n" if place else ""
            yield from (self._mark(RESPONSE_OPEN), "\n", _output(item), "\n", self._mark(RESPONSE_CLOSE))

    def _system(self, system: str, tools: ShownTools) -> Layout:
        yield system
        if not len(tools):
            return
        yield "\n\n" if system else ""
        yield _TOOLS_HEAD
        for tool in tools:
            yield "\n" + _json(_definition(tool))
        yield _TOOLS_TAIL
        yield from (self._mark(CALL_OPEN), self._mark(CALL_CLOSE), " XML tags:\n")
        yield from (self._mark(CALL_OPEN), _CALL_EXAMPLE, self._mark(CALL_CLOSE))

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _head(self, role: str) -> Layout:
        yield from (self._open, f"{role}\n", SEAM)

    def _turn(self, role: str, content: Iterable[int | str | _Seam]) -> Layout:
        yield from self._head(role)
        yield from content
        yield from (self._close, "\n")

    def _mark(self, spelling: str) -> int | str:
        return self._tokenizer.specials.get(spelling, spelling)

    def _ids(self, layout: Iterable[int | str | _Seam]) -> "array[int]":
        """Text that stands together is encoded as a whole."""
        ids, text = array("I"), list[str]()
        for piece in layout:
            if isinstance(piece, str):
                text.append(piece)
                continue
            ids.extend(self._tokenizer.encode("".join(text)))
            text.clear()
            if isinstance(piece, int):
                ids.append(piece)
        ids.extend(self._tokenizer.encode("".join(text)))
        return ids


# --- items as turns ----------------------------------------------------------------------------------------------------


def _turns(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Those that make one turn together; a hosted call is one of the model's turns, and its output another."""
    turn: list[Item] = []
    for item in (part for whole in items for part in _parted(whole)):
        if turn and not _joins(turn[-1], item):
            yield turn
            turn = []
        turn.append(item)
    if turn:
        yield turn


def _parted(item: Item) -> tuple[Item, ...]:
    if not isinstance(item, McpCall):
        return (item,)
    return (
        attrs.evolve(item, output=None, error=None),
        attrs.evolve(item, output=item.output or item.error or ""),
    )


def _joins(before: Item, item: Item) -> bool:
    if _is_output(before) or _is_output(item):
        return _is_output(before) and _is_output(item)
    if not (_said_by_model(before) and _said_by_model(item)):
        return False
    return isinstance(before, Reasoning) or not isinstance(item, Message | Reasoning)


def _said_by_model(item: Item) -> bool:
    if isinstance(item, Message):
        return item.role == "assistant"
    return isinstance(item, Reasoning | FunctionCall | CustomToolCall | ToolSearchCall) or (
        isinstance(item, McpCall) and item.output is None
    )


def _is_output(item: Item) -> bool:
    return isinstance(item, OUTPUTS) or (isinstance(item, McpCall) and item.output is not None)


def _output(item: Any) -> str:
    output = item.output
    return output if isinstance(output, str) else _text(output)


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        part.refusal
        if isinstance(part, Refusal)
        else f"[{part.type or 'unknown'}]"
        if isinstance(part, OpaquePart)
        else part.text
        for part in content
    )


def _definition(tool: ShownTool) -> Mapping[str, Any]:
    function = {"name": tool.shown, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _json(value: Any) -> str:
    """JSON as those models were trained to read and write it, with a space after each colon and comma."""
    return json.dumps(value, ensure_ascii=False)
