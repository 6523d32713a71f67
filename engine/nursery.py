"""A nursery for the tasks that must see an end through, whatever happens to the task that began it.

And what comes out of a nursery: a group of errors, of which people want to read the members.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_outliving_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks outlive a cancellation of the body; they end, cancelled, after it."""
    body_error: Exception | None = None
    ready = trio.Event()
    inner: list[trio.Nursery] = []

    async def hold() -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                inner.append(nursery)
                ready.set()
                await trio.sleep_forever()

    try:
        async with trio.open_nursery() as outer:
            outer.start_soon(hold)
            with trio.CancelScope(shield=True):  # `hold` is ready after its first step
                await ready.wait()
            try:
                yield inner[0]
            except Exception as error:  # noqa: BLE001  # raised again below, outside the nursery and its group
                body_error = error
            finally:
                inner[0].cancel_scope.cancel()
    finally:
        if body_error is not None:
            raise body_error


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors a nursery's group holds, at any depth; an error that is no group is its own only leaf."""
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from leaves(member)
    else:
        yield error
