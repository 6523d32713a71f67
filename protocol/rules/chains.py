"""W1, W2, W4 to W6, W12, W13 and I10: a create, the parent it names, and the answer it gets."""

import re
from typing import Any, Final

import orjson

from protocol.rules import steers
from protocol.rules.rule import Rule
from protocol.rules.run import Run, shown
from protocol.rules.session_rules import W2, W4, W5, W6, W12, W13
from protocol.rules.state import Connection, Create, Ended, Response
from protocol.rules.stream_rules import I10, R6, R7
from protocol.rules.tables import OUTPUTS

NO_CALL: Final = re.compile(r"no tool call found", re.IGNORECASE)
NOT_EVICTING: Final = frozenset(
    {
        "invalid_json",
        "invalid_event",
        "invalid_stream_id",
        "unsupported_event",
        "websocket_stream_limit_reached",
        "websocket_queue_limit_reached",
        "websocket_connection_limit_reached",
        "previous_response_not_found",
    }
)
HIDING: Final = frozenset({"item_reference", "compaction", "program", "program_output"})
"""Input items that may stand for calls a trace does not show."""


def cached(parent: Response | Ended | None, conn: Connection) -> bool:
    """Whether a parent is the latest response of a lane of this connection."""
    return isinstance(parent, Ended) and not parent.evicted and conn.latest.get(parent.lane) is parent


def asked(run: Run, create: Create) -> None:
    """A create was sent."""
    create.was_latest = cached(run.known(create.parent), create.conn)


def answered(
    run: Run, conn: Connection, lane: str | None, response_id: str | None, parent_id: object = None
) -> Create | None:
    """The create that a new response answers: the oldest of its lane. None: it follows a steered response."""
    if "in" not in run.directions:
        return None
    waiting = conn.creates.get(lane)
    parent = run.known(parent_id)
    if parent is not None and parent.conn is conn and parent.lane == lane and steers.starts_successor(parent):
        return None
    if waiting:
        return waiting.popleft()
    other = next((queue for queue in conn.creates.values() if queue), None)
    if other is not None:
        create = other.popleft()
        run.report(
            W2,
            f"stream_id {shown(create.lane)}",
            f"{shown(response_id)} created with stream_id {shown(lane)}",
            conn=conn,
            lane=create.lane,
            since=create.number,
        )
        return create
    return None


def accepted(run: Run, response: Response, create: Create) -> None:
    """A create led to a response: was that right?"""
    parent = run.known(create.parent)
    if create.parent is not None:
        found = _wrong_parent(run, create, parent)
        if found is not None:
            rule, expected = found
            run.report(
                rule,
                expected,
                f"{shown(response.id)} created on {create.parent}",
                of=response,
                also=(parent,),
            )
    _outputs(run, response, create, parent)
    _reasoning(run, response, create, parent)


def _wrong_parent(run: Run, create: Create, parent: Response | Ended | None) -> tuple[Rule, str] | None:
    words = "previous_response_not_found"
    if parent is None:
        # the hook tells whether it was found after all: it may have been stored before the trace began
        shown_elsewhere = create.store or run.http or "context" in run.hooks
        return None if shown_elsewhere else (W4, f"{words}: neither cached nor stored")
    ours, theirs = run.principal(create.conn), run.principal(parent.conn)
    if ours is not None and theirs is not None and ours != theirs:
        return W6, f"{words}: it belongs to another key"
    if parent.store:
        return None
    if parent.conn is not create.conn:
        return W6, f"{words}: it lives on {parent.conn.id}"
    if isinstance(parent, Ended) and parent.evicted:
        return W5, f"{words}: evicted"
    if (
        isinstance(parent, Ended)
        and not cached(parent, create.conn)
        and not create.was_latest
        and not run.http
    ):
        return W4, f"{words}: no longer the latest of its lane"
    return None


def _given(create: Create) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The items of a create's input, and its outputs by call."""
    listed = create.body.get("input")
    found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    outputs = {}
    for one in found:
        kind, call_id = one.get("type"), one.get("call_id")
        if isinstance(kind, str) and kind in OUTPUTS and isinstance(call_id, str):
            outputs[call_id] = kind
    return found, outputs


def _outputs(run: Run, response: Response, create: Create, parent: Response | Ended | None) -> None:
    """Every output has its call, and every open call of the parent its output."""
    items, given = _given(create)
    also = (parent,)
    for call_id, call in parent.calls.items() if parent is not None else ():
        if call.client and call.ready and not call.answered and call_id not in given:
            run.report(W13, f"refused: {call_id} has no output", "created", of=response, also=also)
            break
    kinds, whole = _known_calls(run, items, parent)
    if create.in_conversation or (create.parent is not None and parent is None):
        whole = False
    for call_id, kind in given.items():
        if call_id not in kinds:
            if whole:
                run.report(W13, f"refused: no call {shown(call_id)}", "created", of=response, also=also)
        elif kinds[call_id] != OUTPUTS[kind]:
            run.report(W13, f"refused: {kind} for a {kinds[call_id]}", "created", of=response, also=also)


