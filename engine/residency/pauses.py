"""How long tools take: what the client says, else what was seen of this tool, else of all tools, else as long again.

Durations are remembered for each owner's tools, the latest `REMEMBERED` of each and `max_tools` tools in all.
A pause lasts until the last of its calls has an output, so its distribution is the product of theirs.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import attrs

REMEMBERED: Final = 128
"""Durations of one tool, and of all tools together: enough for its quartiles, and soon forgotten when it changes."""
ENOUGH: Final = 8
"""From so many durations on a tool's own are believed; before, those of all tools."""


@attrs.frozen
class WaitedCall:
    """A call without an output."""

    call_id: str
    owner: str
    tool: str
    expected_seconds: float | None = None
    """As the client hinted."""


class Seen:
    """The latest durations of something, in order of size when asked for."""

    __slots__ = ("_latest", "_sorted")

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=REMEMBERED)
        self._sorted: list[float] | None = []

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, seconds: float) -> None:
        """One more."""
        self._latest.append(seconds)
        self._sorted = None

    @property
    def durations(self) -> list[float]:
        """In order of size."""
        if self._sorted is None:
            self._sorted = sorted(self._latest)
        return self._sorted

    def share_within(self, seconds: float) -> float:
        """What part of them was no longer than that."""
        return bisect_right(self.durations, seconds) / len(self._latest)

    def remaining_seconds(self, elapsed: float) -> float:
        """The median of what was still to come for those that lasted longer than `elapsed`; as long again if none did."""
        first = bisect_right(self.durations, elapsed)
        longer = len(self.durations) - first
        return self.durations[first + longer // 2] - elapsed if longer else elapsed


class Pauses:
    """What is known of the tools of one sampler's rollouts."""

    def __init__(self, max_tools: int) -> None:
        self._max_tools = max_tools
        self._tools: OrderedDict[tuple[str, str], Seen] = OrderedDict()
        self.all_tools = Seen()
        self.observations = 0

    def __len__(self) -> int:
        return len(self._tools)

    def learn(self, owner: str, tool: str, seconds: float) -> None:
        """A tool took so long."""
        self.observations += 1
        self.all_tools.add(seconds)
        seen = self._tools.setdefault((owner, tool), Seen())
        seen.add(seconds)
        self._tools.move_to_end((owner, tool))
        if len(self._tools) > self._max_tools:
            self._tools.popitem(last=False)

    def _seen(self, call: WaitedCall) -> Seen | None:
        """The durations to believe for a call; None: too few of any."""
        own = self._tools.get((call.owner, call.tool))
        if own is not None and len(own) >= ENOUGH:
            return own
        return self.all_tools if len(self.all_tools) >= ENOUGH else None

    def remaining_seconds(self, calls: Iterable[WaitedCall], elapsed: float) -> float:
        """How much longer a pause will be, most likely, that has lasted `elapsed`; as long again where nothing is known."""
        return max((self._remaining_of(call, elapsed) for call in calls), default=elapsed)

    def _remaining_of(self, call: WaitedCall, elapsed: float) -> float:
        if call.expected_seconds is not None and call.expected_seconds > elapsed:
            return call.expected_seconds - elapsed
        seen = self._seen(call)
        return elapsed if seen is None else seen.remaining_seconds(elapsed)

    def share_within(self, calls: Sequence[WaitedCall], seconds: float) -> float:
        """How likely a pause is no longer than that; 0 where nothing is known."""
        share = float(bool(calls))
        for call in calls:
            if call.expected_seconds is not None:
                share *= seconds >= call.expected_seconds
            else:
                seen = self._seen(call)
                share *= 0.0 if seen is None else seen.share_within(seconds)
        return share

    def candidates(self, calls: Iterable[WaitedCall]) -> Iterable[float]:
        """The lengths at which `share_within` grows."""
        return chain.from_iterable(map(self._steps_of, calls))

    def _steps_of(self, call: WaitedCall) -> Sequence[float]:
        if call.expected_seconds is not None:
            return (call.expected_seconds,)
        seen = self._seen(call)
        return () if seen is None else seen.durations
