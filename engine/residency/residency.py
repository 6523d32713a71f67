"""All of a server's states: a keeper for each sampler whose samplings can let go of theirs.

A sampler may have a size of its own, `kv_tokens`; else the server's limit of that name is the budget of each.
Samplings that cannot let go, and all where there is no budget, stay as they are, at no cost.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from engine.config import Limits
from engine.residency.base import Policy
from engine.residency.budget import Keeper, ResidencyStatistics
from engine.residency.kept import Kept, Place
from engine.residency.pauses import WaitedCall
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
        budget_tokens = self._limits.kv_tokens or getattr(sampler, "kv_tokens", 0)
        if not budget_tokens or not all(hasattr(sampling, name) for name in _NEEDED):
            return sampling
        if id(sampler) not in self._keepers:
            self._keepers[id(sampler)] = sampler, self._keeper(budget_tokens)
        return self._keepers[id(sampler)][1].kept(sampling)

    def _keeper(self, budget_tokens: int) -> Keeper:
        return Keeper(
            self.policy,
            budget_tokens=budget_tokens,
            max_saved_tokens=self._limits.max_saved_kv_tokens,
            max_tools=self._limits.max_learned_tools,
            cleanup_seconds=self._limits.cleanup_seconds,
        )

    def statistics(self) -> ResidencyStatistics:
        """A frozen view."""
        each = [attrs.asdict(keeper.statistics()) for _, keeper in self._keepers.values()]
        names = [field.name for field in attrs.fields(ResidencyStatistics)]
        sums = {name: sum(one[name] for one in each) for name in names}
        longest = max((one["longest_wait_seconds"] for one in each), default=0.0)
        return ResidencyStatistics(**{**sums, "longest_wait_seconds": longest})


def seat(sampling: Sampling, pools: Sequence[SlotPool], owner: str) -> Sampling:
    """The sampling of a rollout that has slots of these pools: it may lend them while it waits for room."""
    if isinstance(sampling, Kept):
        sampling.place = Place(pools, owner)
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
