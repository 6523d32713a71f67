"""vLLM by its token endpoint: the whole sequence goes there each time, and its prefix cache spares what it still has.

Nothing is pinned at vLLM. While a tool runs its blocks of 16 tokens (128 on a CPU) may be evicted, least recently used
first, and then they are read again: sending all tokens is always right, only sometimes slow. So each time it is asked how
much was reused:

- `usage.prompt_tokens_details` of the answer, of a server that runs with `--enable-prompt-tokens-details`; else
- the counters `vllm:prefix_cache_queries_total` and `…hits_total` before and after, believed only if exactly this prompt
  was looked up in between, so if nobody else ran; else
- nothing: the counts are None.

What was read for one cache key is not found for another: it is the salt of the blocks' hashes. Without a key a handle has a
salt of its own.

The server must run with `--tokens-only` or `--enable-scale-out`. JSON schemas need the latter: tokens alone tell it no text.
An answer that is left is ended twice, by closing its connection and by name, since closing has been overlooked
(vllm-project/vllm#54947).
"""

from array import array
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from hashlib import blake2b
from itertools import count
from secrets import token_hex
from typing import Any, Final

import attrs
import trio

from engine.backends.base import BackendError, Finish, Generated, Handle, Sampling
from engine.backends.http import BackendHttp, BackendRefusedError
from engine.backends.options import HTTP_OPTIONS, http_of, split_options, whole_number, yes_or_no
from engine.backends.vllm_counters import Counters, Lookup
from engine.config import Limits

GENERATE: Final = "/inference/v1/generate"
ABORT: Final = "/inference/v1/abort_requests"
ABORT_SECONDS: Final = 0.15
"""How long an abort may hold up whoever was cancelled; the promise is 200 ms."""

_FINISHES: Final[Mapping[str, Finish]] = {"stop": "stop", "length": "length", "repetition": "stop"}

_OVER_BY_ITSELF: Final = ("unreachable", "refused", "died")
"""Failures after which nothing runs at the server."""


@attrs.define
class VllmHandle:
    """What the prefix cache is believed to have of a sequence: whole blocks, without the last token."""

    salt: str
    """Of its blocks' hashes: only with the same one they are found."""
    resident_tokens: int = 0


@attrs.define
class VllmStatistics:
    """Since the start."""

    requests: int = 0
    aborted: int = 0
    """Answers that were left before their end."""
    reused_tokens: int = 0
    computed_tokens: int = 0
    uncounted_requests: int = 0
    """Of these nobody knows how much was reused."""


