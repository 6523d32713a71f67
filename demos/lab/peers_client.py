"""One raw client for every peer: a blocking socket, a create, and all that comes back, timed where it arrives.

While the clock runs nothing is read but where the answer ends, over HTTP from its last bytes; so a peer does not pay for the
client that it meets. What was said is taken apart afterwards.
"""

import re
import socket
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, Literal, Protocol

import attrs
import orjson

from demos.lab.raw_client import SHED_SECONDS, RawClient, text_frame
from engine.client_sse import EventReader
from engine.tap.frames import CLOSE, TEXT, FrameReader
from engine.tap.http import Head, HeadReader, Unreadable, body_of_answer, read_head
from protocol.errors import RemoteProtocolError

Way = Literal["sse", "websocket"]
PATH: Final = "/v1/responses"
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MAX_ANSWER_SECONDS: Final = 60.0
DONE: Final = b"[DONE]"
DELTA: Final = "response.output_text.delta"
TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_RECEIVE_BYTES: Final = 1 << 18
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_TERMINAL_MARK: Final = re.compile(rb'"type": ?"(?:response\.(?:completed|incomplete|failed)|error)"')
_STATUS_LINE: Final = re.compile(r"HTTP/1\.[01] ([0-9]{3}[A-Za-z ]*)")
_EVENT_MARK: Final = b'"type":'
_DELTA_MARK: Final = DELTA.encode()


class PeerError(Exception):
    """A peer gave no answer that can be read; the message says what it did."""


@attrs.frozen(kw_only=True)
class Answer:
    """What came of one request."""

    status: int
    """Over WebSocket 101."""
    events: tuple[tuple[str, bytes], ...]
    """Name (empty if it has none) and data of each; over WebSocket, the messages."""
    body: bytes
    """Of an answer that is no stream."""
    first_event_s: float | None
    first_delta_s: float | None
    whole_s: float
    """Times count from the first byte of the request."""
    bytes_up: int
    bytes_down: int
    """All bytes on the connection, heads and framing too."""

    def read(self) -> list[dict[str, Any]]:
        """The events that are JSON objects."""
        return [value for _, data in self.events if (value := as_object(data)) is not None]


class Asks(Protocol):
    """Either client."""

    connections: int
    """How many were opened."""

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """One create, to its end. `PeerError`."""
        ...

    def close(self) -> None:
        """Hang up. Idempotent."""
        ...


def as_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object; None: it is none."""
    try:
        value = orjson.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def client(way: Way, port: int, key: str | None) -> Asks:
    """Over SSE or over WebSocket. `PeerError`: there is no connection."""
    return SseClient(port, key) if way == "sse" else WsClient(port)


# --- what comes ----------------------------------------------------------------------------------------------------


class _Arrivals:
    """Bytes with the times at which they were there."""

    def __init__(self, source: socket.socket) -> None:
        self.data = bytearray()
        self._source = source
        self._sizes: list[int] = []
        self._times: list[float] = []
        self.began = time.perf_counter()

    def receive(self) -> bytes:
        """What is there; nothing at the end. `PeerError`."""
        try:
            data = self._source.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise PeerError(f"it said nothing for {SHED_SECONDS:g} s") from None
        except OSError as error:
            raise PeerError(f"the connection broke: {error}") from None
        now = time.perf_counter()
        self._sizes.append(len(data))
        self._times.append(now)
        self.data += data
        if len(self.data) > MAX_ANSWER_BYTES or now - self.began > MAX_ANSWER_SECONDS:
            raise PeerError(
                f"its answer does not end: {len(self.data):,} bytes in {now - self.began:.0f} s, without a terminal event"
            )
        return data

    @property
    def whole_s(self) -> float:
        return self._times[-1] - self.began

    def seconds_of(self, mark: bytes, start: int) -> float | None:
        """When the first of these bytes was there."""
        at = self.data.find(mark, start)
        if at < 0:
            return None
        ends = [*accumulate(self._sizes)]
        return self._times[bisect_left(ends, at + len(mark))] - self.began


def _send(target: socket.socket, data: bytes) -> None:
    try:
        target.sendall(data)
    except OSError as error:
        raise PeerError(f"it took no request: {error}") from None


def _answer(arrivals: _Arrivals, start: int, **members: Any) -> Answer:
    return Answer(
        first_event_s=arrivals.seconds_of(_EVENT_MARK, start),
        first_delta_s=arrivals.seconds_of(_DELTA_MARK, start),
        whole_s=arrivals.whole_s,
        bytes_down=len(arrivals.data),
        **members,
    )


# --- over HTTP -----------------------------------------------------------------------------------------------------


class SseClient:
    """Keeps its connection, and counts how often it had to open another one."""

    def __init__(self, port: int, key: str | None = None) -> None:
        self.connections = 0
        self._port = port
        self._headers = f"Host: 127.0.0.1:{port}\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
        self._socket: socket.socket | None = None

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """As `Asks.ask`; an answer that is no stream is one, too."""
        text = orjson.dumps({**body, "stream": True})
        head = f"POST {PATH} HTTP/1.1\r\n{self._headers}Accept: text/event-stream\r\n"
        return self._exchange(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
        )

    def get(self, path: str) -> Answer:
        """Another route. `PeerError`."""
        return self._exchange(f"GET {path} HTTP/1.1\r\n{self._headers}\r\n".encode())

    def close(self) -> None:
        """As `Asks.close`."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, request: bytes) -> Answer:
        try:
            return self._exchanged(request)
        except PeerError:
            self.close()
            raise

    def _exchanged(self, request: bytes) -> Answer:
        if self._socket is None:
            self._socket = self._connect()
        arrivals = _Arrivals(self._socket)
        _send(self._socket, request)
        head, start = _head(arrivals)
        _read_to_end(arrivals, head, start)
        payload = _payload(arrivals, head, start)
        if "close" in head.tokens("connection") or not _is_bounded(head):
            self.close()
        streams = head.headers.get("content-type", "").startswith("text/event-stream")
        return _answer(
            arrivals,
            start,
            status=head.status,
            events=tuple(_events(payload)) if streams else (),
            body=b"" if streams else payload,
            bytes_up=len(request),
        )

    def _connect(self) -> socket.socket:
        try:
            made = socket.create_connection(("127.0.0.1", self._port), timeout=SHED_SECONDS)
        except OSError as error:
            raise PeerError(f"no connection: {error}") from None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections += 1
        return made


