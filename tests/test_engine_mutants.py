"""The list of faults that the simulation must find; `.ci/run` tries them all."""

import pytest

from tests.engine_mutants import ENGINE_MUTANTS, EngineMutant, run_apart

BY_NAME = {mutant.name: mutant for mutant in ENGINE_MUTANTS}


@pytest.mark.parametrize("mutant", ENGINE_MUTANTS, ids=BY_NAME)
def test_each_fault_is_one_change_that_compiles(mutant: EngineMutant) -> None:
    """Its text stands once in its module, and what becomes of it is Python."""
    compile(mutant.source, mutant.module, "exec")


def test_there_are_many() -> None:
    """At least thirty, each with its own name."""
    assert len(BY_NAME) == len(ENGINE_MUTANTS) >= 30


def test_a_fault_is_found_by_its_rule() -> None:
    """In a process of its own, at the first world that shows it."""
    _, found, said = run_apart(BY_NAME["post-inference runs twice"])

    assert found
    assert said.startswith("S10 at seed ")
