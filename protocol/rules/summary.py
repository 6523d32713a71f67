"""C8: a reasoning summary, part by part."""

from typing import Any

from protocol.rules import numbers
from protocol.rules.differences import both
from protocol.rules.parts import Item, Part
from protocol.rules.run import Run, shown
from protocol.rules.state import Response
from protocol.rules.stream_rules import C4, C8, N3

DELTA = "response.reasoning_summary_text.delta"


def _text_of(part: object) -> object:
    """The text of a summary part; None if it is none."""
    is_one = isinstance(part, dict) and part.get("type") == "summary_text"
    return part["text"] if is_one and isinstance(part, dict) and "text" in part else None


def _fits(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> bool:
    if item.kind != "reasoning":
        if item.spec is not None:
            run.report(C4, f"no summary in a {item.kind}", frame["type"], of=response, item=item.index)
        return False
    return True


def part_added(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`response.reasoning_summary_part.added`."""
    if not _fits(run, response, item, frame):
        return
    index = frame.get("summary_index")
    numbers.new_part(run, response, item, item.summary, "summary_index", index)
    first = frame.get("part")
    if not isinstance(first, dict) or first.get("text") != "" or first.get("type") != "summary_text":
        run.report(C8, "an empty summary_text part", shown(first), of=response, item=item.index)
    part = Part(item, "summary_text", DELTA, "summary_index", len(item.summary))
    item.summary.append(part)
    response.part = part


def find(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> Part | None:
    """The part that an event of the summary is about."""
    if not _fits(run, response, item, frame):
        return None
    index = frame.get("summary_index")
    if type(index) is int and 0 <= index < len(item.summary):
        return item.summary[index]
    if type(index) is not int:
        run.report(N3, "a summary_index", shown(index), of=response, item=item.index)
    else:
        run.report(C8, f"summary part {index} added first", frame["type"], of=response, item=item.index)
    if item.summary:
        return item.summary[-1]
    part = Part(item, "summary_text", DELTA, "summary_index", 0)
    part.implicit = True
    item.summary.append(part)
    return part


def delta(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> Part | None:
    """The part that a delta goes to."""
    part = find(run, response, item, frame)
    if part is None:
        return None
    if part.text is not None:
        run.report(C8, "no delta after the text is done", frame["type"], of=response, item=item.index)
    response.part = part
    return part


def text_done(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`response.reasoning_summary_text.done`."""
    part = find(run, response, item, frame)
    if part is None:
        return
    if part.text is not None:
        run.report(C8, "the text done once", "a second done", of=response, item=item.index)
        return
    text, written = frame.get("text"), "".join(part.pieces)
    if text != written:
        ours, theirs = both(written, text)
        run.report(C8, f"the text of the deltas: {ours}", theirs, of=response, item=item.index)
    part.text = text if isinstance(text, str) else written
    part.takes = None


def part_done(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`response.reasoning_summary_part.done`."""
    part = find(run, response, item, frame)
    if part is None:
        return
    if part.closed or part.text is None:
        run.report(
            C8,
            "text done, then the part closed once",
            "closed twice" if part.closed else "closed before its text is done",
            of=response,
            item=item.index,
        )
    said = "".join(part.pieces) if part.text is None else part.text
    closed = frame.get("part")
    text = _text_of(closed)
    if text != said:
        ours, theirs = both(said, closed if text is None else text)
        run.report(C8, f"a part with {ours}", theirs, of=response, item=item.index)
    part.text = said
    part.takes = None
    part.closed = True


def finish(run: Run, response: Response, item: Item, final: dict[str, Any]) -> None:
    """The summary in a done item."""
    open_ones = [part for part in item.summary if not part.closed]
    if open_ones:
        run.report(C8, "every summary part closed", "item done", of=response, item=item.index)
    texts = [part.text if part.text is not None else "".join(part.pieces) for part in item.summary]
    value = final.get("summary")
    said = [_text_of(one) for one in value] if isinstance(value, list) else None
    if said != texts:
        ours, theirs = both(texts, value if said is None else said, 120)
        run.report(C8, f"a summary of {ours}", f"summary {theirs}", of=response, item=item.index)
