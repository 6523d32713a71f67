"""The running engine, driven move by move by Hypothesis, beside a model of it in sets and lists.

The model predicts, for each move, what the client must hear: calls, an acceptance, a refusal, an end.
When a machine is done the checker reads the whole trace, and nothing may be left.
"""

import logging
from typing import Any

import attrs
import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import Limits
from engine.samplers.base import Prompt
from engine.samplers.scripted import END, Script, Scripted, call, say
from engine.testing import MemoryTrace, Served, serving, simulated_engine
from tests.scenarios import TERMINAL, Outcome, Talk, findings, violations_of, wait_idle
from tests.stepped import Stepped

DEADLINE_SECONDS = 100.0
LIMITS = Limits(suspend_timeout_seconds=DEADLINE_SECONDS, inject_grace_seconds=DEADLINE_SECONDS)
SETTLE_SECONDS = 0.01
"""After a move: long enough for all that it leads to, and so short that only `wait` comes near a deadline."""
LANES = (None, "a")


def script(prompt: Prompt) -> Script:
    """So many calls in each segment as the model's name says, and then a hello."""
    segments = [
        [tuple(part for index in range(int(count)) for part in call("f", index=index)), END]
        for count in prompt.model.split("-")[1:]
    ]
    return [*segments, [*say("Hello."), END]]


@attrs.define
class Expected:
    """What the model says of a response."""

    lane: str | None
    counts: list[int]
    """Calls of the segments that are still to come."""
    pending: list[int] = attrs.field(factory=list)
    """Places of the calls that have no output."""
    waited_seconds: float = 0.0
    end: str | None = None


