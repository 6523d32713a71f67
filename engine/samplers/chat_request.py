"""A rollout as a chat-completions request: items become messages, tools become functions.

Chat knows one kind of tool. A custom tool is shown as a function with one text, `input`; a namespace is written into the
names of its tools; both are undone when the model calls. `ChatTools` holds the way back.

Chat wants each call answered right after the message that made it, so outputs are moved there; one that is missing, of a
rollout that was cut, is said to be. Reasoning is left out: who made it would not recognise it. So are items of unknown
type. Images go along in user messages and are a placeholder elsewhere.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import orjson

from engine.tool_table import tools_added_by
from protocol.items import (
    CALLS,
    OUTPUTS,
    Call,
    Content,
    CustomToolCall,
    FunctionCall,
    Item,
    McpCall,
    Message,
    OpaquePart,
    text_of,
)

Kind = Literal["function", "custom", "search"]
Json = dict[str, Any]

NO_OUTPUT: Final = "[no output]"
MAX_NAME_CHARACTERS: Final = 64
"""What chat endpoints take as a function's name."""
SEARCH: Final = "tool_search"

_GROUPS: Final = {"namespace": "name", "mcp": "server_label"}
"""Kinds that hold functions, and what these are told apart by. Of `mcp` those are here that the engine runs itself."""
_INPUT_SCHEMA: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


# --- tools ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class ChatTool:
    """What a function's name stands for."""

    name: str
    namespace: str | None = None
    kind: Kind = "function"


class ChatTools:
    """The tools of a rollout as functions; later tools of the same name take the place of earlier ones."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._tools: dict[str, ChatTool] = {}
        self._names: dict[tuple[str | None, str], str] = {}
        self._functions: dict[str, Json] = {}
        self.add(tools)

    def add(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Offer these, too. What nobody here can run is passed over."""
        for tool in tools:
            if tool.get("type") in _GROUPS:
                for member in tool.get("tools") or ():
                    self._add(member, str(tool.get(_GROUPS[tool["type"]])))
            else:
                self._add(tool, None)

    def functions(self, only: Sequence[str] | None = None) -> list[Json]:
        """What the endpoint is offered; `only` those names of functions."""
        return [
            {"type": "function", "function": function}
            for name, function in self._functions.items()
            if only is None or name in only
        ]

    def name_of(self, name: str, namespace: str | None = None) -> str:
        """The function's name of a tool, offered or not."""
        return self._names.get((namespace, name)) or self._flat(name, namespace)

    def find(self, function_name: str) -> ChatTool:
        """The tool that a call of a function means; one that nobody offered is a function of that name."""
        return self._tools.get(function_name) or ChatTool(function_name)

    def offers(self, function_name: str) -> bool:
        """Is there such a function?"""
        return function_name in self._tools

    def _add(self, tool: Any, namespace: str | None) -> None:
        """Tools that items bring along were not checked; one without a name cannot be called."""
        kind: Kind
        if not isinstance(tool, Mapping) or not (
            isinstance(tool.get("name"), str) or tool.get("type") == SEARCH
        ):
            return
        if tool.get("type") == "function":
            kind, schema = "function", tool.get("parameters") or {"type": "object", "properties": {}}
        elif tool.get("type") == "custom":
            kind, schema = "custom", _INPUT_SCHEMA
        elif tool.get("type") == SEARCH and tool.get("execution") == "client":
            kind, schema = "search", tool.get("parameters") or {"type": "object", "properties": {}}
        else:
            return
        name = SEARCH if kind == "search" else str(tool.get("name"))
        flat = self._names.setdefault((namespace, name), self._flat(name, namespace))
        function: Json = {"name": flat, "parameters": schema}
        if tool.get("description"):
            function["description"] = tool["description"]
        if kind == "function" and tool.get("strict"):
            function["strict"] = True
        self._tools[flat], self._functions[flat] = ChatTool(name, namespace, kind), function

    def _flat(self, name: str, namespace: str | None) -> str:
        """A name that endpoints take; another tool's name is not taken twice."""
        whole = name if namespace is None else f"{namespace}__{name}"
        flat = _NOT_IN_NAMES.sub("_", whole)[:MAX_NAME_CHARACTERS]
        holder = self._tools.get(flat)
        if flat == whole and holder in (None, ChatTool(name, namespace)):
            return flat
        mark = hashlib.sha256(f"{namespace}\0{name}".encode()).hexdigest()[:8]
        return f"{flat[: MAX_NAME_CHARACTERS - 9]}_{mark}"


