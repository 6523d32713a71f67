"""A client's wire over HTTP/1.1: each create is a `POST`, each event of its streamed answer a frame.

h11 does the protocol, this module the waiting. One connection, kept alive from request to request. One task does all of it,
the one that calls `receive`: it writes the request that waits, then reads the answer, so nothing is read ahead of
what is asked for, and a slow user slows the server down.

Servers close connections that are idle; so the end is watched for between two requests, and the next request opens
another connection. A request is never sent twice: what it started may have run.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import h11
import orjson
import trio

from engine.client_sse import EventReader
from engine.client_wire import Dial, Headers
from engine.config import Limits
from engine.handshake import HandshakeFailed, dial, handshake_deadline
from engine.transport import TransportClosed
from protocol.errors import INVALID, LocalProtocolError
from protocol.events import TERMINAL_CLASSES

SLICE_BYTES: Final = 64 * 1024
"""One write, so that progress can be seen."""
LOOK_PASSES: Final = 6
"""Of the scheduler: within them a stream of any kind says that it has ended, if it has, before the next request is written."""
_CREATE: Final = b'{"type":"response.create",'
_DONE: Final = b"[DONE]"
_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_TERMINAL: Final = frozenset(cls.type for cls in TERMINAL_CLASSES)


class HttpUnreachable(HandshakeFailed):
    """No connection to the server came about."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.args = (f"no HTTP connection: {reason}",)


class HttpClosed(TransportClosed):
    """The connection ended in the middle of an exchange, or there is no other one for the next."""

    def __init__(self, reason: str) -> None:
        super().__init__(None, reason)
        self.args = (f"HTTP connection closed: {reason}",)


