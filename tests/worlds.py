"""Worlds in virtual time: a server, clients of every form, a network that fails, hours of it; one seed each, always the same.

A seed draws the clients' forms and programs, the sampler's script, the limits, and what befalls each connection's bytes.
`run_seed` returns what is left: traces, reports, and what should be gone.
"""

import hashlib
import random
from typing import Any

import h11
import trio

from engine.config import Limits
from engine.faults import FaultPlan
from engine.samplers.base import Prompt, Thought
from engine.samplers.scripted import END, Raise, Script, Scripted, Silence, Stall, call, say
from engine.testing import MemoryTrace, Served, serving, simulate, simulated_engine
from engine.transport import HandshakeFailed, TransportClosed
from tests.http_peer import HttpPeer
from tests.random_clients import CreatingClient, HttpClient, SuspendingClient
from tests.scenarios import LIB, Outcome, Talk, wait_idle

ABOUT_BYTES = 12_000
"""What a fault-free connection sends."""


def draw_script(source: random.Random) -> Script:
    """Up to four segments, each of them text, thoughts, calls of several kinds, pauses, and sometimes a failure."""
    segments = []
    for _ in range(source.randint(0, 3)):
        steps: list[Any] = []
        for index in range(source.randint(1, 3)):
            steps += source.choice(
                ([], say("Let me see."), [(Thought("hm"),)], [Stall(source.choice((0.1, 3.0, 90.0)))])
            )
            made = source.choice(("f", "patch", "git", "lib"))
            if made == "git":
                steps.append(call("log", index=index, namespace="git"))
            elif made == "lib":
                steps.append(call("look", '{"x": 1}', index=index, namespace="lib"))
            else:
                steps.append(call(made, index=index))
        segments.append([*steps, END])
    last = source.choice(([], [], [], [Raise(RuntimeError("gone"))], [Silence()]))
    segments.append([*say("All done, after a while. " * source.randint(1, 8)), *last, END])
    return segments


def draw_limits(source: random.Random) -> Limits:
    """Bounds, some of them so tight that they are met."""
    return Limits(
        suspend_timeout_seconds=source.choice((0.0, 5.0, 600.0, 7200.0)),
        inject_grace_seconds=source.choice((0.0, 1.0, 30.0)),
        sampler_slots=source.choice((1, 2, 256)),
        max_in_flight=source.choice((1, 16)),
        max_queued_creates=source.choice((2, 64)),
        outbox_high_water_bytes=source.choice((500, 64 * 1024)),
    )


async def live(seed: int, outcome: Outcome) -> None:
    """One server and up to three clients, each over its own faulty connection; sometimes the server is drained."""
    source = random.Random(seed)

    def script(prompt: Prompt) -> Script:
        return draw_script(random.Random(f"{seed}/{prompt.response_id}"))

    outcome.sampler = Scripted(script)
    outcome.engine = simulated_engine(
        outcome.sampler,
        seed=seed,
        limits=draw_limits(source),
        hosted_tools=LIB,
        on_report=outcome.reports.append,
    )
    before = trio.lowlevel.current_statistics().tasks_living
    recorded = MemoryTrace()
    async with serving(outcome.engine, trace=recorded) as served:
        async with trio.open_nursery() as nursery:
            for number in range(source.randint(1, 3)):
                nursery.start_soon(connect_and_run, served, random.Random(f"{seed}/client {number}"))
            if source.random() < 0.3:
                nursery.start_soon(drain_later, served, source.choice((0.5, 3.0, 50.0)))
        await wait_idle(served)
    outcome.lines = recorded.lines()
    outcome.tasks_left = trio.lowlevel.current_statistics().tasks_living - before


async def connect_and_run(served: Served, source: random.Random) -> None:
    """One client until it or its connection is over."""
    form = source.choice(("append", "append", "inject", "inject", "create", "create", "http"))
    plan = FaultPlan.drawn(source, about_bytes=ABOUT_BYTES)
    try:
        stream = await served.open_stream(plan)
        if form == "http":
            async with stream:
                await HttpClient(HttpPeer(stream), source).run()
            return
        append = form == "append" or (form == "inject" and source.random() < 0.2)
        async with served.connect_raw(append=append, stream=stream) as raw:
            talk = Talk(raw, form, served)
            await (CreatingClient if form == "create" else SuspendingClient)(talk, source).run()
    except* (
        TransportClosed,
        HandshakeFailed,
        trio.BrokenResourceError,
        trio.ClosedResourceError,
        h11.ProtocolError,
    ):
        pass


async def drain_later(served: Served, seconds: float) -> None:
    """The server shuts down in the middle of it all."""
    await trio.sleep(seconds)
    served.server.drain()


def run_seed(seed: int) -> Outcome:
    """The world of a seed, from its beginning to its end."""
    outcome = Outcome()
    simulate(live, seed, outcome, seed=seed)
    return outcome


def digest(seed: int) -> str:
    """Of all its traces."""
    return hashlib.sha256(b"".join(run_seed(seed).lines)).hexdigest()
