"""demos.lab.statistics: paired ratios and their intervals, on data whose truth is known."""

import random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab_rollouts import rollout

pytest.importorskip("numpy", reason="the extra [lab] is not installed")

from demos.lab.statistics import (
    Comparison,
    Estimate,
    Interval,
    Quantiles,
    compare,
    difference_interval,
    mean_interval,
    median,
    quantile,
    quantiles,
    ratio_of,
    ttft_s,
)

FEW = 200
"""Resamples where the width of the interval is not what is tested."""

seconds = st.floats(0.001, 1_000, allow_subnormal=False)
totals = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=20)


def paired(values: list[tuple[float | None, float | None]], repeats: int = 1) -> list[Any]:
    """Records of two arms: each pair of values is a rollout of its own, or a repeat of the one before."""
    return [
        rollout(arm=arm, total_s=value, work=f"w{number // repeats}", block=number % repeats)
        for number, pair in enumerate(values)
        for arm, value in zip(("optimised", "append"), pair, strict=True)
    ]


def compared(records: list[Any], **how: Any) -> Comparison:
    """Append against optimised."""
    return compare(records, "optimised", "append", **{"resamples": FEW, **how})


@given(st.lists(seconds, min_size=2, max_size=20))
def test_identical_arms_have_a_ratio_of_exactly_one(values):
    """The same numbers in both arms give 1 in the figure and at both ends of its interval."""
    seen = compared(paired([(value, value) for value in values]))
    assert (seen.ratio, seen.ratio_interval, seen.saving) == (1.0, Interval(1.0, 1.0), 0.0)
    assert seen.difference_interval == Interval(0.0, 0.0)
    assert seen.same is True


@given(totals, st.floats(0.01, 100))
def test_scaling_an_arm_scales_the_ratio(values, factor):
    """An arm that takes k times as long has k times the ratio, and k times its interval."""
    plain = compared(paired(values))
    scaled = compared(paired([(base, factor * arm) for base, arm in values]))
    assert scaled.ratio == pytest.approx(factor * plain.ratio)
    if plain.ratio_interval is not None:
        ends = attrs.astuple(scaled.ratio_interval)
        assert ends == pytest.approx([factor * end for end in attrs.astuple(plain.ratio_interval)])


@given(totals, st.randoms(use_true_random=False), st.integers(1, 3))
def test_the_order_of_records_does_not_matter(values, shuffler, repeats):
    """Shuffled records give the same comparison, to the last bit."""
    records = paired(values, repeats)
    shuffled = shuffler.sample(records, len(records))
    assert compared(shuffled) == compared(records)


@given(totals)
def test_the_ratio_is_one_of_totals(values):
    """Long rollouts weigh as much as they cost; the interval holds the figure of the data itself."""
    seen = compared(paired(values))
    assert seen.ratio == pytest.approx(sum(arm for _, arm in values) / sum(base for base, _ in values))
    assert seen.difference == pytest.approx(seen.arm_mean - seen.base_mean)
    assert seen.pairs == seen.rollouts == len(values)


@settings(max_examples=20)
@given(totals, st.integers(0, 2**32))
def test_the_same_seed_draws_the_same(values, seed):
    """A comparison is a function of records and seed."""
    records = paired(values)
    assert compared(records, seed=seed) == compared(records, seed=seed)


def test_a_saving_is_what_the_ratio_leaves():
    """The interval of a saving is that of the ratio, turned round."""
    seen = compared(paired([(10.0, 6.0), (20.0, 11.0)] * 5))
    assert seen.saving == pytest.approx(1 - 85 / 150)
    assert seen.saving_interval == Interval(1 - seen.ratio_interval.high, 1 - seen.ratio_interval.low)
    assert 0.40 < seen.saving_interval.low <= seen.saving <= seen.saving_interval.high < 0.45
    assert seen.same is False


