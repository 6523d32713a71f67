"""A client that loses its connection and goes on, as a sensible client of its form would.

It keeps each whole item that it heard, and the output of each tool that it started; so a call that was heard whole is
never run twice, whatever becomes of the response that it came in. After a loss it opens another connection at once, while its
tools go on, and then says

- what comes after the last response that it knows to be kept, if its form can name one on another connection;
- else the whole conversation again, as far as it heard it. What it heard of an unfinished turn without a call, it forgets.
"""

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal

import attrs
import orjson
import trio

from demos.lab.content import INSTRUCTIONS, TOOLS, ClientContent
from demos.lab.driver import MODEL, URL
from demos.lab.records import Turn
from demos.lab.relay import OpenStream
from demos.lab.server import LIMITS
from engine.client import RolloutRefusedError
from engine.client_forms import FORMS, Form, Progress
from engine.client_wire import Wire
from engine.handshake import HandshakeFailed
from engine.transport import TransportClosed
from protocol import events
from protocol.events import ClientEvent, ErrorEvent, OutputItemDone, ResponseCreate, ResponseCreated
from protocol.items import Call, FunctionCall, Output, output_for
from protocol.session import ClientSession

_DELTAS: Final = (events.OutputTextDelta, events.FunctionCallArgumentsDelta)


@attrs.frozen(kw_only=True)
class FaultForm:
    """A form, with what matters when its connection is lost."""

    name: str
    form: Form
    then: str
    """What its client does after a loss, in words."""
    http_variant: Literal["naive", "optimised"] = "optimised"
    fresh_connections: bool = False
    stores: bool = False

    @property
    def chains(self) -> bool:
        """Does a create name the response before it, where it can?"""
        return self.form == "create" or self.stores

    def opens_for(self, turn: int) -> bool:
        """Is this turn's request the first of its connection, so that it waits for it to be there?"""
        return self.form == "http" and (self.fresh_connections or turn == 0)


@attrs.define
class _Turn:
    sent_s: float
    up: int
    down: int
    first_s: float | None = None
    done_s: float | None = None


