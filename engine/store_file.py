"""The store's file: an SQLite database, and what is done to it, one thing at a time, in whatever thread calls.

    response   what a client may ask for by its id
    node       contexts, as a tree: a node is so many items of its base, and then its own
    usage      what each response cost

A response's context is its whole conversation, but its node keeps only what the context of its parent does not begin
with. So a chain of n turns takes room for its items once, and a compaction or an edit simply shares less.
Deleting a response deletes its row; its node stays as long as another stands on it.

What is new is found by comparing with the parent's context, which is remembered (`_RecentContexts`):
comparing an item with itself costs nothing, so a turn does work only for its own items.

A transaction that was committed outlives kill -9, not a power cut: WAL with `synchronous=NORMAL`.
Whatever a kill cut short at the end of the log, SQLite drops when it opens the file; `torn_bytes` says how much.
"""

import operator
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import orjson

from engine.config import Limits
from engine.storage import StoredResponse, UsageRow
from engine.torn_log import log_of, torn_bytes
from protocol import codec
from protocol.items import Item

Reason = Literal["full", "read_only", "busy", "not_a_store", "too_new", "damaged", "io", "closed"]

APPLICATION_ID: Final = 0x53524E31
"""Says in the file's header whose database it is."""
SCHEMA_VERSION: Final = 1
_OURS_ALONE: Final = 0o600

_SCHEMA: Final = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
    # AUTOINCREMENT: a number that was deleted is never given again, so what is remembered by it cannot be wrong
    """CREATE TABLE node (
        id INTEGER PRIMARY KEY AUTOINCREMENT, base INTEGER REFERENCES node, kept INTEGER NOT NULL, items BLOB NOT NULL
    )""",
    "CREATE INDEX node_base ON node (base)",
    """CREATE TABLE response (
        owner TEXT NOT NULL, response_id TEXT NOT NULL, node INTEGER NOT NULL REFERENCES node,
        resource BLOB NOT NULL, input_items BLOB NOT NULL, output_items BLOB NOT NULL,
        previous_response_id TEXT, status TEXT NOT NULL, created_at INTEGER NOT NULL,
        instructions TEXT, tools BLOB NOT NULL, PRIMARY KEY (owner, response_id)
    )""",
    "CREATE INDEX response_node ON response (node)",
    """CREATE TABLE usage (
        response_id TEXT PRIMARY KEY, owner TEXT NOT NULL, dialect TEXT NOT NULL, status TEXT NOT NULL,
        model TEXT NOT NULL, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL, segments INTEGER NOT NULL,
        created_at INTEGER NOT NULL
    )""",
    "CREATE INDEX usage_owner ON usage (owner)",
)

_REASONS: Final[Mapping[int, tuple[Reason, str]]] = {
    sqlite3.SQLITE_FULL: ("full", "the disk is full; make room"),
    sqlite3.SQLITE_READONLY: ("read_only", "the file is read-only; make it writable"),
    sqlite3.SQLITE_BUSY: ("busy", "another process is writing to it; one server to a file"),
    sqlite3.SQLITE_NOTADB: ("not_a_store", "the file is no database; name another one"),
    sqlite3.SQLITE_CORRUPT: ("damaged", "the file is damaged; restore it, or name a new one"),
}


