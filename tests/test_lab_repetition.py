"""A second run against the first: what is another design, which figures decide, and what the command says of it."""

import random
from pathlib import Path

import attrs
import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab.command import INVALID, OK, USAGE
from demos.lab.kept_results import named
from demos.lab.plan import Plan
from demos.lab.records import Rollout
from demos.lab.repetition import Repetition, lines, repetition
from demos.lab.results import ResultsFile
from demos.lab.runner import run_plan
from tests.lab_rollouts import CELL, ENVIRONMENT, SERVER, TURN, rollout
from tests.test_lab_command import said
from tests.test_lab_driver import SMALL, Watch

CONFIG = {
    "arms": ["optimised", "create", "append", "optimised#2"],
    "baseline": "optimised",
    "headline": "append",
}
SECONDS = {"optimised": 10.0, "create": 8.0, "append": 5.0, "optimised#2": 10.0}


def written(path: Path, records: list[Rollout], *, seed: int = 7, **config: object) -> Path:
    with ResultsFile.open(
        path,
        experiment="ladder",
        config=CONFIG | config,
        seed=seed,
        environment=ENVIRONMENT,
        began="2026-11-30T02:00:00Z",
    ) as file:
        for one in records:
            file.write(one)
    return path


def records(**shifted: float) -> list[Rollout]:
    """Four blocks that differ a little; an arm may be slower by so many seconds."""
    return [
        rollout(
            arm=arm,
            block=block,
            order=order,
            total_s=seconds + 0.1 * ((block + order) % 3) + shifted.get(arm, 0.0),
        )
        for block in range(4)
        for order, (arm, seconds) in enumerate(SECONDS.items())
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "first.jsonl", records())


def test_a_run_repeats_itself(run: Path) -> None:
    """No figure differs from itself, and each is within its own interval."""
    found = repetition(run, run)
    assert found.holds
    assert all(one.agrees and one.within for one in found.figures)
    asked = [one.question for one in found.figures]
    assert {(one.arm, one.measure) for one in asked if one.decides} == {
        ("append", "whole rollout"),
        ("append", "first token, first turn"),
        ("append", "first token, resumed turns"),
        ("optimised#2", "whole rollout"),
    }
    assert [*lines(found)][-1] == "the second run repeats the first"


def test_a_headline_that_moved_is_no_repetition(run: Path, tmp_path: Path) -> None:
    """It is marked, and the arms beside it do not decide."""
    moved = repetition(run, written(tmp_path / "moved.jsonl", records(append=2.0)))
    assert not moved.holds
    assert any(
        line.startswith("  differs   append against optimised, whole rollout") for line in lines(moved)
    )
    beside = repetition(run, written(tmp_path / "beside.jsonl", records(create=2.0)))
    assert beside.holds
    assert any(
        line.startswith("  (differs) create against optimised, whole rollout") for line in lines(beside)
    )
    assert [*lines(beside)][-3:-1] == [
        "4 of 4 headline figures agree; 4 of the second run's are within the first's own interval",
        "0 of 1 other figures agree; 0 of the second run's are within the first's own interval",
    ]


def measured(draw: random.Random, *, append: float = 5.0) -> list[Rollout]:
    """Five blocks in three cells, whose rollouts take a time that is off by about 2 %."""
    seconds = SECONDS | {"append": append}
    return [
        rollout(
            cell={**CELL, "calls": calls},
            arm=arm,
            block=block,
            order=order,
            total_s=draw.gauss(mean, 0.02 * mean),
        )
        for calls in (2, 4, 8)
        for block in range(5)
        for order, (arm, mean) in enumerate(seconds.items())
    ]


def test_runs_that_differ_by_chance_repeat_each_other(tmp_path: Path) -> None:
    """In at least nine of ten pairs, although in many of them a figure is outside of the first's own interval."""
    held = inside = 0
    for seed in range(40):
        draw = random.Random(seed)
        paths = [written(tmp_path / f"{seed}-{number}.jsonl", measured(draw)) for number in range(2)]
        found = repetition(*paths)
        held += found.holds
        inside += all(one.within for one in found.figures if one.question.decides)
    assert inside < 30
    assert held >= 36


