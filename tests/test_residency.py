"""Whose state stays: hints, what is learned, the policies as pure functions, the keeper with real samplings in virtual time."""

import math
from array import array

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.arguments import make_parser
from engine.backends.scripted import ScriptedBackend
from engine.config import Limits
from engine.engine import Engine, RolloutReport
from engine.residency.base import Paused, View
from engine.residency.bounds import PATIENCE
from engine.residency.budget import Keeper
from engine.residency.costs import PRIOR, Costs
from engine.residency.hints import MAX_SECONDS, tool_seconds_of
from engine.residency.kept import Kept, Place
from engine.residency.pauses import ENOUGH, REMEMBERED, Pauses, WaitedCall
from engine.residency.policies import DEFAULT_POLICY, POLICIES, policy_of
from engine.residency.statistics import ResidencyStatistics
from engine.residency.turns import Turns
from engine.samplers.base import Appended, CallEnd, CallStart, End, Prefilled, Prompt, Text
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import END, Scripted, call, say
from engine.samplers.tokens import TokenSampler
from engine.scheduler import SlotPool
from engine.simulation import CancelAtStep, simulate
from engine.testing import Served, serving, simulated_engine
from protocol.errors import RemoteProtocolError
from tests.bench import policies as bench
from tests.chatml import chatml, text_of_tokens, tokens_of
from tests.scenarios import FUNCTION
from tests.watched_slots import WatchedSlots, room_waits

# --- hints -----------------------------------------------------------------------------------------------------------


def test_a_hint_names_seconds_by_tool():
    """`tool_seconds` in the metadata is a list of NAME=SECONDS."""
    assert {"run_tests": 45.0, "read": 0.1} == tool_seconds_of({"tool_seconds": "run_tests=45, read = 0.1"})


@pytest.mark.parametrize("metadata", [None, {}, {"other": "x=1"}])
def test_without_a_hint_there_is_none(metadata):
    """Metadata that say nothing of tools hint nothing."""
    assert {} == tool_seconds_of(metadata)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "45",
        "a=",
        "a=x",
        "a=nan",
        "a=-1",
        "a=inf",
        "=1",
        "a=1,a=2",
        "a=1,",
        "a b=1",
        f"a={MAX_SECONDS + 1}",
    ],
)
def test_nonsense_is_refused_by_name(text):
    """A hint that is no list of NAME=SECONDS is the client's error, at its place in the create."""
    with pytest.raises(RemoteProtocolError) as refused:
        tool_seconds_of({"tool_seconds": text})
    assert ("invalid_value", "metadata.tool_seconds") == (refused.value.code, refused.value.param)


async def test_a_create_with_nonsense_is_refused_before_it_begins(autojump_clock):
    """A client learns of a bad hint by an error, and no response exists."""
    engine = simulated_engine(Scripted([[*say("hello"), END]]), seed=0)
    async with serving(engine) as served, served.connect_raw() as raw:
        raw.send({"type": "response.create", "model": "m", "input": "go", "metadata": {"tool_seconds": "x"}})
        frame = await raw.receive()
    assert ("error", "metadata.tool_seconds") == (frame["type"], frame["error"]["param"])


# --- what is learned -------------------------------------------------------------------------------------------------


@given(
    fixed=st.floats(0.05, 3),
    prefill=st.floats(1e-6, 5e-3),
    decode=st.floats(1e-3, 0.2),
    sizes=st.lists(
        st.tuples(st.integers(0, 20_000), st.integers(1, 800)), min_size=40, max_size=60, unique=True
    ),
)
def test_costs_are_found_from_timings(fixed, prefill, decode, sizes):
    """From segments of different sizes the fit foretells what other sizes take, to a tenth and a quarter second."""
    costs = Costs()
    for computed, sampled in sizes:
        costs.learn(computed, sampled, fixed + prefill * computed + decode * sampled)
    spread = max(computed for computed, _ in sizes) - min(computed for computed, _ in sizes)
    if spread > 10_000:
        foretold = sum(value * term for value, term in zip(costs.fit, (1, 5_000, 300), strict=True))
        true = fixed + prefill * 5_000 + decode * 300
        assert abs(foretold - true) <= 0.1 * true + 0.25


def test_moving_is_timed_both_ways():
    """To swap is to save and to restore, each as long as it took of late; getting back is the second half."""
    costs = Costs()
    for _ in range(100):
        costs.saving.learn(1000, 2.0)
        costs.restoring.learn(1000, 0.5)
    assert pytest.approx(2.5) == costs.swap_seconds(1000)
    assert pytest.approx(0.5) == costs.reload_seconds(1000, saved=True)


