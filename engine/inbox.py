"""The inbox of a suspended rollout: where a connection puts the client's outputs, and where the rollout waits for them.

Putting in is synchronous and atomic: the batch is checked and committed, or refused, before the reader reads on.
So an answer never waits for the response it is for, and "accepted" and "pending" change in one step.
"""

from collections.abc import Callable, Sequence

import trio

from protocol.errors import refusal
from protocol.items import Item
from protocol.pending import PendingCalls

Accepted = Callable[[tuple[str, ...]], None]


class Inbox:
    """One rollout's. `accepted` is told the call ids of each batch taken."""

    __slots__ = ("_accepted", "_complete", "_max_held", "_pending", "_restart_seconds", "patience")

    def __init__(self, pending: PendingCalls, *, max_held: int, accepted: Accepted) -> None:
        self._pending = pending
        self._max_held = max_held
        self._accepted = accepted
        self._complete = trio.Event()
        self.patience = trio.CancelScope()
        """Around the wait; its deadline is the end of the pause."""
        self._restart_seconds: float | None = None

    @property
    def pending(self) -> tuple[str, ...]:
        """Ids of the calls that have no output yet, in call order."""
        return self._pending.call_ids

    @property
    def held(self) -> int:
        """Items accepted and not yet in the context."""
        return self._pending.held

    def offer(self, items: Sequence[Item]) -> None:
        """Accept a batch, or refuse all of it with `RemoteProtocolError` and change nothing. Not a checkpoint."""
        batch = self._pending.check(items)
        if self.held + len(batch.outputs) + len(batch.messages) > self._max_held:
            raise refusal("too_much_held", response_id=self._pending.response_id)
        self._accepted(self._pending.commit(batch))
        if self._restart_seconds is not None and batch.outputs:
            self.patience.deadline = trio.current_time() + self._restart_seconds
        if not self._pending:
            self._complete.set()

    async def wait_complete(self, seconds: float, *, restarts: bool) -> bool:
        """Wait until no call is pending; False if that took longer than `seconds`. A checkpoint.

        `restarts`: each accepted output starts the time again.
        """
        self._complete = trio.Event()
        self._restart_seconds = seconds if restarts else None
        self.patience = trio.CancelScope(deadline=trio.current_time() + seconds)
        with self.patience:
            if self._pending:
                await self._complete.wait()
        return not self._pending

    def take(self) -> tuple[Item, ...]:
        """What was accepted, in the order in which it enters the context."""
        return self._pending.take()
