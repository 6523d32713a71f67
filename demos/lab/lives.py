"""The life of one response as a trace shows it: stages that follow each other without a gap, and what was made in them.

Of our own engine the hooks say when a stage begins. Of any other server only the frames are known: then the waiting for
a slot is in the time before the response was created, and a suspension begins with what was said last.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

import attrs

from demos.lab.loose import object_at, text_at

INTAKE: Final = "intake and queue"
BEFORE: Final = "pre-inference"
FIRST: Final = "to the first item"
SAMPLING: Final = "sampling"
AFTER: Final = "after sampling"
SUSPENDED: Final = "suspended"
RESUMING: Final = "resuming"
STAGES: Final = (INTAKE, BEFORE, FIRST, SAMPLING, AFTER, SUSPENDED, RESUMING)

_MODEL_STAGES: Final = frozenset({FIRST, SAMPLING})
_SLOT: Final[Mapping[str, str]] = {INTAKE: BEFORE, SUSPENDED: RESUMING, AFTER: FIRST}
"""What begins with a slot of the model, by what it ends."""
_HOOKS: Final[Mapping[str, str]] = {
    "pre_inference": FIRST,
    "resume": FIRST,
    "sampler_stop": AFTER,
    "suspend": SUSPENDED,
}


@attrs.frozen
class Stage:
    """What a response's time went into, from one moment to another."""

    name: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end_s - self.start_s


@attrs.define
class Made:
    """An item of the output, from its first event to its last."""

    type: str
    item_id: str
    start_s: float
    end_s: float | None = None
    name: str | None = None
    """Of the tool, if it is a call."""
    call_id: str | None = None


@attrs.frozen
class Turn:
    """One time that the model was asked: by a create, or by the outputs that ended a suspension."""

    start_s: float
    end_s: float
    stages: tuple[Stage, ...]
    chunks_s: tuple[float, ...]
    """When pieces of the output came."""
    usage: Mapping[str, Any] | None
    """None: it was not said of this turn alone."""


