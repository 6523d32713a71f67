"""Too much of everything: what a flood costs is bounded, and nobody else pays for it.

The ids are those of the security list; `tests/test_security.py` says where the others are tested.
Memory is counted in blocks of the interpreter or in traced bytes, work in calls and steps: none of it depends on the
machine's speed, but for one ratio of two sizes that only a quadratic cost could reach.
"""

import gc
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
import trio

from engine.config import DEFAULT_LIMITS, Limits
from engine.corked import SLICE_BYTES
from engine.samplers.base import Prompt, Text
from engine.samplers.scripted import END, Script, Scripted, Stall, call, say
from engine.simulation import ActAtStep
from engine.testing import FaultPlan, MemoryTrace, Way, serving, simulate, simulated_engine
from protocol.errors import RemoteProtocolError
from protocol.session import ServerSession
from tests.scenarios import FUNCTION, TERMINAL, Talk, wait_idle
from tests.wire import CONTINUATION, PING, TEXT, WirePeer, client_frame

HELLO: Script = [[*say("hello"), END]]
MIB = 1024 * 1024
MANY = 10_000
SAME_BLOCKS = 4_000
"""By so many two readings may differ where nothing is kept: trio forgets past deadlines by the thousand.
Between two readings lie at least 5,000 of a kind, so one object kept of each would show."""


def run(program: Any, *, sampler: Any = None, trace: Any = None, instruments: Any = (), **parts: Any) -> None:
    """Run a program, which is given the server, in virtual time."""

    async def scenario() -> None:
        engine = simulated_engine(sampler or Scripted(HELLO), seed=1, **parts)
        async with serving(engine, trace=trace) as served:
            await program(served)

    simulate(scenario, seed=1, instruments=instruments)


def blocks() -> int:
    """Blocks of memory that the interpreter holds."""
    gc.collect()
    return sys.getallocatedblocks()


# --- T6, T7: frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 2], ids=["empty", "two bytes"])
def test_t06_fragments_fill_no_memory(size: int) -> None:
    """A hundred thousand fragments of one message: closed with 1008 at the 65th, and less than 2 MiB were ever held."""
    flood = client_frame(CONTINUATION, b"x" * size, final=False) * 1000
    peaks = []

    async def program(served: Any) -> None:
        peer = WirePeer(await served.open_stream())
        await peer.upgrade()
        await peer.send(client_frame(TEXT, b"{", final=False))
        tracemalloc.start()
        try:
            for _ in range(100):
                await peer.send(flood)
                await trio.testing.wait_all_tasks_blocked()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert (1008, "a message of more than 64 fragments") == await peer.read_close()

    run(program)

    assert peaks[0] < 2 * MIB


FLOODS = {
    "pings": client_frame(PING),
    "pings of 125 bytes": client_frame(PING, b"x" * 125),
    "texts of one byte": client_frame(TEXT, b"x"),
    "empty texts": client_frame(TEXT),
}


def steps_beside(flood: bytes) -> tuple[int, float]:
    """Task steps of a server with one who floods it, and when another client's response was over."""
    steps, over = ActAtStep(0), []

    async def program(served: Any) -> None:
        peer = WirePeer(await served.open_stream())
        await peer.upgrade()
        async with served.connect_raw(append=False) as raw:
            talk = Talk(raw, "create", served)
            talk.create()
            await talk.until("response.created")
            if flood:
                await peer.send(flood)
                assert 1008 == (await peer.read_close())[0]
                await peer.stream.aclose()
            await talk.until_ended()
            over.append(trio.current_time())

    run(program, sampler=Scripted([[*say("one two three"), Stall(5), END]]), instruments=[steps])
    return steps.steps, over[0]


@pytest.mark.parametrize("name", FLOODS)
def test_t07_a_flood_of_frames_costs_the_same_however_long_it_is(name: str) -> None:
    """Closed with 1008; forty times the frames are no more work, and another client's response ends at its time."""
    _, undisturbed = steps_beside(b"")
    short, over_short = steps_beside(FLOODS[name] * 1_100)
    long, over_long = steps_beside(FLOODS[name] * 44_000)

    assert undisturbed == over_short == over_long
    # what comes after the close is read and thrown away, in slices
    slices = 42_900 * len(FLOODS[name]) / SLICE_BYTES
    assert long - short < 100 + 5 * slices


# --- T10, T13: slow readers, many lanes ----------------------------------------------------------------------------


