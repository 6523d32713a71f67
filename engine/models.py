"""The model table: which names are served, by which sampler, with which window.

A table is a TOML file::

    [[model]]
    name = "demo"               # or: pattern = "gpt-*"
    sampler = "paced"           # left out: the server's default
    format = "chatml"           # of a sampler over tokens, and so is the vocabulary; left out: the model file's own
    tokenizer = "qwen3"
    context_tokens = 131072
    default = true              # names that nobody listed are served by this one
    prefill_tokens_per_second = 200.0    # hints for whoever chooses, as are the prices, of a million tokens
    tokens_per_second = 50.0
    input_price = 0.0
    cached_input_price = 0.0
    output_price = 0.0
    capabilities = ["tools", "reasoning"]
    created = 1764967971        # seconds since 1970, for GET /v1/models

An exact name wins over patterns; among patterns the first in the file wins.
A name that fits nothing is refused, and the refusal lists the known ones, or is served by the default one.
Without a file every name is served: clients have their own ideas of names, and the engine's samplers do not care.
"""

import fnmatch
import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

import attrs

from protocol.errors import RemoteProtocolError, refusal

CAPABILITIES: Final = frozenset({"tools", "reasoning", "images"})
DEFAULT_CONTEXT_TOKENS: Final = 131_072
SIMULATED_CONTEXT_TOKENS: Final = 1 << 24
"""A simulated model has no window of its own; a tool output of megabytes should fit."""
MAX_NAME_CHARACTERS: Final = 256
"""Names come from clients, are logged and echoed; longer ones are refused."""

MAX_LISTED: Final = 20
"""Names in a refusal."""

_WILDCARDS: Final = "*?["


@attrs.frozen(kw_only=True)
class ModelEntry:
    """One model as served."""

    name: str
    """In the table it may be a pattern; an entry that `ModelTable.find` returned has the name asked for."""
    sampler: str | None = None
    """How to make the sampler; None means the server's default."""
    context_tokens: int = DEFAULT_CONTEXT_TOKENS
    """Input and output together (reference 9, `truncation`)."""
    capabilities: frozenset[str] = CAPABILITIES
    created: int = 0
    format: str | None = None
    """The chat format, of a sampler over tokens; None: the model's file says it."""
    tokenizer: str | None = None
    default: bool = False
    """Does it serve the names that no entry has?"""
    prefill_tokens_per_second: float | None = None
    """A hint, as are the others below: how fast, and for how much; the prices of a million tokens, in any currency."""
    tokens_per_second: float | None = None
    input_price: float | None = None
    cached_input_price: float | None = None
    output_price: float | None = None

    @property
    def spec(self) -> str | None:
        """How to make the sampler, format and tokenizer included; None means the server's default."""
        said = {"format": self.format, "tokenizer": self.tokenizer}
        options = urlencode({key: value for key, value in said.items() if value is not None})
        if self.sampler is None or not options:
            return self.sampler
        return f"{self.sampler}{'&' if '?' in self.sampler else '?'}{options}"

    @property
    def is_pattern(self) -> bool:
        """Whether this entry stands for many names."""
        return any(character in self.name for character in _WILDCARDS)


@attrs.frozen
class ModelTable:
    """The models of a server, in the order of the file."""

    entries: tuple[ModelEntry, ...]

    @classmethod
    def built_in(cls, context_tokens: int = 0) -> Self:
        """The table without a file: any name, the server's default sampler, and its window if it has one."""
        return cls((ModelEntry(name="*", context_tokens=context_tokens or SIMULATED_CONTEXT_TOKENS),))

    @classmethod
    def from_toml(cls, source: Path | bytes) -> Self:
        """Read a table. `ValueError`: what is wrong, in which file, entry and key, and what to write instead."""
        origin = str(source) if isinstance(source, Path) else "model table"
        content = source.read_bytes() if isinstance(source, Path) else source
        try:
            document = tomllib.loads(content.decode())
        except ValueError as error:  # not UTF-8, or not TOML; the latter names line and column
            raise ValueError(f"{origin}: not a TOML file: {error}") from error
        return cls(_read(origin, document))

    @property
    def named(self) -> tuple[ModelEntry, ...]:
        """The entries with a name of their own, for listing; a pattern cannot be listed."""
        return tuple(entry for entry in self.entries if not entry.is_pattern)

    def find(self, name: str) -> ModelEntry:
        """The entry that serves `name`, with that name.

        `RemoteProtocolError`: `model_not_found` (404), or `invalid_value` for an empty or overlong name.
        """
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            raise refusal("invalid_value", field="model")
        for entry in self.named:
            if entry.name == name:
                return entry
        for entry in self.entries:
            if fnmatch.fnmatchcase(name, entry.name):
                return attrs.evolve(entry, name=name)
        for entry in self.entries:
            if entry.default:
                return attrs.evolve(entry, name=name)
        raise self._not_found(name)

    def _not_found(self, name: str) -> RemoteProtocolError:
        error = refusal("model_not_found", model=name)
        known = [entry.name for entry in self.entries]
        more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
        words = f"{error.message} Known here: {', '.join(known[:MAX_LISTED])}{more}."
        return RemoteProtocolError(error.code, words, param=error.param, status=error.status, type=error.type)


