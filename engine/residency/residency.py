"""All of a server's states: a keeper for each sampler whose samplings can let go of theirs.

A sampler may have a size of its own, `kv_tokens`; else the server's limit of that name is the budget of each.
Samplings that cannot let go, and all where there is no budget, stay as they are, at no cost.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from engine.config import Limits
from engine.ledger import Ledger
from engine.residency.base import Policy
from engine.residency.budget import Keeper
from engine.residency.kept import Kept, Place
from engine.residency.pauses import WaitedCall
from engine.residency.statistics import ResidencyStatistics
from engine.samplers.base import Sampler, Sampling
from engine.scheduler import SlotPool
from protocol.items import CALLS, Item

_NEEDED: Final = ("resident_tokens", "drop")


class Residency:
    """Of one engine."""

    def __init__(self, limits: Limits, policy: Policy) -> None:
        self.policy = policy
        self._limits = limits
        self._keepers: dict[int, tuple[Sampler, Keeper]] = {}
        """By identity; a sampler need not be hashable, and is kept alive with its keeper."""

    def kept(self, sampler: Sampler, sampling: Sampling) -> Sampling:
        """A sampling that was just opened, within its sampler's budget if it has one. Not a checkpoint."""
        keeper = self.keeper(sampler) if all(hasattr(sampling, name) for name in _NEEDED) else None
        return sampling if keeper is None else keeper.kept(sampling)

    def keeper(self, sampler: Sampler) -> Keeper | None:
        """Of this sampler's states; None: it has no budget. Not a checkpoint."""
        budget_tokens = self._limits.kv_tokens or getattr(sampler, "kv_tokens", 0)
        if not budget_tokens:
            return None
        if id(sampler) not in self._keepers:
            keeper = Keeper(
                self.policy,
                budget_tokens=budget_tokens,
                slots=getattr(sampler, "slots", 0),
                max_saved_tokens=self._limits.max_saved_kv_tokens,
                max_tools=self._limits.max_learned_tools,
                cleanup_seconds=self._limits.cleanup_seconds,
            )
            self._keepers[id(sampler)] = sampler, keeper
        return self._keepers[id(sampler)][1]

    def statistics(self) -> ResidencyStatistics:
        """A frozen view."""
        each = [attrs.asdict(keeper.statistics()) for _, keeper in self._keepers.values()]
        names = [field.name for field in attrs.fields(ResidencyStatistics)]
        of_all = {name: max if name.startswith("longest_") else sum for name in names}
        merged = {name: merge([one[name] for one in each] or [0]) for name, merge in of_all.items()}
        return ResidencyStatistics(**merged)


def seat(
    sampling: Sampling,
    pools: Sequence[SlotPool],
    owner: str,
    ledger: Ledger | None = None,
    *,
    resumed: bool = False,
) -> Sampling:
    """The sampling of a rollout that has slots of these pools: it may lend them while it waits for room.

    That wait is booked in the ledger as one in a queue, not as sampling.
    """
    if isinstance(sampling, Kept):
        sampling.place = Place(pools, owner, ledger, resumed)
    return sampling


def pause(
    sampling: Sampling | None,
    items: Sequence[Item],
    call_ids: Collection[str],
    owner: str,
    tool_seconds: Mapping[str, float],
) -> None:
    """A rollout waits for the outputs of these calls, which are among the last of its items. Not a checkpoint."""
    if not isinstance(sampling, Kept):
        return
    calls: list[WaitedCall] = []
    for item in reversed(items):
        if len(calls) == len(call_ids):
            break
        if isinstance(item, CALLS) and item.call_id in call_ids:
            tool = getattr(item, "name", item.type)
            calls.append(WaitedCall(item.call_id, owner, tool, tool_seconds.get(tool)))
    sampling.pause(tuple(calls))


def answered(sampling: Sampling | None, call_ids: Collection[str]) -> None:
    """Outputs of these calls were accepted. Not a checkpoint."""
    if isinstance(sampling, Kept):
        sampling.answered(call_ids)
