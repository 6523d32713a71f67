"""Do others wait for who misbehaves? The lateness of 100 streams beside readers that stall, and beside floods.

Workload: 100 connections with one paced rollout each, 25 tokens a second, one event a token, so a stream's tokens are
due 40 ms apart. A client's clock takes the time of each event; an event's *lateness* is how much later it came, after
its stream's first event, than its number says, and of a stream the earliest event is the one that is on time.
So a lateness holds the jitter of server, kernel and client, and the 99th percentile of all events is compared.

*alone*: nobody else is there. *alone again* is the A/A run.
*stalled*: 20 more clients ask for a stream without pace and end, with small socket buffers, and never
read a byte. Each fills its buffers, its sampler is held at 64 KiB, and after a second without progress (10 s by
default, a second here) the connection is cut.
*floods*: 5 more clients send 5,000 pings each in one go; at the thousandth the connection is closed.

What must hold besides the ratio: of those connections none is left at the end of the run, and each of the 100 streams
got each of its events. The peak of the unsent bytes, of all connections together, is printed: 20 times 64 KiB and a step.

Each run with others has a run without right before or after it, and the ratio is that of the pair, so that a machine that
is busy for a while makes both late. If the runs of the A/A pairs differ by more than `TOO_WIDE` in the median, the
figures say nothing, and that is printed.

The misbehaving connections are open before the clock starts, and one send each sets them off, so that what the client
itself does for them is no lateness. The client is one thread of one process beside the server's; where both share a core
its own work shows in all variants alike. Pairs run in random order within a block. Collector: default.

Not measured: TLS, a real network, slow but moving readers.
"""

import math
import random
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import trio

from engine.config import DEFAULT_LIMITS, Limits
from engine.engine import Engine
from engine.frames import frame
from engine.samplers.base import Appended, End, Prefilled, Prompt, Sampling, Steps, Text
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import Script, Scripted
from engine.server import Server
from tests.bench.harness import (
    RawClient,
    ServerProcess,
    Spread,
    Verdicts,
    create,
    in_blocks,
    is_quick,
    server_process,
)

TARGET = 1.5
TOO_WIDE = 1.25
ORDER = random.Random(0)
STREAMS = 100
STALLED, FLOODS = 20, 5
TOKENS_PER_SECOND = 25.0
SEND_TIMEOUT_SECONDS = 1.0
SMALL_BUFFER_BYTES = 4096
PINGS = frame(0x89, b"", masked=True) * 5000
WORD = " token"
"""One token of the vocabulary."""
DELTA = b'{"type":"response.output_text.delta"'
COMPLETED = b'{"type":"response.completed"'


# --- the server process --------------------------------------------------------------------------------------------


class PacedOrFlooding:
    """A model with a pace, and one without pace or end."""

    def __init__(self) -> None:
        pace = Pace(tokens_per_second=TOKENS_PER_SECOND, first_token_seconds=0.1)
        self._paced = Paced(Scripted(_paced_script), pace, tick_seconds=DEFAULT_LIMITS.tick_seconds)
        self.run = self._paced.run

    def open(self, prompt: Prompt) -> Sampling:
        """Start a sampling of the one or the other."""
        return _Endless() if prompt.model == "flood" else self._paced.open(prompt)


class _Endless:
    """Says a word in each step, as fast as it is asked."""

    async def sample(self, appended: Appended) -> Steps:
        yield (Prefilled(computed=len(appended.tokens)),)
        while True:
            await trio.lowlevel.checkpoint()
            yield (Text(WORD),)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _paced_script(prompt: Prompt) -> Script:
    return [[(Text(WORD * int(prompt.model.removeprefix("simulated-"))), End())]]


async def start(nursery: trio.Nursery, _options: Any) -> Mapping[str, Callable[..., Any]]:
    """The server, and what it holds."""
    limits = Limits(send_timeout_seconds=SEND_TIMEOUT_SECONDS)
    server = Server(Engine.make(PacedOrFlooding(), limits=limits))
    listeners = await nursery.start(server.run)
    port = listeners[0].socket.getsockname()[1]
    peak = [0]
    nursery.start_soon(_watch_unsent, server, peak)

    def take_peak() -> int:
        taken, peak[0] = peak[0], 0
        return taken

    return {
        "port": lambda: port,
        "connections": lambda: len(server.statistics().connections),
        "peak_unsent_bytes": take_peak,
    }


async def _watch_unsent(server: Server, peak: list[int]) -> None:
    while True:
        unsent = [transport.statistics().unsent_bytes for transport in server._connections.values()]
        peak[0] = max(peak[0], sum(unsent))
        await trio.sleep(0.05)


# --- the client ----------------------------------------------------------------------------------------------------


