"""R1 to R6 and R8: a response is created, goes on, and ends once."""

from typing import Any, Final

from protocol.rules import chains, controls, durability, items, numbers, steers, suspension, usage
from protocol.rules.identity import embedded
from protocol.rules.run import Run, entry_of, note, shown
from protocol.rules.session_rules import S10, S14, S21, W1, W2, W7, W8
from protocol.rules.state import Connection, Create, Ended, Response
from protocol.rules.stream_rules import R1, R2, R3, R4, R6, R8
from protocol.rules.tables import TERMINAL

LANES: Final = 1024
"""Every so many lanes of a connection those without an open response are forgotten."""


def created(run: Run, conn: Connection, lane: str | None, frame: dict[str, Any]) -> None:
    """`response.created`."""
    resource = frame.get("response")
    response_id = resource.get("id") if isinstance(resource, dict) else None
    if not isinstance(response_id, str):
        response_id = None
    current = conn.lanes.get(lane)
    if type(current) is Response and _again(run, current, response_id, resource, frame):
        return
    if response_id is not None and (before := run.known(response_id)) is not None:
        run.report(R2, "a new response id", f"{response_id} created again", of=before, conn=conn)
        if type(before) is Response and before.lane == lane and before.conn is conn:
            _count_and_note(run, before, frame)
            return
    if run.http and conn.begun:
        run.report(R2, "one response on a stream", "a second created", conn=conn, lane=lane)
    parent_id = resource.get("previous_response_id") if isinstance(resource, dict) else None
    create = chains.answered(run, conn, lane, response_id, parent_id)
    if type(current) is Response:
        _displace(run, conn, current, response_id)
    gap, conn.gap = conn.gap, False
    response = begin(run, conn, lane, response_id, create, resource)
    _count_and_note(run, response, frame)
    response.talked.add("created")
    _opening(run, response, resource, frame)
    suspension.went_on(run, conn)
    follows = steers.succeeded(run, response.parent, lane)
    if create is not None:
        chains.accepted(run, response, create)
    elif not follows and "in" in run.directions and not run.http and not gap:
        run.report(R6, "one answer for each create", "a response that answers none", of=response)


def begin(
    run: Run,
    conn: Connection,
    lane: str | None,
    response_id: str | None,
    create: Create | None,
    resource: Any,
) -> Response:
    """A new response on a lane."""
    dialect = run.letter
    if create is not None and not run.http:
        agents = create.body.get("multi_agent")
        asked = isinstance(agents, dict) and agents.get("enabled") is True
        dialect = "i" if asked else "c" if run.letter == "i" else run.letter
    run.letters.add(dialect)
    response = Response(response_id, conn, lane, dialect)
    response.create = create
    if create is not None:
        response.store = create.store
        response.parent = create.parent
    elif isinstance(resource, dict):
        parent = resource.get("previous_response_id")
        response.parent = parent if isinstance(parent, str) else None
        response.store = resource.get("store") is not False
    if run.durable and "attach" in run.hooks:
        response.sent = {}
    response.superseded = bool(conn.creates.get(lane))
    response.closed_at = conn.closed
    run.responses += 1
    conn.begun += 1
    conn.lanes[lane] = response
    if len(conn.lanes) % LANES == 0:
        over = [name for name, one in conn.lanes.items() if not isinstance(one, Response)]
        for name in over:
            del conn.lanes[name]
            conn.latest.pop(name, None)
    if response_id is not None:
        run.live[response_id] = response
        response.hooks.update(run.early.pop(response_id, {}))
        if "usage_record" in response.hooks:  # an answer without stream comes after it
            response.reports["usage_record"] = response.hooks["usage_record"]
        response.journal |= run.early_journal.pop(response_id, set())
    return response


def _again(
    run: Run, current: Response, response_id: str | None, resource: object, frame: dict[str, Any]
) -> bool:
    """A `created` on a lane whose response is still open: part of that one?"""
    if current.id is None and "created" not in current.talked:
        # events came first: that has been reported, from here on it is this response
        current.id = response_id
        if response_id is not None and response_id not in run.live:
            run.live[response_id] = current
        current.talked.add("created")
        _count_and_note(run, current, frame)
        embedded(run, current, resource)
        return True
    if response_id is None or response_id == current.id or run.sse:
        run.report(R2, "one created", "a second created", of=current)
        _count_and_note(run, current, frame)
        return True
    return False


def _displace(run: Run, conn: Connection, current: Response, response_id: str | None) -> None:
    """The next response of the lane begins while this one has not ended."""
    controls.drop_legal(current)
    if suspension.may_be_abandoned(current):
        chains.keep(run.end(current, "abandoned"))
        return
    if current.closed_at is not None or (current.attached is not None and current.attached != conn.id):
        run.end(current, "cut")
        return
    run.report(
        W1, f"{shown(current.id)} ended before the next begins", f"{shown(response_id)} created", of=current
    )
    if "in" not in run.directions and not run.http:
        run.report(R3, "a terminal event", f"{shown(response_id)} created", of=current)
    run.displaced.append(current)
    if len(run.displaced) > 256:
        run.end(run.displaced.popleft(), "cut")


def _count_and_note(run: Run, response: Response, frame: dict[str, Any]) -> None:
    numbers.count(run, response, frame)
    response.events += 1
    note(response, entry_of(run, "out", frame["type"], frame, f"id={response.id}"))


