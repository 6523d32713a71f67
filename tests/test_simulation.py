"""Whole worlds in virtual time (`tests.worlds`): random programs over networks that fail, one seed each, the same every time.

After each run the checker has read the traces, and nothing is left.
More seeds: `SEEDS=20000` in the environment. One seed: the line that a failure prints.
"""

import logging
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.scenarios import findings
from tests.worlds import digest, run_seed

SEEDS = int(os.environ.get("SEEDS", "300"))
BATCHES = 20


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Samplers fail on purpose."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_happens_the_rules_hold(batch: int) -> None:
    """Over every seed: order, numbers, one end and one post-inference each, and no task, slot or sampling left."""
    for seed in range(batch, SEEDS, BATCHES):
        again = f'repeat it with: python -c "from tests.worlds import run_seed; from tests.scenarios import findings; print(findings(run_seed({seed}), may_be_empty=True))"'
        try:
            found = findings(run_seed(seed), may_be_empty=True)
        except BaseException as error:
            error.add_note(again)
            raise
        assert found == [], again


def test_one_seed_is_one_trace() -> None:
    """The same seed gives the same trace, byte for byte."""
    assert [digest(seed) for seed in range(10)] == [digest(seed) for seed in range(10)]


def test_one_seed_is_one_trace_in_another_process_too() -> None:
    """Nothing depends on the hashes of strings, which differ from process to process."""
    program = "from tests.worlds import digest; print(digest(3), digest(4))"
    found = [
        subprocess.run(
            [sys.executable, "-c", f"import logging; logging.disable(); {program}"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for hash_seed in ("1", "2")
    ]

    assert found[0] == found[1] == [digest(3), digest(4)]


def test_many_seeds_are_many_traces() -> None:
    """Hardly two seeds do the same."""
    assert len({digest(seed) for seed in range(40)}) > 37


def test_the_seeds_reach_what_they_should() -> None:
    """Over so many seeds each form, each ending and each hook occur: the simulation is no fair weather, and no mere storm."""
    endings: Counter[str] = Counter()
    forms: Counter[str] = Counter()
    hooks: Counter[str] = Counter()
    for seed in range(120):
        for report in run_seed(seed).reports:
            endings[report.ending] += 1
            forms[report.dialect] += 1
            hooks.update(report.hooks)

    wanted = {
        "completed",
        "abandoned",
        "disconnected",
        "expired",
        "failed",
        "max_output_tokens",
        "max_tool_calls",
        "drained",
        "steered",
    }
    assert wanted <= set(endings)
    assert min(forms[name] for name in ("append", "inject", "create", "http")) > 20
    assert min(hooks[name] for name in ("suspend", "resume", "accepted", "hosted")) > 20