def test_costs_begin_as_the_prior_and_are_never_negative():
    """Before anything is timed the published fit holds, and no timing makes work free."""
    costs = Costs()
    assert PRIOR == costs.fit
    costs.learn(10_000, 10, 0.0)
    assert min(costs.fit) >= 0


def learned(**durations: list[float]) -> Pauses:
    """Pauses that have seen these."""
    pauses = Pauses(max_tools=8)
    for tool, all_seconds in durations.items():
        for seconds in all_seconds:
            pauses.learn("me", tool, seconds)
    return pauses


def waited(tool: str, *, expected_seconds: float | None = None, owner: str = "me") -> WaitedCall:
    return WaitedCall(f"call_{tool}", owner, tool, expected_seconds)


def test_a_tool_is_known_by_what_it_took():
    """The rest of a pause is the median of those that lasted longer, of this tool."""
    pauses = learned(read=[0.1] * ENOUGH, build=[10.0, 20.0, 30.0] * ENOUGH)
    assert pytest.approx(0.1) == pauses.remaining_seconds([waited("read")], 0.0)
    assert pytest.approx(20.0) == pauses.remaining_seconds([waited("build")], 0.0)
    assert pytest.approx(5.0) == pauses.remaining_seconds([waited("build")], 25.0)


def test_a_pause_lasts_as_long_as_its_longest_call():
    """With two calls open the slower one decides, and both must be over."""
    pauses = learned(read=[0.1] * ENOUGH, build=[10.0] * ENOUGH)
    both = [waited("read"), waited("build")]
    assert pytest.approx(10.0) == pauses.remaining_seconds(both, 0.0)
    assert (0.0, 1.0) == (pauses.share_within(both, 1.0), pauses.share_within(both, 10.0))


def test_an_unknown_tool_is_taken_as_all_tools_then_as_long_again():
    """Without durations of its own a tool is like any; without any at all a pause lasts as long again as it has."""
    assert 7.0 == Pauses(8).remaining_seconds([waited("new")], 7.0)
    assert pytest.approx(10.0) == learned(build=[10.0] * ENOUGH).remaining_seconds([waited("new")], 0.0)
    assert 50.0 == learned(build=[10.0] * ENOUGH).remaining_seconds([waited("build")], 50.0)


def test_a_hint_counts_until_it_is_over():
    """A client's word goes before what was learned, and no further than it says."""
    pauses = learned(build=[10.0] * ENOUGH)
    hinted = waited("build", expected_seconds=3.0)
    assert (3.0, 1.0) == (pauses.remaining_seconds([hinted], 0.0), pauses.remaining_seconds([hinted], 2.0))
    assert pytest.approx(6.0) == pauses.remaining_seconds([hinted], 4.0)


def test_owners_do_not_teach_each_other_a_tool():
    """A tool of another owner with the same name is another tool."""
    pauses = learned(build=[10.0] * ENOUGH)
    for _ in range(3 * ENOUGH):
        pauses.learn("other", "build", 1000.0)
    assert pytest.approx(10.0) == pauses.remaining_seconds([waited("build")], 0.0)


def test_what_is_remembered_is_bounded():
    """However many tools and calls there are, a fixed number of each is remembered, the latest."""
    pauses = Pauses(max_tools=3)
    for number in range(50):
        for _ in range(2 * REMEMBERED):
            pauses.learn("me", f"tool_{number}", float(number))
    assert (3, REMEMBERED) == (len(pauses), len(pauses.all_tools))
    assert 49.0 == pauses.remaining_seconds([waited("tool_0")], 0.0)


def test_eta_tells_rollouts_of_one_length_from_rollouts_of_any():
    """Where all rollouts have the same length, what is done says what is left: eta is 1; where lengths differ widely it is negative."""
    same, wide = Turns(), Turns()
    assert 0.0 == same.eta
    for number in range(60):
        same.learn(10)
        wide.learn((1, 2, 100)[number % 3])
    assert pytest.approx(1.0) == same.eta
    assert wide.eta < same.eta


# --- policies --------------------------------------------------------------------------------------------------------


def view_of(pauses: Pauses | None = None, *, now: float = 100.0, running_tokens: int = 0) -> View:
    costs = Costs()
    for number in range(200):
        costs.learn(1000 * (number % 20), 100, 1.0 + number % 20)
    return View(
        now=now,
        running_tokens=running_tokens,
        resident_tokens=running_tokens + 10_000,
        costs=costs,
        pauses=pauses or Pauses(8),
    )