class StoreError(Exception):
    """The store could not do what it was asked, and nothing of it was done; the store lives on. `reason` says why."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


_INSERT_USAGE: Final = "INSERT OR IGNORE INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT_USAGE: Final = "SELECT * FROM usage WHERE owner = ? ORDER BY rowid"
"""The columns are the members of `UsageRow`, in their order."""
_USAGE_MEMBERS: Final = tuple(field.name for field in attrs.fields(UsageRow))
_SELECT_NODE: Final = "SELECT node FROM response WHERE owner = ? AND response_id = ?"
_SELECT_RESPONSE: Final = """
    SELECT node, resource, input_items, output_items, previous_response_id, status, created_at, instructions, tools
    FROM response WHERE owner = ? AND response_id = ?"""
_SELECT_CHAIN: Final = """
    WITH RECURSIVE chain (depth, base, kept, items) AS (
        SELECT 0, base, kept, items FROM node WHERE id = ?
        UNION ALL
        SELECT depth + 1, node.base, node.kept, node.items FROM chain JOIN node ON node.id = chain.base
    )
    SELECT kept, items FROM chain ORDER BY depth DESC"""
_DELETE_UNUSED_NODE: Final = """
    DELETE FROM node WHERE id = ?
    AND NOT EXISTS (SELECT 1 FROM response WHERE node = ?) AND NOT EXISTS (SELECT 1 FROM node WHERE base = ?)"""


@attrs.frozen
class _Known:
    """A context in memory, and the size of its items in the file."""

    items: tuple[Item, ...] = ()
    size_bytes: int = 0


class _RecentContexts:
    """Contexts by their node, the last used ones, up to so many bytes of their items in the file."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def find(self, node: int) -> _Known | None:
        known = self._known.get(node)
        if known is not None:
            self._known.move_to_end(node)
        return known

    def keep(self, node: int, known: _Known) -> None:
        self.forget(node)
        self._known[node] = known
        self._held_bytes += known.size_bytes
        while self._held_bytes > self._max_bytes:
            self.forget(next(iter(self._known)))

    def forget(self, node: int) -> None:
        known = self._known.pop(node, None)
        self._held_bytes -= known.size_bytes if known is not None else 0

    def clear(self) -> None:
        self._known.clear()
        self._held_bytes = 0


