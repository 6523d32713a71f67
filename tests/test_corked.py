"""engine.corked: order, bounds and ends of one connection's bytes, in virtual time but for the real sockets at the end."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream, wrap_server_stream

from engine.config import Limits
from engine.corked import SLICE_BYTES, CorkedStream
from engine.frames import close_frame, frame
from tests.wire import CLOSE, FINAL, PING, REQUEST, TEXT, WirePeer, client_frame, simulate

LIMITS = Limits()
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


@asynccontextmanager
async def running(
    limits: Limits = LIMITS, *, on_send: Callable[[], Any] | None = None
) -> AsyncIterator[tuple[CorkedStream, WirePeer]]:
    """A corked stream with its writer, upgraded, and the peer's end; `on_send` runs before each write moves bytes."""
    ours, theirs = trio.testing.memory_stream_pair()
    stream = CorkedStream(ours, limits)
    peer = WirePeer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run_writer)
        await peer.send(REQUEST + b"\r\n")
        await stream.receive_some()
        await stream.send_all(SWITCH)
        await peer.read_head()
        deliver = ours.send_stream.send_all_hook
        ours.send_stream.send_all_hook = deliver if on_send is None else before(on_send, deliver)
        yield stream, peer
        ours.send_stream.send_all_hook = deliver
        await theirs.aclose()
        await stream.aclose()


def before(pause: Callable[[], Any], deliver: Callable[[], Any] | None) -> Callable[[], Any]:
    """A hook for a memory stream that pauses before it hands the bytes to the other end."""

    async def hook() -> None:
        await pause()
        assert deliver is not None
        await deliver()

    return hook


# --- order ------------------------------------------------------------------------------------------------------

EDGE_SIZES = [0, 1, 124, 125, 126, 127, 65_534, 65_535, 65_536]
texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(EDGE_SIZES).map("t".__mul__),
    st.sampled_from([41, 42, 43]).map("\u20ac".__mul__),
)
steps = st.lists(st.one_of(texts, st.sampled_from([b"ping", b"pong", b"flush", b"wait"])), max_size=25)


async def exchange(plan: list[str | bytes], *, corked: bool) -> tuple[list[str], int | None]:
    """Run `plan` on a server and return the texts and the close code that the library's client saw."""
    ours, theirs = trio.testing.memory_stream_pair()
    received: list[str] = []
    code: int | None = None

    async def serve() -> None:
        stream = CorkedStream(ours, LIMITS) if corked else ours
        async with trio.open_nursery() as nursery:
            if isinstance(stream, CorkedStream):
                nursery.start_soon(stream.run_writer)
            connection = await (await wrap_server_stream(nursery, stream)).accept()
            for number, step in enumerate(plan):
                await perform(connection, stream, step, number)
            await connection.aclose(4000)

    async def read() -> None:
        nonlocal code
        async with trio.open_nursery() as nursery:
            connection = await wrap_client_stream(nursery, cast("Any", theirs), "localhost", "/")
            try:
                while True:
                    received.append(str(await connection.get_message()))
            except ConnectionClosed as closed:
                code = closed.reason.code if closed.reason else None
            await connection.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        nursery.start_soon(read)
    return received, code


async def perform(
    connection: WebSocketConnection, stream: CorkedStream | trio.abc.Stream, step: str | bytes, number: int
) -> None:
    if step == b"ping":
        await connection.ping(number.to_bytes(4, "big"))
    elif step == b"pong":
        await connection.pong()
    elif step == b"wait":
        await trio.lowlevel.checkpoint()
    elif isinstance(step, str) and isinstance(stream, CorkedStream):
        assert stream.queue_texts([step.encode()])
    elif isinstance(step, str):
        await connection.send_message(step)
    elif isinstance(stream, CorkedStream):
        stream.flush()


@given(plan=steps, interleaving=st.random_module())
@settings(max_examples=60, deadline=None)
def test_the_peer_receives_what_send_message_would_have_sent(
    plan: list[str | bytes], interleaving: object
) -> None:
    """Corked texts between the library's pings, pongs and close arrive as over `send_message`: same texts, same order, same code."""
    corked_result = simulate(lambda: exchange(plan, corked=True))
    reference = simulate(lambda: exchange(plan, corked=False))
    assert corked_result == reference == ([step for step in plan if isinstance(step, str)], 4000)


