"""What shall happen in an exchange, as data: drawn here, written down by `protocol.strategies.writer`.

    Plan        one connection, observed more or less closely: rounds, one after the other
    Round       one turn on each of some lanes, at the same time, in a drawn order of their frames
    Turn        one create, and what becomes of it: refused, or a rollout
    Rollout     segments of items, with the client's moves at each pause, and one ending
    Item        its type, and its text in the pieces in which it is streamed

A plan says nothing that could be illegal: whatever is drawn here, the writer makes a legal stream of it.
So plans shrink freely, piece by piece, and what is left of one is short and still legal.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import attrs
from hypothesis import strategies as st

from protocol.strategies import values
from protocol.strategies.outputs import OUTPUT_OF, Call, Move, tool_output_programs

Dialect = Literal["http", "create", "inject", "append"]
Observed = Literal["frames", "tap", "engine"]
"""What is recorded besides frames: nothing, what a relay sees of connections, or all that the engine says."""

Ending = Literal[
    "completed", "length", "tool calls", "failed", "cancelled", "expired", "left", "disconnected", "steered"
]
Refusal = Literal["model", "unknown parent", "unknown output"]


# --- items -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Part:
    """A text within an item. `annotations`: how many of them, in an `output_text`."""

    type: Literal["output_text", "refusal", "reasoning_text", "summary_text"]
    pieces: tuple[str, ...] = ()
    annotations: int = 0


@attrs.frozen
class Item:
    """One output item. `parts` of a message or of reasoning; `pieces` of arguments or input; `result` of a hosted call."""

    type: Literal["message", "reasoning", "function_call", "custom_tool_call", "tool_search_call", "mcp_call"]
    parts: tuple[Part, ...] = ()
    name: str = "f"
    pieces: tuple[str, ...] = ()
    result: str | None = None
    failed: bool = False

    @property
    def is_call(self) -> bool:
        """Does the client have to answer it?"""
        return self.type in OUTPUT_OF


def _tuples(of: st.SearchStrategy[Any], low: int, high: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, min_size=low, max_size=high).map(tuple)


_pieces = values.pieces()
_json_pieces = values.pieces(values.arguments)
_texts = st.builds(Part, st.just("output_text"), _pieces, st.integers(0, 2)) | st.builds(
    Part, st.just("refusal"), _pieces
)
messages = st.builds(Item, st.just("message"), _tuples(_texts, 1, 2))
"""Messages of one or two parts, text or refusal. Shrinks to one empty text."""

reasonings = st.builds(
    lambda summary, content: Item("reasoning", (*summary, *content)),
    _tuples(st.builds(Part, st.just("summary_text"), _pieces), 0, 2),
    _tuples(st.builds(Part, st.just("reasoning_text"), _pieces), 0, 2),
)
"""Reasoning with summaries, raw text, both or neither. Shrinks to neither."""

client_calls = (
    st.builds(Item, st.just("function_call"), st.just(()), values.names, _json_pieces)
    | st.builds(Item, st.just("custom_tool_call"), st.just(()), values.names, _pieces)
    | st.just(Item("tool_search_call"))
)
"""Calls of a client's tools. Shrinks to `f({})`."""

hosted_calls = st.builds(
    Item, st.just("mcp_call"), st.just(()), values.names, _json_pieces, values.texts, st.booleans()
)
"""Calls of a tool that the server runs itself, which may fail. Shrinks to one that answers nothing."""

own_items = messages | reasonings | hosted_calls
"""Items that wait for nobody."""


