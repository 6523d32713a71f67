"""A source without a mind: talks, and calls the first tools it is offered, a few times.

It is what `--sampler paced` says. With tools: `calls` rounds, each one call with arguments that fit the tool's schema
in shape; then an answer of `words` words that counts what came back. What it says depends on the prompt alone.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Final

import orjson
import trio

from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Prompt,
    Sampling,
    Steps,
    Text,
)
from protocol.items import OUTPUTS, Item, text_of

_WORDS: Final = [
    "the",
    "rollout",
    "waits",
    "while",
    "a",
    "tool",
    "runs",
    "and",
    "goes",
    "on",
    "where",
    "it",
    "was",
    "because",
    "nothing",
    "of",
    "it",
    "was",
    "thrown",
    "away",
    "so",
    "the",
    "next",
    "token",
    "follows",
    "the",
    "last",
    "one",
    "as",
    "if",
    "no",
    "time",
    "had",
    "passed",
]

_EXAMPLES: Final[Mapping[str, Any]] = {
    "string": "example",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


class Improv:
    """The source. `calls`: tool rounds of a rollout that has tools; `words`: length of the answer."""

    def __init__(self, *, calls: int = 3, words: int = 40) -> None:
        self._calls = calls
        self._words = words

    def open(self, prompt: Prompt) -> Sampling:
        """Start a rollout."""
        tools = [] if prompt.tool_choice == "none" else list(_callable(prompt.tools))
        return _Talking(tools, self._calls if tools else 0, self._words)


class _Talking:
    def __init__(self, tools: Sequence[tuple[Mapping[str, Any], str | None]], calls: int, words: int) -> None:
        self._tools = tools
        self._calls_left = calls
        self._words = words
        self._outputs: list[Item] = []

    async def sample(self, appended: Appended) -> Steps:
        await trio.lowlevel.checkpoint()
        self._outputs += [item for item in appended.items if isinstance(item, OUTPUTS)]
        if self._calls_left:
            tool, namespace = self._tools[self._calls_left % len(self._tools)]
            self._calls_left -= 1
            yield (CallStart(0, tool["name"], namespace), CallInput(0, _input_of(tool)), CallEnd(0), End())
        else:
            yield (Text(self._answer()), End())

    def _answer(self) -> str:
        size = sum(len(text_of(item.output)) for item in self._outputs if isinstance(item, OUTPUTS))
        heard = (
            f"{len(self._outputs)} tool outputs with {size} characters came back: " if self._outputs else ""
        )
        return heard + " ".join(islice(cycle(_WORDS), self._words)) + "."

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _callable(tools: Sequence[Mapping[str, Any]]) -> "list[tuple[Mapping[str, Any], str | None]]":
    found: list[tuple[Mapping[str, Any], str | None]] = []
    for tool in tools:
        if tool.get("type") == "namespace":
            found += [(inner, str(tool["name"])) for inner, _ in _callable(tool.get("tools", ()))]
        elif tool.get("type") in ("function", "custom"):
            found.append((tool, None))
    return found


def _input_of(tool: Mapping[str, Any]) -> str:
    if tool["type"] == "custom":
        return "example"
    return orjson.dumps(_example(tool.get("parameters") or {"type": "object"})).decode()


def _example(schema: Mapping[str, Any]) -> Any:
    """A value of the schema's shape: required members only, first of the allowed values."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if kind == "object":
        members = schema.get("properties", {})
        return {name: _example(members.get(name, {})) for name in schema.get("required", ())}
    return _EXAMPLES.get(kind if isinstance(kind, str) else kind[0], "example")
