"""What is kept of a response with `store: true`, and what a store is; `MemoryStore` is one without a disk.

An id is looked up together with its owner, so a foreign id answers exactly like an unknown one, on every surface.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

import attrs
import trio

from engine.config import DEFAULT_LIMITS, Limits
from protocol.items import Item


@attrs.frozen(kw_only=True)
class StoredResponse:
    """One response as it ended."""

    response_id: str
    owner: str
    """Whose it is: derived from the key, never the key itself; empty on a server without keys."""
    resource: bytes
    """The resource, JSON, as the terminal event showed it."""
    input_items: tuple[Item, ...] = ()
    """This response's own input, each item with an id."""
    output_items: tuple[Item, ...] = ()
    context_items: tuple[Item, ...] = ()
    """The whole chain: earlier responses, this input, this output; what a continuation starts from."""
    previous_response_id: str | None = None
    status: str = "completed"
    created_at: int = 0
    instructions: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def continuable(self) -> bool:
        """May a later create name it as its parent? Not after a failure or a cancellation (reference 2.7)."""
        return self.status in {"completed", "incomplete"}


@attrs.frozen(kw_only=True)
class UsageRow:
    """The cost of one response, of all its segments together."""

    response_id: str
    owner: str
    """As `StoredResponse.owner`."""
    dialect: str
    status: str
    model: str
    input_tokens: int
    """Cached ones included."""
    cached_tokens: int
    output_tokens: int
    """Reasoning included."""
    reasoning_tokens: int
    segments: int
    created_at: int


class Store(Protocol):
    """Keeps responses by owner and id, and what each one cost. All methods are checkpoints."""

    async def put(self, record: StoredResponse) -> None:
        """Keep it; idempotent by response id. Returns when it is committed. A checkpoint."""

    async def put_soon(self, record: StoredResponse) -> None:
        """`put`, but returns when it is certain to be done, failure or kill aside, before what is asked for next."""

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """The response, if it is this owner's. A checkpoint."""

    async def delete(self, owner: str, response_id: str) -> bool:
        """Forget it; False if there was none of this owner's. A checkpoint."""

    async def record_usage(self, row: UsageRow) -> None:
        """Keep it; idempotent by response id. Returns when it is committed."""

    async def usage(self, owner: str) -> list[UsageRow]:
        """The owner's rows, oldest first."""
        ...


class MemoryStore:
    """A store in memory, bounded: the least recently used response goes first."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._bytes = 0
        self._records: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._usage: OrderedDict[str, UsageRow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    async def put(self, record: StoredResponse) -> None:
        """As `Store.put`."""
        await trio.lowlevel.checkpoint()
        key, limits = (record.owner, record.response_id), self._limits
        if key in self._records:
            return
        self._records[key] = record
        self._bytes += len(record.resource)
        while len(self._records) > limits.max_stored_responses or self._bytes > limits.max_stored_bytes:
            _, oldest = self._records.popitem(last=False)
            self._bytes -= len(oldest.resource)

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """As `Store.get`."""
        await trio.lowlevel.checkpoint()
        record = self._records.get((owner, response_id))
        if record is not None:
            self._records.move_to_end((owner, response_id))
        return record

    async def delete(self, owner: str, response_id: str) -> bool:
        """As `Store.delete`."""
        await trio.lowlevel.checkpoint()
        record = self._records.pop((owner, response_id), None)
        if record is not None:
            self._bytes -= len(record.resource)
        return record is not None

    async def record_usage(self, row: UsageRow) -> None:
        """As `Store.record_usage`."""
        await trio.lowlevel.checkpoint()
        self._usage.setdefault(row.response_id, row)
        if len(self._usage) > self._limits.max_usage_rows:
            self._usage.popitem(last=False)

    async def put_soon(self, record: StoredResponse) -> None:
        """As `Store.put_soon`; here nothing is gained by waiting less."""
        await self.put(record)

    async def usage(self, owner: str) -> list[UsageRow]:
        """As `Store.usage`."""
        await trio.lowlevel.checkpoint()
        return [row for row in self._usage.values() if row.owner == owner]
