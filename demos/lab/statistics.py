"""How much two arms differ, and how sure that is: ratios of totals over the same rollouts, with bootstrap intervals.

The design is paired: a rollout counts if both arms ran it, with the same work, seed and block, and both runs hold.
What is compared is the sum over all of them, so that long rollouts weigh as much as they cost.
The interval comes from drawing whole rollouts again, with all their repeats: repeats of one rollout resemble each
other and are no independent evidence. With few different rollouts nothing can be said about others; the repeats are
drawn instead, and the interval says how well *these* rollouts were measured (`unit` tells which).
Percentiles of a bootstrap are too narrow for small n; they are taken further out, as Student's t is wider than the
normal distribution (Hesterberg's expanded percentiles, 2015).

"No data" is None, never 0. Records of failed and invalid rollouts are counted beside each figure and not in it.
The same records give the same figures in any order: they are sorted first, and the draws are seeded.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from demos.lab.records import PairKey, Rollout

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95
FEW_UNITS: Final = 8
"""Below it a percentile of the bootstrap is the least or the greatest unit, or close to it."""
FEWEST_ROLLOUTS: Final = 8
"""With fewer different rollouts, their repeats are drawn: a spread of seven values is little more than noise."""
ROUNDING: Final = 1e-9
"""Two runs on a virtual clock differ in the last digits of their floating point, and in nothing else."""
_DRAWN_AT_ONCE: Final = 2_000_000
"""Bounds the memory (32 MB), whatever the number of units."""

Measure = Callable[[Rollout], float | None]


@attrs.frozen
class Interval:
    """Where a figure lies with the stated confidence."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Ends included."""
        return self.low <= value <= self.high


@attrs.frozen
class Estimate:
    """A figure and how sure it is; None where nothing is known."""

    value: float | None
    interval: Interval | None
    units: int
    """Of which the interval was drawn."""


@attrs.frozen
class Quantiles:
    """A distribution in five numbers: None where nothing was measured."""

    count: int
    missing: int
    p10: float | None
    p50: float | None
    p90: float | None
    p99: float | None


@attrs.frozen(kw_only=True)
class Comparison:
    """An arm against another over the rollouts that both ran."""

    base: str
    arm: str
    pairs: int
    """Rollouts counted, repeats included."""
    rollouts: int
    """Different ones among them."""
    unit: str
    """What was drawn: `rollout`, or `repeat` where there are too few rollouts."""
    base_mean: float | None
    arm_mean: float | None
    ratio: float | None
    ratio_interval: Interval | None
    difference: float | None
    """Mean of arm minus base, in the unit of the measure."""
    difference_interval: Interval | None
    savings: Quantiles
    """Of each pair by itself."""
    invalid: int
    """Records left out because they broke a rule."""
    failed: int
    """Records left out because their rollout did not end well."""
    unpaired: int
    """Records left out because their counterpart is missing, failed or invalid, or has no such number."""

    @property
    def saving(self) -> float | None:
        """What the arm saves, as a share of the base."""
        return None if self.ratio is None else 1 - self.ratio

    @property
    def saving_interval(self) -> Interval | None:
        """Of the saving."""
        ratio = self.ratio_interval
        return None if ratio is None else Interval(1 - ratio.high, 1 - ratio.low)

    @property
    def units(self) -> int:
        """How many were drawn."""
        return self.rollouts if self.unit == "rollout" else self.pairs

    @property
    def same(self) -> bool | None:
        """Does the interval of the ratio contain 1? The verdict of an A/A run; None without an interval."""
        interval = self.ratio_interval
        return None if interval is None else interval.low - ROUNDING <= 1.0 <= interval.high + ROUNDING


def total_s(rollout: Rollout) -> float | None:
    """The whole rollout, from its intended start."""
    return rollout.total_s


def ttft_s(rollout: Rollout) -> float | None:
    """Until the first token, from the intended start."""
    return rollout.ttft_s


