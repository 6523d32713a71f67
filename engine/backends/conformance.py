"""What a backend must do, run against it: the six rules of `engine.backends.base`.

    async def test_my_backend():
        await check_backend(MyBackend(), prompt=ids, more=ids_of_a_tool_output, stop_tokens=stop)

Real backends are checked in real time, so this is one coroutine, to be run in whatever loop the backend needs.
"""

from array import array
from contextlib import aclosing
from typing import Final

import attrs
import trio

from engine.backends.base import Backend, Generated, Handle, Sampling

CANCEL_SECONDS: Final = 0.2
"""So soon after its end nothing is generated any more."""


@attrs.define
class _Run:
    """What one generation said."""

    pieces: list[Generated] = attrs.field(factory=list)

    @property
    def tokens(self) -> "array[int]":
        return array("I", (token for piece in self.pieces for token in piece.tokens))

    @property
    def counts(self) -> tuple[int, int] | None:
        for piece in self.pieces:
            if piece.reused_tokens is not None and piece.computed_tokens is not None:
                return piece.reused_tokens, piece.computed_tokens
        return None


@attrs.frozen(kw_only=True)
class BackendReport:
    """What was seen, for those who want to print it."""

    sampled_tokens: int
    warm: tuple[int, int] | None
    """Reused and computed tokens of the continuation; None: the backend does not say."""
    cold: tuple[int, int] | None
    restored: tuple[int, int] | None
    """After a save and a restore, if it can."""
    forked: tuple[int, int] | None
    found: tuple[int, int] | None
    """By its content, after a handle of the same cache key was released."""
    cancel_seconds: float


async def check_backend(
    backend: Backend,
    *,
    prompt: "array[int]",
    more: "array[int]",
    stop_tokens: frozenset[int],
    max_tokens: int = 24,
) -> BackendReport:
    """Check a backend by its rules; `AssertionError` names the one it breaks. Greedy, some ten short generations."""
    check = _Check(backend, Sampling(max_tokens=max_tokens, stop_tokens=stop_tokens))
    handle = backend.open()
    first = await check.run(handle, prompt)
    longer = prompt + first.tokens + more
    warm = await check.run(handle, longer)
    cold = await check.same(backend.open(), longer, warm, "as one uninterrupted prompt")
    await check.same(backend.open(), longer, warm, "the second time")
    cancel_seconds = await check.cancelled(handle, longer, warm)
    await backend.drop(handle)
    await backend.drop(handle)
    await check.same(handle, longer, warm, "after a drop")
    restored = await check.saved(handle, longer, warm) if backend.saves else None
    fork = await backend.fork(handle)
    forked = await check.same(fork, longer, warm, "in a fork")
    await check.same(handle, longer, warm, "beside its fork")
    for some in (fork, handle):
        await backend.drop(some)
    found = await check.found(longer, warm)
    return BackendReport(
        sampled_tokens=len(first.tokens) + len(warm.tokens),
        warm=warm.counts,
        cold=cold.counts,
        restored=None if restored is None else restored.counts,
        forked=forked.counts,
        found=found.counts,
        cancel_seconds=cancel_seconds,
    )


