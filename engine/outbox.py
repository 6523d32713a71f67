"""Where a rollout's events go: numbered, encoded and queued at once, sent by the connection's one writer."""

from collections.abc import Mapping
from typing import Any, Protocol

from protocol.events import ServerEvent


class Outbox(Protocol):
    """Where events go. Nothing here fails: a broken connection stops its rollouts by itself."""

    def emit(self, event: ServerEvent) -> None:
        """Number, encode and queue one event. Not a checkpoint."""
        ...

    def flush(self) -> None:
        """An engine step is over: what was emitted may leave. Not a checkpoint."""
        ...

    async def wait_writable(self) -> None:
        """Wait while the client is behind. No checkpoint if it is not."""
        ...

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Something happened between the frames; for traces. Not a checkpoint."""
        ...
