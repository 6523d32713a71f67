"""What happens inside the server: each hook, and S10 and W14, which only hooks show."""

from collections.abc import Callable
from typing import Any, Final

from protocol.rules import closing, controls, durability, suspension, usage
from protocol.rules.run import Run, entry_of, note, shown
from protocol.rules.session_rules import S10, W14
from protocol.rules.state import Connection, Ended, Response

Hook = Callable[[Run, Connection, dict[str, Any]], None]
OfResponse = Callable[[Run, Connection, Response, dict[str, Any]], None]


def hook(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    """A record with direction `hook`."""
    name = frame.get("hook")
    if not isinstance(name, str):
        return
    response_id = frame.get("response_id")
    entry = entry_of(run, "hook", name, frame, _words(frame))
    of = run.known(response_id)
    if isinstance(of, Response):
        note(of, entry)
    else:
        conn.tail.append((of.lane if of is not None else "*", entry))
    if name in ON_CONNECTION:
        ON_CONNECTION[name](run, conn, frame)
    elif isinstance(response_id, str):
        _of_response(run, conn, of, name, response_id, frame)


def _words(frame: dict[str, Any]) -> str:
    return " ".join(
        f"{key}={shown(value, 40)}" for key, value in frame.items() if key not in ("hook", "sequence_number")
    )


def _of_response(
    run: Run,
    conn: Connection,
    of: Response | Ended | None,
    name: str,
    response_id: str,
    frame: dict[str, Any],
) -> None:
    if name in ANY_TIME:
        ANY_TIME[name](run, conn, frame)
    if of is None:
        early = run.early.setdefault(response_id, {})
        early[name] = early.get(name, 0) + 1
        if len(run.early) > 1024:
            run.early.popitem(last=False)
        if name in ("pre_inference", "post_inference") and early[name] == 2:
            run.report(S10, f"{name} once", "a second one", conn=conn)
        return
    of.hooks[name] = of.hooks.get(name, 0) + 1
    if name in ("pre_inference", "post_inference"):
        _once(run, of, name)
    if isinstance(of, Response) and name in WHILE_OPEN:
        WHILE_OPEN[name](run, conn, of, frame)


def _once(run: Run, of: Response | Ended, name: str) -> None:
    if of.hooks[name] > 1:
        run.report(S10, f"{name} once for the rollout", f"{name} number {of.hooks[name]}", of=of)
    elif isinstance(of, Response) and name == "pre_inference" and "output" in of.talked:
        run.report(S10, "pre_inference before the first output", "pre_inference after it", of=of)
    if isinstance(of, Ended) and name == "post_inference" and of.id is not None:
        run.unfinished.pop(of.id, None)


def _post(run: Run, _conn: Connection, of: Response, frame: dict[str, Any]) -> None:
    suspension.waited(run, of, run.t)
    of.over_at = min(of.over_at, run.t)  # whatever follows, a pause is over
    ledger = frame.get("usage")
    of.ledger = ledger if isinstance(ledger, dict) else None


def _stop(_run: Run, _conn: Connection, of: Response, frame: dict[str, Any]) -> None:
    reason = frame.get("reason")
    of.stop = reason if isinstance(reason, str) else None


def _suspend(run: Run, _conn: Connection, of: Response, _frame: dict[str, Any]) -> None:
    suspension.suspend_hook(run, of)


def _resume(run: Run, _conn: Connection, of: Response, frame: dict[str, Any]) -> None:
    suspension.resume_hook(run, of, frame.get("outputs"))


def _accepted(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    of = run.known(frame.get("response_id"))
    if isinstance(of, Response):
        durability.accepting(run, of, frame.get("call_ids"))
        if of.dialect == "i" and frame.get("call_ids"):
            of.suspended_at = run.t  # there each accepted output starts the deadline again
    controls.accepted_hook(run, conn, of, frame.get("call_ids"))


def _context(run: Run, _conn: Connection, of: Response, frame: dict[str, Any]) -> None:
    if of.parent is None and frame.get("inherited"):
        run.report(W14, "nothing inherited without a parent", shown(frame["inherited"]), of=of)


def _usage(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    usage.record(run, frame["response_id"], frame.get("key"), conn)


def _sampled(run: Run, _conn: Connection, of: Response, _frame: dict[str, Any]) -> None:
    durability.sampled(run, of)


def _acquire(run: Run, _conn: Connection, frame: dict[str, Any]) -> None:
    run.slots[frame["response_id"]] = None
    if len(run.slots) > 4096:
        del run.slots[next(iter(run.slots))]


def _release(run: Run, conn: Connection, frame: dict[str, Any]) -> None:
    durability.slot_released(run, frame["response_id"], conn)


def _journal(run: Run, _conn: Connection, frame: dict[str, Any]) -> None:
    of = run.known(frame["response_id"])
    if isinstance(of, Response):
        durability.journaled(of, frame)
    elif of is None:
        kept = run.early_journal.setdefault(frame["response_id"], set())
        if type(number := frame.get("sequence_number")) is int and len(kept) < 16:
            kept.add(number)
        if len(run.early_journal) > 1024:
            run.early_journal.popitem(last=False)


def _recovered(run: Run, _conn: Connection, of: Response, frame: dict[str, Any]) -> None:
    durability.recovered(run, of, frame)


def _attach(_run: Run, conn: Connection, of: Response, frame: dict[str, Any]) -> None:
    durability.attached(conn, of, frame.get("starting_after"))


def _open(run: Run, conn: Connection, _frame: dict[str, Any]) -> None:
    conn.open_t = run.t
    conn.begun_with = 0


def _gap(run: Run, conn: Connection, _frame: dict[str, Any]) -> None:
    conn.gap = True
    run.gaps.add(conn.id if len(run.gaps) < 8 else "more")
    for response in conn.lanes.values():
        if response is not None:
            response.gap = True
        if isinstance(response, Response):
            response.calm = False
            response.doubts = True


def _reset(run: Run, _conn: Connection, _frame: dict[str, Any]) -> None:
    run.resets = run.number


ON_CONNECTION: Final[dict[str, Hook]] = {
    "connection_open": _open,
    "connection_close": closing.closed,
    "gap": _gap,
    "buffer": durability.buffered,
    "cache_reset": _reset,
}
ANY_TIME: Final[dict[str, Hook]] = {
    "accepted": _accepted,
    "usage_record": _usage,
    "slot_acquire": _acquire,
    "slot_release": _release,
    "journal": _journal,
}
WHILE_OPEN: Final[dict[str, OfResponse]] = {
    "post_inference": _post,
    "sampler_stop": _stop,
    "suspend": _suspend,
    "resume": _resume,
    "context": _context,
    "sampler_step": _sampled,
    "recovered": _recovered,
    "attach": _attach,
}
