"""A rollout's way to its client over a connection: events become frames, and a dead connection swallows them."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from engine.recorder import Recorder
from engine.transport import Transport, TransportClosed
from protocol.events import ServerEvent
from protocol.session import Record


@attrs.frozen
class WireOutbox:
    """A rollout's way to its client."""

    _record: Record
    _send: Callable[[bytes], None]
    _transport: Transport
    _recorder: Recorder

    def emit(self, event: ServerEvent) -> None:
        """Number, encode and queue."""
        self._send(self._record.send(event))

    def flush(self) -> None:
        """Let what is queued leave."""
        self._transport.flush()

    async def wait_writable(self) -> None:
        """Wait while the client is behind; for ever, if it is gone: the reader stops the rollout then."""
        try:
            await self._transport.wait_writable()
        except TransportClosed:
            # the reader has seen it too; wait for it to stop this rollout
            await trio.sleep_forever()

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Tell the trace."""
        self._recorder.hook(name, members)
