"""The store in a file: a dict that survives kill -9, shared by owners who never see each other.

Threads and files are real here, so time is too; nothing waits for it except where a lock or an idle moment is the matter.
"""

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import DEFAULT_LIMITS
from engine.simulation import CancelAtStep
from engine.storage import MemoryStore
from engine.store import SqliteStore, StoreError
from engine.store_file import StoreFile
from protocol.items import Message, Opaque
from tests.store_writer import numbered_id, response, usage_row
from tests.strategies import input_items, json_objects, maybe, texts, tuples

ROOT = Path(__file__).parent.parent
KILLS = 5
ROWS_A_LIFE = 2000
"""More than a process writes before it is killed."""
NO_CACHE = attrs.evolve(DEFAULT_LIMITS, max_store_cache_bytes=0)


@asynccontextmanager
async def running(path, limits=DEFAULT_LIMITS):
    """A store that works, closed at the end."""
    store = SqliteStore(path, limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        try:
            yield store
        finally:
            await store.aclose()


@asynccontextmanager
async def waiting(path, *calls, limits=DEFAULT_LIMITS):
    """A store that will work when the body ends; `calls` of it wait already, their answers are in the dict then."""
    store, answers = SqliteStore(path, limits), {}

    async def ask(place, call):
        try:
            answers[place] = await call(store)
        except (StoreError, TypeError) as error:
            answers[place] = error

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as askers:
            for place, call in enumerate(calls):
                askers.start_soon(ask, place, call)
                await trio.testing.wait_all_tasks_blocked()
            yield store, answers, askers
            await nursery.start(store.run)
        await store.aclose()


def put(number, **members):
    return lambda store: store.put(response(number, **members))


def rows(path, query):
    """What a look into the file finds."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def reason(error):
    assert isinstance(error, StoreError), repr(error)
    return error.reason


# --- a dict ----------------------------------------------------------------------------------------------------------

OWNERS = ("alice", "bob")
OWNER = st.sampled_from(("alice", "alice", "alice", "bob"))
HIGHEST = 3
NUMBERS = st.integers(0, HIGHEST)

steps = st.one_of(
    st.fixed_dictionaries(
        {
            "do": st.just("put"),
            "owner": OWNER,
            "number": NUMBERS,
            "parent": maybe(NUMBERS),
            "dropped": st.sampled_from([0, 0, 0, 1, 2]),
            "new": tuples(input_items),
            "members": st.fixed_dictionaries(
                {
                    "input_items": tuples(input_items, 2),
                    "output_items": tuples(input_items, 2),
                    "status": st.sampled_from(["completed", "failed"]),
                    "instructions": maybe(texts),
                    "tools": tuples(json_objects, 2),
                    "created_at": st.integers(0, 2**40),
                    "resource": st.binary(max_size=9),
                }
            ),
        }
    ),
    st.fixed_dictionaries({"do": st.just("delete"), "owner": OWNER, "number": NUMBERS}),
    st.fixed_dictionaries({"do": st.just("get"), "owner": OWNER, "number": NUMBERS}),
    st.fixed_dictionaries({"do": st.just("restart")}),
)


class Model:
    """The same as a dict, with the parents' contexts at hand."""

    def __init__(self):
        self.kept = {}

    def record(self, step):
        parent = None if step["parent"] is None else numbered_id(step["parent"])
        earlier = self.kept.get((step["owner"], parent))
        context = earlier.context_items if earlier else ()
        return response(
            step["number"],
            owner=step["owner"],
            previous_response_id=parent,
            context_items=(*context[: len(context) - step["dropped"]], *step["new"]),
            **step["members"],
        )


async def play(path, limits, steps):
    model = Model()
    remaining = [*steps, {"do": "restart"}]
    while remaining:
        async with running(path, limits) as store:
            while remaining and (step := remaining.pop(0))["do"] != "restart":
                await play_step(store, model.kept, step, model)
            for owner in OWNERS:
                for number in range(HIGHEST + 1):
                    key = owner, numbered_id(number)
                    assert await store.get(*key) == model.kept.get(key)
    return model.kept


async def play_step(store, kept, step, model):
    key = step["owner"], numbered_id(step["number"])
    if step["do"] == "put":
        record = model.record(step)
        await store.put(record)
        kept.setdefault(key, record)
    elif step["do"] == "get":
        assert await store.get(*key) == kept.get(key)
    else:
        assert await store.delete(*key) == (kept.pop(key, None) is not None)


@settings(max_examples=60)
@given(st.lists(steps, max_size=20), st.sampled_from([DEFAULT_LIMITS, NO_CACHE]))
def test_it_is_a_dict(steps, limits):
    """Put, get, delete and restart, in any order, answer as a dict does, whoever owns what and whatever is remembered."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        kept = trio.run(partial(play, path, limits, steps))
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        assert rows(path, "PRAGMA foreign_key_check") == []
        trio.run(forget_all, path, kept)
        assert rows(path, "SELECT count(*) FROM response") == [(0,)]
        assert rows(path, "SELECT count(*) FROM node") == [(0,)]


async def forget_all(path, kept):
    async with running(path) as store:
        for key in kept:
            assert await store.delete(*key) is True


@pytest.mark.parametrize("put_twice", [False, True])
async def test_the_memory_store_answers_the_same(tmp_path, put_twice):
    """The first put of an id counts, here and in memory."""
    async with running(tmp_path / "store") as store:
        for each in (store, MemoryStore()):
            await each.put(response(1, status="completed"))
            if put_twice:
                await each.put(response(1, status="failed"))
            assert (await each.get("alice", numbered_id(1))).status == "completed"


async def test_a_foreign_id_answers_like_a_random_one(tmp_path):
    """Whoever asks for somebody else's response learns nothing and deletes nothing."""
    async with running(tmp_path / "store") as store:
        await store.put(response(1))
        for other in (numbered_id(1), numbered_id(2), "resp_1", "", "resp_\ud800", "x" * 10_000):
            assert await store.get("bob", other) is None
            assert await store.delete("bob", other) is False
        assert await store.usage("bob") == []
        assert await store.get("alice", numbered_id(1)) == response(1)


async def test_somebody_elses_response_is_no_parent(tmp_path):
    """A context is never built on a foreign response, though the same items are in it."""
    async with running(tmp_path / "store") as store:
        await store.put(response(1))
        child = response(2, owner="bob", previous_response_id=numbered_id(1))
        await store.put(attrs.evolve(child, context_items=response(1).context_items))
    assert rows(tmp_path / "store", "SELECT base, kept FROM node") == [(None, 0), (None, 0)]


@pytest.mark.parametrize("guessable", ["resp_1", "resp_" + "0" * 31, "0" * 40, "resp_" + "g" * 40, ""])
async def test_guessable_ids_are_refused(tmp_path, guessable):
    """An id of fewer than 128 bits is a bug of whoever made it, and says so."""
    async with running(tmp_path / "store") as store:
        with pytest.raises(ValueError, match="128 random bits"):
            await store.put(response(1, response_id=guessable))
        with pytest.raises(ValueError, match="128 random bits"):
            await store.record_usage(usage_row(1, response_id=guessable))


# --- chains ----------------------------------------------------------------------------------------------------------


def chain(turns):
    """A conversation, each turn with its whole context."""
    context = ()
    for number in range(turns):
        new = (Message("user", f"{number}?"), Message("assistant", f"{number}!"))
        context = (*context, *new)
        yield response(
            number,
            previous_response_id=numbered_id(number - 1) if number else None,
            context_items=context,
        )


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, NO_CACHE])
async def test_a_chain_takes_room_for_its_items_once(tmp_path, limits):
    """Of n turns each keeps its own two items, whether the store remembers the parent or reads it again."""
    turns = list(chain(50))
    async with running(tmp_path / "store", limits) as store:
        for turn in turns:
            await store.put(turn)
        assert await store.get("alice", numbered_id(49)) == turns[-1]
    own = rows(tmp_path / "store", "SELECT json_array_length(CAST(items AS TEXT)) FROM node")
    assert own == [(2,)] * 50


