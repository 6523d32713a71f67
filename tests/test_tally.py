"""A tally counts by name, whatever was counted elsewhere before."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.tally import Tally

NAMES = st.sampled_from([f"name {number}" for number in range(9)])


def test_nothing_has_happened_at_first():
    """A new tally is empty, and each name has zero."""
    tally = Tally()

    assert {} == tally.as_dict()
    assert 0 == tally["of this nobody has heard"]


def test_what_happened_no_times_is_not_in_it():
    """A name that is counted zero times is as one that is not counted."""
    tally = Tally()
    tally("zero", 0)

    assert {} == tally.as_dict()


@given(st.lists(st.tuples(st.booleans(), NAMES, st.integers(0, 3))))
def test_two_tallies_count_as_two_counters_do(told: list[tuple[bool, str, int]]):
    """Names may come in any order and to any of them: each counts what it was told itself."""
    tallies, counters = (Tally(), Tally()), (Counter[str](), Counter[str]())
    for which, name, times in told:
        tallies[which](name, times)
        counters[which][name] += times

    assert [+counter for counter in counters] == [tally.as_dict() for tally in tallies]
    assert all(
        counter[name] == tally[name]
        for counter, tally in zip(counters, tallies, strict=True)
        for name in counter
    )


def test_names_are_told_in_alphabetical_order():
    """So that two processes which counted in another order report the same."""
    tally = Tally()
    for name in ("b", "c", "a"):
        tally(name)

    assert ["a", "b", "c"] == list(tally.as_dict())
