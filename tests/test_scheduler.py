"""The slots: bounded, resumed before new, in order inside each, and a cancelled wait is as if it had never been."""

import math
from collections import deque
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler import SlotPool, Slots, SlotStatistics, wait_bound
from engine.simulation import simulate
from tests.watched_slots import WatchedSlots


class Holder:
    """One task that asks for a slot, and holds it until told otherwise."""

    def __init__(self, pool: SlotPool, *, resumed: bool, name: int = 0) -> None:
        self.pool, self.resumed, self.name = pool, resumed, name
        self.scope = trio.CancelScope()
        self.holds = False
        self._leave = trio.Event()

    async def run(self, granted: "list[int] | None" = None) -> None:
        with self.scope:
            async with self.pool.slot(resumed=self.resumed):
                self.holds = True
                if granted is not None:
                    granted.append(self.name)
                try:
                    await self._leave.wait()
                finally:
                    self.holds = False

    def leave(self) -> None:
        self._leave.set()


async def settle() -> None:
    """Let every task go as far as it can."""
    await trio.testing.wait_all_tasks_blocked()


async def started(nursery: trio.Nursery, holder: Holder, granted: "list[int] | None" = None) -> Holder:
    nursery.start_soon(holder.run, granted)
    await settle()
    return holder


async def test_a_free_slot_is_entered_without_a_checkpoint():
    """Who finds a slot free gets it at once."""
    pool = SlotPool(1)
    with trio.testing.assert_no_checkpoints():
        slot = pool.slot(resumed=False)
        await slot.__aenter__()
    expected = SlotStatistics(free=0, held=1, waiting_resumed=0, waiting_new=0, granted=1)
    assert expected == pool.statistics()
    await slot.__aexit__(None, None, None)


async def test_no_more_than_the_slots_are_held(autojump_clock):
    """Of five that ask for two slots, two hold one at any time, and all get their turn."""
    pool, held, most, done = SlotPool(2), 0, 0, 0
    began = trio.current_time()

    async def work() -> None:
        nonlocal held, most, done
        async with pool.slot(resumed=False):
            held += 1
            most = max(most, held)
            await trio.sleep(1)
            held -= 1
            done += 1

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(work)
    assert (2, 5, 3.0) == (most, done, trio.current_time() - began)
    assert SlotStatistics(2, 0, 0, 0, 5) == pool.statistics()


async def test_a_block_that_raises_gives_its_slot_back():
    """A failure inside the block frees the slot."""
    pool = SlotPool(1)
    with pytest.raises(ZeroDivisionError):
        async with pool.slot(resumed=True):
            raise ZeroDivisionError
    assert 1 == pool.statistics().free


async def test_resumed_ones_go_first_and_each_queue_is_in_order():
    """Of those that wait, the resumed get their slot before the new, and inside each queue the first come is first."""
    pool, granted = SlotPool(1), []
    async with trio.open_nursery() as nursery:
        first = await started(nursery, Holder(pool, resumed=False), granted)
        waiting = [
            await started(nursery, Holder(pool, resumed=resumed, name=name), granted)
            for name, resumed in ((1, False), (2, True), (3, False), (4, True))
        ]
        assert SlotStatistics(0, 1, 2, 2, 1) == pool.statistics()
        first.leave()
        for name in (2, 4, 1, 3):
            await settle()
            waiting[name - 1].leave()
    expected = [0, 2, 4, 1, 3]
    assert expected == granted


async def test_a_burst_of_resumed_ones_does_not_starve_new_ones():
    """After `max_resumed_in_a_row` resumed ones that passed a waiting new one, one new one has its turn, and so on."""
    pool, granted = SlotPool(1), []
    async with trio.open_nursery() as nursery:
        holders = [await started(nursery, Holder(pool, resumed=False, name=-1), granted)]
        for name in (1000, 1001):
            holders += [await started(nursery, Holder(pool, resumed=False, name=name), granted)]
        for name in range(70):
            holders += [await started(nursery, Holder(pool, resumed=True, name=name), granted)]
        for holder in holders:
            holder.leave()
    expected = [-1, *range(32), 1000, *range(32, 64), 1001, *range(64, 70)]
    assert expected == granted


