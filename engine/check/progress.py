"""A progress bar for reading: by bytes, on a terminal, gone when something is to be said."""

import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TextIO

CHUNK_BYTES: Final = 256 * 1024
"""So much is read at once: thousands of records, so that counting bytes costs nothing per record."""
_REDRAW_SECONDS: Final = 0.2
_WIDTH: Final = 28
_CLEAR: Final = "\r\x1b[K"


class Readable(Protocol):
    """A file opened for bytes."""

    def read1(self, size: int = ..., /) -> bytes:
        """What is there, at most so much; nothing at the end."""
        ...

    def fileno(self) -> int:
        """Its descriptor. `OSError`: it has none."""
        ...


class Progress:
    """Counts what is read. Without a terminal it only reads."""

    def __init__(
        self, terminal: TextIO | None, total_bytes: int | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._terminal = terminal
        self._total_bytes = total_bytes
        self._read_bytes = 0
        self._now = now
        self._began = self._drawn_at = now()
        self._visible = False

    def chunks(self, file: Readable) -> Iterator[bytes]:
        """The content of a file, piece by piece, as it comes. `OSError`."""
        while chunk := file.read1(CHUNK_BYTES):
            yield chunk
            self.advance_to(self._read_bytes + len(chunk))

    def advance_to(self, read_bytes: int) -> None:
        """So much is done in all."""
        self._read_bytes = read_bytes
        if self._terminal is not None and self._now() - self._drawn_at >= _REDRAW_SECONDS:
            self._draw(self._terminal)

    def clear(self) -> None:
        """Make room for a line of output."""
        if self._visible and self._terminal is not None:
            self._terminal.write(_CLEAR)
            self._terminal.flush()
            self._visible = False

    def _draw(self, terminal: TextIO) -> None:
        self._drawn_at = self._now()
        self._visible = True
        terminal.write(_CLEAR + self.line())
        terminal.flush()

    def line(self) -> str:
        """What the bar says now."""
        elapsed = max(self._now() - self._began, 1e-6)
        rate = self._read_bytes / elapsed
        done = f"{_megabytes(self._read_bytes)} MB"
        if not self._total_bytes or not rate:
            return f"{done}, {_megabytes(rate)} MB/s"
        share = min(1.0, self._read_bytes / self._total_bytes)
        left = max(0, round((self._total_bytes - self._read_bytes) / rate))
        bar = "#" * round(share * _WIDTH)
        return (
            f"[{bar:.<{_WIDTH}}] {share:4.0%} of {_megabytes(self._total_bytes)} MB, "
            f"{_megabytes(rate)} MB/s, {left // 60}:{left % 60:02} left"
        )


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"
