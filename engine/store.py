"""Responses and usage rows in a file, written by one thread, many in one transaction.

Whoever asks puts a job on a bounded list and waits. `run` takes the whole list, lets a thread do all of it in one
transaction, and wakes who waited. So while a transaction is written the next one fills up by itself: one waiter has
the latency of one commit, and hundreds share it.

    put, get, … → the list → run → a thread → the file → run wakes them

Reads take the same way. They are short, they see all that was put before, and nothing is ever locked.

A job belongs to the store as soon as it is on the list: a cancelled waiter takes nothing back, and what it asked for is
done once. If a transaction fails, each of its jobs is tried alone, so that one that cannot be done harms only itself.
"""

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from engine.config import DEFAULT_LIMITS, Limits
from engine.storage import StoredResponse, UsageRow
from engine.store_file import StoreError, StoreFile

__all__ = ["SqliteStore", "StoreError", "StoreStatistics", "UsageRow"]

log = logging.getLogger(__name__)

ID: Final = re.compile(r"[a-z]+_[0-9a-f]{32,}\Z")
"""At least 128 random bits: an id is a capability (reference 2.2)."""


@attrs.define(eq=False)
class _Job:
    """Something to do with the file. When `done`, either it has its `error` or its `result`."""

    work: Callable[[], Any]
    writes: bool
    unawaited: str | None = None
    """The response that nobody waits for; its error is logged, as else nobody would see it."""
    done: trio.Event = attrs.field(factory=trio.Event)
    result: Any = None
    error: Exception | None = None


@attrs.frozen
class StoreStatistics:
    """What the store has done and has still to do."""

    queued: int
    """Jobs on the list."""
    waiting: int
    """Tasks that wait for a place on it."""
    jobs: int
    """Jobs done, well or not."""
    transactions: int
    """Transactions tried for them."""


