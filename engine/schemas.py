r"""JSON schemas: is one right, and how are values held against it? The only module that knows jsonschema-rs.

A schema is a value that fits the schema of its dialect. Its patterns are those of ECMAScript, as the standard has them:
`\p{L}` and `(?<year>\d{4})` are right, though Python could not compile them.
Nothing is ever fetched: a client's `$ref` is not followed at all, and one of a hosted tool must lead to a place in the
tool's own schema.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import jsonschema_rs

_NEWEST: Final = "https://json-schema.org/draft/2020-12/schema"
_DIALECTS: Final[Mapping[str, Any]] = {
    _NEWEST: jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
}
MAX_DEPTH: Final = 100
"""More than anybody writes, and less than whoever reads it afterwards, level by level, has room for on a stack."""


def fault_of(schema: Mapping[str, Any]) -> str | None:
    """Which rule the schema breaks, and where; None: it is a JSON schema. 64 KiB take half a millisecond."""
    if _is_too_deep(schema):
        return "the schema is nested too deeply."
    try:
        _schema_of_schemas(_dialect_of(schema)).validate(schema)
    except jsonschema_rs.ValidationError as error:
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        return f"{error.kind.name!r} fails at '{place[:200] or 'the top'}'."
    return None


def validator_of(schema: Mapping[str, Any]) -> Any:
    """To hold values against a schema. `ValueError`: it is none, or refers to another one."""
    fault = fault_of(schema)
    if fault is not None:
        raise ValueError(f"is no JSON schema: {fault}")
    try:
        return _DIALECTS[_dialect_of(schema)](schema, retriever=_fetch_nothing)
    except jsonschema_rs.ValidationError as error:
        raise ValueError(f"cannot be used: {error.message}") from None


def _dialect_of(schema: Mapping[str, Any]) -> str:
    """Tool servers often write draft 7, where some keywords mean other things; one that is unknown is read as the newest."""
    said = schema.get("$schema")
    known = said.rstrip("#") if isinstance(said, str) else _NEWEST
    return known if known in _DIALECTS else _NEWEST


@cache
def _schema_of_schemas(dialect: str) -> Any:
    formats = dict.fromkeys(("uri", "uri-reference"), _anything)  # what nobody follows may be spelled anyhow
    return _DIALECTS[dialect]({"$ref": dialect}, validate_formats=True, formats=formats)


def _anything(_text: str) -> bool:
    return True


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is in another document, and none is fetched")


def _is_too_deep(schema: Mapping[str, Any]) -> bool:
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _members(each) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _members(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, Mapping) else value)
