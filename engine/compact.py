"""Compaction: a long context becomes a short one, by rule; no model is asked, and nothing is made up.

What stays, in this order:

1. items that bring tools, and calls without an output: without them the chain could not go on
2. messages of user, developer and system, the newest first as long as there is room; the last that fits only in part
   is cut, and says so
3. a note of what was left out, with the calls that were made, one short line each
4. the newest items as they are, as many as fit; a call and its output stay together

What goes: reasoning, older answers of the model, outputs of older calls. The note counts all of it.

A *compaction item* carries these items in its `encrypted_content`, sealed for its owner; as input it stands for them.
Same items and budget, same result: nothing here knows a clock, an id or a model.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from engine.context import Context
from engine.seals import SealError, Seals
from engine.tool_table import ITEMS_WITH_TOOLS
from protocol import codec
from protocol.errors import refusal
from protocol.items import (
    CALLS,
    OUTPUTS,
    CustomToolCall,
    FunctionCall,
    Item,
    McpCall,
    Message,
    Opaque,
    Reasoning,
    ToolSearchOutput,
    text_of,
)

KIND: Final = "compaction"
_RECENT_SHARE: Final = 0.5
_MESSAGES_SHARE: Final = 0.7
"""Of what the newest items leave; the rest is for the note."""
_LINE_CHARACTERS: Final = 120
_SHORTEST_CUT_TOKENS: Final = 24
"""A message of which less than this fits is left out whole."""
_CUT: Final = " […]"


# --- what stays ----------------------------------------------------------------------------------------------------


def compacted(
    items: Sequence[Item], budget_tokens: int, sizes: Sequence[int] | None = None
) -> tuple[Item, ...]:
    """These items in at most `budget_tokens`, plus those of rule 1, which stay whatever they take.

    `sizes`: the tokens of each item, if they are known. Items that fit already come back as they are.
    """
    sizes = sizes_of(items) if sizes is None else sizes
    if sum(sizes) <= budget_tokens:
        return tuple(items)
    needed = _needed(items)
    room = budget_tokens - sum(sizes[place] for place in needed)
    start = _recent_start(items, sizes, needed, int(room * _RECENT_SHARE))
    recent = [place for place in range(start, len(items)) if _is_kept_among_recent(items[place])]
    room -= sum(sizes[place] for place in recent if place not in needed)
    messages, left_out = _messages(items, sizes, start, int(room * _MESSAGES_SHARE))
    room -= sum(sizes_of(messages))
    note = _note(items[:start], left_out, room)
    before = [items[place] for place in sorted(needed) if place < start]
    return (*before, *messages, *note, *(items[place] for place in recent))


def sizes_of(items: Sequence[Item]) -> list[int]:
    """The tokens of each item."""
    context = Context.full(items)
    return [span.end - span.start for span in map(context.span, range(context.item_count))]


def _needed(items: Sequence[Item]) -> frozenset[int]:
    """Places of items that bring tools, with their calls, and of calls without an output."""
    open_calls: dict[str, int] = {}
    tools = set()
    for place, item in enumerate(items):
        if isinstance(item, CALLS):
            open_calls[item.call_id] = place
        elif isinstance(item, OUTPUTS):
            call = open_calls.pop(item.call_id, None)
            if isinstance(item, ToolSearchOutput) and call is not None:  # with its call: alone it is refused
                tools |= {call, place}
        elif item.type in ITEMS_WITH_TOOLS:
            tools.add(place)
    return frozenset(tools | set(open_calls.values()))


def _recent_start(items: Sequence[Item], sizes: Sequence[int], needed: frozenset[int], room: int) -> int:
    """Where the newest items begin: as early as they fit, and never between a call and its output."""
    best, outputs_without_call = len(items), set[str]()
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if place not in needed and _is_kept_among_recent(item):
            room -= sizes[place]
        if room < 0:
            break
        if isinstance(item, OUTPUTS):
            outputs_without_call.add(item.call_id)
        elif isinstance(item, CALLS):
            outputs_without_call.discard(item.call_id)
        if not outputs_without_call:
            best = place
    return best


def _is_kept_among_recent(item: Item) -> bool:
    return not isinstance(item, Reasoning)


def _messages(items: Sequence[Item], sizes: Sequence[int], end: int, room: int) -> tuple[list[Item], int]:
    """Of the messages before `end` that the model did not write: the newest that fit, and how many do not."""
    kept: list[Item] = []
    places = [place for place in range(end) if _is_told(items[place])]
    while places:
        place = places[-1]
        message = items[place]
        if sizes[place] > room:
            cut = _cut_to(message, room) if isinstance(message, Message) else None
            if cut is not None:
                kept.append(cut)
                places.pop()
            break
        room -= sizes[place]
        kept.append(message)
        places.pop()
    return kept[::-1], len(places)


def _is_told(item: Item) -> bool:
    return isinstance(item, Message) and item.role != "assistant"


def _cut_to(message: Message, room: int) -> Message | None:
    """The beginning of a message in so many tokens, with a mark; None if that is next to nothing."""
    text = text_of(message.content)
    while room >= _SHORTEST_CUT_TOKENS and text:
        cut = attrs.evolve(message, content=text + _CUT)
        size = sizes_of([cut])[0]
        if size <= room:
            return cut
        text = text[: min(len(text) - 1, len(text) * room // size)]
    return None


def _note(left: Sequence[Item], messages_left_out: int, room: int) -> list[Item]:
    """What was left out, in words, with the newest calls that fit; nothing if there is no room for words."""
    lines = [_line(item) for item in left if isinstance(item, FunctionCall | CustomToolCall | McpCall)]
    shown = len(lines)
    while shown >= 0:
        note = Message("developer", "\n".join(_words(left, messages_left_out, lines, shown)))
        size = sizes_of([note])[0]
        if size <= room:
            return [note]
        shown = min(shown - 1, shown * max(room, 0) // size)
    return []


def _words(left: Sequence[Item], messages_left_out: int, lines: Sequence[str], shown: int) -> Iterator[str]:
    answers = sum(isinstance(item, Message) and item.role == "assistant" for item in left)
    yield (
        "The conversation up to here was shortened by rule, without a summary in words. Left out: "
        f"{messages_left_out} earlier messages, {answers} of your answers, {len(lines)} calls with their outputs."
    )
    if shown:
        yield "Calls made:" if shown == len(lines) else f"The last {shown} of these calls:"
        yield from lines[len(lines) - shown :]


def _line(call: FunctionCall | CustomToolCall | McpCall) -> str:
    written = call.input if isinstance(call, CustomToolCall) else call.arguments
    line = f"- {call.name} {' '.join(written.split())}"
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - len(_CUT)] + _CUT


# --- the item that carries it ------------------------------------------------------------------------------------------


@attrs.frozen
class Compactor:
    """Makes and reads compaction items."""

    seals: Seals = attrs.field(factory=Seals)

    def item(self, items: Sequence[Item], owner: str, item_id: str) -> Opaque:
        """A compaction item that stands for these items, for this owner only."""
        content = [codec.unstructure(item) for item in items]
        return Opaque({"id": item_id, "type": KIND, "encrypted_content": self.seals.seal(content, owner)})

    def expanded(self, items: Sequence[Item], owner: str, *, passed_over: int = 0) -> tuple[Item, ...]:
        """These items, each compaction item replaced by those that it stands for; others stay as they are.

        `passed_over`: how many items of the client's `input` came before them.
        `RemoteProtocolError` `invalid_value`, with the place in `input`: the item is forged, changed, or someone else's.
        """
        found: list[Item] = []
        for place, item in enumerate(items, passed_over):
            carried = self._carried(item, owner, f"input[{place}].encrypted_content")
            found += [item] if carried is None else carried
        return tuple(found)

    def _carried(self, item: Item, owner: str, field: str) -> Sequence[Item] | None:
        """None: not a compaction item, or one without content, as an unknown item is."""
        token = item.raw.get("encrypted_content") if isinstance(item, Opaque) and item.type == KIND else None
        if token is None:
            return None
        if not isinstance(token, str):
            raise refusal("invalid_type", field=field, expected="a string")
        try:
            carried: tuple[Item, ...] = codec.structure(self.seals.open(token, owner), tuple[Item, ...])
        except SealError:
            raise refusal("invalid_value", field=field) from None
        return carried


def threshold_of(context_management: Sequence[Mapping[str, Any]] | None) -> int | None:
    """The `compact_threshold` of a create, in tokens; None: nothing is to be compacted.

    `RemoteProtocolError`: it is no whole number above 0. Other kinds of management are ignored.
    """
    for place, entry in enumerate(context_management or ()):
        if entry.get("type") != KIND or entry.get("compact_threshold") is None:
            continue
        threshold = entry["compact_threshold"]
        field = f"context_management[{place}].compact_threshold"
        if type(threshold) is not int:
            raise refusal("invalid_type", field=field, expected="an integer")
        if threshold <= 0:
            raise refusal("invalid_value", field=field)
        return threshold
    return None


def over_threshold(context: Context, threshold: int) -> tuple[Item, ...] | None:
    """The items of a context that is longer than `threshold`, in half of that; None: it is not, or nothing would be gained.

    What stands before the items, instructions and tools, counts but cannot be made shorter.
    """
    if len(context) <= threshold:
        return None
    spans = map(context.span, range(context.item_count))
    sizes = [span.end - span.start for span in spans]
    items = compacted(context.items, max(0, threshold // 2 - context.preamble_tokens), sizes)
    return items if sum(sizes_of(items)) < sum(sizes) else None