async def test_frames_keep_their_order_with_library_frames(autojump_clock: trio.testing.MockClock) -> None:
    """Frames leave in the order in which they were queued, from either entrance, in one write."""
    async with running() as (stream, peer):
        assert stream.queue_texts([b"1"])
        await stream.send_all(frame(FINAL | PING, b"2"))
        assert stream.queue_texts([b"3"])
        await stream.send_all(close_frame(1000, "4"))
        await stream.aclose()
        assert await peer.read_frames() == [
            (FINAL | TEXT, b"1"),
            (FINAL | PING, b"2"),
            (FINAL | TEXT, b"3"),
            (FINAL | CLOSE, b"\x03\xe84"),
        ]


async def test_one_step_is_one_write(autojump_clock: trio.testing.MockClock) -> None:
    """All frames queued before a flush leave together."""
    async with running() as (stream, peer):
        writes_before = stream.statistics().writes
        for number in range(50):
            assert stream.queue_texts([b"%d" % number])
        stream.flush()
        assert [await peer.read_frame() for _ in range(50)] == [(FINAL | TEXT, b"%d" % n) for n in range(50)]
        assert stream.statistics().writes - writes_before == 1


async def test_statistics_count_both_directions(autojump_clock: trio.testing.MockClock) -> None:
    """Bytes and frames of both directions are counted, and what waits is named."""
    async with running() as (stream, peer):
        before = stream.statistics()
        await peer.send(client_frame(TEXT, b"hi") * 3)
        await stream.receive_some()
        assert stream.queue_texts([b"hello"])
        waiting = stream.statistics()
        stream.flush()
        await peer.read_frame()
        after = stream.statistics()
        assert (waiting.unsent_bytes, after.unsent_bytes) == (7, 0)
        assert (after.bytes_in - before.bytes_in, after.frames_in - before.frames_in) == (3 * 8, 3)
        assert (after.bytes_out - before.bytes_out, after.frames_out - before.frames_out) == (7, 1)


# --- back-pressure ------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(EDGE_SIZES), max_size=5))
def test_texts_corked_together_are_the_frames_of_each(sizes: list[int]) -> None:
    """Several at once are the same bytes and the same count as one after the other, whatever their sizes."""

    async def corked(*, together: bool) -> tuple[bytes, int]:
        stream = CorkedStream(trio.testing.memory_stream_pair()[0], LIMITS)
        texts = [b"x" * size for size in sizes]
        if together:
            assert stream.queue_texts(texts)
        else:
            for text in texts:
                assert stream.queue_texts([text])
        return bytes(stream._outgoing), stream.statistics().frames_out

    assert trio.run(partial(corked, together=False)) == trio.run(partial(corked, together=True))


async def test_a_flush_tells_whether_more_may_follow_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """It says no exactly where `wait_writable` would wait, or raise."""
    limits = Limits(outbox_high_water_bytes=1000)
    async with running(limits, on_send=partial(trio.sleep, 1)) as (stream, _peer):
        assert stream.queue_texts([b"x" * 996])
        assert stream.flush()
        assert stream.queue_texts([b"x"])
        assert not stream.flush()
        await stream.wait_writable()
        assert stream.flush()
    assert not stream.flush()


