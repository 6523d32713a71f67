"""One request over HTTP and the way to its answer: what the sites that answer see of a connection."""

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from engine.door import error_body
from engine.handshake import Handshake
from engine.recorder import HttpRecorder
from protocol.errors import RemoteProtocolError

Headers = Sequence[tuple[str, str]]


class Channel(Protocol):
    """The connection that a request came by."""

    owner: str
    """Whose it is, by the last request that was let in."""

    async def begin(self, status: int, headers: Headers, *, with_body: bool) -> None:
        """The head of an answer, held back for the first bytes of the body. A checkpoint."""

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """A part of the body, in one send. A checkpoint where it has to wait. `ClientGone`."""


class ClientGone(Exception):  # noqa: N818  # a state, as TransportClosed
    """Nobody reads the answer any more."""


@attrs.define(eq=False)
class Exchange:
    """One request, and the way to its answer. Answer once: with `answer`, or with `begin`, `write`… and `end`."""

    method: str
    handshake: Handshake
    """Path, query and headers."""
    request_id: str
    body: bytes
    connection: "Channel"
    recorder: HttpRecorder
    owner: str = ""
    on_disconnect: Callable[[], None] = lambda: None
    """Called when the client is gone; set it to stop what it asked for."""
    begun: bool = False
    broken_off: bool = False
    """Has the connection ended before the answer did, or with it?"""

    async def answer(
        self, status: int, body: bytes, headers: Headers = (("content-type", "application/json"),)
    ) -> None:
        """The whole answer. A checkpoint. `ClientGone`."""
        self.recorder.response(status, body)
        await self.begin(status, (*headers, ("content-length", str(len(body)))))
        await self.write(body)
        await self.end()

    async def refuse(self, error: RemoteProtocolError, headers: Headers = ()) -> None:
        """The answer to a request that is refused. A checkpoint. `ClientGone`."""
        await self.answer(error.status, error_body(error), (("content-type", "application/json"), *headers))

    async def begin(self, status: int, headers: Headers) -> None:
        """The answer's head; it leaves together with the first bytes of the body. A checkpoint."""
        self.begun = True
        self.recorder.response(status)
        identified = (("x-request-id", self.request_id), *headers)
        await self.connection.begin(status, identified, with_body=self.method != "HEAD")

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """A part of the body, in one send; with `last`, the end of the answer in the same. `ClientGone`.

        A checkpoint where it has to wait.
        """
        await self.connection.write(data, last=last)

    async def end(self) -> None:
        """The end of the answer. A checkpoint where it has to wait. `ClientGone`."""
        await self.connection.write(b"", last=True)

    def break_off(self, by: str) -> None:
        """The connection is over, ended by `client`, `network` or `server`. Idempotent, not a checkpoint."""
        if not self.broken_off:
            self.broken_off = True
            self.recorder.hook("connection_close", {"by": by})
            self.on_disconnect()


class Refused(Exception):  # noqa: N818  # named for what happens to the request
    """A request is refused with headers beside the error's."""

    def __init__(self, error: RemoteProtocolError, headers: Headers) -> None:
        super().__init__(error.message)
        self.error, self.headers = error, headers


class Site(Protocol):
    """What is served over HTTP."""

    def recorder(self, path: str) -> HttpRecorder:
        """What a request at this path tells of itself to."""
        ...

    def admit(self, exchange: Exchange) -> None:
        """Judge the head, before the body is read. `RemoteProtocolError`, `Refused`."""

    async def serve(self, exchange: Exchange) -> None:
        """Answer the request. `ClientGone`; whatever else it raises ends the connection."""
