"""Writes what passes over each connection as a trace (invariants part 1). Off by default, and bounded.

A connection's records are kept until it ends and then written as one trace: connections do not mix in the file,
and the header can say whether the trace is complete. Over `max_trace_bytes` the recording of that connection stops.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import trio

from protocol import trace

DEFAULT_MAX_TRACE_BYTES: Final = 64 * 1024 * 1024
SOURCE: Final = "suspended-response"


class Recorder(Protocol):
    """What a connection tells of itself."""

    def frame_in(self, text: bytes) -> None:
        """A message came."""

    def frame_out(self, text: bytes) -> None:
        """A message was queued for sending."""

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Something happened between the frames."""

    def close(self) -> None:
        """The connection is over."""


class Recorders(Protocol):
    """Gives every connection a recorder of its own."""

    def recorder(self, dialect: str) -> Recorder:
        """A recorder for a new connection."""
        ...


class NoRecorder:
    """Records nothing."""

    def frame_in(self, text: bytes) -> None:
        """Nothing."""

    def frame_out(self, text: bytes) -> None:
        """Nothing."""

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class TraceFile:
    """A file of traces; every connection gets a recorder of its own."""

    def __init__(self, path: Path, *, max_trace_bytes: int = DEFAULT_MAX_TRACE_BYTES) -> None:
        """`OSError` if the file cannot be written: at the start, not after the first rollout."""
        self._max_trace_bytes = max_trace_bytes
        self._file: BinaryIO = path.open("wb")
        self._connections = 0

    def recorder(self, dialect: str) -> Recorder:
        """A recorder for a new connection."""
        self._connections += 1
        return _TraceRecorder(self._file, f"c{self._connections}", dialect, self._max_trace_bytes)

    def close(self) -> None:
        """Close the file; recorders that still run lose what they have."""
        self._file.close()


class _TraceRecorder:
    def __init__(self, file: BinaryIO, connection: str, dialect: str, max_bytes: int) -> None:
        self._file = file
        self._connection = connection
        self._dialect = dialect
        self._left_bytes = max_bytes
        self._lines: list[bytes] = []
        self._began = trio.current_time()
        self._complete = True

    def frame_in(self, text: bytes) -> None:
        self._add(trace.record_line(self._now(), self._connection, "in", text))

    def frame_out(self, text: bytes) -> None:
        self._add(trace.record_line(self._now(), self._connection, "out", text))

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        self._add(trace.hook_line(self._now(), self._connection, name, members))

    def close(self) -> None:
        if self._file.closed:
            return
        header = trace.header_line(dialect=self._dialect, source=SOURCE, complete=self._complete)
        self._file.write(header + b"".join(self._lines))
        self._file.flush()
        self._lines.clear()

    def _now(self) -> float:
        return trio.current_time() - self._began

    def _add(self, line: bytes) -> None:
        self._left_bytes -= len(line)
        self._complete = self._complete and self._left_bytes >= 0
        if self._complete:
            self._lines.append(line)
