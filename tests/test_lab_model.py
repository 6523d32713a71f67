"""The arithmetic of forms: what OpenAI reported comes out of published constants, and every second is somebody's."""

import json
import math
import statistics
from argparse import ArgumentParser
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.lab import calibrate, published, workload
from demos.lab.ablation import ablation_of, modelled, shapley, waterfall
from demos.lab.model import ARM_SAVINGS, SAVINGS, Model, Tokens, World
from demos.lab.overhead import Sums, alpha_work, overhead_model_saving, overhead_model_seconds, sums_of
from demos.lab.workload import Step, Work

MAIN_FILE = Path(__file__).parents[2] / "shared" / "traces" / "claude_code_kvct.jsonl"

WORK = Work("w", 1_000, (Step(100, 10, 2.0), Step(200, 20, 0.0)))
"""Contexts 1,100 and 1,310: 2,410 in all, of which 1,300 are new."""

steps = st.builds(Step, st.integers(0, 5_000), st.integers(0, 500), st.floats(0, 100))
works = st.builds(
    Work, st.just("w"), st.integers(0, 100_000), st.lists(steps, min_size=1, max_size=8).map(tuple)
)
costs = st.floats(0, 1e-3)
worlds = st.builds(
    World,
    tokens_per_second=st.floats(1, 5_000),
    rtt_seconds=st.floats(0, 0.5),
    bytes_per_second=st.floats(1e4, 1e9),
    window_bytes=st.sampled_from([math.inf, 14_600.0]),
    preamble_bytes=st.integers(0, 50_000),
    fixed_seconds=st.floats(0, 1),
    opening_seconds=st.floats(0, 1),
    closing_seconds=st.floats(0, 1),
    validation_seconds_per_token=costs,
    classification_seconds_per_token=costs,
    tokenization_seconds_per_token=costs,
    prefill_seconds_per_token=costs,
    attention_seconds_per_token=costs,
)
savings_sets = st.frozensets(st.sampled_from(SAVINGS))


# --- by overhead ---------------------------------------------------------------------------------------------------


def test_sums_are_those_of_a_hand_count():
    """1,000 of history and 100 are read first, then 10 sampled and 200 sent more."""
    assert sums_of(WORK) == Sums(2, 30, 2.0, 2_410, 1_300)
    assert sums_of(WORK).resent_tokens == 1_110


def test_published_constants_give_what_openai_reported():
    """At 65 tokens/s the model saves 29 %, as OpenAI's ten timings, and at 1,000 the 41 % of the claim."""
    sums = sums_of(alpha_work())
    slow = overhead_model_saving(sums, "create", published.TOKENS_PER_SECOND)
    fast = overhead_model_saving(sums, "create", published.FAST_TOKENS_PER_SECOND)
    assert slow == pytest.approx(published.ALPHA.saving, abs=0.001)
    assert published.ALPHA_SAVING_INTERVAL[0] < slow < published.ALPHA_SAVING_INTERVAL[1]
    assert (round(100 * slow), round(100 * fast)) == (29, 41)
    assert overhead_model_seconds(sums, 1_000, published.OVERHEAD_SECONDS["http"]) == pytest.approx(
        14.41, abs=0.01
    )
    assert overhead_model_seconds(sums, 1_000, published.OVERHEAD_SECONDS["create"]) == pytest.approx(
        8.47, abs=0.01
    )


def test_small_rollouts_by_hand():
    """Three rollouts whose savings were worked out on paper."""
    # 65 tokens and one response: 1 s + 0.667 s against 1 s + 0.384 s
    assert overhead_model_saving(Sums(1, 65, 0.0, 0, 0), "create", 65) == pytest.approx(0.283 / 1.667)
    # the same with a tool of 8.333 s: 10 s in all
    assert overhead_model_saving(Sums(1, 65, 8.333, 0, 0), "create", 65) == pytest.approx(0.0283)
    # nothing sampled, 100,000 tokens of history, all of whose work is saved: 1.343 s of 2.01 s and the overhead
    found = overhead_model_saving(Sums(1, 0, 0.0, 100_000, 0), "suspended", 65, removable_share=1.0)
    assert found == pytest.approx((1.343 + 0.617) / 2.01)


