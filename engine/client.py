"""A client of all four forms, with one interface: a rollout with tools is the same whatever carries it.

    async with connect("ws://127.0.0.1:8080/v1/responses") as client:
        async with client.rollout(model="m", input="…", tools=[…], functions={"now": now}) as rollout:
            async for event in rollout:
                …

In the append and inject forms a rollout is one response. In the create and HTTP forms a response ends at each call, and
the rollout goes on with another one, started by the outputs; `ClientRollout` is all of them, one after the other.
What differs is in the rows of `engine.client_forms`; tools run in `engine.client_tools`.

A tool runs at least once for each call; an output is applied exactly once. `call_id` is the key to make a tool idempotent
(it is passed to functions that take it).
"""

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio

from engine.client_forms import FORMS, Form, FormRow, Progress
from engine.client_tools import Function, Run
from engine.client_wire import Dial, Wire
from engine.config import DEFAULT_LIMITS, Limits
from engine.recorder import NoRecorder, Recorder
from engine.transport import TransportClosed
from protocol import events
from protocol.errors import RemoteProtocolError
from protocol.events import ErrorEvent, Response, ResponseCreate, ResponseCreated, ServerEvent
from protocol.items import Item, Message, text_of
from protocol.session import ClientSession

__all__ = [
    "FORMS",
    "Client",
    "ClientRollout",
    "ConnectionLostError",
    "Form",
    "Function",
    "RolloutRefusedError",
    "connect",
]


class RolloutRefusedError(Exception):
    """The server refused a create, or an output; `error` is its answer."""

    def __init__(self, error: events.ErrorDetail) -> None:
        super().__init__(f"{error.code or error.type}: {error.message}")
        self.error = error


class ConnectionLostError(Exception):
    """The connection ended before the rollout did."""


@attrs.frozen
class _Heard:
    """An event on its way to the user."""

    event: ServerEvent
    last: bool
    """It ends the rollout."""


@attrs.define
class ClientRollout:
    """One rollout, seen from the client: iterate over its events."""

    _heard: trio.MemoryReceiveChannel[_Heard | RemoteProtocolError | TransportClosed]
    response: Response | None = None
    """The final resource, once the rollout's last event has come."""
    responses: list[Response] = attrs.Factory(list)
    """Those that have ended; in the append and inject forms there is one at the end."""
    lost: str | None = None
    """Why the connection ended, if it did before the rollout."""

    def __aiter__(self) -> "ClientRollout":
        return self

    async def __anext__(self) -> ServerEvent:
        try:
            heard = await self._heard.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        if isinstance(heard, TransportClosed):
            self.lost = str(heard)
            raise StopAsyncIteration
        if isinstance(heard, RemoteProtocolError):
            raise heard
        event = heard.event
        if isinstance(event, events.TERMINAL_CLASSES):
            self.responses.append(event.response)
            self.response = event.response if heard.last else None
        if isinstance(event, ErrorEvent):
            raise RolloutRefusedError(event.error)
        return event

    async def wait_ended(self) -> Response:
        """Pass over all events; the final resource. `RolloutRefusedError`, `ConnectionLostError`."""
        async for _ in self:
            pass
        if self.response is None:
            why = f": {self.lost}" if self.lost else ""
            raise ConnectionLostError(f"the connection ended before the rollout did{why}")
        return self.response

    @property
    def text(self) -> str:
        """All text the model answered with, once the rollout has ended."""
        output = [item for response in self.responses for item in response.output]
        return "\n".join(text_of(item.content) for item in output if isinstance(item, Message))


