"""Which rollouts may be counted: rules of fairness as a pure function over what was measured side by side.

A broken rule never removes a record. It stamps it, with the reason, and whoever computes a figure counts the stamped
beside it. What concerns a pair stamps all of the pair: a comparison with half a pair is none.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import attrs

from demos.lab.records import CellKey, PairKey, Rollout, cell_key

NEW_CONNECTIONS: Final = frozenset({"naive"})
"""Arms that open a connection for each request, by design."""
WARM_FIRST: Final = frozenset({"create-warm"})
"""Arms whose first turn finds its history there already, as it went ahead."""


@attrs.frozen(kw_only=True)
class Bounds:
    """Where a figure stops being one."""

    late_p99_s: float = 0.010
    """A third of the smallest round trip that the experiments tell apart (30 ms)."""
    residual_share: float = 0.03
    """Of the server's time, what may stay unexplained: the median of an arm in a cell, as one rollout may meet a busy machine."""
    connections: int = 1
    """Of one client in an arm that keeps its connection."""


BOUNDS: Final = Bounds()
"""What a run is held to unless its plan says otherwise."""


def base_arm(arm: str) -> str:
    """The arm that a repeated one repeats: `optimised#2` is `optimised`."""
    return arm.partition("#")[0]


def late_p99_s(rollouts: Sequence[Rollout]) -> float | None:
    """How late the generator began, by nearest rank: one of the measured values, None if there are none."""
    late = sorted(rollout.late_s for rollout in rollouts)
    return late[-(-99 * len(late) // 100) - 1] if late else None


def judged(rollouts: Sequence[Rollout], bounds: Bounds = BOUNDS) -> list[Rollout]:
    """The same rollouts in the same order, those that break a rule stamped with each reason.

    Give it what was measured side by side: a pair group, a cell or a whole run; lateness is judged over all of it.
    Stamps that are there stay, and judging twice changes nothing.
    """
    late = late_p99_s(rollouts)
    unequal, residuals = _unequal(rollouts), _residuals(rollouts)
    return [_stamped(rollout, [*_reasons(rollout, late, unequal, residuals, bounds)]) for rollout in rollouts]


def _reasons(
    rollout: Rollout,
    late_s: float | None,
    unequal: dict[PairKey, str],
    residuals: dict[tuple[CellKey, str], float],
    bounds: Bounds,
) -> Iterator[str]:
    if late_s is not None and late_s > bounds.late_p99_s:
        yield f"late generator: p99 {late_s * 1e3:.1f} ms, bound {bounds.late_p99_s * 1e3:.1f} ms"
    if rollout.connections > bounds.connections and base_arm(rollout.arm) not in NEW_CONNECTIONS:
        yield f"{rollout.connections} connections of one client, bound {bounds.connections}"
    residual = residuals.get((cell_key(rollout.cell), base_arm(rollout.arm)))
    if residual is not None and abs(residual) > bounds.residual_share:
        yield f"residual {residual:.1%} of server time, bound {bounds.residual_share:.1%}"
    if rollout.findings > 0:
        yield f"{rollout.findings} findings of the trace checker"
    if rollout.key.pair in unequal:
        yield unequal[rollout.key.pair]


def _residuals(rollouts: Sequence[Rollout]) -> dict[tuple[CellKey, str], float]:
    """The median of each arm in each cell, where any is known."""
    shares: dict[tuple[CellKey, str], list[float]] = defaultdict(list)
    for rollout in rollouts:
        share = rollout.server.residual_share if rollout.server else None
        if share is not None:
            shares[cell_key(rollout.cell), base_arm(rollout.arm)].append(share)
    return {group: median(known) for group, known in shares.items()}


def _unequal(rollouts: Sequence[Rollout]) -> dict[PairKey, str]:
    """Pairs whose arms sampled different numbers of tokens. A failed rollout sampled what it could: not compared."""
    sampled: dict[PairKey, dict[str, int]] = defaultdict(dict)
    for rollout in rollouts:
        if not rollout.failed:
            sampled[rollout.key.pair][rollout.arm] = rollout.tokens.sampled
    return {
        pair: "unequal work: " + ", ".join(f"{arm} sampled {count}" for arm, count in sorted(arms.items()))
        for pair, arms in sampled.items()
        if len(set(arms.values())) > 1
    }


def _stamped(rollout: Rollout, reasons: list[str]) -> Rollout:
    kept = (*rollout.reasons, *(reason for reason in reasons if reason not in rollout.reasons))
    return attrs.evolve(rollout, valid=rollout.valid and not kept, reasons=kept)
