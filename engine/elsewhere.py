"""Responses over WebSocket as HTTP sees them: retrieved, cancelled and deleted while they are made, whatever their form."""

from collections.abc import Mapping

import attrs

from engine.connection import Connection
from engine.live import is_retrievable, unstore
from engine.rollout import Rollout


@attrs.frozen
class Elsewhere:
    """The connections of a server, each with its owner. Nothing here is a checkpoint."""

    _owners: Mapping[Connection, str]

    def rollout(self, owner: str, response_id: str) -> Rollout | None:
        """A rollout of this owner's that has begun and not ended; it may be one that is not stored."""
        for connection in self._of(owner):
            rollout = connection.rollout(response_id)
            if rollout is not None and rollout.resource is not None:
                return rollout
        return None

    def retrievable(self, owner: str, response_id: str) -> Rollout | None:
        """The same, if it is one that is stored."""
        rollout = self.rollout(owner, response_id)
        return rollout if rollout is not None and is_retrievable(rollout) else None

    def forget(self, owner: str, response_id: str) -> bool:
        """It was deleted: one that is still being made will not be stored, and nothing continues it. Was there one?"""
        rollout = self.retrievable(owner, response_id)
        if rollout is not None:
            unstore(rollout)
        for connection in self._of(owner):
            connection.forget(response_id)
        return rollout is not None

    def _of(self, owner: str) -> list[Connection]:
        return [connection for connection, its_owner in self._owners.items() if its_owner == owner]
