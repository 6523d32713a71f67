"""What can befall a byte stream, as data: drawn by Hypothesis or from a seed, so that a failure shrinks and repeats.

A `FaultPlan` says for each direction what happens at which byte; `FaultyStream` does it to any stream.
Only what TCP can do: bytes come late, in other pieces, or stop. They are never lost in the middle, doubled or reordered.

Wrapped around the *server's* end of a pair, a slow `outbound` is a client that reads slowly,
and a stall of it is one that has stopped: the memory streams of trio themselves would take everything at once.

    plan = FaultPlan(outbound=Way(piece_bytes=100, piece_seconds=1.0), inbound=Way(cut_after_bytes=5_000))
    stream = FaultyStream(stream, plan)
"""

import random
from collections.abc import Sequence
from typing import Any

import attrs
import trio

_at_least_zero: Any = attrs.validators.optional(attrs.validators.ge(0))
_positive: Any = attrs.validators.optional(attrs.validators.gt(0))


@attrs.frozen(kw_only=True)
class Way:
    """What befalls one direction; bytes are counted from its first. `ValueError`: an end that comes twice."""

    cut_after_bytes: int | None = attrs.field(default=None, validator=_at_least_zero)
    """The connection is gone, both ways, once so many bytes have passed."""
    end_after_bytes: int | None = attrs.field(default=None, validator=_at_least_zero)
    """Half-close: this direction ends in good order, the other goes on."""
    stall_at_bytes: int | None = attrs.field(default=None, validator=_at_least_zero)
    """Once, before the byte after these, nothing moves for `stall_seconds`."""
    stall_seconds: float = attrs.field(default=0.0, validator=_at_least_zero)
    piece_bytes: int | None = attrs.field(default=None, validator=_positive)
    """Dribble: at most so many bytes at a time, each after `piece_seconds`."""
    piece_seconds: float = attrs.field(default=0.0, validator=_at_least_zero)

    def __attrs_post_init__(self) -> None:
        if self.cut_after_bytes is not None and self.end_after_bytes is not None:
            raise ValueError(
                f"a way ends once: cut_after_bytes={self.cut_after_bytes} or end_after_bytes={self.end_after_bytes}"
            )


@attrs.frozen(kw_only=True)
class FaultPlan:
    """Both directions, seen from the end that is wrapped."""

    outbound: Way = Way()
    inbound: Way = Way()

    @classmethod
    def drawn(cls, source: random.Random, *, about_bytes: int) -> "FaultPlan":
        """A plan with at most one fault a direction, somewhere in the first `about_bytes`.

        Half-closed is only the inbound way: the peer's decision, while our own would be a bug and no fault.
        """
        kinds = ("none", "none", "cut", "stall", "dribble", "slow")
        return cls(
            outbound=_drawn_way(source, about_bytes, kinds),
            inbound=_drawn_way(source, about_bytes, (*kinds, "end")),
        )


def _drawn_way(source: random.Random, about_bytes: int, kinds: Sequence[str]) -> Way:
    at = source.randrange(about_bytes)
    kind = source.choice(kinds)
    if kind == "cut":
        return Way(cut_after_bytes=at)
    if kind == "end":
        return Way(end_after_bytes=at)
    if kind == "stall":
        return Way(stall_at_bytes=at, stall_seconds=source.choice((0.5, 5.0, 60.0, 7200.0)))
    if kind == "dribble":
        return Way(piece_bytes=source.choice((7, 50, 300)), piece_seconds=0.0)
    if kind == "slow":
        return Way(piece_bytes=source.choice((200, 1000)), piece_seconds=source.choice((0.1, 2.0)))
    return Way()


@attrs.define
class _Progress:
    """How far one direction has come."""

    way: Way
    passed_bytes: int = 0
    stalled: bool = False

    @property
    def ended(self) -> bool:
        return self.way.end_after_bytes is not None and self.passed_bytes >= self.way.end_after_bytes

    @property
    def cut(self) -> bool:
        return self.way.cut_after_bytes is not None and self.passed_bytes >= self.way.cut_after_bytes

    def room_bytes(self) -> int | None:
        """How many bytes may move before something happens; None = any number."""
        marks = [self.way.cut_after_bytes, self.way.end_after_bytes]
        if not self.stalled:
            marks.append(self.way.stall_at_bytes)
        rooms = [mark - self.passed_bytes for mark in marks if mark is not None and mark > self.passed_bytes]
        return min([*rooms, *([self.way.piece_bytes] if self.way.piece_bytes else [])], default=None)

    async def wait_turn(self, gone: trio.Event) -> None:
        """The stall and the pace before the next bytes, or until the stream is `gone`. A checkpoint."""
        seconds = self.way.piece_seconds
        if not self.stalled and self.way.stall_at_bytes == self.passed_bytes:
            self.stalled = True
            seconds += self.way.stall_seconds
        if seconds == 0 or gone.is_set():
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(seconds):
            await gone.wait()


class FaultyStream(trio.abc.HalfCloseableStream):
    """`inner` with the faults of `plan`. What it raises is what a socket would: `trio.BrokenResourceError` when cut."""

    def __init__(self, inner: trio.abc.HalfCloseableStream, plan: FaultPlan) -> None:
        self._inner = inner
        self._out = _Progress(plan.outbound)
        self._in = _Progress(plan.inbound)
        self._is_cut = False
        self._closed = False
        self._gone = trio.Event()
        """Closed or cut: who waits for bytes is woken, as by a socket."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, as the plan allows. A cancellation leaves a part sent."""
        rest = memoryview(bytes(data))
        while True:
            await self._out.wait_turn(self._gone)
            await self._check_open(self._out)
            if self._out.ended:
                await self._inner.send_eof()
                raise trio.BrokenResourceError("the outbound way has ended by plan")
            if not rest:
                return
            piece = rest[: self._out.room_bytes()]
            # counted first: a cancelled send may have sent, and no plan may see a byte pass twice
            self._out.passed_bytes += len(piece)
            rest = rest[len(piece) :]
            await self._translated(self._inner.send_all(piece))

    async def wait_send_all_might_not_block(self) -> None:
        """As the stream below."""
        await self._translated(self._inner.wait_send_all_might_not_block())

    async def send_eof(self) -> None:
        """As the stream below."""
        await self._check_open(self._out)
        await self._translated(self._inner.send_eof())

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive, as the plan allows."""
        await self._in.wait_turn(self._gone)
        await self._check_open(self._in)
        if self._in.ended:
            return b""
        room = self._in.room_bytes()
        size = min((size for size in (room, max_bytes) if size is not None), default=None)
        data: bytes | bytearray = await self._translated(self._inner.receive_some(size))
        self._in.passed_bytes += len(data)
        return data

    async def aclose(self) -> None:
        """Close the stream below."""
        self._closed = True
        self._gone.set()
        await self._inner.aclose()

    async def _check_open(self, progress: _Progress) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if progress.cut and not self._is_cut:
            self._is_cut = True
            self._gone.set()
            await trio.aclose_forcefully(self._inner)
        if self._is_cut:
            raise trio.BrokenResourceError("the connection was cut by plan")

    async def _translated(self, operation: Any) -> Any:
        """A cut closes the stream below under whoever uses it; to them it is broken, not closed."""
        try:
            return await operation
        except trio.ClosedResourceError:
            if self._is_cut:
                raise trio.BrokenResourceError("the connection was cut by plan") from None
            raise
