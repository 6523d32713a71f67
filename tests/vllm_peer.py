"""An imitation of vLLM's token endpoint, for what cannot be recorded: faults, other clients, and a cache that is emptied.

`tests.test_vllm_contract` holds it to the recording of a real one (`tests.vllm_tape`), in what is made of its answers and
in their form. What it samples is a function of the prompt, as greedy sampling is. Its prefix cache is whole blocks under a
salt, and its counters those of `/metrics`, which include what other clients have asked.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

import attrs
import trio

from engine.backends.http import BackendHttp
from engine.backends.vllm import VllmBackend
from tests.backend_peer import Asked, BackendPeer, Reply, backend_peer

BLOCK_TOKENS = 16
MAX_TOKENS = 4096
STOP_TOKEN = 2
"""Its tokenizer's end, too."""
URL = "http://vllm:8000"


@attrs.define
class VllmServer:
    """What a test may change, and what it may look at."""

    says_details: bool = False
    """`--enable-prompt-tokens-details`."""
    has_metrics: bool = True
    has_tokenizer: bool = False
    """`--enable-scale-out`; else `--tokens-only --skip-tokenizer-init`."""
    block_tokens: int = BLOCK_TOKENS
    max_tokens: int = MAX_TOKENS
    vocabulary: int = 1 << 20
    token_seconds: float = 0.0
    faults: dict[int, str] = attrs.field(factory=dict)
    """Of the n-th generation, counted from 1."""
    blocks: set[tuple[str, tuple[int, ...]]] = attrs.field(factory=set)
    queries: int = 0
    hits: int = 0
    generations: int = 0
    running: int = 0
    is_dead: bool = False
    """An unknown token has ended its engine."""
    sampled_at: list[float] = attrs.field(factory=list)
    aborted: list[str] = attrs.field(factory=list)
    peer: BackendPeer | None = None

    def next_token(self, tokens: "list[int]") -> int:
        digest = blake2b(repr(tokens).encode(), digest_size=4).digest()
        token = 10 + int.from_bytes(digest, "big") % min(1000, self.vocabulary - 10)
        return STOP_TOKEN if token % 13 == 0 else token

    async def answer(self, asked: Asked, reply: Reply) -> None:
        match asked.method, asked.target:
            case "POST", "/inference/v1/generate":
                await self._generate(asked.body, reply)
            case "POST", "/inference/v1/abort_requests":
                self.aborted += asked.body["request_ids"]
                await reply.whole(b"", kind="text/plain")
            case "GET", "/metrics" if self.has_metrics:
                await reply.whole(self._metrics(), kind="text/plain; version=1.0.0; charset=utf-8")
            case "GET", "/v1/models":
                await reply.json({"object": "list", "data": [model(self.max_tokens)]})
            case _:
                await reply.json({"detail": "Not Found"}, status=404)

    async def _generate(self, body: Any, reply: Reply) -> None:
        self.generations += 1
        fault = self.faults.get(self.generations)
        if fault == "hangs up":
            await trio.sleep(2)
            await reply.hang_up()
            return
        if refusal := self._refusal(body):
            await reply.json(refusal, status=refusal["error"]["code"])
            return
        await reply.begin_stream()
        if complaint := self._complaint(body):
            await reply.event(complaint)
            await reply.end_stream()
            return
        if fault is not None:
            await self._go_wrong(fault, reply)
            return
        self.running += 1
        try:
            await self._sample(body, reply)
        finally:
            self.running -= 1

    def _refusal(self, body: Any) -> dict[str, Any] | None:
        """What is seen before anything is asked of the engine."""
        if self.is_dead:
            return failure("EngineCore encountered an issue.", "InternalServerError", 500)
        if not isinstance(body, dict):
            return failure("1 validation error", "Bad Request", 400, "body")
        for name in ("token_ids", "sampling_params"):
            if name not in body:
                return failure("1 validation error", "Bad Request", 400, f"body.{name}")
        if not all(type(token) is int for token in body["token_ids"]):
            return failure("1 validation error", "Bad Request", 400, "body.token_ids.0")
        if body["sampling_params"].get("temperature", 1.0) < 0:
            return failure("temperature must be non-negative", "BadRequestError", 400, "temperature")
        if body["model"] != "tiny":
            return failure(f"The model `{body['model']}` does not exist.", "NotFoundError", 404, "model")
        return None

    def _complaint(self, body: Any) -> dict[str, Any] | None:
        """What the engine says, when the answer is a stream already."""
        tokens, wanted = body["token_ids"], body["sampling_params"]
        what = f"The decoder prompt (length {len(tokens)}) "
        if len(tokens) > self.max_tokens:
            return failure(f"{what}is longer than the maximum model length.", "BadRequestError", 400)
        if len(tokens) == self.max_tokens:
            return failure(f"{what}plus 1 is longer than the maximum model length.", "BadRequestError", 400)
        if max(tokens) >= self.vocabulary and self.has_tokenizer:
            return failure(f"Token id {max(tokens)} is out of vocabulary", "BadRequestError", 400)
        if max(tokens) >= self.vocabulary:
            self.is_dead = True
            return failure("EngineCore encountered an issue.", "InternalServerError", 500)
        if "structured_outputs" in wanted and not self.has_tokenizer:
            return failure("Structured outputs requires a tokenizer", "BadRequestError", 400)
        return None

    async def _sample(self, body: Any, reply: Reply) -> None:
        tokens, wanted, salt = list(body["token_ids"]), body["sampling_params"], body["cache_salt"]
        cached = self._look_up(salt, tokens)
        prompt_tokens, finish, sampling = len(tokens), None, self._sampled(tokens, wanted)
        while finish is None:
            if self.token_seconds:
                await trio.sleep(self.token_seconds)
            token = next(sampling)
            self.sampled_at.append(trio.current_time())
            tokens.append(token)
            sampled = len(tokens) - prompt_tokens
            finish, reason = self._finish(token, wanted, sampled)
            await reply.event(chunk([token], finish, stop_reason=reason, sampled=sampled))
        self._remember(salt, tokens[:-1])
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "total_tokens": len(tokens),
            "completion_tokens": sampled,
        }
        if self.says_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await reply.event(
            {"request_id": "generate-tokens-x", "usage": usage, "output_mode": "tokens", "choices": []}
        )
        await reply.end_stream()

    def _sampled(self, tokens: "list[int]", wanted: Any) -> Iterator[int]:
        """What fits a schema, with an end of those that are wanted; and on without an end. `tokens` grows meanwhile."""
        if "structured_outputs" in wanted:
            text = json.dumps(wanted["structured_outputs"]["json"]["enum"][-1])
            yield from (ord(character) - 30 for character in text)
            yield min(wanted["stop_token_ids"], default=STOP_TOKEN)
        while True:
            yield self.next_token(tokens)

    def _finish(self, token: int, wanted: Any, sampled: int) -> tuple[str | None, int | None]:
        """(finish reason, stop reason); the tokenizer's end is no reason."""
        if token == STOP_TOKEN and not wanted["ignore_eos"]:
            return "stop", None
        if token in wanted.get("stop_token_ids", ()):
            return "stop", token
        return ("length" if sampled == wanted["max_tokens"] else None), None

    async def _go_wrong(self, fault: str, reply: Reply) -> None:
        await reply.event(chunk([11]))
        match fault:
            case "dies":
                await reply.hang_up()
                return
            case "is silent":
                await reply.wait_left()
                return
            case "fails":
                await reply.event(failure("EngineCore encountered an issue.", "InternalServerError", 500))
            case "is aborted":
                await reply.event(chunk([], "abort"))
            case "talks nonsense":
                await reply.event({"choices": [{"token_ids": ["x"]}]})
            case "talks more nonsense":
                await reply.event({"object": "list"})
            case "ends early":
                pass
        await reply.end_stream()

    def _look_up(self, salt: str, tokens: "list[int]") -> int:
        """At least one token is always computed."""
        cached = 0
        while (end := cached + self.block_tokens) < len(tokens) and (
            salt,
            tuple(tokens[:end]),
        ) in self.blocks:
            cached = end
        self.queries += len(tokens)
        self.hits += cached
        self._remember(salt, tokens)
        return cached

    def _remember(self, salt: str, tokens: "list[int]") -> None:
        for end in range(self.block_tokens, len(tokens) + 1, self.block_tokens):
            self.blocks.add((salt, tuple(tokens[:end])))

    def _metrics(self) -> bytes:
        """Two engines, so that whoever reads has to add up; and what is like that which is wanted, and is not."""
        samples = {
            "num_requests_running": self.running,
            "kv_cache_usage_perc": self.running / 100,
            "prefix_cache_queries_total": self.queries,
            "prefix_cache_queries_created": 1.795993860e9,
            "prefix_cache_hits_total": self.hits,
            "prefix_cache_hits_created": 1.795993860e9,
            "external_prefix_cache_queries_total": 7,
            "generation_tokens_total": len(self.sampled_at),
        }
        lines = ["# HELP vllm:num_requests_running Number of requests in model execution batches."]
        for name, value in samples.items():
            lines.append(f'vllm:{name}{{engine="0",model_name="tiny"}} {float(value)}')
            if name.startswith("prefix") and name.endswith("total"):
                lines.append(f'vllm:{name}{{engine="1",model_name="tiny"}} 1.0e+06')
        sizes = f'block_size="{self.block_tokens}",engine="0",mamba_block_size="1024"'
        lines.append(f'vllm:cache_config_info{{_block_size_resolved="True",{sizes}}} 1.0')
        return "\n".join(lines).encode()


