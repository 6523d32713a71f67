"""Text ⇄ event: the one converter, strict, with errors that name the field.

Decoding is orjson and cattrs with strict scalars: a number is never taken for a string, nor "false" for True.
The fast converter knows no paths; only when it fails does a second, detailed one read the same data again to say where.
The tag is looked up first, so that an unknown type is our error and not a `KeyError`.

Encoding writes `type` first, the members in the order of the class, optional ones last, then what the last hop adds
(`sequence_number`, `agent`, `stream_id`). For nearly all of the traffic there is a shorter way (`protocol.templates`).

Members that are null stay away where the wire leaves them out (`OMITTED`), and are written where it wants them.

Longer than other modules here, so that the two directions stay side by side and cannot drift apart.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import attrs
import orjson
from cattrs import Converter
from cattrs.errors import AttributeValidationNote, IterableValidationNote
from cattrs.fns import identity
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from protocol import events, items
from protocol.errors import RemoteProtocolError, refusal
from protocol.usage import Usage

MAX_CALL_ID_CHARACTERS: Final = 256
"""Longer than any real one; an id of a megabyte is an attack (T23)."""

MAX_WRITTEN_DEPTH: Final = 254
"""How deeply nested a value orjson writes."""

ECHO_DEPTH: Final = 8
"""How much deeper than it came a value may lie in what we send: a create's tools come back in `response`."""

STREAM_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "top_logprobs": (0, 20),
    "max_output_tokens": (1, 2**31),
    "max_tool_calls": (0, 2**31),
}
"""Inclusive bounds of the create body's numbers (reference 9)."""

_TEXT: Final = (str, "a string")
_FLAG: Final = (bool, "a boolean")
_NESTED: Final[Mapping[str, Mapping[str, tuple[type, str]]]] = {
    "reasoning": dict.fromkeys(("effort", "summary", "context", "mode"), _TEXT),
    "text": {"verbosity": _TEXT},
    "prompt_cache_options": {"prewarm": _FLAG},
    "stream_options": dict.fromkeys(("include_obfuscation", "include_usage"), _FLAG),
    "multi_agent": {"enabled": _FLAG, "max_concurrent_subagents": (int, "an integer")},
}
"""Types of what the create body's objects hold (reference 9); their values are open, as servers add some."""


class _Mismatch(ValueError):  # noqa: N818  # carries a result to `_explain`, is never shown
    """A value of the wrong type; the text is what was expected."""


class _NotAllowed(ValueError):  # noqa: N818  # the same
    """A value of the right type that is not one of the allowed ones."""


# --- decoding ------------------------------------------------------------------------------------------------------

_PARTS: Final[Mapping[str, type]] = {
    "input_text": items.InputText,
    "output_text": items.OutputText,
    "refusal": items.Refusal,
    "reasoning_text": items.ReasoningText,
    "summary_text": items.SummaryText,
}
_ITEMS: Final[Mapping[str, type]] = {
    "message": items.Message,
    "reasoning": items.Reasoning,
    "function_call": items.FunctionCall,
    "function_call_output": items.FunctionCallOutput,
    "custom_tool_call": items.CustomToolCall,
    "custom_tool_call_output": items.CustomToolCallOutput,
    "tool_search_call": items.ToolSearchCall,
    "tool_search_output": items.ToolSearchOutput,
    "mcp_call": items.McpCall,
    "item_reference": items.ItemReference,
}
_SEARCHES: Final = (items.ToolSearchCall, items.ToolSearchOutput)
_PART_LISTS: Final = (tuple[items.Part, ...], tuple[items.Part, ...] | None)
_ITEM_LISTS: Final = (tuple[items.Item, ...],)
_TEXT_OR_ITEMS: Final = str | tuple[items.Item, ...] | None

_PLAIN: Final = (str, int, float, bool, NoneType)

Structure = Callable[..., Any]
"""Of a value; cattrs gives the type besides, which each of ours knows already."""


def _exactly(cls: type, expected: str) -> Structure:
    def structure(value: Any, _type: Any = None) -> Any:
        if type(value) is not cls:
            raise _Mismatch(expected)
        return value

    return structure


