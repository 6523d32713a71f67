"""R6, R7, W2, W3 and S14: `error` frames and HTTP answers, and what each of them answers."""

import re
from typing import Any, Final

from protocol.rules import chains, controls, life, numbers
from protocol.rules.identity import embedded
from protocol.rules.run import Run, entry_of, note, shown
from protocol.rules.session_rules import W2
from protocol.rules.state import Connection, Control, Create, Response
from protocol.rules.stream_rules import R2, R6, R7
from protocol.rules.tables import TERMINAL

LIMIT: Final = "websocket_connection_limit_reached"
ABOUT_APPENDS: Final = "no_response_in_progress"
ABOUT_FRAMES: Final = ("unsupported_event", "invalid_json", "invalid_event")
ABOUT_LOAD: Final = ("too_many_requests", "server_error")
"""Refusals that say nothing about what was sent."""
LANE: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
AT_ONCE: Final = frozenset(
    {
        "invalid_type",
        "invalid_value",
        "missing_required_parameter",
        "unsupported_parameter",
        "websocket_queue_limit_reached",
        "websocket_stream_limit_reached",
    }
)
"""What is refused when it is read, although others wait."""


def error(run: Run, conn: Connection, lane: str | None, frame: dict[str, Any]) -> None:
    """An `error` frame or event."""
    current = conn.lanes.get(lane)
    if run.http or "sequence_number" in frame:
        _in_stream(run, conn, lane, current, frame)
        return
    conn.tail.append((lane, entry_of(run, "out", "error", frame, _words(frame))))
    said = chains.shape(run, conn, lane, frame, http=False)
    code = said.get("code")
    if code == LIMIT:
        conn.limited = True
    if "in" not in run.directions:
        return
    control = _append(run, conn, lane, code)
    if control is None and code == ABOUT_APPENDS and conn.crossed:
        conn.crossed = 0
        return
    if control is not None:
        _refuse(run, conn, control, code, said)
        return
    if conn.owed and (conn.owed_at == conn.asked_at or code in ABOUT_FRAMES):
        conn.owed -= 1
        return
    inject = next((one for one in conn.controls if one.kind == "inject" and one.malformed), None)
    if inject is not None and code not in ("previous_response_not_found", LIMIT):
        conn.controls.remove(inject)
        return
    create = _create(run, conn, lane, said)
    if create is not None:
        chains.refused(run, create, said, frame)
        return
    left = controls.append_error(run, conn, lane)
    if left is not None:
        _refuse(run, conn, left, code, said)
    elif conn.owed:
        conn.owed -= 1
    elif injects := [one for one in conn.controls if one.kind == "inject"]:
        conn.controls.remove(injects[-1])  # refused for its form
    elif code != LIMIT and not (type(frame.get("status")) is int and frame["status"] >= 500):
        run.report(
            R6,
            "one answer for each create",
            "an error that answers none",
            conn=conn,
            lane=lane,
            of=_of(current),
        )


def _of(current: object) -> Response | None:
    return current if isinstance(current, Response) else None


def _words(frame: dict[str, Any]) -> str:
    said = frame.get("error")
    return shown(said.get("code") or said.get("message")) if isinstance(said, dict) else ""


def _append(run: Run, conn: Connection, lane: str | None, code: object) -> Control | None:
    """The append that this answers before any create: an illegal one, or any when the code says so."""
    found = controls.append_error(run, conn, lane)
    if found is None:
        return None
    fault = controls.judge(run, found, controls.target_of(run, found))
    waiting = conn.creates.get(lane)
    newest = found.number == conn.asked_at and code == "invalid_input"
    return found if code == ABOUT_APPENDS or fault is not None or newest or not waiting else None


def _refuse(run: Run, conn: Connection, control: Control, code: object, said: dict[str, Any]) -> None:
    conn.controls.remove(control)
    target = controls.target_of(run, control)
    controls.prompt(run, control, target)
    if isinstance(target, Response) and control in target.unsettled:
        target.unsettled.remove(control)
    if said.get("type") not in ABOUT_LOAD:
        controls.refused(run, control, target, code, said.get("message"))