def main_file(scenario):
    """The rollouts with at least 20 calls."""
    if not MAIN_FILE.exists():
        pytest.skip(f"no {MAIN_FILE.name} beside this checkout")
    return [sums_of(work) for work in workload.read(MAIN_FILE, scenario=scenario, min_calls=20)]


def test_the_map_of_real_rollouts():
    """p10, p50 and p90 of 643 real rollouts without tool time are those that were published for them."""
    sums = main_file("Z")
    expected = {
        ("create", 65): (2.5, 4.4, 6.9),
        ("suspended", 65): (5.4, 9.5, 15.0),
        ("create", 1_000): (20.7, 27.1, 31.7),
        ("suspended", 1_000): (45.2, 59.1, 69.2),
    }
    for (form, rate), shares in expected.items():
        deciles = statistics.quantiles(
            (overhead_model_saving(each, form, rate) for each in sums), n=10, method="inclusive"
        )
        assert [100 * deciles[index] for index in (0, 4, 8)] == pytest.approx(shares, abs=0.1)


@pytest.mark.parametrize(("rate", "share"), [(65, 1.6), (1_000, 2.5)])
def test_the_map_with_real_tool_times(rate, share):
    """With tool times drawn from TraceLab's quantiles next to nothing is left."""
    sums = main_file("B")
    median = statistics.median(overhead_model_saving(each, "create", rate) for each in sums)
    assert 100 * median == pytest.approx(share, abs=0.2)


@pytest.mark.parametrize(("rate", "share"), [(65, 20), (1_000, 67)])
def test_the_map_if_all_work_on_the_history_is_saved(rate, share):
    """That it is not known how much can be saved matters more than all else."""
    sums = main_file("Z")
    median = statistics.median(
        overhead_model_saving(each, "create", rate, removable_share=1.0) for each in sums
    )
    assert 100 * median == pytest.approx(share, abs=1.0)


# --- by savings ----------------------------------------------------------------------------------------------------


def test_naive_by_hand():
    """Each cost of `WORK` without any saving, summed up on paper."""
    world = World(
        tokens_per_second=10,
        rtt_seconds=0.1,
        bytes_per_second=1_000,
        bytes_per_token=1,
        envelope_bytes=5,
        preamble_bytes=20,
        fixed_seconds=0.25,
        opening_seconds=1.0,
        closing_seconds=3.0,
        validation_seconds_per_token=1e-3,
        classification_seconds_per_token=2e-3,
        tokenization_seconds_per_token=3e-3,
        prefill_seconds_per_token=4e-3,
        attention_seconds_per_token=5e-3,
    )
    model = Model(WORK, world)
    same = 30 / 10 + 2.0 + 2 * (0.1 + 0.25) + 2_410 * 5e-3
    # two connections; 2,410 tokens, two envelopes and two preambles; 10 ms a token in four stages; two responses
    assert model.seconds(frozenset()) == pytest.approx(same + 2 * 0.1 + 2.460 + 24.10 + 2 * 1.0 + 2 * 3.0)
    # one connection; 1,300 tokens, two envelopes, one preamble; one response, closed when the client has gone
    assert model.seconds(frozenset(SAVINGS)) == pytest.approx(same + 0.1 + 1.330 + 13.00 + 1.0)
    # overlap alone: the first closing hides 2 s behind the tool, the last wholly
    assert model.seconds(frozenset({"overlap"})) == pytest.approx(model.seconds(frozenset()) - 2.0 - 3.0)
    assert model.bytes_up(frozenset()) == 2_460
    assert model.tokens(frozenset({"kv", "bytes"})) == Tokens(0, 1_110, 1_110, 1_110, 0)


