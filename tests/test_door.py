"""The front door: one port, two ways in, whatever pieces the first bytes come in."""

from itertools import pairwise

import h11
import orjson
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Limits
from engine.door import DoorFailed, answer_the_door
from engine.engine import Engine
from engine.samplers.scripted import END, Scripted, say
from engine.server import Server
from engine.streams import ReplayedStream, plain_socket
from engine.testing import serving, simulated_engine
from tests.http_peer import HttpPeer
from tests.wire import REQUEST, TEXT, WirePeer, client_frame, simulate

LIMITS = Limits()
CREATE = client_frame(TEXT, orjson.dumps({"type": "response.create", "model": "m", "input": "hi"}))
BODY = orjson.dumps({"model": "m", "input": "hi"})
POST = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


def engine(limits=LIMITS):
    return simulated_engine(Scripted([[*say("hello there"), END]]), seed=1, limits=limits)


async def send_in_pieces(stream, data, cuts):
    """Each piece arrives on its own."""
    places = [0, *sorted({cut % len(data) for cut in cuts} - {0}), len(data)]
    for start, end in pairwise(places):
        await stream.send_all(data[start:end])
        await trio.testing.wait_all_tasks_blocked()


@given(cuts=st.lists(st.integers(0, 10_000), max_size=6))
def test_an_upgrade_and_its_first_message_in_any_pieces(cuts):
    """Upgrade and create, in one segment or in many, before the answer or after: both are answered (W10)."""

    async def scenario():
        async with serving(engine()) as served:
            peer = WirePeer(await served.open_stream())
            await send_in_pieces(peer.stream, REQUEST + b"\r\n" + CREATE, cuts)
            assert (await peer.read_head()).startswith(b"HTTP/1.1 101")
            kinds = []
            while "response.completed" not in kinds:
                _, payload = await peer.read_frame()
                kinds.append(orjson.loads(payload)["type"])
            assert ("response.created", 1) == (kinds[0], kinds.count("response.created"))
            await peer.stream.aclose()

    simulate(scenario)


@given(cuts=st.lists(st.integers(0, 10_000), max_size=6))
def test_a_request_in_any_pieces(cuts):
    """A POST, cut anywhere, is the same POST."""

    async def scenario():
        async with serving(engine()) as served:
            peer = HttpPeer(await served.open_stream())
            peer._parser.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
            await send_in_pieces(peer.stream, POST, cuts)
            answer = await peer.answer()
            assert (200, "completed") == (answer.status, answer.json["status"])

    simulate(scenario)


@given(garbage=st.binary(min_size=1, max_size=300))
def test_garbage_is_answered_or_waited_out(garbage):
    """Whatever bytes come: an answer of 400 or 404 and so on, or the end of the handshake's time; never a crash."""

    async def scenario():
        async with serving(engine()) as served:
            stream = await served.open_stream()
            await stream.send_all(garbage + b"\r\n\r\n")
            received = b""
            with trio.fail_after(LIMITS.handshake_timeout_seconds + LIMITS.close_timeout_seconds + 1):
                while part := await stream.receive_some():
                    received += part
            assert received == b"" or received.startswith(b"HTTP/1.1 4"), received
            await stream.aclose()
            await trio.sleep(5)
            statistics = served.server.statistics()
            assert (0, ()) == (statistics.http_connections, statistics.connections)

    simulate(scenario)


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 4000, b"431"),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n\r\n", b"400"),
    ],
)
async def test_bad_requests_have_an_answer(request_text, status, autojump_clock):
    """JSON in the catalogue's words, with a request id, and then the end or the next request."""
    async with serving(engine()) as served:
        peer = WirePeer(await served.open_stream())
        await peer.send(request_text)
        head = await peer.read_head()
        assert (b"HTTP/1.1 " + status, True, True) == (
            head[:12],
            b"x-request-id: req_" in head,
            b"application/json" in head,
        )
        await peer.stream.aclose()


