"""Server CPU for each event: the corked stream against `send_message`, and against bare bytes that are just written.

Workload: 16 rollouts at once write text deltas, one event a token; a delta frame is about 250 bytes.
*paced*: 1,000 tokens/s each (`Paced`, one shared ticker); at the default tick of 8 ms a stream's step has 8 tokens.
*paced, 2 ms*: the same at a tick of 2 ms, so with 2 tokens a step.
*flood*: a scripted sampler with 64 tokens a step and a checkpoint between steps: as fast as it goes.
Two layouts: 16 connections with one rollout, and one connection with 16 lanes.

Variants: one engine, one sampler, one ticker, the same steps; only `serve_transport` is exchanged.
*corked* is the engine as it is. *send_message* has one writer task a connection that awaits
`WebSocketConnection.send_message` for each event. The ticker pushes the steps in both.
*raw*: the server process writes as many frames of the same bytes to blocking sockets, and the client drains. Nothing is
sampled, numbered, encoded, framed or counted there. Of a flood it is one `send` a frame, in turn where there are 16
sockets; paced it is a sleep until each tick, and then one `send` a socket: what no server with these ticks can save.
*corked again* is the A/A run: its ratio to *corked* shows what the noise is.

Contract of all but *raw*: a step's events are queued and numbered without waiting; after each step a rollout waits if
its connection holds more than `outbox_high_water_bytes` (64 KiB) unsent, until half of that is left; nobody else waits.
*raw* has another contract: a full socket stops the writer, and each frame is a system call of its own, which *corked*
makes once a step. So that ratio says what an event costs when it is made, sent and bounded, in units of handing it over.

Paced figures hold the wake of each tick and, with 16 connections, 16 writes a tick: an event's share of both falls with
the tokens in a step. They are marked by what else runs on the machine; compare ratios only.

CPU time is that of the server process (user and system) from before the creates until all terminal events have arrived,
divided by the delta events; so it holds 16 pre- and post-inferences and the sampler as well, equally in all but *raw*.
All events are counted at the client, of *raw* the bytes, by a thread for each socket.
Collector: default, a full collection before each measurement.

Not measured: TLS, a real network, latency, other libraries, inbound frames.
"""

import selectors
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import attrs
import trio

