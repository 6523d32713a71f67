"""Every refusal of the create form, whole, and that nothing is lost by it (reference 11.3)."""

from typing import Any

import attrs
import pytest
import trio

from engine.config import DEFAULT_LIMITS
from engine.models import ModelEntry, ModelTable
from tests.create_form import STALL_SECONDS, Caller, error_frame, run
from tests.scenarios import TERMINAL

CREATE = {"type": "response.create", "model": "m", "input": "go", "store": False}
NOBODY = {"type": "function_call_output", "call_id": "call_x", "output": "?"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}
CUSTOM_OUTPUT = {**OUTPUT, "type": "custom_tool_call_output"}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": "x"}
NO_CALL = error_frame(None, "No tool call found for function call output with call_id call_1.", "input")
HAS_OUTPUT = error_frame("invalid_input", "Tool call 'call_1' already has an output.", "input")
INVALID_JSON = error_frame("invalid_json", "The message is not a JSON object.")
INVALID_EVENT = error_frame("invalid_event", "The event has no 'type'.", "type")


def invalid_value(field: str) -> dict[str, Any]:
    """The value is out of range."""
    return error_frame("invalid_value", f"Invalid value for '{field}'.", field)


def invalid_type(field: str, expected: str) -> dict[str, Any]:
    """The value is of another type."""
    return error_frame("invalid_type", f"Invalid type for '{field}': expected {expected}.", field)


def unsupported(kind: str) -> dict[str, Any]:
    """No such event."""
    return error_frame("unsupported_event", f"Unsupported event type '{kind}'.", "type")


FRAMES: dict[str, tuple[Any, dict[str, Any]]] = {
    "no JSON": ('{"type":"response.create"', INVALID_JSON),
    "a list": ("[1]", INVALID_JSON),
    "nothing": ("", INVALID_JSON),
    "a lone surrogate": (
        '{"type":"response.create","model":"m","input":[{"role":"user","content":"\\ud83d"}]}',
        INVALID_JSON,
    ),
    "no type": ({"model": "m"}, INVALID_EVENT),
    "type is null": ('{"type":null}', INVALID_EVENT),
    "cancel": ({"type": "response.cancel"}, unsupported("response.cancel")),
    "interrupt": ({"type": "response.interrupt"}, unsupported("response.interrupt")),
    "an event of the server": ({"type": "response.created"}, unsupported("response.created")),
    "append": (
        {"type": "response.append", "input": [OUTPUT]},
        error_frame(
            "unsupported_event",
            "Unsupported event type 'response.append': this connection did not opt into it. "
            "Send 'response.create' with 'previous_response_id' and the outputs instead.",
            "type",
        ),
    ),
    "no model": (
        {**CREATE, "model": None},
        error_frame("missing_required_parameter", "Missing required parameter: 'model'.", "model"),
    ),
    "unknown model": (
        {**CREATE, "model": "gone"},
        error_frame(
            "model_not_found", "The model 'gone' does not exist. Known here: m.", "model", status=404
        ),
    ),
    "unknown parent": (
        {**CREATE, "previous_response_id": "resp_x"},
        error_frame(
            "previous_response_not_found",
            "Previous response with id 'resp_x' not found.",
            "previous_response_id",
        ),
    ),
    "an empty parent": (
        {**CREATE, "previous_response_id": ""},
        error_frame(
            "previous_response_not_found", "Previous response with id '' not found.", "previous_response_id"
        ),
    ),
    "a parent that is no text": (
        {**CREATE, "previous_response_id": 7},
        invalid_type("previous_response_id", "a string"),
    ),
    "an output without a call": (
        {**CREATE, "input": [NOBODY]},
        error_frame(None, "No tool call found for function call output with call_id call_x.", "input"),
    ),
    "a call without its output": (
        {**CREATE, "input": [CALL]},
        error_frame(None, "No tool output found for function call call_1.", "input"),
    ),
    "a custom output for a function call": ({**CREATE, "input": [CALL, CUSTOM_OUTPUT]}, NO_CALL),
    "a function output for a custom call": ({**CREATE, "input": [CUSTOM_CALL, OUTPUT]}, NO_CALL),
    "two outputs for one call": ({**CREATE, "input": [CALL, OUTPUT, OUTPUT]}, HAS_OUTPUT),
    "an unknown reference": (
        {**CREATE, "input": [{"type": "item_reference", "id": "msg_x"}]},
        error_frame(None, "Item with id 'msg_x' not found.", "input"),
    ),
    "background": (
        {**CREATE, "background": True},
        error_frame("unsupported_parameter", "Unsupported parameter: 'background'.", "background"),
    ),
    "a conversation": (
        {**CREATE, "conversation": {"id": "conv_1"}},
        error_frame("unsupported_parameter", "Unsupported parameter: 'conversation'.", "conversation"),
    ),
    "a prompt": (
        {**CREATE, "prompt": {"id": "pmpt_1"}},
        error_frame("unsupported_parameter", "Unsupported parameter: 'prompt'.", "prompt"),
    ),
    "a tool choice that is no tool": (
        {**CREATE, "tool_choice": {"type": "function", "name": "g"}},
        error_frame("invalid_value", "Tool choice 'g' not found in 'tools' parameter.", "tool_choice"),
    ),
    "generate is no truth": ({**CREATE, "generate": "no"}, invalid_type("generate", "a boolean")),
    "store is no truth": ({**CREATE, "store": 1}, invalid_type("store", "a boolean")),
    "input is a number": (
        {**CREATE, "input": 7},
        invalid_type("input", "a string or a list of items"),
    ),
    "too hot": ({**CREATE, "temperature": 2.5}, invalid_value("temperature")),
    "no tokens at all": ({**CREATE, "max_output_tokens": 0}, invalid_value("max_output_tokens")),
    "too much metadata": (
        {**CREATE, "metadata": {str(key): "" for key in range(17)}},
        invalid_value("metadata"),
    ),
    "more than the window": (
        {**CREATE, "input": "long " * 5000},
        error_frame(
            "context_length_exceeded", "Your input exceeds the context window of this model.", "input"
        ),
    ),
}


