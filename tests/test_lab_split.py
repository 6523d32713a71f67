"""demos.lab.split, bound and turn_kinds: where a rollout's time goes, what no form can save, and which turns are which."""

import attrs
import pytest

from tests.lab_rollouts import SERVER, TURN, rollout

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab.bound import bound_sections, bounds
from demos.lab.budget_plot import Budget, budgets
from demos.lab.records import Tokens, cell_key
from demos.lab.split import AVOIDABLE, MEANINGS, NEEDED, PARTS, costs_of, inputs_once, mean_split, split
from demos.lab.turn_kinds import first_and_resumed, first_kind, first_turn_s, opening_s, resumed_turn_s

CELL = {"tokens_per_second": 1000, "calls": 30, "history_tokens": 10_000, "tool": "Z", "rtt_ms": 30}
MODEL = {
    "first_token_ms": 5.0,
    "prefill_tokens_per_second": 100_000.0,
    "tick_ms": 1.0,
    "overhead_ms": {},
}
CONFIG = {
    "baseline": "optimised",
    "headline": "append",
    "arms": ["naive", "optimised", "append"],
    "cells": [{"axes": CELL, "repeats": 1, "model": MODEL}],
}
# 100 tokens: 0.1 s; two turns: 0.01 s and 0.06 s; 1,000 tokens of input: 0.01 s. So 0.18 s of every form's time.
TURNS = (
    attrs.evolve(TURN, sent_s=0.06, first_s=0.12, done_s=0.17),
    attrs.evolve(TURN, sent_s=0.18, first_s=0.22, done_s=0.29),
)
APPEND = rollout(
    cell=CELL,
    late_s=0.001,
    total_s=0.3,
    turns=TURNS,
    tokens=Tokens(sampled=100, reused=1_000, computed=1_000),
    server=attrs.evolve(SERVER, wall_ns=230_000_000, stages={"suspended": 90_000_000, "sample": 120_000_000}),
)


def one_of(arm: str, total_s: float, block: int = 0, **changes: object):
    """A rollout of the same work in another arm."""
    return attrs.evolve(APPEND, arm=arm, total_s=total_s, block=block, **changes)


NAIVE_TOKENS = Tokens(sampled=100, reused=0, computed=2_000)
RECORDS = [
    one
    for block in (0, 1)
    for one in (
        one_of("naive", 0.8, block, connections=2, tokens=NAIVE_TOKENS),
        one_of("optimised", 0.35, block),
        one_of("append", 0.3, block),
    )
]
CELLS = {cell_key(CELL): RECORDS}
NAMES = {cell_key(CELL): "1,000 tokens/s"}


def test_a_rollout_is_the_sum_of_its_parts():
    """Model, network and tools by the plan, client and server by their clocks, and what is left: nothing is counted twice."""
    found = split(APPEND, MODEL, 1_000)
    assert found is not None
    assert found.parts == pytest.approx(
        {
            "decoding": 0.1,
            "first token": 0.01,
            "reading new input": 0.01,
            "round trips": 0.06,
            "tools": 0.0,
            "added overhead": 0.0,
            "reading again": 0.0,
            "opening": 0.06,
            "client": 0.001 + 0.01 + 0.01,
            "server": 0.14 - 0.12,
            "delivery": 0.3 - 0.18 - 0.06 - 0.021 - 0.02,
        }
    )
    assert found.total_s == pytest.approx(0.3)
    assert found.needed_s == pytest.approx(0.18)
    assert set(MEANINGS) == set(PARTS) == {*NEEDED, *AVOIDABLE}


def test_what_the_plan_adds_to_a_form_can_be_saved():
    """It is no part of the bound, and it is not the server's either, though the model is where it is waited for."""
    added = split(APPEND, {**MODEL, "overhead_ms": {"append": 5.0, "naive": 50.0}}, 1_000)
    plain = split(APPEND, MODEL, 1_000)
    assert added is not None
    assert plain is not None
    assert added.parts["added overhead"] == pytest.approx(2 * 0.005)
    assert added.parts["server"] == pytest.approx(plain.parts["server"] - 2 * 0.005)
    assert added.needed_s == plain.needed_s
    assert added.total_s == pytest.approx(plain.total_s)


