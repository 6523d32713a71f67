"""What the server sends: whose event it is, whether it may come now, and which handler judges it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from protocol.rules import (
    arguments,
    content,
    controls,
    durability,
    framing,
    items,
    life,
    numbers,
    refusals,
    steers,
    summary,
    suspension,
)
from protocol.rules.parts import Item
from protocol.rules.run import Run, entry_of, note, shown
from protocol.rules.session_rules import S10, W1, W2
from protocol.rules.state import HEAD, Connection, Ended, Response
from protocol.rules.stream_rules import I8, R1
from protocol.rules.tables import COMMON_EVENTS, TERMINAL

ItemHandler = Callable[[Run, Response, Item, dict[str, Any]], None]
LifeHandler = Callable[[Run, Response, dict[str, Any]], None]


def _nothing(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """Progress of a hosted tool: where it belongs has been judged."""


OF_ITEM: Final[dict[str, ItemHandler]] = {
    "response.output_item.done": items.done,
    "response.content_part.added": content.part_added,
    "response.content_part.done": content.part_done,
    "response.output_text.annotation.added": content.annotation,
    "response.reasoning_summary_part.added": summary.part_added,
    "response.reasoning_summary_part.done": summary.part_done,
    "response.reasoning_summary_text.done": summary.text_done,
    **dict.fromkeys([*content.DELTAS, summary.DELTA], content.delta),
    **dict.fromkeys(content.DONES, content.text_done),
    **dict.fromkeys(arguments.FIELD_OF, arguments.done),
    **{f"{kind[:-5]}.delta": content.delta for kind in arguments.FIELD_OF},
}
OF_RESPONSE: Final[dict[str, LifeHandler]] = {
    "response.queued": life.progress,
    "response.in_progress": life.progress,
    "response.done": suspension.done,
    **dict.fromkeys(TERMINAL, life.terminal),
}


def sent(run: Run, conn: Connection, record: Mapping[str, Any], frame: dict[str, Any], kind: str) -> None:
    """A JSON object of the server."""
    lane = frame.get("stream_id")
    lane = lane if isinstance(lane, str) else None
    conn.recent = kind
    if kind == "http.response":
        refusals.answer(run, conn, frame)
        return
    if run.sse:
        if record.get("event", kind) != kind:
            framing.event_line(run, conn, record, kind)
        if conn.done:
            framing.after_the_end(run, conn, kind)
    current = conn.lanes.get(lane)
    if run.http and type(current) is Response and current.conn is not conn:
        durability.two_readers(run, conn, current, frame)
    if conn.replays:
        return
    if run.engine and kind not in COMMON_EVENTS:
        dialect = current.dialect if current is not None else run.letter
        framing.foreign_type(run, conn, kind, dialect, current if isinstance(current, Response) else None)
    handler = OF_ITEM.get(kind)
    if handler is not None:
        _item_event(run, conn, lane, current, frame, handler)
    elif kind == "response.output_item.added":
        _added(run, conn, lane, current, frame)
    elif kind == "response.created":
        _created(run, conn, lane, current, frame)
    elif kind in OF_RESPONSE:
        _life_event(run, conn, lane, current, frame)
    elif kind == "error":
        refusals.error(run, conn, lane, frame)
    elif kind.startswith("response.inject."):
        _inject_answer(run, conn, lane, frame)
    elif kind.startswith("response.steer."):
        steers.answer(run, conn, frame)
    elif "item_id" in frame:
        _item_event(run, conn, lane, current, frame, _nothing)
    elif kind.startswith("response.") and (over := _over(run, conn, current, frame)) is not None:
        life.late(run, conn, lane, over, frame)
    elif isinstance(current, Response) and type(frame.get("sequence_number")) is int:
        _admitted(run, current, kind, frame)


def _created(
    run: Run, conn: Connection, lane: str | None, current: Response | Ended | None, frame: dict[str, Any]
) -> None:
    if (
        isinstance(current, Response)
        and current.replay is not None
        and durability.replayed(run, current, frame)
    ):
        return
    life.created(run, conn, lane, frame)


def _added(
    run: Run, conn: Connection, lane: str | None, current: Response | Ended | None, frame: dict[str, Any]
) -> None:
    if isinstance(current, Ended):
        life.late(run, conn, lane, current, frame)
        return
    response = current if current is not None else _headless(run, conn, lane, frame)
    if response is None:
        return
    if not response.calm and not _may(run, response, "response.output_item.added", frame):
        return
    first = frame.get("item")
    detail = f"{first.get('type')} {first.get('id')}" if isinstance(first, dict) else ""
    _count(run, response, "response.output_item.added", frame, "out", detail[:80])
    items.added(run, response, frame)


def _count(run: Run, response: Response, kind: str, frame: dict[str, Any], *detail: str) -> None:
    number, index = frame.get("sequence_number"), frame.get("output_index")
    if type(number) is int and number == response.next:
        response.next = number + 1
    else:
        numbers.count(run, response, frame)
        number = number if type(number) is int else None
    response.events += 1
    entry = (run.number, run.t, kind, number, index if type(index) is int else None, *detail)
    if not response.tail and len(response.head) < HEAD:
        response.head.append(entry)
    else:
        response.tail.append(entry)


def _headless(run: Run, conn: Connection, lane: str | None, frame: dict[str, Any]) -> Response | None:
    """An event where no response was created: of another lane, or the first of a response without beginning."""
    others = [one for one in conn.lanes.values() if isinstance(one, Response)]
    if others and frame["type"] != "response.output_item.added":
        for other in others:
            if _about(frame, other):
                return other
    if conn.creates.get(lane) is None and others and len(others) == 1 and not conn.gap:
        # one response, and an event with another stream_id: the lane is wrong, not the response
        run.report(W2, f"stream_id {shown(others[0].lane)}", f"stream_id {shown(lane)}", of=others[0])
        return others[0]
    gap = conn.gap  # it lasts: the response begins without its response.created
    response = life.begin(run, conn, lane, None, None, frame.get("response"))
    response.gap = conn.gap = gap
    run.report(R1, "response.created first", frame["type"], of=response)
    number = frame.get("sequence_number")
    response.next = number if type(number) is int else 0
    response.talked.add("output")
    return response


def _about(frame: dict[str, Any], response: Response) -> bool:
    item_id = _item_id(frame)
    return isinstance(item_id, str) and item_id in response.by_id


def _item_id(frame: dict[str, Any]) -> object:
    if "item_id" in frame:
        return frame["item_id"]
    item = frame.get("item")
    return item.get("id") if isinstance(item, dict) else None


def _item_event(
    run: Run,
    conn: Connection,
    lane: str | None,
    current: Response | Ended | None,
    frame: dict[str, Any],
    handler: ItemHandler,
) -> None:
    kind = frame["type"]
    item_id = frame.get("item_id") if kind != "response.output_item.done" else _item_id(frame)
    item: Item | None = None
    if isinstance(current, Response):
        item = current.item
        if item is None or item.id != item_id or item_id is None:
            item = current.by_id.get(item_id) if isinstance(item_id, str) else None
    response = current
    if item is None:
        response = _whose(run, conn, lane, current, frame, item_id)
        if response is None:
            return
        if isinstance(response, Response) and isinstance(item_id, str):
            item = response.by_id.get(item_id)
    if isinstance(response, Ended) or response is None:
        return
    if not response.calm and not _may(run, response, kind, frame):
        return
    _count(run, response, kind, frame)
    if item is None:
        item = items.locate(run, response, frame, item_id)
        if item is None:
            return
    index = frame.get("output_index")
    if index != item.index or type(index) is not int:
        numbers.item_index(run, response, item, frame)
    response.item = item
    if item.done is not None and kind != "response.output_item.done":
        run.report(I8, "nothing after the item's done", kind, of=response, item=item.index)
        return
    handler(run, response, item, frame)


def _whose(
    run: Run,
    conn: Connection,
    lane: str | None,
    current: Response | Ended | None,
    frame: dict[str, Any],
    item_id: object,
) -> Response | None:
    """The response of an item that the current one does not have; None = over, and reported."""
    owner = items.owner(run, conn, current, item_id)
    if isinstance(owner, Ended):
        life.late(run, conn, lane, owner, frame)
        return None
    if owner is not None:
        rule, words = (
            (W2, f"stream_id {shown(owner.lane)}") if owner.lane != lane else (W1, "one response at a time")
        )
        run.report(
            rule, words, f"{frame['type']} of {shown(owner.id)} with stream_id {shown(lane)}", of=owner
        )
        return owner
    if isinstance(current, Ended):
        life.late(run, conn, lane, current, frame)
        return None
    return current if current is not None else _headless(run, conn, lane, frame)


def _life_event(
    run: Run, conn: Connection, lane: str | None, current: Response | Ended | None, frame: dict[str, Any]
) -> None:
    kind = frame["type"]
    resource = frame.get("response")
    named = run.known(resource.get("id")) if isinstance(resource, dict) else None
    response: Response | Ended | None = current
    if named is not None and named is not current and named.conn is conn:
        response = named
        if isinstance(named, Response):
            rule, words = (
                (W2, f"stream_id {shown(named.lane)}")
                if named.lane != lane
                else (W1, "one response at a time")
            )
            run.report(rule, words, f"{kind} of {named.id} with stream_id {shown(lane)}", of=named)
    if isinstance(response, Ended):
        life.late(run, conn, lane, response, frame)
        return
    if response is None:
        response = _headless(run, conn, lane, frame)
    if response is None or (response.replay is not None and durability.replayed(run, response, frame)):
        return
    if run.slow:
        durability.sent(run, response, frame)
    durability.after_close(run, response, kind)
    if not (kind == "response.done" and "sequence_number" not in frame and _bare(run, frame)):
        numbers.count(run, response, frame)
    response.events += 1
    note(response, entry_of(run, "out", kind, frame))
    OF_RESPONSE[kind](run, response, frame)


def _bare(run: Run, frame: dict[str, Any]) -> bool:
    """A `response.done` may come without a number: from our engine only in its smallest form."""
    return not run.engine or "response" not in frame


def _inject_answer(run: Run, conn: Connection, lane: str | None, frame: dict[str, Any]) -> None:
    of = run.known(frame.get("response_id"))
    error = frame.get("error")
    unknown = isinstance(error, dict) and error.get("code") == "response_not_found"
    if of is not None and of.conn is conn and not unknown:
        if of.lane != lane:
            run.report(W2, f"stream_id {shown(of.lane)}", f"stream_id {shown(lane)}", of=of)
        if isinstance(of, Response):
            if run.slow:
                durability.sent(run, of, frame)
            _count(run, of, frame["type"], frame)
        else:
            numbers.count(run, of, frame)
    controls.inject_answer(run, conn, of, frame)


def _over(
    run: Run, conn: Connection, current: Response | Ended | None, frame: dict[str, Any]
) -> Ended | None:
    """The ended response that an event of an unknown type is certainly of: it is counted, and alone or named."""
    of = run.known(frame.get("response_id")) or (current if run.http else None)
    certain = type(frame.get("sequence_number")) is int and isinstance(of, Ended) and of.conn is conn
    return of if certain and isinstance(of, Ended) else None


def _admitted(run: Run, response: Response, kind: str, frame: dict[str, Any]) -> None:
    """An event of an unknown type that is counted with the others."""
    if response.calm or _may(run, response, kind, frame, output=False):
        _count(run, response, kind[:80], frame)


def _may(run: Run, response: Response, kind: str, frame: dict[str, Any], *, output: bool = True) -> bool:
    """An event that needs a second look. False: it was part of a replay."""
    if response.replay is not None and durability.replayed(run, response, frame):
        return False
    if run.slow:
        durability.sent(run, response, frame)
    durability.after_close(run, response, kind)
    if output:
        if "output" not in response.talked:
            response.talked.add("output")
            if "pre_inference" not in response.hooks:
                run.report(S10, "pre_inference before the first output", kind, of=response)
        if response.suspended or response.unsettled:
            suspension.output_event(run, response, kind)
    response.calm = (
        output
        and not run.slow
        and response.attached is None
        and not response.suspended
        and not response.unsettled
        and not response.errored
        and not response.gap
        and response.replay is None
        and response.closed_at is None
    )
    return True
