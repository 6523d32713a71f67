"""What may go wrong between client and server: lanes, pauses, outputs, hooks; by name, with the rule that forbids it."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final

from protocol.strategies.breaking import (
    COMPLETED,
    JSON,
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
    has,
    kind_of,
    put,
    put_in,
    swap,
    without,
)

_ADDED: Final = "response.output_item.added"
_DONE: Final = "response.output_item.done"
_WEBSOCKET: Final = ("create", "inject", "append")


def _is_again(records: Sequence[JSON], place: int) -> bool:
    """The connection had a response before."""
    conn = records[place]["conn"]
    return any(kind_of(record) == "response.created" and record["conn"] == conn for record in records[:place])


def _is_warm(records: Sequence[JSON], place: int) -> bool:
    lane = records[place]["frame"].get("stream_id")
    asked = [
        record["frame"]
        for record in records[:place]
        if kind_of(record) == "response.create" and record["frame"].get("stream_id") == lane
    ]
    return not records[place]["frame"]["response"]["output"] and asked[-1].get("generate") is False


def _is_cancelled(records: Sequence[JSON], place: int) -> bool:
    return bool(records[place]["frame"]["response"]["status"] == "cancelled")


def _answer_twice(records: Records, place: int) -> None:
    """The frame before and its answer, both once more."""
    records[place + 1 : place + 1] = deepcopy(records[place - 1 : place + 1])


def _end_now(records: Records, place: int) -> JSON:
    end = ending_of(records, place)
    assert end is not None
    return deepcopy(end)


def _say_again(name: str) -> Any:
    """Put in a hook, for the response of the hook at this place."""

    def change(records: Records, place: int) -> None:
        record = deepcopy(records[place])
        record["frame"] = {"hook": name, "response_id": record["frame"]["response_id"]}
        records.insert(place + 1, record)

    return change


def _with_output(usage: JSON) -> JSON:
    return {**usage, "output_tokens": 5, "total_tokens": usage["input_tokens"] + 5}


SESSION: Final = (
    # WebSocket
    Mutation(
        "the lane's label is lost",
        ("W2",),
        at(_DONE, when=has("stream_id")),
        without("stream_id"),
        False,
    ),
    Mutation(
        "a label from nowhere",
        ("W2",),
        at(_ADDED, dialects=_WEBSOCKET, when=lambda records, place: not has("stream_id")(records, place)),
        put(["stream_id"], "nowhere"),
        False,
    ),
    Mutation(
        "a response goes on with another's numbers",
        ("N1", "W3"),
        at("response.created", dialects=_WEBSOCKET, when=_is_again),
        put(["sequence_number"], 10),
        False,
    ),
    Mutation(
        "a warm-up samples",
        ("W7",),
        at(COMPLETED, dialects=("create",), when=_is_warm),
        put(["response", "usage"], _with_output),
    ),
    Mutation("a steer hears nothing", ("W15",), at("response.steer.accepted", hooks=False), drop),
    # suspension
    Mutation(
        "a pause in a form that has none",
        ("S1",),
        at(COMPLETED, dialects=("http", "create")),
        put_in(lambda _records, _place: {"type": "response.done"}, behind=False),
    ),
    Mutation("a pause is said twice", ("S1",), at("response.done"), double),
    Mutation(
        "completed while calls wait", ("S2",), at("response.done", when=ends_completed), put_in(_end_now)
    ),
    Mutation(
        "it speaks while it waits",
        ("S3",),
        at("response.append", hooks=False, when=both(after("response.done"), before(_ADDED))),
        swap,
    ),
    Mutation(
        "a refused input comes back changed",
        ("S4",),
        at("response.inject.failed"),
        alter(lambda frame: frame["input"].append(frame["input"][0])),
    ),
    Mutation(
        "an output is accepted twice",
        ("S7",),
        at("response.inject.created", hooks=False, when=after("response.inject")),
        _answer_twice,
    ),
    Mutation(
        "an append is accepted twice",
        ("S7",),
        at(
            "{accepted}",
            dialects=("append",),
            when=both(
                has("call_ids"), lambda records, place: kind_of(records[place - 1]) == "response.append"
            ),
        ),
        _answer_twice,
    ),
    Mutation("post-inference runs twice", ("S10",), at("{post_inference}"), double),
    Mutation("post-inference does not run", ("S10",), at("{post_inference}"), drop),
    Mutation("pre-inference does not run", ("S10",), at("{pre_inference}"), drop),
    Mutation("pre-inference runs again at the resume", ("S10",), at("{resume}"), _say_again("pre_inference")),
    Mutation(
        "outputs enter as they came",
        ("S11",),
        at("{resume}", when=counts("outputs", least=2)),
        alter(lambda frame: frame["outputs"].reverse()),
    ),
    Mutation(
        "an output among the output",
        ("S12",),
        at(COMPLETED),
        alter(
            lambda frame: frame["response"]["output"].append(
                {"id": "fco_1", "type": "function_call_output", "call_id": "call_1", "output": "ok"}
            )
        ),
    ),
    Mutation(
        "a cancelled response is completed", ("S14",), at("response.failed", when=_is_cancelled), complete
    ),
    Mutation("an inject hears nothing", ("S20",), at("response.inject.created", hooks=False), drop),
    Mutation("an inject is answered twice", ("S20",), at("response.inject.created", hooks=False), double),
    Mutation("it resumes twice", ("S23",), at("{resume}"), double),
)
