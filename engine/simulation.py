"""Runs in virtual time: one seed, one interleaving of the tasks. The base of the test kit (`engine.testing`)."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs
import trio
import trio.testing

Result = TypeVar("Result")


def simulate(
    run: Callable[..., Awaitable[Result]],
    *args: Any,
    seed: int,
    instruments: Sequence[trio.abc.Instrument] = (),
    autojump_threshold: float = 0.0,
) -> Result:
    """`trio.run` with a clock of its own that jumps, and the order of tasks drawn from `seed`.

    With real sockets or threads inside, let the clock wait for them: `autojump_threshold=0.001`.
    """
    with seeded_scheduler(seed):
        return trio.run(
            run,
            *args,
            clock=trio.testing.MockClock(autojump_threshold=autojump_threshold),
            instruments=instruments,
        )


@contextmanager
def seeded_scheduler(seed: int) -> Iterator[None]:
    """The order in which trio runs ready tasks, from a seed; private names of trio, which is pinned, and a test watches."""
    module: Any = trio._core._run  # noqa: SLF001  # there is no public way
    allowed, state = module._ALLOW_DETERMINISTIC_SCHEDULING, module._r.getstate()  # noqa: SLF001
    module._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001
    module._r.seed(seed)  # noqa: SLF001
    try:
        yield
    finally:
        module._ALLOW_DETERMINISTIC_SCHEDULING = allowed  # noqa: SLF001
        module._r.setstate(state)  # noqa: SLF001


@attrs.define(eq=False)
class ActAtStep(trio.abc.Instrument):
    """Does something, once, after the `step`-th step of any task, counted from 1. Pass it to `simulate`."""

    step: int
    act: Callable[[], object] | None = None
    """May be set while running, such as to the `cancel` of a scope that is only made there."""
    steps: int = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002  # trio's signature
        """Count."""
        self.steps += 1
        if self.steps == self.step and self.act is not None:
            self.act()

    @property
    def acted(self) -> bool:
        """Did the run last that long?"""
        return self.steps >= self.step


class CancelAtStep(ActAtStep):
    """Cancels a scope after the `step`-th step of any task."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        super().__init__(step, scope.cancel)