async def test_what_overflows_among_several_breaks_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The bound holds within one batch of texts, too."""
    async with running(Limits(max_outbox_bytes=1000), on_send=trio.sleep_forever) as (stream, _peer):
        assert not stream.queue_texts([b"x" * 400] * 4)
        assert ("overflow", 0) == (stream.failure, stream.unsent_bytes)


async def test_wait_writable_is_free_below_the_mark(autojump_clock: trio.testing.MockClock) -> None:
    """Up to the high-water mark waiting is no checkpoint."""
    async with running(Limits(outbox_high_water_bytes=102)) as (stream, _peer):
        assert stream.queue_texts([b"x" * 100])
        with trio.testing.assert_no_checkpoints():
            await stream.wait_writable()


async def test_wait_writable_waits_for_half(autojump_clock: trio.testing.MockClock) -> None:
    """Above the high-water mark a sender waits until half of it is left."""
    limits = Limits(outbox_high_water_bytes=4 * SLICE_BYTES)
    async with running(limits, on_send=partial(trio.sleep, 1)) as (stream, _peer):
        assert stream.queue_texts([b"x" * 5 * SLICE_BYTES])
        stream.flush()
        began = trio.current_time()
        await stream.wait_writable()
        assert (trio.current_time() - began, stream.unsent_bytes) == (4, SLICE_BYTES + 10)


async def test_a_stalled_peer_breaks_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    """A write that moves nothing for `send_timeout_seconds` ends the connection and wakes who waits for it."""
    async with running(on_send=trio.sleep_forever) as (stream, _peer):
        assert stream.queue_texts([b"x" * 70_000])
        stream.flush()
        began = trio.current_time()
        with pytest.raises(trio.BrokenResourceError, match="stalled"):
            await stream.wait_writable()
        assert trio.current_time() - began == LIMITS.send_timeout_seconds
        assert (stream.failure, stream.unsent_bytes) == ("stalled", 0)
        assert not stream.queue_texts([b"more"])
        with pytest.raises(trio.BrokenResourceError, match="stalled"):
            await stream.send_all(frame(FINAL | PING, b""))
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()


async def test_a_slow_peer_is_no_stalled_peer(autojump_clock: trio.testing.MockClock) -> None:
    """One large write may take longer than the deadline as long as its slices move."""
    async with running(on_send=partial(trio.sleep, 9)) as (stream, peer):
        assert stream.queue_texts([b"x" * 3 * SLICE_BYTES])
        stream.flush()
        began = trio.current_time()
        assert await peer.read_frame() == (FINAL | TEXT, b"x" * 3 * SLICE_BYTES)
        assert trio.current_time() - began == 36


@pytest.mark.parametrize(("size", "failure"), [(990, None), (991, "overflow")])
async def test_unsent_bytes_are_bounded(
    size: int, failure: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    """With `max_outbox_bytes` unsent one more message may wait; with more the next one breaks the connection."""
    limits = Limits(max_outbox_bytes=1000)
    async with running(limits, on_send=trio.sleep_forever) as (stream, _peer):
        assert stream.queue_texts([b"x" * 4])
        stream.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert stream.queue_texts([b"x" * size])
        if failure is None:
            assert stream.unsent_bytes == limits.max_outbox_bytes
            assert stream.queue_texts([b"x" * 5000])
        else:
            assert not stream.queue_texts([b"x"])
            assert stream.unsent_bytes == 0
        assert stream.failure == failure


async def test_pings_wait_behind_a_message_that_is_larger_than_the_bound(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A keep-alive does not break what is only large, and a flood of them is bounded all the same."""
    limits = Limits(max_outbox_bytes=1000, outbox_high_water_bytes=100)
    ping = frame(FINAL | PING, b"")
    async with running(limits, on_send=trio.sleep_forever) as (stream, _peer):
        assert stream.queue_texts([b"x" * 5000])
        for _ in range(100 // len(ping)):
            await stream.send_all(ping)
        with pytest.raises(trio.BrokenResourceError, match="overflow"):
            await stream.send_all(ping)


async def test_room_for_pings_comes_back(autojump_clock: trio.testing.MockClock) -> None:
    """Those that were sent meanwhile do not count when the next large message goes out."""
    limits = Limits(max_outbox_bytes=1000, outbox_high_water_bytes=100)
    async with running(limits) as (stream, peer):
        for _ in range(3):
            assert stream.queue_texts([b"x" * 5000])
            for _ in range(40):
                await stream.send_all(frame(FINAL | PING, b""))
            assert [(await peer.read_frame())[0] for _ in range(41)] == [FINAL | TEXT, *[FINAL | PING] * 40]


async def test_a_cancelled_write_breaks_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    """After a write was cancelled in mid-frame nothing more is sent: the peer's parser could be anywhere."""
    ours, _theirs = trio.testing.memory_stream_pair()
    stream = CorkedStream(ours, LIMITS)
    assert stream.queue_texts([b"torn"])
    async with trio.open_nursery() as nursery:
        ours.send_stream.send_all_hook = trio.sleep_forever
        nursery.start_soon(stream.run_writer)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert stream.failure == "a write was cancelled in mid-frame"
    assert not stream.queue_texts([b"more"])
    await stream.aclose()
    assert (stream.statistics().bytes_out, stream.statistics().writes) == (0, 0)


# --- inbound --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flood", "code"),
    [
        pytest.param(client_frame(TEXT, b"x" * 1001), 1009, id="message of 1001 bytes"),
        pytest.param(
            client_frame(TEXT, final=False) + client_frame(0, final=False) * 64, 1008, id="empty fragments"
        ),
        pytest.param(
            client_frame(TEXT, final=False) + client_frame(0, b"xx", final=False) * 64, 1008, id="fragments"
        ),
        pytest.param(client_frame(PING) * 1001, 1008, id="pings"),
    ],
)
async def test_a_violation_ends_the_input_and_tells_the_peer(
    flood: bytes, code: int, autojump_clock: trio.testing.MockClock
) -> None:
    """What came before the violation is delivered, then the input is at its end, and the last frame out is a close."""
    async with running(Limits(max_message_bytes=1000)) as (stream, peer):
        assert stream.queue_texts([b"before"])
        good = client_frame(TEXT, b"good")
        await peer.send(good + flood)
        received = bytearray()
        while data := await stream.receive_some():
            received += data
        assert received.startswith(good)
        assert len(received) < len(good + flood)
        assert await stream.receive_some() == b""
        assert stream.violation is not None
        assert not stream.queue_texts([b"after"])
        assert await peer.read_frame() == (FINAL | TEXT, b"before")
        peer.stream.send_stream.close()  # type: ignore[attr-defined]  # a memory stream's end
        await stream.aclose()
        assert (await peer.read_close())[0] == stream.violation[0] == code


