"""W11: what a rollout said, without its form: items and output tokens, ids and times left out."""

from hashlib import blake2b
from typing import Any, Final

import orjson

from protocol.rules.state import Response

SHOWN: Final = 64
"""Items kept in words, to say where two scripts part."""


class Script:
    """The items of a trace's rollout in order, in constant memory."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=16)
        self.items: list[str] = []
        self.count = 0
        self.output_tokens = 0
        self._calls: dict[str, int] = {}

    def add(self, response: Response) -> None:
        """The items and the usage of a response that has ended."""
        for item in response.items:
            if item.done is not None:
                self._item(item.done)
        if response.segments:
            self.output_tokens += response.segments[-1]["output"]

    def _item(self, item: dict[str, Any]) -> None:
        words = _plain(item)
        self._digest.update(words)
        self.count += 1
        if len(self.items) < SHOWN:
            self.items.append(words[:400].decode("utf-8", "replace"))

    @property
    def said(self) -> tuple[str, int, int]:
        """Equal for two traces that say the same."""
        return self._digest.hexdigest(), self.count, self.output_tokens

    def differs(self, other: "Script") -> tuple[str, str]:
        """The first difference: what this one says, and what the other does."""
        for ours, theirs in zip(self.items, other.items, strict=False):
            if ours != theirs:
                return ours, theirs
        if self.count != other.count:
            return f"{self.count} items", f"{other.count} items"
        return f"{self.output_tokens} output tokens", f"{other.output_tokens} output tokens"


def _plain(item: dict[str, Any]) -> bytes:
    content = item.get("content")
    texts = (
        [[one.get("type"), one.get("text", one.get("refusal"))] for one in content if isinstance(one, dict)]
        if isinstance(content, list)
        else None
    )
    members = [item.get(key) for key in ("type", "role", "name", "arguments", "input", "output", "summary")]
    try:
        return orjson.dumps([*members, texts])
    except (TypeError, ValueError):
        return repr([*members, texts]).encode("utf-8", "replace")
