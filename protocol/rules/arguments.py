"""C5 and C6: the arguments of a call, or the input of a custom one, written piece by piece and closed once."""

import json
from typing import Any, Final

import orjson

from protocol.rules.differences import both
from protocol.rules.parts import Item, Part
from protocol.rules.run import Run, shown
from protocol.rules.state import Response
from protocol.rules.stream_rules import C4, C5, C6, I5

FIELD_OF: Final = {
    "response.function_call_arguments.done": "arguments",
    "response.mcp_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
}


def begin(item: Item) -> None:
    """An added item of a kind that is called."""
    if item.spec is not None and item.spec.delta is not None:
        item.arguments = Part(item, "arguments", item.spec.delta, "content_index", None)


def delta(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> Part | None:
    """The part that a delta of arguments goes to; None when it fits no part of this item."""
    part = item.arguments
    if part is None:
        if item.spec is not None:
            run.report(C4, f"no arguments in a {item.kind}", frame["type"], of=response, item=item.index)
        return None
    if item.spec is not None and frame["type"] != item.spec.delta:
        run.report(C4, f"{item.spec.delta}", frame["type"], of=response, item=item.index)
    if part.text is not None:
        run.report(C6, "done after the last delta", frame["type"], of=response, item=item.index)
    response.part = part
    return part


def done(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """`*.done` of arguments or input."""
    part = item.arguments
    kind = frame["type"]
    field = FIELD_OF[kind]
    if part is None or item.spec is None or item.spec.delta is None:
        if item.spec is not None:
            run.report(C4, f"no arguments in a {item.kind}", kind, of=response, item=item.index)
        return
    if f"{kind[:-5]}.delta" != item.spec.delta:
        run.report(C4, f"{item.spec.delta[:-6]}.done", kind, of=response, item=item.index)
    if "name" in frame and frame["name"] != item.first.get("name"):
        run.report(
            I5,
            f"name {shown(item.first.get('name'))}",
            f"name {shown(frame['name'])}",
            of=response,
            item=item.index,
        )
    if part.text is not None:
        run.report(C6, f"one {kind}", "a second one", of=response, item=item.index)
        return
    text, written = frame.get(field), "".join(part.pieces)
    if (text != written and item.spec.streamed) or not isinstance(text, str):
        ours, theirs = both(written, text)
        run.report(C5, f"{field} as in the deltas: {ours}", theirs, of=response, item=item.index)
    part.text = text if isinstance(text, str) else written
    part.takes = None
    part.pieces.clear()


def finish(run: Run, response: Response, item: Item, final: dict[str, Any]) -> None:
    """The arguments in a done item."""
    part, spec = item.arguments, item.spec
    if part is None or spec is None or spec.field is None:
        return
    if part.text is None:
        run.report(C6, f"the done of its {spec.field}", "item done without it", of=response, item=item.index)
        said = "".join(part.pieces)
    else:
        said = part.text
    value = final.get(spec.field)
    if value != said and (spec.streamed or part.text is not None):
        ours, theirs = both(said, value)
        run.report(C5, f"{spec.field} as in the deltas: {ours}", theirs, of=response, item=item.index)
    if spec.json and final.get("status") != "incomplete" and isinstance(value, str) and not _is_json(value):
        run.report(C5, "arguments that are JSON", shown(value), of=response, item=item.index)
    item.arguments = None


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return _is_odd_json(text)
    return True


def _is_odd_json(text: str) -> bool:
    """Half a surrogate pair, escaped, and a number beyond every double are JSON all the same."""
    try:
        json.loads(text, parse_int=str, parse_constant=_no_number)
    except ValueError:
        return False
    except RecursionError:
        return True  # nested too deep to be read, which is no fault
    return True


def _no_number(name: str) -> None:
    raise ValueError(name)
