"""Each demo runs as its README line says, tells its story, and is short."""

import subprocess
import sys

import pytest

from tests.command import ROOT, environment

LAST_LINES = {
    "one_tool": "is over: one response all along",
    "parallel_tools": "In the order of my calls I heard: slow, quick, middling.",
    "hosted_and_local": "It took 1 s, not 2.",
    "slow_human": "of 24.0 hours the response was suspended for 100.000%",
    "own_sampler": "I have read 6 words.",
    "fix_the_tests": "all 9 tests pass",
}


@pytest.mark.parametrize("name", LAST_LINES)
def test_runs(name):
    """A demo ends well, without a word on standard error."""
    process = subprocess.run(
        [sys.executable, "-m", f"demos.{name}"],
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.splitlines()[-1].endswith(LAST_LINES[name])


def test_all_are_run():
    """No demo is left out: all modules of the folder but the workshop are run here."""
    modules = {path.stem for path in (ROOT / "demos").glob("*.py")} - {"__init__", "workshop"}
    assert modules == set(LAST_LINES)


@pytest.mark.parametrize("name", LAST_LINES)
def test_is_short(name):
    """A demo has fewer than 60 lines."""
    assert len((ROOT / "demos" / f"{name}.py").read_text().splitlines()) < 60
