"""T1 and T2: how a message is framed, and which event types there are."""

from collections.abc import Mapping
from typing import Any

from protocol.rules.run import Run, shown
from protocol.rules.state import Connection, Response
from protocol.rules.stream_rules import R3, R6, T1, T2
from protocol.rules.tables import COMMON_EVENTS, SOCKET_EVENTS


def event_line(run: Run, conn: Connection, record: Mapping[str, Any], kind: str) -> None:
    """The `event:` line of an SSE event names another type than its data."""
    run.report(T1, f"event: {kind}", f"event: {shown(record['event'])}", conn=conn)


def end_mark(run: Run, conn: Connection) -> None:
    """`[DONE]`."""
    if not run.sse:
        run.report(T1, "JSON objects only", "[DONE] on a socket", conn=conn)
        return
    if conn.done:
        run.report(T1, "[DONE] at most once", "a second [DONE]", conn=conn)
    open_ones = [one for one in conn.lanes.values() if type(one) is Response]
    if open_ones:
        run.report(T1, "[DONE] after the terminal event", "[DONE] before it", conn=conn)
        for response in open_ones:
            if response.errored:
                run.report(R6, "response.failed after an error", "[DONE]", of=response)
            run.report(R3, "a terminal event", "[DONE]", of=response)
            run.end(response, "cut")
    conn.done = True


def no_frame(run: Run, conn: Connection, record: Mapping[str, Any]) -> None:
    """A message of the server that is no JSON object."""
    seen = (
        f"a binary frame of {shown(record['binary_bytes'])} bytes"
        if "binary_bytes" in record
        else f"text that is no JSON object: {shown(record.get('raw', record.get('frame')))}"
    )
    run.report(T1, "one JSON object a message", seen, conn=conn)


def no_type(run: Run, conn: Connection, frame: Mapping[str, Any]) -> None:
    """An object without a type."""
    run.report(T1, "a string as type", f"type {shown(frame.get('type'))}", conn=conn)


def after_the_end(run: Run, conn: Connection, kind: str) -> None:
    """An event of an SSE stream after its `[DONE]`."""
    run.report(T1, "nothing after [DONE]", kind, conn=conn)


def foreign_type(run: Run, conn: Connection, kind: str, dialect: str, response: Response | None) -> None:
    """A type that this dialect does not have."""
    if kind in COMMON_EVENTS or (dialect != "h" and kind in SOCKET_EVENTS):
        return
    if kind == "response.done" and dialect == "a":
        return
    run.report(T2, "an event type of the dialect", kind, of=response, conn=conn)
