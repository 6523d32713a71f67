"""The engine step of all paced streams: one task hands each stream's step to its rollout, and wakes what must be awake.

A timer per stream would cost more than everything else in the event path (performance reference 2), and so would waking
a rollout's task for each step. So a rollout only waits here while its steps are *pushed*: they are taken and numbered in
the ticker's task, then all connections that were touched are flushed. The rollout itself runs again when there is
something to wait for or to decide: the client is behind, the segment is over, or taking the step raised.

What a stream raises goes to its own rollout; the ticker and all other streams go on.
"""

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

import trio

from engine.samplers.base import Step, Taker

STEPS_BETWEEN_CHECKPOINTS: Final = 64
"""So many streams' steps at most are handed over before other tasks get their turn."""
PARTS_AT_ONCE: Final = 64
"""A stream that is late catches up in steps of about so many parts."""


class Timed(NamedTuple):
    """A step with the time at which it is due, in `trio.current_time()`."""

    step: Step
    due: float
    tokens: int = 0
    """Sampled ones that it stands for."""


Note = Callable[[Timed, float], None]
"""Told of each step that leaves, and when."""


class Pushed:
    """One stream that is pushed: what it still has to say, and to whom."""

    __slots__ = ("_note", "_steps", "_taker", "behind", "failure", "flush", "next", "outlet", "task")

    def __init__(self, steps: Iterator[Timed], taker: Taker, note: Note) -> None:
        self._steps = steps
        self._taker = taker
        self.flush = taker.flush
        """The engine step is over."""
        self.outlet = taker.outlet
        self._note = note
        self.next: Timed | None = next(steps, None)
        """None: the taker wants no more, or there is no more."""
        self.failure: Exception | None = None
        """What the taker, or the stream itself, raised in the ticker's task."""
        self.behind = False
        """The taker must rest before it takes more."""
        self.task: trio.lowlevel.Task | None = None
        """Who waits for it."""

    def hand_over(self, now: float) -> None:
        """Hand over the next step, with those after it that are due as well. Raises what the taker, or the stream itself, raises."""
        timed, self.next = self.next, None
        assert timed is not None, "a stream at its end is nobody's turn"
        self._note(timed, now)
        step, following = timed.step, next(self._steps, None)
        while following is not None and following.due <= now and len(step) < PARTS_AT_ONCE:
            self._note(following, now)
            step, following = (*step, *following.step), next(self._steps, None)
        if not self._taker.take(step):
            self.next = following

    async def rest(self) -> None:
        """Wait until the taker can take more. No checkpoint if it can."""
        if self.behind:
            await self._taker.rest()


