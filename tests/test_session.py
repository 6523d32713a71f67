"""protocol.session: a server and a client joined by lists of text, next to a model; and what each of them refuses."""

from collections import deque
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from protocol import codec, events, items
from protocol.dialects import APPEND, CREATE, DIALECTS, INJECT, Dialect
from protocol.errors import LocalProtocolError, RemoteProtocolError, refusal
from protocol.record import Record
from protocol.session import ClientSession, ServerSession, inject_failed
from protocol.states import ResponseState
from tests import strategies as wire
from tests.model import ModelResponse

RESPONSE = events.Response("resp_1", 1, "m")
MULTI_AGENT = {"enabled": True}


def create_of(dialect: Dialect, stream_id: str | None = None) -> events.ResponseCreate:
    """A create that asks for this form on a connection of its kind."""
    multi_agent = MULTI_AGENT if dialect is INJECT else None
    return events.ResponseCreate(model="m", input="hi", multi_agent=multi_agent, stream_id=stream_id)


def sessions(dialect: Dialect) -> tuple[ServerSession, ClientSession]:
    """Both sides of a connection for this form."""
    return ServerSession(append=dialect is APPEND), ClientSession(append=dialect is APPEND)


def opened(dialect: Dialect) -> tuple[Record, ClientSession, ServerSession]:
    """Both sides of a response that was asked for and accepted, and not yet created."""
    server, client = sessions(dialect)
    event = server.receive(client.send(create_of(dialect)))
    assert isinstance(event, events.ResponseCreate)
    return server.open("resp_1", server.dialect_of(event), event.stream_id), client, server


# --- the machine -----------------------------------------------------------------------------------------------------


