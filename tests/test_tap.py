"""The relay of a tap: bytes and order unchanged, ends handed on as they were, whoever dies; and the command around it."""

import errno
import signal
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

from engine.arguments import make_parser
from engine.client import connect
from engine.config import DEFAULT_LIMITS
from engine.engine import Engine
from engine.frames import TEXT, frame
from engine.samplers.registry import make_sampler
from engine.server import Server
from engine.tap.command import TapSettings, read_address, read_upstream
from engine.tap.notes import Notes
from engine.tap.relay import Tap
from engine.tap.sides import Side, StreamSide, Upstream
from engine.tap.traces import DialectTrace, TapTraces, TraceLog
from protocol import trace
from protocol.invariants import Checker, Violation
from tests.command import Running
from tests.http_peer import HttpPeer
from tests.test_tap_observer import CREATE, GET, UPGRADE, UPGRADED, answer
from tests.wire import simulate

TLS = Path(__file__).parent / "tls"
RESET = struct.pack("ii", 1, 0)
WAIT_SECONDS = 20


@attrs.frozen
class MemoryUpstream:
    """Hands the far ends of its connections to a test."""

    arrivals: trio.MemorySendChannel[trio.abc.Stream]
    told_host: str | None = None
    place: str = "memory"

    async def connect(self) -> Side:
        ours, theirs = trio.testing.memory_stream_pair()
        await self.arrivals.send(theirs)
        return StreamSide(ours)


class Kept:
    """Traces of a tap in a folder, and what was reported."""

    def __init__(self, folder: Path | None, profile: str = "any-server") -> None:
        self.folder = folder
        self.reported: list[Violation] = []
        self.traces = TapTraces(folder, profile, lambda found, _: self.reported.extend(found))

    def notes(self, **options: Any) -> Notes:
        return Notes(self.traces, trio.current_time, **options)

    def finish(self) -> dict[str, int]:
        """End the traces; events by form."""
        return {
            form: count for summary in self.traces.finish() for form, count in summary.events.items() if count
        }

    def forms(self) -> list[str]:
        return [path.stem for path in self.folder.iterdir()]

    def records(self, dialect: str) -> list[dict[str, Any]]:
        return read(self.folder / f"{dialect}.jsonl")[-1]

    def hooks(self, dialect: str) -> list[dict[str, Any]]:
        return [record["frame"] for record in self.records(dialect) if record["dir"] == "hook"]


def read(path: Path) -> list[list[dict[str, Any]]]:
    return [records for _, records in trace.read(path.read_bytes().splitlines())]


# --- bytes and order ---------------------------------------------------------------------------------------------------

chunks = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=80),
        st.sampled_from([GET, answer(b"{}"), frame(TEXT, b"{}"), UPGRADE % (b"", b""), UPGRADED % b""]),
    ),
    max_size=8,
)


@settings(max_examples=150)
@given(chunks, chunks)
def test_bytes_and_their_order_are_unchanged(up, down):
    """Whatever both sides say, in whatever pieces, arrives as it was said; and so do both ends."""

    async def scenario() -> tuple[bytes, bytes]:
        send, arrivals = trio.open_memory_channel(1)
        tap = Tap(MemoryUpstream(send), Kept(None).notes())
        client, ours = trio.testing.memory_stream_pair()
        heard: dict[str, bytes] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tap.serve, ours)
            server = await arrivals.receive()
            nursery.start_soon(say_all, client, up)
            nursery.start_soon(say_all, server, down)
            nursery.start_soon(hear_all, server, heard, "up")
            nursery.start_soon(hear_all, client, heard, "down")
        tap.notes.look()
        return heard["up"], heard["down"]

    assert simulate(scenario) == (b"".join(up), b"".join(down))


