"""Shutting down, in virtual time: suspended rollouts end as their form says, sampling ones have their time, nobody new comes in."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from engine.config import Limits
from engine.samplers.scripted import END, Scripted, Stall, call, say
from engine.server import APPEND_TOKEN
from engine.simulation import ActAtStep, simulate
from engine.testing import RawClient, serving, simulated_engine
from engine.transport import HandshakeFailed, HandshakeRejected, TransportClosed, connect_transport
from protocol.errors import refusal

LIMITS = Limits(drain_seconds=30.0)
TOOLS = [{"type": "function", "name": "f"}]
INJECT = {"multi_agent": {"enabled": True}}
URL = "ws://localhost/v1/responses"
SUSPENDING = [[call("f"), END], [*say("done"), END]]


def create(**members):
    return {"type": "response.create", "model": "m", "input": "hi", "tools": TOOLS, **members}


def sampling(seconds: float):
    return [[*say("so"), Stall(seconds), *say(" it is"), END]]


async def until(client: RawClient, *types: str) -> dict:
    """The next frame of one of these types."""
    while True:
        frame = await client.receive()
        if frame["type"] in types:
            return frame


async def rest(client: RawClient) -> "tuple[list[dict], int | None, float]":
    """All frames up to the close, its code, and when that was."""
    frames = []
    try:
        while True:
            frames.append(await client.receive())
    except TransportClosed as closed:
        return frames, closed.code, trio.current_time()


@asynccontextmanager
async def draining(script, *, limits=LIMITS, append=True):
    """A server with one client, and the server's reports."""
    reports = []
    engine = simulated_engine(Scripted(script), seed=1, limits=limits, on_report=reports.append)
    async with serving(engine) as served, served.connect_raw(append=append) as client:
        yield served, client, reports


DRAINING = refusal("draining")
OVERLOADED = refusal("overloaded")


async def test_a_suspended_append_rollout_fails_at_once(autojump_clock):
    """Its client is told by `response.failed` with `server_error`, and then by the close code 1001."""
    async with draining(SUSPENDING) as (served, client, reports):
        client.send(create())
        await until(client, "response.done")
        began = trio.current_time()
        served.server.drain()
        (failed,), code, closed_at = await rest(client)
    error = failed["response"]["error"]
    assert ("response.failed", {"code": "server_error", "message": DRAINING.message}) == (
        failed["type"],
        error,
    )
    assert (1001, 0.0) == (code, closed_at - began)
    assert [("failed", "drained")] == [(report.status, report.ending) for report in reports]


async def test_a_suspended_inject_rollout_completes_with_its_calls_pending(autojump_clock):
    """The calls are in its output without their outputs, so that a create can go on from there."""
    async with draining(SUSPENDING, append=False) as (served, client, reports):
        client.send(create(**INJECT))
        await until(client, "response.output_item.done")
        await trio.testing.wait_all_tasks_blocked()
        served.server.drain()
        (completed,), code, _ = await rest(client)
    assert ("response.completed", "completed", None) == (
        completed["type"],
        completed["response"]["status"],
        completed["response"]["error"],
    )
    assert (["function_call"], 1001) == ([item["type"] for item in completed["response"]["output"]], code)
    assert ["drained"] == [report.ending for report in reports]


async def test_a_sampling_rollout_finishes(autojump_clock):
    """What samples when the drain begins goes on to its end, and only then the connection is closed."""
    async with draining(sampling(20)) as (served, client, reports):
        client.send(create())
        await until(client, "response.output_text.delta")
        began = trio.current_time()
        served.server.drain()
        frames, code, closed_at = await rest(client)
    assert ("response.completed", 1001) == (frames[-1]["type"], code)
    assert (pytest.approx(20), [("completed", "completed")]) == (
        closed_at - began,
        [(report.status, report.ending) for report in reports],
    )


async def test_a_rollout_that_samples_for_too_long_fails(autojump_clock):
    """After `drain_seconds` it is cut: `response.failed` with what it had said, then 1001."""
    async with draining(sampling(1000)) as (served, client, reports):
        client.send(create())
        await until(client, "response.output_text.delta")
        began = trio.current_time()
        served.server.drain()
        frames, code, closed_at = await rest(client)
    assert ("response.failed", "server_error", DRAINING.message) == (
        frames[-1]["type"],
        frames[-1]["response"]["error"]["code"],
        frames[-1]["response"]["error"]["message"],
    )
    assert (1001, pytest.approx(30)) == (code, closed_at - began)
    assert [("failed", "drained")] == [(report.status, report.ending) for report in reports]


