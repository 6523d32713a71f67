"""How a llama.cpp backend is written down: a model to run here, or the URL of a server.

    smollm2                      weights that were fetched, or any file *.gguf, in a child process
    http://127.0.0.1:8080        a server somewhere

After a `?` for a model run here: `slots` (sequences that are warm at a time), `context` (tokens of each), `threads`, `batch`;
for a server: `key` (the variable that holds its key); for both: `silence` (seconds).
"""

import importlib.util
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from engine.backends.llama import LlamaBackend, RemoteLlama
from engine.backends.llama_child import LlamaChild, LlamaSettings
from engine.backends.options import HTTP_OPTIONS, http_of, positive_number, split_options, whole_number
from engine.config import Limits
from engine.formats.gguf import require_whole
from engine.weights import KNOWN, WeightsError, cache_folder, find

_LOCAL_OPTIONS: Final = ("slots", "context", "threads", "batch", "silence")
INSTALL: Final = "pip install 'suspended-response[local]'"


class EmbeddedLlama(LlamaBackend):
    """A backend with the task that its child process needs."""

    run: Callable[[], Awaitable[None]]

    async def wait_loaded(self) -> None:
        """Wait until the child has the model in memory, while `run` runs. `BackendError`: it never will. A checkpoint."""
        await self.start()


def make_llama(rest: str, limits: Limits) -> LlamaBackend:  # noqa: ARG001  # the shape of all factories
    """The backend of a spec after `llama:`. `ValueError`: what is wrong, and what to do. `OSError`: an unreadable file.

    Of a model that is run here the file's head is read, some 0.1 s.
    """
    if rest.startswith(("http://", "https://")):
        url, options = split_options("llama", rest, HTTP_OPTIONS)
        return LlamaBackend(RemoteLlama(http_of("llama", url, options)))
    name, options = split_options("llama", rest, _LOCAL_OPTIONS)
    try:
        model = find(name, cache_folder(os.environ, Path.home()))
    except WeightsError as error:
        raise ValueError(f"llama: {error}") from None
    if importlib.util.find_spec("xllamacpp") is None:
        raise ValueError(f"llama: running a model here needs xllamacpp: {INSTALL}")
    require_whole(model)
    standard = LlamaSettings(model=model)
    context_tokens = KNOWN[name].context_tokens if name in KNOWN else standard.context_tokens
    settings = LlamaSettings(
        model=model,
        slots=whole_number("llama", options, "slots", standard.slots),
        context_tokens=whole_number("llama", options, "context", context_tokens),
        threads=whole_number("llama", options, "threads", 1) if "threads" in options else None,
        batch_tokens=whole_number("llama", options, "batch", standard.batch_tokens),
        silence_seconds=positive_number("llama", options, "silence", standard.silence_seconds),
    )
    return _embedded(settings, model.stem)


def _embedded(settings: LlamaSettings, name: str) -> EmbeddedLlama:
    child = LlamaChild(settings)
    backend = EmbeddedLlama(
        child,
        name=name,
        context_tokens=settings.context_tokens,
        slot_count=settings.slots,
        vocabulary=settings.model,
    )
    backend.run = child.run
    return backend
