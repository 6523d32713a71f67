"""Pushed steps: what is pushed is what would be pulled, and a stream's trouble is its own rollout's alone."""

from array import array

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from engine.samplers import ticker as ticker_module
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Prompt,
    Text,
    Thought,
    push,
)
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import Raise, Scripted
from engine.samplers.ticker import PARTS_AT_ONCE, STEPS_BETWEEN_CHECKPOINTS, Ticker, Timed

TICK = 0.004
PROMPT = Prompt("resp_1", "m")
NEW = Appended((), array("I", [1] * 10), 10)


def virtual(scenario, *args):
    """Run with a clock of its own that jumps."""
    return trio.run(scenario, *args, clock=trio.testing.MockClock(autojump_threshold=0))


class Listener:
    """A taker that keeps what it gets, with times; it may have enough, rest, or raise."""

    def __init__(
        self, *, enough_after=None, rests_after=(), raises_after=None, on_take=lambda: None, outlet=None
    ) -> None:
        self.outlet = outlet or id(self)
        self.heard, self.flushes, self.rests = [], 0, 0
        self.enough_after, self.rests_after, self.raises_after = enough_after, set(rests_after), raises_after
        self.on_take = on_take
        self.rested = trio.Event()

    @property
    def parts(self):
        return [part for _, step in self.heard for part in step]

    def take(self, step) -> bool:
        self.heard.append((trio.current_time(), tuple(step)))
        self.on_take()
        if len(self.heard) == self.raises_after:
            raise ZeroDivisionError("by design")
        return len(self.heard) == self.enough_after or any(type(part) is End for part in step)

    def flush(self) -> bool:
        self.flushes += 1
        return len(self.heard) not in self.rests_after

    async def rest(self) -> None:
        self.rests += 1
        await self.rested.wait()


def timed(*dues):
    """A step of one text at each of these times, and an end with the last."""
    return iter(
        Timed((Text(str(number)), *([End()] if number == len(dues) - 1 else [])), due, 1)
        for number, due in enumerate(dues)
    )


def unnoted(_timed, _now) -> None:
    """Nobody counts."""


async def with_ticker(scenario):
    ticker = Ticker(TICK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ticker.run)
        result = await scenario(ticker)
        nursery.cancel_scope.cancel()
    assert not ticker._waiting
    assert not ticker._pushed
    return result


# --- the same by both ways -----------------------------------------------------------------------------------------

words = st.text("ab 中😀", min_size=1, max_size=12)
parts = st.lists(
    st.builds(Text, words)
    | st.builds(Thought, words)
    | st.tuples(words).map(lambda one: (CallStart(0, "f"), CallInput(0, one[0]), CallEnd(0))),
    max_size=4,
)


class Pulled:
    """A sampling without its `push`."""

    def __init__(self, sampling) -> None:
        self.sample = sampling.sample


@given(
    said=parts,
    rate=st.sampled_from([50.0, 250.0, 1000.0, 5000.0]),
    jitter=st.sampled_from([0.0, 0.5]),
    only_read=st.booleans(),
)
def test_what_is_pushed_is_what_is_pulled(said, rate, jitter, only_read):
    """Each part comes at the same tick by both ways, and the statistics and the state's size are the same."""
    step = tuple(part for one in said for part in (one if isinstance(one, tuple) else (one,)))
    appended = Appended((), array("I", [1] * 10), 10, only_read=only_read)
    pace = Pace(tokens_per_second=rate, jitter=jitter)

    async def heard(pushed):
        paced = Paced(Scripted([[(*step, End())]]), pace, tick_seconds=TICK)
        listener = Listener()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(paced.run)
            sampling = paced.open(PROMPT)
            await push(sampling if pushed else Pulled(sampling), appended, listener)
            nursery.cancel_scope.cancel()
        each = [(at, part) for at, step in listener.heard for part in step]
        return each, paced.statistics, sampling.resident_tokens

    pulled, pushed = (virtual(heard, way) for way in (False, True))
    assert [(pytest.approx(at), part) for at, part in pulled[0]] == pushed[0]
    assert pulled[1].tokens == pushed[1].tokens
    assert pytest.approx(pulled[1].late_seconds_max) == pushed[1].late_seconds_max
    assert pulled[2] == pushed[2]


def test_a_step_waits_for_the_first_tick_at_or_after_its_time():
    """Due times between two ticks are met at the second, and two of one tick come together."""

    async def scenario(ticker):
        listener = Listener()
        await ticker.push(timed(0.001, 0.005, 0.006, 0.0121), listener, unnoted)
        return [(at, len(step)) for at, step in listener.heard]

    expected = [(0.004, 1), (0.008, 2), (0.016, 2)]
    assert [(pytest.approx(at), size) for at, size in expected] == virtual(with_ticker, scenario)


