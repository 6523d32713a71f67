"""The inbox of a suspended rollout: where a connection puts the client's outputs, and where the rollout waits for them.

Putting in is synchronous and atomic: the batch is checked and committed, or refused, before the reader reads on.
So an answer never waits for the response it is for, and "accepted" and "pending" change in one step.
"""

import math
from collections.abc import Awaitable, Callable, Sequence

import trio

from protocol.errors import refusal
from protocol.items import Item
from protocol.pending import PendingCalls

Accepted = Callable[[tuple[str, ...]], None]


class Inbox:
    """One rollout's. `accepted` is told the call ids of each batch taken.

    `life`: the scope around the rollout, which the end of a pause cancels. A scope of its own and an event to wait for
    would be a kilobyte in each suspended rollout.
    """

    __slots__ = ("_accepted", "_max_held", "_pending", "_restart_seconds", "_waiting", "life")

    def __init__(
        self, pending: PendingCalls, *, life: trio.CancelScope, max_held: int, accepted: Accepted
    ) -> None:
        self._pending = pending
        self._max_held = max_held
        self._accepted = accepted
        self.life = life
        self._restart_seconds = math.inf
        self._waiting: trio.lowlevel.Task | None = None

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
        if self._waiting is None:
            return
        if not self._pending:
            self.life.deadline = math.inf  # now: the rollout may run later than that
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None
        elif batch.outputs and self._restart_seconds < math.inf:
            self.life.deadline = trio.current_time() + self._restart_seconds

    def wait_complete(self, seconds: float, *, restarts: bool) -> Awaitable[None]:
        """Wait until no call is pending; if that takes longer than `seconds`, the life is cancelled. A checkpoint if it waits.

        `restarts`: each accepted output starts the time again. The time begins with the call, which is to be awaited at once.
        """
        if not self._pending:
            return _go_on()
        self._restart_seconds = seconds if restarts else math.inf
        self.life.deadline = trio.current_time() + seconds
        self._waiting = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._give_up)  # noqa: ASYNC105  # a frame less for whoever waits

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED

    def take(self) -> tuple[Item, ...]:
        """What was accepted, in the order in which it enters the context."""
        return self._pending.take()


async def _go_on() -> None:
    """There is nothing to wait for."""
