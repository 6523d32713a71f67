"""What reads a plain socket is `SocketStream.receive_some` to whoever calls it, at every end that there is."""

import socket
import struct
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from engine.streams import ReplayedStream, receive_of

WAYS = {
    "the stream's own": lambda stream: stream.receive_some,
    "ours": receive_of,
    "ours, after what was read before": lambda stream: _replayed(stream).receive_some,
}
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def _replayed(stream):
    replayed = ReplayedStream(stream, b"")
    replayed.release()
    return replayed


@asynccontextmanager
async def two_ends():
    """A server's stream, and the client's."""
    async with (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] as listener:
        client = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        async with client, await listener.accept() as server:
            with trio.fail_after(60):
                yield server, client


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


async def test_what_is_sent_is_read_to_its_end(way):
    async with two_ends() as (server, client):
        receive, read = way(server), b""
        await client.send_all(b"one")
        read += await receive(2)
        assert 0 < len(read) <= 2
        await client.send_all(b" and two")
        await client.aclose()
        while data := await receive(None):
            read += data
        assert read == b"one and two"


async def test_much_is_read_in_its_order_and_then_awaited(way):
    async with two_ends() as (server, client):
        receive, much, read = way(server), bytes(range(250)) * 1000, b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, much)
            while len(read) < len(much):
                read += await receive(1000)
        assert read == much
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, 1000)
            await trio.testing.wait_all_tasks_blocked()
            await client.send_all(b"more")


async def test_a_cancelled_read_takes_nothing(way):
    async with two_ends() as (server, client):
        receive = way(server)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive, 100)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await client.send_all(b"all of it")
        assert await receive(100) == b"all of it"


async def test_closed_on_this_side_while_it_waits(way):
    async with two_ends() as (server, _client):
        receive, outcome = way(server), []

        async def read():
            with pytest.raises(trio.ClosedResourceError):
                await receive(100)
            outcome.append("told")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await server.aclose()
        assert outcome == ["told"]


async def test_closed_on_this_side_before(way):
    async with two_ends() as (server, _client):
        receive = way(server)
        await server.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await receive(100)


async def test_reset_by_the_peer(way):
    async with two_ends() as (server, client):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        await client.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await way(server)(100)


async def test_a_stream_that_is_no_socket_reads_as_it_does():
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"x")
    assert await receive_of(ours)(10) == b"x"