class SqliteStore:
    """The store in a file; a `Store`. Its methods wait until `run` runs."""

    def __init__(self, path: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        """Open the file, or make it. `StoreError`: it is none of ours, too new, damaged or cannot be written."""
        self._limits = limits
        self._file = StoreFile(path, limits)
        if self._file.torn_bytes:
            log.warning(
                "%s: the last %d bytes of its log were no whole transaction and were left out",
                path,
                self._file.torn_bytes,
            )
        self._put_job, self._jobs = trio.open_memory_channel[_Job](limits.max_queued_store_jobs)
        self._thread = trio.CapacityLimiter(1)
        self._started = False
        self._ended = trio.Event()
        self._unfolded = False
        """Were there writes since the log was folded into the file?"""
        self._done_jobs = 0
        self._transactions = 0

    # --- what it keeps -------------------------------------------------------------------------------------------

    async def put(self, record: StoredResponse) -> None:
        """As `Store.put`. `ValueError`: its id could be guessed."""
        _check_id(record.response_id)
        await self._do(lambda: self._file.put(record), writes=True)

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """As `Store.get`."""
        if not ID.match(response_id):  # anybody's text; it may not even be Unicode
            await trio.lowlevel.checkpoint()
            return None
        record: StoredResponse | None = await self._do(
            lambda: self._file.get(owner, response_id), writes=False
        )
        return record

    async def delete(self, owner: str, response_id: str) -> bool:
        """As `Store.delete`."""
        if not ID.match(response_id):
            await trio.lowlevel.checkpoint()
            return False
        deleted: bool = await self._do(lambda: self._file.delete(owner, response_id), writes=True)
        return deleted

    async def put_soon(self, record: StoredResponse) -> None:
        """As `Store.put_soon`. `ValueError`: its id could be guessed. `StoreError`: the store is closed."""
        _check_id(record.response_id)
        await self._queue(_Job(lambda: self._file.put(record), writes=True, unawaited=record.response_id))

    async def record_usage(self, row: UsageRow) -> None:
        """As `Store.record_usage`. `ValueError`: its response's id could be guessed."""
        _check_id(row.response_id)
        await self._do(lambda: self._file.record_usage(row), writes=True)

    async def usage(self, owner: str) -> list[UsageRow]:
        """As `Store.usage`."""
        rows: list[UsageRow] = await self._do(lambda: self._file.usage(owner), writes=False)
        return rows

    def statistics(self) -> StoreStatistics:
        """Not a checkpoint."""
        channel = self._jobs.statistics()
        return StoreStatistics(
            queued=channel.current_buffer_used,
            waiting=channel.tasks_waiting_send,
            jobs=self._done_jobs,
            transactions=self._transactions,
        )

    async def _do(self, work: Callable[[], Any], *, writes: bool) -> Any:
        job = _Job(work, writes)
        await self._queue(job)
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return job.result

    async def _queue(self, job: _Job) -> None:
        try:
            await self._put_job.send(job)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise _closed() from None

    # --- the one that does it ------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what is asked for, until `aclose`. Cancelled, it still does what is on the list, shielded and bounded."""
        self._started = True
        task_status.started()
        try:
            await self._do_until_closed()
        finally:
            with trio.move_on_after(self._limits.cleanup_seconds, shield=True):
                self._put_job.close()
                await self._do_until_closed()
                await trio.to_thread.run_sync(self._fold, limiter=self._thread)
            self._end()

    async def aclose(self) -> None:
        """Take nothing more, see what is on the list done, close the file. Idempotent; bounded by `cleanup_seconds`."""
        self._put_job.close()
        if not self._started:
            self._started = True
            self._end()
        with trio.move_on_after(self._limits.cleanup_seconds, shield=True):
            await self._ended.wait()

    def _end(self) -> None:
        self._refuse_the_rest()
        self._jobs.close()
        self._file.close()
        self._ended.set()

    def _refuse_the_rest(self) -> None:
        while True:
            try:
                job = self._jobs.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                return
            job.error = _closed()
            _finish(job)

    async def _do_until_closed(self) -> None:
        while not self._ended.is_set() and (group := await self._next_group()):
            with trio.CancelScope(shield=True):  # what was taken from the list is done; it is short
                await trio.to_thread.run_sync(self._try, group, limiter=self._thread)
            self._done_jobs += len(group)
            for job in group:
                _finish(job)

    async def _next_group(self) -> list[_Job]:
        """All that is on the list, as soon as there is something; nothing at its end."""
        group: list[_Job] = []
        try:
            group.append(await self._next_job())
            while len(group) < self._limits.max_queued_store_jobs:
                group.append(self._jobs.receive_nowait())
        except (trio.EndOfChannel, trio.WouldBlock):
            pass
        return group

    async def _next_job(self) -> _Job:
        if self._unfolded:
            with trio.move_on_after(self._limits.store_idle_seconds):
                return await self._jobs.receive()
            await trio.to_thread.run_sync(self._fold, limiter=self._thread)
        return await self._jobs.receive()

    # --- in the thread -------------------------------------------------------------------------------------------

    def _try(self, group: Sequence[_Job]) -> None:
        """Together if that goes, else each alone; but nobody waits behind another process more than once."""
        error = self._transaction(group)
        if error is None:
            return
        if isinstance(error, StoreError) and error.reason == "busy":
            for job in group:
                job.error = StoreError(error.reason, str(error))
        elif len(group) > 1:
            for job in group:
                self._try([job])
        else:
            group[0].error = error

    def _transaction(self, group: Sequence[_Job]) -> Exception | None:
        writes = any(job.writes for job in group)
        self._transactions += 1
        self._unfolded = self._unfolded or writes
        try:
            with self._file.transaction(writes=writes):
                for job in group:
                    job.result = job.work()
        except Exception as error:  # noqa: BLE001  # raised again where it was asked for
            return error
        return None

    def _fold(self) -> None:
        self._unfolded = False
        try:
            self._file.fold()
        except StoreError as error:
            log.warning("the store's log stays as long as it is: %s", error)


def _finish(job: _Job) -> None:
    job.done.set()
    if job.unawaited is not None and job.error is not None:
        log.error("keeping %s failed", job.unawaited, exc_info=job.error)


def _check_id(response_id: str) -> None:
    if not ID.match(response_id):
        raise ValueError(f"response id {response_id!r} could be guessed: give it 128 random bits, in hex")


def _closed() -> StoreError:
    return StoreError("closed", "the store is closed: the server shuts down")
