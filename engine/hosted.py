"""Hosted tools: async callables that the server itself runs inside the sampling loop (reference 8A).

A tool has a label (the `server_label` a client offers it under), a name, a JSON schema, and a function.
Whatever goes wrong in it becomes a short error that the model sees; the rollout goes on.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import attrs
import orjson
import trio

from engine.config import Limits
from engine.schemas import validator_of

HostedFunction = Callable[..., Awaitable[Any]]


@attrs.frozen
class HostedTool:
    """One tool. `function` is called with the arguments as keywords; what it returns is sent as text or JSON."""

    label: str
    name: str
    function: HostedFunction = attrs.field(repr=False)
    parameters: Mapping[str, Any] = attrs.field(factory=lambda: {"type": "object"})
    description: str = ""


@attrs.frozen
class HostedResult:
    """`output` or `error`, never both."""

    output: str | None = None
    error: str | None = None


@attrs.define
class HostedCall:
    """A whole call of a hosted tool, not written yet."""

    item_id: str
    label: str
    name: str
    pieces: list[str]
    place: int
    """How many calls of the rollout began before it: hosted calls are written in the order in which they began."""

    @property
    def arguments(self) -> str:
        """The JSON text; a call without any is an empty object."""
        return "".join(self.pieces) or "{}"


class HostedTools:
    """The tools of a server, by label and name."""

    def __init__(self, tools: Iterable[HostedTool] = (), *, limits: Limits) -> None:
        self._limits = limits
        self._tools: dict[tuple[str, str], HostedTool] = {}
        self._validators: dict[tuple[str, str], Any] = {}
        for tool in tools:
            key = (tool.label, tool.name)
            if key in self._tools:
                raise ValueError(f"hosted tool {tool.name!r} is registered twice under label {tool.label!r}")
            self._tools[key] = tool
            try:
                self._validators[key] = validator_of(tool.parameters)
            except ValueError as error:
                raise ValueError(f"the schema of hosted tool {tool.name!r} {error}") from None

    @property
    def labels(self) -> Mapping[str, frozenset[str]]:
        """Label → names of its tools."""
        found: dict[str, set[str]] = {}
        for label, name in self._tools:
            found.setdefault(label, set()).add(name)
        return {label: frozenset(names) for label, names in found.items()}

    def described(self, tools: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
        """A request's tools as a model must see them: the hosted ones with what stands behind their label."""
        if not self._tools:
            return tools
        return tuple(self._described(tool) if tool.get("type") == "mcp" else tool for tool in tools)

    def _described(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        allowed = tool.get("allowed_tools")
        if isinstance(allowed, Mapping):
            allowed = allowed.get("tool_names")
        functions = [
            {
                "type": "function",
                "name": own.name,
                "description": own.description,
                "parameters": own.parameters,
            }
            for own in self._tools.values()
            if own.label == tool.get("server_label") and (allowed is None or own.name in allowed)
        ]
        return {**tool, "tools": functions}

    async def run(self, label: str, name: str, arguments: str) -> HostedResult:
        """Call a tool. Never raises but `trio.Cancelled`; a checkpoint."""
        await trio.lowlevel.checkpoint()
        key = (label, name)
        problem, values = self._read(key, arguments)
        if problem is not None:
            return HostedResult(error=problem)
        with trio.move_on_after(self._limits.hosted_tool_timeout_seconds) as scope:
            try:
                answer = await self._tools[key].function(**values)
            except Exception as error:  # noqa: BLE001  # a tool's failure is the model's to see, not the server's to die of
                return HostedResult(error=_words_of(error))
        if scope.cancelled_caught:
            return HostedResult(error=f"timed out after {self._limits.hosted_tool_timeout_seconds:g} s")
        return self._result(answer)

    def _read(self, key: tuple[str, str], arguments: str) -> tuple[str | None, Mapping[str, Any]]:
        try:
            values = orjson.loads(arguments or "{}")
        except ValueError:
            return "arguments are not JSON", {}
        try:
            for error in self._validators[key].iter_errors(values):
                return f"arguments do not fit the schema: {error.message}"[:500], {}
        except Exception as error:  # noqa: BLE001  # whatever the checker has against it
            return f"arguments cannot be checked: {_words_of(error)}"[:500], {}
        return (None, values) if isinstance(values, dict) else ("arguments are not an object", {})

    def _result(self, answer: Any) -> HostedResult:
        try:
            text = answer if isinstance(answer, str) else orjson.dumps(answer).decode()
            size = len(text.encode())
        except (TypeError, ValueError):
            return HostedResult(error="the answer is neither text nor JSON")
        if size > self._limits.max_hosted_output_bytes:
            return HostedResult(
                error=f"the answer has {size} bytes, more than {self._limits.max_hosted_output_bytes}"
            )
        return HostedResult(output=text)


def _words_of(error: Exception) -> str:
    """Type and message, short and sendable: a message may hold half a character, e.g. of a file's name."""
    return f"{type(error).__name__}: {error}"[:500].encode(errors="replace").decode()
