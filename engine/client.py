"""A client of the append and inject forms: the same tables in the other role.

    async with connect("ws://127.0.0.1:8080/v1/responses") as client:
        async with client.rollout(model="m", input="…", tools=[…], functions={"now": now}) as rollout:
            async for event in rollout:
                …

Functions run at once and concurrently; each output is sent when it is there: in the append form after `response.done`,
which is when that form allows it, in the inject form right away. One output is sent per frame, or several if they are
ready together. The output of a function that raises is the error's text: the model should see it, the rollout goes on.

A tool runs at least once for each call; an output is applied exactly once. `call_id` is the key to make a tool idempotent
(it is passed to functions that take it).
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal

import attrs
import orjson
import trio

from engine.config import DEFAULT_LIMITS, Limits
from engine.recorder import NoRecorder, Recorder
from engine.transport import Transport, TransportClosed, connect_transport
from protocol import events
from protocol.errors import RemoteProtocolError
from protocol.events import (
    ErrorEvent,
    InjectFailed,
    OutputItemDone,
    Response,
    ResponseAppend,
    ResponseCreate,
    ResponseDone,
    ResponseInject,
    ServerEvent,
)
from protocol.items import (
    CALLS,
    Call,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Output,
    text_of,
)
from protocol.session import ClientSession, Received, Record

Form = Literal["append", "inject"]
Function = Callable[..., Awaitable[Any]]


@attrs.frozen
class _FormRow:
    """What differs between the forms for a client."""

    beta: str
    """The token of the `OpenAI-Beta` header."""
    members: Mapping[str, Any]
    """What the create must say."""
    waits_for_done: bool
    """Outputs may go only after `response.done`."""
    answer: Callable[[str, tuple[Output, ...]], ResponseAppend | ResponseInject]


_FORMS: Final[Mapping[str, _FormRow]] = {
    "append": _FormRow(
        "responses_websockets=2026-02-04", {}, True, lambda _, outputs: ResponseAppend(input=outputs)
    ),
    "inject": _FormRow(
        "responses_multi_agent=v1",
        {"multi_agent": {"enabled": True}},
        False,
        lambda response_id, outputs: ResponseInject(response_id=response_id, input=outputs),
    ),
}
EVENTS_AHEAD: Final = 1024
"""Events the user may be behind before the connection stops reading; tools still run meanwhile."""


class RolloutRefusedError(Exception):
    """The server refused the create, or an output; `error` is its answer."""

    def __init__(self, error: events.ErrorDetail) -> None:
        super().__init__(f"{error.code or error.type}: {error.message}")
        self.error = error


class ConnectionLostError(Exception):
    """The connection ended before the rollout did."""


@attrs.define
class ClientRollout:
    """One rollout, seen from the client: iterate over its events."""

    _events: trio.MemoryReceiveChannel[ServerEvent | RemoteProtocolError]
    response: Response | None = None
    """The final resource, once the terminal event has come."""

    def __aiter__(self) -> "ClientRollout":
        return self

    async def __anext__(self) -> ServerEvent:
        try:
            event = await self._events.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        if isinstance(event, RemoteProtocolError):
            raise event
        if isinstance(event, events.TERMINAL_CLASSES):
            self.response = event.response
        if isinstance(event, ErrorEvent):
            raise RolloutRefusedError(event.error)
        return event

    async def wait_ended(self) -> Response:
        """Pass over all events; the final resource. `RolloutRefusedError`, `ConnectionLostError`."""
        async for _ in self:
            pass
        if self.response is None:
            raise ConnectionLostError("the connection ended before the rollout did")
        return self.response

    @property
    def text(self) -> str:
        """All text the model answered with, once the rollout has ended."""
        output = self.response.output if self.response else ()
        return "\n".join(text_of(item.content) for item in output if isinstance(item, Message))


class Client:
    """A connection to a server. Rollouts of one client run one after the other."""

    def __init__(self, transport: Transport, form: Form, recorder: Recorder) -> None:
        self.form = _FORMS[form]
        self._transport = transport
        self._session = ClientSession(append=self.form.waits_for_done)
        self._recorder = recorder

    @property
    def bytes_out(self) -> int:
        """Bytes sent on this connection, handshake included."""
        return self._transport.statistics().bytes_out

    @property
    def bytes_in(self) -> int:
        """Bytes received."""
        return self._transport.statistics().bytes_in

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

        `members` are further members of the create. `functions`: by name; a call of another name gets an error as output.
        What the block raises comes out as it is. Iterating raises `RolloutRefusedError` if the server refuses, and
        `RemoteProtocolError` if it breaks the protocol's order.
        """
        items = input if isinstance(input, str) else tuple(input)
        create = ResponseCreate(
            model=model, input=items, tools=tuple(tools), **{**self.form.members, **members}
        )
        send, receive = trio.open_memory_channel[ServerEvent | RemoteProtocolError](EVENTS_AHEAD)
        error: Exception | None = None
        async with trio.open_nursery() as nursery, receive:
            runner = _Tools(self, functions or {}, nursery)
            self.send(create)
            nursery.start_soon(self._pump, send, runner)
            try:
                yield ClientRollout(receive)
            except Exception as raised:  # noqa: BLE001  # raised again below, outside the nursery and its group
                error = raised
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error

    async def _pump(
        self, channel: trio.MemorySendChannel[ServerEvent | RemoteProtocolError], runner: "_Tools"
    ) -> None:
        """Read until the rollout has ended; tools start as their calls come."""
        async with channel:
            while True:
                try:
                    received = await self._receive()
                    runner.take(received)
                    await channel.send(received.event)
                except RemoteProtocolError as broken:
                    with suppress(trio.BrokenResourceError):
                        await channel.send(broken)
                    return
                except (TransportClosed, trio.BrokenResourceError):
                    return
                if isinstance(received.event, (*events.TERMINAL_CLASSES, ErrorEvent)):
                    return

    async def _receive(self) -> Received:
        text = (await self._transport.receive()).encode()
        self._recorder.frame_out(text)
        return self._session.receive(text)

    def send(self, event: events.ClientEvent) -> None:
        """Send one event as it is. `TransportClosed`; not a checkpoint."""
        text = self._session.send(event)
        self._recorder.frame_in(text)
        self._transport.send_nowait(text)
        self._transport.flush()


