"""Items as tokens: each by itself, so that appending gives the same tokens as rendering everything again.

Tokenizers merge across any seam but a control token's: at 678 of 1,964 other seams the ids differed when measured.
Therefore an item begins and ends with a marker, every field stands between markers, and no item looks at another.
Markers are ids; every field from outside, names and call ids too, goes through `vocabulary.encode` as literal text.
So a field cannot end early, and the number of markers depends on the kind of item alone.

    message        START role MESSAGE text END
    reasoning      START assistant CHANNEL analysis MESSAGE text END
    search output  an output of kind "search" without text, then the tools that were found
    call           START assistant CHANNEL kind CONSTRAIN namespace CONSTRAIN name CONSTRAIN number MESSAGE input CALL
    output         START tool CHANNEL kind CONSTRAIN number MESSAGE text END
    hosted call    a call of kind "hosted", then its output with the same number
    other items    START document CHANNEL type MESSAGE the item as JSON END
    instructions   START developer CHANNEL instructions MESSAGE text END
    tool           START developer CHANNEL tool MESSAGE the tool as JSON END

A call is shown by its *number* in the context, counted from 1, and an output by that of its call: ids are random, and two
rollouts that say the same should be the same tokens (invariant S11).

The phase of a message is a mark of one form of the wire, not the model's word, and is not shown.
Images, files and unknown parts are a placeholder, `[input_image]`: these models read text.
An item of unknown type above `MAX_DOCUMENT_BYTES` is a placeholder too; what is in it (screenshots, most likely) means
nothing as text. `encrypted_content` is never shown to a model.
"""

import functools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from engine import vocabulary
from engine.config import DEFAULT_LIMITS
from engine.tool_table import tools_added_by
from engine.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, PIECE_CHARACTERS, START
from protocol.items import (
    Content,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    McpCall,
    Message,
    Opaque,
    OpaquePart,
    Part,
    Reasoning,
    Refusal,
    ToolSearchCall,
    ToolSearchOutput,
)

MAX_DOCUMENT_BYTES: Final = 64 * 1024

Layout = Iterable["int | str | array[int]"]
"""Markers as ids, fields as text, and what is always the same as tokens."""

_CALLABLE_TOOLS: Final = frozenset({"function", "custom", "namespace", "tool_search"})
_SHOWN_OF_OTHER_TOOLS: Final = ("type", "server_label", "allowed_tools")
"""Never `authorization` or `headers` (reference 8A): a model repeats what it reads."""


def render_item(
    item: Item, number: int = 1, *, slice_bytes: int = DEFAULT_LIMITS.work_slice_bytes
) -> Iterator["array[int]"]:
    """The tokens of one item, in pieces; let others run between them. `number`: of the call it is or answers.

    A piece stands for less than `slice_bytes` plus one piece of the vocabulary (64 KiB) of text.
    `ValueError`: an item reference, which must be resolved before, or a lone surrogate.
    """
    for layout in layouts_of(item, number):
        for tokens, _ in render(layout, slice_bytes):
            yield tokens


def render(layout: Layout, slice_bytes: int) -> Iterator[tuple["array[int]", int]]:
    """Pieces of a layout's tokens, each with the bytes of text it was made from."""
    tokens, text_bytes = array("I"), 0
    for field in layout:
        if isinstance(field, int):
            tokens.append(field)
            continue
        if isinstance(field, array):
            tokens.extend(field)
            continue
        for piece in (field,) if len(field) < PIECE_CHARACTERS else vocabulary.pieces(field):
            tokens.extend(vocabulary.encode(piece))
            text_bytes += text_size(piece)
            if text_bytes >= slice_bytes:
                yield tokens, text_bytes
                tokens, text_bytes = array("I"), 0
    yield tokens, text_bytes


def layouts_of(item: Item, number: int) -> tuple[Layout, ...]:
    """An item's layout; of a hosted call two, the second being the part that the model did not write itself.

    `number`: of the call that the item is or answers; other items have no use for it.
    """
    if isinstance(item, McpCall):
        call = _call("hosted", item.server_label, item.name, number, item.arguments)
        return call, _output("hosted", number, item.error if item.output is None else item.output)
    return (_LAYOUTS[type(item)](item, number),)


def preamble_layout(instructions: str | None, tools: tuple[Mapping[str, Any], ...]) -> Layout:
    """What stands before the items: the tools, then the instructions."""
    yield from _tools(tools)
    if instructions:
        yield from (START, "developer", CHANNEL, "instructions", MESSAGE, instructions, END)


