"""vLLM's token endpoint as a contract: a server in memory that answers as vLLM 0.32 was seen to, down to the chunks' members.

What it samples is a function of the prompt, as greedy sampling is. Its prefix cache is whole blocks under a salt, and its counters those
of `/metrics`, which include what other clients have asked.
"""

from collections.abc import AsyncIterator
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
URL = "http://vllm:8000"


@attrs.define
class VllmServer:
    """What a test may change, and what it may look at."""

    says_details: bool = False
    """`--enable-prompt-tokens-details`."""
    has_metrics: bool = True
    token_seconds: float = 0.0
    faults: dict[int, str] = attrs.field(factory=dict)
    """Of the n-th generation, counted from 1."""
    blocks: set[tuple[str, tuple[int, ...]]] = attrs.field(factory=set)
    queries: int = 0
    hits: int = 0
    generations: int = 0
    sampled_at: list[float] = attrs.field(factory=list)
    aborted: list[str] = attrs.field(factory=list)
    peer: BackendPeer | None = None

    def next_token(self, tokens: "list[int]") -> int:
        digest = blake2b(repr(tokens).encode(), digest_size=4).digest()
        token = 10 + int.from_bytes(digest, "big") % 1000
        return STOP_TOKEN if token % 13 == 0 else token

    async def answer(self, asked: Asked, reply: Reply) -> None:
        match asked.method, asked.target:
            case "POST", "/inference/v1/generate":
                await self._generate(asked.body, reply)
            case "POST", "/inference/v1/abort_requests":
                self.aborted += asked.body["request_ids"]
                await reply.whole(b"", kind="text/plain")
            case "GET", "/metrics" if self.has_metrics:
                await reply.whole(self._metrics(), kind="text/plain; version=0.0.4; charset=utf-8")
            case "GET", "/v1/models":
                model = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": MAX_TOKENS}
                await reply.json({"object": "list", "data": [model]})
            case _:
                await reply.json({"detail": "Not Found"}, status=404)

    async def _generate(self, body: Any, reply: Reply) -> None:
        self.generations += 1
        fault = self.faults.get(self.generations)
        tokens, wanted = list(body["token_ids"]), body["sampling_params"]
        if fault == "hangs up":
            await trio.sleep(2)
            await reply.hang_up()
            return
        if len(tokens) > MAX_TOKENS:
            message = f"The decoder prompt (length {len(tokens)}) is longer than the maximum model length."
            await reply.play({"error": {"message": message, "type": "BadRequestError", "code": 400}})
            return
        await reply.begin_stream()
        if fault is not None:
            await self._go_wrong(fault, reply)
            return
        salt = body["cache_salt"]
        cached = self._look_up(salt, tokens)
        prompt_tokens, finish, left = len(tokens), None, wanted["max_tokens"]
        while finish is None:
            if self.token_seconds:
                await trio.sleep(self.token_seconds)
            token = self.next_token(tokens)
            self.sampled_at.append(trio.current_time())
            tokens.append(token)
            left -= 1
            finish = "stop" if token in wanted["stop_token_ids"] else "length" if left == 0 else None
            await reply.event(chunk([token], finish, stop_reason=token if finish == "stop" else None))
        self._remember(salt, tokens[:-1])
        usage = {
            "prompt_tokens": prompt_tokens,
            "total_tokens": len(tokens),
            "completion_tokens": len(tokens) - prompt_tokens,
        }
        if self.says_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await reply.event(
            {"request_id": "generate-tokens-x", "usage": usage, "output_mode": "tokens", "choices": []}
        )
        await reply.end_stream()

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
                message = "EngineCore encountered an issue."
                await reply.event({"error": {"message": message, "type": "InternalServerError", "code": 500}})
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
        while (end := cached + BLOCK_TOKENS) < len(tokens) and (salt, tuple(tokens[:end])) in self.blocks:
            cached = end
        self.queries += len(tokens)
        self.hits += cached
        self._remember(salt, tokens)
        return cached

    def _remember(self, salt: str, tokens: "list[int]") -> None:
        for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
            self.blocks.add((salt, tuple(tokens[:end])))

    def _metrics(self) -> bytes:
        """Two engines, so that whoever reads has to add up."""
        lines = [
            "# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens."
        ]
        lines.append(f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",engine="0"}} 1.0')
        for name, total in (("queries", self.queries), ("hits", self.hits)):
            lines.append(f'vllm:prefix_cache_{name}_total{{engine="0",model_name="tiny"}} {float(total)}')
            lines.append(f'vllm:prefix_cache_{name}_total{{engine="1",model_name="tiny"}} 1.0e+06')
            lines.append(f'vllm:prefix_cache_{name}_created{{engine="0",model_name="tiny"}} 1.795993860e+09')
        return "\n".join(lines).encode()


def chunk(
    tokens: "list[int]", finish: str | None = None, *, stop_reason: int | None = None
) -> dict[str, Any]:
    """One event of the stream."""
    choice = {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": tokens,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None,
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