async def say_all(stream: Any, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        await stream.send_all(piece)
    await stream.send_eof()


async def hear_all(stream: Any, heard: dict[str, bytes], name: str) -> None:
    heard[name] = b"".join([bytes(data) async for data in stream])


def test_what_was_noted_is_read_in_the_order_of_the_line(tmp_path):
    """The question stands before its answer in the trace, though the notes are looked at later, all at once."""

    async def scenario() -> list[dict[str, Any]]:
        kept = Kept(tmp_path)
        send, arrivals = trio.open_memory_channel(1)
        tap = Tap(MemoryUpstream(send), kept.notes())
        client, ours = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tap.serve, ours)
            server = await arrivals.receive()
            for _ in range(3):
                await client.send_all(GET)
                await server.receive_some()
                await server.send_all(answer(b"{}"))
                await client.receive_some()
                await trio.sleep(1)
            await client.aclose()
            await server.aclose()
        tap.notes.look()
        kept.finish()
        return kept.records("http")

    records = simulate(scenario)
    assert [record["conn"] for record in records] == [f"c1.{n}" for n in (1, 2, 3) for _ in range(4)]
    assert [record["t"] for record in records] == [float(n) for n in (0, 1, 2) for _ in range(4)]


def test_a_connection_that_outruns_the_observer_is_relayed_and_no_longer_observed(tmp_path):
    """What does not fit among the notes passes all the same; the trace has a gap and then only the end."""

    async def scenario() -> bytes:
        kept = Kept(tmp_path)
        send, arrivals = trio.open_memory_channel(1)
        tap = Tap(MemoryUpstream(send), kept.notes(max_bytes=1000))
        client, ours = trio.testing.memory_stream_pair()
        heard: dict[str, bytes] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tap.serve, ours)
            server = await arrivals.receive()
            await say_all(client, [GET] * 50)
            await hear_all(server, heard, "up")
            await server.send_eof()
        tap.notes.look()
        kept.finish()
        return heard["up"]

    assert simulate(scenario) == GET * 50
    hooks = [record["frame"] for record in read(tmp_path / "http.jsonl")[0] if record["dir"] == "hook"]
    note = "the observer fell behind; the rest of this connection is not observed"
    opened = sum(hook["hook"] == "connection_open" for hook in hooks)
    assert 0 < opened < 50
    assert hooks[opened : 2 * opened] == [{"hook": "gap", "note": note}] * opened
    assert hooks[2 * opened :] == [{"hook": "connection_close", "by": "client"}] * opened


def test_an_observer_that_fails_does_not_break_the_relay(tmp_path, caplog):
    """A fault in here costs the rest of that connection's trace, not its bytes."""

    class FaultError(Exception):
        pass

    async def scenario() -> bytes:
        kept = Kept(tmp_path)
        send, arrivals = trio.open_memory_channel(1)
        tap = Tap(MemoryUpstream(send), kept.notes())
        client, ours = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tap.serve, ours)
            server = await arrivals.receive()
            await client.send_all(GET)
            await server.receive_some()
            tap.notes.look()
            tap.notes.add(next(iter(tap._links)).watch.observer, fail, "now")
            await server.send_all(answer(b"{}"))
            heard = await client.receive_some()
            await client.aclose()
            await server.aclose()
        tap.notes.look()
        kept.finish()
        return bytes(heard)

    def fail(_t: float, _word: str) -> None:
        raise FaultError

    assert simulate(scenario) == answer(b"{}")
    assert [record["frame"].get("note") for record in read(tmp_path / "http.jsonl")[0]][2:] == [
        "the observer failed; the rest of this connection is not observed",
        None,
    ]
    assert "the observer failed" in caplog.text


