"""Puts responses and usage rows, many at once, until it is killed; each line it prints is one that was acknowledged.

python -m tests.store_writer FILE FIRST COUNT
"""

import os
import sys
from functools import partial
from pathlib import Path

import attrs
import trio

from engine.storage import StoredResponse
from engine.store import SqliteStore, UsageRow
from protocol.items import Message

AT_ONCE = 16


def numbered_id(number: int) -> str:
    return f"resp_{number:032x}"


def response(number: int, **members: object) -> StoredResponse:
    text = (Message("user", f"{number}?"), Message("assistant", f"{number}!"))
    row = StoredResponse(
        response_id=numbered_id(number),
        owner="alice",
        resource=b'{"id":"%d"}' % number,
        input_items=text[:1],
        output_items=text[1:],
        context_items=text,
    )
    return attrs.evolve(row, **members)


def usage_row(number: int, **members: object) -> UsageRow:
    row = UsageRow(
        response_id=numbered_id(number),
        owner="alice",
        dialect="create",
        status="completed",
        model="m",
        input_tokens=number,
        cached_tokens=1,
        output_tokens=2,
        reasoning_tokens=3,
        segments=4,
        created_at=5,
    )
    return attrs.evolve(row, **members)


async def write(store: SqliteStore, first: int, count: int) -> None:
    """Each response is put twice, as by a caller that is not sure."""
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def keep(number: int) -> None:
        await store.record_usage(usage_row(number))
        await store.put(response(number))

    async def one(number: int) -> None:
        async with limiter:
            await keep(number)
            os.write(1, b"%d\n" % number)
            await keep(number)

    async with trio.open_nursery() as nursery:
        for number in range(first, first + count):
            nursery.start_soon(one, number)


async def main(file: str, first: str, count: str) -> None:
    store = SqliteStore(Path(file))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await write(store, int(first), int(count))
        await trio.sleep_forever()  # only a kill ends it


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
