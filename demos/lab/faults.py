"""What a lost connection costs: the same rollout in every form, cut at each point of it, in virtual time.

A rollout is run once without a fault; its own turns say when each point comes, and it is run again with the connection
cut then. Until the cut both are the same to the tick, so the difference is what the cut cost, and nothing else.
At the cut both ends see a reset at once, and what flies is lost. The client is `demos.lab.fault_client`'s.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from demos.lab.content import ClientContent
from demos.lab.fault_client import FaultForm, RecoveringClient
from demos.lab.records import Note, Rollout, Turn
from demos.lab.relay import OpenStream, Relay, RelayCounts
from demos.lab.results import ResultsFile
from demos.lab.server import Served, Setup
from demos.lab.virtual import VirtualWorld
from demos.lab.workload import uniform
from engine.samplers.paced import Pace
from engine.simulation import simulate

FAULT: Final = "fault"
"""Topic of the note on what a rollout's record has no member for."""
NO_FAULT: Final = "none"
TIMEOUT_SECONDS: Final = 3600.0
"""Virtual."""

_AGAIN: Final = "sends the whole conversation again"
FORMS: Final[Mapping[str, FaultForm]] = {
    row.name: row
    for row in (
        FaultForm(
            name="naive",
            form="http",
            http_variant="naive",
            fresh_connections=True,
            then="repeats the request",
        ),
        FaultForm(name="optimised", form="http", then="repeats the request"),
        FaultForm(name="create", form="create", then=_AGAIN),
        FaultForm(
            name="create-store", form="create", stores=True, then="goes on from the last response it knows"
        ),
        FaultForm(name="append", form="append", then=_AGAIN),
        FaultForm(
            name="append-store",
            form="append",
            stores=True,
            then="goes on from the response if it was suspended, else " + _AGAIN,
        ),
        FaultForm(name="inject", form="inject", then=_AGAIN),
    )
}
"""By name."""


@attrs.frozen
class Course:
    """How a rollout without a fault went."""

    form: FaultForm
    turns: Sequence[Turn]
    rtt_seconds: float

    @property
    def middle(self) -> int:
        """The turn in the middle."""
        return len(self.turns) // 2

    def leaves_s(self, turn: int) -> float:
        """When its request is on its way; a new connection has to be there before."""
        return self.turns[turn].sent_s + self.form.opens_for(turn) * self.rtt_seconds

    def first_s(self, turn: int) -> float:
        """When the client heard of its first token."""
        return _heard(self.turns[turn].first_s)

    def done_s(self, turn: int) -> float:
        """When the client heard its end."""
        return _heard(self.turns[turn].done_s)


def _heard(seconds: float | None) -> float:
    assert seconds is not None, "each turn of a rollout without a fault was answered"
    return seconds


def _goes_up_s(course: Course, turn: int) -> float:
    return course.leaves_s(turn) + course.rtt_seconds / 4


def _reads_s(course: Course) -> float:
    return (course.leaves_s(course.middle) + course.first_s(course.middle)) / 2


def _samples_s(course: Course) -> float:
    """By the server's time."""
    heard_s = course.first_s(course.middle), course.done_s(course.middle)
    return sum(heard_s) / 2 - course.rtt_seconds / 2


def _tool_runs_s(course: Course) -> float:
    return (course.done_s(course.middle) + course.turns[course.middle + 1].sent_s) / 2


@attrs.frozen
class Point:
    """Where a rollout is cut."""

    name: str
    title: str
    moment_s: Callable[[Course], float]


POINTS: Final[Mapping[str, Point]] = {
    point.name: point
    for point in (
        Point("request", "the first request goes up", lambda course: _goes_up_s(course, 0)),
        Point("reading", "the model reads", _reads_s),
        Point("sampling", "the model samples", _samples_s),
        Point("tool", "a tool runs", _tool_runs_s),
        Point("output", "its output goes up", lambda course: _goes_up_s(course, course.middle + 1)),
        Point("end", "the end is on its way", lambda course: course.done_s(-1) - course.rtt_seconds / 4),
    )
}
"""In the order of a rollout; all but the first and the last are in the turn in the middle, and between it and the next."""


@attrs.frozen(kw_only=True)
class FaultPlan:
    """The rollout that is cut."""

    calls: int = 10
    history_tokens: int = 10_000
    new_tokens: int = 200
    sampled_tokens: int = 100
    tool_seconds: float = 1.0
    tokens_per_second: float = 200.0
    first_token_ms: float = 5.0
    prefill_tokens_per_second: float = 10_000.0
    rtt_ms: float = 30.0
    tick_ms: float = 5.0

    @classmethod
    def quick(cls) -> "FaultPlan":
        """A short one."""
        return cls(calls=4, history_tokens=2_000, sampled_tokens=40)

    def config(self) -> dict[str, Any]:
        """Of the result file."""
        forms = {name: row.then for name, row in FORMS.items()}
        return {
            **attrs.asdict(self),
            "forms": forms,
            "points": {name: point.title for name, point in POINTS.items()},
        }


@attrs.frozen
class FaultRun:
    """One rollout, cut or not."""

    rollout: Rollout
    note: Note


def config(*, quick: bool, trace: Path | None) -> dict[str, Any]:
    """As `demos.lab.computed.Computing`. ValueError: a trace was given."""
    if trace is not None:
        raise ValueError(f"--trace {trace}: faults cuts a rollout of its own; leave it out")
    return _plan(quick).config()