@pytest.mark.parametrize(("count", "least", "most"), [(5, 0.90, 0.99), (8, 0.91, 0.99), (30, 0.92, 0.98)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(count, least, most):
    """Over 400 seeded experiments with a known ratio of 0.6, the 95 % interval holds it in about 95 %."""
    covered = 0
    for experiment in range(400):
        draw = random.Random(experiment)
        base = [draw.lognormvariate(1, 0.5) for _ in range(count)]
        other = [0.6 * value * draw.gauss(1, 0.1) for value in base]
        _, interval = ratio_of(base, other, seed=experiment, resamples=1_000)
        covered += interval.contains(0.6)
    assert least <= covered / 400 <= most


def replicated(seed: int, count: int, *, shift: float = 0.0) -> list[Estimate]:
    """A ratio of about 0.6, measured twice; the second time something more may have been added."""
    draw = random.Random(seed)
    found = []
    for truth in (0.6, 0.6 + shift):
        base = [draw.lognormvariate(1, 0.2) for _ in range(count)]
        other = [value * draw.gauss(truth, 0.06) for value in base]
        found.append(Estimate(*ratio_of(base, other, seed=seed, resamples=1_000), count))
    return found


@pytest.mark.parametrize("count", [3, 5, 8, 30])
def test_figures_measured_twice_differ_by_chance_as_often_as_is_said(count):
    """Over 100 seeded experiments of four figures, no interval of a difference misses 0 in at least 90 %.

    Of the single figures, far fewer are within the first's own interval.
    """
    held = within = 0
    for experiment in range(100):
        figures = [replicated(4 * experiment + one, count) for one in range(4)]
        held += all(difference_interval(*pair, of=4).contains(0.0) for pair in figures)
        within += sum(first.interval.contains(second.value) for first, second in figures)
    assert held >= 90
    assert within < 0.93 * 400


@pytest.mark.parametrize("count", [3, 5, 8, 30])
def test_a_difference_of_several_half_widths_is_found(count):
    """Of four, as they are in the mean, in nearly all of 100 experiments."""
    intervals = [replicated(seed, count)[0].interval for seed in range(100)]
    shift = 4 * sum(interval.high - interval.low for interval in intervals) / 2 / len(intervals)
    found = sum(
        not difference_interval(*replicated(seed, count, shift=shift), of=4).contains(0.0)
        for seed in range(100)
    )
    assert found >= 95


def test_a_difference_is_lopsided_as_its_figures_are():
    """It may be far below where the second may be far below, or the first far above."""
    first, second = Estimate(1.0, Interval(0.9, 1.4), 30), Estimate(3.0, Interval(2.7, 3.0), 30)
    seen = difference_interval(first, second)
    plain = seen.high - 2.0
    assert 2.0 - seen.low == pytest.approx(5 * plain)
    turned = difference_interval(second, first)
    assert attrs.astuple(turned) == pytest.approx((-seen.high, -seen.low))


def test_a_difference_needs_two_intervals():
    """And is wider, the more of them are judged together."""
    known, unknown = Estimate(1.0, Interval(0.9, 1.1), 8), Estimate(1.0, None, 1)
    assert difference_interval(known, unknown) is difference_interval(unknown, known) is None
    alone, together = (difference_interval(known, known, of=of) for of in (1, 20))
    assert together.low < alone.low < 0.0 < alone.high < together.high


def test_repeats_of_a_rollout_are_no_independent_evidence():
    """Ten rollouts measured forty times each are known no better than once each, if repeats agree."""
    draw = random.Random(1)
    once = [(10.0, 10 * draw.uniform(0.4, 0.8)) for _ in range(10)]
    often = [pair for pair in once for _ in range(40)]
    single, repeated = compared(paired(once)), compared(paired(often, repeats=40))
    assert (repeated.pairs, repeated.rollouts, repeated.unit) == (400, 10, "rollout")
    assert repeated.ratio == pytest.approx(single.ratio)
    assert attrs.astuple(repeated.ratio_interval) == pytest.approx(attrs.astuple(single.ratio_interval))


def test_with_few_rollouts_their_repeats_are_drawn():
    """Of one rollout in six blocks the interval says how well it was measured, and that this is what it says."""
    values = [(10.0, 6.0 + 0.1 * block) for block in range(6)]
    seen = compared(paired(values, repeats=6))
    assert (seen.pairs, seen.rollouts, seen.unit) == (6, 1, "repeat")
    assert 0.6 <= seen.ratio_interval.low < seen.ratio_interval.high <= 0.65


def test_one_pair_has_a_ratio_and_no_interval():
    """Nothing is said of the spread of one value, and so no verdict either."""
    seen = compared(paired([(10.0, 6.0)]))
    assert (seen.ratio, seen.ratio_interval, seen.saving_interval, seen.same) == (0.6, None, None, None)


def test_no_data_is_none_and_never_zero():
    """Without a pair nothing is a number but the counts."""
    seen = compared([])
    assert attrs.asdict(seen, recurse=False) == {
        "base": "optimised",
        "arm": "append",
        "pairs": 0,
        "rollouts": 0,
        "unit": "repeat",
        "base_mean": None,
        "arm_mean": None,
        "ratio": None,
        "ratio_interval": None,
        "difference": None,
        "difference_interval": None,
        "savings": Quantiles(0, 0, None, None, None, None),
        "invalid": 0,
        "failed": 0,
        "unpaired": 0,
    }
    assert seen.saving is None


def test_what_is_left_out_is_counted():
    """Failed, invalid and unpaired records are in no figure and in one count each; other arms are none of them."""
    records = [
        *paired([(10.0, 5.0), (10.0, None), (8.0, 8.0)]),
        rollout(arm="append", work="w2b", total_s=1.0, error="lost"),
        rollout(arm="append", work="alone", total_s=2.0),
        rollout(arm="naive", work="w0", total_s=99.0),
    ]
    records[5] = attrs.evolve(records[5], valid=False, reasons=("late generator",))
    seen = compared(records)
    assert (seen.ratio, seen.pairs) == (0.5, 1)
    # Unpaired: the two of optimised whose counterpart failed or is invalid, and the one that ran alone.
    assert (seen.failed, seen.invalid, seen.unpaired) == (2, 1, 3)


def test_another_measure_compares_another_number():
    """Time to first token is compared like the total; where it is missing the pair is not."""
    records = paired([(10.0, 5.0), (10.0, 5.0)])
    records = [attrs.evolve(one, ttft_s=0.4 if one.arm == "optimised" else 0.1) for one in records]
    records[3] = attrs.evolve(records[3], ttft_s=None)
    seen = compared(records, measure=ttft_s)
    assert (seen.ratio, seen.pairs, seen.unpaired) == (0.25, 1, 2)


def test_a_base_of_zero_has_no_ratio():
    """Nothing is divided by 0: the difference is still known."""
    seen = compared(paired([(0.0, 1.0), (0.0, 2.0)]))
    assert (seen.ratio, seen.ratio_interval, seen.difference) == (None, None, 1.5)
    assert seen.savings.count == 0


def test_the_same_rollout_twice_is_an_error():
    """Two records of one rollout are two runs mixed, and refused by name."""
    records = paired([(1.0, 1.0)])
    with pytest.raises(ValueError, match=r"two records of append at .*, work w0, seed 3, block 0"):
        compared([*records, records[1]])


def test_the_last_digits_of_a_virtual_clock_are_no_difference():
    """An A/A run whose totals differ by rounding has no difference; one that differs by a thousandth has."""
    rounded, real = (
        compared(paired([(value, value * factor) for value in (1.0, 2.0, 3.0)]))
        for factor in (1 + 1e-14, 1.001)
    )
    assert (rounded.same, real.same) == (True, False)


def test_paired_lists_need_as_many():
    """The ratio of lists of different lengths is refused."""
    with pytest.raises(ValueError, match="2 values against 1"):
        ratio_of([1.0, 2.0], [1.0])
    assert ratio_of([], []) == (None, None)


def test_means_leave_out_what_was_not_measured():
    """None is no value: it lowers no mean, and of None only there is no mean."""
    mean, interval = mean_interval([1.0, None, 3.0], resamples=FEW)
    assert mean == 2.0
    assert interval.low < 2.0 < interval.high
    assert mean_interval([None]) == (None, None)
    assert mean_interval([5.0]) == (5.0, None)


def test_quantiles_count_what_is_missing():
    """Quantiles are of what was measured, interpolated between neighbours."""
    assert quantiles([*(float(value) for value in range(101)), None]) == Quantiles(
        101, 1, 10.0, 50.0, 90.0, 99.0
    )
    assert quantiles([None]) == Quantiles(0, 1, None, None, None, None)
    assert median([1.0, None, 2.0]) == 1.5
    assert quantile([], 0.9) is None


def test_savings_of_single_pairs_are_a_distribution():
    """Beside the ratio of totals stands how it spreads over rollouts."""
    seen = compared(paired([(10.0, 10.0 - saved) for saved in range(11)]))
    assert (seen.savings.p10, seen.savings.p50, seen.savings.p90) == pytest.approx((0.1, 0.5, 0.9))


def test_intervals_that_are_judged_together_are_wider():
    """The interval of one of five comparisons holds that of the comparison alone, and more."""
    records = paired([(10.0 + number, 10.0 + number + number % 3) for number in range(20)])
    alone, together = (compared(records, of=of).ratio_interval for of in (1, 5))
    assert together.low < alone.low < alone.high < together.high


def test_three_units_on_one_side_do_not_exclude_the_truth():
    """One case in four has all three on one side: an interval within what was measured would exclude 1 each time."""
    interval = compared(paired([(10.0, 9.99), (10.0, 9.98), (10.0, 9.97)]), of=3).ratio_interval
    assert interval.low < 1.0 < interval.high
