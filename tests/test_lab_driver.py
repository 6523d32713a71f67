"""The driver, in virtual time: every arm does the same work, as its row says, in the time that arithmetic gives."""

import random
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from demos.lab.agreement import Agreement, agreement_section, agreements, farthest
from demos.lab.arms import ARMS, arm_of
from demos.lab.content import ClientContent, ScriptedWork, words
from demos.lab.driver import drive
from demos.lab.plan import Case, Cell, ModelCosts, Plan, packaged_text
from demos.lab.records import Rollout
from demos.lab.results import ResultsReader
from demos.lab.rollout_run import run_case
from demos.lab.runner import SAMPLER, expected_seconds, run_plan
from demos.lab.scenario import FINISHED
from demos.lab.server import KeptTraces
from demos.lab.validity import judged
from demos.lab.virtual import run_virtual
from demos.lab.wall import wall_world
from demos.lab.workload import Step, Work
from engine import vocabulary
from engine.testing import MemoryTrace, serving, simulate, simulated_engine

WORK = Work("by-hand", 300, (Step(20, 10, 1.0), Step(30, 12, 0.5), Step(10, 5, 0.0)))
RTT, FIRST, RATE = 0.2, 0.1, 100.0
MODEL = ModelCosts(first_token_ms=1e3 * FIRST, prefill_tokens_per_second=1e12, tick_ms=0.1)
AXES = {"tokens_per_second": RATE, "rtt_ms": 1e3 * RTT, "tool": 1}


def case_of(arm: str, *, model: ModelCosts = MODEL, work: Work = WORK) -> Case:
    return Case(cell=Cell(axes=AXES, repeats=1, model=model), work=work, seed=3, block=0, order=0, arm=arm)


def ran(arm: str) -> Rollout:
    return run_virtual(case_of(arm), 60.0).rollout


@pytest.fixture(scope="module")
def rollouts() -> dict[str, Rollout]:
    """One of each arm."""
    return {arm: ran(arm) for arm in (*ARMS, "optimised#2")}


def test_every_arm_ends_well_and_breaks_no_rule(rollouts: dict[str, Rollout]) -> None:
    """Nothing failed, the trace checker found nothing, and neither the arm's row nor the rules of a pair are broken."""
    stamped = judged([*rollouts.values()])
    assert {(one.arm, one.error, one.findings, one.reasons) for one in stamped} == {
        (arm, None, 0, ()) for arm in rollouts
    }


def test_every_arm_samples_the_same_tokens(rollouts: dict[str, Rollout]) -> None:
    """As many as the work says."""
    assert {one.tokens.sampled for one in rollouts.values()} == {WORK.sampled_tokens}


def test_connections_and_responses_are_as_the_arm_says(rollouts: dict[str, Rollout]) -> None:
    """Naive HTTP opens one for each request; the forms that suspend are one response."""
    steps = len(WORK.steps)
    for arm, one in rollouts.items():
        row = arm_of(arm)
        assert one.server is not None
        assert (one.connections, one.server.responses) == (row.connections(steps), row.responses(steps))
    assert rollouts["naive"].connections == steps
    assert rollouts["append"].server is not None
    assert rollouts["append"].server.responses == 1


@pytest.mark.parametrize(
    ("arm", "round_trips"),
    [
        ("naive", 3 + 3),  # each request's own connection, then its answer
        ("naive-keep", 1 + 3),
        ("optimised", 1 + 3),
        ("ws-full", 2 + 3),  # the connection and the upgrade
        ("create", 2 + 3),
        ("create-warm", 2 + 1 + 3),
        ("append", 2 + 3),
        ("inject", 2 + 3),
    ],
)
def test_times_are_those_of_a_sum_on_paper(rollouts: dict[str, Rollout], arm: str, round_trips: int) -> None:
    """A rollout is its round trips, its first tokens, its tokens and its tools; half a tick for each segment is allowed."""
    one = rollouts[arm]
    by_hand = round_trips * RTT + 3 * FIRST + WORK.sampled_tokens / RATE + WORK.tool_seconds
    assert one.total_s == pytest.approx(by_hand, abs=0.001)
    assert one.late_s == pytest.approx(0.0, abs=1e-9)


def test_turns_are_told_apart(rollouts: dict[str, Rollout]) -> None:
    """Each begins when the tool before it is over; its first token comes a round trip and a first token later."""
    turns = rollouts["append"].turns
    assert [turn.sent_s for turn in turns] == pytest.approx([0.4, 1.8, 2.72], abs=0.001)
    for turn in turns:
        assert turn.first_s == pytest.approx(turn.sent_s + RTT + FIRST + 1 / RATE, abs=0.001)
    assert rollouts["append"].ttft_s == turns[0].first_s
    assert rollouts["append"].created_s == pytest.approx(0.6, abs=0.001)


