"""What many creates say alike, lists of tools and instructions, is kept once, however many rollouts wait with it.

It is found by its content and by nothing else: who gets a shared object gets what it has sent itself. A list of tools
that was read before is not read again either. All that one key could learn of another is that somebody has sent the same,
by the time that saves, as with the schemas that were checked (`engine.tool_table.SchemaCheck`).

Bounded by number and by bytes (`Limits.max_shared_entries`, `max_shared_bytes`); what was used longest ago goes first. Rollouts that have it go on with it.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

import attrs
import orjson

from engine.rendering import text_size
from engine.tool_table import ToolTable
from protocol.events import ResponseCreate

Tools = tuple[Mapping[str, Any], ...]
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@attrs.frozen(eq=False)
class _Read:
    """A list of tools as a client sent it, and what its names stand for."""

    tools: Tools
    table: ToolTable


class Shared:
    """Of one engine. Not a checkpoint anywhere."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        """The bounds hold for lists of tools and for instructions each; 0 entries: nothing is shared."""
        self._lists: _Latest[bytes, _Read] = _Latest(max_entries, max_bytes)
        self._texts: _Latest[str, str] = _Latest(max_entries, max_bytes)
        self._tables: dict[int, ToolTable] = {}
        """By the identity of each list in `_lists`."""

    def create(self, create: ResponseCreate) -> ResponseCreate:
        """The same create; its tools and instructions are the objects of earlier ones that said the same."""
        tools, instructions = self._tools(create.tools), self._text(create.instructions)
        if tools is create.tools and instructions is create.instructions:
            return create
        return attrs.evolve(create, tools=tools, instructions=instructions)

    def _tools(self, tools: Tools | None) -> Tools | None:
        written = _written(tools) if tools and self._lists else None
        read = self._lists.get(_digest(written)) if written is not None else None
        return tools if read is None else read.tools

    def _text(self, text: str | None) -> str | None:
        if not text:
            return text
        known = self._texts.get(text)
        if known is None:
            self._texts.keep(text, text, text_size(text))
        return text if known is None else known

    def table_of(self, tools: Tools) -> ToolTable | None:
        """What the names of this list stand for, if it is a shared one, by its identity."""
        return self._tables.get(id(tools))

    def keep(self, tools: Tools, table: ToolTable) -> None:
        """A list was read and found in order: from now on it is shared, unless an equal one is already."""
        written = _written(tools) if tools else None
        if written is None or self._lists.get(digest := _digest(written)) is not None:
            return
        read = _Read(tools, table)
        self._tables[id(tools)] = table
        for dropped in self._lists.keep(digest, read, len(written)):
            del self._tables[id(dropped.tools)]


def _written(tools: Tools) -> bytes | None:
    """As JSON, in the order of the client: what is equal here is equal in every echo. None: it is no plain JSON."""
    try:
        return orjson.dumps(tools)
    except TypeError:
        return None


def _digest(written: bytes) -> bytes:
    return hashlib.sha256(written).digest()


class _Latest(Generic[Key, Value]):
    """The values that were used last, within bounds."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def keep(self, key: Key, value: Value, size: int) -> list[Value]:
        """Under a key that is not there. Returned is what went for it: itself, if it is too large for all."""
        if size > self._max_bytes:
            return [value]
        self._kept[key] = value, size
        self._bytes += size
        dropped = []
        while len(self._kept) > self._max_entries or self._bytes > self._max_bytes:
            _, (oldest, freed) = self._kept.popitem(last=False)
            self._bytes -= freed
            dropped.append(oldest)
        return dropped
