"""One HTTP/1.1 connection to a backend: a request, its answer, and then perhaps another request.

h11 does the protocol, this module the waiting. Nothing is read ahead of what is asked for.
"""

from collections.abc import AsyncGenerator
from typing import Any, Final

import h11
import trio

from engine.backends.base import BackendError
from engine.client_sse import EventReader
from protocol.errors import RemoteProtocolError

SLICE_BYTES: Final = 64 * 1024
"""One write or read, so that progress can be seen."""
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Of one answer that is no stream, and of one event of a stream."""
LINGER_SECONDS: Final = 0.1
"""After the last event of a stream: how long its connection may take to be good for another request."""

_DONE: Final = b"[DONE]"


class EndedUnasked(Exception):  # noqa: N818  # no error by itself: a kept connection may end at any time
    """The server hung up before the first byte of an answer."""


class Connection:
    """One connection, one request at a time."""

    def __init__(self, stream: trio.abc.Stream, url: str) -> None:
        self._stream = stream
        self._url = url
        self._parser = h11.Connection(h11.CLIENT)
        self._streams = False
        self._heard = False
        """Came there a byte of the answer?"""
        self._torn = False
        """Did the server stop to read a request in its middle?"""
        self.done = False
        """Had the latest stream its end mark?"""
        self.silence_seconds = 0.0

    @property
    def has_news(self) -> bool:
        """Is there something to read between two answers? That is the end, or nothing good."""
        below = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        return isinstance(below, trio.SocketStream) and below.socket.is_readable()

    async def ask(self, method: str, target: str, headers: list[tuple[str, str]], data: bytes) -> int:
        """Send a request and read the head of its answer: the status. `BackendError`, `EndedUnasked`."""
        self._heard = self.done = False
        text = self._parser.send(h11.Request(method=method, target=target, headers=headers))
        body = self._parser.send(h11.Data(data=data)) if data else b""
        await self._send_all((text or b"") + (body or b"") + (self._parser.send(h11.EndOfMessage()) or b""))
        event = await self._next_event()
        while not isinstance(event, h11.Response):
            event = await self._next_event()  # "100 Continue" and the like
        kind = next((value for name, value in event.headers if name == b"content-type"), b"")
        self._streams = bool(kind.startswith(b"text/event-stream"))
        return int(event.status_code)

    async def whole(self) -> bytes:
        """The body. `BackendError`."""
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > MAX_ANSWER_BYTES:
                raise BackendError(
                    "broke_promise", f"{self._url} answers with more than {MAX_ANSWER_BYTES:,} bytes"
                )
        return bytes(body)

    async def beginning(self) -> bytes:
        """What of a body came first."""
        event = await self._next_event()
        return bytes(event.data[:SLICE_BYTES]) if isinstance(event, h11.Data) else b""

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The data of each event, without `[DONE]`. `BackendError`."""
        if not self._streams:
            yield await self.whole()
            return
        reader = _Events(MAX_ANSWER_BYTES)
        while isinstance(event := await self._next_event(), h11.Data):
            try:
                found = reader.feed(bytes(event.data))
            except RemoteProtocolError as error:
                raise BackendError("broke_promise", f"{self._url}: {error}") from None
            for _, data in found:
                if data == _DONE:
                    self.done = True
                    return
                yield data

    async def linger(self) -> None:
        """Read to the end of the answer, if that is near: then the connection is good for another request."""
        with trio.move_on_after(LINGER_SECONDS):
            try:
                while self._parser.their_state is h11.SEND_BODY:
                    await self._next_event()
            except BackendError:
                return  # all that was wanted has come

    def next_cycle(self) -> bool:
        """Begin another request, if all was sent and read, and neither side closes."""
        if not self._torn and self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE:
            self._parser.start_next_cycle()
            return True
        return False

    async def hang_up(self) -> None:
        """Close, at once. Works when cancelled; idempotent."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)

    def forget(self) -> None:
        """Close what the server has closed already. Not a checkpoint."""
        below = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        if isinstance(below, trio.SocketStream):
            below.socket.close()

    async def _send_all(self, data: bytes) -> None:
        """A server that hangs up meanwhile may have said why, so that is no error here."""
        view = memoryview(data)
        for start in range(0, len(view), SLICE_BYTES):
            try:
                with trio.fail_after(self.silence_seconds):
                    await self._stream.send_all(view[start : start + SLICE_BYTES])
            except trio.TooSlowError:
                raise self._silent("took nothing of the request") from None
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                self._torn = True
                return

    async def _next_event(self) -> Any:
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError as error:
                if not self._heard:
                    raise EndedUnasked from None
                if self._parser.trailing_data[1]:
                    raise BackendError("died", f"{self._url}: the answer broke off in the middle") from None
                raise BackendError("broke_promise", f"{self._url} does not speak HTTP: {error}") from None
            if event is not h11.NEED_DATA:
                return event
            self._parser.receive_data(await self._receive_some())

    async def _receive_some(self) -> bytes:
        """The next bytes; none at the end, whatever the end is."""
        try:
            with trio.fail_after(self.silence_seconds):
                data = bytes(await self._stream.receive_some(SLICE_BYTES))
        except trio.TooSlowError:
            raise self._silent("said nothing") from None
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        self._heard = self._heard or bool(data)
        return data

    def _silent(self, how: str) -> BackendError:
        return BackendError("timeout", f"{self._url} {how} for {self.silence_seconds:g} s")


class _Events(EventReader):
    """Reads llama.cpp's own field for errors, too, which the standard would pass over."""

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        super()._field(b'data: {"error":%s}' % value if name == b"error" else line)
