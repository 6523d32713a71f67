"""Experiment files: what they mean, how they are refused, and the design that comes of them."""

import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from demos.lab.arms import ARMS, LADDER, arm_of
from demos.lab.plan import Plan, PlanError, experiments, packaged_text
from demos.lab.plan_fields import checked
from demos.lab.records import PairKey

WHOLE = """
title = "a title"
question = "a question?"
clock = "virtual"
arms = ["optimised", "append", "create", "inject", "optimised#2"]
baseline = "optimised"
headline = "append"
repeats = 3

[work]
source = "uniform"

[model]
first_token_ms = 5

[cell]
tokens_per_second = [65, 1000]
calls = [2, 3]
history_tokens = 100
new_tokens = 10
sampled_tokens = 10
rtt_ms = 30
tool = "Z"

[quick]
repeats = 1

[quick.cell]
calls = 1
"""


def plan_of(text: str, *, quick: bool = False) -> Plan:
    return Plan.parse(text, "mine", "mine.toml", quick=quick)


def test_cells_are_the_product_of_the_axes() -> None:
    """Two axes of two values each make four cells, with all other axes as they stand."""
    cells = [dict(cell.axes) for cell in plan_of(WHOLE).cells]
    assert [(cell["calls"], cell["tokens_per_second"]) for cell in cells] == [
        (2, 65),
        (2, 1000),
        (3, 65),
        (3, 1000),
    ]
    assert {cell["rtt_ms"] for cell in cells} == {30}


def test_each_block_has_every_arm_once_in_an_order_of_its_own() -> None:
    """A block is a permutation of the arms, `order` is the place in it, and the permutations differ."""
    plan = plan_of(WHOLE)
    blocks: dict[PairKey, list[str]] = defaultdict(list)
    for case in plan.cases(seed=7):
        assert case.order == len(blocks[case.key.pair])
        blocks[case.key.pair].append(case.arm)
    assert {tuple(sorted(arms)) for arms in blocks.values()} == {tuple(sorted(plan.arms))}
    assert len(blocks) == len(plan.cells) * 3
    assert len({tuple(arms) for arms in blocks.values()}) > 1


