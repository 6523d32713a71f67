"""Many connections with many responses each: what a server holds does not grow with what it has done.

Memory is counted in blocks of the interpreter or in traced bytes, never timed. All connections are open at once, and go
from one response to the next together, so that two readings find them in the same place.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import orjson
import pytest
import trio

from engine.config import Limits
from engine.samplers.scripted import END, Scripted, say
from engine.testing import Served, serving, simulate, simulated_engine
from tests.scenarios import wait_idle
from tests.test_growth import used_bytes
from tests.wire import TEXT, WirePeer, client_frame

CONNECTIONS, RESPONSES = 200, 50
REMEMBERED = 10
"""Ended responses that a connection remembers here, so that it is full at the first reading."""
SAME_BLOCKS = 4_000
"""By so many two readings may differ where nothing is kept: trio forgets past deadlines by the thousand.
Between two readings of open connections lie twice as many responses, between the two when all are closed 9,600 and 200 connections."""
REMEMBERED_BYTES = 1_300
"""Of one ended response that a connection remembers (measured: 900); by default it remembers 128."""

CREATE = client_frame(
    TEXT, orjson.dumps({"type": "response.create", "model": "m", "input": "hi", "store": False})
)
COMPLETED = b'{"type":"response.completed"'


@attrs.frozen
class Reading:
    """What the process holds."""

    blocks: int
    tasks: int


def read() -> Reading:
    """Now, after a full collection."""
    gc.collect()
    return Reading(sys.getallocatedblocks(), trio.lowlevel.current_statistics().tasks_living)


def traced_bytes() -> int:
    """Of what the collector leaves."""
    gc.collect()
    return used_bytes()


class Crowd:
    """Connections that make their responses in step; `measure` is called after some of the rounds."""

    def __init__(self, served: Served, connections: int, responses: int) -> None:
        self._served = served
        self._connections = connections
        self._rounds = [trio.Event() for _ in range(responses + 1)]
        self._done = 0
        self._all_done = trio.Event()

    async def run(self, after: Sequence[int] = (), measure: Callable[[], Any] = read) -> list[Any]:
        """The readings after these rounds, counted from 1; all connections are closed at the end."""
        readings = []
        async with trio.open_nursery() as nursery:
            for _ in range(self._connections):
                nursery.start_soon(self._talk)
            for number, begin in enumerate(self._rounds[:-1], 1):
                begin.set()
                await self._all_done.wait()
                self._all_done = trio.Event()
                await trio.sleep(0.1)
                if number in after:
                    readings.append(measure())
            self._rounds[-1].set()
        await wait_idle(self._served)
        return readings

    async def _talk(self) -> None:
        peer = WirePeer(await self._served.open_stream())
        await peer.upgrade()
        *rounds, end = self._rounds
        for begin in rounds:
            await begin.wait()
            await peer.send(CREATE)
            seen = b""
            while COMPLETED not in seen:
                data = await peer.stream.receive_some()
                assert data, "the server hung up"
                seen = seen[-len(COMPLETED) :] + data
            self._done += 1
            if self._done % self._connections == 0:
                self._all_done.set()
        await end.wait()
        await peer.stream.aclose()


@pytest.fixture
def collector_off() -> Iterator[None]:
    """Readings collect anyway; between them it would look at a million objects again and again."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_off")
def test_two_hundred_connections_of_fifty_responses_leave_nothing() -> None:
    """As many blocks and tasks after the fiftieth response of each as after the tenth, and at the end as before."""
    # the rows of usage are full before the first reading
    limits = Limits(max_ended_responses=REMEMBERED, max_usage_rows=2 * CONNECTIONS)

    async def scenario() -> tuple[Sequence[Reading], Sequence[Reading]]:
        engine = simulated_engine(Scripted([[*say("hello"), END]]), seed=1, limits=limits)
        async with serving(engine) as served:
            await Crowd(served, CONNECTIONS, 2).run()  # fills what is filled once
            before = read()
            open_ones = await Crowd(served, CONNECTIONS, RESPONSES).run(after=(REMEMBERED, RESPONSES))
            return open_ones, (before, read())

    (early, late), (before, after) = simulate(scenario, seed=1)

    assert abs(late.blocks - early.blocks) < SAME_BLOCKS
    assert after.blocks - before.blocks < 2 * SAME_BLOCKS
    assert early.tasks - before.tasks > CONNECTIONS
    assert (late.tasks, after.tasks) == (early.tasks, before.tasks)


def test_a_remembered_response_is_small() -> None:
    """What a connection holds to refuse late input by name is bounded: 128 times about a kilobyte."""

    async def scenario() -> list[int]:
        async with serving(
            simulated_engine(Scripted([[*say("hello"), END]]), seed=1, limits=Limits(max_usage_rows=10))
        ) as served:
            await Crowd(served, 10, 2).run()
            tracemalloc.start()
            try:
                return await Crowd(served, 10, 50).run(after=(10, 50), measure=traced_bytes)
            finally:
                tracemalloc.stop()

    early, late = simulate(scenario, seed=1)

    assert Limits().max_ended_responses == 128
    assert 0 < (late - early) / (10 * 40) < REMEMBERED_BYTES
