"""`POST /v1/responses`: a body becomes a rollout, and the rollout's events an answer, as JSON or as a stream.

The client's history is looked up by its content if the variant is `optimised`; in `naive` all work is done anew.
The rollout is the same one as over WebSocket, and so are its stages.
No status is sent before the response is accepted: whatever is refused has its own (Wei-Shaw/sub2api#5289).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import orjson
import trio

from engine.compact_request import Start, compact, shortened, with_input_read
from engine.context import Preamble
from engine.engine import Engine
from engine.exchange import ClientGone, Exchange
from engine.intake import Intake, input_items
from engine.keeping import keep
from engine.ledger import Ledger, Stage
from engine.listing import listed_items
from engine.live import LiveResponse, LiveResponses, resource_body
from engine.prefix_cache import Prefix, PrefixCache, chain_of
from engine.rollout import Rollout
from engine.sse import EventLog, write_events
from engine.stages import CallLedger
from protocol import codec
from protocol.dialects import HTTP, Ending
from protocol.errors import CATALOGUE, RemoteProtocolError, refusal
from protocol.events import Response, ResponseCreate, ResponseError
from protocol.items import Item
from protocol.record import Record

log = logging.getLogger(__name__)


def read_create(body: bytes) -> ResponseCreate:
    """The create in a request's body. `RemoteProtocolError`: as a create over WebSocket."""
    data = codec.parse_object(body)
    data["type"] = ResponseCreate.type
    data.pop("stream_id", None)  # lanes are a matter of connections (reference 9)
    event = codec.client_event(data)
    assert isinstance(event, ResponseCreate), "the type was set to it"
    return event


@attrs.frozen
class History:
    """A create with all that it continues."""

    create: ResponseCreate
    """As the client sent it."""
    base: tuple[Item, ...]
    """The items of the response it names, and of that one's parents."""
    new: tuple[Item, ...]
    """What its own input stands for."""


@attrs.frozen
class Known:
    """How a rollout begins, and what is remembered of its history."""

    start: Start
    prefix: Prefix | None
    """What its parent was found as."""
    chain: Sequence[bytes]
    """The keys of the history; empty if nothing is remembered."""