def test_the_same_seed_gives_the_same_design() -> None:
    """Rollouts and their order depend on file and seed alone."""
    first, second, other = ([case.key for case in plan_of(WHOLE).cases(seed)] for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_what_runs_first_is_a_whole_block_of_each_cell() -> None:
    """A run that is stopped has all cells equally often, up to one block."""
    blocks = [case.block for case in plan_of(WHOLE).cases(0)]
    assert blocks == sorted(blocks)


def test_quick_changes_what_it_names_and_nothing_else() -> None:
    """`--quick` takes its own repeats and axes over those of the file."""
    plan, quick = plan_of(WHOLE), plan_of(WHOLE, quick=True)
    assert {cell.repeats for cell in quick.cells} == {1}
    assert {cell.axes["calls"] for cell in quick.cells} == {1}
    assert {cell.axes["tokens_per_second"] for cell in quick.cells} == {65, 1000}
    assert quick.arms == plan.arms


def test_quick_may_have_cells_of_its_own() -> None:
    """They stand for all cells of the file, which without `--quick` are the plan."""
    text = WHOLE.replace("[quick.cell]\ncalls = 1", "[[quick.cells]]\ncalls = 1\n\n[[cells]]\ncalls = [4, 5]")
    assert {cell.axes["calls"] for cell in plan_of(text).cells} == {4, 5}
    assert {cell.axes["calls"] for cell in plan_of(text, quick=True).cells} == {1}


def test_parts_of_the_cells_have_their_own_repeats() -> None:
    """Each [[cells]] is a product by itself, with what it says over [cell]."""
    parts = "[[cells]]\ntokens_per_second = 65\nrepeats = 1\ntick_ms = 8\n[[cells]]\ntokens_per_second = [1000, 4000]\n"
    plan = plan_of(WHOLE.replace("[quick]\nrepeats = 1", f"{parts}[quick]"))
    seen = {(cell.axes["tokens_per_second"], cell.repeats, cell.model.tick_ms) for cell in plan.cells}
    assert seen == {(65, 1, 8), (1000, 3, 1.0), (4000, 3, 1.0)}


def test_how_fast_a_model_reads_is_an_axis_where_it_is_a_list() -> None:
    """Each of its values is a cell and the cost of that cell's model; a single one is a cost alone."""
    listed = plan_of(WHOLE.replace("first_token_ms = 5", "prefill_tokens_per_second = [1000, 1e9]"))
    seen = [
        (cell.axes["prefill_tokens_per_second"], cell.model.prefill_tokens_per_second)
        for cell in listed.cells
    ]
    assert sorted(seen) == sorted([(1000, 1000), (1e9, 1e9)] * 4)
    single = plan_of(WHOLE.replace("first_token_ms = 5", "prefill_tokens_per_second = 1000"))
    assert all("prefill_tokens_per_second" not in cell.axes for cell in single.cells)


def test_with_a_spread_each_block_has_a_rollout_of_its_own() -> None:
    """All arms of a block run the same one, a second run has the same ones, and they stay around the cell's lengths."""
    plan = plan_of(WHOLE.replace('source = "uniform"', 'source = "uniform"\nspread = 0.5'))
    works = {case.work.name: case.work for case in plan.cases(0)}
    assert len(works) == 2 * 3  # lengths of a rollout do not hang on the speed of its model
    by_pair: dict[PairKey, set[object]] = defaultdict(set)
    for case in plan.cases(0):
        by_pair[case.key.pair].add(case.work)
    assert {len(one) for one in by_pair.values()} == {1}
    assert works == {case.work.name: case.work for case in plan.cases(0)}
    steps = [step for work in works.values() for step in work.steps]
    assert all(2 <= step.sampled_tokens <= 23 for step in steps)
    assert len({step.sampled_tokens for step in steps}) > 3


@pytest.mark.parametrize(
    ("found", "written", "named"),
    [
        (
            'source = "uniform"',
            'source = "uniform"\nspread = 1',
            "mine.toml: work.spread is 1; it must be less than 1",
        ),
        ('source = "uniform"', 'source = "alpha"\nspread = 0.1', "mine.toml: work.spread is 0.1"),
        (
            "first_token_ms = 5",
            "prefill_tokens_per_second = []",
            "prefill_tokens_per_second is an empty list",
        ),
        ("first_token_ms = 5", "prefill_tokens_per_second = [0]", "prefill_tokens_per_second is 0"),
        ('clock = "virtual"', 'clock = "sun"', "mine.toml: clock is 'sun'"),
        ('"append", ', '"apend", ', "mine.toml: arms[1]: there is no arm 'apend'"),
        ('"append", ', '"optimised", ', "mine.toml: arms names an arm twice"),
        ('baseline = "optimised"', 'baseline = "naive"', "mine.toml: baseline is 'naive'"),
        ('headline = "append"', 'headline = "optimised"', "mine.toml: headline is 'optimised'"),
        (
            '"append", "create", "inject", "optimised#2"]',
            '"floor"]',
            "mine.toml: arms has nothing to compare with optimised",
        ),
        ("repeats = 3", "repeats = 3\nseeds = [0, 1, 0]", "mine.toml: seeds names a seed twice"),
        ("repeats = 3", "repeats = 0", "mine.toml: repeats is 0"),
        ("repeats = 3", "repeats = 10_000", "mine.toml: repeats: all cells, arms and seeds are 200,000"),
        ("[cell]", "[[cells]]\nrepeats = 0\n[cell]", "mine.toml: cells[0].repeats is 0"),
        ("[cell]", "[[cells]]\nrepets = 1\n[cell]", "mine.toml: cells[0].repets is unknown"),
        ("[cell]", "[cell]\ntick_ms = 0", "mine.toml: cell.tick_ms is 0"),
        ("first_token_ms = 5", "first_tokn_ms = 5", "mine.toml: model.first_tokn_ms is unknown; did you"),
        ("first_token_ms = 5", "overhead_ms = 5", "mine.toml: model.overhead_ms is 5; it must be a table"),
        ("[quick.cell]\ncalls = 1", "cell = 3", "mine.toml: quick.cell is 3; it must be a table"),
        (
            "calls = [2, 3]",
            "calls = 1_000_000_000",
            "mine.toml: cell.calls is 1000000000; it must be at most",
        ),
        ("repeats = 3", "repeats = 3\nrepeets = 4", "mine.toml: repeets is unknown; did you mean repeats?"),
        ('source = "uniform"', 'source = "dreams"', "mine.toml: work.source is 'dreams'"),
        ("rtt_ms = 30", "rtt_ms = -1", "mine.toml: cell.rtt_ms is -1"),
        ("rtt_ms = 30", "rtt_ms = true", "mine.toml: cell.rtt_ms is True"),
        ("rtt_ms = 30\n", "", "mine.toml: cell.rtt_ms is None"),
        ("rtt_ms = 30", "rtt_ms = []", "mine.toml: cell.rtt_ms is an empty list"),
        ("calls = [2, 3]", "calls = [2, 2]", "mine.toml: cells: two of them have the same axes"),
        ("calls = [2, 3]", "calls = 2.5", "mine.toml: cell.calls is 2.5"),
        ('tool = "Z"', 'tool = "Q"', "mine.toml: cell.tool is 'Q'"),
        ("first_token_ms = 5", "first_token_ms = nan", "mine.toml: model.first_token_ms is nan"),
        ("first_token_ms = 5", "overhead_ms = {append = 1}", "has nothing for create, inject, optimised"),
        ("[quick]", "[quick]\nbaseline = 1", "mine.toml: quick.baseline is unknown"),
        ("[cell]", "[cell", "mine.toml: no TOML"),
        ('title = "a title"', "", "mine.toml: title is None"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(found: str, written: str, named: str) -> None:
    """Whoever wrote the file learns which field it is and what it may be."""
    assert found in WHOLE
    with pytest.raises(PlanError) as error:
        plan_of(WHOLE.replace(found, written, 1))
    assert named in str(error.value)


ROLLOUT = '{"id": "a", "ctx0": 0, "steps": [[10, 5, 0.5], [10, 5, 0]]}\n'


@pytest.mark.parametrize(
    ("content", "more", "named"),
    [
        (None, "", "work.path is .*works.jsonl': No such file"),
        (2 * ROLLOUT, "", "work.path is .*works.jsonl': two of its rollouts have the same id"),
        (ROLLOUT, "min_calls = 5", "work has no rollout with so many calls"),
        ("", "", "work has no rollout"),
    ],
)
def test_rollouts_that_are_not_there_are_said_of_their_field(
    tmp_path: Path, content: str | None, more: str, named: str
) -> None:
    """Before anything runs, and whoever wrote the file learns which of its fields leads nowhere."""
    path = tmp_path / "works.jsonl"
    if content is not None:
        path.write_text(content)
    before, _, after = WHOLE.replace("uniform", f'file"\n{more}\npath = "{path}').partition("calls = [2, 3]")
    quick = after[after.index("rtt_ms") : after.index("[quick]")]
    with pytest.raises(PlanError, match=named):
        _ = [*plan_of(before + quick).cases(0)]


@pytest.mark.parametrize("name", ["model", "cell", "work", "quick"])
def test_a_value_where_a_table_belongs_is_named(name: str) -> None:
    """Whichever table it is."""
    with pytest.raises(PlanError, match=f"mine.toml: {name} is 3; it must be a table"):
        checked(tomllib.loads(WHOLE) | {name: 3}, "mine.toml", quick=False)


def test_what_quick_changes_is_named_there() -> None:
    """Its value is wrong, and not the one that it stands for."""
    for found, written, named in (
        ("calls = 1", "calls = -1", "mine.toml: quick.cell.calls is -1"),
        ("repeats = 1", "repeats = 0", "mine.toml: quick.repeats is 0"),
        (
            "[quick.cell]",
            "[[quick.cells]]\ncals = 1\n[quick.cell]",
            "mine.toml: quick.cells[0].cals is unknown",
        ),
        (
            "[quick.cell]",
            "[[quick.cells]]\ncalls = -1\n[[quick.cells]]",
            "mine.toml: quick.cells[0].calls is -1",
        ),
    ):
        with pytest.raises(PlanError) as error:
            plan_of(WHOLE.replace(found, written), quick=True)
        assert named in str(error.value)


def test_an_unknown_experiment_is_answered_with_those_there_are() -> None:
    """The error lists the packaged ones."""
    with pytest.raises(PlanError, match=r"there is no experiment 'ladders'; there are .*ladder"):
        Plan.load("ladders")


@pytest.mark.parametrize("name", experiments())
@pytest.mark.parametrize("quick", [False, True])
def test_each_packaged_experiment_can_be_read(name: str, quick: bool) -> None:
    """It has cases, and a control: some arm that runs twice, or both clocks, or a bound by computation."""
    plan = Plan.load(name, quick=quick)
    assert plan.headline != plan.baseline
    assert len({case.key for case in plan.cases(0)}) == sum(1 for _ in plan.cases(0)) > 0


def test_the_ladder_has_all_rungs_and_a_control() -> None:
    """It runs every rung at three speeds, and the optimised one twice; the warm-up, which is about the first token, beside those."""
    plan, first_token = Plan.load("ladder"), Plan.load("first-token")
    assert plan.arms == (*(arm for arm in LADDER if not arm_of(arm).warms_up), "optimised#2")
    assert {cell.axes["tokens_per_second"] for cell in plan.cells} == {65, 1000, 4000}
    assert {arm for arm in LADDER if arm_of(arm).warms_up} <= {*first_token.arms}


@pytest.mark.parametrize("name", experiments())
def test_each_axis_of_a_packaged_experiment_has_a_name_and_a_unit(name: str) -> None:
    """A plot along it says what is counted; rollouts of a file have no axis but their speed, network and tools."""
    sections = pytest.importorskip("demos.lab.sections", reason="the extra [lab] is not installed")
    axes = {axis for cell in Plan.load(name).cells for axis in cell.axes}
    assert axes <= {*sections.AXES}
    assert {axis for axis, (_, unit) in sections.AXES.items() if not unit} == {"calls"}


def test_a_plan_is_plain_data_in_the_head_of_a_result() -> None:
    """What a result file says of its plan is enough to tell two plans apart."""
    config = plan_of(WHOLE).config()
    assert config["cells"][0]["axes"]["calls"] == 2
    assert config != plan_of(WHOLE, quick=True).config()


def test_the_text_of_a_packaged_experiment_is_a_file_of_ones_own() -> None:
    """What `show` prints can be run."""
    assert Plan.parse(packaged_text("ladder"), "ladder", "x.toml") == Plan.load("ladder")


def test_an_arm_may_have_a_number() -> None:
    """A repetition has the row of what it repeats."""
    assert arm_of("append#2") is ARMS["append"]