def _number(value: Any, _type: Any = None) -> float:
    if type(value) is not float and type(value) is not int:
        raise _Mismatch("a number")
    return float(value)


def _texts(value: Any, _type: Any = None) -> Any:
    if type(value) is not dict or not all(type(v) is str for v in value.values()):
        raise _Mismatch("an object of strings")
    return value


def _text_or_object(value: Any, _type: Any = None) -> Any:
    if type(value) is not str and type(value) is not dict:
        raise _Mismatch("a string or an object")
    return value


def _one_of(literal: Any) -> Callable[[Any, Any], Any]:
    allowed = frozenset(get_args(literal))

    def structure(value: Any, _type: Any) -> Any:
        if type(value) is not str:
            raise _Mismatch("a string")
        if value not in allowed:
            raise _NotAllowed
        return value

    return structure


def _usage(value: Any, _type: Any = None) -> Usage:
    """The nested wire form; details may be null (other servers send that)."""
    whole = _object(value)
    inputs, outputs = whole.get("input_tokens_details") or {}, whole.get("output_tokens_details") or {}
    numbers = (
        whole.get("input_tokens"),
        inputs.get("cached_tokens") or 0,
        inputs.get("cache_write_tokens") or 0,
        whole.get("output_tokens"),
        outputs.get("reasoning_tokens") or 0,
    )
    if not all(type(n) is int for n in numbers):
        raise _Mismatch("an object of integers")
    return Usage(*numbers)


def _mcp_error(value: Any, _type: Any = None) -> str | None:
    """A hosted tool's error: text here, an object of one of three types on the wire (SDK; other servers: text)."""
    if value is None or type(value) is str:
        return value
    content = _object(value).get("content", value.get("message"))
    if type(content) is list and len(content) == 1 and type(content[0]) is dict:
        content = content[0].get("text")
    return content if type(content) is str else orjson.dumps(value).decode()


_object: Final = _exactly(dict, "an object")


def _each(value: Any, structure: Structure, expected: str, *, detailed: bool) -> tuple[Any, ...]:
    if type(value) is not list:
        raise _Mismatch(expected)
    if not detailed:
        return tuple(map(structure, value))
    found = []
    for index, member in enumerate(value):
        try:
            found.append(structure(member))
        except Exception as error:
            error.add_note(IterableValidationNote(f"@ index {index}", index, None))
            raise
    return tuple(found)


