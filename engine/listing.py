"""Input items as a list: every one with an id, and a page of them (reference 10.6)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import orjson

from protocol import codec
from protocol.errors import refusal
from protocol.items import InputText, Item, Message, Opaque, OutputText

_PREFIXES: Final[Mapping[str, str]] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
}
DEFAULT_LIMIT, MAX_LIMIT = 20, 100


def listed_items(items: Sequence[Item], new_id: Callable[[str], str]) -> tuple[Item, ...]:
    """The items as they are listed: with ids where the client gave none, and with contents as lists of parts."""
    return tuple(_listed(item, new_id) for item in items)


def _listed(item: Item, new_id: Callable[[str], str]) -> Item:
    if isinstance(item, Opaque):
        return item if isinstance(item.raw.get("id"), str) else Opaque({**item.raw, "id": new_id("item")})
    if isinstance(item, Message) and isinstance(item.content, str):
        part = OutputText(item.content) if item.role == "assistant" else InputText(item.content)
        item = attrs.evolve(item, content=(part,))
    if item.id is not None:
        return item
    return attrs.evolve(item, id=new_id(_PREFIXES[item.type]))


def id_of(item: Item) -> str:
    """The id of a listed item."""
    return str(item.raw["id"] if isinstance(item, Opaque) else item.id)


def page_body(items: Sequence[Item], query: Mapping[str, str]) -> bytes:
    """One page as JSON. `RemoteProtocolError`: a member of the query is wrong."""
    limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MAX_LIMIT):
        raise refusal("invalid_value", field="limit")
    if order not in {"asc", "desc"}:
        raise refusal("invalid_value", field="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = _place_after(ordered, query["after"]) if "after" in query else 0
    page = ordered[start : start + int(limit)]
    return orjson.dumps(_list_object(page, has_more=start + len(page) < len(ordered)))


def _place_after(ordered: Sequence[Item], after: str) -> int:
    for place, item in enumerate(ordered, start=1):
        if id_of(item) == after:
            return place
    raise refusal("invalid_value", field="after")


def _list_object(page: Sequence[Item], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [codec.unstructure(item) for item in page],
        "first_id": id_of(page[0]) if page else None,
        "last_id": id_of(page[-1]) if page else None,
        "has_more": has_more,
    }
