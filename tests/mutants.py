"""Clean traces of every dialect, and every way to change one event of the server in them.

Traces come from three places that share no code: drawn by our strategies, hand-written (the published vectors, if they
are there), and recorded from the engine's own scenarios.
After each change the numbers are made good again, so that nothing is found by counting.
"""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import orjson
from hypothesis import HealthCheck, Phase, given, seed, settings

from engine.testing import simulate
from protocol import trace as trace_format
from protocol.strategies import Trace, traces
from protocol.strategies.breaking import kind_of, owners_of, place_of, renumber
from tests.scenarios import SCENARIOS, Outcome, run_scenario

JSON = dict[str, Any]

DIALECTS = ("http", "create", "inject", "append")
OPERATORS = ("drop", "double", "swap", "truncate", "alter")
VECTORS = Path(__file__).parents[2] / "shared" / "vectors" / "clean.jsonl"
DRAWN = 60
"""Drawn traces of each dialect."""


# --- clean traces ------------------------------------------------------------------------------------------------


@cache
def drawn_traces(dialect: str, count: int = DRAWN, number: int = 0) -> tuple[Trace, ...]:
    """The same traces every time."""
    found: list[Trace] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(traces(dialect))
    def collect(drawn: Trace) -> None:
        found.append(drawn)

    collect()
    return tuple(found)


@cache
def scenario_traces() -> tuple[Trace, ...]:
    """What the engine recorded of its own scenarios. Some of their samplers fail on purpose: that is not logged."""
    found = []
    logging.disable()
    for scenario in SCENARIOS.values():
        for form in scenario.forms:
            outcome = Outcome()
            simulate(run_scenario, scenario, form, outcome, seed=0)
            found += [Trace(header, tuple(records)) for header, records in trace_format.read(outcome.lines)]
    logging.disable(logging.NOTSET)
    return tuple(found)


@cache
def vector_traces() -> tuple[Trace, ...]:
    """The published clean vectors, if they are there."""
    if not VECTORS.is_file():
        return ()
    with VECTORS.open("rb") as lines:
        return tuple(Trace(header, tuple(records)) for header, records in trace_format.read(lines))


def form_of(trace: Trace) -> str:
    """The dialect of a trace; a connection whose creates ask for injection is traced as `create`."""
    asks = any(
        isinstance(record["frame"], dict) and "multi_agent" in record["frame"]
        for record in trace.records
        if "frame" in record
    )
    return "inject" if asks and trace.header["dialect"] == "create" else str(trace.header["dialect"])


@cache
def clean_traces() -> Mapping[str, tuple[Trace, ...]]:
    """All clean traces by dialect."""
    given_ones = [*scenario_traces(), *vector_traces()]
    return {
        dialect: (
            *drawn_traces(dialect),
            *(trace for trace in given_ones if form_of(trace) == dialect),
        )
        for dialect in DIALECTS
    }


# --- mutants -----------------------------------------------------------------------------------------------------


@attrs.frozen
class Mutant:
    """One change. `before` is the clean trace and `place` the record in it; `path` is the member that was altered."""

    before: Trace
    operator: str
    place: int
    path: tuple[str | int, ...] = ()

    @property
    def record(self) -> JSON:
        """The record that was changed."""
        return self.before.records[self.place]

    @property
    def kind(self) -> str:
        """The type of its frame."""
        return kind_of(self.record)

    @property
    def frame(self) -> JSON:
        """The frame."""
        return dict(self.record["frame"])

    @property
    def next_kind(self) -> str:
        """The type of the next frame of the server on this lane."""
        return next((kind_of(self.before.records[place]) for place in self.next_places()), "")

    @property
    def hooks(self) -> Sequence[str]:
        """What is recorded completely."""
        return self.before.header.get("hooks") or ()

    @property
    def is_sse(self) -> bool:
        """Server-sent events?"""
        return self.before.header["transport"] == "sse"

    def next_places(self) -> Iterator[int]:
        """Later records of the same connection and lane that the server sent."""
        here = place_of(self.record)
        for place in range(self.place + 1, len(self.before.records)):
            record = self.before.records[place]
            if record["dir"] == "out" and place_of(record) == here:
                yield place

    def made(self) -> Trace:
        """The changed trace."""
        records = orjson.loads(orjson.dumps(self.before.records))
        kept, owners = list(records), owners_of(records)
        if self.operator == "drop":
            del records[self.place]
        elif self.operator == "double":
            records.insert(self.place + 1, orjson.loads(orjson.dumps(records[self.place])))
        elif self.operator == "swap":
            other = next(self.next_places())
            one, two = records[self.place], records[other]
            one["t"], two["t"] = two["t"], one["t"]
            records[self.place], records[other] = two, one
        elif self.operator == "truncate":
            del records[self.place + 1 :]
        else:
            _alter(records[self.place]["frame"], self.path)
        if self.operator != "truncate":
            renumber(records, owners)
        del kept
        return Trace(self.before.header, tuple(records))