def _create(run: Run, conn: Connection, lane: str | None, said: dict[str, Any]) -> Create | None:
    """The create that an error answers."""
    code = said.get("code")
    if code == "invalid_stream_id":
        odd = [one for name, queue in conn.creates.items() for one in queue if not _is_lane(name, one)]
        if odd:
            return _take(conn, odd[-1])
    waiting = conn.creates.get(lane)
    if waiting:
        return _take(conn, _choice(conn, lane, list(waiting), said))
    if lane is None and code == LIMIT:
        return None
    for other, queue in conn.creates.items():
        if queue:
            create = _take(conn, _choice(conn, other, list(queue), said))
            if code != "invalid_stream_id":
                run.report(
                    W2,
                    f"stream_id {shown(other)}",
                    f"an error with stream_id {shown(lane)}",
                    conn=conn,
                    lane=other,
                    since=create.number,
                )
            return create
    return None


def _choice(conn: Connection, lane: str | None, waiting: list[Create], said: dict[str, Any]) -> Create:
    """The oldest create of a lane; but one that is refused for what it is does not wait for its turn."""
    code, message = said.get("code"), said.get("message")
    if len(waiting) == 1:
        return waiting[0]
    if code == "previous_response_not_found" and isinstance(message, str):
        named = [one for one in waiting if one.parent is not None and one.parent in message]
        return (named or waiting)[0]
    at_once = code in AT_ONCE if isinstance(code, str) else False
    return waiting[-1] if at_once or isinstance(conn.lanes.get(lane), Response) else waiting[0]


def _is_lane(name: str | None, create: Create) -> bool:
    if name is None:
        return create.body.get("stream_id") is None
    return LANE.fullmatch(name) is not None


def _take(conn: Connection, create: Create) -> Create:
    conn.creates[create.lane].remove(create)
    return create


def _in_stream(run: Run, conn: Connection, lane: str | None, current: object, frame: dict[str, Any]) -> None:
    """An error inside a stream belongs to the response that is current."""
    entry = entry_of(run, "out", "error", frame, _words(frame))
    if not isinstance(current, Response):
        conn.tail.append((lane, entry))
        waiting = conn.creates.get(lane)
        if waiting:
            waiting.popleft()
        elif conn.begun and run.http and not conn.done:
            run.report(R6, "nothing after the terminal event", "an error", conn=conn, lane=lane)
        return
    note(current, entry)
    numbers.count(run, current, frame)
    current.events += 1
    current.errored = True
    current.calm = False


def answer(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    """`http.response`."""
    status, body = frame.get("status"), frame.get("body")
    conn.status = status if type(status) is int else None
    conn.tail.append(("*", entry_of(run, "out", "http.response", {}, f"status={shown(status)}")))
    control = next((one for one in conn.controls if one.kind == "cancel"), None)
    if control is not None:
        conn.controls.remove(control)
        _cancelled(run, control, body)
        return
    if conn.request is not None and not conn.request.startswith("POST"):
        return
    waiting = conn.creates.get(None)
    failed = type(status) is int and status >= 400
    if failed and waiting:
        create = waiting.popleft()
        said = chains.shape(run, conn, None, body if isinstance(body, dict) else {}, http=True)
        chains.refused(run, create, said, body if isinstance(body, dict) else {})
    elif waiting and isinstance(body, dict) and body.get("object", "response") == "response":
        _whole(run, conn, body)


def _cancelled(run: Run, control: Control, body: object) -> None:
    of = run.known(control.response_id)
    controls.prompt(run, control, of)
    confirmed = isinstance(body, dict) and body.get("status") == "cancelled"
    if confirmed and isinstance(of, Response):
        of.cancelled = True


def _whole(run: Run, conn: Connection, body: dict[str, Any]) -> None:
    """An answer without stream: all of a response at once."""
    response_id = body.get("id")
    if isinstance(response_id, str) and (before := run.known(response_id)) is not None:
        run.report(R2, "a new response id", f"{response_id} again", of=before, conn=conn)
        return
    create = chains.answered(run, conn, None, response_id if isinstance(response_id, str) else None)
    response = life.begin(
        run, conn, None, response_id if isinstance(response_id, str) else None, create, body
    )
    response.events += 1
    note(response, entry_of(run, "out", "http.response", {}, f"id={response.id}"))
    embedded(run, response, body)
    life.whole(run, response, body)
    if create is not None:
        chains.accepted(run, response, create)
    status = body.get("status")
    kind = next((kind for kind, name in TERMINAL.items() if name == status), None)
    if kind is None:
        background = create is not None and create.body.get("background") is True
        if not background or status not in ("queued", "in_progress"):
            run.report(R7, "a response that has ended", f"status {shown(status)}", of=response)
        run.end(response, "cut")  # what it says in the background is asked for elsewhere
        return
    life.terminal(run, response, {"type": kind, "response": body})
