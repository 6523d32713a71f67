"""engine.testing: the kit does what it says, to our own samplers and to broken ones."""

import random
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from demos.agents import shell
from engine.faults import FaultPlan, FaultyStream, Way
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Prompt,
    Sampling,
    Steps,
    Taker,
    Text,
)
from engine.samplers.improv import Improv
from engine.samplers.paced import Pace, Paced
from engine.samplers.policy import PolicySampler
from engine.samplers.scripted import END, Scripted, Stall, call, say
from engine.testing import check_sampler, serving, simulate, simulated_engine
from protocol.items import Message

SCRIPT = [[call("a"), Stall(1.0), call("b", index=1), END], [*say("hello there"), END]]
TOOLS = ({"type": "function", "name": "exec_command"}, {"type": "custom", "name": "patch"})


# --- simulate ----------------------------------------------------------------------------------------------------


async def interleaving() -> tuple[int, ...]:
    """The order in which five tasks run."""
    order: list[int] = []

    async def run(number: int) -> None:
        for _ in range(20):
            order.append(number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(run, number)
    return tuple(order)


def test_the_private_names_of_trio_are_still_there() -> None:
    """One seed gives one interleaving, forty give forty: if not, trio has changed what `simulate` relies on."""
    assert len({simulate(interleaving, seed=1) for _ in range(5)}) == 1
    assert len({simulate(interleaving, seed=seed) for seed in range(40)}) == 40


def test_a_simulation_leaves_trio_as_it_was() -> None:
    """The scheduler's generator and its flag are those from before, also after a crash."""
    module: Any = trio._core._run
    before = module._r.getstate(), module._ALLOW_DETERMINISTIC_SCHEDULING

    async def crash() -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        simulate(crash, seed=3)

    assert (module._r.getstate(), module._ALLOW_DETERMINISTIC_SCHEDULING) == before


def test_a_day_passes_at_once() -> None:
    """Time is virtual: a suspended rollout is answered a day later, by the client of the kit."""

    async def think() -> str:
        await trio.sleep(86_400)
        return "yes"

    async def scenario() -> tuple[str, float]:
        engine = simulated_engine(Scripted([[call("think"), END], [*say("Good."), END]]), seed=1)
        engine.limits = attrs.evolve(
            engine.limits, suspend_timeout_seconds=0.0, max_connection_seconds=2 * 86_400
        )
        async with (
            serving(engine) as served,
            served.connect_client("append") as client,
            client.rollout(model="m", input="hm?", functions={"think": think}) as rollout,
        ):
            return (await rollout.wait_ended()).status, trio.current_time()

    status, seconds = simulate(scenario, seed=1)

    assert status == "completed"
    assert seconds >= 86_400


# --- samplers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scripted(SCRIPT),
        lambda: Paced(Scripted(SCRIPT), Pace(jitter=0.3), tick_seconds=0.004),
        lambda: PolicySampler(shell.policy),
        lambda: Paced(PolicySampler(shell.policy), Pace(), tick_seconds=0.004),
        Improv,
        lambda: Paced(Improv(), Pace(), tick_seconds=0.004),
    ],
    ids=["scripted", "paced scripted", "policy", "paced policy", "improv", "paced improv"],
)
def test_our_samplers_keep_the_rules(make: Any) -> None:
    """Each of them passes the conformance function, closed and cancelled everywhere."""
    runs = check_sampler(
        make, prompt=Prompt("resp_1", "m", TOOLS), items=(Message("user", "```sh\nls\n```"),)
    )

    assert runs > 10


def test_a_checked_sampler_is_closed_as_often_as_opened() -> None:
    """No run of the check leaves a sampling open."""
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted(SCRIPT))
        return made[-1]

    check_sampler(make)

    assert [sampler.open_samplings for sampler in made] == [0] * len(made)


@attrs.define
class Broken:
    """A sampler of one segment, given as a function, and of one way to close."""

    segment: Any
    close: Any = trio.lowlevel.checkpoint
    reads_ahead: bool = False

    def open(self, _prompt: Prompt) -> Sampling:
        return self  # type: ignore[return-value]

    def sample(self, appended: Appended) -> Steps:
        return self.segment(appended)

    async def aclose(self) -> None:
        await self.close()


async def stops_without_end(_appended: Appended) -> Steps:
    await trio.lowlevel.checkpoint()
    yield (Text("a"),)


async def goes_on_after_end(_appended: Appended) -> Steps:
    await trio.lowlevel.checkpoint()
    yield (End(),)
    yield (Text("b"),)


async def says_more_after_end(_appended: Appended) -> Steps:
    await trio.lowlevel.checkpoint()
    yield (End(), Text("b"))


