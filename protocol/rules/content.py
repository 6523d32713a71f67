"""C1 to C4 and C9 to C11: the content parts of messages and reasoning, and what may stand in text."""

import re
from typing import Any, Final

from protocol.rules import arguments, numbers, summary
from protocol.rules.differences import both
from protocol.rules.parts import Item, Part
from protocol.rules.run import Run, shown
from protocol.rules.state import Response
from protocol.rules.stream_rules import C1, C2, C3, C4, C9, C10, C11, N3
from protocol.rules.tables import same_value

DELTAS: Final = {
    "response.reasoning.delta": "reasoning_text",  # of Open Responses; before the usual name, which TAKES keeps
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
}
TAKES: Final = {kind: event for event, kind in DELTAS.items()}
DONES: Final = {
    "response.output_text.done": ("output_text", "text"),
    "response.refusal.done": ("refusal", "refusal"),
    "response.reasoning.done": ("reasoning_text", "text"),
    "response.reasoning_text.done": ("reasoning_text", "text"),
}
BROKEN: Final = re.compile("[\ud800-\udfff\ufffd]")
LONE: Final = re.compile("[\ud800-\udfff]")


def part_added(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`response.content_part.added`."""
    if item.spec is None:
        return
    numbers.new_part(run, response, item, item.parts, "content_index", frame.get("content_index"))
    first = frame.get("part")
    kind = first.get("type") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(kind, str) or kind not in item.spec.text:
        run.report(C4, f"a part that fits a {item.kind}", f"part {shown(kind)}", of=response, item=item.index)
    if isinstance(first, dict) and first.get(_field(kind)) != "":
        run.report(C1, "an empty part", shown(first.get(_field(kind))), of=response, item=item.index)
    kind = kind if isinstance(kind, str) else "output_text"
    part = Part(item, kind, TAKES.get(kind), "content_index", len(item.parts))
    item.parts.append(part)
    response.part = part


def _field(kind: object) -> str:
    return "refusal" if kind == "refusal" else "text"


def find(run: Run, response: Response, item: Item, frame: dict[str, Any], kind: str) -> Part:
    """The part that an event is about; a missing one is reported, and made up to go on."""
    index = frame.get("content_index")
    if type(index) is int and 0 <= index < len(item.parts):
        return item.parts[index]
    loose = item.kind == "reasoning" and kind == "reasoning_text"
    if type(index) is not int:
        run.report(
            N3,
            "a content_index",
            "none" if index is None else f"content_index {shown(index)}",
            of=response,
            item=item.index,
        )
        if item.parts:
            return item.parts[-1]
    if not loose:
        run.report(C1, f"part {shown(index)} added first", frame["type"], of=response, item=item.index)
    elif type(index) is int:
        numbers.new_part(run, response, item, item.parts, "content_index", index)
    if item.parts and (not loose or index != len(item.parts)):
        return item.parts[-1]
    part = Part(item, kind, TAKES[kind], "content_index", len(item.parts))
    part.implicit = True
    item.parts.append(part)
    return part


def delta(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """Any delta that was not taken on the short way."""
    kind, piece = frame["type"], frame.get("delta")
    part: Part | None
    if kind in DELTAS:
        if item.spec is None:
            return
        part = find(run, response, item, frame, DELTAS[kind])
        if DELTAS[kind] not in item.spec.text or part.kind != DELTAS[kind]:
            run.report(C4, f"text of a {part.kind} part in a {item.kind}", kind, of=response, item=item.index)
        if part.text is not None or part.closed:
            run.report(C2, "no delta after the text is done", kind, of=response, item=item.index)
        response.part = part
    elif kind == summary.DELTA:
        part = summary.delta(run, response, item, frame)
    else:
        part = arguments.delta(run, response, item, frame)
    if not isinstance(piece, str):
        run.report(C4, "a string as delta", shown(piece), of=response, item=item.index)
    elif part is not None:
        part.pieces.append(piece)
        characters(run, response, item, piece)
        if run.tokens:
            control_tokens(run, response, item, part, piece)


def characters(run: Run, response: Response, item: Item, piece: str) -> None:
    """Whole characters only."""
    if piece.isascii():
        return
    broken = (LONE if run.replacement else BROKEN).search(piece)
    if broken is not None:
        seen = "half of a surrogate pair" if broken.group() != "\ufffd" else "a replacement character"
        run.report(C10, "whole characters", f"{seen} in a delta", of=response, item=item.index)


def control_tokens(run: Run, response: Response, item: Item, part: Part, piece: str) -> None:
    """No control token in what has been written, whatever the deltas' borders."""
    text = part.tail + piece
    for token in run.tokens:
        if token in text:
            run.report(C11, "text without control tokens", shown(token), of=response, item=item.index)
            text = ""
    part.tail = text[-run.overlap :] if run.overlap else ""


def text_done(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`*.done` of a text."""
    if item.spec is None:
        return
    kind, field = DONES[frame["type"]]
    part = find(run, response, item, frame, kind)
    if kind not in item.spec.text or part.kind != kind:
        run.report(
            C4, f"text of a {part.kind} part in a {item.kind}", frame["type"], of=response, item=item.index
        )
    if part.text is not None:
        run.report(C2, "the text done once", "a second done", of=response, item=item.index)
        return
    text, written = frame.get(field), "".join(part.pieces)
    if text != written:
        ours, theirs = both(written, text)
        run.report(C3, f"the text of the deltas: {ours}", theirs, of=response, item=item.index)
    part.text = text if isinstance(text, str) else written
    part.takes = None
    part.pieces.clear()


def part_done(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`response.content_part.done`."""
    if item.spec is None:
        return
    closed = frame.get("part")
    kind = closed.get("type") if isinstance(closed, dict) else None
    part = find(
        run,
        response,
        item,
        frame,
        kind if isinstance(kind, str) and kind in TAKES else (item.spec.text or ("output_text",))[0],
    )
    if part.closed or part.text is None:
        run.report(
            C2,
            "text done, then the part closed once",
            "closed twice" if part.closed else "closed before its text is done",
            of=response,
            item=item.index,
        )
    said = "".join(part.pieces) if part.text is None else part.text
    part.text = said
    part.takes = None
    part.closed = True
    part.pieces.clear()
    if not isinstance(closed, dict) or kind != part.kind:
        run.report(C4, f"a {part.kind} part", f"part {shown(kind)}", of=response, item=item.index)
        return
    text = closed.get(_field(kind))
    if text != said:
        ours, theirs = both(said, text)
        run.report(C3, f"a part with {ours}", theirs, of=response, item=item.index)
    listed = closed.get("annotations")
    if part.annotations and not _starts_with(listed, part.annotations):
        run.report(
            C9,
            f"the {len(part.annotations)} annotations in the closed part",
            shown(listed),
            of=response,
            item=item.index,
        )
    if isinstance(listed, list):
        part.annotations = listed


def _starts_with(listed: object, announced: list[Any]) -> bool:
    return isinstance(listed, list) and all(
        one is not None and same_value(one, other)
        for one, other in zip([*listed, *[None] * len(announced)], announced, strict=False)
    )


def annotation(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`response.output_text.annotation.added`."""
    if item.spec is None:
        return
    index, position = frame.get("content_index"), frame.get("annotation_index")
    if type(index) is not int or not 0 <= index < len(item.parts) or item.parts[index].closed:
        run.report(C9, "an annotation in an open part", f"part {shown(index)}", of=response, item=item.index)
        return
    part = item.parts[index]
    if type(position) is not int or position != len(part.annotations):
        run.report(
            C9,
            f"annotation_index {len(part.annotations)}",
            f"annotation_index {shown(position)}",
            of=response,
            item=item.index,
        )
    part.annotations.append(frame.get("annotation"))


def finish(run: Run, response: Response, item: Item, final: dict[str, Any]) -> None:
    """The content of a done item."""
    parts, listed = item.parts, final.get("content")
    for part in parts:
        if not part.closed and not (part.implicit and item.kind == "reasoning"):
            run.report(
                C2,
                f"part {part.index} closed before its item is done",
                "item done",
                of=response,
                item=item.index,
            )
            break
    if item.kind == "reasoning" and not listed:
        return
    texts = [part.text if part.text is not None else "".join(part.pieces) for part in parts]
    said = (
        [one.get(_field(one.get("type"))) if isinstance(one, dict) else None for one in listed]
        if isinstance(listed, list)
        else None
    )
    if said != texts:
        ours, theirs = both(texts, said, 120)
        run.report(C3, f"content of {ours}", f"content {theirs}", of=response, item=item.index)
        return
    for part, one in zip(parts, listed or (), strict=False):
        if one.get("type") != part.kind and part.kind in TAKES:
            run.report(C4, f"a {part.kind} part", shown(one.get("type")), of=response, item=item.index)
        if part.annotations and not same_value(one.get("annotations"), part.annotations):
            run.report(
                C9,
                "the annotations of the closed part",
                shown(one.get("annotations")),
                of=response,
                item=item.index,
            )