class RecoveringClient:
    """`run` one rollout with it."""

    def __init__(self, form: FaultForm, content: ClientContent, open_stream: OpenStream) -> None:
        self.form = form
        self.connections_lost = 0
        self.refusals = 0
        """Of a create that named a response which the server had given up."""
        self.tool_runs = [0] * len(content.tool_seconds)
        self._content = content
        self._open_stream = open_stream
        self._row = FORMS[form.form]
        members = {**self._row.members, "store": form.stores}
        create = ResponseCreate(
            model=MODEL,
            input=(*content.history, *content.prompt),
            tools=TOOLS,
            instructions=INSTRUCTIONS,
            **members,
        )
        self._progress = Progress.of(create)
        self._turn_began = len(self._progress.items)
        """Items of the conversation that the model was told when it began this turn."""
        self._known: tuple[str, int] | None = None
        """A response that can be gone on from, and how many items it covers."""
        self._outputs: dict[str, Output | None] = {}
        """By the calls heard whole and not answered; None while the tool runs."""
        self._asked = False
        """A create was sent on this connection."""
        self._paused = self._over = False
        self._turns: list[_Turn] = []
        self._past = (0, 0)
        """Bytes of the connections before."""

    async def run(self) -> None:
        """Until the rollout has ended. `RolloutRefusedError`; `TransportClosed`: connections end without a fault."""
        self._began = trio.current_time()
        async with trio.open_nursery() as self._tools:
            while not self._over:
                try:
                    async with self._connected() as wire:
                        await self._talk(wire)
                except (TransportClosed, HandshakeFailed, OSError):
                    self._lose()

    def turns(self) -> Iterator[Turn]:
        """All that was asked, and again; bytes of opening a connection are in the turn after it."""
        up = down = 0
        ends = [(turn.up, turn.down) for turn in self._turns[1:]] + [self._past]
        for turn, (next_up, next_down) in zip(self._turns, ends, strict=True):
            yield Turn(
                sent_s=turn.sent_s,
                first_s=turn.first_s,
                done_s=turn.done_s,
                bytes_up=next_up - up,
                bytes_down=next_down - down,
            )
            up, down = next_up, next_down

    # --- one connection --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Wire]:
        row = self._row
        headers = [*row.headers, *((("Connection", "close"),) if self.form.fresh_connections else ())]
        stream = await self._open_stream()
        async with row.opens(row.url(URL), headers, LIMITS, stream, self._open_stream) as wire:
            try:
                yield wire
            finally:
                self._past = self._bytes(wire)

    def _bytes(self, wire: Wire) -> tuple[int, int]:
        return self._past[0] + wire.bytes_out, self._past[1] + wire.bytes_in

    async def _talk(self, wire: Wire) -> None:
        """Until the rollout or the connection is over. `TransportClosed`."""
        self._mail, mail = trio.open_memory_channel[Any](math.inf)
        session = ClientSession(append=self._row.opts_into_append)
        self._asked = self._paused = False
        lost: TransportClosed | None = None
        async with self._mail, mail, trio.open_nursery() as reading:
            reading.start_soon(self._read, wire, session, self._mail)
            self._go_on(wire, session)
            async for heard in mail:
                if isinstance(heard, TransportClosed):
                    lost = heard
                    break
                if heard is not None:
                    self._take(heard)
                if self._over:
                    break
                self._go_on(wire, session)
            reading.cancel_scope.cancel()
        if lost is not None:
            raise lost

    @staticmethod
    async def _read(wire: Wire, session: ClientSession, mail: trio.MemorySendChannel[Any]) -> None:
        try:
            while True:
                await mail.send(session.receive(await wire.receive()).event)
        except TransportClosed as closed:
            await mail.send(closed)

    def _lose(self) -> None:
        self.connections_lost += 1
        if not self._outputs:
            del self._progress.items[self._turn_began :]
        if not self.form.stores:
            self._known = None

    # --- saying ----------------------------------------------------------------------------------------------------

    def _go_on(self, wire: Wire, session: ClientSession) -> None:
        """Send what is to be sent, if it is time: a connection begins with a create, and outputs go after a pause."""
        if None in self._outputs.values():
            return
        if self._asked and not (self._outputs and self._paused):
            return
        outputs = tuple(output for output in self._outputs.values() if output is not None)
        self._outputs.clear()
        self._progress.items += outputs
        event = self._row.go_on(self._progress, outputs) if self._asked else self._first()
        self._asked, self._paused = True, False
        self._turn_began = len(self._progress.items)
        self._turns.append(_Turn(self._now_s(), *self._bytes(wire)))
        wire.send(session.send(event))

    def _first(self) -> ClientEvent:
        """The create of a connection."""
        items, create = self._progress.items, self._progress.create
        if self._known is None:
            return attrs.evolve(create, input=tuple(items), previous_response_id=None)
        response_id, covered = self._known
        return attrs.evolve(create, input=tuple(items[covered:]), previous_response_id=response_id)

    # --- hearing ---------------------------------------------------------------------------------------------------

    def _take(self, event: events.ServerEvent) -> None:
        turn = self._turns[-1]
        turn.done_s = self._now_s()
        if isinstance(event, _DELTAS) and turn.first_s is None:
            turn.first_s = turn.done_s
            self._known = self._known if self.form.form == "create" else None
        elif isinstance(event, ResponseCreated):
            self._progress.response_id = event.response.id
        elif isinstance(event, OutputItemDone):
            self._progress.items.append(event.item)
            if isinstance(event.item, FunctionCall):
                self._outputs[event.item.call_id] = None
                self._tools.start_soon(self._run_tool, event.item)
                self._paused = not self._row.pause
        elif isinstance(event, ErrorEvent):
            self._refused(event)
        elif isinstance(event, self._row.pause) and self._outputs:
            self._paused = True
            self._known = (
                (self._progress.response_id, len(self._progress.items)) if self.form.chains else None
            )
        elif isinstance(event, events.TERMINAL_CLASSES):
            self._over = True

    def _refused(self, event: ErrorEvent) -> None:
        """A response that cannot be gone on from is given up; anything else is an error."""
        if self._known is None:
            raise RolloutRefusedError(event.error)
        self.refusals += 1
        self._known, self._asked = None, False

    async def _run_tool(self, call: Call) -> None:
        step = orjson.loads(call.arguments)["step"] if isinstance(call, FunctionCall) else 0
        self.tool_runs[step] += 1
        await trio.sleep(self._content.tool_seconds[step])
        self._outputs[call.call_id] = output_for(call, self._content.outputs[step])
        with suppress(trio.ClosedResourceError):  # the next connection will see it
            self._mail.send_nowait(None)

    def _now_s(self) -> float:
        return trio.current_time() - self._began