@pytest.mark.parametrize(("limits", "expected"), [(DEFAULT_LIMITS, [0, 1]), (NO_CACHE, [9, 19])])
async def test_a_turn_reads_nothing_old(tmp_path, limits, expected):
    """While the store remembers the parent no old item is read; after a restart the chain is read once."""
    turns, read = list(chain(20)), []

    def note(statement):
        if "RECURSIVE" in statement:
            read.append(statement)

    for some, reads in zip((turns[:10], turns[10:]), expected, strict=True):
        async with running(tmp_path / "store", limits) as store:
            store._file._db.set_trace_callback(note)
            for turn in some:
                await store.put(turn)
            assert len(read) == reads


async def test_what_is_remembered_is_bounded(tmp_path):
    """The store remembers the last contexts only, as many as fit the bound by their size in the file."""
    limits = attrs.evolve(DEFAULT_LIMITS, max_store_cache_bytes=2_500)
    async with running(tmp_path / "store", limits) as store:
        for number in range(5):
            await store.put(response(number, context_items=(Message("user", "x" * 1000),)))
        recent = store._file._recent
        assert list(recent._known) == [4, 5]
        assert recent._held_bytes == sum(known.size_bytes for known in recent._known.values())
        assert await store.get("alice", numbered_id(0)) is not None
        assert list(recent._known) == [5, 1]
        await store.delete("alice", numbered_id(0))
        assert list(recent._known) == [5]