def test_bytes_of_turns_add_up_to_what_the_network_saw(rollouts: dict[str, Rollout]) -> None:
    """All but the farewell, and what a warm-up sent before the first turn is in that turn."""
    for one in rollouts.values():
        assert one.bytes_up - sum(turn.bytes_up for turn in one.turns) in range(20)
        assert one.bytes_down - sum(turn.bytes_down for turn in one.turns) in range(-20, 20)


def test_only_what_an_arm_must_is_sent_and_read_again(rollouts: dict[str, Rollout]) -> None:
    """Without caches every context is read from its beginning; with them, and in one response, each token once."""
    contexts = [*WORK.contexts()]
    computed = {arm: one.tokens.computed for arm, one in rollouts.items()}
    assert computed["naive"] == computed["naive-keep"] == computed["ws-full"] > sum(contexts)
    once = {computed[arm] for arm in ("optimised", "create", "create-warm", "append", "inject")}
    assert len(once) == 1
    assert max(contexts) < once.pop() < computed["naive"] / 2  # instructions and tools are read as well
    assert rollouts["append"].bytes_up < rollouts["create"].bytes_up < rollouts["optimised"].bytes_up


def test_the_same_case_gives_the_same_record(rollouts: dict[str, Rollout]) -> None:
    """In virtual time a run can be repeated to the byte."""
    assert ran("inject") == rollouts["inject"]


def test_a_rollout_that_takes_too_long_is_a_record_of_a_failure() -> None:
    """It has no total, says why, and is not counted as an arm that broke its own rules."""
    one = run_virtual(case_of("append"), 1.0).rollout
    assert (one.failed, one.total_s, one.valid) == (True, None, True)
    assert one.error is not None
    assert "TooSlowError" in one.error


def test_a_published_overhead_is_added_to_each_call_of_its_arm() -> None:
    """Of the three calls of this work."""
    model = attrs.evolve(MODEL, overhead_ms={"append": 500.0})
    slow, quick = (run_virtual(case_of("append", model=one), 60.0).rollout.total_s for one in (model, MODEL))
    assert slow is not None
    assert quick is not None
    assert slow - quick == pytest.approx(1.5, abs=0.001)


def test_words_are_exactly_so_many_tokens() -> None:
    """Also where two of them meet."""
    for count in (0, 1, 7, 500):
        assert len(vocabulary.encode(words(count, random.Random(count)))) == count


def test_a_step_that_is_shorter_than_its_call_is_only_the_call() -> None:
    """The arms stay equal, and the number says what was sampled."""
    assert ScriptedWork(Work("short", 0, (Step(1, 0, 0.0), Step(1, 0, 0.0))), 0).sampled_tokens == 6


# --- traces, kept and checked later --------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["append", "naive", "create"])
def test_a_trace_that_is_played_later_is_the_one_that_would_have_been_written(arm: str) -> None:
    """Byte for byte, times included."""

    async def traced(trace: MemoryTrace | KeptTraces) -> list[bytes]:
        engine = simulated_engine(ScriptedWork(WORK, 0), seed=1)
        async with serving(engine, trace=trace) as served:  # type: ignore[arg-type]  # any giver of recorders does
            content = ClientContent.of(WORK, 0)
            await drive(ARMS[arm], content, served.open_stream, intended=0.0, timeout_seconds=60)
            await trio.sleep(1)
        return trace.lines()

    written, played = (simulate(partial(traced, kind), seed=1) for kind in (MemoryTrace(), KeptTraces()))
    assert played == written
    assert len(played) > 20


def test_what_the_checker_finds_is_said() -> None:
    """A trace with a hole in its numbers has findings."""

    async def holed() -> tuple[tuple[str, ...], int]:
        traces = KeptTraces()
        recorder = traces.recorder("append", 600.0)
        recorder.hook("connection_open", {})
        recorder.frame_out(b'{"type":"response.created","sequence_number":5,"response":{"id":"resp_1"}}')
        recorder.close()
        return traces.check()

    findings, count = simulate(holed, seed=0)
    assert count == 1
    assert any("expected" in finding for finding in findings)


# --- a whole plan --------------------------------------------------------------------------------------------------

SMALL = """
title = "small"
question = "?"
clock = "virtual"
arms = ["optimised", "append"]
baseline = "optimised"
headline = "append"
repeats = 2
[work]
source = "uniform"
[cell]
tokens_per_second = 1000
calls = 1
history_tokens = 50
new_tokens = 10
sampled_tokens = 10
rtt_ms = 10
tool = "Z"
"""


