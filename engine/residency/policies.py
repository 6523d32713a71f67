"""The policies, by name. Each says in a sentence what it believes."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from engine.residency.base import Paused, Policy, View
from engine.residency.pauses import ENOUGH


class Keep:
    """All state stays until memory is full; then the one goes that was not used for longest, as in any prefix cache."""

    name = "keep"

    def lapses_at(self, paused: Paused, view: View) -> float:  # noqa: ARG002  # a policy's signature
        """Never."""
        return math.inf

    def pins(self, paused: Paused, view: View) -> bool:  # noqa: ARG002
        """No."""
        return False

    def victims(self, paused: Sequence[Paused], view: View) -> Sequence[Paused]:  # noqa: ARG002
        """The least recently used first."""
        return sorted(paused, key=lambda one: (one.since, one.key))

    def saves(self, paused: Paused, view: View) -> bool:  # noqa: ARG002
        """Where it can be."""
        return True


class Drop(Keep):
    """Nothing stays: a pause is as good as an end, as in an engine that knows only requests."""

    name = "drop"

    def lapses_at(self, paused: Paused, view: View) -> float:  # noqa: ARG002
        """At once."""
        return view.now

    def saves(self, paused: Paused, view: View) -> bool:  # noqa: ARG002
        """No."""
        return False


class Ttl:
    """A state is pinned for as long as its tool is likely to take, if that pays (Continuum, arXiv 2511.02230).

        τ* = argmax over τ of  F(τ) · (T · eta + R(C)) - τ

    with F the tool's distribution, R(C) the seconds to get C tokens back, T the wait of those that lost their state, and
    eta how much a rollout that has called often is about to end. Released when the next segment begins, not when its
    outputs come. If room is short all the same, the one goes first that would stay longest.
    """

    name = "ttl"

    def lapses_at(self, paused: Paused, view: View) -> float:
        """After τ*; what only waits for a slot does not lapse."""
        gain = view.room_seconds * max(0.0, view.eta) + view.costs.reload_seconds(
            paused.tokens, saved=paused.saves
        )
        if view.pauses.observations < ENOUGH:  # durations taken to be exponential, of mean 1 s
            return paused.since + max(0.0, math.log(gain)) if gain > 0 else paused.since
        best, best_value = 0.0, view.pauses.share_within(paused.calls, 0.0) * gain
        for pin in view.pauses.candidates(paused.calls):
            value = view.pauses.share_within(paused.calls, pin) * gain - pin
            if value > best_value:
                best, best_value = pin, value
        return paused.since + best

    def pins(self, paused: Paused, view: View) -> bool:  # noqa: ARG002
        """Whatever has not lapsed."""
        return True

    def victims(self, paused: Sequence[Paused], view: View) -> Sequence[Paused]:
        """Those whose tools run before those that are ready; of these, who came last."""
        return sorted(
            paused,
            key=lambda one: (
                one.ready_since is not None,
                -(one.ready_since or view.remaining_seconds(one)),
                -one.key,
            ),
        )

    def saves(self, paused: Paused, view: View) -> bool:
        """If that is quicker."""
        return view.costs.swap_seconds(paused.tokens) < view.costs.prefill_seconds(paused.tokens)


class MinWaste:
    """The state goes whose memory would be wasted most, in tokens times seconds (InferCept, arXiv 2402.01869).

        kept:    remaining pause · C
        dropped: T(C) · C + stall · T(C) · running       computed again, which delays those that sample
        saved:   2 · T_move(C) · (C + stall · running)

    The paper has all of a batch wait, stall = 1. Here a segment has a slot of its own and is delayed by what it shares.

    Nothing goes before somebody needs the room: memory that nobody wants is not wasted.
    """

    name = "min-waste"
    stall = 0.25
    """In simulation 0 to 0.5 differ little; at 1 states are held that nobody should wait for."""

    def lapses_at(self, paused: Paused, view: View) -> float:  # noqa: ARG002
        """Never."""
        return math.inf

    def pins(self, paused: Paused, view: View) -> bool:
        """If it wastes less to wait for it."""
        return self._kept(paused, view) < self._gone(paused, view)

    def victims(self, paused: Sequence[Paused], view: View) -> Sequence[Paused]:
        """Most saved waste per token first; of those that are ready, who came last."""

        def gain(one: Paused) -> float:
            return (self._kept(one, view) - self._gone(one, view)) / max(1, one.tokens)

        return sorted(
            paused, key=lambda one: (one.ready_since is not None, -(one.ready_since or gain(one)), -one.key)
        )

    def saves(self, paused: Paused, view: View) -> bool:
        """If that wastes less."""
        return self._saved(paused, view) < self._dropped(paused, view)

    def _kept(self, paused: Paused, view: View) -> float:
        return view.remaining_seconds(paused) * paused.tokens

    def _gone(self, paused: Paused, view: View) -> float:
        dropped = self._dropped(paused, view)
        return min(dropped, self._saved(paused, view)) if paused.saves else dropped

    def _dropped(self, paused: Paused, view: View) -> float:
        return view.costs.prefill_seconds(paused.tokens) * self._delayed_tokens(paused, view)

    def _saved(self, paused: Paused, view: View) -> float:
        return view.costs.swap_seconds(paused.tokens) * self._delayed_tokens(paused, view)

    def _delayed_tokens(self, paused: Paused, view: View) -> float:
        return paused.tokens + self.stall * view.running_tokens


class Decay:
    """What waits counts for less each second, C · 2^-t, and the least goes first (ThunderAgent, arXiv 2602.13692).

    Fresh ones go by size, smallest first: the greedy answer to "free so much at the least Σ C²", the price of computing
    again if it grows with the square.
    """

    name = "decay"
    half_life_seconds = 1.0

    def lapses_at(self, paused: Paused, view: View) -> float:  # noqa: ARG002
        """Never."""
        return math.inf

    def pins(self, paused: Paused, view: View) -> bool:
        """While it counts for more than half."""
        return paused.ready_since is not None or view.now - paused.since < self.half_life_seconds

    def victims(self, paused: Sequence[Paused], view: View) -> Sequence[Paused]:
        """The smallest decayed size first; one that is ready does not decay."""

        def weight(one: Paused) -> float:
            waited = (view.now if one.ready_since is None else one.ready_since) - one.since
            return math.log2(max(1, one.tokens)) - waited / self.half_life_seconds

        return sorted(paused, key=lambda one: (one.ready_since is not None, weight(one), -one.key))

    def saves(self, paused: Paused, view: View) -> bool:
        """If that is quicker."""
        return view.costs.swap_seconds(paused.tokens) < view.costs.prefill_seconds(paused.tokens)


POLICIES: Final[Mapping[str, Policy]] = {
    policy.name: policy for policy in (Keep(), Drop(), Ttl(), MinWaste(), Decay())
}
DEFAULT_POLICY: Final = MinWaste.name


def policy_of(name: str) -> Policy:
    """A policy by its name. `ValueError`: there is none."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"no KV policy {name!r}; there are {', '.join(POLICIES)}") from None