async def test_a_deleted_parent_stays_in_its_children(tmp_path):
    """Children of a deleted response keep their whole context, and what nobody needs any more is gone with the last."""
    turns = list(chain(4))
    fork = response(9, previous_response_id=numbered_id(1), context_items=turns[1].context_items)
    async with running(tmp_path / "store") as store:
        for turn in (*turns, fork):
            await store.put(turn)
        for number in (0, 1, 2):
            assert await store.delete("alice", numbered_id(number)) is True
            assert await store.get("alice", numbered_id(number)) is None
    async with running(tmp_path / "store") as store:
        assert await store.get("alice", numbered_id(3)) == turns[3]
        assert await store.get("alice", numbered_id(9)) == fork
        await store.delete("alice", numbered_id(3))
        assert rows(tmp_path / "store", "SELECT count(*) FROM node") == [(3,)]
        await store.delete("alice", numbered_id(9))
        assert rows(tmp_path / "store", "SELECT count(*) FROM node") == [(0,)]


async def test_a_parent_outlives_its_deleted_child(tmp_path):
    """Deleting the last turn leaves the one before it, which can be continued again."""
    turns = list(chain(3))
    async with running(tmp_path / "store") as store:
        for turn in turns:
            await store.put(turn)
        await store.delete("alice", numbered_id(2))
        assert await store.get("alice", numbered_id(1)) == turns[1]
        await store.put(turns[2])
        assert await store.get("alice", numbered_id(2)) == turns[2]


async def test_an_edited_context_shares_what_it_begins_with(tmp_path):
    """A child whose context leaves out the parent's end, or all of it, comes back as it was, and so does its own child."""
    first, *_, last = chain(3)
    edited = (*first.context_items, Message("user", "else"))
    contexts = {5: edited, 6: (*edited, Message("user", "more")), 7: edited[-1:]}
    async with running(tmp_path / "store") as store:
        for turn in chain(3):
            await store.put(turn)
        for number, parent in ((5, 2), (6, 5), (7, 6)):
            previous = numbered_id(parent)
            await store.put(response(number, previous_response_id=previous, context_items=contexts[number]))
    async with running(tmp_path / "store") as store:
        for number, context in contexts.items():
            assert (await store.get("alice", numbered_id(number))).context_items == context
        assert await store.get("alice", numbered_id(2)) == last
    kept = rows(tmp_path / "store", "SELECT kept, base FROM node ORDER BY id")
    assert kept == [(0, None), (2, 1), (4, 2), (2, 3), (3, 4), (0, None)]


async def test_equal_for_python_is_not_equal(tmp_path):
    """A child's item that differs from its parent's only in what Python takes for equal comes back as it was."""
    was, now = (Opaque({"type": "new", "on": True}),), (Opaque({"type": "new", "on": 1}),)
    async with running(tmp_path / "store") as store:
        await store.put(response(1, context_items=was))
        await store.put(response(2, previous_response_id=numbered_id(1), context_items=now))
    async with running(tmp_path / "store") as store:
        got = await store.get("alice", numbered_id(2))
    assert got.context_items[0].raw["on"] is not True


