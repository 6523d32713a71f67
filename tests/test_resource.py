"""The response resource: what the client set is echoed, the rest has its default, and every key is there."""

import attrs
import orjson
import pytest

from engine.resource import resource_at_end, resource_of
from protocol import codec
from protocol.dialects import APPEND, INJECT, Ending
from protocol.events import IncompleteDetails, Response, ResponseCompleted, ResponseCreate, ResponseError
from protocol.items import Message
from protocol.usage import Usage

KEYS = {
    "id", "object", "created_at", "completed_at", "status", "error", "incomplete_details", "previous_response_id",
    "instructions", "model", "output", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens",
    "max_tool_calls", "temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "reasoning",
    "text", "truncation", "store", "background", "service_tier", "metadata", "user", "safety_identifier",
    "prompt_cache_key", "usage",
}  # fmt: skip

ECHOED = {
    "previous_response_id": "resp_0",
    "instructions": "be brief",
    "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": False,
    "max_output_tokens": 7,
    "max_tool_calls": 3,
    "temperature": 0.0,
    "top_p": 0.5,
    "presence_penalty": 0.25,
    "frequency_penalty": -0.5,
    "top_logprobs": 2,
    "truncation": "auto",
    "store": False,
    "service_tier": "flex",
    "metadata": {"a": "b"},
    "user": "me",
    "safety_identifier": "s",
    "prompt_cache_key": "p",
}


def on_the_wire(response: Response) -> dict:
    return orjson.loads(codec.encode(ResponseCompleted(response)))["response"]


def test_a_bare_create_has_every_default():
    """Without any member the resource is the blank one, of an unnamed model."""
    assert Response("resp_1", 12, "") == resource_of(ResponseCreate(), "resp_1", 12)


def test_every_key_is_on_the_wire():
    """Null or not, all keys of the reference are sent, and they are those the class has."""
    assert KEYS == set(on_the_wire(resource_of(ResponseCreate(model="m"), "resp_1", 12)))
    assert KEYS == {field.name for field in attrs.fields(Response)}


@pytest.mark.parametrize("name", ECHOED)
def test_a_member_that_is_set_is_echoed(name):
    """Values that are false or zero are echoed like any other, and nothing else changes."""
    create = ResponseCreate(model="m", **{name: ECHOED[name]})
    expected = attrs.evolve(Response("resp_1", 12, "m"), **{name: ECHOED[name]})
    assert expected == resource_of(create, "resp_1", 12)


def test_all_members_at_once_are_echoed():
    """A create with everything has all of it back on the wire."""
    echoed = on_the_wire(resource_of(ResponseCreate(model="m", **ECHOED), "resp_1", 12))
    assert ECHOED == {name: echoed[name] for name in ECHOED}


def test_background_is_never_echoed():
    """The engine runs nothing in the background, whatever was asked."""
    assert False is resource_of(ResponseCreate(background=True), "resp_1", 12).background


@pytest.mark.parametrize(
    ("given", "text", "reasoning"),
    [
        (
            {},
            {"format": {"type": "text"}, "verbosity": "medium"},
            {"effort": None, "summary": None},
        ),
        (
            {"text": {"verbosity": "low"}, "reasoning": {"effort": "high"}},
            {"format": {"type": "text"}, "verbosity": "low"},
            {"effort": "high", "summary": None},
        ),
    ],
)
def test_text_and_reasoning_are_filled_up(given, text, reasoning):
    """Members that the client left out of these two have their defaults."""
    resource = resource_of(ResponseCreate(**given), "resp_1", 12)
    assert (text, reasoning) == (resource.text, resource.reasoning)


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (
            {"type": "function", "name": "f"},
            {"type": "function", "name": "f", "description": None, "parameters": None, "strict": True},
        ),
        (
            {"type": "function", "name": "f", "strict": None, "parameters": {"type": "object"}},
            {
                "type": "function",
                "name": "f",
                "description": None,
                "parameters": {"type": "object"},
                "strict": True,
            },
        ),
        (
            {"type": "function", "name": "f", "strict": False, "description": "d"},
            {"type": "function", "name": "f", "description": "d", "parameters": None, "strict": False},
        ),
        ({"type": "custom", "name": "raw"}, {"type": "custom", "name": "raw"}),
        ({"type": "web_search"}, {"type": "web_search"}),
    ],
)
def test_function_tools_have_all_members_and_others_stay(tool, expected):
    """A function tool is echoed with all five, `strict` true unless it was false; other tools as they came."""
    assert (expected,) == resource_of(ResponseCreate(tools=(tool,)), "resp_1", 12).tools


def ended(row, **members):
    given = {"output": [], "usage": None, "now": 99, "patience_seconds": 600.0, **members}
    return resource_at_end(Response("resp_1", 12, "m"), row, **given)


def test_a_completed_resource_has_its_time_output_and_usage():
    """At the end it has what was said, the usage, and when it was complete; the rest is as it began."""
    item, usage = Message("assistant", "hi"), Usage(3, 1, 0, 2)
    expected = attrs.evolve(
        Response("resp_1", 12, "m"), status="completed", completed_at=99, output=(item,), usage=usage
    )
    assert expected == ended(APPEND.sampling_endings[Ending.COMPLETED], output=[item], usage=usage)


@pytest.mark.parametrize(
    ("ending", "reason"),
    [(Ending.MAX_OUTPUT_TOKENS, "max_output_tokens"), (Ending.MAX_TOOL_CALLS, "max_tool_calls")],
)
def test_an_incomplete_resource_has_its_reason(ending, reason):
    """A limit is a reason and no error, and nothing was completed."""
    resource = ended(APPEND.sampling_endings[ending])
    assert ("incomplete", IncompleteDetails(reason), None, None) == (
        resource.status,
        resource.incomplete_details,
        resource.error,
        resource.completed_at,
    )


@pytest.mark.parametrize(
    ("row", "status", "error"),
    [
        (
            APPEND.sampling_endings[Ending.FAILED],
            "failed",
            ResponseError("server_error", "The server had an error while processing your request."),
        ),
        (
            APPEND.suspended_endings[Ending.EXPIRED],
            "failed",
            ResponseError(
                "server_error", "Suspended response 'resp_1' received no tool output within 600 s."
            ),
        ),
        (
            INJECT.sampling_endings[Ending.CANCELLED],
            "cancelled",
            ResponseError("invalid_prompt", "Response 'resp_1' was cancelled."),
        ),
    ],
)
def test_a_failed_resource_has_the_words_of_the_catalogue(row, status, error):
    """The error has code and message, the seconds and the id filled in; nothing was completed."""
    resource = ended(row)
    assert (status, error, None, None) == (
        resource.status,
        resource.error,
        resource.incomplete_details,
        resource.completed_at,
    )


@pytest.mark.parametrize("dialect", [APPEND, INJECT])
def test_every_ending_has_a_resource_that_can_be_sent(dialect):
    """Each row of both forms makes a resource with all keys, and an error has a code."""
    for row in (*dialect.sampling_endings.values(), *dialect.suspended_endings.values()):
        resource = on_the_wire(ended(row))
        assert (KEYS, row.error is None) == (set(resource), resource["error"] is None)
        assert row.error is None or resource["error"]["code"]
