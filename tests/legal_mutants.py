"""Why a changed trace may still be legal: `REASONS`, each a predicate as narrow as it can be.

A mutant that the checker passes is either a miss, or says nothing that is wrong; what no reason covers counts as missed.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from protocol.strategies.breaking import TERMINAL, kind_of, owners_of, place_of
from tests.mutants import JSON, Mutant, is_event

_PROGRESS = re.compile(
    r"response\.(\w+_call|mcp_list_tools)\.(in_progress|searching|generating|completed|failed)"
)
_CITATION = "response.output_text.annotation.added"
_TEXT_EVENTS = ("response.output_text.delta", "response.output_text.done")
_PART_BEGINS = ("response.content_part.added", "response.reasoning_summary_part.added")
_PART_ENDS = ("response.content_part.done", "response.reasoning_summary_part.done")


def _changes(mutant: Mutant, operator: str, *kinds: str) -> bool:
    return mutant.operator == operator and mutant.kind in kinds


def _swaps(mutant: Mutant, one: Sequence[str], other: Sequence[str]) -> bool:
    """Events of these kinds, in this order or in the other."""
    if mutant.operator != "swap":
        return False
    two = mutant.kind, mutant.next_kind
    return (two[0] in one and two[1] in other) or (two[0] in other and two[1] in one)


def _is_progress(mutant: Mutant) -> bool:
    """Of a hosted tool; swapped with another event between its item's added and done."""
    if mutant.operator in ("drop", "double"):
        return bool(_PROGRESS.fullmatch(mutant.kind))
    inside = not {mutant.kind, mutant.next_kind} & {"response.output_item.added", "response.output_item.done"}
    return (
        mutant.operator == "swap"
        and inside
        and any(map(_PROGRESS.fullmatch, (mutant.kind, mutant.next_kind)))
    )


def _is_of_hosted_arguments(mutant: Mutant) -> bool:
    if mutant.kind.startswith("response.mcp_call_arguments."):
        return mutant.operator != "alter" or mutant.path == ("delta",)
    item = mutant.frame.get("item", {})
    return (
        mutant.path == ("item", "arguments") and item["type"] == "mcp_call" and mutant.kind.endswith("added")
    )


def _is_last_citation(mutant: Mutant) -> bool:
    return _changes(mutant, "drop", _CITATION) and mutant.next_kind != _CITATION


def _is_part_of_reasoning(mutant: Mutant) -> bool:
    return _changes(mutant, "drop", _PART_BEGINS[0]) and mutant.frame["part"]["type"] == "reasoning_text"


def _is_in_words_of_error(mutant: Mutant) -> bool:
    """Of a refusal, of a failed response, of a hosted tool."""
    if mutant.path[-2:] in (("error", "code"), ("error", "type")):
        return mutant.kind in ("error", "response.failed", "response.output_item.done")
    return _changes(mutant, "alter", "error") and mutant.path in (("status",), ("code",))


def _is_search_id(mutant: Mutant) -> bool:
    return mutant.path == ("item", "call_id") and mutant.frame["item"]["type"] == "tool_search_call"


def _is_never_done(mutant: Mutant) -> bool:
    """Something within an item that is cut: of its text, parts and type nothing follows."""
    frame, later = mutant.frame, mutant.before.records[mutant.place + 1 :]
    name = frame.get("item_id") or frame.get("item", {}).get("id")
    if name is None or any(_is_done_of(record, name) for record in later):
        return False
    if mutant.kind == "response.output_item.added":
        free = mutant.path[:1] == ("item",) and mutant.path[-1] != "id"
        return free or not any(name == record["frame"].get("item_id") for record in later if is_event(record))
    return mutant.kind != "response.output_item.done"


def _is_done_of(record: JSON, name: str) -> bool:
    return kind_of(record) == "response.output_item.done" and record["frame"]["item"]["id"] == name


def _is_empty(mutant: Mutant) -> bool:
    """A delta of nothing, or swapped with one."""
    if mutant.operator == "swap":
        other = mutant.before.records[next(mutant.next_places())]["frame"]
        return "" in (mutant.frame.get("delta"), other.get("delta")) and "delta" in mutant.frame
    return mutant.operator in ("drop", "double") and mutant.frame.get("delta") == ""


def _is_repeated_error(mutant: Mutant) -> bool:
    return _changes(mutant, "double", "error") and (mutant.is_sse or _is_said_limit(mutant.frame))


def _is_unsaid_limit(mutant: Mutant) -> bool:
    return _changes(mutant, "drop", "error") and _is_said_limit(mutant.frame)


def _is_said_limit(frame: JSON) -> bool:
    return bool(frame.get("error", {}).get("code") == "websocket_connection_limit_reached")


def _is_count_that_fits(mutant: Mutant) -> bool:
    """The cached ones are known where a ledger has the sum of the append form's segments."""
    known = mutant.before.header["dialect"] == "append" and "post_inference" in mutant.hooks
    uncertain = ("reasoning_tokens",) if known else ("reasoning_tokens", "cached_tokens")
    return mutant.operator == "alter" and mutant.path[-1] in uncertain


def _is_unknown_reason(mutant: Mutant) -> bool:
    """No sampler said that the length was it."""
    if mutant.path[-1:] != ("reason",):
        return False
    said = mutant.frame["response"]["incomplete_details"]["reason"]
    return "sampler_stop" not in mutant.hooks or said != "max_output_tokens"


