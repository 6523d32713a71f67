"""Items as harmony's messages: markers as numbers, every field as literal text, each item whole.

    user        START user MESSAGE text END
    developer   START developer MESSAGE # Instructions … END               also what a client sends as `system`
    answer      START assistant CHANNEL final MESSAGE text END             `commentary` if the model goes on after it
    reasoning   START assistant CHANNEL analysis MESSAGE text END
    call        START assistant CHANNEL commentary to=recipient ␣ CONSTRAIN json MESSAGE arguments CALL
    custom call START assistant CHANNEL commentary to=recipient MESSAGE input CALL
    output      START recipient CHANNEL commentary to=assistant MESSAGE text END
    hosted call a call and its output
    more tools  START developer MESSAGE # Tools … END
    other items START user MESSAGE the item as JSON END

Two things about an item lie outside of it. An output is from the tool that its call named: looked for backwards from the
end, where it nearly always is near. And an answer is final unless the model went on after it, which the next item tells.

**Reasoning is forgotten at a new user turn**: what came before a final answer that a user message follows is not shown
again (the model was trained so). `Forgetting` finds it, looking only as far back as the turn that just ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import orjson

from engine.formats.harmony_tools import namespaces, recipient, tools_section
from engine.rendering import MAX_DOCUMENT_BYTES
from engine.tool_table import tools_added_by
from engine.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START
from protocol.items import (
    CALLS,
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
    Reasoning,
    Refusal,
    ToolSearchCall,
    ToolSearchOutput,
)

Layout = Iterator[int | str]
"""Markers as ids, fields as text. Two texts never stand side by side, for their seam would not be a marker's."""

UNKNOWN_TOOL: Final = "unknown"
"""Whose output it is if nobody made the call."""

_OUTPUTS: Final = (FunctionCallOutput, CustomToolCallOutput, ToolSearchOutput)


def message_layout(role: str, text: str) -> Layout:
    """A message that is not the model's."""
    yield from (START, role, MESSAGE, text, END)


def item_layout(item: Item, *, commentary: bool, author: str) -> Layout:
    """One item. `commentary`: the model went on after it; `author`: the recipient of the call that it answers.

    `ValueError`: an item reference, which must be resolved before.
    """
    match item:
        case Message(role="assistant"):
            yield from _said("commentary" if commentary else "final", text_of(item.content))
        case Message(role="user"):
            yield from message_layout("user", text_of(item.content))
        case Message():
            yield from message_layout("developer", f"# Instructions\n\n{text_of(item.content)}")
        case Reasoning():
            text = text_of(item.content or item.summary)
            if text:
                yield from _said("analysis", text)
        case FunctionCall():
            yield from _call(recipient(item.name, item.namespace), item.arguments)
        case ToolSearchCall():
            yield from _call(recipient(item.name, None), item.input)
        case CustomToolCall():
            yield from _call(recipient(item.name, item.namespace), item.input, custom=True)
        case FunctionCallOutput() | CustomToolCallOutput():
            yield from _output(author, text_of(item.output))
        case ToolSearchOutput():
            yield from _output(author, f"{len(item.tools)} tools found")
            yield from tools_layout(item.tools)
        case McpCall():
            own = recipient(item.name, item.server_label)
            yield from _call(own, item.arguments)
            yield from _output(own, (item.error if item.output is None else item.output) or "")
        case ItemReference():
            raise ValueError(f"item reference {item.id!r} cannot be rendered; resolve it before")
        case Opaque():
            yield from _opaque(item)


def tools_layout(tools: Sequence[Mapping[str, object]]) -> Layout:
    """Tools that are offered from here on."""
    spaces = namespaces(tools)
    if spaces:
        yield from message_layout("developer", tools_section(spaces))


def text_of(content: Content) -> str:
    """All text of a content; an image, a file or an unknown part is a placeholder."""
    if isinstance(content, str):
        return content
    return "".join(
        f"[{part.type or 'part'}]"
        if isinstance(part, OpaquePart)
        else part.refusal
        if isinstance(part, Refusal)
        else part.text
        for part in content
    )