async def swallows_cancellation(_appended: Appended) -> Steps:
    for _ in range(5):
        with suppress(trio.Cancelled):
            await trio.sleep(1)
        yield (Text("a"),)
    yield (End(),)


async def goes_on_when_closed(_appended: Appended) -> Steps:
    await trio.lowlevel.checkpoint()
    try:
        yield (Text("a"),)
    except GeneratorExit:
        yield (Text("b"),)
    yield (End(),)


async def never_waits(_appended: Appended) -> Steps:
    yield (Text("a"), End())


async def says_half_a_character(_appended: Appended) -> Steps:
    await trio.lowlevel.checkpoint()
    yield (Text("\ud83d"), End())


async def holds_a_scope(_appended: Appended) -> Steps:
    with trio.move_on_after(5):
        await trio.lowlevel.checkpoint()
        yield (Text("a"),)
        yield (End(),)


async def holds_a_nursery(_appended: Appended) -> Steps:
    async with trio.open_nursery():
        yield (Text("a"),)
        yield (End(),)


async def ends_a_call_it_never_began(_appended: Appended) -> Steps:
    await trio.lowlevel.checkpoint()
    yield (CallStart(0, "f"), CallEnd(0), CallInput(0, "{}"), End())


async def says_nothing_wrong(_appended: Appended) -> Steps:
    await trio.lowlevel.checkpoint()
    yield (Text("a"), End())


@pytest.mark.parametrize(
    ("sampler", "rule"),
    [
        (Broken(stops_without_end), 1),
        (Broken(goes_on_after_end), 1),
        (Broken(says_more_after_end), 1),
        (Broken(ends_a_call_it_never_began), 1),
        (Broken(swallows_cancellation), 2),
        (Broken(goes_on_when_closed), 2),
        (Broken(never_waits), 2),
        (Broken(says_nothing_wrong, close=trio.sleep_forever), 3),
        (Broken(says_half_a_character), 4),
        (Broken(holds_a_scope), 6),
        (Broken(holds_a_nursery), 6),
        (Broken(says_nothing_wrong, reads_ahead=True), 7),
    ],
    ids=lambda value: value.segment.__name__ if isinstance(value, Broken) else None,
)
def test_a_broken_sampler_is_told_its_rule(sampler: Broken, rule: int) -> None:
    """Each way to break a rule is found, and the error names the rule."""
    with pytest.raises(AssertionError, match=f"rule {rule} of engine.samplers.base"):
        check_sampler(lambda: sampler)


@attrs.define
class Pushing(Broken):
    """A sampler that pushes its one segment by a function."""

    pushes: Any = None

    async def push(self, appended: Appended, taker: Taker) -> None:
        await trio.lowlevel.checkpoint()
        await self.pushes(taker)


async def says_three_words(_appended: Appended) -> Steps:
    for word in "abc":
        await trio.lowlevel.checkpoint()
        yield (Text(word),)
    await trio.lowlevel.checkpoint()
    yield (End(),)


THREE_WORDS = [(Text("a"),), (Text("b"),), (Text("c"),), (End(),)]


async def hands_over(taker: Taker, steps: Any = THREE_WORDS) -> None:
    for step in steps:
        over = taker.take(step)
        if not taker.flush():
            await taker.rest()
        if over:
            return


async def says_less(taker: Taker) -> None:
    await hands_over(taker, [(Text("a"),), (End(),)])


async def stops_pushing_without_end(taker: Taker) -> None:
    await hands_over(taker, THREE_WORDS[:2])


async def ignores_that_it_is_enough(taker: Taker) -> None:
    for step in THREE_WORDS:
        taker.take(step)
        if not taker.flush():
            await taker.rest()


async def ignores_that_it_should_rest(taker: Taker) -> None:
    for step in THREE_WORDS:
        over = taker.take(step)
        taker.flush()
        if over:
            return


async def keeps_what_the_taker_raises(taker: Taker) -> None:
    with suppress(Exception):
        await hands_over(taker)


async def hands_over_when_it_is_over(taker: Taker) -> None:
    async def late() -> None:
        with suppress(Exception):
            await trio.sleep(0.5)
            taker.take((Text("late"),))

    try:
        await hands_over(taker)
    finally:
        trio.lowlevel.spawn_system_task(late)