class Client:
    """A connection to a server. Rollouts of one client run one after the other."""

    def __init__(self, wire: Wire, form: Form, recorder: Recorder, limits: Limits) -> None:
        self.form: FormRow = FORMS[form]
        self._transport = wire
        self._recorder = recorder
        self._max_unread_events = limits.max_unread_events
        self._turn = trio.Lock()
        """Of the open rollout."""
        self._tools: trio.Nursery | None = None
        """Where those of the newest rollout run."""
        self._begin()

    def _begin(self) -> None:
        """Nothing was asked for."""
        self._session = ClientSession(append=self.form.opts_into_append)
        self._unanswered: deque[Run | None] = deque()
        """Whose creates were sent and not answered; creates are answered in order."""
        self._speaking: Run | None = None
        """Whose response the server speaks of."""

    @property
    def bytes_out(self) -> int:
        """Bytes sent since the beginning: handshakes, heads and frames."""
        return self._transport.bytes_out

    @property
    def bytes_in(self) -> int:
        """Bytes received."""
        return self._transport.bytes_in

    @asynccontextmanager
    async def rollout(
        self,
        *,
        model: str,
        input: str | Sequence[Item],  # noqa: A002  # the wire's own name
        tools: Sequence[Mapping[str, Any]] = (),
        functions: Mapping[str, Function] | None = None,
        **members: Any,
    ) -> AsyncIterator[ClientRollout]:
        """Start a rollout and run its tools while the block runs; leaving the block early abandons it.

        Waits until the client's rollout before is left. `RuntimeError`: that would be for ever, as this one is within it.
        `members` are further members of the create, of each create of the rollout where there are several.
        `functions`: by name; a call of another name gets an error as output.
        What the block raises comes out as it is. Iterating raises `RolloutRefusedError` if the server refuses, and
        `RemoteProtocolError` if it breaks the protocol's order.
        """
        items = input if isinstance(input, str) else tuple(input)
        create = ResponseCreate(
            model=model, input=items, tools=tuple(tools), **{**self.form.members, **members}
        )
        send, receive = trio.open_memory_channel[_Heard | RemoteProtocolError | TransportClosed](
            self._max_unread_events
        )
        if self._is_within():
            raise RuntimeError(
                "this rollout is within another one of the same client: leave it first, or connect another client"
            )
        error: Exception | None = None
        async with self._turn:
            try:
                async with trio.open_nursery() as nursery, receive:
                    self._tools = nursery
                    run = Run(self.form, Progress.of(create), functions or {}, nursery, self._send_for)
                    try:
                        run.begin()
                        nursery.start_soon(self._pump, send, run)
                        yield ClientRollout(receive)
                    except Exception as raised:  # noqa: BLE001  # raised again below, outside the nursery and its group
                        error = raised
                    nursery.cancel_scope.cancel()
            finally:
                if await self._transport.drop():
                    self._begin()
        if error is not None:
            raise error

    def _is_within(self) -> bool:
        """Does the open rollout wait for the current task? It does for the one that opened it, for tools, and for what these start."""
        task = trio.lowlevel.current_task()
        if self._turn.statistics().owner is task:
            return True
        while (nursery := task.parent_nursery) is not None:
            if nursery is self._tools:
                return True
            task = nursery.parent_task
        return False

    async def _pump(
        self,
        channel: trio.MemorySendChannel[_Heard | RemoteProtocolError | TransportClosed],
        run: Run,
    ) -> None:
        """Read until the rollout has ended; tools start as their calls come."""
        async with channel:
            with suppress(trio.BrokenResourceError):
                try:
                    while not run.over:
                        event = await self._receive()
                        if self._whose(event) is run:
                            run.take(event)
                            await channel.send(_Heard(event, run.over))
                except (RemoteProtocolError, TransportClosed) as end:
                    await channel.send(end)

    async def _receive(self) -> ServerEvent:
        text = await self._transport.receive()
        self._recorder.frame_out(text)
        return self._session.receive(text).event

    def _whose(self, event: ServerEvent) -> Run | None:
        """Which rollout an event belongs to: one that was left may still be spoken of."""
        if self._unanswered and isinstance(event, ResponseCreated | ErrorEvent):
            self._speaking = self._unanswered.popleft()
        return self._speaking

    def send(self, event: events.ClientEvent) -> None:
        """Send one event as it is. `TransportClosed`, `LocalProtocolError`; not a checkpoint."""
        self._send_for(self._speaking, event)

    def _send_for(self, run: Run | None, event: events.ClientEvent) -> None:
        text = self._session.send(event)
        self._recorder.frame_in(text)
        self._transport.send(text)
        if isinstance(event, ResponseCreate):
            self._unanswered.append(run)


@asynccontextmanager
async def connect(
    url: str,
    *,
    form: Form = "append",
    key: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    recorder: Recorder | None = None,
    stream: trio.abc.Stream | None = None,
    redial: Dial | None = None,
) -> AsyncIterator[Client]:
    """A client connected to `url`, in one of the forms; closed at the end of the block.

    `url`: `ws://host:port/v1/responses`, or the same with `http`; `wss` or `https` for TLS. Each form takes either.
    `key`: shown as bearer. `recorder`: sees both directions. `stream`: an open stream to use instead of a new one;
    `redial` opens others, for the HTTP form, whose connection may end between two requests.
    `HandshakeFailed`: the server refused, or is no such server. `ValueError`: a bad URL.
    """
    row = FORMS[form]
    headers = [*row.headers]
    if key is not None:
        headers.append(("Authorization", f"Bearer {key}"))
    async with row.opens(row.url(url), headers, limits, stream, redial) as wire:
        yield Client(wire, form, recorder or NoRecorder(), limits)
