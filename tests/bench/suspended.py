"""1,000 suspended rollouts: what each costs, and whether another rollout's tokens notice them.

Workload: rollouts of the append form, each a short prompt, one tool and one pending call; all are suspended, which the
client knows by their `response.done`. Two layouts: 25 lanes on each of 40 connections, and a connection for each.

*Memory* is the growth of the server's resident memory by 1,000 such rollouts, after a warm-up and a full collection,
in a fresh process for each layout. In the lanes' layout the connections are open before, so it is the rollout itself;
in the other it is a rollout and its connection (library, socket buffers of Python, three tasks). The same is printed as
Python's own count of it (`tracemalloc`). A rollout's own texts would come on top: items and 4 bytes a token.

*Lateness*: one rollout paced at 1,000 tokens/s, while a second connection runs a short rollout with a tool call every
10 ms, so that the collector has something to do; with 1,000 suspended rollouts in the same server and without, in random
order in blocks. A token's lateness is its arrival at the client against the line through the earliest one; steps of the
engine (8 ms) are in it, in both. Unharmed means: the ratio of the medians and of the 99th percentiles is at most
`LATENESS_BOUND`. Contract: nobody waits for anyone but for the ticker.

The collector is the interpreter's default. Its worst pause, a full collection, is printed with and without them.

Not measured: TLS, rollouts with large contexts (see `tests.bench.growth`), the cost of waking all of them at once.
"""

import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from engine.config import Limits
from engine.engine import Engine
from engine.samplers.base import End, Prompt, Text
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import END, Script, Scripted, call
from engine.server import Server
from tests.bench.harness import (
    MarkCounter,
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
)

ROLLOUTS = 1000
LANES = 25
TOKENS_PER_SECOND = 1000.0
CHURN_SECONDS = 0.01
MEMORY_TARGET_BYTES = 12_000
LATENESS_BOUND = 1.5
CALL_ID = "call_00000000000000000000000000000001"
DELTA = b'{"type":"response.output_text.delta"'
COMPLETED = b'{"type":"response.completed"'


# --- the server process --------------------------------------------------------------------------------------------


def _script(prompt: Prompt) -> Script:
    """`talk-N` writes N tokens; any other model calls a tool, then says a word."""
    if prompt.model.startswith("talk-"):
        return [[(Text(" token" * int(prompt.model.removeprefix("talk-"))), End())]]
    return [[call("look", "{}", call_id=CALL_ID), END], [(Text("done"),), END]]


def _pause_milliseconds() -> float:
    """The time of a full collection."""
    began = time.perf_counter()
    gc.collect()
    return (time.perf_counter() - began) * 1e3


async def start(nursery: trio.Nursery, _options: Any) -> Mapping[str, Callable[..., Any]]:
    """One server; its sampler is warm (the vocabulary is loaded)."""
    limits = Limits(max_frames_per_second=100_000)
    pace = Pace(tokens_per_second=TOKENS_PER_SECOND, first_token_seconds=0.01)
    sampler = Paced(Scripted(_script), pace, tick_seconds=limits.tick_seconds)
    server = Server(Engine.make(sampler, limits=limits))
    listeners = await nursery.start(server.run)

    def suspended() -> int:
        return sum(connection.suspended for connection in server.statistics().connections)

    return {
        "port": listeners[0].socket.getsockname,
        "suspended": suspended,
        "pause_milliseconds": _pause_milliseconds,
    }


# --- rollouts ------------------------------------------------------------------------------------------------------


def _talk(port: int, tokens: int) -> list[float]:
    """Arrival times of the tokens of one paced rollout."""
    client, counter = RawClient(port), MarkCounter(DELTA, COMPLETED)
    arrivals: list[float] = []
    client.send({**create(), "model": f"talk-{tokens}"})
    while not counter.counts[COMPLETED]:
        data = client.read_some()
        now = time.perf_counter()
        counter.feed(data)
        arrivals += [now] * (counter.counts[DELTA] - len(arrivals))
    client.close()
    assert len(arrivals) == tokens, arrivals
    return arrivals


def _call_once(client: RawClient) -> None:
    """A whole rollout with one tool call."""
    client.send(create())
    client.read_until("response.done")
    client.send(append(CALL_ID, "42"))
    client.read_until("response.completed")


def _suspend(clients: list[RawClient], lanes: list[str | None]) -> None:
    for client in clients:
        for lane in lanes:
            client.send(create(stream_id=lane))
    for client in clients:
        for _ in lanes:
            client.read_until("response.done")


def _lane_names(count: int) -> list[str | None]:
    return [f"lane{number}" for number in range(count)]