class _Decoder:
    """Data → attrs objects; one instance without paths, one with."""

    def __init__(self, *, detailed: bool) -> None:
        self.converter = Converter(detailed_validation=detailed)
        self._each = partial(_each, detailed=detailed)
        for scalar, strict in (
            (str, _exactly(str, "a string")),
            (int, _exactly(int, "an integer")),
            (bool, _exactly(bool, "a boolean")),
            (float, _number),
        ):
            self.converter.register_structure_hook(scalar, strict)
        shapes: tuple[tuple[Any, Structure], ...] = (
            (Any, lambda value, _type: value),
            (Usage, _usage),
            (events.JSON, _object),
            (Mapping[str, str], _texts),
            (str | events.JSON, _text_or_object),
            (tuple[events.JSON, ...], self.objects),
            (
                tuple[str, ...],
                lambda value, _type: self._each(value, _exactly(str, "a string"), "a list of strings"),
            ),
            (items.Part, self.part),
            (items.Item, self.item),
            (items.Content, self.content),
            (str | tuple[items.Item, ...], self.text_or_items),
            (str | events.JSON | None, _or_null(_text_or_object)),
            (_TEXT_OR_ITEMS, _or_null(self.text_or_items)),
            (tuple[items.Part, ...], lambda value, _type: () if value is None else self.parts(value)),
            (tuple[items.Part, ...] | None, _or_null(self.parts)),
            *((t, self.many_items) for t in _ITEM_LISTS),
        )
        for shape, structure in shapes:
            self.converter.register_structure_hook_func(partial(_same, shape), structure)
        self.converter.register_structure_hook_factory(_is_literal, _one_of)
        self.converter.register_structure_hook(
            items.McpCall,
            make_dict_structure_fn(items.McpCall, self.converter, error=override(struct_hook=_mcp_error)),
        )
        self._structures: dict[Any, Callable[[Any, Any], Any]] = {}

    def structure(self, value: Any, cls: Any) -> Any:
        """As the converter, which looks in several places for what it has found before."""
        structure = self._structures.get(cls)
        if structure is None:
            structure = self._structures[cls] = self.converter.get_structure_hook(cls)
        return structure(value, cls)

    def part(self, value: Any, _type: Any = None) -> Any:
        tag = _object(value).get("type") or ""
        if type(tag) is not str:
            raise _Mismatch("an object with a string 'type'")
        cls = _PARTS.get(tag)
        return items.OpaquePart(value) if cls is None else self.structure(value, cls)

    def parts(self, value: Any, _type: Any = None) -> Any:
        return self._each(value, self.part, "a list of content parts")

    def objects(self, value: Any, _type: Any = None) -> Any:
        # SDKs give our own items back with null for what was empty
        return () if value is None else self._each(value, _object, "a list of objects")

    def content(self, value: Any, _type: Any = None) -> Any:
        return (
            value
            if type(value) is str
            else self._each(value, self.part, "a string or a list of content parts")
        )

    def item(self, value: Any, _type: Any = None) -> Any:
        tag = _object(value).get("type")
        if tag is None:  # a message or a reference may come without its type (reference 8.1)
            tag = "message" if "role" in value else "item_reference"
            value = {**value, "type": tag}
        if type(tag) is not str:
            raise _Mismatch("an object with a string 'type'")
        cls = _ITEMS.get(tag)
        if cls in _SEARCHES:
            if type(value.get("call_id")) is not str or value.get("execution") == "server":
                return items.Opaque(value)  # the server's own search is nobody's to answer
            value = {
                name: member for name, member in value.items() if name != "execution" or member is not None
            }
        return items.Opaque(value) if cls is None else self.structure(value, cls)

    def many_items(self, value: Any, _type: Any = None) -> Any:
        return self._each(value, self.item, "a list of items")

    def text_or_items(self, value: Any, _type: Any = None) -> Any:
        return value if type(value) is str else self._each(value, self.item, "a string or a list of items")


def _is_literal(t: Any) -> bool:
    return get_origin(t) is Literal


def _same(t: Any, other: Any) -> bool:
    return bool(t == other)


def _or_null(structure: Structure) -> Structure:
    return lambda value, _type: None if value is None else structure(value)


_FAST: Final = _Decoder(detailed=False)
_DETAILED: Final = _Decoder(detailed=True)


def structure(data: Mapping[str, Any], cls: Any) -> Any:
    """Data (parsed JSON) → an object of `cls`. `RemoteProtocolError` names the first bad member and what was expected."""
    try:
        return _FAST.structure(data, cls)
    except Exception:  # noqa: BLE001  # whatever it was, the slow reading says where
        return _structure_slowly(data, cls)


def _structure_slowly(data: Mapping[str, Any], cls: Any) -> Any:
    try:
        return _DETAILED.structure(data, cls)
    except Exception as error:  # noqa: BLE001  # every kind of failure becomes one kind of answer
        raise _explain(error) from None


def _explain(error: BaseException) -> RemoteProtocolError:
    path = ""
    while True:
        path += "".join(_steps(error))
        if not isinstance(error, BaseExceptionGroup):
            break
        error = error.exceptions[0]
    field = path.removeprefix(".")
    if isinstance(error, KeyError):
        return refusal("missing", field=field)
    if isinstance(error, _Mismatch):
        return refusal("invalid_type", field=field, expected=str(error))
    return refusal("invalid_value", field=field)


def _steps(error: BaseException) -> Iterator[str]:
    for note in reversed(getattr(error, "__notes__", ())):
        if isinstance(note, AttributeValidationNote):
            yield f".{note.name}"
        elif isinstance(note, IterableValidationNote):
            yield f"[{note.index}]"


