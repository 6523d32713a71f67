"""Which model state should stay while tools run: every policy of `engine.residency` over the same rollouts, in virtual time.

64 rollouts begin at once on 4 slots, each with up to 24 tool calls. They are whole rollouts of the engine, with the paced
sampler and its simulated state; nothing of the network. Every policy gets a share of the memory that the same rollouts
fill when there is no bound, which is a run of its own (`unbounded`) and the best that any policy could come to.
A rollout's time runs from its create to its end, so it holds its wait for a slot, its tools and all that is computed.

The workloads are those of `demos.lab.policy_workloads`; each of their `eta` is kept, too.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from demos.lab import published
from demos.lab.policy_workloads import BLOCK, ROLLOUTS, Plan, PlannedCall, eta_of, uncut_calls, workloads
from demos.lab.records import Note
from demos.lab.results import ResultsFile, ResultsReader
from engine.config import Limits
from engine.engine import RolloutReport
from engine.outbox import WritePieces
from engine.residency.policies import POLICIES
from engine.residency.statistics import ResidencyStatistics
from engine.rollout import Rollout
from engine.samplers.base import CallEnd, CallInput, CallStart, End, Prompt
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import Script, Scripted
from engine.scheduler import SlotPool
from engine.simulation import simulate
from engine.testing import simulated_engine
from protocol.dialects import APPEND
from protocol.events import ResponseCreate, ServerEvent
from protocol.items import FunctionCallOutput
from protocol.record import Record
from protocol.templates import Make

RUN, NEED, ETA = "policy run", "need", "eta"
"""Topics of the notes."""
UNBOUNDED: Final = "unbounded"
"""In the place of a policy: all that is ever in memory has room."""
SLOTS: Final = 4
PACE: Final = Pace(
    first_token_seconds=1.085,
    tokens_per_second=67.2 / BLOCK,
    prefill_tokens_per_second=1 / (168e-6 * BLOCK),
)


# --- how it is run -------------------------------------------------------------------------------------------------


class ToolRunner:
    """A client without a network: takes a rollout's events, waits as long as its tools take, and answers."""

    def __init__(self, record: Record, plan: Plan, nursery: trio.Nursery) -> None:
        self.rollout: Rollout
        self._record = record
        self._calls = iter(plan.calls)
        self._nursery = nursery

    def emit(self, event: ServerEvent) -> None:
        """As an `Outbox`: written down, and sent to nobody."""
        self._record.send(event)

    def open(self, opening: Make, item_id: str, output_index: int, *texts: str) -> WritePieces:
        """As `emit`."""
        _, _, send = self._record.open(opening, item_id, output_index, *texts)

        def write(pieces: Sequence[str]) -> None:
            send(pieces)

        return write

    def emit_made(self, make: Make, item_id: str, output_index: int, *texts: str) -> None:
        """As `emit`."""
        self._record.send_made(make, item_id, output_index, *texts)

    def flush(self) -> bool:
        """Nothing is held back."""
        return True

    async def wait_writable(self) -> None:
        """Never waits; no checkpoint."""

    @property
    def traced(self) -> bool:
        """It listens."""
        return True

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """At a suspension its tools begin."""
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


@attrs.frozen(kw_only=True)
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
    slots: SlotPool = attrs.field(eq=False, repr=False)
    door: SlotPool = attrs.field(eq=False, repr=False)
    """The pools themselves, for who watches what they make wait (`make_slots`)."""


def run(
    plans: Sequence[Plan],
    policy: str,
    kv_tokens: int,
    *,
    seed: int,
    make_slots: Callable[[int], SlotPool] = SlotPool,
) -> Outcome:
    """All rollouts under a policy."""
    return simulate(_run, plans, policy, kv_tokens, make_slots, seed=seed)


