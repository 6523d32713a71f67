"""Waiting for input so that no signal is missed.

Python runs the handler of a signal between two of its own instructions. A signal that comes after the last of them, and before
the process sleeps in `read`, would be noticed only after more input. But a byte is written to a socket when it comes: who
waits for input and socket together wakes up, and only then reads. What a signal means is for its handler to say.
"""

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from engine.check.progress import Readable


@attrs.frozen
class Attentive:
    """A file whose reader wakes up for signals."""

    _file: Readable
    _signals: socket.socket

    def read1(self, size: int = -1, /) -> bytes:
        """What is there, at most so much; nothing at the end. `OSError`; and what a signal's handler raises."""
        while not wait_for_input(self._file, self._signals):
            pass  # its handler has run and wants us to go on
        return self._file.read1(size)

    def fileno(self) -> int:
        """Its descriptor. `OSError`: it has none."""
        return self._file.fileno()


@contextmanager
def alarm() -> Iterator[socket.socket]:
    """A socket that can be read once a signal has come; never outside of the main thread, which runs no handlers."""
    reading, writing = socket.socketpair()
    with reading, writing:
        reading.setblocking(False)
        writing.setblocking(False)
        try:
            before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            yield reading
            return
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(before)


def wait_for_input(file: Readable, signals: socket.socket) -> bool:
    """Until something can be read, or the end: True. False: a signal came first, or had come since `alarm` began.

    True at once for what cannot be waited for: a file without a descriptor, and on Windows whatever is no socket.
    """
    try:
        source, signalled = file.fileno(), signals.fileno()
        ready, _, _ = select.select([source, signalled], [], [])
    except (OSError, ValueError):
        return True
    if signalled in ready:
        signals.recv(1024)
    return source in ready