class HttpWire:
    """`Wire` over HTTP. Use `open_http`."""

    def __init__(
        self, stream: trio.abc.Stream, redial: Dial | None, target: str, headers: Headers, limits: Limits
    ) -> None:
        self._stream: trio.abc.Stream | None = stream
        self._parser = _parser()
        self._redial = redial
        self._target = target
        self._headers = headers
        self._limits = limits
        self._requests: deque[bytes] = deque()
        """Bodies to be sent; a rollout has one at most."""
        self._asked = trio.Event()
        self._frames: deque[bytes] = deque()
        self._events = EventReader(limits.max_message_bytes)
        self._answering = False
        """A request was sent, and its answer is not at its end."""
        self._said_all = False
        """The answer's last frame has come; nothing that matters follows."""
        self.bytes_out = 0
        self.bytes_in = 0

    # --- the wire --------------------------------------------------------------------------------------------------

    def send(self, text: bytes) -> None:
        """As `Wire.send`: queue a request. `LocalProtocolError`: HTTP carries nothing but creates."""
        if not text.startswith(_CREATE):
            raise LocalProtocolError(
                f"HTTP carries response.create only, not {text[:40]!r}: use a form of the WebSocket"
            )
        self._requests.append(b"{" + text[len(_CREATE) :])
        self._asked.set()

    async def receive(self) -> bytes:
        """As `Wire.receive`: the next event. Sends the request that waits, if no answer is under way."""
        await trio.lowlevel.checkpoint()
        while not self._frames:
            if self._answering:
                await self._read_on()
            else:
                await self._ask(await self._next_request())
        return self._frames.popleft()

    async def drop(self) -> bool:
        """As `Wire.drop`. Yes: an answer under way is cut off by closing the connection, which stops the server's work."""
        self._requests.clear()
        self._frames.clear()
        if self._answering and not self._said_all:
            await self.hang_up()
        return True

    async def hang_up(self) -> None:
        """Close the connection; the next request opens another one. Works when cancelled; idempotent."""
        stream, self._stream = self._stream, None
        self._answering = False
        if stream is not None:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    # --- asking ----------------------------------------------------------------------------------------------------

    async def _next_request(self) -> bytes:
        """Wait for a request; a connection that ends meanwhile is given up, not written to."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while not self._requests:
                self._asked = trio.Event()
                await self._asked.wait()
            for _ in range(LOOK_PASSES):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        return self._requests.popleft()

    async def _watch(self) -> None:
        """Between answers nothing comes but the end; what else comes is no answer to anything."""
        if self._stream is not None:
            await self._receive_some()
            await self.hang_up()

    async def _ask(self, body: bytes) -> None:
        """Send a request and read the head of its answer. `HttpClosed`."""
        if self._stream is None:
            self._stream, self._parser = await self._another_stream(), _parser()
        self._answering, self._said_all = True, False
        self._events = EventReader(self._limits.max_message_bytes)
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        request = h11.Request(method="POST", target=self._target, headers=headers)
        text = self._parser.send(request) + self._parser.send(h11.Data(data=body))
        await self._send_all(text + self._parser.send(h11.EndOfMessage()))
        response = await self._next_event()
        while not isinstance(response, h11.Response):
            response = await self._next_event()  # "100 Continue" and the like
        kind = next((value for name, value in response.headers if name == b"content-type"), b"")
        if response.status_code != 200 or not kind.startswith(b"text/event-stream"):
            await self._read_refusal(response.status_code)

    async def _another_stream(self) -> trio.abc.Stream:
        if self._redial is None:
            raise HttpClosed("it is over, and there is no way to open another one")
        try:
            with handshake_deadline(self._limits):
                return await self._redial()
        except HandshakeFailed as error:
            raise HttpClosed(error.reason) from error

    async def _send_all(self, data: bytes) -> None:
        """`HttpClosed`: nothing moved for too long. If the server hung up it may have said why, so that is no error here."""
        assert self._stream is not None, "asked on a connection"
        view = memoryview(data)
        self.bytes_out += len(view)
        for start in range(0, len(view), SLICE_BYTES):
            try:
                with trio.fail_after(self._limits.send_timeout_seconds):
                    await self._stream.send_all(view[start : start + SLICE_BYTES])
            except trio.TooSlowError:
                raise await self._broken(
                    f"nothing was read for {self._limits.send_timeout_seconds:g} s"
                ) from None
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                self.bytes_out -= len(view) - start
                return

    # --- reading ---------------------------------------------------------------------------------------------------

    async def _read_on(self) -> None:
        """Read a bit of the answer. `HttpClosed`; `RemoteProtocolError`: an event is too large."""
        event = await self._next_event()
        if isinstance(event, h11.Data):
            for name, data in self._events.feed(bytes(event.data)):
                if data != _DONE:
                    self._said_all = self._said_all or (name or _type_of(data)) in _TERMINAL
                    self._frames.append(data)
        elif isinstance(event, h11.EndOfMessage):
            if not self._said_all:
                raise await self._broken("the answer ended before the response did")
            await self._end_answer()

    async def _read_refusal(self, status: int) -> None:
        """The whole answer that is no stream; it becomes an `error` frame."""
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data[: self._limits.max_refusal_bytes - len(body)]
        await self._end_answer()
        self._frames.append(refusal_frame(status, bytes(body)))

    async def _end_answer(self) -> None:
        self._answering = False
        if self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE:
            self._parser.start_next_cycle()
        else:  # one of the two said that it closes
            await self.hang_up()

    async def _next_event(self) -> Any:
        """`HttpClosed`: the answer broke off, or is none."""
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError as error:
                ended = self._parser.trailing_data[1]
                why = "the server hung up in the middle of it" if ended else f"what came is none: {error}"
                raise await self._broken(f"no whole answer: {why}") from None
            if event is not h11.NEED_DATA:
                return event
            self._parser.receive_data(await self._receive_some())

    async def _receive_some(self) -> bytes:
        """The next bytes; none at the end, whatever the end is."""
        assert self._stream is not None, "read from a connection"
        try:
            data = bytes(await self._stream.receive_some(self._limits.receive_buffer_bytes))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        self.bytes_in += len(data)
        return data

    async def _broken(self, reason: str) -> HttpClosed:
        await self.hang_up()
        return HttpClosed(reason)


def _parser() -> h11.Connection:
    return h11.Connection(h11.CLIENT)


def _type_of(data: bytes) -> str:
    """For servers that do not name their events."""
    try:
        return str(orjson.loads(data)["type"])
    except (ValueError, TypeError, KeyError):
        return ""


def refusal_frame(status: int, body: bytes) -> bytes:
    """The `error` frame that says what an answer's status and body say (reference 11); other bodies are quoted."""
    detail = {
        "type": "server_error" if status >= 500 else INVALID,
        "code": None,
        "message": f"the server answered with status {status} and {body[:200].decode(errors='replace')!r}",
        "param": None,
    }
    try:
        said = orjson.loads(body)["error"]
        detail |= {name: said[name] for name in detail if isinstance(said.get(name), str)}
    except (ValueError, TypeError, KeyError, AttributeError):
        pass  # not our kind of body, so it is quoted
    return orjson.dumps({"type": "error", "status": status, "error": detail})


@asynccontextmanager
async def open_http(
    url: str, headers: Headers, limits: Limits, stream: trio.abc.Stream | None, redial: Dial | None
) -> AsyncIterator[HttpWire]:
    """A wire to an `http` or `https` URL (or `ws`, `wss`), connected at once and closed at the end of the block.

    `stream`: the first connection; `redial` makes others (by default they are made of `url`, unless there is a `stream`).
    `HttpUnreachable`: there is no connection. Whether the server lets the client in shows at the first request.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"an HTTP URL is http://host/path or https://host/path, not {url!r}")
    host = parts.netloc.rpartition("@")[2]
    fixed = [("Host", host), ("Accept", "text/event-stream"), ("Content-Type", "application/json")]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if stream is None:
        redial = redial or _dialling(parts)
        try:
            with handshake_deadline(limits):
                stream = await redial()
        except HandshakeFailed as error:
            raise HttpUnreachable(error.reason) from error
    wire = HttpWire(stream, redial, target, [*fixed, *headers], limits)
    try:
        yield wire
    finally:
        await wire.hang_up()


def _dialling(parts: SplitResult) -> Dial:
    there = parts._replace(scheme=_SCHEMES[parts.scheme])  # `dial` knows by it whether to use TLS

    async def dialled() -> trio.abc.Stream:
        return await dial(there)

    return dialled
