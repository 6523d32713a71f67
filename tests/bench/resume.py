"""From an append to the first event of the resumed rollout, against a bare trio-websocket echo.

Workload: one connection, one rollout of the append form; each segment says a word and calls a tool. The model's first
token is there when it is asked, as what is measured is the engine; before the next it yields to others.
The client sends the append that answers the call and takes the time until the first byte of the answer is there: the
first event of the next segment (`response.output_item.added`). Then it reads on to `response.done` and sends the next.
The echo is `trio_websocket.serve_websocket` with `send_message` for each message, in the same server process, and the
message is the same append frame.

Contract: in both, the bytes go out as soon as the server has them; nobody waits for anyone, nothing is batched.
The rollout checks the output against the pending call, renders, classifies and accounts it, takes a sampler slot, and
asks the sampler.

The times are the client's: they hold one loopback round trip each, the same in both, which pulls the ratio towards 1.
So the server's CPU time for each whole trip is printed beside them; it also holds the rest of the segment's events.

Variants run in random order in blocks, with two echo runs a block for the A/A ratio. Collector: as `suspended serve` sets
it, for both.
Not measured: TLS, a real network, parallel calls, large outputs (see `tests.bench.growth`).
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from engine.collector import settle
from engine.config import Limits
from engine.engine import Engine
from engine.samplers.base import Appended, End, Prompt, Sampling, Steps, Text
from engine.samplers.scripted import call
from engine.server import Server
from tests.bench.harness import (
    RawClient,
    ServerProcess,
    Spread,
    Verdicts,
    append,
    create,
    in_blocks,
    is_quick,
    ratio,
    server_process,
    text_frame,
)

TARGET = 1.5
"""Reached by the median of several runs; one alone can be a tenth more or less."""
WARM_UP_TRIPS = 50


def call_id(number: int) -> str:
    """Of the rollout's call, as long as a real one."""
    return f"call_{number:032}"


# --- the server process --------------------------------------------------------------------------------------------


class Ready:
    """A model whose words are there when it is asked."""

    def open(self, _prompt: Prompt) -> Sampling:
        """As every sampler."""
        return ReadySampling()


class ReadySampling:
    """Says a word and calls a tool, in each segment."""

    def __init__(self) -> None:
        self._calls = 0

    async def sample(self, appended: Appended) -> Steps:
        """As every sampling."""
        yield (appended.prefilled, Text("ok"))
        await trio.lowlevel.checkpoint()
        self._calls += 1
        yield (*call("look", "{}", call_id=call_id(self._calls - 1)), End())

    async def aclose(self) -> None:
        """Nothing is held."""
        await trio.lowlevel.checkpoint()


async def _echo(request: WebSocketRequest) -> None:
    connection = await request.accept()
    try:
        while True:
            await connection.send_message(await connection.get_message())
    except ConnectionClosed:
        return


async def start(nursery: trio.Nursery, _options: Any) -> Mapping[str, Callable[..., Any]]:
    """The engine and the echo, in one process."""
    limits = Limits(max_frames_per_second=100_000)
    settle()
    listeners = await nursery.start(Server(Engine.make(Ready(), limits=limits)).run)
    echo = await nursery.start(partial(serve_websocket, _echo, "127.0.0.1", 0, ssl_context=None))
    ports = {"resume": listeners[0].socket.getsockname()[1], "echo": echo.port}
    return {"port": lambda name: ports[name]}


# --- the client ----------------------------------------------------------------------------------------------------


class Trips:
    """Round trips of one kind over one connection."""

    def __init__(self, server: ServerProcess, name: str) -> None:
        self._server = server
        self._client = RawClient(server.ask("port", name))
        self._trips = 0
        self.cpu_microseconds: list[float] = []

    def run(self, trips: int) -> float:
        """The median time of a trip to its first byte, in microseconds."""
        for _ in range(WARM_UP_TRIPS):
            self._trip()
        with self._server.cpu_seconds() as spent:
            seconds = [self._trip() for _ in range(trips)]
        self.cpu_microseconds.append(spent[0] / trips * 1e6)
        return statistics.median(seconds) * 1e6

    def _trip(self) -> float:
        whole_frame = text_frame(append(call_id(self._trips), "42"))
        self._trips += 1
        began = time.perf_counter()
        self._client.send_frame(whole_frame)
        self._client.wait_first_byte()
        seconds = time.perf_counter() - began
        self._finish(self._client.read_frame())
        return seconds

    def _finish(self, first: bytes) -> None:
        assert first.startswith(b'{"type":"response.append"'), first


class Resumptions(Trips):
    """The same through a rollout that suspends after each."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server, "resume")
        self._client.send(create())
        self._client.read_until("response.done")

    def _finish(self, first: bytes) -> None:
        assert first.startswith(b'{"type":"response.output_item.added"'), first
        self._client.read_until("response.done")


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    blocks, trips = (1, 20) if quick else (7, 500)
    verdicts = Verdicts(quick=quick)
    with server_process(start) as server:
        resumptions, echo, again = Resumptions(server), Trips(server, "echo"), Trips(server, "echo")
        variants = {"resume": resumptions, "echo": echo, "echo again": again}
        measured = in_blocks({name: partial(each.run, trips) for name, each in variants.items()}, blocks)
    print(f"{blocks} blocks of {trips} trips, to the first byte at the client: median (range)")
    for name, values in measured.items():
        print(
            f"      {name}: {Spread(tuple(values))} µs; server CPU for the whole trip "
            f"{statistics.median(variants[name].cpu_microseconds):.1f} µs"
        )
    print(f"      A/A ratio: {ratio(measured, 'echo again', 'echo')}")
    compared = ratio(measured, "resume", "echo")
    print(f"      ratio resume/echo: {compared}")
    verdicts.at_most("resume: ratio", compared.median, TARGET)
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
