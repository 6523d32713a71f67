"""Whole text messages over WebSocket, and the only module that knows trio-websocket.

A connection has three tasks of its own: the library's reader, the writer of the corked stream, and on the server
the keep-alive. They live in a nursery that outlives a cancellation of the owner, because a writer cancelled in
mid-frame destroys the connection, and because a closing handshake needs a reader and a writer.
What ends them is `aclose()`, and that is bounded.

Errors: `TransportClosed` is the end of an open connection, whoever ended it. `HandshakeFailed` means there never was
one; a client's `HandshakeRejected` is the case with an answer.
Exceptions of the `async with` body leave as they are, not in a group.

Longer than other modules, so that no second one has to know the library.
"""

import itertools
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import attrs
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    WebSocketRequest,
    wrap_client_stream,
    wrap_server_stream,
)
from wsproto.utilities import LocalProtocolError

from engine.config import Limits
from engine.corked import CorkedStream
from engine.handshake import (
    Handshake,
    HandshakeFailed,
    HandshakeRejected,
    Refusal,
    dial,
    handshake_deadline,
    header_texts,
    read_handshake,
    refuse_malformed,
)
from engine.nursery import open_outliving_nursery
from engine.streams import StreamStatistics

__all__ = [
    "ClientTransport",
    "Handshake",
    "HandshakeFailed",
    "HandshakeRejected",
    "Refusal",
    "ServerTransport",
    "Transport",
    "TransportClosed",
    "connect_transport",
    "serve_transport",
]

Opened = TypeVar("Opened")


class TransportClosed(Exception):  # noqa: N818  # the name of a state that is not an error, as trio's Cancelled
    """The connection is over. `code` is the close code: the peer's, or the one that this side gave it (`by_us`)."""

    def __init__(self, code: int | None, reason: str, *, by_us: bool = False) -> None:
        super().__init__(f"connection closed with {code}: {reason or 'no reason given'}")
        self.code, self.reason, self.by_us = code, reason, by_us


class Transport(Protocol):
    """One connection in either role; the order of `send_nowait` is the order on the wire."""

    def send_nowait(self, text: bytes) -> None:
        """Queue one message of UTF-8; never blocks. Raises `TransportClosed`."""

    def queue_all(self, texts: Iterable[bytes]) -> bool:
        """Queue one message after the other, up to the first that is refused; False then. Never raises.

        The hot path: a connection that is over may be seen a little later here than by `send_nowait`.
        """

    def flush(self) -> bool:
        """Send what is queued; once for each engine step. Never blocks, never raises.

        False: `wait_writable` would not return at once.
        """

    async def wait_writable(self) -> None:
        """Return at once, without a checkpoint, if little is queued, else when the peer has read. Raises `TransportClosed`."""

    def take_messages(self, on_message: Callable[[bytes], None] | None) -> None:
        """Give messages to `on_message` as they come, in another task, instead of keeping them for `receive`. It must not raise.

        Not all: those that are not plain still come by `receive`, in order. None: all of them again.
        """

    async def receive(self) -> str:
        """The next text message; a checkpoint. Raises `TransportClosed`, after closing with 1003 on a binary message."""

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close within `close_timeout_seconds`, also when cancelled; idempotent, and wakes every waiter."""

    def statistics(self) -> StreamStatistics:
        """Counts since the beginning."""


class _WebSocketTransport:
    """`Transport` over trio-websocket and a corked stream. Built when the handshake is done."""

    def __init__(self, connection: WebSocketConnection, stream: CorkedStream, limits: Limits) -> None:
        self._connection = connection
        self._stream = stream
        self._limits = limits
        self._last_word: tuple[int, str] | None = None
        self._closing = False
        self._gone = trio.Event()
        self.queue_all: Callable[[Iterable[bytes]], bool] = stream.queue_texts
        self.flush: Callable[[], bool] = stream.flush
        stream.farewell = self._farewell

    def send_nowait(self, text: bytes) -> None:
        if self._connection.closed is not None or not self.queue_all((text,)):
            raise self._end()

    async def wait_writable(self) -> None:
        try:
            await self._stream.wait_writable()
        except trio.BrokenResourceError:
            raise self._end() from None

    def take_messages(self, on_message: Callable[[bytes], None] | None) -> None:
        self._stream.on_message = on_message

    async def receive(self) -> str:
        try:
            message = await self._connection.get_message()
        except ConnectionClosed:
            raise self._end() from None
        self._stream.taken_messages += 1
        if isinstance(message, str):
            return message
        await self.aclose(1003, "binary messages are not understood here")
        raise self._end()

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        if self._closing:
            with trio.CancelScope(shield=True):  # bounded: the first call is
                await self._gone.wait()
            return
        self._closing = True
        if self._connection.closed is None:
            self._last_word = (code, reason)
        try:
            with trio.move_on_after(self._limits.close_timeout_seconds, shield=True):
                await self._connection.aclose(code, reason)
        finally:
            # The library leaves the stream open when the peer, or a violation, was first.
            await self._stream.aclose()
            self._gone.set()

    def statistics(self) -> StreamStatistics:
        return self._stream.statistics()

    def _end(self) -> TransportClosed:
        """Why the connection is over, by the first who knew."""
        failure = self._stream.failure
        if self._stream.violation is not None:
            return TransportClosed(*self._stream.violation, by_us=True)
        if failure in {"stalled", "overflow"}:
            return TransportClosed(1011, failure, by_us=True)
        ours, theirs = self._last_word, self._library_verdict() or (1006, failure or "")
        return TransportClosed(*(ours or theirs), by_us=ours is not None)

    def _farewell(self) -> tuple[int, str] | None:
        """The library finds bad frames but does not tell the peer; it would also say it in Python's words."""
        verdict = self._library_verdict()
        return (1007, "text that is not UTF-8") if verdict and verdict[0] == 1007 else verdict

    def _library_verdict(self) -> tuple[int, str] | None:
        closed = self._connection.closed
        return None if closed is None else (int(closed.code), closed.reason or "")


