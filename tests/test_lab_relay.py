"""The relay: half a round trip each way for every byte, in order, bounded, counted."""

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from demos.lab.relay import Relay, RelayCounts

RTT = 0.2


class Line:
    """A relay with its two ends in hand."""

    def __init__(
        self, nursery: trio.Nursery, *, rtt_seconds: float = RTT, buffer_bytes: int = 1 << 20
    ) -> None:
        self._ends: list[trio.abc.HalfCloseableStream] = []
        self._nursery = nursery
        self.relay = Relay(self._dial, rtt_seconds=rtt_seconds, buffer_bytes=buffer_bytes)

    async def _dial(self) -> trio.abc.HalfCloseableStream:
        ours, theirs = memory_stream_pair()
        self._ends.append(theirs)
        return ours

    async def open(self) -> tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream]:
        """Client's and server's end."""
        client, inner = memory_stream_pair()
        self._nursery.start_soon(self.relay.serve, inner)
        await trio.testing.wait_all_tasks_blocked()
        return client, self._ends[-1]


async def test_a_new_connection_waits_for_its_handshake(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """The first byte arrives after one and a half round trips: what a client on a real network would see."""
    client, server = await Line(nursery).open()
    await client.send_all(b"hello")
    assert await server.receive_some() == b"hello"
    assert trio.current_time() == pytest.approx(1.5 * RTT)


async def test_each_byte_is_late_by_half_a_round_trip(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """In both directions, also when several are on their way."""
    client, server = await Line(nursery).open()
    await trio.sleep(10)
    for sender, receiver in ((client, server), (server, client)):
        began = trio.current_time()
        arrivals = []
        for number in range(3):
            await sender.send_all(b"%d" % number)
            await trio.sleep(0.01)
        for number in range(3):
            assert await receiver.receive_some(1) == b"%d" % number
            arrivals.append(trio.current_time() - began)
        assert arrivals == pytest.approx([0.1, 0.11, 0.12])


async def test_nothing_is_lost_and_the_end_comes_last(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Bytes arrive in order, then the end; the other direction goes on until it ends, too."""
    line = Line(nursery)
    client, server = await line.open()
    sent = bytes(range(256)) * 1000
    received = bytearray()

    async def send() -> None:
        for start in range(0, len(sent), 777):
            await client.send_all(sent[start : start + 777])
        await client.send_eof()

    nursery.start_soon(send)
    async for data in server:
        received += data
    assert bytes(received) == sent
    await server.send_all(b"bye")
    await server.aclose()
    assert await client.receive_some() == b"bye"
    assert await client.receive_some() == b""
    await line.relay.wait_idle()
    assert line.relay.counts == RelayCounts(connections=1, bytes_up=len(sent), bytes_down=3)


async def test_what_is_under_way_is_bounded(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A receiver that does not read stops the relay from reading, not only from writing."""
    line = Line(nursery, buffer_bytes=1000)
    client, _server = await line.open()
    for _ in range(100):
        await client.send_all(bytes(100))
        await trio.testing.wait_all_tasks_blocked()
    assert line.relay.counts.bytes_up <= 1100


async def test_a_peer_that_breaks_ends_the_connection(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """The other side sees an end, and the relay serves the next connection."""
    line = Line(nursery)
    client, server = await line.open()
    await trio.aclose_forcefully(server)
    await client.send_all(b"anyone?")
    assert await client.receive_some() == b""
    again, _ = await line.open()
    await again.aclose()
    assert line.relay.counts.connections == 2


async def test_without_a_round_trip_it_only_counts(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """At 0 ms no time passes."""
    line = Line(nursery, rtt_seconds=0.0)
    client, server = await line.open()
    await client.send_all(b"x")
    assert await server.receive_some() == b"x"
    assert trio.current_time() == 0.0
    assert line.relay.counts == RelayCounts(connections=1, bytes_up=1, bytes_down=0)
