"""Server-sent events of one response: numbered and framed once, taken by one writer, kept to be sent again.

`EventLog` is a rollout's outbox over HTTP. Events are framed as they are emitted, so that a second sending is the first
one byte for byte. The writer takes what is queued as whole events: one send never tears one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
import trio

from engine.config import Limits
from engine.exchange import ClientGone, Exchange
from engine.outbox import WritePieces
from engine.recorder import HttpRecorder, NoHttpRecorder
from protocol.errors import CATALOGUE, RemoteProtocolError, refusal
from protocol.events import TERMINAL_CLASSES, Response, ResponseCreated, ResponseFailed, ServerEvent
from protocol.record import Record
from protocol.templates import Make

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"
HEADERS: Final = (("content-type", "text/event-stream"), ("cache-control", "no-store"))
_TYPE_OF_CODE: Final[Mapping[str | None, str]] = {
    row.code_in_response: row.type for row in CATALOGUE.values()
}


_NOBODY: Final = NoHttpRecorder()


def framed(kind: str, data: bytes) -> bytes:
    """One event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def unframed(chunk: bytes) -> tuple[str, bytes]:
    """The kind and the data of one event."""
    kind, data = chunk.removesuffix(b"\n\n").split(b"\n", 1)
    return kind.removeprefix(b"event: ").decode(), data.removeprefix(b"data: ")


