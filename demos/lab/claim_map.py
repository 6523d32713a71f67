"""The claim map, computed: what each form saves over decoding speed, depth, tool time and history, by three constants.

The model is the smallest there is (`demos.lab.overhead`): decoding, tools, and a published overhead for each response.
What it leaves open is the history: the fitted term in the context is work that can be saved, or it is not, and nobody has
published which. So each figure stands three times (`ASSUMPTIONS`): without that term, with none of it saved, with all.

At a depth of N calls each rollout counts that has as many, cut after its N-th call. A handful of the points is run by the
real engine in virtual time, which knows nothing of the model, and both savings are kept side by side.
Everything goes into the result file as it comes; `demos.lab.claim_map_report` makes pictures of that file alone.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from demos.lab.overhead import Sums, overhead_model_saving, overhead_model_seconds, sums_of
from demos.lab.plan import Case, Cell, ModelCosts
from demos.lab.published import FITTED, OVERHEAD_SECONDS, Form
from demos.lab.records import Note
from demos.lab.results import ResultsFile, ResultsReader
from demos.lab.virtual import run_virtual
from demos.lab.workload import (
    SCENARIOS,
    Scenario,
    Work,
    WorkloadError,
    built_in,
    read,
    uniform,
    with_scenario,
)

POINT, WHOLE, HISTORY, BREAK_EVEN, MODELLED, COMPLETE = (
    "map point",
    "whole rollouts",
    "history",
    "break-even",
    "modelled",
    "complete",
)
"""Topics of the notes; `complete` says of another that all of its notes are there."""

Saved = Literal["create", "suspended"]
SAVING_FORMS: Final[tuple[Saved, ...]] = ("create", "suspended")
ASSUMPTIONS: Final[Mapping[str, float | None]] = {
    "no history term": None,
    "none saved": 0.0,
    "all saved": 1.0,
}
"""Of the fitted term in the context: `removable_share` of `demos.lab.overhead`."""

CLAIMED_CALLS: Final = 20
CLAIMED_SAVING: Final = 0.40
BREAK_EVEN_SAVING: Final = 0.02
"""Below this a rollout's user cannot tell the forms apart (our choice)."""
ARM_FORMS: Final[Mapping[str, Form]] = {"optimised": "http", "create": "create", "append": "suspended"}
"""The arms of the engine that stand for a form when a point is run."""
CHECK_CONTEXT_TOKENS: Final = 60_000
"""Rollouts that are run by the engine are not longer: texts of so many tokens are made for them."""
FAR_TIMEOUT_SECONDS: Final = 1e6


@attrs.frozen(kw_only=True)
class Checked:
    """A point that the engine runs, too."""

    tokens_per_second: float
    calls: int
    tool: Scenario


@attrs.frozen(kw_only=True)
class MapPlan:
    """What is computed."""

    tokens_per_second: tuple[float, ...] = (15.0, 30.0, 65.0, 130.0, 250.0, 500.0, 1_000.0, 2_000.0, 4_000.0)
    calls: tuple[int, ...] = (1, 2, 5, 10, 20, 40, 60)
    history_tokens: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
    rollouts: int = 643
    """Of the built-in workload: as many as the trace that its quantiles are of has with 20 calls and more."""
    checked: tuple[Checked, ...] = (
        Checked(tokens_per_second=65.0, calls=5, tool="Z"),
        Checked(tokens_per_second=65.0, calls=20, tool="B"),
        Checked(tokens_per_second=1_000.0, calls=20, tool="Z"),
        Checked(tokens_per_second=1_000.0, calls=20, tool="B"),
        Checked(tokens_per_second=1_000.0, calls=5, tool="A"),
        Checked(tokens_per_second=4_000.0, calls=20, tool="Z"),
    )


QUICK: Final = MapPlan(
    tokens_per_second=(15.0, 65.0, 250.0, 1_000.0, 4_000.0),
    calls=(1, 5, 20, 60),
    history_tokens=(1_000, 30_000, 300_000),
    rollouts=60,
    checked=(
        Checked(tokens_per_second=65.0, calls=5, tool="Z"),
        Checked(tokens_per_second=1_000.0, calls=5, tool="B"),
    ),
)


def config(*, quick: bool, trace: Path | None) -> dict[str, Any]:
    """For the head of the result file."""
    return {**attrs.asdict(_plan(quick=quick)), "trace": trace.name if trace else None}


