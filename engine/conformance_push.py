"""The push side of `engine.conformance`: a taker that counts, rests, refuses and raises, and notices what comes too late.

Rule 8 of `engine.samplers.base`: what is pushed is what would have been pulled, and nothing comes to a taker that has had
enough, has to rest, has raised, or whose `push` is over.
"""

from collections.abc import Callable
from typing import Any

import attrs
import trio

from engine.samplers.base import Appended, Step

REST_EVERY = 3
"""Each third flush says that the client is behind."""


class TakerError(Exception):
    """Raised by the taker, to see it come out of `push`."""


@attrs.define
class Receiver:
    """A taker of one segment. `take_step` judges a step and says whether the segment is over."""

    take_step: Callable[[Step], bool]
    stop_after: int | None = None
    """So many steps are enough."""
    raise_after: int | None = None
    """After so many steps the taker raises."""
    taken: int = 0
    faults: list[str] = attrs.field(factory=list)
    """What came when nothing should have: noted, as whoever pushes may be in a task that nobody hears of."""
    _flushes: int = 0
    _full: bool = False
    _behind: bool = False
    _closed: bool = False
    _raises: bool = False

    def take(self, step: Step) -> bool:
        """As `Taker.take`."""
        for unfit, words in (
            (self._full, "that has had enough"),
            (self._behind, "that has to rest"),
            (self._closed, "whose push is over"),
            (not step, "of nothing"),
        ):
            if unfit:
                self.faults.append(f"a step is handed to a taker {words}")
        if self.taken == self.raise_after:
            self._full = self._raises = True
            raise TakerError
        self.taken += 1
        over = self.take_step(step)
        self._full = over or self.taken == self.stop_after
        return self._full

    @property
    def outlet(self) -> int:
        """As `Taker.outlet`: nobody else's."""
        return id(self)

    def flush(self) -> bool:
        """As `Taker.flush`."""
        self._flushes += 1
        self._behind = self._flushes % REST_EVERY == 0
        return not self._behind

    async def rest(self) -> None:
        """As `Taker.rest`."""
        await trio.sleep(1)
        self._behind = False

    async def receive(self, sampling: Any, appended: Appended) -> int:
        """One segment by `push`, and some time after it in which nothing more may come; how many steps it took."""
        try:
            await sampling.push(appended, self)
        except TakerError:
            self._raises = False
        finally:
            self._closed = True
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            require(not self._raises, 8, "what the taker raises does not come out of push")
            require(not self.faults, 8, "; ".join(self.faults))
        require(self._full, 1, "the segment stopped without an End")
        return self.taken


def require(holds: bool, rule: int, words: str) -> None:
    """`AssertionError` that names the rule, unless it holds."""
    if not holds:
        raise AssertionError(f"rule {rule} of engine.samplers.base: {words}")
