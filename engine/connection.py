"""One client: a reader that never waits, rollouts in one nursery, one writer behind the transport.

The reader decodes, dispatches by a table and reads on. Appends and injects are answered on the spot, past every queue;
creates go to their lane (`engine.lanes`). What a client does wrong gets a typed answer and the connection lives on.
A rollout's events go straight to the transport's buffer; only the transport writes to the socket.

Longer than other modules here: whatever decides the order of a client's frames is in one place.

When the connection ends, each rollout is stopped, runs its post-inference, and only then the nursery closes.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import attrs
import trio

from engine.age import AgeLimit
from engine.cache import ConnectionCache
from engine.compact import threshold_of
from engine.compact_request import start_of
from engine.engine import Engine
from engine.keeping import keep, restored
from engine.lanes import Lane, Lanes, QueuedCreate
from engine.ledger import Ledger, Stage
from engine.recorder import Recorder
from engine.rollout import Rollout
from engine.scheduler import SlotPool
from engine.snapshot import Snapshot
from engine.steering import check_steer
from engine.transport import Transport, TransportClosed
from engine.wire_outbox import WireOutbox
from protocol.dialects import Ending
from protocol.errors import RemoteProtocolError, refusal
from protocol.events import (
    ResponseAppend,
    ResponseCreate,
    ResponseInject,
    ResponseProcessed,
    ResponseSteer,
    SteerAccepted,
    SteerFailed,
    SteerPending,
)
from protocol.record import Record
from protocol.session import ServerSession, inject_failed, steer_failed
from protocol.states import ResponseState

log = logging.getLogger(__name__)

_UNREAD: Final = 1011
"""How we close on a peer that takes nothing, or says nothing (reference 1.3)."""


@attrs.frozen
class ConnectionStatistics:
    """What a connection holds."""

    lanes: int
    queued_creates: int
    sampling: int
    suspended: int


class _Read(NamedTuple):
    """How a frame was read."""

    size_bytes: int
    began_ns: int
    ended_ns: int

    @property
    def took_ns(self) -> int:
        return self.ended_ns - self.began_ns


class Connection:
    """Serves one client over a transport. `run` it once."""

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        recorder: Recorder,
        *,
        append: bool,
        owner: str = "",
        model: str | None = None,
        check: Callable[[str | None], None] = lambda _stream_id: None,
    ) -> None:
        """`append`: the client opted into the prototype at the handshake; `model`: for creates without one (1.2).

        `owner`: whose responses these are, in the store.

        `check`: asked for every frame, with its lane, whether the client may still send any; `RemoteProtocolError`.
        """
        self._engine = engine
        self._transport = transport
        self._recorder = recorder
        self._session = ServerSession(append=append)
        self._owner = owner
        self._keep = partial(keep, engine, owner)
        self._model = model
        self._check = check
        self._lanes = Lanes(engine.limits)
        self._cache = ConnectionCache(engine.limits)
        self._slots = SlotPool(engine.limits.max_in_flight)
        self._open: dict[str, Rollout] = {}
        self._ended: OrderedDict[str, Record] = OrderedDict()
        self._closing: RemoteProtocolError | None = None
        """Why no create is taken any more."""
        self._age = AgeLimit(self, transport.aclose, engine.limits)
        self._ended_one = trio.Event()
        self._handlers: Mapping[type, Callable[[Any, _Read], None]] = {
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
                self._nursery.start_soon(self._age.run)
                self._transport.take_messages(self._on_message)
                try:
                    await self._read()
                except TransportClosed as error:
                    closed = error
                finally:
                    self._disconnect()
        finally:
            if closed.by_us and closed.code == _UNREAD:
                log.info("a client's connection was cut, with %s", closed)
            await self._cache.aclose()
            self._recorder.hook("connection_close", {"by": _who_closed(closed), "code": closed.code})
            self._recorder.close()

    async def _read(self) -> None:
        """Message after message, but for those that come by `_on_message`."""
        while True:
            self._take((await self._transport.receive()).encode())

    def _on_message(self, text: bytes) -> None:
        """In a task of the transport's: what goes wrong is the connection's all the same."""
        try:
            self._take(text)
        except Exception as error:  # noqa: BLE001  # raised where it belongs
            self._nursery.start_soon(_fail, error)

    def _take(self, text: bytes) -> None:
        """One frame. Nothing in here may wait for a rollout, and nothing can: it is not a coroutine."""
        clock = self._engine.clock_ns
        began_ns = clock()
        self._recorder.frame_in(text)
        try:
            event = self._session.receive(text)
            read = _Read(len(text), began_ns, clock())
            self._check(getattr(event, "stream_id", None))
            self._handlers[type(event)](event, read)
        except RemoteProtocolError as error:
            if error.continued is not None:
                self._cache.forget_continued(error.stream_id, error.continued)
            self._refuse(error, error.stream_id)
        self._transport.flush()

    def _disconnect(self) -> None:
        self._transport.take_messages(None)
        self._age.stop()
        self._lanes.drop_queued()
        for rollout in self._open.values():
            rollout.stop(Ending.DISCONNECTED)

    def drain(self) -> None:
        """The server is shutting down: suspended rollouts end, nothing new starts; sampling ones may finish."""
        self.wind_down(refusal("overloaded"))

    def wind_down(self, why: RemoteProtocolError) -> None:
        """As `drain`, for a reason that is told to whoever asks for more; the first one stays."""
        self._closing = self._closing or why
        for lane, queued in self._lanes.drop_queued():
            self._turn_down(lane, queued.create, self._closing, is_own=queued.is_own)
        for rollout in self._open.values():
            if rollout.has_begun:
                rollout.stop_at_pause(Ending.DRAINED)
            else:  # it waits for its place, before those that were just refused: it must not start after them
                rollout.stop(Ending.DRAINED)

    def announce(self, why: RemoteProtocolError) -> None:
        """Tell the client, for the connection as a whole."""
        self._refuse(why, None)

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

    def rollout(self, response_id: str) -> Rollout | None:
        """A rollout of this connection that is alive."""
        return self._open.get(response_id)

    def forget(self, response_id: str) -> None:
        """A response was deleted: nothing here may continue it any more."""
        self._cache.forget_response(response_id)

    def cut(self) -> None:
        """The time for draining is over."""
        for rollout in self._open.values():
            rollout.stop(Ending.DRAINED)

    # --- frames --------------------------------------------------------------------------------------------------

    def _on_create(self, create: ResponseCreate, read: "_Read") -> None:
        why = self._closing or self._too_many()
        if why is not None:
            self._refuse(why, create.stream_id)
            return
        try:
            lane = self._lanes.lane(create.stream_id)
            ledger = Ledger(self._engine.clock_ns, started_ns=read.began_ns)
            ledger.claim(Stage.DECODE, read.took_ns)
            ledger.enter(Stage.QUEUE)
            self._lanes.enqueue(lane, QueuedCreate(create, read.size_bytes, ledger))
        except RemoteProtocolError as error:
            self._refuse(error, create.stream_id)
            return
        if lane.rollout is not None:
            lane.rollout.stop_at_pause(Ending.ABANDONED)
        if not lane.busy:
            lane.busy = True
            self._nursery.start_soon(self._run_lane, lane, name="lane")  # one text for all

    def _too_many(self) -> RemoteProtocolError | None:
        """Why the server, or this key, may open no more rollouts (T13)."""
        engine, limits = self._engine, self._engine.limits
        if engine.open_rollouts >= limits.max_open_rollouts:
            return refusal("overloaded")
        if self._owner and engine.open_by_owner[self._owner] >= limits.max_open_rollouts_per_key:
            return refusal("too_many_rollouts")
        return None

    def _on_append(self, append: ResponseAppend, read: "_Read") -> None:
        lane = self._lanes.known(append.stream_id)
        try:
            rollout = lane.rollout if lane is not None else None
            named = append.response_id or append.previous_response_id
            if rollout is not None and named not in (None, rollout.record.response_id):
                raise refusal("response_not_found", response_id=named)
            if rollout is None or rollout.over:
                raise refusal("nothing_open")
            self._offer(rollout, append, read)
        except RemoteProtocolError as error:
            self._refuse(error, append.stream_id)

    def _on_inject(self, inject: ResponseInject, read: "_Read") -> None:
        rollout = self._open.get(inject.response_id)
        record = rollout.record if rollout is not None else self._ended.get(inject.response_id)
        if record is None or not record.dialect.answers_input:
            error = refusal("response_not_found", response_id=inject.response_id)
            self._send(
                self._session.answer_unknown(inject, error, record.stream_id if record is not None else None)
            )
            return
        try:
            if rollout is None or rollout.over:
                raise refusal("already_completed", response_id=inject.response_id)
            self._offer(rollout, inject, read)
        except RemoteProtocolError as error:
            self._send(record.send(inject_failed(inject, error)))

    def _offer(self, rollout: Rollout, event: ResponseAppend | ResponseInject, read: "_Read") -> None:
        left = rollout.ledger.enter(Stage.VALIDATE)
        try:
            rollout.inbox.offer(event.input)
        finally:
            rollout.ledger.enter(left)
            # reading the frame was this rollout's business, though it waited meanwhile
            rollout.ledger.claim(Stage.DECODE, read.took_ns)

    def _on_steer(self, steer: ResponseSteer, _read: "_Read") -> None:
        response_id = steer.previous_response_id
        rollout = self._open.get(response_id)
        record = rollout.record if rollout is not None else self._ended.get(response_id)
        if record is None or record.state is ResponseState.IDLE:
            error = refusal("response_not_found", response_id=response_id)
            self._send(self._session.answer_unknown_steer(steer, error))
            return
        try:
            accepted = self._steer(steer, record, rollout)
        except RemoteProtocolError as error:
            self._send(record.send(steer_failed(steer, error)))
        else:
            self._send(record.send(accepted))

    def _steer(self, steer: ResponseSteer, record: Record, rollout: Rollout | None) -> SteerAccepted:
        check_steer(steer)
        # a compacting create has a beginning of its own, which a successor would repeat (reference 4.6)
        compacts = rollout is not None and threshold_of(rollout.create.context_management) is not None
        if not record.dialect.steerable or compacts:
            raise refusal("steering_not_supported", response_id=record.response_id)
        if rollout is None:
            raise refusal("already_completed", response_id=record.response_id)
        if rollout.over:
            raise refusal("not_active", response_id=record.response_id)
        accepted = self._lanes.lane(record.stream_id).steering.accept(steer, self._engine.new_id("steer"))
        rollout.steer()
        return accepted

    def _on_processed(self, _event: ResponseProcessed, _read: "_Read") -> None:
        """Sent by some Codex builds, ignored (reference 4.2)."""

    # --- rollouts ------------------------------------------------------------------------------------------------

    async def _run_lane(self, lane: Lane) -> None:
        """The creates of a lane, one after the other, until none waits. One frame: thousands of suspended rollouts hold it."""
        while lane.queue:
            is_own, rollout = self._open_next(lane)
            failed = False
            try:
                await rollout.run(prepare=self._prepare)
                failed = rollout.record.state is ResponseState.FAILED and not rollout.cancelled
                if self._closing is not None and not rollout.has_begun:
                    self._turn_down(lane, rollout.create, self._closing, is_own=is_own)
            except RemoteProtocolError as error:
                failed = True
                self._turn_down(lane, rollout.create, error, is_own=is_own)
            finally:
                self._end(lane, rollout, failed=failed)
            await self._cache.close_dropped()
        lane.busy = False

    def _open_next(self, lane: Lane) -> tuple[bool, Rollout]:
        """The rollout of the next create that waits, and whether that is one of the server's own."""
        queued, steering = self._lanes.dequeue(lane), lane.steering
        create = steering.joined(queued.create)
        is_successor = bool(steering.to(create.previous_response_id))
        if create.model is None:
            create = attrs.evolve(create, model=self._model)
        record = self._session.open(
            self._engine.new_id("resp"), self._session.dialect_of(create), lane.stream_id
        )
        rollout = Rollout(
            self._engine,
            create,
            record,
            self._outbox(record),
            slots=(self._slots,),
            owner=self._owner,
            ledger=queued.ledger,
            keep_warm=True,
            begun=partial(steering.applied, create.previous_response_id) if is_successor else None,
            keep=self._keep,
        )
        lane.rollout = self._open[record.response_id] = rollout
        self._engine.count_open(self._owner, 1)
        if lane.queue:
            rollout.stop_at_pause(Ending.ABANDONED)
        return queued.is_own, rollout

    def _end(self, lane: Lane, rollout: Rollout, *, failed: bool) -> None:
        self._forget(lane, rollout)
        if failed:
            self._cache.forget_continued(lane.stream_id, rollout.create.previous_response_id)
        if rollout.snapshot is not None and self._cache.remember(lane.stream_id, rollout.snapshot):
            self._recorder.hook("cache_reset", {"reason": "more contexts than a connection may hold"})
        self._go_on_steered(lane, rollout)

    def _turn_down(
        self, lane: Lane, create: ResponseCreate, why: RemoteProtocolError, *, is_own: bool
    ) -> None:
        """A create will not start. Nobody waits for one of the server's own; words that it would take are given back."""
        if not is_own:
            self._refuse(why, lane.stream_id)
        self._tell_steers(lane.steering.fail(create.previous_response_id, why.message))

    async def _prepare(self, rollout: Rollout) -> Snapshot | None:
        """What a response goes on from, once it has its place and starts. No closure: it is held as long as the response."""
        named, parent = rollout.create.previous_response_id, None
        if named is not None:
            parent = await self._parent(named)
        start = await start_of(self._engine, rollout.create, parent, self._owner)
        rollout.create, rollout.preface = start.create, start.preface
        return start.parent

    async def _parent(self, response_id: str) -> Snapshot:
        """The response to go on from: the latest of some lane, else as the store has it (reference 4.4)."""
        try:
            return self._cache.find(response_id)[1]
        except RemoteProtocolError:
            try:
                return await restored(self._engine, self._owner, response_id)
            except RemoteProtocolError:
                # it may have ended while the store was asked: nobody who has seen that is told that it is not there
                return self._cache.find(response_id, again=True)[1]

    def _go_on_steered(self, lane: Lane, rollout: Rollout) -> None:
        """The submissions to a response that has ended: a successor, a wait for outputs, or back to the user."""
        steering, response_id = lane.steering, rollout.record.response_id
        self._tell_steers(steering.response_ended(response_id, rollout.snapshot))
        successor = steering.successor(rollout.create, rollout.snapshot)
        if successor is not None and self._closing is not None:
            self._tell_steers(steering.fail(response_id, "the connection is being closed."))
        elif successor is not None:
            ledger = Ledger(self._engine.clock_ns)
            self._lanes.put_first(lane, QueuedCreate(successor, 0, ledger, is_own=True))

    def _tell_steers(self, told: Iterable[SteerPending | SteerFailed]) -> None:
        for event in told:
            record = self._ended.get(event.steer.previous_response_id)
            if record is not None:
                self._send(record.send(event))
        self._transport.flush()

    def _forget(self, lane: Lane, rollout: Rollout) -> None:
        lane.rollout = None
        record = rollout.record
        del self._open[record.response_id]
        self._engine.count_open(self._owner, -1)
        self._ended_one.set()
        # also one that was abandoned, without a frame: a late inject is told so (reference 2.6)
        if record.state is not ResponseState.IDLE:
            self._ended[record.response_id] = record
            if len(self._ended) > self._engine.limits.max_ended_responses:
                self._ended.popitem(last=False)

    # --- sending -------------------------------------------------------------------------------------------------

    def _outbox(self, record: Record) -> WireOutbox:
        return WireOutbox(record, self._send, self._transport, self._recorder)

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


async def _fail(error: Exception) -> None:
    raise error


def _who_closed(closed: TransportClosed) -> str:
    if closed.by_us:  # a peer that takes nothing is as good as gone
        return "network" if closed.code == _UNREAD else "server"
    return "network" if closed.code == 1006 else "client"  # 1006: no close frame came
