"""engine.transport: both roles over the real library, in virtual time but for one connection over loopback."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Limits
from engine.transport import (
    ClientTransport,
    Handshake,
    HandshakeFailed,
    HandshakeRejected,
    Refusal,
    ServerTransport,
    TransportClosed,
    connect_transport,
    serve_transport,
)
from tests.bench import send_message_transport
from tests.wire import CLOSE, CONTINUATION, FINAL, PING, PONG, REQUEST, TEXT, WirePeer, client_frame, simulate

LIMITS = Limits()
URL = "ws://localhost/v1/responses?model=m"


def admit_all(_handshake: Handshake) -> Refusal | None:
    return None


async def echo(transport: ServerTransport) -> None:
    """Answer each text with itself."""
    while True:
        transport.send_nowait((await transport.receive()).encode())
        transport.flush()


async def echo_at_once(transport: ServerTransport) -> None:
    """The same, in the library's task where a message need not pass through the library."""

    def answer(text: bytes) -> None:
        transport.send_nowait(text)
        transport.flush()

    transport.take_messages(answer)
    await echo(transport)


ECHOES = pytest.mark.parametrize("behaviour", [echo, echo_at_once])


class Server:
    """One served connection: what happened to it."""

    def __init__(
        self,
        behaviour: Callable[[ServerTransport], Awaitable[None]] = echo,
        limits: Limits = LIMITS,
        admit: Callable[[Handshake], Refusal | None] = admit_all,
    ) -> None:
        self.behaviour, self.limits, self.admit = behaviour, limits, admit
        self.handshake: Handshake | None = None
        self.end: tuple[int | None, str] | None = None
        self.failure: str | None = None
        self.ended_at: float | None = None

    async def run(self, stream: trio.abc.Stream) -> None:
        try:
            async with serve_transport(stream, self.limits, self.admit, request_id="req-1") as (
                transport,
                handshake,
            ):
                self.handshake = handshake
                await self.behaviour(transport)
        except TransportClosed as closed:
            self.end = (closed.code, closed.reason)
        except HandshakeFailed as failed:
            self.failure = failed.reason
        self.ended_at = trio.current_time()


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[trio.abc.HalfCloseableStream]:
    """The client's end of a connection to `server`."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, ours)
        yield theirs
        await theirs.aclose()


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[ClientTransport]:
    """A client connected to `server`."""
    async with serving(server) as stream, connect_transport(URL, [], server.limits, stream) as client:
        yield client


# --- messages and handshake -----------------------------------------------------------------------------------------


@ECHOES
@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 1_000_000])
async def test_messages_travel_both_ways(
    size: int, behaviour: Callable[[ServerTransport], Awaitable[None]], autojump_clock: trio.testing.MockClock
) -> None:
    """A text of each length form arrives masked at the server and unmasked at the client."""
    async with connected(Server(behaviour)) as client:
        client.send_nowait(b"e" * size)
        client.flush()
        assert await client.receive() == "e" * size


async def test_what_the_client_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    """Path, first query values, lower-case headers and proposed subprotocols reach the server; the id comes back."""
    server = Server()
    async with serving(server) as stream:
        peer = WirePeer(stream)
        head = await peer.upgrade(b"OpenAI-Beta: a=1\r\nopenai-beta: b=2\r\nSec-WebSocket-Protocol: p, q\r\n")
    assert server.handshake is not None
    assert (server.handshake.path, server.handshake.query) == ("/v1/responses", {"model": "m", "empty": ""})
    assert server.handshake.header_values("OpenAI-Beta") == ["a=1", "b=2"]
    assert server.handshake.header_values("sec-websocket-protocol") == ["p, q"]
    assert b"\r\nx-request-id: req-1\r\n" in head


async def test_nothing_is_negotiated(autojump_clock: trio.testing.MockClock) -> None:
    """Offered extensions and subprotocols are ignored: a plain 101."""
    async with serving(Server()) as stream:
        head = await WirePeer(stream).upgrade(
            b"Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: p\r\n"
        )
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"extensions" not in head.lower()
    assert b"sec-websocket-protocol" not in head.lower()


async def test_a_refusal_reaches_the_client(autojump_clock: trio.testing.MockClock) -> None:
    """Status, body and headers of a refusal, with the request id, are raised at the client; the server knows too."""
    server = Server(
        admit=lambda _handshake: Refusal(401, b'{"error":1}', (("content-type", "application/json"),))
    )
    async with serving(server) as stream:
        with pytest.raises(HandshakeRejected) as rejected:
            async with connect_transport(URL, [], LIMITS, stream):
                pytest.fail("refused")
    assert (rejected.value.status, rejected.value.body) == (401, b'{"error":1}')
    assert ("x-request-id", "req-1") in rejected.value.headers
    assert ("content-type", "application/json") in rejected.value.headers
    assert server.failure == "refused with status 401"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(
            REQUEST + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", b"400", id="repeated key"
        ),
        pytest.param(REQUEST + b"Content-Length: 5\r\n\r\n", b"400", id="a body of 5 bytes"),
        pytest.param(REQUEST + b"Transfer-Encoding: chunked\r\n\r\n", b"400", id="a chunked body"),
        pytest.param(REQUEST.replace(b"GET", b"POST") + b"\r\n", b"400", id="POST"),
        pytest.param(REQUEST.replace(b"Version: 13", b"Version: 12") + b"\r\n", b"426", id="old version"),
        pytest.param(b"garbage\r\n\r\n", b"400", id="no HTTP"),
    ],
)
async def test_bad_requests(
    request_bytes: bytes, status: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """Each refusal, our own or the library's, has its status and the request id, and closes the stream."""
    server = Server()
    async with serving(server) as stream:
        await stream.send_all(request_bytes)
        answer = b""
        while data := await stream.receive_some():
            answer += data
    assert answer.startswith(b"HTTP/1.1 " + status + b" ")
    assert b"\r\nx-request-id: req-1\r\n" in answer
    assert server.failure is not None