class ServerTransport(_WebSocketTransport):
    """The server's side; made by `serve_transport`."""

    async def run_keep_alive(self) -> None:
        """Ping every `ping_interval_seconds`; close with 1011 when neither a pong nor anything else came in time.

        No write is in danger under this time-out: on a corked stream the library's ping only enters the buffer.
        """
        silence = self._limits.pong_timeout_seconds
        for number in itertools.count():
            await trio.sleep(self._limits.ping_interval_seconds)
            heard_bytes = self.statistics().bytes_in
            with trio.move_on_after(silence) as waiting:  # `ping()` hangs if the connection dies first
                try:
                    await self._connection.ping(struct.pack("!Q", number))
                except (ConnectionClosed, LocalProtocolError):
                    return
            if waiting.cancelled_caught and self.statistics().bytes_in == heard_bytes:
                await self.aclose(1011, f"no answer to a ping within {silence:g} s")
                return


class ClientTransport(_WebSocketTransport):
    """The client's side; made by `connect_transport`."""

    @property
    def answer_headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of the 101, names in lower case."""
        return header_texts(self._connection.handshake_headers)


@asynccontextmanager
async def serve_transport(
    stream: trio.abc.Stream,
    limits: Limits,
    admit: Callable[[Handshake], Refusal | None],
    *,
    request_id: str,
) -> AsyncIterator[tuple[ServerTransport, Handshake]]:
    """Answer the upgrade request on `stream`, which now belongs to the connection, and serve it while the body runs.

    `admit` decides at once; every answer, also a refusal by the library, carries `x-request-id`.
    Raises `HandshakeFailed` if there was no request in time, a bad one, or a refusal. At the end closes with 1000
    unless the body has closed with something better.
    """
    corked = CorkedStream(stream, limits, answer_headers=f"x-request-id: {request_id}\r\n".encode("ascii"))
    async with open_outliving_nursery() as nursery:
        nursery.start_soon(corked.run_writer)
        try:
            with handshake_deadline(limits):
                connection, handshake = await _admit(nursery, corked, limits, admit)
            transport = ServerTransport(connection, corked, limits)
            nursery.start_soon(transport.run_keep_alive)
            try:
                yield transport, handshake
            finally:
                await transport.aclose()
        finally:
            await corked.aclose()


@asynccontextmanager
async def connect_transport(
    url: str,
    headers: Sequence[tuple[str, str]],
    limits: Limits,
    stream: trio.abc.Stream | None = None,
) -> AsyncIterator[ClientTransport]:
    """Connect to a `ws://` or `wss://` URL, or over `stream`, which now belongs to the connection.

    Raises `HandshakeRejected` if the server refused, `HandshakeFailed` if it could not be reached or did not answer.
    At the end closes with 1000, after what is queued.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"ws", "wss"} or not parts.hostname:
        raise ValueError(f"a WebSocket URL is ws://host/path or wss://host/path, not {url!r}")
    async with open_outliving_nursery() as nursery:
        with handshake_deadline(limits):
            corked = CorkedStream(stream or await dial(parts), limits, client=True)
        nursery.start_soon(corked.run_writer)
        try:
            with handshake_deadline(limits):
                connection = await _open(
                    nursery,
                    corked,
                    partial(
                        wrap_client_stream,
                        stream=corked,  # type: ignore[arg-type]  # annotated too narrowly: any stream does
                        host=parts.netloc.rpartition("@")[2],
                        resource=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
                        extra_headers=[(name.encode(), value.encode()) for name, value in headers],
                        **_library_limits(limits),
                    ),
                )
            transport = ClientTransport(connection, corked, limits)
            try:
                yield transport
            finally:
                await transport.aclose()
        finally:
            await corked.aclose()


