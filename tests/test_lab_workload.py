"""Rollouts as numbers: from published quantiles and from files, by seed."""

import json
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.lab import published, workload
from demos.lab.workload import Step, Work, WorkloadError

TRACES = Path(__file__).parents[2] / "shared" / "traces"

ROW = {
    "id": "a",
    "ctx0": 100,
    "steps": [[10, 5, 2.0, 9.0, 110], [40, 6, 0.5, 9.0, 125], [20, 7, None, 9.0, 130]],
}


def works(*rows, **options):
    """Of lines of a file."""
    return list(workload.works_of([json.dumps(row).encode() for row in rows], "x.jsonl", **options))


# --- published -----------------------------------------------------------------------------------------------------


def test_overheads_follow_from_the_timings():
    """The two published overheads are what OpenAI's ten timings leave at 65 tokens/s."""
    alpha, rate = published.ALPHA, published.TOKENS_PER_SECOND
    found = [
        round(alpha.overhead_seconds(each, rate), 3) for each in (alpha.http_seconds, alpha.websocket_seconds)
    ]
    assert found == [published.OVERHEAD_SECONDS["http"], published.OVERHEAD_SECONDS["create"]]


def test_interval_of_the_timings_is_a_bootstrap():
    """The stated interval of their saving is what drawing the runs again gives."""
    source, alpha = random.Random(0), published.ALPHA
    savings = sorted(
        1
        - statistics.fmean(source.choices(alpha.websocket_seconds, k=5))
        / statistics.fmean(source.choices(alpha.http_seconds, k=5))
        for _ in range(20_000)
    )
    assert (savings[500], savings[-501]) == pytest.approx(published.ALPHA_SAVING_INTERVAL, abs=0.003)


def test_every_source_is_named():
    """No number stands without a source that is listed."""
    assert {published.ALPHA.source, published.FITTED.source} <= published.SOURCES.keys()
    assert all(report.where and report.conditions for report in published.REPORTS)


def test_reports_are_from_the_largest_to_none():
    """All that the claim map shows: from 40 % to 0 %."""
    shares = [report.saving for report in published.REPORTS]
    assert shares == sorted(shares, reverse=True)
    assert {0.40, 0.39, 0.30, 0.29, 0.20, 0.12, 0.0} <= set(shares)


@pytest.mark.parametrize(
    "quantiles", [published.CONTEXT_TOKENS, published.CALLS, published.CALL_SECONDS_WITH_TAIL]
)
def test_quantiles_grow(quantiles):
    """Probabilities and values of a distribution both grow."""
    probabilities, values = zip(*quantiles, strict=True)
    assert list(probabilities) == sorted(set(probabilities))
    assert list(values) == sorted(values)


def test_tool_times_have_the_published_mean_and_tail():
    """What is drawn has the mean of the source, and about its share of calls over a minute and of their time."""
    source = random.Random(0)
    seconds = [published.drawn(source, published.CALL_SECONDS_WITH_TAIL) for _ in range(100_000)]
    long = [each for each in seconds if each > 60]
    assert statistics.fmean(seconds) == pytest.approx(published.CALL_SECONDS_MEAN, rel=0.05)
    assert len(long) / len(seconds) == pytest.approx(0.0397, abs=0.015)
    assert sum(long) / sum(seconds) == pytest.approx(0.8468, abs=0.03)


@pytest.mark.parametrize(("at", "value"), published.SAMPLED_TOKENS)
def test_drawn_meets_each_quantile(at, value):
    """At a published probability the draw is the published value."""

    class At(random.Random):
        def uniform(self, low, high):
            return at

    assert published.drawn(At(), published.SAMPLED_TOKENS) == pytest.approx(value)


# --- work ----------------------------------------------------------------------------------------------------------


def test_contexts_hold_what_was_sent_and_sampled():
    """Each call reads the history, all that was sent and all that was sampled before it."""
    work = Work("w", 100, (Step(10, 5, 1.0), Step(20, 6, 0.0)))
    assert list(work.contexts()) == [110, 135]
    assert (work.calls, work.sampled_tokens, work.tool_seconds) == (1, 11, 1.0)


@pytest.mark.parametrize(
    "make",
    [lambda: Step(-1, 0, 0.0), lambda: Step(0, 0, float("nan")), lambda: Work("w", -1, (Step(0, 0, 0),))],
)
def test_negative_numbers_are_refused(make):
    """No token and no second is negative, or no number."""
    with pytest.raises(WorkloadError, match="must be 0 or more"):
        make()


