"""The plain way to send, as a baseline: one writer task awaits `send_message` for each message, on the bare stream.

`serve_transport` here has the signature and the contract of `engine.transport.serve_transport` (same marks of
back-pressure, same errors, same bounded close), so a benchmark exchanges one for the other and nothing else.
It counts no inbound frames and has no keep-alive: neither is on the path that is measured.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from engine.config import Limits
from engine.handshake import Handshake, Refusal, handshake_deadline, read_handshake, refuse_malformed
from engine.nursery import open_outliving_nursery
from engine.transport import HandshakeFailed, StreamStatistics, TransportClosed


class SendMessageTransport:
    """`Transport` whose messages each cost one awaited `send_message`."""

    def __init__(self, connection: WebSocketConnection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._queue: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._sent_bytes = self._sent_messages = 0
        self._wake = trio.Event()
        self._drained = trio.lowlevel.ParkingLot()
        self._over = False

    def send_nowait(self, text: bytes) -> None:
        """Queue one message; never blocks."""
        if not self.queue_all((text,)):
            raise self._end()

    def queue_all(self, texts: Iterable[bytes]) -> bool:
        """Queue some; False if the connection is over."""
        if self._over or self._connection.closed is not None:
            return False
        for text in texts:
            self._queue.append(text)
            self._unsent_bytes += len(text)
        return True

    def flush(self) -> bool:
        """Wake the writer."""
        if self._queue:
            self._wake.set()
        return not self._over and self._unsent_bytes <= self._limits.outbox_high_water_bytes

    async def wait_writable(self) -> None:
        """The same marks as the corked stream's."""
        if self._unsent_bytes > self._limits.outbox_high_water_bytes:
            while self._unsent_bytes > self._limits.outbox_high_water_bytes // 2 and not self._over:
                await self._drained.park()
        if self._over:
            raise self._end()

    def take_messages(self, on_message: Callable[[bytes], None] | None) -> None:
        """All of them come by `receive`."""

    async def receive(self) -> str:
        """The next text message."""
        try:
            message = await self._connection.get_message()
        except ConnectionClosed:
            raise self._end() from None
        if isinstance(message, str):
            return message
        await self.aclose(1003, "binary messages are not understood here")
        raise self._end()

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Send what is queued and close, within `close_timeout_seconds`."""
        with trio.move_on_after(self._limits.close_timeout_seconds, shield=True):
            self.flush()
            while self._unsent_bytes and not self._over:
                await self._drained.park()
            self._finish()
            await self._connection.aclose(code, reason)
        self._finish()

    def statistics(self) -> StreamStatistics:
        """Only what the baseline can know: messages and their bytes."""
        return StreamStatistics(
            0, self._sent_bytes, 0, self._sent_messages, self._sent_messages, self._unsent_bytes
        )

    async def run_writer(self) -> None:
        """The one owner of `send_message`, until the connection is over."""
        try:
            while not self._over:
                await self._wake.wait()
                self._wake = trio.Event()
                while self._queue:
                    text = self._queue.popleft()
                    with trio.fail_after(self._limits.send_timeout_seconds):
                        await self._connection.send_message(text.decode())
                    self._count(len(text))
        except (ConnectionClosed, trio.TooSlowError):
            self._finish()

    def _count(self, size: int) -> None:
        self._sent_bytes += size
        self._sent_messages += 1
        self._unsent_bytes -= size
        if self._drained and self._unsent_bytes <= self._limits.outbox_high_water_bytes // 2:
            self._drained.unpark_all()

    def _finish(self) -> None:
        self._over = True
        self._wake.set()
        self._drained.unpark_all()

    def _end(self) -> TransportClosed:
        closed = self._connection.closed
        return TransportClosed(closed.code, closed.reason or "") if closed else TransportClosed(1006, "")


@asynccontextmanager
async def serve_transport(
    stream: trio.abc.Stream,
    limits: Limits,
    admit: Callable[[Handshake], Refusal | None],
    *,
    request_id: str,
) -> AsyncIterator[tuple[SendMessageTransport, Handshake]]:
    """Like `engine.transport.serve_transport`, over the bare stream."""
    answer_headers = [(b"x-request-id", request_id.encode("ascii"))]
    async with open_outliving_nursery() as nursery:
        try:
            with handshake_deadline(limits):
                request = await wrap_server_stream(
                    nursery,
                    stream,
                    message_queue_size=limits.max_frames_per_second,
                    max_message_size=limits.max_message_bytes,
                    receive_buffer_size=limits.receive_buffer_bytes,
                )
                handshake = read_handshake(request.path, request.headers, request.proposed_subprotocols)
                refusal = refuse_malformed(handshake) or admit(handshake)
                if refusal is not None:
                    headers = answer_headers + [
                        (name.encode(), value.encode()) for name, value in refusal.headers
                    ]
                    await request.reject(refusal.status, extra_headers=headers, body=refusal.body)
                    raise HandshakeFailed(f"refused with status {refusal.status}")
                connection = await request.accept(extra_headers=answer_headers)
            transport = SendMessageTransport(connection, limits)
            nursery.start_soon(transport.run_writer)
            try:
                yield transport, handshake
            finally:
                await transport.aclose()
        finally:
            await trio.aclose_forcefully(stream)
