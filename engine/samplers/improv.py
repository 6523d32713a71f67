"""A source without a mind: talks, and calls the first tools it is offered, a few times.

It is what `--sampler paced` says. With tools: `calls` rounds, each one call with arguments that fit the tool's schema
in shape; then an answer of `words` words that counts what came back, or, if an answer of a form is asked for, an example
of that form. What it says depends on the prompt alone.
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
from protocol.items import CALLS, OUTPUTS, Item, McpCall, Message, text_of

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

_MAX_VALUES, _MAX_ITEMS = 200, 8
"""In one example, and in one list of it."""

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

    keeps_text_format = True

    def __init__(self, *, calls: int = 3, words: int = 40) -> None:
        self._calls = calls
        self._words = words

    def open(self, prompt: Prompt) -> Sampling:
        """Start a rollout."""
        tools = [] if prompt.tool_choice == "none" else list(_callable(prompt.tools))
        return _Talking(tools, self._calls if tools else 0, self._words, prompt.text_format)


class _Talking:
    def __init__(
        self,
        tools: Sequence[tuple[Mapping[str, Any], str | None]],
        calls: int,
        words: int,
        text_format: Mapping[str, Any] | None,
    ) -> None:
        self._tools = tools
        self._calls = calls
        self._words = words
        self._text_format = text_format
        self._made = 0
        """Calls since a user's last word. They are counted in the prompt: some forms send it whole each time."""
        self._outputs: list[Item] = []

    async def sample(self, appended: Appended) -> Steps:
        await trio.lowlevel.checkpoint()
        for item in appended.items:
            self._hear(item)
        calls_left = self._calls - self._made
        if calls_left > 0:
            tool, namespace = self._tools[calls_left % len(self._tools)]
            yield (CallStart(0, tool["name"], namespace), CallInput(0, _input_of(tool)), CallEnd(0), End())
        else:
            yield (Text(self._answer()), End())

    def _hear(self, item: Item) -> None:
        if isinstance(item, OUTPUTS):
            self._outputs.append(item)
        elif isinstance(item, (*CALLS, McpCall)):
            self._made += 1
        elif isinstance(item, Message) and item.role == "user":
            self._made, self._outputs = 0, []

    def _answer(self) -> str:
        if self._text_format is not None:
            schema = self._text_format.get("schema", {"type": "object"})
            return orjson.dumps(_example(schema)).decode()
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
    parameters = tool.get("parameters") or {"type": "object"}
    return orjson.dumps(_example(parameters)).decode()


def _example(schema: Mapping[str, Any]) -> Any:
    """A value of the schema's shape: required members only, first of the allowed values."""
    return _Examples(schema.get("$defs")).of(schema)


class _Examples:
    """Makes values; few, whatever a schema asks for: one that names itself has no end."""

    def __init__(self, named: Any) -> None:
        self._named: Mapping[str, Any] = named if isinstance(named, Mapping) else {}
        self._left = _MAX_VALUES

    def of(self, schema: Any) -> Any:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return "example"
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        other = self._instead(schema)
        return self._of_kind(schema) if other is None else self.of(other)

    def _instead(self, schema: Mapping[str, Any]) -> Any:
        """The schema that stands for this one: what it names, or the first that it allows."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._named.get(reference.rpartition("/")[2])
        choices = (schema.get(name) for name in ("anyOf", "oneOf", "allOf"))
        return next((some[0] for some in choices if isinstance(some, list) and some), None)

    def _of_kind(self, schema: Mapping[str, Any]) -> Any:
        kind = schema.get("type", "string")
        kind = kind if isinstance(kind, str) else kind[0]
        if kind == "object":
            members = schema.get("properties", {})
            return {name: self.of(members.get(name, {})) for name in schema.get("required", ())}
        if kind == "array":
            return [
                self.of(schema.get("items", {})) for _ in range(min(schema.get("minItems", 0), _MAX_ITEMS))
            ]
        return _EXAMPLES.get(kind, "example")
