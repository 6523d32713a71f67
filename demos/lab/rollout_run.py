"""One case of a plan, from its setup to its record; what differs between the clocks is behind `World`."""

from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import attrs
import trio

from demos.lab.arms import arm_of
from demos.lab.content import ClientContent
from demos.lab.driver import Measured, drive
from demos.lab.plan import Case
from demos.lab.records import Clock, Rollout
from demos.lab.relay import RelayCounts
from demos.lab.server import Served, Setup
from engine.samplers.paced import Pace

LEAD_SECONDS: Final = 0.01
"""From "ready" to the intended start: what was still to be done for the setup is over by then."""


class Place(Protocol):
    """Where a rollout runs: a server that has just begun, behind its network."""

    async def open_stream(self) -> trio.abc.HalfCloseableStream:
        """A new connection of the client's."""
        ...

    async def close(self) -> tuple[Served, RelayCounts]:
        """The client has gone; what was measured on the way and at the other end."""
        ...


class World(Protocol):
    """Makes places."""

    @property
    def clock(self) -> Clock:
        """What its seconds are."""
        ...

    @property
    def began(self) -> float:
        """When the run began, in `trio.current_time()`."""
        ...

    def place(self, setup: Setup, rtt_seconds: float) -> AbstractAsyncContextManager[Place]:
        """A place, for one rollout."""
        ...


@attrs.frozen
class Ran:
    """A case that was run."""

    rollout: Rollout
    findings: tuple[str, ...]
    sampler_late_seconds: float


def setup_of(case: Case) -> Setup:
    """The server that a case needs."""
    model, arm = case.cell.model, arm_of(case.arm)
    return Setup(
        work=case.work,
        seed=case.seed,
        http_variant=arm.http_variant,
        at_once=arm.at_once,
        pace=Pace(
            tokens_per_second=case.cell.tokens_per_second,
            first_token_seconds=model.before_first_token_seconds(case.arm),
            prefill_tokens_per_second=model.prefill_tokens_per_second,
        ),
        tick_seconds=model.tick_ms / 1e3,
    )


async def run_case(case: Case, world: World, timeout_seconds: float) -> Ran:
    """Run it and write down what was measured. A rollout that fails is a record, too."""
    content = ClientContent.of(case.work, case.seed)
    async with world.place(setup_of(case), case.cell.rtt_seconds) as place:
        intended = trio.current_time() + LEAD_SECONDS
        measured = await drive(
            arm_of(case.arm), content, place.open_stream, intended=intended, timeout_seconds=timeout_seconds
        )
        served, counts = await place.close()
    rollout = _record(case, world.clock, intended - world.began, measured, served, counts)
    return Ran(rollout, served.findings, served.sampler_late_seconds)


def _record(
    case: Case, clock: Clock, intended_s: float, measured: Measured, served: Served, counts: RelayCounts
) -> Rollout:
    reasons = tuple(_own_reasons(case, measured, served, counts))
    return Rollout(
        cell=case.cell.axes,
        arm=case.arm,
        work=case.work.name,
        seed=case.seed,
        block=case.block,
        order=case.order,
        clock=clock,
        intended_s=intended_s,
        late_s=measured.late_s,
        created_s=measured.created_s,
        ttft_s=measured.ttft_s,
        total_s=measured.total_s,
        turns=measured.turns,
        bytes_up=counts.bytes_up,
        bytes_down=counts.bytes_down,
        connections=counts.connections,
        tokens=served.tokens,
        server=served.cost,
        findings=len(served.findings),
        error=measured.error,
        valid=not reasons,
        reasons=reasons,
    )


def _own_reasons(case: Case, measured: Measured, served: Served, counts: RelayCounts) -> list[str]:
    """What only the arm's row can tell; everything that records alone show is `demos.lab.validity`'s."""
    if measured.error is not None:
        return []  # it has failed, which is counted as such
    arm, steps = arm_of(case.arm), len(case.work.steps)
    wrong = []
    for what, seen, meant in (
        ("connections", counts.connections, arm.connections(steps)),
        ("responses", served.cost.responses, arm.responses(steps)),
        ("turns", len(measured.turns), arm.turns(steps)),
    ):
        if seen != meant:
            wrong.append(f"{seen} {what}, and this arm has {meant}")
    return wrong
