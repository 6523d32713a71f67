"""Where a rollout's events go: numbered, encoded and queued at once, sent by the connection's one writer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from protocol.events import ServerEvent
from protocol.templates import Make

WritePieces = Callable[[Sequence[str]], None]
"""Takes pieces of an item's text, each to be an event."""


class Way(Protocol):
    """How the events of an item leave that is written piece by piece."""

    def open(self, opening: Make, item_id: str, output_index: int, *texts: str) -> WritePieces:
        """`emit` for what `opening` makes of these values, but for its last, a delta: that for each piece written.

        The hot path: no event is made for what is only bytes. Not a checkpoint, nor is what it returns.
        """
        ...

    def emit_made(self, make: Make, item_id: str, output_index: int, *texts: str) -> None:
        """`emit` for what `make` makes of these values, where that is output. Not a checkpoint."""
        ...


class Outbox(Way, Protocol):
    """Where events go. Nothing here fails: a broken connection stops its rollouts by itself."""

    def emit(self, event: ServerEvent) -> None:
        """Number, encode and queue one event. Not a checkpoint."""
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
