"""HTTP/1.1 over any stream: requests in, answers out, one after the other on a connection that is kept alive.

h11 does the protocol, this module the waiting: every wait has a deadline, every buffer a bound.
While a request is served, a second task reads: so the end of the client is noticed at once, and cancels what it asked for.
What it reads ahead is the next request's; it stops reading when that is more than one buffer.

One task writes: the one that serves. A write that moves no byte for `send_timeout_seconds` ends the connection.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import attrs
import h11
import trio

from engine.config import Limits
from engine.door import DoorFailed, Knock, error_body, handshake_of, next_head
from engine.exchange import ClientGone, Exchange, Headers, Refused, Site
from engine.handshake import Handshake
from engine.streams import plain_socket, receive_of
from protocol.errors import RemoteProtocolError, refusal

SLICE_BYTES: Final = 16 * 1024
"""One write on a stream that is not a plain socket, so that progress can be seen."""
_NO_ENCODING: Final = frozenset({"", "identity"})
_HARMLESS: Final = frozenset({404, 405})
"""Refusals of a request, not of the client."""


@attrs.define(eq=False)
class HttpCounts:
    """Counts of a server since it began."""

    connections: int = 0
    """Accepted, also those whose only request was refused."""
    requests: int = 0


class HttpConnection:
    """One client's connection. `run` it once, then close it."""

    def __init__(
        self,
        knock: Knock,
        limits: Limits,
        site: Site,
        new_request_id: Callable[[], str],
        counts: HttpCounts,
    ) -> None:
        self._stream = knock.stream
        self._read = receive_of(self._stream)
        self._socket = plain_socket(knock.stream)
        self._parser = knock.parser
        self._first: h11.Request | None = knock.request
        self._limits = limits
        self._site = site
        self._new_request_id = new_request_id
        self._counts = counts
        self._read_ahead = bytearray()
        self._unsent = b""
        self._with_body = True
        self._at_end = False
        self._closing = False
        self._idle = trio.CancelScope()
        self.busy = True
        """Is a request being served?"""
        self.owner = ""
        """Whose it is, by the last request that was let in."""
        self.over = trio.Event()
        """The connection has ended."""

    # --- the life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve request after request until the connection is over. Raises what the serving raises."""
        try:
            while (request := await self._next_request()) is not None:
                self.busy = True
                await self._serve_one(request)
                self.busy = False
                if self._closing or self._at_end or self._parser.our_state is not h11.DONE:
                    break
                if self._parser.their_state is not h11.DONE:
                    break
                self._parser.start_next_cycle()
        except ClientGone:
            pass
        except DoorFailed as error:
            if error.answer is not None:
                await say_no(self._stream, error.answer, self._new_request_id(), self._limits)
        finally:
            self.over.set()

    def drain(self) -> None:
        """The server is shutting down: close after the request that is being served, or now. Not a checkpoint."""
        self._closing = True
        if not self.busy:
            self._idle.cancel()

    async def _next_request(self) -> h11.Request | None:
        """The next head; None if none comes in time. `DoorFailed`, `ClientGone`."""
        if self._first is not None:
            request, self._first = self._first, None
            return request
        with trio.move_on_after(self._limits.keep_alive_seconds) as self._idle:
            while not self._closing:
                head = next_head(self._parser, self._limits)
                if head is not None:
                    return head
                await self._feed()
                # from its first byte on, a head has as long as the first one had
                late = trio.current_time() + self._limits.handshake_timeout_seconds
                self._idle.deadline = min(self._idle.deadline, late)
        return None

    async def _serve_one(self, request: h11.Request) -> None:
        self._counts.requests += 1
        handshake = handshake_of(request)
        exchange = Exchange(
            method=request.method.decode("ascii"),
            handshake=handshake,
            request_id=self._new_request_id(),
            body=b"",
            connection=self,
            recorder=self._site.recorder(handshake.path),
        )
        try:
            await self._answer(exchange)
        except ClientGone:
            exchange.break_off("network")
            self._closing = True
        except BaseException:  # a crash, or the server itself ends
            exchange.break_off("server")
            raise
        finally:
            exchange.recorder.close()

    async def _answer(self, exchange: Exchange) -> None:
        """`ClientGone`; raises what the serving raises."""
        recorder, asked = exchange.recorder, exchange.handshake
        refused: RemoteProtocolError | Refused | None = None
        recorder.hook("connection_open", {})
        try:
            self._site.admit(exchange)
            self.owner = exchange.owner or self.owner
            exchange.body = await self._body(asked)
        except (RemoteProtocolError, Refused) as error:
            refused = error
        recorder.request(exchange.method, asked.path, asked.query, exchange.body)
        if refused is not None:
            await self._refuse(exchange, refused)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, exchange)
            gone = False
            try:
                await self._site.serve(exchange)
            except ClientGone:
                gone = True
            nursery.cancel_scope.cancel()
        if gone:
            raise ClientGone

    async def _refuse(self, exchange: Exchange, error: RemoteProtocolError | Refused) -> None:
        """Refuse a request by its head. Who may not come in keeps no place; a body left unread is in the next one's way."""
        try:
            self._closing = self._closing or self._parser.next_event() is h11.NEED_DATA
        except h11.RemoteProtocolError:
            self._closing = True
        self._closing = self._closing or self._parser.their_state is not h11.DONE
        refused = error if isinstance(error, Refused) else Refused(error, ())
        self._closing = self._closing or refused.error.status not in _HARMLESS
        await exchange.refuse(refused.error, refused.headers)

    async def _watch(self, exchange: Exchange) -> None:
        """Read ahead, up to one buffer, and notice the end."""
        while len(self._read_ahead) < self._limits.receive_buffer_bytes:
            data = await self._receive()
            if not data:
                self._at_end = True
                exchange.break_off("client")
                return
            self._read_ahead += data

    async def aclose(self) -> None:
        """Close, within `close_timeout_seconds`; after a farewell that the client has not read whole, only when it had the time to."""
        with trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + self._limits.close_timeout_seconds
            if isinstance(self._stream, trio.abc.HalfCloseableStream) and not self._at_end:
                try:
                    await self._stream.send_eof()
                    while await self._stream.receive_some(SLICE_BYTES):
                        pass
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
                    pass
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)

    # --- reading ---------------------------------------------------------------------------------------------------

    async def _body(self, handshake: Handshake) -> bytes:
        """The request's body. `RemoteProtocolError`: it is refused."""
        for encoding in handshake.header_values("content-encoding"):
            if encoding.strip().lower() not in _NO_ENCODING:
                raise refusal("bad_encoding", encoding=encoding[:32])
        limit, seconds = self._limits.max_message_bytes, self._limits.body_timeout_seconds
        announced = handshake.header_values("content-length")
        if announced and int(announced[0]) > limit:
            raise refusal("body_too_large", limit=limit)
        body = bytearray()
        with trio.move_on_after(seconds):
            while True:
                event = await self._next_event()
                if isinstance(event, h11.EndOfMessage):
                    return bytes(body)
                if isinstance(event, h11.Data):
                    body += event.data
                if len(body) > limit:
                    raise refusal("body_too_large", limit=limit)
        raise refusal("too_slow", seconds=seconds)

    async def _next_event(self) -> object:
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError:
                if self._at_end:
                    raise ClientGone from None
                raise refusal("bad_request") from None
            if event is not h11.NEED_DATA:
                return event
            if self._parser.they_are_waiting_for_100_continue:
                await self._send(
                    self._parser.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
                )
            await self._feed()

    async def _feed(self) -> None:
        """Give the parser more."""
        data, self._read_ahead = bytes(self._read_ahead), bytearray()
        if not data:
            data = await self._receive()
            self._at_end = not data
        self._parser.receive_data(data)

    async def _receive(self) -> bytes:
        """The next bytes; none at the end, whatever the end is."""
        try:
            return bytes(await self._read(self._limits.receive_buffer_bytes))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    # --- writing ---------------------------------------------------------------------------------------------------

    async def begin(self, status: int, headers: Headers, *, with_body: bool) -> None:
        """The head of an answer, held back for the first bytes of the body."""
        await trio.lowlevel.checkpoint()
        if self._closing or self._parser.their_state is not h11.DONE:
            headers = (*headers, ("connection", "close"))
        self._unsent = self._parser.send(h11.Response(status_code=status, headers=list(headers))) or b""
        self._with_body = with_body

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """A part of the body, in one send."""
        chunk = self._unsent
        self._unsent = b""
        if data and self._with_body:
            chunk += self._parser.send(h11.Data(data=data)) or b""
        if last:
            chunk += self._parser.send(h11.EndOfMessage()) or b""
        await self._send(chunk)

    async def _send(self, data: bytes) -> None:
        """Write all of it. `ClientGone`: it broke, or nothing moved for too long. A checkpoint only if it has to wait:

        what is written here was made in another task, which goes on when this one waits for more.
        """
        view = memoryview(data)[self._sent_at_once(data) :]
        while view:
            sent = 0
            with trio.move_on_after(self._limits.send_timeout_seconds):
                try:
                    if self._socket is not None:
                        sent = await self._socket.send(view)
                    else:
                        await self._stream.send_all(view[:SLICE_BYTES])
                        sent = len(view[:SLICE_BYTES])
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                    raise ClientGone from None
            if not sent:
                self._at_end = True  # no farewell either
                raise ClientGone
            view = view[sent:]

    def _sent_at_once(self, data: bytes) -> int:
        """How much a plain socket takes without waiting, as it does nearly always. `ClientGone`: it broke."""
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError:
            raise ClientGone from None


async def say_no(
    stream: trio.abc.Stream, error: RemoteProtocolError, request_id: str, limits: Limits
) -> None:
    """Answer to what is no request. A checkpoint; nothing if the peer does not listen any more."""
    body = error_body(error)
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nx-request-id: {request_id}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    with trio.move_on_after(limits.close_timeout_seconds):
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.send_all(head.encode() + body)
