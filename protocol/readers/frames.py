"""WebSocket frames as somebody logged them: one a line, as JSON, bare or wrapped with direction, time and connection.

Wrappers differ, so they are guessed, by what is in the lines, not by who wrote them:
- the frame is the line itself, or its member `frame`, `data`, `payload`, `message`, `text` or `body`, as an object or
  as text; or it follows an arrow (`> {…}`, `< {…}`). A line with a type, but no direction, wraps only typed ones;
- the direction is a word in `dir`, `direction`, `from`, `sender` or `side` (and `type`, if it is `send` or `receive`).
  What a word means is learnt from the frames that bear it: who is said to have "sent" `response.create` is the client.
  Only without such evidence the table `WORDS` decides, and without a word the type of the frame;
- the time is a number or date in `t`, `ts`, `time` or `timestamp`, or `t_ms` in milliseconds; else it stands still;
- `conn`, `connection`, `connection_id` or `socket` tells connections apart; else there is one;
- `close`, `omitted`, `note`, `handshake` and `http` instead of a frame say what happened beside the frames.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from protocol.readers.headers import dialect_of, header, hook, record, refuse_append, side_of
from protocol.readers.lines import Clock, looked_ahead, seconds_of
from protocol.trace import TraceError, parsed

PAYLOADS: Final = ("frame", "data", "payload", "message", "text", "body")
WORD_KEYS: Final = ("dir", "direction", "from", "sender", "side")
_WORD_KEYS: Final = frozenset(WORD_KEYS)
CONNECTIONS: Final = ("conn", "connection", "connection_id", "socket")
TIMES: Final = ("t", "ts", "time", "timestamp")
BESIDES: Final = ("close", "omitted", "note", "handshake", "http")

WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("in", "client", "c2s", "send", "sent", "request", "tx", "up", "upstream"), "in"),
    **dict.fromkeys(("out", "server", "s2c", "receive", "received", "recv", "response", "rx"), "out"),
    **dict.fromkeys(("outgoing", ">", ">>", "->"), "in"),
    **dict.fromkeys(("incoming", "down", "downstream", "<", "<<", "<-"), "out"),
}
"""What a word means if no frame tells: the traces' own `in` and `out`, else as a client says it."""
PAIRS: Final = (
    ("in", "out"),
    ("incoming", "outgoing"),
    ("send", "receive"),
    ("sent", "received"),
    ("client", "server"),
    ("tx", "rx"),
    (">", "<"),
)
"""Words that mean opposites."""

ARROW: Final = re.compile(rb"\s*(>>?|<<?|->|<-)\s*(?=\{)")
_WAY_OUT: Final = 'write one frame a line, bare or as {"dir": "in" (from the client) or "out", "frame": …}'


@attrs.frozen
class Line:
    """A line taken apart."""

    word: str | None
    """The direction in the log's own word."""
    frame: Any
    """An object, or text that is none; None: something else happened (`BESIDES`)."""
    rest: Mapping[str, Any]
    """Everything around the frame."""


def taken_apart(line: bytes) -> Line:
    """`ValueError`: it is no JSON object, or has no frame."""
    arrow = None if line.startswith(b"{") else ARROW.match(line)
    value = parsed(line[arrow.end() :] if arrow else line)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")  # noqa: TRY004  # a bad file, not a bad argument
    if arrow:
        return Line(arrow[1].decode(), value, {})
    word = _word(value)
    if word is None and side_of(value):
        return Line(None, value, {})
    may_be_bare = word is None and _is_typed(value)
    for key in PAYLOADS:
        if key in value:
            payload = _object_or_text(value[key])
            if not may_be_bare or _is_typed(payload):
                return Line(word, payload, value)
    if any(key in value for key in BESIDES):
        return Line(word, None, value)
    if _is_typed(value):
        around = {*WORD_KEYS, *CONNECTIONS, *TIMES, "t_ms"} if word else set()
        frame = {key: member for key, member in value.items() if key not in around}
        return Line(word, frame, value if word else {})
    raise ValueError("it has neither a frame nor a 'type'")


def _word(value: Mapping[str, Any]) -> str | None:
    if not _WORD_KEYS.isdisjoint(value):
        for key in WORD_KEYS:
            if isinstance(value.get(key), str):
                return str(value[key]).lower()
    kind = value.get("type")
    return kind if isinstance(kind, str) and kind in {"send", "receive", "sent", "received"} else None