async def test_two_stores_of_one_file_do_not_mislead_each_other(tmp_path):
    """What a store remembers is never taken for what another process wrote since, under the same number or not."""
    path, theirs = tmp_path / "store", (Message("user", "theirs"),)
    async with running(path) as ours, running(path) as other:
        with pytest.raises(OverflowError):
            await ours.put(response(1, created_at=2**70))
        await other.put(response(2, context_items=theirs))
        await ours.put(response(3, previous_response_id=numbered_id(2), context_items=theirs))
        await ours.put(response(4))
        await other.delete("alice", numbered_id(4))
        await other.put(response(5, context_items=theirs))
        await ours.put(response(6, previous_response_id=numbered_id(5), context_items=theirs))
        for number in (3, 6):
            assert (await other.get("alice", numbered_id(number))).context_items == theirs
    assert rows(path, "SELECT kept FROM node ORDER BY id") == [(0,), (1,), (0,), (1,)]


# --- usage -----------------------------------------------------------------------------------------------------------


async def test_a_response_is_counted_once(tmp_path):
    """The first usage row of a response stays, in order of arrival, for its owner alone."""
    async with running(tmp_path / "store") as store:
        await store.record_usage(usage_row(2))
        await store.record_usage(usage_row(1))
        await store.record_usage(usage_row(2, output_tokens=99))
        await store.put(response(1))
        await store.record_usage(usage_row(1, owner="bob"))
        assert await store.usage("alice") == [usage_row(2), usage_row(1)]
        assert await store.usage("bob") == []
        assert await store.get("alice", numbered_id(1)) == response(1)
        await store.delete("alice", numbered_id(1))
    async with running(tmp_path / "store") as store:
        assert await store.usage("alice") == [usage_row(2), usage_row(1)]


# --- the queue -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("places", "transactions"), [(1024, 1), (16, 16)])
async def test_many_waiters_share_a_transaction(tmp_path, places, transactions):
    """256 waiters need one transaction, or as many as the list must be emptied."""
    limits = attrs.evolve(DEFAULT_LIMITS, max_queued_store_jobs=places)
    store = SqliteStore(tmp_path / "store", limits)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as waiters:
            for number in range(256):
                waiters.start_soon(store.put, response(number))
            await trio.testing.wait_all_tasks_blocked()
            assert store.statistics().queued == min(places, 256)
            assert store.statistics().waiting == 256 - min(places, 256)
            await nursery.start(store.run)
        assert (store.statistics().jobs, store.statistics().transactions) == (256, transactions)
        await store.aclose()
    assert rows(tmp_path / "store", "SELECT count(*), count(DISTINCT response_id) FROM response") == [
        (256, 256)
    ]


async def test_a_cancelled_waiter_takes_nothing_back(tmp_path):
    """What is on the list is done once; what waited for a place on it, and was cancelled, is not done at all."""
    limits = attrs.evolve(DEFAULT_LIMITS, max_queued_store_jobs=2)
    async with waiting(tmp_path / "store", put(1), put(2), put(3), limits=limits) as (store, answers, askers):
        assert (store.statistics().queued, store.statistics().waiting) == (2, 1)
        askers.cancel_scope.cancel()
    assert answers == {}
    async with running(tmp_path / "store") as store:
        await store.put(response(1))
        assert [await store.get("alice", numbered_id(number)) for number in (1, 2, 3)] == [
            response(1),
            response(2),
            None,
        ]
    assert rows(tmp_path / "store", "SELECT count(*) FROM response") == [(2,)]


async def test_a_cancelled_store_does_what_is_on_its_list(tmp_path):
    """A store that is cancelled before its first step has done all that was asked when it ends."""
    store = SqliteStore(tmp_path / "store")
    async with trio.open_nursery() as waiters:
        for number in range(20):
            waiters.start_soon(store.put, response(number))
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.run()
    assert rows(tmp_path / "store", "SELECT count(*) FROM response") == [(20,)]


