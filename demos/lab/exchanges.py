"""What a trace file tells of one form: the lives of its responses on one axis of time, and each call with its output.

Traces of a file that are of one form make one exchange; its time begins with its first record, so that the exchanges of
several forms can be laid side by side. Over HTTP each request is a trace of its own: when it began is in its header
(`began_s`); where that is missing, the traces are taken to follow each other at once, and `has_gaps` says so.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from demos.lab.lives import Life
from demos.lab.loose import object_at, objects, text_at
from protocol import readers
from protocol.readers import TraceError
from protocol.readers.headers import TERMINAL_TYPES

CLIENT_CALLS: Final = frozenset({"function_call", "custom_tool_call", "tool_search_call"})
"""Items that wait for an output of the client's, if they have a `call_id`."""
_OUTPUT: Final = "_output"
_MORE: Final = frozenset({"response.append", "response.inject"})
_DEFAULT_LANE: Final = ""


@attrs.define(eq=False)
class ToolRun:
    """A call and its output, as the recorder saw them: the way to the client and back is in it.

    So is the waiting for other outputs, in the forms that bring all of them together.
    """

    call_id: str
    name: str
    type: str
    caller: Life
    called_s: float
    answered_s: float | None = None
    taker: Life | None = None
    """The response that got the output."""


@attrs.frozen
class Passed:
    """Bytes of a message, as compact JSON: what a trace keeps of it."""

    connection: str
    t: float
    is_up: bool
    size_bytes: int


@attrs.define(eq=False)
class Exchange:
    """All that a file holds of one form."""

    form: str
    source: str
    """The file's name."""
    has_gaps: bool = True
    """Is the time between its traces known?"""
    has_requests: bool = True
    """Was it recorded when they came? Else a response begins with its first event."""
    has_times: bool = True
    lives: list[Life] = attrs.field(factory=list)
    tools: list[ToolRun] = attrs.field(factory=list)
    passed: list[Passed] = attrs.field(factory=list)
    ended_s: float = 0.0

    def caveats(self) -> Iterator[str]:
        """What its trace does not show."""
        where = f"{self.source}, {self.form}"
        if not self.has_gaps:
            yield f"{where}: the time between its traces was not recorded and is shown as none"
        if not self.has_times:
            yield f"{where}: no times in this log, all are shown as 0"
        if self.tools and not self.has_requests:
            yield f"{where}: no requests in this log; when a call got its output is not known"


def exchanges_in(path: Path) -> list[Exchange]:
    """Those of a trace file, or of a log that can be read as one, in the order in which they begin. `TraceError`."""
    try:
        with path.open("rb") as file:
            return exchanges_of(file, path.stem)
    except TraceError as error:
        raise TraceError(f"{path}: {error}", error.line) from error
    except OSError as error:
        raise TraceError(str(error)) from error


def exchanges_of(chunks: Iterable[bytes], source: str) -> list[Exchange]:
    """Those of a trace file's text, in pieces. `TraceError`: it is neither a trace nor any log that can be read as one."""
    timed: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    gaps: dict[str, bool] = {}
    blind: dict[str, bool] = {}
    clocked: dict[str, bool] = {}
    over_s = 0.0
    for header, records in _traces(chunks):
        form = _form_of(header, records)
        began_s = header.get("began_s")
        offset_s = over_s if began_s is None else float(began_s)
        gaps[form] = (began_s is not None or not timed.get(form)) and gaps.get(form, True)
        blind[form] = blind.get(form, False) or "in" not in header.get("directions", ("in",))
        clocked[form] = clocked.get(form, False) or any(record.get("t") for record in records)
        mine = timed.setdefault(form, [])
        mine += [(offset_s + record.get("t", 0.0), record) for record in records]
        over_s = max([over_s, *(t for t, _ in mine[-1:])])
    return [
        _exchange(
            Exchange(
                form,
                source,
                has_gaps=gaps[form],
                has_requests=not blind[form],
                has_times=clocked[form],
            ),
            mine,
        )
        for form, mine in timed.items()
    ]


