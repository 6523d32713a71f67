"""A rollout from the client's side: what it has heard, which tools run, and what it sends next.

Functions run at once and concurrently, each from the moment its call is whole. Their outputs go when the form's row allows
it (`engine.client_forms`), in the order of the calls. The output of a function that raises is the error's text, and so is
that of one whose answer no JSON can hold.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import orjson
import trio

from engine.client_forms import FormRow, Progress
from engine.transport import TransportClosed
from protocol import events
from protocol.errors import RemoteProtocolError
from protocol.events import (
    ClientEvent,
    ErrorEvent,
    InjectFailed,
    OutputItemDone,
    ResponseCreated,
    ServerEvent,
)
from protocol.items import CALLS, Call, FunctionCall, Output, output_for

Function = Callable[..., Awaitable[Any]]


class Run:
    """One rollout: `take` its events until it is `over`."""

    def __init__(
        self,
        form: FormRow,
        progress: Progress,
        functions: Mapping[str, Function],
        nursery: trio.Nursery,
        send: Callable[["Run", ClientEvent], None],
    ) -> None:
        self.over = False
        """Its last event has come."""
        self._form = form
        self._progress = progress
        self._functions = functions
        self._nursery = nursery
        self._send = send
        self._outputs: dict[str, Output | None] = {}
        """By the calls whose outputs were not sent, in call order; None while the tool runs."""
        self._paused = False

    def begin(self) -> None:
        """Send the create. Not a checkpoint."""
        self._send(self, self._progress.create)

    def take(self, event: ServerEvent) -> None:
        """Hear an event: a whole call starts its tool, a pause lets outputs go. `RemoteProtocolError`: an output was refused."""
        if isinstance(event, ResponseCreated):
            self._progress.response_id = event.response.id
        elif isinstance(event, OutputItemDone):
            self._progress.items.append(event.item)
            if isinstance(event.item, CALLS):
                self._paused = False
                self._outputs[event.item.call_id] = None
                self._nursery.start_soon(self._run, event.item)
        elif isinstance(event, InjectFailed) and event.error.code != "response_already_completed":
            raise RemoteProtocolError(event.error.code, event.error.message)
        elif isinstance(event, self._form.pause) and self._outputs:
            self._paused = True
            self._deliver()
        elif isinstance(event, (*events.TERMINAL_CLASSES, ErrorEvent)):
            self.over = True

    async def _run(self, call: Call) -> None:
        text = await self._call(call)
        self._outputs[call.call_id] = output_for(call, text)
        self._deliver()

    async def _call(self, call: Call) -> str:
        function = self._functions.get(call.name)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            return f"error: there is no tool named {call.name!r}; there are: {known}"
        try:
            return _written(await _invoke(function, call))
        except Exception as error:  # noqa: BLE001  # the model sees it and may try something else
            text = f"error: {type(error).__name__}: {error}"
            return text.encode(errors="backslashreplace").decode()  # names of files may hold lone surrogates

    def _deliver(self) -> None:
        """Send what is ready, if it may go now."""
        ready = tuple(output for output in self._outputs.values() if output is not None)
        waits = self._form.all_at_once and len(ready) < len(self._outputs)
        if not ready or waits or self.over or (self._form.pause and not self._paused):
            return
        for output in ready:
            del self._outputs[output.call_id]
        self._progress.items += ready
        with suppress(TransportClosed):  # whoever reads learns of it, and why
            self._send(self, self._form.go_on(self._progress, ready))


async def _invoke(function: Function, call: Call) -> Any:
    """Arguments as keywords, a custom tool's input as the one argument; `call_id` for those who take it."""
    more = {"call_id": call.call_id} if "call_id" in inspect.signature(function).parameters else {}
    if not isinstance(call, FunctionCall):
        return await function(call.input, **more)
    arguments = orjson.loads(call.arguments)
    if not isinstance(arguments, dict):
        raise TypeError(f"arguments must be a JSON object, not {call.arguments[:100]}")
    return await function(**arguments, **more)


def _written(answer: Any) -> str:
    """Text as it is, the rest as JSON. `TypeError`, `UnicodeEncodeError`: it cannot be sent."""
    if not isinstance(answer, str):
        return orjson.dumps(answer).decode()
    answer.encode()  # lone surrogates are refused here, where they are still the function's fault
    return answer
