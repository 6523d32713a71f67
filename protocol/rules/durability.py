"""S15, S16, D1, D2, L1 and L2: what survives a lost connection or a crash, and what is given back in time."""

from hashlib import blake2b
from typing import Any, Final

import orjson

from protocol.rules.run import Run, shown
from protocol.rules.session_rules import D1, D2, L1, L2, S15, S16
from protocol.rules.state import Connection, Ended, Response

REPLAYABLE: Final = 4096
"""Events of a response whose digest is kept."""
LOST_S: Final = 1.0
SLOT_S: Final = 0.1


def digest(frame: dict[str, Any]) -> bytes:
    """A frame, byte for byte, small; the lane is a matter of the connection."""
    plain = (
        {key: value for key, value in frame.items() if key != "stream_id"} if "stream_id" in frame else frame
    )
    try:
        text = orjson.dumps(plain)
    except (TypeError, ValueError):
        text = repr(plain).encode("utf-8", "replace")
    return blake2b(text, digest_size=12).digest()


def sent(run: Run, response: Response, frame: dict[str, Any]) -> None:
    """An event goes out for the first time."""
    number = frame.get("sequence_number")
    if type(number) is not int:
        return
    if response.sent is not None:
        response.sent[number] = digest(frame)
        if len(response.sent) > REPLAYABLE:
            del response.sent[next(iter(response.sent))]
    if run.journaling:
        if number not in response.journal:
            run.report(D2, f"event {number} journaled before it is sent", "sent", of=response)
        response.journal.discard(number)


def attached(conn: Connection, response: Response, starting_after: object) -> None:
    """The hook `attach`: from here on this connection is the response's."""
    response.attached = conn.id
    response.conn = conn
    conn.lanes[response.lane] = response
    response.closed_at = None
    after = starting_after if type(starting_after) is int else -1
    response.replay = after + 1 if after + 1 < response.next else None
    response.calm = False


def two_readers(run: Run, conn: Connection, response: Response, frame: dict[str, Any]) -> None:
    """An event to a reader before the newest one: both are there, so only one of them is judged."""
    number = frame.get("sequence_number")
    over = run.known(response.id) is not response
    other = conn if over else response.conn
    other.replays = True
    other.lanes.pop(response.lane, None)
    if not over:
        attached(conn, response, (number if type(number) is int else response.next) - 1)


def replayed(run: Run, response: Response, frame: dict[str, Any]) -> bool:
    """Whether an event is one of the replay; then it is compared with what was sent."""
    number = frame.get("sequence_number")
    expected = response.replay
    if expected is None:
        return False
    if type(number) is not int or number >= response.next:
        run.report(S15, f"event {expected} of the replay", f"event {shown(number)}", of=response)
        response.replay = None
        return False
    if number != expected:
        run.report(S15, f"event {expected} of the replay", f"event {number}", of=response)
    elif response.sent is not None and number in response.sent and response.sent[number] != digest(frame):
        run.report(S15, f"event {number} as it was first sent", f"another {frame.get('type')}", of=response)
    response.replay = number + 1 if number + 1 < response.next else None
    return True


def journaled(response: Response, frame: dict[str, Any]) -> None:
    """The hook `journal`."""
    number, call_ids = frame.get("sequence_number"), frame.get("call_ids")
    if type(number) is int:
        response.journal.add(number)
    for call_id in call_ids if isinstance(call_ids, list) else ():
        if isinstance(call_id, str):
            response.journal.add(call_id)
    if len(response.journal) > 2 * REPLAYABLE:
        response.journal = set()


def accepting(run: Run, response: Response, call_ids: object) -> None:
    """Outputs are accepted: are they in the journal?"""
    if not run.journaling:
        return
    for call_id in call_ids if isinstance(call_ids, list) else ():
        if isinstance(call_id, str) and call_id not in response.journal:
            run.report(D1, f"the output of {call_id} journaled first", "accepted", of=response)
        response.journal.discard(call_id if isinstance(call_id, str) else None)


def recovered(run: Run, response: Response, frame: dict[str, Any]) -> None:
    """The hook `recovered`."""
    pending, number = frame.get("pending"), frame.get("next_sequence_number")
    names = {name for name in pending if isinstance(name, str)} if isinstance(pending, list) else set()
    if pending is not None and names != set(response.pending):
        run.report(D1, f"pending {sorted(response.pending)}", f"pending {shown(pending)}", of=response)
    if number is not None and number != response.next:
        run.report(D1, f"next_sequence_number {response.next}", shown(number), of=response)


def closed(run: Run, conn: Connection, by: str) -> None:
    """The hook `connection_close`, for the responses on it."""
    for response in list(conn.lanes.values()):
        if type(response) is Response and (response.attached is None or response.attached == conn.id):
            response.closed_at = (run.t, by)
            response.calm = False


def after_close(run: Run, response: Response, kind: str) -> None:
    """A frame for a connection that is gone."""
    if response.closed_at is not None and response.conn.closed is not None and not run.durable:
        run.report(S16, "nothing sent after the connection is gone", kind, of=response)


def sampled(run: Run, response: Response | Ended) -> None:
    """The hook `sampler_step`."""
    closed_at = response.closed_at if isinstance(response, Response) else None
    if closed_at is None:
        return
    if not run.durable and run.t > closed_at[0] + LOST_S:
        run.report(
            S16,
            f"sampling stopped within {LOST_S:g} s of the lost connection",
            f"a step {run.t - closed_at[0]:.1f} s after it",
            of=response,
        )
    elif run.durable and isinstance(response, Response):
        response.closed_at = (run.t, closed_at[1])


def gone(run: Run, response: Response) -> None:
    """The end of the trace, for a response whose connection was lost."""
    if response.closed_at is None or not run.durable or response.suspended:
        return
    if not {"post_inference", "suspend", "sampler_step"} & run.hooks:
        return
    if run.t > response.closed_at[0] + LOST_S and "post_inference" not in response.hooks:
        run.report(
            S16,
            "sampling goes on to a pause or an end",
            f"nothing for {run.t - response.closed_at[0]:.1f} s",
            of=response,
        )


def slot_released(run: Run, response_id: str, conn: Connection) -> None:
    """The hook `slot_release`."""
    until = run.slots.pop(response_id, None)
    if until is not None and run.t > until + 1e-6:
        late = run.t - until + SLOT_S
        run.report(
            L1,
            f"its slot free {SLOT_S:g} s after its end",
            f"{late:.1f} s after it",
            of=run.known(response_id),
            conn=conn,
        )


def slots_at_the_end(run: Run) -> None:
    """Slots of ended responses that were never released."""
    for response_id, until in run.slots.items():
        of = run.known(response_id)
        if until is not None and of is not None and run.t > until + 1e-6:
            run.report(L1, f"its slot free {SLOT_S:g} s after its end", "never released", of=of)


def buffered(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    """The hook `buffer`."""
    size, limit = frame.get("bytes"), frame.get("limit")
    if isinstance(size, int | float) and isinstance(limit, int | float) and size > limit:
        run.report(L2, f"at most {limit} bytes: {shown(frame.get('what'))}", f"{size} bytes", conn=conn)