class EngineMachine(RuleBasedStateMachine):
    """One client of one form; its lanes are concurrent."""

    @initialize(form=st.sampled_from(["append", "inject"]))
    def begin(self, form: str) -> None:
        """A server and a client."""
        self.form = form
        self.outcome = Outcome()
        self.stepped = Stepped(seed=1)
        self.responses: dict[str, Expected] = {}
        self.latest: dict[str | None, str] = {}
        self.outcome.sampler = Scripted(script)
        self.outcome.engine = simulated_engine(
            self.outcome.sampler, seed=1, limits=LIMITS, on_report=self.outcome.reports.append
        )
        self.trace = MemoryTrace()
        self.server = self.stepped.enter(serving(self.outcome.engine, trace=self.trace))
        self.served: Served = self.server.value
        self.connect()

    def connect(self) -> None:
        self.connection = self.stepped.enter(self.served.connect_raw(append=self.form == "append"))
        self.talk = Talk(self.connection.value, self.form, self.served)

    def hang_up(self) -> None:
        self.connection.leave()
        self.stepped.step(lambda: wait_idle(self.served))

    # --- moves ---------------------------------------------------------------------------------------------------

    def hear(self, act: Any = None, seconds: float = SETTLE_SECONDS) -> list[dict[str, Any]]:
        """Make a move; all that is said until nothing more comes, or for so long."""
        heard: list[dict[str, Any]] = []

        async def step() -> None:
            if act is not None:
                act()
            with trio.move_on_after(seconds):
                while True:
                    heard.append(await self.talk.next())

        self.stepped.step(step)
        return heard

    def waits(self, lane: str | None) -> Expected | None:
        """The response of a lane, if it waits for outputs."""
        expected = self.responses.get(self.latest.get(lane, ""))
        return expected if expected is not None and expected.end is None else None

    @rule(lane=st.sampled_from(LANES), counts=st.lists(st.integers(1, 3), max_size=3))
    def create(self, lane: str | None, counts: list[int]) -> None:
        """A new rollout; one that waits on its lane is abandoned without a word."""
        before = self.waits(lane)
        model = "-".join(["m", *map(str, counts)])
        members = {} if lane is None else {"stream_id": lane}
        heard = self.hear(lambda: self.talk.create(model=model, **members))
        if before is not None:
            before.end, before.pending = "abandoned", []
        self.latest[lane] = response_id = self.talk.response_ids[-1]
        self.responses[response_id] = Expected(lane, list(counts))
        self.check_segment(heard, response_id)

    def check_segment(self, heard: list[dict[str, Any]], response_id: str) -> None:
        """A segment was sampled: its calls are there, or the end."""
        expected = self.responses[response_id]
        count = expected.counts.pop(0) if expected.counts else 0
        made = [frame for frame in heard if frame["type"] == "response.output_item.done"]
        assert count == sum(frame["item"]["type"] == "function_call" for frame in made)
        expected.pending = list(range(len(self.talk.calls) - count, len(self.talk.calls)))
        expected.waited_seconds = 0.0
        ends = [frame["type"] for frame in heard if frame["type"] in TERMINAL]
        assert ([] if count else ["response.completed"]) == ends
        expected.end = ends[0] if ends else None
        assert (self.form == "append" and count > 0) == any(f["type"] == "response.done" for f in heard)

    @precondition(lambda self: self.talk.calls)
    @rule(data=st.data(), lane=st.sampled_from(LANES))
    def outputs(self, data: st.DataObject, lane: str | None) -> None:
        """Outputs of any calls, mostly of those that wait, in any order, once or twice, with or without one for nobody."""
        expected = self.waits(lane)
        response_id = self.latest.get(lane)
        if response_id is None:
            return
        everything = st.integers(0, len(self.talk.calls) - 1)
        likely = st.sampled_from(expected.pending) if expected and expected.pending else everything
        places = data.draw(st.lists(likely | everything, min_size=1, max_size=3), label="places")
        good = (
            expected is not None and len(set(places)) == len(places) and set(places) <= set(expected.pending)
        )
        members = {"stream_id": lane} if lane is not None and self.form == "append" else {}
        heard = self.hear(lambda: self.talk.answer(*places, response_id=response_id, **members))
        kinds = [frame["type"] for frame in heard]
        if not good:
            assert ["error" if self.form == "append" else "response.inject.failed"] == kinds
            return
        assert expected is not None
        expected.pending = [place for place in expected.pending if place not in places]
        if self.form == "inject":
            assert "response.inject.created" == kinds[0]
            expected.waited_seconds = 0.0
        if expected.pending:
            assert (["response.inject.created"] if self.form == "inject" else []) == kinds
        else:
            self.check_segment(heard, response_id)

    @rule(lane=st.sampled_from(LANES))
    def cancel(self, lane: str | None) -> None:
        """One that waits ends as cancelled; one that has ended stays as it is."""
        expected, response_id = self.waits(lane), self.latest.get(lane, "resp_none")
        heard = self.hear(lambda: self.served.server.cancel(response_id))
        if expected is None:
            assert [] == heard
            return
        assert [("response.failed", "cancelled")] == [(f["type"], f["response"]["status"]) for f in heard]
        expected.end, expected.pending = "cancelled", []

    @rule(seconds=st.sampled_from([7.0, 40.0, DEADLINE_SECONDS + 1]))
    def wait(self, seconds: float) -> None:
        """Whoever waits too long ends as its form says: failed, or completed with its calls pending."""
        heard = self.hear(seconds=seconds)
        late = {}
        for response_id, expected in self.responses.items():
            if expected.end is None:
                expected.waited_seconds += seconds
                if expected.waited_seconds > DEADLINE_SECONDS:
                    expected.end, expected.pending = "late", []
                    late[response_id] = "response.failed" if self.form == "append" else "response.completed"
        assert late == {frame["response"]["id"]: frame["type"] for frame in heard}

    @rule()
    def reconnect(self) -> None:
        """The client goes and comes again: nothing of before is there any more."""
        self.hang_up()
        self.connect()
        self.latest.clear()
        self.responses.clear()

    # --- at all times --------------------------------------------------------------------------------------------

    @invariant()
    def as_many_wait_as_should(self) -> None:
        """The engine's own count agrees with the model."""
        if not hasattr(self, "served"):
            return
        statistics = self.served.server.statistics().connections
        waiting = sum(expected.end is None for expected in self.responses.values())
        assert [waiting] == [one.suspended for one in statistics]

    def teardown(self) -> None:
        """The trace is in order, and nothing is left."""
        if not hasattr(self, "stepped"):
            return
        try:
            self.hang_up()
            self.server.leave()
        finally:
            self.stepped.close()
        self.outcome.lines = self.trace.lines()
        assert [] == findings(self.outcome, may_be_empty=True)
        assert [] == violations_of(self.outcome)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestEngineMachine = EngineMachine.TestCase