async def test_a_resumed_one_in_a_row_is_not_counted_while_no_new_one_waits():
    """Resumed ones that passed nobody do not shorten what later ones may pass."""
    pool, granted = SlotPool(1), []
    async with trio.open_nursery() as nursery:
        holders = [
            await started(nursery, Holder(pool, resumed=True, name=name), granted) for name in range(40)
        ]
        for holder in holders[:39]:
            holder.leave()
        await settle()
        holders += [await started(nursery, Holder(pool, resumed=False, name=100), granted)]
        holders += [
            await started(nursery, Holder(pool, resumed=True, name=200 + name), granted) for name in range(33)
        ]
        for holder in holders[39:]:
            holder.leave()
    expected = [*range(40), *range(200, 232), 100, 232]
    assert expected == granted


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_cancelled_wait_leaves_no_trace(resumed):
    """Who gives up waiting is in no queue, was granted nothing, and does not delay the next."""
    pool = SlotPool(1)
    async with trio.open_nursery() as nursery:
        first = await started(nursery, Holder(pool, resumed=False))
        before = pool.statistics()
        impatient = await started(nursery, Holder(pool, resumed=resumed))
        impatient.scope.cancel()
        await settle()
        assert before == pool.statistics()
        last = await started(nursery, Holder(pool, resumed=resumed))
        first.leave()
        await settle()
        assert (False, True) == (impatient.holds, last.holds)
        last.leave()


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope after the so-many-th step of any task."""

    def __init__(self, step: int) -> None:
        self.step, self.steps = step, 0
        self.scope = trio.CancelScope()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self.step:
            self.scope.cancel()


def cancelled_at_every_step(work: Callable[[SlotPool, int], Awaitable[None]]) -> set[int]:
    """Six of these for two slots, all cancelled after each step in turn: nothing is left; the grants that had been made."""

    async def crowd(pool: SlotPool, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(work, pool, number)

    step, seen = 0, set()
    while True:
        step += 1
        pool, instrument = SlotPool(2), CancelAtStep(step)
        trio.run(crowd, pool, instrument.scope, instruments=[instrument])
        statistics = pool.statistics()
        assert (2, 0, 0, 0) == attrs.astuple(statistics)[:4]
        seen.add(statistics.granted)
        if instrument.steps < step:
            break
    return seen


def test_a_cancellation_at_any_step_loses_no_slot():
    """Wherever a busy crowd is cancelled, all slots are free afterwards and nobody waits."""

    async def work(pool: SlotPool, number: int) -> None:
        async with pool.slot(resumed=number % 2 == 0):
            await trio.lowlevel.checkpoint()

    seen = cancelled_at_every_step(work)
    # the cancellations really hit the crowd before, amid and after the grants
    assert (True, True) == (min(seen) < 6, max(seen) == 6)


async def test_a_slot_granted_and_cancelled_in_one_step_is_given_back():
    """A waiter that is granted its slot and then cancelled before it runs gets the slot and returns it."""
    pool = SlotPool(1)
    async with trio.open_nursery() as nursery:
        first = await started(nursery, Holder(pool, resumed=False))
        second = await started(nursery, Holder(pool, resumed=False))
        third = await started(nursery, Holder(pool, resumed=False))
        first.leave()
        while pool.statistics().granted != 2:
            await trio.lowlevel.checkpoint()
        second.scope.cancel()
        await settle()
        assert (False, True) == (second.holds, third.holds)
        third.leave()
    assert SlotStatistics(1, 0, 0, 0, 3) == pool.statistics()


class Model:
    """The pool as one would explain it: two lists, a counter, and a rule."""

    def __init__(self, slots: int, most_in_a_row: int) -> None:
        self.slots, self.most_in_a_row = slots, most_in_a_row
        self.holding: set[int] = set()
        self.queues: dict[bool, deque[int]] = {True: deque(), False: deque()}
        self.in_a_row = 0

    def ask(self, name: int, *, resumed: bool) -> None:
        if len(self.holding) < self.slots:
            self.holding.add(name)
        else:
            self.queues[resumed].append(name)

    def end(self, name: int) -> None:
        """The holder leaves, or the waiter gives up."""
        for queue in self.queues.values():
            if name in queue:
                queue.remove(name)
                return
        self.holding.discard(name)
        resumed, new = self.queues[True], self.queues[False]
        if not resumed and not new:
            self.in_a_row = 0
        elif resumed and not (new and self.in_a_row >= self.most_in_a_row):
            self.in_a_row = self.in_a_row + 1 if new else 0
            self.holding.add(resumed.popleft())
        else:
            self.in_a_row = 0
            self.holding.add(new.popleft())


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(["ask new", "ask resumed", "leave", "cancel"]), st.integers(0, 50)), max_size=40
)


@given(program=PROGRAMS, slots=st.integers(1, 3), most_in_a_row=st.integers(1, 3))
def test_any_program_of_asking_leaving_and_cancelling_goes_as_the_model_says(program, slots, most_in_a_row):
    """After each act the same ones hold a slot and the same number wait as in the naive model."""

    async def play() -> None:
        pool, model, alive = SlotPool(slots), Model(slots, most_in_a_row), {}
        pool.max_resumed_in_a_row = most_in_a_row
        async with trio.open_nursery() as nursery:
            for number, (act, choice) in enumerate(program):
                if act.startswith("ask"):
                    resumed = act == "ask resumed"
                    alive[number] = Holder(pool, resumed=resumed)
                    nursery.start_soon(alive[number].run)
                    model.ask(number, resumed=resumed)
                elif candidates := [n for n in alive if act == "cancel" or alive[n].holds]:
                    name = candidates[choice % len(candidates)]
                    holder = alive.pop(name)
                    (holder.leave if act == "leave" else holder.scope.cancel)()
                    model.end(name)
                await settle()
                statistics = pool.statistics()
                expected = (model.holding, len(model.queues[True]), len(model.queues[False]))
                holding = {name for name, holder in alive.items() if holder.holds}
                assert expected == (holding, statistics.waiting_resumed, statistics.waiting_new)
                assert (slots, len(holding)) == (statistics.free + statistics.held, statistics.held)
            nursery.cancel_scope.cancel()
        assert (slots, 0) == (pool.statistics().free, pool.statistics().held)

    trio.run(play)


# --- owners ----------------------------------------------------------------------------------------------------------


async def holds_in_turn(
    pool: SlotPool, waiting: list[tuple[bool, str]], seconds: dict[str, float]
) -> list[str]:
    """Whose segments were granted, in order, when all of `waiting` ask while the only slot is held."""
    granted: list[str] = []

    async def segment(owner: str, *, resumed: bool) -> None:
        async with pool.slot(resumed=resumed, owner=owner):
            granted.append(owner)
            await trio.sleep(seconds.get(owner, 1.0))

    async with trio.open_nursery() as nursery, pool.slot(resumed=False, owner="first"):
        for resumed, owner in waiting:
            nursery.start_soon(lambda o=owner, r=resumed: segment(o, resumed=r))
            await settle()
    return granted


async def test_owners_take_turns(autojump_clock):
    """An owner with many waiting delays another one's by a turn, not by all of them."""
    waiting = [(False, "many")] * 5 + [(False, "few"), (False, "few"), (False, "one")]
    expected = ["many", "few", "one", "many", "few", "many", "many", "many"]
    assert expected == await holds_in_turn(SlotPool(1), waiting, {})