def paused(
    key: int,
    *,
    tokens: int = 5000,
    since: float = 100.0,
    tool: str = "",
    ready: float | None = None,
    saves: bool = False,
) -> Paused:
    calls = (waited(tool),) if tool and ready is None else ()
    return Paused(key=key, tokens=tokens, since=since, calls=calls, ready_since=ready, saves=saves)


TOOLS = {"read": [0.1] * 20, "build": [300.0] * 20}


def order(name: str, states: list[Paused], view: View) -> list[int]:
    return [one.key for one in POLICIES[name].victims(states, view)]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_orders_all_and_invents_none(name):
    """Every state is named once as one that could make room, whatever it waits for."""
    states = [
        paused(1, tool="read"),
        paused(2, tool="build"),
        paused(3, ready=100.0),
        paused(4),
        paused(5, tokens=1),
    ]
    assert [1, 2, 3, 4, 5] == sorted(order(name, states, view_of(learned(**TOOLS))))
    assert name == POLICIES[name].name == policy_of(name).name


def test_an_unknown_policy_is_told_what_there_is():
    """A wrong name is answered with the right ones."""
    with pytest.raises(ValueError, match="no KV policy 'lru'; there are keep, drop, ttl, min-waste, decay"):
        policy_of("lru")


def test_the_command_offers_the_policies_that_there_are():
    """`--kv-policy` takes each policy, and its default is the engine's."""
    parse = make_parser().parse_args
    assert list(POLICIES) == [parse(["serve", "--kv-policy", name]).kv_policy for name in POLICIES]
    assert DEFAULT_POLICY == parse(["serve"]).kv_policy


def test_keep_lets_the_least_recently_used_go():
    """Keep knows no tools: who paused first goes first, ready or not, and nothing goes unasked."""
    states = [paused(1, since=30.0, tool="build"), paused(2, since=10.0, ready=99.0), paused(3, since=20.0)]
    assert [2, 3, 1] == order("keep", states, view_of(learned(**TOOLS)))
    assert math.inf == POLICIES["keep"].lapses_at(states[0], view_of())


def test_drop_gives_everything_up_at_once():
    """A state under drop lapses when its pause begins."""
    assert 100.0 == POLICIES["drop"].lapses_at(paused(1, tool="read"), view_of())


@pytest.mark.parametrize("name", ["ttl", "min-waste"])
def test_a_long_tool_goes_before_a_short_one_and_ready_ones_last(name):
    """Both policies know a build from a read, and take nothing from who only waits for a slot if they can help it."""
    states = [paused(1, ready=90.0), paused(2, tool="read"), paused(3, tool="build"), paused(4, ready=95.0)]
    assert [3, 2, 4, 1] == order(name, states, view_of(learned(**TOOLS)))


def test_ttl_pins_for_as_long_as_pays():
    """A state of 5,000 tokens takes 5 s to compute: it stays for a read's 0.1 s, and is given up at once for a build."""
    ttl, view = POLICIES["ttl"], view_of(learned(**TOOLS))
    assert pytest.approx(100.1) == ttl.lapses_at(paused(1, tool="read"), view)
    assert 100.0 == ttl.lapses_at(paused(2, tool="build"), view)


def test_ttl_is_the_argmax_of_its_rule():
    """The pin is where F(τ) · R - τ is largest among the durations seen, or nowhere."""
    durations = [0.5, 1.0, 1.0, 2.0, 4.0, 4.5, 9.0, 30.0]
    view = view_of(learned(mixed=durations))
    reload = view.costs.reload_seconds(5000, saved=False)
    value = {0.0: 0.0, **{d: sum(x <= d for x in durations) / len(durations) * reload - d for d in durations}}
    expected = 100.0 + max(value, key=lambda pin: value[pin])
    assert pytest.approx(expected) == POLICIES["ttl"].lapses_at(paused(1, tool="mixed"), view)


def test_ttl_begins_with_a_fixed_time():
    """Before durations are known the pin is ln R, as for tools of a second's mean."""
    view = view_of()
    expected = 100.0 + math.log(view.costs.reload_seconds(5000, saved=False))
    assert pytest.approx(expected) == POLICIES["ttl"].lapses_at(paused(1, tool="new"), view)


def test_min_waste_weighs_waiting_against_computing():
    """A state is pinned while its tool's rest is shorter than computing it, and those that sample are delayed by that too."""
    policy, pauses = POLICIES["min-waste"], learned(slow=[6.0] * 20)
    state = paused(1, tool="slow")
    assert not policy.pins(state, view_of(pauses))  # 5 s to compute, 6 s to wait
    assert policy.pins(state, view_of(pauses, running_tokens=20_000))
    assert policy.pins(paused(2, tool="read"), view_of(learned(**TOOLS)))
    assert not policy.pins(paused(3, tool="build"), view_of(learned(**TOOLS)))