@contextmanager
def _connected(port: int, count: int) -> Iterator[list[RawClient]]:
    clients = [RawClient(port) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


# --- memory --------------------------------------------------------------------------------------------------------


def rollout_bytes(question: str, *, lanes: bool, rollouts: int) -> float:
    """Memory of a suspended rollout; without `lanes` its connection is included."""
    with server_process(start) as server:
        port = server.ask("port")[1]
        connections = max(1, rollouts // LANES) if lanes else rollouts
        names: list[str | None] = _lane_names(rollouts // connections) if lanes else [None]
        with _connected(port, 1) as warm, _connected(port, connections if lanes else 0) as open_before:
            for _ in range(20):
                _call_once(warm[0])
            server.ask(question)
            server.ask("collect")
            before = server.ask(question)
            with _connected(port, 0 if lanes else connections) as opened:
                _suspend(open_before or opened, names)
                server.ask("collect")
                grown = server.ask(question) - before
                assert server.ask("suspended") == rollouts
        return float(grown) / rollouts


# --- lateness ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Lateness:
    """Of one paced rollout, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, arrivals: list[float]) -> "Lateness":
        """Against the line through the earliest token."""
        offsets = [at - number / TOKENS_PER_SECOND for number, at in enumerate(arrivals)]
        first = min(offsets)
        cuts = statistics.quantiles(((offset - first) * 1e3 for offset in offsets), n=100)
        return cls(cuts[49], cuts[98])


def measure_lateness(server: ServerProcess, tokens: int, suspended: int) -> Lateness:
    """One paced rollout beside the churn, and beside so many suspended ones."""
    port = server.ask("port")[1]
    with _connected(port, suspended // LANES) as clients:
        _suspend(clients, _lane_names(LANES))
        server.ask("collect")
        assert server.ask("suspended") == suspended // LANES * LANES
        with _churn(port):
            lateness = Lateness.of(_talk(port, tokens))
    while server.ask("suspended"):
        time.sleep(0.01)
    return lateness


@contextmanager
def _churn(port: int) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=_run_churn, args=(port, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _run_churn(port: int, over: threading.Event) -> None:
    client = RawClient(port)
    while not over.wait(CHURN_SECONDS):
        _call_once(client)
    client.close()


# --- the comparison ------------------------------------------------------------------------------------------------


def _report_memory(verdicts: Verdicts, rollouts: int) -> None:
    lanes = f"{LANES} lanes a connection"
    for layout, by_lanes in ((lanes, True), ("a connection each", False)):
        resident = rollout_bytes("resident_bytes", lanes=by_lanes, rollouts=rollouts)
        traced = rollout_bytes("traced_bytes", lanes=by_lanes, rollouts=rollouts)
        print(f"memory of one of {rollouts}, {layout}: {resident:.0f} bytes resident, {traced:.0f} traced")
        if by_lanes:
            verdicts.at_most(f"memory, {layout}", resident / 1000, MEMORY_TARGET_BYTES / 1000, " kB")


def _report_lateness(verdicts: Verdicts, rollouts: int, *, blocks: int, tokens: int) -> None:
    found: dict[str, list[Lateness]] = {"without": [], "with": [], "without again": []}

    def run(name: str, suspended: int) -> float:
        found[name].append(measure_lateness(server, tokens, suspended))
        return found[name][-1].p99

    with server_process(start) as server:
        variants = {"without": 0, "with": rollouts, "without again": 0}
        runs = {name: (lambda name=name, n=n: run(name, n)) for name, n in variants.items()}
        in_blocks(runs, blocks)
        print(f"a full collection without them: {server.ask('pause_milliseconds'):.1f} ms")
        with _connected(server.ask("port")[1], rollouts // LANES) as clients:
            _suspend(clients, _lane_names(LANES))
            print(f"a full collection with {rollouts}: {server.ask('pause_milliseconds'):.1f} ms")
    for quantile in ("p50", "p99"):
        values = {name: [getattr(each, quantile) for each in all_[1:]] for name, all_ in found.items()}
        for name, each in values.items():
            print(f"      lateness {quantile} {name}: {Spread(tuple(each))} ms")
        print(f"      A/A ratio {quantile}: {ratio(values, 'without again', 'without')}")
        compared = ratio(values, "with", "without")
        print(f"      ratio with/without {quantile}: {compared}")
        verdicts.at_most(f"lateness {quantile}: ratio", compared.median, LATENESS_BOUND)


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    verdicts = Verdicts(quick=quick)
    rollouts = 50 if quick else ROLLOUTS
    _report_memory(verdicts, rollouts)
    _report_lateness(verdicts, rollouts, blocks=1 if quick else 7, tokens=100 if quick else 2000)
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
