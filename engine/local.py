"""An engine and its client in one process: for demos, notebooks and tests.

`local_server` listens on a free loopback port; `local_client` connects to one, in any form; `memory_client` does so
without any socket, so that a program with a mock clock runs in virtual time.

    async with local_client(Engine.make(sampler)) as client, client.rollout(model="m", input="hello") as rollout:
        print(await rollout.wait_ended())

What the block raises comes out as it is, never wrapped in a group.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import memory_stream_pair

from engine.client import Client, Form, connect
from engine.engine import Engine
from engine.recorder import Recorder, Recorders
from engine.server import Server

PATH = "/v1/responses"


@asynccontextmanager
async def local_server(
    engine: Engine, *, key: str | None = None, trace: Recorders | None = None
) -> AsyncIterator[str]:
    """Serve `engine` on a free loopback port while the block runs; its `ws://` URL, good for each form. Drains at the end."""
    server = Server(engine, key=key, trace=trace)
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(server.run)
        try:
            yield f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}{PATH}"
        except Exception as raised:  # noqa: BLE001  # raised again below, outside the nursery and its group
            error = raised
        server.drain()
    if error is not None:
        raise error


@asynccontextmanager
async def local_client(
    engine: Engine,
    *,
    form: Form = "append",
    recorder: Recorder | None = None,
    trace: Recorders | None = None,
) -> AsyncIterator[Client]:
    """A client of `engine` over a real loopback connection. `recorder`: the client's, `trace`: the server's."""
    async with (
        local_server(engine, trace=trace) as url,
        connect(url, form=form, limits=engine.limits, recorder=recorder) as client,
    ):
        yield client


@asynccontextmanager
async def memory_client(
    engine: Engine,
    *,
    form: Form = "append",
    recorder: Recorder | None = None,
    trace: Recorders | None = None,
) -> AsyncIterator[Client]:
    """A client of `engine` over pairs of memory streams: everything but the sockets is the real thing."""
    server = Server(engine, trace=trace)
    error: Exception | None = None
    async with trio.open_nursery() as samplers:
        server.start_samplers(samplers)
        async with trio.open_nursery() as serving:

            async def dial() -> trio.abc.Stream:
                here, there = memory_stream_pair()
                serving.start_soon(server.serve, there)
                return here

            try:
                async with connect(
                    f"ws://localhost{PATH}",
                    form=form,
                    limits=engine.limits,
                    recorder=recorder,
                    stream=await dial(),
                    redial=dial,
                ) as client:
                    yield client
            except Exception as raised:  # noqa: BLE001  # as above
                error = raised
        samplers.cancel_scope.cancel()
    if error is not None:
        raise error