def test_a_real_shift_is_found(tmp_path: Path) -> None:
    """Of some half-widths of the interval that a single run states, whatever the noise."""
    for seed in range(10):
        draw = random.Random(seed)
        first = written(tmp_path / f"{seed}-first.jsonl", measured(draw))
        second = written(tmp_path / f"{seed}-second.jsonl", measured(draw, append=5.6))
        assert not repetition(first, second).holds


def test_a_figure_without_an_interval_is_not_repeated(tmp_path: Path) -> None:
    """One block says nothing of its own spread: there is a difference, and no word on what it means."""
    path = written(tmp_path / "one.jsonl", [one for one in records() if one.block == 0])
    found = repetition(path, path)
    assert not found.holds
    assert any(line.startswith("  unknown   append against optimised") for line in lines(found))


def changed(records: list[Rollout], place: int, **changes: object) -> list[Rollout]:
    return [attrs.evolve(one, **changes) if at == place else one for at, one in enumerate(records)]


@pytest.mark.parametrize(
    ("second", "config", "told"),
    [
        (records()[:-1], {}, "only in the first"),
        (changed(records(), 1, order=3), {}, "place 1 in its block, and 3"),
        (changed(records(), 1, turns=(TURN,)), {}, "2 turns of 400 tokens, and 1 of 400"),
        (records(), {"seed": 8}, "seed: the first has 7, the second 8"),
        (records(), {"headline": "create"}, 'config.headline: the first has "append", the second "create"'),
    ],
)
def test_another_design_is_said_and_nothing_is_compared(
    run: Path, tmp_path: Path, second: list[Rollout], config: dict[str, object], told: str
) -> None:
    """Plan, seed, rollouts, order and work all belong to it."""
    found = repetition(run, written(tmp_path / "second.jsonl", second, **config))
    assert not found.holds
    assert found.figures == []
    assert any(told in line for line in found.design)


def test_a_rollout_that_failed_is_no_other_design(run: Path, tmp_path: Path) -> None:
    """It did what it could."""
    failed = changed(records(), 2, turns=(), total_s=None, error="it broke")
    assert repetition(run, written(tmp_path / "second.jsonl", failed)).design == []


def test_nothing_measured_is_nothing_repeated() -> None:
    """Without a figure that decides, no verdict is a good one."""
    assert not Repetition([], []).holds


def test_overhead_above_the_floors_is_a_headline_figure(tmp_path: Path) -> None:
    """Where floors were run."""
    cpu_ms = {"optimised": 26.0, "append": 12.0, "floor": 10.0, "floor-http": 6.0}
    measured = [
        rollout(arm=arm, block=block, server=attrs.evolve(SERVER, cpu_s=(ms + block % 2) / 1e3))
        for block in range(4)
        for arm, ms in cpu_ms.items()
    ]
    path = written(tmp_path / "turns.jsonl", measured, arms=[*cpu_ms])
    found = [one for one in repetition(path, path).figures if one.question.measure.startswith("server")]
    assert [(one.first.value, one.question.decides, one.agrees) for one in found] == [
        (pytest.approx(0.9), True, True)
    ]


def test_the_command_says_whether_a_run_was_repeated(tmp_path: Path) -> None:
    """Of directories and of files, with its exit code; in virtual time two runs of a seed are the same."""
    plan = Plan.parse(SMALL, "small", "small.toml")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        run_plan(plan, seed, "virtual", tmp_path / name / "results.jsonl", Watch())
    code, out, _ = said("compare", str(tmp_path / "a"), str(tmp_path / "b" / "results.jsonl"))
    assert (code, out.splitlines()[-1]) == (OK, "the second run repeats the first")
    code, out, _ = said("compare", str(tmp_path / "a"), str(tmp_path / "c"))
    assert code == INVALID
    assert "other design: seed: the first has 0, the second 1" in out
    code, _, err = said("compare", str(tmp_path / "a"), str(tmp_path / "nothing"))
    assert code in (USAGE, 1)
    assert "nothing" in err
    code, _, err = said("compare", *2 * [str(named("map").directory)])
    assert code == USAGE
    assert "is of map; compare is for experiments of arms" in err
