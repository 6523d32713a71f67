"""Something ends at every step of every task, in every scenario: nothing may be left, and nothing may happen twice.

Two things end: the whole server, as if its process were stopped (its scope is cancelled),
and the client's stream, as if its machine had vanished (both directions are gone at once).
After each run the checker reads the trace, and slots, samplers, rollouts and tasks are counted.

By default every `STRIDE`-th step is hit, beginning at another one in each scenario, which takes some 20 seconds;
with `EVERY_STEP=1` in the environment all of them are, which takes a few minutes. `STRIDE` says another number.
"""

import logging
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import trio

from engine.testing import ActAtStep, CancelAtStep, Served, simulate
from tests.scenarios import CASES, SCENARIOS, Outcome, findings, run_scenario

STRIDE = 1 if os.environ.get("EVERY_STEP") else int(os.environ.get("STRIDE", "11"))
FEWEST_STEPS = 100
"""Fewer would mean that a scenario did not run."""


def cancel_server(served: Served, _stream: Any) -> Callable[[], None]:
    return served.scope.cancel


def cut_stream(_served: Served, stream: Any) -> Callable[[], None]:
    def cut() -> None:
        stream.send_stream.close()
        stream.receive_stream.close()

    return cut


def first_step(name: str, form: str) -> int:
    return 1 + zlib.crc32(f"{name}/{form}".encode()) % STRIDE


@pytest.mark.parametrize("ending", [cancel_server, cut_stream])
@pytest.mark.parametrize(("name", "form"), CASES)
def test_an_end_at_any_step_leaves_nothing(
    name: str, form: str, ending: Callable[..., Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    """Every created rollout has one terminal event or a connection that is over, one post-inference, and no remains."""
    caplog.set_level(logging.CRITICAL)  # samplers fail on purpose
    act, steps = ActAtStep(0), 0
    for step in range(first_step(name, form), 100_000, STRIDE):
        act, outcome = ActAtStep(step), Outcome()

        def arm(served: Served, stream: Any, act: ActAtStep = act) -> None:
            act.act = ending(served, stream)

        simulate(run_scenario, SCENARIOS[name], form, outcome, arm, seed=1, instruments=[act])

        assert findings(outcome, may_be_empty=True) == [], f"{ending.__name__} at step {step}"
        if not act.acted:
            break
        steps = step
    assert not act.acted
    assert steps + STRIDE > FEWEST_STEPS


def test_cancel_at_step_cancels_after_exactly_that_step() -> None:
    """The instrument counts the steps of all tasks, and hits in the step it was told: one later, one more is done."""

    async def count(scope: trio.CancelScope) -> int:
        done = 0
        with scope:
            while True:
                done += 1
                await trio.lowlevel.checkpoint()
        return done

    scopes = [trio.CancelScope() for _ in range(2)]
    instruments = [CancelAtStep(step, scope) for step, scope in zip((10, 11), scopes, strict=True)]
    done = [
        simulate(count, scope, seed=1, instruments=[instrument])
        for scope, instrument in zip(scopes, instruments, strict=True)
    ]

    assert [scope.cancelled_caught for scope in scopes] == [True, True]
    assert done[1] == done[0] + 1
