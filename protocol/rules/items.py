"""I1 to I9 and S12: an output item is announced, written, done, and comes again in the final output."""

from typing import Any, Final

from protocol.rules import arguments, content, numbers, summary
from protocol.rules.differences import both
from protocol.rules.parts import Call, Item
from protocol.rules.run import ITEM_IDS, Run, shown
from protocol.rules.session_rules import S12, W7
from protocol.rules.state import Connection, Ended, Response
from protocol.rules.stream_rules import C1, C5, I1, I2, I3, I4, I5, I6, I7, I8, I9
from protocol.rules.tables import CLIENT_OUTPUTS, KINDS, ItemKind, same

CALLS: Final = frozenset({"function_call", "custom_tool_call"})


def added(run: Run, response: Response, frame: dict[str, Any]) -> None:
    """`response.output_item.added`."""
    index = numbers.next_index(run, response, frame)
    first = frame.get("item")
    if not isinstance(first, dict):
        run.report(I3, "an item", shown(first), of=response, item=("none", index))
        first = {}
    kind = first.get("type")
    spec = KINDS.get(kind) if isinstance(kind, str) else None
    item_id = first.get("id")
    item = Item(item_id, index, first, spec)
    if run.engine and (open_one := next(iter(response.undone), None)):
        run.report(
            I9,
            f"item {open_one.index} done before the next is added",
            f"item {index} added",
            of=response,
            item=index,
        )
    if isinstance(item_id, str) and item_id:
        if item_id in response.by_id:
            run.report(I2, "a new item id", f"{item_id} again", of=response, item=index)
        response.by_id[item_id] = item
        run.owners[item_id] = response.id
        if len(run.owners) > ITEM_IDS:
            del run.owners[next(iter(run.owners))]
    else:
        run.report(I2, "an item with an id", f"id {shown(item_id)}", of=response, item=index)
    response.items.append(item)
    response.undone[item] = None
    response.item = item
    response.part = None
    _kept_out(run, response, kind, index)
    if response.create is not None and response.create.warm_up:
        run.report(W7, "no output of a warm-up", f"item {index} added", of=response)
    if spec is not None:
        _first_form(run, response, item, spec)
    arguments.begin(item)
    _call(run, response, item, first)
    if item.arguments is not None:
        response.part = item.arguments


def _kept_out(run: Run, response: Response, kind: object, index: object) -> None:
    if isinstance(kind, str) and kind in CLIENT_OUTPUTS:
        run.report(S12, "outputs of client tools only as input", f"a {kind} item", of=response, item=index)


def _first_form(run: Run, response: Response, item: Item, spec: ItemKind) -> None:
    first = item.first
    for member in spec.named:
        value = first.get(member)
        if not isinstance(value, str) or not value:
            run.report(
                I3,
                f"{item.kind} added with a {member}",
                f"{member} {shown(value)}",
                of=response,
                item=item.index,
            )
    for member, empty in spec.empty:
        if first.get(member) != empty:
            run.report(
                I3,
                f"{item.kind} added with {member} {empty!r}",
                f"{member} {shown(first.get(member))}" if member in first else f"no {member}",
                of=response,
                item=item.index,
            )
            if member == "content" and first.get(member):
                run.report(
                    C1, "a message that begins empty", "content at added", of=response, item=item.index
                )
            elif member == spec.field and first.get(member):
                run.report(C5, f"empty {member}", shown(first[member]), of=response, item=item.index)
    status = first.get("status")
    if not _fits(status, spec.added):
        run.report(
            I3,
            f"{item.kind} added as {_names(spec.added)}",
            f"status {shown(status)}",
            of=response,
            item=item.index,
        )


def _fits(status: object, statuses: frozenset[str | None]) -> bool:
    return status in statuses if status is None or isinstance(status, str) else False


def _names(statuses: frozenset[str | None]) -> str:
    return " or ".join(sorted(status or "no status" for status in statuses))


def _call(run: Run, response: Response, item: Item, first: dict[str, Any]) -> None:
    """Remembers a call, and that its id is new."""
    call_id = first.get("call_id")
    if not isinstance(call_id, str) or not call_id or not item.kind.endswith("_call"):
        return
    before = response.calls.get(call_id)
    if before is not None or any(call_id in one.calls for one in run.chain(run.known(response.parent))):
        run.report(I7, "a new call_id", f"{shown(call_id)} again", of=response, item=item.index)
    call = Call(item.kind, item.index if isinstance(item.index, int) else 0)
    call.client = item.kind in CALLS or (
        item.kind == "tool_search_call" and first.get("execution") == "client"
    )
    response.calls[call_id] = call


def at_once(run: Run, response: Response, index: int, final: object) -> None:
    """An item of an answer without stream."""
    final = final if isinstance(final, dict) else {}
    kind = final.get("type")
    item = Item(final.get("id"), index, final, KINDS.get(kind) if isinstance(kind, str) else None)
    item.done = final
    if isinstance(item.id, str) and item.id:
        response.by_id[item.id] = item
        run.owners[item.id] = response.id
    response.items.append(item)
    _call(run, response, item, final)
    if item.spec is not None and not _fits(final.get("status"), item.spec.done):
        words = f"{item.kind} done as {_names(item.spec.done)}"
        run.report(I4, words, f"status {shown(final.get('status'))}", of=response, item=index)
    _ready(run, response, item, final)