def unrendered_bytes(item: Item) -> int:
    """Roughly the memory of what an item holds but its tokens do not show: images, encrypted and unknown content."""
    if isinstance(item, Opaque):
        return json_size(item.raw)
    if isinstance(item, ToolSearchOutput):
        return sum(map(json_size, item.tools))
    if isinstance(item, Reasoning):
        parts = item.summary + (item.content or ())
        return text_size(item.encrypted_content or "") + sum(map(_unrendered_part_bytes, parts))
    content = item.content if isinstance(item, Message) else getattr(item, "output", None)
    return sum(map(_unrendered_part_bytes, content)) if isinstance(content, tuple) else 0


def text_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def json_size(raw: Mapping[str, Any]) -> int:
    """Roughly the memory of decoded JSON: its text, and an object for each value."""
    text = orjson.dumps(raw)
    return len(text) + _VALUE_BYTES * (text.count(b",") + text.count(b"[") + text.count(b"{"))


_VALUE_BYTES: Final = 64


def _unrendered_part_bytes(part: object) -> int:
    return json_size(part.raw) if isinstance(part, OpaquePart) else 0


def _message(item: Message, _number: int) -> Layout:
    return (START, item.role, MESSAGE, *_content(item.content), END)


def _reasoning(item: Reasoning, _number: int) -> Layout:
    return (START, "assistant", CHANNEL, "analysis", MESSAGE, *_content(item.content or item.summary), END)


def _function_call(item: FunctionCall, number: int) -> Layout:
    return _call("function", item.namespace, item.name, number, item.arguments)


def _custom_tool_call(item: CustomToolCall, number: int) -> Layout:
    return _call("custom", item.namespace, item.name, number, item.input)


def _function_call_output(item: FunctionCallOutput, number: int) -> Layout:
    return _output("function", number, item.output)


def _custom_tool_call_output(item: CustomToolCallOutput, number: int) -> Layout:
    return _output("custom", number, item.output)


def _tool_search_call(item: ToolSearchCall, number: int) -> Layout:
    return _call("search", None, item.name, number, item.input)


def _tool_search_output(item: ToolSearchOutput, number: int) -> Layout:
    yield from _output("search", number, None)
    yield from _tools(item.tools)


def _opaque(item: Opaque, _number: int) -> Layout:
    tools = tools_added_by(item)
    if tools:
        yield from _tools(tools)
        return
    shown = orjson.dumps({key: value for key, value in item.raw.items() if key != "encrypted_content"})
    text = shown.decode() if len(shown) <= MAX_DOCUMENT_BYTES else f"[{item.type}]"
    yield from (START, "document", CHANNEL, item.type, MESSAGE, text, END)


def _item_reference(item: ItemReference, _number: int) -> Layout:
    raise ValueError(
        f"item reference {item.id!r} cannot be rendered; pass items through the call ledger first"
    )


def _call(kind: str, namespace: str | None, name: str, number: int, written: str) -> Layout:
    called = (_head("assistant", kind), namespace or "", CONSTRAIN, name)
    return (*called, CONSTRAIN, str(number), MESSAGE, written, CALL)


def _output(kind: str, number: int, output: Content | None) -> Layout:
    return (_head("tool", kind), str(number), MESSAGE, *_content(output or ""), END)


@functools.cache
def _head(role: str, kind: str) -> "array[int]":
    """How each call or output of a kind begins; the words are ours, and few."""
    return array("I", [START, *vocabulary.encode(role), CHANNEL, *vocabulary.encode(kind), CONSTRAIN])


def _tools(tools: tuple[Mapping[str, Any], ...]) -> Layout:
    for tool in tools:
        if tool.get("type") not in _CALLABLE_TOOLS:
            tool = {key: tool[key] for key in _SHOWN_OF_OTHER_TOOLS if key in tool}  # noqa: PLW2901  # a shorter view
        yield from (START, "developer", CHANNEL, "tool", MESSAGE, orjson.dumps(tool).decode(), END)


def _content(content: Content) -> Iterable[str]:
    return (content,) if isinstance(content, str) else map(_part, content)


def _part(part: Part) -> str:
    if isinstance(part, OpaquePart):
        return f"[{part.type or 'part'}]"
    return part.refusal if isinstance(part, Refusal) else part.text


_LAYOUTS: Final[Mapping[type, Callable[[Any, int], Layout]]] = {
    Message: _message,
    Reasoning: _reasoning,
    FunctionCall: _function_call,
    FunctionCallOutput: _function_call_output,
    CustomToolCall: _custom_tool_call,
    CustomToolCallOutput: _custom_tool_call_output,
    ToolSearchCall: _tool_search_call,
    ToolSearchOutput: _tool_search_output,
    ItemReference: _item_reference,
    Opaque: _opaque,
}