def test_min_waste_saves_what_is_cheaper_to_move():
    """A state that can be written away is, if moving it wastes less than computing it."""
    cheap = paused(1, tool="build", saves=True)
    assert POLICIES["min-waste"].saves(cheap, view_of())
    dear = view_of()
    for _ in range(50):
        dear.costs.saving.learn(1000, 10.0)
    assert not POLICIES["min-waste"].saves(cheap, dear)


def test_decay_prefers_the_small_and_the_long_gone():
    """Size halves each second: at one age the smallest goes first, and an old large one before a young small one."""
    states = [paused(1, tokens=8000), paused(2, tokens=1000), paused(3, tokens=8000, since=90.0)]
    assert [3, 2, 1] == order("decay", states, view_of())


# --- the keeper ------------------------------------------------------------------------------------------------------

PACE = Pace(
    tokens_per_second=100,
    first_token_seconds=0.0,
    prefill_tokens_per_second=1000,
    moved_tokens_per_second=1e6,
)


@attrs.define
class World:
    """A keeper and paced samplings on it."""

    keeper: Keeper
    paced: Paced
    slots: WatchedSlots
    door: WatchedSlots

    @classmethod
    def make(
        cls,
        policy: str,
        budget_tokens: int,
        *,
        slots: int = 4,
        max_saved_tokens: int = 0,
        owners: int = 1,
        pace: Pace = PACE,
        tick_seconds: float = 0.01,
    ) -> "World":
        keeper = Keeper(
            policy_of(policy),
            budget_tokens=budget_tokens,
            max_saved_tokens=max_saved_tokens,
            max_tools=8,
            cleanup_seconds=5.0,
        )
        keeper.costs.sampled_tokens = 0.0  # so that the sums below are exact
        script = [[(CallStart(0, "f", tokens=0), CallEnd(0, 1)), END]] * 20
        keeper.door = door = WatchedSlots(1, owners=owners)
        paced = Paced(Scripted(script), pace, tick_seconds=tick_seconds)
        return cls(keeper, paced, WatchedSlots(slots, owners=owners), door)

    def open(self, owner: str = "me") -> Kept:
        kept = self.keeper.kept(self.paced.open(Prompt("resp_1", "m")))
        kept.place = Place((self.slots,), owner)
        return kept

    async def segment(self, kept: Kept, new: int, held: int = 0, *, tool: str | None = "f") -> Prefilled:
        """One segment in a slot, then its pause; what it found in memory."""
        found = Prefilled()
        async with self.slots.slot(resumed=held > 0, owner=kept.place.owner):
            async for step in kept.sample(Appended((), array("I", [1] * new), new + held)):
                found = next((part for part in step if isinstance(part, Prefilled)), found)
        if tool is not None:
            kept.pause((waited(tool),))
        return found

    @property
    def states(self) -> ResidencyStatistics:
        return self.keeper.statistics()


def in_world(scenario, *args, **options):
    """Run a scenario with a world whose ticker runs."""

    async def play():
        world = World.make(*args, **options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.paced.run)
            await scenario(world)
            nursery.cancel_scope.cancel()

    simulate(play, seed=0)


def test_what_fits_stays_and_is_reused():
    """With room for both, two states stay through their pauses, and a segment computes what is new only."""

    async def scenario(world: World) -> None:
        one, two = world.open(), world.open()
        await world.segment(one, 1000)
        await world.segment(two, 1000)
        assert Prefilled(1001, 50) == await world.segment(one, 50, 1001)
        assert (2, 1052 + 1001, 0) == (
            world.states.sequences,
            world.states.resident_tokens,
            world.states.dropped,
        )
        await one.aclose()
        await two.aclose()
        assert (0, 0, 0) == (
            world.states.sequences,
            world.states.resident_tokens,
            world.states.running_tokens,
        )

    in_world(scenario, "keep", 10_000)


def test_who_needs_room_takes_it_and_who_lost_computes_again():
    """The third state does not fit: the least recently used one goes, and its next segment reads all of its context."""

    async def scenario(world: World) -> None:
        one, two, three = world.open(), world.open(), world.open()
        for kept in (one, two, three):
            await world.segment(kept, 1000)
        assert (0, 1001, 1001) == (one.tokens, two.tokens, three.tokens)
        assert Prefilled(0, 1051) == await world.segment(one, 50, 1001)
        assert 2 == world.states.dropped
        assert world.states.peak_tokens <= 2500

    in_world(scenario, "keep", 2500)


