"""A backend without a model, for tests and simulations: it plays token ids, counts honestly, and fails when it is told to.

What is sampled is either written down, one list of ids for each segment of a handle, or a function of the whole prompt.
A function is a model in every respect that matters here: the same tokens before lead to the same token after, warm or cold.
"""

from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from hashlib import blake2b
from typing import Final, Literal

import attrs
import trio

from engine.backends.base import BackendError, Finish, Generated, Handle, Sampling

FaultKind = Literal["dies", "times out", "lies", "stops silently", "chatters", "refuses"]

Continuation = Callable[["array[int]"], Sequence[int]]
"""The whole prompt → what is sampled after it; at least one id."""

DEFAULT_CONTEXT_TOKENS: Final = 1 << 20
LEFT_STATES: Final = 16
"""So many of released handles are kept, the newest."""


@attrs.frozen
class Fault:
    """What goes wrong in the n-th `generate` of the backend, counted from 1, after so many sampled tokens."""

    kind: FaultKind
    generation: int
    after_tokens: int = 0


@attrs.frozen(kw_only=True)
class ScriptedPace:
    """How long things take. Nothing, unless said."""

    prefill_seconds: float = 0.0
    """For each token that has to be computed."""
    token_seconds: float = 0.0


@attrs.define(eq=False)
class ScriptedHandle:
    """One sequence: what is held of it, and how far its script is."""

    held: "array[int]" = attrs.field(factory=lambda: array("I"))
    saved: "array[int] | None" = None
    prompt: "array[int]" = attrs.field(factory=lambda: array("I"))
    """Before its current segment."""
    segment: int = -1
    cache_key: str | None = None

    @property
    def resident_tokens(self) -> int:
        """As `Handle.resident_tokens`: exactly."""
        return len(self.held)


