"""Records as lines: which way each went, and the few members that matter."""

from collections.abc import Callable, Mapping, Sequence
from difflib import ndiff
from typing import Any, Final

from demos.museum.exhibits import Telling

MAX_CHARACTERS: Final = 60
"""Of a value that is shown."""
_ARROWS: Final = {"in": "──▶", "out": "◀──", "hook": "   "}
_SHOWN_MEMBERS: Final = ("delta", "text", "arguments", "response_id")


def lines(telling: Telling) -> list[str]:
    """A line for each record: its number, its second, its way, and what it says."""
    return [
        f"{number:>3}  {record['t']:7.2f}  {line}"
        for number, (record, line) in enumerate(zip(telling.records, bare_lines(telling), strict=True), 1)
    ]


def bare_lines(telling: Telling) -> list[str]:
    """The same without numbers and times; where there are several connections, with their names."""
    several = len({record["conn"] for record in telling.records}) > 1
    return [
        f"{record['conn'] + '  ' if several else ''}{_ARROWS[record['dir']]} {_said(record['frame'])}"
        for record in telling.records
    ]


def _said(frame: Mapping[str, Any] | str) -> str:
    if isinstance(frame, str):
        return frame
    if "hook" in frame:
        return f"({frame['hook']} by {frame['by']})"
    say = _WORDS.get(frame["type"], _event)
    return say(frame)


def _request(frame: Mapping[str, Any]) -> str:
    body = frame.get("body", {})
    return f"{frame['method']} {frame['path']}  {_input(body)}".rstrip()


def _answer(frame: Mapping[str, Any]) -> str:
    body = frame.get("body", {})
    error = body.get("error") or {}
    said = error.get("code") or body.get("status", "")
    return f"HTTP {frame['status']}  {said}".rstrip()


def _create(frame: Mapping[str, Any]) -> str:
    parent = frame.get("previous_response_id")
    return f"{frame['type']}  {f'after {parent}  ' if parent else ''}{_input(frame)}"


def _input(frame: Mapping[str, Any]) -> str:
    value = frame.get("input")
    if isinstance(value, str):
        return _cut(value)
    return " ".join(f"output of {item['call_id']}: {_cut(item['output'])}" for item in value or ())


def _event(frame: Mapping[str, Any]) -> str:
    words = [f"{frame['type']:42}", f"#{frame['sequence_number']}" if "sequence_number" in frame else ""]
    words += [f"[{frame['output_index']}]"] if "output_index" in frame else []
    words += [_cut(frame[name]) for name in _SHOWN_MEMBERS if name in frame]
    words += [_item(frame["item"])] if "item" in frame else []
    words += [_resource(frame["response"])] if "response" in frame else []
    words += [_cut(frame["message"])] if "message" in frame else []
    return " ".join(filter(None, words)).rstrip()


def _item(item: Mapping[str, Any]) -> str:
    named = f" {item['call_id']}" if "call_id" in item else ""
    status = f" {item['status']}" if "status" in item else ""
    return f"{item['type']} {item['id']}{named}{status}"


def _resource(response: Mapping[str, Any]) -> str:
    error = "" if response["error"] is None else f" {response['error']['code']}"
    usage = response["usage"] or {}
    details = {**usage.get("input_tokens_details", {}), **usage.get("output_tokens_details", {})}
    nulls = "".join(f"  {name} null" for name, value in details.items() if value is None)
    return f"{response['id']} {response['status']}{error}{nulls}"


def _cut(value: str) -> str:
    text = value if len(value) <= MAX_CHARACTERS else f"{value[: MAX_CHARACTERS - 1]}…"
    return f'"{text}"'.replace("\n", "\\n")


_WORDS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "http.request": _request,
    "http.response": _answer,
    "response.create": _create,
    "response.inject": lambda frame: f"response.inject  into {frame['response_id']}  {_input(frame)}",
}


def differences(broken: Telling, mended: Telling) -> Sequence[str]:
    """What is to be changed: lines that go begin with `-`, lines that come with `+`."""
    compared = ndiff(bare_lines(broken), bare_lines(mended))
    return [line for line in compared if line.startswith(("-", "+"))]
