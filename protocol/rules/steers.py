"""W15: what becomes of the words that a client sends into a response that samples."""

from typing import Any

from protocol.rules import controls, numbers
from protocol.rules.run import Run, entry_of, note, shown
from protocol.rules.session_rules import W2, W15
from protocol.rules.state import Connection, Control, Ended, Response


def sent(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    """`response.steer` of the client."""
    target = frame.get("previous_response_id")
    control = Control("steer", conn, None, target if isinstance(target, str) else None, run.number, run.t)
    control.input = frame.get("input")
    conn.steers.append(control)
    if len(conn.steers) > 1024:
        conn.steers.popleft()


def answer(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    """`response.steer.accepted`, `.pending` and `.failed`."""
    kind, steer = frame["type"], frame.get("steer")
    steer = steer if isinstance(steer, dict) else {}
    response_id, steer_id = steer.get("previous_response_id"), steer.get("id")
    of = run.known(response_id)
    if of is not None:
        numbers.count(run, of, frame)
        if isinstance(of, Response):
            of.events += 1
            note(of, entry_of(run, "out", kind, frame))
    before = of.steers.get(steer_id) if of is not None and isinstance(steer_id, str) else None
    if of is not None and frame.get("stream_id") != of.lane:
        run.report(W2, f"stream_id {shown(of.lane)}", f"stream_id {shown(frame.get('stream_id'))}", of=of)
    if before is None:
        _first_answer(run, conn, of, kind, steer)
    elif kind == "response.steer.accepted":
        run.report(W15, "one answer for each steer", "accepted twice", of=of, conn=conn)
    elif kind != "response.steer.accepted" and of is not None:
        if kind == "response.steer.pending":
            before.taken = True  # from here on it waits for the client
            return
        of.steers.pop(str(steer_id), None)
        _given_back(run, conn, of, before, steer)


def _first_answer(
    run: Run, conn: Connection, of: Response | Ended | None, kind: str, steer: dict[str, Any]
) -> None:
    response_id, steer_id = steer.get("previous_response_id"), steer.get("id")
    if "in" not in run.directions:
        return
    control = next((one for one in conn.steers if one.response_id == response_id), None)
    if control is None:
        run.report(W15, "one answer for each steer", f"{kind} that answers none", of=of, conn=conn)
        return
    conn.steers.remove(control)
    controls.prompt(run, control, of)
    if kind == "response.steer.failed":
        _given_back(run, conn, of, control, steer)
    elif of is not None and kind == "response.steer.accepted":
        of.steers[steer_id if isinstance(steer_id, str) else f"record {run.number}"] = control


def _given_back(
    run: Run, conn: Connection, of: Response | Ended | None, control: Control, steer: dict[str, Any]
) -> None:
    if steer.get("input") != control.input:
        run.report(
            W15,
            f"the input of record {control.number} unchanged",
            f"input {shown(steer.get('input'))}",
            of=of,
            conn=conn,
        )


def starts_successor(parent: Response | Ended) -> bool:
    """Whether the server itself goes on from a response: words wait for it, and it waits for no output."""
    waits = any(control.taken for control in parent.steers.values()) or any(
        call.client and call.ready and not call.answered for call in parent.calls.values()
    )
    return bool(parent.steers) and not waits


def succeeded(run: Run, parent: object, lane: str | None) -> bool:
    """A response began on this one, on its lane. Whether words had been accepted for it: they are in there."""
    of = run.known(parent)
    if of is None or not of.steers or of.lane != lane:
        return False
    of.steers.clear()
    return True


def at_the_end(run: Run, conn: Connection) -> None:
    """What was never answered, or never led to a successor."""
    for control in conn.steers:
        if control.response_id is None:
            continue  # an error may have answered it
        run.report(
            W15,
            f"an answer to the steer of record {control.number}",
            "none",
            of=run.known(control.response_id),
            conn=conn,
            record=conn.last,
        )
