"""What all rollouts of a server share: limits, stages, samplers, slots, hosted tools, ids, clocks.

A value, so that a simulation can bring its own ids and clocks, and a test its own sampler.
"""

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import attrs

from engine.compact import Compactor
from engine.config import DEFAULT_LIMITS, Limits
from engine.hosted import HostedTool, HostedTools
from engine.ledger import Clock, LedgerReport, monotonic_ns
from engine.models import ModelEntry, ModelTable
from engine.residency.policies import DEFAULT_POLICY, policy_of
from engine.residency.residency import Residency
from engine.samplers.base import Prompt, Sampler, Sampling
from engine.scheduler import SlotPool
from engine.shared import Shared
from engine.stages import Classify, Persist, Resolve, RolloutUsage, Validate
from engine.storage import MemoryStore, Store

MakeSampler = Callable[[str], Sampler]


_IDS_DRAWN: Final = 64
_drawn_ids: list[str] = []
"""Random bits for the next ids: one system call for many. A forked process has none of them."""
if hasattr(os, "register_at_fork"):  # where a process can fork at all
    os.register_at_fork(after_in_child=_drawn_ids.clear)


def random_id(prefix: str) -> str:
    """`prefix` and 128 random bits: an id is a capability (reference 2.2)."""
    while True:
        try:
            return f"{prefix}_{_drawn_ids.pop()}"
        except IndexError:  # asked first, another thread could take the last one meanwhile
            drawn = secrets.token_hex(16 * _IDS_DRAWN)
            _drawn_ids.extend(drawn[start : start + 32] for start in range(0, len(drawn), 32))


def wall_seconds() -> int:
    """Seconds since 1970, for `created_at`."""
    return int(time.time())


@attrs.frozen(kw_only=True)
class RolloutReport:
    """One rollout, measured: told to `Engine.on_report` when it ends."""

    response_id: str
    dialect: str
    status: str
    ending: str
    hooks: Mapping[str, int]
    """How often each stage and hook point ran."""
    usage: RolloutUsage
    matches: tuple[str, ...]
    """Names of what the classifier found."""
    ledger: LedgerReport
    work: Mapping[str, int] = attrs.field(factory=dict)
    """What the stages did, and what they reused: tokens, characters, tools, items."""

    def as_json(self) -> dict[str, Any]:
        """Plain data, one object."""
        return {
            **{name: getattr(self, name) for name in ("response_id", "dialect", "status", "ending")},
            "hooks": dict(self.hooks),
            "usage": attrs.asdict(self.usage),
            "matches": list(self.matches),
            "ledger": self.ledger.as_json(),
            "work": dict(self.work),
        }


@attrs.define(kw_only=True)
class Engine:
    """The shared parts. Build it with `Engine.make`."""

    limits: Limits
    resolve: Resolve
    validate: Validate
    classify: Classify
    persist: Persist
    hosted: HostedTools
    slots: SlotPool
    residency: Residency
    """Whose model state is in memory."""
    shared: Shared
    """What many creates say alike."""
    store: Store
    """Keeps responses with `store: true`."""
    sampler: Sampler
    """Serves the models that name no sampler of their own."""
    samplers: Mapping[str, Sampler] = attrs.field(factory=dict)
    """By the spec that the model table names."""
    clock_ns: Clock = monotonic_ns
    wall_seconds: Callable[[], int] = wall_seconds
    new_id: Callable[[str], str] = random_id
    on_report: Callable[[RolloutReport], None] | None = None
    compactor: Compactor = attrs.field(factory=Compactor)
    """Makes and reads compaction items."""
    http_variant: Literal["optimised", "naive"] = "optimised"
    """Over HTTP: keep contexts between requests (`engine.prefix_cache`), or do all work for the whole history each time."""
    websocket: bool = True
    """Is WebSocket served? If not, an upgrade is refused with 426, and clients that can go on over HTTP (reference 1.2)."""
    open_rollouts: int = 0
    """Rollouts that have not ended, of all connections."""
    open_by_owner: Counter[str] = attrs.field(factory=Counter)
    """Those over WebSocket, by whose they are; nobody is in it with none."""

    @classmethod
    def make(
        cls,
        sampler: Sampler,
        *,
        limits: Limits = DEFAULT_LIMITS,
        models: ModelTable | None = None,
        make_sampler: MakeSampler | None = None,
        hosted_tools: Iterable[HostedTool] = (),
        persist: Persist | None = None,
        kv_policy: str = DEFAULT_POLICY,
        **others: Any,
    ) -> "Engine":
        """An engine around `sampler`; every other part has a default. `ValueError`: a bad tool, sampler spec or policy."""
        table = models or ModelTable.built_in(getattr(sampler, "context_tokens", 0))
        specs = {entry.spec for entry in table.entries if entry.spec is not None}
        if specs and make_sampler is None:
            raise ValueError(
                f"the model table names samplers ({', '.join(sorted(specs))}): pass make_sampler"
            )
        hosted = HostedTools(hosted_tools, limits=limits)
        return cls(
            limits=limits,
            resolve=Resolve(table, max_remembered=limits.max_model_names),
            validate=Validate(hosted.labels, max_schemas=limits.max_schemas),
            classify=Classify(),
            persist=persist or Persist(),
            hosted=hosted,
            slots=SlotPool(limits.sampler_slots),
            residency=Residency(limits, policy_of(kv_policy)),
            shared=Shared(max_entries=limits.max_shared_entries, max_bytes=limits.max_shared_bytes),
            sampler=sampler,
            samplers={spec: make_sampler(spec) for spec in specs} if make_sampler is not None else {},
            **{"store": MemoryStore(limits), **others},
        )

    def count_open(self, owner: str, change: int) -> None:
        """A rollout over WebSocket begins or has ended."""
        self.open_rollouts += change
        self.open_by_owner[owner] += change
        if not self.open_by_owner[owner]:
            del self.open_by_owner[owner]

    def forgetful(self) -> "Engine":
        """The same engine for one request of naive HTTP: it remembers no tools and no name of a model."""
        return attrs.evolve(
            self,
            resolve=Resolve(self.resolve.table, max_remembered=0),
            validate=Validate(self.hosted.labels, max_schemas=0),
            shared=Shared(max_entries=0, max_bytes=0),
        )

    def sampler_of(self, entry: ModelEntry) -> Sampler:
        """The sampler that serves a model."""
        return self.sampler if entry.spec is None else self.samplers[entry.spec]

    def open_sampling(self, entry: ModelEntry, prompt: Prompt) -> Sampling:
        """A rollout begins on a model. Not a checkpoint."""
        sampler = self.sampler_of(entry)
        return self.residency.kept(sampler, sampler.open(prompt))