class SessionMachine(RuleBasedStateMachine):
    """One response after the other on one connection; every frame travels as text, when a rule delivers it."""

    dialect: Dialect
    calls = Bundle("calls")

    @initialize()
    def connect(self) -> None:
        self.server, self.client = sessions(self.dialect)
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.record: Record | None = None
        self.model = ModelResponse(self.dialect.name)
        self.delivered = self.responses = self.made_calls = self.index = 0
        self.asked = False
        """A create is under way or answered by an open response."""

    # --- the client ---

    @precondition(lambda self: not self.asked)
    @rule()
    def create(self) -> None:
        self.to_server.append(self.client.send(create_of(self.dialect)))
        self.asked = True

    def _request(self, batch: tuple[items.Item, ...], response_id: str = "") -> events.ClientEvent:
        if self.dialect is APPEND:
            return events.ResponseAppend(input=batch)
        return events.ResponseInject(response_id=response_id or f"resp_{self.responses}", input=batch)

    @precondition(lambda self: self.dialect.suspends and self.record is not None)
    @rule(call=consumes(calls), text=wire.texts)
    def resume(self, call: items.Call, text: str) -> None:
        """Answer one call, so with several pending ones this is a partial answer; late if the response has ended.

        A client answers what it has seen.
        """
        followed = self.client._current.get(None)
        if followed is None or not followed.pending.knows(call.call_id):
            return
        self.to_server.append(self.client.send(self._request((wire.output_of(call, text),))))

    @precondition(lambda self: self.dialect.suspends and self.record is not None)
    @rule(call=calls, how=st.sampled_from(["twice", "wrong kind", "unknown", "with a bad one", "no output"]))
    def resume_wrongly(self, call: items.Call, how: str) -> None:
        output = wire.output_of(call, "x")
        unknown = items.FunctionCallOutput("call_unknown", "x")
        other = items.CustomToolCall if isinstance(call, items.FunctionCall) else items.FunctionCall
        batch: tuple[items.Item, ...] = {
            "twice": (output, output),
            "wrong kind": (wire.output_of(other(call.call_id, "f", ""), "x"),),
            "unknown": (unknown,),
            "with a bad one": (output, unknown),
            "no output": (items.Opaque({"type": "compaction"}),),
        }[how]
        self.to_server.append(self.client.send(self._request(batch)))

    @precondition(lambda self: self.dialect is INJECT and self.record is not None)
    @rule(call=calls)
    def resume_another(self, call: items.Call) -> None:
        """An inject for a response that nobody knows."""
        self.to_server.append(self.client.send(self._request((wire.output_of(call, "x"),), "resp_0")))

    # --- the server ---

    def _emit(self, happening: str, event: events.ServerEvent, call_id: str = "") -> bool:
        """Send, if the model allows it; else it must be refused and change nothing."""
        record = self.record
        assert record is not None
        before = (record.state, record.next_number, record.pending.call_ids)
        if not self.model.may(happening):
            with pytest.raises(LocalProtocolError, match=event.type):
                record.send(event)
            assert (record.state, record.next_number, record.pending.call_ids) == before
            return False
        self.to_client.append(record.send(event))
        self.model.happens(happening, call_id)
        return True

    @precondition(lambda self: self.record is not None)
    @rule(
        happening=st.sampled_from(
            ["created", "in_progress", "done", "completed", "incomplete", "failed", "inject_created"]
        )
    )
    def lifecycle(self, happening: str) -> None:
        response = events.Response(f"resp_{self.responses}", 1, "m")
        made: dict[str, events.ServerEvent] = {
            "created": events.ResponseCreated(response),
            "in_progress": events.ResponseInProgress(response),
            "done": events.ResponseDone(events.Parked(response.id)),
            "completed": events.ResponseCompleted(response),
            "incomplete": events.ResponseIncomplete(response),
            "failed": events.ResponseFailed(response),
            "inject_created": events.InjectCreated(response.id),
        }
        self._emit(happening, made[happening])

    @precondition(lambda self: self.record is not None)
    @rule(piece=wire.texts, content_index=st.integers(0, 1))
    def delta(self, piece: str, content_index: int) -> None:
        event = events.OutputTextDelta(f"msg_{self.index}", self.index, content_index, piece)
        self._emit("output", event)

    @precondition(lambda self: self.record is not None)
    @rule(
        event=st.builds(events.OutputTextDelta, st.just("msg_1"), st.just(0), st.just(0), st.just("\ud800"))
        | st.builds(events.OutputTextDone, st.just("msg_1"), st.just(0), st.just(0), st.just("\ud800"))
    )
    def no_unicode(self, event: events.ServerEvent) -> None:
        """A failed encode burns no number and moves nothing."""
        record = self.record
        assert record is not None
        before = (record.state, record.next_number)
        with pytest.raises(TypeError if self.model.may("output") else LocalProtocolError):
            record.send(event)
        assert (record.state, record.next_number) == before

    @precondition(lambda self: self.record is not None)
    @rule(target=calls, custom=st.booleans())
    def call(self, custom: bool) -> Any:
        cls = items.CustomToolCall if custom else items.FunctionCall
        made = cls(f"call_{self.made_calls}", "f", "{}", f"item_{self.made_calls}")
        event = events.OutputItemDone(self.index, made)
        if not self._emit("call", event, made.call_id):
            return multiple()
        self.made_calls += 1
        self.index += 1
        return made

    # --- the wire ---

    @precondition(lambda self: bool(self.to_server))
    @rule()
    def deliver_to_server(self) -> None:
        event = self.server.receive(self.to_server.popleft())
        if isinstance(event, events.ResponseCreate):
            self._open(event)
        elif isinstance(event, events.ResponseAppend | events.ResponseInject):
            self._take(event)

    def _open(self, create: events.ResponseCreate) -> None:
        dialect = self.server.dialect_of(create)
        assert dialect is self.dialect
        self.responses += 1
        self.record = self.server.open(f"resp_{self.responses}", dialect)
        self.model = ModelResponse(dialect.name)

    def _take(self, event: events.ResponseAppend | events.ResponseInject) -> None:
        """What a connection does with input: judge it, answer it, and hold the same answer against the model."""
        record = self.record
        assert record is not None
        before = (record.state, record.pending.call_ids)
        try:
            if isinstance(event, events.ResponseInject) and event.response_id != record.response_id:
                raise refusal("response_not_found", response_id=event.response_id)
            if record.ended and isinstance(event, events.ResponseAppend):
                raise refusal("nothing_open")
            if record.ended:
                raise refusal("already_completed", response_id=record.response_id)
            ids = record.pending.commit(record.pending.check(event.input))
        except RemoteProtocolError as error:
            assert (record.state, record.pending.call_ids) == before
            self._refuse(event, error)
            return
        assert set(ids) <= set(self.model.pending)
        self.model.answered += ids
        if isinstance(event, events.ResponseInject):
            assert self._emit("inject_created", events.InjectCreated(record.response_id))

    def _refuse(
        self, event: events.ResponseAppend | events.ResponseInject, error: RemoteProtocolError
    ) -> None:
        if isinstance(event, events.ResponseInject) and event.response_id != f"resp_{self.responses}":
            self.to_client.append(self.server.answer_unknown(event, error))
        elif isinstance(event, events.ResponseInject):
            self._emit("inject_failed", inject_failed(event, error))
        else:
            self.to_client.append(self.server.refuse(error))

    @precondition(lambda self: bool(self.to_client))
    @rule()
    def deliver_to_client(self) -> None:
        text = self.to_client.popleft()
        received = self.client.receive(text)
        number = orjson.loads(text).get("sequence_number")
        assert received.sequence_number == number
        if received.record is None:
            assert isinstance(received.event, events.ErrorEvent | events.InjectFailed)
            assert number == (0 if isinstance(received.event, events.InjectFailed) else None)
        elif isinstance(received.event, events.ResponseCreated):
            assert number == 0
            self.delivered = 1
        else:
            assert number == self.delivered
            self.delivered += 1

    @precondition(lambda self: self.record is not None and self.record.ended and not self.to_client)
    @rule()
    def again(self) -> None:
        """The response has ended and all is read: the client may ask for the next one."""
        self.to_server.clear()
        self.asked = False
        self.record = None
        self.index = 0

    @rule()
    def drop(self) -> None:
        """The link breaks: what was under way is lost, both sides begin anew."""
        self.connect()

    # --- what always holds ---

    @invariant()
    def numbers_have_no_gaps(self) -> None:
        if self.record is not None:
            assert self.record.next_number == self.model.numbers

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        if self.record is not None:
            assert self.record.state.name == self.model.state_name
            assert self.record.ended == (self.model.end is not None)

    @invariant()
    def pending_is_calls_minus_outputs(self) -> None:
        if self.record is not None:
            assert list(self.record.pending.call_ids) == self.model.pending

    @invariant()
    def both_sides_agree_when_all_is_delivered(self) -> None:
        record = self.record
        if record is None or record.state is ResponseState.IDLE or self.to_client:
            return
        followed = self.client._current[None]
        assert (followed.response_id, followed.state, followed.next_number) == (
            record.response_id,
            record.state,
            record.next_number,
        )


