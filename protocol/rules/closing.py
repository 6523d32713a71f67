"""What is still owed at the end of a connection, and of the trace: R3, R6, R7, S10, S13, S20, U3, W9, W10, W15."""

from typing import Any, Final

from protocol.rules import controls, durability, steers, suspension
from protocol.rules.run import Run
from protocol.rules.session_rules import S10, S20, S25, W9, W10, W15
from protocol.rules.state import Connection, Control, Create, Ended, Response
from protocol.rules.stream_rules import R3, R6, R7, T1, U3
from protocol.rules.tables import TERMINAL

AFTER_OPEN_S: Final = 0.05
ENGINE_PATIENCE_S: Final = 600.0
"""Ours owes an answer also to a client that leaves after so long: longer than any of its own waits for a place."""
PATIENCE_S: Final = 1.0
"""A client that leaves sooner after its last frame gets no answer by right."""


CLIENT_FAULTS: Final = (1002, 1003, 1007, 1008, 1009)
"""Close codes of a server whose client broke the protocol: as if the client had left."""


def closed(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    """The hook `connection_close`."""
    by = frame.get("by")
    by = by if isinstance(by, str) else "network"
    if by == "server" and frame.get("code") in CLIENT_FAULTS:
        by = "client"
    conn.closed = (run.t, by)
    durability.closed(run, conn, by)
    if by == "server":
        for response in list(conn.lanes.values()):
            if type(response) is not Response or response.suspended or run.durable:
                continue
            if not suspension.abandoned(response):
                _cut(run, conn, response)
    if by == "server" and frame.get("code") not in (None, 1000):
        conn.creates.clear()  # the close itself tells the client
    _unanswered(run, conn)
    conn.creates.clear()
    conn.controls.clear()
    conn.steers.clear()


def _cut(run: Run, conn: Connection, response: Response) -> None:
    controls.settle(run, response)
    if conn.limited and run.report(
        W9, "a terminal event before the close at the age limit", "closed in the middle", of=response
    ):
        run.end(response, "cut")
        return
    _no_terminal(run, response, "closed by the server")
    run.end(response, "cut")


def _no_terminal(run: Run, response: Response, seen: str) -> None:
    last = response.tail[-1] if response.tail else response.head[-1] if response.head else None
    after = f" after {last[2]}" if last is not None else ""
    record = max(response.conn.last, last[0] if last is not None else 0) or run.number
    if response.errored:
        run.report(R6, "response.failed after an error", f"{seen}{after}", of=response, record=record)
    run.report(
        R3,
        "one terminal event (completed, incomplete or failed)",
        f"{seen}{after}",
        of=response,
        record=record,
    )


def _unanswered(run: Run, conn: Connection) -> None:
    """Creates and control frames that nothing answered."""
    left = conn.closed if conn.closed is not None and conn.closed[1] != "server" else None
    for lane, queue in conn.creates.items():
        if queue and not _busy(conn, lane):
            _no_answer(run, conn, queue[0], left)
    for control in conn.controls:
        if left is None or left[0] - control.t > PATIENCE_S:
            _no_outcome(run, conn, control)
    if left is None and not any(type(one) is Response for one in conn.lanes.values()):
        steers.at_the_end(run, conn)


def _busy(conn: Connection, lane: str | None) -> bool:
    return type(conn.lanes.get(lane)) is Response


def _no_answer(run: Run, conn: Connection, create: Create, left: tuple[float, str] | None) -> None:
    if left is not None and left[0] - create.t <= (
        ENGINE_PATIENCE_S if run.engine and run.hooks else PATIENCE_S
    ):
        return  # with hooks the trace is one connection's of a server that may be busy with others
    early = (
        create.number == conn.begun_with
        and conn.open_t is not None
        and create.t - conn.open_t <= AFTER_OPEN_S
        and W10.id in run.active
    )
    if left is not None and not early and not _owed_long(run, left, create.t):
        return
    run.report(
        W10 if early else R7,
        f"an answer to the create of record {create.number}",
        "none",
        conn=conn,
        lane=create.lane,
        record=conn.last or run.number,
        since=create.number,
    )


def _owed_long(run: Run, left: tuple[float, str], since: float) -> bool:
    return run.engine and left[0] - since > ENGINE_PATIENCE_S


def _no_outcome(run: Run, conn: Connection, control: Control) -> None:
    target = controls.target_of(run, control)
    if control.kind not in ("append", "inject"):
        return
    if control.kind == "append":
        legal = control.fault is None
        if legal and ("accepted" not in run.hooks or control.vague):
            return  # accepted in silence, or crossed with the end
        if control.vague:
            return
    fault = control.fault
    words = f": {fault.words}" if fault is not None else ""
    run.report(
        S20,
        f"one outcome of the {control.kind} of record {control.number}{words}",
        "none",
        of=target,
        conn=conn,
        lane=control.lane,
        record=conn.last or run.number,
        since=control.number,
    )
    if conn.closed is None and run.t - control.t > PATIENCE_S and control.kind == "inject":
        run.report(
            S25,
            f"the inject of record {control.number} answered within {PATIENCE_S:g} s",
            "no answer",
            of=target,
            conn=conn,
            lane=control.lane,
            record=conn.last or run.number,
        )


def finish(run: Run) -> None:
    """The end of the trace."""
    durability.slots_at_the_end(run)
    if not run.complete:
        return
    for response in list(run.live.values()):
        _still_open(run, response)
    for conn in run.conns.values():
        for current in list(conn.lanes.values()):
            if isinstance(current, Response) and current.id is None:
                _still_open(run, current)
        _unanswered(run, conn)
        if run.engine and run.sse and not conn.done and conn.closed is None:
            _no_end_mark(run, conn)
    for ended in run.unfinished.values():
        run.report(S10, "post_inference once for the rollout", "none", of=ended, record=ended.conn.last)
    for ended in run.ended.values():
        _never_followed(run, ended)


def _no_end_mark(run: Run, conn: Connection) -> None:
    last = conn.lanes.get(None)
    if isinstance(last, Ended) and last.status in TERMINAL.values():
        run.report(T1, "[DONE] after the terminal event", "none", of=last, record=conn.last)


def _still_open(run: Run, response: Response) -> None:
    controls.settle(run, response)
    suspension.waited(run, response, run.t)
    durability.gone(run, response)
    if response.closed_at is not None:
        if not run.durable and "post_inference" not in response.hooks and response.hooks:
            run.report(S10, "post_inference once for the rollout", "none", of=response)
        return
    pausing = response.dialect == "a" and (response.suspended or suspension.abandoned(response))
    waiting = response.dialect == "i" and suspension.may_be_abandoned(response)
    if not pausing and not waiting:
        _no_terminal(run, response, "end of the stream")


def _never_followed(run: Run, ended: Ended) -> None:
    owed = any(not control.taken for control in ended.steers.values())
    left = ended.conn.closed
    if owed and (left is None or (left[1] != "server" and _owed_long(run, left, ended.t))):
        run.report(
            W15,
            "a successor of the steered response, or its words back",
            "neither",
            of=ended,
            record=ended.conn.last,
        )
    if ended.status not in ("abandoned", "cut") and "usage_record" not in ended.reports:
        run.report(U3, "one usage record", "none", of=ended, record=ended.conn.last)
