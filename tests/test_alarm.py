"""An alarm rings at its time and not before, whoever changes it meanwhile; both kinds, on the real clock."""

import math
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from engine.samplers.alarm import DeadlineAlarm, TimerAlarm, open_alarm

INTERVAL_SECONDS = 0.004
GENEROUS_SECONDS = 60


@contextmanager
def _deadline():
    yield DeadlineAlarm()


KINDS = {"deadline": _deadline, "of this clock": lambda: open_alarm(INTERVAL_SECONDS)}


@pytest.fixture(params=KINDS)
async def alarm(request):
    with KINDS[request.param]() as alarm:
        yield alarm


async def _rings(alarm):
    with trio.fail_after(GENEROUS_SECONDS):
        await alarm.wait()
    return trio.current_time()


async def test_it_rings_at_its_time_again_and_again(alarm):
    at = trio.current_time()
    for steps in (1, 1, 1, 3, 1):
        at += steps * INTERVAL_SECONDS
        alarm.set(at)
        assert await _rings(alarm) >= at


async def test_a_time_that_is_over_is_now(alarm):
    alarm.set(trio.current_time() - 1)
    await _rings(alarm)


@pytest.mark.parametrize("first", [math.inf, GENEROUS_SECONDS * 2])
async def test_it_may_be_brought_forward_while_somebody_waits(alarm, first):
    alarm.set(trio.current_time() + first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_rings, alarm)
        await trio.testing.wait_all_tasks_blocked()
        alarm.set(trio.current_time() + INTERVAL_SECONDS)


async def test_it_may_be_put_off_before_it_rings(alarm):
    alarm.set(trio.current_time() + 3 * INTERVAL_SECONDS)
    later = trio.current_time() + 20 * INTERVAL_SECONDS
    alarm.set(later)
    assert await _rings(alarm) >= later


async def test_put_off_after_it_rang_and_before_that_was_heard_it_rings_at_the_new_time(alarm):
    heard = []

    async def listen():
        heard.append(await _rings(alarm))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        alarm.set(trio.current_time())
        time.sleep(2 * INTERVAL_SECONDS)  # noqa: ASYNC251  # it rings while nobody looks
        alarm.set(trio.current_time() + 10 * INTERVAL_SECONDS)
    assert len(heard) == 1


async def test_who_waits_can_be_cancelled_and_wait_again(alarm):
    alarm.set(math.inf)
    with trio.CancelScope() as scope:
        scope.cancel()
        await alarm.wait()
    assert scope.cancelled_caught
    alarm.set(trio.current_time())
    await _rings(alarm)


async def test_switched_off_it_does_not_go_on_ringing(alarm):
    alarm.set(trio.current_time())
    await _rings(alarm)
    alarm.set(math.inf)
    with trio.move_on_after(5 * INTERVAL_SECONDS) as scope:
        await alarm.wait()
    assert scope.cancelled_caught


@pytest.mark.skipif(sys.platform != "linux", reason="timer descriptors are Linux's")
async def test_the_scheduler_s_own_clock_has_a_timer_and_its_descriptor_is_given_back():
    before = _descriptors()
    with open_alarm(INTERVAL_SECONDS) as alarm:
        assert isinstance(alarm, TimerAlarm)
        assert _descriptors() != before
    assert _descriptors() == before


def _descriptors():
    return set(Path("/proc/self/fd").iterdir())


async def test_a_simulated_clock_has_deadlines(mock_clock):
    with open_alarm(INTERVAL_SECONDS) as alarm:
        assert isinstance(alarm, DeadlineAlarm)