def _is_typed(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _object_or_text(payload: Any) -> Any:
    if not isinstance(payload, str):
        return payload
    try:
        value = parsed(payload)
    except ValueError:
        return payload
    return value if isinstance(value, dict) else payload


def read(lines: Iterable[bytes], dialect: str | None = None) -> Iterator[dict[str, Any]]:
    """Header and records. Form and directions are those of the first lines (see `looked_ahead`).

    `TraceError`: a line without a frame, or whose direction cannot be told, or a form that shows too late.
    """
    head, lines = looked_ahead(lines)
    log = _Log(head)
    top = log.header(dialect)
    yield top
    guessed = dialect is None and top["dialect"] == "create"
    for number, line in enumerate(lines, 1):
        for made in log.records(line, number) if line.strip() else ():
            if guessed:
                refuse_append(made.get("frame"), number)
            yield made


class _Log:
    """What the first lines tell of all of them."""

    def __init__(self, head: Iterable[bytes]) -> None:
        self._head = [line for line in map(_line_or_none, head) if line]
        self._sides = _sides_of(self._head)
        self._clock = Clock()
        self._http = 0

    def header(self, dialect: str | None) -> dict[str, Any]:
        """The header, and no more need of the first lines."""
        frames = [line.frame for line in self._head if isinstance(line.frame, dict)]
        sides = {self._side(line) for line in self._head if line.frame is not None}
        if any(line.frame is None for line in self._head):
            sides.add("hook")
        http = any("http" in line.rest for line in self._head)
        beta = " ".join(_beta(line.rest.get("handshake")) for line in self._head)
        self._head = []
        kind, transport = ("an HTTP log", "sse") if http else ("a WebSocket frame log", "websocket")
        form = dialect or ("http" if http else dialect_of(frames, beta))
        return header(kind, form, transport, filter(None, sides))

    def records(self, text: bytes, number: int) -> Iterator[dict[str, Any]]:
        """The records of a line."""
        try:
            line = taken_apart(text)
        except ValueError as error:
            raise TraceError(f"line {number} is no frame ({error}); {_WAY_OUT}", number) from None
        connection, seconds = self._connection(line.rest), self._clock.seconds(_instant(line.rest))
        if line.frame is None:
            yield from _besides(line, seconds, connection, self._side(line))
            return
        side = self._side(line)
        if side is None:
            raise TraceError(f"line {number}: who sent it? {_WAY_OUT}", number)
        if line.rest.get("opcode") == 2:
            size = len(str(line.frame)) * 3 // 4  # logs keep binary messages as base64
            yield {"t": seconds, "conn": connection, "dir": side, "binary_bytes": size}
        else:
            yield record(seconds, connection, side, _request(line) if "http" in line.rest else line.frame)

    def _side(self, line: Line) -> str | None:
        if line.word == "hook":
            return "hook"
        if line.word is None:  # what a client sends is known, so the rest is the server's
            return side_of(line.frame) or ("out" if isinstance(line.frame, dict) else None)
        return self._sides.get(line.word) or WORDS.get(line.word) or side_of(line.frame)

    def _connection(self, rest: Mapping[str, Any]) -> str:
        self._http += "http" in rest
        for key in CONNECTIONS if rest else ():
            if isinstance(rest.get(key), str | int):
                return f"c{rest[key]}" if isinstance(rest[key], int) else str(rest[key])
        return f"c{max(1, self._http)}"


def _line_or_none(line: bytes) -> Line | None:
    try:
        return taken_apart(line)
    except ValueError:
        return None


def _sides_of(lines: Iterable[Line]) -> Mapping[str, str]:
    """What each word means: what most of the frames that bear it are."""
    votes: dict[str, Counter[str]] = {}
    for line in lines:
        side = side_of(line.frame)
        if line.word and side:
            votes.setdefault(line.word, Counter())[side] += 1
    found = {word: count.most_common(1)[0][0] for word, count in votes.items()}
    for word, other in PAIRS:  # if one is known, so is the other
        for known, unknown in ((word, other), (other, word)):
            if known in found:
                found.setdefault(unknown, "in" if found[known] == "out" else "out")
    return found


def _instant(rest: Mapping[str, Any]) -> float | None:
    if not rest:
        return None
    milliseconds = rest.get("t_ms")
    if isinstance(milliseconds, int | float):
        return milliseconds / 1000
    return next((seconds_of(rest[key]) for key in TIMES if rest.get(key) is not None), None)


def _request(line: Line) -> dict[str, Any]:
    http = line.rest["http"]
    method, path = (http.get("method"), http.get("path")) if isinstance(http, dict) else (None, None)
    return {
        "type": "http.request",
        "method": method or "POST",
        "path": path or "/v1/responses",
        "body": line.frame,
    }


def _besides(line: Line, seconds: float, connection: str, side: str | None) -> Iterator[dict[str, Any]]:
    """What a log says beside its frames. A remark says that it was edited, so frames may be missing there."""
    rest = line.rest
    if "handshake" in rest:
        yield hook(seconds, connection, "connection_open")
    elif "close" in rest:
        by = {"in": "client", "out": "server"}.get(side or "", "network")
        yield hook(seconds, connection, "connection_close", by=by, code=rest["close"])
    elif "omitted" in rest or "note" in rest:
        yield hook(seconds, connection, "gap", note=str(rest.get("omitted") or rest.get("note"))[:200])


def _beta(handshake: Any) -> str:
    headers = handshake.get("headers") if isinstance(handshake, dict) else None
    return str(headers.get("openai-beta", "")) if isinstance(headers, dict) else ""
