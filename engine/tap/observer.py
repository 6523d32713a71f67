"""What a tap makes of a connection's bytes: requests, events and messages, as records of a trace. Without I/O.

It is told of what was relayed after the fact, and can neither change nor hold it. What it cannot read it says (`gap`)
and stops: a bystander that lost the thread would only report its own mistakes.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import attrs
import orjson

from engine.tap.exchange import Exchange
from engine.tap.frames import BINARY, CLOSE, TEXT, Compression, FrameReader, TooLarge
from engine.tap.http import (
    Body,
    HeadReader,
    OpenBody,
    SizedBody,
    Unreadable,
    body_of_answer,
    body_of_request,
    read_head,
)
from engine.tap.secrets import Secrets
from engine.tap.traces import DialectTrace, TapTraces
from protocol.readers.headers import APPEND_BETA

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""One message or body; a larger one is not looked at, and a gap says so."""
MAX_OPEN_EXCHANGES: Final = 64
"""Requests of one connection that wait for their answer."""
MAX_HELD_RECORDS: Final = 16
"""Messages of a WebSocket that wait for the first one of its client, which tells the dialect."""
NO_STATUS: Final = 1006
"""RFC 6455 7.4.1: closed without a close frame."""

Way = Literal["in", "out"]
By = Literal["client", "server", "network"]


