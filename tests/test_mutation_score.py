"""The checker notices what is changed: the share of mutants that it finds, and that those it passes say nothing wrong."""

import pytest

from protocol.strategies import violations
from tests import mutation_score
from tests.legal_mutants import REASONS, reason_of
from tests.mutants import DIALECTS, OPERATORS, clean_traces, mutants_of, sampled, vector_traces
from tests.mutation_score import SAMPLE, is_found, report, score

LEAST = 0.97


@pytest.fixture(scope="module")
def scores():
    return {dialect: score(sampled(dialect, SAMPLE)) for dialect in DIALECTS}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_traces_are_clean(dialect):
    """The traces that are changed break no rule before."""
    assert [
        found for trace in clean_traces()[dialect] for found in violations(trace, mutation_score.PROFILE)
    ] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_changes_are_noticed(scores, dialect):
    """Of the mutants that change meaning at least 97 of 100 are found."""
    print("\n".join(report({dialect: scores[dialect]})))
    assert scores[dialect].share >= LEAST


def test_every_operator_is_used_on_every_dialect(scores):
    """The score is one over all operators: none of them was without mutants."""
    assert [
        (dialect, operator)
        for dialect in DIALECTS
        for operator in OPERATORS
        if not scores[dialect].found[operator]
    ] == []


def test_reasons_are_used():
    """Each reason explains some survivor: none is there in advance."""
    if not vector_traces():
        pytest.skip("some reasons occur only in the published vectors, and these are not here")
    open_ones = set(REASONS)
    for mutant in every_mutant():
        reason = reason_of(mutant)
        if reason in open_ones and not is_found(mutant):
            open_ones.discard(reason)
        if not open_ones:
            break
    assert open_ones == set()


def every_mutant():
    for dialect in DIALECTS:
        for trace in clean_traces()[dialect]:
            yield from mutants_of(trace)


def test_reasons_are_narrow():
    """Reasons hide little of what the checker finds: of the mutants that it finds fewer than one in twenty has one."""
    mutants = [
        mutant for dialect in DIALECTS for mutant in sampled(dialect, 2000)
    ]  # with 500 the share is 3 to 5 %
    found = [mutant for mutant in mutants if is_found(mutant)]
    assert sum(reason_of(mutant) is not None for mutant in found) < len(found) / 20


def test_a_blind_checker_has_no_score(monkeypatch):
    """If the checker found nothing, the score would say so."""
    monkeypatch.setattr(mutation_score, "violations", lambda _trace, _profile: [])
    assert score(sampled("http", 200)).share < 0.2