def authors(items: Sequence[Item], before: Sequence[Item]) -> Mapping[str, str]:
    """Call id to recipient, for the outputs in `items`; constant work each, if their calls are near the end.

    The output of a hosted call may come by itself as well, under the id of the call's item.
    """
    wanted = {item.call_id for item in items if isinstance(item, _OUTPUTS)}
    found: dict[str, str] = {}
    for some in (items, before):
        for item in reversed(some):
            if not wanted:
                return found
            if isinstance(item, CALLS) and item.call_id in wanted:
                wanted.discard(item.call_id)
                found[item.call_id] = recipient(item.name, getattr(item, "namespace", None))
            elif isinstance(item, McpCall) and item.id in wanted:
                wanted.discard(item.id)
                found[item.id] = recipient(item.name, item.server_label)
    return found


def is_commentary(item: Item, following: Item | None) -> bool:
    """Did the model go on after it? Its phase says so, else the next item."""
    if isinstance(item, Message) and item.phase is not None:
        return item.phase == "commentary"
    return isinstance(following, (Reasoning, McpCall, *CALLS))


class Forgetting:
    """Which reasoning is not shown any more, in `before` and then `items`."""

    def __init__(self, before: Sequence[Item], items: Sequence[Item]) -> None:
        self._before = before
        self._items = items
        self._count = len(before) + len(items)

    def settled(self) -> int:
        """The place in `items` before which reasoning is forgotten; looks at `items` alone."""
        return max(0, self._last_final(self._count, len(self._before)) - len(self._before))

    def kept_before(self) -> int:
        """How many of `before` stay as they were before `items` came."""
        start = len(self._before)
        if not any(map(_is_user, self._items)):
            return start
        final = self._last_final(self._count, 0, stops_at_user_below=start)
        kept = start
        for place in range(min(final, start) - 1, -1, -1):
            item = self._at(place)
            if isinstance(item, Reasoning):
                kept = place
            elif self._is_final(place) and self._is_followed(place):
                break
        return kept

    def _last_final(self, end: int, floor: int, *, stops_at_user_below: int = 0) -> int:
        """The last final answer that a user message follows; -1 if there is none.

        A user message below `stops_at_user_below` has settled everything before it already.
        """
        followed = False
        for place in range(end - 1, floor - 1, -1):
            if _is_user(self._at(place)):
                if place < stops_at_user_below:
                    return -1
                followed = True
            elif followed and self._is_final(place):
                return place
        return -1

    def _is_followed(self, place: int) -> bool:
        """Did a user message follow directly, already before `items` came? Then earlier reasoning is forgotten already."""
        return place + 1 < len(self._before) and _is_user(self._before[place + 1])

    def _is_final(self, place: int) -> bool:
        item = self._at(place)
        if not (isinstance(item, Message) and item.role == "assistant"):
            return False
        return not is_commentary(item, self._at(place + 1) if place + 1 < self._count else None)

    def _at(self, place: int) -> Item:
        start = len(self._before)
        return self._before[place] if place < start else self._items[place - start]


def _is_user(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _said(channel: str, text: str) -> Layout:
    yield from (START, "assistant", CHANNEL, channel, MESSAGE, text, END)


def _call(addressed: str, written: str, *, custom: bool = False) -> Layout:
    yield from (START, "assistant", CHANNEL)
    if custom:
        yield f"commentary to={addressed}"
    else:
        yield from (f"commentary to={addressed} ", CONSTRAIN, "json")
    yield from (MESSAGE, written, CALL)


def _output(author: str, text: str) -> Layout:
    yield from (START, author, CHANNEL, "commentary to=assistant", MESSAGE, text, END)


def _opaque(item: Opaque) -> Layout:
    tools = tools_added_by(item)
    if tools:
        yield from tools_layout(tools)
        return
    shown = orjson.dumps({key: value for key, value in item.raw.items() if key != "encrypted_content"})
    text = shown.decode() if len(shown) <= MAX_DOCUMENT_BYTES else f"[{item.type}]"
    yield from message_layout("user", text)
