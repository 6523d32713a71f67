"""Server CPU for each event: the corked stream against `WebSocketConnection.send_message`, everything else the same.

Workload: 16 rollouts at once write text deltas, one event a token; a delta frame is about 250 bytes.
*paced*: 1,000 tokens/s each (`Paced`, one shared ticker; at the default tick of 8 ms a stream's step has 8 or 9 tokens).
*paced, 4 ms*: the same at half the tick, so with 4 or 5 tokens a step; shown without a target, for wakes cost as they do.
*flood*: a scripted sampler with 64 tokens a step and a checkpoint between steps: as fast as it goes.
Two layouts: 16 connections with one rollout, and one connection with 16 lanes.

Variants: one engine, one sampler, one ticker, the same steps; only `serve_transport` is exchanged.
*corked* is the engine as it is; *send_message* has one writer task a connection that awaits `send_message` an event.
*corked again* is the A/A run: its ratio to *corked* shows what the noise is.

Contract, the same for both: a step's events are queued and numbered without waiting; after each step a rollout waits if
its connection holds more than `outbox_high_water_bytes` (64 KiB) unsent, until half of that is left; nobody else waits.
What differs is the variant itself: how a queued event gets to the socket.

CPU time is that of the server process (user and system) from before the creates until all terminal events have arrived,
divided by the delta events; so it holds 16 pre- and post-inferences and the sampler as well, equally in both.
All deltas are counted at the client. Collector: default, a full collection before each measurement.

Not measured: TLS, a real network, latency, other libraries, inbound frames.
"""

import selectors
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio

from engine.config import Limits
from engine.engine import Engine
from engine.samplers.base import End, Prompt, Sampler, Text
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import Script, Scripted
from engine.server import Server
from tests.bench import send_message_transport
from tests.bench.harness import (
    MarkCounter,
    RawClient,
    ServerProcess,
    Spread,
    Verdicts,
    create,
    in_blocks,
    is_quick,
    ratio,
    server_process,
)

STREAMS = 16
TOKENS_PER_SECOND = 1000.0
FLOOD_STEP = 64
WORD = " token"
"""One token of the vocabulary."""
LIMITS = Limits(max_frames_per_second=100_000)
DELTA = b'{"type":"response.output_text.delta"'
COMPLETED = b'{"type":"response.completed"'
LOADS: Mapping[str, float | None] = {"paced": 1 / 4, "paced, 4 ms": None, "flood": 1 / 5}
"""Each load with its target, the ratio to `send_message`."""


# --- the server process --------------------------------------------------------------------------------------------


class SendMessageServer(Server):
    """The server with the transport exchanged."""

    async def serve(self, stream: trio.abc.Stream) -> None:
        """As the original, without its log."""
        async with send_message_transport.serve_transport(
            stream, self.engine.limits, self._admit, request_id="req_bench"
        ) as (transport, handshake):
            await self._serve_transport(transport, handshake)  # type: ignore[arg-type]  # the same protocol


def _tokens(prompt: Prompt) -> int:
    return int(prompt.model.removeprefix("simulated-"))


def _paced_script(prompt: Prompt) -> Script:
    return [[(Text(WORD * _tokens(prompt)), End())]]


def _flood_script(prompt: Prompt) -> Script:
    step = (Text(WORD),) * FLOOD_STEP
    return [[step] * (_tokens(prompt) // FLOOD_STEP) + [(End(),)]]


def _sampler(load: str) -> Sampler:
    if load == "flood":
        return Scripted(_flood_script)
    pace = Pace(tokens_per_second=TOKENS_PER_SECOND, first_token_seconds=0.02)
    tick_seconds = 0.004 if load == "paced, 4 ms" else LIMITS.tick_seconds
    return Paced(Scripted(_paced_script), pace, tick_seconds=tick_seconds)


async def start(nursery: trio.Nursery, _options: Any) -> Mapping[str, Callable[..., Any]]:
    """One server for each load and variant, all in one process."""
    ports = {}
    for load in LOADS:
        for variant, make in (("corked", Server), ("send_message", SendMessageServer)):
            server = make(Engine.make(_sampler(load), limits=LIMITS))
            listeners = await nursery.start(server.run, "127.0.0.1", 0)
            ports[load, variant] = listeners[0].socket.getsockname()[1]
    return {"port": lambda load, variant: ports[load, variant]}


# --- the client ----------------------------------------------------------------------------------------------------


def run_streams(server: ServerProcess, port: int, *, lanes: bool, tokens: int) -> float:
    """CPU microseconds of the server for each delta event."""
    clients = [RawClient(port) for _ in range(1 if lanes else STREAMS)]
    lane_names = [f"lane{number}" for number in range(STREAMS)] if lanes else [None]
    with server.cpu_seconds() as spent:
        for client in clients:
            for lane in lane_names:
                client.send({**create(stream_id=lane), "model": f"simulated-{tokens}"})
        count = _read_all(clients)
    for client in clients:
        client.close()
    assert count == STREAMS * tokens, f"{count} of {STREAMS * tokens} deltas arrived"
    return spent[0] / count * 1e6


def _read_all(clients: list[RawClient]) -> int:
    """Read until every rollout is complete; the number of deltas."""
    counters = [MarkCounter(DELTA, COMPLETED) for _ in clients]
    with selectors.DefaultSelector() as selector:
        for client, counter in zip(clients, counters, strict=True):
            selector.register(client.socket, selectors.EVENT_READ, (client, counter))
        while sum(counter.counts[COMPLETED] for counter in counters) < STREAMS:
            for key, _ in selector.select():
                client, counter = key.data
                counter.feed(client.read_some())
    return sum(counter.counts[DELTA] for counter in counters)


# --- the comparison ------------------------------------------------------------------------------------------------


def _compare(
    verdicts: Verdicts, server: ServerProcess, load: str, *, lanes: bool, tokens: int, blocks: int
) -> None:
    """Both variants, and one of them twice, in one layout."""
    ports = {variant: server.ask("port", load, variant) for variant in ("corked", "send_message")}
    variants = {**ports, "corked again": ports["corked"]}
    runs = {
        name: partial(run_streams, server, port, lanes=lanes, tokens=tokens)
        for name, port in variants.items()
    }
    measured = in_blocks(runs, blocks)
    what = f"{load}, {f'1 connection, {STREAMS} lanes' if lanes else f'{STREAMS} connections'}"
    print(f"\n{what}, {tokens} events a stream")
    for name, values in measured.items():
        print(f"      {name}: {Spread(tuple(values))} µs")
    print(f"      A/A ratio: {ratio(measured, 'corked again', 'corked')}")
    compared = ratio(measured, "corked", "send_message")
    print(f"      ratio corked/send_message: {compared}")
    target = LOADS[load]
    if target is not None:
        verdicts.at_most(f"{what}: ratio", compared.median, target)


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    blocks, paced, flood = (1, 64, 256) if quick else (5, 2000, 4096)
    verdicts = Verdicts(quick=quick)
    print(f"{STREAMS} streams, {blocks} blocks, server CPU µs/event: median (range)")
    with server_process(start) as server:
        for load in LOADS:
            for lanes in (False, True):
                tokens = flood if load == "flood" else paced
                _compare(verdicts, server, load, lanes=lanes, tokens=tokens, blocks=blocks)
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
