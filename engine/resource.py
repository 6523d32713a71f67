"""The response resource as a create asks for it: what the client set is echoed, the rest has its default (reference 6)."""

from collections.abc import Mapping
from typing import Any

import attrs

from protocol.events import Response, ResponseCreate

_FIELDS = frozenset(attribute.name for attribute in attrs.fields(Response))
_ECHOED = tuple(
    attribute.name
    for attribute in attrs.fields(ResponseCreate)
    if attribute.name in _FIELDS - {"model", "tools", "text", "reasoning", "background"}
)


def resource_of(create: ResponseCreate, response_id: str, created_at: int) -> Response:
    """The resource of a response that has just begun."""
    echo = {name: value for name in _ECHOED if (value := getattr(create, name)) is not None}
    blank = Response(response_id, created_at, create.model or "")
    return attrs.evolve(
        blank,
        **echo,
        tools=tuple(map(_tool, create.tools or ())),
        text={**blank.text, **(create.text or {})},
        reasoning={**blank.reasoning, **(create.reasoning or {})},
    )


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Function tools always with all five members; `strict` counts as true in the echo (reference 8.4)."""
    if tool.get("type") != "function":
        return tool
    strict = tool.get("strict")
    return {"description": None, "parameters": None, **tool, "strict": True if strict is None else strict}