async def test_resumed_ones_go_before_new_ones_of_other_owners(autojump_clock):
    """The turns of owners are inside of a class: no new rollout passes a resumed one because of its owner."""
    waiting = [(False, "a"), (True, "b"), (True, "b"), (False, "c"), (True, "c")]
    assert ["b", "c", "b", "a", "c"] == await holds_in_turn(SlotPool(1), waiting, {})


async def test_long_segments_miss_turns(autojump_clock):
    """An owner whose segments take four times as long gets a fourth of the turns, so that both get the same time."""
    waiting = [(True, owner) for _ in range(40) for owner in ("long", "short")]
    granted = await holds_in_turn(SlotPool(1), waiting, {"long": 4.0, "short": 1.0})
    while_both_wait = granted[: 1 + max(n for n, owner in enumerate(granted) if owner == "short")]
    time = {"long": 4.0 * while_both_wait.count("long"), "short": 1.0 * while_both_wait.count("short")}
    assert 40 == time["short"]
    assert 36 <= time["long"] <= 44


async def test_who_held_slots_that_nobody_wanted_owes_nothing(autojump_clock):
    """Long segments in an idle pool cost their owner no turn later."""
    pool = SlotPool(1)
    for _ in range(20):
        async with pool.slot(resumed=True, owner="long"):
            await trio.sleep(100)
    waiting = [(True, owner) for _ in range(3) for owner in ("long", "short")]
    granted = await holds_in_turn(pool, waiting, {"long": 1.0, "short": 1.0})
    assert ["long", "short"] * 3 == granted


