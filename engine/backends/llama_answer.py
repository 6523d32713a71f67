"""What llama.cpp's server streams, read as token ids: without I/O, and without believing it.

Each chunk has the id of one token and the count of those sampled so far. The server holds text back until its characters
are whole, and the ids with it: of a character that several tokens spell only the last id ever comes. Such a *hole* shows
in the count; what it spells is in the chunk's text. At the end of a stream the text of a hole is missing, too.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from engine.backends.base import BackendError

StopKind = Literal["eos", "limit"]


@attrs.frozen(kw_only=True)
class Chunk:
    """One chunk of an answer that was found in order."""

    tokens: tuple[int, ...] = ()
    """What was sampled, if nothing is missing."""
    text: str = ""
    """What the tokens since the last chunk spell."""
    hole_tokens: int = 0
    """If not 0: `text` stands for so many tokens, of which ids are missing."""
    reused_tokens: int | None = None
    computed_tokens: int | None = None
    """On the first chunk that has tokens, and on the last one."""
    stop: StopKind | None = None
    """On the last chunk; what it holds besides is a hole without text, or nothing."""


class AnswerReader:
    """One streamed answer to a prompt of so many tokens."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._sampled_tokens = 0
        self._counted = False

    def feed(self, chunk: Any) -> Chunk | None:
        """The next chunk; None if it says only how far the prompt was read. `BackendError`."""
        if isinstance(chunk, Mapping) and "error" in chunk:
            raise BackendError("refused", f"llama.cpp gave up: {_message(chunk['error'])}")
        try:
            if "prompt_progress" in chunk:
                return None  # it has a token, too, which nobody sampled
            return self._read(chunk)
        except (KeyError, TypeError, ValueError) as error:
            raise BackendError("broke_promise", f"llama.cpp's chunk lacks {error}: {chunk!r:.300}") from None

    def _read(self, chunk: Mapping[str, Any]) -> Chunk:
        sampled, tokens = int(chunk["tokens_predicted"]), tuple(map(int, chunk["tokens"]))
        new, self._sampled_tokens = sampled - self._sampled_tokens, sampled
        if new < len(tokens):
            raise BackendError(
                "broke_promise", f"llama.cpp sent {len(tokens)} tokens and counts {new} more than before"
            )
        reused, computed = (None, None) if self._counted else self._counts(chunk)
        return Chunk(
            tokens=tokens if new == len(tokens) else (),
            text=str(chunk["content"]),
            hole_tokens=0 if new == len(tokens) else new,
            reused_tokens=reused,
            computed_tokens=computed,
            stop=_stop(chunk) if chunk["stop"] else None,
        )

    def _counts(self, chunk: Mapping[str, Any]) -> tuple[int, int]:
        """How much of the prompt was found warm, and how much was read: all of it, together."""
        reused, computed = (int(chunk["timings"][name]) for name in ("cache_n", "prompt_n"))
        if min(reused, computed) < 0 or reused + computed != self._prompt_tokens:
            raise BackendError(
                "broke_promise",
                f"llama.cpp says that of {self._prompt_tokens:,} prompt tokens it found {reused:,} warm "
                f"and read {computed:,}; that does not add up",
            )
        self._counted = True
        return reused, computed


def _stop(chunk: Mapping[str, Any]) -> StopKind:
    kind = chunk["stop_type"]
    if kind not in {"eos", "limit"}:
        raise BackendError("broke_promise", f"llama.cpp stopped for a reason nobody gave it: {kind!r}")
    return "eos" if kind == "eos" else "limit"


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, Mapping) else error)[:300]


def literal_grammar(text: str) -> str:
    """The GBNF grammar of one text and nothing else."""
    escaped = "".join(
        character if character.isalnum() and character.isascii() else f"\\U{ord(character):08X}"
        for character in text
    )
    return f'root ::= "{escaped}"'
