"""The ledger: whatever a rollout does, its stages add up to its wall time, to the nanosecond."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.engine import Engine
from engine.ledger import Ledger, LedgerReport, Stage, monotonic_ns
from engine.local import memory_client
from engine.recorder import NoRecorder
from engine.samplers.scripted import END, Scripted, call, say


class FakeClock:
    """Nanoseconds that pass only when a test says so."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


stages = st.sampled_from(Stage)
ACTIONS = st.lists(
    st.tuples(st.just("pass"), st.integers(0, 10**9))
    | st.tuples(st.just("enter"), stages)
    | st.tuples(st.just("open"), stages)
    | st.tuples(st.just("close"), st.none())
    | st.tuples(st.just("claim"), st.tuples(stages, st.integers(0, 10**9)))
    | st.tuples(st.just("report"), st.none()),
    max_size=40,
)


@given(actions=ACTIONS, began=st.integers(0, 10**12), earlier=st.integers(0, 10**6))
def test_the_stages_partition_the_wall_time_exactly(actions, began, earlier):
    """After any sequence of entering, nesting, claiming and reporting the stages sum up to the wall time and none is negative."""
    clock = FakeClock(began + earlier)
    ledger = Ledger(clock, started_ns=began)
    blocks: list[ExitStack] = []
    for action, value in actions:
        if action == "pass":
            clock.now += value
        elif action == "enter":
            ledger.enter(value)
        elif action == "open":
            block = ExitStack()
            block.enter_context(ledger.at(value))
            blocks.append(block)
        elif action == "close" and blocks:
            blocks.pop().close()
        elif action == "claim":
            ledger.claim(*value)
        report = ledger.report()
        expected = (clock.now - began, clock.now - began, True)
        actual = (
            report.wall_ns,
            sum(report.stages.values()),
            all(spent >= 0 for spent in report.stages.values()),
        )
        assert expected == actual


@given(spans=st.lists(st.tuples(stages, st.integers(0, 10**9)), max_size=20))
def test_each_stage_gets_the_time_between_its_entry_and_the_next(spans):
    """A stage's time is the sum of its spans."""
    clock = FakeClock()
    ledger = Ledger(clock)
    expected = {stage.name.lower(): 0 for stage in Stage}
    for stage, spent in spans:
        ledger.enter(stage)
        clock.now += spent
        expected[stage.name.lower()] += spent
    assert expected == ledger.report().stages


def test_entering_returns_the_stage_left():
    """What `enter` returns leads back to where the ledger was."""
    ledger = Ledger(FakeClock())
    expected = [Stage.OTHER, Stage.SAMPLE, Stage.SEND]
    assert expected == [ledger.enter(Stage.SAMPLE), ledger.enter(Stage.SEND), ledger.enter(Stage.OTHER)]


def test_a_block_that_raises_leaves_its_stage_too():
    """`at` goes back to the stage before also when its block fails."""
    ledger = Ledger(FakeClock())
    ledger.enter(Stage.QUEUE)
    with pytest.raises(ZeroDivisionError), ledger.at(Stage.RENDER):
        raise ZeroDivisionError
    assert Stage.QUEUE is ledger.stage


def test_a_claim_moves_time_from_the_current_stage():
    """Time claimed for a stage is taken from the one the ledger is in, and the ledger stays in that one."""
    clock = FakeClock()
    ledger = Ledger(clock)
    ledger.enter(Stage.SUSPENDED)
    clock.now = 100
    ledger.claim(Stage.DECODE, 30)
    stages_ns = ledger.report().stages
    expected = (70, 30, Stage.SUSPENDED)
    assert expected == (stages_ns["suspended"], stages_ns["decode"], ledger.stage)


def test_a_claim_takes_no_more_than_there_is():
    """A claim above the current stage's time gets all of it and leaves nothing negative."""
    clock = FakeClock()
    ledger = Ledger(clock)
    ledger.enter(Stage.SUSPENDED)
    clock.now = 10
    ledger.claim(Stage.DECODE, 30)
    stages_ns = ledger.report().stages
    assert (0, 10) == (stages_ns["suspended"], stages_ns["decode"])


def test_a_ledger_may_start_before_it_was_made():
    """Time since `started_ns` belongs to the rollout, as nobody's stage."""
    report = Ledger(FakeClock(50), started_ns=20).report()
    assert (30, 30) == (report.wall_ns, report.stages["other"])


def test_the_report_as_json_is_flat_and_rounded():
    """The JSON has the wall time, the segments, the residual to six places, and each stage under its name."""
    clock = FakeClock()
    ledger = Ledger(clock)
    ledger.segments = 2
    clock.now = 1
    ledger.enter(Stage.SAMPLE)
    clock.now = 3
    expected = {
        "wall_ns": 3,
        "segments": 2,
        "residual": 0.333333,
        **{stage.name.lower(): 0 for stage in Stage},
        "other": 1,
        "sample": 2,
    }
    assert expected == ledger.report().as_json()


def test_no_time_has_no_residual():
    """A report of a wall time of zero divides by nothing."""
    assert LedgerReport(0, {"other": 0}, 0).residual == 0.0


def test_the_default_clock_does_not_go_backwards():
    """Two readings in a row are in order, and the second report covers no less."""
    ledger = Ledger()
    first, second = ledger.report(), ledger.report()
    assert (True, True) == (monotonic_ns() >= 0, second.wall_ns >= first.wall_ns >= 0)


class SlowTrace(NoRecorder):
    """The recorders of a server and each recorder of one, for which a nanosecond passes at every hook, and at nothing else."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def recorder(self, _dialect, _deadline_seconds):
        return self

    def hook(self, name, members):
        self.clock.now += 1


async def test_time_in_a_trace_is_the_traces(autojump_clock):
    """What a trace takes at the hooks, in between two stages, is claimed by a stage of its own and not left over."""
    clock, reports = FakeClock(), []
    segments = [[call("add", "{}"), END], [*say("done"), END]]
    engine = Engine.make(Scripted(segments), clock_ns=clock, on_report=reports.append)
    create = {"model": "m", "input": "go", "tools": [{"type": "function", "name": "add"}]}
    async with (
        memory_client(engine, trace=SlowTrace(clock)) as client,
        client.rollout(**create, functions={"add": lambda: "1"}) as rollout,
    ):
        await rollout.wait_ended()
    stages = reports[0].ledger.stages
    assert {name for name, spent in stages.items() if spent} == {"trace"}
