"""S4 to S8, S17, S19, S20, S24 and S25: what becomes of the outputs that a client sends into a response.

A batch is judged against what the server has said so far.
An inject is answered; an append is accepted in silence, so its outcome is read from what follows (reference 1.4).
"""

from typing import Any, Final

import attrs

from protocol.rules.rule import Rule
from protocol.rules.run import Run, shown
from protocol.rules.session_rules import S4, S5, S7, S8, S17, S19, S20, S24, S25
from protocol.rules.state import Connection, Control, Ended, Response
from protocol.rules.tables import OUTPUTS, is_odd

PROMPT_S: Final = 1.0
FORM_CODES: Final = ("invalid_type", "invalid_value", "missing_required_parameter")
"""Any frame may be refused for its form."""
OVER_CODES: Final = ("no_response_in_progress", "response_already_completed")
_OVER: Final = "the response is over"


@attrs.frozen
class Fault:
    """Why a batch must be refused, the rule that its acceptance breaks, and the codes a refusal may have."""

    rule: Rule
    words: str
    codes: tuple[str, ...]


def read_batch(control: Control, value: object) -> None:
    """The outputs in the input of an append or inject."""
    control.input = value
    for one in value if isinstance(value, list) else ():
        kind = one.get("type") if isinstance(one, dict) else None
        call_id = one.get("call_id") if isinstance(one, dict) else None
        if isinstance(kind, str) and kind in OUTPUTS and isinstance(call_id, str):
            control.batch.append((call_id, kind))
            control.malformed = control.malformed or is_odd(one)
        elif not isinstance(one, dict) or not isinstance(kind, str | None):
            control.malformed = True
        elif not (isinstance(one, dict) and one.get("role") in ("user", "developer", "system")):
            control.vague = True


def judge(run: Run, control: Control, target: Response | Ended | None) -> Fault | None:
    """What is wrong with a batch now; None = nothing."""
    inject = control.kind == "inject"
    bad = ("invalid_input",)
    empty = not isinstance(control.input, list) or not control.input
    # a create that waits on the lane may have begun already, though it has not said so
    also = bad if empty or control.conn.creates.get(control.lane) else ()
    if target is None:
        if inject:
            return Fault(S8, f"no response {shown(control.response_id)}", ("response_not_found",))
        if not empty and (control.vague or not control.batch) and control.conn.creates.get(control.lane):
            return None  # words to a response that has begun and has not said so
        return Fault(S8, "no response is open", ("no_response_in_progress", "response_not_found", *also))
    if not isinstance(target, Response):
        codes = (
            ("response_already_completed",) if inject else ("no_response_in_progress", "response_not_found")
        )
        return Fault(S8, _OVER, (*codes, *also))
    if empty:
        return Fault(S4, "an empty batch", bad)
    if inject and len(control.batch) < len(control.input):
        return Fault(S4, "an item that is no output", bad)
    seen: set[str] = set()
    for call_id, kind in control.batch:
        found = _member(run, control, target, call_id, kind, seen)
        if found is not None:
            # one whose sampling has stopped for good is over, though its end is still to come
            over = OVER_CODES if target.ending else ()
            return Fault(found[0], found[1], (*bad, *over))
        seen.add(call_id)
    return None


def _member(
    run: Run, control: Control, target: Response, call_id: str, kind: str, seen: set[str]
) -> tuple[Rule, str] | None:
    if call_id in seen:
        return S4, f"{call_id} twice in one batch"
    call = target.calls.get(call_id)
    if call is None:
        others = [one for one in run.live.values() if one is not target and call_id in one.pending]
        if others and control.kind == "inject":
            return S19, f"{call_id} is a call of {others[0].id}"
        return S4, f"{call_id} is no call of it"
    if not call.ready:
        return S8, f"{call_id} is not done"
    if OUTPUTS[kind] != call.kind:
        return S5, f"a {kind} for a {call.kind}"
    claimed = any(
        call_id == other
        for one in target.unsettled
        if one is not control and one.fault is None and one.number < control.number
        for other, _ in one.batch
    )
    if call.answered or claimed:
        return S7, f"{call_id} has an output"
    return None


