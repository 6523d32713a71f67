"""The two ends of a relayed connection: reading, writing, and the two ways to close, for sockets and for other streams."""

import os
import socket
import ssl
import struct
from contextlib import suppress
from typing import Final, Protocol

import attrs
import trio

RECEIVE_BYTES: Final = 64 * 1024
CLOSE_SECONDS: Final = 2.0
"""For TLS to say goodbye."""
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
"""Close with a reset."""


class Lost(Exception):  # noqa: N818  # what became of a connection, not what went wrong in here
    """A side is gone without a goodbye."""

    def __init__(self, side: "Side") -> None:
        super().__init__()
        self.side = side


class Side(Protocol):
    """One end."""

    async def receive(self) -> bytes:
        """What is there; empty at the end. `Lost`."""

    async def send(self, data: bytes) -> None:
        """All of it. `Lost`."""

    async def end(self) -> bool:
        """Say that no more will be sent; False if this end cannot say that and still listen. `Lost`."""

    async def aclose(self) -> None:
        """Close as one does. Bounded."""

    def reset(self) -> None:
        """Close as one who is gone."""


class SocketSide:
    """A plain socket, without the detours of a stream: a wake costs about half."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = stream.socket
        self._file = stream.socket.fileno()

    async def receive(self) -> bytes:
        """What is there. `Lost`."""
        while True:
            await trio.lowlevel.wait_readable(self._file)
            try:
                return os.read(self._file, RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise Lost(self) from error

    async def send(self, data: bytes) -> None:
        """All of it. `Lost`."""
        rest: bytes | memoryview = data
        while True:
            try:
                sent = os.write(self._file, rest)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise Lost(self) from error
            if sent == len(rest):
                return
            rest = memoryview(rest)[sent:]
            await trio.lowlevel.wait_writable(self._file)

    async def end(self) -> bool:
        """A socket can."""
        with suppress(OSError):  # it is gone, and the reading task will find out
            self._socket.shutdown(socket.SHUT_WR)
        return True

    async def aclose(self) -> None:
        """Close politely."""
        self._socket.close()

    def reset(self) -> None:
        """Close with a reset."""
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._socket.close()


class StreamSide:
    """Any other stream: TLS, or one in memory."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        """What is there. `Lost`."""
        try:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except trio.BrokenResourceError as error:
            raise Lost(self) from error

    async def send(self, data: bytes) -> None:
        """All of it. `Lost`."""
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise Lost(self) from error

    async def end(self) -> bool:
        """TLS cannot."""
        if not isinstance(self._stream, trio.abc.HalfCloseableStream):
            return False
        with suppress(trio.BrokenResourceError):
            await self._stream.send_eof()
        return True

    async def aclose(self) -> None:
        """Close politely."""
        with trio.move_on_after(CLOSE_SECONDS, shield=True), suppress(trio.BrokenResourceError):
            await self._stream.aclose()

    def reset(self) -> None:
        """Close with a reset."""
        below = self._stream
        while isinstance(below, trio.SSLStream):
            below = below.transport_stream
        if isinstance(below, trio.SocketStream):
            SocketSide(below).reset()


def side_of(stream: trio.abc.Stream) -> Side:
    """The cheapest way to use a stream."""
    if isinstance(stream, trio.SocketStream) and os.name == "posix":
        return SocketSide(stream)
    return StreamSide(stream)


@attrs.frozen
class Upstream:
    """Where to."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    told_host: str | None = None
    """What requests say in `Host` instead of what the client said; None: that is left as it is."""

    @property
    def place(self) -> str:
        """As people call it."""
        return f"{self.host}:{self.port}"

    async def connect(self) -> Side:
        """A connection of its own. `OSError`, `trio.BrokenResourceError` of TLS."""
        stream = await trio.open_tcp_stream(self.host, self.port)
        if self.tls is None:
            return side_of(stream)
        secured = trio.SSLStream(stream, self.tls, server_hostname=self.host, https_compatible=True)
        try:
            await secured.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(secured)
            raise
        return StreamSide(secured)