class EventLog:
    """The events of one response. `queued`: for a writer; `kept`: to be sent again (reference 10.3)."""

    def __init__(
        self,
        record: Record,
        limits: Limits,
        *,
        queued: bool,
        kept: bool,
        recorder: HttpRecorder = _NOBODY,
    ) -> None:
        self.final: Response | None = None
        """The resource of the terminal event, from its emission on."""
        self.created = trio.Event()
        """The response has begun, so it is accepted."""
        self.closed = trio.Event()
        self.on_created: Callable[[], None] = lambda: None
        """Called when the response has just begun: its context is made, and nothing sampled."""
        self._record = record
        self._limits = limits
        self._recorder = recorder
        self._queued = queued
        self._kept = kept
        self._queue = bytearray()
        self._in_write_bytes = 0
        self._gone = False
        self._waiters = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self._events: deque[bytes] = deque()
        self._events_bytes = 0
        self._first_number = 0

    # --- the rollout's side ----------------------------------------------------------------------------------------

    def emit(self, event: ServerEvent) -> None:
        """As `Outbox.emit`. An error comes before the failure that it explains, with a number of its own (10.2)."""
        if isinstance(event, ResponseFailed) and event.response.status == "failed":
            self._append("error", self._error_event(event.response))
        elif isinstance(event, ResponseCreated) and self._queued:
            self._recorder.response(200)  # it has begun, so that is what the stream begins with
        self._append(event.type, self._record.send(event))
        if isinstance(event, TERMINAL_CLASSES):
            self.final = event.response
        elif isinstance(event, ResponseCreated):
            self.on_created()
            self.created.set()

    def open(self, opening: Make, item_id: str, output_index: int, *texts: str) -> WritePieces:
        """As `Outbox.open`."""
        kinds, frames, number_and_encode = self._record.open(opening, item_id, output_index, *texts)
        self._append_all(kinds, frames)
        kind = kinds[-1]

        def write(pieces: Sequence[str]) -> None:
            for text in number_and_encode(pieces):
                self._append(kind, text)

        return write

    def emit_made(self, make: Make, item_id: str, output_index: int, *texts: str) -> None:
        """As `Outbox.emit_made`."""
        self._append_all(*self._record.send_made(make, item_id, output_index, *texts))

    def _append_all(self, kinds: Iterable[str], frames: Iterable[bytes]) -> None:
        for kind, frame in zip(kinds, frames, strict=False):  # an opening has one kind more
            self._append(kind, frame)

    def flush(self) -> bool:
        """As `Outbox.flush`."""
        if self._waiters:
            self._waiters.unpark_all()
        return self.unsent_bytes <= self._limits.outbox_high_water_bytes

    async def wait_writable(self) -> None:
        """As `Outbox.wait_writable`: above the high-water mark until half of that is left."""
        if self.unsent_bytes > self._limits.outbox_high_water_bytes:
            while self.unsent_bytes > self._limits.outbox_high_water_bytes // 2:
                await self._drained.park()

    @property
    def traced(self) -> bool:
        """As `Outbox.traced`."""
        return type(self._recorder) is not NoHttpRecorder

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Tell the trace."""
        self._recorder.hook(name, members)

    def close(self) -> None:
        """Nothing more will come. Idempotent."""
        self.closed.set()
        self._waiters.unpark_all()

    def _error_event(self, response: Response) -> bytes:
        number = self._record.next_number
        self._record.pass_over(number)
        assert response.error is not None, "a failed response says why"
        code, message = response.error.code, response.error.message
        detail = {
            "type": _TYPE_OF_CODE.get(code, "server_error"),
            "code": code,
            "message": message,
            "param": None,
        }
        flat = {"type": "error", "sequence_number": number, "code": code, "message": message, "param": None}
        return orjson.dumps({**flat, "error": detail})

    def _append(self, kind: str, data: bytes) -> None:
        chunk = framed(kind, data)
        if self._queued and not self._gone:
            self._queue += chunk
            self._recorder.event(kind, data)
        if self._kept:
            self._events.append(chunk)
            self._events_bytes += len(chunk)
            while self._events_bytes > self._limits.max_kept_event_bytes and len(self._events) > 1:
                self._events_bytes -= len(self._events.popleft())
                self._first_number += 1

    @property
    def response_id(self) -> str:
        """Whose events these are."""
        return self._record.response_id

    # --- the writers' side -----------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """What the writer has not taken, and what it is writing."""
        return len(self._queue) + self._in_write_bytes

    def take(self) -> bytes:
        """All that is queued; by taking more the writer says that it has written what it took before."""
        chunk, self._queue = bytes(self._queue), bytearray()
        self._in_write_bytes = len(chunk)
        if self.unsent_bytes <= self._limits.outbox_high_water_bytes // 2:
            self._drained.unpark_all()
        return chunk

    def drop_writer(self) -> None:
        """Nobody writes any more; the rollout must not wait for it. Idempotent."""
        self._gone = True
        self._queue = bytearray()
        self._in_write_bytes = 0
        self._drained.unpark_all()

    async def wait_changed(self) -> None:
        """Wait for the next flush, or the end; look first whether there is anything. A checkpoint."""
        await self._waiters.park()

    def events_from(self, number: int) -> list[bytes]:
        """The kept events from a number on. `RemoteProtocolError` `replay_gap`: not all of them are kept."""
        if number < self._first_number:
            raise self._gap(number)
        return [self._events[place] for place in range(number - self._first_number, len(self._events))]

    def _gap(self, number: int) -> RemoteProtocolError:
        return refusal("replay_gap", response_id=self._record.response_id, number=number)


async def write_events(exchange: Exchange, events: EventLog, limits: Limits) -> None:
    """Write a live response from its beginning to `[DONE]`. `ClientGone`."""
    await exchange.begin(200, HEADERS)
    ping_at = trio.current_time() + limits.sse_ping_seconds
    while True:
        if exchange.broken_off:
            raise ClientGone
        closed = events.closed.is_set()
        chunk = events.take()
        if closed:
            exchange.recorder.done()
            await exchange.write(chunk + DONE, last=True)
            return
        if not chunk:
            with trio.move_on_at(ping_at) as silence:
                await events.wait_changed()
            if not silence.cancelled_caught:
                continue
            chunk = PING
        await exchange.write(chunk)
        ping_at = trio.current_time() + limits.sse_ping_seconds


async def replay_events(exchange: Exchange, events: EventLog, start: int, limits: Limits) -> None:
    """Write the kept events from a number on, then what follows. `RemoteProtocolError`: `replay_gap`; `ClientGone`.

    Who falls behind so far that events are gone is cut off: with a gap the stream would be a lie.
    """
    closed, chunks = events.closed.is_set(), events.events_from(start)
    attached = {"response_id": events.response_id, "starting_after": start - 1}
    exchange.recorder.hook("attach", attached)
    if start:
        exchange.recorder.hook("gap", {"note": "what came before is in the trace of another request"})
    await exchange.begin(200, HEADERS)
    while not closed:
        if chunks:
            await _write_again(exchange, chunks)
        else:
            with trio.move_on_after(limits.sse_ping_seconds) as silence:
                await events.wait_changed()
            if silence.cancelled_caught:
                await exchange.write(PING)
        start += len(chunks)
        closed = events.closed.is_set()
        try:
            chunks = events.events_from(start)
        except RemoteProtocolError:
            raise ClientGone from None
    await _write_again(exchange, chunks, DONE)


async def _write_again(exchange: Exchange, chunks: Sequence[bytes], end: bytes = b"") -> None:
    for chunk in chunks:
        exchange.recorder.event(*unframed(chunk))
    if end:
        exchange.recorder.done()
    await exchange.write(b"".join(chunks) + end, last=bool(end))
