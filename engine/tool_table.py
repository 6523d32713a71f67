"""The tools of a response: what a name that the model calls stands for.

Four kinds: *function* and *custom* tools suspend the rollout for the client, and so does its own *search* for more tools;
*hosted* ones the engine runs itself.
Everything else a client offers (web search and its like, unknown types) is accepted and never called (reference 8.4).
Tools may be added later in a context, so a table is a value and `with_tools` makes the next one; later names win.
"""

import collections
import hashlib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import orjson

from engine.config import DEFAULT_LIMITS
from engine.schemas import fault_of
from protocol.errors import refusal
from protocol.items import Item, Opaque, ToolSearchOutput

ToolKind = Literal["function", "custom", "search", "hosted"]
ToolKey = tuple[str | None, str]
"""Namespace (of a hosted tool: its server label) and name."""

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""Of one tool. Looking at so many takes half a millisecond, in which nobody else has a turn."""

ITEMS_WITH_TOOLS: Final = frozenset({"additional_tools", "tool_search_output"})


@attrs.frozen
class Tool:
    """What a call of this name means; `namespace` is the server label if the tool is hosted."""

    kind: ToolKind
    name: str
    namespace: str | None = None


@attrs.frozen
class ToolTable:
    """The callable tools of a response."""

    client: Mapping[ToolKey, Tool] = attrs.field(factory=dict)
    hosted: Mapping[str, frozenset[str]] = attrs.field(factory=dict)
    """Server label to the names of its tools that may be called."""

    def find(self, name: str, namespace: str | None = None) -> Tool | None:
        """The tool that a call means. Without a namespace hosted tools are found too, after the client's own."""
        tool = self.client.get((namespace, name))
        if tool is not None:
            return tool
        for label in reversed(tuple(self.hosted)):
            if namespace in (None, label) and name in self.hosted[label]:
                return Tool("hosted", name, label)
        return None

    def kind_of(self, name: str, namespace: str | None = None) -> ToolKind | None:
        """What kind of tool a call means; None if there is none to call."""
        tool = self.find(name, namespace)
        return tool.kind if tool is not None else None

    def with_tools(self, other: "ToolTable") -> "ToolTable":
        """This table and a later one; the later one's names win."""
        kept = {label: names for label, names in self.hosted.items() if label not in other.hosted}
        return ToolTable({**self.client, **other.client}, {**kept, **other.hosted})


def tools_added_by(item: Item) -> tuple[Mapping[str, Any], ...]:
    """The tools that an item of a context brings with it (reference 8.1, `additional_tools`)."""
    if isinstance(item, ToolSearchOutput):
        return item.tools
    if not isinstance(item, Opaque) or item.type not in ITEMS_WITH_TOOLS:
        return ()
    tools = item.raw.get("tools")
    return tuple(tool for tool in tools if isinstance(tool, Mapping)) if isinstance(tools, list) else ()


class SchemaCheck:
    """JSON schemas of tools, each checked once: clients send the same tools on every turn."""

    def __init__(self, max_entries: int = DEFAULT_LIMITS.max_schemas) -> None:
        self._max_entries = max_entries
        self._faults: collections.OrderedDict[bytes, str | None] = collections.OrderedDict()
        self.checked = 0
        """How many schemas were really looked at."""

    def check(self, schema: Mapping[str, Any], field: str) -> None:
        """`RemoteProtocolError` `invalid_value` if `schema` is not a JSON schema; the message says where and why."""
        fault = self._fault(schema)
        if fault is not None:
            raise refusal("invalid_schema", field=field, reason=fault)

    def _fault(self, schema: Mapping[str, Any]) -> str | None:
        try:
            canonical = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            return "the schema is nested too deeply."
        if len(canonical) > MAX_SCHEMA_BYTES:
            return f"the schema has {len(canonical)} bytes, the limit is {MAX_SCHEMA_BYTES}."
        digest = hashlib.sha256(canonical).digest()  # not the bytes: 1024 of those could be 64 MiB
        if digest in self._faults:
            self._faults.move_to_end(digest)
            return self._faults[digest]
        self.checked += 1
        fault = self._faults[digest] = fault_of(schema)
        if len(self._faults) > self._max_entries:
            self._faults.popitem(last=False)
        return fault


