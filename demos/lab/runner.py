"""Runs a plan into a result file: what is there already is not run again, and the end can be foreseen.

In wall time all rollouts share one server process and one network process; in virtual time each has a world of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol

import attrs
import trio

from demos.lab.arms import arm_of
from demos.lab.environment import environment
from demos.lab.plan import Case, Plan
from demos.lab.records import Clock, Note
from demos.lab.results import ResultsFile
from demos.lab.rollout_run import LEAD_SECONDS, Ran, run_case
from demos.lab.scenario import finish, plan_conflicts
from demos.lab.virtual import run_virtual
from demos.lab.wall import wall_world

SAMPLER: Final = "sampler"
"""Topic of the note on how late the simulated model was."""
FINDING: Final = "finding"
"""Topic of a note on what the trace checker said of a rollout."""
_SETUP_SECONDS: Final = 0.15
_WORK_SECONDS_PER_TOKEN: Final = 1.5e-6
_WORK_SECONDS_PER_TURN: Final = 0.008
_TICK_SECONDS: Final = 6e-5
_STEP_SECONDS: Final = 4e-4
_TOKEN_SECONDS: Final = 8e-5
"""All of these: what a rollout costs besides what is planned. For the estimate at the start only; then what was seen counts."""


class Progress(Protocol):
    """Is told how far it is."""

    def begin(self, what: str, cases: int, seconds: float) -> None:
        """So many rollouts will take so long."""

    def ran(self, case: Case, seconds: float) -> None:
        """One is done, of which so much was expected."""


@attrs.define
class Outcome:
    """What came of a run."""

    ran: int = 0
    failed: int = 0
    findings: int = 0
    late_seconds: list[float] = attrs.Factory(list)

    def add(self, ran: Ran) -> None:
        """One more."""
        self.ran += 1
        self.failed += ran.rollout.failed
        self.findings += len(ran.findings)
        self.late_seconds.append(ran.sampler_late_seconds)


def run_plan(plan: Plan, seed: int, clock: Clock, path: Path, progress: Progress) -> Outcome:
    """Run what the file at `path` does not hold yet. `ResultsError`: it is another plan's. `ChildError`, `OSError`.

    `WorkloadError`, `PlanError`: the plan has no rollouts; then no file is begun, so that a better plan can have its place.
    """
    here = environment()
    planned = [*plan.cases(seed)]
    with ResultsFile.open(
        path,
        experiment=plan.name,
        config={**plan.config(), "clock": clock},
        seed=seed,
        environment=here,
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        conflicts=plan_conflicts(plan, seed, here),
    ) as file:
        done = file.done()
        cases = [case for case in planned if case.key not in done]
        progress.begin(clock, len(cases), sum(expected_seconds(case, clock) for case in cases))
        outcome = Outcome()

        def take(case: Case, ran: Ran) -> None:
            outcome.add(ran)
            file.write(ran.rollout)
            for finding in ran.findings:
                file.write(Note(topic=FINDING, detail={"rollout": str(case.key), "finding": finding}))
            progress.ran(case, expected_seconds(case, clock))

        if clock == "virtual":
            for case in cases:
                take(case, run_virtual(case, plan.timeout_s))
        elif cases:
            _run_in_wall_time(cases, plan.timeout_s, take)
        if outcome.ran:
            file.write(Note(topic=SAMPLER, detail=_lateness(outcome.late_seconds)))
        finish(file)
    return outcome


def _run_in_wall_time(
    cases: Sequence[Case], timeout_seconds: float, take: Callable[[Case, Ran], None]
) -> None:
    async def run() -> None:
        async with wall_world() as world:
            for _, block in groupby(cases, key=lambda case: case.key.pair):
                for case in block:
                    take(case, await run_case(case, world, timeout_seconds))

    try:
        trio.run(run)
    except BaseExceptionGroup as group:
        for error in _leaves(group):
            if isinstance(error, KeyboardInterrupt):
                raise error from None
        raise


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _lateness(seconds: Sequence[float]) -> dict[str, float]:
    """Of each rollout the latest step of its model; nearest rank."""
    ordered = sorted(seconds)
    return {
        "rollouts": len(ordered),
        "late_p50_s": ordered[(len(ordered) - 1) // 2],
        "late_p99_s": ordered[-(-99 * len(ordered) // 100) - 1],
        "late_max_s": ordered[-1],
    }


def expected_seconds(case: Case, clock: Clock) -> float:
    """How long a case takes whoever waits for it."""
    arm, model, work = arm_of(case.arm), case.cell.model, case.work
    steps, contexts = arm.turns(len(work.steps)), sum(work.contexts())
    again = arm.http_variant == "naive" or arm.whole_history
    processor = _SETUP_SECONDS + steps * _WORK_SECONDS_PER_TURN + again * contexts * _WORK_SECONDS_PER_TOKEN
    if clock == "virtual":
        sampling_seconds = work.sampled_tokens / case.cell.tokens_per_second
        sampling_seconds += steps * model.before_first_token_seconds(case.arm)
        ticks = sampling_seconds / (model.tick_ms / 1e3)
        return (
            processor
            + ticks * _TICK_SECONDS
            + min(ticks, work.sampled_tokens) * _STEP_SECONDS
            + work.sampled_tokens * _TOKEN_SECONDS
        )
    read = contexts if again else max(work.contexts())
    return (
        LEAD_SECONDS
        + processor
        + work.sampled_tokens / case.cell.tokens_per_second
        + work.tool_seconds
        + steps * (case.cell.rtt_seconds + model.before_first_token_seconds(case.arm))
        + read / model.prefill_tokens_per_second
        + arm.connections(steps) * case.cell.rtt_seconds
    )
