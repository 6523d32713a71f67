"""Where a rollout's events go: numbered, encoded and queued at once, sent by the connection's one writer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from protocol.events import Delta, ServerEvent


class Outbox(Protocol):
    """Where events go. Nothing here fails: a broken connection stops its rollouts by itself."""

    def emit(self, event: ServerEvent) -> None:
        """Number, encode and queue one event. Not a checkpoint."""
        ...

    def deltas(self, first: Delta) -> Callable[[Sequence[str]], None]:
        """`emit` for all deltas that differ from `first` in their pieces only, which is not emitted itself.

        The hot path: no event is made for what is only bytes. Not a checkpoint, nor is what it returns.
        """
        ...

    def flush(self) -> bool:
        """An engine step is over: what was emitted may leave. Not a checkpoint.

        False: the client is behind, `wait_writable` before more is sampled.
        """
        ...

    async def wait_writable(self) -> None:
        """Wait while the client is behind. No checkpoint if it is not."""
        ...

    @property
    def traced(self) -> bool:
        """Is there anybody to tell? Else `hook` need not be called."""
        ...

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Something happened between the frames; for traces. Not a checkpoint."""
        ...