def tool_choice_of(
    choice: str | Mapping[str, Any], tools: ChatTools, *, called: bool
) -> tuple[Any, list[str] | None]:
    """(`tool_choice`, names of the only functions to offer; None = all).

    `called`: the rollout has made a call. A choice that forces one is fulfilled then, else it would never end.
    """
    if isinstance(choice, str):
        return ("auto" if called and choice == "required" else choice), None
    kind = choice.get("type")
    if kind == "allowed_tools":
        listed = [tool for tool in choice.get("tools") or () if tool.get("type") in ("function", "custom")]
        only = [tools.name_of(str(tool.get("name")), tool.get("namespace")) for tool in listed]
        mode = choice.get("mode", "auto")
        return ("auto" if called else mode), only
    if kind in ("function", "custom") and not called:
        name = tools.name_of(str(choice.get("name")), choice.get("namespace"))
        return {"type": "function", "function": {"name": name}}, None
    return "auto", None


# --- messages ------------------------------------------------------------------------------------------------------


def messages_of(items: Sequence[Item], instructions: str | None, tools: ChatTools) -> list[Json]:
    """The messages of a conversation, in order."""
    transcript = _Transcript(tools, [instructions] if instructions else [])
    for item in items:
        transcript.add(item)
    return transcript.whole()


def tools_in(items: Sequence[Item]) -> tuple[Mapping[str, Any], ...]:
    """The tools that items bring with them."""
    return tuple(tool for item in items for tool in tools_added_by(item))


@attrs.define
class _Transcript:
    """Messages being written; `_open` is one of the model's that further calls belong to."""

    _tools: ChatTools
    _system: list[str]
    _messages: list[Json] = attrs.field(factory=list)
    _outputs: dict[str, str] = attrs.field(factory=dict)
    _open: Json | None = None

    def add(self, item: Item) -> None:
        """The next item."""
        if isinstance(item, Message):
            self._add_message(item)
        elif isinstance(item, OUTPUTS):
            self._outputs[item.call_id] = _text(item.output)
            self._open = None
        elif isinstance(item, CALLS):
            self._add_call(item.call_id, _function_name(item, self._tools), _arguments(item))
        elif isinstance(item, McpCall):
            name = self._tools.name_of(item.name, item.server_label)
            self._add_call(item.id, name, _as_object(item.arguments))
            self._outputs[item.id] = (item.error if item.output is None else item.output) or NO_OUTPUT
            self._open = None

    def whole(self) -> list[Json]:
        """All messages, each call answered right after it."""
        first = [{"role": "system", "content": "\n\n".join(self._system)}] if self._system else []
        return [*first, *_answered(self._messages, self._outputs)]

    def _add_message(self, item: Message) -> None:
        self._open = None
        if item.role == "assistant":
            self._open = {"role": "assistant", "content": _text(item.content)}
            self._messages.append(self._open)
        elif item.role == "user":
            self._messages.append({"role": "user", "content": _content(item.content)})
        elif self._messages:
            self._messages.append({"role": "system", "content": _text(item.content)})
        else:
            self._system.append(_text(item.content))  # many templates take one system message, the first

    def _add_call(self, call_id: str, name: str, arguments: str) -> None:
        """What the model says, and the calls that it makes right after, are one message."""
        if self._open is None:
            self._open = {"role": "assistant", "content": None}
            self._messages.append(self._open)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open.setdefault("tool_calls", []).append(call)


def _answered(messages: Sequence[Json], outputs: Mapping[str, str]) -> Iterator[Json]:
    for message in messages:
        yield message
        for call in message.get("tool_calls", ()):
            yield {"role": "tool", "tool_call_id": call["id"], "content": outputs.get(call["id"], NO_OUTPUT)}


def _function_name(call: Call, tools: ChatTools) -> str:
    namespace = call.namespace if isinstance(call, FunctionCall | CustomToolCall) else None
    return tools.name_of(call.name, namespace)


def _arguments(call: Call) -> str:
    if isinstance(call, CustomToolCall):
        return orjson.dumps({"input": call.input}).decode()
    return _as_object(call.arguments if isinstance(call, FunctionCall) else call.input)


def _as_object(written: str) -> str:
    """JSON text of an object: endpoints parse it, and refuse a whole conversation for one bad call."""
    try:
        is_object = isinstance(orjson.loads(written), dict)
    except ValueError:
        is_object = False
    return written if is_object else orjson.dumps({"arguments": written}).decode()


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        f"[{part.type or 'part'}]" if isinstance(part, OpaquePart) else text_of((part,)) for part in content
    )


def _content(content: Content) -> str | list[Json]:
    """A user's content: text, or text and images."""
    if isinstance(content, str) or not any(map(_image_url, content)):
        return _text(content)
    return [
        {"type": "image_url", "image_url": {"url": url}}
        if (url := _image_url(part))
        else {"type": "text", "text": _text((part,))}
        for part in content
    ]


def _image_url(part: object) -> str | None:
    if not isinstance(part, OpaquePart) or part.type != "input_image":
        return None
    url = part.raw.get("image_url")
    return url if isinstance(url, str) else None
