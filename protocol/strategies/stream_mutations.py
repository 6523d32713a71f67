"""What may go wrong in the events of one response, by name, with the rule that forbids it; in the order of the rules."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

from protocol.strategies.breaking import (
    COMPLETED,
    JSON,
    TERMINAL,
    Mutation,
    Records,
    after,
    alter,
    at,
    before,
    both,
    complete,
    counts,
    double,
    drop,
    ending_of,
    ends_completed,
    events,
    has,
    kind_of,
    put,
    put_in,
    swap,
    without,
)
from protocol.strategies.writer import Trace

_ADDED: Final = "response.output_item.added"
_DONE: Final = "response.output_item.done"
_TEXT: Final = "response.output_text"
_ARGUMENTS: Final = "response.function_call_arguments"
_PART: Final = "response.content_part"
_WEBSOCKET: Final = ("create", "inject", "append")


def _of(kind: str) -> Any:
    """The item is of this type."""
    return lambda records, place: records[place]["frame"]["item"]["type"] == kind


def _in_part(kind: str) -> Any:
    return lambda records, place: records[place]["frame"]["part"]["type"] == kind


def _refuses_create(records: Sequence[JSON], place: int) -> bool:
    """Nor may a successor that nobody asks for be taken for its answer."""
    if any(kind_of(record) == "response.steer" for record in records):
        return False
    code = records[place]["frame"].get("error", {}).get("code")
    return code in ("model_not_found", "previous_response_not_found")


def _repeats_a_call(records: Sequence[JSON], place: int) -> bool:
    """The response has another call, before this one."""
    calls = [item["call_id"] for item in records[place]["frame"]["response"]["output"] if "call_id" in item]
    return len(calls) >= 2


def _use_call_id_again(records: Records, place: int) -> None:
    calls = [item for item in records[place]["frame"]["response"]["output"] if "call_id" in item]
    old, new = calls[1]["call_id"], calls[0]["call_id"]
    for record in records:
        frame = record["frame"]
        items = [frame["item"]] if isinstance(frame, dict) and "item" in frame else []
        for item in [*items, *calls]:
            if item.get("call_id") == old:
                item["call_id"] = new


def _start_again(records: Records, place: int) -> None:
    """Count from 0 behind a pause."""
    lane, conn = records[place]["frame"].get("stream_id"), records[place]["conn"]
    number = 0
    for record in records[place + 1 :]:
        frame = record["frame"]
        if record["dir"] != "out" or record["conn"] != conn or frame.get("stream_id") != lane:
            continue
        if kind_of(record) == "response.created":
            break
        if "sequence_number" in frame:
            frame["sequence_number"], number = number, number + 1


def _complete_next(records: Records, place: int) -> None:
    complete(records, next(at for at in range(place, len(records)) if kind_of(records[at]) in TERMINAL))


def _first_created(records: Records, place: int) -> JSON:
    found = [r["frame"] for r in records[:place] if kind_of(r) == "response.created"]
    return deepcopy(found[-1])


def _silent(records: Records, place: int) -> None:
    records[place]["frame"] = {"type": "http.response", "status": 200}


def _with_total(usage: JSON) -> JSON:
    return {**usage, "total_tokens": usage["total_tokens"] + 1}


def _without_cache(usage: JSON) -> JSON:
    return {**usage, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}}


def _with_event(name: str) -> Any:
    def change(records: Records, place: int) -> None:
        records[place]["event"] = name

    return change


def _end_marks(trace: Trace) -> Iterator[int]:
    """Where nobody hangs up, who may have been first."""
    return (
        place
        for place, record in enumerate(trace.records)
        if not trace.header["hooks"] and record["frame"] == "[DONE]"
    )


STREAM: Final = (
    # framing
    Mutation(
        "the event line says another type", ("T1",), at(_ADDED, dialects=("http",)), _with_event("x"), False
    ),
    Mutation("[DONE] is left out", ("T1",), _end_marks, drop),
    Mutation("[DONE] comes twice", ("T1",), _end_marks, double),
    Mutation(
        "an event of one's own",
        ("T2",),
        at("response.in_progress", dialects=_WEBSOCKET),
        put(["type"], "response.resumed"),
    ),
    # life of a response
    Mutation(
        "created is completed", ("R1",), at("response.created"), put(["response", "status"], "completed")
    ),
    Mutation("created comes twice", ("R2",), at("response.created", dialects=("http",)), double),
    Mutation("in_progress comes late", ("R2",), at("response.in_progress", when=before(_ADDED)), swap),
    Mutation(
        "created comes again after a pause",
        ("R2",),
        at(
            "response.append",
            dialects=("append",),
            hooks=False,
            when=both(after("response.done"), before(_ADDED)),
        ),
        put_in(_first_created),
    ),
    Mutation("the terminal event comes twice", ("R3",), at(*TERMINAL), double),
    Mutation("no terminal event", ("R3",), at(*TERMINAL, dialects=("http",), hooks=False), drop),
    Mutation("completed says incomplete", ("R4",), at(COMPLETED), put(["response", "status"], "incomplete")),
    Mutation("failed without an error", ("R4",), at("response.failed"), put(["response", "error"], None)),
    Mutation("the model changes", ("R5",), at(*TERMINAL), put(["response", "model"], "another")),
    Mutation("the id changes", ("R5",), at(*TERMINAL), put(["response", "id"], "resp_another")),
    Mutation("an error, then completed", ("R6",), at("error", dialects=("http",)), _complete_next),
    Mutation("a refused create hears nothing", ("R7",), at("error", hooks=False, when=_refuses_create), drop),
    Mutation(
        "a refused request hears 200 and nothing",
        ("R7",),
        at("http.response", hooks=False, when=has("body", "error")),
        _silent,
    ),
    Mutation("a refusal without status", ("R7",), at("error", when=has("status")), without("status")),
    Mutation(
        "a length stop called completed",
        ("R8",),
        at(
            "response.incomplete",
            hooks=True,
            when=lambda r, p: "max_output" in str(r[p]["frame"]["response"]["incomplete_details"]),
        ),
        complete,
    ),
    # numbers
    Mutation(
        "a number comes twice",
        ("N1",),
        events(lambda records, place: records[place]["frame"]["sequence_number"] > 0),
        put(["sequence_number"], lambda number: number - 1),
        False,
    ),
    Mutation(
        "a number is passed over",
        ("N1",),
        at(_ADDED),
        put(["sequence_number"], lambda number: number + 1),
        False,
    ),
    Mutation("an event without a number", ("N1",), at(_ADDED, *TERMINAL), without("sequence_number"), False),
    Mutation(
        "numbers start again after a pause",
        ("N1",),
        at("response.done", when=lambda records, place: ending_of(records, place) is not None),
        _start_again,
        False,
    ),
    Mutation("an item is added twice", ("N2",), at(_ADDED), double),
    Mutation(
        "an item carries another's index", ("N2",), at(_ADDED), put(["output_index"], lambda index: index + 1)
    ),
    Mutation(
        "parts count from one", ("N3",), at(f"{_PART}.added"), put(["content_index"], lambda index: index + 1)
    ),
    # items
    Mutation(
        "an item is never added",
        ("I1",),
        at(_ADDED, when=before(f"{_PART}.added", f"{_ARGUMENTS}.delta")),
        drop,
    ),
    Mutation("an item's id changes", ("I2",), at(_DONE), put(["item", "id"], "item_another")),
    Mutation(
        "a message without content", ("I3",), at(_ADDED, when=_of("message")), without("item", "content")
    ),
    Mutation(
        "a call without call_id", ("I3",), at(_ADDED, when=_of("function_call")), without("item", "call_id")
    ),
    Mutation(
        "reasoning without summary", ("I3",), at(_ADDED, when=_of("reasoning")), without("item", "summary")
    ),
    Mutation("an item is never done", ("I4",), at(_DONE, when=ends_completed), drop),
    Mutation(
        "a call's call_id changes",
        ("I5",),
        at(_DONE, when=_of("function_call")),
        put(["item", "call_id"], "call_x"),
    ),
    Mutation("a call's name is null", ("I5",), at(f"{_ARGUMENTS}.done"), put(["name"], None)),
    Mutation(
        "the output has lost an item",
        ("I6",),
        at(COMPLETED, when=has("response", "output")),
        alter(lambda frame: frame["response"]["output"].pop()),
    ),
    Mutation(
        "the output is in another order",
        ("I6",),
        at(COMPLETED, when=counts("response", "output", least=2)),
        alter(lambda frame: frame["response"]["output"].reverse()),
    ),
    Mutation(
        "a call_id is used again",
        ("I7",),
        at(COMPLETED, dialects=("http", "create"), when=_repeats_a_call),
        _use_call_id_again,
    ),
    Mutation("an item is done twice", ("I8",), at(_DONE), double),
    Mutation("two items at once", ("I9",), at(_DONE, when=before(_ADDED)), swap),
    # content
    Mutation(
        "a part begins with text",
        ("C1",),
        at(f"{_PART}.added", when=_in_part("output_text")),
        put(["part", "text"], "Hello"),
    ),
    Mutation("a part is never opened", ("C1",), at(f"{_PART}.added", when=_in_part("output_text")), drop),
    Mutation("a text is done twice", ("C2",), at(f"{_TEXT}.done"), double),
    Mutation(
        "a text goes on after its end", ("C2",), at(f"{_TEXT}.delta", when=before(f"{_TEXT}.done")), swap
    ),
    Mutation("a part is never closed", ("C2",), at(f"{_PART}.done", when=_in_part("output_text")), drop),
    Mutation("a delta is lost", ("C3",), at(f"{_TEXT}.delta", when=ends_completed), drop),
    Mutation("a delta comes twice", ("C3",), at(f"{_TEXT}.delta", when=ends_completed), double),
    Mutation(
        "a delta is no text", ("C4",), at(f"{_TEXT}.delta"), put(["delta"], lambda piece: {"text": piece})
    ),
    Mutation("arguments lose a delta", ("C5",), at(f"{_ARGUMENTS}.delta", when=ends_completed), drop),
    Mutation("arguments are never done", ("C6",), at(f"{_ARGUMENTS}.done"), drop),
    Mutation(
        "a summary part is never closed",
        ("C8",),
        at("response.reasoning_summary_part.done", when=ends_completed),
        drop,
    ),
    Mutation(
        "annotations count from one",
        ("C9",),
        at(f"{_TEXT}.annotation.added"),
        put(["annotation_index"], lambda index: index + 1),
    ),
    Mutation(
        "a broken character", ("C10",), at(f"{_TEXT}.delta"), put(["delta"], lambda piece: f"{piece}\ufffd")
    ),
    # usage
    Mutation("usage does not add up", ("U1",), at(COMPLETED), put(["response", "usage"], _with_total)),
    Mutation("completed without usage", ("U1",), at(COMPLETED), put(["response", "usage"], None)),
    Mutation(
        "what was held counts again",
        ("U2",),
        at(
            COMPLETED,
            dialects=("append",),
            hooks=True,
            when=has("response", "usage", "input_tokens_details", "cached_tokens"),
        ),
        put(["response", "usage"], _without_cache),
    ),
)
