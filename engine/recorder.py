"""Writes what passes over each connection as a trace (invariants part 1). Off by default, and bounded.

A connection's records are kept until it ends and then written as one trace: connections do not mix in the file,
and the header can say whether the trace is complete. Over `max_trace_bytes` the recording of that connection stops.
Over HTTP a request and its answer are what a connection is: one trace each, whatever connection they share.
Times count from the beginning of each; `began_s` in the header is when that was, counted from the file's first.

Headers are never written, so no key is.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, runtime_checkable

import orjson
import trio

from engine.config import Limits, patience_seconds
from protocol import trace
from protocol.dialects import APPEND, INJECT

DEFAULT_MAX_TRACE_BYTES: Final = 64 * 1024 * 1024
SOURCE: Final = "suspended-response"
REMOVED: Final = "[removed]"
"""Stands for what a trace must not hold."""
_SHOWN_IN_QUERY: Final = frozenset(
    {"after", "dialect", "include", "limit", "model", "order", "starting_after", "stream"}
)

_HOOKS_OF_A_SECOND_SENDING: Final = ("connection_open", "connection_close", "attach")


class Recorder(Protocol):
    """What a connection tells of itself."""

    def frame_in(self, text: bytes) -> None:
        """A message came."""

    def frame_out(self, text: bytes) -> None:
        """A message was queued for sending."""

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Something happened between the frames."""

    def close(self) -> None:
        """The connection is over."""