class Ticker:
    """Wakes and pushes all waiting streams together, once a step; asleep until the time of the first has come."""

    def __init__(self, tick_seconds: float) -> None:
        self.tick_seconds = tick_seconds
        self._waiting: dict[trio.lowlevel.Task, float] = {}
        """Without an event for each wait: that is a quarter of a wait's cost."""
        self._pushed: dict[trio.lowlevel.Task, Pushed] = {}
        """Those of them that need not be woken for a step."""
        self._nap = trio.CancelScope()
        self._due = math.inf
        """When the nap ends, but for the rest of a tick; never, as long as nobody waits."""

    async def run(self) -> None:
        """The one task behind all streams. Runs until cancelled."""
        while True:
            self._due = min(self._waiting.values(), default=math.inf)
            self._nap = trio.CancelScope(deadline=self._tick_for(self._due, trio.current_time()))
            with self._nap:
                await _sleep()
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._step(trio.current_time())

    def _tick_for(self, due: float, now: float) -> float:
        """The first tick that is both at or after `due` and after `now`."""
        if due == math.inf:
            return due
        tick = self._next_tick(max(now, due - self.tick_seconds))
        return tick if tick >= due else self._next_tick(tick)

    def _next_tick(self, now: float) -> float:
        number = math.floor(now / self.tick_seconds) + 1
        # 8.004 / 0.004 is 2000.9999999999998: the tick after it is not 8.004 again
        return (number if number * self.tick_seconds > now else number + 1) * self.tick_seconds

    async def _step(self, now: float) -> None:
        """Wake and push who is due; a stream that is late gets more than one step, the others theirs in between."""
        streams = self._wake(now)
        while streams:
            late: list[Pushed] = []
            for start in range(0, len(streams), STEPS_BETWEEN_CHECKPOINTS):
                if start:
                    await trio.lowlevel.checkpoint()
                    now = trio.current_time()
                late += self._push(streams[start : start + STEPS_BETWEEN_CHECKPOINTS], now)
            streams = late
            if streams:
                await trio.lowlevel.checkpoint()
                now = trio.current_time()

    def _wake(self, now: float) -> list[Pushed]:
        """Reschedule who is due and waits for the time alone; the streams that are due and pushed."""
        streams = []
        for task in [task for task, due in self._waiting.items() if due <= now]:
            stream = self._pushed.get(task)
            if stream is None:
                del self._waiting[task]
                trio.lowlevel.reschedule(task)
            else:
                streams.append(stream)
        return streams

    def _push(self, streams: list[Pushed], now: float) -> list[Pushed]:
        """One step of each, then one flush of each: what shares a connection leaves together; who has more to say by now.

        Never raises.
        """
        taken = [stream for stream in streams if stream.task is not None]  # not cancelled meanwhile
        for stream in taken:
            try:
                stream.hand_over(now)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is that rollout's
                stream.failure = error
                self._release(stream)
        writable: dict[Hashable, bool] = {}
        late = []
        for stream in taken:
            following, outlet = stream.next, stream.outlet
            if following is None:  # a last step may be held back, and what it is told is its own
                stream.behind = not stream.flush()
            else:
                if outlet not in writable:
                    writable[outlet] = stream.flush()
                stream.behind = not writable[outlet]
            if stream.task is None:
                continue  # it raised, or was cancelled by what it led to
            if following is None or stream.behind:
                self._release(stream)
            else:
                self._waiting[stream.task] = following.due
                if following.due <= now:
                    late.append(stream)
        return late

    def _release(self, stream: Pushed) -> None:
        """Let the stream's own task go on, unless it was cancelled."""
        if stream.task is not None:
            trio.lowlevel.reschedule(stream.task)
            self._forget(stream)

    def _forget(self, stream: Pushed) -> None:
        if stream.task is not None:
            del self._waiting[stream.task], self._pushed[stream.task]
            stream.task = None

    async def wait_until(self, due: float) -> None:
        """Wait for the first tick at or after `due`, in `trio.current_time()`. A checkpoint."""
        task = trio.lowlevel.current_task()

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        self._expect(task, due)
        await trio.lowlevel.wait_task_rescheduled(give_up)

    def _expect(self, task: trio.lowlevel.Task, due: float) -> None:
        self._waiting[task] = due
        if due < self._due:  # wakes nobody: the nap only ends earlier
            self._due = due
            self._nap.deadline = self._tick_for(due, trio.current_time())

    async def push(self, steps: Iterator[Timed], taker: Taker, note: Note) -> None:
        """Each step to `taker` at the first tick at or after its time, or at once if that is over; until either ends.

        A checkpoint, if there are two. Raises what `taker` and `steps` raise; then, and when cancelled, nothing more is
        handed over.
        """
        stream, begun = Pushed(steps, taker, note), False
        while stream.next is not None:
            if stream.next.due > trio.current_time():
                await self._be_pushed(stream)
            else:
                if begun:  # the first is what was read, and at the next at the latest others have their turn
                    await trio.lowlevel.checkpoint()
                stream.hand_over(trio.current_time())
                stream.behind = not stream.flush()
            begun = True
            await stream.rest()

    async def _be_pushed(self, stream: Pushed) -> None:
        """Wait while the ticker pushes; until the stream is at its end, or behind. Raises what the pushing raised."""
        assert stream.next is not None, "it has something to say"

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._forget(stream)
            return trio.lowlevel.Abort.SUCCEEDED

        stream.task = trio.lowlevel.current_task()
        self._pushed[stream.task] = stream
        self._expect(stream.task, stream.next.due)
        await trio.lowlevel.wait_task_rescheduled(give_up)
        if stream.failure is not None:
            try:
                raise stream.failure
            finally:
                stream.failure = None  # it holds this frame, which holds the stream


async def _sleep() -> None:
    """Until cancelled, and then just return: an exception to be caught at each tick would cost a sixth of it."""
    task = trio.lowlevel.current_task()

    def wake(_raise_cancel: object) -> trio.lowlevel.Abort:
        trio.lowlevel.reschedule(task)
        return trio.lowlevel.Abort.FAILED

    await trio.lowlevel.wait_task_rescheduled(wake)