def settle(run: Run, response: Response) -> None:
    """Legal appends that no error answered until now count as accepted, unless a hook tells."""
    if not response.unsettled:
        return
    if "accepted" in run.hooks:
        return
    for control in [one for one in response.unsettled if one.fault is None]:
        ids = [call_id for call_id, _ in control.batch]
        _put_in(run, response, [one for one in ids if one in response.pending] if control.vague else ids)
        _forget(response, control)
        control.conn.crossed = control.number


def drop_legal(response: Response) -> None:
    """The response is abandoned: what became of its legal appends no longer shows."""
    for control in [one for one in response.unsettled if one.fault is None]:
        _forget(response, control)


def _forget(response: Response, control: Control) -> None:
    if control in response.unsettled:
        response.unsettled.remove(control)
    if control in control.conn.controls:
        control.conn.controls.remove(control)


def _put_in(run: Run, response: Response, call_ids: list[str]) -> None:
    for call_id in call_ids:
        call = response.calls.get(call_id)
        if call is None:
            continue
        call.answered = True
        if response.pending.pop(call_id, None) is not None:
            response.accepted += 1
        response.resume_order.append(call_id)
    response.suspended_at = run.t


def taken(run: Run, response: Response | Ended | None, control: Control) -> None:
    """An illegal batch was accepted."""
    fault = control.fault or judge(run, control, response)
    if fault is not None and not (control.vague and fault.rule is S4):
        run.report(
            fault.rule,
            f"a refusal: {fault.words}",
            f"the {control.kind} of record {control.number} accepted",
            of=response,
            conn=control.conn,
            lane=control.lane,
            since=control.number,
        )
    if control.kind == "inject":
        return
    if isinstance(response, Response):
        _forget(response, control)
    elif control in control.conn.controls:
        control.conn.controls.remove(control)


def accepted_hook(run: Run, conn: Connection, target: Response | Ended | None, call_ids: object) -> None:
    """The hook `accepted`."""
    names = [name for name in call_ids if isinstance(name, str)] if isinstance(call_ids, list) else []
    control = _asked_for(conn, target, names)
    if control is not None and control.kind == "inject":
        control.taken = True  # its answer still comes
    if control is None:
        control = Control("append", conn, None, target.id if target is not None else None, run.number, run.t)
        control.input = names or [{}]
        control.batch = [(name, _output_for(target, name)) for name in names]
        control.vague = not names
    else:
        prompt(run, control, target)
        if {call for call, _ in control.batch} != set(names) and not control.vague:
            run.report(
                S4,
                f"the whole batch {[call for call, _ in control.batch]} or nothing",
                f"accepted {shown(names)}",
                of=target,
                conn=conn,
            )
    fault = judge(run, control, target)
    control.fault = fault
    if fault is not None:
        taken(run, target, control)
    if isinstance(target, Response):
        if target.attached is not None and target.attached != control.conn.id:
            run.report(
                S17, f"appends from {target.attached} only", f"accepted from {control.conn.id}", of=target
            )
        if control.kind != "inject":
            _forget(target, control)
        _put_in(run, target, [name for name in names if name in target.calls])
    elif control.kind == "append" and control in conn.controls:
        conn.controls.remove(control)


def _asked_for(conn: Connection, target: Response | Ended | None, names: list[str]) -> Control | None:
    """The append or inject that this acceptance is about."""
    waiting = [one for one in conn.controls if one.kind in {"append", "inject"} and not one.taken]
    if isinstance(target, Response):
        waiting += [one for one in target.unsettled if one not in waiting]
    exact = [one for one in waiting if [call for call, _ in one.batch] == names]
    return next(iter(exact or waiting), None)


def _output_for(target: Response | Ended | None, call_id: str) -> str:
    call = target.calls.get(call_id) if target is not None else None
    return next((output for output, kind in OUTPUTS.items() if call is not None and kind == call.kind), "?")


def prompt(run: Run, control: Control, of: Response | Ended | None) -> None:
    """Control frames are answered at once."""
    if run.t - control.t > PROMPT_S:
        run.report(
            S25,
            f"the {control.kind} of record {control.number} answered within {PROMPT_S:g} s",
            f"after {run.t - control.t:.1f} s",
            of=of,
            conn=control.conn,
            lane=control.lane,
        )


