"""What a client answers to the calls of a response: which outputs, in what order, in how many frames, right or wrong.

A program is a tuple of `Move`s. Each says what goes into the frame, when it is sent, and what a server must do with it:
take it, or refuse it with these words and stay as it was.
Whether a move is right is found by a model of three lines (`judge`), which shares no code with any server.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import attrs
from hypothesis import strategies as st

from protocol.errors import refusal
from protocol.strategies.values import texts

JSON = Mapping[str, Any]
Form = Literal["append", "inject"]

OUTPUT_OF: Final[Mapping[str, str]] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "tool_search_call": "tool_search_output",
}
"""The type of the item that answers a call."""

_OTHER: Final[Mapping[str, str]] = {
    "function_call": "custom_tool_call",
    "custom_tool_call": "tool_search_call",
    "tool_search_call": "function_call",
}
"""Another kind of call, of which the output does not fit."""


@attrs.frozen
class Call:
    """A client tool's call, as far as its output must know it."""

    call_id: str
    type: str = "function_call"


@attrs.frozen
class Move:
    """One frame of a client.

    `input`: its items. `after`: how many of the calls must be announced before it is sent.
    `paused`: only when the server waits; else at once, while it may still sample.
    `refused`: None if all of it must be taken, else the (code, message) of the refusal; nothing of it is taken then.
    `answers`: the calls that have an output after it and had none before.
    """

    input: tuple[JSON, ...]
    after: int
    paused: bool = True
    refused: tuple[str | None, str] | None = None
    answers: tuple[str, ...] = ()


def output_of(call: Call, output: Any = "ok") -> JSON:
    """The item that answers a call; of a search for tools, that there are none."""
    if call.type == "tool_search_call":
        found = {"execution": "client", "status": "completed", "tools": []}
        return {"type": OUTPUT_OF[call.type], "call_id": call.call_id, **found}
    return {"type": OUTPUT_OF[call.type], "call_id": call.call_id, "output": output}


def judge(
    batch: Sequence[JSON],
    pending: Mapping[str, Call],
    answered: Sequence[str],
    *,
    form: Form,
    response_id: str,
) -> tuple[str | None, str] | None:
    """Why a batch must be refused: the first of its members that may not come in. None: all may."""
    seen = set(answered)
    for member in batch:
        call_id = member.get("call_id", "")
        call = pending.get(call_id)
        if member["type"] == "message":
            if form == "append":
                continue
            error = refusal("not_acceptable", type="message", verb="injected")
        elif call is None or OUTPUT_OF[call.type] != member["type"]:
            error = refusal("not_pending", call_id=call_id, response_id=response_id)
        elif call_id in seen:
            error = refusal("has_output", call_id=call_id)
        else:
            seen.add(call_id)
            continue
        return error.code, error.message
    return None


Fault = Literal["nobody's", "again", "twice", "wrong kind", "half good", "message"]

_FAULTS: Final[Mapping[Form, tuple[Fault, ...]]] = {
    "append": ("nobody's", "again", "twice", "wrong kind", "half good"),
    "inject": ("nobody's", "again", "twice", "wrong kind", "half good", "message"),
}


def _faulty(fault: Fault, call: Call, answered: Sequence[Call]) -> tuple[JSON, ...]:
    """A batch with this fault around a call that is still pending."""
    right = output_of(call)
    stranger = output_of(Call("call_nobody"))
    return {
        "nobody's": (stranger,),
        "again": (output_of(answered[-1] if answered else Call("call_nobody"), "again"),),
        "twice": (right, right),
        "wrong kind": (output_of(Call(call.call_id, _OTHER[call.type])),),
        "half good": (right, stranger),
        "message": (right, {"type": "message", "role": "user", "content": "hurry"}),
    }[fault]


@st.composite
def tool_output_programs(
    draw: st.DrawFn,
    calls: Sequence[Call],
    *,
    form: Form = "append",
    response_id: str = "resp_1",
    faulty: bool = True,
    early: bool = True,
) -> tuple[Move, ...]:
    """Programs that answer all of these calls in the end, each once, in any order, in one frame or in several.

    With `faulty`, refused frames stand between the others: unknown calls, second outputs, two outputs for one call,
    outputs of the wrong kind, good outputs beside a bad one, and in the inject form messages.
    With `early`, outputs may be sent as soon as their call is announced (`Move.after`), before the server waits.
    In the append form a message may come along or alone.
    Shrinks to one frame with all outputs in call order, sent when the server waits.
    """
    order = draw(st.permutations(range(len(calls))))
    rushed = early and draw(st.booleans())
    moves: list[Move] = []
    answered: list[Call] = []
    known = {call.call_id: call for call in calls}
    while len(answered) < len(calls):
        left = order[len(answered) :]
        size = len(left) - draw(st.integers(0, len(left) - 1))
        chosen = left[:size]
        after = max([*chosen, *(move.after - 1 for move in moves)]) + 1
        ids = [call.call_id for call in answered]

        def add(batch: tuple[JSON, ...], after: int = after, ids: Sequence[str] = ids) -> None:
            announced = {call.call_id: call for call in calls[:after]} if rushed else known
            refused = judge(batch, announced, ids, form=form, response_id=response_id)
            answers = () if refused else tuple(item["call_id"] for item in batch if "call_id" in item)
            moves.append(Move(batch, after if rushed else len(calls), not rushed, refused, answers))

        if faulty and draw(st.booleans()):
            for fault in draw(st.lists(st.sampled_from(_FAULTS[form]), min_size=1, max_size=2)):
                add(_faulty(fault, calls[chosen[0]], answered))
        said = _MESSAGE if form == "append" and draw(st.integers(0, 3)) == 3 else ()
        if said and draw(st.booleans()):
            add(said)
            said = ()
        add((*(output_of(calls[place], draw(texts)) for place in chosen), *said))
        answered += [calls[place] for place in chosen]
    return tuple(moves)


_MESSAGE: Final = ({"type": "message", "role": "user", "content": "and be brief"},)