@pytest.mark.parametrize(
    ("request_bytes", "reason"),
    [
        pytest.param(
            REQUEST + b"\r\n" + client_frame(TEXT, b"x"), "data before the answer", id="early frame"
        ),
        pytest.param(b"x" * 20_000, "more than 16384 bytes of headers", id="endless head"),
        pytest.param(
            REQUEST.replace(b"localhost", b"xn--a") + b"\r\n",
            "idna|Invalid character",
            id="a Host that is none",
        ),
    ],
)
async def test_requests_without_an_answer(
    request_bytes: bytes, reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    """What can't be answered safely is dropped at once, and is no crash."""
    server = Server()
    async with serving(server) as stream:
        await stream.send_all(request_bytes)
        assert await stream.receive_some() == b""
    assert re.search(reason, server.failure or "")


async def test_a_frame_between_request_and_answer(autojump_clock: trio.testing.MockClock) -> None:
    """A frame that comes after the request, but before the 101, is a failed handshake too, and gets no 101."""
    head = REQUEST + b"\r\n"
    server = Server(limits=Limits(receive_buffer_bytes=len(head)))
    async with serving(server) as stream:
        await stream.send_all(head + client_frame(TEXT, b"early"))
        assert await stream.receive_some() == b""
    assert server.failure == "the peer did not wait for the answer"


async def test_a_slow_handshake_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    """A request that does not come is waited for as long as `handshake_timeout_seconds`."""
    server = Server()
    began = trio.current_time()
    async with serving(server) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\n")
        assert await stream.receive_some() == b""
    assert (server.failure, server.ended_at) == ("not done within 5 s", began + 5)


async def test_a_client_that_leaves_in_the_handshake(autojump_clock: trio.testing.MockClock) -> None:
    """An end of the stream before the request is noticed at once."""
    server = Server()
    began = trio.current_time()
    async with serving(server):
        pass
    assert (server.failure, server.ended_at) == ("the peer hung up or sent nothing valid", began)


async def test_a_server_that_says_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """A client waits for its answer as long as `handshake_timeout_seconds`."""
    _silent, stream = trio.testing.memory_stream_pair()
    with pytest.raises(HandshakeFailed, match="not done within 5 s"):
        async with connect_transport(URL, [], LIMITS, stream):
            pytest.fail("connected to nothing")


@pytest.mark.parametrize("url", ["http://localhost/", "ws://", "localhost"])
async def test_urls_that_are_none(url: str) -> None:
    """Only `ws` and `wss` URLs with a host are accepted, and the error says so."""
    with pytest.raises(ValueError, match="a WebSocket URL is ws://host/path"):
        async with connect_transport(url, [], LIMITS):
            pytest.fail("connected to nothing")


def frames_of(messages: "list[tuple[str, int]]") -> "list[bytes]":
    """Each message as one frame (0), or as so many fragments after its first."""
    frames: list[bytes] = []
    for text, more in messages:
        payload = text.encode()
        frames.append(client_frame(TEXT, payload[:1] if more else payload, final=not more))
        frames += [client_frame(CONTINUATION, final=False) for _ in range(more - 1)]
        frames += [client_frame(CONTINUATION, payload[1:])] if more else []
    return frames


@settings(max_examples=60)
@given(
    messages=st.lists(st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 2)), min_size=1, max_size=8),
    together=st.lists(st.booleans(), min_size=24, max_size=24),
    waits=st.lists(st.booleans(), min_size=24, max_size=24),
)
def test_messages_keep_their_order_on_whichever_way_they_come(
    messages: "list[tuple[str, int]]", together: "list[bool]", waits: "list[bool]"
) -> None:
    """Whole frames, fragments and several in one read, with a reader that is slow or not: each message once, in order."""
    seen: list[str] = []

    async def reader(transport: ServerTransport) -> None:
        transport.take_messages(lambda text: seen.append(text.decode()))
        while True:
            seen.append(await transport.receive())

    async def scenario() -> None:
        async with serving(Server(reader)) as stream:
            peer = WirePeer(stream)
            await peer.upgrade()
            held = b""
            for sent, joined, waited in zip(frames_of(messages), together, waits, strict=False):
                held += sent
                if not joined:
                    await peer.send(held)
                    held = b""
                if waited:
                    await trio.testing.wait_all_tasks_blocked()
            await peer.send(held + client_frame(CLOSE, b"\x03\xe8"))
            await peer.read_frames()

    simulate(scenario)
    assert [text for text, _ in messages] == seen


