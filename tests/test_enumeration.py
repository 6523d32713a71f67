"""Every state that small client programs reach, each trace checked; the longer ones run in `.ci/run`."""

import logging

import pytest

from tests.enumeration import explore, play


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize(("form", "states"), [("append", 51), ("inject", 32), ("create", 9)])
def test_whatever_a_small_program_does_the_rules_hold(form: str, states: int) -> None:
    """All programs of four moves that lead into new states: no rule is broken, and these many states are reached."""
    explored = explore(form, frames=4)

    assert explored.faults == []
    assert len(explored.states) == states


def test_states_are_told_apart() -> None:
    """The state is what was done, not how: two orders of the same outputs lead into one, one output fewer into another."""
    both = play("append", ("create", "both outputs"))[0]

    assert both == play("append", ("create", "first output", "second output"))[0]
    assert both == play("append", ("create", "second output", "first output"))[0]
    assert both != play("append", ("create", "first output"))[0]