async def test_a_closing_stream_reads_on_for_a_while(autojump_clock: trio.testing.MockClock) -> None:
    """After a violation the peer's flood is read until it hangs up, within the bound, so that no reset overtakes the close."""
    async with running() as (stream, peer):
        await peer.send(client_frame(PING) * 2000)
        while await stream.receive_some(1024):
            pass
        began = trio.current_time()
        await stream.aclose()
        assert trio.current_time() - began == LIMITS.close_timeout_seconds
        assert (await peer.read_close())[0] == 1008


# --- closing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entrance", ["library", "stream"])
async def test_nothing_follows_a_close_frame(entrance: str, autojump_clock: trio.testing.MockClock) -> None:
    """After a close frame, or `aclose()`, both entrances refuse, and waiting raises."""
    async with running() as (stream, _peer):
        if entrance == "library":
            await stream.send_all(close_frame(1000, ""))
        else:
            await stream.aclose()
        assert not stream.queue_texts([b"late"])
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(frame(FINAL | PING, b""))
        with pytest.raises(trio.BrokenResourceError):
            await stream.wait_writable()
        stream.flush()


async def test_a_text_that_looks_like_a_close_frame_is_none(autojump_clock: trio.testing.MockClock) -> None:
    """Only the first byte of a library frame after the upgrade is looked at; the body of a refusal may begin with 0x88."""
    ours, _theirs = trio.testing.memory_stream_pair()
    stream = CorkedStream(ours, LIMITS, answer_headers=b"x-request-id: r\r\n")
    await stream.send_all(b"HTTP/1.1 403 \r\ncontent-length: 2\r\n\r\n")
    await stream.send_all(b"\x88\x00")
    await stream.send_all(b"more")
    assert bytes(stream._outgoing) == (
        b"HTTP/1.1 403 \r\nx-request-id: r\r\ncontent-length: 2\r\n\r\n\x88\x00more"
    )
    await stream.aclose()


