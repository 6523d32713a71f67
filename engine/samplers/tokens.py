"""A sampler over a real model: a chat format, a backend, and the actual tokens of each rollout.

    preamble │ items │ opening │ sampled │ closing │ only the new items │ opening │ sampled …

A sampling holds the whole sequence of ids, and only ever appends to it: what the model sampled stays as it was sampled, and
nothing is tokenized twice. So the model's warm state fits, and if it is lost, the tokens are all it takes to go on.

What was sampled but not yet said (half a mark, half a character) is not part of the sequence when a segment is cut off.
"""

from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import attrs
import trio

from engine.backends.base import Backend, BackendError, Generated
from engine.backends.base import Sampling as Choice
from engine.formats.base import Constraint, Format, Request
from engine.samplers.base import (
    Appended,
    ContextFullError,
    End,
    Prefilled,
    Prompt,
    Step,
    Steps,
)
from engine.samplers.token_counts import TokenCounts, TokenStatistics
from engine.samplers.token_segment import TokenSegment
from engine.samplers.turns import TurnMemory, said_by_model
from engine.tool_table import tools_added_by
from protocol.items import CALLS, FunctionCallOutput, Item, McpCall, Message

LONG_TOKENS: Final = 8192
"""More than that is tokenized in a thread: a model file's own vocabulary takes seconds for a megabyte, in pure Python."""


@attrs.frozen(kw_only=True)
class TokenOptions:
    """How to sample."""

    temperature: float = 0.0
    """Where the client says nothing; 0 = greedy."""
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    """Of one segment; None: as many as the model's window has room for."""
    retries: int = 0
    """How often a segment whose backend failed is gone on with from its tokens."""


class TokenSampler:
    """A `Sampler` over a format and a backend. `run` exists if the backend needs a task of its own."""

    run: Callable[[], Awaitable[None]]
    reads_ahead = True

    def __init__(self, format_: Format, backend: Backend, options: TokenOptions | None = None) -> None:
        self.format = format_
        self.backend = backend
        self.options = options or TokenOptions()
        self.memory = TurnMemory()
        self.tokenizing = trio.CapacityLimiter(1)
        """Long texts one after the other: they share the interpreter with everything else."""
        self.counts = TokenCounts()
        background = getattr(backend, "run", None)
        if background is not None:
            self.run = background

    @property
    def keeps_text_format(self) -> bool:
        """As the backend keeps schemas."""
        return self.backend.keeps_schemas

    @property
    def context_tokens(self) -> int:
        """The window of the backend's model; 0 = it does not say, or does not know yet."""
        return self.backend.context_tokens

    @property
    def kv_tokens(self) -> int:
        """How much state the backend has room for, in tokens; 0 = it does not say."""
        return int(getattr(self.backend, "kv_tokens", 0))

    @property
    def slots(self) -> int:
        """How many sequences the backend has places for; 0 = it does not say."""
        return int(getattr(self.backend, "slot_count", 0))

    def open(self, prompt: Prompt) -> "TokenSampling":
        """Start a rollout."""
        self.counts.open_samplings += 1
        return TokenSampling(self, prompt)

    def statistics(self) -> TokenStatistics:
        """A frozen view."""
        return TokenStatistics(**attrs.asdict(self.counts), remembered_turns=len(self.memory))