def machine(of: Dialect) -> Any:
    """The machine of one dialect, as a test case."""
    cls: Any = type(f"{of.name.title()}Machine", (SessionMachine,), {"dialect": of})
    cls.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
    return cls.TestCase


TestAppend = machine(APPEND)
TestInject = machine(INJECT)
TestCreate = machine(CREATE)


# --- whole streams ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@given(data=st.data())
def test_a_legal_stream_is_followed(dialect: Dialect, data: st.DataObject) -> None:
    """Both sides walk a whole legal response together: events come back, numbers run 0, 1, 2, …, states agree."""
    stream = data.draw(wire.streams(dialect))
    record, client, _ = opened(dialect)
    followed, number = record, 0
    for step in stream.steps:
        if isinstance(step, tuple):
            for side in (record, followed):
                side.pending.commit(side.pending.check(step))
            continue
        received = client.receive(record.send(step))
        assert (received.event, received.sequence_number) == (step, number)
        assert received.record is not None
        followed = received.record
        assert followed.state is record.state
        assert followed.pending.call_ids == record.pending.call_ids
        number += 1
    assert record.ended
    assert followed.ended


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@given(data=st.data())
def test_every_frame_of_a_stream_is_the_plain_encoding(dialect: Dialect, data: st.DataObject) -> None:
    """Whatever shortcut a frame takes, its bytes are those of `encode` with the number, the agent and the lane."""
    stream = data.draw(wire.streams(dialect))
    record = ServerSession(append=dialect is APPEND).open("resp_1", dialect, "lane-1")
    for step in stream.steps:
        if isinstance(step, tuple):
            record.pending.commit(record.pending.check(step))
            continue
        number = record.next_number
        of_an_item = hasattr(step, "output_index")
        agent = {"agent": {"agent_name": "/root"}} if of_an_item and dialect is INJECT else {}
        extras = {"sequence_number": number, **agent, "stream_id": "lane-1"}
        assert record.send(step) == codec.encode(step, extras)