class ConnectionObserver:
    """One connection, in whatever it speaks. Raises nothing that bytes could cause."""

    def __init__(self, name: str, traces: TapTraces, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._name = name
        self._traces = traces
        self._max_message_bytes = max_message_bytes
        self._speaks: _Http | _WebSocket = _Http(name, traces, max_message_bytes)
        self._listens = True
        self._ended_by: By | None = None

    @property
    def idle(self) -> bool:
        """Could the connection be closed without anybody missing anything?"""
        return self._listens and isinstance(self._speaks, _Http) and self._speaks.idle

    def feed(self, t: float, way: Way, data: bytes) -> None:
        """What was relayed."""
        if not self._listens:
            return
        try:
            switched = self._speaks.feed(t, way, data)
            if switched is not None:
                self._speaks = _WebSocket(self._name, self._traces, switched, t, self._max_message_bytes)
                self._speaks.feed(t, "out", switched.rest_out)
                self._speaks.feed(t, "in", switched.rest_in)
        except Unreadable as reason:
            self.give_up(t, str(reason))

    def give_up(self, t: float, reason: str) -> None:
        """Listen no more, and say so."""
        if self._listens:
            self._listens = False
            self._speaks.gap(t, f"{reason}; the rest of this connection is not observed")

    def ended(self, t: float, way: Way) -> None:
        """This side will say nothing more."""
        self._ended_by = self._ended_by or ("client" if way == "in" else "server")
        if way == "out" and self._listens:
            self._speaks.end_of_answers(t, self._ended_by)

    def close(self, t: float, by: By) -> None:
        """The connection is over. `by`: who ended it, if neither side had said that it would."""
        self._listens = False
        self._speaks.close(t, self._ended_by or by)


@attrs.frozen
class _Switch:
    """The connection becomes a WebSocket."""

    append_form: bool
    compression: Compression
    secrets: Secrets
    rest_in: bytes
    rest_out: bytes


class _Http:
    """Requests and answers, on a connection that is kept alive."""

    def __init__(self, name: str, traces: TapTraces, max_message_bytes: int) -> None:
        self._name = name
        self._traces = traces
        self._max_message_bytes = max_message_bytes
        self._secrets = Secrets()
        self._number = 0
        self._heads: dict[Way, HeadReader] = {"in": HeadReader(), "out": HeadReader()}
        self._asking: Exchange | None = None
        self._request_body: Body = SizedBody(0)
        self._unanswered: deque[Exchange] = deque()
        self._answering: Exchange | None = None
        self._answer_body: Body = SizedBody(0)
        self._held: bytearray | None = None
        """What follows a request for an upgrade, until that is answered."""
        self._is_named = False
        """Stands the connection itself in the trace, without a request?"""

    @property
    def idle(self) -> bool:
        return not (self._unanswered or self._asking or self._answering or self._heads["in"].begun)

    def feed(self, t: float, way: Way, data: bytes) -> _Switch | None:
        if way == "in":
            self._read_requests(t, data)
            return None
        return self._read_answers(t, data)

    def _read_requests(self, t: float, data: bytes) -> None:
        while True:
            if self._held is not None:
                self._held += data
                if len(self._held) > self._max_message_bytes:
                    raise Unreadable("much was sent before the upgrade was granted")
                return
            if self._asking is None:
                found = self._heads["in"].read(data)
                if found is None:
                    return
                raw, data = found
                self._begin_request(t, raw)
            assert self._asking is not None
            part, at = self._request_body.read(data, 0)
            data = data[at:]
            self._asking.request_part(part)
            if not self._request_body.done:
                return
            if self._asking.request.upgrades_to_websocket:
                self._held = bytearray()
            else:
                self._asking.asked(t)
            self._asking = None
            if not data:
                return

    def _begin_request(self, t: float, raw: bytes) -> None:
        if len(self._unanswered) >= MAX_OPEN_EXCHANGES:
            raise Unreadable(f"more than {MAX_OPEN_EXCHANGES} requests without an answer")
        head = read_head(raw)
        if head.status:
            raise Unreadable("an answer came from the client")
        self._request_body = body_of_request(head)
        self._secrets.learn(head)
        self._number += 1
        name = f"{self._name}.{self._number}"
        self._asking = Exchange(name, head, self._secrets, self._traces, self._max_message_bytes)
        self._unanswered.append(self._asking)
        if not head.upgrades_to_websocket:
            self._asking.open(t)

    def _read_answers(self, t: float, data: bytes) -> _Switch | None:
        while True:
            if self._answering is None:
                found = self._heads["out"].read(data)
                if found is None:
                    return None
                raw, data = found
                switch = self._begin_answer(t, raw, data)
                if switch is not None:
                    return switch
            if self._answering is not None:
                part, at = self._answer_body.read(data, 0)
                data = data[at:]
                self._answering.answer_part(t, part)
                if not self._answer_body.done:
                    return None
                self._answering.end(t)
                self._answering = None
            if not data:
                return None

    def _begin_answer(self, t: float, raw: bytes, rest: bytes) -> _Switch | None:
        head = read_head(raw)
        if not head.status or not self._unanswered:
            raise Unreadable("an answer to no request")
        exchange = self._unanswered[0]
        if head.status == 101:
            return self._switch(exchange, Compression(head.headers.get("sec-websocket-extensions", "")), rest)
        if head.status < 200:
            return None
        if exchange.request.method == "CONNECT" and head.status < 300:
            raise Unreadable("a tunnel")
        self._unanswered.popleft()
        self._answering, self._answer_body = exchange, body_of_answer(head, exchange.request.method)
        if exchange is not self._asking:  # of an upgrade nothing was written yet
            exchange.asked(t)
        exchange.answered(t, head)
        if self._held is not None and exchange.request.upgrades_to_websocket:  # it was refused
            held, self._held = bytes(self._held), None
            self._read_requests(t, held)
        return None

    def _switch(self, exchange: Exchange, compression: Compression, rest: bytes) -> _Switch:
        if not exchange.request.upgrades_to_websocket or self._held is None:
            raise Unreadable("the protocol was switched, not to WebSocket")
        append_form = APPEND_BETA in exchange.request.tokens("openai-beta") or exchange.asks_for_append
        self._unanswered.clear()
        return _Switch(append_form, compression, self._secrets, bytes(self._held), rest)

    def gap(self, t: float, note: str) -> None:
        exchanges = {id(each): each for each in (self._answering, self._asking, *self._unanswered) if each}
        for exchange in exchanges.values():
            exchange.gap(t, note)
        if not exchanges:
            self._traces.of("http").hook(t, self._name, "gap", note=note)
            self._is_named = True

    def end_of_answers(self, t: float, by: By) -> None:
        if self._answering is not None and isinstance(self._answer_body, OpenBody):
            self._answering.end(t)
            self._answering = None
        self.close(t, by)

    def close(self, t: float, by: By) -> None:
        for exchange in (self._answering, *self._unanswered):
            if exchange is not None:
                exchange.cut(t, by)
        self._answering = self._asking = None
        self._unanswered.clear()
        if self._is_named:
            self._traces.of("http").hook(t, self._name, "connection_close", by=by)
            self._is_named = False


class _WebSocket:
    """Messages of both sides. They are held until the client's first one, since the dialect names the trace."""

    def __init__(
        self, name: str, traces: TapTraces, switch: _Switch, t: float, max_message_bytes: int
    ) -> None:
        self._name = name
        self._traces = traces
        self._append_form = switch.append_form
        self._secrets = switch.secrets
        self._readers = {
            way: FrameReader(
                max_message_bytes,
                compressed=switch.compression.agreed,
                keeps_context=switch.compression.keeps_context(side),
            )
            for way, side in (("in", "client"), ("out", "server"))
        }
        self._held: list[Callable[[DialectTrace], None]] = []
        self._trace: DialectTrace | None = None
        self._closed: tuple[By, int] | None = None
        self._over = False
        self._hook(t, "connection_open")

    def feed(self, t: float, way: Way, data: bytes) -> None:
        for opcode, payload in self._readers[way].read(data):
            if isinstance(payload, TooLarge):
                self.gap(t, f"a message of {payload.size_bytes} bytes is too large to be looked at")
            elif opcode == TEXT:
                text = self._secrets.clean(payload)
                if self._trace is not None:
                    self._trace.frame(t, self._name, way, text)
                else:
                    self._first_message(t, way, text)
            elif opcode == BINARY:
                self._hold(partial(_say_binary, t, self._name, way, len(payload)))
            elif opcode == CLOSE and self._closed is None:
                code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
                self._closed = ("client" if way == "in" else "server"), code

    def gap(self, t: float, note: str) -> None:
        self._hook(t, "gap", note=note)

    def end_of_answers(self, t: float, by: By) -> None:
        self.close(t, by)

    def close(self, t: float, by: By) -> None:
        if not self._over:
            self._over = True
            by, code = self._closed or (by, NO_STATUS)
            self._hook(t, "connection_close", by=by, code=code)
            self._settle("append" if self._append_form else "create")

    def _first_message(self, t: float, way: Way, text: bytes) -> None:
        self._hold(lambda trace: trace.frame(t, self._name, way, text))
        if way == "in":
            self._settle(self._dialect(text))

    def _dialect(self, text: bytes) -> str:
        if self._append_form:
            return "append"
        try:
            agents = orjson.loads(text)["multi_agent"]
        except (ValueError, TypeError, KeyError):
            return "create"
        return "inject" if isinstance(agents, dict) and agents.get("enabled") is True else "create"

    def _hook(self, t: float, name: str, **members: Any) -> None:
        self._hold(lambda trace: trace.hook(t, self._name, name, **members))

    def _hold(self, record: Callable[[DialectTrace], None]) -> None:
        """Record now, or as soon as it is known where."""
        if self._trace is not None:
            record(self._trace)
            return
        self._held.append(record)
        if len(self._held) > MAX_HELD_RECORDS:
            self._settle("append" if self._append_form else "create")

    def _settle(self, dialect: str) -> None:
        if self._trace is None:
            self._trace = self._traces.of(dialect)
            for record in self._held:
                record(self._trace)
            self._held.clear()


def _say_binary(t: float, name: str, way: Way, size_bytes: int, trace: DialectTrace) -> None:
    trace.say(t, name, way, binary_bytes=size_bytes)
