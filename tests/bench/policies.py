"""Which model state should stay while tools run: every policy of `engine.residency` over the same rollouts, in virtual time.

64 rollouts begin at once on 4 slots, each with up to 24 tool calls. They are whole rollouts of the engine, with the paced
sampler and its simulated state; nothing of the network. Every policy gets a quarter of the memory that the same rollouts
fill when there is no bound, which is a run of its own (`unbounded`) and the best that any policy could come to.
A rollout's time runs from its create to its end, so it holds its wait for a slot, its tools and all that is computed.

Three workloads, numbers only:

    calls     pauses by tool, from the published medians and tail of TraceLab (arXiv 2606.30560, CC BY 4.0; credit:
              TraceLab, SyFI Lab, University of Washington). It publishes medians for read, edit and bash and quantiles for
              all calls together; that 35 % of the calls are reads and 15 % edits, and that both spread as all calls do
              below their 90th percentile, is our assumption.
    gaps      pauses from the quantiles of 41,462 client gaps of Claude Code, 1 s apart and with the user's own time in
              them (callanjfox/kv-cache-tester, Apache-2.0). One tool: no policy can tell a long call by its name.
    recorded  rollouts of that trace as they are, up to 24 calls of each; only where the file is (see `TRACES`).

Sizes of contexts, outputs and answers: the quantiles of kv-cache-tester, for all three. Quantiles are joined by straight
lines in the logarithm; what is above the last is not drawn. The model's pace is a fit to the same traffic: 1.09 s a
segment, 67 sampled tokens and 5,952 read tokens a second. A simulated token stands for a block of 32 real ones.

Each wait for a slot is held against `engine.scheduler.wait_bound`, for the queue that it met: in grants, and in the
longest segments that they may take. Each wait for memory, during which a rollout holds no slot, is held against
`engine.residency.bounds`: the line before the door in the same way, the time at the door, the way back to the slot.

Means over seeds, with the range; the seeds pair the policies, so the ratio to `keep` is taken seed by seed.
Not measured: real memory, batching (a slot's speed does not depend on the others), saving to disk.
"""

import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from demos.lab import published
from engine.config import Limits
from engine.engine import RolloutReport
from engine.residency.policies import POLICIES
from engine.residency.statistics import ResidencyStatistics
from engine.rollout import Rollout
from engine.samplers.base import CallEnd, CallInput, CallStart, End, Prompt
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import Script, Scripted
from engine.testing import simulate, simulated_engine
from protocol.dialects import APPEND
from protocol.events import ResponseCreate, ServerEvent
from protocol.items import FunctionCallOutput
from protocol.session import Record
from tests.bench.harness import Verdicts, is_quick
from tests.watched_slots import Bounded, RoomWaits, WatchedSlots, room_waits

ROLLOUTS, SLOTS, MAX_CALLS = 64, 4, 24
BLOCK = 32
PACE = Pace(
    first_token_seconds=1.085,
    tokens_per_second=67.2 / BLOCK,
    prefill_tokens_per_second=1 / (168e-6 * BLOCK),
)
TRACES = Path(__file__).parents[3] / "shared" / "traces" / "claude_code_kvct.jsonl"

CALLS: Final = published.CALLS[:4]
"""Without the last hundredth, whose rollouts alone would be most of the work."""


# --- what is run ---------------------------------------------------------------------------------------------------


@attrs.frozen
class PlannedCall:
    """One segment that ends in a call, and what comes of it."""

    tool: str
    sampled_tokens: int
    pause_seconds: float
    output_tokens: int


@attrs.frozen
class Plan:
    """One rollout; tokens are blocks."""

    context_tokens: int
    calls: tuple[PlannedCall, ...]
    last_tokens: int


def blocks(tokens: float) -> int:
    """In simulated tokens, at least one."""
    return max(1, round(tokens / BLOCK))


def drawn_plans(seed: int, pause: Callable[[random.Random], tuple[str, float]]) -> list[Plan]:
    """The rollouts of a seed; `pause` draws a tool and its time."""
    source = random.Random(seed)

    def call() -> PlannedCall:
        tool, seconds = pause(source)
        sampled, new = (
            published.drawn(source, published.SAMPLED_TOKENS),
            published.drawn(source, published.NEW_TOKENS),
        )
        return PlannedCall(tool, blocks(sampled), seconds, blocks(new))

    return [
        Plan(
            blocks(published.drawn(source, published.CONTEXT_TOKENS)),
            tuple(call() for _ in range(min(MAX_CALLS, round(published.drawn(source, CALLS))))),
            blocks(published.drawn(source, published.SAMPLED_TOKENS)),
        )
        for _ in range(ROLLOUTS)
    ]


def call_pause(source: random.Random) -> tuple[str, float]:
    """By tool."""
    (tool,) = source.choices(list(published.TOOLS), [share for share, _ in published.TOOLS.values()])
    return tool, published.drawn(source, published.TOOLS[tool][1])


