"""What a policy is asked, and what it is told.

A *state* is what a model keeps of a sequence (its KV), measured in tokens; the tokens themselves are kept elsewhere and
are the truth, so to lose a state costs time and nothing else. While a segment samples, its state stays.
Between two segments a policy says

- until when a state stays though nobody needs its room (`lapses_at`),
- who goes first when somebody does (`victims`), and who is not to go yet (`pins`),
- and whether it is written away, where the backend can, or dropped (`saves`).

Policies are pure: time, what waits, and what was learned come in as arguments, and each call is a few lines of sums.
All sums are in tokens and seconds: what a token takes in bytes would stand on both sides of each comparison.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs

from engine.residency.costs import Costs
from engine.residency.pauses import Pauses, WaitedCall


class Movable(Protocol):
    """What a sampling offers, beyond `engine.samplers.base.Sampling`, to be kept by a policy; all are checkpoints."""

    @property
    def resident_tokens(self) -> int:
        """How many tokens of state it is believed to hold in memory."""
        ...

    async def drop(self) -> None:
        """Free the state. Idempotent; never raises. The next `sample` computes what is missing."""
        ...


class Savable(Movable, Protocol):
    """The same of one whose state can be written away; `saves` says whether it can."""

    saves: bool

    async def save(self) -> None:
        """Write the state away and free its place."""
        ...

    async def restore(self) -> bool:
        """Bring it back; False if it is not there any more."""
        ...


@attrs.frozen(kw_only=True)
class Paused:
    """A state in memory whose rollout does not sample."""

    key: int
    """Names it; later rollouts have higher ones."""
    tokens: int
    since: float
    """When its segment ended."""
    calls: tuple[WaitedCall, ...] = ()
    """Those without an output. None: it is ready, and waits for a slot; or nobody knows what it waits for."""
    ready_since: float | None = None
    """When its last output came."""
    saves: bool = False


@attrs.frozen(kw_only=True)
class View:
    """What else there is to know."""

    now: float
    running_tokens: int
    """Of the states that sample."""
    resident_tokens: int
    """Of all that are in memory, those included."""
    costs: Costs
    pauses: Pauses
    room_seconds: float = 0.0
    """How long one without a state waited for room, of late."""
    eta: float = 0.0
    """How much a rollout that has called often is about to end (Continuum's eta, from the rollouts that ended)."""

    def remaining_seconds(self, paused: Paused) -> float:
        """How much longer its pause will be; 0 if it only waits for a slot."""
        if paused.ready_since is not None:
            return 0.0
        return self.pauses.remaining_seconds(paused.calls, self.now - paused.since)


class Policy(Protocol):
    """One way to decide. It keeps nothing."""

    name: str

    def lapses_at(self, paused: Paused, view: View) -> float:
        """When the state is given up though nobody asks; infinite = never. Asked when the pause begins."""
        ...

    def pins(self, paused: Paused, view: View) -> bool:
        """Should who needs room rather wait than take it from this one? For a while: see `engine.residency.budget`."""
        ...

    def victims(self, paused: Sequence[Paused], view: View) -> Sequence[Paused]:
        """The same ones in the order in which they make room."""
        ...

    def saves(self, paused: Paused, view: View) -> bool:
        """Is it better written away than dropped? Asked only if it can be."""
        ...
