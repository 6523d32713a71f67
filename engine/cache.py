"""The connection's cache: the latest response of each lane, and nothing else (reference 4.4).

It holds snapshots (`engine.snapshot` lists the four kinds of state), bounded by the number of lanes and by bytes:
over the limit the lane that was used longest ago forgets.
A snapshot's warm sampling is open; when the snapshot goes, the sampling waits in `_dropped` for `close_dropped`, because
closing may take a moment and forgetting may not.
"""

import logging
from collections import OrderedDict

import attrs
import trio

from engine.config import Limits
from engine.context import held_bytes
from engine.samplers.base import Sampling
from engine.snapshot import Snapshot
from protocol.errors import refusal

log = logging.getLogger(__name__)
LaneName = str | None


@attrs.frozen
class CacheStatistics:
    """What a cache holds and did."""

    snapshots: int
    held_bytes: int
    found: int
    missed: int
    evicted: int


class ConnectionCache:
    """The latest response of each lane of one connection."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._latest: OrderedDict[LaneName, Snapshot] = OrderedDict()
        """The lane used longest ago first."""
        self._dropped: list[Sampling] = []
        self._found = self._missed = self._evicted = 0

    def find(self, response_id: str, *, again: bool = False) -> tuple[LaneName, Snapshot]:
        """The lane whose latest response this is. `RemoteProtocolError`: none here.

        `again`: it was missed before; a second miss is not counted.
        """
        for lane, snapshot in self._latest.items():
            if snapshot.response_id == response_id:
                self._found += 1
                return lane, snapshot
        self._missed += not again
        raise refusal("previous_not_found", response_id=response_id)

    def remember(self, lane: LaneName, snapshot: Snapshot) -> bool:
        """A response has become its lane's latest. True: others had to be forgotten for it."""
        self.forget(lane)
        self._latest[lane] = snapshot
        before = self._evicted
        while len(self._latest) > 1 and self._held_bytes() > self._limits.max_context_bytes:
            self.forget(next(iter(self._latest)))
            self._evicted += 1
        return self._evicted > before

    def forget(self, lane: LaneName) -> None:
        """The lane has no latest response any more."""
        snapshot = self._latest.pop(lane, None)
        if snapshot is not None and snapshot.warm is not None:
            self._dropped.append(snapshot.warm.sampling)
            snapshot.warm = None

    def forget_continued(self, lane: LaneName, response_id: str | None) -> None:
        """A continuation of this response was refused on a lane: it is forgotten, if it is that lane's latest (4.4)."""
        if lane in self._latest and self._latest[lane].response_id == response_id:
            self.forget(lane)

    def forget_response(self, response_id: str) -> None:
        """The response was deleted: nothing may continue it."""
        for lane, snapshot in list(self._latest.items()):
            if snapshot.response_id == response_id:
                self.forget(lane)

    async def close_dropped(self) -> None:
        """Close the samplings of what was forgotten; shielded and bounded. No checkpoint if there are none."""
        dropped, self._dropped = self._dropped, []
        with trio.move_on_after(self._limits.cleanup_seconds, shield=True):
            for sampling in dropped:
                try:
                    await sampling.aclose()
                except Exception:
                    log.exception("closing a warm sampling failed")

    async def aclose(self) -> None:
        """Forget everything. Idempotent."""
        for lane in list(self._latest):
            self.forget(lane)
        await self.close_dropped()

    def _held_bytes(self) -> int:
        return held_bytes(snapshot.context for snapshot in self._latest.values())

    def statistics(self) -> CacheStatistics:
        """A frozen view."""
        return CacheStatistics(
            len(self._latest), self._held_bytes(), self._found, self._missed, self._evicted
        )