def _plan(*, quick: bool) -> MapPlan:
    return QUICK if quick else MapPlan()


# --- the workload --------------------------------------------------------------------------------------------------


def works_of_scenarios(plan: MapPlan, seed: int, trace: Path | None) -> dict[Scenario, list[Work]]:
    """The rollouts in each scenario, deep enough for the map; without those that a file knows no tool times of.

    `WorkloadError`, `OSError`: the file is no workload at all.
    """
    if trace is None:
        works = built_in(plan.rollouts, seed, scenario="A", min_calls=max(plan.calls))
        return {scenario: [with_scenario(work, scenario, seed) for work in works] for scenario in SCENARIOS}
    found: dict[Scenario, list[Work]] = {
        scenario: read(trace, scenario=scenario, seed=seed) for scenario in ("B", "Z")
    }
    try:
        return {"A": read(trace, scenario="A", seed=seed), **found}
    except WorkloadError:  # what is not known is not 0
        return found


def whole_rollouts(plan: MapPlan, seed: int, scenario: Scenario, works: Sequence[Work] | None) -> list[Work]:
    """Those with as many calls as the claims are of; `works`: of a file, else drawn."""
    if works is None:
        return built_in(plan.rollouts, seed, scenario=scenario, min_calls=CLAIMED_CALLS)
    return [work for work in works if work.calls >= CLAIMED_CALLS]


def cut(work: Work, calls: int) -> Work:
    """The rollout as if it had ended after so many calls. `WorkloadError`: it has fewer."""
    if work.calls < calls:
        raise WorkloadError(f"{work.name} has {work.calls} calls, and was to be cut after {calls}")
    *before, last = work.steps[: calls + 1]
    return attrs.evolve(work, steps=(*before, attrs.evolve(last, tool_seconds=0.0)))


# --- the model -----------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """p10, p50 and p90, as members of a note; None where there are too few rollouts to tell."""
    if len(values) < 2:
        return dict.fromkeys(("p10", "p50", "p90"))
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return {"p10": tenths[0], "p50": tenths[4], "p90": tenths[8]}


def break_even_seconds(
    sums: Sums,
    form: Form,
    tokens_per_second: float,
    *,
    removable_share: float | None,
    saving: float = BREAK_EVEN_SAVING,
) -> float:
    """Tool seconds a call from which on a form saves less than `saving`; 0: it never saves as much.

    A saved second is the share `saving` of a rollout of 1/`saving` seconds; what HTTP takes without tools is in it.
    """
    toolless = attrs.evolve(sums, tool_seconds=0.0)
    per_token = 0.0 if removable_share is None else FITTED.seconds_per_context_token.value
    http = overhead_model_seconds(
        toolless, tokens_per_second, OVERHEAD_SECONDS["http"], seconds_per_context_token=per_token
    )
    saved = http * overhead_model_saving(toolless, form, tokens_per_second, removable_share=removable_share)
    return max(0.0, (saved / saving - http) / max(1, sums.responses - 1))


def points(works: Mapping[Scenario, Sequence[Work]], plan: MapPlan) -> Iterator[Note]:
    """The map."""
    for scenario, all_works in works.items():
        for calls in plan.calls:
            sums = [sums_of(cut(work, calls)) for work in all_works if work.calls >= calls]
            for place in _places(plan):
                where = {"scenario": scenario, "calls": calls, **place}
                yield Note(
                    topic=POINT, detail={**where, "rollouts": len(sums), **spread(_savings(sums, place))}
                )


def table_points(works: Mapping[Scenario, Sequence[Work]], plan: MapPlan) -> Iterator[Note]:
    """Of whole rollouts with 20 calls and more."""
    for scenario, whole in works.items():
        sums = [sums_of(work) for work in whole]
        for place in _places(plan):
            where = {"scenario": scenario, **place}
            yield Note(topic=WHOLE, detail={**where, "rollouts": len(sums), **spread(_savings(sums, place))})


def history_points(plan: MapPlan) -> Iterator[Note]:
    """Along the history: a rollout of 20 calls of the median size, without tool time."""
    for history in plan.history_tokens:
        sums = sums_of(uniform(CLAIMED_CALLS, history, new_tokens=373, sampled_tokens=219))
        for place in _places(plan):
            (saving,) = _savings([sums], place)
            yield Note(topic=HISTORY, detail={"history_tokens": history, **place, "saving": saving})


