"""The simulated model in virtual time: its pace, its ticks, its tokens, and streams that are cancelled while they wait."""

import math
from array import array
from itertools import accumulate

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from engine import vocabulary
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Prefilled,
    Prompt,
    Text,
    Thought,
)
from engine.samplers.paced import Pace, Paced, Ticker
from engine.samplers.pieces import in_tokens, token_pieces
from engine.samplers.scripted import END, Scripted, say
from protocol.items import Message

TICK = 0.004
PROMPT = Prompt("resp_1", "m")
WORDS = " ".join(["one two three four five six seven eight nine ten"] * 20)


def virtual(scenario, *args):
    """Run with a clock of its own that jumps."""
    return trio.run(scenario, *args, clock=trio.testing.MockClock(autojump_threshold=0))


def fed(new: int = 0, held: int = 0) -> Appended:
    return Appended((), array("I", [1] * new), new + held)


async def timed_steps(parts, pace, appended=None, *, prompt=PROMPT, statistics=None):
    """(seconds since the start, step) of everything that one segment yields."""
    paced = Paced(Scripted([[tuple(parts)]]), pace, tick_seconds=TICK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(paced.run)
        sampling = paced.open(prompt)
        began = trio.current_time()
        steps = [
            (trio.current_time() - began, tuple(step)) async for step in sampling.sample(appended or fed())
        ]
        await sampling.aclose()
        nursery.cancel_scope.cancel()
    if statistics is not None:
        statistics.append(paced.statistics)
    return steps


# --- the ticker ----------------------------------------------------------------------------------------------------


class CountWakes(trio.abc.Instrument):
    """Counts the times at which tasks run at all."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        now = trio.current_time()
        if not self.times or self.times[-1] != now:
            self.times.append(now)


@pytest.mark.parametrize("streams", [1, 50])
def test_all_streams_are_woken_together_once_a_tick(streams):
    """However many streams wait, the clock stops only at whole ticks, once at each from the first one's time on."""

    async def stream(ticker: Ticker, offset: float) -> None:
        for number in range(10):
            await ticker.wait_until(offset + number * 0.001)

    async def main() -> None:
        ticker = Ticker(TICK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.run)
            async with trio.open_nursery() as crowd:
                for number in range(streams):
                    crowd.start_soon(stream, ticker, 0.01 + number * 0.00001)
            nursery.cancel_scope.cancel()

    instrument = CountWakes()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[instrument])
    elapsed = [time - instrument.times[0] for time in instrument.times]
    ticks = [round(time / TICK) for time in elapsed]
    assert ticks == sorted(set(ticks))
    assert [*range(3, ticks[-1] + 1)] == [
        tick for tick in ticks if tick > 2
    ]  # before it may wait for one tick to begin
    assert [pytest.approx(tick * TICK) for tick in ticks] == elapsed


def test_the_ticker_sleeps_when_nobody_waits():
    """A ticker without streams wakes for nothing, however long."""

    async def main() -> None:
        ticker = Ticker(TICK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.run)
            await trio.sleep(3600)
            await ticker.wait_until(trio.current_time() + 0.01)
            nursery.cancel_scope.cancel()

    instrument = CountWakes()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[instrument])
    assert len(instrument.times) <= 6


def test_the_ticker_sleeps_until_somebody_is_due():
    """Between two far tokens it wakes for nothing; one that is due sooner is not late."""
    met = []

    async def stream(ticker: Ticker, due: float) -> None:
        await ticker.wait_until(due)
        met.append((due, trio.current_time()))

    async def main() -> None:
        ticker = Ticker(TICK)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.run)
            async with trio.open_nursery() as crowd:
                crowd.start_soon(stream, ticker, began + 60.0)
                await trio.sleep(10)
                crowd.start_soon(stream, ticker, began + 20.0)
            nursery.cancel_scope.cancel()

    instrument = CountWakes()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[instrument])
    assert len(instrument.times) <= 8
    assert len(met) == 2
    assert all(0 <= at - due <= TICK * 1.001 for due, at in met)