def model(max_tokens: int) -> dict[str, Any]:
    """As the list of models has it."""
    may = {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True}
    may |= {"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False}
    permission = {"id": "modelperm-0", "object": "model_permission", "created": 1796004026, **may}
    permission |= {"organization": "*", "group": None, "is_blocking": False}
    whose = {"id": "tiny", "object": "model", "created": 1796004026, "owned_by": "vllm", "root": "tiny"}
    return {**whose, "parent": None, "max_model_len": max_tokens, "permission": [permission]}


def failure(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """An answer, or an event, that reports one."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def chunk(
    tokens: "list[int]", finish: str | None = None, *, stop_reason: int | None = None, sampled: int = 0
) -> dict[str, Any]:
    """One event of the stream."""
    weights = [{"version": "default", "start": 0, "end": sampled}]
    choice = {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": tokens,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": weights if finish is not None else None,
        "logprobs": None,
    }
    return {"request_id": "generate-tokens-x", "usage": None, "output_mode": "tokens", "choices": [choice]}


@asynccontextmanager
async def vllm(
    server: VllmServer | None = None, **options: Any
) -> AsyncIterator[tuple[VllmBackend, VllmServer]]:
    """A backend and its server; `options` are those of the backend."""
    server = server or VllmServer()
    async with backend_peer(server.answer) as peer:
        server.peer = peer
        yield VllmBackend(BackendHttp(URL, dialled=peer.dial), **options), server
