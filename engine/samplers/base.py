"""What a sampler promises: tokens in, steps of parts out, one segment at a time.

A *sampler* stands for a model; `open()` starts one rollout on it and returns a *sampling*, the warm state.
The rollout calls `sample()` once per segment with what is new: first the whole prompt, later the outputs of tools.
`sample()` yields *steps*: tuples of parts that became ready together; the last part of the last step is `End`.
Between two segments the sampling just stays; `aclose()` drops it.

Rules (checked by `engine.testing.check_sampler`):

1. A segment ends with exactly one `End`, the last part of its last step. An iterator that stops without it is a failure.
2. `sample()` may be closed at any step: what was yielded stands, and the next `sample()` goes on from there.
   It may be cancelled at any await, and may raise; after that only `aclose()` is called.
3. `aclose()` may be called at any time, twice, and does not block on a peer.
4. Text pieces are whole characters. No lone surrogate, ever.
5. If a segment called tools, the next `sample()` brings their outputs.
   A context that the model's window has no room for raises `ContextFullError`.
6. No nursery and no cancel scope is held across a `yield` (trio's rule for async generators).
7. A sampler with a true attribute `reads_ahead` says nothing in a segment that is `only_read`; what it read there comes
   only once.
8. A sampling with a method `push` says by it what it would have said by `sample`. It hands over no step more when the
   taker has had enough, has to rest, or has raised, nor when `push` was cancelled or has returned.

A whole sampler::

    class Echo:
        def open(self, prompt: Prompt) -> Sampling:
            return EchoSampling()

    class EchoSampling:
        async def sample(self, appended: Appended) -> Steps:
            await trio.lowlevel.checkpoint()
            yield (Prefilled(computed=len(appended.tokens)),)
            yield (Text(f"you sent {len(appended.items)} items"), End("stop"))

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()
"""

from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from protocol.items import Item

StopReason = Literal["stop", "length", "tool_calls"]


class ContextFullError(Exception):
    """The context fills the model's window, by the model's own count: nothing can be said after it."""


@attrs.frozen
class Text:
    """A piece of the answer's text."""

    text: str
    tokens: int = 1


@attrs.frozen
class Thought:
    """A piece of reasoning text."""

    text: str
    tokens: int = 1


@attrs.frozen
class CallStart:
    """A tool call begins. `index` numbers the calls of a segment from 0; pieces of several calls may alternate."""

    index: int
    name: str
    namespace: str | None = None
    call_id: str | None = None
    """None: the engine mints one. A backend's own id is replaced where the chain already has it."""
    tokens: int = 1


@attrs.frozen
class CallInput:
    """A piece of a call's arguments (function and hosted tools: JSON text) or input (custom tools: raw text)."""

    index: int
    text: str
    tokens: int = 1


@attrs.frozen
class CallEnd:
    """A call is whole. Without it a call ends when text, reasoning or the end of the segment follows."""

    index: int
    tokens: int = 0


@attrs.frozen
class Prefilled:
    """How the segment's context got into the model: tokens reused from warm state, tokens computed now."""

    reused: int = 0
    computed: int = 0
    tokens: int = 0
    exact: bool = False
    """The two add up to the context by the model's own account, which is then what usage says of this segment."""
    drifted_turns: int = 0
    """Turns of the model in what was added that are now spelled otherwise than it had sampled them."""


@attrs.frozen
class End:
    """The segment is over. `tool_calls` is implied by `stop` after a call; `length` is the model's own limit."""

    reason: StopReason = "stop"
    tokens: int = 0


Part: TypeAlias = Text | Thought | CallStart | CallInput | CallEnd | Prefilled | End
Step: TypeAlias = Sequence[Part]
"""Parts that became ready together; each says how many sampled `tokens` it stands for."""


@attrs.frozen
class Prompt:
    """What is known of a rollout when it is opened."""

    response_id: str
    model: str
    tools: tuple[Mapping[str, Any], ...] = ()
    """As sent by the client; a hosted tool of the engine has its `tools`, as functions, besides."""
    tool_choice: str | Mapping[str, Any] = "auto"
    text_format: Mapping[str, Any] | None = None
    """The form that the answer must have, `json_object` or `json_schema`; None: any text.

    Only a sampler with a true attribute `keeps_text_format` is asked for one; for others such creates are refused."""
    instructions: str | None = None
    """What the model is told before the first item, if anything."""
    temperature: float | None = None
    """None: as the sampler likes; so `top_p`."""
    top_p: float | None = None
    cache_key: str | None = None
    """Whose ended rollouts' state may be found again by its content; None: nobody's, everything is read."""


@attrs.frozen
class Appended:
    """What is new in this segment.

    `items` starts with what this sampling itself put out in the segment before, as finished items with their call ids,
    and goes on with what was added since: outputs of tools in call order, then messages.
    `tokens` are those of the added items only: what the model has not seen and must prefill.
    """

    items: tuple[Item, ...]
    tokens: "array[int]"
    context_tokens: int = 0
    """Length of the whole context in tokens, these included."""
    prefix_tokens: int = 0
    """How many of `tokens`, from the first on, the model has read for an earlier request: a prefix cache spares them."""
    only_read: bool = False
    """Nothing is to be said: the segment is `Prefilled` and `End`. Only for a sampler with a true attribute `reads_ahead`."""

    @property
    def prefilled(self) -> Prefilled:
        """What a model reports that reads nothing twice."""
        computed = len(self.tokens) - self.prefix_tokens
        return Prefilled(self.context_tokens - computed, computed)


Steps: TypeAlias = AsyncGenerator[Step, None]


class Taker(Protocol):
    """Takes the steps of a segment when they are ready, also in another task than the one that waits for its end."""

    def take(self, step: Step) -> bool:
        """Take a step; True: no more of them. Not a checkpoint. What it raises ends the segment, and `push` raises it."""
        ...

    @property
    def outlet(self) -> Hashable:
        """Of takers with the same one what was taken leaves together: `flush` of one of them is enough."""
        ...

    def flush(self) -> bool:
        """The engine step is over: let go of what was taken. False: `rest` first. Not a checkpoint, never raises."""
        ...

    async def rest(self) -> None:
        """Wait until more can be taken."""
        ...


class Sampling(Protocol):
    """One rollout's warm state.

    It may have a method `finished(items)` besides: it is told the items that the engine made of its parts, when they are
    done, with their ids. Not a checkpoint.

    It may have a method `async push(appended, taker)`, a segment as `sample` has it for who has no task to spare for each
    step (rule 8). `push` here is for every sampling.
    """

    def sample(self, appended: Appended) -> Steps:
        """Sample one segment; an async generator. Each step is a checkpoint."""
        ...

    async def aclose(self) -> None:
        """Drop the warm state. Idempotent; a checkpoint."""
        ...


class Sampler(Protocol):
    """A model, or what stands for one."""

    def open(self, prompt: Prompt) -> Sampling:
        """Start a rollout. Does not block; work begins with the first `sample()`."""
        ...


async def push(sampling: Sampling, appended: Appended, taker: Taker) -> None:
    """A segment of `sampling` into `taker`, by whatever way it has; until the taker has enough, or nothing more comes.

    A checkpoint if the sampling's steps are. Raises what either raises.
    """
    pushes: Callable[[Appended, Taker], Awaitable[None]] | None = getattr(sampling, "push", None)
    if pushes is not None:
        await pushes(appended, taker)
        return
    steps = sampling.sample(appended)
    try:
        async for step in steps:
            over = taker.take(step)
            if not taker.flush():
                await taker.rest()
            if over:
                return
    finally:
        await steps.aclose()
