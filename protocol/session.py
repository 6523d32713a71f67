"""One side of one connection, without I/O: text in, events out; events in, text out.

`protocol.record.Record` is one response as both sides see it.
`ServerSession` makes records and encodes; `ClientSession` follows the records the server makes.
Time, ids and randomness come in as arguments or not at all.

Rules:

- The reading side of a server never raises anything but `RemoteProtocolError`, the sending side only `LocalProtocolError`
  (and `TypeError` for text that is no Unicode).
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import attrs

from protocol import codec, events
from protocol.dialects import APPEND, CREATE, INJECT, Dialect
from protocol.errors import LocalProtocolError, RemoteProtocolError, refusal
from protocol.events import ErrorDetail, ErrorEvent, ServerEvent
from protocol.items import Item
from protocol.record import Record, violation

_OF_APPENDS: Final = frozenset({"no_response_in_progress", "response_not_found", "invalid_input"})
"""Codes of `error` frames that answer an append, if one was sent."""


def _number_of(data: Mapping[str, Any]) -> int | None:
    number = data.get("sequence_number")
    if number is not None and type(number) is not int:
        raise refusal("invalid_type", field="sequence_number", expected="an integer")
    return number


def _stream_id_of(data: Mapping[str, Any]) -> str | None:
    stream_id = data.get("stream_id")
    if stream_id is not None and type(stream_id) is not str:
        raise refusal("invalid_type", field="stream_id", expected="a string")
    return stream_id


def _continued_by(data: Mapping[str, Any]) -> str | None:
    """The response that a create wants to continue, also one that cannot be read otherwise."""
    named = data.get("previous_response_id") if data.get("type") == "response.create" else None
    return named if isinstance(named, str) else None


class ServerSession:
    """The server's side of a connection. `append`: the client opted into the prototype (reference 1.2)."""

    def __init__(self, *, append: bool) -> None:
        self._append = append

    def receive(self, text: str | bytes) -> events.ClientEvent:
        """One frame → one event. `RemoteProtocolError`: answer with `refuse`; the connection lives on."""
        data = codec.parse(text)
        try:
            event = codec.client_event(data)
            if isinstance(event, events.ResponseAppend) and not self._append:
                raise refusal("append_unsupported")
        except RemoteProtocolError as error:
            if error.code != "invalid_stream_id":
                error.stream_id = data.get("stream_id")
                error.continued = _continued_by(data) if isinstance(error.stream_id, str | None) else None
            raise
        return event

    def dialect_of(self, create: events.ResponseCreate) -> Dialect:
        """Which form this response has: its own opt-in, else the connection's (reference 1.2)."""
        if create.multi_agent is not None and create.multi_agent.get("enabled") is True:
            return INJECT
        return APPEND if self._append else CREATE

    def open(self, response_id: str, dialect: Dialect, stream_id: str | None = None) -> Record:
        """A new response, not yet created on the wire."""
        return Record(response_id, dialect, stream_id)

    def refuse(self, error: RemoteProtocolError, stream_id: str | None = None) -> bytes:
        """The `error` frame of a refusal (reference 11.1)."""
        detail = ErrorDetail(error.type, error.code, error.message, error.param)
        return codec.encode(ErrorEvent(error.status, detail, stream_id))

    def answer_unknown_steer(self, steer: events.ResponseSteer, error: RemoteProtocolError) -> bytes:
        """`response.steer.failed` for a response this connection does not know: number 0 (reference 4.6)."""
        return codec.encode(steer_failed(steer, error), {"sequence_number": 0})

    def answer_unknown(
        self, inject: events.ResponseInject, error: RemoteProtocolError, stream_id: str | None = None
    ) -> bytes:
        """`response.inject.failed` for a response that takes no injects here: number 0 (reference 5B.2 rule 7).

        `stream_id`: the lane of a response of another form.
        """
        lane = {} if stream_id is None else {"stream_id": stream_id}
        return codec.encode(inject_failed(inject, error), {"sequence_number": 0, **lane})


def steer_failed(
    steer: events.ResponseSteer, error: RemoteProtocolError, steer_id: str | None = None
) -> events.SteerFailed:
    """The answer to a steer that was refused or could not be applied: its input unchanged, and why."""
    return events.SteerFailed(
        events.SteerError(error.code or "invalid_input", error.message),
        events.Steer(steer.previous_response_id, steer_id, steer.raw_input),
    )


