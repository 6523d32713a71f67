"""JSON schemas for backends that make a model keep to one."""

from collections.abc import Mapping
from typing import Any, Final

from engine.formats.shown_tools import ShownTool, ShownTools

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
QUOTED_TEXT: Final[Mapping[str, Any]] = {"type": "string", "pattern": r'^[A-Z][^"\\<{}\n]{0,160}[.!?]$'}
"""A few sentences that cannot be a call, as a JSON string: what else is there to forbid one with."""


def calls_schema(tools: ShownTools) -> Mapping[str, Any]:
    """One call of any of these tools: `{"name": …, "arguments": …}`."""
    definitions = {
        f"arguments_{place}": _moved(_closed(tool.parameters), f"#/$defs/arguments_{place}")
        for place, tool in enumerate(tools)
    }
    calls = [_call(tool, f"#/$defs/arguments_{place}") for place, tool in enumerate(tools)]
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), "$defs": definitions}


def _call(tool: ShownTool, arguments: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.shown}, "arguments": {"$ref": arguments}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema of an object without a word on other members: a small model would invent some."""
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        return {**schema, "additionalProperties": False}
    return schema


def _moved(schema: Any, place: str) -> Any:
    """The schema with its inner references leading to `place`, where it now stands."""
    if isinstance(schema, list):
        return [_moved(entry, place) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def text_schema(text_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What `text.format` asks for; None: any text."""
    if text_format is None:
        return None
    if text_format.get("type") == "json_object":
        return ANY_OBJECT
    schema = text_format.get("schema")
    return schema if isinstance(schema, Mapping) else None