@attrs.frozen
class ToolReader:
    """Reads the `tools` of a request. `hosted` are the engine's own: server label to the names of its tools."""

    hosted: Mapping[str, Collection[str]]
    schemas: SchemaCheck = attrs.field(factory=SchemaCheck)

    def read_in_slices(
        self, tools: Sequence[Mapping[str, Any]], field: str
    ) -> Generator[None, None, ToolTable]:
        """The table of these tools; yields after each tool. `RemoteProtocolError`: the first fault in order."""
        client: dict[ToolKey, Tool] = {}
        hosted: dict[str, frozenset[str]] = {}
        for place, tool in enumerate(tools):
            where = f"{field}[{place}]"
            if _text(tool, "type", where) == "mcp":
                label = _text(tool, "server_label", where)
                if label in self.hosted:
                    hosted.pop(label, None)  # the later one wins, and is the last
                    hosted[label] = frozenset(self._allowed(tool, label, where))
            for found in self._client_tools(tool, where):
                client[found.namespace, found.name] = found
                yield
            yield
        return ToolTable(client, hosted)

    def _client_tools(
        self, tool: Mapping[str, Any], where: str, namespace: str | None = None
    ) -> Iterator[Tool]:
        kind = _text(tool, "type", where)
        if kind == "function":
            yield self._function(tool, where, namespace)
        elif kind == "custom":
            _check_format(tool.get("format"), f"{where}.format")
            yield Tool("custom", _text(tool, "name", where), namespace)
        elif kind == "tool_search" and namespace is None:
            if tool.get("execution") == "client":  # else the server should search, which has nowhere to
                yield Tool("search", "tool_search")
        elif kind == "namespace" and namespace is None:
            name = _text(tool, "name", where)
            members = tool.get("tools", [])
            if not isinstance(members, list):
                raise refusal("invalid_type", field=f"{where}.tools", expected="a list of tools")
            for place, member in enumerate(members):
                inner = f"{where}.tools[{place}]"
                if not isinstance(member, Mapping):
                    raise refusal("invalid_type", field=inner, expected="an object")
                yield from self._client_tools(member, inner, name)

    def _function(self, tool: Mapping[str, Any], where: str, namespace: str | None) -> Tool:
        name = _text(tool, "name", where)
        schema = tool.get("parameters")
        if schema is not None:
            if not isinstance(schema, Mapping):
                raise refusal("invalid_type", field=f"{where}.parameters", expected="an object")
            self.schemas.check(schema, f"{where}.parameters")
        return Tool("function", name, namespace)

    def _allowed(self, tool: Mapping[str, Any], label: str, where: str) -> Iterator[str]:
        allowed = tool.get("allowed_tools")
        if isinstance(allowed, Mapping):
            allowed = allowed.get("tool_names")
        if allowed is not None and not isinstance(allowed, list):
            raise refusal("invalid_type", field=f"{where}.allowed_tools", expected="a list of tool names")
        return (name for name in self.hosted[label] if allowed is None or name in allowed)


def _text(tool: Mapping[str, Any], key: str, where: str) -> str:
    value = tool.get(key)
    if value is None:
        raise refusal("missing", field=f"{where}.{key}")
    if not isinstance(value, str):
        raise refusal("invalid_type", field=f"{where}.{key}", expected="a string")
    if not value:
        raise refusal("invalid_value", field=f"{where}.{key}")
    return value


def _check_format(form: object, where: str) -> None:
    if form is None:
        return
    if not isinstance(form, Mapping):
        raise refusal("invalid_type", field=where, expected="an object")
    kind = _text(form, "type", where)
    if kind not in ("text", "grammar"):
        raise refusal("invalid_value", field=f"{where}.type")
    if kind == "grammar":
        if _text(form, "syntax", where) not in ("lark", "regex"):
            raise refusal("invalid_value", field=f"{where}.syntax")
        _text(form, "definition", where)