@settings(max_examples=80)
@given(st.integers(0, 400), st.sampled_from(["client", "server"]), st.booleans())
def test_either_side_may_die_at_any_point(cut, who, torn):
    """After any number of bytes: the other side hears what was said before, and the end; the trace names the dead."""
    create = frame(TEXT, orjson.dumps(CREATE), masked=True)
    said = [
        ("client", UPGRADE % (b"", b"")),
        ("server", UPGRADED % b""),
        ("client", create),
        ("server", frame(TEXT, b"{}")),
    ]

    async def scenario(folder: Path) -> list[dict[str, Any]]:
        kept, left = Kept(folder), cut
        send, arrivals = trio.open_memory_channel(1)
        tap = Tap(MemoryUpstream(send), kept.notes())
        client, ours = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tap.serve, ours)
            server = await arrivals.receive()
            ends = {"client": (client, server), "server": (server, client)}
            for speaker, whole in said:
                source, sink = ends[speaker]
                text, left = whole[:left], max(0, left - len(whole))
                await source.send_all(text)
                heard = b""
                while len(heard) < len(text):
                    heard += await sink.receive_some()
                assert heard == text
            dead, other = ends[who]
            if torn:  # in the middle of saying something
                await dead.send_all(b"\x81")
            await dead.aclose()
            assert await other.receive_some() == b"\x81" * torn
            assert await other.receive_some() == b"" or not torn
            await other.aclose()
        tap.notes.look()
        kept.finish()
        return [record for form in kept.forms() for record in kept.records(form)]

    with tempfile.TemporaryDirectory() as folder:
        records = simulate(scenario, Path(folder))
    ends = [record["frame"] for record in records if record["frame"].get("hook") == "connection_close"]
    assert [end["by"] for end in ends] in ([who], [])
    assert bool(ends) is any(record["frame"].get("hook") == "connection_open" for record in records)


# --- ends, over real sockets -------------------------------------------------------------------------------------------