@pytest.mark.parametrize(
    ("append", "members", "terminal"), [(True, {}, "response.failed"), (False, INJECT, "response.completed")]
)
async def test_a_rollout_that_comes_to_a_call_ends_there(append, members, terminal, autojump_clock):
    """One that samples on and then would suspend ends at that moment, as a suspended one does, without a `response.done`."""
    script = [[Stall(5), call("f"), END], [*say("never"), END]]
    async with draining(script, append=append) as (served, client, _):
        client.send(create(**members))
        await until(client, "response.in_progress")
        began = trio.current_time()
        served.server.drain()
        frames, code, closed_at = await rest(client)
    types = [frame["type"] for frame in frames]
    assert (terminal, False, 1001, pytest.approx(5)) == (
        types[-1],
        "response.done" in types,
        code,
        closed_at - began,
    )


async def test_outputs_accepted_before_the_drain_are_still_used(autojump_clock):
    """A rollout that was resumed just before samples on to its end."""
    async with draining([[call("f", call_id="call_1"), END], [Stall(5), *say("done"), END]]) as (
        served,
        client,
        _,
    ):
        client.send(create())
        await until(client, "response.done")
        output = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
        client.send({"type": "response.append", "input": [output]})
        await trio.testing.wait_all_tasks_blocked()
        served.server.drain()
        frames, code, _ = await rest(client)
    assert ("response.completed", 1001) == (frames[-1]["type"], code)


async def test_new_creates_are_refused(autojump_clock):
    """On a connection that still samples, another create gets a 503 on its own lane, and the first goes on."""
    async with draining(sampling(10)) as (served, client, _):
        client.send(create())
        await until(client, "response.output_text.delta")
        served.server.drain()
        client.send(create(stream_id="other"))
        frames, code, _ = await rest(client)
    error = next(frame for frame in frames if frame["type"] == "error")
    assert (503, "server_is_overloaded", OVERLOADED.message, "other") == (
        error["status"],
        error["error"]["code"],
        error["error"]["message"],
        error["stream_id"],
    )
    assert ("response.completed", 1001) == (frames[-1]["type"], code)


async def test_creates_that_wait_never_start(autojump_clock):
    """A create queued behind a sampling one is dropped: there is one response only."""
    async with draining(sampling(10)) as (served, client, reports):
        client.send(create())
        await until(client, "response.output_text.delta")
        client.send(create())
        await trio.testing.wait_all_tasks_blocked()
        served.server.drain()
        frames, _, _ = await rest(client)
    assert ("response.completed", 1) == (frames[-1]["type"], len(reports))
    assert [] == [frame for frame in frames if frame["type"] == "response.created"]


async def test_creates_that_wait_for_a_place_to_sample_never_start(autojump_clock):
    """The first create of a lane waits for a slot and the second for the first: both are refused, in their order."""
    limits = attrs.evolve(LIMITS, sampler_slots=1)
    async with draining(sampling(10), limits=limits) as (served, client, reports):
        client.send(create(stream_id="busy"))
        await until(client, "response.output_text.delta")
        client.send(create())
        client.send(create())
        await trio.testing.wait_all_tasks_blocked()
        served.server.drain()
        frames, code, _ = await rest(client)
    assert [OVERLOADED.message] * 2 == [
        frame["error"]["message"] for frame in frames if frame["type"] == "error"
    ]
    assert [] == [frame for frame in frames if frame["type"] == "response.created"]
    assert (1001, ["completed"]) == (code, [report.ending for report in reports])


@pytest.mark.parametrize(
    ("append", "members", "terminal"),
    [(True, {}, "response.failed"), (False, INJECT, "response.completed")],
)
async def test_who_would_have_been_superseded_ends_when_its_successor_is_refused(
    append, members, terminal, autojump_clock
):
    """A create waits behind a sampling rollout, and the drain refuses it: the rollout still says its end at its call."""
    script = [[*say("so"), Stall(5), call("f"), END], [*say("done"), END]]
    async with draining(script, append=append) as (served, client, reports):
        client.send(create(**members))
        await until(client, "response.output_text.delta")
        client.send(create(**members))
        await trio.sleep(1)
        served.server.drain()
        frames, code, _ = await rest(client)
    assert ["error", terminal] == [
        frame["type"]
        for frame in frames
        if frame["type"] in {"error", "response.failed", "response.completed"}
    ]
    assert (1001, ["drained"]) == (code, [report.ending for report in reports])


