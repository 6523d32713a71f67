"""A rollout as a picture to walk around in: traces as the JSON that ui.perfetto.dev and chrome://tracing open.

A process is a connection, named by its form; requests over HTTP are one process, as they are one client. Tracks are lanes
and the client's tools. On a lane stand responses, in them segments and suspensions, in those stages and items; an arrow
goes from each call through its tool to where the output came. Several forms stand below each other, all from time 0.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from demos.lab.exchanges import Exchange, ToolRun, exchanges_in
from demos.lab.lives import SUSPENDED, Life
from demos.lab.tracks import Slice, lay, microseconds
from protocol.readers import TraceError

_TOOLS: Final = "client's tools"
_LANE: Final = "responses"

Event = dict[str, Any]


def add_arguments(parser: ArgumentParser) -> None:
    """Of `suspended lab perfetto`."""
    parser.add_argument(
        "traces",
        metavar="TRACE",
        nargs="+",
        type=Path,
        help="traces, or logs that can be read as such; one or several forms",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the JSON to write")


def run(arguments: Namespace) -> int:
    """Write the file; 0. `TraceError`: an input is no trace, or cannot be read; `OSError`: the file cannot be written."""
    exchanges = [exchange for path in arguments.traces for exchange in exchanges_in(path)]
    if not any(exchange.lives for exchange in exchanges):
        raise TraceError(f"no response in {', '.join(map(str, arguments.traces))}; record one with --trace")
    arguments.out.write_bytes(orjson.dumps(trace_of(exchanges)))
    calls = sum(len(exchange.tools) for exchange in exchanges)
    forms = ", ".join(dict.fromkeys(exchange.form for exchange in exchanges))
    print(f"{arguments.out}: {forms}; {calls} calls; open it in ui.perfetto.dev or chrome://tracing")
    return 0


def trace_of(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """The trace event JSON of several exchanges, one below the other."""
    processes = [process for exchange in exchanges for process in _processes(exchange)]
    several_files = len({exchange.source for exchange in exchanges}) > 1
    places: dict[int, _Place] = {}
    events: list[Event] = []
    for pid, process in enumerate(processes, 1):
        events += _Writer(pid, process, places).events(process.title(several_files=several_files))
    answered = [tool for exchange in exchanges for tool in exchange.tools if tool.answered_s is not None]
    for number, tool in enumerate(
        answered, 1
    ):  # after all slices: of the same moment, the slice must be there first
        events += _arrow(tool, number, places)
    notes = [caveat for exchange in exchanges for caveat in exchange.caveats()]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"notes": "; ".join(notes)}}


def _arrow(tool: ToolRun, number: int, places: Mapping[int, "_Place"]) -> Iterator[Event]:
    """From the call over the tool to the response that got the output; each point in the slice that it is bound to."""
    made = next(made for made in tool.caller.items if made.call_id == tool.call_id)
    call, ran, taker = (places[id(one)] for one in (made, tool, tool.taker))
    points = (
        ("s", call, max(call.slice.start_us, call.slice.end_us - 1)),
        ("t", ran, ran.slice.start_us),
        ("f", taker, ran.slice.end_us),
    )
    for phase, place, ts in points:
        event = {
            "ph": phase,
            "name": f"call {tool.name}",
            "pid": place.pid,
            "tid": place.slice.thread,
            "ts": ts,
        }
        yield {**event, "cat": "call", "id": number, "bp": "e"}


@attrs.frozen
class _Place:
    """Where a call, a tool or a response is shown."""

    pid: int
    slice: Slice


@attrs.frozen
class _Process:
    """A connection of an exchange; all of them, over HTTP."""

    exchange: Exchange
    connection: str | None

    def title(self, *, several_files: bool) -> str:
        words = [self.exchange.form, self.connection, self.exchange.source if several_files else None]
        return " · ".join(word for word in words if word)

    def has(self, connection: str) -> bool:
        return self.connection is None or self.connection == connection


def _processes(exchange: Exchange) -> Iterator[_Process]:
    connections = dict.fromkeys(life.connection for life in exchange.lives)
    if exchange.form == "http" or len(connections) == 1:
        yield _Process(exchange, None)
        return
    for connection in connections:
        yield _Process(exchange, connection)


@attrs.define
class _Writer:
    """The events of one process."""

    _pid: int
    _process: _Process
    _places: dict[int, _Place]
    """By the identity of what is shown."""
    _threads: dict[tuple[str, int], int] = attrs.field(factory=dict)

    def events(self, name: str) -> Iterator[Event]:
        lives = [life for life in self._process.exchange.lives if self._process.has(life.connection)]
        tools = [tool for tool in self._process.exchange.tools if self._process.has(tool.caller.connection)]
        named = {lane: lay(slices) for lane, slices in self._lanes(lives).items()}
        named[_TOOLS] = lay([self._tool(tool) for tool in tools], nest=False)
        spans = [self._span(track, one) for track, slices in named.items() for one in slices]
        yield from self._metadata(name)
        yield from spans
        yield from self._counters(tools)

    # --- spans ---

    def _lanes(self, lives: Iterable[Life]) -> dict[str, list[Slice]]:
        lanes: dict[str, list[Slice]] = {}
        for life in lives:
            name = f"lane {life.lane}" if life.lane else _LANE
            lanes.setdefault(name, []).extend(self._life(life))
        return lanes

    def _life(self, life: Life) -> Iterator[Slice]:
        assert life.ended_s is not None, "whoever has read the trace has ended it"
        told = {
            "id": life.response_id,
            "model": life.model,
            "status": life.status or "unfinished",
            "error": life.error,
            "usage": life.usages[-1][1] if life.usages else None,
        }
        name = "response" if life.response_id else "refused"
        yield self._kept(life, _slice(name, "response", life.asked_s, life.ended_s, **told))
        segment = 0
        for is_model, stages in life.segments():
            if is_model:
                segment += 1
                yield _slice(f"segment {segment}", "segment", stages[0].start_s, stages[-1].end_s)
            for stage in stages:
                if stage.end_s > stage.start_s:
                    category = "suspension" if stage.name == SUSPENDED else "stage"
                    yield _slice(stage.name, category, stage.start_s, stage.end_s)
        for made in life.items:
            assert made.end_s is not None, "it ended with its response"
            label = f"{made.type} {made.name}" if made.name else made.type
            one = _slice(label, "item", made.start_s, made.end_s, id=made.item_id, call_id=made.call_id)
            yield self._kept(made, one)

    def _tool(self, tool: ToolRun) -> Slice:
        end_s = tool.answered_s if tool.answered_s is not None else self._process.exchange.ended_s
        is_known = tool.answered_s is not None or not self._process.exchange.has_requests
        answered = None if is_known else "never"
        return self._kept(
            tool, _slice(tool.name, "tool", tool.called_s, end_s, call_id=tool.call_id, answered=answered)
        )

    def _kept(self, shown: object, one: Slice) -> Slice:
        self._places[id(shown)] = _Place(self._pid, one)
        return one

    def _span(self, thread: str, one: Slice) -> Event:
        one.thread = self._threads.setdefault((thread, one.track), len(self._threads) + 1)
        event = self._event("X", one.name, one.start_us, one.thread)
        return {**event, "cat": one.category, "dur": one.end_us - one.start_us, "args": dict(one.arguments)}

    # --- what is counted ---

    def _counters(self, tools: Sequence[ToolRun]) -> Iterator[Event]:
        totals = {True: 0, False: 0}
        names = {True: "bytes from the client", False: "bytes to the client"}
        for passed in self._process.exchange.passed:
            if self._process.has(passed.connection) and passed.size_bytes:
                totals[passed.is_up] += passed.size_bytes
                yield self._counter(names[passed.is_up], microseconds(passed.t), totals[passed.is_up])
        changes = [(microseconds(tool.called_s), 1) for tool in tools]
        changes += [(microseconds(tool.answered_s), -1) for tool in tools if tool.answered_s is not None]
        waiting = 0
        for ts, change in sorted(changes):
            waiting += change
            yield self._counter("calls without an output", ts, waiting)

    def _counter(self, name: str, ts: int, value: int) -> Event:
        return {**self._event("C", name, ts, 0), "args": {"value": value}}

    # --- names ---

    def _metadata(self, name: str) -> Iterator[Event]:
        yield {**self._event("M", "process_name", 0, 0), "args": {"name": name}}
        yield {**self._event("M", "process_sort_index", 0, 0), "args": {"sort_index": self._pid}}
        for (thread, track), tid in self._threads.items():
            label = f"{thread} ({track + 1})" if track else thread
            yield {**self._event("M", "thread_name", 0, tid), "args": {"name": label}}
            yield {**self._event("M", "thread_sort_index", 0, tid), "args": {"sort_index": tid}}

    def _event(self, phase: str, name: str, ts: int, tid: int) -> Event:
        return {"ph": phase, "name": name, "pid": self._pid, "tid": tid, "ts": ts}


def _slice(name: str, category: str, start_s: float, end_s: float, **told: Any) -> Slice:
    arguments = {key: value for key, value in told.items() if value is not None}
    return Slice(name, category, microseconds(start_s), microseconds(end_s), arguments)
