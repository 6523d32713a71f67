"""The trace format, version 1: an exchange as JSON lines, both directions and what happened between (invariants part 1).

A line with the key `trace` is a header and starts a trace; the lines after it are its records, counted from 1.
This module makes and reads lines; clocks and files are the caller's. `protocol.readers` reads logs of other kinds.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NoReturn

import orjson

VERSION: Final = 1
MAX_RAW_CHARACTERS: Final = 4096
"""Text that is no JSON object is cut here."""

DONE: Final = b"[DONE]"
"""What ends a stream over SSE: the one frame that is no object."""

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
"""Line breaks of a JSON text can only stand between its members."""

_LONE_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""What may be one: only then is a text worth a second, slow look."""

Direction = Literal["in", "out", "hook"]
DIRECTIONS: Final = ("in", "out", "hook")

ENGINE_HOOKS: Final = (
    "connection_open",
    "connection_close",
    "pre_inference",
    "post_inference",
    "sampler_stop",
    "suspend",
    "accepted",
    "resume",
    "slot_acquire",
    "slot_release",
    "context",
    "usage_record",
    "cache_reset",
    "attach",
)
"""The hooks that the engine records completely."""


class TraceError(ValueError):
    """The input is not what it is read as. The message names the line and the way out; `line` counts from 1."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def header_line(
    *,
    dialect: str,
    source: str,
    transport: str = "websocket",
    directions: Iterable[str] = ("in", "out", "hook"),
    hooks: Iterable[str] = ENGINE_HOOKS,
    **members: Any,
) -> bytes:
    """The first line of a trace, newline included."""
    header = {
        "trace": VERSION,
        "dialect": dialect,
        "transport": transport,
        "source": source,
        "directions": list(directions),
        "hooks": list(hooks),
        **members,
    }
    return orjson.dumps(header) + b"\n"


def record_line(
    t_seconds: float,
    connection: str,
    direction: Direction,
    frame: Mapping[str, Any] | bytes,
    event: str | None = None,
) -> bytes:
    """One record, newline included. A frame may come as the bytes that were on the wire: they are kept as they are.

    Only line breaks between members become spaces, since a record is a line. `event`: the line of that name, over SSE.
    """
    names = {"t": round(t_seconds, 6), "conn": connection, "dir": direction}
    head = orjson.dumps(names if event is None else {**names, "event": event})[:-1]
    if frame == DONE:
        return head + b',"frame":"[DONE]"}\n'
    if not isinstance(frame, bytes):
        return head + b',"frame":' + orjson.dumps(frame) + b"}\n"
    if is_object(frame):
        return head + b',"frame":' + frame.translate(_ONE_LINE).strip() + b"}\n"
    raw = frame.decode("utf-8", "replace")[:MAX_RAW_CHARACTERS]
    return head + b',"raw":' + orjson.dumps(raw) + b"}\n"


def is_object(frame: bytes) -> bool:
    """Is it one JSON object? Read inside a list, because the record nests it once more than it was."""
    try:
        values = parsed(b"[%b]" % frame)
    except ValueError:
        return False
    return len(values) == 1 and isinstance(values[0], dict)


def hook_line(t_seconds: float, connection: str, name: str, members: Mapping[str, Any]) -> bytes:
    """A record of something that happened between the frames."""
    return record_line(t_seconds, connection, "hook", {"hook": name, **members})


def parsed(text: str | bytes) -> Any:
    """JSON, with lone surrogates too: that a server sends half a character is for the checker to say. `ValueError`."""
    try:
        return orjson.loads(text)
    except ValueError:
        escaped = text if isinstance(text, str) else text.decode("utf-8", "replace")
        if not _LONE_SURROGATE.search(escaped):
            raise
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def entries(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """Headers and records of a file, one by one, in constant memory; a header is what has the key `trace`.

    `TraceError`: a record before any header, an unknown version, or a line that is no object or no record.
    """
    started = False
    for number, line in enumerate(lines, 1):
        try:
            value = orjson.loads(line)
        except ValueError:
            if not line.strip():
                continue
            value = _parsed_line(line, number)
        if type(value) is not dict:
            raise TraceError(f"line {number} is no JSON object; a trace has one a line", number)
        if "trace" in value:
            _check_header(value, number)
            started = True
        elif not started:
            raise TraceError(f"line {number} comes before any header (a line with the key 'trace')", number)
        elif value.get("dir") not in DIRECTIONS or type(value.get("conn")) is not str:
            raise TraceError(
                f"line {number} is no record: it needs 'dir' (in, out or hook) and 'conn' (a text)", number
            )
        yield value


def _parsed_line(line: str | bytes, number: int) -> Any:
    """The slow way, for what the fast way does not read."""
    try:
        return parsed(line)
    except ValueError as error:
        raise TraceError(
            f"line {number} is no JSON: {error}; was the file cut in the middle of a line?", number
        ) from None


def _check_header(header: Mapping[str, Any], number: int) -> None:
    if header["trace"] != VERSION:
        raise TraceError(
            f"line {number}: trace version {header['trace']!r} is unknown; this reader knows {VERSION}",
            number,
        )


def read(lines: Iterable[str | bytes]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Traces of a file, each whole: header and records. `TraceError` as `entries`."""
    header: dict[str, Any] | None = None
    records: list[dict[str, Any]] = []
    for entry in entries(lines):
        if "trace" not in entry:
            records.append(entry)
            continue
        if header is not None:
            yield header, records
        header, records = entry, []
    if header is not None:
        yield header, records