@given(st.lists(wire.deltas, min_size=1, max_size=6))
def test_deltas_of_any_places_are_the_plain_encoding(deltas: list[Any]) -> None:
    """Deltas that jump between items, parts and log probabilities never borrow each other's bytes."""
    record = begun(CREATE)
    for delta in deltas:
        number = record.next_number
        assert record.send(delta) == codec.encode(delta, {"sequence_number": number})


@pytest.mark.parametrize("dialect", [APPEND, INJECT])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(wire.texts, max_size=3), st.booleans()), min_size=1, max_size=8
    )
)
def test_pieces_of_a_place_are_sent_as_its_deltas(
    dialect: Dialect, runs: list[tuple[int, list[str], bool]]
) -> None:
    """Several places by turns, other events in between: the same bytes, numbers and state as one delta after the other."""
    written, sent = begun(dialect, "lane-1"), begun(dialect, "lane-1")
    places = [events.OutputTextDelta("msg_1", place, 0, "") for place in range(3)]
    writers = [written.open(opening_of(place), "msg_1", place.output_index)[2] for place in places]
    for place, pieces, other in runs:
        expected = [sent.send(attrs.evolve(places[place], delta=piece)) for piece in pieces]
        assert expected == list(writers[place](pieces))
        if other:
            part = events.ContentPartAdded("msg_1", place, 1, items.OutputText(""))
            assert sent.send(part) == written.send(part)
    assert sent.next_number == written.next_number


def test_pieces_are_refused_where_their_delta_would_be() -> None:
    """After the end none is written, and no number is taken."""
    record = begun(APPEND)
    _, _, write = record.open(opening_of(events.OutputTextDelta("msg_1", 0, 0, "")), "msg_1", 0)
    write(["a"])
    record.send(events.ResponseFailed(events.Response("resp_1", 0, "m")))
    number = record.next_number
    with pytest.raises(LocalProtocolError, match="illegal in state"):
        write(["b"])
    assert number == record.next_number


def test_of_pieces_that_cannot_be_written_none_is_sent() -> None:
    """Half a character among them burns no number, and the next pieces are as if nothing had been."""
    record = begun(APPEND)
    _, _, write = record.open(opening_of(events.OutputTextDelta("msg_1", 0, 0, "")), "msg_1", 0)
    number = record.next_number
    with pytest.raises(TypeError):
        write(["a", "\ud83d"])
    assert number == record.next_number
    assert b'"sequence_number":%d' % number in write(["a"])[0]


def opening_of(delta: Any) -> Any:
    """Of an item that opens with this delta, and nothing before."""
    return lambda _agent, item_id, index: (attrs.evolve(delta, item_id=item_id, output_index=index),)