def test_rollout_without_steps_is_refused():
    """Something is sampled in each rollout."""
    with pytest.raises(WorkloadError, match="at least one step"):
        Work("w", 0, ())


def test_uniform_has_one_step_more_than_calls():
    """The last step has no tool after it."""
    work = workload.uniform(2, 50, new_tokens=3, sampled_tokens=4, tool_seconds=1.5)
    assert work == Work("uniform-2-50", 50, (Step(3, 4, 1.5), Step(3, 4, 1.5), Step(3, 4, 0.0)))


@given(seed=st.integers(0, 2**32), number=st.integers(0, 99), spread=st.floats(0.01, 0.9))
def test_varied_ones_are_of_the_same_kind(seed, number, spread):
    """As many calls after the same history, and lengths within both draws; the same seed and number give the same one."""
    work = workload.uniform(5, 1_000, new_tokens=200, sampled_tokens=100, tool_seconds=2.0)
    other = workload.varied(work, spread, number, seed)
    assert other == workload.varied(work, spread, number, seed)
    assert (other.calls, other.history_tokens, other.tool_seconds) == (5, 1_000, 10.0)
    low, high = (1 - spread) ** 2, (1 + spread) ** 2
    assert all(round(200 * low) <= step.new_tokens <= round(200 * high) for step in other.steps)
    assert all(round(100 * low) <= step.sampled_tokens <= round(100 * high) for step in other.steps)


def test_varied_ones_are_as_long_as_what_they_vary_in_the_mean():
    """And no two are alike."""
    work = workload.uniform(30, 0, new_tokens=200, sampled_tokens=20)
    others = [workload.varied(work, 0.3, number, 0) for number in range(300)]
    assert statistics.fmean(one.sampled_tokens for one in others) == pytest.approx(31 * 20, rel=0.03)
    assert len({one.steps for one in others}) == 300


def test_uniform_refuses_negative_calls():
    """A rollout has no fewer than no calls."""
    with pytest.raises(WorkloadError, match="calls is -1"):
        workload.uniform(-1, 0)


# --- built in ------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), least=st.integers(1, 60))
def test_built_in_is_a_function_of_its_seed(seed, least):
    """The same seed gives the same rollouts, whatever number of them is asked for, and none with too few calls."""
    drawn = workload.built_in(4, seed, min_calls=least)
    assert drawn == workload.built_in(5, seed, min_calls=least)[:4]
    assert all(least <= work.calls <= 91 for work in drawn)


def test_built_in_has_the_published_medians():
    """Half of the rollouts have more than three calls; half of the steps sample more than 219 tokens."""
    drawn = workload.built_in(2_000, 0, scenario="Z")
    assert statistics.median(work.calls for work in drawn) == pytest.approx(3, abs=1)
    sampled = statistics.median(step.sampled_tokens for work in drawn for step in work.steps)
    assert sampled == pytest.approx(219, rel=0.05)


def test_most_calls_is_a_bound():
    """Longer rollouts are cut."""
    assert max(work.calls for work in workload.built_in(200, 0, max_calls=5)) == 5


@pytest.mark.parametrize("options", [{"min_calls": 92}, {"min_calls": 5, "max_calls": 4}])
def test_impossible_numbers_of_calls_are_refused(options):
    """The quantiles end somewhere."""
    with pytest.raises(WorkloadError, match="the built-in has up to 91"):
        workload.built_in(1, 0, **options)


# --- scenarios and selection ---------------------------------------------------------------------------------------


def test_scenarios_change_tool_times_only():
    """A leaves them, B draws them by seed, Z has none; the last step never has one."""
    (work,) = works(ROW)
    drawn = workload.with_scenario(work, "B", 7)
    assert workload.with_scenario(work, "A", 7) == work
    assert drawn == workload.with_scenario(work, "B", 7) != workload.with_scenario(work, "B", 8)
    assert drawn.steps[-1].tool_seconds == 0.0 < drawn.steps[0].tool_seconds
    assert workload.with_scenario(work, "Z", 7).tool_seconds == 0.0
    assert [step.sampled_tokens for step in drawn.steps] == [step.sampled_tokens for step in work.steps]


def test_unknown_scenario_is_refused():
    """The message names those that there are."""
    with pytest.raises(WorkloadError, match="there are A, B, Z"):
        workload.with_scenario(works(ROW)[0], "C", 0)