class StoreFile:
    """The open file. Not for two threads at once. Every method but `close` and `fold` is for a `transaction`."""

    def __init__(self, path: Path, limits: Limits) -> None:
        """Open the file, or make it, for its owner's eyes only. `StoreError`: it cannot be used, and why."""
        self._recent = _RecentContexts(limits.max_store_cache_bytes)
        self._path = path
        self.torn_bytes = 0
        """The end of the log that was left out when the file was opened: no whole transaction."""
        with self._translated():
            _make_private(path)
            self._db = sqlite3.connect(
                path, timeout=limits.store_busy_seconds, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(limits)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, limits: Limits) -> None:
        """Whose file it is comes first: one of somebody else is left as it was."""
        empty = self._value("SELECT count(*) FROM sqlite_master") == 0
        if not empty and self._value("PRAGMA application_id") != APPLICATION_ID:
            raise StoreError("not_a_store", f"{self._path}: this database is not a store; name another file")
        version = self._value("PRAGMA user_version")
        if version > SCHEMA_VERSION:
            raise StoreError("too_new", f"{self._path}: schema {version} is newer than this program; upgrade")
        self._value("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        page_bytes = self._value("PRAGMA page_size")
        _, whole_frames, _ = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self.torn_bytes = torn_bytes(log_of(self._path), whole_frames, page_bytes)
        self._value(f"PRAGMA wal_autocheckpoint = {max(1, limits.max_wal_bytes // page_bytes)}")
        with self.transaction(writes=True):  # also when there is nothing to make: it must be writable
            for statement in _SCHEMA if empty else ():
                self._db.execute(statement)

    def close(self) -> None:
        """Close the file; its log is folded into it. Idempotent."""
        with self._translated():
            self._db.close()

    def fold(self) -> None:
        """Fold the log into the file: the slow part of writing, for when nobody waits. `StoreError`: it stays as it is."""
        with self._translated():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator[None]:
        """All that is done within is done, or nothing. `StoreError`, and whatever was raised within: nothing."""
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._recent.clear()  # it may know nodes that now never were
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    # --- responses -----------------------------------------------------------------------------------------------

    def put(self, record: StoredResponse) -> None:
        """Store a response; one that is there already stays as it is."""
        if self._node(record.owner, record.response_id) is not None:
            return
        base, known = self._parent(record)
        kept = _shared(known.items, record.context_items)
        own = _written(record.context_items[kept:])
        node = self._db.execute(
            "INSERT INTO node (base, kept, items) VALUES (?, ?, ?)", (base if kept else None, kept, own)
        ).lastrowid
        assert node is not None
        self._db.execute(
            "INSERT INTO response VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(record.owner, record.response_id, node, record.resource),
                *(_written(record.input_items), _written(record.output_items)),
                *(record.previous_response_id, record.status, record.created_at),
                *(record.instructions, orjson.dumps(record.tools)),
            ),
        )
        self._recent.keep(node, _Known(record.context_items, len(own) + (known.size_bytes if kept else 0)))

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """The owner's response of this id; None also for somebody else's."""
        row = self._db.execute(_SELECT_RESPONSE, (owner, response_id)).fetchone()
        if row is None:
            return None
        node, resource, input_items, output_items, previous, status, created_at, instructions, tools = row
        return StoredResponse(
            response_id=response_id,
            owner=owner,
            resource=resource,
            input_items=_read(input_items),
            output_items=_read(output_items),
            previous_response_id=previous,
            status=status,
            created_at=created_at,
            instructions=instructions,
            tools=tuple(orjson.loads(tools)),
            context_items=self._context(node).items,
        )

    def delete(self, owner: str, response_id: str) -> bool:
        """Delete the owner's response of this id, and what nothing else stands on; was there one?"""
        node = self._node(owner, response_id)
        if node is None:
            return False
        self._db.execute("DELETE FROM response WHERE owner = ? AND response_id = ?", (owner, response_id))
        while node is not None:
            base = self._value("SELECT base FROM node WHERE id = ?", node)
            if self._db.execute(_DELETE_UNUSED_NODE, (node, node, node)).rowcount == 0:
                break
            self._recent.forget(node)
            node = base
        return True

    def _node(self, owner: str, response_id: str) -> int | None:
        row = self._db.execute(_SELECT_NODE, (owner, response_id)).fetchone()
        return None if row is None else int(row[0])

    def _parent(self, record: StoredResponse) -> tuple[int | None, _Known]:
        previous = record.previous_response_id
        node = None if previous is None else self._node(record.owner, previous)
        return (None, _Known()) if node is None else (node, self._context(node))

    def _context(self, node: int) -> _Known:
        known = self._recent.find(node)
        if known is None:
            known = self._rebuilt(node)
            self._recent.keep(node, known)
        return known

    def _rebuilt(self, node: int) -> _Known:
        items: list[Item] = []
        size_bytes = 0
        for kept, own in self._db.execute(_SELECT_CHAIN, (node,)):
            items[kept:] = _read(own)
            size_bytes += len(own)
        return _Known(tuple(items), size_bytes)

    # --- usage ---------------------------------------------------------------------------------------------------

    def record_usage(self, row: UsageRow) -> None:
        """Store a usage row; a response that has one keeps it."""
        self._db.execute(_INSERT_USAGE, attrs.astuple(row))

    def usage(self, owner: str) -> list[UsageRow]:
        """The owner's usage rows, oldest first."""
        rows = self._db.execute(_SELECT_USAGE, (owner,))
        return [UsageRow(**dict(zip(_USAGE_MEMBERS, row, strict=True))) for row in rows]

    # --- the file ------------------------------------------------------------------------------------------------

    def _value(self, statement: str, *values: Any) -> Any:
        return self._db.execute(statement, values).fetchone()[0]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's errors to ours, here and nowhere else."""
        try:
            yield
        except sqlite3.Error as error:
            primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            reason, words = _REASONS.get(primary, ("io", str(error)))
            raise StoreError(reason, f"{self._path}: {words}") from error
        except OSError as error:
            raise StoreError("io", f"{self._path}: cannot be opened: {error.strerror}") from error


def _make_private(path: Path) -> None:
    """Make the file if need be; others of this machine must not read it. SQLite gives its log the same mode."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, _OURS_ALONE)
    try:
        mode = os.fstat(descriptor).st_mode & 0o777
        if mode & ~_OURS_ALONE:
            os.fchmod(descriptor, mode & _OURS_ALONE)
    finally:
        os.close(descriptor)


def _shared(first: Sequence[Item], second: Sequence[Item]) -> int:
    """How many items both begin with."""
    shorter = min(len(first), len(second))
    if all(map(operator.is_, first, second)):  # nearly always; 4,000 items take 0.1 ms
        return shorter
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if not _same(a, b)), shorter)


def _same(a: Item, b: Item) -> bool:
    """For Python `1 == True`; in JSON they differ."""
    return a is b or (a == b and _written((a,)) == _written((b,)))


def _written(items: Sequence[Item]) -> bytes:
    """`TypeError`: text that is no Unicode; a bug of whoever made the items."""
    return orjson.dumps([codec.unstructure(item) for item in items])


def _read(items: bytes) -> tuple[Item, ...]:
    read: tuple[Item, ...] = codec.structure(orjson.loads(items), tuple[Item, ...])
    return read
