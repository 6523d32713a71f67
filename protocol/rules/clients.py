"""What clients send: creates, control frames and HTTP requests, put where their answers will be looked for."""

from collections import deque
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from protocol.rules import chains, controls, durability, steers
from protocol.rules.run import Run, entry_of
from protocol.rules.state import Connection, Control, Create, Response

WAITING: Final = 1024
"""Frames of one kind that may wait for an answer on a connection; older ones are forgotten."""


def sent(run: Run, conn: Connection, frame: Any) -> None:
    """A record with direction `in`; `frame` None = a message that is no JSON object."""
    conn.begun_with = conn.begun_with or run.number
    conn.asked_at = run.number
    kind = frame.get("type") if isinstance(frame, dict) else None
    if not isinstance(frame, dict) or not isinstance(kind, str):
        _owe(run, conn)
        return
    lane = frame.get("stream_id")
    lane = lane if isinstance(lane, str) else None
    if kind == "http.request":
        _request(run, conn, frame)
        return
    entry = entry_of(run, "in", kind, frame)
    conn.tail.append((lane, entry))
    if kind == "response.create":
        queue(run, Create(conn, lane, frame, run.number, run.t, entry))
    elif kind in ("response.append", "response.inject"):
        _control(run, conn, lane, kind, frame)
    elif kind == "response.steer":
        steers.sent(run, conn, frame)
        if not isinstance(frame.get("previous_response_id"), str):
            _owe(run, conn)
    elif kind != "response.processed":
        _owe(run, conn)


def _owe(run: Run, conn: Connection) -> None:
    """A frame that may be answered by an error although it is no create, append or inject."""
    conn.owed += 1
    conn.owed_at = run.number


def queue(run: Run, create: Create) -> None:
    """A create waits for its answer."""
    waiting = create.conn.creates.setdefault(create.lane, deque(maxlen=WAITING))
    waiting.append(create)
    current = create.conn.lanes.get(create.lane)
    if isinstance(current, Response):
        current.superseded = True
    chains.asked(run, create)
    if len(create.conn.creates) > WAITING:
        create.conn.creates = {lane: one for lane, one in create.conn.creates.items() if one}


def _control(run: Run, conn: Connection, lane: str | None, kind: str, frame: dict[str, Any]) -> None:
    append = kind == "response.append"
    if append and run.letter == "c":
        _owe(run, conn)
        return
    named = frame.get("response_id", frame.get("previous_response_id") if append else None)
    odd = named is not None and not isinstance(named, str)
    named = named if isinstance(named, str) else None
    if not append and named is None:
        _owe(run, conn)
        return
    control = Control("append" if append else "inject", conn, lane, named, run.number, run.t)
    control.malformed = odd
    controls.read_batch(control, frame.get("input"))
    if append and named is not None and lane is None:
        target = run.known(named)
        control.lane = target.lane if target is not None else None
    target = controls.target_of(run, control)
    control.fault = controls.judge(run, control, target)
    if not append and (not isinstance(control.input, list) or not control.input):
        _owe(run, conn)  # a structural fault gets an error frame
        return
    conn.controls.append(control)
    if len(conn.controls) > WAITING:
        conn.controls.popleft()
    if append and isinstance(target, Response):
        target.unsettled.append(control)
        target.calm = False


def _request(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    method, target = frame.get("method"), frame.get("path")
    path = urlsplit(target if isinstance(target, str) else "")
    words = f"{method if isinstance(method, str) else ''} {path.path}"
    entry = entry_of(run, "in", "http.request", {}, words)
    conn.tail.append(("*", entry))
    conn.status = None
    conn.done = False
    parts = [part for part in path.path.split("/") if part]
    conn.request = words
    if method == "POST" and parts[-1:] == ["responses"]:
        conn.begun = 0
        body = frame.get("body")
        queue(run, Create(conn, None, body if isinstance(body, dict) else {}, run.number, run.t, entry))
    elif method == "POST" and parts[-1:] == ["cancel"] and parts[-3:-2] == ["responses"]:
        control = Control("cancel", conn, None, parts[-2], run.number, run.t)
        conn.controls.append(control)
    elif method == "GET" and parts[-2:-1] == ["responses"]:
        _watch(run, conn, parts[-1], frame.get("query"), path.query)


def _watch(run: Run, conn: Connection, response_id: str, query: object, inline: str) -> None:
    """A stream of what a response has said and will say."""
    response = run.known(response_id)
    members = {
        key: values[-1] for key, values in parse_qs(query if isinstance(query, str) else inline).items()
    }
    if isinstance(query, dict):
        members = {key: str(value) for key, value in query.items()}
    if members.get("stream", "").lower() != "true" or "attach" in run.hooks:
        return
    after = members.get("starting_after", "")
    if isinstance(response, Response) and run.http:
        durability.attached(conn, response, int(after) if after.isdigit() and len(after) < 10 else -1)
    elif response is not None or after:
        conn.replays = True