async def test_new_handshakes_are_refused(autojump_clock):
    """A stream that was accepted before gets a 503 for its upgrade; new ones are not accepted at all."""
    async with draining(sampling(10)) as (served, client, _):
        client.send(create())
        await until(client, "response.output_text.delta")
        early = await served.open_stream()
        await trio.testing.wait_all_tasks_blocked()
        served.server.drain()
        with pytest.raises(HandshakeRejected) as rejected:
            async with connect_transport(URL, [], LIMITS, early):
                pass
        with pytest.raises(trio.BrokenResourceError):
            await served.open_stream()
        await rest(client)
    assert (503, True) == (rejected.value.status, b"server_is_overloaded" in rejected.value.body)


async def test_an_idle_server_is_drained_at_once(autojump_clock):
    """Without rollouts each connection is closed with 1001 immediately; to drain twice is to drain once."""
    async with draining(SUSPENDING) as (served, client, _):
        async with served.connect_raw() as other:
            began = trio.current_time()
            served.server.drain()
            served.server.drain()
            ends = [(await rest(each))[1:] for each in (client, other)]
        assert ((), [(1001, began)] * 2) == (served.server.statistics().connections, ends)


async def test_a_client_that_reads_nothing_does_not_hold_the_drain(autojump_clock):
    """Whoever neither reads nor closes is dropped after the time for closing."""
    async with draining(SUSPENDING) as (served, client, _):
        ours = await served.open_stream()
        await ours.send_all(
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await trio.testing.wait_all_tasks_blocked()
        served.server.drain()
        await rest(client)
        await trio.sleep(LIMITS.close_timeout_seconds + LIMITS.send_timeout_seconds)
        assert () == served.server.statistics().connections
        await ours.aclose()


async def test_rollouts_of_many_connections_end_each_in_its_own_way(autojump_clock):
    """Suspended, sampling and endless ones side by side: the server is gone when the last has had its time."""
    scripts = {
        "suspended": SUSPENDING,
        "short": sampling(3),
        "endless": sampling(10_000),
    }
    ends = {}
    engine = simulated_engine(Scripted(lambda prompt: scripts[prompt.model]), seed=1, limits=LIMITS)
    async with serving(engine) as served, trio.open_nursery() as nursery:
        began = trio.current_time()

        async def talk(model: str) -> None:
            async with served.connect_raw() as client:
                client.send(create(model=model))
                frames, code, _ = await rest(client)
                ends[model] = (frames[-1]["type"], code)

        for model in scripts:
            nursery.start_soon(talk, model)
        await trio.sleep(1)
        served.server.drain()
    expected = {
        "suspended": ("response.failed", 1001),
        "short": ("response.completed", 1001),
        "endless": ("response.failed", 1001),
    }
    assert (expected, pytest.approx(31)) == (ends, trio.current_time() - began)


def test_a_drain_at_any_step_of_a_handshake_lets_nothing_start():
    """Whenever the drain comes, a client that knocks is refused, or comes in and starts nothing, and is closed with 1001."""

    async def scenario(instrument: ActAtStep) -> str:
        engine = simulated_engine(Scripted(sampling(10)), seed=1, limits=LIMITS)
        drained = trio.Event()
        async with serving(engine) as served, served.connect_raw() as first:
            first.send(create())
            await until(first, "response.output_text.delta")

            def drain() -> None:
                served.server.drain()
                drained.set()

            instrument.step, instrument.act = instrument.steps + wanted, drain
            outcome = "came in"
            try:
                async with connect_transport(
                    URL, [("OpenAI-Beta", APPEND_TOKEN)], LIMITS, await served.open_stream()
                ) as transport:
                    await drained.wait()
                    second = RawClient(transport)
                    second.send(create())
                    (error,), code, _ = await rest(second)
                    assert ("error", 503, 1001) == (error["type"], error["status"], code)
            except HandshakeRejected as rejected:
                outcome = f"refused with {rejected.status}"
            except (HandshakeFailed, trio.BrokenResourceError):
                outcome = "not accepted"
            if not drained.is_set():
                drain()
            frames, code, _ = await rest(first)
            assert ("response.completed", 1001) == (frames[-1]["type"], code)
            return outcome

    outcomes = []
    for wanted in range(1, 60):
        instrument = ActAtStep(0)
        outcomes.append(simulate(scenario, instrument, seed=wanted, instruments=[instrument]))
    assert {"came in", "refused with 503"} <= set(outcomes) <= {"came in", "refused with 503", "not accepted"}
