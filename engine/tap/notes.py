"""What a relay notes of what it relays, and the task that looks at the notes: late by a moment, so that no byte waits."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import trio

from engine.tap.observer import By, ConnectionObserver, Way
from engine.tap.traces import TapTraces

OBSERVE_EVERY_SECONDS: Final = 0.05
"""Notes are looked at together: a task that woke for each would cost more than the look."""
SLICE_SECONDS: Final = 0.002
"""So long the relay waits for the observer at most, but for one note of `RECEIVE_BYTES`."""
MAX_BACKLOG_BYTES: Final = 32 * 1024 * 1024
"""Noted and not yet looked at, of all connections; a connection that brings more is not observed any further."""
NOTE_BYTES: Final = 256
"""Counted for each note besides what was relayed: many small ones fill memory as well."""

_log = logging.getLogger(__name__)

_Note = tuple[ConnectionObserver, Callable[..., None], float, str, bytes | None]
"""Who looks at it, how, when it was, and what it was. One flat object: thousands of them wait at once."""


class Notes:
    """What was relayed and is still to be looked at: in the order in which it came, of all connections."""

    def __init__(
        self,
        traces: TapTraces,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_BACKLOG_BYTES,
    ) -> None:
        self._traces = traces
        self._clock = clock
        self._began = clock()
        self._max_bytes = max_bytes
        self._notes: deque[_Note] = deque()
        self._backlog_bytes = 0
        self._wake = trio.Event()

    def watch(self, name: str) -> "Watch":
        """For a new connection."""
        return Watch(self, ConnectionObserver(name, self._traces))

    def now(self) -> float:
        """Seconds since the tap began."""
        return self._clock() - self._began

    def relayed(self, watch: "Watch", way: Way, data: bytes) -> bool:
        """Note what passes; costs next to nothing. False: the observer has fallen behind so far that it does not fit."""
        size_bytes = len(data) + NOTE_BYTES
        if self._backlog_bytes + size_bytes > self._max_bytes:
            return False
        if not self._notes:
            self._wake.set()
        self._backlog_bytes += size_bytes
        t = round(self._clock() - self._began, 6)
        self._notes.append((watch.observer, watch.feed, t, way, data))
        return True

    def add(self, observer: ConnectionObserver, look: Callable[[float, Any], None], word: str) -> None:
        """Note what became of a connection; there is always room for that."""
        self._wake.set()
        self._notes.append((observer, look, round(self.now(), 6), word, None))

    async def run(self) -> None:
        """Look at what is noted, until cancelled."""
        while True:
            await self._wake.wait()
            await trio.sleep(OBSERVE_EVERY_SECONDS)
            self._wake = trio.Event()
            while self._notes:
                self.look(SLICE_SECONDS)
                await trio.lowlevel.checkpoint()

    def look(self, seconds: float = math.inf) -> None:
        """Look at what is noted, for so long, and write what came of it."""
        until = time.perf_counter() + seconds
        notes = self._notes
        while notes:
            observer, look, t, word, data = notes.popleft()
            try:
                if data is None:
                    look(t, word)
                else:
                    self._backlog_bytes -= len(data) + NOTE_BYTES
                    look(t, word, data)
            except Exception:  # noqa: BLE001  # the relay goes on whatever the observer trips over
                _log.exception("the observer failed; this connection is not observed any further")
                observer.give_up(t, "the observer failed")
            if time.perf_counter() > until:
                break
        self._traces.flush()


class Watch:
    """One connection as its relay tells of it."""

    def __init__(self, notes: Notes, observer: ConnectionObserver) -> None:
        self.observer = observer
        self.feed = observer.feed
        self._notes = notes
        self._is_lost = False

    @property
    def idle(self) -> bool:
        """Could the connection be closed without anybody missing anything, as far as has been looked?"""
        return self.observer.idle

    def seen(self, way: Way, data: bytes) -> None:
        """This passes."""
        if not self._is_lost and not self._notes.relayed(self, way, data):
            self._is_lost = True
            self._notes.add(self.observer, self.observer.give_up, "the observer fell behind")

    def ended(self, way: Way) -> None:
        """Nothing more comes this way."""
        self._notes.add(self.observer, self.observer.ended, way)

    def closed(self, by: By) -> None:
        """It is over."""
        self._notes.add(self.observer, self.observer.close, by)
