"""Runs in wall time: client, network and server in three processes, over loopback.

One rollout at a time: rollouts that share two cores would measure each other.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from demos.lab.process import Answer, Child, child_process
from demos.lab.relay import Relay, RelayCounts
from demos.lab.server import RolloutServer, Served, Setup

HOST: Final = "127.0.0.1"
CLOSING_SECONDS: Final = 2.0
"""For the last bytes to arrive, and for connections to end."""


class WallWorld:
    """Made by `wall_world`."""

    clock: Final = "wall"

    def __init__(self, server: Child, relay: Child) -> None:
        self.began = trio.current_time()
        self._server = server
        self._relay = relay

    @asynccontextmanager
    async def place(self, setup: Setup, rtt_seconds: float) -> AsyncIterator["_WallPlace"]:
        """As `World.place`. `ChildError`."""
        port = await self._relay.ask("open", await self._server.ask("open", setup), rtt_seconds)
        yield _WallPlace(port, self._server, self._relay)


@attrs.frozen
class _WallPlace:
    _port: int
    _server: Child
    _relay: Child

    async def open_stream(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(HOST, self._port)

    async def close(self) -> tuple[Served, RelayCounts]:
        counts: RelayCounts = await self._relay.ask("close")
        served: Served = await self._server.ask("close")
        return served, counts


@asynccontextmanager
async def wall_world() -> AsyncIterator[WallWorld]:
    """Start the processes, and stop them at the end. `ChildError`."""
    async with (
        child_process(_start_server, "server") as server,
        child_process(_start_relay, "relay") as relay,
    ):
        yield WallWorld(server, relay)


# --- in the children -----------------------------------------------------------------------------------------------


def _start_server(nursery: trio.Nursery) -> Mapping[str, Answer]:
    running: list[RolloutServer] = []

    async def open_(setup: Setup) -> int:
        server = RolloutServer(setup)
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        await nursery.start(server.run, listeners)
        running.append(server)
        server.begin()
        return int(listeners[0].socket.getsockname()[1])

    async def close() -> Served:
        return await running.pop().close(measures_cpu=True)

    return {"open": open_, "close": close}


def _start_relay(nursery: trio.Nursery) -> Mapping[str, Answer]:
    running: list[tuple[Relay, trio.CancelScope]] = []

    async def open_(port: int, rtt_seconds: float) -> int:
        async def dial() -> trio.SocketStream:
            return await trio.open_tcp_stream(HOST, port)

        relay = Relay(dial, rtt_seconds=rtt_seconds)
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        scope = trio.CancelScope()

        async def serve() -> None:
            with scope:
                await trio.serve_listeners(relay.serve, listeners)

        nursery.start_soon(serve)
        running.append((relay, scope))
        return int(listeners[0].socket.getsockname()[1])

    async def close() -> RelayCounts:
        relay, scope = running.pop()
        with trio.move_on_after(CLOSING_SECONDS):
            await relay.wait_idle()
        scope.cancel()
        return relay.counts

    return {"open": open_, "close": close}