def compare(
    records: Iterable[Rollout],
    base: str,
    arm: str,
    *,
    measure: Measure = total_s,
    seed: int = 0,
    resamples: int = RESAMPLES,
    of: int = 1,
) -> Comparison:
    """Compare two arms by a measure. All cells among the records are taken together: choose them before.

    `of`: how many such comparisons are judged together; the intervals are widened so that all of them hold as often as one
    would alone (Bonferroni).
    ValueError: an arm ran the same rollout twice, which no plan asks for.
    """
    left_out = {"invalid": 0, "failed": 0}
    measured: dict[str, dict[PairKey, float]] = {base: {}, arm: {}}
    unmeasured = 0
    seen = set()
    for record in records:
        if record.arm not in measured:
            continue
        if record.key in seen:
            raise ValueError(f"two records of {record.key}; results of two runs must not be mixed")
        seen.add(record.key)
        value = measure(record)
        if record.failed or not record.valid:
            left_out["failed" if record.failed else "invalid"] += 1
        elif value is None:
            unmeasured += 1
        else:
            measured[record.arm][record.key.pair] = value
    both = measured[base].keys() & measured[arm].keys()
    unpaired = unmeasured + sum(len(values.keys() - both) for values in measured.values())
    pairs = {pair: (measured[base][pair], measured[arm][pair]) for pair in both}
    return _compared(base, arm, pairs, seed, resamples, unpaired=unpaired, of=of, **left_out)


def ratio_of(
    base: Sequence[float], other: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float | None, Interval | None]:
    """The ratio of totals of two paired lists, and its interval; None for no data or a base of 0.

    ValueError: the lists are not paired.
    """
    if len(base) != len(other):
        raise ValueError(f"{len(base)} values against {len(other)}; pairs need as many")
    units = np.array(sorted(zip(base, other, strict=True)), dtype=float).reshape(-1, 2)
    sums = _resampled(units, seed, resamples)
    return _ratio(units), _interval(_ratios(sums), len(units))


def difference_interval(first: Estimate, second: Estimate, *, of: int = 1) -> Interval | None:
    """Of the second minus the first, which was measured apart from it; None where one of them has no interval.

    Their standard errors add as squares, on each side by itself: the difference is small where the second is small and the
    first large (Zou and Donner 2008). `of`: as in `compare`.
    """
    if first.value is None or second.value is None or first.interval is None or second.interval is None:
        return None
    first_below, first_above = _errors(first.value, first.interval, first.units)
    second_below, second_above = _errors(second.value, second.interval, second.units)
    width = _student_quantile(first.units + second.units - 1, of)
    middle = second.value - first.value
    return Interval(
        middle - width * math.hypot(second_below, first_above),
        middle + width * math.hypot(second_above, first_below),
    )


def mean_interval(
    values: Iterable[float | None], *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float | None, Interval | None]:
    """The mean of what was measured, and its interval; None for no data."""
    units = np.array(sorted(value for value in values if value is not None), dtype=float).reshape(-1, 1)
    if not len(units):
        return None, None
    means = _resampled(units, seed, resamples)[:, 0] / len(units)
    return math.fsum(units[:, 0]) / len(units), _interval(means, len(units))


def quantile(values: Iterable[float | None], share: float) -> float | None:
    """By linear interpolation between the neighbours; None for no data."""
    measured = [value for value in values if value is not None]
    return float(np.quantile(measured, share)) if measured else None


def median(values: Iterable[float | None]) -> float | None:
    """None for no data."""
    return quantile(values, 0.5)


def quantiles(values: Iterable[float | None]) -> Quantiles:
    """The distribution of what was measured, and how much was not."""
    everything = list(values)
    measured = [value for value in everything if value is not None]
    points = [quantile(measured, share) for share in (0.1, 0.5, 0.9, 0.99)]
    return Quantiles(len(measured), len(everything) - len(measured), *points)


