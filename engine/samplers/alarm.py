"""What wakes the ticker: an alarm for one task, at a time that anybody may change while it waits.

There are two, as most of what a tick costs is its wake, on a machine that was idle before it.
`TimerAlarm` is a timer descriptor of Linux that repeats by itself: a tick after a tick needs no call, and nothing is
cancelled. It costs half of what `DeadlineAlarm` does, which knows any clock of the scheduler's, also a simulated one.
"""

import ctypes
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

_SOON_NANOSECONDS = 1_000
"""Added to each time: a timer that rings a rounding too early has rung for nothing. Also, 0 would switch it off."""


class Alarm(Protocol):
    """Rings for the one task that waits."""

    def set(self, at: float) -> None:
        """Ring at `at`, in `trio.current_time()`, and not at the time set before; infinite: never. Not a checkpoint."""

    async def wait(self) -> None:
        """Until it rings. A checkpoint. It may ring when its time was just changed: whoever waits looks at the clock."""


class DeadlineAlarm:
    """By a deadline of the scheduler."""

    def __init__(self) -> None:
        self._nap = trio.CancelScope()

    def set(self, at: float) -> None:
        """As `Alarm`."""
        self._nap.deadline = at

    async def wait(self) -> None:
        """As `Alarm`."""
        with self._nap:
            await _sleep()
        self._nap = trio.CancelScope()
        await trio.lowlevel.checkpoint_if_cancelled()


async def _sleep() -> None:
    """Until cancelled, and then just return: an exception to be caught at each tick would cost a sixth of it."""
    task = trio.lowlevel.current_task()

    def wake(_raise_cancel: object) -> trio.lowlevel.Abort:
        trio.lowlevel.reschedule(task)
        return trio.lowlevel.Abort.FAILED

    await trio.lowlevel.wait_task_rescheduled(wake)


class _Times(ctypes.Structure):
    """`struct itimerspec` where a long has 64 bits."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("first_seconds", ctypes.c_long),
        ("first_nanoseconds", ctypes.c_long),
    )


class TimerAlarm:
    """By a timer descriptor that goes on ringing every `interval_seconds` after the first time."""

    def __init__(self, interval_seconds: float) -> None:
        """`OSError`: no descriptor is left. Someone must call `close`."""
        self._library = ctypes.CDLL(None, use_errno=True)
        self._interval_seconds = interval_seconds
        self._times = _Times(*_split(interval_seconds))
        self._descriptor = self._library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._rings_at = math.inf

    def set(self, at: float) -> None:
        """As `Alarm`. No call if that is when it rings anyway."""
        if at == self._rings_at or abs(at - self._rings_at) < self._interval_seconds / 4:
            return
        self._rings_at = at
        times = self._times
        times.first_seconds = times.first_nanoseconds = 0  # off
        if at < math.inf:
            ahead_seconds = max(0.0, at - trio.current_time())
            times.first_seconds, times.first_nanoseconds = _split(ahead_seconds + _SOON_NANOSECONDS / 1e9)
        self._library.timerfd_settime(self._descriptor, 0, ctypes.byref(times), None)

    async def wait(self) -> None:
        """As `Alarm`."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                times_rung = int.from_bytes(os.read(self._descriptor, 8), sys.byteorder)
            except BlockingIOError:  # set anew since it rang
                continue
            self._rings_at += times_rung * self._interval_seconds
            return

    def close(self) -> None:
        """Give the descriptor back. Nobody may wait."""
        os.close(self._descriptor)


def _split(seconds: float) -> tuple[int, int]:
    """Whole seconds, and nanoseconds."""
    whole = int(seconds)
    return whole, int((seconds - whole) * 1e9)


@contextmanager
def open_alarm(interval_seconds: float) -> Iterator[Alarm]:
    """The best alarm for the clock of this run, for times that are mostly `interval_seconds` apart."""
    if not _has_timers():
        yield DeadlineAlarm()
        return
    alarm = TimerAlarm(interval_seconds)
    try:
        yield alarm
    finally:
        alarm.close()


def _has_timers() -> bool:
    """Only the scheduler's own clock is the one that descriptors go by; its class is private, so it is known by its name."""
    own_clock = type(trio.lowlevel.current_clock()).__name__ == "SystemClock"
    return own_clock and sys.platform == "linux" and ctypes.sizeof(ctypes.c_long) == 8