def gap_pause(source: random.Random) -> tuple[str, float]:
    """Of the one tool."""
    return "tool", published.drawn(source, published.GAP_SECONDS)


def recorded_plans(seed: int) -> list[Plan]:
    """Rollouts of the trace, drawn by the seed."""
    lines = TRACES.read_text().splitlines()
    return [_recorded(json.loads(line)) for line in random.Random(seed).sample(lines, ROLLOUTS)]


def _recorded(line: Mapping[str, Any]) -> Plan:
    steps = line["steps"][: MAX_CALLS + 1]
    calls = tuple(
        PlannedCall("tool", blocks(step[1]), step[2] or 0.0, blocks(after[5] or after[0]))
        for step, after in pairwise(steps)
    )
    return Plan(blocks(steps[0][4]), calls, blocks(steps[-1][1]))


WORKLOADS: Mapping[str, Callable[[int], list[Plan]]] = {
    "calls": lambda seed: drawn_plans(seed, call_pause),
    "gaps": lambda seed: drawn_plans(seed, gap_pause),
    **({"recorded": recorded_plans} if TRACES.exists() else {}),
}


# --- how it is run -------------------------------------------------------------------------------------------------


class ToolRunner:
    """A client without a network: takes a rollout's events, waits as long as its tools take, and answers."""

    def __init__(self, record: Record, plan: Plan, nursery: trio.Nursery) -> None:
        self.rollout: Rollout
        self._record = record
        self._calls = iter(plan.calls)
        self._nursery = nursery

    def emit(self, event: ServerEvent) -> None:
        self._record.send(event)

    def flush(self) -> None:
        pass

    async def wait_writable(self) -> None:
        pass

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        if name == "suspend":
            self._nursery.start_soon(self._answer, members["pending"], next(self._calls))

    async def _answer(self, pending: Sequence[str], call: PlannedCall) -> None:
        await trio.sleep(call.pause_seconds)
        self.rollout.inbox.offer([FunctionCallOutput(pending[0], text_of_tokens(call.output_tokens))])


def text_of_tokens(tokens: int) -> str:
    """About so many tokens."""
    return " word" * tokens


def script_of(plan: Plan) -> Script:
    """What the model says."""
    segments: list[Any] = [
        [(CallStart(0, call.tool), CallInput(0, "{}"), CallEnd(0, call.sampled_tokens)), (End(),)]
        for call in plan.calls
    ]
    return [*segments, [(End("stop", plan.last_tokens),)]]


@attrs.frozen
class Outcome:
    """One run."""

    finished: int
    seconds: tuple[float, ...]
    """Of each rollout."""
    cached: float
    """Share of the prompts' tokens that was in memory."""
    states: ResidencyStatistics
    slot_wait_seconds: float
    """The longest."""
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
    """All rollouts under a policy."""
    return simulate(_run, plans, policy, kv_tokens, seed=seed)


async def _run(plans: Sequence[Plan], policy: str, kv_tokens: int) -> Outcome:
    reports: list[RolloutReport] = []
    by_id = {f"resp_{number}": plan for number, plan in enumerate(plans)}

    def script(prompt: Prompt) -> Script:
        return script_of(by_id[prompt.response_id])

    paced = Paced(Scripted(script), PACE, tick_seconds=0.25)
    engine = simulated_engine(
        paced,
        seed=0,
        limits=Limits(sampler_slots=SLOTS, kv_tokens=kv_tokens, suspend_timeout_seconds=0),
        kv_policy=policy,
        on_report=reports.append,
    )
    engine.slots = slots = WatchedSlots(SLOTS)
    keeper = engine.residency.keeper(paced)
    assert keeper is not None, "there is a budget"
    keeper.door = door = WatchedSlots(1)
    tools = tuple({"type": "function", "name": name, "parameters": {}} for name in (*published.TOOLS, "tool"))
    async with trio.open_nursery() as background:
        background.start_soon(paced.run)
        async with trio.open_nursery() as nursery:
            for response_id, plan in by_id.items():
                record = Record(response_id, APPEND)
                client = ToolRunner(record, plan, nursery)
                create = ResponseCreate(model="m", input=text_of_tokens(plan.context_tokens), tools=tools)
                client.rollout = Rollout(engine, create, record, client)
                nursery.start_soon(client.rollout.run)
        background.cancel_scope.cancel()
    usages = [report.usage for report in reports]
    cached = sum(usage.cached_input_tokens for usage in usages)
    states = engine.residency.statistics()
    return Outcome(
        sum(report.status == "completed" for report in reports),
        tuple(report.ledger.wall_ns / 1e9 for report in reports),
        cached / (cached + sum(usage.uncached_input_tokens for usage in usages)),
        states,
        slots.statistics().longest_wait_seconds,
        slots.bounded(),
        room_waits(states, slots, door),
    )


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