def break_even_points(works: Sequence[Work], plan: MapPlan) -> Iterator[Note]:
    """Where a form stops mattering, at each depth."""
    for calls in plan.calls:
        sums = [sums_of(cut(work, calls)) for work in works if work.calls >= calls]
        for place in _places(plan):
            seconds = [
                break_even_seconds(
                    one,
                    place["form"],
                    place["tokens_per_second"],
                    removable_share=ASSUMPTIONS[place["history"]],
                )
                for one in sums
            ]
            detail = {"calls": calls, **place, "rollouts": len(sums), **spread(seconds)}
            yield Note(topic=BREAK_EVEN, detail=detail)


def _places(plan: MapPlan) -> Iterator[dict[str, Any]]:
    for form in SAVING_FORMS:
        for history in ASSUMPTIONS:
            for speed in plan.tokens_per_second:
                yield {"form": form, "history": history, "tokens_per_second": speed}


def _savings(sums: Sequence[Sums], place: Mapping[str, Any]) -> list[float]:
    share = ASSUMPTIONS[place["history"]]
    return [
        overhead_model_saving(one, place["form"], place["tokens_per_second"], removable_share=share)
        for one in sums
    ]


# --- the engine ----------------------------------------------------------------------------------------------------


def cases(works: Mapping[Scenario, Sequence[Work]], plan: MapPlan, seed: int) -> Iterator[Case]:
    """The points that the engine runs, each in the arms that stand for the forms, in a drawn order."""
    for checked in plan.checked:
        work = _small(works.get(checked.tool, ()), checked.calls)
        if work is None:
            continue
        axes = {
            "calls": checked.calls,
            "rtt_ms": 0,
            "tokens_per_second": checked.tokens_per_second,
            "tool": checked.tool,
        }
        costs = ModelCosts(
            prefill_tokens_per_second=1e12,
            tick_ms=4.0 if checked.tokens_per_second < 500 else 1.0,
            overhead_ms={arm: 1e3 * OVERHEAD_SECONDS[form] for arm, form in ARM_FORMS.items()},
        )
        cell = Cell(axes=axes, repeats=1, model=costs)
        source = random.Random(f"{seed}/{checked}")  # noqa: S311  # a design, no secret
        for order, arm in enumerate(source.sample([*ARM_FORMS], len(ARM_FORMS))):
            yield Case(cell=cell, work=work, seed=seed, block=0, order=order, arm=arm)


def _small(works: Sequence[Work], calls: int) -> Work | None:
    """The first whose texts are soon made."""
    cuts = (cut(work, calls) for work in works if work.calls >= calls)
    return next((work for work in cuts if max(work.contexts()) <= CHECK_CONTEXT_TOKENS), None)


def modelled_seconds(case: Case) -> float:
    """What the model says that the case takes."""
    return overhead_model_seconds(
        sums_of(case.work), case.cell.tokens_per_second, OVERHEAD_SECONDS[ARM_FORMS[case.arm]]
    )


def fill(
    file: ResultsFile, *, quick: bool, seed: int, trace: Path | None, say: Callable[[str], None]
) -> None:
    """Compute what the file does not hold yet. `WorkloadError`, `OSError`."""
    plan = _plan(quick=quick)
    notes = ResultsReader(file.path).notes()
    known = {note.detail["topic"] for note in notes if note.topic == COMPLETE}
    works = works_of_scenarios(plan, seed, trace)
    whole: dict[Scenario, list[Work]] = {
        scenario: whole_rollouts(plan, seed, scenario, works[scenario] if trace else None)
        for scenario in works
    }
    sources: Mapping[str, Callable[[], Iterator[Note]]] = {
        POINT: lambda: points(works, plan),
        WHOLE: lambda: table_points(whole, plan),
        HISTORY: lambda: history_points(plan),
        BREAK_EVEN: lambda: break_even_points(works["Z"], plan),
    }
    for topic, source in sources.items():
        if topic not in known:
            say(f"computing: {topic}")
            for note in source():
                file.write(note)
            file.write(Note(topic=COMPLETE, detail={"topic": topic}))
    for case in cases(works, plan, seed):
        if case.key not in file.done():
            say(f"by the engine, in virtual time: {case.key}")
            detail = {"rollout": str(case.key), "seconds": modelled_seconds(case)}
            file.write(Note(topic=MODELLED, detail=detail))
            file.write(run_virtual(case, FAR_TIMEOUT_SECONDS).rollout)