def test_a_long_history_waits_for_the_window_of_a_new_connection():
    """31 windows' worth of bytes need four round trips more: 1 + 2 + 4 + 8 + 16."""
    world = World(tokens_per_second=1, rtt_seconds=1.0, bytes_per_token=1, envelope_bytes=0, window_bytes=10)
    with_window = Model(Work("w", 310, (Step(0, 0, 0.0),)), world)
    without = Model(with_window.work, attrs.evolve(world, window_bytes=math.inf))
    assert with_window.seconds(frozenset()) - without.seconds(frozenset()) == 4.0


@given(work=works, world=worlds)
def test_each_arm_saves_what_the_one_before_it_does(work, world):
    """Down the ladder no rung is slower than the one above, but for the warm-up and the full history on a WebSocket."""
    model = Model(work, world)
    ladder = [model.arm_seconds(arm) for arm in ("naive", "naive-keep", "optimised", "create", "append")]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(ladder))
    assert model.arm_seconds("append") == model.arm_seconds("inject")
    assert model.arm_seconds("create-warm") >= model.arm_seconds("create")


@given(work=works, world=worlds, savings=savings_sets)
def test_first_tokens_are_a_part_of_the_whole(work, world, savings):
    """No call's first token comes later than the whole rollout takes, and the decoding of one token."""
    model = Model(work, world)
    whole = model.seconds(savings) + 1 / world.tokens_per_second
    first = [model.first_token_seconds(savings, step) for step in range(len(work.steps))]
    # bytes are whole numbers in the one and not in the other
    assert max(first) <= whole * (1 + 1e-9) + 1 / world.bytes_per_second


def test_first_token_of_a_long_history_is_what_optimising_improves():
    """At 50,000 tokens of history a prefix cache makes the first token of a later call come 45 % earlier and more."""
    model = Model(workload.uniform(10, 50_000), World.fitted(1_000, removable_share=0.5, rtt_seconds=0.03))
    naive, optimised = (model.first_token_seconds(ARM_SAVINGS[arm], step=5) for arm in ("naive", "optimised"))
    assert 1 - optimised / naive > published.TTFT_REPORT


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"tokens_per_second": 0}, "tokens_per_second is 0; it must be more than 0"),
        ({"tokens_per_second": 1, "rtt_seconds": -1}, "rtt_seconds is -1; it must be 0 or more"),
        ({"tokens_per_second": 1, "fixed_seconds": math.nan}, "fixed_seconds is nan"),
    ],
)
def test_impossible_worlds_are_refused(members, message):
    """Nothing runs backwards."""
    with pytest.raises(ValueError, match=message):
        World(**members)


def test_impossible_share_is_refused():
    """No more than all of it can be saved."""
    with pytest.raises(ValueError, match=r"removable_share is 1\.5"):
        World.fitted(65, removable_share=1.5)


@given(share=st.floats(0, 1))
def test_fitted_world_has_the_fitted_costs(share):
    """Whatever share can be saved: without any saving and a network it is the fitted cost of a call."""
    fitted = published.FITTED
    model = Model(WORK, World.fitted(fitted.tokens_per_second.value, removable_share=share))
    expected = (
        2 * fitted.fixed_seconds.value
        + 30 / fitted.tokens_per_second.value
        + 2_410 * (fitted.seconds_per_uncached_token.value + fitted.seconds_per_context_token.value)
        + 2.0
    )
    assert model.seconds(frozenset()) == pytest.approx(expected)


# --- ablation ------------------------------------------------------------------------------------------------------


@given(work=works, world=worlds)
def test_shares_add_up_to_the_whole(work, world):
    """Shapley's values, and both waterfalls, share out exactly what all savings save together."""
    found = modelled([work], world)
    about = pytest.approx(found.saved, rel=1e-9, abs=1e-6)
    assert math.fsum(found.shares.values()) == about
    assert sum(fall.saved for fall in found.waterfall) == about
    assert sum(fall.saved for fall in found.reverse) == about
    assert [fall.saving for fall in found.reverse] == list(SAVINGS[::-1])


def test_shares_of_a_glove_game():
    """A left glove is worth nothing without a right one: of two left and a right, the right one gets two thirds."""
    value = lambda chosen: -1.0 if "right" in chosen and len(chosen) > 1 else 0.0  # noqa: E731  # a table
    shares = shapley(value, ("left", "other left", "right"))
    assert shares == pytest.approx({"left": 1 / 6, "other left": 1 / 6, "right": 2 / 3})


