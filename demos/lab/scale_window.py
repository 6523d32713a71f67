"""What is seen while some paced streams run once, with one rollout beside them that suspends and resumes all the time.

Lateness of a token is its arrival at the client against the line through the earliest token of its stream.
"""

import selectors
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs

from demos.lab.process import Child
from demos.lab.raw_client import MarkCounter, RawClient, append, create
from demos.lab.scale_server import CALL_ID, TALK

STREAMS: Final = 16
TOKENS_PER_SECOND: Final = 1000.0
RESUME_EVERY_SECONDS: Final = 0.02
FEWEST_RESUMES: Final = 2
"""In a window, so that it has quantiles."""
_DELTA: Final = b'{"type":"response.output_text.delta"'
_COMPLETED: Final = b'{"type":"response.completed"'
_DONE: Final = b'{"type":"response.done"'


@attrs.frozen(kw_only=True)
class Window:
    """What was seen while the streams ran once."""

    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float
    resume_p50_ms: float
    resume_p99_ms: float
    resumes: int
    collections: tuple[int, ...]
    """By generation."""
    collector_ms: float
    longest_pause_ms: float
    cpu_share: float
    """Of a core, of the server."""


async def window(server: Child, port: int, tokens: int) -> Window:
    """Let the streams run once, each with so many tokens. `ChildError`."""
    before: Mapping[str, Any] = await server.ask("collections")
    began = time.perf_counter()
    late, resumes = _watch_streams(port, tokens)
    took = time.perf_counter() - began
    seen: Mapping[str, Any] = await server.ask("collections")
    late_p50, late_p99 = quantiles(late)
    resume_p50, resume_p99 = quantiles(resumes)
    return Window(
        late_p50_ms=1e3 * late_p50,
        late_p99_ms=1e3 * late_p99,
        late_max_ms=1e3 * max(late),
        resume_p50_ms=1e3 * resume_p50,
        resume_p99_ms=1e3 * resume_p99,
        resumes=len(resumes),
        collections=tuple(seen["counts"]),
        collector_ms=1e3 * seen["seconds"],
        longest_pause_ms=1e3 * seen["longest_seconds"],
        cpu_share=(seen["cpu_seconds"] - before["cpu_seconds"]) / took,
    )


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile, of two or more."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


def lateness(arrivals: Sequence[float], tokens_per_second: float) -> list[float]:
    """Of each token, in seconds, against the line through the earliest one."""
    offsets = [at - number / tokens_per_second for number, at in enumerate(arrivals)]
    first = min(offsets)
    return [offset - first for offset in offsets]


def _watch_streams(port: int, tokens: int) -> tuple[list[float], list[float]]:
    """Lateness of all tokens, and how long each resume took, in seconds."""
    with connected(port, STREAMS + 1) as (resuming, *streaming), selectors.DefaultSelector() as selector:
        streams = [_Stream(client, tokens) for client in streaming]
        resumer = _Resumer(resuming)
        watched: list[_Stream | _Resumer] = [*streams, resumer]
        for one in watched:
            selector.register(one.client.socket, selectors.EVENT_READ, one)
            one.begin()
        open_streams = len(streams)
        while open_streams or len(resumer.took) < FEWEST_RESUMES:
            for key, _ in selector.select(resumer.wait_seconds()):
                key.data.read()
                if key.data is not resumer and key.data.over:
                    selector.unregister(key.fileobj)
                    open_streams -= 1
            resumer.resume_if_due()
    return [late for stream in streams for late in lateness(stream.arrivals, TOKENS_PER_SECOND)], resumer.took


class _Stream:
    """One paced stream."""

    def __init__(self, client: RawClient, tokens: int) -> None:
        self.client = client
        self.arrivals: list[float] = []
        self.over = False
        self._tokens = tokens
        self._marks = MarkCounter(_DELTA, _COMPLETED)

    def begin(self) -> None:
        self.client.send({**create(), "model": f"{TALK}{self._tokens}"})

    def read(self) -> None:
        data, now = self.client.read_some(), time.perf_counter()
        self._marks.feed(data)
        self.arrivals += [now] * (self._marks.counts[_DELTA] - len(self.arrivals))
        self.over = self._marks.counts[_COMPLETED] > 0


class _Resumer:
    """One rollout after the other: it suspends, waits, resumes, ends."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.took: list[float] = []
        self._waiting = False
        self._begin_marks()
        self._due: float | None = None
        """When it is to resume; None while it is not suspended."""
        self._asked = 0.0

    def begin(self) -> None:
        self._begin_marks()
        self.client.send(create())

    def wait_seconds(self) -> float | None:
        return None if self._due is None else max(0.0, self._due - time.perf_counter())

    def resume_if_due(self) -> None:
        if self._due is not None and time.perf_counter() >= self._due:
            self._due, self._asked = None, time.perf_counter()
            self.client.send(append(CALL_ID, "42"))

    def read(self) -> None:
        data, now = self.client.read_some(), time.perf_counter()
        heard = self._marks.counts[_DELTA]
        self._marks.feed(data)
        if self._marks.counts[_DELTA] and not heard:
            self.took.append(now - self._asked)
        if self._marks.counts[_COMPLETED]:
            self.begin()
        elif self._marks.counts[_DONE] and not self._waiting:
            self._waiting, self._due = True, now + RESUME_EVERY_SECONDS

    def _begin_marks(self) -> None:
        self._marks = MarkCounter(_DELTA, _COMPLETED, _DONE)
        self._waiting = False


@contextmanager
def connected(port: int, count: int) -> Iterator[list[RawClient]]:
    """So many clients; they hang up in the end."""
    clients = [RawClient(port) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()