def _head(arrivals: _Arrivals) -> tuple[Head, int]:
    """The head of the answer, and where its body begins."""
    reader = HeadReader()
    try:
        while (found := reader.read(data := arrivals.receive())) is None:
            if not data:
                raise PeerError("it hung up without an answer")
        raw, rest = found
        return read_head(raw), len(arrivals.data) - len(rest)
    except Unreadable as error:
        raise PeerError(f"{error}: {bytes(arrivals.data[:80])!r}") from None


def _read_to_end(arrivals: _Arrivals, head: Head, start: int) -> None:
    """From its last bytes, as a chunk's data holds no such line here: JSON has no bare line breaks."""
    size = int(head.headers["content-length"]) if "content-length" in head.headers else None
    chunked = "chunked" in head.tokens("transfer-encoding")
    while True:
        if (chunked and _chunks_end(arrivals.data, start)) or (
            size is not None and len(arrivals.data) >= start + size
        ):
            return
        if not arrivals.receive():
            if not _is_bounded(head):
                return
            raise PeerError("it hung up in the middle of its answer")


def _chunks_end(data: bytearray, start: int) -> bool:
    return data.endswith(_LAST_CHUNK) or data[start:] == _LAST_CHUNK[2:]


def _is_bounded(head: Head) -> bool:
    return "content-length" in head.headers or "chunked" in head.tokens("transfer-encoding")


def _payload(arrivals: _Arrivals, head: Head, start: int) -> bytes:
    try:
        body = body_of_answer(head, "POST")
        payload, _ = body.read(bytes(arrivals.data), start)
    except Unreadable as error:
        raise PeerError(str(error)) from None
    if not body.done and _is_bounded(head):
        raise PeerError("its answer goes on where it should have ended")
    return payload


def _events(payload: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        yield from EventReader(MAX_ANSWER_BYTES).feed(payload)
    except RemoteProtocolError as error:
        raise PeerError(str(error)) from None


# --- over WebSocket ------------------------------------------------------------------------------------------------


class WsClient:
    """One connection: a second one is never opened, as what the first knows would be lost."""

    def __init__(self, port: int) -> None:
        try:
            self._raw = RawClient(port, append=False)
        except (AssertionError, OSError) as error:  # what `RawClient` says of a refused or broken handshake
            status = _STATUS_LINE.search(str(error))
            raise PeerError(f"no WebSocket: {status[1] if status else str(error)[:120]}") from None
        self.connections = 1
        self._frames = FrameReader(MAX_ANSWER_BYTES, compressed=False, keeps_context=False)

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """As `Asks.ask`."""
        request = text_frame({"type": "response.create", **body})
        arrivals = _Arrivals(self._raw.socket)
        _send(self._raw.socket, request)
        messages: list[bytes] = []
        while not self._read(arrivals, messages):
            pass
        return _answer(
            arrivals,
            0,
            status=101,
            events=tuple(("", message) for message in messages),
            body=b"",
            bytes_up=len(request),
        )

    def close(self) -> None:
        """As `Asks.close`."""
        self._raw.close()

    def _read(self, arrivals: _Arrivals, messages: list[bytes]) -> bool:
        """Read on; is it over? Messages are only taken apart once something looks like the last one."""
        seen = len(arrivals.data)
        data = arrivals.receive()
        if not data:
            raise PeerError("it hung up in the middle of its answer")
        if not messages:
            if not _TERMINAL_MARK.search(arrivals.data, max(0, seen - 64)):
                return False
            data = bytes(arrivals.data)
        try:
            for opcode, payload in self._frames.read(data):
                if opcode == CLOSE or not isinstance(payload, bytes):
                    raise PeerError(f"it closed the WebSocket: {payload!r}")
                if opcode == TEXT:
                    messages.append(payload)
        except Unreadable as error:
            raise PeerError(f"this is no WebSocket frame: {error}") from None
        last = as_object(messages[-1]) if messages else None
        return last is not None and last.get("type") in TERMINAL