def test_selection_hangs_on_the_seed():
    """So many, in their order, the same for the same seed."""
    drawn = workload.built_in(50, 0)
    chosen = workload.selected(drawn, 10, 3)
    assert chosen == workload.selected(drawn, 10, 3) != workload.selected(drawn, 10, 4)
    assert chosen == [work for work in drawn if work in chosen]
    assert workload.selected(drawn, 50, 3) == drawn


# --- files ---------------------------------------------------------------------------------------------------------


def test_line_becomes_a_rollout():
    """What the client sends is the growth of the context without the output; where that is negative, nothing."""
    # contexts 110, 125, 130; outputs 5, 6: so 125 - 110 - 5 = 10 were sent, then 130 - 125 - 6 < 0
    assert works(ROW) == [Work("a", 100, (Step(10, 5, 2.0), Step(10, 6, 0.5), Step(0, 7, 0.0)))]


def test_without_a_context_what_missed_the_cache_was_sent():
    """Files of three columns have nothing better."""
    row = {"id": "a", "ctx0": 0, "steps": [[10, 5, 2.0], [40, 6, None]]}
    assert works(row) == [Work("a", 0, (Step(10, 5, 2.0), Step(40, 6, 0.0)))]


def test_fewer_calls_are_left_out():
    """Only rollouts with enough calls are read; empty lines are none."""
    assert works(ROW, min_calls=3) == []
    assert list(workload.works_of([b"\n"], "x.jsonl")) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "line 2: it is no object"),
        ({**ROW, "id": 3}, "line 2: id is 3; it must be a text"),
        ({**ROW, "ctx0": -1}, "line 2: ctx0 is -1; it must be a whole number"),
        ({**ROW, "ctx0": True}, "line 2: ctx0 is True"),
        ({**ROW, "steps": []}, "line 2: steps is"),
        ({**ROW, "steps": [[1, 2]]}, r"line 2: steps\[0\] is \[1, 2\]; it must be \[new_in, out, tool_s"),
        ({**ROW, "steps": [[1, -2, None]]}, r"line 2: steps\[0\]\[1\] \(out\) is -2"),
        ({**ROW, "steps": [[1, 2, "3"], [1, 2, None]]}, r"line 2: steps\[0\]\[2\] \(tool_s\) is '3'"),
        (
            {**ROW, "steps": [[1, 2, None], [1, 2, None]]},
            r"steps\[0\]\[2\] \(tool_s\) is not known; take scenario",
        ),
        ({**ROW, "steps": [[1, 2, 1.0, None, 1.5]]}, r"line 2: steps\[0\]\[4\] \(context\) is 1.5"),
        ({**ROW, "t0": 1.0}, "line 2: it has a t0"),
    ],
)
def test_errors_name_line_and_field(row, message):
    """Whoever wrote the file finds the place."""
    with pytest.raises(WorkloadError, match=f"x.jsonl, {message}" if message.startswith("line") else message):
        works(ROW, row)


def test_line_that_is_no_json_is_named():
    """A torn line is no rollout."""
    with pytest.raises(WorkloadError, match=r"x\.jsonl, line 1: no JSON"):
        list(workload.works_of([b'{"id"'], "x.jsonl"))


@pytest.mark.parametrize("scenario", ["B", "Z"])
def test_unknown_tool_times_do_not_matter_where_they_are_not_asked_for(scenario):
    """Drawn or none: the file need not know them."""
    row = {"id": "a", "ctx0": 0, "steps": [[1, 2, None], [1, 2, None]]}
    (work,) = works(row, scenario=scenario)
    assert (work.tool_seconds > 0) == (scenario == "B")


def test_the_main_file_is_read_whole():
    """3,671 rollouts with at least one call each; 643 have twenty and more."""
    path = TRACES / "claude_code_kvct.jsonl"
    if not path.exists():
        pytest.skip(f"no {path.name} beside this checkout")
    read = workload.read(path)
    assert len(read) == 3_671
    assert min(work.calls for work in read) == 1
    assert sum(work.calls >= 20 for work in read) == 643


@pytest.mark.parametrize(
    ("name", "count"),
    [("tracelab_examples", 5), ("swe_agent_demos", 4), ("tau_bench_airline_gpt4o", 200)],
)
def test_files_of_other_columns_are_read(name, count):
    """The columns after the third differ, and are taken as each file has them."""
    path = TRACES / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"no {path.name} beside this checkout")
    assert len(workload.read(path, scenario="Z")) == count
