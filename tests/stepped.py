"""A trio run that stands still between the steps that are asked for from outside, for a state machine that is no coroutine.

Trio runs as a guest in this thread: what it wants to run lies in a queue, and `step` works the queue off until the coroutine
it was given has ended. The clock jumps only meanwhile, so no time passes between two steps.
"""

import queue
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import outcome
import trio
import trio.testing

from engine.simulation import seeded_scheduler


class Stepped:
    """`close` it at the end; what then is still running is cancelled."""

    def __init__(self, *, seed: int) -> None:
        self._queue: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._clock = trio.testing.MockClock()
        self._ended: outcome.Outcome[None] | None = None
        self._scheduler = seeded_scheduler(seed)
        self._scheduler.__enter__()
        self._nursery: trio.Nursery | None = None
        trio.lowlevel.start_guest_run(
            self._live,
            run_sync_soon_threadsafe=self._queue.put,
            done_callback=self._end,
            clock=self._clock,
        )
        self._pump(lambda: self._nursery is not None)

    async def _live(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def _end(self, ended: "outcome.Outcome[None]") -> None:
        self._ended = ended

    def _pump(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if self._ended is not None:
                self._ended.unwrap()
                raise RuntimeError("the run is over")
            self._queue.get()()

    def step(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine to its end; its result. What it started in a nursery of its own may go on at the next step."""
        done: list[outcome.Outcome[Any]] = []

        async def run() -> None:
            self._clock.autojump_threshold = 0
            done.append(await outcome.acapture(act))
            self._clock.autojump_threshold = float("inf")

        def start() -> None:
            assert self._nursery is not None
            self._nursery.start_soon(run)

        self._token.run_sync_soon(start)
        self._pump(lambda: bool(done))
        return done[0].unwrap()

    def enter(self, manager: AbstractAsyncContextManager[Any]) -> "Entered":
        """Enter a context in a task of its own, as a task that ends must have left what it entered."""
        entered = Entered(self)

        async def start() -> None:
            assert self._nursery is not None
            entered.value = await self._nursery.start(entered.hold, manager)

        self.step(start)
        return entered

    def close(self) -> None:
        """Cancel all that is left, and wait for its end."""
        nursery = self._nursery
        assert nursery is not None
        self._token.run_sync_soon(nursery.cancel_scope.cancel)
        try:
            while self._ended is None:
                self._queue.get()()
        finally:
            self._scheduler.__exit__(None, None, None)


class Entered:
    """A context that was entered, with its `value`, until it is left."""

    def __init__(self, stepped: Stepped) -> None:
        self._stepped = stepped
        self._wanted = trio.Event()
        self._left = trio.Event()
        self.value: Any = None

    async def hold(
        self,
        manager: AbstractAsyncContextManager[Any],
        *,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """The task in which the context is."""
        try:
            async with manager as value:
                task_status.started(value)
                await self._wanted.wait()
        finally:
            self._left.set()

    def leave(self) -> None:
        """Leave it, and wait until that is done."""

        async def step() -> None:
            self._wanted.set()
            await self._left.wait()

        self._stepped.step(step)