def fill(
    file: ResultsFile,
    *,
    quick: bool,
    seed: int,
    trace: Path | None,  # noqa: ARG001  # refused by `config`
    say: Callable[[str], None],
) -> None:
    """As `demos.lab.computed.Computing`."""
    done = {key.arm for key in file.done()}
    for form in (form for form in FORMS.values() if form.name not in done):
        say(f"{form.name}: without a fault, then cut at {len(POINTS)} points")
        for run in [
            *runs_of(_plan(quick), form, seed)
        ]:  # whole before it is written: all of a form, or nothing
            file.write(run.note)
            file.write(run.rollout)


def _plan(quick: bool) -> FaultPlan:
    return FaultPlan.quick() if quick else FaultPlan()


def runs_of(plan: FaultPlan, form: FaultForm, seed: int) -> Iterator[FaultRun]:
    """A form's rollouts: without a fault, then cut at each point."""
    whole = run_fault(plan, form, seed, NO_FAULT, None)
    yield whole
    course = Course(form, whole.rollout.turns, plan.rtt_ms / 1e3)
    for order, point in enumerate(POINTS.values(), 1):
        yield run_fault(plan, form, seed, point.name, point.moment_s(course), order)


def run_fault(
    plan: FaultPlan, form: FaultForm, seed: int, point: str, cut_s: float | None, order: int = 0
) -> FaultRun:
    """One rollout, in a world of its own. The same arguments give the same records."""
    return simulate(partial(_run, plan, form, seed, point, cut_s, order), seed=seed)


async def _run(
    plan: FaultPlan, form: FaultForm, seed: int, point: str, cut_s: float | None, order: int
) -> FaultRun:
    work = uniform(
        plan.calls,
        plan.history_tokens,
        new_tokens=plan.new_tokens,
        sampled_tokens=plan.sampled_tokens,
        tool_seconds=plan.tool_seconds,
    )
    setup = Setup(
        work=work,
        seed=seed,
        http_variant=form.http_variant,
        pace=Pace(
            tokens_per_second=plan.tokens_per_second,
            first_token_seconds=plan.first_token_ms / 1e3,
            prefill_tokens_per_second=plan.prefill_tokens_per_second,
        ),
        tick_seconds=plan.tick_ms / 1e3,
    )
    world = _FaultWorld()
    async with world.place(setup, plan.rtt_ms / 1e3) as place:
        client = RecoveringClient(form, ClientContent.of(work, seed), place.open_stream)
        began = trio.current_time()
        error: str | None = None
        async with trio.open_nursery() as nursery:
            if cut_s is not None:
                nursery.start_soon(world.cut_at, began + cut_s)
            with trio.move_on_after(TIMEOUT_SECONDS) as scope:
                await client.run()
            nursery.cancel_scope.cancel()
        total_s = trio.current_time() - began
        if scope.cancelled_caught:
            error = f"it had not ended after {TIMEOUT_SECONDS:g} s"
        served, counts = await place.close()
    return FaultRun(
        _rollout(form, point, seed, order, work.name, client, error, total_s, served, counts),
        Note(
            topic=FAULT,
            detail={
                "form": form.name,
                "point": point,
                "cut_s": cut_s,
                "connections_lost": client.connections_lost,
                "refusals": client.refusals,
                "tool_runs": client.tool_runs,
                "findings": served.findings,
            },
        ),
    )


def _rollout(
    form: FaultForm,
    point: str,
    seed: int,
    order: int,
    work: str,
    client: RecoveringClient,
    error: str | None,
    total_s: float,
    served: Served,
    counts: RelayCounts,
) -> Rollout:
    turns = tuple(client.turns())
    return Rollout(
        cell={"point": point},
        arm=form.name,
        work=work,
        seed=seed,
        block=0,
        order=order,
        clock="virtual",
        intended_s=0.0,
        late_s=0.0,
        created_s=None,
        ttft_s=turns[0].first_s if turns else None,
        total_s=None if error else total_s,
        turns=turns,
        bytes_up=counts.bytes_up,
        bytes_down=counts.bytes_down,
        connections=counts.connections,
        tokens=served.tokens,
        server=served.cost,
        findings=len(served.findings),
        error=error,
    )


class _FaultWorld(VirtualWorld):
    """Of one rollout, with a network that can be cut."""

    async def cut_at(self, when: float) -> None:
        """Cut it then, once."""
        await trio.sleep_until(when)
        self._relay.cut()

    def make_relay(self, dial: OpenStream, rtt_seconds: float) -> Relay:
        """One that can be cut."""
        self._relay = CutRelay(dial, rtt_seconds=rtt_seconds)
        return self._relay


class CutRelay(Relay):
    """A network whose connections can be cut; those that are opened later are not."""

    def __init__(self, open_target: OpenStream, *, rtt_seconds: float) -> None:
        super().__init__(open_target, rtt_seconds=rtt_seconds)
        self._scopes: set[trio.CancelScope] = set()

    async def serve(self, client: trio.abc.HalfCloseableStream) -> None:
        """As `Relay.serve`."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await super().serve(client)
            finally:
                self._scopes.discard(scope)

    def cut(self) -> None:
        """What is open ends on both sides, and what flies is lost. Not a checkpoint."""
        for scope in self._scopes:
            scope.cancel()
