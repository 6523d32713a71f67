"""The stages around sampling, each a small object that takes only what is new.

Every stage has an incremental form, used while a rollout grows, and a full form that starts from nothing;
property tests hold them equal. That equality is what lets a suspended rollout skip its past.

    Resolve   model name           → entry of the model table
    Validate  tools, tool_choice, items → table, choice, ledger of calls; or a refusal
    Classify  text                 → matches of known strings
    Account   facts of a segment   → usage
    Persist   a finished rollout   → whoever stores it

None blocks, waits or reads a clock. Who runs them when, and counts how often, is the rollout's matter.
"""

import collections
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import attrs

from engine.account import Account, RolloutUsage, Segment
from engine.call_ledger import CallLedger
from engine.classifier import DEFAULT_PATTERNS, NEW_STREAM, Classifier, ClassifierState, Match
from engine.config import DEFAULT_LIMITS
from engine.models import ModelEntry, ModelTable
from engine.tool_choice import ToolChoice, read_tool_choice
from engine.tool_table import SchemaCheck, Tool, ToolReader, ToolTable, tools_added_by
from protocol.items import Item

__all__ = [
    "Account",
    "CallLedger",
    "Classifier",
    "ClassifierState",
    "Classify",
    "Match",
    "Persist",
    "PersistedRollout",
    "Resolve",
    "RolloutUsage",
    "Segment",
    "Streams",
    "Tool",
    "ToolChoice",
    "ToolTable",
    "Validate",
    "tools_added_by",
]

_NO_HOSTED: Final[Mapping[str, Collection[str]]] = MappingProxyType({})


class Resolve:
    """Model names to entries, remembered."""

    name = "resolve"

    def __init__(self, table: ModelTable, *, max_remembered: int = DEFAULT_LIMITS.max_model_names) -> None:
        self.table = table
        self._max_remembered = max_remembered
        self._found: collections.OrderedDict[str, ModelEntry] = collections.OrderedDict()

    def model(self, name: str) -> ModelEntry:
        """The entry that serves `name`. `RemoteProtocolError`: as `ModelTable.find`; refusals are not remembered."""
        entry = self._found.get(name)
        if entry is None:
            entry = self._found[name] = self.table.find(name)
            if len(self._found) > self._max_remembered:
                self._found.popitem(last=False)
        return entry


class Validate:
    """Whether input means something, beyond its shape. One for the whole engine: it remembers schemas, not clients."""

    name = "validate"

    def __init__(
        self,
        hosted_tools: Mapping[str, Collection[str]] = _NO_HOSTED,
        *,
        max_schemas: int = DEFAULT_LIMITS.max_schemas,
    ) -> None:
        """`hosted_tools`: the engine's own, server label to names. `max_schemas`: how many it remembers."""
        self._reader = ToolReader(hosted_tools, SchemaCheck(max_schemas))

    @property
    def schemas(self) -> SchemaCheck:
        """The remembered schemas."""
        return self._reader.schemas

    def tools(
        self, tools: Sequence[Mapping[str, Any]], base: ToolTable | None = None, *, field: str = "tools"
    ) -> ToolTable:
        """The table of `base` and these tools. `RemoteProtocolError`: the first tool at fault, by its path."""
        steps = self.tools_in_slices(tools, base, field=field)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic

    def tools_in_slices(
        self, tools: Sequence[Mapping[str, Any]], base: ToolTable | None = None, *, field: str = "tools"
    ) -> Generator[None, None, ToolTable]:
        """`tools`, yielding between tools: a first look at the largest schema takes half a millisecond."""
        table = yield from self._reader.read_in_slices(tools, field)
        return base.with_tools(table) if base is not None else table

    def tool_choice(self, choice: str | Mapping[str, Any] | None, table: ToolTable) -> ToolChoice:
        """The choice against the tools. `RemoteProtocolError`: a named tool is not in the table."""
        return read_tool_choice(choice, table)

    def context(self, ledger: CallLedger, items: Sequence[Item], *, start: int = 0) -> tuple[Item, ...]:
        """Take a create's new input into `ledger`, the state its parent left; returns what enters the context.

        `RemoteProtocolError` (the ledger is unchanged): the first fault in order, or else a call left open.
        """
        return ledger.admit(items, start=start, all_answered=True)

    def whole_context(self, items: Sequence[Item]) -> CallLedger:
        """The full form: the ledger of all items, from nothing. `RemoteProtocolError` as `context`."""
        ledger = CallLedger()
        self.context(ledger, items)
        return ledger


@attrs.frozen
class Streams:
    """The two texts of a rollout as far as they are classified; a value, so a fork just keeps it."""

    input: ClassifierState = NEW_STREAM
    output: ClassifierState = NEW_STREAM


class Classify:
    """Known strings in what goes in and what comes out, found once, also across pieces."""

    name = "classify"

    def __init__(self, patterns: Mapping[str, str] = DEFAULT_PATTERNS) -> None:
        """`ValueError`: as `Classifier`."""
        self.classifier = Classifier(patterns)

    def input_text(self, streams: Streams, piece: str) -> tuple[Streams, tuple[Match, ...]]:
        """The next text from the client: new streams, and the matches that end in it."""
        state, matches = self.classifier.classify(streams.input, piece)
        return Streams(state, streams.output), matches

    def output_text(self, streams: Streams, piece: str) -> tuple[Streams, tuple[Match, ...]]:
        """The next text from the model: new streams, and the matches that end in it."""
        state, matches = self.classifier.classify(streams.output, piece)
        return Streams(streams.input, state), matches


@attrs.frozen(kw_only=True)
class PersistedRollout:
    """A rollout as it is stored when it ends."""

    response_id: str
    status: str
    reason: str | None = None
    """Why it is not `completed`: the code of the error, or what it ran out of."""
    items: tuple[Item, ...] = ()
    """Its input and output, in context order."""
    usage: RolloutUsage = attrs.field(factory=RolloutUsage)


class Persist:
    """Hands each finished rollout on, once; without a sink nothing is kept."""

    name = "persist"

    def __init__(self, sink: Callable[[PersistedRollout], None] | None = None) -> None:
        self._sink = sink

    def rollout(self, rollout: PersistedRollout) -> None:
        """Store a rollout. What the sink raises is the caller's to handle."""
        if self._sink is not None:
            self._sink(rollout)