async def cancelled_at(path, step):
    """Five waiters for two places, and a store that is cancelled at a step; whether it was, and what became of each."""
    store = SqliteStore(path, attrs.evolve(DEFAULT_LIMITS, max_queued_store_jobs=2))
    done, refused = [], []

    async def ask(number):
        try:
            await store.put(response(number))
        except StoreError:
            refused.append(number)
        else:
            done.append(number)

    async def ask_all():
        async with trio.open_nursery() as waiters:
            for number in range(5):
                waiters.start_soon(ask, number)
        await store.aclose()

    scope = trio.CancelScope()
    canceller = CancelAtStep(step, scope)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_all)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(canceller)
        with scope:
            await store.run()
        trio.lowlevel.remove_instrument(canceller)
    assert sorted(done + refused) == list(range(5))
    return canceller.acted, sorted(done)


async def test_a_store_cancelled_anywhere_has_done_what_it_says(tmp_path):
    """Cancelled at whatever step, a store has stored what it acknowledged, refused the rest, and nobody waits."""
    acted, step = True, 0
    while acted:
        step += 1
        with trio.fail_after(30):
            acted, done = await cancelled_at(tmp_path / f"store{step}", step)
        stored = rows(tmp_path / f"store{step}", "SELECT response_id FROM response ORDER BY response_id")
        assert stored == [(numbered_id(number),) for number in done]
    assert done == list(range(5))
    assert step > 5


async def test_a_closed_store_refuses(tmp_path):
    """After the close, and twice is no error, everything asked is refused with a reason; before it, all was done."""
    async with running(tmp_path / "store") as store:
        await store.put(response(1))
        await store.aclose()
        await store.aclose()
        with pytest.raises(StoreError, match="closed") as refused:
            await store.put(response(2))
        assert refused.value.reason == "closed"
    assert rows(tmp_path / "store", "SELECT response_id FROM response") == [(numbered_id(1),)]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


async def test_a_store_that_never_ran_tells_who_waits(tmp_path):
    """Closed before it ran, a store refuses those on its list and those before it, and then has nothing to run."""
    limits = attrs.evolve(DEFAULT_LIMITS, max_queued_store_jobs=1)
    async with waiting(tmp_path / "store", put(1), put(2), limits=limits) as (store, answers, _):
        await store.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert [reason(answers[place]) for place in (0, 1)] == ["closed", "closed"]


async def test_an_idle_store_folds_its_log(tmp_path):
    """A moment after the last write the log is empty, and all is in the file."""
    limits = attrs.evolve(DEFAULT_LIMITS, store_idle_seconds=0.001)
    async with running(tmp_path / "store", limits) as store:
        await store.put(response(1))
        with trio.fail_after(30):
            while (tmp_path / "store-wal").stat().st_size:  # noqa: ASYNC110  # SQLite tells nobody
                await trio.sleep(0.001)
        assert await store.get("alice", numbered_id(1)) == response(1)


async def test_what_is_put_soon_is_there_for_whoever_asks_next(tmp_path):
    """It is read by the next question, is deleted by the next deletion, and outlives a close."""
    async with running(tmp_path / "store") as store:
        for number in range(1, 4):
            await store.put_soon(response(number))
        assert await store.delete("alice", numbered_id(1))
        assert await store.get("alice", numbered_id(2)) == response(2)
        assert await store.get("alice", numbered_id(1)) is None
        await store.put_soon(response(4))
    async with running(tmp_path / "store") as store:
        assert await store.get("alice", numbered_id(4)) == response(4)
    with pytest.raises(StoreError, match="closed"):
        await store.put_soon(response(5))


async def test_what_is_put_soon_waits_for_a_place(tmp_path):
    """The list is bounded for it too, and what is on it is done."""
    limits = attrs.evolve(DEFAULT_LIMITS, max_queued_store_jobs=2)
    store = SqliteStore(tmp_path / "store", limits)
    await store.put_soon(response(1))
    await store.put_soon(response(2))
    with trio.move_on_after(0) as full:
        await store.put_soon(response(3))
    assert full.cancelled_caught
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        assert await store.get("alice", numbered_id(2)) == response(2)
        assert await store.get("alice", numbered_id(3)) is None
        await store.aclose()


async def test_what_nobody_waits_for_says_its_failure(tmp_path, caplog):
    """A response that could not be put is named in the log, and the store lives."""
    async with running(tmp_path / "store") as store:
        await store.put_soon(response(1, context_items=(Message("user", "\ud800"),)))
        await store.put(response(2))
    (record,) = caplog.records
    assert f"keeping {numbered_id(1)} failed" == record.getMessage()
    assert isinstance(record.exc_info[1], TypeError)