def _read(origin: str, document: Mapping[str, Any]) -> tuple[ModelEntry, ...]:
    for key in document:
        if key != "model":
            raise ValueError(f"{origin}: unknown key {key!r}; the file holds [[model]] entries only")
    listed = document.get("model", [])
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise ValueError(
            f'{origin}: no [[model]] entries; write at least one, e.g. [[model]] with name = "demo"'
        )
    entries = tuple(
        _entry(f"{origin}: [[model]] entry {number}", fields) for number, fields in enumerate(listed, start=1)
    )
    seen: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        if entry.name in seen:
            raise ValueError(
                f"{origin}: [[model]] entry {number}: {entry.name!r} is already entry {seen[entry.name]}; remove one"
            )
        seen[entry.name] = number
    defaults = [number for number, entry in enumerate(entries, start=1) if entry.default]
    if len(defaults) > 1:
        raise ValueError(
            f"{origin}: [[model]] entry {defaults[1]}: entry {defaults[0]} is the default already; only one can be"
        )
    return entries


def _entry(where: str, fields: Mapping[str, Any]) -> ModelEntry:
    for key in fields:
        if key not in _KEYS:
            raise ValueError(f"{where}: unknown key {key!r}; known are {', '.join(_KEYS)}")
    if ("name" in fields) == ("pattern" in fields):
        raise ValueError(f"{where}: needs either 'name' or 'pattern'")
    values = {}
    for key, value in fields.items():
        is_right, expected = _KEYS[key]
        if not is_right(value):
            raise ValueError(f"{where}: {key} must be {expected}, not {value!r}")
        values["name" if key == "pattern" else key] = value
    for key in ("format", "tokenizer"):
        if key in fields and "sampler" not in fields:
            raise ValueError(
                f"{where}: {key} needs a sampler over tokens, such as sampler = 'llama:model.gguf'"
            )
    if "capabilities" in values:
        values["capabilities"] = frozenset(values["capabilities"])
    return ModelEntry(**values)


def _is_name(value: object) -> bool:
    return (
        isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARACTERS and not set(value) & set(_WILDCARDS)
    )


def _is_pattern(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARACTERS and bool(set(value) & set(_WILDCARDS))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: object, *, minimum: int = 0) -> bool:
    return type(value) is int and value >= minimum


def _is_price(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]  # a number, by its type


def _is_rate(value: object) -> bool:
    return _is_price(value) and value != 0


def _is_capabilities(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, str) and entry in CAPABILITIES for entry in value
    )


_KEYS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "name": (_is_name, "a text without any of * ? [ (use 'pattern' for those)"),
    "pattern": (_is_pattern, "a text with any of * ? [ (use 'name' for a single model)"),
    "sampler": (_is_text, "a text, or left out for the server's default"),
    "context_tokens": (lambda value: _is_whole(value, minimum=1), "a whole number above 0"),
    "capabilities": (_is_capabilities, f"a list out of {sorted(CAPABILITIES)}"),
    "created": (_is_whole, "whole seconds since 1970"),
    "format": (_is_text, "a text, such as 'chatml' or 'harmony'"),
    "tokenizer": (_is_text, "a text, such as 'qwen3' or the path of a .gguf file"),
    "default": (lambda value: type(value) is bool, "true or false"),
    "prefill_tokens_per_second": (_is_rate, "a number above 0"),
    "tokens_per_second": (_is_rate, "a number above 0"),
    "input_price": (_is_price, "a number, 0 or above"),
    "cached_input_price": (_is_price, "a number, 0 or above"),
    "output_price": (_is_price, "a number, 0 or above"),
}