# --- how connections end --------------------------------------------------------------------------------------------


@ECHOES
@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        pytest.param(client_frame(0x2, b"x"), 1003, "binary", id="binary"),
        pytest.param(client_frame(TEXT, b"\xff"), 1007, "not UTF-8", id="bad UTF-8"),
        pytest.param(b"\xc1" + client_frame(TEXT, b"hi")[1:], 1002, "Reserved", id="RSV1"),
        pytest.param(b"\x81\x00", 1002, "unmasked", id="unmasked"),
        pytest.param(client_frame(TEXT, b"x" * 1001), 1009, "1000 bytes", id="too big"),
        pytest.param(client_frame(TEXT, "\U0001f600".encode() * 251), 1009, "1000 bytes", id="251 emoji"),
        pytest.param(
            client_frame(TEXT, final=False) + client_frame(CONTINUATION, final=False) * 64,
            1008,
            "fragments",
            id="empty",
        ),
        pytest.param(client_frame(PING) * 1001, 1008, "frames in a second", id="pings"),
    ],
)
async def test_bad_input_closes_with_its_code(
    sent: bytes,
    code: int,
    reason: str,
    behaviour: Callable[[ServerTransport], Awaitable[None]],
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The message before is delivered; then both sides learn the same code, and the peer a reason."""
    server = Server(behaviour, limits=Limits(max_message_bytes=1000))
    async with serving(server) as stream:
        peer = WirePeer(stream)
        await peer.upgrade()
        await peer.send(client_frame(TEXT, b"good"))
        assert await peer.read_frame() == (FINAL | TEXT, b"good")
        await peer.send(sent)
        seen_code, seen_reason = await peer.read_close()
    assert (seen_code, server.end and server.end[0]) == (code, code)
    assert reason in seen_reason


async def test_exactly_the_limit_is_received(autojump_clock: trio.testing.MockClock) -> None:
    """A message of exactly `max_message_bytes` is one message."""
    async with connected(Server(limits=Limits(max_message_bytes=1000))) as client:
        client.send_nowait("\u20ac".encode() * 333 + b"x")
        client.flush()
        assert await client.receive() == "\u20ac" * 333 + "x"


@ECHOES
async def test_each_cut_of_the_input_gives_the_same_messages(
    behaviour: Callable[[ServerTransport], Awaitable[None]], autojump_clock: trio.testing.MockClock
) -> None:
    """Two messages, a ping between the fragments of one, cut at each position: the same answers."""
    data = (
        client_frame(TEXT, "a\u20ac".encode(), final=False)
        + client_frame(PING, b"p")
        + client_frame(CONTINUATION, "\u20acb".encode())
        + client_frame(TEXT, b"x" * 130)
    )
    for cut in range(len(data)):
        async with serving(Server(behaviour)) as stream:
            peer = WirePeer(stream)
            await peer.upgrade()
            for piece in (data[:cut], data[cut:]):
                await peer.send(piece)
                await trio.testing.wait_all_tasks_blocked()
            await peer.send(client_frame(CLOSE, b"\x03\xe8"))
            assert await peer.read_frames() == [
                (FINAL | PONG, b"p"),
                (FINAL | TEXT, "a\u20ac\u20acb".encode()),
                (FINAL | TEXT, b"x" * 130),
                (FINAL | CLOSE, b"\x03\xe8"),
            ]


async def test_the_peers_close_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    """The peer's code and reason are raised by `receive()` and by `send_nowait()`, and are not replaced by our own."""

    async def receive_then_send(transport: ServerTransport) -> None:
        with pytest.raises(TransportClosed):
            await transport.receive()
        await transport.aclose(1011, "too late")
        transport.send_nowait(b"more")

    server = Server(receive_then_send)
    async with connected(server) as client:
        await client.aclose(4001, "enough")
        with pytest.raises(TransportClosed, match="4001: enough"):
            await client.receive()
    assert server.end == (4001, "enough")


async def test_a_lost_connection_is_1006(autojump_clock: trio.testing.MockClock) -> None:
    """A stream that ends without a close frame closes with 1006."""
    server = Server()
    async with serving(server) as stream:
        await WirePeer(stream).upgrade()
    assert server.end == (1006, "")


async def test_the_server_closes_after_what_is_queued(autojump_clock: trio.testing.MockClock) -> None:
    """Messages queued before the end of the body arrive before the close."""

    async def say_and_leave(transport: ServerTransport) -> None:
        for number in range(100):
            transport.send_nowait(b"%d" % number)

    received = []
    async with connected(Server(say_and_leave)) as client:
        with pytest.raises(TransportClosed) as closed:  # noqa: PT012  # the loop ends by the exception
            while True:
                received.append(await client.receive())
    assert (received, closed.value.code) == ([str(number) for number in range(100)], 1000)


async def test_a_peer_that_never_answers_a_close(autojump_clock: trio.testing.MockClock) -> None:
    """The closing handshake takes `close_timeout_seconds` at most, for everybody who waits for it."""

    async def close_twice(transport: ServerTransport) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.aclose, 1001, "going away")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(transport.aclose, 1000, "second")

    server = Server(close_twice)
    began = trio.current_time()
    async with serving(server) as stream:
        peer = WirePeer(stream)
        await peer.upgrade()
        assert await peer.read_close() == (1001, "going away")
        assert trio.current_time() == began + LIMITS.close_timeout_seconds
    assert server.ended_at == began + LIMITS.close_timeout_seconds