def test_what_is_read_again_can_be_saved():
    """Each connection over HTTP takes a round trip, and tokens that were read before are no part of the bound."""
    found = split(RECORDS[0], MODEL, inputs_once(RECORDS)[RECORDS[0].key.pair])
    assert found is not None
    assert found.needed_s == pytest.approx(0.18)
    assert found.parts["reading again"] == pytest.approx(0.01)
    assert found.parts["opening"] == pytest.approx(2 * 0.03)


@pytest.mark.parametrize(("tool", "tools_s"), [("Z", 0.0), (0.004, 0.004), ("B", 0.01)])
def test_tools_are_what_the_cell_says(tool, tools_s):
    """Of time between turns as much as was planned is the tool's; where it was drawn, all of it."""
    found = split(attrs.evolve(APPEND, cell={**CELL, "tool": tool}), MODEL, 1_000)
    assert found is not None
    assert found.parts["tools"] == pytest.approx(tools_s)
    assert found.parts["tools"] + found.parts["client"] == pytest.approx(0.021)


def test_each_rollout_is_measured_by_its_own_input():
    """Where rollouts of a cell differ in length, what a long one must read is not taken for reading again."""
    long = Tokens(sampled=100, reused=0, computed=4_000)
    records = [*RECORDS, one_of("optimised", 0.4, 2, tokens=long), one_of("append", 0.35, 2, tokens=long)]
    found = mean_split(records, "append", MODEL, inputs_once(records))
    assert found is not None
    assert found.parts["reading again"] == 0
    assert found.parts["reading new input"] == pytest.approx((0.01 + 0.01 + 0.04) / 3)


def test_what_did_not_end_has_no_parts():
    """A failed rollout is no time, and neither is one that broke a rule."""
    assert split(attrs.evolve(APPEND, total_s=None), MODEL, 1_000) is None
    assert mean_split([attrs.evolve(APPEND, valid=False)], "append", MODEL, {}) is None
    with pytest.raises(KeyError):
        costs_of(CONFIG, cell_key({**CELL, "rtt_ms": 31}))


def test_the_bound_is_what_is_left_without_all_that_can_be_saved():
    """0.18 of 0.35 s have to be: at most 48.6 % can be saved, of which 0.05 of 0.17 s are."""
    [found] = bounds(CELLS, NAMES, CONFIG)
    assert found.bound == pytest.approx(1 - 0.18 / 0.35)
    assert found.taken == pytest.approx(0.05 / 0.17)
    assert found.bound_without_network == pytest.approx(1 - 0.12 / 0.29)
    assert found.saving.saving == pytest.approx(1 - 0.3 / 0.35)
    assert found.target == 0.40
    assert found.besides_decoding_ms(0.3) == pytest.approx(100)
    assert found.base_needed_s(0.40, 0.3) == pytest.approx(0.5)


def test_the_report_says_why_a_saving_was_missed():
    """With bound, saving, and what each response would have to cost for the expected one; the rest is a table of the parts."""
    why, conditions = bound_sections(CELLS, NAMES, CONFIG, "results.jsonl")
    assert why.title == "Why append is not 40 % faster than optimised here"
    assert "at 1,000 tokens/s at most 48.6 % (append saves 14.3 %)" in why.sentence
    assert why.picture is not None
    assert why.table is not None
    assert [row[1] for row in why.table.rows] == ["naive", "optimised", "append"]
    assert "optimised spends 125 ms on a response besides decoding and append 100 ms" in conditions.sentence
    assert "40 % less would ask for a baseline of 200 ms, and of 100 ms even against" in conditions.sentence
    assert "Of naive HTTP append saves 62.5 % there." in conditions.sentence
    assert "29.4 % at 65 tokens/s" in conditions.sentence


