"""What a backend promises: token ids in, token ids out, and an opaque handle for the state that it keeps meanwhile.

The tokens are the truth: whoever calls has all of them, so a backend that lost its state reads them again and says so in
its counts. A handle is a hope, never a promise.

Rules (checked by `engine.testing.check_backend`):

1. `generate` yields the sampled ids in order, each once, the stop token included; the last one has `finish`.
2. Under greedy sampling suspend + append gives the same tokens as one uninterrupted prompt.
3. Closed or cancelled, it stops generating within 200 ms, and the handle is good for the tokens sampled so far, or cold.
4. `reused_tokens` + `computed_tokens` is the length of the prompt; a backend that does not say leaves both None.
5. A backend that times out, dies or breaks its promise raises `BackendError`; it is as good as new for the next call.
6. What a released handle left, only handles of its own cache key find, by their tokens: the counts say so, and the tokens
   are the same. Nobody learns by the counts, nor by the time it takes, what handles of other keys have read.
"""

from array import array
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, Protocol

import attrs

Finish = Literal["stop", "length"]


class BackendError(RuntimeError):
    """The backend did not do what it should; `reason` says how. It ends the response that asked, nothing else."""

    def __init__(
        self, reason: Literal["unreachable", "refused", "timeout", "died", "broke_promise"], message: str
    ) -> None:
        super().__init__(message)
        self.reason = reason


@attrs.frozen(kw_only=True)
class Sampling:
    """How to choose the next token."""

    max_tokens: int | None = None
    temperature: float = 0.0
    """0 = greedy."""
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    schema: Mapping[str, Any] | None = None
    """A JSON schema that the sampled text must fit; only for a backend with `keeps_schemas`."""


@attrs.frozen(kw_only=True)
class Generated:
    """One piece of what was generated."""

    tokens: tuple[int, ...] = ()
    reused_tokens: int | None = None
    """Of the prompt: found warm. On the first piece that knows."""
    computed_tokens: int | None = None
    finish: Finish | None = None
    """On the last piece."""


class Handle(Protocol):
    """The state of one sequence in a backend; opaque. It belongs to one rollout at a time."""

    @property
    def resident_tokens(self) -> int:
        """How many tokens the backend is believed to hold for it."""
        ...


class Backend(Protocol):
    """One model, running somewhere. Everything awaited here is a checkpoint and may raise `BackendError`."""

    name: str
    context_tokens: int
    keeps_schemas: bool
    saves: bool
    """Can a state be written away and brought back?"""
    forks: bool

    def open(self, cache_key: str | None = None) -> Handle:
        """A handle without any state of its own yet. Not a checkpoint.

        It may find what a released handle of the same key left; with None nobody's, and nobody finds what it leaves.
        """
        ...

    def generate(
        self, handle: Handle, tokens: "array[int]", sampling: Sampling
    ) -> AsyncGenerator[Generated, None]:
        """Go on after `tokens`, the whole sequence; what of it is warm is the backend's matter. An async generator."""
        ...

    async def drop(self, handle: Handle) -> None:
        """Free what it holds. Idempotent; never raises."""
        ...

    async def release(self, handle: Handle) -> None:
        """Its sequence is over: what it holds may stay until somebody needs the place, to be found by its content.

        Without a cache key, and where nothing can be found again, a `drop`. Idempotent; never raises.
        """
        ...

    async def save(self, handle: Handle) -> None:
        """Write the state away and free the place, if `saves`."""
        ...

    async def restore(self, handle: Handle) -> bool:
        """Bring a saved state back; False if it is not there any more."""
        ...

    async def fork(self, handle: Handle) -> Handle:
        """A second handle with the same state, if `forks`; else one without any."""
        ...