from engine.config import Limits
from engine.engine import Engine
from engine.frames import TEXT, frame
from engine.samplers.base import End, Prompt, Sampler, Text
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import Script, Scripted
from engine.server import Server
from protocol.dialects import APPEND
from protocol.events import OutputTextDelta, Response, ResponseCreated
from protocol.session import ServerSession
from tests.bench import send_message_transport
from tests.bench.harness import (
    MarkCounter,
    Question,
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
RAW_TARGET: Final = 3.0
"""Flood: times a raw socket write."""


@attrs.frozen
class Load:
    """What the model does, and the ratio to `send_message` to be reached."""

    target: float
    tick_seconds: float | None = None
    """None: as fast as it goes."""

    @property
    def is_flood(self) -> bool:
        """Is there nothing to wait for?"""
        return self.tick_seconds is None


LOADS: Final[Mapping[str, Load]] = {
    "paced": Load(1 / 4, LIMITS.tick_seconds),
    "paced, 2 ms": Load(1 / 8, 0.002),
    "flood": Load(1 / 5),
}


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


def _sampler(load: Load) -> Sampler:
    if load.tick_seconds is None:
        return Scripted(_flood_script)
    pace = Pace(tokens_per_second=TOKENS_PER_SECOND, first_token_seconds=0.02)
    return Paced(Scripted(_paced_script), pace, tick_seconds=load.tick_seconds)


def _servers(load: Load) -> Mapping[str, Server]:
    """The variants, but for *raw*."""
    return {
        "corked": Server(Engine.make(_sampler(load), limits=LIMITS)),
        "send_message": SendMessageServer(Engine.make(_sampler(load), limits=LIMITS)),
    }


async def start(nursery: trio.Nursery, _options: Any) -> Mapping[str, Question]:
    """One server for each load and variant, all in one process, and a listener for *raw*."""
    ports = {}
    for name, load in LOADS.items():
        for variant, server in _servers(load).items():
            listeners = await nursery.start(server.run, "127.0.0.1", 0)
            ports[name, variant] = listeners[0].socket.getsockname()[1]
    listener = socket.create_server(("127.0.0.1", 0))
    return {
        "ports": lambda load: {variant: port for (name, variant), port in ports.items() if name == load},
        "raw_port": lambda: listener.getsockname()[1],
        "write_raw": partial(_write_raw, listener),
    }


def _write_raw(
    listener: socket.socket, sockets: int, frames: int, lane: str | None, tick_seconds: float | None
) -> int:
    """Accept so many, write so many frames in turn, hang up; the size of a frame."""
    data = _delta_frame(lane)
    accepted = [listener.accept()[0] for _ in range(sockets)]
    for one in accepted:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    at_once = 1
    if tick_seconds is not None:
        at_once = round(TOKENS_PER_SECOND * tick_seconds) * STREAMS // sockets
    due = time.monotonic()
    for _ in range(frames // sockets // at_once):
        if tick_seconds is not None:
            due += tick_seconds
            time.sleep(max(0.0, due - time.monotonic()))
        for one in accepted:
            one.sendall(data * at_once)
    for one in accepted:
        one.close()
    return len(data)


def _opening(_agent: Any, item_id: str, index: int) -> tuple[OutputTextDelta]:
    return (OutputTextDelta(item_id, index, 0, ""),)


def _delta_frame(lane: str | None) -> bytes:
    """A frame as the engine sends it."""
    engine = Engine.make(Scripted([]))
    record = ServerSession(append=True).open(engine.new_id("resp"), APPEND, lane)
    record.send(ResponseCreated(Response(record.response_id, 0, "simulated")))
    _, _, write = record.open(_opening, engine.new_id("msg"), 0)
    return frame(TEXT, write([WORD])[0])


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


def run_raw(server: ServerProcess, tick_seconds: float | None, *, lanes: bool, tokens: int) -> float:
    """CPU microseconds of the server for each frame that it just writes."""
    sockets, lane, frames = (1, "lane0", STREAMS * tokens) if lanes else (STREAMS, None, STREAMS * tokens)
    address = "127.0.0.1", server.ask("raw_port")
    with ThreadPoolExecutor(sockets) as pool, server.cpu_seconds() as spent:
        arrived = [pool.submit(_drain, socket.create_connection(address)) for _ in range(sockets)]
        size_bytes = server.ask("write_raw", sockets, frames, lane, tick_seconds)
        count_bytes = sum(one.result() for one in arrived)
    assert count_bytes == frames * size_bytes, f"{count_bytes} of {frames} x {size_bytes} bytes arrived"
    return spent[0] / frames * 1e6


def _drain(one: socket.socket) -> int:
    """Read to the end; the number of bytes. Nothing else: a writer that wakes its reader for each frame costs more."""
    count_bytes, unread = 0, bytearray(1 << 16)
    with one:
        while read_bytes := one.recv_into(unread):
            count_bytes += read_bytes
    return count_bytes


# --- the comparison ------------------------------------------------------------------------------------------------


def _compare(
    verdicts: Verdicts, server: ServerProcess, name: str, *, lanes: bool, tokens: int, blocks: int
) -> None:
    """All variants, and one of them twice, in one layout."""
    load, ports = LOADS[name], server.ask("ports", name)
    runs = {
        variant: partial(run_streams, server, port, lanes=lanes, tokens=tokens)
        for variant, port in {**ports, "corked again": ports["corked"]}.items()
    }
    runs["raw"] = partial(run_raw, server, load.tick_seconds, lanes=lanes, tokens=tokens)
    measured = in_blocks(runs, blocks)
    what = f"{name}, {f'1 connection, {STREAMS} lanes' if lanes else f'{STREAMS} connections'}"
    print(f"\n{what}, {tokens} events a stream")
    for variant, values in measured.items():
        print(f"      {variant}: {Spread(tuple(values))} µs")
    print(f"      A/A ratio: {ratio(measured, 'corked again', 'corked')}")
    for reference in sorted(measured.keys() - {"corked", "corked again"}):
        print(f"      ratio corked/{reference}: {ratio(measured, 'corked', reference)}")
    if not load.is_flood:
        print(
            f"      ratio raw/send_message, which nobody can pass: {ratio(measured, 'raw', 'send_message')}"
        )
    compared = ratio(measured, "corked", "send_message").median
    verdicts.at_most(f"{what}: ratio to send_message", compared, load.target)
    if load.is_flood:
        verdicts.at_most(f"{what}: ratio to raw", ratio(measured, "corked", "raw").median, RAW_TARGET)


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    blocks, paced, flood = (1, 64, 256) if quick else (5, 2000, 4096)
    verdicts = Verdicts(quick=quick)
    print(f"{STREAMS} streams, {blocks} blocks, server CPU µs/event: median (range)")
    with server_process(start) as server:
        for name, load in LOADS.items():
            for lanes in (False, True):
                tokens = flood if load.is_flood else paced
                _compare(verdicts, server, name, lanes=lanes, tokens=tokens, blocks=blocks)
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