LABELLED = [name for name, (frame, _) in FRAMES.items() if isinstance(frame, dict) and "type" in frame]
"""Without a type nobody knows what the frame was to be, and so whether it has a lane."""


@pytest.mark.parametrize("name", FRAMES)
def test_a_refusal_is_one_whole_frame_and_costs_nothing(name: str):
    """Type, status, code, words and param are the catalogue's; nothing is created; the lane's latest is still there."""
    frame, refused = FRAMES[name]

    async def program(caller: Caller) -> None:
        first = await caller.turn("hi")
        caller.raw.send(frame)
        assert await caller.next() == refused
        await caller.turn("more", previous_response_id=first["id"])

    left = run(program)

    assert left.heard() == ["hi", "You said hi.", "more"]
    assert len(left.sampler.contexts) == 2


@pytest.mark.parametrize("name", LABELLED)
def test_a_refusal_names_its_lane_where_there_is_one(name: str):
    """Whatever names a lane properly is answered on it."""
    frame, refused = FRAMES[name]

    async def program(caller: Caller) -> None:
        caller.raw.send({**frame, "stream_id": "a"})
        assert await caller.next() == refused | {"stream_id": "a"}

    run(program, may_be_empty=True)


def test_frames_of_some_clients_are_ignored():
    """`response.processed` gets no answer at all."""

    async def program(caller: Caller) -> None:
        caller.raw.send({"type": "response.processed", "response_id": "resp_1"})
        await caller.turn()
        assert caller.frames[0]["type"] == "response.created"

    run(program)