@attrs.define
class Stream:
    """A client that reads, and when its events came."""

    client: RawClient
    arrivals: list[float] = attrs.field(factory=list)
    completed: bool = False
    _tail: bytes = b""

    def read(self) -> None:
        """Take what is there."""
        data = self.client.read_some()
        now = time.perf_counter()
        window = self._tail + data
        self._tail = window[-len(DELTA) + 1 :]
        self.arrivals.extend([now] * window.count(DELTA))
        self.completed = self.completed or COMPLETED in window

    def lateness_seconds(self) -> list[float]:
        """Of each event; the earliest of the stream is on time."""
        offsets = [at - number / TOKENS_PER_SECOND for number, at in enumerate(self.arrivals)]
        return [offset - min(offsets) for offset in offsets]


def stall(client: RawClient) -> None:
    """Ask for much and read nothing."""
    client.send({**create(), "model": "flood"})


def flood(client: RawClient) -> None:
    """Send pings as one piece, as far as the kernel takes them."""
    client.socket.setblocking(False)
    client.socket.send(PINGS)


class Run:
    """One variant: what the others do is `misbehave`."""

    def __init__(
        self, server: ServerProcess, streams: int, tokens: int, bad_clients: int = 0, misbehave: Any = None
    ) -> None:
        self._server, self._streams, self._tokens = server, streams, tokens
        self._bad_clients, self._misbehave = bad_clients, misbehave
        self.peaks: list[int] = []

    def __call__(self) -> float:
        """The 99th percentile of the lateness, in milliseconds."""
        self._server.ask("collect")
        self._server.ask("peak_unsent_bytes")
        bad = [self._connect() for _ in range(self._bad_clients)]
        streams = [Stream(self._connect()) for _ in range(self._streams)]
        for stream in streams:
            stream.client.send({**create(), "model": f"simulated-{self._tokens}"})
        self._read(streams, list(bad))
        self._wait_gone(len(streams))
        self.peaks.append(self._server.ask("peak_unsent_bytes"))
        for client in (*bad, *(stream.client for stream in streams)):
            client.close()
        self._wait_gone(0)
        return self._percentile(streams)

    def _connect(self) -> RawClient:
        client = RawClient(self._server.ask("port"))
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        return client

    def _read(self, streams: list[Stream], waiting: list[RawClient]) -> None:
        """Read the streams to their ends; set the others off, one by one, when half of the streams have begun."""
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream.client.socket, selectors.EVENT_READ, stream)
            while not all(stream.completed for stream in streams):
                for key, _ in selector.select():
                    key.data.read()
                if waiting and sum(bool(stream.arrivals) for stream in streams) > len(streams) // 2:
                    self._misbehave(waiting.pop())

    def _wait_gone(self, left: int) -> None:
        """Those who misbehaved are cut; so long, and no longer, may it take."""
        late = time.perf_counter() + 3 * SEND_TIMEOUT_SECONDS + 30.0
        while (there := self._server.ask("connections")) > left:
            assert time.perf_counter() < late, f"{there - left} connections were not cut"
            time.sleep(0.05)

    def _percentile(self, streams: list[Stream]) -> float:
        counts = {len(stream.arrivals) for stream in streams}
        assert counts == {self._tokens}, f"a stream lost events: {counts}"
        lateness = sorted(late for stream in streams for late in stream.lateness_seconds())
        return 1e3 * lateness[int(0.99 * len(lateness))]


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    blocks, streams, tokens = (1, 10, 10) if quick else (9, STREAMS, 50)
    verdicts = Verdicts(quick=quick)
    with server_process(start) as server:
        run = partial(Run, server, streams, tokens)
        alone = run()
        others = {"alone again": run(), "stalled": run(STALLED, stall), "floods": run(FLOODS, flood)}
        pairs = in_blocks({name: partial(beside, alone, other) for name, other in others.items()}, blocks)
    print(f"{streams} streams of {tokens} events, {blocks} blocks, p99 of lateness in ms: median (range)")
    everything_alone = tuple(pair.alone for measured in pairs.values() for pair in measured)
    print(f"      alone: {Spread(everything_alone)} ms")
    ratios = {}
    for name, measured in pairs.items():
        ratios[name] = Spread(tuple(pair.ratio for pair in measured))
        peak = max(others[name].peaks) / 1024
        print(
            f"      {name}: {Spread(tuple(pair.other for pair in measured))} ms; peak unsent {peak:.0f} KiB"
        )
        print(f"      ratio {name}/alone, each to its neighbour: {ratios[name]}")
    same = ratios.pop("alone again").median
    print(
        f"      {'' if abs(math.log(same)) < math.log(TOO_WIDE) else 'the machine is too busy: '}A/A {same:.3f}"
    )
    for name, compared in ratios.items():
        verdicts.at_most(f"{name}: ratio", compared.median, TARGET)
    return verdicts.exit_code


@attrs.frozen
class Pair:
    """Two runs, one right after the other: what else the machine does is as alike as it can be."""

    alone: float
    other: float

    @property
    def ratio(self) -> float:
        """Of the one with others to the one without."""
        return self.other / self.alone


def beside(alone: Run, other: Run) -> Pair:
    """Both, in random order."""
    if ORDER.random() < 0.5:
        return Pair(alone=alone(), other=other())
    late = other()
    return Pair(alone=alone(), other=late)


if __name__ == "__main__":
    sys.exit(main())
