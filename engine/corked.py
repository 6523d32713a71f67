"""The corked stream: the one place where the bytes of a WebSocket connection are ordered, bounded and counted.

It stands between trio-websocket and the socket.
Handshake, close, ping and the decoding of messages stay with the library; our own text frames do not pass through
it, because one awaited send for each event costs ten times the event (a lock, a socket call, two scheduler passes).

Why whole frames may be put between the library's frames: without extensions a text frame depends on no other
frame, so any order of *whole* frames is legal. The rules that follow, and where they are kept:

- only whole frames enter the outgoing buffer, in one step without a checkpoint (`queue_texts`, `send_all`);
- nothing enters after a close frame, the library's or ours (`_accepting`);
- one task writes at a time, and only a stall, a failure or the end of the connection stops it in mid-frame; after
  that the stream is broken for good, because nobody knows where the peer's parser stands (`_write_out`);
- a direct write never passes bytes that are already on their way (`flush`).

Inbound, `InboundFrames` counts bytes, fragments and frames before the library sees them. A read that is one whole text
frame need not pass through it either (`on_message`): that way a message saves a scheduler pass and half of its cost.
Why that is legal: nothing is half read, and the library holds no earlier message that was not fetched from it, so the
order of messages is kept; whatever is not that plain goes the library's way, which also answers what is wrong.

Longer than other modules, so that all that touches the order of bytes and frames is read in one place.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

import trio

from engine.config import Limits
from engine.frames import CLOSE, CONTROL, TEXT, InboundFrames, close_frame, frame, medium_header
from engine.streams import ReplayedStream, StreamStatistics, plain_socket, receive_of

SLICE_BYTES = 16 * 1024
"""One write on a stream that is not a plain socket, so that progress can be seen; one TLS record."""
_NO_FRAME_CODES = frozenset({1005, 1006, 1015})
"""RFC 6455 7.4.1: codes that say what happened and are never sent."""


class CorkedStream(trio.abc.Stream):
    """A stream for trio-websocket, with a side entrance for text frames. One task must run `run_writer()`.

    `client=True` masks the frames made here and leaves inbound frames uncounted.
    `direct` allows `flush()` to write to a plain socket without the writer task.
    `answer_headers` are whole header lines that go into the answer to the handshake, whatever it is.
    """

    def __init__(
        self,
        inner: trio.abc.Stream,
        limits: Limits,
        *,
        direct: bool = True,
        client: bool = False,
        answer_headers: bytes = b"",
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._client = client
        self._socket = plain_socket(inner)
        self._receive = receive_of(inner)
        self._direct = direct and self._socket is not None and os.name == "posix"
        self._answer_headers = answer_headers
        self._inbound = InboundFrames(limits)
        self._upgraded = False
        self._outgoing = bytearray()
        self._in_write_bytes = 0
        self._control_bytes = 0  # of the library's frames, queued beyond the bound
        self._writing = False
        self._write_scope = trio.CancelScope()
        self._wake = trio.Event()
        self._drained = trio.lowlevel.ParkingLot()
        self._receiving = self._at_end = False
        self._accepting = True  # until a close frame is queued, the stream breaks or `aclose()` begins
        self._close_queued = False
        self._close_deadline = float("inf")
        self._closing = False
        self._closed = trio.Event()
        self._bytes_in = self._bytes_out = self._frames_out = self._writes = 0
        self.on_end: Callable[[], None] = lambda: None
        """Called, perhaps more than once, when nothing more will be received."""
        self.on_message: Callable[[bytes], None] | None = None
        """Takes whole text messages as they come, in the library's task; it must not raise. None: all go to the library."""
        self.taken_messages = 0
        """Those that have reached their reader: by `on_message`, or counted by whoever fetches them from the library."""
        self.failure: str | None = None
        """Why the stream broke: "stalled", "overflow", or what the stream below said."""
        self.farewell: Callable[[], tuple[int, str] | None] = lambda: None
        """Asked by `aclose()` for a close code and reason, as the library sends no close frame after a bad frame."""

    @property
    def violation(self) -> tuple[int, str] | None:
        """Close code and reason of the inbound limit that the peer has passed."""
        return self._inbound.violation

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued here that the stream below has not accepted."""
        return len(self._outgoing) + self._in_write_bytes

    def queue_texts(self, payloads: Iterable[bytes]) -> bool:
        """Queue text frames of UTF-8 `payloads`; they leave with the next `flush()` or write. No checkpoint, never raises.

        False: at least one is refused, after a close frame or `aclose()`, or because the stream is broken, which includes
        that more than `max_outbox_bytes` were unsent already.
        """
        if not self._accepting:
            return False
        outgoing, room = self._outgoing, self._limits.max_outbox_bytes - self._in_write_bytes
        for payload in payloads:
            if len(outgoing) > room:
                self._break("overflow")
                return False
            size = len(payload)
            if 126 <= size < 65_536 and not self._client:  # nearly all of them: put together in place
                outgoing += medium_header(TEXT, 126, size)
                outgoing += payload
            else:
                outgoing += frame(TEXT, payload, masked=self._client)
            self._frames_out += 1
        return True

    def flush(self) -> bool:
        """Start what is queued on its way; once for each engine step. No checkpoint, never raises.

        On a plain socket it is written here and now as far as the kernel takes it; else the writer task is woken.
        False: `wait_writable` would wait, or raise.
        """
        if (
            self._outgoing and not self._writing
        ):  # a writer that is under way takes everything before it rests
            if self._direct and not self._closing:
                self._write_directly()
            if self._outgoing:
                self._wake.set()
        unsent_bytes = len(self._outgoing) + self._in_write_bytes
        return self._accepting and unsent_bytes <= self._limits.outbox_high_water_bytes

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes of the library: the handshake, then one whole frame for each call. A checkpoint, then no wait.

        A cancellation leaves nothing of `data` queued. Raises `trio.ClosedResourceError` where `queue_texts` refuses, or
        `trio.BrokenResourceError` if the stream is broken.
        """
        await trio.lowlevel.checkpoint()
        if not self._accepting:
            raise self._refusal()
        if not self._upgraded:
            self._outgoing += self._with_answer_headers(bytes(data))
        else:
            self._queue(data)
            if data[0] == CLOSE:
                self._refuse_more()
        self.flush()

    async def wait_send_all_might_not_block(self) -> None:
        """A checkpoint: `send_all` never blocks."""
        await trio.lowlevel.checkpoint()

    def _with_answer_headers(self, chunk: bytes) -> bytes:
        if self._inbound.answered:
            return chunk  # the body of a refusal
        self._inbound.answered = True
        if isinstance(self._inner, ReplayedStream):
            self._inner.release()
            if self._inner.is_spent:  # the next messages need not pass through it
                self._receive = receive_of(self._inner.inner)
        self._upgraded = self._client or chunk.startswith(b"HTTP/1.1 101")
        return chunk.replace(b"\r\n", b"\r\n" + self._answer_headers, 1)

    def _queue(self, whole_frame: bytes | bytearray | memoryview) -> None:
        if not self._has_room_for(whole_frame):
            self._break("overflow")
            raise self._refusal()
        self._outgoing += whole_frame
        self._frames_out += 1

    def _has_room_for(self, whole_frame: bytes | bytearray | memoryview) -> bool:
        """Some pings and pongs may wait behind one large message, which alone may be larger than the bound."""
        if self.unsent_bytes <= self._limits.max_outbox_bytes:
            self._control_bytes = 0
            return True
        self._control_bytes += len(whole_frame)
        return bool(whole_frame[0] & CONTROL) and self._control_bytes <= self._limits.outbox_high_water_bytes

    def _queue_close(self, code: int, reason: str) -> None:
        if self._accepting and self._upgraded and code not in _NO_FRAME_CODES:
            self._outgoing += close_frame(code, reason, masked=self._client)
            self._frames_out += 1
            self._refuse_more()
            self.flush()

    def _refuse_more(self) -> None:
        """RFC 6455 5.5.1: no frame after a close frame."""
        self._accepting = False
        self._close_queued = True
        self._close_deadline = trio.current_time() + self._limits.close_timeout_seconds

    def _refusal(self) -> Exception:
        if self.failure is not None:
            return trio.BrokenResourceError(f"the connection is broken: {self.failure}")
        return trio.ClosedResourceError("the connection is closing: no frame may follow a close frame")

    def _break(self, reason: str) -> None:
        """Drop what is unsent and wake everybody; the writer, or `aclose()`, then closes the stream below."""
        if self.failure is None:
            self.failure = reason
        self._write_scope.cancel()
        self._wipe()

    def _wipe(self) -> None:
        self._accepting = False
        self._outgoing = bytearray()
        self._in_write_bytes = 0
        self._wake.set()
        self._drained.unpark_all()

    async def wait_writable(self) -> None:
        """Return at once, without a checkpoint, up to the high-water mark; above it wait for half of that.

        Raises `trio.BrokenResourceError` when no more frames are accepted, also while waiting.
        """
        if self.unsent_bytes > self._limits.outbox_high_water_bytes:
            while self.unsent_bytes > self._limits.outbox_high_water_bytes // 2:
                await self._drained.park()
        if not self._accepting:
            raise trio.BrokenResourceError(f"the connection is over: {self.failure or 'closed'}")

    async def run_writer(self) -> None:
        """Write what is queued until the stream is closed or broken, then return.

        If cancelled in mid-frame the stream is broken: cancel it only together with the connection.
        """
        while self.failure is None and not self._closed.is_set():
            if self._writing or not self._outgoing:
                await self._wake.wait()
                self._wake = trio.Event()
            else:
                await self._write_out()
        if self.failure is not None:
            await self._drop()

    async def _write_out(self) -> None:
        self._writing = True
        try:
            while self._outgoing:
                chunk, self._outgoing = self._outgoing, bytearray()
                self._in_write_bytes = len(chunk)
                view = memoryview(chunk)
                while self._in_write_bytes:
                    self._count_write(await self._write_some(view[-self._in_write_bytes :]))
        finally:
            self._writing = False
            if self._in_write_bytes:
                self._break("a write was cancelled in mid-frame")

    async def _write_some(self, view: memoryview) -> int:
        """Write a first part of `view` and return its size; 0 if the stream broke. Cut off only when nothing moves."""
        sent = 0
        with trio.move_on_after(self._limits.send_timeout_seconds) as self._write_scope:
            try:
                if self._socket is not None:
                    sent = await self._socket.send(view)
                else:
                    await self._inner.send_all(view[:SLICE_BYTES])
                    sent = len(view[:SLICE_BYTES])
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._break(f"write failed ({error!r})")
        if self._write_scope.cancelled_caught:
            self._break("stalled")
        return sent if self.failure is None else 0

    def _write_directly(self) -> None:
        assert self._socket is not None
        try:
            sent = os.write(self._socket.fileno(), self._outgoing)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(f"write failed ({error!r})")
            return
        del self._outgoing[:sent]
        self._bytes_out += sent
        self._writes += 1
        if self._drained:
            self._unpark_if_drained()

    def _count_write(self, sent: int) -> None:
        if self.failure is None:
            self._in_write_bytes -= sent
            self._bytes_out += sent
            self._writes += 1
        self._unpark_if_drained()

    def _unpark_if_drained(self) -> None:
        if self.unsent_bytes <= self._limits.outbox_high_water_bytes // 2:
            self._drained.unpark_all()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """The next bytes for the library, up to the first violation; from then on `b""`, with a close frame queued."""
        while True:
            if self.violation is not None:
                self.on_end()
                await trio.lowlevel.checkpoint()
                return b""
            if self._closing:
                raise trio.ClosedResourceError("the connection is closed")
            data = await self._read(max_bytes)
            if data and not self._client:
                now = trio.current_time()
                if self.on_message is not None and self._delivers(data, now):
                    continue
                data = data[: self._inbound.admit(data, now)]
                if self.violation is not None:
                    self._answer_violation(*self.violation)
            if not data:
                self.on_end()
            return data

    async def _read(self, max_bytes: int | None) -> bytes | bytearray:
        self._receiving = True
        try:
            data = await self._receive(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._at_end = True
            self.on_end()
            raise
        finally:
            self._receiving = False
        self._bytes_in += len(data)
        self._at_end = not data
        return data

    def _delivers(self, data: bytes | bytearray, now: float) -> bool:
        """Give a message past the library, if these bytes are one and it holds none; nothing is taken after a close frame."""
        assert self.on_message is not None, "somebody takes them"
        inbound = self._inbound
        if not self._accepting or inbound.peer_closing or inbound.messages != self.taken_messages:
            return False
        message = inbound.take_text(data, now)
        if message is None:
            return False
        self.taken_messages += 1
        self.on_message(message)
        return True

    def _answer_violation(self, code: int, reason: str) -> None:
        if self._inbound.answered:
            self._queue_close(code, reason)
        else:
            self._break(reason)  # no upgrade may follow: nobody reads any more

    async def aclose(self) -> None:
        """Say farewell, flush within `close_timeout_seconds` of the close frame, then close the stream below.

        Idempotent; does all this when cancelled too. Every waiter wakes.
        """
        if self._closing:
            with trio.CancelScope(shield=True):  # bounded: the first call is
                await self._closed.wait()
            return
        if (farewell := self.farewell()) is not None:
            self._queue_close(*farewell)
        self._closing = True
        self._accepting = False
        bound = min(self._close_deadline, trio.current_time() + self._limits.close_timeout_seconds)
        try:
            with trio.move_on_at(bound, shield=True):
                await self._drain()
                await self._linger()
        finally:
            await self._drop()
            self._wipe()
            self._closed.set()
            self.on_end()

    async def _drain(self) -> None:
        if not self._writing:
            await self._write_out()
        while self.unsent_bytes:
            await self._drained.park()

    async def _linger(self) -> None:
        """Read until the peer hangs up: a socket closed with unread input is reset, and a reset overtakes our frame."""
        hung_up = self._at_end or self._inbound.peer_closing or self.failure is not None
        if hung_up or self._receiving or not self._close_queued:
            return
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            if isinstance(self._inner, trio.abc.HalfCloseableStream):
                await self._inner.send_eof()
            while await self._inner.receive_some(SLICE_BYTES):
                pass

    async def _drop(self) -> None:
        with trio.CancelScope(shield=True):  # forceful, so it does not wait
            await trio.aclose_forcefully(self._inner)

    def statistics(self) -> StreamStatistics:
        """Counts since the beginning."""
        frames = {"frames_in": self._inbound.frames, "frames_out": self._frames_out}
        moved = {"bytes_in": self._bytes_in, "bytes_out": self._bytes_out, "writes": self._writes}
        return StreamStatistics(**frames, **moved, unsent_bytes=self.unsent_bytes)
