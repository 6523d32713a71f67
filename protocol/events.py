"""One frozen class per wire type, the client's and the server's, and the table from type to class.

Server events do not hold their `sequence_number` or `stream_id`: these belong to the response and are put on at the last
hop (`protocol.session`), so that a filter can never tear a hole into the numbers.
`KIND_OF` says what each class means to the state machine; the finished call of a client tool is the one case where the
item decides (`kind_of`).

Longer than other modules here: it is a vocabulary, looked up rather than read.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import attrs

from protocol.items import CALLS, Item, Part
from protocol.states import Kind
from protocol.usage import Usage

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
JSON = Mapping[str, Any]


# --- the response resource (reference 6) -------------------------------------------------------------------------


@attrs.frozen
class ResponseError:
    """Why a response failed: `{"code","message"}`."""

    code: str
    message: str


@attrs.frozen
class IncompleteDetails:
    """Why a response is incomplete."""

    reason: str


@attrs.frozen
class Response:
    """The resource. Every key is always on the wire, null included: suites and SDKs require them all."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus = "in_progress"
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    output: tuple[Item, ...] = ()
    tools: tuple[JSON, ...] = ()
    tool_choice: str | JSON = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    reasoning: JSON = attrs.field(factory=lambda: {"effort": None, "summary": None})
    text: JSON = attrs.field(factory=lambda: {"format": {"type": "text"}, "verbosity": "medium"})
    truncation: str = "disabled"
    store: bool = True
    background: bool = False
    service_tier: str = "default"
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    usage: Usage | None = None
    object: Literal["response"] = "response"


# --- client events -----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ResponseCreate:
    """Start a response (reference 9). Unknown members are ignored; null means absent wherever that is allowed."""

    type: ClassVar[str] = "response.create"

    model: str | None = None
    input: str | tuple[Item, ...] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: tuple[JSON, ...] | None = None
    tool_choice: str | JSON | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    reasoning: JSON | None = None
    text: JSON | None = None
    include: tuple[str, ...] | None = None
    metadata: Mapping[str, str] | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    stream: bool | None = None
    background: bool | None = None
    generate: bool | None = None
    stream_id: str | None = None
    multi_agent: JSON | None = None
    client_metadata: Mapping[str, str] | None = None
    context_management: tuple[JSON, ...] | None = None
    conversation: Any = None
    prompt: Any = None


@attrs.frozen(kw_only=True)
class ResponseAppend:
    """Outputs for the suspended response of this lane (reference 3.2); the connection is the correlation."""

    type: ClassVar[str] = "response.append"

    input: tuple[Item, ...]
    response_id: str | None = None
    previous_response_id: str | None = None
    stream_id: str | None = None
    client_metadata: Mapping[str, str] | None = None


@attrs.frozen(kw_only=True)
class ResponseInject:
    """Outputs for the named response (reference 5B.1). `raw_input`: the batch as sent, given back if refused."""

    type: ClassVar[str] = "response.inject"

    response_id: str
    input: tuple[Item, ...]
    raw_input: tuple[JSON, ...] = ()


@attrs.frozen(kw_only=True)
class ResponseSteer:
    """A user's word to a response that is being made (reference 4.6).

    `fault`: why it cannot be taken; the answer is a numbered `response.steer.failed`, not an `error` frame.
    `raw_input`: as sent, given back if it fails.
    """

    type: ClassVar[str] = "response.steer"

    previous_response_id: str
    input: str | tuple[Item, ...] = ()
    raw_input: Any = None
    fault: str | None = None


@attrs.frozen
class ResponseProcessed:
    """Sent by some Codex builds; ignored (reference 4.2)."""

    type: ClassVar[str] = "response.processed"


ClientEvent = ResponseCreate | ResponseAppend | ResponseInject | ResponseSteer | ResponseProcessed


# --- server events -----------------------------------------------------------------------------------------------


@attrs.frozen
class ResponseCreated:
    """The response exists."""

    type: ClassVar[str] = "response.created"
    response: Response


@attrs.frozen
class ResponseInProgress:
    """The response has started."""

    type: ClassVar[str] = "response.in_progress"
    response: Response


@attrs.frozen
class ResponseCompleted:
    """Terminal: the rollout is over."""

    type: ClassVar[str] = "response.completed"
    response: Response


