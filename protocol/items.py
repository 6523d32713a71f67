"""Conversation items: what a context is made of, as frozen data without behaviour.

An item is either *input* (messages, outputs of tools) or *output* (messages, calls, reasoning of the model).
The shapes are those of protocol reference sections 8.1 to 8.3.
An item whose type is unknown is kept as `Opaque`: clients add types each month, and none of them is an error.
Unknown members of known items are dropped.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs
import orjson

Role = Literal["user", "assistant", "system", "developer"]
Status = Literal["in_progress", "completed", "incomplete", "failed"]
Phase = Literal["commentary", "final_answer"]


@attrs.frozen
class InputText:
    """Text of a user, developer or system message, or of a tool's output."""

    text: str
    type: Literal["input_text"] = "input_text"


@attrs.frozen
class OutputText:
    """Text the model wrote."""

    text: str
    annotations: tuple[Mapping[str, Any], ...] = ()
    logprobs: tuple[Mapping[str, Any], ...] = ()
    type: Literal["output_text"] = "output_text"


@attrs.frozen
class Refusal:
    """Text of a refusal."""

    refusal: str
    type: Literal["refusal"] = "refusal"


@attrs.frozen
class ReasoningText:
    """A part of the model's reasoning."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


@attrs.frozen
class SummaryText:
    """A part of a reasoning summary."""

    text: str
    type: Literal["summary_text"] = "summary_text"


@attrs.frozen
class OpaquePart:
    """An image, a file, or a part of a type we do not know; `raw` is the part as sent."""

    raw: Mapping[str, Any]

    @property
    def type(self) -> str:
        """The part's own type, empty if it has none."""
        kind = self.raw.get("type", "")
        return kind if isinstance(kind, str) else ""


Part = InputText | OutputText | Refusal | ReasoningText | SummaryText | OpaquePart
Content = str | tuple[Part, ...]


@attrs.frozen
class Agent:
    """The agent that made an item; the engine has one, `/root` (inject responses only)."""

    agent_name: str = "/root"


@attrs.frozen
class Message:
    """A message of any role; the model's own has `OutputText` and `Refusal` parts."""

    role: Role
    content: Content
    id: str | None = None
    status: Status | None = None
    phase: Phase | None = None
    agent: Agent | None = None
    type: Literal["message"] = "message"


@attrs.frozen
class Reasoning:
    """The model's reasoning; `summary` may be shown to users, `content` is raw."""

    id: str | None = None
    summary: tuple[Part, ...] = ()
    content: tuple[Part, ...] | None = None
    encrypted_content: str | None = None
    status: Status | None = None
    agent: Agent | None = None
    type: Literal["reasoning"] = "reasoning"


@attrs.frozen
class FunctionCall:
    """A call of a function tool; `arguments` is JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    namespace: str | None = None
    status: Status | None = None
    agent: Agent | None = None
    type: Literal["function_call"] = "function_call"


@attrs.frozen
class FunctionCallOutput:
    """What the client's function answered."""

    call_id: str
    output: Content
    id: str | None = None
    type: Literal["function_call_output"] = "function_call_output"


@attrs.frozen
class CustomToolCall:
    """A call of a free-form tool; `input` is raw text."""

    call_id: str
    name: str
    input: str
    id: str | None = None
    namespace: str | None = None
    status: Status | None = None
    agent: Agent | None = None
    type: Literal["custom_tool_call"] = "custom_tool_call"


@attrs.frozen
class CustomToolCallOutput:
    """What the client's free-form tool answered."""

    call_id: str
    output: Content
    id: str | None = None
    type: Literal["custom_tool_call_output"] = "custom_tool_call_output"


@attrs.frozen
class ToolSearchCall:
    """A call of the client's own search for tools; one that a server runs itself is `Opaque`."""

    call_id: str
    arguments: Any
    """As JSON; the text itself if what the model wrote is none."""
    id: str | None = None
    execution: Literal["client"] = "client"
    status: Status | None = None
    agent: Agent | None = None
    type: Literal["tool_search_call"] = "tool_search_call"

    @property
    def name(self) -> str:
        """Of the tool: there is one of the kind."""
        return "tool_search"

    @property
    def input(self) -> str:
        """The arguments as text."""
        return orjson.dumps(self.arguments).decode()


@attrs.frozen
class ToolSearchOutput:
    """The tools that the client's search found; they are offered from here on."""

    call_id: str
    tools: tuple[Mapping[str, Any], ...]
    id: str | None = None
    execution: Literal["client"] = "client"
    status: Status | None = None
    type: Literal["tool_search_output"] = "tool_search_output"

    @property
    def output(self) -> str:
        """The tools as text."""
        return orjson.dumps(self.tools).decode()


@attrs.frozen
class McpCall:
    """A call of a tool the server runs itself (a hosted tool); its output is part of the item."""

    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: str | None = None
    """Why it failed, in words; on the wire an object of type `mcp_tool_execution_error`, as the SDKs have it."""
    status: Status | None = None
    approval_request_id: str | None = None
    agent: Agent | None = None
    type: Literal["mcp_call"] = "mcp_call"


@attrs.frozen
class ItemReference:
    """An item of this chain, named by its id; bare `{"id": …}` means the same."""

    id: str
    type: Literal["item_reference"] = "item_reference"


@attrs.frozen
class Opaque:
    """An item of a type without meaning to the engine; `raw` is the item as sent, nothing removed."""

    raw: Mapping[str, Any]

    @property
    def type(self) -> str:
        """The item's own type."""
        return str(self.raw["type"])


Call = FunctionCall | CustomToolCall | ToolSearchCall
Output = FunctionCallOutput | CustomToolCallOutput | ToolSearchOutput
Item = (
    Message
    | Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | ToolSearchCall
    | ToolSearchOutput
    | McpCall
    | ItemReference
    | Opaque
)

CALLS = (FunctionCall, CustomToolCall, ToolSearchCall)
OUTPUTS = (FunctionCallOutput, CustomToolCallOutput, ToolSearchOutput)

OUTPUT_OF: Mapping[type, type] = {
    FunctionCall: FunctionCallOutput,
    CustomToolCall: CustomToolCallOutput,
    ToolSearchCall: ToolSearchOutput,
}
"""Which output answers which call; a table, because the kind must fit (reference 2.4)."""


def output_for(call: Call, text: str) -> Output:
    """A text as the output of a call; of a search, the JSON list of tools that it is, or nothing found."""
    if isinstance(call, FunctionCall):
        return FunctionCallOutput(call.call_id, text)
    if isinstance(call, CustomToolCall):
        return CustomToolCallOutput(call.call_id, text)
    try:
        found = orjson.loads(text)
    except ValueError:
        found = ()
    tools = found if isinstance(found, list) else ()
    return ToolSearchOutput(call.call_id, tuple(tool for tool in tools if isinstance(tool, dict)))


def text_of(content: Content) -> str:
    """All text of a content, parts joined without separator; opaque parts count as empty."""
    if isinstance(content, str):
        return content
    return "".join(
        part.refusal if isinstance(part, Refusal) else "" if isinstance(part, OpaquePart) else part.text
        for part in content
    )
