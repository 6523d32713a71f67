"""Streams around a socket: one that gives back what was read of it already, and how to get at the socket below."""

import os
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

READ_BYTES: Final = 64 * 1024
"""Of one read, if the caller does not say."""


@attrs.frozen
class StreamStatistics:
    """Counts of one connection since it began."""

    bytes_in: int
    bytes_out: int
    """Accepted by the stream below."""
    frames_in: int
    """0 on the client's side, which does not count."""
    frames_out: int
    writes: int
    unsent_bytes: int


class ReplayedStream(trio.abc.HalfCloseableStream):
    """A stream whose beginning was read to learn what it is; it is read again here, then the stream goes on.

    `head` comes first. What follows, `rest` and then the stream itself, comes only after `release()`:
    a client that does not wait for the answer to its upgrade has its first message read behind that answer,
    not before it (bug of several gateways: the message is lost, or taken for an offence).
    """

    def __init__(self, inner: trio.abc.Stream, head: bytes, rest: bytes = b"") -> None:
        self.inner = inner
        self._receive = receive_of(inner)
        self._head = head
        self._rest = rest
        self._released = trio.Event()

    def release(self) -> None:
        """The answer is on its way: the rest may be read. Idempotent, not a checkpoint."""
        self._released.set()

    @property
    def is_spent(self) -> bool:
        """Was all read again that had been read before?"""
        return not self._head and not self._rest

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As the stream below, from the beginning."""
        if self._head:
            await trio.lowlevel.checkpoint()
            part, self._head = self._head[:max_bytes], self._head[len(self._head[:max_bytes]) :]
            return part
        if not self._released.is_set():
            await self._released.wait()
        if self._rest:
            await trio.lowlevel.checkpoint()
            part, self._rest = self._rest[:max_bytes], self._rest[len(self._rest[:max_bytes]) :]
            return part
        return await self._receive(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As the stream below."""
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As the stream below."""
        await self.inner.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """As the stream below; nothing if that cannot be closed by halves, as TLS."""
        if isinstance(self.inner, trio.abc.HalfCloseableStream):
            await self.inner.send_eof()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """As the stream below."""
        await self.inner.aclose()


def plain_socket(stream: trio.abc.Stream) -> trio.socket.SocketType | None:
    """The socket whose bytes the stream's are; None if something lies between, as TLS or a test."""
    below = stream.inner if isinstance(stream, ReplayedStream) else stream
    return below.socket if isinstance(below, trio.SocketStream) else None


def receive_of(stream: trio.abc.Stream) -> Callable[[int | None], Awaitable[bytes | bytearray]]:
    """`receive_some` of the stream; of a plain socket one for a peer that is mostly silent."""
    if isinstance(stream, trio.SocketStream) and os.name == "posix":
        return _Reading(stream.socket).receive_some
    return stream.receive_some


class _Reading:
    """Waits, then reads. The stream's own tries to read first, which costs a call and an exception for each message."""

    __slots__ = ("_more", "_socket")

    def __init__(self, socket: trio.socket.SocketType) -> None:
        self._socket = socket
        self._more = False
        """The last read was full, so that it is better to try."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        size = max_bytes or READ_BYTES
        if self._more:
            await trio.lowlevel.checkpoint()
        while True:
            if self._socket.fileno() < 0:
                raise trio.ClosedResourceError("this stream was closed")
            if not self._more:
                await trio.lowlevel.wait_readable(self._socket)
            try:
                data = os.read(self._socket.fileno(), size)
            except BlockingIOError:
                self._more = False
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"the connection broke: {error}") from error
            self._more = len(data) == size
            return data