class Ends:
    """Both far ends of one relayed connection, as plain sockets."""

    def __init__(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        self.client, self.server = client, server

    async def talk(self) -> None:
        """Up to the middle of a response over WebSocket."""
        await self.client.send_all(UPGRADE % (b"", b""))
        await self.heard(self.server, UPGRADE % (b"", b""))
        await self.server.send_all(UPGRADED % b"")
        await self.heard(self.client, UPGRADED % b"")
        create = frame(TEXT, orjson.dumps(CREATE), masked=True)
        await self.client.send_all(create)
        await self.heard(self.server, create)
        torn = frame(TEXT, b'{"type":"response.created"}')[:-3]
        await self.server.send_all(torn)
        await self.heard(self.client, torn)  # who closes with something unread resets

    async def heard(self, end: trio.SocketStream, data: bytes) -> None:
        got = b""
        while len(got) < len(data):
            got += await end.receive_some()
        assert got == data


@asynccontextmanager
async def relayed(
    kept: Kept, *, run: bool = True, **upstream: Any
) -> AsyncIterator[tuple[Tap, Callable[[], Awaitable[Ends]]]]:
    """A running tap, and a function that makes a connection through it."""
    [far] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    [near] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    tap = Tap(Upstream("127.0.0.1", port(far), **upstream), kept.notes())

    async def make() -> Ends:
        client = await trio.open_tcp_stream("127.0.0.1", port(near))
        return Ends(client, await far.accept())

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            await nursery.start(tap.run, [near])
            yield tap, make
            tap.drain()
    await far.aclose()


async def all_ended(tap: Tap) -> None:
    """Wait for the end of the connections."""
    while tap._links:  # noqa: ASYNC110  # only tests wait for it
        await trio.sleep(0.01)


def port(listener: trio.SocketListener) -> int:
    return listener.socket.getsockname()[1]


async def is_reset(end: trio.SocketStream) -> bool:
    """How does it end: with a reset, or as one does?"""
    try:
        while await end.receive_some():
            pass
    except trio.BrokenResourceError:
        return True
    finally:
        await end.aclose()
    return False


@pytest.mark.parametrize("who", ["client", "server"])
@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_side_that_dies_is_followed_by_the_other_and_others_go_on(who, how, tmp_path):
    """A reset is handed on as a reset, a hang-up as a hang-up; the trace says who; the next connection is served."""
    kept = Kept(tmp_path)
    async with relayed(kept) as (tap, make):
        ends, others = await make(), await make()
        await ends.talk()
        dying, other = (ends.client, ends.server) if who == "client" else (ends.server, ends.client)
        if how == "reset":
            dying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await dying.aclose()
        assert await is_reset(other) is (how == "reset")
        await other.aclose()
        await others.talk()
        await others.client.aclose()
        await others.server.aclose()
        await all_ended(tap)
        assert tap.connections == 2
    kept.finish()
    first = [record["frame"] for record in kept.records("create") if record["conn"] == "c1"]
    assert first[-1] == {"hook": "connection_close", "by": who, "code": 1006}


async def test_half_a_close_is_handed_on_as_half_a_close(tmp_path):
    """A client that says it has no more to say still hears the answer."""
    kept = Kept(tmp_path)
    async with relayed(kept) as (_, make):
        ends = await make()
        await ends.client.send_all(GET)
        await ends.client.send_eof()
        assert b"".join([bytes(data) async for data in ends.server]) == GET
        await ends.server.send_all(answer(b'{"a":1}'))
        await ends.server.aclose()
        assert b"".join([bytes(data) async for data in ends.client]) == answer(b'{"a":1}')
        await ends.client.aclose()
    kept.finish()
    assert kept.hooks("http") == [{"hook": "connection_open"}, {"hook": "connection_close", "by": "server"}]


async def test_who_does_not_read_stops_whom_it_does_not_read_from(tmp_path):
    """The tap keeps nothing back: a sender is held by a receiver that stands still, and everything arrives in the end."""
    whole = answer(b"x" * 30_000_000)
    async with relayed(Kept(None)) as (_, make):
        ends = await make()
        sent = False

        async def send() -> None:
            nonlocal sent
            await ends.server.send_all(whole)
            sent = True
            await ends.server.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(0.3)
            assert not sent
            assert b"".join([bytes(data) async for data in ends.client]) == whole
        await ends.client.aclose()


async def test_an_upstream_that_is_not_there_resets_the_client(caplog):
    """The client hears what it would hear from a dead server, and a line says why; the tap goes on."""
    [gone] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nowhere = port(gone)
    await gone.aclose()
    [near] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    tap = Tap(Upstream("127.0.0.1", nowhere), None)
    async with trio.open_nursery() as nursery:
        await nursery.start(tap.run, [near])
        for _ in range(2):
            assert await is_reset(await trio.open_tcp_stream("127.0.0.1", port(near)))
        tap.drain()
    assert caplog.text.count(f"no connection with 127.0.0.1:{nowhere}") == 2


async def test_more_connections_than_the_limit_are_reset(caplog):
    """Over the limit a connection is refused at once; below it again, the next one is served."""
    kept = Kept(None)
    async with relayed(kept) as (tap, make):
        tap.max_connections = 1
        first = await make()
        await first.talk()
        near = first.client.socket.getpeername()[1]
        assert await is_reset(await trio.open_tcp_stream("127.0.0.1", near))
        await first.client.aclose()
        await first.server.aclose()
        await all_ended(tap)
        last = await make()
        await last.talk()
        await last.client.aclose()
        await last.server.aclose()
    assert "more than 1 connections at once" in caplog.text


async def test_draining_lets_an_exchange_end_and_closes_what_waits(tmp_path):
    """A connection that waits for its next request is closed, one in the middle of an answer when that has ended."""
    kept = Kept(tmp_path)
    [far] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    [near] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    tap = Tap(Upstream("127.0.0.1", port(far)), kept.notes())
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(tap.run, [near], drain_seconds=WAIT_SECONDS))
            busy, waiting = [
                Ends(await trio.open_tcp_stream("127.0.0.1", port(near)), await far.accept())
                for _ in range(2)
            ]
            await busy.client.send_all(GET)
            await busy.heard(busy.server, GET)
            tap.drain()
            assert await waiting.client.receive_some() == b""
            await busy.server.send_all(answer(b'{"a":1}'))
            await busy.heard(busy.client, answer(b'{"a":1}'))
            assert await busy.client.receive_some() == b""
        for end in (busy.client, busy.server, waiting.client, waiting.server):
            await end.aclose()
    await far.aclose()
    kept.finish()
    assert [record["frame"].get("body") for record in kept.records("http")] == [None, None, {"a": 1}, None]