@attrs.frozen
class _Check:
    backend: Backend
    sampling: Sampling

    async def run(self, handle: Handle, tokens: "array[int]") -> _Run:
        """One whole generation; rules 1 and 4."""
        run = _Run()
        given = tokens[:]
        async with aclosing(self.backend.generate(handle, tokens, self.sampling)) as pieces:
            async for piece in pieces:
                _require(
                    not run.pieces or run.pieces[-1].finish is None, 1, f"{piece} comes after the finish"
                )
                run.pieces.append(piece)
        _require(tokens == given, 1, "the prompt was changed")
        self._check_tokens(run)
        self._check_counts(run, len(tokens))
        return run

    def _check_tokens(self, run: _Run) -> None:
        finish = run.pieces[-1].finish if run.pieces else None
        _require(finish is not None, 1, "it ends without a finish")
        tokens, stops = run.tokens, self.sampling.stop_tokens
        _require(len(tokens) > 0, 1, "nothing was sampled")
        _require(all(token not in stops for token in tokens[:-1]), 1, "it goes on after a stop token")
        if finish == "stop":
            _require(
                tokens[-1] in stops, 1, "it ends with `stop`, and the stop token is not among the tokens"
            )
        else:
            _require(len(tokens) == self.sampling.max_tokens, 1, f"`length` after {len(tokens)} tokens")

    def _check_counts(self, run: _Run, prompt_tokens: int) -> None:
        for piece in run.pieces:
            reused, computed = piece.reused_tokens, piece.computed_tokens
            _require((reused is None) == (computed is None), 4, f"{piece} has one count of the two")
            if reused is not None and computed is not None:
                _require(min(reused, computed) >= 0, 4, f"{piece} counts below 0")
                _require(
                    reused + computed == prompt_tokens,
                    4,
                    f"{piece} counts a prompt of {prompt_tokens} tokens",
                )

    async def same(self, handle: Handle, tokens: "array[int]", expected: _Run, how: str) -> _Run:
        """The same prompt gives the same tokens; rule 2."""
        run = await self.run(handle, tokens)
        _require(
            run.tokens == expected.tokens,
            2,
            f"{list(run.tokens)} {how}, {list(expected.tokens)} when suspended",
        )
        return run

    async def cancelled(self, handle: Handle, tokens: "array[int]", expected: _Run) -> float:
        """Closed after the first token, it stops at once, and goes on well; rule 3. Returns how long the close took."""
        sampled = array("I")
        async with aclosing(self.backend.generate(handle, tokens, self.sampling)) as pieces:
            async for piece in pieces:
                sampled.extend(piece.tokens)
                if sampled:
                    break
            closed = trio.current_time()
        seconds = trio.current_time() - closed
        _require(seconds <= CANCEL_SECONDS, 3, f"it took {seconds:.3f} s to stop")
        _require(sampled == expected.tokens[: len(sampled)], 2, "the tokens before the close are others")
        with trio.move_on_after(0):
            await self.run(handle, tokens)
        await self.same(handle, tokens, expected, "after it was closed and cancelled")
        return seconds

    async def saved(self, handle: Handle, tokens: "array[int]", expected: _Run) -> _Run:
        """Saved, it is away, and comes back whole."""
        await self.backend.save(handle)
        _require(
            handle.resident_tokens == 0,
            3,
            f"{handle.resident_tokens} tokens stay where they were after a save",
        )
        back = await self.backend.restore(handle)
        _require(back, 3, "what was saved a moment ago is not there any more")
        return await self.same(handle, tokens, expected, "after a restore")

    async def found(self, tokens: "array[int]", expected: _Run) -> _Run:
        """What a released handle left, one of its own key may find; nobody else does. Rule 6."""
        await self._leave("one", tokens, expected)
        for cache_key, whose in (("another", "of another cache key"), (None, "that has no cache key")):
            await self._finds_nothing(cache_key, tokens, expected, whose)
        await self._leave(None, tokens, expected)
        await self._finds_nothing("a third", tokens, expected, "after one that has no cache key")
        await self._leave("one", tokens, expected)
        finder = self.backend.open("one")
        found = await self.same(finder, tokens, expected, "found by its content")
        await self.backend.drop(finder)
        return found

    async def _leave(self, cache_key: str | None, tokens: "array[int]", expected: _Run) -> None:
        handle = self.backend.open(cache_key)
        await self.same(handle, tokens, expected, "before a release")
        for _ in range(2):
            await self.backend.release(handle)
        resident = handle.resident_tokens
        _require(resident == 0, 6, f"{resident} tokens are still of a handle that was released")

    async def _finds_nothing(
        self, cache_key: str | None, tokens: "array[int]", expected: _Run, whose: str
    ) -> None:
        handle = self.backend.open(cache_key)
        reused, _ = (await self.same(handle, tokens, expected, f"in a handle {whose}")).counts or (0, 0)
        _require(reused == 0, 6, f"a handle {whose} finds {reused} tokens of others")
        await self.backend.drop(handle)


def _require(holds: bool, rule: int, words: str) -> None:
    if not holds:
        raise AssertionError(f"rule {rule} of engine.backends.base: {words}")