def test_drop_computes_everything_again_though_there_is_room():
    """Under drop a pause is an end."""

    async def scenario(world: World) -> None:
        one = world.open()
        await world.segment(one, 1000)
        assert Prefilled(0, 1051) == await world.segment(one, 50, 1001)

    in_world(scenario, "drop", 10_000)


def test_a_saved_state_comes_back():
    """Where the backend can, the state that makes room is written away, and its next segment finds it again."""

    async def scenario(world: World) -> None:
        one, two = world.open(), world.open()
        await world.segment(one, 1000)
        await world.segment(two, 1000)
        assert (1, 1001) == (world.states.saved, world.states.saved_tokens)
        assert Prefilled(1001, 50) == await world.segment(one, 50, 1001)
        assert (1, 1001, 0) == (world.states.restored, world.states.saved_tokens, world.states.dropped)

    in_world(scenario, "min-waste", 1500, max_saved_tokens=5000)


def test_a_full_disk_means_dropping():
    """What does not fit into the saved states is dropped."""

    async def scenario(world: World) -> None:
        one, two, three = world.open(), world.open(), world.open()
        for kept in (one, two, three):
            await world.segment(kept, 1000)
        assert (1, 1) == (world.states.saved, world.states.dropped)

    in_world(scenario, "keep", 1500, max_saved_tokens=1500)


def test_one_that_is_larger_than_the_memory_runs_alone():
    """A sequence that can never fit is let in when nothing else is there."""

    async def scenario(world: World) -> None:
        one, two = world.open(), world.open()
        await world.segment(one, 1000)
        await world.segment(two, 9000)
        assert (0, 9001) == (one.tokens, two.tokens)

    in_world(scenario, "min-waste", 2000)


def test_samples_are_never_taken_and_their_end_is_waited_for():
    """With memory for one, two segments run one after the other, and the one that waits holds no slot meanwhile."""

    async def scenario(world: World) -> None:
        ended: list[str] = []

        async def run(name: str, tokens: int) -> None:
            await world.segment(world.open(), tokens)
            ended.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "first", 3000)
            await trio.sleep(1)
            nursery.start_soon(run, "waits", 3000)
            await trio.sleep(1)
            assert (1, 1) == (world.slots.statistics().held, world.states.waits_for_room)
            nursery.start_soon(run, "small", 500)
        assert "first" == ended[0]
        assert 3001 + 500 >= world.states.peak_tokens

    in_world(scenario, "keep", 3400)


def test_a_pinned_state_is_waited_for_but_not_for_ever():
    """A new rollout waits for a short tool's state, at most as long as computing it again would take a few times."""

    async def scenario(world: World) -> None:
        for _ in range(ENOUGH):
            world.keeper.pauses.learn("me", "quick", 0.2)
        fixed_costs(world)
        one = world.open()
        await world.segment(one, 1000, tool="quick")
        one.answered(["call_quick"])  # ready, and never comes: its client's connection hangs
        began = trio.current_time()
        await world.segment(world.open(), 1000)
        waited_seconds = trio.current_time() - began - 1.0
        assert 0 == one.tokens
        assert 0.5 * PATIENCE <= waited_seconds <= PATIENCE + 1.0

    in_world(scenario, "min-waste", 1500)


def test_a_state_whose_outputs_came_in_time_stays_until_its_segment_begins():
    """Under ttl a pin ends with the tool's time only if its outputs have not come by then."""

    async def scenario(world: World) -> None:
        for _ in range(ENOUGH):
            world.keeper.pauses.learn("me", "quick", 0.2)
        in_time, late = world.open(), world.open()
        await world.segment(in_time, 20_000, tool="quick")
        in_time.answered(["call_quick"])
        await world.segment(late, 20_000, tool="quick")
        await trio.sleep(5)
        late.answered(["call_quick"])
        await world.segment(world.open(), 10)
        assert (20_001, 0) == (in_time.tokens, late.tokens)

    in_world(scenario, "ttl", 100_000)


def test_a_wait_in_a_form_that_says_nothing_is_learned_from_its_end():
    """Where the next segment just begins, its calls have taken until then."""

    async def scenario(world: World) -> None:
        one = world.open()
        await world.segment(one, 100)
        await trio.sleep(7)
        await world.segment(one, 10, 101)
        assert pytest.approx(7.0) == world.keeper.pauses.all_tools.durations[0]

    in_world(scenario, "keep", 1500)


def fixed_costs(world: World) -> None:
    """A thousand tokens take a second, and that is known."""
    for number in range(200):
        world.keeper.costs.learn(100 * (number % 20), 1, 0.1 * (number % 20))


