"""A peer that speaks bytes: what no well-behaved library would send, and exactly what was received."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing

from engine.frames import frame

REQUEST = (
    b"GET /v1/responses?model=m&model=n&empty= HTTP/1.1\r\n"
    b"Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
"""Without its empty last line, so that tests can add headers."""

TEXT, CONTINUATION, FINAL, CLOSE, PING, PONG = 0x1, 0x0, 0x80, 0x8, 0x9, 0xA


def simulate(scenario: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run in virtual time with a fresh clock, for property tests."""
    return trio.run(scenario, *args, clock=trio.testing.MockClock(autojump_threshold=0))


def client_frame(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    """A masked frame."""
    return frame((FINAL if final else 0) | opcode, payload, masked=True)


class WirePeer:
    """Reads and writes raw bytes on one end of a stream pair."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._unread = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def read_head(self) -> bytes:
        """The HTTP head of the answer."""
        return await self._read_through(b"\r\n\r\n")

    async def upgrade(self, headers: bytes = b"") -> bytes:
        """Send the request and return the head of the answer."""
        await self.send(REQUEST + headers + b"\r\n")
        return await self.read_head()

    async def read_frame(self) -> tuple[int, bytes] | None:
        """(first byte, payload) of the next whole frame of the server; None at the end of the stream."""
        if not await self._fill(2):
            assert self._unread == b"", f"torn frame: {self._unread!r}"
            return None
        first, size, start = self._unread[0], self._unread[1], 2
        if size in {126, 127}:
            start = 4 if size == 126 else 10
            assert await self._fill(start), "torn header"
            size = int.from_bytes(self._unread[2:start], "big")
        assert await self._fill(start + size), "torn payload"
        payload = self._unread[start : start + size]
        self._unread = self._unread[start + size :]
        return first, payload

    async def read_frames(self) -> list[tuple[int, bytes]]:
        """All frames up to the end of the stream."""
        frames = []
        while (received := await self.read_frame()) is not None:
            frames.append(received)
        return frames

    async def read_close(self) -> tuple[int, str]:
        """Code and reason of the close frame, which must be the last frame."""
        frames = await self.read_frames()
        first, payload = frames[-1]
        assert first == FINAL | CLOSE, frames
        return int.from_bytes(payload[:2], "big"), payload[2:].decode()

    async def _fill(self, size: int) -> bool:
        while len(self._unread) < size:
            data = await self.stream.receive_some()
            if not data:
                return False
            self._unread += data
        return True

    async def _read_through(self, mark: bytes) -> bytes:
        while mark not in self._unread:
            assert await self._fill(len(self._unread) + 1), f"ended early: {self._unread!r}"
        head, self._unread = self._unread.split(mark, 1)
        return head + mark
