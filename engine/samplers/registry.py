"""Samplers by name, as the command line and the model table spell them.

paced                                a chatty simulated model that calls the first tool a few times
paced:rate=1000,first=0.02,calls=5   the same, with its numbers
policy:demos.agents.repair           a program in the place of the model, paced like one
policy:demos.agents.repair?rate=500  the same, with numbers
scripted:package.module:SCRIPT       exact steps from Python
llama:smollm2                        a real model, run here by llama.cpp: weights that were fetched, or a .gguf file
llama:http://127.0.0.1:8080          one in a llama.cpp server
vllm:http://127.0.0.1:8000           one in a vLLM server
chat:http://127.0.0.1:11434/v1       one behind a chat-completions endpoint; it keeps nothing warm that it promises

What follows a `?` is `name=value&name=value`: `format`, `tokenizer` and what the format knows (`engine.formats.registry`);
`temperature`, `top_p`, `seed`, `max_tokens`, `retries` (`engine.samplers.tokens`); the rest is the backend's own.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from engine.config import Limits
from engine.samplers.base import Sampler
from engine.samplers.improv import Improv
from engine.samplers.paced import Pace, Paced
from engine.samplers.policy import PolicySampler, load_policy
from engine.samplers.scripted import Script, Scripted

_NUMBERS: Final[Mapping[str, str]] = {
    "rate": "tokens_per_second",
    "first": "first_token_seconds",
    "prefill": "prefill_tokens_per_second",
    "jitter": "jitter",
    "seed": "seed",
}


_BACKENDS: Final[Mapping[str, str]] = {
    "llama": "engine.backends.llama_factory:make_llama",
    "vllm": "engine.backends.vllm:make_vllm",
}
"""Makers of backends that take tokens: what follows the kind, and the limits → a `Backend`.

One that knows the file of its model's vocabulary has it in `vocabulary`. Imported when one is asked for."""
_SAMPLERS: Final[Mapping[str, str]] = {"chat": "engine.samplers.chat:make_chat"}
"""Makers of samplers, asked alike."""
_CHOICES: Final[Mapping[str, Callable[[str], Any]]] = {
    "temperature": float,
    "top_p": float,
    "seed": int,
    "max_tokens": int,
    "retries": int,
}


def make_sampler(spec: str, limits: Limits) -> Sampler:
    """The sampler of a spec. `ValueError`: says what is wrong and which specs there are."""
    kind, _, rest = spec.partition(":")
    if kind == "paced":
        numbers = _read_numbers(spec, rest, {"calls", "words"})
        source = Improv(calls=int(numbers.pop("calls", 3)), words=int(numbers.pop("words", 40)))
        return Paced(source, _pace(numbers), tick_seconds=limits.tick_seconds)
    if kind == "policy" and rest:
        path, _, query = rest.partition("?")
        policy = PolicySampler(load_policy(path))
        return Paced(policy, _pace(_read_numbers(spec, query, set())), tick_seconds=limits.tick_seconds)
    if kind == "scripted" and rest:
        return Scripted(_load_script(spec, rest))
    if kind in _SAMPLERS and rest:
        sampler: Sampler = _named(_SAMPLERS[kind])(rest, limits)
        return sampler
    if kind in _BACKENDS and rest:
        try:
            return _token_sampler(kind, rest, limits)
        except (ValueError, OSError) as error:
            raise ValueError(f"sampler {spec!r}: {error}") from error
    raise ValueError(
        f"no sampler {spec!r}; there are paced[:rate=N,first=S,calls=N], policy:MODULE[:NAME][?rate=N], "
        f"scripted:MODULE:NAME, llama:NAME, llama:FILE.gguf, llama:URL, vllm:URL, chat:URL"
    )


def _token_sampler(kind: str, rest: str, limits: Limits) -> Sampler:
    """A backend, and the format that its model speaks."""
    from engine.formats.registry import FORMAT_OPTIONS, make_format  # noqa: PLC0415  # vocabularies are large
    from engine.samplers.tokens import TokenOptions, TokenSampler  # noqa: PLC0415

    target, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    name, tokenizer = options.pop("format", None), options.pop("tokenizer", None)
    choices = {key: _read_choice(key, options.pop(key)) for key in _CHOICES if key in options}
    for_format = {key: options.pop(key) for key in FORMAT_OPTIONS if key in options}
    backend = _named(_BACKENDS[kind])(f"{target}?{urlencode(options)}" if options else target, limits)
    format_ = make_format(name, tokenizer, for_format, getattr(backend, "vocabulary", None))
    return TokenSampler(format_, backend, TokenOptions(**choices))


def _read_choice(key: str, text: str) -> Any:
    try:
        value = _CHOICES[key](text)
    except ValueError as error:
        raise ValueError(f"{key}={text!r} is no number that it can be") from error
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{key}={text!r} is no number that it can be")
    return value


def _named(path: str) -> Any:
    """What is at an import path of our own."""
    module_name, _, name = path.partition(":")
    return getattr(importlib.import_module(module_name), name)


def _pace(numbers: dict[str, float]) -> Pace:
    named = {_NUMBERS[key]: value for key, value in numbers.items()}
    if "seed" in named:
        named["seed"] = int(named["seed"])
    return Pace(**named)  # type: ignore[arg-type]  # the seed is whole by now


def _read_numbers(spec: str, text: str, more: set[str]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in more and key not in _NUMBERS:
            raise ValueError(
                f"sampler {spec!r}: no number {key!r}; there are {', '.join([*_NUMBERS, *sorted(more)])}"
            )
        numbers[key] = _number(value)
        if not math.isfinite(numbers[key]):
            raise ValueError(f"sampler {spec!r}: {key}={value!r} is not a number")
        if numbers[key] < 0 or (key in ("rate", "prefill") and numbers[key] == 0):
            raise ValueError(f"sampler {spec!r}: {key}={value} is too small")
    return numbers


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _load_script(spec: str, path: str) -> Script:
    module_name, _, name = path.partition(":")
    try:
        script = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"sampler {spec!r}: {error}") from error
    return script  # type: ignore[no-any-return]  # whoever names it vouches for it