async def test_draining_waits_for_a_client_that_reads_slowly():
    """An answer that has come whole and is not yet passed on is passed on."""
    whole = answer(b"x" * 50_000)
    [far] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    [near] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    tap = Tap(Upstream("127.0.0.1", port(far)), Kept(None).notes())
    with trio.fail_after(WAIT_SECONDS), trio.socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(tap.run, [near], drain_seconds=WAIT_SECONDS))
            await narrow.connect(("127.0.0.1", port(near)))
            ends = Ends(trio.SocketStream(narrow), await far.accept())
            await ends.client.send_all(GET)
            await ends.heard(ends.server, GET)
            await ends.server.send_all(whole)
            await trio.sleep(0.1)
            tap.drain()
            await trio.sleep(0.2)
            assert b"".join([bytes(data) async for data in ends.client]) == whole
        await ends.server.aclose()
    await far.aclose()


# --- TLS ---------------------------------------------------------------------------------------------------------------


async def test_a_secure_upstream_is_checked_and_relayed(tmp_path, caplog):
    """TLS towards the upstream with its certificate checked, its name in Host, and the end handed on both ways."""
    kept = Kept(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    trusting = ssl.create_default_context(cafile=TLS / "cert.pem")
    async with relayed(kept, tls=trusting, told_host="upstream") as (tap, make):
        for first in ("client", "server"):
            ends = await make()
            server = trio.SSLStream(ends.server, serving, server_side=True, https_compatible=True)
            await ends.client.send_all(GET)
            assert await server.receive_some() == GET.replace(b"Host: a", b"Host: upstream")
            await server.send_all(answer(b'{"a":1}'))
            await ends.heard(ends.client, answer(b'{"a":1}'))
            if first == "client":
                await ends.client.aclose()
                assert await server.receive_some() == b""
                await server.aclose()
            else:
                await server.aclose()
                assert await ends.client.receive_some() == b""
                await ends.client.aclose()
        await all_ended(tap)
    kept.finish()
    assert [frame["body"] for frame in frames(kept, "http") if "body" in frame] == [{"a": 1}] * 2
    assert caplog.text == ""


def frames(kept: Kept, dialect: str) -> list[dict[str, Any]]:
    return [record["frame"] for record in kept.records(dialect)]


async def test_a_certificate_that_is_not_trusted_resets_the_client(caplog):
    """A server that cannot prove its name is not talked to; the reason is said."""
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    async with relayed(Kept(None), tls=ssl.create_default_context()) as (_, make):
        ends = await make()
        server = trio.SSLStream(ends.server, serving, server_side=True)
        with pytest.raises(trio.BrokenResourceError):
            await server.do_handshake()
        assert await is_reset(ends.client)
        await ends.server.aclose()
    assert "certificate verify failed" in caplog.text


# --- our own server, all forms -------------------------------------------------------------------------------------------

SAMPLER = "paced:rate=20000,first=0.001,calls=1"


async def now() -> str:
    return "noon"


async def test_our_server_behind_a_tap_breaks_no_rule_in_any_form(tmp_path):
    """Rollouts of all four forms through a tap, with the strictest profile: each is in its trace, none breaks a rule."""
    kept = Kept(tmp_path, "this-engine")
    server = Server(Engine.make(make_sampler(SAMPLER, DEFAULT_LIMITS)))
    [near] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(server.run, "127.0.0.1", 0)
            tap = Tap(Upstream("127.0.0.1", port(listeners[0])), kept.notes())
            await nursery.start(tap.run, [near])
            for form in ("append", "inject", "create", "http"):
                url = f"{'http' if form == 'http' else 'ws'}://127.0.0.1:{port(near)}/v1/responses"
                async with (
                    connect(url, form=form) as client,
                    client.rollout(model="m", input="time?", functions={"now": now}) as rollout,
                ):
                    assert (await rollout.wait_ended()).status == "completed"
            async with await trio.open_tcp_stream("127.0.0.1", port(near)) as stream:
                peer = HttpPeer(stream)
                tools = [{"type": "function", "name": "now", "parameters": {}}]
                first = (await peer.create(stream=True, tools=tools)).events[0][1]["response"]["id"]
                again = await peer.ask("GET", f"/v1/responses/{first}?stream=true&starting_after=2")
                assert again.events[0][1]["sequence_number"] == 3
                assert (await peer.create(tools=tools)).json["status"] == "completed"
            tap.drain()
            nursery.cancel_scope.cancel()
    events = kept.finish()
    assert kept.reported == []
    assert set(events) == {"append", "inject", "create", "http"}
    assert min(events.values()) > 10


async def test_an_upgrade_begins_no_trace_of_http(tmp_path):
    """Where only WebSocket passed there is one trace, and no empty one beside it."""
    kept = Kept(tmp_path, "this-engine")
    server = Server(Engine.make(make_sampler(SAMPLER, DEFAULT_LIMITS)))
    [near] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(server.run, "127.0.0.1", 0)
            tap = Tap(Upstream("127.0.0.1", port(listeners[0])), kept.notes())
            await nursery.start(tap.run, [near])
            url = f"ws://127.0.0.1:{port(near)}/v1/responses"
            async with (
                connect(url, form="create") as client,
                client.rollout(model="m", input="time?", functions={"now": now}) as rollout,
            ):
                assert (await rollout.wait_ended()).status == "completed"
            tap.drain()
            nursery.cancel_scope.cancel()
    assert set(kept.finish()) == {"create"}
    assert [path.stem for path in tmp_path.glob("*.jsonl")] == ["create"]


async def test_the_openai_sdk_does_not_notice_the_tap(tmp_path):
    """A streamed tool loop of the released SDK runs through a tap as without, and breaks no rule; its key is nowhere."""
    kept = Kept(tmp_path, "this-engine")
    key = "sk-0123456789abcdef0123"
    server = Server(Engine.make(make_sampler(SAMPLER, DEFAULT_LIMITS)), key=[key])
    tools = [{"type": "function", "name": "now", "parameters": {"type": "object"}, "strict": False}]
    [near] = await trio.open_tcp_listeners(0, host="127.0.0.1")

    def talk() -> str:
        with OpenAI(api_key=key, base_url=f"http://127.0.0.1:{port(near)}/v1", max_retries=0) as client:
            with client.responses.stream(model="m", input="time?", tools=tools) as first:
                made = first.get_final_response()
            outputs = [
                {"type": "function_call_output", "call_id": item.call_id, "output": "noon"}
                for item in made.output
                if item.type == "function_call"
            ]
            answered = client.responses.create(
                model="m", input=outputs, previous_response_id=made.id, tools=tools
            )
            assert outputs
            return answered.status

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(server.run, "127.0.0.1", 0)
            tap = Tap(Upstream("127.0.0.1", port(listeners[0])), kept.notes())
            await nursery.start(tap.run, [near])
            assert await trio.to_thread.run_sync(talk) == "completed"
            nursery.cancel_scope.cancel()
    assert kept.finish().keys() == {"http"}
    assert kept.reported == []
    statuses = [frame["status"] for frame in frames(kept, "http") if "status" in frame]
    assert statuses == [200, 200]
    assert key.encode() not in (tmp_path / "http.jsonl").read_bytes()


# --- the trace's file ------------------------------------------------------------------------------------------------------


def test_a_trace_is_added_behind_what_is_there(tmp_path):
    """A second run adds a trace; a line that a power cut tore is cut off, or the file could not be read."""
    for text in (b"first", b"second"):
        log = TraceLog(tmp_path / "x.jsonl")
        log.append(trace.header_line(dialect="http", source="a test"))
        log.append(trace.record_line(0.0, "c1", "out", {"type": text.decode()}))
        log.close()
        with (tmp_path / "x.jsonl").open("ab") as file:
            file.write(b'{"t":1,"torn' + b"x" * 100_000)
    TraceLog(tmp_path / "x.jsonl").close()
    assert [[record["frame"]["type"] for record in records] for records in read(tmp_path / "x.jsonl")] == [
        ["first"],
        ["second"],
    ]
    assert (tmp_path / "x.jsonl").stat().st_mode & 0o077 == 0


def test_a_file_of_nothing_but_a_torn_line_is_emptied(tmp_path):
    """What holds no whole line holds nothing."""
    (tmp_path / "x.jsonl").write_bytes(b"x" * 200_000)
    TraceLog(tmp_path / "x.jsonl").close()
    assert (tmp_path / "x.jsonl").read_bytes() == b""


def test_two_taps_do_not_write_to_one_file(tmp_path):
    """The second one is told so."""
    log = TraceLog(tmp_path / "x.jsonl")
    with pytest.raises(OSError, match="is being written by another tap"):
        TraceLog(tmp_path / "x.jsonl")
    log.close()


def test_a_trace_says_that_it_is_complete_only_at_its_end(tmp_path):
    """A tap that was killed leaves a readable trace whose end is not judged."""
    kept = Kept(tmp_path)
    kept.traces.of("http").hook(0.5, "c1", "connection_open")
    kept.traces.flush()
    lines = (tmp_path / "http.jsonl").read_bytes().splitlines()
    assert (orjson.loads(lines[0])["complete"], len(lines)) == (False, 2)
    kept.finish()
    lines = (tmp_path / "http.jsonl").read_bytes().splitlines()
    assert (orjson.loads(lines[0])["complete"], len(lines)) == (True, 2)


def test_a_checker_that_fails_does_not_stop_the_recording(tmp_path, caplog):
    """What follows is recorded and not checked, and that is said."""

    class Broken(Checker):
        def feed(self, record: Any) -> Any:
            raise RuntimeError(record["frame"]["n"])

    log = TraceLog(tmp_path / "x.jsonl")
    broken = DialectTrace({"trace": 1}, log, Broken({"dialect": "http"}), lambda *_: None)
    for n in range(3):
        broken.say(0.0, "c1", "out", frame={"n": n})
    broken.finish()
    assert [record["frame"]["n"] for record in read(tmp_path / "x.jsonl")[0]] == [0, 1, 2]
    assert caplog.text.count("the checker failed") == 1


def test_a_full_disk_does_not_stop_the_checking(tmp_path, caplog):
    """A trace that cannot be written is given up, with a line; its events are checked on."""

    class FullDisk(TraceLog):
        def append(self, lines: bytes) -> int:
            raise OSError(errno.ENOSPC, "no space left")

    checker = Checker({"dialect": "http", "directions": ["out"]})
    full = DialectTrace({"trace": 1}, FullDisk(tmp_path / "x.jsonl"), checker, lambda *_: None)
    full.frame(0.0, "c1", "out", b'{"type":"response.created","response":{"id":"a"}}')
    full.flush()
    full.finish()
    assert checker.summary().records == 1
    assert caplog.text.count("cannot write the trace any more") == 1


# --- the command -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:8787", ("127.0.0.1", 8787)),
        ("8787", ("127.0.0.1", 8787)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_an_address_has_a_port(text, place):
    """Host and port; a port alone is one of this machine."""
    assert read_address(text) == place


@pytest.mark.parametrize("text", ["127.0.0.1", "host:", "host:65536", "host:-1", "host:http"])
def test_an_address_without_a_port_is_refused(text):
    """The message says what to write."""
    with pytest.raises(ValueError, match="write HOST:PORT"):
        read_address(text)


@pytest.mark.parametrize(
    ("url", "host", "place", "secure", "told"),
    [
        ("http://127.0.0.1:8080", None, "127.0.0.1:8080", False, None),
        ("ws://localhost", None, "localhost:80", False, None),
        ("http://[::1]:1/", None, "::1:1", False, None),
        ("https://api.openai.com", None, "api.openai.com:443", True, "api.openai.com"),
        ("wss://a.example:8443/", None, "a.example:8443", True, "a.example:8443"),
        ("https://api.openai.com", "keep", "api.openai.com:443", True, None),
        ("http://127.0.0.1:8080", "upstream", "127.0.0.1:8080", False, "127.0.0.1:8080"),
    ],
)
def test_an_upstream_away_from_here_is_called_by_its_name(url, host, place, secure, told):
    """Requests are left as they are for this machine, and name the upstream else; `--host` overrides."""
    upstream = read_upstream(url, host)
    assert (upstream.place, upstream.tls is not None, upstream.told_host) == (place, secure, told)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("api.openai.com", "is no http, https, ws or wss URL"),
        ("ftp://a", "is no http, https, ws or wss URL"),
        ("https://", "is no http, https, ws or wss URL"),
        ("https://a:b", "Port could not be cast"),
        ("https://api.openai.com/v1", "write https://api.openai.com$"),
        ("https://user:key@a:1", "write https://a:1$"),
        ("https://a?key=1", "write https://a$"),
    ],
)
def test_an_upstream_is_a_host_and_a_port(url, message):
    """Anything else is refused, with what to write instead; a key in the URL is not repeated there."""
    with pytest.raises(ValueError, match=message):
        read_upstream(url, None)


