"""SmolLM2 for tests: where its weights are, and a backend that runs it in a child process with one thread.

Marked `models`. CI fetches the weights before; anywhere else such tests are skipped with a reason if they are absent.
"""

import importlib.util
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio

from engine.backends.llama import LlamaBackend
from engine.backends.llama_child import LlamaChild, LlamaSettings
from engine.weights import WeightsError, cache_folder, find

USER, ASSISTANT, END = (1, 4093, 198), (1, 520, 9531, 198), (2, 198)
"""ChatML: <|im_start|>user and a line's end, <|im_start|>assistant and a line's end, <|im_end|> and a line's end."""


def weights() -> Path:
    """The file. Without it, or without the engine, the test is skipped; in CI it fails."""
    try:
        path = find("smollm2", cache_folder(os.environ, Path.home()))
    except WeightsError as error:
        return _missing(str(error))
    if importlib.util.find_spec("xllamacpp") is None:
        return _missing("no xllamacpp: pip install -e '.[local]'")
    return path


def _missing(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(f"NO REAL MODEL IS TESTED HERE: {why}")


@asynccontextmanager
async def running(
    *, slots: int = 2, retries: int = 0, **options: Any
) -> "AsyncIterator[tuple[LlamaChild, LlamaBackend]]":
    """A child that is up, and a backend over it."""
    settings = LlamaSettings(
        **({"model": weights(), "slots": slots, "context_tokens": 2048, "threads": 1} | options)
    )
    async with trio.open_nursery() as nursery:
        child = LlamaChild(settings)
        with trio.fail_after(120):
            await nursery.start(child.run)
            backend = LlamaBackend(child, name="smollm2", retries=retries)
            await backend.start()
        yield child, backend
        nursery.cancel_scope.cancel()


async def tokens_of(child: LlamaChild, text: str) -> "list[int]":
    """As llama.cpp itself reads a text: no control tokens in it."""
    answer = await (await child.ready()).post_json("/tokenize", {"content": text, "parse_special": False})
    return [int(token) for token in answer["tokens"]]


async def asked(child: LlamaChild, text: str) -> "list[int]":
    """A user's message, and the opening of the answer."""
    return [*USER, *await tokens_of(child, text), *END, *ASSISTANT]


async def slot_state(child: LlamaChild, slot: int = 0) -> "tuple[bool, int]":
    """Counted at the backend: is the slot busy, and how many tokens are in it?"""
    state = (await (await child.ready()).get_json("/slots"))[slot]
    return bool(state["is_processing"]), int(state.get("n_prompt_tokens", 0))


async def until(condition: "Callable[[], bool]") -> None:
    """Wait for what another process does."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110  # nothing tells us
            await trio.sleep(0.05)
