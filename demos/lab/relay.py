"""A network between client and server: every byte arrives half a round trip later, in order, and is counted.

It stands between two streams of any kind, so it is the same over sockets and in virtual time.
What it is not: it loses nothing, and its bandwidth is what the machine gives. A new connection's first byte waits for
the round trip of the handshake that a real network would have asked for; TLS is not played.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

OpenStream = Callable[[], Awaitable[trio.abc.HalfCloseableStream]]
BUFFER_BYTES: Final = 4 * 1024 * 1024
"""In flight in each direction of a connection; more, and the sender waits."""
_READ_BYTES: Final = 64 * 1024
_BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.frozen
class RelayCounts:
    """What passed."""

    connections: int
    bytes_up: int
    bytes_down: int


class Relay:
    """Carries connections to whatever `open_target` opens."""

    def __init__(
        self, open_target: OpenStream, *, rtt_seconds: float, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._open_target = open_target
        self._rtt_seconds = rtt_seconds
        self._buffer_bytes = buffer_bytes
        self._directions: list[tuple[_Direction, _Direction]] = []
        self._open_connections = 0
        self._idle = trio.Event()

    @property
    def counts(self) -> RelayCounts:
        """So far."""
        return RelayCounts(
            len(self._directions),
            sum(up.read_bytes for up, _ in self._directions),
            sum(down.read_bytes for _, down in self._directions),
        )

    async def wait_idle(self) -> None:
        """Until no connection is open. A checkpoint."""
        await trio.lowlevel.checkpoint()
        while self._open_connections:
            self._idle = trio.Event()
            await self._idle.wait()

    async def serve(self, client: trio.abc.HalfCloseableStream) -> None:
        """Carry one connection until both sides have ended, or one of them broke."""
        opened = trio.current_time()
        self._open_connections += 1
        try:
            async with client, await self._open_target() as target:
                delay = self._rtt_seconds / 2
                up = _Direction(client, target, delay, self._buffer_bytes, opened + self._rtt_seconds)
                down = _Direction(target, client, delay, self._buffer_bytes, opened)
                self._directions.append((up, down))
                async with trio.open_nursery() as nursery:
                    for direction in (up, down):
                        nursery.start_soon(direction.read)
                        nursery.start_soon(direction.write, nursery.cancel_scope)
        except _BROKEN:
            pass  # whoever is on the other side has seen the same
        finally:
            self._open_connections -= 1
            if not self._open_connections:
                self._idle.set()


class _Direction:
    def __init__(
        self,
        source: trio.abc.ReceiveStream,
        sink: trio.abc.HalfCloseableStream,
        delay_seconds: float,
        buffer_bytes: int,
        not_before: float,
    ) -> None:
        self.read_bytes = 0
        self._source, self._sink = source, sink
        self._delay_seconds = delay_seconds
        self._buffer_bytes = buffer_bytes
        self._not_before = not_before
        """Bytes that come earlier leave as if they came then."""
        self._flying: deque[tuple[float, bytes]] = deque()
        self._flying_bytes = 0
        self._changed = trio.Event()

    async def read(self) -> None:
        """Take in until the end, which flies like the bytes before it."""
        data = b"not yet"
        while data:
            while self._flying_bytes >= self._buffer_bytes:
                await self._wait_changed()
            try:
                data = bytes(await self._source.receive_some(_READ_BYTES))
            except _BROKEN:
                data = b""
            self.read_bytes += len(data)
            self._flying_bytes += len(data)
            left = max(trio.current_time(), self._not_before)
            self._flying.append((left + self._delay_seconds, data))
            self._changed.set()

    async def write(self, connection: trio.CancelScope) -> None:
        """Give out what has arrived; a sink that broke ends the connection."""
        try:
            while True:
                while not self._flying:
                    await self._wait_changed()
                due, data = self._flying.popleft()
                await trio.sleep_until(due)
                if not data:
                    await self._sink.send_eof()
                    return
                await self._sink.send_all(data)
                self._flying_bytes -= len(data)
                self._changed.set()
        except _BROKEN:
            connection.cancel()

    async def _wait_changed(self) -> None:
        """One event does for both tasks: nothing flies for the one who waits, and too much for the other."""
        self._changed = trio.Event()
        await self._changed.wait()