@attrs.frozen
class ResponseIncomplete:
    """Terminal: a limit ended the rollout."""

    type: ClassVar[str] = "response.incomplete"
    response: Response


@attrs.frozen
class ResponseFailed:
    """Terminal: an error, an expiry or a cancellation ended the rollout."""

    type: ClassVar[str] = "response.failed"
    response: Response


@attrs.frozen
class Parked:
    """The little that `response.done` says of its response."""

    id: str | None = None
    usage: Usage | None = None


@attrs.frozen
class ResponseDone:
    """Append form: the rollout is suspended, you may append (reference 3.3)."""

    type: ClassVar[str] = "response.done"
    response: Parked | None = None


@attrs.frozen
class OutputItemAdded:
    """An item begins."""

    type: ClassVar[str] = "response.output_item.added"
    output_index: int
    item: Item


@attrs.frozen
class OutputItemDone:
    """An item is whole; of a client tool's call: it is pending now."""

    type: ClassVar[str] = "response.output_item.done"
    output_index: int
    item: Item


@attrs.frozen
class ContentPartAdded:
    """A part of an item begins, empty."""

    type: ClassVar[str] = "response.content_part.added"
    item_id: str
    output_index: int
    content_index: int
    part: Part


@attrs.frozen
class ContentPartDone:
    """A part of an item is whole."""

    type: ClassVar[str] = "response.content_part.done"
    item_id: str
    output_index: int
    content_index: int
    part: Part


@attrs.frozen
class OutputTextDelta:
    """A piece of text."""

    type: ClassVar[str] = "response.output_text.delta"
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: tuple[JSON, ...] = ()


@attrs.frozen
class OutputTextDone:
    """The text is whole."""

    type: ClassVar[str] = "response.output_text.done"
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: tuple[JSON, ...] = ()


@attrs.frozen
class ReasoningTextDelta:
    """A piece of reasoning."""

    type: ClassVar[str] = "response.reasoning_text.delta"
    item_id: str
    output_index: int
    content_index: int
    delta: str


@attrs.frozen
class ReasoningTextDone:
    """The reasoning is whole."""

    type: ClassVar[str] = "response.reasoning_text.done"
    item_id: str
    output_index: int
    content_index: int
    text: str


@attrs.frozen
class FunctionCallArgumentsDelta:
    """A piece of a call's arguments."""

    type: ClassVar[str] = "response.function_call_arguments.delta"
    item_id: str
    output_index: int
    delta: str


@attrs.frozen
class FunctionCallArgumentsDone:
    """The arguments are whole; `name` because older SDKs require it."""

    type: ClassVar[str] = "response.function_call_arguments.done"
    item_id: str
    output_index: int
    arguments: str
    name: str | None = None


@attrs.frozen
class CustomToolCallInputDelta:
    """A piece of a custom call's input."""

    type: ClassVar[str] = "response.custom_tool_call_input.delta"
    item_id: str
    output_index: int
    delta: str


@attrs.frozen
class CustomToolCallInputDone:
    """The input is whole."""

    type: ClassVar[str] = "response.custom_tool_call_input.done"
    item_id: str
    output_index: int
    input: str


@attrs.frozen
class McpCallInProgress:
    """A hosted tool's call begins."""

    type: ClassVar[str] = "response.mcp_call.in_progress"
    item_id: str
    output_index: int


@attrs.frozen
class McpCallArgumentsDelta:
    """A piece of a hosted call's arguments."""

    type: ClassVar[str] = "response.mcp_call_arguments.delta"
    item_id: str
    output_index: int
    delta: str


@attrs.frozen
class McpCallArgumentsDone:
    """A hosted call's arguments are whole."""

    type: ClassVar[str] = "response.mcp_call_arguments.done"
    item_id: str
    output_index: int
    arguments: str


@attrs.frozen
class McpCallCompleted:
    """A hosted tool has answered."""

    type: ClassVar[str] = "response.mcp_call.completed"
    item_id: str
    output_index: int


@attrs.frozen
class McpCallFailed:
    """A hosted tool has failed; the rollout goes on."""

    type: ClassVar[str] = "response.mcp_call.failed"
    item_id: str
    output_index: int