class VllmBackend:
    """`Backend`: one model on a vLLM server. Without `context_tokens` the length is 0 until the server was asked."""

    saves = False
    forks = True
    """A second sequence with the same beginning hits the same blocks."""

    def __init__(
        self,
        http: BackendHttp,
        *,
        model: str | None = None,
        context_tokens: int | None = None,
        keeps_schemas: bool = False,
        reads_metrics: bool = True,
    ) -> None:
        self.name = f"vllm:{model or http.url}"
        self.context_tokens = context_tokens or 0
        self.keeps_schemas = keeps_schemas
        self.statistics = VllmStatistics()
        self._http = http
        self._model = model
        self._discovered = False
        self._counters = Counters(http, reads_metrics)
        self._numbers, self._salts = count(1), count(1)
        self._salt = token_hex(8)

    def open(self, cache_key: str | None = None) -> VllmHandle:
        """As `Backend.open`. The key is not told, and finds the same blocks after a restart."""
        if cache_key is None:
            return VllmHandle(f"{self._salt}-{next(self._salts)}")
        return VllmHandle(blake2b(cache_key.encode(), digest_size=16).hexdigest())

    async def run(self) -> None:
        """Learn of the server, wait until cancelled, and close what is idle. It works without, too."""
        try:
            with suppress(BackendError):  # it is asked again when it is needed
                await self.discover()
            await trio.sleep_forever()
        finally:
            await self._http.aclose()

    async def discover(self) -> None:
        """Learn its model's name and length from the server, once. `BackendError`: it is not there, or not a vLLM."""
        listed = await self._http.get_json("/v1/models")
        try:
            model = next(one for one in listed["data"] if self._model in (None, one["id"]))
            self._model, length = str(model["id"]), int(model["max_model_len"])
        except (StopIteration, KeyError, TypeError, ValueError):
            raise BackendError(
                "refused", f"{self._http.url} serves no model {self._model or '(any)'!r} with a known length"
            ) from None
        self.context_tokens = self.context_tokens or length
        self._discovered = True

    async def generate(
        self, handle: Handle, tokens: "array[int]", sampling: Sampling
    ) -> AsyncGenerator[Generated, None]:
        """As `Backend.generate`."""
        assert isinstance(handle, VllmHandle), "a handle of this backend"
        request_id = f"{self._salt}-{next(self._numbers)}"
        self.statistics.requests += 1
        if not self._discovered:
            await self.discover()
        lookup = await self._counters.begin()
        answer = _Answer(self._http.url, sampling)
        try:
            body = self._request(request_id, handle, tokens, sampling)
            async with aclosing(self._http.stream_json(GENERATE, body)) as chunks:
                async for chunk in chunks:
                    sampled = answer.read(chunk)
                    if sampled:
                        yield Generated(tokens=sampled)
            finish = answer.required_finish()
            counted = await self._counts(answer, lookup, len(tokens))
        except BackendRefusedError as error:
            if error.status < 500:
                raise
            raise BackendError("died", str(error)) from error  # so it answers for an engine that is gone
        except BaseException as error:
            if not (isinstance(error, BackendError) and error.reason in _OVER_BY_ITSELF):
                self.statistics.aborted += 1
                await self._abort(request_id)
            raise
        finally:
            self._counters.end()
            read = len(tokens) + answer.sampled_tokens - 1 if answer.sampled_tokens else 0
            handle.resident_tokens = read - read % self._counters.block_tokens
        yield attrs.evolve(counted, finish=finish)

    async def drop(self, handle: Handle) -> None:
        """As `Backend.drop`: vLLM frees by itself what nobody asks for again."""
        assert isinstance(handle, VllmHandle), "a handle of this backend"
        handle.resident_tokens = 0
        await trio.lowlevel.checkpoint()

    async def release(self, handle: Handle) -> None:
        """As `Backend.release`: what is in the prefix cache is found by its content anyway."""
        await self.drop(handle)

    async def save(self, handle: Handle) -> None:  # noqa: ARG002  # the shape of all backends
        """As `Backend.save`: there is nothing to save to."""
        await trio.lowlevel.checkpoint()

    async def restore(self, handle: Handle) -> bool:  # noqa: ARG002  # the shape of all backends
        """As `Backend.restore`: never."""
        await trio.lowlevel.checkpoint()
        return False

    async def fork(self, handle: Handle) -> VllmHandle:
        """As `Backend.fork`."""
        assert isinstance(handle, VllmHandle), "a handle of this backend"
        await trio.lowlevel.checkpoint()
        return VllmHandle(handle.salt, handle.resident_tokens)

    def _request(
        self, request_id: str, handle: VllmHandle, tokens: "array[int]", sampling: Sampling
    ) -> Mapping[str, Any]:
        room = max(1, self.context_tokens - len(tokens))
        chosen: dict[str, Any] = {
            "max_tokens": room if sampling.max_tokens is None else min(room, sampling.max_tokens),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop_token_ids": sorted(sampling.stop_tokens),
            "ignore_eos": sampling.schema is None,  # the format's turns have ends; a schema ends by itself
            "detokenize": False,
        }
        if sampling.seed is not None:
            chosen["seed"] = sampling.seed
        request: dict[str, Any] = {
            "model": self._model,
            "request_id": request_id,
            "token_ids": tokens.tolist(),
            "cache_salt": handle.salt,
            "sampling_params": chosen,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.schema is not None:
            chosen["structured_outputs"] = {"json": sampling.schema}
            request["reasoning_ended"] = True  # the schema holds from the first token on
        return request

    async def _abort(self, request_id: str) -> None:
        """Whatever comes of it: the connection is closed anyway. Works when cancelled."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + ABORT_SECONDS):
            try:
                await self._http.post_json(ABORT, {"request_ids": [f"generate-tokens-{request_id}"]})
            except BackendError:
                return  # an older server, or one that is gone

    async def _counts(self, answer: "_Answer", lookup: Lookup | None, prompt_tokens: int) -> Generated:
        """What was reused, as far as anybody knows."""
        reused = answer.reused_tokens
        if reused is None:
            reused = await self._counters.reused(lookup, prompt_tokens)
        else:
            self._counters.wanted = False  # the answers say it themselves
        if reused is None or not 0 <= reused <= prompt_tokens:
            self.statistics.uncounted_requests += 1
            return Generated()
        self.statistics.reused_tokens += reused
        self.statistics.computed_tokens += prompt_tokens - reused
        return Generated(reused_tokens=reused, computed_tokens=prompt_tokens - reused)


def make_vllm(rest: str, limits: Limits) -> VllmBackend:  # noqa: ARG001  # the shape of all factories
    """The backend of a spec after `vllm:`, `http://host:8000?model=NAME&context=N&schemas=yes`. `ValueError`: what is wrong."""
    known = (*HTTP_OPTIONS, "model", "context", "schemas", "metrics")
    url, options = split_options("vllm", rest, known)
    return VllmBackend(
        http_of("vllm", url, options),
        model=options.get("model"),
        context_tokens=whole_number("vllm", options, "context", 1) if "context" in options else None,
        keeps_schemas=yes_or_no("vllm", options, "schemas", default=False),
        reads_metrics=yes_or_no("vllm", options, "metrics", default=True),
    )


class _Answer:
    """What the chunks of one answer say."""

    def __init__(self, url: str, sampling: Sampling) -> None:
        self._url = url
        self._sampling = sampling
        self._finish: str | None = None
        self.sampled_tokens = 0
        self.reused_tokens: int | None = None

    def read(self, chunk: Any) -> tuple[int, ...]:
        """The tokens of a chunk. `BackendError`: it reports a failure, or is no chunk."""
        try:
            if "error" in chunk:
                raise self._failure(chunk["error"])
            self._read_usage(chunk.get("usage"))
            sampled: list[int] = []
            for choice in chunk["choices"]:
                sampled += choice.get("token_ids") or ()
                self._finish = choice.get("finish_reason") or self._finish
        except (TypeError, KeyError, AttributeError):
            raise self._broken(f"sent a chunk of another shape: {str(chunk)[:200]}") from None
        if not all(type(token) is int and token >= 0 for token in sampled):
            raise self._broken("sent tokens that are no numbers")
        self.sampled_tokens += len(sampled)
        if self._is_schemas_end(sampled):
            del sampled[-1]
        return tuple(sampled)

    def required_finish(self) -> Finish:
        """Why it ended. `BackendError`: it did not, or was aborted."""
        if self._finish is None:
            raise self._broken("ended its answer without a finish reason")
        if self._finish not in _FINISHES:
            raise BackendError("died", f"{self._url} gave the request up: {self._finish!r}")
        return _FINISHES[self._finish]

    def _is_schemas_end(self, sampled: list[int]) -> bool:
        """Is the last token the server's own end, after what fits the schema? Whoever asked knows it not."""
        stopped = self._sampling.schema is not None and self._finish == "stop"
        return stopped and bool(sampled) and sampled[-1] not in self._sampling.stop_tokens

    def _read_usage(self, usage: Any) -> None:
        details = usage.get("prompt_tokens_details") if usage else None
        cached = details.get("cached_tokens") if details else None
        if type(cached) is int:
            self.reused_tokens = cached

    def _failure(self, error: Any) -> BackendError:
        code = error.get("code")
        refused = type(code) is int and 400 <= code < 500
        return BackendError(
            "refused" if refused else "died", f"{self._url}: {str(error.get('message', error))[:300]}"
        )

    def _broken(self, how: str) -> BackendError:
        return BackendError("broke_promise", f"{self._url} {how}")
