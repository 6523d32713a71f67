"""Many suspended rollouts beside a few that stream: what each holds, and whether the streams, or one that resumes, notice them.

For each count and each setting of the collector a server of its own is started. Three times the same streams run, with one
rollout beside them that suspends and resumes all the time: before there are others, with all of them suspended, and after
they have gone. Before against after is what the machine does by itself; with against both is what the suspended ones do.

Lateness of a token is its arrival at the client against the line through the earliest token of its stream.
Memory is the growth of the server's resident memory by rollouts on connections that were open before, after a full collection.
"""

import os
import selectors
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import attrs
import trio

from demos.lab.process import Child, child_process
from demos.lab.raw_client import MarkCounter, RawClient, append, create
from demos.lab.records import Note
from demos.lab.results import ResultsFile, ResultsReader
from demos.lab.scale_server import CALL_ID, COLLECTORS, LIMITS, TALK, start

SCALE: Final = "scale"
"""Topic of the note on one count under one collector."""
STREAMS: Final = 16
TOKENS_PER_SECOND: Final = 1000.0
LANES: Final = 25
RESUME_EVERY_SECONDS: Final = 0.02
FEWEST_FOR_MEMORY: Final = 100
"""Of fewer rollouts the memory is less than what resident memory moves by anyway."""
FEWEST_RESUMES: Final = 2
"""In a window, so that it has quantiles."""
WARM_UP: Final = 20
_DELTA: Final = b'{"type":"response.output_text.delta"'
_COMPLETED: Final = b'{"type":"response.completed"'
_DONE: Final = b'{"type":"response.done"'
_GONE_SECONDS: Final = 60.0


@attrs.frozen
class ScalePlan:
    """How much is measured."""

    counts: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    collectors: tuple[str, ...] = tuple(COLLECTORS)
    tokens: int = 1_000
    """Of each stream in a window; a thousand a second."""
    windows: int = 4
    """Before, with and after, each; their medians count, so that one hiccup of the machine does not."""

    @classmethod
    def quick(cls) -> Self:
        """A small one."""
        return cls(counts=(1, 100), collectors=("default", "both"), tokens=300, windows=1)


@attrs.frozen(kw_only=True)
class Window:
    """What was seen while the streams ran once."""

    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float
    resume_p50_ms: float
    resume_p99_ms: float
    resumes: int
    collections: tuple[int, ...]
    """By generation."""
    collector_ms: float
    longest_pause_ms: float
    cpu_share: float
    """Of a core, of the server."""


def config(*, quick: bool, trace: Path | None) -> dict[str, Any]:
    """As `demos.lab.computed.Computing`. ValueError: a trace was given."""
    if trace is not None:
        raise ValueError(f"--trace {trace}: scale suspends rollouts of its own; leave it out")
    return {
        **attrs.asdict(_plan(quick)),
        "streams": STREAMS,
        "tokens_per_second": TOKENS_PER_SECOND,
        "lanes": LANES,
        "resume_every_ms": 1e3 * RESUME_EVERY_SECONDS,
        "tick_ms": 1e3 * LIMITS.tick_seconds,
        "settings": {name: COLLECTORS[name][0] for name in _plan(quick).collectors},
    }


def fill(
    file: ResultsFile,
    *,
    quick: bool,
    seed: int,  # noqa: ARG001  # the experiment has nothing to draw
    trace: Path | None,  # noqa: ARG001  # refused by `config`
    say: Callable[[str], None],
) -> None:
    """As `demos.lab.computed.Computing`. `ChildError`."""
    plan = _plan(quick)
    done = {
        (note.detail["count"], note.detail["collector"])
        for note in ResultsReader(file.path).notes()
        if note.topic == SCALE
    }
    for count in plan.counts:
        for collector in plan.collectors:
            if (count, collector) in done:
                continue
            say(f"{count:,} suspended rollouts, collector: {COLLECTORS[collector][0]}")
            file.write(Note(topic=SCALE, detail=trio.run(measure, plan, count, collector)))