# --- rollouts ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Segment:
    """What is sampled between two pauses, and what the client sends at its end."""

    items: tuple[Item, ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def calls(self) -> tuple[Item, ...]:
        """Those of its items that the client must answer."""
        return tuple(item for item in self.items if item.is_call)


@attrs.frozen
class Rollout:
    """All of one response; `number` makes its ids.

    `cut`: of the last item only so many events are sent, when the ending may come in the middle of one.
    `late`: the client answers once more when all is over.
    `stray`: an output is sent to a response that nobody knows.
    """

    number: int
    segments: tuple[Segment, ...] = ()
    ending: Ending = "completed"
    cut: int | None = None
    late: bool = False
    stray: bool = False


SUSPENDED_ENDINGS: Final = frozenset({"expired", "left"})
"""Endings of a rollout that waits for outputs."""

CUT_ENDINGS: Final = frozenset({"failed", "cancelled", "disconnected"})
"""Endings that may come in the middle of an item."""

_ALWAYS: Final = ("completed", "length", "failed", "cancelled", "tool calls")
_ENDINGS: Final[Mapping[Dialect, Sequence[Ending]]] = {
    "http": _ALWAYS,
    "create": (*_ALWAYS, "steered"),
    "inject": (*_ALWAYS, "left", "expired"),
    "append": (*_ALWAYS, "left", "expired"),
}
MAX_SEGMENTS: Final = 3


def _call_ids(number: int, segment: int, items: Sequence[Item]) -> list[Call]:
    """The calls of a segment as their outputs will name them."""
    calls = [item for item in items if item.is_call]
    return [Call(call_id(number, segment, place), item.type) for place, item in enumerate(calls)]


def call_id(number: int, segment: int, place: int) -> str:
    """The id of a call: of which response, segment, and which of its calls."""
    return f"call_{number}_{segment}_{place}"


@st.composite
def segments(draw: st.DrawFn, dialect: Dialect, number: int, place: int) -> Segment:
    """Segments that end in one to three calls, with text and thoughts between them, and all outputs in the end."""
    calls = draw(st.lists(client_calls, min_size=1, max_size=3))
    items: list[Item] = []
    for call in calls:
        items += [*draw(st.lists(own_items, max_size=1)), call]
    items += draw(st.lists(messages, max_size=1))
    if dialect not in ("append", "inject"):
        return Segment(tuple(items))
    program = tool_output_programs(
        _call_ids(number, place, items), form=dialect, response_id=f"resp_{number}"
    )
    return Segment(tuple(items), draw(program))


@st.composite
def rollouts(draw: st.DrawFn, dialect: Dialect, number: int, observed: Observed) -> Rollout:
    """Rollouts that are legal in a dialect, with every ending that can be told from what is recorded.

    `number` makes the ids. Shrinks to one response that is completed without having said anything.
    """
    endings = [*_ENDINGS[dialect], *(("disconnected",) if observed != "frames" and dialect != "http" else ())]
    ending: Ending = draw(st.sampled_from(endings))
    made: list[Segment] = []
    if dialect in ("append", "inject"):
        pauses = draw(st.integers(1 if ending in SUSPENDED_ENDINGS else 0, MAX_SEGMENTS - 1))
        made = [draw(segments(dialect, number, place)) for place in range(pauses)]
    if ending not in SUSPENDED_ENDINGS:
        last = draw(st.lists(own_items, max_size=2))
        if dialect in ("http", "create") and ending == "completed":
            last += draw(st.lists(client_calls, max_size=2))
        if ending == "length":
            last.append(draw(messages))
        if not (ending == "cancelled" and made and draw(st.booleans())):
            made.append(Segment(tuple(last)))
    elif ending == "left" and draw(st.booleans()):
        made[-1] = attrs.evolve(made[-1], moves=())
    cut = draw(st.none() | st.integers(0, 6)) if ending in CUT_ENDINGS else None
    late, stray = draw(st.booleans()), draw(st.integers(0, 3)) == 3
    return Rollout(number, tuple(made), ending, cut, late, stray)


# --- connections -------------------------------------------------------------------------------------------------


@attrs.frozen
class Turn:
    """One create on a lane. `parent`: which of the responses it may go on from, 0 = none. `warm_up`: samples nothing.

    `next`: of a steered rollout, its successor; else one whose create is sent while this one is sampled, and waits.
    """

    lane: str | None
    rollout: Rollout
    parent: int = 0
    refusal: Refusal | None = None
    warm_up: bool = False
    next: Rollout | None = None


@attrs.frozen
class Round:
    """Turns on different lanes at the same time. `order`: whose frame comes next, over and over."""

    turns: tuple[Turn, ...]
    order: tuple[int, ...] = ()


@attrs.frozen
class Plan:
    """One connection (of HTTP: one request after the other)."""

    dialect: Dialect
    observed: Observed
    rounds: tuple[Round, ...]


MAX_ROUNDS: Final = 3
OBSERVED: Final[Sequence[Observed]] = ("frames", "tap", "engine")
_REFUSALS: Final[Sequence[Refusal | None]] = (None, None, None, "model", "unknown parent", "unknown output")


@st.composite
def plans(draw: st.DrawFn, dialect: Dialect, observed: Observed | None = None) -> Plan:
    """Plans of up to three rounds on up to three lanes. Shrinks to one response that says nothing, frames only."""
    seen = draw(st.sampled_from(OBSERVED)) if observed is None else observed
    named = dialect != "http" and draw(st.booleans())
    lanes: list[str | None] = ["a", "b", None] if named else [None]
    rounds, number = [], 0
    for _ in range(draw(st.integers(1, MAX_ROUNDS))):
        turns = []
        for lane in lanes[: draw(st.integers(1, len(lanes)))]:
            number += 1
            rollout = draw(rollouts(dialect, number, seen))
            if rollout.ending in ("expired", "disconnected") and named:
                rollout = attrs.evolve(rollout, ending="left" if rollout.ending == "expired" else "cancelled")
            refusal = draw(st.sampled_from(_REFUSALS))
            warm = dialect == "create" and draw(st.integers(0, 3)) == 3
            more = None
            if dialect == "create" and (rollout.ending == "steered" or draw(st.integers(0, 3)) == 3):
                number += 1
                more = Rollout(number, (Segment(draw(_tuples(own_items, 0, 1))),))
            turns.append(Turn(lane, rollout, draw(st.integers(0, 3)), refusal, warm, more))
        rounds.append(Round(tuple(turns), draw(_tuples(st.integers(0, 2), 0, 12)) if len(turns) > 1 else ()))
    return Plan(dialect, seen, tuple(rounds))
