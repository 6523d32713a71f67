"""The benchmarks run. What they measure is judged by people and by `python -m tests.bench.<name>`, never here."""

import subprocess
import sys

import pytest

from tests.bench.harness import MarkCounter, Spread, Verdicts, in_blocks, ratio


@pytest.mark.benches
@pytest.mark.parametrize(
    "name", ["events", "resume", "suspended", "growth", "stalled", "turns", "tap", "checker"]
)
def test_a_quick_run_ends_well_and_prints_ratios(name):
    """Each benchmark has a smoke run that succeeds whatever the machine's speed, and prints its ratios."""
    run = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{name}", "--quick"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "ratio" in run.stdout
    assert "target at most" in run.stdout


def test_a_mark_cut_between_chunks_is_counted_once():
    """However a stream is cut, each mark is counted exactly once."""
    stream = b"aXYbXYXYc"
    for size in range(1, len(stream) + 1):
        counter = MarkCounter(b"XY", b"c")
        for at in range(0, len(stream), size):
            counter.feed(stream[at : at + size])
        assert counter.counts == {b"XY": 3, b"c": 1}, size


def test_every_variant_runs_once_in_each_block_and_once_to_warm_up():
    """A block holds each variant once, and the first block is not among the results."""
    runs = []
    variants = {name: (lambda name=name: runs.append(name) or float(len(runs))) for name in "ab"}
    measured = in_blocks(variants, 3)
    assert [sorted(runs[at : at + 2]) for at in range(0, 8, 2)] == [["a", "b"]] * 4
    assert sorted(measured["a"] + measured["b"]) == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_a_ratio_is_taken_inside_a_block():
    """The ratio's median is that of the blocks' ratios, not the ratio of medians."""
    compared = ratio({"a": [1.0, 10.0, 4.0], "b": [2.0, 10.0, 1.0]}, "a", "b")
    assert compared == Spread((0.5, 1.0, 4.0))
    assert compared.median == 1.0


@pytest.mark.parametrize(("quick", "code"), [(False, 1), (True, 0)])
def test_a_missed_target_fails_the_run_unless_it_is_a_smoke_run(quick, code, capsys):
    """The exit code tells whether all targets were met."""
    verdicts = Verdicts(quick=quick)
    verdicts.at_most("met", 1.0, 2.0)
    verdicts.at_most("missed", 3.0, 2.0)
    assert verdicts.exit_code == code
    assert ("MISS" in capsys.readouterr().out) is not quick
