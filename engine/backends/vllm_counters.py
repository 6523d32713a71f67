"""vLLM's prefix cache counters, which are of the whole server: what they tell of one request, if it was alone.

`vllm:prefix_cache_queries_total` goes up by the length of each prompt that is looked up, `…hits_total` by what was found.
So if the first went up by exactly one prompt's length, the second did by what was reused of it.
"""

import re
from typing import Final

import attrs

from engine.backends.base import BackendError
from engine.backends.http import BackendHttp

BLOCK_TOKENS: Final = 16
"""Of vLLM's defaults; its metrics say better."""
METRICS_SECONDS: Final = 2.0
"""How long the counters may take."""

_COUNTER: Final = re.compile(
    rb"^vllm:prefix_cache_(queries|hits)_total(?:\{[^}]*\})? ([0-9.e+]+)", re.MULTILINE
)
_BLOCK: Final = re.compile(rb'^vllm:cache_config_info\{(?:[^}]*,)?block_size="(\d+)"', re.MULTILINE)


@attrs.frozen
class Lookup:
    """The counters before a request; `number` tells whether another one has begun since."""

    number: int
    queries: int
    hits: int


class Counters:
    """The prefix cache's counters, of the whole server: they tell of one request only when it was alone."""

    def __init__(self, http: BackendHttp, wanted: bool) -> None:
        self._http = http
        self.wanted = wanted
        self.block_tokens = BLOCK_TOKENS
        self._begun = 0
        self._running = 0
        self._last: tuple[int, int] | None = None
        """After the latest request that was alone."""

    async def begin(self) -> Lookup | None:
        """A request begins; None: nothing will be known of it. Never raises but when cancelled."""
        self._begun += 1
        number = self._begun
        self._running += 1
        if not self.wanted or self._running > 1:
            return None
        try:
            before = self._last or await self._read()
        except BaseException:
            self._running -= 1
            raise
        return None if before is None else Lookup(number, *before)

    def end(self) -> None:
        """A request is over."""
        self._running -= 1

    async def reused(self, lookup: Lookup | None, prompt_tokens: int) -> int | None:
        """How much of the prompt was found; None if anything else was looked up since `lookup`."""
        self._last = None
        if lookup is None or not self.wanted or lookup.number != self._begun:
            return None
        now = await self._read()
        if now is None or lookup.number != self._begun:
            return None
        self._last = now
        return now[1] - lookup.hits if now[0] - lookup.queries == prompt_tokens else None

    async def _read(self) -> tuple[int, int] | None:
        """(queries, hits) of all engines of the server."""
        totals = {b"queries": 0.0, b"hits": 0.0}
        try:
            text = await self._http.get_bytes("/metrics", silence_seconds=METRICS_SECONDS)
        except BackendError:
            self.wanted = False
            return None
        if block := _BLOCK.search(text):
            self.block_tokens = max(1, int(block[1]))
        found = _COUNTER.findall(text)
        for name, value in found:
            totals[name] += float(value)
        return (int(totals[b"queries"]), int(totals[b"hits"])) if found else None
