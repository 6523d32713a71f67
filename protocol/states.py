"""The state machines of a response. Two rules:

1. Everything that decides whether an event is legal, and what it leads to, is in this file.
2. This file does not know which side it is on: both peers walk the same tables, so they cannot disagree.

A response is a machine (`ResponseState`) coupled with the set of its *pending* calls: calls of client tools whose
`response.output_item.done` was sent and for which no output was accepted yet.

**A client's event is a request and never moves the state; the server's next event does.**
So an append or inject is legal in each state and leads back to it; resumption is marked by the first output event of
the next segment. Thus messages that cross on the wire commute: for each state, each client event `c` and each server
event `v` legal there, `c` then `v` ends where `v` then `c` ends (the diamond; tests walk it).

Terminal states have rows that accept what the client may have sent before it saw the end, and the server's *answers*
to that: `response.inject.failed` is numbered after the terminal event (recorded on the wire, reference 2.2).

The second table, `LEGAL_IF`, couples state and pending set. "Pending becomes non-empty" and "the state is SUSPENDED" are
one step: `Done` is legal only with a pending call, and the engine emits it without a checkpoint in between.

What was rejected: moving to SAMPLING on the client's append (breaks the diamond in six places), and a state for
"partly answered" (it would repeat the pending set).
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final


class ResponseState(Enum):
    """Where a response is. `IDLE`: not created yet."""

    __hash__ = object.__hash__  # `Enum` has one in Python, and every event is looked up by it

    IDLE = auto()
    SAMPLING = auto()
    SUSPENDED = auto()
    COMPLETED = auto()
    INCOMPLETE = auto()
    FAILED = auto()


class Kind(Enum):
    """What an event means to the machine; many wire types share a kind (`protocol.events` maps them)."""

    __hash__ = object.__hash__

    CREATED = auto()
    IN_PROGRESS = auto()
    OUTPUT = auto()
    """Any item or content event but a finished client call."""
    CALL_DONE = auto()
    """`response.output_item.done` of a client tool call: the call is pending from here on."""
    DONE = auto()
    """`response.done`: suspended, you may append."""
    COMPLETED = auto()
    INCOMPLETE = auto()
    FAILED = auto()
    APPEND = auto()
    INJECT = auto()
    INJECT_CREATED = auto()
    INJECT_FAILED = auto()
    STEER = auto()
    STEER_ACCEPTED = auto()
    STEER_PENDING = auto()
    STEER_FAILED = auto()


State = ResponseState
Table = Mapping[State, Mapping[Kind, State]]

CLIENT_KINDS: Final = frozenset({Kind.APPEND, Kind.INJECT, Kind.STEER})
ANSWER_KINDS: Final = frozenset({Kind.INJECT_FAILED, Kind.STEER_PENDING, Kind.STEER_FAILED})
"""Server kinds that are legal after the terminal event."""
TERMINAL: Final = frozenset({State.COMPLETED, State.INCOMPLETE, State.FAILED})
ENDS: Final = {
    Kind.COMPLETED: State.COMPLETED,
    Kind.INCOMPLETE: State.INCOMPLETE,
    Kind.FAILED: State.FAILED,
}

BASE: Final[Table] = {
    State.IDLE: {Kind.CREATED: State.SAMPLING},
    State.SAMPLING: {
        Kind.IN_PROGRESS: State.SAMPLING,
        Kind.OUTPUT: State.SAMPLING,
        Kind.CALL_DONE: State.SAMPLING,
        **ENDS,
    },
    State.SUSPENDED: {},
    State.COMPLETED: {},
    State.INCOMPLETE: {},
    State.FAILED: {},
}


def _plus(table: Table, rows: Table) -> Table:
    return {state: {**row, **rows.get(state, {})} for state, row in table.items()}


def _everywhere(table: Table, *kinds: Kind) -> Table:
    """`kinds` as self-loops in each state but IDLE: nobody can speak of a response that does not exist."""
    return {
        state: row if state is State.IDLE else {**row, **dict.fromkeys(kinds, state)}
        for state, row in table.items()
    }


TABLES: Final[Mapping[str, Table]] = {
    # the pause lies between responses: the response completes with its calls in `output`
    "create": _everywhere(
        _plus(BASE, {State.SAMPLING: {Kind.STEER_ACCEPTED: State.SAMPLING}}),
        Kind.STEER,
        Kind.STEER_PENDING,
        Kind.STEER_FAILED,
    ),
    "http": BASE,
    # `response.done` parks the response; output or an end leaves the pause
    "append": _everywhere(
        _plus(
            BASE,
            {
                State.SAMPLING: {Kind.DONE: State.SUSPENDED},
                State.SUSPENDED: {
                    Kind.OUTPUT: State.SAMPLING,
                    Kind.CALL_DONE: State.SAMPLING,
                    **ENDS,
                },
            },
        ),
        Kind.APPEND,
        Kind.STEER,
        Kind.STEER_FAILED,
    ),
    # no frame marks the pause, so the wire has no SUSPENDED: a waiting response is SAMPLING with pending calls
    "inject": _everywhere(
        _plus(BASE, {State.SAMPLING: {Kind.INJECT_CREATED: State.SAMPLING}}),
        Kind.INJECT,
        Kind.INJECT_FAILED,
        Kind.STEER,
        Kind.STEER_FAILED,
    ),
}
"""Dialect → state → kind → next state. What is not here is illegal; each state has a row, so absence is a decision."""


def _some(pending: int) -> bool:
    return pending > 0


def _none(pending: int) -> bool:
    return pending == 0


LEGAL_IF: Final[Mapping[str, Mapping[tuple[State, Kind], Callable[[int], bool]]]] = {
    "create": {},
    "http": {},
    "append": {
        (State.SAMPLING, Kind.DONE): _some,
        (State.SUSPENDED, Kind.OUTPUT): _none,
        (State.SUSPENDED, Kind.CALL_DONE): _none,
        (State.SAMPLING, Kind.COMPLETED): _none,
        (State.SUSPENDED, Kind.COMPLETED): _none,
    },
    "inject": {},
}
"""Dialect → (state, kind) → condition on the number of pending calls; no entry = always legal."""


_RULES: Final = {
    dialect: {
        state: {kind: (after, LEGAL_IF[dialect].get((state, kind))) for kind, after in row.items()}
        for state, row in table.items()
    }
    for dialect, table in TABLES.items()
}
"""Both tables in one look, as every event is judged by them."""


def step(dialect: str, state: State, kind: Kind, pending: int) -> State | None:
    """The next state, or None if `kind` is illegal here. Pure; the only judge of legality."""
    rule = _RULES[dialect][state].get(kind)
    if rule is None:
        return None
    after, condition = rule
    return after if condition is None or condition(pending) else None


def diagram(dialect: str) -> str:
    """The table as a Mermaid state diagram, for the README (a test keeps it equal)."""
    lines = ["stateDiagram-v2", "    [*] --> IDLE"]
    for state, row in TABLES[dialect].items():
        arrows: dict[State, list[str]] = {}
        for kind, after in row.items():
            mark = "*" if (state, kind) in LEGAL_IF[dialect] else ""
            arrows.setdefault(after, []).append(kind.name.lower() + mark)
        lines += [f"    {state.name} --> {after.name}: {', '.join(kinds)}" for after, kinds in arrows.items()]
    lines += [f"    {state.name} --> [*]" for state in TABLES[dialect] if state in TERMINAL]
    return "\n".join(lines)
