"""Whose fault it is, and what to answer.

    ProtocolError
    ├── LocalProtocolError    we broke the rules: a bug on this side; nothing was sent
    └── RemoteProtocolError   they broke the rules: carries the typed answer to give

`Session.receive` raises only the second, `Session.send` only the first; anything else that escapes is a bug in this package.

The catalogue below holds every answer of the engine once: code, status, type, param and words
(reference 11.3; "injected" for "appended" is a dialect's word and comes in as a value).
HTTP bodies and WebSocket frames are made from the same row, so they say the same.
"""

from collections.abc import Mapping
from typing import Final

import attrs

INVALID: Final = "invalid_request_error"


class ProtocolError(Exception):
    """Someone broke the protocol."""


class LocalProtocolError(ProtocolError):
    """This side tried something illegal. The session is unchanged and nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal; the session is unchanged and lives on.

    `code`, `message`, `param`, `status` and `type` are the members of the error to answer with (reference 11).
    """

    def __init__(
        self,
        code: str | None,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        type: str = INVALID,  # noqa: A002  # the wire's own name
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.status = status
        self.type = type
        self.stream_id: str | None = None
        """The lane of the refused frame, where it is known."""
        self.continued: str | None = None
        """The response that the refused frame wanted to continue."""

    def __repr__(self) -> str:
        return f"RemoteProtocolError({self.code!r}, {self.message!r}, param={self.param!r}, status={self.status})"


@attrs.frozen
class Row:
    """One line of the catalogue; `message` is a format string."""

    code: str | None
    message: str
    param: str | None = None
    status: int = 400
    type: str = INVALID
    instead: str | None = None
    """Says so in `response.error`, as openai-python's list of codes lacks `code`; final for Codex, like `code`."""

    @property
    def code_in_response(self) -> str | None:
        """The code in `response.error` of a failed response."""
        return self.instead or self.code


_SERVER: Final = "server_error"
_MANY: Final = "too_many_requests"

CATALOGUE: Final[Mapping[str, Row]] = {
    "invalid_json": Row("invalid_json", "The message is not a JSON object."),
    "no_type": Row("invalid_event", "The event has no 'type'.", "type"),
    "unsupported_event": Row("unsupported_event", "Unsupported event type '{type}'.", "type"),
    "append_unsupported": Row(
        "unsupported_event",
        "Unsupported event type 'response.append': this connection did not opt into it. "
        "Send 'response.create' with 'previous_response_id' and the outputs instead.",
        "type",
    ),
    "missing": Row("missing_required_parameter", "Missing required parameter: '{field}'.", "{field}"),
    "invalid_type": Row("invalid_type", "Invalid type for '{field}': expected {expected}.", "{field}"),
    "invalid_value": Row("invalid_value", "Invalid value for '{field}'.", "{field}"),
    "unsupported_parameter": Row("unsupported_parameter", "Unsupported parameter: '{field}'.", "{field}"),
    "text_format": Row(
        "unsupported_parameter",
        "The model '{model}' does not keep to a 'text.format' of type '{type}'; leave it out, and ask for the form "
        "in words or with a tool.",
        "text.format",
    ),
    "empty_input": Row("invalid_input", "'input' must be a non-empty list of items.", "input"),
    "invalid_schema": Row("invalid_value", "Invalid value for '{field}': {reason}", "{field}"),
    "tool_choice": Row(
        "invalid_value", "Tool choice '{name}' not found in 'tools' parameter.", "tool_choice"
    ),
    # outputs of tools (reference 2.4); the first three are one refusal in append and inject
    "not_pending": Row(
        "invalid_input", "Tool call '{call_id}' is not pending on response '{response_id}'.", "input"
    ),
    "has_output": Row("invalid_input", "Tool call '{call_id}' already has an output.", "input"),
    "not_acceptable": Row("invalid_input", "Item of type '{type}' cannot be {verb}.", "input"),
    "too_much_held": Row(
        "invalid_input",
        "Too many items are waiting for response '{response_id}' to resume.",
        "input",
        429,
        _MANY,
    ),
    "no_call": Row(None, "No tool call found for function call output with call_id {call_id}.", "input"),
    "no_output": Row(None, "No tool output found for function call {call_id}.", "input"),
    "item_not_found": Row(None, "Item with id '{id}' not found.", "input"),
    # which response
    "nothing_open": Row(
        "no_response_in_progress", "No response is waiting for input on this connection.", "input"
    ),
    "already_completed": Row(
        "response_already_completed", "Response '{response_id}' has already completed.", "response_id"
    ),
    "response_not_found": Row("response_not_found", "Response '{response_id}' not found.", "response_id"),
    "previous_not_found": Row(
        "previous_response_not_found",
        "Previous response with id '{response_id}' not found.",
        "previous_response_id",
    ),
    "model_not_found": Row("model_not_found", "The model '{model}' does not exist.", "model", 404),
    "context_length": Row(
        "context_length_exceeded",
        "Your input exceeds the context window of this model.",
        "input",
        instead="invalid_prompt",
    ),
    # steering (reference 4.6); its answers are numbered events, not error frames
    "steer_input": Row("invalid_input", "{reason}", "input"),
    "steering_not_supported": Row(
        "steering_not_supported",
        "Response '{response_id}' does not support steering.",
        "previous_response_id",
    ),
    "too_many_steers": Row(
        "too_many_pending_steers",
        "Response '{response_id}' has {limit} pending steers.",
        "previous_response_id",
    ),
    "not_active": Row(
        "response_not_active", "Response '{response_id}' no longer accepts steering.", "previous_response_id"
    ),
    "successor_failed": Row(
        "successor_creation_failed",
        "The successor of '{response_id}' was not created: {reason}",
        "previous_response_id",
    ),
    # lanes and limits
    "stream_id": Row(
        "invalid_stream_id",
        "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain "
        "letters, numbers, underscores, hyphens, and periods.",
        "stream_id",
    ),
    "too_many_lanes": Row(
        "websocket_stream_limit_reached",
        "This WebSocket connection has reached its maximum number of distinct stream IDs ({limit}). "
        "Reuse an existing stream_id or open a new WebSocket connection.",
        "stream_id",
    ),
    "connection_age": Row(
        "websocket_connection_limit_reached",
        "Responses websocket connection limit reached ({minutes:g} minutes). "
        "Create a new websocket connection to continue.",
    ),
    "queue_full": Row(
        "websocket_queue_limit_reached",
        "Too many queued response.create events on this connection.",
        None,
        429,
        _MANY,
    ),
    "overloaded": Row("server_is_overloaded", "The server is overloaded.", None, 503, _SERVER),
    "server_error": Row(
        "server_error", "The server had an error while processing your request.", None, 500, _SERVER
    ),
    "model_lost": Row(
        "server_error",
        "The model behind response '{response_id}' stopped answering; send the request again.",
        None,
        500,
        _SERVER,
    ),
    "cancelled": Row(
        "response_cancelled",
        "Response '{response_id}' was cancelled.",
        None,
        409,
        instead="invalid_prompt",
    ),
    "expired": Row(
        "server_error",
        "Suspended response '{response_id}' received no tool output within {seconds:g} s.",
        None,
        500,
        _SERVER,
    ),
    "draining": Row(
        "server_error", "The server is closing this connection; send the request again.", None, 503, _SERVER
    ),
    # the door
    "invalid_api_key": Row("invalid_api_key", "Incorrect API key provided.", None, 401),
    "origin": Row(None, "Requests from this origin are not allowed without a key.", None, 403),
    "opaque_origin": Row(
        None,
        "Requests of a page without an origin (Origin: null) are not allowed, with a key either.",
        None,
        403,
    ),
    "not_found": Row(
        None, "Nothing is served at this path; WebSocket clients connect to /v1/responses.", None, 404
    ),
    "no_websocket": Row(None, "WebSocket is switched off here; send requests over HTTP.", None, 426),
    "too_many_rollouts": Row(
        "rate_limit_exceeded",
        "Too many responses of this key are open; answer their calls, or let them end.",
        None,
        429,
        _MANY,
    ),
    "too_many_connections": Row("rate_limit_exceeded", "Too many connections.", None, 429, _MANY),
    # HTTP only (reference 1.1, 10)
    "bad_request": Row(None, "This is not an HTTP/1.1 request that can be read.", None, 400),
    "bad_encoding": Row(
        None, "A body with content-encoding '{encoding}' is not read here; send it plain.", None, 415
    ),
    "head_too_large": Row(None, "The request's headers are larger than {limit} bytes.", None, 431),
    "body_too_large": Row(None, "The request's body is larger than {limit} bytes.", None, 413),
    "too_slow": Row(None, "The request did not arrive within {seconds:g} s.", None, 408),
    "wrong_method": Row(None, "The method {method} is not allowed here; allowed: {allowed}.", None, 405),
    "no_such_response": Row(None, "Response with id '{response_id}' not found.", "response_id", 404),
    "not_replayed": Row(
        "replay_gap",
        "The events of response '{response_id}' are sent over its WebSocket and not kept; retrieve it without 'stream'.",
        "stream",
    ),
    "replay_gap": Row(
        "replay_gap",
        "The events of response '{response_id}' from number {number} on are no longer kept; retrieve it without 'stream'.",
        "starting_after",
    ),
}


def refusal(row: str, **values: object) -> RemoteProtocolError:
    """The error of one line of the catalogue, its words filled with `values`. `KeyError`: no such line or value."""
    line = CATALOGUE[row]
    return RemoteProtocolError(
        line.code,
        line.message.format(**values),
        param=line.param and line.param.format(**values),
        status=line.status,
        type=line.type,
    )