class TokenSampling:
    """One rollout's sequence, and the backend's handle for its state."""

    def __init__(self, sampler: TokenSampler, prompt: Prompt) -> None:
        self._format = sampler.format
        self._backend = sampler.backend
        self._options = sampler.options
        self._memory = sampler.memory
        self._tokenizing = sampler.tokenizing
        self._counts = sampler.counts
        self._prompt = prompt
        self._request = Request(
            instructions=prompt.instructions,
            tools=prompt.tools,
            tool_choice=prompt.tool_choice,
            text_format=prompt.text_format,
        )
        self.handle = self._backend.open(prompt.cache_key)
        self.tokens = array("I")
        """The whole sequence, up to where the last segment began to sample; do not change it."""
        self._items: list[Item] = []
        self._places: list[tuple[int, int]] = []
        """Items and tokens at each point where the sequence can be cut: before each of the model's turns."""
        self._calls = 0
        """Since the last message of a user."""
        self._segment: TokenSegment | None = None
        self._closed = False

    # --- the state, for a policy -----------------------------------------------------------------------------------

    @property
    def saves(self) -> bool:
        """Can the state be written away?"""
        return self._backend.saves

    @property
    def resident_tokens(self) -> int:
        """How many tokens of state the backend is believed to hold."""
        return self.handle.resident_tokens

    async def drop(self) -> None:
        """Free the state; the next segment computes it again. A checkpoint; never raises."""
        await self._backend.drop(self.handle)

    async def save(self) -> None:
        """Write the state away, if `saves`. A checkpoint. `BackendError`."""
        await self._backend.save(self.handle)

    async def restore(self) -> bool:
        """Bring it back; False: it is not there any more. A checkpoint. `BackendError`."""
        return await self._backend.restore(self.handle)

    async def aclose(self) -> None:
        """The rollout is over; its state may be found again by its cache key. Idempotent; a checkpoint."""
        if not self._closed:
            self._closed = True
            self._counts.open_samplings -= 1
            await self._backend.release(self.handle)
        await trio.lowlevel.checkpoint()

    # --- sampling --------------------------------------------------------------------------------------------------

    async def sample(self, appended: Appended) -> Steps:
        """As `Sampling.sample`. `BackendError`; `ValueError`: the model wrote what the format does not allow."""
        await trio.lowlevel.checkpoint()
        if len(appended.tokens) > LONG_TOKENS:
            extend, limiter = partial(self._extend, appended.items), self._tokenizing
            drifted_turns = await trio.to_thread.run_sync(extend, abandon_on_cancel=True, limiter=limiter)
        else:
            drifted_turns = self._extend(appended.items)
        if appended.only_read:
            yield await self._read(drifted_turns)
            return
        constraint = self._constraint()
        lead = constraint.lead if constraint is not None else array("I")
        self.tokens.extend(self._format.opening(self._request) + lead)
        room = self._room()
        parser = self._format.parser(self._request, constraint)
        self._segment = segment = TokenSegment(self._format, parser, constraint, len(lead), drifted_turns)
        self._counts.segments += 1
        if room is not None and room <= 0:
            raise ContextFullError(f"{len(self.tokens)} tokens fill the window of {self._backend.name}")
        choice = self._choice(room, constraint)
        for attempt in range(self._options.retries + 1):
            try:
                prompt, left = segment.continuation(self.tokens, choice)
                async with aclosing(self._backend.generate(self.handle, prompt, left)) as pieces:
                    async for piece in pieces:
                        self._note(piece)
                        for step in segment.take(piece):
                            yield step
                        if piece.finish is not None:
                            break
                segment.require_finished()
                break
            except BackendError:
                self._counts.failures += 1
                if attempt == self._options.retries or not segment.begin_again():
                    raise
                self._counts.retries += 1
        yield segment.end(segment.finish or "stop")

    async def _read(self, drifted_turns: int) -> Step:
        """Read the sequence as it stands. A backend cannot but say a token after it, which nobody hears of."""
        reused = computed = 0
        async with aclosing(self._backend.generate(self.handle, self.tokens, Choice(max_tokens=1))) as pieces:
            async for piece in pieces:
                reused += piece.reused_tokens or 0
                computed += piece.computed_tokens or 0
        self._counts.reused_tokens += reused
        self._counts.computed_tokens += computed
        told = reused + computed == len(self.tokens)
        prefilled = Prefilled(reused, len(self.tokens) - reused, exact=told, drifted_turns=drifted_turns)
        return (prefilled, End())

    def _constraint(self) -> Constraint | None:
        if not self._backend.keeps_schemas:
            return None
        return self._format.constraint(self._request, self._calls)

    def _room(self) -> int | None:
        """How many tokens may be sampled; None: nobody knows of a limit."""
        window = self._backend.context_tokens
        limits = [window - len(self.tokens)] if window else []
        if self._options.max_tokens is not None:
            limits.append(self._options.max_tokens)
        return min(limits, default=None)

    def _choice(self, room: int | None, constraint: Constraint | None) -> Choice:
        asked, own = self._prompt, self._options
        return Choice(
            max_tokens=room,
            temperature=own.temperature if asked.temperature is None else asked.temperature,
            top_p=own.top_p if asked.top_p is None else asked.top_p,
            seed=own.seed,
            stop_tokens=self._format.stop_tokens,
            schema=constraint.schema if constraint is not None else None,
        )

    def _note(self, piece: Generated) -> None:
        self._counts.sampled_tokens += len(piece.tokens)
        self._counts.reused_tokens += piece.reused_tokens or 0
        self._counts.computed_tokens += piece.computed_tokens or 0

    # --- the sequence ----------------------------------------------------------------------------------------------

    def finished(self, items: Sequence[Item]) -> None:
        """These items are what the engine made of the last segment (`engine.samplers.base.Sampling`)."""
        if self._segment is not None and all(map(said_by_model, items)):
            own = self._segment.own(items)
            if own == len(items) == self._segment.said_items and self._segment.complete:
                self._memory.remember(items, self._segment.ids())

    def _extend(self, items: Sequence[Item]) -> int:
        """Append what is new to the sequence; returns how many turns in it are not as they would be rendered."""
        if not self._places:
            self.tokens.extend(self._format.preamble(self._request))
        own = self._settle(items)
        new = [*_answers(items[:own]), *items[own:]]
        known, self._items = list(self._items) + list(items[:own]), [*self._items, *items]
        self._learn(items)
        kept = self._format.kept_before(known, new) if self._places else len(known)
        if kept < len(known):
            kept = self._cut(kept)
            self._counts.cuts += 1
            new = self._items[kept:]
            self.tokens.extend(self._format.items(new, self._items[:kept]))
            drifted = 0
        else:
            drifted = self._render(new, known)
        self._places.append((len(self._items), len(self.tokens)))
        return drifted

    def _settle(self, items: Sequence[Item]) -> int:
        """The segment before becomes part of the sequence; returns how many of the items it is."""
        segment, self._segment = self._segment, None
        if segment is None:
            return 0
        own = segment.own(items)
        segment.keep_only(items)
        del self.tokens[len(self.tokens) - segment.lead_tokens :]
        self.tokens.extend(segment.ids())
        return own

    def _cut(self, kept: int) -> int:
        """Take back what a format forgets, to a point where that is possible; returns how many items stay."""
        while len(self._places) > 1 and self._places[-1][0] > kept:
            self._places.pop()
        if self._places[-1][0] > kept:
            self._places.clear()
            self.tokens = self._format.preamble(self._request)
            return 0
        kept, length = self._places[-1]
        del self.tokens[length:]
        return kept

    def _render(self, new: Sequence[Item], before: list[Item]) -> int:
        """Append items; turns of our own that come back are put back as they were sampled."""
        start = at = drifted = 0
        while at < len(new):
            turn = self._memory.find(new, at)
            if turn is None:
                at += 1
                continue
            self._append(new[start:at], before)
            end = at + len(turn.said)
            ids = self._format.opening(self._request) + turn.ids
            if turn.drifts is None:
                turn.drifts = self._format.items(new[at:end], [*before, *new[:at]]) != ids
            drifted += turn.drifts
            self._counts.restored_turns += 1
            self.tokens.extend(ids)
            before = [*before, *new[start:end]]
            start = at = end
        self._append(new[start:], before)
        self._counts.drifted_turns += drifted
        return drifted

    def _append(self, items: Sequence[Item], before: Sequence[Item]) -> None:
        if items:
            self.tokens.extend(self._format.items(items, before))

    def _learn(self, items: Sequence[Item]) -> None:
        """Tools that came with items, and how many calls there were since a user said something."""
        for item in items:
            tools: tuple[Mapping[str, Any], ...] = tools_added_by(item)
            if tools:
                self._request = attrs.evolve(self._request, tools=(*self._request.tools, *tools))
            if isinstance(item, Message) and item.role == "user":
                self._calls = 0
            elif isinstance(item, (*CALLS, McpCall)):
                self._calls += 1


def _answers(items: Sequence[Item]) -> Iterator[Item]:
    """What of the model's own items is news to it: the outputs of hosted calls."""
    for item in items:
        if isinstance(item, McpCall):
            yield FunctionCallOutput(item.id, item.output if item.output is not None else item.error or "")
