"""What differs between item types and between event types, as tables; and when two items say the same."""

from typing import Any, Final

import attrs

NONE: Final = None
"""A status that is absent or null."""


@attrs.frozen
class ItemKind:
    """What the rules expect of one item type."""

    added: frozenset[str | None]
    done: frozenset[str | None]
    empty: tuple[tuple[str, object], ...] = ()
    """Members that an added item has, with their first value."""
    named: tuple[str, ...] = ()
    """Members that an added item has as non-empty strings."""
    same: tuple[str, ...] = ("type", "role", "name", "call_id")
    field: str | None = None
    """Where the text of its arguments stands."""
    delta: str | None = None
    text: tuple[str, ...] = ()
    """Kinds of its content parts."""
    json: bool = False
    streamed: bool = True
    """Whether the arguments always come as deltas."""


def _statuses(*names: str | None) -> frozenset[str | None]:
    return frozenset(names)


_RUNS: Final = _statuses("in_progress")
_HOSTED: Final = ItemKind(_RUNS, _statuses("completed"))
_PLAIN: Final = ItemKind(_statuses(NONE), _statuses(NONE))
_SERVED: Final = ItemKind(_statuses("completed"), _statuses("completed"))
KINDS: Final = {
    "message": ItemKind(
        _RUNS,
        _statuses("completed", "incomplete"),
        (("content", []),),
        ("role",),
        text=("output_text", "refusal"),
    ),
    "function_call": ItemKind(
        _RUNS,
        _statuses("completed", "incomplete"),
        (("arguments", ""),),
        ("name", "call_id"),
        field="arguments",
        delta="response.function_call_arguments.delta",
        json=True,
    ),
    "custom_tool_call": ItemKind(
        _statuses("in_progress", NONE),
        _statuses("completed", "incomplete"),
        (("input", ""),),
        ("name", "call_id"),
        field="input",
        delta="response.custom_tool_call_input.delta",
    ),
    "reasoning": ItemKind(
        _statuses(NONE, "in_progress"),
        _statuses(NONE, "completed", "incomplete"),
        (("summary", []),),
        text=("reasoning_text",),
    ),
    "web_search_call": ItemKind(
        _statuses("in_progress", "completed"), _statuses("completed", "searching", "failed")
    ),
    "image_generation_call": ItemKind(_RUNS, _statuses("completed", "generating", "failed")),
    "code_interpreter_call": _HOSTED,
    "file_search_call": _HOSTED,
    "mcp_list_tools": _PLAIN,
    "mcp_approval_request": _PLAIN,
    "compaction": _PLAIN,
    "program": _PLAIN,
    "multi_agent_call": _PLAIN,
    "mcp_call": ItemKind(
        _RUNS,
        _statuses("completed", "failed"),
        field="arguments",
        delta="response.mcp_call_arguments.delta",
        streamed=False,
    ),
    "tool_search_call": ItemKind(_RUNS, _statuses("completed"), same=("type", "role", "name")),
    "tool_search_output": _HOSTED,
    "shell_call": _HOSTED,
    "local_shell_call": _HOSTED,
    "apply_patch_call": _HOSTED,
    "shell_call_output": _SERVED,
    "program_output": _SERVED,
}
"""Item types the rules know (reference, part 4); of any other type only order, numbers and ids are judged."""

CLIENT_OUTPUTS: Final = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "computer_call_output": "computer_call",
    "local_shell_call_output": "local_shell_call",
    "apply_patch_call_output": "apply_patch_call",
}
"""Outputs that only a client makes, and the calls they answer."""
OUTPUTS: Final = {
    **CLIENT_OUTPUTS,
    "tool_search_output": "tool_search_call",
    "shell_call_output": "shell_call",
}

_OF_PARTS: Final = ("function_call_output", "custom_tool_call_output")
"""Their output may be a list of content parts."""

TERMINAL: Final = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}

COMMON_EVENTS: Final = frozenset(
    {
        "error",
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_text.annotation.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.code_interpreter_call_code.delta",
        "response.code_interpreter_call_code.done",
        "response.shell_call_command.added",
        "response.shell_call_command.delta",
        "response.shell_call_command.done",
        "response.apply_patch_call_operation_diff.delta",
        "response.apply_patch_call_operation_diff.done",
        *(
            f"response.{tool}.{step}"
            for tool, steps in {
                "web_search_call": ("in_progress", "searching", "completed", "failed"),
                "file_search_call": ("in_progress", "searching", "completed"),
                "code_interpreter_call": ("in_progress", "interpreting", "completed"),
                "image_generation_call": ("in_progress", "generating", "partial_image", "completed"),
                "mcp_call": ("in_progress", "completed", "failed"),
                "mcp_list_tools": ("in_progress", "completed", "failed"),
            }.items()
            for step in steps
        ),
    }
)
SOCKET_EVENTS: Final = frozenset(
    {
        "response.inject.created",
        "response.inject.failed",
        "response.steer.accepted",
        "response.steer.pending",
        "response.steer.failed",
    }
)
"""Answers to frames that only a socket takes."""

PROGRESS: Final = frozenset({"item_id", "output_index"})

SEALED: Final = frozenset({"encrypted_content", "fingerprint", "obfuscation", "logprobs", "agent"})
"""Left out of every comparison."""
_ITEM_MEMBERS: Final = frozenset(
    {
        *("id", "type", "status", "role", "content", "phase"),
        *("name", "namespace", "call_id", "arguments", "input", "execution"),
        *("summary", "action", "operation", "queries", "results", "tools"),
        *("output", "outputs", "result", "error", "code", "container_id", "server_label"),
    }
)


def is_odd(output: dict[str, Any]) -> bool:
    """Whether an output of a client may be refused for its form."""
    value = output.get("output", output.get("tools"))
    if output["type"] in _OF_PARTS and isinstance(value, list):
        return not all(map(_is_part, value))
    return not isinstance(value, str | list)


def _is_part(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and (kind != "input_text" or isinstance(value.get("text"), str))


def same(ours: Any, theirs: Any) -> bool:
    """Whether two items say the same: deep equality but for sealed members, and unknown ones of known items."""
    if _equal(ours, theirs):
        return True
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return False
    return all(same_value(ours.get(key), theirs.get(key)) for key in members(ours, theirs))


def members(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The members by which two items are compared."""
    known = isinstance(kind := ours.get("type"), str) and kind in KINDS
    return [
        key for key in {**ours, **theirs} if key not in SEALED and not (known and key not in _ITEM_MEMBERS)
    ]


def same_value(ours: Any, theirs: Any) -> bool:
    """Deep equality but for sealed members; an absent member is null."""
    if _equal(ours, theirs):
        return True
    waiting = [(ours, theirs)]
    while waiting:  # no recursion: a server may nest as deep as it likes
        ours, theirs = waiting.pop()
        if isinstance(ours, dict) and isinstance(theirs, dict):
            waiting += [(ours.get(key), theirs.get(key)) for key in {*ours, *theirs} if key not in SEALED]
        elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            waiting += zip(ours, theirs, strict=True)
        elif not _equal(ours, theirs):
            return False
    return True


def _equal(ours: Any, theirs: Any) -> bool:
    """Equality as Python has it; False also for what is nested too deep for it."""
    try:
        return bool(ours == theirs)
    except RecursionError:
        return False
