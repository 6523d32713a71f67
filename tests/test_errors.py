"""protocol.errors: every line of the catalogue is complete and says what the reference says."""

import string

import pytest

from protocol.errors import CATALOGUE, LocalProtocolError, ProtocolError, RemoteProtocolError, Row, refusal

VALUES = {
    "type": "response.cancel",
    "field": "input[0].role",
    "expected": "a string",
    "reason": "no",
    "name": "f",
    "call_id": "call_1",
    "response_id": "resp_1",
    "verb": "injected",
    "id": "msg_1",
    "model": "m",
    "limit": 32,
    "seconds": 600.0,
    "encoding": "gzip",
    "method": "PUT",
    "allowed": "GET",
    "number": 7,
    "minutes": 60.0,
}
"""Everything a line may ask for."""
TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    403: "invalid_request_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    426: "invalid_request_error",
    429: "too_many_requests",
    431: "invalid_request_error",
    500: "server_error",
    503: "server_error",
}
REFERENCE = [
    ("invalid_json", "invalid_json", 400, "The message is not a JSON object.", None),
    ("no_type", "invalid_event", 400, "The event has no 'type'.", "type"),
    ("unsupported_event", "unsupported_event", 400, "Unsupported event type 'response.cancel'.", "type"),
    (
        "missing",
        "missing_required_parameter",
        400,
        "Missing required parameter: 'input[0].role'.",
        "input[0].role",
    ),
    (
        "invalid_type",
        "invalid_type",
        400,
        "Invalid type for 'input[0].role': expected a string.",
        "input[0].role",
    ),
    ("invalid_value", "invalid_value", 400, "Invalid value for 'input[0].role'.", "input[0].role"),
    ("not_pending", "invalid_input", 400, "Tool call 'call_1' is not pending on response 'resp_1'.", "input"),
    ("has_output", "invalid_input", 400, "Tool call 'call_1' already has an output.", "input"),
    ("not_acceptable", "invalid_input", 400, "Item of type 'response.cancel' cannot be injected.", "input"),
    ("no_call", None, 400, "No tool call found for function call output with call_id call_1.", "input"),
    ("no_output", None, 400, "No tool output found for function call call_1.", "input"),
    ("item_not_found", None, 400, "Item with id 'msg_1' not found.", "input"),
    (
        "nothing_open",
        "no_response_in_progress",
        400,
        "No response is waiting for input on this connection.",
        "input",
    ),
    (
        "already_completed",
        "response_already_completed",
        400,
        "Response 'resp_1' has already completed.",
        "response_id",
    ),
    ("response_not_found", "response_not_found", 400, "Response 'resp_1' not found.", "response_id"),
    (
        "previous_not_found",
        "previous_response_not_found",
        400,
        "Previous response with id 'resp_1' not found.",
        "previous_response_id",
    ),
    ("model_not_found", "model_not_found", 404, "The model 'm' does not exist.", "model"),
    (
        "context_length",
        "context_length_exceeded",
        400,
        "Your input exceeds the context window of this model.",
        "input",
    ),
    ("tool_choice", "invalid_value", 400, "Tool choice 'f' not found in 'tools' parameter.", "tool_choice"),
    ("overloaded", "server_is_overloaded", 503, "The server is overloaded.", None),
    (
        "server_error",
        "server_error",
        500,
        "The server had an error while processing your request.",
        None,
    ),
    (
        "model_lost",
        "server_error",
        500,
        "The model behind response 'resp_1' stopped answering; send the request again.",
        None,
    ),
    ("cancelled", "response_cancelled", 409, "Response 'resp_1' was cancelled.", None),
    (
        "expired",
        "server_error",
        500,
        "Suspended response 'resp_1' received no tool output within 600 s.",
        None,
    ),
    ("invalid_api_key", "invalid_api_key", 401, "Incorrect API key provided.", None),
    ("no_such_response", None, 404, "Response with id 'resp_1' not found.", "response_id"),
]
"""Row, code, status, message, param: the words of reference 11.3, 5B.2 and 3.5."""


def fields_of(text: str | None) -> set[str]:
    """The values that a format string asks for."""
    return {name for _, name, _, _ in string.Formatter().parse(text or "") if name is not None}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_each_line_is_filled_completely(name: str) -> None:
    """With the values it asks for, a line becomes an error without a gap in its words."""
    row = CATALOGUE[name]
    asked = fields_of(row.message) | fields_of(row.param)
    assert asked <= set(VALUES)
    error = refusal(name, **{key: VALUES[key] for key in asked})
    assert "{" not in error.message + (error.param or "")
    assert (error.code, error.status, error.type) == (row.code, row.status, row.type)


@pytest.mark.parametrize("name", [name for name, row in CATALOGUE.items() if fields_of(row.message)])
def test_a_missing_value_is_our_bug(name: str) -> None:
    """A line that is not given its values raises `KeyError`, and never sends half a sentence."""
    with pytest.raises(KeyError):
        refusal(name)


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE)
def test_status_and_type_fit(row: Row) -> None:
    """Every status is one the reference knows, with the type that belongs to it."""
    assert TYPE_OF_STATUS[row.status] == row.type


@pytest.mark.parametrize(("name", "code", "status", "message", "param"), REFERENCE)
def test_the_words_are_those_of_the_reference(
    name: str, code: str | None, status: int, message: str, param: str | None
) -> None:
    """Code, status, words and param of the lines that the reference fixes."""
    asked = fields_of(CATALOGUE[name].message) | fields_of(CATALOGUE[name].param)
    error = refusal(name, **{key: VALUES[key] for key in asked})
    assert (error.code, error.status, error.message, error.param) == (code, status, message, param)


def test_hostile_values_are_only_values() -> None:
    """Braces in a value are shown as they are: nobody formats a peer's text."""
    assert refusal("unsupported_event", type="{0.__class__}").message == (
        "Unsupported event type '{0.__class__}'."
    )


def test_there_is_no_line_without_a_name() -> None:
    """An unknown line raises `KeyError`."""
    with pytest.raises(KeyError, match="no_such_line"):
        refusal("no_such_line")


def test_an_error_shows_its_answer() -> None:
    """The representation of a refusal holds what would be sent; both errors share a root."""
    error = refusal("no_type")
    assert repr(error) == (
        "RemoteProtocolError('invalid_event', \"The event has no 'type'.\", param='type', status=400)"
    )
    assert str(error) == error.message
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert issubclass(LocalProtocolError, ProtocolError)
