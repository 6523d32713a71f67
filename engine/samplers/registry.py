"""Samplers by name, as the command line and the model table spell them.

paced                                a chatty simulated model that calls the first tool a few times
paced:rate=1000,first=0.02,calls=5   the same, with its numbers
policy:demos.agents.repair           a program in the place of the model, paced like one
policy:demos.agents.repair?rate=500  the same, with numbers
scripted:package.module:SCRIPT       exact steps from Python
"""

import importlib
import math
from collections.abc import Mapping
from typing import Final

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
    raise ValueError(
        f"no sampler {spec!r}; there are paced[:rate=N,first=S,calls=N], policy:MODULE[:NAME][?rate=N], scripted:MODULE:NAME"
    )


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
