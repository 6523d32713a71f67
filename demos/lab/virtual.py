"""Runs in virtual time: the real engine and the real client over memory streams, with a clock that jumps.

What costs time here is what the plan says: decoding, prefill, tools, round trips. Work of the processor costs none.
So a virtual run is the bound that a wall run cannot beat, it is the same on each machine, and thousands fit in a minute.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio
from trio.testing import memory_stream_pair

from demos.lab.plan import Case
from demos.lab.relay import OpenStream, Relay, RelayCounts
from demos.lab.rollout_run import Ran, run_case
from demos.lab.server import RolloutServer, Served, Setup
from engine.simulation import simulate
from engine.testing import FIRST_WALL_SECOND

CLOSING_SECONDS: Final = 60.0
"""Virtual: for the last bytes to arrive."""


def run_virtual(case: Case, timeout_seconds: float) -> Ran:
    """Run a case in a world of its own. The same case gives the same record."""
    return simulate(partial(_run, case, timeout_seconds), seed=case.seed)


async def _run(case: Case, timeout_seconds: float) -> Ran:
    return await run_case(case, VirtualWorld(), timeout_seconds)


class VirtualWorld:
    """Servers in memory; inside of `simulate`."""

    clock: Final = "virtual"
    began = 0.0

    @asynccontextmanager
    async def place(self, setup: Setup, rtt_seconds: float) -> AsyncIterator["_MemoryPlace"]:
        """As `World.place`."""
        source = random.Random(setup.seed)  # noqa: S311  # ids of a simulation
        server = RolloutServer(
            setup,
            clock_ns=lambda: round(trio.current_time() * 1e9),
            wall_seconds=lambda: FIRST_WALL_SECOND + int(trio.current_time()),
            new_id=lambda prefix: f"{prefix}_{source.getrandbits(128):032x}",
        )
        listener = _MemoryListener()
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run, [listener])
            yield _MemoryPlace(server, self.make_relay(listener.dial, rtt_seconds), nursery)
            nursery.cancel_scope.cancel()

    def make_relay(self, dial: OpenStream, rtt_seconds: float) -> Relay:
        """The network of a place."""
        return Relay(dial, rtt_seconds=rtt_seconds)


@attrs.frozen
class _MemoryPlace:
    _server: RolloutServer
    _relay: Relay
    _nursery: trio.Nursery

    async def open_stream(self) -> trio.abc.HalfCloseableStream:
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._relay.serve, theirs)
        return ours

    async def close(self) -> tuple[Served, RelayCounts]:
        with trio.move_on_after(CLOSING_SECONDS):
            await self._relay.wait_idle()
        return await self._server.close(measures_cpu=False), self._relay.counts


class _MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts the server's ends of stream pairs."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](0)

    async def dial(self) -> trio.abc.HalfCloseableStream:
        ours, theirs = memory_stream_pair()
        await self._send.send(theirs)
        return ours

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        await self._receive.aclose()