class ScriptedBackend:
    """A `Backend`. `schemas` holds what each generation was asked to keep to, if it says that it can."""

    def __init__(
        self,
        script: Sequence[Sequence[int]] | Continuation,
        *,
        name: str = "scripted",
        context_tokens: int = DEFAULT_CONTEXT_TOKENS,
        keeps_schemas: bool = False,
        saves: bool = True,
        forks: bool = True,
        slot_count: int = 0,
        piece_tokens: int = 1,
        pace: ScriptedPace | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self.keeps_schemas = keeps_schemas
        self.saves = saves
        self.forks = forks
        self.slot_count = slot_count
        """How many sequences may have a state at once; 0 = any number. It does not see to that itself."""
        self._script = script
        self._piece_tokens = piece_tokens
        self._pace = pace or ScriptedPace()
        self._faults = {fault.generation: fault for fault in faults}
        self.generations = 0
        self.running = 0
        """Generations that go on at this moment."""
        self.generated_tokens = 0
        self.prompts: list[array[int]] = []
        """What each generation was given."""
        self.samplings: list[Sampling] = []
        self.handles: list[ScriptedHandle] = []
        """All that were opened."""
        self.left: deque[tuple[str, array[int]]] = deque(maxlen=LEFT_STATES)
        """By released handles: each cache key, and what was held."""

    def open(self, cache_key: str | None = None) -> ScriptedHandle:
        """As `Backend.open`."""
        handle = ScriptedHandle(cache_key=cache_key)
        self.handles.append(handle)
        return handle

    async def generate(
        self, handle: Handle, tokens: "array[int]", sampling: Sampling
    ) -> AsyncGenerator[Generated, None]:
        """As `Backend.generate`."""
        own = _own(handle)
        self.generations += 1
        fault = self._faults.get(self.generations)
        self.prompts.append(tokens[:])
        self.samplings.append(sampling)
        self.running += 1
        try:
            if fault is not None and fault.kind == "refuses":
                raise BackendError("refused", f"{self.name} refuses generation {self.generations}")
            yield await self._prefill(own, tokens, fault)
            sampled, finish = self._sampled(own, tokens, sampling)
            for at in range(0, len(sampled), self._piece_tokens):
                piece = sampled[at : at + self._piece_tokens]
                await self._fail(own, fault, at)
                await _pass(self._pace.token_seconds * len(piece))
                self.generated_tokens += len(piece)
                own.held.extend(piece)
                over = at + self._piece_tokens >= len(sampled)
                if over and fault is not None and fault.kind == "chatters":
                    piece = (*piece, *sampled[:1])
                if not (over and fault is not None and fault.kind == "stops silently"):
                    yield Generated(tokens=piece, finish=finish if over else None)
        finally:
            self.running -= 1

    async def _prefill(self, own: ScriptedHandle, tokens: "array[int]", fault: Fault | None) -> Generated:
        if not own.held:
            own.held = self._found(own.cache_key, tokens)
        reused = min(_common_length(own.held, tokens), len(tokens) - 1) if tokens else 0
        computed = len(tokens) - reused
        await _pass(self._pace.prefill_seconds * computed)
        own.held = tokens[:]
        lie = 1 if fault is not None and fault.kind == "lies" else 0
        return Generated(reused_tokens=reused + lie, computed_tokens=computed)

    def _found(self, cache_key: str | None, tokens: "array[int]") -> "array[int]":
        """What was left that has most in common with a prompt; it is taken."""
        left = [entry for entry in self.left if entry[0] == cache_key and _common_length(entry[1], tokens)]
        if not left:
            return array("I")
        best = max(left, key=lambda entry: _common_length(entry[1], tokens))
        self.left.remove(best)
        return best[1]

    def _sampled(
        self, own: ScriptedHandle, tokens: "array[int]", sampling: Sampling
    ) -> tuple[tuple[int, ...], Finish]:
        written = tuple(self._script(tokens)) if callable(self._script) else self._segment(own, tokens)
        finish: Finish = "length"
        for place, token in enumerate(written):
            if token in sampling.stop_tokens:
                written, finish = written[: place + 1], "stop"
                break
        limit = sampling.max_tokens
        if limit is not None and limit < len(written):
            return written[:limit], "length"
        return written, finish

    def _segment(self, own: ScriptedHandle, tokens: "array[int]") -> tuple[int, ...]:
        """The next segment of the handle, or the rest of one that was broken off."""
        assert not callable(self._script), "the caller asks"
        if 0 <= own.segment < len(self._script):
            written = tuple(self._script[own.segment])
            done = tuple(tokens[len(own.prompt) :])
            if (
                tokens[: len(own.prompt)] == own.prompt
                and done == written[: len(done)]
                and len(done) < len(written)
            ):
                return written[len(done) :]
        own.segment += 1
        own.prompt = tokens[:]
        if own.segment >= len(self._script):
            raise BackendError("broke_promise", f"{self.name} has no segment {own.segment + 1} in its script")
        return tuple(self._script[own.segment])

    async def _fail(self, own: ScriptedHandle, fault: Fault | None, at: int) -> None:
        if fault is None or at < fault.after_tokens:
            return
        if fault.kind == "dies":
            own.held, own.saved = array("I"), None
            raise BackendError("died", f"{self.name} died after {at} tokens")
        if fault.kind == "times out":
            raise BackendError("timeout", f"{self.name} said nothing for too long after {at} tokens")

    async def drop(self, handle: Handle) -> None:
        """As `Backend.drop`."""
        own = _own(handle)
        own.held, own.saved = array("I"), None
        await trio.lowlevel.checkpoint()

    async def release(self, handle: Handle) -> None:
        """As `Backend.release`."""
        own = _own(handle)
        if own.cache_key is not None and own.held:
            self.left.append((own.cache_key, own.held))
        await self.drop(handle)

    async def save(self, handle: Handle) -> None:
        """As `Backend.save`."""
        own = _own(handle)
        if self.saves and own.held:
            own.saved, own.held = own.held, array("I")
        await trio.lowlevel.checkpoint()

    async def restore(self, handle: Handle) -> bool:
        """As `Backend.restore`."""
        own = _own(handle)
        saved, own.saved = own.saved, None
        await trio.lowlevel.checkpoint()
        if saved is None:
            return False
        own.held = saved
        return True

    async def fork(self, handle: Handle) -> Handle:
        """As `Backend.fork`."""
        own = _own(handle)
        await trio.lowlevel.checkpoint()
        held = own.held[:] if self.forks else array("I")
        return ScriptedHandle(held, None, own.prompt[:], own.segment, own.cache_key)


def pseudo_model(vocabulary_tokens: int, stop_token: int, *, length: int = 20) -> Continuation:
    """A model that says about `length` tokens below `vocabulary_tokens`, each of which depends on all tokens before it."""

    def go_on(tokens: "array[int]") -> Sequence[int]:
        digest = blake2b(tokens.tobytes(), digest_size=8)
        sampled: list[int] = []
        while not sampled or sampled[-1] != stop_token:
            value = int.from_bytes(digest.digest(), "little")
            sampled.append(stop_token if value % length == 0 else value // length % vocabulary_tokens)
            digest.update(array("I", sampled[-1:]).tobytes())
        return sampled

    return go_on


def _own(handle: Handle) -> ScriptedHandle:
    assert isinstance(handle, ScriptedHandle), "made by `open`"
    return handle


def _common_length(first: "array[int]", second: "array[int]") -> int:
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(at for at in range(shorter) if first[at] != second[at])


async def _pass(seconds: float) -> None:
    if seconds > 0:
        await trio.sleep(seconds)
    else:
        await trio.lowlevel.checkpoint()