def _known_calls(
    run: Run, items: list[dict[str, Any]], parent: Response | Ended | None
) -> tuple[dict[str, str], bool]:
    """The calls that an output may answer, and whether the trace shows all of them."""
    kinds: dict[str, str] = {}
    chain = run.chain(parent)
    for ancestor in chain:
        for name, call in ancestor.calls.items():
            kinds.setdefault(name, call.kind)
    whole = not chain or (chain[-1].parent is None and not any(one.gap for one in chain))
    for ancestor in chain:
        if isinstance(ancestor, Response) and ancestor.create is not None:
            items = [*items, *_given(ancestor.create)[0]]
    for item in items:
        kind, call_id = item.get("type"), item.get("call_id")
        if not isinstance(kind, str):
            whole = whole and "role" in item
        elif kind in HIDING:
            whole = False
        elif isinstance(call_id, str) and kind not in OUTPUTS:
            kinds[call_id] = kind
    return kinds, whole and not any(map(_hides, chain))


def _hides(ancestor: Response | Ended) -> bool:
    """Whether it may have calls that are not known of it."""
    if isinstance(ancestor, Ended):
        return ancestor.hides
    created_by = ancestor.create
    return ancestor.closed_at is not None or (created_by is not None and created_by.in_conversation)


def _reasoning(run: Run, response: Response, create: Create, parent: Response | Ended | None) -> None:
    """A replayed item comes with the reasoning before it."""
    ids = [one["id"] for one in _given(create)[0] if isinstance(one.get("id"), str)]
    if not ids:
        return
    inherited = {one.id for one in run.chain(parent)}
    for item_id in ids:
        owner = run.ended.get(run.owners.get(item_id) or "")
        if owner is None or owner.id in inherited:
            continue
        place = next((index for index, (one, _) in enumerate(owner.items) if one == item_id), 0)
        if place == 0 or owner.items[place][1] == "reasoning":
            continue
        before, kind = owner.items[place - 1]
        if kind == "reasoning" and before not in ids:
            words = f"reasoning {before} before {item_id}, or a refusal"
            run.report(I10, words, "created", of=response, also=(owner,))


def keep(ended: Ended) -> None:
    """A response becomes its lane's latest."""
    ended.conn.latest[ended.lane] = ended


def failed(run: Run, create: Create | None) -> None:
    """A create failed: its parent is evicted when it is the latest of that very lane."""
    if create is None:
        return
    parent = run.known(create.parent)
    if not isinstance(parent, Ended) or parent.conn is not create.conn:
        return
    if parent.lane == create.lane and (cached(parent, create.conn)):
        parent.evicted = True
        del create.conn.latest[parent.lane]
    elif parent.lane != create.lane:
        parent.forked = True


def refused(run: Run, create: Create, error: dict[str, Any], frame: dict[str, Any]) -> None:
    """A create was refused: was that right, and what comes of it?"""
    code, message = error.get("code"), error.get("message")
    parent = run.known(create.parent)
    if code == "previous_response_not_found":
        if isinstance(parent, Ended) and cached(parent, create.conn) and run.resets <= parent.entries[-1][0]:
            forked = parent.forked and W12.id in run.active
            run.report(
                W12 if forked and run.letter == "c" else W4,
                f"{create.parent} found: it is the latest of its lane",
                "previous_response_not_found",
                conn=create.conn,
                lane=create.lane,
                also=(parent,),
                since=create.number,
            )
        _same_words(run, create, frame)
    elif isinstance(message, str) and NO_CALL.search(message) and parent is not None:
        _no_such_call(run, create, parent, message)
    if code not in NOT_EVICTING if isinstance(code, str) else True:
        failed(run, create)


def _no_such_call(run: Run, create: Create, parent: Response | Ended, message: str) -> None:
    items, given = _given(create)
    kinds, _ = _known_calls(run, items, parent)
    if given and all(kinds.get(call_id) == OUTPUTS[kind] for call_id, kind in given.items()):
        run.report(
            W13,
            f"the output of {next(iter(given))} taken: it is a call of the chain",
            shown(message, 80),
            conn=create.conn,
            lane=create.lane,
            also=(parent,),
            since=create.number,
        )


def _same_words(run: Run, create: Create, frame: dict[str, Any]) -> None:
    plain = {key: value for key, value in frame.items() if key not in ("stream_id", "event_id")}
    try:
        words = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()
    except (TypeError, ValueError):
        words = repr(plain)
    if create.parent:
        words = words.replace(create.parent, "<id>")
    if run.not_found is None:
        run.not_found = words
    elif words != run.not_found:
        run.report(
            W6,
            f"the same frame for every parent that is not found: {shown(run.not_found, 160)}",
            shown(words, 160),
            conn=create.conn,
            lane=create.lane,
            since=create.number,
        )


def shape(
    run: Run, conn: Connection, lane: str | None, frame: dict[str, Any], *, http: bool
) -> dict[str, Any]:
    """The error in a refusal; R7 when it is not typed."""
    error = frame.get("error")
    wrong = None
    if not isinstance(error, dict):
        wrong, error = f"error {shown(error)}", {}
    elif not isinstance(error.get("message"), str):
        wrong = f"message {shown(error.get('message'))}"
    elif not isinstance(error.get("type"), str):
        wrong = f"type {shown(error.get('type'))}"
    elif run.engine and not {"code", "param"} <= error.keys():
        wrong = f"an error with {sorted(error)}"
    elif not http and type(frame.get("status")) is not int:
        wrong = f"status {shown(frame.get('status'))}"
    if wrong is not None:
        run.report(R7, "a typed error with its status", wrong, conn=conn, lane=lane)
    return error


def unasked(run: Run, conn: Connection, lane: str | None, seen: str) -> None:
    """An answer where no create waits."""
    run.report(R6, "one answer for each create", seen, conn=conn, lane=lane)