# --- what can go wrong -----------------------------------------------------------------------------------------------


def limit_pages(store, more):
    """The disk has room for so many more pages."""
    database = store._file._db
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages + more}")


async def test_a_full_disk_refuses_and_the_store_lives(tmp_path):
    """With the disk full a put is refused whole, what is there can be read, and with room again it goes on."""
    huge = response(2, resource=bytes(100_000))
    async with running(tmp_path / "store") as store:
        await store.put(response(1))
        limit_pages(store, 2)
        with pytest.raises(StoreError, match="disk is full") as refused:
            await store.put(huge)
        assert refused.value.reason == "full"
        assert await store.get("alice", numbered_id(1)) == response(1)
        assert await store.get("alice", numbered_id(2)) is None
        limit_pages(store, 1000)
        await store.put(huge)
        assert await store.get("alice", numbered_id(2)) == huge


async def test_one_that_cannot_be_done_harms_only_itself(tmp_path):
    """Of a transaction's jobs those that fail, too large or no Unicode, are told why; the others are done."""
    calls = (
        put(1),
        put(2, resource=bytes(100_000)),
        put(3, previous_response_id=numbered_id(1)),
        put(4, context_items=(Message("user", "\ud800"),)),
        lambda store: store.get("alice", numbered_id(3)),
    )
    async with waiting(tmp_path / "store", *calls) as (store, answers, _):
        limit_pages(store, 3)
    assert reason(answers[1]) == "full"
    assert isinstance(answers[3], TypeError)
    expected = response(3, previous_response_id=numbered_id(1))
    assert [answers[0], answers[2], answers[4]] == [None, None, expected]
    assert store.statistics().transactions == 6
    assert rows(tmp_path / "store", "SELECT response_id FROM response") == [
        (numbered_id(1),),
        (numbered_id(3),),
    ]


async def test_a_read_only_file_refuses_and_the_store_lives(tmp_path):
    """A file that cannot be written any more is still read, and each write is refused with its reason."""
    async with running(tmp_path / "store") as store:
        await store.put(response(1))
        store._file._db.execute("PRAGMA query_only = ON")
        for write in (put(2), lambda store: store.delete("alice", numbered_id(1))):
            with pytest.raises(StoreError, match="read-only") as refused:
                await write(store)
            assert refused.value.reason == "read_only"
        assert await store.get("alice", numbered_id(1)) == response(1)
        store._file._db.execute("PRAGMA query_only = OFF")
        await store.put(response(2))


async def test_another_writer_is_not_waited_for_long(tmp_path):
    """While another process writes, writes are refused after a moment, all in one; reads are answered."""
    limits = attrs.evolve(DEFAULT_LIMITS, store_busy_seconds=0.01)
    StoreFile(tmp_path / "store", limits).close()
    with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as other:
        async with waiting(tmp_path / "store", put(1), put(2), limits=limits) as (store, answers, _):
            other.execute("BEGIN IMMEDIATE")
        assert [reason(answers[place]) for place in (0, 1)] == ["busy", "busy"]
        assert store.statistics().transactions == 1
    async with running(tmp_path / "store", limits) as store:
        await store.put(response(1))
        with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="another process"):
                await store.put(response(2))
            assert await store.get("alice", numbered_id(1)) == response(1)
        await store.put(response(2))


