"""CPU for each event of a relay that watches, against a plain relay.

The relays are in one process, which is asked for its CPU time (user and system, all threads): parsing, checking,
writing the trace to a file and the task switches are all in it; nothing is done elsewhere.
Upstream and clients are the measuring process: it plays prepared bytes and counts what arrives.

Relays:
*plain*: the usual few lines of trio, two tasks a connection: `receive_some`, `send_all`. The target is about this one.
*bare*: the relay of the tap with nobody watching. What is between *bare* and *tap* is the price of watching.
*tap*: with a trace and the checker (profile `any-server`). *tap again* is the A/A run.

Loads: 16 connections, each one response of text deltas, a delta event is about 250 bytes.
*one event a wake*: the next event of a connection is sent when the last one has arrived, as a model's tokens come one by
one; over WebSocket and over HTTP (a chunk for each event).
*8 events a wake*: 8 are sent together, as from a server that works in steps of 8 ms. A plain relay costs the same for
8 events as for one, reading them does not; shown without a target.

Not measured: TLS, compressed frames, latency, a real network.
"""

import selectors
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import orjson
import trio

from engine.check.report import Totals
from engine.frames import TEXT, frame
from engine.tap.notes import Notes
from engine.tap.relay import Tap
from engine.tap.sides import Upstream
from engine.tap.traces import TapTraces
from tests.bench.harness import (
    SHED_SECONDS,
    ServerProcess,
    Spread,
    Verdicts,
    in_blocks,
    is_quick,
    ratio,
    server_process,
    text_frame,
)

CONNECTIONS = 16
TARGET = 1.2
PROFILE = "any-server"
EVENTS_AROUND = 9
"""Of a response, besides its deltas."""


# --- the relays ------------------------------------------------------------------------------------------------------


