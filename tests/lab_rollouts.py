"""Records of rollouts for tests of the lab: one that is in order, and whatever a test changes of it."""

from typing import Any

import attrs

from demos.lab.records import Environment, Header, Host, Rollout, ServerCost, Tokens, Turn

CELL = {"tokens_per_second": 1000, "calls": 2, "tool": "Z", "rtt_ms": 30}

ENVIRONMENT = Environment(
    commit="a" * 40,
    dirty=False,
    versions={"attrs": "26.1.0", "numpy": "2.4.6"},
    host=Host(cores=2, cpu="a processor", python="CPython 3.11", platform="Linux"),
)

HEADER = Header(
    experiment="ladder",
    config={"arms": ["optimised", "append"], "rtt_ms": 30},
    seed=7,
    environment=ENVIRONMENT,
    began="2026-11-30T02:00:00Z",
)

SERVER = ServerCost(
    cpu_s=0.004,
    wall_ns=1_000_000,
    stages={"sample": 300_000, "suspended": 500_000, "encode": 195_000, "other": 5_000},
    responses=1,
)

TURN = Turn(sent_s=0.001, first_s=0.05, done_s=0.2, bytes_up=800, bytes_down=2_000)

IN_ORDER = Rollout(
    cell=CELL,
    arm="append",
    work="w1",
    seed=3,
    block=0,
    order=0,
    clock="wall",
    intended_s=1.5,
    late_s=0.0002,
    created_s=0.03,
    ttft_s=0.05,
    total_s=0.9,
    turns=(TURN, attrs.evolve(TURN, sent_s=0.5, first_s=0.6, done_s=0.9)),
    bytes_up=1_600,
    bytes_down=4_000,
    connections=1,
    tokens=Tokens(sampled=400, reused=9_000, computed=1_200),
    server=SERVER,
    findings=0,
)


def rollout(**changes: Any) -> Rollout:
    """The one in order, changed."""
    return attrs.evolve(IN_ORDER, **changes)


def residual(share: float) -> ServerCost:
    """A server of which this share of its time is unexplained."""
    other = round(500_000 * share)
    return attrs.evolve(
        SERVER, stages={"sample": 300_000, "suspended": 500_000, "encode": 200_000 - other, "other": other}
    )