def test_one_that_comes_back_at_once_does_not_keep_others_out():
    """A rollout whose tools take no time gives its state up when the one at the door has waited long enough."""

    async def scenario(world: World) -> None:
        fixed_costs(world)
        ended: list[str] = []

        async def busy() -> None:
            kept = world.open()
            for number in range(20):
                await world.segment(kept, 250, 1000 + 251 * number, tool=None)
            ended.append("busy")

        async def waits() -> None:
            await trio.sleep(0.5)
            await world.segment(world.open(), 400)
            ended.append("waits")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy)
            nursery.start_soon(waits)
        assert ["waits", "busy"] == ended
        assert 2 == world.states.waits_for_room  # the one that gave its state up waited, too
        rooms = room_waits(world.states, world.slots, world.door)
        assert (0, 0, 0) == (rooms.line.over, rooms.stands.over, rooms.whole.over)

    in_world(scenario, "min-waste", 1400)


def test_who_lost_its_state_does_not_go_before_a_new_one():
    """Who waits for memory has nothing warm, so the line before the door is by arrival."""
    ended: list[str] = []

    async def scenario(world: World) -> None:
        old = world.open()
        await world.segment(old, 1000)

        async def run(name: str, kept: Kept, later: float, held: int) -> None:
            await trio.sleep(later)
            await world.segment(kept, 1000, held)
            ended.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "takes its room", world.open(), 0, 0)
            nursery.start_soon(run, "new", world.open(), 0.2, 0)
            nursery.start_soon(run, "also new", world.open(), 0.4, 0)
            nursery.start_soon(run, "old", old, 0.6, 1001)

    in_world(scenario, "keep", 1500)
    assert ["takes its room", "new", "also new", "old"] == ended


WORKLOADS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([0.0, 0.0, 3.0]),
        st.lists(
            st.tuples(st.integers(1, 3_000), st.sampled_from([0.0, 0.0, 0.3, 4.0, 60.0])),
            min_size=1,
            max_size=5,
        ),
    ),
    min_size=2,
    max_size=7,
)


@settings(max_examples=60)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    workload=WORKLOADS,
    slots=st.integers(1, 3),
    budget_tokens=st.integers(500, 9_000),
    max_saved_tokens=st.sampled_from([0, 0, 4_000]),
)
def test_every_wait_for_memory_is_within_its_bound(policy, workload, slots, budget_tokens, max_saved_tokens):
    """Whatever rollouts need room when, and however short their tools are: in the line, at the door, and for the slot after."""
    moved_tokens_per_second = 20_000
    pace = attrs.evolve(PACE, moved_tokens_per_second=moved_tokens_per_second)
    sizes = [sum(new + 1 for new, _ in segments) for _, _, segments in workload]

    async def rollout(world: World, owner: str, later: float, segments: list[tuple[int, float]]) -> None:
        await trio.sleep(later)
        kept, held = world.open(owner), 0
        for new, pause_seconds in segments:
            await world.segment(kept, new, held)
            held += new + 1
            if pause_seconds:
                await trio.sleep(pause_seconds)
        await kept.aclose()

    async def play() -> World:
        world = World.make(
            policy,
            budget_tokens,
            slots=slots,
            max_saved_tokens=max_saved_tokens,
            owners=2,
            pace=pace,
            tick_seconds=0.25,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.paced.run)
            async with trio.open_nursery() as crowd:
                for each in workload:
                    crowd.start_soon(rollout, world, *each)
            nursery.cancel_scope.cancel()
        return world

    world = simulate(play, seed=0)
    moves_seconds = sum(sizes) / moved_tokens_per_second if max_saved_tokens else 0.0
    rooms = room_waits(world.states, world.slots, world.door, moves_seconds=moves_seconds)
    over = (rooms.line.over, rooms.stands.over, rooms.whole.over, world.slots.bounded().over)
    assert (0, 0, 0, 0) == over
    assert world.states.longest_wait_seconds <= rooms.bound_seconds + 1e-6


async def test_lent_slots_of_two_pools_come_back_in_the_order_in_which_they_are_taken(autojump_clock):
    """One that wants both its slots back and one that has the first and waits for the second do not wait for each other."""
    mine, everybodys = SlotPool(1), SlotPool(1)

    async def lender() -> None:
        place = Place((mine, everybodys), "me")
        async with mine.slot(resumed=False), everybodys.slot(resumed=False), place.lent():
            await trio.sleep(2)

    async def mate() -> None:
        async with mine.slot(resumed=False), everybodys.slot(resumed=False):
            await trio.sleep(1)

    async def stranger() -> None:
        await trio.sleep(0.5)
        async with everybodys.slot(resumed=False):
            await trio.sleep(5)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for job in (lender, stranger):
                nursery.start_soon(job)
            await trio.sleep(1)
            nursery.start_soon(mate)
    assert (1, 1) == (mine.statistics().free, everybodys.statistics().free)