async def _run(
    plans: Sequence[Plan], policy: str, kv_tokens: int, make_slots: Callable[[int], SlotPool]
) -> Outcome:
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
    engine.slots = slots = make_slots(SLOTS)
    keeper = engine.residency.keeper(paced)
    if keeper is None:
        raise ValueError(f"a memory of {kv_tokens} tokens is no budget; it must be more than 0")
    keeper.door = door = make_slots(1)
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
    return Outcome(
        finished=sum(report.status == "completed" for report in reports),
        seconds=tuple(report.ledger.wall_ns / 1e9 for report in reports),
        cached=cached / (cached + sum(usage.uncached_input_tokens for usage in usages)),
        states=engine.residency.statistics(),
        slot_wait_seconds=slots.statistics().longest_wait_seconds,
        slots=slots,
        door=door,
    )


# --- the experiment ------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PoliciesPlan:
    """What is run."""

    seeds: int = 3
    rollouts: int = ROLLOUTS
    memory_shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    """Of what is needed when there is no bound."""


QUICK: Final = PoliciesPlan(seeds=1, rollouts=12, memory_shares=(0.25, 1.0))


def config(*, quick: bool, trace: Path | None) -> dict[str, Any]:
    """For the head of the result file."""
    return {**attrs.asdict(_plan(quick=quick)), "trace": trace.name if trace else None}


def _plan(*, quick: bool) -> PoliciesPlan:
    return QUICK if quick else PoliciesPlan()


def fill(
    file: ResultsFile, *, quick: bool, seed: int, trace: Path | None, say: Callable[[str], None]
) -> None:
    """Run what the file does not hold yet. `WorkloadError`, `OSError`."""
    plan = _plan(quick=quick)
    known = {run_key(note.detail) for note in ResultsReader(file.path).notes() if note.topic == RUN}
    needs = {
        (note.detail["workload"], note.detail["seed"]): note.detail["tokens"]
        for note in ResultsReader(file.path).notes()
        if note.topic == NEED
    }
    for workload, plans_of in workloads(trace).items():
        for own_seed in range(seed, seed + plan.seeds):
            plans = plans_of(own_seed)[: plan.rollouts]
            place = {"workload": workload, "seed": own_seed}
            if (workload, own_seed) not in needs:
                say(f"{workload}, seed {own_seed}: without a bound")
                outcome = run(plans, "keep", 10**9, seed=own_seed)
                needs[workload, own_seed] = outcome.states.peak_tokens
                file.write(_note(outcome, place, UNBOUNDED, None, len(plans)))
                etas = {
                    "as run": eta_of([len(plan.calls) for plan in plans]),
                    "uncut": eta_of(uncut_calls(workload, own_seed, trace)),
                }
                file.write(Note(topic=ETA, detail={**place, "eta": etas}))
                file.write(Note(topic=NEED, detail={**place, "tokens": outcome.states.peak_tokens}))
            for share, policy in _bounded(plan):
                if (workload, own_seed, share, policy) in known:
                    continue
                say(f"{workload}, seed {own_seed}: {policy} with {share:.0%} of the memory")
                kv_tokens = max(1, int(needs[workload, own_seed] * share))
                outcome = run(plans, policy, kv_tokens, seed=own_seed)
                file.write(_note(outcome, place, policy, share, len(plans)))


def _bounded(plan: PoliciesPlan) -> Iterator[tuple[float, str]]:
    return ((share, policy) for share in plan.memory_shares for policy in POLICIES)


def run_key(detail: Mapping[str, Any]) -> tuple[str, int, float | None, str]:
    """What a run is told apart by."""
    return detail["workload"], detail["seed"], detail["memory_share"], detail["policy"]


def _note(
    outcome: Outcome, place: Mapping[str, Any], policy: str, share: float | None, rollouts: int
) -> Note:
    detail = {
        **place,
        "policy": policy,
        "memory_share": share,
        "rollouts": rollouts,
        "finished": outcome.finished,
        "mean_s": statistics.fmean(outcome.seconds),
        "seconds": list(outcome.seconds),
        "cached": outcome.cached,
        "dropped": outcome.states.dropped,
        "slot_wait_s": outcome.slot_wait_seconds,
        "room_wait_s": outcome.states.longest_wait_seconds,
        "waits_for_room": outcome.states.waits_for_room,
    }
    return Note(topic=RUN, detail=detail)
