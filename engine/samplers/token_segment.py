"""One segment of a real model while it is sampled: what was sampled, what of it was said, and what of it stays."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

import attrs

from engine.backends.base import BackendError, Generated
from engine.backends.base import Sampling as Choice
from engine.formats.base import Constraint, Format, Parser
from engine.samplers.base import CallEnd, CallStart, Part, Prefilled, Step, StopReason, Text, Thought
from engine.samplers.turns import said_by_model
from protocol.items import CALLS, Item, McpCall


@attrs.define(eq=False)
class _Said:
    """One item that the segment has begun to say: its kind, and how many sampled tokens there were at its end."""

    kind: str
    tokens: int


class TokenSegment:
    """One segment while it is sampled."""

    def __init__(
        self,
        format_: Format,
        parser: Parser,
        constraint: Constraint | None,
        lead_tokens: int,
        drifted_turns: int,
    ) -> None:
        self._format = format_
        self._parser = parser
        self._constraint = constraint
        self.lead_tokens = lead_tokens
        self._drifted_turns = drifted_turns
        self._sampled = array("I")
        self._replayed: int | None = None
        """How many tokens were sampled again after a failure; None: no failure, or none to be compared."""
        self._said_tokens = 0
        self._said: list[_Said] = []
        self._prompt_tokens = 0
        self._extra_tokens = 0
        """Of the prompt of a retry: sampled before it."""
        self._counted = False
        self.finish: StopReason | None = None
        self.complete = False

    # --- asking ----------------------------------------------------------------------------------------------------

    def continuation(self, tokens: "array[int]", choice: Choice) -> tuple["array[int]", Choice]:
        """What to generate after: the sequence, and what was sampled before a failure, unless that must be repeated."""
        if not self._sampled or self._replayed is not None:
            self._prompt_tokens = len(tokens)
            return tokens, choice
        self._extra_tokens = len(self._sampled)
        self._prompt_tokens = len(tokens) + self._extra_tokens
        left = None if choice.max_tokens is None else max(1, choice.max_tokens - self._extra_tokens)
        return tokens + self._sampled, attrs.evolve(choice, max_tokens=left)

    def begin_again(self) -> bool:
        """Another try after a failure; a schema can only be kept from its beginning. False: there is nothing to try."""
        if self._constraint is not None:
            self._replayed = 0
        return self.finish is None

    def require_finished(self) -> None:
        """`BackendError`: it stopped without saying why, or before it was where it had failed."""
        if self.finish is None:
            raise BackendError("broke_promise", "the backend stopped without a finish")
        if self._replayed is not None and self._replayed < len(self._sampled):
            raise BackendError("broke_promise", "the backend samples less after its failure than before")

    # --- taking ----------------------------------------------------------------------------------------------------

    def take(self, piece: Generated) -> Iterator[Step]:
        """The steps of one piece. Each call of a tool ends its step: a rollout may end there. `BackendError`."""
        parts: list[Part] = list(self._prefilled(piece))
        for token in piece.tokens:
            if self._is_replayed(token):
                continue
            if self._sampled and self._sampled[-1] in self._format.stop_tokens:
                raise BackendError("broke_promise", f"the backend went on with {token} after a stop token")
            self._sampled.append(token)
            for part in self._parser.feed(token):
                parts.append(part)
                if isinstance(part, CallEnd):
                    yield self._step(parts)
                    parts = []
        if parts:
            yield self._step(parts)
        self.finish = piece.finish

    def _prefilled(self, piece: Generated) -> Iterator[Prefilled]:
        reused, computed = piece.reused_tokens, piece.computed_tokens
        if reused is None and computed is None:
            return
        if reused is None or computed is None or min(reused, computed) < 0:
            raise BackendError(
                "broke_promise", f"the backend counts {reused} tokens reused, {computed} computed"
            )
        if reused + computed != self._prompt_tokens:
            raise BackendError(
                "broke_promise",
                f"the backend counts {reused} tokens reused and {computed} computed of {self._prompt_tokens}",
            )
        if not self._counted:
            yield self._count(min(reused, self._prompt_tokens - self._extra_tokens))

    def _count(self, reused: int) -> Prefilled:
        self._counted = True
        computed = self._prompt_tokens - self._extra_tokens - reused
        return Prefilled(reused, computed, exact=True, drifted_turns=self._drifted_turns)

    def _is_replayed(self, token: int) -> bool:
        """Is this a token that was sampled before a failure? It must be the same one."""
        if self._replayed is None:
            return False
        if self._replayed == len(self._sampled):
            self._replayed = None
            return False
        if token != self._sampled[self._replayed]:
            raise BackendError("broke_promise", "the backend samples something else after its failure")
        self._replayed += 1
        return True

    def end(self, finish: StopReason) -> Step:
        """The last step. `ValueError`: malformed, where the format is strict."""
        before = () if self._counted or not self._prompt_tokens else (self._count(0),)
        called = any(said.kind == "call" for said in self._said)
        reason: StopReason = "tool_calls" if called and finish == "stop" else finish
        step = self._step([*before, *self._parser.end(reason)])
        self.complete = finish != "length"
        return step

    def _step(self, parts: Sequence[Part]) -> Step:
        """Note what is said with it: it stands, also if nothing else follows."""
        for part in parts:
            self._said_tokens += part.tokens
            kind = _KINDS.get(type(part))
            if kind is not None and (kind == "call" or not self._said or self._said[-1].kind != kind):
                self._said.append(_Said(kind, 0))
        if self._said:
            self._said[-1].tokens = self._said_tokens
        return parts

    @property
    def said_items(self) -> int:
        """How many items it said, or began to say."""
        return len(self._said)

    # --- afterwards ------------------------------------------------------------------------------------------------

    def own(self, items: Sequence[Item]) -> int:
        """How many of the items, from the first on, are what this segment said."""
        return len(self._said) - len(self._unmatched(items))

    def keep_only(self, items: Sequence[Item]) -> None:
        """What is not among the items was not taken by the rollout, and does not stay in the sequence either."""
        unmatched = self._unmatched(items)
        if unmatched and not self.complete:
            self._said_tokens = max((said.tokens for said in self._said if said not in unmatched), default=0)

    def _unmatched(self, items: Sequence[Item]) -> list[_Said]:
        """Of what was said; calls of hosted tools come after the others among the items."""
        unmatched = list(self._said)
        for item in takewhile(lambda item: said_by_model(item) or isinstance(item, McpCall), items):
            kind = "call" if isinstance(item, (*CALLS, McpCall)) else item.type
            said = next((said for said in unmatched if said.kind == kind), None)
            if said is None:
                break
            unmatched.remove(said)
        return unmatched

    def ids(self) -> "array[int]":
        """The turn, from behind its opening to the end of its closing."""
        constraint = self._constraint
        lead = constraint.lead if constraint is not None else array("I")
        sampled = self._sampled[: self._said_tokens]
        last = sampled[-1] if sampled else None
        stopped = last in self._format.stop_tokens
        if stopped and constraint is not None and constraint.tail:
            return lead + sampled[:-1] + constraint.tail + self._format.closing(None)
        if stopped:
            assert last is not None, "a token that stops"
            sampled[-1] = self._format.stored_as.get(last, last)
            return lead + sampled + self._format.closing(sampled[-1])
        return lead + sampled + self._format.closing(last)


_KINDS: Mapping[type, str] = {Text: "message", Thought: "reasoning", CallStart: "call"}