class FailingState:
    """A sampling whose backend fails at whatever it is asked to move."""

    saves = True
    resident_tokens = 1000

    async def sample(self, appended):
        await trio.lowlevel.checkpoint()
        yield (Text("x"), End())

    async def drop(self):
        await trio.lowlevel.checkpoint()
        raise RuntimeError("drop")

    async def save(self):
        await trio.lowlevel.checkpoint()
        raise RuntimeError("save")

    async def restore(self):
        await trio.lowlevel.checkpoint()
        raise RuntimeError("restore")

    async def aclose(self):
        await trio.lowlevel.checkpoint()


def test_a_backend_that_fails_to_move_a_state_harms_nobody(caplog):
    """Neither the one whose state goes nor the one that needs the room fails, and the log has it."""

    async def scenario(world: World) -> None:
        failing = world.keeper.kept(FailingState())
        await world.segment(failing, 1000)
        await world.segment(world.open(), 1000)
        assert (0, 0, 1) == (failing.tokens, world.states.saved, world.states.dropped)

    in_world(scenario, "keep", 1500, max_saved_tokens=5000)
    assert 2 == len(caplog.records)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cancellation_at_any_step_leaves_the_counts_right(policy):
    """Wherever a crowd with too little memory is cancelled, no token is booked and no slot held afterwards."""

    async def crowd(world: World, scope: trio.CancelScope) -> None:
        async def rollout() -> None:
            kept = world.open()
            try:
                held = 0
                for _ in range(3):
                    await world.segment(kept, 40, held)
                    held += 41
                    await trio.sleep(0.05)
            finally:
                with trio.CancelScope(shield=True):
                    await kept.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.paced.run)
            with scope:
                async with trio.open_nursery() as crowd:
                    for _ in range(4):
                        crowd.start_soon(rollout)
            nursery.cancel_scope.cancel()

    async def play(scope: trio.CancelScope) -> World:
        world = World.make(policy, 150, slots=2, max_saved_tokens=60)
        await crowd(world, scope)
        return world

    step = 1
    while True:
        scope = trio.CancelScope()
        instrument = CancelAtStep(step, scope)
        world = simulate(play, scope, seed=0, instruments=[instrument])
        states, slots = world.states, world.slots.statistics()
        left = (states.sequences, states.resident_tokens, states.running_tokens, states.saved_tokens)
        assert ((0, 0, 0, 0), (2, 0)) == (left, (slots.free, slots.held)), step
        if not instrument.acted:
            break
        step += 7
    assert step > 100


# --- in the engine ---------------------------------------------------------------------------------------------------


def test_samplings_without_a_state_or_a_budget_are_left_alone():
    """What cannot let go, and everything where there is no budget, is not kept and costs nothing."""
    prompt = Prompt("resp_1", "m")
    scripted = Scripted([[END]])
    paced = Paced(scripted, PACE, tick_seconds=0.01)
    bounded = Engine.make(scripted, limits=Limits(kv_tokens=1000))
    free = Engine.make(paced)

    async def kinds() -> list[bool]:
        made = [
            engine.residency.kept(s, s.open(prompt))
            for engine, s in ((bounded, scripted), (free, paced), (bounded, paced))
        ]
        return [isinstance(sampling, Kept) for sampling in made]

    assert [False, False, True] == trio.run(kinds)
    assert (1000, 0) == (
        bounded.residency.statistics().budget_tokens,
        free.residency.statistics().budget_tokens,
    )


@pytest.mark.parametrize("form", ["append", "inject", "create"])
async def test_a_rollout_over_a_budget_is_kept_in_every_form(form, autojump_clock):
    """Its usage says what was found in memory, the tool's time is learned, and nothing is left at the end."""
    script = [[call("f"), END], [call("f"), END], [*say("done"), END]]
    paced = Paced(Scripted(script), Pace(), tick_seconds=0.01)
    engine = simulated_engine(paced, seed=0, limits=Limits(kv_tokens=100_000))

    async def f() -> str:
        await trio.sleep(3)
        return "ok"

    async with serving(engine) as served:
        async with served.connect_client(form) as client:
            async with client.rollout(model="m", input="go " * 500, functions={"f": f}) as rollout:
                assert "completed" == (await rollout.wait_ended()).status
            keeper = engine.residency.keeper(paced)
            assert keeper is not None
            assert [pytest.approx(3.0, abs=0.1)] * 2 == keeper.pauses.all_tools.durations
            assert engine.residency.statistics().reused_tokens > 1000
        await trio.sleep(1)
        left = served.server.statistics().residency
        assert (0, 0, 0) == (left.sequences, left.resident_tokens, left.dropped)