def test_an_inject_is_answered_in_its_own_way():
    """Also here, where no response takes one: unknown ones are not found, and create responses as if unknown."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call")
        for response_id in ("resp_x", first["id"]):
            caller.raw.send({"type": "response.inject", "response_id": response_id, "input": [NOBODY]})
            assert await caller.next() == {
                "type": "response.inject.failed",
                "sequence_number": 0,
                "response_id": response_id,
                "input": [NOBODY],
                "error": {"code": "response_not_found", "message": f"Response '{response_id}' not found."},
            }

    run(program)


# --- outputs of a chain (reference 2.4) ------------------------------------------------------------------------------


async def fork(caller: Caller, items: list[Any], parent: str) -> dict[str, Any]:
    """Continue on another lane, which leaves the parent alone if it is refused; the first frame."""
    caller.create(items, previous_response_id=parent, stream_id="fork")
    frame = await caller.next()
    frame.pop("stream_id")
    return frame


def test_outputs_must_fit_the_calls_of_the_chain():
    """Unknown, of another kind, twice, missing: each is refused in its words, and the right ones still work."""

    async def program(caller: Caller) -> None:
        parent = (await caller.turn("both"))["id"]
        one, two = caller.output(0), caller.output(1)
        ids = [each["call_id"] for each in (one, two)]
        missing = error_frame(None, f"No tool output found for function call {ids[1]}.", "input")
        assert await fork(caller, [one], parent) == missing
        assert await fork(caller, [one, {"role": "user", "content": "hi"}], parent) == missing
        for kind, call_id in zip(("custom_tool_call_output", "function_call_output"), ids, strict=True):
            wrong = {"type": kind, "call_id": call_id, "output": "ok"}
            message = f"No tool call found for function call output with call_id {call_id}."
            assert await fork(caller, [wrong], parent) == error_frame(None, message, "input")
        again = error_frame("invalid_input", f"Tool call '{ids[0]}' already has an output.", "input")
        assert await fork(caller, [one, two, one], parent) == again
        await caller.turn([two, one], previous_response_id=parent)

    left = run(program)

    kinds = ["function_call", "custom_tool_call", "custom_tool_call_output", "function_call_output"]
    assert left.kinds() == ["message", *kinds]


def test_an_output_is_taken_once_in_a_chain():
    """A later turn that answers the call again is refused."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call")
        second = await caller.turn([caller.output(0)], previous_response_id=first["id"])
        frame = await fork(caller, [caller.output(0)], second["id"])
        call_id = caller.output(0)["call_id"]
        assert frame == error_frame("invalid_input", f"Tool call '{call_id}' already has an output.", "input")

    run(program)


# --- of the server ---------------------------------------------------------------------------------------------------


def test_a_server_that_is_full_says_so():
    """503 for a create too many, on its lane; what runs completes."""
    overloaded = error_frame(
        "server_is_overloaded", "The server is overloaded.", status=503, type="server_error"
    )

    async def program(caller: Caller) -> None:
        caller.create("wait")
        await caller.until("response.in_progress")
        caller.create(stream_id="b")
        assert await caller.until("error") == overloaded | {"stream_id": "b"}
        await caller.until(*TERMINAL)
        await caller.turn(stream_id="b")

    run(program, limits=attrs.evolve(DEFAULT_LIMITS, max_open_rollouts=1))


def test_a_server_that_goes_away_refuses_what_is_new_and_what_waits():
    """503 for both; the running response completes, and the connection is closed."""

    async def program(caller: Caller) -> None:
        caller.create("wait")
        caller.create("next", stream_id=None)
        await caller.until("response.output_text.delta")
        caller.served.server.drain()
        caller.create("new", stream_id="b")
        lanes = [(await caller.until("error")).get("stream_id") for _ in range(2)]
        assert lanes == [None, "b"]
        assert (await caller.until(*TERMINAL))["response"]["status"] == "completed"

    left = run(program)

    codes = {frame["error"]["code"] for frame in left.frames if frame["type"] == "error"}
    assert codes == {"server_is_overloaded"}


def test_a_sampler_that_fails_fails_its_response_only():
    """`response.failed` with the code that clients retry, no `error` frame beside it; other lanes go on."""

    async def program(caller: Caller) -> None:
        caller.create("wait and fail")
        caller.create("wait", stream_id="b")
        await trio.sleep(STALL_SECONDS + 1)
        ends = {frame.get("stream_id"): frame for frame in [await caller.until(*TERMINAL) for _ in "ab"]}
        assert ends[None]["response"]["error"] == {
            "code": "server_error",
            "message": "The server had an error while processing your request.",
        }
        assert ends["b"]["response"]["status"] == "completed"

    left = run(program)

    assert "error" not in [frame["type"] for frame in left.frames]


def test_a_context_that_grows_beyond_the_window_is_refused():
    """The window is the model's; the chain is counted whole; `truncation: auto` lets it through."""
    models = ModelTable((ModelEntry(name="m", context_tokens=150),))

    async def program(caller: Caller) -> None:
        first = await caller.turn("word " * 40)
        too_long = {"text": "word " * 40, "previous_response_id": first["id"], "stream_id": "fork"}
        frame = await caller.refused(**too_long)
        assert (frame["status"], frame["error"]["code"]) == (400, "context_length_exceeded")
        caller.create(**too_long, truncation="auto")
        assert (await caller.until(*TERMINAL))["response"]["status"] == "completed"

    run(program, models=models)
