"""S1 to S3, S6, S13, S22 and S23: how a response pauses at the calls of its client, and goes on."""

from typing import Any, Final

from protocol.rules import controls, usage
from protocol.rules.identity import embedded
from protocol.rules.run import Run, shown
from protocol.rules.session_rules import S1, S2, S3, S6, S11, S13, S22, S23
from protocol.rules.state import Connection, Response
from protocol.rules.tables import same

EARLY_S: Final = 0.01
"""Clocks are read twice."""


def may_be_abandoned(response: Response) -> bool:
    """Whether a create on its lane may end it without a word: it waits for outputs, or may well do so."""
    return response.dialect in "ia" and (
        response.suspended
        or (bool(response.pending) and all(item.done is not None for item in response.items))
    )


def abandoned(response: Response) -> bool:
    """Whether a create on its lane has ended it without a word, whatever became of that create."""
    return response.superseded and may_be_abandoned(response)


def done(run: Run, response: Response, frame: dict[str, Any]) -> None:
    """`response.done`: the server waits for outputs."""
    resource = frame.get("response")
    if isinstance(resource, dict):
        embedded(run, response, resource, partial=True)
    elif resource is not None:
        embedded(run, response, resource)
    if response.dialect != "a":
        run.report(S1, "response.done only in append", "response.done", of=response)
        return
    resource = resource if isinstance(resource, dict) else {}
    _in_order(run, response, frame, resource)
    if resource.get("status", "in_progress") != "in_progress":
        run.report(S2, "status in_progress in response.done", shown(resource["status"]), of=response)
    if "output" in resource:
        _snapshot(run, response, resource["output"])
    usage.segment(run, response, resource.get("usage"))
    response.done_shown = True
    if not response.suspended:
        response.suspended_at = response.paused_at = run.t
        response.accepted = 0
    response.suspended = bool(response.pending)
    response.calm = False
    controls.settle(run, response)
    _resumed_by_outputs(response)


def _in_order(run: Run, response: Response, frame: dict[str, Any], resource: dict[str, Any]) -> None:
    open_items = [item.index for item in response.items if item.done is None]
    if response.done_shown:
        run.report(S1, "response.done once for a pause", "a second one", of=response)
    elif open_items:
        run.report(S1, "every item closed", f"item {open_items[0]} open", of=response)
    elif not response.pending:
        run.report(S1, "an open client call", "no open call", of=response)
    listed = frame.get("pending_call_ids", resource.get("pending_call_ids"))
    if listed is None:
        return
    claimed = {call for one in response.unsettled for call, _ in one.batch}
    names = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else None
    if names is None or (names != set(response.pending) and names != set(response.pending) - claimed):
        run.report(S1, f"pending_call_ids {sorted(response.pending)}", shown(listed), of=response)


def _snapshot(run: Run, response: Response, output: object) -> None:
    items = [item for item in response.items if item.done is not None]
    listed = output if isinstance(output, list) else []
    if len(listed) != len(items) or not all(
        same(item.done, one) for item, one in zip(items, listed, strict=False)
    ):
        run.report(S22, f"the {len(items)} done items", shown(output), of=response)


def output_event(run: Run, response: Response, kind: str) -> None:
    """An event of an item while the response is, or may be, suspended."""
    controls.settle(run, response)
    _resumed_by_outputs(response)
    if not response.suspended:
        return
    if response.dialect == "i":
        if {"suspend", "resume"} <= run.hooks:
            run.report(S3, "silence until the resume", kind, of=response)
    else:
        illegal = next((one for one in response.unsettled if one.fault is not None), None)
        if illegal is not None:
            controls.taken(run, response, illegal)
        elif response.accepted:
            run.report(
                S6, f"outputs of {sorted(response.pending)} first", f"{kind} after some outputs", of=response
            )
        else:
            run.report(S3, f"silence until {sorted(response.pending)} are answered", kind, of=response)
    resumed(response)


def resumed(response: Response) -> None:
    """The server goes on: from here on every call counts as answered."""
    for call in response.pending.values():
        call.answered = True
    response.pending.clear()
    response.suspended = response.done_shown = False
    response.accepted = 0


def _resumed_by_outputs(response: Response) -> None:
    if response.suspended and response.dialect == "a" and not response.pending:
        response.suspended = response.done_shown = False
        response.accepted = 0