async def test_a_wait_for_memory_is_time_in_a_queue(autojump_clock):
    """With memory for one, the second rollout's ledger says that it waited, and not that it sampled all the while."""
    reports: list[RolloutReport] = []
    paced = Paced(Scripted([[*say("word " * 20), END]]), Pace(tokens_per_second=2), tick_seconds=0.01)
    engine = simulated_engine(paced, seed=0, limits=Limits(kv_tokens=1000), on_report=reports.append)

    async def rollout(served: Served) -> None:
        async with (
            served.connect_client("append") as client,
            client.rollout(model="m", input="go " * 700) as rolled,
        ):
            assert "completed" == (await rolled.wait_ended()).status

    async with serving(engine) as served, trio.open_nursery() as nursery:
        nursery.start_soon(rollout, served)
        await trio.sleep(1)
        nursery.start_soon(rollout, served)
    first, second = (report.ledger.stages for report in reports)
    waited_seconds = engine.residency.statistics().longest_wait_seconds
    assert waited_seconds > 5
    assert pytest.approx(waited_seconds, abs=0.1) == second["queue"] / 1e9
    assert pytest.approx(first["sample"] / 1e9, abs=0.1) == second["sample"] / 1e9


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", ["append", "create"])
async def test_a_model_says_the_same_under_every_policy(form, policy, autojump_clock):
    """Two rollouts with memory for one state: whatever is lost meanwhile, the model is given the same tokens as ever."""
    call_text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>'
    segments = [tokens_of(text) for text in (call_text, call_text, "All is well.<|im_end|>")]

    def go_on(prompt: array) -> list[int]:
        return segments[text_of_tokens(prompt).count("<tool_response>")]

    async def f() -> str:
        await trio.sleep(3)
        return "ok"

    async def prompts_of(kv_tokens: int) -> tuple[list[list[int]], ResidencyStatistics]:
        backend = ScriptedBackend(go_on)
        engine = simulated_engine(
            TokenSampler(chatml(), backend), seed=0, limits=Limits(kv_tokens=kv_tokens), kv_policy=policy
        )
        async with serving(engine) as served:

            async def rollout() -> None:
                async with (
                    served.connect_client(form) as client,
                    client.rollout(
                        model="m", input="go " * 50, tools=[FUNCTION], functions={"f": f}
                    ) as rolled,
                ):
                    assert "completed" == (await rolled.wait_ended()).status

            async with trio.open_nursery() as nursery:
                nursery.start_soon(rollout)
                nursery.start_soon(rollout)
            return sorted(map(list, backend.prompts)), engine.residency.statistics()

    free, _ = await prompts_of(0)
    bounded, states = await prompts_of(150)
    assert free == bounded
    assert states.dropped + states.saved > 0


async def test_metrics_show_slots_and_states(autojump_clock):
    """What is in memory and what was moved is among the metrics."""
    engine = simulated_engine(Paced(Scripted([[END]]), Pace(), tick_seconds=0.01), seed=0)
    async with serving(engine) as served:
        text = served.server.site.metrics.text().decode()
    names = {line.split()[0] for line in text.splitlines() if not line.startswith("#")}
    expected = {
        f"suspended_kv_{name}"
        for name in ("budget_tokens", "resident_tokens", "dropped_total", "reused_tokens_total")
    }
    assert expected <= names
    assert {"suspended_sampler_slots_granted_total", "suspended_sampler_slot_wait_seconds_max"} <= names


# --- in simulation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_policies_that_know_who_waits_beat_those_that_do_not(seed):
    """64 rollouts, 4 slots, a quarter of the memory: all finish within the bounds, and ttl and min-waste take the least time."""
    compared = bench.compare("calls", seed)
    assert [bench.ROLLOUTS] * 5 == [outcome.finished for outcome in compared.policies.values()]
    assert [0] * 5 == [outcome.over_bound for outcome in compared.policies.values()]
    seconds = {name: compared.mean_seconds(name) for name in POLICIES}
    assert max(seconds["ttl"], seconds["min-waste"]) < 0.8 * min(seconds["keep"], seconds["drop"])


def test_a_simulation_is_the_same_each_time():
    """One seed, one outcome, to the last figure."""
    plans = bench.WORKLOADS["calls"](3)[:12]
    first, second = (bench.run(plans, "min-waste", 9_000, seed=3) for _ in range(2))
    assert first == second