def refused(
    run: Run, control: Control, target: Response | Ended | None, code: object, message: object
) -> None:
    """A batch was refused: rightly, and with the code for the reason?"""
    fault = judge(run, control, target)
    words = message if isinstance(message, str) else ""
    if isinstance(target, Response) and target.superseded and code in (*OVER_CODES, "invalid_input"):
        return  # a create has taken its lane: it may be over, and the next one begun
    if fault is None and code in OVER_CODES and not (isinstance(target, Response) and not target.ending):
        return  # judged by what the client could not see yet
    if fault is None or (control.fault is None and fault.words is _OVER and code == "invalid_input"):
        if not control.vague and not control.malformed:
            _refused_wrongly(run, control, target, code, words)
    else:
        first = control.fault.codes if control.fault is not None else ()
        fits = (*fault.codes, *first, *FORM_CODES)
        if code not in fits and not (control.vague or control.malformed):
            run.report(
                S8,
                f"code {' or '.join(fault.codes)}: {fault.words}",
                f"code {shown(code)}",
                of=target,
                conn=control.conn,
                lane=control.lane,
                since=control.number,
            )
    control.conn.refused.extend(call_id for call_id, _ in control.batch)


def _refused_wrongly(
    run: Run, control: Control, target: Response | Ended | None, code: object, words: str
) -> None:
    rule = S4
    if "already has an output" in words:
        again = any(call_id in control.conn.refused for call_id, _ in control.batch)
        rule = S4 if again else S7
    elif code == "no_response_in_progress":
        rule = S24 if S24.id in run.active and control.kind == "append" else S4
    run.report(
        rule,
        "a batch of open calls accepted",
        f"refused: {shown(code)} {shown(words, 80)}",
        of=target,
        conn=control.conn,
        lane=control.lane,
        since=control.number,
    )


def inject_answer(run: Run, conn: Connection, target: Response | Ended | None, frame: dict[str, Any]) -> None:
    """`response.inject.created` and `response.inject.failed`."""
    kind, response_id = frame["type"], frame.get("response_id")
    if "in" not in run.directions:
        return
    control = next(
        (one for one in conn.controls if one.kind == "inject" and one.response_id == response_id), None
    )
    if control is None:
        run.report(S20, "one answer for each inject", f"{kind} that answers none", of=target, conn=conn)
        return
    conn.controls.remove(control)
    target = target_of(run, control)  # nothing, when it is no inject response
    prompt(run, control, target)
    if kind == "response.inject.created":
        if control.taken:
            return
        control.fault = judge(run, control, target)
        if control.fault is not None:
            taken(run, target, control)
        if isinstance(target, Response):
            _put_in(run, target, [call_id for call_id, _ in control.batch])
        return
    error = frame.get("error")
    error = error if isinstance(error, dict) else {}
    if frame.get("input") != control.input:
        run.report(
            S4,
            f"the input of record {control.number} unchanged",
            f"input {shown(frame.get('input'), 100)}",
            of=target,
            conn=conn,
            since=control.number,
        )
    if control.taken:
        run.report(
            S4, "what was accepted not refused", f"{kind} {shown(error.get('code'))}", of=target, conn=conn
        )
        return
    refused(run, control, target, error.get("code"), error.get("message"))


def append_error(run: Run, conn: Connection, lane: str | None) -> Control | None:
    """The append that an `error` frame answers: the oldest illegal one, else the newest."""
    waiting = [one for one in conn.controls if one.kind == "append" and one.lane == lane]
    if not waiting:
        return None
    illegal = [one for one in waiting if one.fault is not None] or [
        one for one in waiting if judge(run, one, target_of(run, one)) is not None
    ]
    return illegal[0] if illegal else waiting[-1]


def target_of(run: Run, control: Control) -> Response | Ended | None:
    """The response that a control frame is for."""
    if control.response_id is not None:
        found = run.known(control.response_id)
        if (
            control.kind == "inject"
            and found is not None
            and (found.dialect != "i" or found.conn is not control.conn)
        ):
            return None
        return found
    current = control.conn.lanes.get(control.lane)
    return current if isinstance(current, Response) and current.dialect == "a" else None
