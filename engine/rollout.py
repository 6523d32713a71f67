"""A rollout: one agent loop as one response. Read this file first.

    admit → validate → resolve → render → classify             once, before anything is sampled
    sample → [hosted tools] → suspend → resume → sample …       as often as the model calls tools
    classify the output → account → persist                    once, whatever ended it
    the terminal event

`Rollout.run` is that sentence as code. The suspended response is a coroutine blocked in `_suspend`, on its inbox.

What it knows: an inbox (outputs come in), an outbox (events go out), a sampler, the stages, a dialect's row.
What it does not know: connections, transports, lanes, or which dialect it is in.

It ends by itself (no call is left, or `_Over` from within) or by `stop(ending)` from outside, which cancels its life.
The dialect's row says what each ending leads to. `_finish` runs exactly once for each rollout that was admitted.
Its cancel scope never encloses a socket write: the outbox only queues.

Longer than other modules here, so that the story stays in one place.

What a crash kills: a sampler's error ends its response; an error of a stage or of this file ends the connection.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from engine.assembly import Assembly, ItemBoundary
from engine.backends.base import BackendError
from engine.config import patience_seconds
from engine.context import Context
from engine.engine import Engine, RolloutReport
from engine.hosted_round import run_hosted_round
from engine.inbox import Inbox
from engine.intake import Intake
from engine.ledger import Ledger, Stage
from engine.outbox import Outbox
from engine.residency.hints import tool_seconds_of
from engine.residency.residency import answered, pause, seat
from engine.resource import resource_at_end, resource_of
from engine.samplers.base import ContextFullError
from engine.scheduler import SlotPool, Slots
from engine.segment import BudgetSpentError, SegmentRun
from engine.snapshot import Snapshot
from engine.stages import Account, PersistedRollout, RolloutUsage, Segment
from engine.tally import Tally
from protocol import events
from protocol.dialects import HTTP, Ending, EndRow
from protocol.errors import CATALOGUE
from protocol.events import Parked, Response, ResponseCreate, ResponseDone, ServerEvent
from protocol.items import OUTPUTS, Item
from protocol.record import Record

log = logging.getLogger(__name__)

CACHE_SLACK_TOKENS: Final = 32
"""A warm state may lack its last token, and a cache of blocks the rest of one, without anything being lost."""

_TERMINAL: Final[Mapping[str, Callable[[Response], ServerEvent]]] = {
    "completed": events.ResponseCompleted,
    "incomplete": events.ResponseIncomplete,
    "failed": events.ResponseFailed,
}


class _Over(Exception):  # noqa: N818  # not an error: how the loop leaves itself
    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.name)
        self.ending = ending


class Rollout:
    """One response from its create to its terminal event. `run` it once, in a task of its own."""

    __slots__ = (
        "_account",
        "_assembly",
        "_begun",
        "_created",
        "_dialect",
        "_ended",
        "_ending",
        "_ending_at_pause",
        "_endings",
        "_engine",
        "_final",
        "_hosted_calls",
        "_intake",
        "_keep",
        "_keep_warm",
        "_life",
        "_outbox",
        "_owner",
        "_slots",
        "_tool_seconds",
        "_traced",
        "counts",
        "create",
        "finished",
        "inbox",
        "ledger",
        "preface",
        "record",
        "snapshot",
    )

    def __init__(
        self,
        engine: Engine,
        create: ResponseCreate,
        record: Record,
        outbox: Outbox,
        *,
        slots: Sequence[SlotPool] = (),
        owner: str = "",
        ledger: Ledger | None = None,
        keep_warm: bool = False,
        begun: Callable[[], None] | None = None,
        keep: Callable[["Rollout"], Awaitable[bool]] | None = None,
    ) -> None:
        """`owner`: whose turn it takes when slots are short.

        `keep_warm`: the snapshot holds the open sampling, and its owner closes it; else it is closed at the end.

        `begun`: called when the response exists for the client. `keep`: awaited when it has ended, before that is said.
        """
        self.create = create
        self.record = record
        self.ledger = ledger or Ledger(engine.clock_ns)
        self._life = trio.CancelScope()
        self.inbox = Inbox(
            record.pending, life=self._life, max_held=engine.limits.max_held_outputs, accepted=self._accepted
        )
        self.preface: Item | None = None
        """An item that the response shows first, and that is not in its context; set it before `run`."""
        self.snapshot: Snapshot | None = None
        """For a response that continues this one; set at the end, if the ending allows it."""
        self._created: tuple[ResponseCreate, int] | None = None
        """What the response was created from, and when."""
        self._final: Response | None = None
        self.finished = False
        """Nothing more will come of it."""
        self._ended: trio.Event | None = None
        """Made when somebody waits for it: most rollouts end unawaited, and thousands of them wait."""
        self.counts = Tally()
        """How often each stage and hook point ran."""
        self._engine = engine
        self._dialect = record.dialect
        self._outbox = outbox
        self._traced = outbox.traced
        self._slots = (*slots, engine.slots)
        self._owner = owner
        self._intake = Intake(engine, self.ledger, self.counts)
        self._account = Account()
        self._ending: Ending | None = None
        self._endings = record.dialect.sampling_endings
        self._ending_at_pause: Ending | None = None
        self._keep_warm = keep_warm
        self._begun = begun
        self._keep = keep
        self._hosted_calls = 0

    # --- the sentence --------------------------------------------------------------------------------------------

    async def run(
        self,
        parent: Snapshot | None = None,
        *,
        prepare: Callable[["Rollout"], Awaitable[Snapshot | None]] | None = None,
    ) -> None:
        """The whole life. `RemoteProtocolError`: refused before it began; nothing was emitted then.

        `prepare`: awaited for the parent when the response has its place and starts, and not before (reference 4.5).
        Cancelled from outside it still runs post-inference, shielded and bounded, and emits nothing more.
        """
        begun = False
        try:
            with self._life:
                try:
                    async with self._slot(resumed=self._answers_calls):
                        with self.ledger.at(Stage.RESOLVE):
                            if prepare is not None:
                                parent, prepare = await prepare(self), None  # not held as long as it waits
                            self.create = self._engine.shared.create(self.create)
                            self._tool_seconds = tool_seconds_of(self.create.metadata)
                        await self._intake.open(self.create, parent)
                        await trio.lowlevel.checkpoint_if_cancelled()  # who was stopped does not begin
                        self._begin(parent)
                        begun = True
                        await self._sample()
                    while self._goes_on():
                        await self._run_hosted_tools()
                        suspended = self._suspend()
                        if suspended:
                            await self._outputs()
                            self._wake()
                        async with self._slot(resumed=True):
                            await self._resume(suspended=suspended)
                            await self._sample()
                    self.stop(Ending.COMPLETED)
                except _Over as over:
                    self.stop(over.ending)
        finally:
            if self._ending is None and self._life.cancelled_caught:  # not by `stop`, so by the inbox
                self._ending = Ending.EXPIRED
            if begun:
                await self._finish()
            else:
                await self._close_sampling()  # a parent's, taken over by what was stopped before it began
            self.finished = True
            if self._ended is not None:
                self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until nothing more will come of it. A checkpoint."""
        await trio.lowlevel.checkpoint()
        if not self.finished:
            self._ended = self._ended or trio.Event()
            await self._ended.wait()

    def stop(self, ending: Ending) -> None:
        """End the rollout; the first ending counts. Not a checkpoint."""
        if self._ending is None:
            self._ending = ending
            self._life.cancel()

    def stop_at_pause(self, ending: Ending) -> None:
        """End the rollout if it is suspended, else when it suspends; the last such ending counts. Not a checkpoint.

        `ABANDONED`: a create waits for this lane (reference 3.5 rules 3 and 4). `DRAINED`: the server shuts down, and
        refuses that create: who hears of no successor must hear of the end.
        """
        self._ending_at_pause = ending
        if self.suspended:
            self.stop(ending)

    def snapshot_now(self) -> tuple[Snapshot, tuple[str, ...]]:
        """The context as it stands and what the classifier found in this rollout; a copy, for a cache. No checkpoint."""
        now = self._intake.snapshot(self.record.response_id)
        copy = attrs.evolve(now, context=now.context.fork(), calls=now.calls.fork())
        return copy, tuple(self._intake.matches)

    def steer(self) -> None:
        """End the rollout where the item that is being written ends; calls are answered first. Not a checkpoint."""
        self._assembly.stops_after_item = True

    @property
    def context(self) -> Context:
        """What the model has seen and said, this rollout's part from item `first_item` on."""
        return self._intake.context

    @property
    def first_item(self) -> int:
        """Where this rollout's own input begins in the context."""
        return self._intake.first_item

    @property
    def output(self) -> Sequence[Item]:
        """What it has said so far, once it has begun."""
        return self._assembly.items

    @property
    def usage(self) -> RolloutUsage:
        """What was sampled so far."""
        return self._account.totals

    @property
    def resource(self) -> Response | None:
        """The response as it began, and from the end on as it ended, also where no event says so.

        Made anew until it has ended: it is as large as the create that it echoes, and thousands of them wait.
        """
        if self._final is not None or self._created is None:
            return self._final
        create, created_at = self._created
        return resource_of(create, self.record.response_id, created_at)

    @property
    def has_begun(self) -> bool:
        """Does it exist for the client?"""
        return self._created is not None

    @property
    def over(self) -> bool:
        """Has an ending been decided, or has the pause lasted too long? From then on nothing more is accepted."""
        return self._ending is not None or self._life.cancel_called

    @property
    def cancelled(self) -> bool:
        """Was it ended by a cancellation, which blames nobody?"""
        return self._ending is Ending.CANCELLED

    @property
    def suspended(self) -> bool:
        """Does it wait for outputs? False from the moment the last one is accepted."""
        return self._endings is self._dialect.suspended_endings and bool(self.record.pending)

    @property
    def _answers_calls(self) -> bool:
        """Does it go on with the output of a tool? That is what a resumption is in the forms that end at their calls."""
        items = self.create.input
        return isinstance(items, tuple) and bool(items) and isinstance(items[-1], OUTPUTS)

    @property
    def _cache_key(self) -> str | None:
        """Who finds the model's state when the rollout has ended; in naive HTTP nobody does."""
        naive = self._dialect is HTTP and self._engine.http_variant == "naive"
        return None if naive else self._owner

    def _slot(self, *, resumed: bool) -> "_Slot":
        return _Slot(self, Slots(self._slots, self._owner, resumed=resumed))

    # --- before --------------------------------------------------------------------------------------------------

    def _begin(self, parent: Snapshot | None) -> None:
        """Pre-inference is over; the response exists for the client from here on."""
        self._hook("pre_inference")
        with self.ledger.at(Stage.ENCODE):
            self._assembly = Assembly(
                self._outbox.emit,
                self._engine.new_id,
                self._dialect,
                self._intake.tools,
                self._intake.calls.has_call,
            )
            self._created = self.create, self._engine.wall_seconds()
            resource = resource_of(self.create, self.record.response_id, self._created[1])
        self._emit(events.ResponseCreated(resource))
        self._emit(events.ResponseInProgress(resource))
        source = (parent.response_id if parent is not None else "") or self.create.previous_response_id
        new_items = self.context.item_count - self.first_item
        self._tell("context", inherited=[source] if source else [], input_items=new_items)
        if source and self._intake.sampling is None:
            self._hook("cache_reset", reason="the model's state of the response before is not here")
        if self.preface is not None:
            self._assembly.write_whole(self.preface)
        self._flush()
        if self._begun is not None:
            self._begun()

    # --- sampling ------------------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        """One segment; its calls are in the assembly afterwards, its items in the context."""
        self.ledger.enter(Stage.SAMPLE)
        self._assembly.begin_segment()
        warms_up = self.create.generate is False  # everything but the sampling
        if warms_up and not self._intake.reads_ahead:
            self._count_segment(self._intake.input_tokens, self._intake.held_tokens)
            return
        self.ledger.segments += 1
        before = len(self._assembly.items)
        budget = self.create.max_output_tokens
        run = SegmentRun(
            self._assembly,
            None if budget is None else budget - self._account.totals.output_tokens,
            one_call=self.create.parallel_tool_calls is False,
        )
        held_tokens = self._intake.held_tokens
        appended = self._intake.next_segment(only_read=warms_up)
        try:
            sampling = self._intake.start(self.create, self.record.response_id, self._cache_key)
            resumed = self._answers_calls or self.ledger.segments > 1
            seat(sampling, self._slots, self._owner, self.ledger, resumed=resumed)
            await run.run(sampling, appended, self.ledger, self._outbox)
        except ItemBoundary:
            self._hook("sampler_stop", reason="stop")
            await self._intake.keep(self._assembly.items[before:])
            raise _Over(Ending.STEERED) from None
        except BudgetSpentError:
            self._hook("sampler_stop", reason="length")
            self._assembly.cut()
            await self._intake.keep(self._assembly.items[before:])
            raise _Over(Ending.MAX_OUTPUT_TOKENS) from None
        except ContextFullError:
            self._hook("sampler_stop", reason="length")
            await self._intake.keep(self._assembly.items[before:])
            raise _Over(Ending.CONTEXT_FULL) from None
        except trio.Cancelled:
            self._hook("sampler_stop", reason="cancel")
            raise
        except BackendError as error:
            log.warning("the model of %s is lost (%s): %s", self.record.response_id, error.reason, error)
            self.counts(f"model_{error.reason}")
            self._hook("sampler_stop", reason="error")
            raise _Over(Ending.MODEL_LOST) from error
        except Exception as error:
            log.exception("the sampler of %s failed", self.record.response_id)
            self._hook("sampler_stop", reason="error")
            raise _Over(Ending.FAILED) from error
        finally:
            self.ledger.enter(Stage.ACCOUNT)
            reused_tokens = held_tokens if run.reused_tokens is None else run.reused_tokens
            input_tokens = appended.context_tokens if run.input_tokens is None else run.input_tokens
            self._count_segment(input_tokens, reused_tokens, run.output_tokens, run.reasoning_tokens)
            self._intake.sampled(run.output_tokens, run.input_tokens)
            if run.drifted_turns:
                self.counts("drift", run.drifted_turns)
            if run.input_tokens is not None and reused_tokens + CACHE_SLACK_TOKENS < held_tokens:
                self._hook("cache_reset", reason="the model's state was not all there any more")
        self._hook("sampler_stop", reason="tool_call" if self._goes_on() else "stop")
        await self._intake.keep(self._assembly.items[before:])

    def _count_segment(
        self, input_tokens: int, reused_tokens: int, output_tokens: int = 0, reasoning_tokens: int = 0
    ) -> None:
        """Usage of the segment (7.2); a sampler that does not say what it reused is taken to have kept what it had."""
        self._account.add(
            Segment(
                input_tokens=input_tokens,
                cached_tokens=max(0, min(reused_tokens, input_tokens)),
                output_tokens=output_tokens,
                reasoning_tokens=reasoning_tokens,
            )
        )

    def _goes_on(self) -> bool:
        """Is there anything the model has asked for, or has still to be told?"""
        return bool(self._assembly.client_calls or self._assembly.hosted or self.inbox.held)

    # --- hosted tools --------------------------------------------------------------------------------------------

    async def _run_hosted_tools(self) -> None:
        """All hosted calls of the segment at once, written in order; the client runs its own meanwhile (8A)."""
        calls, limit = self._assembly.hosted, self.create.max_tool_calls
        if not calls:
            return
        allowed = calls if limit is None else calls[: max(0, limit - self._hosted_calls)]
        before = len(self._assembly.items)
        with self.ledger.at(Stage.HOSTED):
            await run_hosted_round(allowed, self._engine.hosted, self._assembly, self._outbox)
        self.counts("hosted", len(allowed))
        self._hosted_calls += len(allowed)
        await self._intake.keep(self._assembly.items[before:])
        if len(allowed) < len(calls):
            self._hook("sampler_stop", reason="max_tool_calls")
            raise _Over(Ending.MAX_TOOL_CALLS)

    # --- the pause -----------------------------------------------------------------------------------------------

    def _suspend(self) -> bool:
        """Begin to wait for the outputs of calls; False if none is missing. From the last item to the wait: no checkpoint (S24).

        Where a rollout waits, and what it calls there, is as flat as can be: each frame is held by thousands.
        """
        if not self.record.pending:
            self._flush()
            return False
        self.ledger.enter(Stage.SAMPLE)
        self._pause()
        self.ledger.enter(Stage.ACCOUNT)
        if not self._dialect.suspends:
            raise _Over(Ending.COMPLETED)
        self._endings = self._dialect.suspended_endings
        if self._ending_at_pause is not None:
            raise _Over(self._ending_at_pause)
        self._hook("suspend", pending=list(self.inbox.pending))
        if self._dialect.says_done:
            self.ledger.enter(Stage.ENCODE)
            self._outbox.emit(ResponseDone(Parked(self.record.response_id, self._account.report())))
        self.ledger.enter(Stage.SEND)
        self._outbox.flush()
        self.ledger.enter(Stage.SUSPENDED)
        return True

    def _outputs(self) -> Awaitable[None]:
        patience = patience_seconds(self._engine.limits, self._dialect)
        return self.inbox.wait_complete(patience, restarts=self._dialect.deadline_restarts)

    def _wake(self) -> None:
        self.ledger.enter(Stage.QUEUE)
        self._endings = self._dialect.sampling_endings

    def _pause(self) -> None:
        items, pending = self._assembly.items, self.inbox.pending
        pause(self._intake.sampling, items, pending, self._owner, self._tool_seconds)

    def _accepted(self, call_ids: tuple[str, ...]) -> None:
        """The inbox took a batch; answered before the reader reads on, so answers keep the order of the frames."""
        self._hook("accepted", call_ids=list(call_ids))
        answered(self._intake.sampling, call_ids)
        if self._dialect.answers_input:
            self._emit(events.InjectCreated(self.record.response_id))
            self._flush()

    async def _resume(self, *, suspended: bool) -> None:
        """Take what came in: outputs in call order, then messages."""
        self.ledger.enter(Stage.VALIDATE)
        items = self.inbox.take()
        if suspended:
            self._hook("resume", outputs=[item.call_id for item in items if isinstance(item, OUTPUTS)])
        if items:
            await self._intake.take(items)
            self._assembly.offer(self._intake.tools)
        if self._intake.full:
            raise _Over(Ending.CONTEXT_FULL)

    # --- after ---------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Post-inference, then the terminal event. Shielded and bounded: what ended the rollout cannot end this."""
        self._flush()  # the last step; what follows may take its time
        ending = self._ending or Ending.DISCONNECTED
        row = self._endings.get(ending) or self._dialect.sampling_endings[ending]
        begun = self.resource
        assert begun is not None, "a rollout that is finished has begun"
        with self.ledger.at(Stage.ENCODE):
            self._final = final = self._final_resource(begun, row)
        with trio.CancelScope(
            shield=True, deadline=trio.current_time() + self._engine.limits.cleanup_seconds
        ):
            await self._post_inference(row)
            with self.ledger.at(Stage.PERSIST):
                kept = self._keep is not None and await self._keep(self)
            if kept:
                self._hook("usage_record", key=self.record.response_id)
        totals = self._account.totals
        self._hook(
            "post_inference",
            usage={
                "uncached_input_tokens": totals.uncached_input_tokens,
                "output_tokens": totals.output_tokens,
            },
        )
        if row.parent:
            self.snapshot = self._intake.snapshot(self.record.response_id, final)
            self.snapshot.warm = self._intake.let_go(self.create) if self._stays_warm(row) else None
        if row.frame is not None:
            self._emit(_TERMINAL[row.frame](final))
            self._flush()
        self._report(row, ending)

    def _stays_warm(self, row: EndRow) -> bool:
        """A sampling that was cut in a segment is not gone on with."""
        return self._keep_warm and row.parent and row.status == "completed"

    async def _post_inference(self, row: EndRow) -> None:
        if not self._stays_warm(row):
            with self.ledger.at(Stage.SAMPLE):
                await self._close_sampling()
        await self._intake.classify_output(self._assembly.items)
        if row.parent:  # what was accepted belongs to whoever continues
            await self._intake.take(self.inbox.take())
        with self.ledger.at(Stage.ACCOUNT):
            self.counts("account")
        with self.ledger.at(Stage.PERSIST):
            try:
                self._engine.persist.rollout(self._persisted(row))
            except Exception:
                log.exception("persisting %s failed", self.record.response_id)
            self.counts("persist")

    async def _close_sampling(self) -> None:
        if self._intake.sampling is None:
            return
        with trio.CancelScope(
            shield=True, deadline=trio.current_time() + self._engine.limits.cleanup_seconds
        ):
            try:
                await self._intake.sampling.aclose()
            except Exception:
                log.exception("closing the sampler of %s failed", self.record.response_id)

    def _persisted(self, row: EndRow) -> PersistedRollout:
        return PersistedRollout(
            response_id=self.record.response_id,
            status=row.status,
            reason=row.reason or (CATALOGUE[row.error].code if row.error else None),
            items=self._intake.context.items_from(self._intake.first_item),
            usage=self._account.totals,
        )

    def _final_resource(self, resource: Response, row: EndRow) -> Response:
        usage = self._account.report() if self._dialect.usage_per_segment else self._account.final_report()
        return resource_at_end(
            resource,
            row,
            output=self._assembly.items,
            usage=None if row.error and not self._account.totals.output_tokens else usage,
            now=self._engine.wall_seconds(),
            patience_seconds=patience_seconds(self._engine.limits, self._dialect),
        )

    def _report(self, row: EndRow, ending: Ending) -> None:
        if self._engine.on_report is not None:
            self._engine.on_report(
                RolloutReport(
                    response_id=self.record.response_id,
                    dialect=self._dialect.name,
                    status=row.status,
                    ending=ending.name.lower(),
                    hooks=self.counts.as_dict(),
                    usage=self._account.totals,
                    matches=tuple(self._intake.matches),
                    ledger=self.ledger.report(),
                    work=attrs.asdict(self._intake.work),
                )
            )

    # --- telling -------------------------------------------------------------------------------------------------

    def _emit(self, event: ServerEvent) -> None:
        left = self.ledger.enter(Stage.ENCODE)
        self._outbox.emit(event)
        self.ledger.enter(left)

    def _flush(self) -> None:
        with self.ledger.at(Stage.SEND):
            self._outbox.flush()

    def _hook(self, name: str, **members: Any) -> None:
        self.counts(name)
        if self._traced:
            self._tell(name, **members)

    def _tell(self, name: str, **members: Any) -> None:
        """For the trace only: nobody counts these."""
        if self._traced:
            left = self.ledger.enter(Stage.TRACE)
            self._outbox.hook(name, {"response_id": self.record.response_id, **members})
            self.ledger.enter(left)


class _Slot:
    """A slot of each pool for one segment, in the ledger and in the trace."""

    __slots__ = ("_rollout", "_slots")

    def __init__(self, rollout: Rollout, slots: Slots) -> None:
        self._rollout = rollout
        self._slots = slots

    async def __aenter__(self) -> None:
        ledger = self._rollout.ledger
        ledger.enter(Stage.QUEUE)
        if not self._slots.take_free():
            await self._slots.__aenter__()
        self._rollout._hook("slot_acquire")  # noqa: SLF001  # one module
        ledger.enter(Stage.OTHER)

    async def __aexit__(self, *_: object) -> None:
        ledger = self._rollout.ledger
        ledger.enter(Stage.QUEUE)
        self._rollout._hook("slot_release")  # noqa: SLF001
        await self._slots.__aexit__()
        ledger.enter(Stage.ACCOUNT)  # a segment is over: what follows closes it, or the response
