"""One client: a reader that never waits, rollouts in one nursery, one writer behind the transport.

The reader decodes, dispatches by a table and reads on. Appends and injects are answered on the spot, past every queue;
creates go to their lane (`engine.lanes`). What a client does wrong gets a typed answer and the connection lives on.
A rollout's events go straight to the transport's buffer; only the transport writes to the socket.

When the connection ends, each rollout is stopped, runs its post-inference, and only then the nursery closes.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from engine.engine import Engine
from engine.lanes import Lane, Lanes, QueuedCreate
from engine.ledger import Ledger, Stage
from engine.recorder import Recorder
from engine.rollout import Rollout
from engine.scheduler import SlotPool
from engine.transport import Transport, TransportClosed
from protocol.dialects import Ending
from protocol.errors import RemoteProtocolError, refusal
from protocol.events import (
    ResponseAppend,
    ResponseCreate,
    ResponseInject,
    ResponseProcessed,
    ResponseSteer,
    ServerEvent,
)
from protocol.session import Record, ServerSession, inject_failed, steer_failed
from protocol.states import ResponseState

log = logging.getLogger(__name__)


@attrs.frozen
class ConnectionStatistics:
    """What a connection holds."""

    lanes: int
    queued_creates: int
    sampling: int
    suspended: int


class Connection:
    """Serves one client over a transport. `run` it once."""

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        recorder: Recorder,
        *,
        append: bool,
        model: str | None = None,
    ) -> None:
        """`append`: the client opted into the prototype at the handshake; `model`: for creates without one (1.2)."""
        self._engine = engine
        self._transport = transport
        self._recorder = recorder
        self._session = ServerSession(append=append)
        self._model = model
        self._lanes = Lanes(engine.limits)
        self._slots = SlotPool(engine.limits.max_in_flight)
        self._open: dict[str, Rollout] = {}
        self._ended: OrderedDict[str, Record] = OrderedDict()
        self._draining = False
        self._ended_one = trio.Event()
        self._handlers: Mapping[type, Callable[[Any, int, Ledger], None]] = {
            ResponseCreate: self._on_create,
            ResponseAppend: self._on_append,
            ResponseInject: self._on_inject,
            ResponseSteer: self._on_steer,
            ResponseProcessed: self._on_processed,
        }

    def statistics(self) -> ConnectionStatistics:
        """A frozen view."""
        suspended = sum(rollout.suspended for rollout in self._open.values())
        return ConnectionStatistics(
            len(self._lanes), self._lanes.queued, len(self._open) - suspended, suspended
        )

    async def run(self) -> None:
        """Serve until the connection is over. A checkpoint."""
        self._recorder.hook("connection_open", {})
        closed = TransportClosed(1006, "")
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    await self._read()
                except TransportClosed as error:
                    closed = error
                finally:
                    self._disconnect()
        finally:
            self._recorder.hook("connection_close", {"by": _who_closed(closed), "code": closed.code})
            self._recorder.close()

    async def _read(self) -> None:
        """Frame after frame. Nothing in here may wait for a rollout."""
        clock = self._engine.clock_ns
        while True:
            text = (await self._transport.receive()).encode()
            started_ns = clock()
            self._recorder.frame_in(text)
            ledger = Ledger(clock, started_ns=started_ns)
            ledger.enter(Stage.DECODE)
            try:
                event = self._session.receive(text)
                ledger.enter(Stage.OTHER)
                self._handlers[type(event)](event, len(text), ledger)
            except RemoteProtocolError as error:
                self._refuse(error, error.stream_id)
            self._transport.flush()

    def _disconnect(self) -> None:
        self._lanes.drop_queued()
        for rollout in self._open.values():
            rollout.stop(Ending.DISCONNECTED)

    def drain(self) -> None:
        """The server is shutting down: suspended rollouts end, nothing new starts; sampling ones may finish."""
        self._draining = True
        for lane in self._lanes.drop_queued():
            self._refuse(refusal("overloaded"), lane.stream_id)
        for rollout in self._open.values():
            rollout.stop_at_pause(Ending.DRAINED)

    async def wait_idle(self) -> None:
        """Wait until no rollout is alive. A checkpoint."""
        await trio.lowlevel.checkpoint()
        while self._open:
            self._ended_one = trio.Event()
            await self._ended_one.wait()

    def cancel(self, response_id: str) -> bool:
        """Cancel a response of this connection that has not ended; False if there is none."""
        rollout = self._open.get(response_id)
        if rollout is None or rollout.over:
            return False
        rollout.stop(Ending.CANCELLED)
        return True

    def cut(self) -> None:
        """The time for draining is over."""
        for rollout in self._open.values():
            rollout.stop(Ending.DRAINED)

    # --- frames --------------------------------------------------------------------------------------------------

    def _on_create(self, create: ResponseCreate, size_bytes: int, ledger: Ledger) -> None:
        if self._draining or self._engine.open_rollouts >= self._engine.limits.max_open_rollouts:
            self._refuse(refusal("overloaded"), create.stream_id)
            return
        try:
            lane = self._lanes.lane(create.stream_id)
            ledger.enter(Stage.QUEUE)
            self._lanes.enqueue(lane, QueuedCreate(create, size_bytes, ledger))
        except RemoteProtocolError as error:
            self._refuse(error, create.stream_id)
            return
        if lane.rollout is not None:
            lane.rollout.stop_at_pause(Ending.ABANDONED)
        if not lane.busy:
            lane.busy = True
            self._nursery.start_soon(self._run_lane, lane)

    def _on_append(self, append: ResponseAppend, _size_bytes: int, ledger: Ledger) -> None:
        lane = self._lanes.known(append.stream_id)
        try:
            rollout = lane.rollout if lane is not None else None
            named = append.response_id or append.previous_response_id
            if rollout is not None and named not in (None, rollout.record.response_id):
                raise refusal("response_not_found", response_id=named)
            if rollout is None or rollout.over:
                raise refusal("nothing_open")
            self._offer(rollout, append, ledger)
        except RemoteProtocolError as error:
            self._refuse(error, append.stream_id)

    def _on_inject(self, inject: ResponseInject, _size_bytes: int, ledger: Ledger) -> None:
        rollout = self._open.get(inject.response_id)
        record = rollout.record if rollout is not None else self._ended.get(inject.response_id)
        if record is None or not record.dialect.answers_input:
            error = refusal("response_not_found", response_id=inject.response_id)
            self._send(self._session.answer_unknown(inject, error))
            return
        try:
            if rollout is None or rollout.over:
                raise refusal("already_completed", response_id=inject.response_id)
            self._offer(rollout, inject, ledger)
        except RemoteProtocolError as error:
            self._send(record.send(inject_failed(inject, error)))

    def _offer(self, rollout: Rollout, event: ResponseAppend | ResponseInject, ledger: Ledger) -> None:
        left = rollout.ledger.enter(Stage.VALIDATE)
        try:
            rollout.inbox.offer(event.input)
        finally:
            rollout.ledger.enter(left)
            # reading the frame was this rollout's business, though it waited meanwhile
            rollout.ledger.claim(Stage.DECODE, ledger.spent_ns(Stage.DECODE))

    def _on_steer(self, steer: ResponseSteer, _size_bytes: int, _ledger: Ledger) -> None:
        """No form steers yet; each submission is answered all the same (reference 4.6)."""
        response_id = steer.previous_response_id
        rollout = self._open.get(response_id)
        record = rollout.record if rollout is not None else self._ended.get(response_id)
        if record is None:
            self._send(
                self._session.answer_unknown_steer(
                    steer, refusal("response_not_found", response_id=response_id)
                )
            )
        elif steer.fault is not None:
            self._send(record.send(steer_failed(steer, refusal("steer_input", reason=steer.fault))))
        else:
            self._send(
                record.send(steer_failed(steer, refusal("steering_not_supported", response_id=response_id)))
            )

    def _on_processed(self, _event: ResponseProcessed, _size_bytes: int, _ledger: Ledger) -> None:
        """Sent by some Codex builds, ignored (reference 4.2)."""

    # --- rollouts ------------------------------------------------------------------------------------------------

    async def _run_lane(self, lane: Lane) -> None:
        """The creates of a lane, one after the other, until none waits."""
        while lane.queue:
            await self._run_create(lane, self._lanes.dequeue(lane))
        lane.busy = False

    async def _run_create(self, lane: Lane, queued: QueuedCreate) -> None:
        create = queued.create
        if create.model is None:
            create = attrs.evolve(create, model=self._model)
        record = self._session.open(
            self._engine.new_id("resp"), self._session.dialect_of(create), lane.stream_id
        )
        rollout = Rollout(
            self._engine, create, record, self._outbox(record), slots=(self._slots,), ledger=queued.ledger
        )
        lane.rollout = self._open[record.response_id] = rollout
        self._engine.open_rollouts += 1
        if lane.queue:
            rollout.stop_at_pause(Ending.ABANDONED)
        parent_lane: Lane | None = None
        try:
            parent = None
            if create.previous_response_id is not None:
                parent_lane, parent = self._lanes.parent_of(create.previous_response_id)
            await rollout.run(parent)
        except RemoteProtocolError as error:
            self._refuse(error, lane.stream_id)
            self._evict(lane, parent_lane)
        finally:
            self._forget(lane, rollout)
        if record.state.name == "FAILED" and not rollout.cancelled:
            self._evict(lane, parent_lane)
        if rollout.snapshot is not None:
            self._lanes.remember(lane, rollout.snapshot)

    def _evict(self, lane: Lane, parent_lane: Lane | None) -> None:
        """A continuation failed: its parent goes, if it was this lane's own latest (reference 4.4)."""
        if parent_lane is lane:
            lane.latest = None

    def _forget(self, lane: Lane, rollout: Rollout) -> None:
        lane.rollout = None
        record = rollout.record
        del self._open[record.response_id]
        self._engine.open_rollouts -= 1
        self._ended_one.set()
        # also one that was abandoned, without a frame: a late inject is told so (reference 2.6)
        if record.state is not ResponseState.IDLE:
            self._ended[record.response_id] = record
            if len(self._ended) > self._engine.limits.max_ended_responses:
                self._ended.popitem(last=False)

    # --- sending -------------------------------------------------------------------------------------------------

    def _outbox(self, record: Record) -> "_Outbox":
        return _Outbox(record, self._send, self._transport, self._recorder)

    def _refuse(self, error: RemoteProtocolError, stream_id: str | None) -> None:
        self._send(self._session.refuse(error, stream_id))
        self._transport.flush()

    def _send(self, text: bytes) -> None:
        """Queue a frame. A connection that is over swallows it: the reader learns of it and stops the rollouts."""
        try:
            self._transport.send_nowait(text)
        except TransportClosed:
            return
        self._recorder.frame_out(text)


def _who_closed(closed: TransportClosed) -> str:
    if closed.by_us:
        return "server"
    return "network" if closed.code == 1006 else "client"  # 1006: no close frame came


@attrs.frozen
class _Outbox:
    """A rollout's way to its client."""

    _record: Record
    _send: Callable[[bytes], None]
    _transport: Transport
    _recorder: Recorder

    def emit(self, event: ServerEvent) -> None:
        self._send(self._record.send(event))

    def flush(self) -> None:
        self._transport.flush()

    async def wait_writable(self) -> None:
        try:
            await self._transport.wait_writable()
        except TransportClosed:
            # the reader has seen it too; wait for it to stop this rollout
            await trio.sleep_forever()

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        self._recorder.hook(name, members)