def test_the_folder_of_the_trace_is_made_for_its_owner(tmp_path):
    """It holds prompts and answers."""
    words = ["tap", "--listen", "0", "--upstream", "http://127.0.0.1:1", "--trace", str(tmp_path / "a" / "b")]
    settings = TapSettings.read(make_parser().parse_args(words), colour=False)
    assert settings.trace.stat().st_mode & 0o077 == 0


def test_a_folder_that_another_tap_writes_to_is_refused_at_the_start(tmp_path):
    """Not when the first request comes."""
    log = TraceLog(tmp_path / "create.jsonl")
    words = ["tap", "--listen", "0", "--upstream", "http://127.0.0.1:1", "--trace", str(tmp_path)]
    with pytest.raises(OSError, match="is being written by another tap"):
        TapSettings.read(make_parser().parse_args(words), colour=False)
    log.close()


def ask_through(listener: socket.socket, place: tuple[str, int], reply: bytes) -> bytes:
    """One exchange through a running tap."""
    with socket.create_connection(place, WAIT_SECONDS) as client:
        client.sendall(GET)
        server, _ = listener.accept()
        with server:
            assert server.recv(1 << 16) == GET
            server.sendall(reply)
        heard = b""
        while data := client.recv(1 << 16):
            heard += data
    return heard