async def test_debts_are_forgotten_when_nobody_waits(autojump_clock):
    """What an owner took from others is made good as long as they wait, and not when they come back another day."""
    pool = SlotPool(1)
    await holds_in_turn(pool, [(True, owner) for owner in ("short", "long", "short")], {"long": 100.0})
    waiting = [(True, owner) for _ in range(3) for owner in ("long", "short")]
    assert ["long", "short"] * 3 == await holds_in_turn(pool, waiting, {})


ASKS = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from("abcd"), st.sampled_from([0.0, 0.5, 1.0, 20.0]), st.floats(0, 5)
    ),
    min_size=1,
    max_size=40,
)


@given(asks=ASKS, slots=st.integers(1, 3), most_in_a_row=st.integers(1, 4))
def test_every_wait_is_within_its_bound(asks, slots, most_in_a_row):
    """Whoever asks when, for whom and for how long: no more grants pass a waiting one than `wait_bound` says, nor time."""
    owners = len({owner for _, owner, _, _ in asks})
    longest = max(seconds for _, _, seconds, _ in asks)

    async def play() -> list[tuple[float, float, float]]:
        pool, granted, over = SlotPool(slots), [0], []
        pool.max_resumed_in_a_row = most_in_a_row
        waiting: dict[tuple[bool, str], int] = {}

        async def segment(resumed: bool, owner: str, seconds: float, later: float) -> None:
            await trio.sleep(later)
            ahead = waiting.get((resumed, owner), 0)
            waiting[resumed, owner] = ahead + 1
            before, began = granted[0], trio.current_time()
            slot = pool.slot(resumed=resumed, owner=owner)
            await slot.__aenter__()
            granted[0] += 1
            waiting[resumed, owner] -= 1
            bound = wait_bound(
                resumed=resumed, ahead=ahead, owners=owners, max_resumed_in_a_row=most_in_a_row
            )
            # of those granted in one moment some run before it: at most the other slots
            if granted[0] - before > bound + slots - 1:
                over.append((granted[0] - before, bound, slots))
            if trio.current_time() - began > math.ceil(bound / slots) * longest + 1e-6:
                over.append((trio.current_time() - began, bound, longest))
            await trio.sleep(seconds)
            await slot.__aexit__(None, None, None)

        async with trio.open_nursery() as nursery:
            for ask in asks:
                nursery.start_soon(segment, *ask)
        assert (slots, 0, 0, 0) == attrs.astuple(pool.statistics())[:4]
        return over

    assert [] == simulate(play, seed=0)


async def test_the_bound_is_met_and_not_only_kept():
    """A new one behind a stream of resumed ones gets its slot at the grant that the bound names."""
    pool, granted = SlotPool(1), []
    async with trio.open_nursery() as nursery:
        holders = [await started(nursery, Holder(pool, resumed=False, name=-1), granted)]
        holders += [await started(nursery, Holder(pool, resumed=False, name=1000), granted)]
        for name in range(60):
            holders += [await started(nursery, Holder(pool, resumed=True, name=name), granted)]
        for holder in holders:
            holder.leave()
    bound = wait_bound(resumed=False, ahead=0, owners=1, max_resumed_in_a_row=pool.max_resumed_in_a_row)
    assert bound == granted.index(1000) - granted.index(-1)