class Stopped(Exception):  # noqa: N818  # not an error: somebody pressed Ctrl-C
    pass


class Watch:
    """A progress that may stop the run."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.began: list[tuple[str, int]] = []
        self.ran_arms: list[str] = []
        self._stop_after = stop_after

    def begin(self, what: str, cases: int, seconds: float) -> None:
        assert seconds > 0 or not cases
        self.began.append((what, cases))

    def ran(self, case: Case, seconds: float) -> None:
        assert seconds == expected_seconds(case, "virtual")
        self.ran_arms.append(case.arm)
        if len(self.ran_arms) == self._stop_after:
            raise Stopped


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    """What is in the file is not run again, and the file is the one of a run that was not stopped, but for its notes."""
    plan = Plan.parse(SMALL, "small", "small.toml")
    halves, whole = tmp_path / "halves.jsonl", tmp_path / "whole.jsonl"
    first, second = Watch(stop_after=1), Watch()
    with pytest.raises(Stopped):
        run_plan(plan, 0, "virtual", halves, first)
    assert run_plan(plan, 0, "virtual", halves, second).ran == 3
    run_plan(plan, 0, "virtual", whole, Watch())
    assert first.began + second.began == [("virtual", 4), ("virtual", 3)]
    assert [*ResultsReader(halves).rollouts()] == [*ResultsReader(whole).rollouts()]
    assert [note.topic for note in ResultsReader(whole).notes()] == [SAMPLER, FINISHED]
    assert run_plan(plan, 0, "virtual", whole, Watch()).ran == 0


def test_the_published_constants_give_the_published_saving() -> None:
    """Through the real engine: 29 % at 65 tokens/s and 41 % at 1,000, from two overheads and nothing fitted."""
    text = (
        packaged_text("alpha").replace("tick_ms = 1\n", "tick_ms = 5\n").replace("repeats = 2", "repeats = 1")
    )
    plan = Plan.parse(text, "alpha", "alpha.toml")
    seconds = {
        (case.cell.tokens_per_second, case.arm): run_virtual(case, 600.0).rollout.total_s
        for case in plan.cases(0)
        if case.arm in ("optimised", "create")
    }
    savings = [1 - (seconds[rate, "create"] or 0) / (seconds[rate, "optimised"] or 1) for rate in (65, 1000)]
    assert savings == pytest.approx([0.293, 0.412], abs=0.005)


async def test_three_processes_give_the_same_kind_of_record(rollouts: dict[str, Rollout]) -> None:
    """By the wall clock a rollout has what it has by the virtual one, CPU time besides, and cannot be faster."""
    virtual = rollouts["append"]
    quick = attrs.evolve(WORK, steps=tuple(attrs.evolve(step, tool_seconds=0.0) for step in WORK.steps))
    async with wall_world() as world:
        one = (await run_case(case_of("append", work=quick), world, 60.0)).rollout
    assert (one.error, one.reasons, one.findings, one.clock) == (None, (), 0, "wall")
    assert one.tokens == virtual.tokens
    assert one.server is not None
    assert one.server.cpu_s is not None
    assert one.server.cpu_s > 0
    assert virtual.total_s is not None
    assert one.total_s is not None
    assert one.total_s >= virtual.total_s - WORK.tool_seconds


def test_clocks_are_compared_by_medians(tmp_path: Path) -> None:
    """The same rollouts by the same clock are not apart."""
    plan = Plan.parse(SMALL, "small", "small.toml")
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        run_plan(plan, 0, "virtual", path, Watch())
    found = agreements(*paths)
    assert [one.arm for one in found] == ["append", "optimised"]
    assert farthest(found) == 0.0
    assert farthest([]) is None
    assert "at most 0.0 % apart" in agreement_section(found, "b.jsonl").sentence


def test_the_arm_whose_clocks_are_farthest_apart_is_named() -> None:
    """In the words that the rest of the report has for a cell, and with each arm in the table."""
    cells = [(("calls", 3), ("tokens_per_second", speed)) for speed in (65, 400)]
    found = [Agreement(cells[0], "append", 2.0, 2.02), Agreement(cells[1], "naive", 2.0, 1.9)]
    section = agreement_section(found, "wall.jsonl")
    assert "at most 5.0 % apart" in section.sentence
    assert (
        "naive at 400 tokens/s takes 2.000 s by the virtual and 1.900 s by the wall clock" in section.sentence
    )
    assert section.table is not None
    assert [row[:2] for row in section.table.rows] == [("append", "65 tokens/s"), ("naive", "400 tokens/s")]
