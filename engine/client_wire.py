"""What carries a client's frames: whole JSON texts go out and come in, whatever is below.

Over WebSocket a frame is a message. Over HTTP (`engine.client_http`) a create is a request, and what comes in are the
events of its answer; a refused request comes in as the `error` frame that a WebSocket client would get.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from engine.config import Limits
from engine.transport import Transport, connect_transport

Dial = Callable[[], Awaitable[trio.abc.Stream]]
Headers = Sequence[tuple[str, str]]


class Wire(Protocol):
    """One client's way to a server."""

    @property
    def bytes_out(self) -> int:
        """Bytes sent, all that frames are wrapped in included."""

    @property
    def bytes_in(self) -> int:
        """Bytes received, likewise."""

    def send(self, text: bytes) -> None:
        """Send a frame. `TransportClosed`, `LocalProtocolError`: it cannot be carried. Not a checkpoint."""

    async def receive(self) -> bytes:
        """The next frame. `TransportClosed`; `RemoteProtocolError`: what came is no frame. A checkpoint."""

    async def drop(self) -> bool:
        """Nobody waits for the rest of what was asked for; will nothing more come of it? Works when cancelled, too."""


class WebSocketWire:
    """A WebSocket."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def bytes_out(self) -> int:
        """As `Wire.bytes_out`: the handshake and pings included."""
        return self._transport.statistics().bytes_out

    @property
    def bytes_in(self) -> int:
        """As `Wire.bytes_in`."""
        return self._transport.statistics().bytes_in

    def send(self, text: bytes) -> None:
        """As `Wire.send`: one message."""
        self._transport.send_nowait(text)
        self._transport.flush()

    async def receive(self) -> bytes:
        """As `Wire.receive`."""
        return (await self._transport.receive()).encode()

    async def drop(self) -> bool:
        """No: a response goes on in its lane, where the next create waits for its end, or ends it if it is suspended."""
        return False


@asynccontextmanager
async def open_websocket(
    url: str, headers: Headers, limits: Limits, stream: trio.abc.Stream | None, _dial: Dial | None
) -> AsyncIterator[Wire]:
    """A wire over one WebSocket to a `ws` or `wss` URL; never a second one, since its state is the connection's.

    `HandshakeFailed`: there is none.
    """
    async with connect_transport(url, headers, limits, stream) as transport:
        yield WebSocketWire(transport)