@attrs.define(eq=False)
class HttpResponses:
    """Makes responses over HTTP."""

    engine: Engine
    live: LiveResponses
    prefixes: PrefixCache

    async def create(self, exchange: Exchange) -> None:
        """Answer a create. `RemoteProtocolError`: it is refused; `ClientGone`."""
        started_ns = self.engine.clock_ns()
        create = read_create(exchange.body)
        ledger = Ledger(self.engine.clock_ns, started_ns=started_ns)
        ledger.claim(Stage.DECODE, self.engine.clock_ns() - started_ns)
        if self.engine.open_rollouts >= self.engine.limits.max_open_rollouts:
            raise refusal("overloaded")
        with ledger.at(Stage.RESOLVE):  # what is known of this history is found by digests of all of it
            history = await self._history(create, exchange.owner)
            known = await self._known(history, exchange.owner)
        with self._opened(exchange, history, known.start, ledger) as response:
            await self._serve(exchange, history, known, response)

    async def count_input(self, exchange: Exchange) -> None:
        """Answer how many tokens a create would begin with (reference 10.8). `RemoteProtocolError`; `ClientGone`."""
        history = await self._history(read_create(exchange.body), exchange.owner)
        start = (await self._known(history, exchange.owner)).start
        intake = Intake(self._request_engine, Ledger(self.engine.clock_ns), lambda _name: None)
        try:
            await intake.open(start.create, start.parent)
        except RemoteProtocolError as error:
            raise _in_the_clients_words(self.engine, history, error) from None
        count = {"object": "response.input_tokens", "input_tokens": intake.input_tokens}
        await exchange.answer(200, orjson.dumps(count))

    async def compact(self, exchange: Exchange) -> None:
        """Answer a shorter history that stands for a long one (reference 10.7). `RemoteProtocolError`; `ClientGone`."""
        create = read_create(exchange.body)
        base = await self._base(create, exchange.owner)
        shorter = await compact(self.engine, create, exchange.owner, base)
        await exchange.answer(200, orjson.dumps(shorter))

    @property
    def _request_engine(self) -> Engine:
        """What does the work of one request."""
        return self.engine.forgetful() if self.engine.http_variant == "naive" else self.engine

    # --- before ----------------------------------------------------------------------------------------------------

    async def _base(self, create: ResponseCreate, owner: str) -> tuple[Item, ...]:
        """`RemoteProtocolError`: the response it names is unknown, foreign, or not to be continued."""
        if create.previous_response_id is None:
            return ()
        record = await self.engine.store.get(owner, create.previous_response_id)
        if record is None or not record.continuable:
            raise refusal("previous_not_found", response_id=create.previous_response_id)
        return record.context_items

    async def _history(self, create: ResponseCreate, owner: str) -> History:
        """`RemoteProtocolError`: as `_base`, or a compaction item is not this owner's."""
        base = await self._base(create, owner)
        # what was compacted enters as what it stands for
        read = with_input_read(self.engine, create, owner, continues=create.previous_response_id is not None)
        return History(create, base, input_items(read))

    async def _known(self, history: History, owner: str) -> Known:
        """The rollout gets what is new to the server, and the rest as its parent. `RemoteProtocolError`: as `shortened`."""
        create, items = history.create, (*history.base, *history.new)
        chain = self._chain(create, owner, items)
        prefix = self.prefixes.find(chain) if chain else None
        whole = attrs.evolve(create, input=items[prefix.items if prefix else 0 :])
        try:
            start = await shortened(self.engine, whole, prefix.snapshot if prefix else None, owner)
        except RemoteProtocolError as error:
            raise _in_the_clients_words(self.engine, history, error) from None
        if start.preface is None:
            return Known(start, prefix, chain)
        return Known(start, None, self._chain(create, owner, input_items(start.create)))

    def _chain(self, create: ResponseCreate, owner: str, items: Sequence[Item]) -> Sequence[bytes]:
        if self.engine.http_variant == "naive":
            return ()
        return chain_of(owner, Preamble(create.instructions, create.tools or ()), items)

    @contextmanager
    def _opened(
        self, exchange: Exchange, history: History, start: Start, ledger: Ledger
    ) -> Iterator[LiveResponse]:
        engine, create = self.engine, history.create
        with ledger.at(Stage.PERSIST):
            record = Record(engine.new_id("resp"), HTTP)
            is_stored = create.store is not False
            events = EventLog(
                record,
                engine.limits,
                queued=create.stream is True,
                kept=is_stored,
                recorder=exchange.recorder,
            )
            listed = listed_items(input_items(create), engine.new_id) if is_stored else ()

        async def keep_it(rollout: Rollout) -> bool:
            return await keep(engine, exchange.owner, rollout, input_items=listed)

        ledger.enter(Stage.QUEUE)  # from here on it waits for its turn: its task's, then its slot's
        rollout = Rollout(
            self._request_engine,
            start.create,
            record,
            events,
            owner=exchange.owner,
            ledger=ledger,
            keep=keep_it,
        )
        rollout.preface = start.preface
        response = LiveResponse(exchange.owner, rollout, events, listed)
        self.live.add(response)
        engine.open_rollouts += 1
        try:
            yield response
        finally:
            engine.open_rollouts -= 1
            self.live.end(response)

    # --- the response ----------------------------------------------------------------------------------------------

    async def _serve(
        self, exchange: Exchange, history: History, known: Known, response: LiveResponse
    ) -> None:
        refused: list[RemoteProtocolError] = []

        async def run() -> None:
            try:
                await self._run(known, response)
            except RemoteProtocolError as error:
                refused.append(_in_the_clients_words(self.engine, history, error))
            finally:
                response.events.created.set()
                response.events.close()

        def gone() -> None:
            response.events.drop_writer()
            response.rollout.stop(Ending.DISCONNECTED)

        exchange.on_disconnect = gone
        broke_off = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                await response.events.created.wait()
                if response.rollout.resource is not None and history.create.stream:
                    await write_events(exchange, response.events, self.engine.limits)
                await response.events.closed.wait()
            except ClientGone:
                broke_off = True
            finally:
                gone()  # if the answer broke off; else there is nothing left to stop
        if broke_off or exchange.broken_off:
            raise ClientGone
        if refused:
            raise refused[0]
        if not exchange.begun:
            await _answer_whole(exchange, response.events.final)

    async def _run(self, known: Known, response: LiveResponse) -> None:
        """The rollout, and what is kept of it. `RemoteProtocolError`: it is refused."""
        rollout, begun = response.rollout, None

        def remember() -> None:
            nonlocal begun
            snapshot, found = rollout.snapshot_now()
            before = known.prefix.matches if known.prefix else ()
            begun = self.prefixes.keep(known.chain, snapshot, (*before, *found), goes_on=known.prefix)

        if known.chain:
            response.events.on_created = remember
        await rollout.run(known.start.parent)
        if begun is not None:
            self._remember_output(known, begun, rollout)

    def _remember_output(self, known: Known, begun: Prefix, rollout: Rollout) -> None:
        assert rollout.resource is not None, "it has begun"
        output = rollout.resource.output[
            known.start.preface is not None :
        ]  # the preface is not in the context
        model = rollout.resource.model
        warmed_up = rollout.resource.status == "completed" and rollout.ledger.segments
        if (
            rollout.usage.output_tokens or warmed_up
        ):  # the model has read it, which at an early end nobody knows
            begun.was_read(model)
        if rollout.snapshot is not None:
            self.prefixes.keep_with_output(known.chain, begun, rollout.snapshot, output)


async def _answer_whole(exchange: Exchange, final: Response | None) -> None:
    """The answer without a stream. `RemoteProtocolError`: the response failed, or was cancelled; `ClientGone`."""
    if final is None:  # it was stopped without a word: the server goes away, or the client
        raise refusal("draining")
    if final.error is not None:
        raise failure(final.error)
    await exchange.answer(200, resource_body(final))


def failure(error: ResponseError) -> RemoteProtocolError:
    """The error of a response as that of a request, with the status of the line it was made from."""
    lines = [row for row in CATALOGUE.values() if row.code_in_response == error.code]
    line = next(row for row in lines if error.message.startswith(row.message.partition("{")[0]))
    return RemoteProtocolError(line.code, error.message, status=line.status, type=line.type)


def _in_the_clients_words(
    engine: Engine, history: History, error: RemoteProtocolError
) -> RemoteProtocolError:
    """A refusal that names a place in `input` names it as the client counts, whatever was known of the history."""
    calls = CallLedger()
    try:
        calls.admit(history.base)
        engine.validate.context(calls, history.new)
    except RemoteProtocolError as its_own:
        return its_own
    return error
