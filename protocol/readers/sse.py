"""Server-sent events as they were saved: `event:` and `data:` lines of one or several answers, with or without heads.

What `curl -N` or `curl -i` writes. Only what the server sent is in it.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from protocol.readers.headers import Exchanges, header, record
from protocol.trace import MAX_RAW_CHARACTERS, TraceError, parsed

FIRST_LINE: Final = re.compile(rb"(data|event|id|retry):|:|HTTP/\d")
_STATUS_LINE: Final = re.compile(rb"HTTP/[\d.]+ (\d{3})\b")


class EventParser:
    """Lines in, events out: `feed` gives (event name, data) at the end of an event, and None before it."""

    def __init__(self) -> None:
        self._name: bytes | None = None
        self._data: list[bytes] = []

    def feed(self, line: bytes) -> tuple[str | None, bytes] | None:
        """One line, without its end."""
        if not line:
            return self.finish()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        return None  # a comment, or a field that says nothing of the order

    def finish(self) -> tuple[str | None, bytes] | None:
        """The event that has begun, at its empty line or at the end of the log. Without data there is none."""
        name, data = self._name, self._data
        self._name, self._data = None, []
        if not data:
            return None
        return (None if name is None else name.decode("utf-8", "replace")), b"\n".join(data)


def payload(data: bytes) -> Any:
    """The frame in the data of an event: an object, `"[DONE]"`, or else the text as it is."""
    try:
        value = parsed(data)
    except ValueError:
        if data.strip() == b"[DONE]":
            return "[DONE]"
        value = None
    return value if isinstance(value, dict) else data[: 4 * MAX_RAW_CHARACTERS].decode("utf-8", "replace")


def event_record(seconds: float, connection: str, name: str | None, frame: Any) -> dict[str, Any]:
    """The record of an event. Its name is kept beside the frame: that they agree is a rule."""
    made = record(seconds, connection, "out", frame)
    return made if name is None else {**made, "event": name}


def read(lines: Iterable[bytes], dialect: str | None = None) -> Iterator[dict[str, Any]]:
    """Header and records. The log has no times: all are 0. `TraceError`: there is no event in it.

    An event that is cut off in its data by the end of the log is left out: it was never whole on the wire.
    """
    yield header("an SSE log", dialect or "http", "sse", ["out"])
    parser, exchanges = EventParser(), Exchanges()
    in_head = found = False
    for line in lines:
        if in_head:
            in_head = bool(line)
        elif line.startswith(b"HTTP/") and (status := _STATUS_LINE.match(line)):
            yield from _event_records(parser.finish(), exchanges)
            in_head = found = True
            exchanges.begin()
            answer = {"type": "http.response", "status": int(status[1])}
            yield record(0.0, exchanges.connection(answer), "out", answer)
        elif event := parser.feed(line):
            found = True
            yield from _event_records(event, exchanges)
    if event := _last_event(parser):
        found = True
        yield from _event_records(event, exchanges)
    if not found:
        raise TraceError("no event in it; an SSE log has lines that begin with 'event:' or 'data:'")


def _last_event(parser: EventParser) -> tuple[str | None, bytes] | None:
    """The one that lacks its empty line, if it is whole."""
    event = parser.finish()
    frame = payload(event[1]) if event else None
    return event if isinstance(frame, dict) or frame == "[DONE]" else None


def _event_records(event: tuple[str | None, bytes] | None, exchanges: Exchanges) -> Iterator[dict[str, Any]]:
    if event:
        frame = payload(event[1])
        yield event_record(0.0, exchanges.connection(frame), event[0], frame)


def events_in(text: bytes) -> Iterator[tuple[str | None, Any]]:
    """Name and frame of each event of one answer; as in `read`, what was cut off is left out."""
    parser = EventParser()
    for line in text.splitlines():
        if event := parser.feed(line):
            yield event[0], payload(event[1])
    if event := _last_event(parser):
        yield event[0], payload(event[1])
