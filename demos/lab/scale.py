"""Many suspended rollouts beside a few that stream: what each holds, and whether the streams, or one that resumes, notice them.

For each count and each setting of the collector a server of its own is started. The same streams run again and again, with
one rollout beside them that suspends and resumes all the time: in turn without others and with all of them suspended, who
come and go in between. So what the machine does meanwhile is in both; every other window without them against the rest of
those is what it does by itself.

Memory is the growth of the server's resident memory by rollouts on connections that were open before, after a full collection.
"""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import attrs
import trio

from demos.lab.process import Child, child_process
from demos.lab.raw_client import RawClient, append, create
from demos.lab.records import Note
from demos.lab.results import ResultsFile, ResultsReader
from demos.lab.scale_server import CALL_ID, COLLECTORS, LIMITS, start
from demos.lab.scale_window import (
    RESUME_EVERY_SECONDS,
    STREAMS,
    TOKENS_PER_SECOND,
    Window,
    connected,
    window,
)

SCALE: Final = "scale"
"""Topic of the note on one count under one collector."""
LANES: Final = 25
FEWEST_FOR_MEMORY: Final = 100
"""Of fewer rollouts the memory is less than what resident memory moves by anyway."""
WARM_UP: Final = 20
_GONE_SECONDS: Final = 60.0


@attrs.frozen
class ScalePlan:
    """How much is measured."""

    counts: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    collectors: tuple[str, ...] = tuple(COLLECTORS)
    tokens: int = 1_000
    """Of each stream in a window; a thousand a second."""
    rounds: int = 3
    """How often all come and go. Windows without them are before each round and after the last."""
    windows: int = 2
    """One after the other, with the largest count, whose bounds are judged; with the others it is one. Medians count, so
    that a hiccup of the machine does not."""

    @classmethod
    def quick(cls) -> Self:
        """A small one."""
        return cls(counts=(1, 100), collectors=("default", "both"), tokens=300, rounds=1, windows=1)


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
        watch = partial(_watch, server, port, plan.tokens, plan.windows if count == max(plan.counts) else 1)
        without, crowds = await watch(), []
        for _ in range(plan.rounds):
            crowds.append(await _crowd(server, port, count, watch))
            await _wait_gone(server)
            without += await watch()
    first, *_ = crowds
    return {
        "count": count,
        "collector": collector,
        "suspended": min(crowd.held for crowd in crowds),
        "memory": memory,
        "suspending": first.suspending,
        "full_collection_ms": first.full_collection_ms,
        "load": [load_before, os.getloadavg()[0]],
        "windows": {
            "without": [attrs.asdict(window) for window in without],
            "with": [attrs.asdict(window) for crowd in crowds for window in crowd.windows],
        },
    }


@attrs.frozen(kw_only=True)
class _Crowd:
    """All of them once."""

    held: int
    suspending: Mapping[str, Any]
    """What it took until they were; the first ones make the heap grow."""
    windows: list[Window]
    full_collection_ms: float


async def _crowd(
    server: Child, port: int, count: int, watch: Callable[[], Awaitable[list[Window]]]
) -> _Crowd:
    with connected(port, len(_lanes(count))) as clients:
        await server.ask("collections")
        began = time.perf_counter()
        _suspend(clients, _lanes(count))
        took = time.perf_counter() - began
        seen: Mapping[str, Any] = await server.ask("collections")
        return _Crowd(
            held=await server.ask("suspended"),
            suspending={
                "seconds": took,
                "collections": seen["counts"],
                "collector_ms": 1e3 * seen["seconds"],
                "longest_pause_ms": 1e3 * seen["longest_seconds"],
            },
            windows=await watch(),
            full_collection_ms=1e3 * await server.ask("full_collection"),
        )


async def _watch(server: Child, port: int, tokens: int, windows: int) -> list[Window]:
    return [await window(server, port, tokens) for _ in range(windows)]


async def _memory(count: int, collector: str) -> dict[str, float]:
    """Bytes of a rollout. In a server of its own: after streams, rollouts would take the memory that they had left."""
    async with _server(collector) as (server, port):
        with connected(port, len(_lanes(count))) as clients:
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
        with connected(port, 1) as (warm,):
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


def _suspend(clients: Sequence[RawClient], lanes: Sequence[int]) -> None:
    """A connection after the other; all lanes of one at once."""
    for client, count in zip(clients, lanes, strict=True):
        for number in range(count):
            client.send(create(stream_id=f"lane{number}"))
        for _ in range(count):
            client.read_until("response.done")