def begun(dialect: Dialect, stream_id: str | None = None) -> Record:
    """A response whose `created` was sent."""
    record = ServerSession(append=dialect is APPEND).open("resp_1", dialect, stream_id)
    record.send(events.ResponseCreated(RESPONSE))
    return record


# --- which form ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("append", "multi_agent", "dialect"),
    [
        (False, None, CREATE),
        (True, None, APPEND),
        (False, {"enabled": True}, INJECT),
        (True, {"enabled": True, "max_concurrent_subagents": 1}, INJECT),
        (False, {"enabled": False}, CREATE),
        (True, {}, APPEND),
    ],
)
def test_the_form_follows_the_opt_in(append: bool, multi_agent: Any, dialect: Dialect) -> None:
    """A response is of its own opt-in's form, else of the connection's; both sides say the same (reference 1.2)."""
    server, client = ServerSession(append=append), ClientSession(append=append)
    create = server.receive(client.send(events.ResponseCreate(model="m", multi_agent=multi_agent)))
    assert isinstance(create, events.ResponseCreate)
    assert server.dialect_of(create) is dialect
    record = server.open("resp_1", dialect)
    received = client.receive(record.send(events.ResponseCreated(RESPONSE)))
    assert received.record is not None
    assert received.record.dialect is dialect


def test_a_create_that_cannot_be_written_was_not_sent() -> None:
    """The next response is of the next create's form."""
    server, client = ServerSession(append=False), ClientSession(append=False)
    with pytest.raises(TypeError):
        client.send(events.ResponseCreate(model="m", input="\udcff", multi_agent={"enabled": True}))
    create = server.receive(client.send(events.ResponseCreate(model="m")))
    assert isinstance(create, events.ResponseCreate)
    received = client.receive(server.open("resp_1", CREATE).send(events.ResponseCreated(RESPONSE)))
    assert received.record is not None
    assert received.record.dialect is CREATE


def test_an_append_needs_the_opt_in() -> None:
    """Without it a client does not send one, and a server refuses it and names the way out (reference 4.2)."""
    append = events.ResponseAppend(input=(items.FunctionCallOutput("c", ""),), stream_id="a")
    with pytest.raises(LocalProtocolError, match="form='append'"):
        ClientSession(append=False).send(append)
    with pytest.raises(RemoteProtocolError) as caught:
        ServerSession(append=False).receive(ClientSession(append=True).send(append))
    assert (caught.value.code, caught.value.param) == ("unsupported_event", "type")
    assert "'response.create' with 'previous_response_id'" in caught.value.message
    assert caught.value.stream_id == "a"


def test_a_processed_is_an_event() -> None:
    """`response.processed` of some Codex builds is read; its members are nobody's business."""
    event = ServerSession(append=True).receive('{"type":"response.processed","sequence_number":3}')
    assert event == events.ResponseProcessed()


@pytest.mark.parametrize(
    ("stream_id", "echoed"), [("lane-1", "lane-1"), (None, None), ("bad lane", None), (7, None)]
)
def test_a_refusal_goes_to_its_lane(stream_id: Any, echoed: str | None) -> None:
    """A refused frame's lane is known to its error, a bad lane's name is not echoed (reference 11.1)."""
    server = ServerSession(append=False)
    with pytest.raises(RemoteProtocolError) as caught:
        server.receive(orjson.dumps({"type": "response.create", "model": 1, "stream_id": stream_id}))
    frame = orjson.loads(server.refuse(caught.value, caught.value.stream_id))
    assert frame.get("stream_id") == echoed
    assert ("stream_id" in frame) == (echoed is not None)
    assert list(frame["error"]) == ["type", "code", "message", "param"]
    assert frame["status"] == 400


