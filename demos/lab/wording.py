"""Sentences and verdicts made from numbers, so that no figure in a text was ever typed.

A sentence says less when less is known: an interval that contains no difference is no difference shown, and where
nothing was measured nothing is claimed.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from demos.lab.records import Header, Note, PairKey, Rollout
from demos.lab.report import Check
from demos.lab.results import RESUMED
from demos.lab.statistics import Comparison, Interval, median
from demos.lab.validity import BOUNDS, NEW_CONNECTIONS, WARM_FIRST, Bounds, base_arm, late_p99_s

_BY_CHANCE: Final = 0.01
"""Orders that were drawn agree so rarely that it is no chance."""


def percent(share: float) -> str:
    """`41.2 %`: to a tenth, which is finer than any interval here; without a sign where that is 0."""
    return f"{100 * share:z.1f} %".replace("-", "\N{MINUS SIGN}")


def saving_sentence(
    comparison: Comparison, *, titles: Mapping[str, str] | None = None, of: str = "time per rollout"
) -> str:
    """What a comparison shows, with interval and counts; `titles` name the arms for people."""
    base, arm = ((titles or {}).get(name, name) for name in (comparison.base, comparison.arm))
    saving, interval = comparison.saving, comparison.saving_interval
    if saving is None:
        return f"No data for {arm} against {base}: nothing is said of {of}{_left_out(comparison)}."
    less = "less" if saving >= 0 else "more"
    told = f"{arm} takes {percent(abs(saving))} {less} {of} than {base}"
    if interval is None:
        return f"{told} (one pair, too few for an interval{_left_out(comparison)})."
    counted = f"95 % interval {_between(interval)}, n = {comparison.pairs} pairs of {comparison.rollouts} rollouts{_left_out(comparison)}"
    if comparison.same:
        return f"No difference shown between {arm} and {base} in {of}: saving {percent(saving)} ({counted})."
    return f"{told} (saving {counted})."


def trust(
    header: Header,
    notes: Iterable[Note],
    rollouts: Sequence[Rollout],
    *,
    comparisons: Sequence[Comparison] = (),
    repeated: Sequence[Comparison] = (),
    clocks: tuple[float, float] | None = None,
    bounds: Bounds = BOUNDS,
) -> tuple[Check, ...]:
    """The checklist of a run, over all its rollouts as `judged` stamped them.

    `repeated` are the A/A comparisons, `clocks` how far virtual and wall time are apart and may be, both as shares.
    """
    return (
        _paired(rollouts),
        _shuffled(rollouts),
        _with_intervals(comparisons),
        _same(repeated),
        _warm(rollouts, bounds),
        _kinds_apart(rollouts),
        _punctual(rollouts, bounds),
        _explained(rollouts, bounds),
        _clocks_agree(clocks),
        _equal_work(rollouts),
        _clean(rollouts),
        _nothing_dropped(rollouts),
        known_environment(header, notes),
    )


def _paired(rollouts: Sequence[Rollout]) -> Check:
    arms: dict[PairKey, set[str]] = defaultdict(set)
    for rollout in rollouts:
        arms[rollout.key.pair].add(rollout.arm)
    most = max(map(len, arms.values()), default=0)
    whole = sum(len(one) == most for one in arms.values())
    detail = f"{whole} of {len(arms)} rollouts ran in all {most} arms, same work and seed"
    return Check("paired design", whole == len(arms) if arms else None, detail)


def _shuffled(rollouts: Sequence[Rollout]) -> Check:
    blocks: dict[PairKey, list[tuple[int, str]]] = defaultdict(list)
    for rollout in rollouts:
        blocks[rollout.key.pair].append((rollout.order, rollout.arm))
    orders = {tuple(arm for _, arm in sorted(block)) for block in blocks.values()}
    arms = max(map(len, orders), default=0)
    detail = f"{len(orders)} orders of the arms in {len(blocks)} blocks"
    passed: bool | None = arms > 1 and len(orders) > 1
    if not passed and math.factorial(arms) ** (1 - len(blocks)) >= _BY_CHANCE:
        passed, detail = None, f"{detail}, too few to tell from chance"
    return Check("order randomised in blocks", passed, detail)


def _with_intervals(comparisons: Sequence[Comparison]) -> Check:
    without = [f"{one.arm} against {one.base}" for one in comparisons if one.ratio_interval is None]
    detail = (
        f"none for {', '.join(without)}"
        if without
        else f"{len(comparisons)} comparisons, each with its interval"
    )
    return Check("intervals stated", not without if comparisons else None, detail)


def _same(repeated: Sequence[Comparison]) -> Check:
    verdicts = [one.same for one in repeated]
    detail = "; ".join(
        f"{one.base} twice: saving {_between(one.saving_interval)}" for one in repeated if one.saving_interval
    )
    passed = False if False in verdicts else None if None in verdicts or not verdicts else True
    detail += "; intervals that hold together" if len(repeated) > 1 and detail else ""
    nothing = "too few rollouts for an interval" if repeated else "no arm ran twice"
    return Check("A/A shows no difference", passed, detail or nothing)


def _warm(rollouts: Sequence[Rollout], bounds: Bounds) -> Check:
    kept = [one.connections for one in rollouts if base_arm(one.arm) not in NEW_CONNECTIONS]
    passed = max(kept) <= bounds.connections if kept else None
    detail = f"at most {max(kept, default=0)} connections of a client in arms that keep theirs"
    return Check("warm baseline", passed, detail)


def _kinds_apart(rollouts: Sequence[Rollout]) -> Check:
    """Of how many turns of each kind the time is known (`demos.lab.turn_kinds`)."""
    name = "cold, warm and resumed turns apart"
    timed = [one for one in rollouts if one.turns and not one.failed]
    if not timed:
        return Check(name, None, "no turn was timed")
    warm = sum(base_arm(one.arm) in WARM_FIRST for one in timed)
    resumed = sum(len(one.turns) - 1 for one in timed)
    silent = sum(turn.first_s is None for one in timed for turn in one.turns)
    detail = f"{len(timed) - warm:,} cold, {warm:,} warm and {resumed:,} resumed turns, each kind by itself"
    return Check(name, None if silent else True, detail + (f"; {silent:,} without a token" if silent else ""))


def _punctual(rollouts: Sequence[Rollout], bounds: Bounds) -> Check:
    late = late_p99_s(rollouts)
    passed = None if late is None else late <= bounds.late_p99_s
    detail = (
        "no rollouts"
        if late is None
        else f"p99 {late * 1e3:.2f} ms late, bound {bounds.late_p99_s * 1e3:g} ms"
    )
    return Check("generator on time", passed, detail)


def _explained(rollouts: Sequence[Rollout], bounds: Bounds) -> Check:
    shares: dict[str, list[float | None]] = defaultdict(list)
    for rollout in rollouts:
        shares[rollout.arm].append(rollout.server.residual_share if rollout.server else None)
    medians = {arm: share for arm in sorted(shares) if (share := median(shares[arm])) is not None}
    passed = max(map(abs, medians.values())) <= bounds.residual_share if medians else None
    detail = ", ".join(f"{arm} {percent(share)}" for arm, share in medians.items())
    return Check("server time explained", passed, f"median residual: {detail}" if detail else "no ledger")


def _clocks_agree(clocks: tuple[float, float] | None) -> Check:
    name = "virtual and wall clock agree"
    if clocks is None:
        return Check(name, None, "this run used one clock")
    apart, tolerance = clocks
    return Check(name, abs(apart) <= tolerance, f"{percent(apart)} apart, tolerance {percent(tolerance)}")


def _equal_work(rollouts: Sequence[Rollout]) -> Check:
    unequal = sum(any(reason.startswith("unequal work") for reason in one.reasons) for one in rollouts)
    detail = f"{unequal} rollouts sampled other tokens than their pair"
    return Check("equal work in all arms", unequal == 0 if rollouts else None, detail)


def _clean(rollouts: Sequence[Rollout]) -> Check:
    findings = sum(one.findings for one in rollouts)
    detail = f"{findings} findings of the trace checker in {len(rollouts)} rollouts"
    return Check("protocol kept", findings == 0 if rollouts else None, detail)


def _nothing_dropped(rollouts: Sequence[Rollout]) -> Check:
    failed = sum(one.failed for one in rollouts)
    invalid = [one for one in rollouts if not one.valid]
    why = Counter(reason.partition(":")[0] for one in invalid for reason in one.reasons)
    reasons = f" ({', '.join(f'{count}: {reason}' for reason, count in why.most_common(3))})" if why else ""
    detail = f"of {len(rollouts)} rollouts {failed} failed and {len(invalid)} are invalid{reasons}"
    return Check("all rollouts counted", not failed and not invalid if rollouts else None, detail)


def known_environment(header: Header, notes: Iterable[Note]) -> Check:
    """Did it all run on one commit that is known?"""
    environment = header.environment
    resumed = sum(note.topic == RESUMED for note in notes)
    problems = [
        *(["commit unknown"] if environment.commit == "unknown" else []),
        *(["changes that are in no commit"] if environment.dirty else []),
        *([f"resumed in another environment {resumed} times"] if resumed else []),
    ]
    return Check(
        "one known environment", not problems, ", ".join(problems) or f"commit {environment.commit[:12]}"
    )


def _between(interval: Interval | None) -> str:
    return "unknown" if interval is None else f"{percent(interval.low)} to {percent(interval.high)}"


def _left_out(comparison: Comparison) -> str:
    counts = {name: getattr(comparison, name) for name in ("failed", "invalid", "unpaired")}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"; left out: {told}" if told else ""
