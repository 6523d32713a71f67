"""Which part of a total saving is whose: shared out over all orders in which the savings could have come.

`value(savings)` is the time with a set of savings. A saving's share is its mean effect over all orders (Shapley's value):
the shares of all add up to the whole, which those of one order do too, but for that order only. Both orders that are
shown beside it, one way and back, say how much the order matters.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import attrs

from demos.lab.model import SAVINGS, Model, Savings, World
from demos.lab.workload import Work

Value = Callable[[Savings], float]


@attrs.frozen
class Fall:
    """One bar of a waterfall."""

    saving: str
    before: float
    after: float

    @property
    def saved(self) -> float:
        """May be negative: what does not pay at its place in the order."""
        return self.before - self.after


@attrs.frozen
class Ablation:
    """Seconds, or whatever the value was."""

    without: float
    """No saving at all."""
    with_all: float
    shares: Mapping[str, float]
    """Of each saving; they add up to `saved`."""
    waterfall: Sequence[Fall]
    reverse: Sequence[Fall]

    @property
    def saved(self) -> float:
        """In all."""
        return self.without - self.with_all


def shapley(value: Value, savings: Sequence[str] = SAVINGS) -> dict[str, float]:
    """Exact, over all subsets: 2^n values, each asked for once."""
    values = {
        frozenset(chosen): value(frozenset(chosen))
        for size in range(len(savings) + 1)
        for chosen in combinations(savings, size)
    }
    return {saving: _share(saving, values, len(savings)) for saving in savings}


def _share(saving: str, values: Mapping[Savings, float], count: int) -> float:
    """A set's weight: how many orders begin with it, out of all."""
    return math.fsum(
        math.factorial(len(chosen))
        * math.factorial(count - len(chosen) - 1)
        / math.factorial(count)
        * (before - values[chosen | {saving}])
        for chosen, before in values.items()
        if saving not in chosen
    )


def waterfall(value: Value, order: Iterable[str] = SAVINGS) -> list[Fall]:
    """Each saving added to those before it."""
    chosen: Savings = frozenset()
    before = value(chosen)
    falls = []
    for saving in order:
        chosen |= {saving}
        after = value(chosen)
        falls.append(Fall(saving, before, after))
        before = after
    return falls


def ablation_of(value: Value, savings: Sequence[str] = SAVINGS) -> Ablation:
    """All of it, of any value of a set of savings: modelled or measured."""
    known: dict[Savings, float] = {}

    def once(chosen: Savings) -> float:
        if chosen not in known:
            known[chosen] = value(chosen)
        return known[chosen]

    return Ablation(
        once(frozenset()),
        once(frozenset(savings)),
        shapley(once, savings),
        waterfall(once, savings),
        waterfall(once, savings[::-1]),
    )


def modelled(works: Iterable[Work], world: World) -> Ablation:
    """Of all these rollouts together, in seconds."""
    models = [Model(work, world) for work in works]
    return ablation_of(lambda savings: math.fsum(model.seconds(savings) for model in models))