class PlainRelay:
    """What a person would write."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def serve(self, client: trio.SocketStream) -> None:
        """Relay one connection."""
        server = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self._carry, client, server)
            nursery.start_soon(self._carry, server, client)

    async def _carry(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        while data := await source.receive_some():
            await sink.send_all(data)
        await sink.send_eof()


async def start(nursery: trio.Nursery, options: tuple[int, str]) -> Mapping[str, Callable[..., Any]]:
    """All relays, in one process, to one upstream; and what the watching one has seen."""
    upstream_port, folder = options
    upstream = Upstream("127.0.0.1", upstream_port)
    totals = Totals()
    traces = TapTraces(
        Path(folder), PROFILE, lambda found, _: totals.violations.update(v.rule for v in found)
    )
    tap = Tap(upstream, Notes(traces))
    bare = Tap(upstream, None)
    ports = {}
    for name, serve in (("plain", PlainRelay(upstream_port).serve), ("bare", bare.serve), ("tap", tap.serve)):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        ports[name] = listeners[0].socket.getsockname()[1]
    assert tap.notes is not None
    nursery.start_soon(tap.notes.run)

    def look() -> None:
        assert tap.notes is not None
        tap.notes.look()

    def totals_of_traces() -> tuple[dict[str, int], dict[str, int]]:
        for summary in traces.finish():
            totals.add(summary)
        return dict(totals.events), dict(totals.violations)

    return {"port": ports.__getitem__, "look": look, "totals": totals_of_traces}


# --- what passes -------------------------------------------------------------------------------------------------------


def events(response: str, deltas: int) -> Iterator[dict[str, Any]]:
    """A response of one message, in order."""
    message = f"msg_{response}"
    shared = {"object": "response", "created_at": 1_800_000_000, "model": "m", "previous_response_id": None}
    empty = {**shared, "id": response, "error": None, "incomplete_details": None, "output": [], "usage": None}
    place = {"item_id": message, "output_index": 0, "content_index": 0}
    text = " token" * deltas
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": message, "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": deltas,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": deltas + 1,
    }
    made: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**empty, "status": "in_progress"}},
        {"type": "response.in_progress", "response": {**empty, "status": "in_progress"}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        *(
            {"type": "response.output_text.delta", **place, "delta": " token", "logprobs": []}
            for _ in range(deltas)
        ),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {
            "type": "response.completed",
            "response": {**empty, "status": "completed", "output": [item], "usage": usage},
        },
    ]
    for number, event in enumerate(made):
        yield {**event, "sequence_number": number}


CREATE = {"type": "response.create", "model": "m", "input": "hi"}
UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


@attrs.frozen
class Talk:
    """What passes over one connection: question and answer by turns, and a last answer in many pieces."""

    turns: Sequence[tuple[bytes, bytes]]
    question: bytes
    pieces: Sequence[bytes]


def websocket_talk(response: str, deltas: int) -> Talk:
    """Over WebSocket."""
    frames = [frame(TEXT, orjson.dumps(event)) for event in events(response, deltas)]
    return Talk([(UPGRADE, UPGRADED)], text_frame(CREATE), frames)


def http_talk(response: str, deltas: int) -> Talk:
    """Over HTTP, a chunk for each event."""
    body = orjson.dumps({"model": "m", "input": "hi", "stream": True})
    head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    chunks = [_chunk(event) for event in events(response, deltas)]
    chunks[0] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunks[0]
    )
    chunks[-1] += b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    return Talk([], head + b"%d\r\n\r\n" % len(body) + body, chunks)


def _chunk(event: Mapping[str, Any]) -> bytes:
    text = b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
    return b"%x\r\n%b\r\n" % (len(text), text)


# --- the two ends ------------------------------------------------------------------------------------------------------


class Ends:
    """Both ends of one relayed connection; the next piece is sent when the last one has arrived."""

    def __init__(self, listener: socket.socket, relay_port: int, talk: Talk, at_once: int) -> None:
        self.client = socket.create_connection(("127.0.0.1", relay_port), timeout=SHED_SECONDS)
        self.upstream, _ = listener.accept()
        for end in (self.client, self.upstream):
            end.settimeout(SHED_SECONDS)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for question, answer in (*talk.turns, (talk.question, b"")):
            self.client.sendall(question)
            _read(self.upstream, len(question))
            self.upstream.sendall(answer)
            _read(self.client, len(answer))
        pieces = talk.pieces
        self._pieces = iter([b"".join(pieces[at : at + at_once]) for at in range(0, len(pieces), at_once)])
        self._to_come = 0
        self.next()

    def next(self) -> bool:
        """Send the next piece; False: there is none."""
        piece = next(self._pieces, b"")
        self._to_come = len(piece)
        self.upstream.sendall(piece)
        return bool(piece)

    def arrived(self) -> bool:
        """Read what came; is the piece whole?"""
        data = self.client.recv(1 << 18)
        assert data, "the relay hung up"
        self._to_come -= len(data)
        return self._to_come == 0

    def close(self) -> None:
        """Hang up, the client first."""
        self.client.close()
        assert self.upstream.recv(1) == b"", "the relay did not hang up"
        self.upstream.close()


def _read(end: socket.socket, size: int) -> None:
    while size:
        data = end.recv(size)
        assert data, "the relay hung up"
        size -= len(data)


def run(
    server: ServerProcess,
    listener: socket.socket,
    relay: str,
    make: Callable[[str, int], Talk],
    at_once: int,
    deltas: int,
) -> float:
    """CPU microseconds of the relay for each event."""
    port = server.ask("port", relay)
    run.count += 1  # type: ignore[attr-defined]  # ids are never used twice
    talks = [make(f"resp_{run.count}_{number}", deltas) for number in range(CONNECTIONS)]  # type: ignore[attr-defined]
    with server.cpu_seconds() as spent:
        ends = [Ends(listener, port, talk, at_once) for talk in talks]
        with selectors.DefaultSelector() as selector:
            for each in ends:
                selector.register(each.client, selectors.EVENT_READ, each)
            going = len(ends)
            while going:
                for key, _ in selector.select(SHED_SECONDS):
                    if key.data.arrived() and not key.data.next():
                        going -= 1
        for each in ends:
            each.close()
        server.ask("look")
    return spent[0] / (CONNECTIONS * len(talks[0].pieces)) * 1e6


run.count = 0  # type: ignore[attr-defined]


# --- the comparison ------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    blocks, deltas = (1, 64) if quick else (5, 1000)
    verdicts = Verdicts(quick=quick)
    print(f"{CONNECTIONS} connections, {blocks} blocks, CPU of the relay's process µs/event: median (range)")
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        options = (listener.getsockname()[1], folder)
        with server_process(start, options) as server:
            for what, make, at_once in (
                ("WebSocket, one event a wake", websocket_talk, 1),
                ("HTTP, one event a wake", http_talk, 1),
                ("WebSocket, 8 events a wake", websocket_talk, 8),
                ("HTTP, 8 events a wake", http_talk, 8),
            ):
                relays = {"plain": "plain", "bare": "bare", "tap": "tap", "tap again": "tap"}
                runs = {
                    name: partial(run, server, listener, relay, make, at_once, deltas)
                    for name, relay in relays.items()
                }
                measured = in_blocks(runs, blocks)
                print(f"\n{what}, {deltas + EVENTS_AROUND - 1} events a connection")
                for name, values in measured.items():
                    print(f"      {name}: {Spread(tuple(values))} µs")
                print(f"      A/A ratio: {ratio(measured, 'tap again', 'tap')}")
                print(f"      ratio tap/bare: {ratio(measured, 'tap', 'bare')}")
                compared = ratio(measured, "tap", "plain")
                print(f"      ratio tap/plain: {compared}")
                if at_once == 1:
                    verdicts.at_most(f"{what}: ratio to a plain relay", compared.median, TARGET)
            seen, violations = server.ask("totals")
        print(f"\nthe tap checked {sum(seen.values()):,} events: {violations or 'no violation'}")
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
