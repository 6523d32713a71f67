"""What many creates say alike is kept once: same content, same object; other content, another; within bounds."""

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Limits
from engine.engine import Engine
from engine.intake import Intake
from engine.ledger import Ledger
from engine.samplers.scripted import END, Scripted
from engine.shared import Shared
from engine.tool_table import ToolTable
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.events import ResponseCreate
from protocol.items import Opaque


def create(*tools: dict[str, Any], instructions: str | None = None) -> ResponseCreate:
    """As it is read from a frame: every object in it is its own."""
    said = {"type": "response.create", "model": "m", "tools": tools or None, "instructions": instructions}
    return codec.client_event(codec.parse(orjson.dumps(said)))


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **members}


def ample(**bounds: int) -> Shared:
    """With room for all that a test says, but for the bound that it tells."""
    return Shared(**{"max_entries": 64, "max_bytes": 100_000, **bounds})


def known(shared: Shared, *creates: ResponseCreate) -> list[ToolTable]:
    """Each was read, to a table of its own."""
    tables = [ToolTable() for _ in creates]
    for one, table in zip(creates, tables, strict=True):
        shared.keep(one.tools, table)
    return tables


def test_the_same_tools_are_the_same_object():
    """Of two creates with equal lists the second gets the list of the first, and equals itself as before."""
    shared, first, second = ample(), create(tool("a"), tool("b")), create(tool("a"), tool("b"))
    known(shared, first)

    given_back = shared.create(second)

    assert second == given_back
    assert given_back.tools is first.tools


def test_a_create_without_anything_known_is_given_back_itself():
    """Nothing is copied for nothing."""
    one = create(tool("a"))

    assert ample().create(one) is one


@pytest.mark.parametrize(
    "other",
    [
        create(tool("b")),
        create(tool("a"), tool("a")),
        create(tool("a", strict=None)),
        create({"name": "a", "type": "function"}),
    ],
    ids=["another name", "one more", "a null more", "another order of members"],
)
def test_what_is_not_equal_to_the_byte_is_not_shared(other):
    """Also what means the same: an echo has the order and the nulls of its own client."""
    shared, first = ample(), create(tool("a"))
    known(shared, first)

    assert shared.create(other).tools is other.tools


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0)])
def test_numbers_that_python_holds_equal_are_told_apart(one, other):
    """A schema's 1, 1.0 and true are three things on the wire."""
    shared, first, second = ample(), create(tool("a", x=one)), create(tool("a", x=other))
    known(shared, first)

    assert shared.create(second).tools is second.tools


def test_a_shared_list_is_not_read_again():
    """Its table is found by the list that was given, not by an equal one."""
    shared, first, second = ample(), create(tool("a")), create(tool("a"))
    (table,) = known(shared, first)

    assert shared.table_of(second.tools) is None
    assert shared.table_of(shared.create(second).tools) is table


def test_what_was_not_read_is_not_shared():
    """A list that was refused leaves nothing behind."""
    shared, first, second = ample(), create(tool("a")), create(tool("a"))
    shared.create(first)

    assert shared.create(second) is second


def test_an_equal_list_that_was_read_meanwhile_does_not_replace_the_first():
    """Two creates may be read at the same time: the list of the first stays the shared one."""
    shared, first, second = ample(), create(tool("a")), create(tool("a"))
    table, _ = known(shared, first, second)

    assert shared.create(create(tool("a"))).tools is first.tools
    assert shared.table_of(first.tools) is table
    assert shared.table_of(second.tools) is None


def test_the_same_instructions_are_the_same_object():
    """From the first create that says them on, whatever tools it has."""
    shared, first, second = ample(), create(instructions="be brief"), create(instructions="be brief")

    assert shared.create(first) is first
    assert shared.create(second) == second
    assert shared.create(second).instructions is first.instructions
    assert shared.create(create(instructions="be long")).instructions == "be long"


def test_without_entries_nothing_is_shared():
    """As in naive HTTP."""
    shared, first, second = ample(max_entries=0), create(tool("a")), create(tool("a"))
    known(shared, first)

    assert shared.create(second) is second
    assert shared.table_of(first.tools) is None


def test_the_list_that_was_used_longest_ago_goes_first():
    """With room for two, the third takes the place of the one that nobody asked for since."""
    shared = ample(max_entries=2)
    first, second, third = create(tool("a")), create(tool("b")), create(tool("c"))
    known(shared, first, second)
    shared.create(create(tool("a")))
    known(shared, third)

    shares = [
        shared.create(create(tool(name))).tools is one.tools
        for name, one in zip("abc", (first, second, third), strict=True)
    ]
    assert [True, False, True] == shares
    assert [True, False, True] == [shared.table_of(one.tools) is not None for one in (first, second, third)]