def parse(text: str | bytes, *, echoed: bool = True) -> dict[str, Any]:
    """One JSON object with a string `type`; else `RemoteProtocolError` `invalid_json` or `invalid_event`."""
    data = parse_object(text, echoed=echoed)
    if type(data.get("type")) is not str:
        raise refusal("no_type")
    return data


def parse_object(text: str | bytes, *, echoed: bool = True) -> dict[str, Any]:
    """One JSON object, as an HTTP body is; else `RemoteProtocolError` `invalid_json`.

    orjson refuses what would break us later: NaN, infinities, lone surrogates, endless nesting (hazards, T16).
    It reads deeper nesting than it writes: what is `echoed`, as a client's frames are, must not be too deep for that.
    """
    try:
        data = orjson.loads(text)
        if echoed and _may_be_deep(text):
            orjson.dumps(_wrapped(data))
    except (ValueError, TypeError, RecursionError):
        raise refusal("invalid_json") from None
    if type(data) is not dict:
        raise refusal("invalid_json")
    return data


def _may_be_deep(text: str | bytes) -> bool:
    """Only a text with this many brackets can be nested too deeply to be written again."""
    brackets = (
        text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    )
    return brackets > MAX_WRITTEN_DEPTH - ECHO_DEPTH


def _wrapped(data: Any) -> Any:
    for _ in range(ECHO_DEPTH):
        data = [data]
    return data


def client_event(data: dict[str, Any]) -> events.ClientEvent:
    """A parsed frame of a client → its event, each field checked.

    `RemoteProtocolError`: unknown type, missing or wrong member, a number out of range, a bad `stream_id`.
    """
    _check_stream_id(data)
    cls = events.CLIENT_CLASSES.get(data["type"])
    if cls is None:
        raise refusal("unsupported_event", type=data["type"][:64])
    check = _CHECKS.get(cls)
    if check is not None:
        check(data)
    event: events.ClientEvent = structure(data, cls)
    return event


def _check_stream_id(data: Mapping[str, Any]) -> None:
    stream_id = data.get("stream_id")
    if stream_id is not None and not (type(stream_id) is str and STREAM_ID.match(stream_id)):
        raise refusal("stream_id")


def _check_create(data: dict[str, Any]) -> None:
    for name, (low, high) in RANGES.items():
        value = data.get(name)
        if type(value) is bool:  # an int for Python; its type is refused later
            continue
        if isinstance(value, int | float) and not low <= value <= high:
            raise refusal("invalid_value", field=name)
    for name in ("conversation", "prompt"):
        if data.get(name) is not None:
            raise refusal("unsupported_parameter", field=name)
    if data.get("background") is True:
        raise refusal("unsupported_parameter", field="background")
    _check_nested(data)
    if (data.get("prompt_cache_options") or {}).get("prewarm") is True:
        data["generate"] = False  # the same wish in other words (reference 4.3 rule 3)
    metadata = data.get("metadata")
    if type(metadata) is dict and (
        len(metadata) > 16 or any(len(k) > 64 or len(str(v)) > 512 for k, v in metadata.items())
    ):
        raise refusal("invalid_value", field="metadata")
    _check_call_ids(data)


def _check_nested(data: Mapping[str, Any]) -> None:
    for name, members in _NESTED.items():
        whole = data.get(name)
        if whole is None:
            continue
        if type(whole) is not dict:
            raise refusal("invalid_type", field=name, expected="an object")
        for member, (cls, expected) in members.items():
            if whole.get(member) is not None and type(whole[member]) is not cls:
                raise refusal("invalid_type", field=f"{name}.{member}", expected=expected)


def _check_batch(data: dict[str, Any]) -> None:
    batch = data.get("input")
    if type(batch) is not list or not batch or not all(type(member) is dict for member in batch):
        raise refusal("empty_input")
    _check_call_ids(data)


def _check_inject(data: dict[str, Any]) -> None:
    if "response_id" not in data:
        raise refusal("missing", field="response_id")
    _check_batch(data)
    data["raw_input"] = data["input"]


def _check_steer(data: dict[str, Any]) -> None:
    data["raw_input"] = data.get("input")
    fault = _steer_fault(data)
    if fault is not None:
        data["fault"], data["input"] = fault, ""