def test_who_is_late_catches_up_in_steps_of_bounded_size():
    """Steps that are long due come at once, some together, and others get their turn in between."""

    async def scenario(ticker):
        turns, turns_at = 0, []
        listener = Listener(on_take=lambda: turns_at.append(turns))

        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        await trio.sleep(100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            while not turns:
                await trio.lowlevel.checkpoint()
            await ticker.push(timed(*(number * 0.001 for number in range(1000))), listener, unnoted)
            nursery.cancel_scope.cancel()
        return [len(step) for _, step in listener.heard], len({at for at, _ in listener.heard}), turns_at

    sizes, times, turns_at = virtual(with_ticker, scenario)
    assert (1001, 1) == (sum(sizes), times)
    assert max(sizes) <= PARTS_AT_ONCE + 1
    # who runs first in a round of the scheduler is random, so of two steps the other had a turn between
    assert all(later > earlier for earlier, later in zip(turns_at, turns_at[2:], strict=False))


# --- trouble -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raises_after", [1, 2, 5])
def test_what_a_taker_raises_comes_out_of_its_own_push(raises_after):
    """The others of the same tick, before and after it, hear all that is theirs, and the ticker goes on."""

    async def scenario(ticker):
        listeners = [Listener(), Listener(raises_after=raises_after), Listener()]
        raised = []

        async def listen(listener) -> None:
            try:
                await ticker.push(timed(*(number * 0.01 for number in range(1, 7))), listener, unnoted)
            except ZeroDivisionError as error:
                raised.append((listener, str(error)))

        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(listen, listener)
        assert [(listeners[1], "by design")] == raised
        return [len(listener.heard) for listener in listeners]

    assert [6, raises_after, 6] == virtual(with_ticker, scenario)


def test_what_a_stream_raises_comes_out_of_its_own_push():
    """A source that fails between two steps fails its rollout, and nobody else's."""

    def failing():
        yield Timed((Text("a"),), 0.01, 1)
        yield Timed((Text("b"),), 0.02, 1)
        raise ZeroDivisionError("by design")

    async def scenario(ticker):
        other = Listener()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.push, timed(0.01, 0.02, 0.03), other, unnoted)
            with pytest.raises(ZeroDivisionError, match="by design"):
                await ticker.push(failing(), Listener(), unnoted)
        return len(other.heard)

    assert 3 == virtual(with_ticker, scenario)


@pytest.mark.parametrize("cancel_at", [0.0, 0.01, 0.0101, 0.02, 0.05])
def test_a_cancelled_stream_hears_nothing_more(cancel_at):
    """Whenever it is cancelled, at a tick or between two, it is gone from the ticker, with no step twice."""

    async def scenario(ticker):
        listener, other = Listener(), Listener()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.push, timed(*(number * 0.01 for number in range(1, 9))), other, unnoted)
            with trio.move_on_after(cancel_at):
                await ticker.push(timed(*(number * 0.01 for number in range(1, 9))), listener, unnoted)
            heard = len(listener.heard)
            await trio.sleep(1)
        assert heard == len(listener.heard)
        texts = [part.text for part in listener.parts if isinstance(part, Text)]
        assert [str(number) for number in range(len(texts))] == texts
        return len(other.heard)

    assert 8 == virtual(with_ticker, scenario)


def test_a_taker_may_lead_to_the_end_of_its_own_rollout_and_of_others():
    """Taking a step may cancel the task that waits for it, or another whose step is due in the same tick."""

    async def scenario(ticker):
        scopes = [trio.CancelScope() for _ in range(3)]

        def cancel() -> None:
            scopes[0].cancel()
            scopes[1].cancel()

        listeners = [Listener(on_take=cancel), Listener(), Listener()]

        async def listen(scope, listener) -> None:
            with scope:
                await ticker.push(timed(0.01, 0.02, 0.03), listener, unnoted)

        async with trio.open_nursery() as nursery:
            for scope, listener in zip(scopes, listeners, strict=True):
                nursery.start_soon(listen, scope, listener)
        return [len(listener.heard) for listener in listeners], [scope.cancelled_caught for scope in scopes]

    heard, caught = virtual(with_ticker, scenario)
    assert [True, True, False] == caught
    assert 3 == heard[2]
    assert 1 == heard[0]
    assert heard[1] <= 1