CREATED = {
    "type": "response.created",
    "sequence_number": 0,
    "response": {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": "m",
        "previous_response_id": None,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    },
}
STREAM = b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize(
    ("number", "last", "code", "said"),
    [
        (signal.SIGTERM, None, 3, "nothing was checked"),
        (signal.SIGINT, 1, 0, "no violation"),
        (signal.SIGTERM, 7, 1, "N1"),
    ],
)
def test_the_command_relays_reports_and_ends_with_a_code(number, last, code, said, tmp_path):
    """0 if events were in order, 1 if not, 3 if there were none; the violation is said while it runs, the totals at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_SECONDS)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Running(
            "tap", "--listen", "127.0.0.1:0", "--upstream", url, "--trace", str(tmp_path)
        ) as command:
            line = command.line_with("tap on http://127.0.0.1:")
            place = ("127.0.0.1", int(line.split(",")[0].rpartition(":")[2]))
            if last is not None:
                done = {"type": "response.failed", "sequence_number": last}
                done["response"] = {
                    **CREATED["response"],
                    "status": "failed",
                    "error": {"code": "server_error", "message": "x"},
                }
                text = [
                    b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
                    for event in (CREATED, done)
                ]
                reply = STREAM + b"".join([*text, b"data: [DONE]\n\n"])
                assert ask_through(listener, place, reply) == reply
            if code == 1:
                command.line_with("  N1  record 5  conn c1.1")
            command.signal(number)
            ended, rest, errors = command.ended()
    assert (ended, errors) == (code, "")
    assert said in rest
    assert ("draining" in rest) is (number == signal.SIGTERM)
    assert ("1 connection\n" in rest) is (last is not None)
    assert [path.name for path in tmp_path.iterdir()] == (["http.jsonl"] if last is not None else [])


def test_as_json_only_objects_are_said(tmp_path):
    """With --json every line is an object; the last one has the totals."""
    with Running("tap", "--json", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1") as command:
        command.error_line_with("tap on http://127.0.0.1:")
        command.signal(signal.SIGINT)
        _, rest, _ = command.ended()
    assert [list(orjson.loads(line)) for line in rest.splitlines()] == [["summary"]]