async def test_a_ping_while_closing_is_no_crash(autojump_clock: trio.testing.MockClock) -> None:
    """The library raises when it has to answer a ping after its close frame; here that is an end like others."""
    server = Server(lambda transport: transport.aclose(1001, "going away"))
    async with serving(server) as stream:
        peer = WirePeer(stream)
        await peer.upgrade()
        assert (await peer.read_frame() or (0, b""))[0] == FINAL | CLOSE
        await peer.send(client_frame(PING, b"late"))
        assert await peer.read_frames() == []
    assert server.failure is None


async def test_a_stalled_peer_is_1011(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that reads nothing for `send_timeout_seconds` is gone, with 1011 for who sent and who receives."""

    async def flood(transport: ServerTransport) -> None:
        while True:
            transport.send_nowait(b"x" * 10_000)
            transport.flush()
            await transport.wait_writable()

    server = Server(flood)
    ours, theirs = trio.testing.memory_stream_pair()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, ours)
        await WirePeer(theirs).upgrade()
        ours.send_stream.send_all_hook = trio.sleep_forever
    assert (server.end, server.ended_at) == ((1011, "stalled"), began + LIMITS.send_timeout_seconds)


async def test_an_overflow_is_1011(autojump_clock: trio.testing.MockClock) -> None:
    """More than `max_outbox_bytes` unsent ends the connection."""

    async def flood(transport: ServerTransport) -> None:
        await trio.sleep(1)
        while True:
            transport.send_nowait(b"x" * 10_000)

    server = Server(flood)
    async with serving(server) as stream:
        await WirePeer(stream).upgrade()
        await trio.sleep(2)
    assert server.end == (1011, "overflow")


# --- keep-alive -------------------------------------------------------------------------------------------------------


async def test_a_silent_peer_is_closed_with_1011(autojump_clock: trio.testing.MockClock) -> None:
    """A ping after 30 s, and 90 s later, without any answer, the close; the peer is told."""
    server = Server()
    began = trio.current_time()
    async with serving(server) as stream:
        peer = WirePeer(stream)
        await peer.upgrade()
        first = await peer.read_frame()
        assert first is not None
        assert (first[0], trio.current_time() - began) == (FINAL | PING, 30)
        assert await peer.read_close() == (1011, "no answer to a ping within 90 s")
    assert (server.end, server.ended_at) == ((1011, "no answer to a ping within 90 s"), began + 122)


async def test_a_peer_that_sends_is_alive(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that answers no ping but sends something is kept: it may be in the middle of a long message."""
    async with serving(Server()) as stream:
        peer = WirePeer(stream)
        await peer.upgrade()
        for _ in range(10):
            await trio.sleep(60)
            await peer.send(client_frame(TEXT, b"still here"))
        await peer.send(client_frame(CLOSE, b"\x03\xe8"))
        frames = await peer.read_frames()
    assert frames.count((FINAL | TEXT, b"still here")) == 10
    assert frames[-1] == (FINAL | CLOSE, b"\x03\xe8")


async def test_an_answering_peer_lives_for_hours(autojump_clock: trio.testing.MockClock) -> None:
    """Pongs keep an idle connection open."""
    async with connected(Server()) as client:
        await trio.sleep(2 * 3600)
        client.send_nowait(b"good morning")
        client.flush()
        assert await client.receive() == "good morning"


async def test_the_keep_alive_ends_with_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    """When the peer has left, a busy owner learns the peer's code, not a ping's time-out."""

    async def be_busy_then_receive(transport: ServerTransport) -> None:
        await trio.sleep(500)
        await transport.receive()

    server = Server(be_busy_then_receive)
    async with connected(server) as client:
        await client.aclose(4002, "bye")
    assert server.end == (4002, "bye")


async def test_unread_messages_do_not_stop_pongs(autojump_clock: trio.testing.MockClock) -> None:
    """A server whose owner is busy still answers pings, after hundreds of messages that nobody has taken."""

    async def be_busy(_transport: ServerTransport) -> None:
        await trio.sleep(10)

    async with serving(Server(be_busy)) as stream:
        peer = WirePeer(stream)
        await peer.upgrade()
        began = trio.current_time()
        await peer.send(client_frame(TEXT, b"unread") * 900 + client_frame(PING, b"?"))
        assert await peer.read_frame() == (FINAL | PONG, b"?")
        assert trio.current_time() == began


# --- cancellation and errors ------------------------------------------------------------------------------------------


async def test_a_cancelled_owner_still_closes_properly(autojump_clock: trio.testing.MockClock) -> None:
    """Cancelling the owner cuts no frame: what is queued, then a close, and the peer's answer is awaited."""
    ours, theirs = trio.testing.memory_stream_pair()
    received = []

    async def own(scope: trio.CancelScope) -> None:
        with scope:
            async with serve_transport(ours, LIMITS, admit_all, request_id="r") as (transport, _handshake):
                transport.send_nowait(b"x" * 100_000)
                transport.flush()
                await trio.sleep_forever()

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(own, scope)
        async with connect_transport(URL, [], LIMITS, theirs) as client:
            scope.cancel()
            with pytest.raises(TransportClosed) as closed:  # noqa: PT012  # the loop ends by the exception
                while True:
                    received.append(len(await client.receive()))
    assert (received, closed.value.code, scope.cancelled_caught) == ([100_000], 1000, True)


async def test_a_cancelled_client_cuts_no_message(autojump_clock: trio.testing.MockClock) -> None:
    """Messages that a cancelled client has queued arrive whole, before its close."""
    received: list[str] = []

    async def collect(transport: ServerTransport) -> None:
        while True:
            received.append(await transport.receive())

    server = Server(collect)
    async with serving(server) as stream:
        with trio.CancelScope() as scope:
            async with connect_transport(URL, [], LIMITS, stream) as client:
                for size in (10, 100_000):
                    client.send_nowait(b"m" * size)
                client.flush()
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
    assert [len(text) for text in received] == [10, 100_000]
    assert server.end == (1000, "")


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope at the n-th step of the run."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps
        self.scope = trio.CancelScope()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            self.scope.cancel()


def test_cancelled_at_each_step_no_frame_is_torn() -> None:
    """Wherever a server's owner is cancelled, it ends within its bounds and the peer has seen whole frames only."""

    async def scenario(instrument: CancelAtStep) -> bool:
        ours, theirs = trio.testing.memory_stream_pair()
        peer = WirePeer(theirs)

        async def own() -> None:
            with instrument.scope:
                await Server().run(ours)

        async def talk() -> None:
            await peer.send(REQUEST + b"\r\n")
            while await peer._fill(len(peer._unread) + 1):
                if b"\r\n\r\n" in peer._unread:
                    break
            else:
                return
            await peer.read_head()
            await peer.send(client_frame(TEXT, b"x" * 50_000) + client_frame(PING, b"p"))
            await peer.send(client_frame(CLOSE, b"\x03\xe8"))
            await peer.read_frames()  # asserts that none is torn

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(own)
            nursery.start_soon(talk)
        assert trio.current_time() - began <= LIMITS.close_timeout_seconds
        return not instrument.scope.cancelled_caught

    for steps in range(1, 1000):
        instrument = CancelAtStep(steps)
        if (
            trio.run(
                scenario,
                instrument,
                clock=trio.testing.MockClock(autojump_threshold=0),
                instruments=[instrument],
            )
            and instrument.steps_left > 0
        ):
            break
    assert 20 < steps < 999


async def test_errors_of_the_body_leave_as_they_are(autojump_clock: trio.testing.MockClock) -> None:
    """An exception of the owner closes the connection and is not wrapped in a group."""

    async def fail(_transport: ServerTransport) -> None:
        raise KeyError("owner's")

    async with serving(Server()) as stream:
        with pytest.raises(KeyError, match="client's"):
            async with connect_transport(URL, [], LIMITS, stream):
                raise KeyError("client's")
    with pytest.RaisesGroup(
        pytest.RaisesExc(KeyError, match="owner's")
    ):  # the group is this test's own nursery
        async with serving(Server(fail)) as stream:
            assert (await WirePeer(stream).upgrade()).startswith(b"HTTP/1.1 101")
            await trio.sleep_forever()


# --- the baseline of the benchmarks, and a real port --------------------------------------------------------------------


async def test_the_baseline_keeps_the_same_contract(autojump_clock: trio.testing.MockClock) -> None:
    """The `send_message` baseline sends the same texts in the same order and reports the same end."""
    ours, theirs = trio.testing.memory_stream_pair()
    texts = [b"%d" % number * number for number in range(200)]
    received = []

    async def own() -> None:
        serve = send_message_transport.serve_transport
        async with serve(ours, LIMITS, admit_all, request_id="r") as (transport, _handshake):
            for text in texts:
                transport.send_nowait(text)
                transport.flush()
                await transport.wait_writable()
            assert await transport.receive() == "done"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(own)
        async with connect_transport(URL, [], LIMITS, theirs) as client:
            assert client.answer_headers == (("x-request-id", "r"),)
            received = [(await client.receive()).encode() for _ in texts]
            client.send_nowait(b"done")
            client.flush()
            with pytest.raises(TransportClosed) as closed:
                await client.receive()
    assert (received, closed.value.code) == (texts, 1000)


async def test_a_client_dials_a_real_port() -> None:
    """Without a stream the client connects by TCP; a port nobody listens on is a failed handshake."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    server = Server()

    async def accept_one() -> None:
        await server.run(await listener.accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_one)
        async with connect_transport(f"ws://127.0.0.1:{port}/here", [("x-a", "b")], LIMITS) as client:
            client.send_nowait(b"over TCP")
            client.flush()
            assert await client.receive() == "over TCP"
    await listener.aclose()
    assert server.handshake is not None
    assert (server.handshake.path, server.handshake.header_values("x-a")) == ("/here", ["b"])
    assert server.end == (1000, "")
    with pytest.raises(HandshakeFailed, match=f"cannot reach 127.0.0.1:{port}"):
        async with connect_transport(f"ws://127.0.0.1:{port}/", [], LIMITS):
            pytest.fail("connected to nothing")


async def test_a_server_without_tls_is_named() -> None:
    """A `wss` URL whose server speaks no TLS is a failed handshake that says so."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]

    async def answer_in_clear() -> None:
        async with await listener.accept() as stream:
            await stream.send_all(b"HTTP/1.1 400 \r\n\r\n")
            while await stream.receive_some():
                pass

    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(answer_in_clear)
        with pytest.raises(HandshakeFailed, match=f"no TLS with 127.0.0.1:{port}"):
            async with connect_transport(f"wss://127.0.0.1:{port}/", [], LIMITS):
                pytest.fail("connected in clear")