def _plan(quick: bool) -> ScalePlan:
    return ScalePlan.quick() if quick else ScalePlan()


# --- one count under one collector ---------------------------------------------------------------------------------


async def measure(plan: ScalePlan, count: int, collector: str) -> dict[str, Any]:
    """What is written down of so many suspended rollouts. `ChildError`."""
    load_before = os.getloadavg()[0]
    memory = await _memory(count, collector) if count >= FEWEST_FOR_MEMORY else None
    async with _server(collector) as (server, port):
        before = [await _window(server, port, plan.tokens) for _ in range(plan.windows)]
        with _connected(port, len(_lanes(count))) as clients:
            await server.ask("collections")
            began = time.perf_counter()
            _suspend(clients, _lanes(count))
            suspending_s = time.perf_counter() - began
            suspending: Mapping[str, Any] = await server.ask("collections")
            held: int = await server.ask("suspended")
            crowded = [await _window(server, port, plan.tokens) for _ in range(plan.windows)]
            full_s: float = await server.ask("full_collection")
        await _wait_gone(server)
        after = [await _window(server, port, plan.tokens) for _ in range(plan.windows)]
    return {
        "count": count,
        "collector": collector,
        "suspended": held,
        "memory": memory,
        "suspending": {
            "seconds": suspending_s,
            "collections": suspending["counts"],
            "collector_ms": 1e3 * suspending["seconds"],
            "longest_pause_ms": 1e3 * suspending["longest_seconds"],
        },
        "full_collection_ms": 1e3 * full_s,
        "load": [load_before, os.getloadavg()[0]],
        "windows": {
            name: [attrs.asdict(one) for one in seen]
            for name, seen in (("before", before), ("with", crowded), ("after", after))
        },
    }


async def _memory(count: int, collector: str) -> dict[str, float]:
    """Bytes of a rollout. In a server of its own: after streams, rollouts would take the memory that they had left."""
    async with _server(collector) as (server, port):
        with _connected(port, len(_lanes(count))) as clients:
            empty: int = await server.ask("resident")
            _suspend(clients, _lanes(count))
            full: int = await server.ask("resident")
            context: int = await server.ask("context_bytes")
    return {"bytes_each": (full - empty) / count, "context_bytes_each": context / count}


@asynccontextmanager
async def _server(collector: str) -> AsyncIterator[tuple[Child, int]]:
    """A warm one, with its collector set, and its port."""
    async with child_process(start, "server") as server:
        port: int = await server.ask("open", TOKENS_PER_SECOND)
        with _connected(port, 1) as (warm,):
            for _ in range(WARM_UP):
                warm.send(create())
                warm.read_until("response.done")
                warm.send(append(CALL_ID, "42"))
                warm.read_until("response.completed")
        await server.ask("collector", collector)
        yield server, port