def test_an_inject_for_nobody_is_answered_with_number_zero() -> None:
    """An unknown id gets `response.inject.failed` #0, its input as it came (reference 5B.2 rule 7)."""
    server = ServerSession(append=False)
    batch = [{"type": "function_call_output", "call_id": "c", "output": "x", "more": [1.5]}]
    inject = server.receive(
        orjson.dumps({"type": "response.inject", "response_id": "resp_9", "input": batch})
    )
    assert isinstance(inject, events.ResponseInject)
    error = refusal("response_not_found", response_id="resp_9")
    assert orjson.loads(server.answer_unknown(inject, error)) == {
        "type": "response.inject.failed",
        "response_id": "resp_9",
        "input": batch,
        "error": {"code": "response_not_found", "message": "Response 'resp_9' not found."},
        "sequence_number": 0,
    }


# --- what a client does not believe ----------------------------------------------------------------------------------


def client_of(*frames: dict[str, Any], dialect: Dialect = APPEND) -> ClientSession:
    """A client that asked once and got `created` and these frames."""
    client = ClientSession(append=dialect is APPEND)
    client.send(create_of(dialect))
    created = {"type": "response.created", "response": codec.unstructure(RESPONSE), "sequence_number": 0}
    for frame in (created, *frames):
        client.receive(orjson.dumps(frame))
    return client


DELTA = {
    "type": "response.output_text.delta",
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "delta": "x",
}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({**DELTA, "sequence_number": 2}, "sequence_number 2 of response.output_text.delta should be 1"),
        ({**DELTA, "sequence_number": 0}, "sequence_number 0 of response.output_text.delta should be 1"),
        (DELTA, "sequence_number None of response.output_text.delta should be 1"),
        ({**DELTA, "sequence_number": "1"}, "Invalid type for 'sequence_number': expected an integer."),
        ({**DELTA, "sequence_number": True}, "Invalid type for 'sequence_number': expected an integer."),
        ({**DELTA, "sequence_number": 1, "stream_id": []}, "Invalid type for 'stream_id'"),
        ({"type": "response.queued", "stream_id": {}}, "Invalid type for 'stream_id'"),
        ({"type": "response.done", "sequence_number": 1}, "response.done is illegal in state SAMPLING"),
        (
            {"type": "response.inject.created", "response_id": "resp_1", "sequence_number": 1},
            "response.inject.created is illegal in state SAMPLING of the append form",
        ),
        (
            {"type": "response.created", "response": codec.unstructure(RESPONSE), "sequence_number": 0},
            "response.created of resp_1 answers no response.create",
        ),
        ({**DELTA, "sequence_number": 0, "stream_id": "b"}, "before any response.created"),
    ],
)
def test_a_server_that_breaks_the_rules_is_told_apart(frame: dict[str, Any], message: str) -> None:
    """Numbers, states, lanes and types are checked; a refused frame leaves the session as it was."""
    client = client_of()
    with pytest.raises(RemoteProtocolError) as caught:
        client.receive(orjson.dumps(frame))
    assert message in caught.value.message
    received = client.receive(orjson.dumps({**DELTA, "sequence_number": 1}))
    assert received.sequence_number == 1


def test_events_need_a_response() -> None:
    """An event before any `created` belongs to nobody; one of unknown type does no harm."""
    client = ClientSession(append=True)
    with pytest.raises(RemoteProtocolError, match=r"before any response\.created"):
        client.receive(orjson.dumps({**DELTA, "sequence_number": 0}))
    received = client.receive('{"type":"rate_limits.updated","sequence_number":5}')
    assert (received.record, received.sequence_number) == (None, 5)


def test_an_event_of_unknown_type_may_take_a_number() -> None:
    """Unknown events change no state; one that carries the response's next number takes it, others take none."""
    client = client_of(
        {"type": "response.queued"},
        {"type": "response.queued", "sequence_number": 1},
        {"type": "something.else", "sequence_number": 77},
    )
    assert client.receive(orjson.dumps({**DELTA, "sequence_number": 2})).sequence_number == 2


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("response", [None, {}, {"id": "resp_1"}])
def test_a_done_may_come_without_its_number(numbered: bool, response: Any) -> None:
    """The prototype's client accepts a bare `response.done`, so this one does too (reference 3.3)."""
    call = codec.unstructure(items.FunctionCall("c", "f", "{}", "fc_1"))
    done = {"type": "response.done", **({"sequence_number": 2} if numbered else {})}
    client = client_of(
        {"type": "response.output_item.done", "output_index": 0, "item": call, "sequence_number": 1},
        {**done, **({} if response is None else {"response": response})},
    )
    record = client._current[None]
    assert (record.state, record.next_number) == (ResponseState.SUSPENDED, 3 if numbered else 2)


