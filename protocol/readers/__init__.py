"""Logs of any kind, read as a trace: a header, then records, one by one, as `protocol.trace.entries` gives them.

    lines = readers.lines_of(chunks)
    kind, lines = readers.detected(lines)
    for entry in readers.entries(kind, lines): ...

All but HAR files stream in constant memory. Which directions were recorded is said in the header; nothing is invented:
an SSE log has only what the server sent, so rules about requests are not evaluated on it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from protocol import trace
from protocol.readers import events, frames, har, sse
from protocol.readers.headers import is_websocket_only
from protocol.readers.lines import lines_of, looked_ahead
from protocol.trace import TraceError, parsed

__all__ = ["FORMATS", "TraceError", "detected", "entries", "lines_of"]

FORMATS: Final[Mapping[str, Callable[[Iterable[bytes], str | None], Iterator[dict[str, Any]]]]] = {
    "trace": lambda lines, _: trace.entries(lines),
    "sse": sse.read,
    "frames": frames.read,
    "har": har.read,
    "events": events.read,
}
"""The reader of each format; `detected` tells which one a text is of."""

_HAR_BEGINS: Final = re.compile(rb'\s*\{\s*"log"\s*:')
_BEGINNING_LINES: Final = 16
"""Of a JSON value over several lines: enough to see whether it is a HAR file."""

_STRANGERS: Final[Mapping[bytes, str]] = {
    b"\x1f\x8b": "it is compressed; unpack it first: gzip -d FILE",
    b"\x28\xb5\x2f\xfd": "it is compressed; unpack it first: zstd -d FILE",
    b"\xff\xfe": "it is UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "it is UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"[": "it is one JSON list; write one event a line: jq -c '.[]' FILE",
}
_WAY_OUT: Final = (
    "known are traces, SSE logs, WebSocket frames (one JSON a line), HAR files and openai-python events"
)


def entries(kind: str, lines: Iterable[bytes], dialect: str | None = None) -> Iterator[dict[str, Any]]:
    """Headers and records of a log of one of `FORMATS`. `dialect` overrides the guess of a form; a trace has its own.

    `KeyError`: no such format. `TraceError`: the log is not what it is read as.
    """
    return FORMATS[kind](lines, dialect)


def detected(lines: Iterable[bytes]) -> tuple[str, Iterator[bytes]]:
    """Which of `FORMATS` it is, by its first lines, and all lines. `TraceError`: none.

    One line is enough, but for JSON frames without a wrapper: events of an SDK and frames of a WebSocket look alike,
    until a frame comes that only a WebSocket has; without one they are taken for events.
    """
    rest = iter(lines)
    begun: list[bytes] = []
    for line in rest:
        begun.append(line)
        if line.strip():
            break
    else:
        raise TraceError(f"it is empty; {_WAY_OUT}")
    rest = chain(begun, rest)
    kind = _kind(begun[-1])
    if kind == "bare":
        head, rest = looked_ahead(rest)
        kind = "frames" if any(map(_is_websocket_only, head)) else "events"
    elif kind is None:
        kind, rest = _kind_of_value(begun[-1], len(begun), rest)
    return kind, rest


def _kind(line: bytes) -> str | None:
    """What one line tells; `bare`: a frame without wrapper; None: it is no line of its own, or unknown."""
    if sse.FIRST_LINE.match(line):
        return "sse"
    if events.FIRST_LINE.match(line):
        return "events"
    if frames.ARROW.match(line):
        return "frames"
    if _HAR_BEGINS.match(line):
        return "har"
    try:
        value = parsed(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    if "trace" in value:
        return "trace"
    try:
        return "frames" if frames.taken_apart(line).rest else "bare"
    except ValueError:
        return None


def _is_websocket_only(line: bytes) -> bool:
    try:
        value = parsed(line)
    except ValueError:
        return False
    return isinstance(value, dict) and is_websocket_only(value)


def _kind_of_value(first: bytes, number: int, lines: Iterator[bytes]) -> tuple[str, Iterator[bytes]]:
    """What is written over several lines: a HAR file, or nothing that is read here."""
    if not first.lstrip().startswith(b"{"):
        stranger = next((way for magic, way in _STRANGERS.items() if first.startswith(magic)), None)
        raise TraceError(
            stranger or f"line {number} begins with {_shown(first)}, as no known log does; {_WAY_OUT}", number
        )
    head = list(islice(lines, _BEGINNING_LINES + number))
    if _HAR_BEGINS.match(b"\n".join(head)):
        return "har", chain(head, lines)
    raise TraceError(
        f"line {number} is JSON, but no record, event or frame; one over several lines? jq -c . FILE; {_WAY_OUT}",
        number,
    )


def _shown(line: bytes) -> str:
    return repr(line[:40].decode("utf-8", "replace"))
