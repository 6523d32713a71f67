"""Which part is WebSocket, computed: the savings of `demos.lab.model`, shared out over rollouts at each speed.

The world is what the fit to real traffic and the published overheads say, with a network. There are two, because
nobody has published how much of the history's work can be saved: none of it, or all.
What the forms over WebSocket add to optimised HTTP is to send no more than what is new (`bytes`) and one response for
the whole rollout (`routing`); all others HTTP has as well, once its server is made for it. Against a server that computes each prompt anew everything is small beside
the model's state; so there are two beginnings (`GIVEN`): nothing, and what HTTP has today, a kept connection and a
prefix cache.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from demos.lab.ablation import Ablation, Fall, ablation_of
from demos.lab.model import ARM_SAVINGS, SAVINGS, Model, Savings, World
from demos.lab.records import Note
from demos.lab.results import ResultsFile, ResultsReader
from demos.lab.workload import Scenario, Work, WorkloadError, built_in, read, selected

ABLATION: Final = "ablation"
"""Topic of the notes."""

ADDED: Final = frozenset({"bytes", "routing"})
"""What arm `append` has and arm `optimised` has not. (HTTP that keeps responses on the server sends no more, either.)"""
GIVEN: Final[Mapping[str, Savings]] = {
    "naive HTTP": frozenset(),
    "warm HTTP": frozenset({"connection", "kv"}),
}
"""What is there before anything is saved."""
REMOVABLE: Final[Mapping[str, float]] = {"none saved": 0.0, "all saved": 1.0}
RTT_SECONDS: Final = 0.030
BYTES_PER_SECOND: Final = 2.5e6
"""20 Mbit/s upwards: a home's (our assumption)."""
WINDOW_BYTES: Final = 14_600
"""Ten segments, as a new TCP connection has them (RFC 6928)."""
PREAMBLE_BYTES: Final = 40_000
"""Tools and instructions of a coding agent (our assumption)."""


@attrs.frozen(kw_only=True)
class AblatePlan:
    """What is computed."""

    tokens_per_second: tuple[float, ...] = (65.0, 1_000.0, 4_000.0)
    scenarios: tuple[Scenario, ...] = ("Z", "B")
    rollouts: int = 200
    min_calls: int = 20


QUICK: Final = AblatePlan(rollouts=20)


def config(*, quick: bool, trace: Path | None) -> dict[str, Any]:
    """For the head of the result file."""
    return {**attrs.asdict(_plan(quick=quick)), "trace": trace.name if trace else None}


def _plan(*, quick: bool) -> AblatePlan:
    return QUICK if quick else AblatePlan()


def world(tokens_per_second: float, removable_share: float) -> World:
    """Of the fit, with a network."""
    fitted = World.fitted(tokens_per_second, removable_share=removable_share, rtt_seconds=RTT_SECONDS)
    return attrs.evolve(
        fitted,
        bytes_per_second=BYTES_PER_SECOND,
        connect_round_trips=2.0,
        window_bytes=WINDOW_BYTES,
        preamble_bytes=PREAMBLE_BYTES,
    )


def fill(
    file: ResultsFile, *, quick: bool, seed: int, trace: Path | None, say: Callable[[str], None]
) -> None:
    """Compute what the file does not hold yet. `WorkloadError`, `OSError`."""
    plan = _plan(quick=quick)
    known = {_place(note.detail) for note in ResultsReader(file.path).notes() if note.topic == ABLATION}
    for scenario in plan.scenarios:
        works = _works(plan, scenario, seed, trace)
        for speed in plan.tokens_per_second:
            for history, share in REMOVABLE.items():
                place = {"scenario": scenario, "tokens_per_second": speed, "history": history}
                if _place(place) in known:
                    continue
                say(f"computing: {speed:,g} tokens/s, tools {scenario}, {history}")
                here = world(speed, share)
                arms = {
                    arm: sum(Model(work, here).arm_seconds(arm) for work in works) / len(works)
                    for arm in ARM_SAVINGS
                }
                for given, savings in GIVEN.items():
                    found = plain(ablation(works, here, savings), len(works))
                    detail = {**place, "given": given, "rollouts": len(works), **found, "arms": arms}
                    file.write(Note(topic=ABLATION, detail=detail))


def ablation(works: Sequence[Work], here: World, given: Savings) -> Ablation:
    """Of all these rollouts together, where some savings are there already."""
    models = [Model(work, here) for work in works]
    return ablation_of(
        lambda savings: math.fsum(model.seconds(savings | given) for model in models),
        [saving for saving in SAVINGS if saving not in given],
    )


def _place(detail: Mapping[str, Any]) -> tuple[Any, ...]:
    return detail["scenario"], detail["tokens_per_second"], detail["history"]


def _works(plan: AblatePlan, scenario: Scenario, seed: int, trace: Path | None) -> Sequence[Work]:
    if trace is None:
        return built_in(plan.rollouts, seed, scenario=scenario, min_calls=plan.min_calls)
    found = read(trace, scenario=scenario, seed=seed, min_calls=plan.min_calls)
    if not found:
        raise WorkloadError(
            f"{trace} has no rollout with {plan.min_calls} calls and more, which the claims are of"
        )
    return selected(found, plan.rollouts, seed)


def plain(found: Ablation, rollouts: int) -> dict[str, Any]:
    """As members of a note, in seconds of the mean rollout."""

    def falls(waterfall: Sequence[Fall]) -> dict[str, float]:
        return {fall.saving: fall.saved / rollouts for fall in waterfall}

    return {
        "without_s": found.without / rollouts,
        "with_all_s": found.with_all / rollouts,
        "shares_s": {saving: seconds / rollouts for saving, seconds in found.shares.items()},
        "in_order_s": falls(found.waterfall),
        "reverse_s": falls(found.reverse),
    }
