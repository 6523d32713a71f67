"""One generation of llama.cpp in one slot, with the holes of its stream filled. Nothing here outlives the generation."""

from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import attrs

from engine.backends.base import BackendError, Finish, Generated, Sampling
from engine.backends.http import BackendHttp
from engine.backends.llama_answer import AnswerReader, Chunk, literal_grammar
from engine.backends.llama_slots import LlamaHandle, Slot, common_prefix

MAX_SEED: Final = 2**32 - 1
"""As a seed it means: any. So seeds are taken modulo it."""
END_TOKENS: Final = 1
"""Which end a text under a grammar, and are no part of it."""


@attrs.define(kw_only=True)
class SegmentCounts:
    """What a generation showed about the server."""

    holes: int = 0
    lost_tokens: int = 0
    """Of a state that was brought back: so many were read again nevertheless."""


@attrs.define(kw_only=True)
class Segment:
    """One generation; `pieces` may be called once."""

    http: BackendHttp
    slot: Slot
    handle: LlamaHandle
    sampling: Sampling
    tokens: "array[int]"
    """All that the model has before it, and what it said meanwhile."""
    told: int
    """How many of them were sampled for the same call, before the server died."""
    end_token: int | None
    counts: SegmentCounts
    _before: "array[int]" = attrs.field(factory=lambda: array("I"), init=False)
    _started_with: int = attrs.field(default=0, init=False)
    _hole: str = attrs.field(default="", init=False)

    async def pieces(self) -> AsyncGenerator[Generated, None]:
        """What `Backend.generate` yields. `BackendError`."""
        self._started_with = len(self.tokens) - self.told
        self._before = self.handle.tokens
        self.handle.tokens = self._before[: common_prefix(self._before, self.tokens)]
        pieces = self._constrained() if self.sampling.schema is not None else self._free()
        async with aclosing(pieces):
            async for piece in pieces:
                self._note(piece)
                yield piece

    # --- two ways --------------------------------------------------------------------------------------------------

    async def _free(self) -> AsyncGenerator[Generated, None]:
        """At each hole the stream is left, the hole filled, and another stream goes on after it."""
        while self._left != 0:
            hole: Chunk | None = None
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    if chunk.hole_tokens and chunk.stop is None:
                        hole = chunk
                        break
                    yield self._told(chunk)
                    if self._finish_of(chunk) is not None:
                        return
            if hole is None:
                raise BackendError("died", f"{self.http.url}: the stream ended before its last chunk")
            yield attrs.evolve(self._told(hole), tokens=await self._filled(hole.text))
        yield Generated(finish="length")

    async def _constrained(self) -> AsyncGenerator[Generated, None]:
        """From the first hole on everything is kept until the end: in the middle of a schema nothing could go on."""
        held: list[Chunk] = []
        finish: Finish | None = None
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                finish = self._finish_of(chunk)
                if held or (chunk.hole_tokens and chunk.stop is None):
                    held.append(chunk)
                else:
                    yield self._told(chunk)
                if finish is not None:
                    break
        if finish is None:
            raise BackendError("died", f"{self.http.url}: the stream ended before its last chunk")
        for chunk in held:
            told = self._told(chunk)
            if chunk.hole_tokens and chunk.stop is None:
                told = attrs.evolve(told, tokens=await self._filled(chunk.text))
            yield told

    # --- chunks ----------------------------------------------------------------------------------------------------

    async def _chunks(self) -> AsyncGenerator[Chunk, None]:
        """The stream's chunks. The end token comes with the last chunk, if it is one of those asked for."""
        reader = AnswerReader(len(self.tokens))
        body = self._body() | {"stream": True, "return_progress": True, "timings_per_token": True}
        if self.sampling.schema is not None:
            body["json_schema"] = self.sampling.schema
        silent: Chunk | None = None
        """One without text: perhaps the end."""
        foreign = self.slot.foreign
        async with aclosing(self.http.stream_json("/completion", body)) as answer:
            async for raw in answer:
                chunk = reader.feed(raw)
                self.slot.foreign = False  # it has begun to read, so what was there before is gone
                if chunk is None:
                    continue
                if foreign and chunk.reused_tokens:
                    raise BackendError(
                        "broke_promise",
                        f"llama.cpp reused {chunk.reused_tokens:,} tokens that were not to be found",
                    )
                if silent is not None:
                    if chunk.stop == "eos" and not chunk.hole_tokens:
                        yield attrs.evolve(
                            chunk,
                            tokens=silent.tokens if self._is_wanted(silent.tokens[-1]) else (),
                            reused_tokens=silent.reused_tokens,
                            computed_tokens=silent.computed_tokens,
                        )
                        return
                    yield silent
                    silent = None
                if chunk.tokens and not chunk.text and chunk.stop is None and not self._ends_here(chunk):
                    silent = chunk
                    continue
                yield chunk

    def _is_wanted(self, token: int) -> bool:
        return not self.sampling.stop_tokens or token in self.sampling.stop_tokens

    def _ends_here(self, chunk: Chunk) -> bool:
        """Has it a stop token that the server takes for nothing special? Then nobody waits for more."""
        return any(token in self.sampling.stop_tokens and token != self.end_token for token in chunk.tokens)

    def _finish_of(self, chunk: Chunk) -> Finish | None:
        if chunk.stop is None:
            return "stop" if self._ends_here(chunk) else None
        return "stop" if chunk.stop == "eos" else "length"

    def _told(self, chunk: Chunk) -> Generated:
        """A chunk as it is told. At the very end a hole has no text: those are pieces of a character, and left out."""
        tokens = chunk.tokens
        if (
            chunk.stop == "eos"
            and chunk.hole_tokens
            and self.end_token is not None
            and self._is_wanted(self.end_token)
        ):
            tokens = (self.end_token,)
        return Generated(
            tokens=tokens,
            reused_tokens=chunk.reused_tokens,
            computed_tokens=chunk.computed_tokens,
            finish=self._finish_of(chunk),
        )

    # --- holes -----------------------------------------------------------------------------------------------------

    async def _filled(self, text: str) -> tuple[int, ...]:
        """The ids for a text, written once more by the model in its place; they are in the slot afterwards."""
        self.counts.holes += 1
        body = self._body() | {
            "stream": False,
            "temperature": 0.0,
            "n_predict": len(text.encode()) + END_TOKENS,
            "grammar": literal_grammar(text),
        }
        answer = await self.http.post_json("/completion", body)
        try:
            tokens, said, stop = tuple(map(int, answer["tokens"])), answer["content"], answer["stop_type"]
        except (KeyError, TypeError, ValueError) as error:
            raise BackendError(
                "broke_promise", f"llama.cpp's answer lacks {error}: {answer!r:.300}"
            ) from None
        if stop == "eos":
            tokens = tokens[:-END_TOKENS]
        if said != text or not tokens:
            raise BackendError(
                "broke_promise",
                f"llama.cpp sampled {text!r} without saying by which tokens, and when told to write it again "
                f"it wrote {said!r} with {tokens}",
            )
        return tokens if self._left is None else tokens[: self._left]

    # --- keeping count ---------------------------------------------------------------------------------------------

    @property
    def _left(self) -> int | None:
        """How many tokens may still be sampled."""
        if self.sampling.max_tokens is None:
            return None
        return max(0, self.sampling.max_tokens - (len(self.tokens) - self._started_with))

    def _note(self, piece: Generated) -> None:
        if piece.reused_tokens is not None:
            self._look_at(piece.reused_tokens)
            self.handle.tokens = self.tokens[:]
        self.tokens.extend(piece.tokens)
        self.handle.tokens.extend(piece.tokens)

    def _look_at(self, reused: int) -> None:
        """A state that was brought back should have been there."""
        if self.handle.restored:
            self.handle.restored = False
            common = common_prefix(self._before, self.tokens)
            expected = min(common, len(self.tokens) - 1, len(self._before) - 1)
            self.counts.lost_tokens = max(0, expected - reused)

    def _body(self) -> dict[str, Any]:
        sampling = self.sampling
        body: dict[str, Any] = {
            "prompt": self.tokens.tolist(),
            "id_slot": self.slot.index,
            "cache_prompt": not self.slot.foreign,
            "return_tokens": True,
            "n_predict": -1 if self._left is None else self._left,
            "temperature": sampling.temperature,
            "top_k": 0,
            "top_p": sampling.top_p,
            "min_p": 0.0,
        }
        if (
            sampling.seed is not None
        ):  # another stream of chance after each hole, and the same one in each run
            body["seed"] = (sampling.seed + len(self.tokens) - self._started_with) % MAX_SEED
        return body
