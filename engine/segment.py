"""One segment: a sampler's steps, part by part, into the assembly, within the rollout's budget.

The hot path: for a text part it is one event, and nothing that waits. The texts of a step are written together.
A step may be taken in another task (`base.Taker`); the rollout's waits for the client, if that is behind, and for the end.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Final

import attrs

from engine.assembly import Assembly
from engine.ledger import Clock, Ledger, Stage
from engine.outbox import Outbox
from engine.samplers import base

SHORT_TOKENS: Final = 1024
"""A segment of fewer is rendered in a millisecond: its last step can wait for what is said after that."""


class BudgetSpentError(Exception):
    """`max_output_tokens` is used up, or the model met its own limit of length."""


class SamplerContractError(RuntimeError):
    """A sampler broke its promises (`engine.samplers.base`); it ends its response, nothing else."""


@attrs.define
class SegmentRun:
    """One segment: the taker of its steps, and its counts while it runs."""

    assembly: Assembly
    budget_tokens: int | None
    """What may still be sampled in this rollout; None = no limit."""
    one_call: bool
    """At most one client call (`parallel_tool_calls: false`)."""
    output_tokens: int = 0
    reasoning_tokens: int = 0
    reused_tokens: int | None = None
    """As the sampler reports it; None = it does not."""
    input_tokens: int | None = None
    """The whole context by the model's own account; None = it has none."""
    drifted_turns: int = 0
    _passed_over: frozenset[int] = frozenset()
    """Calls that began beside the one call: samplers may alternate pieces, or never say that a call ends."""
    over: bool = False
    """Has the last step been taken?"""
    _ledger: Ledger = attrs.field(init=False)
    _clock: Clock = attrs.field(init=False)
    _encode_ns: int = 0
    _send_ns: int = 0
    _outbox: Outbox = attrs.field(init=False)
    _send: Callable[[], bool] = attrs.field(init=False)

    async def run(
        self, sampling: base.Sampling, appended: base.Appended, ledger: Ledger, outbox: Outbox
    ) -> None:
        """Take steps until the segment is over; the last one may have to be flushed. A checkpoint if the sampler's are.

        `BudgetSpentError`; `SamplerContractError`; whatever the sampler raises.
        """
        ledger.enter(Stage.SAMPLE)
        self._ledger, self._clock, self._outbox, self._send = ledger, ledger.clock, outbox, outbox.flush
        self.assembly.way = outbox
        try:
            await base.push(sampling, appended, self)
        finally:
            self.assembly.way = None
            ledger.enter(Stage.SAMPLE)  # a rest may have been cancelled
            ledger.claim(Stage.ENCODE, self._encode_ns)
            ledger.claim(Stage.SEND, self._send_ns)
        if not self.over:
            raise SamplerContractError("the sampler stopped without an End")

    # --- as `base.Taker`; claimed in the ledger when all are taken ------------------------------------------------

    def take(self, step: base.Step) -> bool:
        """The parts of one step; True when the segment is over."""
        began_ns = self._clock()
        budget = math.inf if self.budget_tokens is None else self.budget_tokens
        texts: list[str] = []
        for part in step:
            spent = self.output_tokens + part.tokens
            if spent > budget:
                self._write(texts)
                raise BudgetSpentError
            self.output_tokens = spent
            if type(part) is base.Text:  # nearly all of them, so they are written together
                texts.append(part.text)
                continue
            self._write(texts)
            if _TAKE[type(part)](self, part):
                self.over = True
                break
        if texts:
            self.assembly.texts(texts)
        self._encode_ns += self._clock() - began_ns
        return self.over

    @property
    def outlet(self) -> Hashable:
        """As `Taker.outlet`: the connection's, or the stream's."""
        return self._send

    def flush(self) -> bool:
        """As `Outbox.flush`, of the last step only if it is long until something follows: one write for both."""
        if self.over and self.output_tokens < SHORT_TOKENS:
            return True
        began_ns = self._clock()
        writable = self._send()
        self._send_ns += self._clock() - began_ns
        return writable

    async def rest(self) -> None:
        """Wait while the client is behind. No checkpoint if it is not."""
        self._ledger.enter(Stage.SEND)
        await self._outbox.wait_writable()
        self._ledger.enter(Stage.SAMPLE)

    # --- parts -----------------------------------------------------------------------------------------------------

    def _write(self, texts: list[str]) -> None:
        if texts:
            self.assembly.texts(texts)
            texts.clear()

    def _thought(self, part: base.Thought) -> bool:
        self.reasoning_tokens += part.tokens
        self.assembly.thought(part.text)
        return False

    def _call_start(self, part: base.CallStart) -> bool:
        if self.one_call and self.assembly.calls_client:
            self._passed_over |= {part.index}
        else:
            self.assembly.call_start(part)
        return False

    def _call_input(self, part: base.CallInput) -> bool:
        if part.index not in self._passed_over:
            self.assembly.call_input(part)
        return False

    def _call_end(self, part: base.CallEnd) -> bool:
        if part.index not in self._passed_over:
            self.assembly.call_end(part.index)
        return self.one_call and self.assembly.client_calls > 0

    def _prefilled(self, part: base.Prefilled) -> bool:
        self.reused_tokens = part.reused
        self.input_tokens = part.reused + part.computed if part.exact else None
        self.drifted_turns += part.drifted_turns
        return False

    def _end(self, part: base.End) -> bool:
        if part.reason == "length":
            raise BudgetSpentError
        self.assembly.end_segment(final=True)
        return True


_TAKE: Final[Mapping[type, Callable[..., bool]]] = {
    base.Thought: SegmentRun._thought,  # noqa: SLF001  # the class's own table
    base.CallStart: SegmentRun._call_start,  # noqa: SLF001
    base.CallInput: SegmentRun._call_input,  # noqa: SLF001
    base.CallEnd: SegmentRun._call_end,  # noqa: SLF001
    base.Prefilled: SegmentRun._prefilled,  # noqa: SLF001
    base.End: SegmentRun._end,  # noqa: SLF001
}