def test_lanes_are_followed_apart() -> None:
    """Each lane has its own response, form and numbers."""
    server, client = sessions(APPEND)
    records = {}
    for lane in (None, "a", "b"):
        create = server.receive(client.send(create_of(INJECT if lane == "b" else APPEND, lane)))
        assert isinstance(create, events.ResponseCreate)
        records[lane] = server.open(f"resp_{lane}", server.dialect_of(create), create.stream_id)
    for lane, record in reversed(records.items()):
        response = events.Response(record.response_id, 1, "m")
        for event in (events.ResponseCreated(response), events.ResponseInProgress(response)):
            received = client.receive(record.send(event))
            assert received.record is not None
            assert received.stream_id == lane
            assert (received.record.response_id, received.record.next_number) == (
                record.response_id,
                record.next_number,
            )
    assert [client._current[lane].dialect for lane in records] == [APPEND, APPEND, INJECT]


def test_an_error_answers_the_waiting_create() -> None:
    """An `error` frame takes the place of the response it refuses; the next create is answered by the next `created`."""
    server, client = sessions(APPEND)
    client.send(create_of(INJECT))
    client.receive(server.refuse(refusal("model_not_found", model="m")))
    client.send(create_of(APPEND))
    received = client.receive(begun_text(server, APPEND))
    assert received.record is not None
    assert received.record.dialect is APPEND


def test_an_error_while_a_response_is_open_refuses_an_append() -> None:
    """It ends nothing: the create behind the open response still waits for its answer."""
    server, client = sessions(APPEND)
    client.send(create_of(APPEND))
    client.receive(begun_text(server, APPEND))
    client.send(create_of(INJECT))
    assert client.receive(server.refuse(refusal("nothing_open"))).record is None
    received = client.receive(begun_text(server, INJECT, "resp_2"))
    assert received.record is not None
    assert received.record.dialect is INJECT


def begun_text(server: ServerSession, dialect: Dialect, response_id: str = "resp_1") -> bytes:
    """The `created` of a new response."""
    response = events.Response(response_id, 1, "m")
    return server.open(response_id, dialect).send(events.ResponseCreated(response))


def test_a_late_answer_to_a_replaced_response_belongs_to_nobody() -> None:
    """When a lane has moved on, an answer that names its former response is passed on without a record."""
    server, client = sessions(INJECT)
    client.send(create_of(INJECT))
    first = server.open("resp_1", INJECT)
    client.receive(first.send(events.ResponseCreated(RESPONSE)))
    client.send(create_of(INJECT))
    client.receive(begun_text(server, INJECT, "resp_2"))
    inject = events.ResponseInject(response_id="resp_1", input=())
    error = refusal("already_completed", response_id="resp_1")
    received = client.receive(first.send(inject_failed(inject, error)))
    assert (received.record, received.sequence_number) == (None, 1)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_an_illegal_event_is_our_own_bug(dialect: Dialect) -> None:
    """The error names event, state, form and response; nothing changes."""
    record = ServerSession(append=dialect is APPEND).open("resp_1", dialect)
    with pytest.raises(LocalProtocolError) as caught:
        record.send(events.OutputTextDelta("msg_1", 0, 0, "x"))
    assert str(caught.value) == (
        f"response.output_text.delta is illegal in state IDLE of the {dialect.name} form "
        "with 0 pending calls (response resp_1)"
    )
    assert (record.state, record.next_number) == (ResponseState.IDLE, 0)
