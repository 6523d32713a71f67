"""How gpt-oss is told of tools: namespaces of TypeScript types; and what a recipient in its answers means.

The text is that of the `oss-harmony` renderer, which is compared with this one at start-up and in the tests.
That renderer is not used on what clients send: it takes quadratic time on long runs of one class of characters, and
panics at a megabyte of them.

A tool is called by its *recipient*: `functions.name`, `namespace.name`, or `server_label.name` of a hosted one.
A header is split at spaces, so white space in names is written as `_` there, in the declaration too.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from engine.tool_table import ToolKey

FUNCTIONS: Final = "functions"
MAX_SCHEMA_DEPTH: Final = 60
"""Below it a schema is shown as `any`."""

_SPACE: Final = re.compile(r"\s+")
_SIMPLE: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}


@attrs.frozen
class Declared:
    """One tool as the model sees it."""

    name: str
    description: str
    parameters: Any = None
    """A JSON schema; None: no arguments."""
    custom: bool = False


@attrs.define
class Namespace:
    """Tools under one head."""

    name: str
    description: str = ""
    tools: list[Declared] = attrs.field(factory=list)


@attrs.frozen
class Recipient:
    """Whom a call is addressed to. `custom`: its input is free text."""

    name: str
    namespace: str | None = None
    custom: bool = False


class Recipients:
    """Reads recipients under the tools of a request. Linear in the tools once, constant per call."""

    def __init__(self, tools: Iterable[Mapping[str, Any]] = ()) -> None:
        self._known: dict[str, Recipient] = {}
        for namespace in namespaces(tools):
            own = None if namespace.name == FUNCTIONS else namespace.name
            for tool in namespace.tools:
                spelled = recipient(tool.name, own)
                self._known.setdefault(spelled, Recipient(tool.name, own, tool.custom))

    def read(self, spelled: str) -> Recipient:
        """The tool; one that nobody declared is split at its first dot."""
        known = self._known.get(spelled)
        if known is not None:
            return known
        head, dot, name = spelled.partition(".")
        if not dot or not name:
            return Recipient(spelled)
        return Recipient(name, None if head == FUNCTIONS else head)


def recipient(name: str, namespace: str | None) -> str:
    """A tool's name in a header."""
    return _word(f"{FUNCTIONS if namespace is None else namespace}.{name}")


def namespaces(tools: Iterable[Mapping[str, Any]]) -> list[Namespace]:
    """The callable tools in the order of the library: by name of the namespace. Others are never called, nor shown."""
    found: dict[str, Namespace] = {}
    for tool in tools:
        match tool.get("type"):
            case "namespace":
                space = _space(found, str(tool.get("name")))
                space.description = _text(tool.get("description"))
                space.tools += filter(None, map(_declared, _objects(tool.get("tools"))))
            case "mcp":
                _space(found, str(tool.get("server_label"))).tools += _hosted(tool)
            case _:
                declared = _declared(tool)
                if declared is not None:
                    _space(found, FUNCTIONS).tools.append(declared)
    return [found[name] for name in sorted(found, key=str.encode) if found[name].tools]


def tools_section(spaces: Sequence[Namespace]) -> str:
    """The section `# Tools`."""
    return "\n\n".join(["# Tools", *("\n".join(_namespace_lines(space)) for space in spaces)])


def typescript(schema: Any, indent: str = "", depth: int = 0) -> str:
    """A JSON schema as a TypeScript type; what has no counterpart is `any`."""
    if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
        return "any"
    variants = schema.get("oneOf")
    if isinstance(variants, list):
        return "".join(
            f"\n{indent} | {_nullable(variant, indent + '   ', depth)}{_remark(variant)}"
            for variant in variants
        )
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = ["number" if one == "integer" else one for one in kind if isinstance(one, str)]
        return " | ".join(kinds) or "any"
    if kind == "object":
        return _object(schema, indent, depth)
    if kind == "array":
        return f"{typescript(schema['items'], indent, depth + 1)}[]" if "items" in schema else "Array<any>"
    if kind == "string" and isinstance(schema.get("enum"), list):
        return " | ".join(f'"{one}"' for one in schema["enum"] if isinstance(one, str)) or "string"
    return _SIMPLE.get(kind, "any") if isinstance(kind, str) else "any"


# --- tools -------------------------------------------------------------------------------------------------------


def _space(found: dict[str, Namespace], name: str) -> Namespace:
    return found.setdefault(name, Namespace(name))


def _declared(tool: Mapping[str, Any]) -> Declared | None:
    name, description = _text(tool.get("name")), _text(tool.get("description"))
    match tool.get("type"):
        case "function":
            return Declared(name, description, tool.get("parameters"))
        case "custom":
            return Declared(name, description + _grammar(tool.get("format")), {"type": "string"}, custom=True)
        case "tool_search" if tool.get("execution") == "client":
            return Declared("tool_search", description, tool.get("parameters", {"type": "object"}))
    return None


def _grammar(form: Any) -> str:
    if not isinstance(form, Mapping) or form.get("type") != "grammar":
        return ""
    return f"\nThe input fits this {_text(form.get('syntax'))} grammar:\n{_text(form.get('definition'))}"


