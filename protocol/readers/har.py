"""HAR files, as browsers' developer tools save them: HTTP exchanges, and Chrome's `_webSocketMessages`.

A HAR file is one JSON value, so it is loaded whole; everything else here streams.
HTTP exchanges make one trace, each a connection of its own; WebSockets another. Times are those of the exchanges:
a HAR file does not say when within an answer an event came, so all of them come at its end.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

import orjson

from protocol.readers.headers import dialect_of, header, hook, record, side_of
from protocol.readers.lines import Clock, seconds_of
from protocol.readers.sse import event_record, events_in, payload
from protocol.trace import TraceError, parsed

KIND: Final = "a HAR file"
_SIDES: Final = {"send": "in", "receive": "out"}
_WATCHING: Final = ("stream", "starting_after")
"""Of a query only what asks for a stream again is kept: it may have a key in it."""

Record = dict[str, Any]


def read(lines: Iterable[bytes], dialect: str | None = None) -> Iterator[Record]:
    """Headers and records of the exchanges with a Responses API. `TraceError`: no HAR file, or none in it."""
    exchanges = [entry for entry in _entries(lines) if isinstance(entry, dict)]
    sockets = [found for entry in exchanges if (found := _socket_frames(entry))]
    requests = [entry for entry in exchanges if not entry.get("_webSocketMessages") and _is_ours(entry)]
    if not sockets and not requests:
        raise TraceError(
            f"none of the {len(exchanges)} exchanges of this HAR file is with a Responses API "
            "(a path with /responses, or events whose types begin with 'response.')"
        )
    if requests:
        yield from _http_trace(requests, dialect)
    if sockets:
        yield from _socket_trace(sockets, dialect)


def _entries(lines: Iterable[bytes]) -> Sequence[Any]:
    try:
        entries = parsed(b"\n".join(lines))["log"]["entries"]
    except (ValueError, LookupError, TypeError) as error:
        raise TraceError(f"no HAR file ({error}); export it again, with content") from None
    if not isinstance(entries, list):
        raise TraceError("no HAR file: its 'log.entries' is no list")
    return entries


def _in_order(records: Iterable[Record]) -> Iterator[Record]:
    """By time; records of one time stay as they are. Times count from the first."""
    clock = Clock()
    for found in sorted(records, key=lambda found: float(found["t"])):
        yield {**found, "t": clock.seconds(found["t"])}


# --- HTTP ----------------------------------------------------------------------------------------------------------------


def _http_trace(entries: Sequence[Mapping[str, Any]], dialect: str | None) -> Iterator[Record]:
    streamed = any(_is_stream(entry) for entry in entries)
    yield header(KIND, dialect or "http", "sse" if streamed else "json", ["in", "out"])
    numbered = [(number, list(_exchange(f"c{number}", entry))) for number, entry in enumerate(entries, 1)]
    last = {_watched(made[0]): number for number, made in numbered}
    for number, made in numbered:
        if made[-1]["dir"] != "hook" and any(last.get(name, 0) > number for name in _streamed(made)):
            made.append(hook(made[-1]["t"], f"c{number}", "connection_close", by="network"))
    yield from _in_order(found for _, made in numbered for found in made)


def _watched(asked: Record) -> str:
    """The response whose stream is asked for again; empty: none is."""
    frame = asked["frame"]
    again = _object(frame, "query").get("stream", "").lower() == "true"
    return str(frame["path"]).rpartition("/")[2] if again else ""


def _streamed(exchange: Sequence[Record]) -> set[str]:
    """The responses that an exchange is a stream of."""
    named = (_object(_object(made, "frame"), "response").get("id") for made in exchange)
    return {_watched(exchange[0]), *map(str, filter(None, named))} - {""}


def _exchange(connection: str, entry: Mapping[str, Any]) -> Iterator[Record]:
    request, response = _object(entry, "request"), _object(entry, "response")
    begin = seconds_of(entry.get("startedDateTime")) or 0.0
    took_ms = entry.get("time")
    end = begin + (max(0.0, took_ms / 1000) if isinstance(took_ms, int | float) else 0.0)
    yield record(begin, connection, "in", _asked(request))
    if response.get("status"):
        yield from _answer(connection, end, entry)
    if not response.get("status") or "ABORTED" in str(response.get("_error")):
        yield hook(end, connection, "connection_close", by="client")


def _asked(request: Mapping[str, Any]) -> Record:
    url = _url(request)
    asked = {"type": "http.request", "method": request.get("method", "POST"), "path": url.path}
    query = {name: value for name, value in parse_qsl(url.query) if name in _WATCHING}
    body = _json_or_none(_object(request, "postData").get("text"))
    return asked | ({"query": query} if query else {}) | ({} if body is None else {"body": body})


def _url(request: Mapping[str, Any]) -> SplitResult:
    try:
        return urlsplit(str(request.get("url", "")))
    except ValueError:
        return urlsplit("")  # no address, so it is none of ours


def _answer(connection: str, end: float, entry: Mapping[str, Any]) -> Iterator[Record]:
    response = _object(entry, "response")
    answered: Record = {"type": "http.response", "status": response.get("status")}
    text = _content(response)
    if text is None:
        yield record(end, connection, "out", answered)
        yield hook(end, connection, "gap", note="the HAR file was saved without content")
    elif _is_stream(entry):
        yield record(end, connection, "out", answered)
        for name, frame in events_in(text):
            yield event_record(end, connection, name, frame)
    else:
        body = _json_or_none(text)
        yield record(end, connection, "out", answered if body is None else {**answered, "body": body})


def _content(response: Mapping[str, Any]) -> bytes | None:
    """The body; None: not saved."""
    content = _object(response, "content")
    text = content.get("text")
    if not isinstance(text, str):
        return None if content.get("size") else b""
    if content.get("encoding") == "base64":
        try:
            return base64.b64decode(text)
        except binascii.Error:
            return None
    return text.encode("utf-8", "surrogatepass")


def _is_stream(entry: Mapping[str, Any]) -> bool:
    response = _object(entry, "response")
    kind = str(_object(response, "content").get("mimeType", ""))
    return kind.startswith("text/event-stream")


def _is_ours(entry: Mapping[str, Any]) -> bool:
    if "responses" in _url(_object(entry, "request")).path.split("/"):
        return True
    text = _content(_object(entry, "response")) if _is_stream(entry) else None
    return any(side_of(frame) == "out" for _, frame in events_in(text or b""))


# --- WebSocket -----------------------------------------------------------------------------------------------------------


def _socket_frames(entry: Mapping[str, Any]) -> list[tuple[float, str, Any, bool]]:
    """Time, direction, frame, "is it binary?" of each message; none if no frame is of the Responses API."""
    messages = entry.get("_webSocketMessages")
    frames = [
        (
            seconds_of(message.get("time")) or 0.0,
            _SIDES[message["type"]],
            payload(str(message.get("data", "")).encode("utf-8", "surrogatepass")),
            message.get("opcode") == 2,
        )
        for message in (messages if isinstance(messages, list) else [])
        if isinstance(message, dict) and message.get("type") in ("send", "receive")
    ]
    return frames if any(side_of(frame) for _, _, frame, _ in frames) else []


def _socket_trace(
    sockets: Sequence[Sequence[tuple[float, str, Any, bool]]], dialect: str | None
) -> Iterator[Record]:
    """A HAR file does not say whether a socket was closed, so nothing is said about its end."""
    frames = [frame for socket in sockets for _, _, frame, _ in socket if isinstance(frame, dict)]
    yield header(KIND, dialect or dialect_of(frames), "websocket", ["in", "out"], complete=False)
    yield from _in_order(
        {"t": seconds, "conn": f"c{number}", "dir": side, "binary_bytes": len(str(frame)) * 3 // 4}
        if binary
        else record(seconds, f"c{number}", side, frame)
        for number, socket in enumerate(sockets, 1)
        for seconds, side, frame, binary in socket
    )


# --- small things --------------------------------------------------------------------------------------------------------


def _object(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _json_or_none(text: Any) -> Any:
    try:
        return orjson.loads(text)
    except (ValueError, TypeError):
        return None
