"""Counting tokens: each token of a rollout is counted once, in whatever form it is reported (reference 7.2).

The rollout gives the facts of each segment it sampled; two views are derived:

* `report`, for form A and for responses that report once: input and cached are those at the start of what is reported,
  plus what came in by hosted tools meanwhile. So input - cached is what was prefilled, total is the true context,
  and the reports of a rollout add up to its totals.
* `final_report`, for form B: recorded servers state the context at the start of the *last* segment, what was cached at
  the start of the response, and all output.
"""

from collections.abc import Iterable

import attrs

from protocol.usage import Usage


@attrs.frozen(kw_only=True)
class Segment:
    """One run of the sampler. `input_tokens` is the context at its start, `cached_tokens` the part it already held."""

    input_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """The segment on its own. `ValueError` if the counts contradict each other: a bug of the sampler."""
        return Usage(
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )


@attrs.frozen(kw_only=True)
class RolloutUsage:
    """What a whole rollout cost; the same for all forms (the ledger of reference 7.2)."""

    uncached_input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    segments: int = 0

    def plus(self, segment: Segment) -> "RolloutUsage":
        """These totals and one more segment."""
        return RolloutUsage(
            uncached_input_tokens=self.uncached_input_tokens + segment.input_tokens - segment.cached_tokens,
            cached_input_tokens=self.cached_input_tokens + segment.cached_tokens,
            output_tokens=self.output_tokens + segment.output_tokens,
            reasoning_tokens=self.reasoning_tokens + segment.reasoning_tokens,
            segments=self.segments + 1,
        )


class Account:
    """The stage that counts; one per rollout."""

    __slots__ = (
        "_first_cached_tokens",
        "_last_input_tokens",
        "_reported_tokens",
        "_unreported",
        "totals",
    )
    name = "account"

    def __init__(self) -> None:
        self.totals = RolloutUsage()
        """Of all segments so far."""
        self._reported_tokens = 0
        """The context at the end of what was reported last."""
        self._unreported: Usage | None = None
        self._first_cached_tokens = 0
        self._last_input_tokens = 0

    def add(self, segment: Segment) -> Usage:
        """Count one segment and return its usage. `ValueError` (nothing counted): its counts contradict each other."""
        usage = segment.usage
        if self.totals.segments == 0:
            self._first_cached_tokens = segment.cached_tokens
        self._last_input_tokens = segment.input_tokens
        self._unreported = usage if self._unreported is None else _joined(self._unreported, usage)
        self.totals = self.totals.plus(segment)
        return usage

    def report(self) -> Usage:
        """Usage of what was sampled since the last report; nothing sampled gives the context as all cached."""
        usage, self._unreported = self._unreported, None
        if usage is None:
            usage = Usage(input_tokens=self._reported_tokens, cached_tokens=self._reported_tokens)
        self._reported_tokens = usage.total_tokens
        return usage

    def final_report(self) -> Usage:
        """Usage of the whole rollout as form B states it."""
        return Usage(
            input_tokens=self._last_input_tokens,
            cached_tokens=min(
                self._first_cached_tokens, self._last_input_tokens
            ),  # a compaction may have come between
            output_tokens=self.totals.output_tokens,
            reasoning_tokens=self.totals.reasoning_tokens,
        )

    @staticmethod
    def full(segments: Iterable[Segment]) -> RolloutUsage:
        """The totals, counted from all segments at once."""
        totals = RolloutUsage()
        for segment in segments:
            totals = totals.plus(segment)
        return totals


def _joined(first: Usage, second: Usage) -> Usage:
    return Usage(
        input_tokens=first.input_tokens + second.input_tokens - second.cached_tokens,
        cached_tokens=first.cached_tokens,
        output_tokens=first.output_tokens + second.output_tokens,
        reasoning_tokens=first.reasoning_tokens + second.reasoning_tokens,
    )
