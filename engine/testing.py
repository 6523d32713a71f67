"""The test kit: an engine in virtual time, over memory streams with the real WebSocket library on both ends.

    def test_a_rollout():
        simulate(scenario, seed=1)

    async def scenario():
        engine = simulated_engine(Scripted([[call("now"), END], [*say("noon"), END]]), seed=1)
        async with serving(engine) as served, served.connect_client() as client:
            async with client.rollout(model="m", input="time?", functions={"now": now}) as rollout:
                assert (await rollout.wait_ended()).status == "completed"

Waiting costs nothing here: hours of a suspended rollout pass in milliseconds.
One seed gives one interleaving of the tasks, the same ids and times, and so the same trace, byte for byte.

`check_sampler` holds a sampler, ours or yours, to the six rules of `engine.samplers.base`; `await check_backend(…)` a
backend to the six of `engine.backends.base`.
`ActAtStep` ends something at the n-th step of any task: run it for n = 1, 2, … until nothing is left to be hit.
Faults of the network are in `engine.faults`.
"""

import io
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import orjson
import trio
import trio.testing

from engine.backends.conformance import BackendReport, check_backend
from engine.client import Client, Form, connect
from engine.config import DEFAULT_LIMITS, Limits
from engine.conformance import check_sampler
from engine.engine import Engine
from engine.faults import FaultPlan, FaultyStream, Way
from engine.nursery import open_outliving_nursery
from engine.recorder import DEFAULT_MAX_TRACE_BYTES, TraceFile
from engine.samplers.base import Sampler
from engine.server import APPEND_TOKEN, Server
from engine.simulation import ActAtStep, CancelAtStep, simulate
from engine.transport import ClientTransport, connect_transport

__all__ = [
    "ActAtStep",
    "BackendReport",
    "CancelAtStep",
    "FaultPlan",
    "FaultyStream",
    "MemoryTrace",
    "RawClient",
    "Served",
    "Way",
    "check_backend",
    "check_sampler",
    "serving",
    "simulate",
    "simulated_engine",
]

URL: Final = "ws://localhost/v1/responses"
FIRST_WALL_SECOND: Final = 1_800_000_000
"""`created_at` of a response that is created at once."""


# --- an engine in virtual time --------------------------------------------------------------------------------


def simulated_engine(sampler: Sampler, *, seed: int, **parts: Any) -> Engine:
    """`Engine.make` with ids from a seed and the clocks of the simulation."""
    source = random.Random(seed)  # noqa: S311  # ids that can be guessed are the point

    def new_id(prefix: str) -> str:
        return f"{prefix}_{source.getrandbits(128):032x}"

    return Engine.make(
        sampler,
        **{
            "new_id": new_id,
            "clock_ns": lambda: int(trio.current_time() * 1e9),
            "wall_seconds": lambda: FIRST_WALL_SECOND + int(trio.current_time()),
            **parts,
        },
    )


# --- a server in memory ------------------------------------------------------------------------------------------


class MemoryTrace(TraceFile):
    """The traces of a server, kept in memory."""

    def __init__(self, *, max_trace_bytes: int = DEFAULT_MAX_TRACE_BYTES) -> None:
        self._max_trace_bytes = max_trace_bytes
        self._file = self._memory = io.BytesIO()
        self._connections = 0

    def lines(self) -> list[bytes]:
        """What a trace file would hold: the connections that have ended."""
        return self._memory.getvalue().splitlines(keepends=True)


class _MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts the server's ends of stream pairs."""

    def __init__(self) -> None:
        self.arrivals, self._arrivals = trio.open_memory_channel[trio.abc.Stream](0)

    async def accept(self) -> trio.abc.Stream:
        return await self._arrivals.receive()

    async def aclose(self) -> None:
        await self._arrivals.aclose()


class RawClient:
    """Sends whatever it is told and takes whatever comes; knows no rules of the protocol."""

    def __init__(self, transport: ClientTransport) -> None:
        self.transport = transport

    def send(self, frame: Mapping[str, Any] | str | bytes) -> None:
        """Send an object as JSON, or text as it is. `TransportClosed`; not a checkpoint."""
        text = (
            frame.encode()
            if isinstance(frame, str)
            else frame
            if isinstance(frame, bytes)
            else orjson.dumps(frame)
        )
        self.transport.send_nowait(text)
        self.transport.flush()

    async def receive(self) -> dict[str, Any]:
        """The next frame. `TransportClosed`."""
        frame: dict[str, Any] = orjson.loads(await self.transport.receive())
        return frame


@attrs.frozen
class Served:
    """A server in memory, and the ways to it."""

    server: Server
    scope: trio.CancelScope
    """Around the whole server: cancelled, it is gone at once, as when its process ends."""
    _arrivals: trio.MemorySendChannel[trio.abc.Stream]

    async def open_stream(self, plan: FaultPlan | None = None) -> trio.abc.HalfCloseableStream:
        """The client's end of a new connection, for bytes; `plan` is what befalls it, seen from the server's end.

        `trio.BrokenResourceError`: the server no longer accepts.
        """
        ours, theirs = trio.testing.memory_stream_pair()
        await self._arrivals.send(theirs if plan is None else FaultyStream(theirs, plan))
        return ours

    @asynccontextmanager
    async def connect_client(
        self, form: Form = "append", *, plan: FaultPlan | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        """The engine's own client; `options` are those of `engine.client.connect`."""
        async with connect(URL, form=form, stream=await self.open_stream(plan), **options) as client:
            yield client

    @asynccontextmanager
    async def connect_raw(
        self,
        *,
        append: bool = True,
        headers: Sequence[tuple[str, str]] = (),
        limits: Limits = DEFAULT_LIMITS,
        plan: FaultPlan | None = None,
        stream: trio.abc.Stream | None = None,
    ) -> AsyncIterator[RawClient]:
        """A client for arbitrary text; `append`: it opts into `response.append`. `limits` are the client's own."""
        opt_in = [("OpenAI-Beta", APPEND_TOKEN)] if append else []
        stream = stream or await self.open_stream(plan)
        async with connect_transport(URL, [*opt_in, *headers], limits, stream) as transport:
            yield RawClient(transport)


@asynccontextmanager
async def serving(
    engine: Engine, *, key: str | None = None, trace: TraceFile | None = None
) -> AsyncIterator[Served]:
    """A server in memory while the block runs; cancelled at its end, if it was not drained before."""
    server = Server(engine, key=key, trace=trace)
    listener = _MemoryListener()
    async with open_outliving_nursery() as nursery:
        scope = trio.CancelScope()
        await nursery.start(_run_server, server, listener, scope)
        yield Served(server, scope, listener.arrivals)
        scope.cancel()


async def _run_server(
    server: Server,
    listener: _MemoryListener,
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    with scope:
        await server.run_on([listener], task_status=task_status)