def _steer_fault(data: Mapping[str, Any]) -> str | None:
    """Reference 4.6: three members, and the input is text or messages of the user's."""
    for name in data:
        if name not in ("type", "previous_response_id", "input", "raw_input"):
            return f"'{name[:64]}' is not a member of 'response.steer'."
    steered = data.get("input")
    if not isinstance(steered, str | list) or not steered:
        return "'input' must be a non-empty string or a non-empty list of user messages."
    for place, message in enumerate(steered if isinstance(steered, list) else ()):
        if not _is_plain_user_message(message):
            return f"'input[{place}]' must be a user message with 'type', 'role' and 'content' only."
    return None


def _is_plain_user_message(value: Any) -> bool:
    if type(value) is not dict or value.get("role") != "user" or value.keys() - {"type", "role", "content"}:
        return False
    content = value.get("content")
    if value.get("type", "message") != "message" or not isinstance(content, str | list):
        return False
    parts = content if isinstance(content, list) else ()
    return all(type(part) is dict and part.get("type") in _STEERED_PARTS for part in parts)


_STEERED_PARTS: Final = frozenset({"input_text", "input_image", "input_file"})


def _check_call_ids(data: Mapping[str, Any]) -> None:
    batch = data.get("input")
    for index, member in enumerate(batch if type(batch) is list else ()):
        call_id = member.get("call_id") if type(member) is dict else None
        if type(call_id) is str and not (
            0 < len(call_id) <= MAX_CALL_ID_CHARACTERS and call_id.isprintable()
        ):
            raise refusal("invalid_value", field=f"input[{index}].call_id")


_CHECKS: Final[Mapping[type, Callable[[dict[str, Any]], None]]] = {
    events.ResponseCreate: _check_create,
    events.ResponseAppend: _check_batch,
    events.ResponseInject: _check_inject,
    events.ResponseSteer: _check_steer,
}
"""What must hold beyond the types, per client event; first, so that the words are the catalogue's."""


def server_event(data: dict[str, Any]) -> events.ServerEvent:
    """A parsed frame of a server → its event; an unknown type is kept whole.

    So is the numbered `error` of an HTTP stream: it refuses nothing, it explains the failure that follows (reference 10.2).
    """
    cls = events.SERVER_CLASSES.get(data["type"])
    if cls is None or (cls is events.ErrorEvent and "status" not in data and "sequence_number" in data):
        return events.UnknownEvent(data)
    event: events.ServerEvent = structure(data, cls)
    return event


# --- encoding ------------------------------------------------------------------------------------------------------

OMITTED: Final[Mapping[type, frozenset[str]]] = {
    items.Message: frozenset({"id", "status", "phase", "agent"}),
    items.Reasoning: frozenset({"id", "content", "status", "agent"}),
    items.FunctionCall: frozenset({"id", "namespace", "status", "agent"}),
    items.FunctionCallOutput: frozenset({"id"}),
    items.CustomToolCall: frozenset({"id", "namespace", "status", "agent"}),
    items.CustomToolCallOutput: frozenset({"id"}),
    items.ToolSearchCall: frozenset({"id", "status", "agent"}),
    items.ToolSearchOutput: frozenset({"id", "status"}),
    items.McpCall: frozenset({"status", "agent"}),
    events.FunctionCallArgumentsDone: frozenset({"name"}),
    events.ResponseDone: frozenset({"response"}),
    events.Parked: frozenset({"id", "usage"}),
    events.ErrorEvent: frozenset({"stream_id"}),
    events.Steer: frozenset({"id", "input"}),
    events.ResponseAppend: frozenset({"response_id", "previous_response_id", "stream_id", "client_metadata"}),
    events.ResponseCreate: frozenset(a.name for a in attrs.fields(events.ResponseCreate)),
}
"""Members left out when null; every other member is always written."""


_INTERNAL: Final[Mapping[type, tuple[str, ...]]] = {
    events.ResponseInject: ("raw_input",),
    events.ResponseSteer: ("raw_input", "fault"),
}
"""Members that are ours and never on the wire."""


