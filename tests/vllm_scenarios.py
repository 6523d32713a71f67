"""What a vLLM is asked in the recorded contract: each scenario asks one thing, and tells what `VllmBackend` made of it.

They run against a real server when `tests.vllm_tape` records, against its tapes, and against `tests.vllm_peer`.
"""

import re
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import trio

from engine.backends.base import BackendError, Generated, Handle, Sampling
from engine.backends.http import BackendHttp
from engine.backends.vllm import GENERATE, VllmBackend

PROMPT = array("I", (3 + number % 7 for number in range(140)))
"""More than one block of a CPU, which is 128 tokens."""
MORE = array("I", range(10, 20))
SHORT = PROMPT[:5]
CONTEXT_TOKENS: Final = 512
VOCABULARY: Final = 320
END_TOKEN: Final = 2
"""The tokenizer's own."""
OTHER_END_TOKEN: Final = 5
ANSWERS = ("yes", "no")


async def collected(
    backend: VllmBackend, handle: Handle, tokens: "array[int]", **sampling: Any
) -> "tuple[list[int], tuple[int, int] | None, str | None]":
    """The sampled tokens, (reused, computed), and the finish."""
    async with aclosing(backend.generate(handle, tokens, Sampling(**sampling))) as generated:
        pieces: list[Generated] = [piece async for piece in generated]
    last = pieces[-1]
    counts = None
    if last.reused_tokens is not None and last.computed_tokens is not None:
        counts = last.reused_tokens, last.computed_tokens
    return [token for piece in pieces for token in piece.tokens], counts, last.finish


async def failed(backend: VllmBackend, tokens: "array[int]", **sampling: Any) -> "tuple[str, str] | None":
    """(reason, message) of a generation that should not succeed."""
    try:
        await collected(backend, backend.open(), tokens, **({"max_tokens": 2} | sampling))
    except BackendError as error:
        return error.reason, str(error)
    return None


async def counters(http: BackendHttp) -> "tuple[int, bool, int]":
    """What the server's page says: requests that run, whether they hold blocks, tokens sampled since its start."""
    page = (await http.get_bytes("/metrics")).decode()
    running, held, sampled = (
        sum(float(value) for value in re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))
        for name in ("num_requests_running", "kv_cache_usage_perc", "generation_tokens_total")
    )
    return int(running), held > 0, int(sampled)


# --- the scenarios -------------------------------------------------------------------------------------------------


def _without_counters(http: BackendHttp, *, keeps_schemas: bool = False) -> VllmBackend:
    return VllmBackend(http, reads_metrics=False, keeps_schemas=keeps_schemas)


async def cold_and_warm(http: BackendHttp) -> Any:
    """(context length, cold, what is resident then, the same again, ten tokens later)"""
    backend = VllmBackend(http)
    handle = backend.open()
    cold = await collected(backend, handle, PROMPT, max_tokens=3)
    resident = handle.resident_tokens
    warm = await collected(backend, handle, PROMPT, max_tokens=3)
    longer = await collected(backend, handle, PROMPT + array("I", cold[0]) + MORE, max_tokens=1)
    return backend.context_tokens, cold, resident, warm, longer


async def salted(http: BackendHttp) -> Any:
    """What each finds of one prompt."""
    backend = _without_counters(http)
    keys = ("ours", "ours", "theirs", None, None)
    return [(await collected(backend, backend.open(key), PROMPT, max_tokens=1))[1] for key in keys]


async def stopped(http: BackendHttp) -> Any:
    """(tokens, the same with the second as a stop token)"""
    backend = _without_counters(http)
    free, _, _ = await collected(backend, backend.open(), SHORT, max_tokens=3)
    stop_tokens = frozenset(free[1:2])
    return free, await collected(backend, backend.open(), SHORT, max_tokens=3, stop_tokens=stop_tokens)


async def drawn(http: BackendHttp) -> Any:
    """Tokens of two draws with one seed."""
    backend = _without_counters(http)
    chance = {"max_tokens": 2, "temperature": 1.0, "top_p": 0.9, "seed": 7}
    return [(await collected(backend, backend.open(), SHORT, **chance))[0] for _ in range(2)]


async def left(http: BackendHttp) -> Any:
    """Closed by us after three tokens of 372: (counters before, while it runs, soon after, later, then a warm one)"""
    backend = _without_counters(http)
    handle = backend.open()
    before = await counters(http)
    async with aclosing(backend.generate(handle, PROMPT, Sampling())) as generated:
        running = await _three(http, generated)
    soon, later = await _twice(http)
    return before, running, soon, later, await collected(backend, handle, PROMPT, max_tokens=1)