def _opening(run: Run, response: Response, resource: object, frame: dict[str, Any]) -> None:
    """What `created`, `queued` and `in_progress` say."""
    embedded(run, response, resource)
    if not isinstance(resource, dict):
        return
    status = resource.get("status")
    if status not in {"in_progress", "queued"} if isinstance(status, str) else True:
        run.report(R1, "status in_progress or queued", f"status {shown(status)}", of=response)
    if resource.get("output"):
        run.report(R1, "no output yet", f"output {shown(resource['output'])}", of=response)
    if frame["type"] == "response.created" and resource.get("usage") is not None:
        run.report(R1, "no usage yet", f"usage {shown(resource['usage'])}", of=response)
    usage.early(run, response, resource)


def progress(run: Run, response: Response, frame: dict[str, Any]) -> None:
    """`response.queued` and `response.in_progress`."""
    kind = frame["type"]
    if "output" in response.talked:
        run.report(R2, f"{kind} before any output", f"{kind} after output", of=response)
    elif kind in response.talked:
        run.report(R2, f"{kind} once", "a second one", of=response)
    response.talked.add(kind)
    _opening(run, response, frame.get("response"), frame)


def terminal(run: Run, response: Response, frame: dict[str, Any]) -> None:
    """The terminal event."""
    kind = frame["type"]
    resource = frame.get("response")
    embedded(run, response, resource)
    resource = resource if isinstance(resource, dict) else {}
    status = resource.get("status")
    if status != TERMINAL[kind] and (kind, status) != ("response.failed", "cancelled"):
        run.report(R4, f"status {TERMINAL[kind]}", f"status {shown(status)}", of=response)
    _reasons(run, response, resource, kind)
    if response.errored and kind != "response.failed":
        run.report(R6, "response.failed after an error", kind, of=response)
    items.final_output(run, response, resource, kind)
    suspension.at_the_end(run, response, kind, status)
    usage.final(run, response, resource, kind)
    _stopped(run, response, resource, kind)
    if response.cancelled and status != "cancelled":
        run.report(S14, "status cancelled after a confirmed cancel", f"status {shown(status)}", of=response)
    _hooks(run, response)
    if response.create is not None and response.create.warm_up:
        _warm_up(run, response, resource, kind)
    over(run, response, kind, status)


def over(run: Run, response: Response, kind: str, status: object) -> None:
    """A response has ended; what comes of it for its lane."""
    if response.id in run.slots:
        run.slots[response.id] = run.t + durability.SLOT_S
    name = "cancelled" if status == "cancelled" else TERMINAL.get(kind, kind)
    ended = run.end(response, name)
    if name in {"completed", "incomplete"}:
        chains.keep(ended)
    elif name == "failed":
        chains.failed(run, response.create)
    if response.items:
        run.written(response)


def _reasons(run: Run, response: Response, resource: dict[str, Any], kind: str) -> None:
    error, details = resource.get("error"), resource.get("incomplete_details")
    if kind == "response.completed":
        for name, value in (("error", error), ("incomplete_details", details)):
            if value is not None:
                run.report(R4, f"{name} null on completed", shown(value), of=response)
    elif kind == "response.incomplete":
        if not isinstance(details, dict) or not isinstance(details.get("reason"), str):
            run.report(R4, "incomplete_details with a reason", shown(details), of=response)
    elif kind == "response.failed" and not (
        isinstance(error, dict)
        and isinstance(error.get("code"), str)
        and isinstance(error.get("message"), str)
    ):
        run.report(R4, "an error with code and message", shown(error), of=response)


def _stopped(run: Run, response: Response, resource: dict[str, Any], kind: str) -> None:
    details = resource.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if kind == "response.failed":
        return
    if response.stop == "length" and (kind, reason) != ("response.incomplete", "max_output_tokens"):
        run.report(R8, "incomplete with max_output_tokens", f"{kind} {shown(reason)}", of=response)
    if response.stop in {"max_rounds", "max_tool_calls"} and kind != "response.incomplete":
        run.report(S21, f"incomplete after {response.stop}", kind, of=response)


def _hooks(run: Run, response: Response) -> None:
    for name in ("pre_inference", "post_inference"):
        if name not in response.hooks:
            run.report(S10, f"{name} before the terminal event", "none", of=response)


def _warm_up(run: Run, response: Response, resource: dict[str, Any], kind: str) -> None:
    used = resource.get("usage")
    sampled = used.get("output_tokens") if isinstance(used, dict) else 0
    if kind == "response.completed" and (resource.get("output") or sampled != 0):
        run.report(
            W7, "no output and 0 output tokens", f"output_tokens {shown(sampled)} or output", of=response
        )


def late(run: Run, conn: Connection, lane: str | None, ended: Ended, frame: dict[str, Any]) -> None:
    """An event of a response that is over."""
    kind = frame["type"]
    current = conn.lanes.get(lane)
    if current is ended:
        run.report(R3, "nothing after the terminal event", kind, of=ended)
    elif ended.lane != lane and type(current) is Response:
        run.report(W2, f"stream_id {shown(ended.lane)}", f"stream_id {shown(lane)}", of=ended)
    if current is not ended and not run.report(W8, "nothing of a former response", kind, of=ended):
        run.report(R3, "nothing after the terminal event", kind, of=ended)
    number = frame.get("sequence_number")
    if type(number) is int and number == ended.next:
        ended.next = number + 1


def whole(run: Run, response: Response, body: dict[str, Any]) -> None:
    """The output of an answer without stream, as if each item had been streamed."""
    listed = body.get("output")
    for index, final in enumerate(listed if isinstance(listed, list) else ()):
        items.at_once(run, response, index, final)