def test_a_saving_that_was_reached_needs_no_excuse():
    """The bound is shown all the same."""
    fast = [attrs.evolve(one, total_s=0.19) if one.arm == "append" else one for one in RECORDS]
    why, _ = bound_sections({cell_key(CELL): fast}, NAMES, CONFIG, "results.jsonl")
    assert why.title == "The bound: what no form can save"


def test_nothing_is_expected_where_nothing_was_claimed():
    """Another speed, tool time or depth has a bound and no expected saving."""
    for change in ({"tokens_per_second": 65}, {"tool": 1.0}, {"calls": 3}):
        cell = {**CELL, **change}
        config = {**CONFIG, "cells": [{"axes": cell, "repeats": 1, "model": MODEL}]}
        records = [attrs.evolve(one, cell=cell) for one in RECORDS]
        sections = [*bound_sections({cell_key(cell): records}, {cell_key(cell): "c"}, config, "f")]
        assert [one.title for one in sections] == ["The bound: what no form can save"]
    assert [*bound_sections({cell_key(CELL): RECORDS[:1]}, NAMES, CONFIG, "f")] == []


def test_a_budget_is_the_same_picture_for_the_same_numbers():
    """And another one for another bound."""
    panels = [
        Budget(title="t", bars={"a": {"decoding": 1.0, "server": 0.5}}, bound_s=1.0, target_s=0.5, target="x")
    ]
    first = budgets(panels, NEEDED, AVOIDABLE, title="t").svg
    assert budgets(panels, NEEDED, AVOIDABLE, title="t").svg == first
    other = [attrs.evolve(panels[0], bound_s=1.2)]
    assert budgets(other, NEEDED, AVOIDABLE, title="t").svg != first


def test_first_turns_count_from_the_start_and_resumed_ones_from_sending():
    """The opening is in the first turn's time, and no first turn is in the mean of the resumed ones."""
    assert opening_s(APPEND) == 0.06
    assert first_turn_s(APPEND) == 0.12
    assert resumed_turn_s(APPEND) == pytest.approx(0.04)
    silent = attrs.evolve(APPEND, turns=(TURNS[0], attrs.evolve(TURNS[1], first_s=None)))
    assert resumed_turn_s(silent) is None
    assert [measure(attrs.evolve(APPEND, turns=())) for measure in (opening_s, first_turn_s)] == [None, None]


def test_only_a_first_turn_whose_history_went_ahead_is_warm():
    """Also where the arm ran twice."""
    kinds = [first_kind(arm) for arm in ("create-warm", "create-warm#2", "create", "naive")]
    assert kinds == ["warm", "warm", "cold", "cold"]


def test_the_kinds_of_turns_are_shown_beside_each_other():
    """Times of both for the two arms that are compared, savings with intervals, every arm in the table."""
    arms = ["naive", "optimised", "append"]
    section = first_and_resumed(RECORDS, arms, "optimised", "append", "1,000 tokens/s", "results.jsonl")
    assert "First turn: optimised 120.0 ms, append 120.0 ms (saving 0.0 %" in section.sentence
    assert "no difference shown); resumed turns: optimised 40.0 ms, append 40.0 ms" in section.sentence
    assert section.table is not None
    assert [row[:3] for row in section.table.rows] == [(arm, 2, "cold") for arm in arms]
    assert section.picture is not None


def test_an_arm_without_times_is_no_data():
    """It has a row, and no number in it."""
    failed = [attrs.evolve(one, total_s=None) if one.arm == "naive" else one for one in RECORDS]
    section = first_and_resumed(failed, ["naive", "optimised", "append"], "optimised", "append", "c", "f")
    assert section.table is not None
    assert section.table.rows[0] == ("naive", 0, "cold", *[None] * 9)
