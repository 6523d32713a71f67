"""What goes into a rollout's context: each new item is validated, rendered and classified once, when it comes.

The intake owns the context, the ledger of calls and the classifier's streams, and knows what the model has already:
`held_tokens` by the model's own account, and the *feed*, the tokens it must still be given.
The model's own items enter the context too, but are not fed: it has just written them.
Only the answer inside a hosted call is news to it.

Each stage lets other rollouts run between two slices of work, so a tool output of megabytes delays nobody's tokens.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import attrs
import trio

from engine.context import ITEM_BYTES, Context, Preamble
from engine.engine import Engine
from engine.ledger import Ledger, Stage
from engine.models import ModelEntry
from engine.samplers.base import Appended, Sampling
from engine.samplers.base import Prompt as SamplerPrompt
from engine.stages import CallLedger, Match, Streams, ToolTable, tools_added_by
from protocol.errors import refusal
from protocol.events import ResponseCreate
from protocol.items import (
    OUTPUTS,
    CustomToolCall,
    FunctionCall,
    Item,
    McpCall,
    Message,
    Reasoning,
    text_of,
)

Count = Callable[[str], None]
ClassifyText = Callable[[Streams, str], tuple[Streams, tuple[Match, ...]]]


@attrs.frozen
class Snapshot:
    """What a rollout leaves behind for a response that continues it (reference 2.5)."""

    response_id: str
    context: Context
    calls: CallLedger
    streams: Streams
    held_tokens: int


class Intake:
    """One rollout's. `count` is told the name of each stage that ran."""

    __slots__ = (
        "_count",
        "_engine",
        "_feed",
        "_held_tokens",
        "_items",
        "_ledger",
        "_streams",
        "_window_tokens",
        "calls",
        "context",
        "matches",
        "model",
        "tools",
    )

    def __init__(self, engine: Engine, ledger: Ledger, count: Count) -> None:
        self._engine = engine
        self._ledger = ledger
        self._count = count
        self.calls = CallLedger()
        self.tools = ToolTable()
        self.matches: list[str] = []
        self._streams = Streams()
        self._held_tokens = 0
        self._feed = array("I")
        self._items: tuple[Item, ...] = ()
        """New to the sampling since its last segment."""

    # --- once ----------------------------------------------------------------------------------------------------

    async def open(self, create: ResponseCreate, parent: Snapshot | None) -> None:
        """Pre-inference: validate, resolve, render, classify. `RemoteProtocolError`: the create is refused."""
        preamble = Preamble(create.instructions, create.tools or ())
        fresh = Context(preamble, slice_bytes=self._engine.limits.work_slice_bytes)
        context, again = parent.context.continued(preamble) if parent else (fresh, ())
        if parent is not None:
            self.calls, self._streams = parent.calls.fork(), parent.streams
        self.context, reused_tokens = context, len(context)
        with self._ledger.at(Stage.VALIDATE):
            new = self._engine.validate.context(self.calls, input_items(create))
            await self._read_tools(create, (*context.items, *again, *new))
            self._count("validate")
        with self._ledger.at(Stage.RESOLVE):
            self.model = self._resolve(create)
            self._count("resolve")
        await self._render((*again, *new))
        self._window_tokens = float("inf") if create.truncation == "auto" else self.model.context_tokens
        if self.full:
            raise refusal("context_length")
        await self._classify(new)
        # a new sampling knows nothing yet: it is fed all; by the parent's account `reused_tokens` may have another size
        self._held_tokens = parent.held_tokens - reused_tokens if parent and reused_tokens else 0
        self._feed, self._items = context.tokens_from(0), context.items

    def _resolve(self, create: ResponseCreate) -> ModelEntry:
        if create.model is None:
            raise refusal("missing", field="model")
        return self._engine.resolve.model(create.model)

    async def _read_tools(self, create: ResponseCreate, items: Sequence[Item]) -> None:
        """The request's tools, then those that items of the context bring with them (reference 8.1)."""
        for field, tools in (
            ("tools", create.tools or ()),
            *(("input.tools", added) for item in items if (added := tools_added_by(item))),
        ):
            steps = self._engine.validate.tools_in_slices(tools, self.tools, field=field)
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    self.tools = stop.value
                    break
                await breathe()
        self._engine.validate.tool_choice(create.tool_choice, self.tools)

    def start(self, create: ResponseCreate, response_id: str) -> Sampling:
        """Open the model's sampler for this rollout."""
        prompt = SamplerPrompt(response_id, self.model.name, create.tools or (), create.tool_choice or "auto")
        return self._engine.sampler_of(self.model).open(prompt)

    # --- again and again -----------------------------------------------------------------------------------------

    async def take(self, items: Sequence[Item]) -> None:
        """What the client sent: outputs and messages, in the order in which they enter the context."""
        with self._ledger.at(Stage.VALIDATE):
            self.calls.admit(items)
            self._count("validate")
        start = len(self.context)
        await self._render(items)
        await self._classify(items)
        self._feed.extend(self.context.tokens_from(start))
        self._items = (*self._items, *items)

    async def keep(self, items: Sequence[Item]) -> None:
        """What the model wrote."""
        self.calls.admit(items)
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
        """The part of it that the model has already."""
        return max(0, self._held_tokens)

    def next_segment(self) -> Appended:
        """What the sampling is given; afterwards it has it."""
        appended = Appended(self._items, self._feed, self.input_tokens)
        self._held_tokens = self.input_tokens
        self._feed, self._items = array("I"), ()
        return appended

    def sampled(self, tokens: int) -> None:
        """The model wrote so many tokens."""
        self._held_tokens += tokens

    def snapshot(self, response_id: str) -> Snapshot:
        """For a response that continues this one."""
        return Snapshot(response_id, self.context, self.calls, self._streams, self.input_tokens)

    # --- the stages ----------------------------------------------------------------------------------------------

    async def _render(self, items: Sequence[Item]) -> None:
        with self._ledger.at(Stage.RENDER):
            for _ in self.context.extend_in_slices(items):
                await breathe()
            self._count("render")

    async def _classify(self, items: Sequence[Item]) -> None:
        with self._ledger.at(Stage.CLASSIFY):
            await self._find(map(text_of_input, items), self._engine.classify.input_text)
            self._count("classify")

    async def classify_output(self, items: Sequence[Item]) -> None:
        """Post-inference: what the model wrote in the whole rollout."""
        with self._ledger.at(Stage.CLASSIFY):
            await self._find(map(_text_of_output, items), self._engine.classify.output_text)
            self._count("classify_output")

    async def _find(self, texts: Iterable[str], classify: ClassifyText) -> None:
        """Breathes after a slice of work, not after each text: a short append is resumed without a pause."""
        since_breath = 0
        for piece in chain.from_iterable(map(self._slices, texts)):
            self._streams, found = classify(self._streams, piece)
            self.matches.extend(match.name for match in found)
            since_breath += ITEM_BYTES + len(piece)
            if since_breath >= self._engine.limits.work_slice_bytes:
                since_breath = 0
                await breathe()

    def _slices(self, text: str) -> Iterator[str]:
        size = self._engine.limits.work_slice_bytes
        return (text[at : at + size] for at in range(0, len(text), size))


async def breathe() -> None:
    """Let others run between two slices of work. A checkpoint."""
    await trio.lowlevel.checkpoint()


def input_items(create: ResponseCreate) -> tuple[Item, ...]:
    """The input of a create as items; a string is one user message (reference 8.1)."""
    if isinstance(create.input, str):
        return (Message("user", create.input),)
    return create.input or ()


def text_of_input(item: Item) -> str:
    """What the classifier reads of an item that is input."""
    if isinstance(item, OUTPUTS):
        return text_of(item.output)
    return text_of(item.content) if isinstance(item, Message) else ""


def _text_of_output(item: Item) -> str:
    if isinstance(item, Message):
        return text_of(item.content)
    if isinstance(item, Reasoning):
        return text_of(item.content or ())
    if isinstance(item, FunctionCall):
        return item.arguments
    if isinstance(item, CustomToolCall):
        return item.input
    return ""