class HttpRecorder(Protocol):
    """What one request over HTTP tells of itself."""

    def request(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> None:
        """It came. Of the query only what this server reads is written, as a key may stand in it by mistake."""

    def response(self, status: int, body: bytes = b"") -> None:
        """Its answer begins; the first time counts. Without `body` events follow."""

    def event(self, kind: str, data: bytes) -> None:
        """An event of the answer was queued for sending."""

    def done(self) -> None:
        """The stream says that it is over."""

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Something happened between them."""

    def close(self) -> None:
        """It is over."""


class Recorders(Protocol):
    """Gives every connection a recorder of its own."""

    def recorder(self, dialect: str, deadline_seconds: float) -> Recorder:
        """A recorder for a new connection. `deadline_seconds`: how long its responses may be suspended."""
        ...


@runtime_checkable
class HttpRecorders(Protocol):
    """Gives every request over HTTP a recorder of its own; who listens to connections only need not."""

    def http_recorder(self) -> HttpRecorder:
        """A recorder for a new request."""
        ...


class NoRecorder:
    """Records nothing."""

    def frame_in(self, text: bytes) -> None:
        """Nothing."""

    def frame_out(self, text: bytes) -> None:
        """Nothing."""

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def recorder_from(recorders: Recorders | None, limits: Limits, *, append: bool) -> Recorder:
    """The recorder of a new connection, which knows how long its responses may be suspended."""
    if recorders is None:
        return NoRecorder()
    # without the prototype's opt-in only responses of the inject form are suspended
    form, dialect = ("append", APPEND) if append else ("create", INJECT)
    return recorders.recorder(form, patience_seconds(limits, dialect))


class NoHttpRecorder:
    """Records nothing."""

    def request(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> None:
        """Nothing."""

    def response(self, status: int, body: bytes = b"") -> None:
        """Nothing."""

    def event(self, kind: str, data: bytes) -> None:
        """Nothing."""

    def done(self) -> None:
        """Nothing."""

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class TraceFile:
    """A file of traces; every connection gets a recorder of its own, and over HTTP every request."""

    _first_began: float | None = None

    def __init__(self, path: Path, *, max_trace_bytes: int = DEFAULT_MAX_TRACE_BYTES) -> None:
        """`OSError` if the file cannot be written: at the start, not after the first rollout."""
        self._max_trace_bytes = max_trace_bytes
        self._file: BinaryIO = path.open("wb")
        self._connections = 0

    def recorder(self, dialect: str, deadline_seconds: float) -> Recorder:
        """As `Recorders.recorder`."""
        return _TraceRecorder(self._new_records(), dialect, deadline_seconds)

    def http_recorder(self) -> HttpRecorder:
        """A recorder for a new request over HTTP."""
        return _HttpTraceRecorder(self._new_records())

    def _new_records(self) -> "_Records":
        self._connections += 1
        if self._first_began is None:
            self._first_began = self.current_time()
        return _Records(
            self._file, f"c{self._connections}", self._max_trace_bytes, self._first_began, self.current_time
        )

    def current_time(self) -> float:
        """The clock of all times in the file, in seconds."""
        return trio.current_time()

    def close(self) -> None:
        """Close the file; recorders that still run lose what they have."""
        self._file.close()


class _Records:
    """The records of one connection, kept until it ends and then written as one trace."""

    def __init__(
        self,
        file: BinaryIO,
        connection: str,
        max_bytes: int,
        first_began: float,
        current_time: Callable[[], float],
    ) -> None:
        self._file = file
        self._current_time = current_time
        self._connection = connection
        self._left_bytes = max_bytes
        self._lines: list[bytes] = []
        self._began = current_time()
        self._began_s = round(self._began - first_began, 6)
        self._complete = True

    def add(self, direction: trace.Direction, frame: bytes, event: str | None = None) -> None:
        self._add(trace.record_line(self._now(), self._connection, direction, frame, event))

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        self._add(trace.hook_line(self._now(), self._connection, name, members))

    def write(
        self, dialect: str, transport: str, hooks: Iterable[str] = trace.ENGINE_HOOKS, **members: Any
    ) -> None:
        if self._file.closed:
            return
        header = trace.header_line(
            dialect=dialect,
            transport=transport,
            source=SOURCE,
            hooks=hooks,
            complete=self._complete,
            began_s=self._began_s,
            **members,
        )
        self._file.write(header + b"".join(self._lines))
        self._file.flush()
        self._lines.clear()

    def _now(self) -> float:
        return self._current_time() - self._began

    def _add(self, line: bytes) -> None:
        self._left_bytes -= len(line)
        self._complete = self._complete and self._left_bytes >= 0
        if self._complete:
            self._lines.append(line)


class _TraceRecorder:
    def __init__(self, records: _Records, dialect: str, deadline_seconds: float) -> None:
        self._records = records
        self._dialect = dialect
        self._members: dict[str, Any] = (
            {} if math.isinf(deadline_seconds) else {"suspend_deadline_s": deadline_seconds}
        )
        self.hook = records.hook

    def frame_in(self, text: bytes) -> None:
        self._records.add("in", text)

    def frame_out(self, text: bytes) -> None:
        self._records.add("out", text)

    def close(self) -> None:
        self._records.write(self._dialect, "websocket", **self._members)


class _HttpTraceRecorder:
    def __init__(self, records: _Records) -> None:
        self._records = records
        self._transport = "json"
        self._answered = False
        self._hooks: Iterable[str] = trace.ENGINE_HOOKS

    def request(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> None:
        members: dict[str, Any] = {"type": "http.request", "method": method, "path": path}
        if query:
            members["query"] = {name: _shown(name, value) for name, value in query.items()}
        self._records.add("in", _with_body(members, body))

    def response(self, status: int, body: bytes = b"") -> None:
        if not self._answered:
            self._answered = True
            self._records.add("out", _with_body({"type": "http.response", "status": status}, body))

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        if name == "attach":  # what happens to that response is told by whoever asked for it
            self._hooks = _HOOKS_OF_A_SECOND_SENDING
        self._records.hook(name, members)

    def event(self, kind: str, data: bytes) -> None:
        self._transport = "sse"
        self._records.add("out", data, kind)

    def done(self) -> None:
        self._records.add("out", trace.DONE)

    def close(self) -> None:
        self._records.write("http", self._transport, self._hooks)


def _shown(name: str, value: str) -> str:
    return value if name in _SHOWN_IN_QUERY else REMOVED


def _with_body(members: Mapping[str, Any], body: bytes) -> bytes:
    """A pseudo frame; a body that is no JSON object is a text in it, cut as all text that is none."""
    if not body:
        return orjson.dumps(members)
    frame = b'%b,"body":%b}' % (orjson.dumps(members)[:-1], body)
    # the body by itself, too: one that closes its object early must not become members of the frame
    if trace.is_object(body) and trace.is_object(frame):
        return frame
    return orjson.dumps({**members, "body": body.decode("utf-8", "replace")[: trace.MAX_RAW_CHARACTERS]})