@given(tick_number=st.integers(0, 10**7), offset=st.just(0.0) | st.floats(0, 1, exclude_max=True))
@example(tick_number=2001, offset=0.0)  # 8.004 / 0.004 is a little less than 2001
def test_the_next_tick_is_later_and_within_a_tick(tick_number, offset):
    """From any time the next tick is after it, so that the ticker never stands still, and no more than a tick away."""
    now = (tick_number + offset) * TICK
    ahead = Ticker(TICK)._next_tick(now) - now
    assert 0 < ahead <= TICK * 1.001


def test_a_stream_waits_for_the_first_tick_at_or_after_its_time():
    """A due time between two ticks is met at the second."""

    async def main() -> float:
        ticker = Ticker(TICK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.run)
            await ticker.wait_until(trio.current_time() + 0.009)
            nursery.cancel_scope.cancel()
        return trio.current_time()

    assert pytest.approx(0.012) == virtual(main)


@pytest.mark.parametrize("cancel_at", [0.0, 0.01, 0.1])
def test_a_cancelled_stream_leaves_no_waiter(cancel_at):
    """Whenever it is cancelled, a stream is no longer in the ticker's list."""

    async def main() -> "list[object]":
        ticker = Ticker(TICK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.run)
            with trio.move_on_after(cancel_at):
                await ticker.wait_until(trio.current_time() + 0.1)
            nursery.cancel_scope.cancel()
        return list(ticker._waiting)

    assert [] == virtual(main)


