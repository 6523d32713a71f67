"""Server-sent events out of pieces of any size, as the HTML standard reads them; bounded, without I/O."""

import re
from typing import Final

from protocol.errors import RemoteProtocolError

_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
"""A CR at the very end waits: it may be half of a line's end."""


class EventReader:
    """The events of one answer. Comments, ids and retry times are passed over, and so are events without data."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._unread = bytearray()
        self._scanned_bytes = 0
        """Of what is unread: no line's end is in there."""
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """(name, data) of each event that is whole now. `RemoteProtocolError`: one is too large."""
        found: list[tuple[str, bytes]] = []
        self._unread += piece
        start = 0
        for end in _LINE_END.finditer(self._unread, self._scanned_bytes):
            line = bytes(self._unread[start : end.start()])
            start = end.end()
            if line:
                self._field(line)
            else:
                self._end_event(found)
        del self._unread[:start]
        self._scanned_bytes = max(0, len(self._unread) - 1)
        self._check(len(self._unread))
        return found

    def _check(self, more_bytes: int = 0) -> None:
        if self._data_bytes + more_bytes > self._max_event_bytes:
            raise RemoteProtocolError(
                None, f"the server sends an event of more than {self._max_event_bytes:,} bytes"
            )

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
            self._check()
        elif name == b"event":
            self._name = value

    def _end_event(self, found: list[tuple[str, bytes]]) -> None:
        name, data = self._name, b"\n".join(self._data)
        self._name, self._data, self._data_bytes = b"", [], 0
        if data:
            found.append((name.decode(errors="replace"), data))
