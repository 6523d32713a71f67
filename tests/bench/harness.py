"""What the benchmarks share: a server in a process of its own, a client that costs little, honest ratios.

The measured server is asked over a pipe for its own CPU time, so the client's cost never enters.
Variants run round-robin in random order within a block; a ratio is taken inside a block, and its median and range over
the blocks are printed. One server process holds every variant: same heap, same collector, same core.
"""

import argparse
import gc
import multiprocessing
import random
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import attrs
import trio

from demos.lab.raw_client import (
    SHED_SECONDS,
    MarkCounter,
    RawClient,
    append,
    create,
    resident_bytes,
    text_frame,
)

__all__ = [
    "SHED_SECONDS",
    "MarkCounter",
    "Measured",
    "Question",
    "RawClient",
    "ServerProcess",
    "Spread",
    "Start",
    "Verdicts",
    "append",
    "create",
    "in_blocks",
    "is_quick",
    "ratio",
    "resident_bytes",
    "server_process",
    "text_frame",
]

Measured = TypeVar("Measured")
Question = Callable[..., Any]
Start = Callable[[trio.Nursery, Any], Awaitable[Mapping[str, Question]]]
"""Starts the server's tasks; what it returns can be asked for by name from outside."""

# --- the server ----------------------------------------------------------------------------------------------------


class ServerProcess:
    """The measured side; made by `server_process`."""

    def __init__(self, pipe: "Connection[Any, Any]", process_id: int) -> None:
        self._pipe = pipe
        self._cpu_clock = ~process_id << 3 | 2
        """As `clock_getcpuclockid` of Linux makes it."""

    def ask(self, name: str, *args: Any) -> Any:
        """Ask the server; it answers from inside its own loop."""
        self._pipe.send((name, args))
        return self._pipe.recv()

    def read_cpu_seconds(self) -> float:
        """The server's CPU time so far, read from outside: to be asked for it would wake the server."""
        return time.clock_gettime(self._cpu_clock)

    @contextmanager
    def cpu_seconds(self) -> Iterator[list[float]]:
        """Collects garbage first; the list holds the server's CPU time when the block is over."""
        spent: list[float] = []
        self.ask("collect")
        before = self.ask("cpu_seconds")
        yield spent
        spent.append(self.ask("cpu_seconds") - before)


@contextmanager
def server_process(start: Start, options: Any = None) -> Iterator[ServerProcess]:
    """Run `start(nursery, options)` in trio in a new process; both must be importable."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_server, args=(theirs, start, options), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "ready"
        assert process.pid is not None, "it has started"
        yield ServerProcess(ours, process.pid)
        ours.send(("stop", ()))
    finally:
        process.join(timeout=10)
        process.kill()


def _run_server(pipe: "Connection[Any, Any]", start: Start, options: Any) -> None:
    trio.run(_answer_questions, pipe, start, options)


async def _answer_questions(pipe: "Connection[Any, Any]", start: Start, options: Any) -> None:
    async with trio.open_nursery() as nursery:
        questions = {**_COMMON, **await start(nursery, options)}
        pipe.send("ready")
        while True:
            await trio.lowlevel.wait_readable(pipe.fileno())
            name, args = pipe.recv()
            if name == "stop":
                nursery.cancel_scope.cancel()
                return
            pipe.send(questions[name](*args))


def _traced_bytes() -> int:
    """Memory held by Python objects; tracing starts with the first question."""
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


_COMMON: dict[str, Question] = {
    "collect": gc.collect,
    "cpu_seconds": time.process_time,
    "resident_bytes": resident_bytes,
    "traced_bytes": _traced_bytes,
}


# --- ratios --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Spread:
    """A number measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({min(self.values):.3f} to {max(self.values):.3f}, n={len(self.values)})"


def in_blocks(
    variants: Mapping[str, Callable[[], Measured]], blocks: int, *, seed: int = 0
) -> dict[str, list[Measured]]:
    """Each variant once a block, in random order; one block before the first is the warm-up and is thrown away."""
    order = random.Random(seed)
    measured: dict[str, list[Measured]] = {name: [] for name in variants}
    for block in range(-1, blocks):
        for name in order.sample(list(variants), len(variants)):
            value = variants[name]()
            if block >= 0:
                measured[name].append(value)
    return measured


def ratio(measured: Mapping[str, Sequence[float]], of: str, to: str) -> Spread:
    """`of` divided by `to`, block by block."""
    return Spread(tuple(a / b for a, b in zip(measured[of], measured[to], strict=True)))


class Verdicts:
    """Prints each target with PASS or MISS and remembers whether all were met; a smoke run misses nothing."""

    def __init__(self, *, quick: bool) -> None:
        self._quick = quick
        self.missed = 0

    def at_most(self, what: str, value: float, bound: float, unit: str = "") -> None:
        """A target of the form "at most"."""
        met = value <= bound
        self.missed += not met and not self._quick
        print(
            f"{'    ' if self._quick else 'PASS' if met else 'MISS'}  {what}: {value:.3f}{unit}, target at most {bound:.3f}{unit}"
        )

    @property
    def exit_code(self) -> int:
        """0 if every target was met."""
        return min(self.missed, 1)


def is_quick(description: str | None, arguments: Sequence[str] | None = None) -> bool:
    """Read the command line: `--quick` is a smoke run that proves nothing about speed."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: too short to judge speed by")
    quick: bool = parser.parse_args(arguments).quick
    if quick:
        print("--quick: a smoke run; its numbers judge nothing")
    return quick