async def test_aclose_flushes_within_its_bound(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that does not read holds `aclose()` for `close_timeout_seconds`, cancelled or not, and wakes who waits."""
    woken = []

    async def wait(stream: CorkedStream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await stream.wait_writable()
        woken.append(trio.current_time())

    async with running(on_send=trio.sleep_forever) as (stream, _peer), trio.open_nursery() as nursery:
        assert stream.queue_texts([b"x" * 70_000])
        stream.flush()
        nursery.start_soon(wait, stream)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.aclose()
        assert trio.current_time() - began == LIMITS.close_timeout_seconds
    assert woken == [began + LIMITS.close_timeout_seconds]


async def test_aclose_without_a_writer_writes_itself(autojump_clock: trio.testing.MockClock) -> None:
    """What is queued leaves even if the writer task never ran or was cancelled at rest."""
    ours, theirs = trio.testing.memory_stream_pair()
    stream = CorkedStream(ours, LIMITS)
    assert stream.queue_texts([b"last words"])
    await stream.aclose()
    await stream.run_writer()
    assert await WirePeer(theirs).read_frames() == [(FINAL | TEXT, b"last words")]


async def test_aclose_twice_is_one_close(autojump_clock: trio.testing.MockClock) -> None:
    """A second call waits for the first and does nothing; `on_end` is told."""
    ends: list[float] = []
    async with running(on_send=partial(trio.sleep, 1)) as (stream, peer):
        stream.on_end = lambda: ends.append(trio.current_time())
        stream.farewell = lambda: (1002, "bad frame")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.aclose)
            nursery.start_soon(stream.aclose)
        assert (
            trio.current_time() == began + LIMITS.close_timeout_seconds
        )  # the peer says nothing to the farewell
        assert ends == [trio.current_time()]
        assert await peer.read_close() == (1002, "bad frame")
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()


@pytest.mark.parametrize("code", [1005, 1006, 1015])
async def test_codes_that_are_never_sent(code: int, autojump_clock: trio.testing.MockClock) -> None:
    """A farewell with a reserved code is no frame (RFC 6455 7.4.1)."""
    async with running() as (stream, peer):
        stream.farewell = lambda: (code, "")
        await stream.aclose()
        assert await peer.read_frames() == []


async def test_library_frames_are_queued_whole_or_not_at_all(autojump_clock: trio.testing.MockClock) -> None:
    """`send_all` is a checkpoint; cancelled there it has queued nothing."""
    async with running() as (stream, _peer):
        with trio.testing.assert_checkpoints():
            await stream.wait_send_all_might_not_block()
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.send_all(frame(FINAL | PING, b""))
        assert (scope.cancelled_caught, stream.unsent_bytes) == (True, 0)


# --- real sockets -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def over_loopback(*, direct: bool) -> AsyncIterator[tuple[CorkedStream, trio.SocketStream]]:
    """A corked stream on a TCP connection with small kernel buffers."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listener.socket.getsockname()
    async with listener:
        theirs = trio.SocketStream(trio.socket.socket())
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await theirs.socket.connect(address)
        ours = await listener.accept()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    stream = CorkedStream(ours, LIMITS, direct=direct)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run_writer)
        yield stream, theirs
        await theirs.aclose()
        await stream.aclose()


@pytest.mark.parametrize("direct", [True, False])
async def test_a_slow_reader_on_a_real_socket_sees_the_order(direct: bool) -> None:
    """Direct writes, short writes and the writer task together keep the order of the frames."""
    expected = [b"%d" % number * (number % 900 + 1) for number in range(1500)]
    received = []

    async def read(peer: WirePeer) -> None:
        for _ in expected:
            first_and_payload = await peer.read_frame()
            assert first_and_payload is not None
            received.append(first_and_payload[1])

    async with over_loopback(direct=direct) as (stream, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(read, WirePeer(theirs))
        for number, payload in enumerate(expected):
            assert stream.queue_texts([payload])
            if number % 3 == 0:
                stream.flush()
            if number % 60 == 0:
                await trio.lowlevel.checkpoint()
            await stream.wait_writable()
        stream.flush()
    assert received == expected


async def test_a_direct_write_needs_no_task_switch() -> None:
    """On an idle socket the first frame is with the kernel when `flush()` returns."""
    async with over_loopback(direct=True) as (stream, theirs):
        assert stream.queue_texts([b"now"])
        with trio.testing.assert_no_checkpoints():
            stream.flush()
        assert (stream.unsent_bytes, stream.statistics().writes) == (0, 1)
        assert await WirePeer(theirs).read_frame() == (FINAL | TEXT, b"now")


async def test_a_failed_direct_write_breaks_the_connection() -> None:
    """`flush()` does not raise; the failure is kept, the next frame is refused, and the reader wakes."""
    async with over_loopback(direct=True) as (stream, theirs):
        await theirs.aclose()
        with trio.fail_after(5):
            while stream.failure is None:
                assert stream.queue_texts([b"x" * 1000])
                stream.flush()
                await trio.lowlevel.checkpoint()
        assert "write failed" in stream.failure
        assert not stream.queue_texts([b"more"])
        await trio.testing.wait_all_tasks_blocked()  # the writer closes the socket
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()