@attrs.frozen
class InjectCreated:
    """An inject was committed."""

    type: ClassVar[str] = "response.inject.created"
    response_id: str


@attrs.frozen
class InjectError:
    """Why an inject was refused."""

    code: str | None
    message: str


@attrs.frozen
class InjectFailed:
    """An inject was refused; `input` comes back unchanged, field for field."""

    type: ClassVar[str] = "response.inject.failed"
    response_id: str
    input: tuple[JSON, ...]
    error: InjectError


@attrs.frozen
class Steer:
    """A submission: its id once it is accepted, its input when it is given back."""

    previous_response_id: str
    id: str | None = None
    input: Any = None


@attrs.frozen
class SteerError:
    """Why a submission was not, or could not be, applied."""

    code: str
    message: str
    type: str = "invalid_request_error"


@attrs.frozen
class SteerAccepted:
    """A submission waits for the end of the item that is being made."""

    type: ClassVar[str] = "response.steer.accepted"
    steer: Steer


@attrs.frozen
class SteerPending:
    """The response ended with calls; the submission goes in front of the create that brings their outputs."""

    type: ClassVar[str] = "response.steer.pending"
    reason: str
    required_input: tuple[JSON, ...]
    steer: Steer


@attrs.frozen
class SteerFailed:
    """A submission was refused, or its successor could not be created."""

    type: ClassVar[str] = "response.steer.failed"
    error: SteerError
    steer: Steer


@attrs.frozen
class ErrorDetail:
    """The error of a refused frame or request (reference 11)."""

    type: str
    code: str | None
    message: str
    param: str | None = None


@attrs.frozen
class ErrorEvent:
    """A refused frame (reference 11.1). Belongs to the connection: it takes no number and ends no response."""

    type: ClassVar[str] = "error"
    status: int
    error: ErrorDetail
    stream_id: str | None = None


@attrs.frozen
class UnknownEvent:
    """A server event of a type this package does not know; kept whole, changes no state."""

    raw: JSON

    @property
    def type(self) -> str:
        """The wire type."""
        return str(self.raw["type"])


Delta = (
    OutputTextDelta
    | ReasoningTextDelta
    | FunctionCallArgumentsDelta
    | CustomToolCallInputDelta
    | McpCallArgumentsDelta
)
ServerEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ResponseDone
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDone
    | ReasoningTextDone
    | FunctionCallArgumentsDone
    | CustomToolCallInputDone
    | McpCallInProgress
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
    | InjectCreated
    | InjectFailed
    | SteerAccepted
    | SteerPending
    | SteerFailed
    | ErrorEvent
    | UnknownEvent
    | Delta
)

DELTA_CLASSES: Final = Delta.__args__
CLIENT_CLASSES: Final[Mapping[str, type]] = {cls.type: cls for cls in ClientEvent.__args__}
SERVER_CLASSES: Final[Mapping[str, type]] = {
    cls.type: cls for cls in ServerEvent.__args__ if cls is not UnknownEvent
}
TERMINAL_CLASSES: Final = (ResponseCompleted, ResponseIncomplete, ResponseFailed)

KIND_OF: Final[Mapping[type, Kind]] = {
    **dict.fromkeys(SERVER_CLASSES.values(), Kind.OUTPUT),
    ResponseCreated: Kind.CREATED,
    ResponseInProgress: Kind.IN_PROGRESS,
    ResponseDone: Kind.DONE,
    ResponseCompleted: Kind.COMPLETED,
    ResponseIncomplete: Kind.INCOMPLETE,
    ResponseFailed: Kind.FAILED,
    InjectCreated: Kind.INJECT_CREATED,
    InjectFailed: Kind.INJECT_FAILED,
    SteerAccepted: Kind.STEER_ACCEPTED,
    SteerPending: Kind.STEER_PENDING,
    SteerFailed: Kind.STEER_FAILED,
    ResponseAppend: Kind.APPEND,
    ResponseInject: Kind.INJECT,
    ResponseSteer: Kind.STEER,
}


def kind_of(event: ServerEvent) -> Kind:
    """What an event means to the state machine."""
    if type(event) is OutputItemDone and isinstance(event.item, CALLS):
        return Kind.CALL_DONE
    return KIND_OF[type(event)]