def suspend_hook(run: Run, response: Response) -> None:
    """The hook `suspend`."""
    if response.hooks["suspend"] > response.hooks.get("resume", 0) + 1:
        run.report(S23, "a resume between two suspensions", "a second suspend", of=response)
    if not response.suspended:
        response.suspended_at = response.paused_at = run.t
        response.accepted = 0
    response.suspended = True
    response.calm = False


def resume_hook(run: Run, response: Response, outputs: object) -> None:
    """The hook `resume`."""
    if response.hooks["resume"] > response.hooks.get("suspend", 0):
        run.report(S23, "one resume for a suspension", "a resume without suspension", of=response)
    controls.settle(run, response)
    _announced(run, response)
    if response.pending:
        run.report(S6, f"outputs of {sorted(response.pending)} first", "a resume", of=response)
    if isinstance(outputs, list):
        _call_order(run, response, outputs)
    response.resume_order.clear()
    waited(run, response, run.t)
    resumed(response)


def _announced(run: Run, response: Response) -> None:
    """A pause of the append form that the hook `suspend` shows was told to the client."""
    if (
        response.dialect == "a"
        and response.suspended
        and not response.done_shown
        and response.closed_at is None
    ):
        run.report(S1, "response.done for the pause", "none", of=response)


def _call_order(run: Run, response: Response, outputs: list[Any]) -> None:
    known = [name for name in outputs if isinstance(name, str) and name in response.calls]
    ordered = sorted(known, key=lambda name: response.calls[name].index)
    if known != ordered:
        run.report(S11, f"outputs in the order of their calls: {ordered}", shown(known), of=response)
        return
    # what was accepted before the pause may have entered the context without one
    here = response.resume_order[-response.accepted :] if response.accepted else []
    if not set(here) <= set(known) or (
        response.resume_order and not set(known) <= set(response.resume_order)
    ):
        run.report(S11, f"the accepted outputs {sorted(response.resume_order)}", shown(known), of=response)


def _deadline(run: Run, response: Response) -> float | None:
    """How long it may be suspended; the header of a connection of the append form does not say it of the inject form."""
    known = response.dialect == "a" or run.letter != "a"
    return run.deadline if known and run.deadline is not None and run.deadline > 0 else None


def waited(run: Run, response: Response, until: float) -> None:
    """How long a suspension was."""
    deadline = _deadline(run, response)
    if not response.suspended or deadline is None or until >= response.over_at:
        return
    if not response.pending and "slot_acquire" in run.hooks:
        return  # all is in: it waits for a place
    seconds = until - response.suspended_at
    if seconds > deadline + 1.0:
        run.report(
            S13,
            f"resumed or ended within {deadline:g} s",
            f"suspended for {seconds:.1f} s",
            of=response,
        )


def _gives_up(run: Run, response: Response) -> None:
    """The end of a pause that some outputs did not end: ours waits for the others to its deadline.

    Earlier than that it goes only with its connection, so it is judged when that one goes on.
    """
    began = response.paused_at if response.dialect == "a" else response.suspended_at
    seconds = min(run.t, response.over_at) - began
    if run.engine and response.suspended and response.pending and response.accepted:
        deadline = _deadline(run, response)
        if deadline is not None and seconds < deadline - EARLY_S:
            response.conn.gave_up = (response, run.number, seconds)


def went_on(run: Run, conn: Connection) -> None:
    """A response began on a connection: it was not about to close when another one gave up its pause."""
    if conn.gave_up is None:
        return
    response, number, seconds = conn.gave_up
    conn.gave_up = None
    run.report(
        S6,
        f"suspended until {sorted(response.pending)} are answered, or for {run.deadline:g} s",
        f"ended after {seconds:.1f} s, with some outputs in",
        of=response,
        record=number,
    )


def at_the_end(run: Run, response: Response, kind: str, status: object) -> None:
    """The terminal event and what is still open."""
    waited(run, response, run.t)
    _announced(run, response)
    controls.settle(run, response)
    if not response.cancelled and status != "cancelled":
        _gives_up(run, response)
    if kind != "response.completed":
        return
    if response.dialect == "a" and response.pending:
        run.report(S2, f"{sorted(response.pending)} answered first", "response.completed", of=response)
