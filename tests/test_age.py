"""A connection's age limit: what is refused, what ends, what may finish, and the close (reference 4.7; earendil-works/pi#6268)."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from engine.config import DEFAULT_LIMITS, Limits
from engine.samplers.base import Prompt
from engine.samplers.scripted import END, Script, Scripted, Stall, call, say
from engine.testing import MemoryTrace, serving, simulate, simulated_engine
from engine.transport import TransportClosed
from tests.scenarios import TERMINAL, Outcome, Talk, findings, wait_idle

HOUR = DEFAULT_LIMITS.max_connection_seconds
GRACE = DEFAULT_LIMITS.age_grace_seconds
TOO_OLD = {
    "type": "error",
    "status": 400,
    "error": {
        "type": "invalid_request_error",
        "code": "websocket_connection_limit_reached",
        "message": "Responses websocket connection limit reached (60 minutes). "
        "Create a new websocket connection to continue.",
        "param": None,
    },
}
STALLS = {"wait 30 s": 30.0, "wait 100 s": 100.0, "wait long": 10 * HOUR}


def script_of(prompt: Prompt) -> Script:
    """By the only thing that a sampler knows at once: which tools are offered."""
    told = prompt.tools[0]["name"] if prompt.tools else ""
    if told == "call":
        return [[call("call"), END], [*say("Done."), END]]
    return [[*say("Wait."), Stall(STALLS.get(told.replace("_", " "), 0.0)), *say("Done."), END]]


def told(talk: Talk, what: str, **members: Any) -> None:
    """A create whose tool says what the sampler does."""
    tool = {"type": "function", "name": what.replace(" ", "_")}
    talk.create(**{"tools": [tool], "store": False, **members})


async def read_to_the_end(talk: Talk) -> TransportClosed:
    """All that still comes, and how the connection is closed."""
    try:
        while True:
            await talk.next()
    except TransportClosed as closed:
        return closed


def run(
    program: Callable[[Talk], Awaitable[None]],
    form: str,
    limits: Limits = DEFAULT_LIMITS,
    *,
    may_be_empty: bool = False,
) -> Outcome:
    """Run a program from the first second of a connection; its trace and remains are checked."""
    outcome = Outcome()

    async def converse() -> None:
        outcome.sampler = Scripted(script_of)
        outcome.engine = simulated_engine(
            outcome.sampler, seed=1, limits=limits, on_report=outcome.reports.append
        )
        trace = MemoryTrace()
        async with serving(outcome.engine, trace=trace) as served:
            async with served.connect_raw(append=form == "append") as raw:
                talk = Talk(raw, form, served)
                outcome.frames = talk.frames
                await program(talk)
            await wait_idle(served)
        outcome.lines = trace.lines()

    simulate(converse, seed=1)
    assert findings(outcome, may_be_empty=may_be_empty) == []
    return outcome


def ends(outcome: Outcome) -> list[tuple[str, str]]:
    """How the rollouts ended, in order."""
    return [(report.status, report.ending) for report in outcome.reports]


@pytest.mark.parametrize("form", ["append", "inject", "create"])
def test_an_idle_connection_is_told_and_closed(form: str):
    """At its hour, not before: the typed error without a lane, then 1001."""

    async def program(talk: Talk) -> None:
        await trio.sleep(HOUR - 1)
        told(talk, "nothing")
        await talk.until_ended()
        count = len(talk.frames)
        closed = await read_to_the_end(talk)
        assert talk.frames[count:] == [TOO_OLD]
        assert (closed.code, trio.current_time()) == (1001, pytest.approx(HOUR, abs=0.1))

    assert ends(run(program, form)) == [("completed", "completed")]


def test_a_connection_that_never_said_anything_is_closed_too():
    """Silence is no way to stay."""

    async def program(talk: Talk) -> None:
        assert (await read_to_the_end(talk)).code == 1001
        assert talk.frames == [TOO_OLD]

    run(program, "create", may_be_empty=True)


@pytest.mark.parametrize("form", ["append", "inject", "create"])
def test_what_samples_may_finish(form: str):
    """Within the grace: it completes; a new create meanwhile is refused on its lane; then the error again, and 1001."""

    async def program(talk: Talk) -> None:
        await trio.sleep(HOUR - 10)
        told(talk, "wait 30 s")
        await talk.until("response.output_text.delta")
        await trio.sleep(15)
        told(talk, "nothing", stream_id="b")
        assert await talk.next() == TOO_OLD | {"stream_id": "b"}
        assert (await talk.until_ended())["response"]["status"] == "completed"
        closed = await read_to_the_end(talk)
        assert talk.frames[-1] == TOO_OLD
        assert (closed.code, trio.current_time()) == (1001, pytest.approx(HOUR + 20, abs=0.1))

    assert ends(run(program, form)) == [("completed", "completed")]


@pytest.mark.parametrize("form", ["append", "inject", "create"])
def test_what_samples_for_longer_is_cut(form: str):
    """After the grace it fails with a code that clients retry; only then the connection is closed."""

    async def program(talk: Talk) -> None:
        told(talk, "wait long")
        await talk.until("response.output_text.delta")
        ended = await talk.until_ended()
        assert trio.current_time() == pytest.approx(HOUR + GRACE, abs=0.1)
        assert (ended["type"], ended["response"]["error"]["code"]) == ("response.failed", "server_error")
        closed = await read_to_the_end(talk)
        assert (talk.frames[-1], closed.code) == (TOO_OLD, 1001)

    assert ends(run(program, form)) == [("failed", "drained")]


@pytest.mark.parametrize(
    ("form", "status", "limits"),
    [
        ("append", "failed", attrs.evolve(DEFAULT_LIMITS, suspend_timeout_seconds=0)),
        ("inject", "completed", attrs.evolve(DEFAULT_LIMITS, inject_grace_seconds=2 * HOUR)),
    ],
)
def test_what_is_suspended_ends_at_once(form: str, status: str, limits: Limits):
    """Append: failed, `server_error`; inject: completed, the call pending in `output`; nothing waits for the grace."""

    async def program(talk: Talk) -> None:
        told(talk, "call")
        await talk.until_suspended(1)
        resource = (await talk.until_ended())["response"]
        assert trio.current_time() == pytest.approx(HOUR, abs=0.1)
        assert (resource["status"], resource["output"][-1]["type"]) == (status, "function_call")
        assert (resource["error"] or {}).get("code") == ("server_error" if form == "append" else None)
        closed = await read_to_the_end(talk)
        assert (talk.frames[-1], closed.code) == (TOO_OLD, 1001)
        assert trio.current_time() == pytest.approx(HOUR, abs=0.1)

    assert ends(run(program, form, limits)) == [(status, "drained")]


def test_what_waits_for_its_lane_is_refused_on_it():
    """It has not begun: it gets the error of a new create, and what runs before it completes."""

    async def program(talk: Talk) -> None:
        await trio.sleep(HOUR - 10)
        for lane in ("a", None, "a"):
            told(talk, "wait 30 s", stream_id=lane)
        assert await talk.until("error") == TOO_OLD | {"stream_id": "a"}
        assert {(await talk.until_ended()).get("stream_id") for _ in range(2)} == {"a", None}
        await read_to_the_end(talk)

    assert ends(run(program, "create")) == [("completed", "completed")] * 2


def test_the_limit_is_the_connections_and_not_the_servers():
    """A socket opened when the old one goes takes the client's next create."""

    async def program(talk: Talk) -> None:
        await read_to_the_end(talk)
        async with talk.served.connect_raw(append=False) as raw:
            again = Talk(raw, "create", talk.served)
            told(again, "nothing")
            assert (await again.until_ended())["response"]["status"] == "completed"

    run(program, "create", may_be_empty=True)