def test_useless_saving_has_no_share():
    """What changes nothing gets nothing."""
    world = World(tokens_per_second=1, rtt_seconds=1.0)
    assert modelled([WORK], world).shares["kv"] == 0.0


def test_order_matters_where_savings_overlap():
    """What hides behind the tool need not be saved any more: the waterfalls disagree, and the share is between."""
    world = World(tokens_per_second=1, closing_seconds=1.0)
    found = modelled([WORK], world)
    first, last = (
        next(fall.saved for fall in falls if fall.saving == "overlap")
        for falls in (found.reverse, found.waterfall)
    )
    assert (first, last) == (2.0, 1.0)  # both closings; after routing there is one
    assert found.shares["overlap"] == 1.5


def test_values_are_asked_for_once():
    """A measured value is dear: each of the 2^n is asked for once, for shares and waterfalls together."""
    asked = []
    ablation_of(lambda chosen: asked.append(chosen) or float(len(chosen)), ("a", "b", "c"))
    assert len(asked) == len(set(asked)) == 8


def test_waterfall_goes_from_none_to_all():
    """Each bar begins where the one before it ended."""
    falls = waterfall(lambda chosen: 8.0 - len(chosen))
    assert [fall.before for fall in falls[1:]] == [fall.after for fall in falls[:-1]]
    assert (falls[0].before, falls[-1].after) == (8.0, 0.0)


# --- calibrate -----------------------------------------------------------------------------------------------------


def test_the_overhead_that_explains_the_timings():
    """OpenAI's own saving needs OpenAI's own overhead, if 0.384 s are left and the history costs nothing."""
    found = calibrate.calibrate(
        [attrs.evolve(sums_of(alpha_work()), context_tokens=0)], published.ALPHA.saving
    )
    assert found.needed[0].seconds == pytest.approx(published.OVERHEAD_SECONDS["http"], abs=0.001)
    assert (found.needed[0].low, found.explained) == (None, True)


@given(
    work=works,
    saving=st.floats(0, 0.95),
    rate=st.floats(10, 4_000),
    share=st.floats(0, 1),
    left=st.floats(0, 1),
)
def test_needed_overhead_gives_the_saving(work, saving, rate, share, left):
    """With what is needed a rollout saves as much; more only where the history alone does it."""
    sums = sums_of(work)
    options = {"removable_share": share, "left_seconds": left}
    needed = calibrate.needed_seconds(sums, saving, rate, **options)
    if sums.sampled_tokens + sums.tool_seconds + sums.context_tokens + needed == 0:
        return  # nothing takes any time
    found = calibrate.saving_with(sums, needed, rate, **options)
    assert found == pytest.approx(saving, abs=1e-6) if needed > left else found >= saving - 1e-6


def test_bound_is_said_where_tools_dominate():
    """No overhead that anybody saw makes 40 % of a rollout that waits for slow tools."""
    slow = sums_of(workload.uniform(20, 0, tool_seconds=30.0))
    found = calibrate.calibrate([slow] * 3, 0.40)
    assert not found.explained
    # at 1,000 tokens/s: 21 * (1.248 - 0.384) s of 2.1 + 600 + 21 * 1.248 s, without a term for the history
    assert found.needed[3].bound == pytest.approx(21 * 0.864 / (2.1 + 600 + 26.208 + 0.98), rel=0.01)
    verdict = [line for line in calibrate.lines_of(found) if "explains it" in line]
    assert len(verdict) == 1
    assert "the median rollout saves at most 3.0%" in verdict[0]
    assert "tools are 91% of the time" in verdict[0]


def test_interval_holds_the_estimate_and_is_seeded():
    """The same seed gives the same interval, and the median lies in it."""
    works = [sums_of(work) for work in workload.built_in(40, 0, scenario="Z", min_calls=20)]
    found = calibrate.calibrate(works, 0.3, draws=200)
    assert found == calibrate.calibrate(works, 0.3, draws=200)
    assert found != calibrate.calibrate(works, 0.3, draws=200, seed=1)
    assert all(each.low <= each.seconds <= each.high for each in found.needed)
    assert all(each.one_in_ten_seconds <= each.seconds for each in found.needed)
    assert found.needed[0].low < found.needed[0].high


