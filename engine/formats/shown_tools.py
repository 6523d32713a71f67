"""The tools of a request as a model is shown them: one flat list of names, and the way back from a name to the tool.

A tool of a namespace, or of a hosted label, is shown as `namespace.name`.
A custom tool takes free text; a model that can only write JSON is shown one with a single member, `input`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import attrs

Kind = Literal["function", "custom"]

NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
INPUT_KEY: Final = "input"
CUSTOM_ARGUMENTS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {INPUT_KEY: {"type": "string"}},
    "required": [INPUT_KEY],
    "additionalProperties": False,
}


@attrs.frozen
class ShownTool:
    """One tool. `parameters` is the JSON schema of its arguments."""

    shown: str
    name: str
    namespace: str | None = None
    kind: Kind = "function"
    description: str = ""
    parameters: Mapping[str, Any] = NO_ARGUMENTS


@attrs.frozen
class ShownTools:
    """The tools by the names that the model uses."""

    by_shown: Mapping[str, ShownTool]

    @classmethod
    def of(cls, tools: Iterable[Mapping[str, Any]]) -> "ShownTools":
        """Those that can be called. Of two tools with one name and namespace the later one counts."""
        found = {(tool.namespace, tool.name): tool for tool in _read(tools)}
        by_shown: dict[str, ShownTool] = {}
        for tool in found.values():
            shown = tool.shown
            while shown in by_shown:  # a function "a.b" beside "b" of a namespace "a"
                shown += "_"
            by_shown[shown] = attrs.evolve(tool, shown=shown)
        return cls(by_shown)

    def __iter__(self) -> Iterator[ShownTool]:
        return iter(self.by_shown.values())

    def __len__(self) -> int:
        return len(self.by_shown)

    def find(self, shown: str) -> ShownTool:
        """The tool that a model means. A name without its namespace is understood if there is one such tool only.

        A name that nobody listed is a function of that name: the client knows best.
        """
        tool = self.by_shown.get(shown)
        if tool is not None:
            return tool
        named = [tool for tool in self if tool.name == shown]
        return named[0] if len(named) == 1 else ShownTool(shown, shown)

    def shown_name(self, name: str, namespace: str | None) -> str:
        """How a call in the history was written."""
        for tool in self:
            if (tool.name, tool.namespace) == (name, namespace):
                return tool.shown
        return name if namespace is None else f"{namespace}.{name}"

    def permitted(self, choice: str | Mapping[str, Any]) -> "ShownTools":
        """Those that a `tool_choice` leaves (reference 8.4)."""
        if choice == "none":
            return ShownTools({})
        if isinstance(choice, str):
            return self
        kind = choice.get("type")
        if kind in ("function", "custom"):
            return self._only([choice])
        if kind == "allowed_tools":
            return self._only(choice.get("tools") or ())
        return self

    def _only(self, named: Iterable[Mapping[str, Any]]) -> "ShownTools":
        listed = [tool for tool in named if isinstance(tool, Mapping)]
        return ShownTools(
            {
                shown: tool
                for shown, tool in self.by_shown.items()
                if any(_names(some, tool) for some in listed)
            }
        )


def must_call(choice: str | Mapping[str, Any]) -> bool:
    """Does a `tool_choice` ask for a call?"""
    if isinstance(choice, str):
        return choice == "required"
    if choice.get("type") == "allowed_tools":
        return choice.get("mode") == "required"
    return choice.get("type") in ("function", "custom")


def _names(listed: Mapping[str, Any], tool: ShownTool) -> bool:
    if listed.get("type") == "mcp":
        return listed.get("server_label") == tool.namespace and listed.get("name") in (None, tool.name)
    return (listed.get("name"), listed.get("namespace")) == (tool.name, tool.namespace)


def _read(tools: Iterable[Mapping[str, Any]], namespace: str | None = None) -> Iterator[ShownTool]:
    for tool in tools:
        if not isinstance(tool, Mapping):
            continue
        kind = tool.get("type")
        if kind == "namespace" and namespace is None:
            yield from _read(tool.get("tools") or (), str(tool.get("name")))
        elif kind == "mcp" and namespace is None:
            yield from _read(tool.get("tools") or (), str(tool.get("server_label")))
        elif kind == "tool_search" and tool.get("execution") == "client":
            yield _shown({**tool, "name": "tool_search"}, None)
        elif kind in ("function", "custom") and isinstance(tool.get("name"), str):
            yield _shown(tool, namespace)


def _shown(tool: Mapping[str, Any], namespace: str | None) -> ShownTool:
    name, parameters = tool["name"], tool.get("parameters")
    custom = tool.get("type") == "custom"
    return ShownTool(
        name if namespace is None else f"{namespace}.{name}",
        name,
        namespace,
        "custom" if custom else "function",
        str(tool.get("description") or ""),
        CUSTOM_ARGUMENTS if custom else parameters if isinstance(parameters, Mapping) else NO_ARGUMENTS,
    )