def other_database(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE theirs (x)")


def newer_store(path):
    StoreFile(path, DEFAULT_LIMITS).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("make", "expected", "words"),
    [
        (lambda path: path.write_bytes(b"My diary. " * 500), "not_a_store", "no database; name another"),
        (other_database, "not_a_store", "not a store; name another file"),
        (newer_store, "too_new", "schema 99 is newer"),
        (Path.mkdir, "io", "cannot be opened|unable to open"),
    ],
)
def test_a_file_that_is_no_store_is_refused(tmp_path, make, expected, words):
    """What is not ours to write is refused with its name and the way out, and left as it was."""
    path = tmp_path / "store"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match=words) as refused:
        SqliteStore(path)
    assert refused.value.reason == expected
    assert str(path) in str(refused.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_folder_that_is_not_there_is_named(tmp_path):
    """A file that cannot be made is refused with its name and the system's words."""
    with pytest.raises(StoreError, match="nowhere/store: cannot be opened: No such file") as refused:
        SqliteStore(tmp_path / "nowhere" / "store")
    assert refused.value.reason == "io"


def test_a_commit_outlives_the_process_and_no_more_is_paid_for(tmp_path):
    """The log is WAL and is not synced at each commit: kill -9 costs nothing, a power cut the last commits."""
    file = StoreFile(tmp_path / "store", DEFAULT_LIMITS)
    assert [file._value(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")] == ["wal", 1]
    assert file._value("PRAGMA wal_autocheckpoint") * file._value("PRAGMA page_size") == 64 * 1024 * 1024
    file.close()


async def test_only_its_owner_reads_the_file(tmp_path):
    """The file and its log have mode 0600, also if the file was open to others before."""
    path = tmp_path / "store"
    path.touch(0o644)
    async with running(path) as store:
        await store.put(response(1))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("store", "store-wal", "store-shm"), 0o600)


async def stored_numbers(path):
    async with running(path) as store:
        found = [await store.get("alice", numbered_id(number)) for number in range(30)]
        assert [record for number, record in enumerate(found) if record not in (None, response(number))] == []
        return [number for number, record in enumerate(found) if record is not None]


@pytest.mark.parametrize("tear", ["cut", "garbled"])
async def test_a_torn_log_is_read_up_to_its_last_whole_transaction_and_that_is_said(tmp_path, tear, caplog):
    """Wherever the log is cut or garbled, the store opens, has all that was committed before that place, and says so."""
    sizes = []
    async with running(tmp_path / "store") as store:
        for number in range(30):
            await store.put(response(number))
            sizes.append((tmp_path / "store-wal").stat().st_size)
        log = (tmp_path / "store-wal").read_bytes()
        whole = (tmp_path / "store").read_bytes()
    places = [*random.Random(1).sample(range(len(log) // 2, len(log)), 11), sizes[20]]
    for place in sorted(places):
        torn = tmp_path / f"torn{place}"
        torn.write_bytes(whole)
        rest = b"" if tear == "cut" else bytes(byte ^ 255 for byte in log[place:])
        torn.with_name(f"{torn.name}-wal").write_bytes(log[:place] + rest)
        kept = [size for size in sizes if size <= place]
        left_out = len(log[:place] + rest) - kept[-1]
        caplog.clear()
        assert await stored_numbers(torn) == list(range(len(kept)))
        words = f"{torn}: the last {left_out} bytes of its log were no whole transaction and were left out"
        assert caplog.messages == ([words] if left_out else [])


# --- kill -9 ---------------------------------------------------------------------------------------------------------


def killed_writer(path, first, after_lines, and_seconds):
    """Start a process that puts rows, kill it when so many are acknowledged and a moment has passed; all it acknowledged."""
    command = [sys.executable, "-m", "tests.store_writer", str(path), str(first), str(ROWS_A_LIFE)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        lines = [process.stdout.readline() for _ in range(after_lines)]
        time.sleep(and_seconds)  # else each kill would come right after an acknowledgement
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return [int(line) for line in lines]


async def read_back(path, numbers):
    async with running(path) as store:
        records = [await store.get("alice", numbered_id(number)) for number in numbers]
        return records, await store.usage("alice")


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    """Killed at any moment, again and again on one file: each acknowledged row is there, and each row is there once."""
    path, rng = tmp_path / "store", random.Random(20)
    acknowledged = []
    for life in range(KILLS):
        acknowledged += killed_writer(path, life * ROWS_A_LIFE, rng.randrange(1, 200), rng.uniform(0, 0.003))
    records, usage = trio.run(read_back, path, acknowledged)
    assert records == [response(number) for number in acknowledged]
    counted = [row.input_tokens for row in usage]
    assert len(set(counted)) == len(counted)
    assert set(acknowledged) <= set(counted)
    assert len(acknowledged) < KILLS * ROWS_A_LIFE
    assert rows(
        path, "SELECT count(*) FROM response WHERE response_id NOT IN (SELECT response_id FROM usage)"
    ) == [(0,)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