@pytest.mark.parametrize(
    ("pushes", "words"),
    [
        (says_less, "rule 8.*pushed are"),
        (stops_pushing_without_end, "rule 1.*without an End"),
        (ignores_that_it_is_enough, "rule 8.*enough"),
        (ignores_that_it_should_rest, "rule 8.*has to rest"),
        (keeps_what_the_taker_raises, "rule 8.*does not come out"),
        (hands_over_when_it_is_over, "rule 8.*push is over"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_sampler_that_pushes_wrongly_is_told_so(pushes: Any, words: str) -> None:
    """Each way to break the rule of pushing is found."""
    with pytest.raises(AssertionError, match=words):
        check_sampler(lambda: Pushing(says_three_words, pushes=pushes))


def test_a_sampler_that_pushes_rightly_passes() -> None:
    """The same words by both ways, whatever the taker does."""
    assert check_sampler(lambda: Pushing(says_three_words, pushes=hands_over)) > 10


def test_a_sampler_that_never_stops_calling_cannot_be_checked() -> None:
    """The check says so instead of running for ever."""

    async def calls_for_ever(_appended: Appended) -> Steps:
        await trio.lowlevel.checkpoint()
        yield (*call("f"), End())

    with pytest.raises(AssertionError, match="still calls tools after"):
        check_sampler(lambda: Broken(calls_for_ever))


# --- faults ------------------------------------------------------------------------------------------------------

ways = st.builds(
    Way,
    cut_after_bytes=st.none() | st.integers(0, 60),
    stall_at_bytes=st.none() | st.integers(0, 60),
    stall_seconds=st.sampled_from([0.0, 1.0, 3600.0]),
    piece_bytes=st.none() | st.integers(1, 20),
    piece_seconds=st.sampled_from([0.0, 0.5]),
)


async def exchange(plan: FaultPlan, payload: bytes, *, outbound: bool) -> tuple[bytes, bool, float]:
    """Send `payload` one way through a faulty stream: what arrived, whether the sender or reader saw it break, when."""
    inner, other = trio.testing.memory_stream_pair()
    faulty = FaultyStream(inner, plan)
    source, sink = (faulty, other) if outbound else (other, faulty)
    broke = False

    async def send() -> None:
        nonlocal broke
        try:
            for at in range(0, len(payload), 16):
                await source.send_all(payload[at : at + 16])
            await source.send_eof()
        except trio.BrokenResourceError:
            broke = True

    arrived = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        try:
            while data := await sink.receive_some(13):
                arrived += data
        except trio.BrokenResourceError:
            broke = True
    return bytes(arrived), broke, trio.current_time()


@given(way=ways, payload=st.binary(max_size=100), outbound=st.booleans())
def test_a_faulty_stream_loses_nothing_but_an_end(way: Way, payload: bytes, outbound: bool) -> None:
    """What arrives is the payload up to the cut, whatever else befalls it."""
    plan = FaultPlan(outbound=way) if outbound else FaultPlan(inbound=way)
    arrived, broke, seconds = simulate(lambda: exchange(plan, payload, outbound=outbound), seed=1)

    cut = way.cut_after_bytes
    assert arrived == (payload if cut is None else payload[:cut])
    if cut is None:
        assert not broke
        if way.stall_at_bytes is not None and way.stall_at_bytes < len(payload):
            assert seconds >= way.stall_seconds
    elif cut < len(payload):
        assert broke


def test_a_half_closed_way_ends_in_good_order_and_the_other_goes_on() -> None:
    """After so many bytes the reader sees the end; its own bytes still arrive."""

    async def scenario() -> tuple[list[bytes], bytes]:
        inner, other = trio.testing.memory_stream_pair()
        faulty = FaultyStream(inner, FaultPlan(inbound=Way(end_after_bytes=3)))
        await other.send_all(b"abcdef")
        got = [bytes(await faulty.receive_some()), bytes(await faulty.receive_some())]
        await faulty.send_all(b"xyz")
        return got, bytes(await other.receive_some())

    assert simulate(scenario, seed=1) == ([b"abc", b""], b"xyz")


def test_a_cut_breaks_both_ways_at_once() -> None:
    """A reader that waits is woken when the writer's way is cut."""

    async def scenario() -> list[str]:
        inner, _other = trio.testing.memory_stream_pair()
        faulty = FaultyStream(inner, FaultPlan(outbound=Way(cut_after_bytes=2)))
        broken = []

        async def read() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await faulty.receive_some()
            broken.append("read")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BrokenResourceError):
                await faulty.send_all(b"abcdef")
        return broken

    assert simulate(scenario, seed=1) == ["read"]


def test_a_way_cannot_end_twice() -> None:
    """What cannot happen on TCP, or not twice, is refused when the plan is made."""
    with pytest.raises(ValueError, match="a way ends once"):
        Way(cut_after_bytes=1, end_after_bytes=2)


def test_one_seed_draws_one_plan() -> None:
    """Plans are data: equal for equal seeds, and different over many."""
    plans = [FaultPlan.drawn(random.Random(seed), about_bytes=5000) for seed in range(100)]

    assert plans == [FaultPlan.drawn(random.Random(seed), about_bytes=5000) for seed in range(100)]
    assert len(set(plans)) > 50
