"""protocol.states: the tables, walked."""

import itertools

import pytest

from protocol.states import (
    ANSWER_KINDS,
    CLIENT_KINDS,
    ENDS,
    LEGAL_IF,
    TABLES,
    TERMINAL,
    Kind,
    State,
    diagram,
    step,
)

DIALECTS = sorted(TABLES)
SERVER_KINDS = [kind for kind in Kind if kind not in CLIENT_KINDS]
UNREACHED = {
    "create": {State.SUSPENDED},  # the pause lies between responses
    "http": {State.SUSPENDED},  # the same
    "append": set(),
    "inject": {State.SUSPENDED},  # no frame marks the pause
}
PENDING = {
    ("append", State.SAMPLING, Kind.DONE): "some",
    ("append", State.SUSPENDED, Kind.OUTPUT): "none",
    ("append", State.SUSPENDED, Kind.CALL_DONE): "none",
    ("append", State.SAMPLING, Kind.COMPLETED): "none",
    ("append", State.SUSPENDED, Kind.COMPLETED): "none",
}
"""Which steps ask for pending calls, or for their absence; every other is free of them."""


def each_pair() -> list[tuple[str, State, Kind, Kind]]:
    """Each state with each client kind and each server kind legal there."""
    return [
        (dialect, state, client, server)
        for dialect, table in TABLES.items()
        for state, row in table.items()
        for client, server in itertools.product(row, row)
        if client in CLIENT_KINDS and server not in CLIENT_KINDS
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_state_has_a_row(dialect: str) -> None:
    """In each dialect every state has a row, so what is missing in it was decided."""
    assert set(TABLES[dialect]) == set(State)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_state_is_reachable(dialect: str) -> None:
    """From IDLE every state of a dialect is reached, but the pause where no frame shows one."""
    reached, new = set(), {State.IDLE}
    while new:
        reached |= new
        new = {after for state in new for after in TABLES[dialect][state].values()} - reached
    assert reached == set(State) - UNREACHED[dialect]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("state", sorted(TERMINAL, key=str))
def test_terminal_states_are_never_left(dialect: str, state: State) -> None:
    """A terminal state accepts only what the client may have sent before it saw the end, and answers to it."""
    assert set(TABLES[dialect][state]) <= CLIENT_KINDS | ANSWER_KINDS
    assert set(TABLES[dialect][state].values()) <= {state}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_event_moves_nothing(dialect: str) -> None:
    """A client's event is legal wherever a response exists, and leads back to the same state."""
    for state, row in TABLES[dialect].items():
        spoken = {kind: after for kind, after in row.items() if kind in CLIENT_KINDS}
        assert set(spoken.values()) <= {state}
        expected = {
            "create": {Kind.STEER},
            "append": {Kind.APPEND, Kind.STEER},
            "inject": {Kind.INJECT, Kind.STEER},
            "http": set(),
        }[dialect]
        assert set(spoken) == (set() if state is State.IDLE else expected)


@pytest.mark.parametrize(("dialect", "state", "client", "server"), each_pair())
def test_messages_that_cross_commute(dialect: str, state: State, client: Kind, server: Kind) -> None:
    """The diamond: a client event and a server event lead to one state in both orders."""
    table = TABLES[dialect]
    assert table[table[state][client]][server] is table[table[state][server]][client]


@pytest.mark.parametrize("pending", [0, 1, 3])
def test_crossing_messages_commute_with_their_conditions(pending: int) -> None:
    """The diamond holds for `step` too: a client event never decides whether a server event is legal."""
    for dialect, state, client, server in each_pair():
        first = step(dialect, state, client, pending)
        assert first is not None
        after = step(dialect, state, server, pending)
        assert step(dialect, first, server, pending) is after
        if after is not None:
            assert step(dialect, after, client, pending) is after


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_response_begins_once_and_first(dialect: str) -> None:
    """`created` is the only thing legal before a response exists, and illegal ever after."""
    assert TABLES[dialect][State.IDLE] == {Kind.CREATED: State.SAMPLING}
    assert [state for state, row in TABLES[dialect].items() if Kind.CREATED in row] == [State.IDLE]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_end_ends(dialect: str) -> None:
    """Wherever a terminal event is legal it leads to the state of its name."""
    for row in TABLES[dialect].values():
        assert all(row[kind] is end for kind, end in ENDS.items() if kind in row)
    assert set(ENDS.values()) == TERMINAL


def test_only_append_says_done() -> None:
    """`response.done` is legal in the append form and nowhere else."""
    assert [d for d in DIALECTS if any(Kind.DONE in row for row in TABLES[d].values())] == ["append"]


def test_only_inject_answers_input() -> None:
    """Numbered answers to input exist in the inject form only, refusals in every state after `created`."""
    for dialect in DIALECTS:
        rows = TABLES[dialect]
        accepts = {state for state, row in rows.items() if Kind.INJECT_CREATED in row}
        refuses = {state for state, row in rows.items() if Kind.INJECT_FAILED in row}
        assert accepts == ({State.SAMPLING} if dialect == "inject" else set())
        assert refuses == (set(State) - {State.IDLE} if dialect == "inject" else set())


def test_every_condition_is_of_a_legal_step() -> None:
    """No condition hangs on a step that the table forbids anyway."""
    conditions = {(d, *key) for d, rows in LEGAL_IF.items() for key in rows}
    assert conditions == set(PENDING)
    assert all(kind in TABLES[dialect][state] for dialect, state, kind in conditions)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("kind", list(Kind))
def test_pending_calls_decide_where_they_should(dialect: str, state: State, kind: Kind) -> None:
    """`step` is the table, narrowed by the number of pending calls in five places and nowhere else."""
    after = TABLES[dialect][state].get(kind)
    needs = PENDING.get((dialect, state, kind))
    assert step(dialect, state, kind, 0) is (None if needs == "some" else after)
    assert step(dialect, state, kind, 1) is (None if needs == "none" else after)
    assert step(dialect, state, kind, 7) is (None if needs == "none" else after)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_diagram_shows_the_whole_table(dialect: str) -> None:
    """Every legal step is in the diagram, and nothing else; a condition is marked by a star."""
    shown = set()
    for line in diagram(dialect).splitlines():
        if ":" in line:
            arrow, kinds = line.split(": ")
            before, after = arrow.split(" --> ")
            shown |= {(before.strip(), kind, after) for kind in kinds.split(", ")}
    assert shown == {
        (state.name, kind.name.lower() + ("*" if (state, kind) in LEGAL_IF[dialect] else ""), after.name)
        for state, row in TABLES[dialect].items()
        for kind, after in row.items()
    }


def test_a_diagram_begins_and_ends() -> None:
    """A diagram starts in IDLE and leaves from each terminal state."""
    lines = diagram("append").splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> IDLE"]
    assert lines[-3:] == ["    COMPLETED --> [*]", "    INCOMPLETE --> [*]", "    FAILED --> [*]"]