@pytest.mark.parametrize("target", [b"/health", b"http://x/health", b"HTTPS://x:1/health?a=/v1/responses"])
async def test_a_target_may_name_the_server(target, autojump_clock):
    """As in a request to a proxy: the path is what comes after it."""
    async with serving(engine()) as served:
        peer = WirePeer(await served.open_stream())
        await peer.send(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" == (await peer.read_head())[9:12]
        await peer.stream.aclose()


@pytest.mark.parametrize(
    ("limits", "beyond_bytes", "status"),
    [
        (limits, beyond_bytes, status)
        for limits in (LIMITS, Limits(max_head_bytes=2000))
        for beyond_bytes, status in ((0, b"200"), (1, b"431"))
    ],
)
async def test_a_head_may_be_so_large_and_no_larger(limits, beyond_bytes, status, autojump_clock):
    """So many bytes without an end are waited on, one byte more is refused."""
    head = b"GET /health HTTP/1.1\r\nHost: x\r\nX: "
    async with serving(engine(limits)) as served:
        peer = WirePeer(await served.open_stream())
        await peer.send(head.ljust(limits.max_head_bytes + beyond_bytes, b"y"))
        await trio.testing.wait_all_tasks_blocked()
        if status == b"200":
            await peer.send(b"\r\n\r\n")
        assert status == (await peer.read_head())[9:12]
        await peer.stream.aclose()


@pytest.mark.parametrize("beyond_bytes", [0, 1])
@pytest.mark.parametrize("request_text", [b"GET /health HTTP/1.1\r\nHost: x", REQUEST.removesuffix(b"\r\n")])
async def test_a_head_in_one_piece_has_the_same_bound(request_text, beyond_bytes, autojump_clock):
    """However it comes, and whichever way it would go: it is answered, and too large is 431."""
    head = (request_text + b"\r\nX: ").ljust(LIMITS.max_head_bytes + beyond_bytes, b"y")
    async with serving(engine()) as served:
        peer = WirePeer(await served.open_stream())
        await peer.send(head + b"\r\n\r\n")
        status = (await peer.read_head())[9:12]
        assert (status == b"431") == bool(beyond_bytes), status
        await peer.stream.aclose()


async def test_a_silent_stranger_is_closed_in_time(autojump_clock):
    """Half a head, then nothing: the deadline of the handshake ends it, without an answer."""
    async with serving(engine()) as served:
        stream = await served.open_stream()
        await stream.send_all(REQUEST)
        begun = trio.current_time()
        assert (b"", LIMITS.handshake_timeout_seconds) == (
            await stream.receive_some(),
            trio.current_time() - begun,
        )


async def test_the_door_tells_who_hangs_up(autojump_clock):
    """Without a request there is nobody to answer."""
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.aclose()
    with pytest.raises(DoorFailed, match="the peer hung up") as caught:
        await answer_the_door(theirs, LIMITS)
    assert None is caught.value.answer


async def test_an_upgrade_on_a_used_connection_is_a_plain_request(autojump_clock):
    """The upgrade is for a fresh connection; later it is ignored, as HTTP allows, and a GET is answered."""
    async with serving(engine()) as served:
        peer = HttpPeer(await served.open_stream())
        assert 200 == (await peer.ask("GET", "/health")).status
        answer = await peer.ask(
            "GET", "/v1/responses", headers=[("Upgrade", "websocket"), ("Connection", "Upgrade")]
        )
    assert 405 == answer.status


# --- the replayed stream -------------------------------------------------------------------------------------------


@given(head=st.binary(min_size=1, max_size=50), rest=st.binary(max_size=50), size=st.integers(1, 60))
def test_a_replayed_stream_is_the_stream_from_its_beginning(head, rest, size):
    """Head, then what was read beyond it, then what comes; nothing is lost or doubled, whatever is asked for at once."""

    async def scenario():
        ours, theirs = trio.testing.memory_stream_pair()
        stream = ReplayedStream(theirs, head, rest)
        await ours.send_all(b"later")
        await ours.send_eof()
        received = b""
        while len(received) < len(head):
            received += await stream.receive_some(size)
        assert head == received
        stream.release()
        while part := await stream.receive_some(size):
            received += part
        assert head + rest + b"later" == received

    simulate(scenario)


async def test_nothing_behind_the_head_is_read_before_the_answer(autojump_clock):
    """Who reads on waits until the stream is released."""
    _, theirs = trio.testing.memory_stream_pair()
    stream = ReplayedStream(theirs, b"head", b"rest")
    assert b"head" == await stream.receive_some()
    with trio.move_on_after(1) as waiting:
        await stream.receive_some()
    stream.release()
    assert (True, b"rest") == (waiting.cancelled_caught, await stream.receive_some())


async def test_a_replayed_socket_is_written_to_directly():
    """Over TCP the corked stream still finds the socket below, so its fast path works."""
    server = Server(Engine.make(Scripted([[*say("hello"), END]])))
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(server.run)
        client = await trio.testing.open_stream_to_socket_listener(listener)
        replayed = ReplayedStream(client, b"")
        assert client.socket is plain_socket(replayed)
        assert client.socket is plain_socket(client)
        peer = WirePeer(client)
        await peer.send(REQUEST + b"\r\n" + CREATE)
        assert (await peer.read_head()).startswith(b"HTTP/1.1 101")
        _, payload = await peer.read_frame()
        assert "response.created" == orjson.loads(payload)["type"]
        nursery.cancel_scope.cancel()
    await client.aclose()
    assert None is plain_socket(trio.testing.memory_stream_pair()[0])