def test_a_stream_cancelled_in_the_step_it_is_woken_leaves_no_waiter():
    """The tick and the cancellation may come in one step; the list is empty all the same."""

    async def main() -> "list[object]":
        ticker, scope = Ticker(TICK), trio.CancelScope()

        async def wait() -> None:
            with scope:
                await ticker.wait_until(1.0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            ticker._wake(1.0)  # before the cancelled task has run
        return list(ticker._waiting)

    assert [] == virtual(main)


# --- the pace ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [20.0, 200.0, 1000.0, 5000.0])
def test_n_tokens_take_n_over_rate_seconds(rate):
    """The last token leaves at its time, within one tick."""
    pace = Pace(tokens_per_second=rate, first_token_seconds=0.0)
    steps = virtual(timed_steps, [Text(WORDS), End()], pace)
    expected = len(vocabulary.encode(WORDS)) / rate
    assert expected <= steps[-1][0] + 1e-9 <= expected + TICK + 2e-9


def test_the_rate_holds_all_along():
    """At each step as many tokens are out as the rate allows, within a tick and a token."""
    pace = Pace(tokens_per_second=300.0, first_token_seconds=0.0)
    out = 0
    for seconds, step in virtual(timed_steps, [Text(WORDS), End()], pace)[1:]:
        out += sum(part.tokens for part in step)
        assert -1e-6 <= seconds - out / 300.0 <= TICK + 1e-6


def test_the_first_token_waits_for_its_time_and_for_the_prefill():
    """The first token leaves after the fixed time, the time of the tokens to read, and its own."""
    pace = Pace(tokens_per_second=250.0, first_token_seconds=0.1, prefill_tokens_per_second=1000.0)
    steps = virtual(timed_steps, [Text("a"), End()], pace, fed(new=500, held=9000))
    expected = (0.0, (Prefilled(9000, 500),))
    assert expected == steps[0]
    assert 0.604 - 1e-9 <= steps[1][0] <= 0.608 + 1e-9


def test_tokens_of_the_warm_state_cost_no_time():
    """A context that the model has already does not delay the first token."""
    pace = Pace(first_token_seconds=0.0, prefill_tokens_per_second=10.0)
    cold, warm = (virtual(timed_steps, [Text("a"), End()], pace, fed(held=held)) for held in (0, 100_000))
    assert [seconds for seconds, _ in cold] == [seconds for seconds, _ in warm]


def test_what_is_only_read_takes_the_time_of_reading_and_is_told_to_the_source_later():
    """No word and no first token's time; what the source answers, later, answers all that was read."""
    pace = Pace(tokens_per_second=250.0, first_token_seconds=0.1, prefill_tokens_per_second=1000.0)
    told = []

    def script(prompt):
        return [[*say("hello"), END]]

    class Watched(Scripted):
        def open(self, prompt):
            sampling = super().open(prompt)
            sample = sampling.sample

            def watched(appended):
                told.append([item.content for item in appended.items])
                return sample(appended)

            sampling.sample = watched
            return sampling

    async def scenario():
        paced = Paced(Watched(script), pace, tick_seconds=TICK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(paced.run)
            sampling = paced.open(PROMPT)
            began = trio.current_time()
            one = Appended((Message("user", "one"),), array("I", [1] * 500), 500, only_read=True)
            parts = [part async for step in sampling.sample(one) for part in step]
            seconds = trio.current_time() - began
            two = Appended((Message("user", "two"),), array("I"), 500)
            rest = [part async for step in sampling.sample(two) for part in step]
            nursery.cancel_scope.cancel()
        return parts, seconds, rest

    parts, seconds, rest = virtual(scenario)
    assert [Prefilled(0, 500), End()] == parts
    assert 0.5 <= seconds <= 0.5 + TICK + 1e-9
    assert Prefilled(500, 0) == rest[0]
    assert [["one", "two"]] == told


def test_a_step_that_is_due_already_is_a_checkpoint_too():
    """Without any time to wait others get their turn all the same."""

    async def main() -> "list[tuple[object, ...]]":
        pace = Pace(first_token_seconds=0.0)
        steps = Paced(Scripted([[(CallEnd(0), End())]]), pace, tick_seconds=TICK).open(PROMPT).sample(fed())
        seen = [tuple(await anext(steps))]
        with trio.testing.assert_checkpoints():
            seen.append(tuple(await anext(steps)))
        await steps.aclose()
        return seen

    assert [(Prefilled(0, 0),), (CallEnd(0), End())] == virtual(main)


def test_the_jitter_comes_from_the_seed_and_the_response():
    """The same seed and id give the same times; another seed or another id gives others."""
    times = {}
    for seed, response_id in ((1, "a"), (1, "a"), (2, "a"), (1, "b")):
        pace = Pace(jitter=0.5, seed=seed)

        async def run(pace=pace, response_id=response_id):
            return await timed_steps([Text(WORDS), End()], pace, prompt=Prompt(response_id, "m"))

        times.setdefault((seed, response_id), []).append([seconds for seconds, _ in virtual(run)])
    first, again = times[1, "a"]
    assert (True, False, False) == (first == again, first == times[2, "a"][0], first == times[1, "b"][0])


def test_the_statistics_count_tokens_and_lateness():
    """They have every token, and no step left more than a tick after it was due."""
    statistics = []

    async def run():
        return await timed_steps([Text(WORDS), End()], Pace(), statistics=statistics)

    virtual(run)
    expected = len(vocabulary.encode(WORDS))
    assert expected == statistics[0].tokens
    assert 0 <= statistics[0].late_seconds_max <= TICK + 1e-9


# --- the parts -----------------------------------------------------------------------------------------------------

texts = st.text(max_size=40) | st.text("中文日本語한국어😀👩‍👩‍👧🇩🇪é", max_size=20)


@given(text=texts)
def test_pieces_are_whole_characters_and_count_the_vocabularys_tokens(text):
    """Joined they are the text, each is some characters, and their tokens add up to the encoding's."""
    pieces = list(token_pieces(text))
    expected = (text, len(vocabulary.encode(text)), True)
    actual = (
        "".join(piece for piece, _ in pieces),
        sum(tokens for _, tokens in pieces),
        all(piece and tokens >= 1 for piece, tokens in pieces),
    )
    assert expected == actual


@given(
    rate=st.sampled_from([10.0, 249.0, 250.0, 251.0, 1_000.0, 1_750.0, 4_000.0]),
    answer=texts,
    often=st.integers(1, 40),
)
def test_a_step_has_the_tokens_of_a_tick_and_leaves_in_their_time(rate, answer, often):
    """No step but the last has fewer tokens than a tick has time for, or more than its last part brings in."""
    steps = virtual(timed_steps, [Text(answer * often), End()], Pace(tokens_per_second=rate))[1:]
    full = max(1, math.ceil(TICK * rate - 1e-9))
    tokens = [[part.tokens for part in step] for _, step in steps]
    assert all(sum(some[:-1]) < full <= sum(some) for some in tokens[:-1])
    assert sum(map(sum, tokens)) == len(vocabulary.encode(answer * often))
    due = [Pace().first_token_seconds + said / rate for said in accumulate(map(sum, tokens))]
    left = [seconds for seconds, _ in steps]
    assert all(when - 1e-9 <= seconds <= when + TICK + 1e-9 for when, seconds in zip(due, left, strict=True))


@given(text=texts, often=st.integers(1, 60), kind=st.sampled_from([Text, Thought]))
@example(text="a" * 5 + "𓀀", often=60, kind=Text)
def test_stretches_are_the_pieces_of_the_text(text, often, kind):
    """However many tokens are dealt with at once, the same parts come of it; those of a stretch have a token each, or it is one."""
    stretches = list(in_tokens([kind(text * often), End(), kind("never")]))
    parts = [kind(piece, tokens) for piece, tokens in token_pieces(text * often)]
    assert [*parts, End()] == [part for stretch in stretches for part in stretch]
    assert all(len(stretch) == 1 or {part.tokens for part in stretch} == {1} for stretch in stretches)


def test_a_character_of_several_tokens_comes_whole():
    """A character that the vocabulary splits is one piece that stands for several tokens."""
    character = next(c for c in "𓀀🜁🝆" if len(vocabulary.encode(c)) > 1)
    assert [(character, len(vocabulary.encode(character)))] == list(token_pieces(character))


@given(answer=texts, thought=texts, arguments=texts)
def test_the_parts_of_the_source_come_through_in_order(answer, thought, arguments):
    """Text, reasoning and input are cut into tokens; calls and the end stay as they are; nothing after the end is said."""
    source = [
        Prefilled(7, 7),
        Thought(thought),
        CallStart(0, "f", "ns", "call_9"),
        CallInput(0, arguments),
        CallEnd(0),
        Text(answer),
        End("length"),
        Text("never"),
    ]
    steps = virtual(timed_steps, source, Pace(tokens_per_second=10_000.0))
    parts = [part for _, step in steps[1:] for part in step]
    joined = {
        kind: "".join(part.text for part in parts if type(part) is kind)
        for kind in (Thought, CallInput, Text)
    }
    assert {Thought: thought, CallInput: arguments, Text: answer} == joined
    others = [part for part in parts if not isinstance(part, Text | Thought | CallInput)]
    assert [CallStart(0, "f", "ns", "call_9"), CallEnd(0), End("length")] == others
    order = [Thought, CallStart, CallInput, CallEnd, Text, End]
    assert sorted(map(order.index, map(type, parts))) == list(map(order.index, map(type, parts)))


def test_a_source_without_an_end_stays_without_one():
    """What a broken source leaves out is not made up."""
    steps = virtual(timed_steps, [Text("a")], Pace())
    assert (Text("a"),) == steps[-1][1]


def test_cancelled_streams_leave_no_waiter_and_no_open_source():
    """A stream cancelled between two tokens is gone from the ticker, and closing it closes its source."""

    async def main():
        source = Scripted([[(Text(WORDS), End())]])
        paced = Paced(source, Pace(tokens_per_second=10.0), tick_seconds=TICK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(paced.run)
            sampling = paced.open(PROMPT)
            with trio.move_on_after(1.05):
                async for _ in sampling.sample(fed()):
                    pass
            await sampling.aclose()
            await sampling.aclose()
            nursery.cancel_scope.cancel()
        return list(paced._ticker._waiting), source.open_samplings

    assert ([], 0) == virtual(main)
