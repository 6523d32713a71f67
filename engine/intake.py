"""What goes into a rollout's context: each new item is validated, rendered and classified once, when it comes.

The intake owns the context, the ledger of calls and the classifier's streams, and knows what the model has already:
`held_tokens` by the model's own account, and the *feed*, the tokens it must still be given.
The model's own items enter the context too, but are not fed: it has just written them.
Only the answer inside a hosted call is news to it.

Each stage lets other rollouts run between two slices of work, so a tool output of megabytes delays nobody's tokens.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import attrs
import trio

from engine.classified_text import text_of_input, text_of_output
from engine.context import ITEM_BYTES, Context, Preamble
from engine.engine import Engine
from engine.ledger import Ledger, Stage
from engine.models import ModelEntry
from engine.samplers.base import Appended, Sampling
from engine.samplers.base import Prompt as SamplerPrompt
from engine.snapshot import Snapshot, Tools, Warm
from engine.stages import CallLedger, Match, Streams, ToolTable, tools_added_by
from engine.text_format import text_format_of
from protocol.errors import RemoteProtocolError, refusal
from protocol.events import Response, ResponseCreate
from protocol.items import Item, McpCall, Message

Count = Callable[[str], None]
ClassifyText = Callable[[Streams, str], tuple[Streams, tuple[Match, ...]]]


@attrs.define
class Work:
    """What the stages did for a rollout, and what they found done already."""

    validated_items: int = 0
    reused_items: int = 0
    read_tools: int = 0
    reused_tools: int = 0
    rendered_tokens: int = 0
    reused_tokens: int = 0
    classified_characters: int = 0


class Intake:
    """One rollout's. `count` is told the name of each stage that ran."""

    __slots__ = (
        "_added_tools",
        "_count",
        "_engine",
        "_feed",
        "_held_tokens",
        "_items",
        "_ledger",
        "_prefix_tokens",
        "_streams",
        "_text_format",
        "_window_tokens",
        "calls",
        "context",
        "first_item",
        "matches",
        "model",
        "sampling",
        "tools",
        "work",
    )

    def __init__(self, engine: Engine, ledger: Ledger, count: Count) -> None:
        self._engine = engine
        self._ledger = ledger
        self._count = count
        self.calls = CallLedger()
        self.tools = ToolTable()
        self.matches: list[str] = []
        self.work = Work()
        """What was done, and what was there already: tokens, characters, tools, items."""
        self.sampling: Sampling | None = None
        self._added_tools: tuple[Tools, ...] = ()
        self._streams = Streams()
        self._held_tokens = 0
        self._feed = array("I")
        self._prefix_tokens = 0
        self._items: tuple[Item, ...] = ()
        """New to the sampling since its last segment."""

    # --- once ----------------------------------------------------------------------------------------------------

    async def open(self, create: ResponseCreate, parent: Snapshot | None) -> None:
        """Pre-inference: validate, resolve, render, classify. `RemoteProtocolError`: the create is refused.

        With a parent only what is new is worked on, as long as instructions and tools are the same.
        """
        with self._ledger.at(Stage.RENDER):
            preamble = Preamble(create.instructions, create.tools or ())
            fresh = Context(preamble, slice_bytes=self._engine.limits.work_slice_bytes)
            self.context, again = parent.context.continued(preamble) if parent else (fresh, ())
        reused_tokens = len(self.context)
        with self._ledger.at(Stage.VALIDATE):
            if parent is not None:
                self.calls, self._streams = parent.calls.fork(), parent.streams
            new = self._engine.validate.context(self.calls, input_items(create))
            self.work.validated_items += len(new)
            self.work.reused_items += self.context.item_count
            await self._read_tools(create, parent, new)
            self._count("validate")
        with self._ledger.at(Stage.RESOLVE):
            self.model = self._resolve(create)
            self._count("resolve")
            self._text_format = text_format_of(self._engine, create, self.model)
        await self._render((*again, *new))
        self._window_tokens = float("inf") if create.truncation == "auto" else self.model.context_tokens
        if self.full:
            raise refusal("context_length")
        await self._classify(new)
        with self._ledger.at(Stage.SAMPLE):
            self.work.reused_tokens += reused_tokens
            self.first_item = self.context.item_count - len(new)
            self._begin_feed(create, parent if reused_tokens else None, reused_tokens, new)

    def _begin_feed(
        self, create: ResponseCreate, parent: Snapshot | None, reused_tokens: int, new: tuple[Item, ...]
    ) -> None:
        """What the sampling must be given: to the parent's own only what is new, to a fresh one everything."""
        choice = create.tool_choice or "auto"
        settings = (self.model.name, choice, self._text_format, (create.temperature, create.top_p))
        warm = parent.take_warm(*settings) if parent else None
        if warm is not None:
            self.sampling, self._held_tokens = warm.sampling, warm.held_tokens
            self._feed = warm.feed + self.context.tokens_from(reused_tokens)
            self._items = (*warm.items, *new)
            return
        # by the parent's account what was reused may have another size than we spell it
        self._held_tokens = parent.held_tokens - reused_tokens if parent else 0
        self._feed, self._items = self.context.tokens_from(0), self.context.items
        if parent and parent.read_by == self.model.name:
            self._prefix_tokens = min(reused_tokens, parent.read_tokens)

    def _resolve(self, create: ResponseCreate) -> ModelEntry:
        if create.model is None:
            raise refusal("missing", field="model")
        return self._engine.resolve.model(create.model)

    async def _read_tools(self, create: ResponseCreate, parent: Snapshot | None, new: Sequence[Item]) -> None:
        """The request's tools, then those that items of the context bring with them (reference 8.1)."""
        tools = create.tools or ()
        before = parent.added_tools if parent is not None else ()
        if parent is not None and parent.context.preamble.tools == tools:
            self.tools = parent.tools
            self.work.reused_tools += len(tools)
        else:
            await self._read_list(tools)
            for some in before:
                await self._add_tools(some, "input.tools")
        added = tuple(some for item in new if (some := tools_added_by(item)))
        for some in added:
            await self._add_tools(some, "input.tools")
        self._added_tools = (*before, *added)
        self._engine.validate.tool_choice(create.tool_choice, self.tools)

    async def _read_list(self, tools: Tools) -> None:
        """The request's own, of which nothing is read if it was before, for any request."""
        known = self._engine.shared.table_of(tools)
        if known is not None:
            self.tools = known
            self.work.reused_tools += len(tools)
        else:
            await self._add_tools(tools, "tools")
            self._engine.shared.keep(tools, self.tools)

    async def _add_tools(self, tools: Tools, field: str) -> None:
        steps = self._engine.validate.tools_in_slices(tools, self.tools, field=field)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                self.tools = stop.value
                break
            await breathe()
        self.work.read_tools += len(tools)

    async def _find_tools(self, tools: Tools) -> None:
        """Tools of an output that was accepted, so that nothing can be refused: one that cannot be read is not offered."""
        for tool in tools:
            with suppress(RemoteProtocolError):
                await self._add_tools((tool,), "input.tools")
        self._added_tools = (*self._added_tools, tools)

    def start(self, create: ResponseCreate, response_id: str, cache_key: str | None = None) -> Sampling:
        """The sampling of this rollout: the parent's, gone on with, or a new one, with this `Prompt.cache_key`."""
        if self.sampling is None:
            choice, tools = create.tool_choice or "auto", self._engine.hosted.described(create.tools or ())
            told = (tools, choice, self._text_format, create.instructions, create.temperature, create.top_p)
            prompt = SamplerPrompt(response_id, self.model.name, *told, cache_key)
            self.sampling = self._engine.open_sampling(self.model, prompt)
        return self.sampling

    # --- again and again -----------------------------------------------------------------------------------------

    async def take(self, items: Sequence[Item]) -> None:
        """What the client sent: outputs and messages, in the order in which they enter the context."""
        left = self._ledger.enter(Stage.VALIDATE)
        try:
            self.calls.admit(items)
            self.work.validated_items += len(items)
            self._count("validate")
            for item in items:
                if some := tools_added_by(item):
                    await self._find_tools(some)
        finally:
            self._ledger.enter(left)
        start = len(self.context)
        await self._render(items)
        await self._classify(items)
        self._feed.extend(self.context.tokens_from(start))
        self._items = (*self._items, *items)

    async def keep(self, items: Sequence[Item]) -> None:
        """What the model wrote."""
        left = self._ledger.enter(Stage.VALIDATE)
        try:
            self.calls.admit(items)
        finally:
            self._ledger.enter(left)
        finished: Callable[[Sequence[Item]], None] | None = getattr(self.sampling, "finished", None)
        if finished is not None:
            finished(items)
        await self._render(items)
        self._items = (*self._items, *items)
        for place, item in enumerate(items, self.context.item_count - len(items)):
            if isinstance(item, McpCall):
                span = self.context.span(place)
                self._feed.extend(self.context.tokens_from(span.answer, span.end))

    @property
    def full(self) -> bool:
        """Is the context beyond the model's window, or beyond the memory a connection may hold?"""
        context, limits = self.context, self._engine.limits
        return len(context) > self._window_tokens or context.bytes > limits.max_context_bytes

    @property
    def input_tokens(self) -> int:
        """The whole context at the start of the next segment, as usage counts it (reference 7.2)."""
        return self._held_tokens + len(self._feed)

    @property
    def held_tokens(self) -> int:
        """The part of it that the model has already; nothing as long as there is no sampling."""
        return max(0, self._held_tokens) if self.sampling is not None else 0

    @property
    def reads_ahead(self) -> bool:
        """Can the model read a context without saying anything?"""
        return getattr(self._engine.sampler_of(self.model), "reads_ahead", False)

    def next_segment(self, *, only_read: bool = False) -> Appended:
        """What the sampling is given; afterwards it has it."""
        appended = Appended(self._items, self._feed, self.input_tokens, self._prefix_tokens, only_read)
        self._held_tokens = self.input_tokens
        self._feed, self._items, self._prefix_tokens = array("I"), (), 0
        return appended

    def sampled(self, tokens: int, context_tokens: int | None = None) -> None:
        """The model wrote so many tokens, after `context_tokens` by its own account, if it has one."""
        self._held_tokens = (self._held_tokens if context_tokens is None else context_tokens) + tokens

    def snapshot(self, response_id: str, resource: Response | None = None) -> Snapshot:
        """For a response that continues this one."""
        return Snapshot(
            response_id=response_id,
            context=self.context,
            calls=self.calls,
            streams=self._streams,
            held_tokens=self.input_tokens,
            tools=self.tools,
            added_tools=self._added_tools,
            resource=resource,
        )

    def let_go(self, create: ResponseCreate) -> Warm | None:
        """The sampling as it stands, for whoever continues; it is no longer this rollout's."""
        sampling, self.sampling = self.sampling, None
        if sampling is None:
            return None
        held = (self._held_tokens, self._feed, self._items, self._text_format)
        randomness = (create.temperature, create.top_p)
        return Warm(sampling, self.model.name, create.tool_choice or "auto", *held, randomness)

    # --- the stages ----------------------------------------------------------------------------------------------

    async def _render(self, items: Sequence[Item]) -> None:
        left = self._ledger.enter(Stage.RENDER)
        try:
            before = len(self.context)
            for _ in self.context.extend_in_slices(items):
                await breathe()
            self.work.rendered_tokens += len(self.context) - before
            self._count("render")
        finally:
            self._ledger.enter(left)

    async def _classify(self, items: Sequence[Item]) -> None:
        left = self._ledger.enter(Stage.CLASSIFY)
        try:
            await self._find(map(text_of_input, items), self._engine.classify.input_text)
            self._count("classify")
        finally:
            self._ledger.enter(left)

    async def classify_output(self, items: Sequence[Item]) -> None:
        """Post-inference: what the model wrote in the whole rollout."""
        with self._ledger.at(Stage.CLASSIFY):
            await self._find(map(text_of_output, items), self._engine.classify.output_text)
            self._count("classify_output")

    async def _find(self, texts: Iterable[str], classify: ClassifyText) -> None:
        """Breathes after a slice of work, not after each text: a short append is resumed without a pause."""
        since_breath, slice_size = 0, self._engine.limits.work_slice_bytes
        for text in texts:
            for at in range(0, len(text), slice_size):
                piece = text[at : at + slice_size]  # a short text itself
                self._streams, found = classify(self._streams, piece)
                if found:
                    self.matches.extend(match.name for match in found)
                self.work.classified_characters += len(piece)
                since_breath += ITEM_BYTES + len(piece)
                if since_breath >= slice_size:
                    since_breath = 0
                    await breathe()


async def breathe() -> None:
    """Let others run between two slices of work. A checkpoint."""
    await trio.lowlevel.checkpoint()


def input_items(create: ResponseCreate) -> tuple[Item, ...]:
    """The input of a create as items; a string is one user message (reference 8.1)."""
    if isinstance(create.input, str):
        return (Message("user", create.input),)
    return create.input or ()