def is_event(record: JSON) -> bool:
    """Did the server send it, as part of a stream?"""
    kind = kind_of(record)
    return record["dir"] == "out" and bool(kind) and not kind.startswith("http.")


MEMBERS: frozenset[str] = frozenset(
    (
        *("type", "item_id", "output_index", "content_index", "summary_index", "annotation_index"),
        *("delta", "text", "refusal", "arguments", "input", "name", "call_id", "role", "status", "id"),
        *("response_id", "stream_id", "model", "created_at", "previous_response_id", "code", "reason"),
        *("input_tokens", "output_tokens", "total_tokens", "cached_tokens", "reasoning_tokens"),
    )
)
"""Members that say something of the order or the content of a stream; the echo of a request's settings does not."""

_ECHO = frozenset({"tools", "tool_choice", "metadata", "text", "reasoning", "instructions", "annotations"})
"""Members of the resource that repeat the request, and what a citation says."""


def paths_in(frame: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where a member of `MEMBERS` with a value lies, in the frame or deeper."""
    for name, value in frame.items() if isinstance(frame, dict) else enumerate(frame):
        here = (*path, name)
        if isinstance(value, dict | list):
            if not (name in _ECHO and (path[:1] == ("response",) or name == "annotations")):
                yield from paths_in(value, here)
        elif name in MEMBERS and value is not None:
            yield here


def _alter(frame: Any, path: Sequence[str | int]) -> None:
    *outer, name = path
    for step in outer:
        frame = frame[step]
    value = frame[name]
    frame[name] = (
        f"{value}x" if isinstance(value, str) else not value if isinstance(value, bool) else value + 1
    )


def mutants_of(trace: Trace) -> Iterator[Mutant]:
    """Every mutant of a trace."""
    for place, record in enumerate(trace.records):
        if not is_event(record):
            continue
        yield Mutant(trace, "drop", place)
        yield Mutant(trace, "double", place)
        if place + 1 < len(trace.records):
            yield Mutant(trace, "truncate", place)
        swapped = Mutant(trace, "swap", place)
        other = next(swapped.next_places(), None)
        if other is not None and is_event(trace.records[other]) and other_differs(trace, place, other):
            yield swapped
        for path in paths_in(record["frame"]):
            yield Mutant(trace, "alter", place, path)


def other_differs(trace: Trace, place: int, other: int) -> bool:
    """Would a swap change anything but numbers?"""
    one, two = (dict(trace.records[at]["frame"], sequence_number=0) for at in (place, other))
    return one != two


def sampled(dialect: str, count: int) -> list[Mutant]:
    """So many mutants of a dialect, the same every time, as many of each operator; all of them for 0."""
    pools: dict[str, list[Mutant]] = {operator: [] for operator in OPERATORS}
    for trace in clean_traces()[dialect]:
        for mutant in mutants_of(trace):
            pools[mutant.operator].append(mutant)
    source = random.Random(f"mutants of {dialect}")
    chosen: list[Mutant] = []
    for pool in pools.values():
        chosen += pool if not count else source.sample(pool, min(len(pool), count // len(OPERATORS)))
    return chosen
