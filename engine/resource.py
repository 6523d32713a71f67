"""The response resource as a create asks for it: what the client set is echoed, the rest has its default (reference 6)."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import attrs

from protocol.dialects import EndRow
from protocol.errors import CATALOGUE, refusal
from protocol.events import IncompleteDetails, Response, ResponseCreate, ResponseError
from protocol.items import Item
from protocol.usage import Usage

_FIELDS = frozenset(attribute.name for attribute in attrs.fields(Response))
_ECHOED = tuple(
    attribute.name
    for attribute in attrs.fields(ResponseCreate)
    if attribute.name in _FIELDS - {"model", "tools", "text", "reasoning", "background"}
)
_echoed_of = attrgetter(*_ECHOED)
_BLANK: Final = Response("", 0, "")


def resource_of(create: ResponseCreate, response_id: str, created_at: int) -> Response:
    """The resource of a response that has just begun. Cheap enough to be made again instead of kept."""
    echo = {name: value for name, value in zip(_ECHOED, _echoed_of(create), strict=True) if value is not None}
    return Response(
        response_id,
        created_at,
        create.model or "",
        tools=tuple(map(_tool, create.tools)) if create.tools else (),
        text=_filled(_BLANK.text, create.text),
        reasoning=_filled(_BLANK.reasoning, create.reasoning),
        **{"metadata": _BLANK.metadata, **echo},
    )


def _filled(defaults: Mapping[str, Any], asked: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {**defaults, **asked} if asked else defaults


def resource_at_end(
    resource: Response,
    row: EndRow,
    *,
    output: Sequence[Item],
    usage: Usage | None,
    now: int,
    patience_seconds: float,
) -> Response:
    """The same resource as the terminal event shows it; `row` says how the rollout ended."""
    return attrs.evolve(
        resource,
        status=row.status,
        completed_at=now if row.status == "completed" else None,
        output=tuple(output),
        error=None if row.error is None else _error(row.error, resource.id, patience_seconds),
        incomplete_details=None if row.reason is None else IncompleteDetails(row.reason),
        usage=usage,
    )


def _error(line: str, response_id: str, seconds: float) -> ResponseError:
    words = refusal(line, response_id=response_id, seconds=seconds)
    return ResponseError(CATALOGUE[line].code_in_response or "server_error", words.message)


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Function tools always with all five members; `strict` counts as true in the echo (reference 8.4)."""
    if tool.get("type") != "function":
        return tool
    strict = tool.get("strict")
    return {"description": None, "parameters": None, **tool, "strict": True if strict is None else strict}
