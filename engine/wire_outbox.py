"""A rollout's way to its client over a connection: events become frames, and a dead connection swallows them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from engine.recorder import NoRecorder, Recorder
from engine.transport import Transport, TransportClosed
from protocol.events import Delta, ServerEvent
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

    def deltas(self, first: Delta) -> Callable[[Sequence[str]], None]:
        """The same for pieces of one place, several at once."""
        number_and_encode, queue_all = self._record.deltas(first), self._transport.queue_all
        if self.traced:
            return lambda pieces: self._send_each(number_and_encode(pieces))

        def write(pieces: Sequence[str]) -> None:
            queue_all(number_and_encode(pieces))  # one that is over swallows them, as `_send` does

        return write

    def _send_each(self, texts: Iterable[bytes]) -> None:
        for text in texts:
            self._send(text)

    @property
    def flush(self) -> Callable[[], bool]:
        """Call it to let what is queued leave; False: too much of it is left, or the client is gone.

        The transport's own: on the hot path a call less for each step.
        """
        return self._transport.flush

    async def wait_writable(self) -> None:
        """Wait while the client is behind; for ever, if it is gone: the reader stops the rollout then."""
        try:
            await self._transport.wait_writable()
        except TransportClosed:
            # the reader has seen it too; wait for it to stop this rollout
            await trio.sleep_forever()

    @property
    def traced(self) -> bool:
        """As `Outbox.traced`."""
        return type(self._recorder) is not NoRecorder

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Tell the trace."""
        self._recorder.hook(name, members)