def inject_failed(inject: events.ResponseInject, error: RemoteProtocolError) -> events.InjectFailed:
    """The answer to a refused inject: its input unchanged, and why."""
    return events.InjectFailed(
        inject.response_id, inject.raw_input, events.InjectError(error.code, error.message)
    )


@attrs.frozen
class Received:
    """A server event as a client gets it. `record` is None for `error` frames and for answers to unknown ids."""

    event: ServerEvent
    record: Record | None
    sequence_number: int | None
    stream_id: str | None


class ClientSession:
    """The client's side of a connection: follows each response by the same tables as the server."""

    def __init__(self, *, append: bool) -> None:
        self._append = append
        self._current: dict[str | None, Record] = {}
        self._by_id: dict[str, Record] = {}
        self._creates: dict[str | None, list[Dialect]] = {}
        self._appended: dict[str | None, bool] = {}
        """Was an append sent after the lane's last create?"""

    def send(self, event: events.ClientEvent) -> bytes:
        """Encode a request. `LocalProtocolError`: an append on a connection that has not opted in.

        `TypeError`: it cannot be written, and is not sent.
        """
        if isinstance(event, events.ResponseAppend) and not self._append:
            raise LocalProtocolError(
                "this connection has not opted into response.append: connect(form='append')"
            )
        text = codec.encode(event)
        if isinstance(event, events.ResponseCreate):
            inject = event.multi_agent is not None and event.multi_agent.get("enabled") is True
            dialect = INJECT if inject else APPEND if self._append else CREATE
            self._creates.setdefault(event.stream_id, []).append(dialect)
        if isinstance(event, events.ResponseAppend):
            self._answer(self._current.get(event.stream_id), event.input)
        if isinstance(event, events.ResponseInject):
            self._answer(self._by_id.get(event.response_id), event.input)
        if isinstance(event, events.ResponseCreate | events.ResponseAppend):
            self._appended[event.stream_id] = isinstance(event, events.ResponseAppend)
        return text

    def _answer(self, record: Record | None, batch: tuple[Item, ...]) -> None:
        """The calls of a batch that the server must accept are answered from here on; of one it must refuse, none is."""
        if record is not None and not record.ended:
            with suppress(RemoteProtocolError):
                record.pending.commit(record.pending.check(batch))

    def receive(self, text: str | bytes) -> Received:
        """One frame → one event with its response. `RemoteProtocolError`: the server broke the rules."""
        data = codec.parse(text, echoed=False)
        event = codec.server_event(data)
        number, stream_id = _number_of(data), _stream_id_of(data)
        record = self._record_of(event, data, stream_id)
        if record is not None and isinstance(event, events.UnknownEvent):
            record.pass_over(number)
        elif record is not None:
            record.follow(event, number)
        return Received(event, record, number, stream_id)

    def _record_of(self, event: ServerEvent, data: Mapping[str, Any], stream_id: str | None) -> Record | None:
        """Whose event it is: a named response, else the lane's current one (invariants 1.4)."""
        if isinstance(event, ErrorEvent):
            self._refused(event, stream_id)
            return None
        if isinstance(event, events.ResponseCreated):
            return self._created(event.response.id, stream_id)
        named = data.get("response_id")
        if type(named) is str:
            return self._by_id.get(named)
        record = self._current.get(stream_id)
        if record is None and not isinstance(event, events.UnknownEvent):
            raise violation(f"{event.type} before any response.created")
        return record

    def _refused(self, event: ErrorEvent, stream_id: str | None) -> None:
        """An `error` frame answers the oldest create that waits, unless an append was sent after it that it fits better."""
        waiting = self._creates.get(stream_id)
        between = stream_id not in self._current or self._current[stream_id].ended
        of_append = self._appended.get(stream_id, False) and event.error.code in _OF_APPENDS
        if waiting and between and not of_append:
            waiting.pop(0)

    def _created(self, response_id: str, stream_id: str | None) -> Record:
        waiting = self._creates.get(stream_id)
        if not waiting:
            raise violation(f"response.created of {response_id} answers no response.create")
        record = Record(response_id, waiting.pop(0), stream_id)
        old = self._current.get(stream_id)
        if old is not None:
            self._by_id.pop(old.response_id, None)
        self._current[stream_id] = self._by_id[response_id] = record
        return record
