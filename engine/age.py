"""A connection grows old: from its age limit on nothing new starts, what runs may finish, then it is closed (reference 4.7).

In order: queued and new creates are refused with `websocket_connection_limit_reached`, and suspended rollouts end;
what samples gets `age_grace_seconds`, then it is cut; the refusal is sent once more, for the connection as a whole,
and the connection is closed with 1001. So a client always reads why before it is cut off, and is never cut off in
the middle of a token if it needs no longer than the grace.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from engine.config import Limits
from protocol.errors import RemoteProtocolError, refusal

GOING_AWAY: Final = 1001


class Ageing(Protocol):
    """What is done to a connection."""

    def wind_down(self, why: RemoteProtocolError) -> None:
        """Refuse every create that waits or will come with `why`; end what is suspended. Not a checkpoint."""

    async def wait_idle(self) -> None:
        """Wait until no rollout is alive."""

    def cut(self) -> None:
        """Stop the rollouts that are left. Not a checkpoint."""

    def announce(self, why: RemoteProtocolError) -> None:
        """Send `why` as an `error` frame of no lane. Not a checkpoint."""


class AgeLimit:
    """Watches one connection: `run` it beside the reader, `stop` it when the connection is over."""

    def __init__(
        self, connection: Ageing, close: Callable[[int, str], Awaitable[None]], limits: Limits
    ) -> None:
        self._connection = connection
        self._close = close
        self._limits = limits
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Returns when the connection was closed by its age, or stopped. A checkpoint."""
        with self._scope:
            await trio.sleep(self._limits.max_connection_seconds)
            await self._retire()

    def stop(self) -> None:
        """The connection is over already. Idempotent, not a checkpoint."""
        self._scope.cancel()

    async def _retire(self) -> None:
        why = too_old(self._limits)
        self._connection.wind_down(why)
        with trio.move_on_after(self._limits.age_grace_seconds):
            await self._connection.wait_idle()
        self._connection.cut()
        with trio.move_on_after(self._limits.cleanup_seconds):
            await self._connection.wait_idle()
        self._connection.announce(why)
        await self._close(GOING_AWAY, "the connection reached its age limit")


def too_old(limits: Limits) -> RemoteProtocolError:
    """The refusal of a connection that has reached its age limit."""
    return refusal("connection_age", minutes=limits.max_connection_seconds / 60)