@attrs.define(eq=False)
class Life:
    """One response, from the request to its end."""

    connection: str
    lane: str
    request: Mapping[str, Any]
    asked_s: float
    response_id: str | None = None
    """None: it was refused."""
    model: str | None = None
    created_at: float | None = None
    status: str | None = None
    """None: the trace ends first."""
    error: str | None = None
    incomplete: str | None = None
    ended_s: float | None = None
    stages: list[Stage] = attrs.field(factory=list)
    items: list[Made] = attrs.field(factory=list)
    chunks_s: list[float] = attrs.field(factory=list)
    usages: list[tuple[float, Mapping[str, Any]]] = attrs.field(factory=list)
    continues: str | None = None
    """The response whose calls this one's request brought the outputs of."""
    open_calls: set[str] = attrs.field(factory=set)
    _stage: str | None = INTAKE
    _since_s: float = attrs.field(init=False)
    _said_s: float = attrs.field(init=False)
    _pauses: bool = False
    """The last thing that it said was a call."""

    def __attrs_post_init__(self) -> None:
        self._since_s = self._said_s = self.asked_s

    # --- being told ---

    def enter(self, stage: str | None, t: float) -> None:
        """Be in this stage from now on; None: over."""
        if stage == self._stage:
            return
        if self._stage is not None:
            self.stages.append(Stage(self._stage, self._since_s, t))
        self._stage, self._since_s = stage, t

    def hook(self, name: str, t: float) -> None:
        """Something happened between the frames."""
        stage = _SLOT.get(self._stage or "") if name == "slot_acquire" else _HOOKS.get(name)
        if stage is not None and self._stage is not None:
            self.enter(stage, t)

    def created(self, response: Mapping[str, Any], t: float) -> None:
        """It exists for the client."""
        self.response_id, self.model = text_at(response, "id"), text_at(response, "model")
        created_at = response.get("created_at")
        self.created_at = created_at if isinstance(created_at, int | float) else None
        if self._stage in {INTAKE, BEFORE}:
            self.enter(FIRST, t)

    def adds(self, item: Mapping[str, Any], t: float) -> None:
        """An item begins."""
        if self._stage != AFTER:  # what a hosted tool gives is written then
            self.enter(SAMPLING, t)
        self._said(t)
        self.items.append(
            Made(
                str(item.get("type")),
                text_at(item, "id") or str(len(self.items)),
                t,
                name=text_at(item, "name"),
                call_id=text_at(item, "call_id"),
            )
        )

    def piece(self, t: float) -> None:
        """A piece of an item."""
        self.chunks_s.append(t)
        self._said(t)

    def ends_item(self, item: Mapping[str, Any], t: float) -> Made:
        """An item is whole."""
        found = next(
            (made for made in self.items if made.end_s is None and made.item_id == text_at(item, "id")), None
        )
        if found is None:  # whole at once
            self.adds(item, t)
            found = self.items[-1]
        self._said(t)
        found.end_s = t
        found.name = text_at(item, "name") or found.name
        found.call_id = text_at(item, "call_id") or found.call_id
        return found

    def calls(self, call_id: str) -> None:
        """The item that has just ended is a call to the client."""
        self.open_calls.add(call_id)
        self._pauses = True

    def answered(self, call_id: str, t: float) -> None:
        """An output came. Where no hook has told of the suspension that it ends, it began with the last call."""
        self.open_calls.discard(call_id)
        if self.open_calls:
            return
        if self._stage == SAMPLING and self._pauses:
            self.enter(SUSPENDED, self._said_s)
        if self._stage == SUSPENDED:
            self.enter(RESUMING, t)

    def parks(self, response: Mapping[str, Any], t: float) -> None:
        """It says that it waits."""
        self._uses(response, t)
        self.enter(SUSPENDED, t)

    def ends(self, response: Mapping[str, Any], t: float) -> None:
        """The last event."""
        self._uses(response, t)
        self.over(text_at(response, "status"), t)
        self.error = text_at(object_at(response, "error"), "code")
        self.incomplete = text_at(object_at(response, "incomplete_details"), "reason")

    def over(self, status: str | None, t: float) -> None:
        """Nothing comes any more."""
        self.enter(None, t)
        self.ended_s, self.status = t, status
        for made in self.items:
            made.end_s = t if made.end_s is None else made.end_s

    def _said(self, t: float) -> None:
        self._said_s, self._pauses = t, False

    def _uses(self, response: Mapping[str, Any], t: float) -> None:
        usage = object_at(response, "usage")
        if usage:
            self.usages.append((t, usage))

    # --- being asked ---

    def segments(self) -> Iterator[tuple[bool, tuple[Stage, ...]]]:
        """Stages in order, those of one segment of the model together and marked as such."""
        for is_model, stages in groupby(self.stages, lambda stage: stage.name in _MODEL_STAGES):
            if is_model:
                yield True, tuple(stages)
            else:
                yield from ((False, (stage,)) for stage in stages)

    def turns(self) -> Iterator[Turn]:
        """The life without its suspensions, cut where the model was asked again."""
        stages: list[Stage] = []
        for stage in self.stages:
            again = stage.name == FIRST and any(before.name == SAMPLING for before in stages)
            if stages and (stage.name == SUSPENDED or again):
                yield self._turn(stages)
                stages = []
            if stage.name != SUSPENDED:
                stages.append(stage)
        if stages:
            yield self._turn(stages)

    def _turn(self, stages: list[Stage]) -> Turn:
        start_s, end_s = stages[0].start_s, stages[-1].end_s
        usages = [usage for t, usage in self.usages if start_s <= t <= end_s]
        is_whole = stages[-1] is self.stages[-1] and stages[0] is self.stages[0]
        told_each = is_whole or len(self.usages) > 1
        return Turn(
            start_s,
            end_s,
            tuple(stages),
            tuple(self.chunks_s[bisect_left(self.chunks_s, start_s) : bisect_right(self.chunks_s, end_s)]),
            usages[-1] if usages and told_each else None,
        )