def _is_hung_up(mutant: Mutant) -> bool:
    """A refusal is missing, or the end of a response with nothing behind it on its lane; and the client hung up."""
    if not _changes(mutant, "drop", *TERMINAL, "error"):
        return False
    later = mutant.before.records[mutant.place + 1 :]
    nothing_more = mutant.kind == "error" or not any(
        is_event(record) and place_of(record) == place_of(mutant.record) for record in later
    )
    return nothing_more and any(_is_hanging_up(record, mutant.record["conn"]) for record in later)


def _is_hanging_up(record: JSON, conn: str) -> bool:
    if record["conn"] != conn or kind_of(record) != "{connection_close}":
        return False
    return record["frame"].get("by") in ("client", "network")


def _is_limit(mutant: Mutant) -> bool:
    if not _swaps(mutant, TERMINAL, ("error",)):
        return False
    return _is_said_limit(mutant.before.records[next(mutant.next_places())]["frame"])


def _is_unseen_pause(mutant: Mutant) -> bool:
    """Of the append form: outputs follow, and no hook says that the server waited."""
    if not _changes(mutant, "drop", "response.done") or "suspend" in mutant.hooks:
        return False
    later = mutant.before.records[mutant.place + 1 :]
    asked = (kind_of(record) for record in later if record["dir"] == "in")
    return next(asked, None) == "response.append"


def _is_unseen_resume(mutant: Mutant) -> bool:
    """The answer to an inject and the next item change places, and no hook says that the response waited."""
    if not _swaps(
        mutant, ("response.inject.created", "response.inject.failed"), ("response.output_item.added",)
    ):
        return False
    before = [kind_of(record) for record in mutant.before.records[: mutant.place]]
    pauses = [kind for kind in before if kind in ("{suspend}", "{resume}")]
    return pauses[-1:] != ["{suspend}"]


def _may_end(mutant: Mutant) -> bool:
    """Behind this event the response of each lane has ended, or waits for its client."""
    if mutant.operator != "truncate" or mutant.before.header["dialect"] == "http":
        return False
    records = mutant.before.records[: mutant.place + 1]
    owners = owners_of(records)
    last: dict[str, JSON] = {}
    current: dict[tuple[str, str | None], str] = {}
    for record in records:
        if is_event(record) and kind_of(record) not in ("error", "response.inject.failed"):
            owner = owners.get(id(record["frame"])) or current.get(place_of(record), "")
            last[owner], current[place_of(record)] = record["frame"], owner
    return all(_rests(last[owner]) for owner in current.values())


def _rests(frame: JSON) -> bool:
    """A response with this event as its last has ended, or may wait: in the inject form behind any call."""
    if frame["type"] in (*TERMINAL, "response.done", "response.inject.created"):
        return True
    return frame["type"] == "response.output_item.done" and "agent" in frame


REASONS: Mapping[str, Callable[[Mutant], bool]] = {
    "in_progress may be left out": lambda m: _changes(m, "drop", "response.in_progress"),
    "in_progress may come behind an error": lambda m: _swaps(m, ("response.in_progress",), ("error",)),
    "progress events of hosted tools are free": _is_progress,
    "arguments of hosted calls are not compared (C5 is off)": _is_of_hosted_arguments,
    "a citation may stand anywhere in its part": lambda m: _swaps(m, (_CITATION,), _TEXT_EVENTS),
    "a citation may stand in the closed part only": _is_last_citation,
    "parts of reasoning need not be announced": _is_part_of_reasoning,
    "parts of one item may overlap": lambda m: _swaps(m, _PART_ENDS, _PART_BEGINS),
    "a response may fail without an error event": lambda m: _changes(m, "drop", "error") and m.is_sse,
    "which error it is stands in no rule": _is_in_words_of_error,
    "which create of two is refused stands in no rule": lambda m: _swaps(
        m, ("error",), ("error", "response.created")
    ),
    "an item may be closed between an error and the end": lambda m: (
        _swaps(m, ("error",), ("response.output_item.done",)) and m.is_sse
    ),
    "an error may be said again": _is_repeated_error,
    "a server may close without a word": _is_unsaid_limit,
    "a steer may be answered behind the end": lambda m: _swaps(m, ("response.steer.accepted",), TERMINAL),
    "which id a steer gets": lambda m: m.path == ("steer", "id"),
    "an empty delta says nothing": _is_empty,
    "nothing follows of an item that is cut": _is_never_done,
    "the call_id of a search may change (I5 is off)": _is_search_id,
    "a count that fits the others": _is_count_that_fits,
    "why it is incomplete only the sampler knows": _is_unknown_reason,
    "the client hung up, perhaps first": _is_hung_up,
    "the age limit may be said while a response samples": _is_limit,
    "the inject form does not show its pause": _is_unseen_resume,
    "no pause, if the outputs came before it": _is_unseen_pause,
    "the stream may end here": _may_end,
    "the recorder stopped first": lambda m: (
        m.before.header.get("complete") is False and (m.operator == "truncate" or not any(m.next_places()))
    ),
}
"""Why a mutant says nothing wrong: the reason, and when it holds."""


def reason_of(mutant: Mutant) -> str | None:
    """The first reason that holds, None if the mutant is a miss."""
    return next((reason for reason, holds in REASONS.items() if holds(mutant)), None)