def test_a_list_beyond_all_room_is_not_kept_and_takes_no_place():
    """What is larger than the bound leaves what was there."""
    shared = ample(max_bytes=200)
    small, large = create(tool("a")), create(tool("b" * 200))
    known(shared, small, large)

    assert shared.table_of(large.tools) is None
    assert shared.create(create(tool("a"))).tools is small.tools


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 40)), max_size=40))
def test_never_more_than_the_bounds(said: list[tuple[bool, int, int]]):
    """Whatever is kept and asked for: at most so many entries and bytes of each kind, and a table for each list."""
    shared = Shared(max_entries=3, max_bytes=150)
    for reads, name, size in said:
        one = shared.create(create(tool(f"{name}", x="x" * size), instructions=f"{name}" * size))
        if reads:
            shared.keep(one.tools, ToolTable())

    for latest in (shared._lists, shared._texts):  # not to be seen from outside
        assert len(latest) <= 3
        assert sum(size for _, size in latest._kept.values()) == latest._bytes <= 150
    assert {id(read.tools) for read, _ in shared._lists._kept.values()} == set(shared._tables)


def test_what_is_no_plain_json_is_left_alone():
    """A create that was made in the process may hold anything: it is not shared, and nothing fails."""
    one = attrs.evolve(create(tool("a")), tools=({"type": "function", "name": "a", "x": object()},))
    shared = ample()
    known(shared, one, create(tool("b")))

    assert shared.create(one) is one


async def test_a_request_reads_nothing_that_another_one_read():
    """The second of two that say the same has the table of the first; of naive HTTP each reads its own."""
    engine = Engine.make(Scripted([[END]]))
    read = []
    for each in (engine, engine, engine.forgetful()):
        intake = Intake(each, Ledger(each.clock_ns), lambda _name: None)
        await intake.open(each.shared.create(create(tool("a"), tool("b"))), None)
        read.append((intake.tools, intake.work.read_tools, intake.work.reused_tools))

    (first, *one), (second, *two), (third, *three) = read
    assert first is second
    assert third == first
    assert third is not first
    assert [[2, 0], [0, 2], [2, 0]] == [one, two, three]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Limits(), [True, True]),
        (Limits(max_shared_entries=1), [False, True]),
        (Limits(max_shared_entries=0), [False, False]),
        (Limits(max_shared_bytes=60), [True, False]),
    ],
)
def test_an_engine_shares_within_its_limits(limits, kept):
    """A short list and a longer one, read in this order."""
    shared = Engine.make(Scripted([[END]]), limits=limits).shared
    lists = [create(tool("a")), create(tool("b" * 40))]
    known(shared, *lists)

    assert [shared.table_of(one.tools) is not None for one in lists] == kept


async def test_a_list_with_a_fault_is_refused_as_often_as_it_comes():
    """What was refused once is not taken for read."""
    engine = Engine.make(Scripted([[END]]))
    for _ in range(2):
        intake = Intake(engine, Ledger(engine.clock_ns), lambda _name: None)
        with pytest.raises(RemoteProtocolError, match=r"tools\[1\]"):
            await intake.open(engine.shared.create(create(tool("a"), {"type": "function"})), None)


async def test_tools_that_are_found_later_are_nobody_elses():
    """A table grows for its own rollout only: the shared one stays as it was read."""
    engine = Engine.make(Scripted([[END]]))
    found = Opaque({"type": "additional_tools", "tools": [tool("late")]})
    tables = []
    for items in ((found,), ()):
        intake = Intake(engine, Ledger(engine.clock_ns), lambda _name: None)
        await intake.open(attrs.evolve(engine.shared.create(create(tool("a"))), input=items), None)
        tables.append(intake.tools)

    assert [True, False] == [table.find("late") is not None for table in tables]


def test_instructions_are_bounded_in_bytes():
    """A text of as many characters as there may be bytes, but of more bytes, is not kept."""
    shared, wide = Shared(max_entries=4, max_bytes=9), "é" * 5
    first, second = (shared.create(ResponseCreate(model="m", instructions="".join(wide))) for _ in range(2))
    assert first.instructions == second.instructions == wide
    assert len(shared._texts) == 0
