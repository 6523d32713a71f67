"""`tool_choice`: which tools may be called, and whether one must be (reference 8.4)."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from engine.tool_table import Tool, ToolKey, ToolTable
from protocol.errors import refusal

ChoiceMode = Literal["auto", "none", "required"]


@attrs.frozen
class ToolChoice:
    """What the client wants called. `only` is a hard limit; None means every tool of the table."""

    mode: ChoiceMode = "auto"
    only: frozenset[ToolKey] | None = None

    def permits(self, tool: Tool) -> bool:
        """Whether a call of `tool` is within the choice."""
        return self.mode != "none" and (self.only is None or (tool.namespace, tool.name) in self.only)


AUTO: Final = ToolChoice()


def read_tool_choice(choice: str | Mapping[str, Any] | None, table: ToolTable) -> ToolChoice:
    """The choice, checked against the tools.

    `RemoteProtocolError`: a named tool is not there, or the choice is of no known shape; the path says where.
    """
    if choice is None:
        return AUTO
    if isinstance(choice, str):
        return ToolChoice(_mode(choice, "tool_choice", required_or_auto=False))
    kind = _text(choice, "type", "tool_choice")
    if kind == "allowed_tools":
        return _allowed_tools(choice, table)
    if kind in ("function", "custom"):
        return ToolChoice("required", frozenset({_key(choice, "tool_choice", table)}))
    return AUTO  # "a hosted one is treated as auto"


def _allowed_tools(choice: Mapping[str, Any], table: ToolTable) -> ToolChoice:
    mode = _mode(choice.get("mode", "auto"), "tool_choice.mode", required_or_auto=True)
    listed = choice.get("tools")
    if not isinstance(listed, list):
        raise refusal("invalid_type", field="tool_choice.tools", expected="a list of tools")
    only: set[ToolKey] = set()
    for place, tool in enumerate(listed):
        field = f"tool_choice.tools[{place}]"
        if not isinstance(tool, Mapping):
            raise refusal("invalid_type", field=field, expected="an object")
        kind = _text(tool, "type", field)
        if kind in ("function", "custom"):
            only.add(_key(tool, field, table))
        elif kind == "mcp":
            label = _text(tool, "server_label", field)
            only |= {
                (label, name) for name in table.hosted.get(label, ()) if tool.get("name") in (None, name)
            }
    return ToolChoice(mode, frozenset(only))


def _mode(mode: object, field: str, *, required_or_auto: bool) -> ChoiceMode:
    if mode == "auto" or mode == "required":  # noqa: PLR1714  # the type checker narrows these to literals
        return "auto" if mode == "auto" else "required"
    if mode == "none" and not required_or_auto:
        return "none"
    raise refusal("invalid_value", field=field)


def _key(named: Mapping[str, Any], field: str, table: ToolTable) -> ToolKey:
    name = _text(named, "name", field)
    namespace = None if named.get("namespace") is None else _text(named, "namespace", field)
    tool = table.client.get((namespace, name))
    if tool is None or tool.kind != named["type"]:
        raise refusal("tool_choice", name=name)
    return tool.namespace, tool.name


def _text(whole: Mapping[str, Any], member: str, field: str) -> str:
    """A member that must be there; `field` is the path of the whole."""
    path = f"{field}.{member}"
    if member not in whole:
        raise refusal("missing", field=path)
    if not isinstance(whole[member], str):
        raise refusal("invalid_type", field=path, expected="a string")
    return str(whole[member])
