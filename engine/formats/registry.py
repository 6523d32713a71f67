"""Formats and tokenizers by name, as the command line and the model table spell them.

format      chatml, harmony
tokenizer   qwen3, llama3, o200k_harmony; or a model file, whose own vocabulary is read: path.gguf
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.formats.base import Format, Tokenizer
from engine.formats.byte_pairs import BytePairs
from engine.formats.chatml import ChatML, ChatMLOptions
from engine.formats.gguf import read_metadata
from engine.formats.harmony import HARMONY_OPTIONS, make_harmony
from engine.formats.quick_tokenizer import NAMES, quick_tokenizer
from engine.weights import cache_folder

FORMATS: Final = ("chatml", "harmony")
CHATML_OPTIONS: Final[tuple[str, ...]] = ("forced_calls", "strict", "system", "thinks")
"""What may be said of ChatML besides (`ChatMLOptions`)."""
FORMAT_OPTIONS: Final = tuple(sorted({*CHATML_OPTIONS, *HARMONY_OPTIONS}))
"""What may be said of some format."""

_SIGNS: Final = {"chatml": "<|im_start|>", "harmony": "<|channel|>"}
"""What tells a format from a model file's own template."""


def make_format(
    name: str | None, tokenizer: str | None, options: Mapping[str, str], vocabulary: Path | None = None
) -> Format:
    """The format of a model. `vocabulary`: its file, if there is one; it says what was not said.

    `ValueError`: what is wrong, and what to write instead. `OSError`: the file cannot be read.
    """
    metadata: Mapping[str, Any] = {}
    file = Path(tokenizer) if tokenizer is not None and tokenizer.endswith(".gguf") else vocabulary
    if file is not None:
        metadata = read_metadata(file)
    name = name or _format_of(metadata)
    if name == "harmony":
        return make_harmony(options, cache_folder(os.environ, Path.home()).with_name("harmony"))
    if name != "chatml":
        raise ValueError(f"no format {name!r}; there are {', '.join(FORMATS)}")
    return ChatML(_tokenizer(tokenizer, metadata, file), _chatml_options(options))


def _tokenizer(name: str | None, metadata: Mapping[str, Any], file: Path | None) -> Tokenizer:
    if name is not None and not name.endswith(".gguf"):
        return quick_tokenizer(name)
    if file is None:
        raise ValueError(
            f"which vocabulary does the model have? Write tokenizer=, one of {', '.join(NAMES)}, or its .gguf file"
        )
    return BytePairs.from_metadata(metadata, str(file))


def _format_of(metadata: Mapping[str, Any]) -> str:
    template = str(metadata.get("tokenizer.chat_template", ""))
    for name, sign in _SIGNS.items():
        if sign in template:
            return name
    raise ValueError(f"which format does the model speak? Write format=, one of {', '.join(FORMATS)}")


def _chatml_options(options: Mapping[str, str]) -> ChatMLOptions:
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in CHATML_OPTIONS:
            raise ValueError(
                f"the format chatml has no option {key!r}; there are {', '.join(CHATML_OPTIONS)}"
            )
        if key == "system":
            values[key] = text
        elif key == "forced_calls":
            if not (text.isascii() and text.isdigit()):
                raise ValueError(f"forced_calls={text!r} is not a whole number")
            values[key] = int(text)
        elif text in ("yes", "no"):
            values[key] = text == "yes"
        else:
            raise ValueError(f"{key}={text!r} is neither yes nor no")
    return ChatMLOptions(**values)