def _compared(
    base: str,
    arm: str,
    pairs: Mapping[PairKey, tuple[float, float]],
    seed: int,
    resamples: int,
    *,
    of: int,
    unpaired: int,
    invalid: int,
    failed: int,
) -> Comparison:
    clusters: dict[PairKey, list[tuple[float, float]]] = defaultdict(list)
    for pair in sorted(pairs, key=repr):
        clusters[attrs.evolve(pair, block=0)].append(pairs[pair])
    few = len(clusters) < FEWEST_ROLLOUTS
    drawn = [[pair] for repeats in clusters.values() for pair in repeats] if few else [*clusters.values()]
    units = np.array([np.sum(repeats, axis=0) for repeats in drawn], dtype=float).reshape(-1, 2)
    sums = _resampled(units, seed, resamples)
    count = len(pairs)
    # How many pairs a resample holds depends on the draw only if rollouts were repeated unequally; the mean stays
    # one of the pairs that were run.
    differences = (sums[:, 1] - sums[:, 0]) / count if count else np.empty(0)
    total = [math.fsum(column) for column in units.T] if count else []
    savings = [1 - mine / theirs for theirs, mine in pairs.values() if theirs]
    return Comparison(
        base=base,
        arm=arm,
        pairs=count,
        rollouts=len(clusters),
        unit="repeat" if few else "rollout",
        base_mean=total[0] / count if count else None,
        arm_mean=total[1] / count if count else None,
        ratio=_ratio(units),
        ratio_interval=_interval(_ratios(sums), len(units), of),
        difference=(total[1] - total[0]) / count if count else None,
        difference_interval=_interval(differences, len(units), of),
        savings=quantiles(sorted(savings)),
        invalid=invalid,
        failed=failed,
        unpaired=unpaired,
    )


def _ratio(units: NDArray[np.float64]) -> float | None:
    base = math.fsum(units[:, 0])
    return math.fsum(units[:, 1]) / base if base else None


def _ratios(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each resample; without the draws whose base is 0, which have none."""
    possible = sums[sums[:, 0] != 0]
    ratios: NDArray[np.float64] = possible[:, 1] / possible[:, 0]
    return ratios


def _resampled(units: NDArray[np.float64], seed: int, resamples: int) -> NDArray[np.float64]:
    """The columns' sums of as many draws of as many units, with replacement."""
    count = len(units)
    if not count:
        return np.empty((0, units.shape[1]))
    draw = np.random.default_rng(seed)
    chunk = max(1, _DRAWN_AT_ONCE // count)
    sizes = [stop - start for start, stop in pairwise([*range(0, resamples, chunk), resamples])]
    return np.concatenate([units[draw.integers(0, count, (size, count))].sum(axis=1) for size in sizes])


def _interval(statistics: NDArray[np.float64], count: int, of: int = 1) -> Interval | None:
    """The expanded percentiles of a bootstrap over `count` units; None if there is nothing to spread.

    No percentile lies outside of what was measured: three units that lie on one side of the truth, which is one case in
    four, would always exclude it. So few units have Student's interval, with the bootstrap's standard error.
    """
    if count < 2 or not len(statistics):
        return None
    if count < FEW_UNITS:
        half = _student_quantile(count, of) * math.sqrt(count / (count - 1)) * float(np.std(statistics))
        middle = float(np.mean(statistics))
        return Interval(middle - half, middle + half)
    tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * _student_quantile(count, of))
    low, high = np.quantile(statistics, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _errors(value: float, interval: Interval, count: int) -> tuple[float, float]:
    """The standard errors below and above a figure, from an interval that stands for itself."""
    width = _student_quantile(count, 1)
    return (value - interval.low) / width, (interval.high - value) / width


def _student_quantile(count: int, of: int) -> float:
    """Standard errors on each side of a mean of `count` units, for one of so many intervals that hold together."""
    both_tails = (1 - CONFIDENCE) / of
    return _student(count - 1, NormalDist().inv_cdf(1 - both_tails / 2))


def _student(freedom: int, z: float) -> float:
    """Student's quantile from the normal one: the first terms of its expansion (Abramowitz and Stegun 26.7.5)."""
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))
