"""Server-sent events as a bystander reads them: from pieces of a stream, cut anywhere."""

from collections.abc import Iterable, Iterator
from typing import Final

from engine.tap.http import Unreadable
from protocol.readers.sse import EventParser

_BOM: Final = b"\xef\xbb\xbf"

Event = tuple[str | None, bytes]
"""The `event:` line, if there was one, and the data."""


class SseReader:
    """One stream. `Unreadable` of an event of more than `max_event_bytes`: the rest of the stream is lost."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()
        self._ends_with_cr = False
        self._fresh = True

    def read(self, data: bytes) -> Iterable[Event]:
        """The events that are whole now."""
        if self._ends_with_cr or b"\r" in data:
            data = self._with_plain_line_ends(data)
        if not self._rest and data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2:
            event = self._event(data[:-2])  # nearly always one whole event
            return (event,) if event is not None else ()
        return self._events(data)

    def _events(self, data: bytes) -> Iterator[Event]:
        if self._rest:
            look_from = max(0, len(self._rest) - 1)
            self._rest += data
            if self._rest.find(b"\n\n", look_from) < 0:
                self._check_size()
                return
            data = bytes(self._rest)
        *blocks, rest = data.split(b"\n\n")
        self._rest = bytearray(rest)
        for block in blocks:
            event = self._event(block)
            if event is not None:
                yield event
        self._check_size()

    def _check_size(self) -> None:
        if len(self._rest) > self._max_event_bytes:
            raise Unreadable(f"an event of more than {self._max_event_bytes} bytes")

    def _with_plain_line_ends(self, data: bytes) -> bytes:
        """CR LF and CR end a line as LF does; of a pair that was cut the CR has been taken for the end."""
        if self._ends_with_cr and data.startswith(b"\n"):
            data = data[1:]
            self._ends_with_cr = False
        if data:
            self._ends_with_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _event(self, block: bytes) -> Event | None:
        if self._fresh:
            self._fresh = False
            block = block.removeprefix(_BOM)
        # nearly always: event: NAME, data: JSON
        if block.startswith(b"event: "):
            name, newline, data = block.partition(b"\n")
            if newline and data.startswith(b"data: ") and b"\n" not in data:
                return name[7:].decode("utf-8", "replace"), data[6:]
        parser = EventParser()
        for line in block.split(b"\n"):
            if line:
                parser.feed(line)
        return parser.finish()
