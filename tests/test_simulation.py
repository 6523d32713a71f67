"""Whole connections in virtual time: random programs over networks that fail, one seed each, the same every time.

A seed draws the client's form and program, the sampler's script, the limits, and what befalls the connection's bytes.
After each run the oracle has read the trace, and nothing is left.
More seeds: `SEEDS=20000` in the environment. One seed: the line that a failure prints.
"""

import hashlib
import logging
import os
import random
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import trio

from engine.config import Limits
from engine.faults import FaultPlan
from engine.samplers.base import Prompt, Thought
from engine.samplers.scripted import END, Raise, Script, Scripted, Silence, Stall, call, say
from engine.testing import MemoryTrace, Served, serving, simulate, simulated_engine
from engine.transport import HandshakeFailed, TransportClosed
from tests.scenarios import LIB, Outcome, Talk, findings, wait_idle

SEEDS = int(os.environ.get("SEEDS", "300"))
BATCHES = 20
ABOUT_BYTES = 12_000
"""What a fault-free connection sends."""


# --- what a seed draws -------------------------------------------------------------------------------------------


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


class RandomClient:
    """Does what it likes, mostly what it should."""

    def __init__(self, talk: Talk, source: random.Random) -> None:
        self.talk = talk
        self.source = source
        self.lanes: list[str | None] = source.choice(([None], [None], ["a", "b"], [None, "a", "b"]))
        self.answered: set[int] = set()
        self.created = 0

    async def run(self) -> None:
        """A program of a few dozen moves; it ends by hanging up, or because the connection is over."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read)
            for _ in range(self.source.randint(5, 25)):
                self.move()
                await trio.sleep(self.source.choice((0.0, 0.0, 0.001, 0.1, 1.0, 1.0, 40.0, 700.0)))
            nursery.cancel_scope.cancel()

    async def read(self) -> None:
        while True:
            await self.talk.next()

    def move(self) -> None:
        """Mostly outputs, now and then a new rollout, sometimes nonsense."""
        if self.created == 0 or self.source.random() < 0.12:
            self.create()
        else:
            self.source.choice(
                (self.answer, self.answer, self.answer, self.answer, self.answer_all, self.misbehave)
            )()

    def create(self) -> None:
        self.created += 1
        lane = self.source.choice(self.lanes)
        members: dict[str, Any] = {} if lane is None else {"stream_id": lane}
        if self.talk.response_ids and self.source.random() < 0.3:
            members["previous_response_id"] = self.source.choice(self.talk.response_ids)
        members |= self.source.choice(
            ({}, {}, {"max_output_tokens": 9}, {"max_tool_calls": 1}, {"generate": False})
        )
        self.talk.create(self.source.choice(("go", "x" * 5000)), **members)

    def lane_members(self) -> dict[str, Any]:
        lane = self.source.choice(self.lanes)
        return {} if lane is None or self.talk.form == "inject" else {"stream_id": lane}

    def send(self, places: list[int]) -> None:
        """Outputs for calls, mostly to the response of the last of them, sometimes to another."""
        if not places:
            return
        response_id, lane = self.talk.homes[places[-1]]
        members = {} if lane is None or self.talk.form == "inject" else {"stream_id": lane}
        if self.source.random() < 0.1:
            response_id, members = self.source.choice(self.talk.response_ids), self.lane_members()
        self.talk.answer(*places, response_id=response_id, **members)

    def answer(self) -> None:
        """One of the last open calls, mostly once."""
        still = [place for place in range(len(self.talk.calls)) if place not in self.answered]
        if still:
            place = self.source.choice(still[-2:])
            self.answered.update({place} if self.source.random() < 0.8 else ())
            self.send([place])

    def answer_all(self) -> None:
        """All the last calls at once, in any order."""
        places = list(range(len(self.talk.calls)))[-self.source.randint(1, 3) :]
        self.source.shuffle(places)
        self.send(places)

    def misbehave(self) -> None:
        """What a client should not do."""
        talk = self.talk
        response_id = talk.response_ids[-1] if talk.response_ids else "resp_none"
        unknown = {"type": "function_call_output", "call_id": "call_nobody", "output": "?"}
        message = {"type": "message", "role": "user", "content": "hurry"}
        self.source.choice(
            (
                lambda: talk.put(unknown, response_id=response_id),
                lambda: talk.put(message, response_id=response_id, **self.lane_members()),
                lambda: talk.raw.send("{"),
                lambda: talk.raw.send({"type": "response.cancel"}),
                lambda: talk.raw.send({"type": "response.append", "input": []}),
                lambda: talk.raw.send(
                    {"type": "response.inject", "response_id": response_id, "input": [unknown]}
                ),
                lambda: talk.raw.send({"type": "response.create", "input": 7}),
            )
        )()


async def serve_and_talk(seed: int, outcome: Outcome) -> None:
    """One server, one or two clients, each over its own faulty connection."""
    source = random.Random(seed)

    def script(prompt: Prompt) -> Script:
        return draw_script(random.Random(f"{seed}/{prompt.response_id}"))

    outcome.sampler = Scripted(script)
    limits = Limits(
        suspend_timeout_seconds=source.choice((0.0, 5.0, 600.0, 7200.0)),
        inject_grace_seconds=source.choice((0.0, 1.0, 30.0)),
        sampler_slots=source.choice((1, 2, 256)),
        max_in_flight=source.choice((1, 16)),
        max_queued_creates=source.choice((2, 64)),
        outbox_high_water_bytes=source.choice((500, 64 * 1024)),
    )
    outcome.engine = simulated_engine(
        outcome.sampler, seed=seed, limits=limits, hosted_tools=LIB, on_report=outcome.reports.append
    )
    before = trio.lowlevel.current_statistics().tasks_living
    recorded = MemoryTrace()
    async with serving(outcome.engine, trace=recorded) as served:
        async with trio.open_nursery() as nursery:
            for number in range(source.randint(1, 2)):
                nursery.start_soon(connect_and_run, served, random.Random(f"{seed}/client {number}"))
            if source.random() < 0.3:
                nursery.start_soon(drain_later, served, source.choice((0.5, 3.0, 50.0)))
        await wait_idle(served)
    outcome.lines = recorded.lines()
    outcome.tasks_left = trio.lowlevel.current_statistics().tasks_living - before


async def connect_and_run(served: Served, source: random.Random) -> None:
    form = source.choice(("append", "inject"))
    plan = FaultPlan.drawn(source, about_bytes=ABOUT_BYTES)
    try:
        stream = await served.open_stream(plan)
        async with served.connect_raw(append=form == "append" or source.random() < 0.2, stream=stream) as raw:
            await RandomClient(Talk(raw, form, served), source).run()
    except* (TransportClosed, HandshakeFailed, trio.BrokenResourceError):
        pass


async def drain_later(served: Served, seconds: float) -> None:
    await trio.sleep(seconds)
    served.server.drain()


def run_seed(seed: int) -> Outcome:
    outcome = Outcome()
    simulate(serve_and_talk, seed, outcome, seed=seed)
    return outcome


def digest(seed: int) -> str:
    return hashlib.sha256(b"".join(run_seed(seed).lines)).hexdigest()


# --- the tests ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Samplers fail on purpose."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_happens_the_rules_hold(batch: int) -> None:
    """Over every seed: order, numbers, one end and one post-inference each, and no task, slot or sampling left."""
    for seed in range(batch, SEEDS, BATCHES):
        again = f'repeat it with: python -c "from tests.test_simulation import *; print(findings(run_seed({seed}), may_be_empty=True))"'
        try:
            found = findings(run_seed(seed), may_be_empty=True)
        except BaseException as error:
            error.add_note(again)
            raise
        assert found == [], again


def test_one_seed_is_one_trace() -> None:
    """The same seed gives the same trace, byte for byte."""
    assert [digest(seed) for seed in range(10)] == [digest(seed) for seed in range(10)]


def test_one_seed_is_one_trace_in_another_process_too() -> None:
    """Nothing depends on the hashes of strings, which differ from process to process."""
    program = "from tests.test_simulation import digest; print(digest(3), digest(4))"
    found = [
        subprocess.run(
            [sys.executable, "-c", f"import logging; logging.disable(); {program}"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for hash_seed in ("1", "2")
    ]

    assert found[0] == found[1] == [digest(3), digest(4)]


def test_many_seeds_are_many_traces() -> None:
    """Hardly two seeds do the same."""
    assert len({digest(seed) for seed in range(40)}) > 37


def test_the_seeds_reach_what_they_should() -> None:
    """Over eighty seeds each ending and each hook occur: the simulation is no fair weather, and no mere storm."""
    endings: Counter[str] = Counter()
    hooks: Counter[str] = Counter()
    for seed in range(80):
        for report in run_seed(seed).reports:
            endings[report.ending] += 1
            hooks.update(report.hooks)

    wanted = {
        "completed",
        "abandoned",
        "disconnected",
        "expired",
        "failed",
        "max_output_tokens",
        "max_tool_calls",
        "drained",
    }
    assert wanted <= set(endings)
    assert min(hooks[name] for name in ("suspend", "resume", "accepted", "hosted")) > 20