async def left_without_abort(http: BackendHttp) -> Any:
    """The same counters where only the connection is closed."""
    before = await counters(http)
    wanted = {"max_tokens": 372, "ignore_eos": True, "detokenize": False}
    body = {"model": "tiny", "token_ids": PROMPT.tolist(), "cache_salt": "salt", "sampling_params": wanted}
    async with aclosing(http.stream_json(GENERATE, body | {"stream": True})) as chunks:
        running = await _three(http, chunks)
    return before, running, *await _twice(http)


async def _three(http: BackendHttp, pieces: Any) -> "tuple[int, bool, int]":
    for _ in range(3):
        await anext(pieces)
    return await counters(http)


async def _twice(http: BackendHttp) -> "tuple[tuple[int, bool, int], tuple[int, bool, int]]":
    await trio.sleep(0.3)
    soon = await counters(http)
    await trio.sleep(0.5)
    return soon, await counters(http)


async def counted(http: BackendHttp) -> Any:
    """(two after each other, two beside each other, one alone)"""
    backend = VllmBackend(http)
    handle = backend.open()
    one_by_one = [(await collected(backend, handle, PROMPT, max_tokens=1))[1] for _ in range(2)]
    async with aclosing(backend.generate(handle, PROMPT, Sampling(max_tokens=2))) as generated:
        await anext(generated)
        _, inner, _ = await collected(backend, backend.open(), PROMPT, max_tokens=1)
        pieces = [piece async for piece in generated]
    outer = [piece.reused_tokens for piece in pieces]
    return one_by_one, (inner, outer), (await collected(backend, handle, PROMPT, max_tokens=1))[1]


async def refusals(http: BackendHttp) -> Any:
    """Of a prompt that is too long, one that leaves no room, a temperature, and a schema without a tokenizer."""
    backend = _without_counters(http)
    return [
        await failed(backend, array("I", [7] * (CONTEXT_TOKENS + 1))),
        await failed(backend, array("I", [7] * CONTEXT_TOKENS)),
        await failed(backend, SHORT, temperature=-1.0),
        await failed(backend, SHORT, schema={"enum": list(ANSWERS)}),
    ]


async def malformed(http: BackendHttp) -> Any:
    """Of bodies that the backend never sends: another model, nothing to read, no numbers, no object."""
    good = {"model": "tiny", "token_ids": [7], "sampling_params": {}, "stream": True}
    wrong: tuple[Any, ...] = (
        good | {"model": "huge"},
        {"model": "tiny", "stream": True},
        good | {"token_ids": ["x"]},
        [7],
    )
    seen = []
    for body in wrong:
        try:
            async with aclosing(http.stream_json(GENERATE, body)) as chunks:
                seen.append(await anext(chunks))
        except BackendError as error:
            seen.append((error.reason, str(error)))
    return seen


async def schema(http: BackendHttp) -> Any:
    """With the tokenizer's end as a stop token, with another, and with none."""
    backend = _without_counters(http, keeps_schemas=True)
    wanted = {"max_tokens": 9, "schema": {"enum": list(ANSWERS)}}
    return [
        await collected(backend, backend.open(), SHORT, stop_tokens=frozenset(stop_tokens), **wanted)
        for stop_tokens in ([END_TOKEN], [OTHER_END_TOKEN], [])
    ]


async def unknown_token(http: BackendHttp) -> Any:
    """To a server that knows its vocabulary."""
    return await failed(_without_counters(http), array("I", [VOCABULARY]))


async def unknown_token_unchecked(http: BackendHttp) -> Any:
    """To one that does not, and after it a good request."""
    backend = _without_counters(http)
    return await failed(backend, array("I", [VOCABULARY])), await failed(backend, SHORT)


Scenario = Callable[[BackendHttp], Awaitable[Any]]
SCENARIOS: "tuple[tuple[str, Scenario], ...]" = (
    ("says", cold_and_warm),
    ("says", salted),
    ("says", stopped),
    ("says", drawn),
    ("says", left),
    ("says", left_without_abort),
    ("says", refusals),
    ("says", malformed),
    ("counts", counted),
    ("words", schema),
    ("words", unknown_token),
    ("says", unknown_token_unchecked),
)
"""Each with the server it is for, in their order: the last one ends it."""