def _lanes(count: int) -> list[int]:
    """Of each connection."""
    return [LANES] * (count // LANES) + [count % LANES] * (count % LANES > 0)


async def _wait_gone(server: Child) -> None:
    with trio.fail_after(_GONE_SECONDS):
        while await server.ask("suspended"):  # noqa: ASYNC110  # it is in another process
            await trio.sleep(0.05)


@contextmanager
def _connected(port: int, count: int) -> Iterator[list[RawClient]]:
    clients = [RawClient(port) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def _suspend(clients: Sequence[RawClient], lanes: Sequence[int]) -> None:
    """A connection after the other; all lanes of one at once."""
    for client, count in zip(clients, lanes, strict=True):
        for number in range(count):
            client.send(create(stream_id=f"lane{number}"))
        for _ in range(count):
            client.read_until("response.done")


# --- while the streams run -----------------------------------------------------------------------------------------


async def _window(server: Child, port: int, tokens: int) -> Window:
    before: Mapping[str, Any] = await server.ask("collections")
    began = time.perf_counter()
    late, resumes = _watch_streams(port, tokens)
    took = time.perf_counter() - began
    seen: Mapping[str, Any] = await server.ask("collections")
    late_p50, late_p99 = quantiles(late)
    resume_p50, resume_p99 = quantiles(resumes)
    return Window(
        late_p50_ms=1e3 * late_p50,
        late_p99_ms=1e3 * late_p99,
        late_max_ms=1e3 * max(late),
        resume_p50_ms=1e3 * resume_p50,
        resume_p99_ms=1e3 * resume_p99,
        resumes=len(resumes),
        collections=tuple(seen["counts"]),
        collector_ms=1e3 * seen["seconds"],
        longest_pause_ms=1e3 * seen["longest_seconds"],
        cpu_share=(seen["cpu_seconds"] - before["cpu_seconds"]) / took,
    )


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile, of two or more."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


def lateness(arrivals: Sequence[float], tokens_per_second: float) -> list[float]:
    """Of each token, in seconds, against the line through the earliest one."""
    offsets = [at - number / tokens_per_second for number, at in enumerate(arrivals)]
    first = min(offsets)
    return [offset - first for offset in offsets]


def _watch_streams(port: int, tokens: int) -> tuple[list[float], list[float]]:
    """Lateness of all tokens, and how long each resume took, in seconds."""
    with _connected(port, STREAMS + 1) as (resuming, *streaming), selectors.DefaultSelector() as selector:
        streams = [_Stream(client, tokens) for client in streaming]
        resumer = _Resumer(resuming)
        watched: list[_Stream | _Resumer] = [*streams, resumer]
        for one in watched:
            selector.register(one.client.socket, selectors.EVENT_READ, one)
            one.begin()
        open_streams = len(streams)
        while open_streams or len(resumer.took) < FEWEST_RESUMES:
            for key, _ in selector.select(resumer.wait_seconds()):
                key.data.read()
                if key.data is not resumer and key.data.over:
                    selector.unregister(key.fileobj)
                    open_streams -= 1
            resumer.resume_if_due()
    return [late for stream in streams for late in lateness(stream.arrivals, TOKENS_PER_SECOND)], resumer.took


class _Stream:
    """One paced stream."""

    def __init__(self, client: RawClient, tokens: int) -> None:
        self.client = client
        self.arrivals: list[float] = []
        self.over = False
        self._tokens = tokens
        self._marks = MarkCounter(_DELTA, _COMPLETED)

    def begin(self) -> None:
        self.client.send({**create(), "model": f"{TALK}{self._tokens}"})

    def read(self) -> None:
        data, now = self.client.read_some(), time.perf_counter()
        self._marks.feed(data)
        self.arrivals += [now] * (self._marks.counts[_DELTA] - len(self.arrivals))
        self.over = self._marks.counts[_COMPLETED] > 0


class _Resumer:
    """One rollout after the other: it suspends, waits, resumes, ends."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.took: list[float] = []
        self._waiting = False
        self._begin_marks()
        self._due: float | None = None
        """When it is to resume; None while it is not suspended."""
        self._asked = 0.0

    def begin(self) -> None:
        self._begin_marks()
        self.client.send(create())

    def wait_seconds(self) -> float | None:
        return None if self._due is None else max(0.0, self._due - time.perf_counter())

    def resume_if_due(self) -> None:
        if self._due is not None and time.perf_counter() >= self._due:
            self._due, self._asked = None, time.perf_counter()
            self.client.send(append(CALL_ID, "42"))

    def read(self) -> None:
        data, now = self.client.read_some(), time.perf_counter()
        heard = self._marks.counts[_DELTA]
        self._marks.feed(data)
        if self._marks.counts[_DELTA] and not heard:
            self.took.append(now - self._asked)
        if self._marks.counts[_COMPLETED]:
            self.begin()
        elif self._marks.counts[_DONE] and not self._waiting:
            self._waiting, self._due = True, now + RESUME_EVERY_SECONDS

    def _begin_marks(self) -> None:
        self._marks = MarkCounter(_DELTA, _COMPLETED, _DONE)
        self._waiting = False