class _Tools:
    """The tools of one rollout: starts them, and sends their outputs when the form allows it."""

    def __init__(self, client: Client, functions: Mapping[str, Function], nursery: trio.Nursery) -> None:
        self._client = client
        self._functions = functions
        self._nursery = nursery
        self._ready: list[Output] = []
        self._may_append = False
        self._record: Record | None = None

    def take(self, received: Received) -> None:
        """Look at an event: a finished call starts its tool, `response.done` lets outputs go."""
        event = received.event
        self._record = received.record or self._record
        if isinstance(event, OutputItemDone) and isinstance(event.item, CALLS):
            self._may_append = False
            self._nursery.start_soon(self._run, event.item)
        elif isinstance(event, ResponseDone):
            self._may_append = True
            self._deliver()
        elif isinstance(event, InjectFailed) and event.error.code != "response_already_completed":
            raise RemoteProtocolError(event.error.code, event.error.message)

    async def _run(self, call: Call) -> None:
        text = await self._call(call)
        output = FunctionCallOutput if isinstance(call, FunctionCall) else CustomToolCallOutput
        self._ready.append(output(call.call_id, text))
        self._deliver()

    async def _call(self, call: Call) -> str:
        function = self._functions.get(call.name)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            return f"error: there is no tool named {call.name!r}; there are: {known}"
        try:
            answer = await _invoke(function, call)
        except Exception as error:  # noqa: BLE001  # the model sees it and may try something else
            return f"error: {type(error).__name__}: {error}"
        return answer if isinstance(answer, str) else orjson.dumps(answer).decode()

    def _deliver(self) -> None:
        form, record = self._client.form, self._record
        if (
            not self._ready
            or record is None
            or record.ended
            or (form.waits_for_done and not self._may_append)
        ):
            return
        outputs, self._ready = tuple(self._ready), []
        self._client.send(form.answer(record.response_id, outputs))


async def _invoke(function: Function, call: Call) -> Any:
    """Arguments as keywords, a custom tool's input as the one argument; `call_id` for those who take it."""
    more = {"call_id": call.call_id} if "call_id" in inspect.signature(function).parameters else {}
    if not isinstance(call, FunctionCall):
        return await function(call.input, **more)
    arguments = orjson.loads(call.arguments)
    if not isinstance(arguments, dict):
        raise TypeError(f"arguments must be a JSON object, not {call.arguments[:100]}")
    return await function(**arguments, **more)


@asynccontextmanager
async def connect(
    url: str,
    *,
    form: Form = "append",
    key: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    recorder: Recorder | None = None,
    stream: trio.abc.Stream | None = None,
) -> AsyncIterator[Client]:
    """A client connected to `url` (`ws://host:port/v1/responses`), in one of the forms; closed at the end of the block.

    `key`: shown as bearer. `recorder`: sees both directions. `stream`: an open stream to use instead of a new one.
    `HandshakeFailed`: the server refused, or is no WebSocket server. `OSError`: there is none.
    """
    headers = [("OpenAI-Beta", _FORMS[form].beta)]
    if key is not None:
        headers.append(("Authorization", f"Bearer {key}"))
    async with connect_transport(url, headers, limits, stream) as transport:
        yield Client(transport, form, recorder or NoRecorder())
