"""A backend's server in memory: h11 over stream pairs, answering as a test says, and writing down what it was asked."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import orjson
import trio
import trio.testing


@attrs.frozen
class Asked:
    """A request as it came."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Any


class Reply:
    """The way to answer a request."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, parser: h11.Connection) -> None:
        self.stream = stream
        self.parser = parser

    async def json(self, content: Any, status: int = 200) -> None:
        """A whole answer."""
        await self.whole(orjson.dumps(content), status)

    async def whole(self, data: bytes, status: int = 200, kind: str = "application/json") -> None:
        headers = [("Content-Type", kind), ("Content-Length", str(len(data)))]
        await self._send(h11.Response(status_code=status, headers=headers), h11.Data(data=data))
        await self._send(h11.EndOfMessage())

    async def begin_stream(self) -> None:
        headers = [("Content-Type", "text/event-stream; charset=utf-8"), ("Transfer-Encoding", "chunked")]
        await self._send(h11.Response(status_code=200, headers=headers))

    async def raw(self, data: bytes) -> None:
        """Any text of a stream."""
        await self._send(h11.Data(data=data))

    async def event(self, content: Any) -> None:
        data = content if isinstance(content, bytes) else orjson.dumps(content)
        await self.raw(b"data: " + data + b"\n\n")

    async def end_stream(self, *, done: bool = True) -> None:
        if done:
            await self.event(b"[DONE]")
        await self._send(h11.EndOfMessage())

    async def play(self, *contents: Any, done: bool = True) -> None:
        """A whole stream of events."""
        await self.begin_stream()
        for content in contents:
            await self.event(content)
        await self.end_stream(done=done)

    async def hang_up(self) -> None:
        """End the connection, whatever was sent."""
        await trio.aclose_forcefully(self.stream)

    async def wait_left(self) -> None:
        """Wait until the client has closed the connection."""
        while await self.stream.receive_some(1 << 16):
            pass

    async def _send(self, *events: Any) -> None:
        await self.stream.send_all(b"".join(self.parser.send(event) or b"" for event in events))


Answer = Callable[[Asked, Reply], Awaitable[None]]


class BackendPeer:
    """The server. Use `backend_peer`; `dial` is what `BackendHttp(dialled=…)` wants."""

    def __init__(self, nursery: trio.Nursery, answer: Answer) -> None:
        self._nursery = nursery
        self.answer = answer
        self.asked: list[Asked] = []
        self.streams: list[trio.abc.HalfCloseableStream] = []
        """The server's ends."""
        self.left = 0
        """Connections that are over."""

    async def dial(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.memory_stream_pair()
        self.streams.append(theirs)
        self._nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        parser = h11.Connection(h11.SERVER)
        try:
            while True:
                asked = await _next_request(stream, parser)
                if asked is None:
                    return
                self.asked.append(asked)
                await self.answer(asked, Reply(stream, parser))
                if parser.our_state is not h11.DONE:
                    return
                parser.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client left, or the test hung up
        finally:
            self.left += 1
            await trio.aclose_forcefully(stream)


async def _next_request(stream: trio.abc.Stream, parser: h11.Connection) -> "Asked | None":
    head, body = None, b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            parser.receive_data(bytes(await stream.receive_some(1 << 16)))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            headers = {name.decode(): value.decode() for name, value in head.headers}
            content = orjson.loads(body) if body else None
            return Asked(head.method.decode(), head.target.decode(), headers, content)
        else:
            return None


@asynccontextmanager
async def backend_peer(answer: Answer) -> "BackendPeer":
    """A server that answers each request by `answer(asked, reply)` while the block runs."""
    async with trio.open_nursery() as nursery:
        yield BackendPeer(nursery, answer)
        nursery.cancel_scope.cancel()
