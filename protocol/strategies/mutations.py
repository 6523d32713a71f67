"""All mutations by name, and one of them drawn: a legal trace, one thing wrong with it, and the rule that says so."""

from collections.abc import Mapping
from typing import Final

import attrs
from hypothesis import assume
from hypothesis import strategies as st

from protocol.strategies.breaking import Mutation
from protocol.strategies.plans import Dialect
from protocol.strategies.session_mutations import SESSION
from protocol.strategies.stream_mutations import STREAM
from protocol.strategies.traces import traces
from protocol.strategies.writer import Trace

MUTATIONS: Final[Mapping[str, Mutation]] = {row.name: row for row in (*STREAM, *SESSION)}
"""All mutations by name."""


@attrs.frozen
class Mutated:
    """A broken trace, the name of what was done to it, and the rules of which a checker must report each."""

    trace: Trace
    name: str
    rules: tuple[str, ...]


@st.composite
def mutations(draw: st.DrawFn, trace: Trace) -> Mutated:
    """This trace, broken by one of `MUTATIONS` at one of the places where that can be done.

    A trace without any such place (it has no response at all) is passed over. Shrinks to the first row, the first place.
    """
    possible = [(row, sites) for row in MUTATIONS.values() if (sites := list(row.sites(trace)))]
    assume(possible)
    row, sites = draw(st.sampled_from(possible))
    return Mutated(row.apply(trace, draw(st.sampled_from(sites))), row.name, row.rules)


@st.composite
def broken_traces(draw: st.DrawFn, dialect: Dialect | None = None) -> Mutated:
    """A legal trace of any dialect, or of this one, and one mutation of it."""
    return draw(mutations(draw(traces(dialect))))
