"""How often each stage and hook point of a rollout ran: an array, as thousands of suspended rollouts hold one each.

All tallies share one table of names. The names are the engine's own, a few dozen; none comes from a client.
"""

from array import array
from typing import Final

_PLACES: Final[dict[str, int]] = {}
"""Name to its place in every tally, in the order in which they were first counted."""


class Tally:
    """Counts by name: call it with what happened. Not a checkpoint anywhere."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times = array("I", bytes(4 * len(_PLACES)))

    def __call__(self, name: str, times: int = 1) -> None:
        """It happened, so many times."""
        place = _PLACES.setdefault(name, len(_PLACES))
        if place >= len(self._times):
            self._times.extend([0] * (place + 1 - len(self._times)))
        self._times[place] += times

    def __getitem__(self, name: str) -> int:
        """How often it happened; 0 also for a name that was never counted."""
        place = _PLACES.get(name, len(self._times))
        return self._times[place] if place < len(self._times) else 0

    def as_dict(self) -> dict[str, int]:
        """What happened at all, by name in alphabetical order."""
        return {name: times for name in sorted(_PLACES) if (times := self[name])}
