"""protocol.dialects: the rows are complete, and their columns fit each other and the state tables."""

import attrs
import pytest

from engine.config import Limits
from protocol.dialects import APPEND, CREATE, DIALECTS, INJECT, Dialect, Ending, EndRow
from protocol.errors import CATALOGUE
from protocol.states import ENDS, TABLES, Kind, State

WHILE_SAMPLING = set(Ending) - {Ending.ABANDONED, Ending.EXPIRED}
"""Only a pause can be abandoned, or waited out."""
WHILE_SUSPENDED = {
    Ending.CANCELLED,
    Ending.ABANDONED,
    Ending.DISCONNECTED,
    Ending.EXPIRED,
    Ending.DRAINED,
}
"""Nothing samples in a pause, so nothing can fail or meet a limit."""
ROWS = [
    pytest.param(row, end, id=f"{row.name}-{where}-{ending.name}")
    for row in DIALECTS.values()
    for where, endings in (("sampling", row.sampling_endings), ("suspended", row.suspended_endings))
    for ending, end in endings.items()
]
EXPECTED = {
    # dialect: {ending in a pause: (frame, status, code)}, reference 2.6 and 2.7
    "append": {
        Ending.CANCELLED: ("failed", "cancelled", "invalid_prompt"),
        Ending.ABANDONED: (None, "completed", None),
        Ending.DISCONNECTED: (None, "completed", None),
        Ending.EXPIRED: ("failed", "failed", "server_error"),
        Ending.DRAINED: ("failed", "failed", "server_error"),
    },
    "inject": {
        Ending.CANCELLED: ("failed", "cancelled", "invalid_prompt"),
        Ending.ABANDONED: (None, "completed", None),
        Ending.DISCONNECTED: (None, "completed", None),
        Ending.EXPIRED: ("completed", "completed", None),
        Ending.DRAINED: ("completed", "completed", None),
    },
}


def test_names_are_keys_of_the_state_tables() -> None:
    """Each row has a state table of its name, and the other way round."""
    assert set(DIALECTS) == set(TABLES) == {row.name for row in DIALECTS.values()}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_every_ending_while_sampling_has_a_row(dialect: Dialect) -> None:
    """Each way to end while sampling leads somewhere, and no other is listed."""
    assert set(dialect.sampling_endings) == WHILE_SAMPLING


@pytest.mark.parametrize("dialect", [APPEND, INJECT], ids=["append", "inject"])
def test_every_ending_of_a_pause_has_a_row(dialect: Dialect) -> None:
    """Each way to end while suspended leads somewhere, and no other is listed."""
    assert set(dialect.suspended_endings) == WHILE_SUSPENDED


@pytest.mark.parametrize("dialect", [APPEND, INJECT], ids=["append", "inject"])
def test_pauses_end_as_the_reference_says(dialect: Dialect) -> None:
    """Frame, status and code of each end of a pause are those of reference 2.6 and 2.7."""
    found = {
        ending: (row.frame, row.status, row.error and CATALOGUE[row.error].code_in_response)
        for ending, row in dialect.suspended_endings.items()
    }
    assert found == EXPECTED[dialect.name]


@pytest.mark.parametrize(("dialect", "end"), ROWS)
def test_frame_and_status_fit(dialect: Dialect, end: EndRow) -> None:
    """A frame carries the status of its name, but `failed` may also say `cancelled`."""
    allowed = {
        "completed": {"completed"},
        "incomplete": {"incomplete"},
        "failed": {"failed", "cancelled"},
        None: {"completed", "cancelled"},
    }
    assert end.status in allowed[end.frame]


@pytest.mark.parametrize(("dialect", "end"), ROWS)
def test_an_error_or_a_reason_exactly_where_the_frame_needs_one(dialect: Dialect, end: EndRow) -> None:
    """`failed` names a line of the catalogue, `incomplete` a reason, the others neither."""
    assert (end.error is not None) == (end.frame == "failed")
    assert (end.reason is not None) == (end.frame == "incomplete")
    assert end.error is None or end.error in CATALOGUE


@pytest.mark.parametrize(("dialect", "end"), ROWS)
def test_what_ended_well_is_a_parent(dialect: Dialect, end: EndRow) -> None:
    """Completed and incomplete rollouts may be continued, failed and cancelled ones may not (reference 2.5)."""
    assert end.parent == (end.status in {"completed", "incomplete"})


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_frames_are_legal_where_they_are_sent(dialect: Dialect) -> None:
    """The state table knows each end at the place where the row sends it."""
    table = TABLES[dialect.name]
    for end in dialect.sampling_endings.values():
        assert end.frame is None or Kind[end.frame.upper()] in table[State.SAMPLING]
    if dialect.says_done:
        for end in dialect.suspended_endings.values():
            assert end.frame is None or Kind[end.frame.upper()] in table[State.SUSPENDED]
    assert {kind.name.lower() for kind in ENDS} == {"completed", "incomplete", "failed"}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_pause_is_shown_as_the_state_table_says(dialect: Dialect) -> None:
    """`says_done` and `answers_input` are what the state table has kinds for."""
    kinds = {kind for row in TABLES[dialect.name].values() for kind in row}
    assert dialect.says_done == (Kind.DONE in kinds)
    assert dialect.answers_input == (Kind.INJECT_CREATED in kinds)
    assert dialect.suspends == bool({Kind.APPEND, Kind.INJECT} & kinds)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_deadline_is_a_limit(dialect: Dialect) -> None:
    """A form that suspends names the limit of its pause, and the limits have it."""
    fields = {field.name for field in attrs.fields(Limits)}
    assert (dialect.deadline in fields) == dialect.suspends


def test_create_never_suspends() -> None:
    """The create form completes at a call, so it has no pause to bound and no word for input."""
    assert (CREATE.suspends, CREATE.deadline, CREATE.agent) == (False, None, None)