def test_a_taker_that_is_behind_stops_its_own_stream_only():
    """It gets nothing until it has rested, then all that it missed, in order; the others go on."""

    async def scenario(ticker):
        slow, other = Listener(rests_after=[2]), Listener()
        dues = [number * 0.01 for number in range(1, 9)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.push, timed(*dues), slow, unnoted)
            nursery.start_soon(ticker.push, timed(*dues), other, unnoted)
            await trio.sleep(10)
            assert (2, 8) == (len(slow.heard), len(other.heard))
            slow.rested.set()
        return slow

    slow = virtual(with_ticker, scenario)
    assert [str(number) for number in range(8)] == [
        part.text for part in slow.parts if isinstance(part, Text)
    ]
    assert 1 == slow.rests


def test_a_taker_that_has_enough_gets_no_more_and_its_push_returns():
    """The stream ends in the middle, without an error."""

    async def scenario(ticker):
        listener = Listener(enough_after=2)
        await ticker.push(timed(0.01, 0.02, 0.03, 0.04), listener, unnoted)
        seconds = trio.current_time()
        await trio.sleep(1)
        return len(listener.heard), seconds

    assert (2, pytest.approx(0.02)) == virtual(with_ticker, scenario)


def test_each_stream_of_a_tick_is_flushed_after_all_have_taken():
    """So what shares a connection leaves in one write."""
    acts = []

    class Told(Listener):
        def take(self, step) -> bool:
            acts.append("take")
            return super().take(step)

        def flush(self) -> bool:
            acts.append("flush")
            return super().flush()

    async def scenario(ticker):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ticker.push, timed(0.01, 0.02), Told(), unnoted)

    virtual(with_ticker, scenario)
    assert (["take"] * 5 + ["flush"] * 5) * 2 == acts


def test_what_leaves_together_is_flushed_once():
    """Of those that share an outlet only one; the end of a stream is told to itself, and to be behind is told to all."""
    dues = (0.01, 0.02, 0.03)

    async def scenario(ticker):
        shared = [Listener(outlet="one") for _ in range(3)]
        alone, ends, slow = (
            Listener(),
            Listener(enough_after=1, outlet="one"),
            Listener(rests_after={2}, outlet="two"),
        )
        waits_with_it = Listener(outlet="two")
        for listener in (slow, waits_with_it):
            listener.rested.set()
        async with trio.open_nursery() as nursery:
            for listener in (ends, *shared, alone, slow, waits_with_it):
                nursery.start_soon(ticker.push, timed(*dues), listener, unnoted)
                await trio.testing.wait_all_tasks_blocked()
        assert [listener.parts for listener in shared] == [alone.parts] * 3
        assert slow.parts == waits_with_it.parts == alone.parts
        flushes = [sum(listener.flushes for listener in shared), alone.flushes, ends.flushes]
        return flushes, slow.rests, waits_with_it.rests

    # of two ticks once for all three, and of the last one each; one that rested goes on by itself, so it is flushed alone
    assert ([2 + 3, 3, 1], 1, 1) == virtual(with_ticker, scenario)


def test_others_get_their_turn_within_a_tick_of_many_streams():
    """At most so many steps are handed over between two checkpoints."""
    longest = since = 0

    def count() -> None:
        nonlocal longest, since
        since += 1
        longest = max(longest, since)

    class Turns(trio.abc.Instrument):
        def before_task_step(self, _task) -> None:
            nonlocal since
            since = 0

    async def scenario(ticker):
        listeners = [Listener(on_take=count) for _ in range(3 * STEPS_BETWEEN_CHECKPOINTS + 1)]
        trio.lowlevel.add_instrument(Turns())
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(ticker.push, timed(0.01, 0.02), listener, unnoted)
        return {len(listener.heard) for listener in listeners}

    assert {2} == virtual(with_ticker, scenario)
    assert STEPS_BETWEEN_CHECKPOINTS == longest


def test_a_stream_cancelled_between_two_checkpoints_of_a_tick_hears_nothing(monkeypatch):
    """It was due, but its turn had not come."""
    monkeypatch.setattr(ticker_module, "STEPS_BETWEEN_CHECKPOINTS", 1)

    async def scenario(ticker):
        scope = trio.CancelScope()
        first, second = Listener(on_take=scope.cancel), Listener()

        async def listen() -> None:
            with scope:
                await ticker.push(timed(0.01, 0.02), second, unnoted)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.push, timed(0.01, 0.02), first, unnoted)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(listen)
        return len(first.heard), len(second.heard)

    assert (2, 0) == virtual(with_ticker, scenario)


def test_a_source_that_fails_before_its_first_word_fails_the_push():
    """As it fails the pull."""

    async def scenario() -> None:
        paced = Paced(Scripted([[Raise(ZeroDivisionError("by design"))]]), Pace(), tick_seconds=TICK)
        await push(paced.open(PROMPT), NEW, Listener())

    with pytest.raises(ZeroDivisionError, match="by design"):
        virtual(scenario)