def locate(run: Run, response: Response, frame: dict[str, Any], item_id: object) -> Item | None:
    """The item that an event is about, when its id is not that of an item of this response."""
    index = frame.get("output_index")
    for item in reversed(response.items):
        if type(index) is int and item.index == index:
            run.report(
                I2, f"item_id {shown(item.id)}", f"item_id {shown(item_id)}", of=response, item=item.index
            )
            return item
    run.report(
        I1,
        "an item that was added",
        f"{frame['type']} of item {shown(item_id)}",
        of=response,
        item=item_id if isinstance(item_id, str) else None,
    )
    return None


def done(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`response.output_item.done`."""
    final = frame.get("item")
    if item.done is not None:
        run.report(I8, "one done", "a second done", of=response, item=item.index)
        run.report(I4, "one done", "a second done", of=response, item=item.index)
        return
    if not isinstance(final, dict):
        run.report(I4, "a done item", shown(final), of=response, item=item.index)
        final = {}
    item.done = final
    response.undone.pop(item, None)
    spec = item.spec
    if spec is None:
        _unknown_kind(run, response, item, final)
    else:
        _unchanged(run, response, item, final, spec.same)
        status = final.get("status")
        called = isinstance(caller := final.get("caller"), dict) and caller.get("type") == "program"
        if not _fits(status, spec.done) and not (called and status == "in_progress"):
            run.report(
                I4,
                f"{item.kind} done as {_names(spec.done)}",
                f"status {shown(status)}",
                of=response,
                item=item.index,
            )
        if spec.text:
            content.finish(run, response, item, final)
        if item.kind == "reasoning":
            summary.finish(run, response, item, final)
        if spec.field is not None:
            arguments.finish(run, response, item, final)
    item.parts.clear()
    item.summary.clear()
    if response.part is not None and response.part.item_id == item.id:
        response.part = None
    _ready(run, response, item, final)


def _unknown_kind(run: Run, response: Response, item: Item, final: dict[str, Any]) -> None:
    if final.get("type") != item.first.get("type"):
        _unchanged(run, response, item, final, ("type",))


def _unchanged(
    run: Run, response: Response, item: Item, final: dict[str, Any], members: tuple[str, ...]
) -> None:
    first = item.first
    for member in members:
        if first.get(member) != final.get(member):
            run.report(
                I5,
                f"{member} {shown(first.get(member))}",
                f"{member} {shown(final.get(member))}",
                of=response,
                item=item.index,
            )


def _ready(run: Run, response: Response, item: Item, final: dict[str, Any]) -> None:
    """From its done on a call can be answered."""
    call_id = final.get("call_id")
    if not isinstance(call_id, str) or not call_id:
        return
    call = response.calls.get(call_id)
    if call is None:
        if not item.kind.endswith("_call"):
            return
        if item.spec is None or "call_id" in item.spec.same:
            return  # a changed call_id has been reported, the announced one counts
        old = item.first.get("call_id")
        if isinstance(old, str):
            response.calls.pop(old, None)
        _call(run, response, item, final)
        call = response.calls.get(call_id)
    if call is not None and not call.ready and final.get("status") != "incomplete":
        call.ready = True
        if call.client and not call.answered:
            response.pending[call_id] = call


def final_output(run: Run, response: Response, resource: dict[str, Any], kind: str) -> None:
    """The output of the terminal event against the items."""
    output = resource.get("output")
    listed = output if isinstance(output, list) else []
    items = sorted(
        (item for item in response.items if item.done is not None),
        key=lambda item: item.index if isinstance(item.index, int) else 0,
    )
    for one in listed:
        kind_of = one.get("type") if isinstance(one, dict) else None
        _kept_out(run, response, kind_of, ("output", str(kind_of)))
    bare_failure = kind == "response.failed" and not listed and not run.engine
    if not bare_failure:
        _compare(run, response, listed, items, output)
    if kind == "response.completed":
        for item in response.items:
            if item.done is None:
                run.report(
                    I4, f"item {item.index} done", "completed without its done", of=response, item=item.index
                )
    for item in response.items:
        if item.done is not None and item.done.get("status") == "incomplete":
            last = item is response.items[-1]
            if kind not in {"response.incomplete", "response.failed"} or not last:
                run.report(
                    I4,
                    "incomplete only as last item of an incomplete response",
                    f"item {item.index} incomplete, {kind}",
                    of=response,
                    item=item.index,
                )


def _compare(run: Run, response: Response, listed: list[Any], items: list[Item], output: object) -> None:
    if len(listed) != len(items) or not isinstance(output, list):
        run.report(
            I6,
            f"output with the {len(items)} done items",
            f"{len(listed)} items" if isinstance(output, list) else f"output {shown(output)}",
            of=response,
        )
        return
    ids = {item.id for item in items if isinstance(item.id, str)}
    for item, one in zip(items, listed, strict=True):
        if not same(item.done, one):
            other = one.get("id") if isinstance(one, dict) else None
            ours, theirs = both(item.done, one, 200)
            words = f"output[{item.index}] as it was done: {ours}"
            run.report(I6, words, theirs, of=response, item=item.index)
            if isinstance(other, str) and other not in ids:
                run.report(I2, f"id {shown(item.id)}", f"id {shown(other)}", of=response, item=item.index)


def owner(run: Run, conn: Connection, current: object, item_id: object) -> Response | Ended | None:
    """The other response of this connection that an item belongs to."""
    if not isinstance(item_id, str):
        return None
    found = run.known(run.owners.get(item_id))
    return found if found is not None and found is not current and found.conn is conn else None
