"""The trace format, version 1: an exchange as JSON lines, both directions and what happened between (invariants part 1).

A line with the key `trace` is a header and starts a trace; the lines after it are its records, counted from 1.
This module makes and reads lines; clocks and files are the caller's.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import orjson

VERSION: Final = 1
MAX_RAW_CHARACTERS: Final = 4096
"""Text that is no JSON object is cut here."""

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
"""Line breaks of a JSON text can only stand between its members."""

Direction = Literal["in", "out", "hook"]

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
)
"""The hooks that the engine records completely."""


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
    t_seconds: float, connection: str, direction: Direction, frame: Mapping[str, Any] | bytes
) -> bytes:
    """One record, newline included. A frame may come as the bytes that were on the wire: they are kept as they are.

    Only line breaks between members become spaces, since a record is a line.
    """
    head = orjson.dumps({"t": round(t_seconds, 6), "conn": connection, "dir": direction})[:-1]
    if not isinstance(frame, bytes):
        return head + b',"frame":' + orjson.dumps(frame) + b"}\n"
    if _is_object(frame):
        return head + b',"frame":' + frame.translate(_ONE_LINE).strip() + b"}\n"
    raw = frame.decode("utf-8", "replace")[:MAX_RAW_CHARACTERS]
    return head + b',"raw":' + orjson.dumps(raw) + b"}\n"


def _is_object(frame: bytes) -> bool:
    """Read inside a list, because the record nests it once more than it was."""
    try:
        values = orjson.loads(b"[%b]" % frame)
    except ValueError:
        return False
    return len(values) == 1 and isinstance(values[0], dict)


def hook_line(t_seconds: float, connection: str, name: str, members: Mapping[str, Any]) -> bytes:
    """A record of something that happened between the frames."""
    return record_line(t_seconds, connection, "hook", {"hook": name, **members})


def _object_of(line: str | bytes, number: int) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is no JSON object")  # noqa: TRY004  # a bad file, not a bad argument
    return value


def read(lines: Iterable[str | bytes]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Traces of a file: header and records. `ValueError`: no header, an unknown version, or a line that is no object."""
    header: dict[str, Any] | None = None
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value = _object_of(line, number)
        if "trace" not in value:
            if header is None:
                raise ValueError(f"line {number} comes before any header (a line with the key 'trace')")
            records.append(value)
            continue
        if value["trace"] != VERSION:
            raise ValueError(
                f"line {number}: trace version {value['trace']!r} is unknown; this reader knows {VERSION}"
            )
        if header is not None:
            yield header, records
        header, records = value, []
    if header is not None:
        yield header, records
