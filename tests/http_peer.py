"""A client over HTTP that speaks bytes through h11, for tests in memory and virtual time."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import attrs
import h11
import orjson
import trio


@attrs.frozen
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> "list[tuple[str, Any]]":
        """The events of a stream, comments left out; `[DONE]` is the last one's data."""
        return list(events_in(self.body))


def events_in(body: bytes) -> "Iterable[tuple[str, Any]]":
    for block in body.decode().split("\n\n")[:-1]:
        lines = block.split("\n")
        if lines[0].startswith(":"):
            continue
        if lines == ["data: [DONE]"]:
            yield "", "[DONE]"
            continue
        kind, data = lines
        assert kind.startswith("event: "), block
        assert data.startswith("data: "), block
        yield kind.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))


class HttpPeer:
    """One connection."""

    def __init__(self, stream: trio.abc.Stream, headers: "Iterable[tuple[str, str]]" = ()) -> None:
        self.stream = stream
        self._headers = list(headers)
        self._parser = h11.Connection(h11.CLIENT)
        self.sends: list[bytes] = []
        """Each thing that came in one piece."""

    async def send(self, method: str, target: str, body: Any = None, headers: Any = ()) -> None:
        """A request; `body` as JSON, or bytes as they are."""
        if self._parser.our_state is h11.DONE:
            self._parser.start_next_cycle()
        data = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        length = [("Content-Length", str(len(data)))] if body is not None else []
        names = [("Host", "localhost"), *length, *self._headers, *headers]
        request = h11.Request(method=method, target=target, headers=names)
        text = (
            self._parser.send(request) + self._parser.send(h11.Data(data=data))
            if data
            else self._parser.send(request)
        )
        await self.stream.send_all(text + self._parser.send(h11.EndOfMessage()))

    async def next_event(self) -> Any:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            data = await self.stream.receive_some(1 << 20)
            self.sends.append(bytes(data))
            self._parser.receive_data(bytes(data))
        return event

    async def head(self) -> "tuple[int, Mapping[str, str]]":
        event = await self.next_event()
        if isinstance(event, h11.InformationalResponse):
            return await self.head()
        assert isinstance(event, h11.Response), event
        return event.status_code, {name.decode(): value.decode() for name, value in event.headers}

    async def data(self) -> AsyncIterator[bytes]:
        """Parts of the body as they come."""
        while isinstance(event := await self.next_event(), h11.Data):
            yield bytes(event.data)

    async def answer(self) -> Answer:
        """The whole answer to the oldest request."""
        status, headers = await self.head()
        body = b"".join([part async for part in self.data()])
        return Answer(status, headers, body)

    async def ask(self, method: str, target: str, body: Any = None, headers: Any = ()) -> Answer:
        await self.send(method, target, body, headers)
        return await self.answer()

    async def create(self, path: str = "/v1/responses", **members: Any) -> Answer:
        return await self.ask("POST", path, {"model": "m", "input": "hi", **members})

    async def ended(self) -> bool:
        """Does the server hang up now? Waits for it."""
        return not await self.stream.receive_some()