def _library_limits(limits: Limits) -> dict[str, Any]:
    """The queue holds a second of the fastest legal peer, so that the reader never waits and pings are answered.

    The library counts characters, of which a message never has more than bytes: our own limit decides.
    """
    return {
        "message_queue_size": limits.max_frames_per_second,
        "max_message_size": limits.max_message_bytes,
        "receive_buffer_size": limits.receive_buffer_bytes,
    }


@attrs.define(eq=False)
class _Opening(Generic[Opened]):
    value: Opened | None = None
    error: Exception | None = None
    settled: trio.Event = attrs.field(factory=trio.Event)


async def _open(
    nursery: trio.Nursery, stream: CorkedStream, wrap: Callable[[trio.Nursery], Awaitable[Opened]]
) -> Opened:
    """Start the library's reader in `nursery` and return what it opens. Raises `HandshakeFailed`."""
    opening: _Opening[Opened] = _Opening()
    nursery.start_soon(_run_library, stream, wrap, opening)
    await opening.settled.wait()
    if opening.value is not None:
        return opening.value
    if isinstance(opening.error, ConnectionRejected):
        no = opening.error
        raise HandshakeRejected(no.status_code, no.body or b"", header_texts(no.headers))
    violation = stream.violation[1] if stream.violation else None
    reason = violation or stream.failure or opening.error or "the peer hung up or sent nothing valid"
    raise HandshakeFailed(str(reason))


async def _run_library(
    stream: CorkedStream, wrap: Callable[[trio.Nursery], Awaitable[Opened]], opening: _Opening[Opened]
) -> None:
    """Hold the library's reader. The one place where its errors about a peer's bytes become "closed".

    `LocalProtocolError`: a ping to answer while closing (python-trio/trio-websocket#184). `UnicodeError`: a `Host`
    that is no host name. The reader closes its message queue on the way out, so `receive()` sees the end.
    """
    try:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:  # the library does not notice that its reader has ended
                stream.on_end = scope.cancel
                opening.value = await wrap(nursery)
            opening.settled.set()
    except* (ConnectionRejected, LocalProtocolError, UnicodeError) as group:
        opening.error = next(error for error in group.exceptions if isinstance(error, Exception))
    finally:
        opening.settled.set()


async def _admit(
    nursery: trio.Nursery,
    stream: CorkedStream,
    limits: Limits,
    admit: Callable[[Handshake], Refusal | None],
) -> tuple[WebSocketConnection, Handshake]:
    request: WebSocketRequest = await _open(
        nursery, stream, partial(wrap_server_stream, stream=stream, **_library_limits(limits))
    )
    handshake = read_handshake(request.path, request.headers, request.proposed_subprotocols)
    refusal = refuse_malformed(handshake) or admit(handshake)
    try:
        if refusal is None:
            return await request.accept(), handshake
        headers = [(name.encode(), value.encode()) for name, value in refusal.headers]
        await request.reject(refusal.status, extra_headers=headers, body=refusal.body)
    except ConnectionClosed:
        raise HandshakeFailed("the peer did not wait for the answer") from None
    raise HandshakeFailed(f"refused with status {refusal.status}")