def _hosted(tool: Mapping[str, Any]) -> Iterator[Declared]:
    """Tools of a server label: as described in `tools`, else by the names that are allowed. Never its credentials."""
    allowed = tool.get("allowed_tools")
    if isinstance(allowed, Mapping):
        allowed = allowed.get("tool_names")
    described = {_text(one.get("name")): one for one in _objects(tool.get("tools"))}
    names = allowed if isinstance(allowed, list) else list(described)
    for name in names:
        if isinstance(name, str):
            one = described.get(name, {})
            schema = one.get("input_schema", one.get("parameters", {"type": "object"}))
            yield Declared(name, _text(one.get("description")), schema)


def _namespace_lines(space: Namespace) -> Iterator[str]:
    name = _word(space.name)
    yield f"## {name}\n"
    yield from (f"// {line}" for line in _lines(space.description))
    yield f"namespace {name} {{\n"
    for tool in space.tools:
        yield from (f"// {line}" for line in _lines(tool.description))
        arguments = "" if tool.parameters is None else f"_: {typescript(tool.parameters)}"
        yield f"type {_word(tool.name)} = ({arguments}) => any;\n"
    yield f"}} // namespace {name}"


# --- schemas -----------------------------------------------------------------------------------------------------


def _object(schema: Mapping[str, Any], indent: str, depth: int) -> str:
    lines = [f"{indent}// {schema['description']}\n" if isinstance(schema.get("description"), str) else ""]
    lines.append("{\n")
    required = {one for one in _list(schema.get("required")) if isinstance(one, str)}
    properties = schema.get("properties")
    for key, value in properties.items() if isinstance(properties, Mapping) else ():
        lines += _property(f"{key}{'' if key in required else '?'}:", _mapping(value), indent, depth)
    return f"{''.join(lines)}{indent}}}"


def _property(head: str, schema: Mapping[str, Any], indent: str, depth: int) -> Iterator[str]:
    description, variants = schema.get("description"), schema.get("oneOf")
    if isinstance(schema.get("title"), str):
        yield f"{indent}// {schema['title']}\n{indent}//\n"
    if isinstance(description, str) and "oneOf" not in schema:
        yield f"{indent}// {description}\n"
    if examples := _list(schema.get("examples")):
        yield f"{indent}// Examples:\n"
        yield from (f'{indent}// - "{one}"\n' for one in examples if isinstance(one, str))
    if isinstance(variants, list):
        yield from _union(head, schema, variants, indent, depth)
        return
    default = f" // {_default(schema)}" if "default" in schema and "oneOf" not in schema else ""
    yield f"{indent}{head} {_nullable(schema, indent + '    ', depth)},{default}\n"


def _union(
    head: str, schema: Mapping[str, Any], variants: Sequence[Any], indent: str, depth: int
) -> Iterator[str]:
    """A property of several types; its description is written once, above or at the first of them."""
    description = schema.get("description")
    first = _mapping(variants[0]).get("description") if variants else None
    above = isinstance(description, str) and description != first
    if above:
        yield f"{indent}// {description}\n"
    if "default" in schema:
        yield f"{indent}// {_default(schema)}\n"
    yield f"{indent}{head}\n"
    for place, variant in enumerate(variants):
        own = _mapping(variant).get("description")
        shown = isinstance(own, str) and own != description and not (above and place == 0)
        remarks = [own] if shown else []
        if "default" in _mapping(variant):
            remarks.append(_default(variant))
        remark = f" // {' '.join(map(str, remarks))}" if remarks else ""
        yield f"{indent} | {_nullable(variant, indent + '   ', depth)}{remark}\n"
    yield f"{indent},\n"


def _nullable(schema: Any, indent: str, depth: int) -> str:
    written = typescript(schema, indent, depth + 1)
    adds_null = _mapping(schema).get("nullable") is True and "null" not in written
    return f"{written} | null" if adds_null else written


def _remark(variant: Any) -> str:
    """What stands behind a variant of a union that is no property."""
    schema = _mapping(variant)
    remarks = [schema["description"]] if isinstance(schema.get("description"), str) else []
    if "default" in schema:
        plain = isinstance(schema["default"], str) and not _list(schema.get("enum"))
        remarks.append(f'default: "{schema["default"]}"' if plain else f"default: {_json(schema['default'])}")
    return f" // {' '.join(remarks)}" if remarks else ""


def _default(schema: Mapping[str, Any]) -> str:
    default = schema["default"]
    if not isinstance(default, str):
        return f"default: {_json(default)}"
    return f"default: {default}" if _list(schema.get("enum")) else f'default: "{default}"'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _lines(text: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _word(name: str) -> str:
    return _SPACE.sub("_", name)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    return (one for one in _list(value) if isinstance(one, Mapping))


def tool_key(choice: Mapping[str, Any]) -> ToolKey:
    """The tool that a `tool_choice` names."""
    namespace = choice.get("namespace")
    return (namespace if isinstance(namespace, str) else None), _text(choice.get("name"))