def test_a_cancellation_at_any_step_loses_no_slot_with_owners_and_loans():
    """Wherever a busy crowd of several owners is cancelled, some of them lending their slot, all slots are free afterwards."""

    async def work(pool: SlotPool, number: int) -> None:
        async with pool.slot(resumed=number % 2 == 0, owner="abc"[number % 3]):
            await trio.lowlevel.checkpoint()
            async with pool.lent():
                await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    seen = cancelled_at_every_step(work)
    assert (True, True) == (min(seen) < 6, max(seen) == 6)


# --- loans -----------------------------------------------------------------------------------------------------------


async def test_a_lent_slot_is_used_and_comes_back_before_all_others(autojump_clock):
    """Who lends its slot lets a waiting one in, and has a slot again before those that ask meanwhile."""
    pool, told = SlotPool(1), []

    async def lender() -> None:
        async with pool.slot(resumed=False):
            async with pool.lent():
                await trio.sleep(1)
            told.append("lender")

    async def segment(name: str) -> None:
        async with pool.slot(resumed=True):
            told.append(name)
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        for job in (lender, *(lambda n=name: segment(n) for name in "ab")):
            nursery.start_soon(job)
            await settle()
    assert ["a", "lender", "b"] == told
    assert (1, 0) == (pool.statistics().free, pool.statistics().held)


async def test_a_wait_for_a_lent_slot_takes_as_many_segments_as_its_bound_says(autojump_clock):
    """Five that want their slot back of two, each held for ten seconds: they have it in order, none sooner or later."""
    pool = WatchedSlots(2)

    async def lender() -> None:
        async with pool.slot(resumed=True):
            async with pool.lent():
                await trio.sleep(1)
            await trio.sleep(10)

    async def segment() -> None:
        async with pool.slot(resumed=True):
            await trio.sleep(10)

    async with trio.open_nursery() as nursery:
        for job in (*[lender] * 5, *[segment] * 2):
            nursery.start_soon(job)
            await settle()
    assert [(9, 1), (9, 1), (19, 2), (19, 2), (29, 3)] == [(round(waited), b) for waited, b in pool.loans]
    assert (0, 5) == (pool.bounded().over, pool.statistics().returned)


async def test_a_slot_is_paid_for_as_long_as_it_is_not_lent(autojump_clock):
    """The time for which others may have it is no debt of its holder's."""
    pool = WatchedSlots(1)
    async with pool.slot(resumed=True):
        await trio.sleep(1)
        async with pool.lent():
            await trio.sleep(100)
        await trio.sleep(2)
    async with pool.slot(resumed=True):
        await trio.sleep(4)
    assert [3.0, 4.0] == pool.holds


async def fail_while_lent(pool: SlotPool) -> None:
    async with pool.lent():
        assert (1, 0) == (pool.statistics().free, pool.statistics().held)
        raise ZeroDivisionError


async def test_a_lent_slot_is_held_again_whatever_ends_the_loan():
    """An error in a loan's block leaves the slot held, so that its holder gives it back once."""
    pool = SlotPool(1)
    async with pool.slot(resumed=True):
        with pytest.raises(ZeroDivisionError):
            await fail_while_lent(pool)
        assert (0, 1) == (pool.statistics().free, pool.statistics().held)
    assert (1, 0) == (pool.statistics().free, pool.statistics().held)


async def test_the_longest_wait_is_told(autojump_clock):
    """Statistics name the longest wait of those that got a slot."""
    pool = SlotPool(1)
    await holds_in_turn(pool, [(True, "a"), (True, "b")], {"a": 7.0})
    assert 7.0 == pool.statistics().longest_wait_seconds


async def test_free_slots_are_taken_at_once_or_none_is(autojump_clock):
    """Without a checkpoint, and only where no pool makes it wait; they are given back as others are."""
    pools = SlotPool(1), SlotPool(2)
    first, second = Slots(pools, "a", resumed=True), Slots(pools, "a", resumed=True)
    assert [True, False] == [first.take_free(), second.take_free()]
    assert [(0, 1), (1, 1)] == [(pool.statistics().free, pool.statistics().held) for pool in pools]
    await first.__aexit__()
    assert [(1, 0), (2, 0)] == [(pool.statistics().free, pool.statistics().held) for pool in pools]
