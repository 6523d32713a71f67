"""A rollout's way to its client over a connection: events become frames, and a dead connection swallows them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from engine.outbox import WritePieces
from engine.recorder import NoRecorder, Recorder
from engine.transport import Transport, TransportClosed
from protocol.events import ServerEvent
from protocol.record import Record
from protocol.templates import Make


@attrs.define(eq=False)
class WireOutbox:
    """A rollout's way to its client."""

    _record: Record
    _send: Callable[[bytes], None]
    _transport: Transport
    _recorder: Recorder
    _send_all: Callable[[Iterable[bytes]], object] = attrs.field(init=False)
    """The transport's own if nobody listens; a connection that is over swallows them, as `_send` does."""

    def __attrs_post_init__(self) -> None:
        self._send_all = self._send_each if self.traced else self._transport.queue_all

    def emit(self, event: ServerEvent) -> None:
        """Number, encode and queue."""
        self._send_all((self._record.send(event),))

    def open(self, opening: Make, item_id: str, output_index: int, *texts: str) -> WritePieces:
        """As `Outbox.open`."""
        _, frames, number_and_encode = self._record.open(opening, item_id, output_index, *texts)
        send_all = self._send_all
        send_all(frames)

        def write(pieces: Sequence[str]) -> None:
            send_all(number_and_encode(pieces))

        return write

    def emit_made(self, make: Make, item_id: str, output_index: int, *texts: str) -> None:
        """As `Outbox.emit_made`."""
        _, frames = self._record.send_made(make, item_id, output_index, *texts)
        self._send_all(frames)

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