@pytest.mark.parametrize(
    ("works", "saving", "options", "message"),
    [
        ([Sums(1, 1, 0.0, 1, 1)], 1.0, {}, "a saving of 100% is none"),
        ([Sums(1, 1, 0.0, 1, 1)], -0.1, {}, "a saving of -10% is none"),
        ([], 0.3, {}, "no rollout"),
        ([Sums(1, 1, 0.0, 1, 1)], 0.3, {"left_seconds": 2.0}, "--left 2 s"),
        ([Sums(1, 1, 0.0, 1, 1)], 0.3, {"rates": [0.0]}, "--tokens-per-second must be more"),
        ([Sums(1, 1, 0.0, 1, 1)], 0.3, {"rates": [65.0, math.nan]}, "--tokens-per-second must be more"),
        ([Sums(1, 1, 0.0, 1, 1)], 0.3, {"rates": [math.inf]}, "--tokens-per-second must be more"),
        ([Sums(1, 1, 0.0, 1, 1)], 0.3, {"most_seconds": math.inf}, "--most, inf s, which is finite"),
    ],
)
def test_impossible_questions_are_refused(works, saving, options, message):
    """The message says which number it is."""
    with pytest.raises(ValueError, match=message):
        calibrate.calibrate(works, saving, **options)


def asked(*words):
    """The command's exit code and lines."""
    parser = ArgumentParser()
    calibrate.add_arguments(parser)
    lines = []
    return calibrate.run(parser.parse_args(words), lines.append), lines


def test_command_explains_or_does_not():
    """Exit code 0 with an explanation, 1 with the bound."""
    code, lines = asked("29.3", "--calls", "20", "--sampled-tokens", "19", "--scenario", "Z")
    assert code == calibrate.EXPLAINED
    assert lines[0].startswith("a saving of 29.3%, of one rollout with 20 calls")
    assert any(line.startswith("explained from ") for line in lines)
    code, lines = asked("39", "--rollouts", "20")
    assert code == calibrate.NOT_EXPLAINED
    assert any("no form changes either" in line for line in lines)


def test_command_says_when_the_history_explains_it_alone():
    """Then no overhead of a response is needed."""
    code, lines = asked("5", "--rollouts", "20", "--scenario", "Z")
    assert code == calibrate.EXPLAINED
    assert any(line.startswith("explained without any overhead of a response") for line in lines)


def test_command_says_it_in_json(tmp_path):
    """One object, of a workload from a file."""
    file = tmp_path / "works.jsonl"
    file.write_text(json.dumps({"id": "a", "ctx0": 0, "steps": [[10, 100, 0.5], [10, 100, None]]}) + "\n")
    code, (line,) = asked("10", "--works", str(file), "--min-calls", "1", "--scenario", "A", "--json")
    said = json.loads(line)
    assert (code, said["rollouts"], said["calls"], said["explained"]) == (0, 1, [1, 1, 1], True)
    assert len(said["needed"]) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--works", "nowhere"], "--works nowhere: No such file"),
        (["--works", "."], r"--works \.: Is a directory"),
        (["--works", "/dev/null"], "/dev/null has no rollout of --min-calls 20"),
        (["--rollouts", "0"], "--rollouts 0 and --min-calls 20 must be at least 1 and 0"),
        (["--min-calls", "-1"], "--min-calls -1 must be at least 1 and 0"),
    ],
)
def test_command_says_what_leads_to_no_rollout(words, message):
    """As wrong usage: that no overhead explains a saving is another answer."""
    with pytest.raises(ValueError, match=message):
        asked("39", *words)


def test_command_refuses_two_workloads():
    """One or the other."""
    with pytest.raises(ValueError, match="exclude each other"):
        asked("10", "--works", "x", "--calls", "3")
