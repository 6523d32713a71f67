"""Do policies that know who waits beat those that do not, and does nobody wait longer than the bounds say?

What is run, and over which workloads, are `demos.lab.policies` and `policy_workloads`; this holds it to its bounds and to its verdicts, with a
quarter of the memory that is needed. Workload `recorded` is run only where the file is (see `TRACES`).

Each wait for a slot is held against `engine.scheduler.wait_bound`, for the queue that it met: in grants, and in the
longest segments that they may take. Each wait for memory, during which a rollout holds no slot, is held against
`engine.residency.bounds`: the line before the door in the same way, the time at the door, the way back to the slot.

Means over seeds, with the range; the seeds pair the policies, so the ratio to `keep` is taken seed by seed.
Not measured: real memory, batching (a slot's speed does not depend on the others), saving to disk.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from demos.lab import policies
from demos.lab.policy_workloads import BLOCK, ROLLOUTS, Plan, workloads
from engine.residency.policies import POLICIES
from tests.bench.harness import Verdicts, is_quick
from tests.watched_slots import Bounded, RoomWaits, WatchedSlots, room_waits

TRACES = Path(__file__).parents[3] / "shared" / "traces" / "claude_code_kvct.jsonl"
WORKLOADS: Mapping[str, Callable[[int], list[Plan]]] = workloads(TRACES if TRACES.exists() else None)


@attrs.frozen(kw_only=True)
class Outcome(policies.Outcome):
    """One run, with what was waited for in it."""

    slot_waits: Bounded
    """In grants and in time; those for a lent slot, too."""
    room_waits: RoomWaits

    @property
    def over_bound(self) -> int:
        """How many waits, for either, took longer than their bound."""
        rooms = self.room_waits
        too_long = self.states.longest_wait_seconds > rooms.bound_seconds
        return self.slot_waits.over + rooms.line.over + rooms.stands.over + rooms.whole.over + too_long


def run(plans: Sequence[Plan], policy: str, kv_tokens: int, *, seed: int) -> Outcome:
    """All rollouts under a policy, watched."""
    ran = policies.run(plans, policy, kv_tokens, seed=seed, make_slots=WatchedSlots)
    slots, door = ran.slots, ran.door
    assert isinstance(slots, WatchedSlots), "they are what make_slots made"
    assert isinstance(door, WatchedSlots), "it is what make_slots made"
    values = {field.name: getattr(ran, field.name) for field in attrs.fields(policies.Outcome)}
    return Outcome(**values, slot_waits=slots.bounded(), room_waits=room_waits(ran.states, slots, door))


@attrs.frozen
class Comparison:
    """All policies over the rollouts of one seed."""

    unbounded: Outcome
    policies: Mapping[str, Outcome]

    def mean_seconds(self, policy: str) -> float:
        """Of a rollout."""
        return statistics.fmean(self.policies[policy].seconds)


def compare(workload: str, seed: int, *, rollouts: int = ROLLOUTS) -> Comparison:
    """Each policy with a quarter of the memory that is needed."""
    plans = WORKLOADS[workload](seed)[:rollouts]
    unbounded = run(plans, "keep", 10**9, seed=seed)
    quarter = unbounded.states.peak_tokens // 4
    return Comparison(unbounded, {name: run(plans, name, quarter, seed=seed) for name in POLICIES})


# --- the report ----------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and range."""
    return f"{statistics.fmean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A line for each policy."""
    unbounded = [each.unbounded for each in comparisons]
    yield f"      {'':10}  {'mean rollout, s':30} {'ratio to keep':22} cached  dropped  longest waits: slot, memory"
    rows = {"unbounded": unbounded, **{name: [c.policies[name] for c in comparisons] for name in POLICIES}}
    keep = [statistics.fmean(outcome.seconds) for outcome in rows["keep"]]
    for name, outcomes in rows.items():
        means = [statistics.fmean(outcome.seconds) for outcome in outcomes]
        ratios = [mean / base for mean, base in zip(means, keep, strict=True)]
        cached = statistics.fmean(outcome.cached for outcome in outcomes)
        dropped = statistics.fmean(outcome.states.dropped for outcome in outcomes)
        slot = max(outcome.slot_wait_seconds for outcome in outcomes)
        slot_share = max(outcome.slot_waits.closest for outcome in outcomes)
        room = max(outcome.states.longest_wait_seconds for outcome in outcomes)
        room_share = max(outcome.room_waits.whole.closest for outcome in outcomes)
        yield (
            f"      {name:10}  {spread(means, 1):30} {spread(ratios):22} {cached:6.1%} {dropped:8.0f}"
            f"  {slot:.0f} s ({slot_share:.0%} of its bound), {room:.0f} s ({room_share:.0%})"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    seeds, rollouts = (range(1), 8) if quick else (range(5), ROLLOUTS)
    verdicts = Verdicts(quick=quick)
    for workload in WORKLOADS:
        comparisons = [compare(workload, seed, rollouts=rollouts) for seed in seeds]
        need = statistics.fmean(each.unbounded.states.peak_tokens for each in comparisons)
        print(
            f"{workload}: {len(seeds)} seeds; memory {need * BLOCK / 4:,.0f} tokens of {need * BLOCK:,.0f} needed"
        )
        print(*table(comparisons), sep="\n")
        for name in ("min-waste", "ttl"):
            for base in ("keep", "drop"):
                ratios = [each.mean_seconds(name) / each.mean_seconds(base) for each in comparisons]
                verdicts.at_most(f"{workload}: {name} against {base}", statistics.fmean(ratios), 1.0)
        outcomes = [outcome for each in comparisons for outcome in each.policies.values()]
        verdicts.at_most("rollouts not finished", sum(rollouts - each.finished for each in outcomes), 0)
        verdicts.at_most("waits over their bound", sum(each.over_bound for each in outcomes), 0)
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