def test_the_limit_is_configurable_and_says_what_it_is():
    """The words name the minutes of this server; without a grace nothing goes on."""

    async def program(talk: Talk) -> None:
        told(talk, "wait 100 s")
        ended = await talk.until_ended()
        assert (ended["type"], trio.current_time()) == ("response.failed", pytest.approx(90, abs=0.1))
        await read_to_the_end(talk)
        assert "limit reached (1.5 minutes)." in talk.frames[-1]["error"]["message"]

    run(program, "create", Limits(max_connection_seconds=90, age_grace_seconds=0))


def test_a_connection_that_ends_before_its_hour_leaves_nothing_behind():
    """Its clock stops with it: the server is idle at once, not an hour later."""

    async def program(talk: Talk) -> None:
        told(talk, "nothing")
        await talk.until_ended()
        await talk.raw.transport.aclose()
        await wait_idle(talk.served)
        assert trio.current_time() < 5

    run(program, "create")


def test_a_server_that_goes_away_says_so_and_not_that_it_is_old():
    """The first reason stays: creates are refused as overloaded also after the hour, and the close is one."""

    async def program(talk: Talk) -> None:
        await trio.sleep(HOUR - 10)
        told(talk, "wait 30 s")
        await talk.until("response.output_text.delta")
        await trio.sleep(1)  # the answer ends before the time for draining does
        talk.served.server.drain()
        await trio.sleep(15)
        told(talk, "nothing", stream_id="b")
        assert (await talk.until("error"))["error"]["code"] == "server_is_overloaded"
        assert (await talk.until(*TERMINAL))["response"]["status"] == "completed"
        assert (await read_to_the_end(talk)).code == 1001

    run(program, "create")