def _usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _mcp_error_object(error: str | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": error}]}


def _raw(value: Any) -> Any:
    return value.raw


def _as_it_is(value: Any) -> Any:
    return list(value) if type(value) is tuple else value


def _is_plain(t: Any) -> bool:
    """Is what a member of this type holds plain data already?"""
    members = get_args(t) if get_origin(t) in (Union, UnionType) else (t,)
    return all(member in _PLAIN or _is_literal(member) for member in members)


def _make_encoders() -> dict[type, Callable[[Any], Any]]:
    """Class → what makes plain data of its objects: called at once, as the converter looks for it in three places."""
    converter = Converter()
    encoders: dict[type, Callable[[Any], Any]] = {}

    def register(*classes: type) -> None:
        for cls in classes:
            overrides = {name: override(omit_if_default=True) for name in OMITTED.get(cls, ())}
            for name in _INTERNAL.get(cls, ()):
                overrides[name] = override(omit=True)
            if cls is items.McpCall:
                overrides["error"] = override(unstruct_hook=_mcp_error_object)
            function: Structure = make_dict_unstructure_fn(cls, converter, **overrides)  # type: ignore[arg-type]
            add(cls, function)

    def add(cls: type, function: Callable[[Any], Any]) -> None:
        converter.register_unstructure_hook(cls, function)
        encoders[cls] = function

    def each(function: Callable[[Any], Any], *shapes: Any) -> None:
        for shape in shapes:
            converter.register_unstructure_hook_func(partial(_same, shape), function)

    def by_class(value: Any) -> Any:
        encoder = encoders.get(type(value))
        return (
            converter.unstructure(value) if encoder is None else encoder(value)
        )  # plain data stays as it is

    def listed(value: Any) -> Any:
        return value if value is None or type(value) is str else [by_class(member) for member in value]

    for cls, function in ((Usage, _usage_object), (items.OpaquePart, _raw), (items.Opaque, _raw)):
        add(cls, function)
    converter.register_unstructure_hook_func(_is_plain, identity)  # generated code does not even call it
    each(by_class, items.Part, items.Item)
    each(listed, items.Content, *_PART_LISTS, *_ITEM_LISTS, _TEXT_OR_ITEMS, str | tuple[items.Item, ...])
    each(
        _as_it_is,
        *(Any, events.JSON, str | events.JSON, str | events.JSON | None, events.JSON | None),
        *(
            Mapping[str, str],
            Mapping[str, str] | None,
            tuple[events.JSON, ...],
            tuple[events.JSON, ...] | None,
        ),
        *(tuple[str, ...], tuple[str, ...] | None),
    )
    # members before their owners: a generated function binds its members' hooks when it is made
    register(*_PARTS.values(), items.Agent, *_ITEMS.values())
    register(events.ResponseError, events.IncompleteDetails, events.Response, events.Parked)
    register(events.InjectError, events.ErrorDetail, events.Steer, events.SteerError)
    register(*events.SERVER_CLASSES.values(), *events.CLIENT_CLASSES.values())
    return encoders


_ENCODERS: Final = _make_encoders()


def unstructure(event: Any) -> dict[str, Any]:
    """An event or item → plain data; for an event without its `type`."""
    data: dict[str, Any] = _ENCODERS[type(event)](event)
    return data


def encode(event: Any, extras: Mapping[str, Any] | None = None) -> bytes:
    """An event → UTF-8 JSON, `type` first and `extras` last. A checkpoint it is not.

    `TypeError` for text that is no Unicode (a lone surrogate): nothing was numbered or sent then.
    """
    if isinstance(event, events.UnknownEvent):
        return orjson.dumps({**event.raw, **(extras or {})})
    return orjson.dumps({"type": event.type, **unstructure(event), **(extras or {})})


def extras_of(agent: items.Agent | None, stream_id: str | None) -> dict[str, Any]:
    """What an event of an item carries besides its members and its number."""
    lane = {} if stream_id is None else {"stream_id": stream_id}
    return lane if agent is None else {"agent": unstructure(agent), **lane}