def test_t10_a_stalled_reader_is_cut_and_nobody_else_notices() -> None:
    """1011 after 10 s without progress; its sampler had been slowed at the mark; another stream is on time."""
    trace, limits = MemoryTrace(), Limits()
    reports: list[Any] = []
    over: list[float] = []
    pieces = 4_000
    stalled = FaultPlan(outbound=Way(stall_at_bytes=100_000, stall_seconds=3600))

    def script(_prompt: Prompt) -> Script:
        second: list[Any] = [*[(Text("x" * 200),)] * 100, Stall(1)]
        return [[*second * (pieces // 100), END]]

    async def read(served: Any, plan: FaultPlan | None) -> None:
        async with served.connect_raw(append=False, plan=plan, limits=Limits(close_timeout_seconds=1)) as raw:
            talk = Talk(raw, "create", served)
            talk.create()
            began = trio.current_time()
            try:
                await talk.until_ended()
            finally:
                over.append(trio.current_time() - began)

    async def program(served: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ends, read, served, stalled)
            await read(served, None)
            nursery.cancel_scope.cancel()

    run(program, sampler=Scripted(script), trace=trace, on_report=reports.append, limits=limits)

    closes = [orjson.loads(line) for line in trace.lines() if b'"hook":"connection_close"' in line]
    assert ("network", 1011) == (closes[0]["frame"]["by"], closes[0]["frame"]["code"])
    assert closes[0]["t"] < 15.0
    by_ending = {report.ending: report for report in reports}
    held = by_ending["disconnected"].usage.output_tokens * 500  # a delta has 350 bytes on the wire
    assert 0 < held < 2 * (100_000 + limits.outbox_high_water_bytes)
    assert pieces == by_ending["completed"].usage.output_tokens
    # whoever reads is done after the sampler's own forty seconds, whatever the other does
    assert 40.0 == pytest.approx(over[-1], abs=0.1)


async def _ends(read: Any, *args: Any) -> None:
    from engine.transport import TransportClosed

    with pytest.raises((TransportClosed, trio.BrokenResourceError)):
        await read(*args)


def test_t13_more_than_sixteen_at_once_wait() -> None:
    """Of twenty lanes sixteen sample, the others when there is room: nobody is refused."""
    ended: list[float] = []

    async def program(served: Any) -> None:
        async with served.connect_raw(append=False) as raw:
            talk = Talk(raw, "create", served)
            for lane in range(20):
                talk.create(stream_id=f"lane-{lane}")
            for _ in range(20):
                assert "response.completed" == (await talk.until_ended())["type"]
                ended.append(round(trio.current_time()))

    run(program, sampler=Scripted([[Stall(10), *say("ok"), END]]))

    assert Counter({10: 16, 20: 4}) == Counter(ended)


# --- T14, T15, T22: many of a kind ---------------------------------------------------------------------------------


def test_t14_ten_thousand_responses_leave_the_latest_of_each_lane() -> None:
    """Memory is the same after a fifth of them as after all; any but the latest is a parent that is not found."""
    held, ids = [], []

    async def program(served: Any) -> None:
        async with served.connect_raw(append=False) as raw:
            talk = Talk(raw, "create", served)
            for number in range(MANY):
                talk.create("hi", stream_id=f"lane-{number % 4}", store=False, tools=[])
                ids.append((await talk.until_ended())["response"]["id"])
                await trio.sleep(0.01)  # a thousand frames a second are a flood
                talk.frames.clear()
                talk.response_ids.clear()
                if number in {MANY // 5, MANY - 1}:
                    held.append(blocks() - len(ids))
            for old in (ids[0], ids[-5], ids[-8]):
                talk.create("more", stream_id="lane-0", store=False, previous_response_id=old)
                frame = await talk.next()
                assert "previous_response_not_found" == frame["error"]["code"]
            for lane, latest in enumerate(ids[-4:]):
                talk.create("more", stream_id=f"lane-{lane}", store=False, previous_response_id=latest)
                assert "response.completed" == (await talk.until_ended())["type"]

    run(program, limits=Limits(max_usage_rows=MANY // 10))  # full before the first reading

    assert abs(held[1] - held[0]) < SAME_BLOCKS


def test_t15_ten_thousand_tools_leave_bounded_caches() -> None:
    """Distinct names, schemas and models: as many blocks after all of them as when the caches were full."""
    held, checked = [], []
    per_create = 50

    def tool(number: int) -> dict[str, Any]:
        schema = {"type": "object", "properties": {f"p{number}": {"type": "string"}}}
        return {"type": "function", "name": f"tool_{number}", "parameters": schema}

    async def program(served: Any) -> None:
        schemas = served.server.engine.validate.schemas
        async with served.connect_raw(append=False) as raw:
            talk = Talk(raw, "create", served)
            for at in range(0, MANY, per_create):
                tools = [tool(number) for number in range(at, at + per_create)]
                # more models than are remembered, too: two of each kind of cache are full at the first reading
                for model in range(3):
                    talk.create(tools=tools, model=f"m-{at}-{model}", store=False)
                    await talk.until_ended()
                talk.frames.clear()
                talk.response_ids.clear()
                if at + per_create in {MANY // 2, MANY}:
                    held.append(blocks())
            for number in (MANY - DEFAULT_LIMITS.max_schemas, 0):
                before = schemas.checked
                talk.create(tools=[tool(number)], store=False)
                await talk.until_ended()
                checked.append(schemas.checked - before)

    run(program)

    assert [0, 1] == checked
    assert abs(held[1] - held[0]) < SAME_BLOCKS


@pytest.mark.parametrize("form", ["append", "inject"])
def test_t22_ten_thousand_bad_outputs_have_one_answer_each(form: str) -> None:
    """Duplicates, other outputs for an answered call, and unknown calls: all refused, nothing kept, the rollout as it was."""
    held: list[int] = []
    refused = {"append": "error", "inject": "response.inject.failed"}[form]

    async def program(served: Any) -> None:
        async with served.connect_raw(append=form == "append") as raw:
            talk = Talk(raw, form, served)
            talk.create(tools=[FUNCTION], store=False)
            await talk.until_suspended(2)
            talk.answer(0)
            if form == "inject":
                await talk.until("response.inject.created")
            first = talk.output(0)
            unknown = {**first, "call_id": "call_nobody"}
            for at in range(0, MANY, 500):
                for number in range(at, at + 500):
                    talk.put([first, {**first, "output": "else"}, unknown][number % 3])
                answers = [await talk.next() for _ in range(500)]
                assert [refused] * 500 == [frame["type"] for frame in answers]
                await trio.sleep(1.0)  # so many frames a second are no flood
                del answers
                talk.frames.clear()
                if at in {2_000, MANY - 500}:
                    held.append(blocks())
            talk.answer(1)
            assert "completed" == (await talk.until_ended())["response"]["status"]

    script: Script = [[call("f"), call("f", index=1), END], [*say("ok"), END]]
    run(program, sampler=Scripted(script), limits=Limits(inject_grace_seconds=600))

    assert abs(held[1] - held[0]) < SAME_BLOCKS


# --- T30: quadratic traps ------------------------------------------------------------------------------------------


def calls_of(create: dict[str, Any], script: Script) -> int:
    """Calls, Python's and C's, of a whole run in the create form."""
    counts = 0

    def count(_frame: Any, _event: str, _argument: Any) -> None:
        nonlocal counts
        counts += 1

    async def program(served: Any) -> None:
        async with served.connect_raw(append=False) as raw:
            raw.send({"type": "response.create", "model": "m", "store": False, **create})
            while orjson.loads(await raw.transport.receive())["type"] not in TERMINAL:
                pass
        await wait_idle(served)

    sys.setprofile(count)
    try:
        run(program, sampler=Scripted(script))
    finally:
        sys.setprofile(None)
    return counts


def items(count: int) -> dict[str, Any]:
    return {"input": [{"type": "message", "role": "user", "content": f"n {each}"} for each in range(count)]}


def deltas(count: int) -> Script:
    return [[*[(Text("x"),)] * count, END]]


TRAPS: Mapping[str, Callable[[int], Any]] = {
    "deltas of one character": lambda size: ({"input": "go"}, deltas(size)),
    "items of input": lambda size: (items(size), HELLO),
    "calls in a segment": lambda size: (
        {"input": "go", "tools": [FUNCTION]},
        [[*[call("f", index=index) for index in range(size)], END]],
    ),
    "tools": lambda size: (
        {"input": "go", "tools": [{**FUNCTION, "name": f"f{each}"} for each in range(size)]},
        HELLO,
    ),
}


@pytest.mark.parametrize("name", TRAPS)
def test_t30_work_grows_with_the_size(name: str) -> None:
    """Four times as many cost about four times the calls, beyond what one costs."""
    calls_of(*TRAPS[name](1))  # fills what is filled once
    base, small, large = (calls_of(*TRAPS[name](size)) for size in (1, 1_000, 4_000))
    assert 3.5 < (large - base) / (small - base) < 4.5


HOSTILE: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "a lane name": lambda size: {"stream_id": "a" * size + "!"},
    "a call id": lambda size: {
        "input": [{"type": "function_call_output", "call_id": "c" * size, "output": ""}]
    },
    "a type": lambda size: {"type": "r" * size},
    "white space": lambda size: {"input": " \t\n" * (size // 3) + "x", "max_output_tokens": "no"},
    "slashes": lambda size: {"input": "\\" * size, "max_output_tokens": "no"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_t30_reading_hostile_text_is_linear(name: str) -> None:
    """Sixteen times the text takes far less than 256 times as long."""

    def best_seconds(size: int) -> float:
        text = orjson.dumps({"type": "response.create", "model": "m", "input": "x", **HOSTILE[name](size)})
        seconds = []
        for _ in range(5):
            began = time.process_time()
            with pytest.raises(RemoteProtocolError):
                ServerSession(append=True).receive(text)
            seconds.append(time.process_time() - began)
        return min(seconds)

    assert best_seconds(2 * MIB) < 80 * max(best_seconds(MIB // 8), 1e-5)