def _traces(chunks: Iterable[bytes]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each whole, with its header."""
    kind, lines = readers.detected(readers.lines_of(chunks))
    header: dict[str, Any] | None = None
    records: list[dict[str, Any]] = []
    for entry in readers.entries(kind, lines):
        if "trace" not in entry:
            records.append(entry)
            continue
        if header is not None:
            yield header, records
        header, records = entry, []
    if header is not None:
        yield header, records


def _form_of(header: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """A connection on which responses are injected into is traced as one of creates."""
    form = str(header["dialect"])
    injects = any(
        object_at(object_at(record, "frame"), "multi_agent").get("enabled")
        for record in records
        if record["dir"] == "in"
    )
    return "inject" if form == "create" and injects else form


def _exchange(exchange: Exchange, timed: list[tuple[float, dict[str, Any]]]) -> Exchange:
    timed.sort(key=lambda one: one[0])  # connections are written when they end
    reader = _Reader(exchange)
    for t, record in timed:
        reader.read(record, round(t - timed[0][0], 6))
    reader.end()
    return exchange


@attrs.define(eq=False)
class _Lane:
    asked: deque[Life] = attrs.field(factory=deque)
    """Requests without an answer."""
    life: Life | None = None


@attrs.define(eq=False)
class _Reader:
    """Is told of one record after the other."""

    _exchange: Exchange
    _lanes: dict[tuple[str, str], _Lane] = attrs.field(factory=dict)
    _by_id: dict[str, Life] = attrs.field(factory=dict)
    _early: dict[str, list[tuple[str, float]]] = attrs.field(factory=dict)
    """What happened to a response before the client was told of it."""
    _open: dict[str, ToolRun] = attrs.field(factory=dict)

    def read(self, record: Mapping[str, Any], t: float) -> None:
        """The next record."""
        frame, connection = object_at(record, "frame"), record["conn"]
        self._exchange.ended_s = t
        if record["dir"] == "hook":
            self._hook(frame, connection, t)
            return
        self._exchange.passed.append(Passed(connection, t, record["dir"] == "in", _size(record, frame)))
        lane_name = text_at(frame, "stream_id") or record.get("lane") or _DEFAULT_LANE
        lane = self._lanes.setdefault((connection, lane_name), _Lane())
        if record["dir"] == "in":
            self._client(frame, lane, Life(connection, lane_name, _body(frame), t))
        else:
            self._server(frame, lane, Life(connection, lane_name, {}, t))

    def end(self) -> None:
        """The trace is over; what is open stays without a status."""
        for life in self._exchange.lives:
            if life.ended_s is None:
                life.over(None, self._exchange.ended_s)

    # --- in ---

    def _client(self, frame: Mapping[str, Any], lane: _Lane, life: Life) -> None:
        kind = frame.get("type")
        posts = kind == "http.request" and frame.get("method") == "POST" and _is_create_path(frame)
        if kind == "response.create" or posts:
            lane.asked.append(life)
            self._exchange.lives.append(life)
            self._outputs(life.request, life)
        elif kind in _MORE:
            taker = self._by_id.get(text_at(frame, "response_id") or "") or lane.life
            if taker is not None:
                self._outputs(frame, taker, life.asked_s)

    def _outputs(self, frame: Mapping[str, Any], taker: Life, t: float | None = None) -> None:
        """Outputs of calls that were open; a history that is sent again has others besides."""
        for item in objects(frame.get("input")):
            if not str(item.get("type")).endswith(_OUTPUT):
                continue
            run = self._open.pop(text_at(item, "call_id") or "", None)
            if run is None:
                continue
            run.answered_s, run.taker = taker.asked_s if t is None else t, taker
            if taker is not run.caller:
                taker.continues = run.caller.response_id
            elif t is not None:
                taker.answered(run.call_id, t)

    # --- out ---

    def _server(self, frame: Mapping[str, Any], lane: _Lane, unasked: Life) -> None:
        kind, t = str(frame.get("type")), unasked.asked_s
        response, item = object_at(frame, "response"), object_at(frame, "item")
        if kind == "response.created" and not lane.asked and not self._exchange.has_requests:
            lane.asked.append(unasked)
            self._exchange.lives.append(unasked)
        if kind == "response.created" and lane.asked:
            self._begin(lane, response, t)
        elif kind == "error" and lane.asked:
            self._refuse(lane.asked.popleft(), frame, t)
        elif kind == "http.response" and lane.asked and frame.get("body") is not None:
            self._whole(lane, frame, t)
        elif lane.life is None or lane.life.ended_s is not None:
            return
        elif kind == "response.output_item.added" and item:
            lane.life.adds(item, t)
        elif kind == "response.output_item.done" and item:
            self._item(lane.life, item, t)
        elif kind.endswith(".delta"):
            lane.life.piece(t)
        elif kind == "response.done":
            lane.life.parks(response, t)
        elif kind in TERMINAL_TYPES:
            lane.life.ends(response, t)
            lane.life = None

    def _begin(self, lane: _Lane, response: Mapping[str, Any], t: float) -> None:
        lane.life = life = lane.asked.popleft()
        for name, early_t in self._early.pop(text_at(response, "id") or "", ()):
            life.hook(name, early_t)
        life.created(response, t)
        self._by_id[str(life.response_id)] = life

    def _refuse(self, life: Life, frame: Mapping[str, Any], t: float) -> None:
        error = object_at(object_at(frame, "body") or frame, "error")
        life.over("failed", t)
        life.error = text_at(error, "code") or text_at(error, "type") or str(frame.get("status", "error"))

    def _whole(self, lane: _Lane, frame: Mapping[str, Any], t: float) -> None:
        """An answer without events: all items at its end."""
        body, status = object_at(frame, "body"), frame.get("status")
        is_refused = isinstance(status, int) and status >= 400
        if is_refused or body.get("object") == "error" or "output" not in body:
            self._refuse(lane.asked.popleft(), frame, t)
            return
        self._begin(lane, body, t)
        assert lane.life is not None, "it has just begun"
        for item in objects(body["output"]):
            self._item(lane.life, item, t)
        lane.life.ends(body, t)
        lane.life = None

    def _item(self, life: Life, item: Mapping[str, Any], t: float) -> None:
        made = life.ends_item(item, t)
        if made.type not in CLIENT_CALLS or not made.call_id:
            return
        life.calls(made.call_id)
        run = ToolRun(made.call_id, made.name or made.type, made.type, life, t)
        self._open[made.call_id] = run
        self._exchange.tools.append(run)

    # --- between ---

    def _hook(self, frame: Mapping[str, Any], connection: str, t: float) -> None:
        name = str(frame.get("hook"))
        if name == "connection_close":
            for life in self._exchange.lives:
                if life.connection == connection and life.ended_s is None:
                    life.over("cut off", t)
            return
        response_id = frame.get("response_id")
        if response_id is None:
            return
        life_of = self._by_id.get(response_id)
        if life_of is None:
            self._early.setdefault(response_id, []).append((name, t))
        else:
            life_of.hook(name, t)


def _body(frame: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is asked for, in whatever envelope."""
    return object_at(frame, "body") if frame.get("type") == "http.request" else frame


def _is_create_path(frame: Mapping[str, Any]) -> bool:
    return str(frame.get("path", "")).rstrip("/").endswith("/responses")


def _size(record: Mapping[str, Any], frame: Mapping[str, Any]) -> int:
    if "binary_bytes" in record:
        return int(record["binary_bytes"])
    if not frame:
        return len(str(record.get("raw") or record.get("frame") or "").encode())
    if str(frame.get("type", "")).startswith("http."):
        return len(orjson.dumps(frame["body"])) if frame.get("body") else 0
    return len(orjson.dumps(frame))
