"""Improv: a source that calls what it is offered so many times, then says what came back."""

from array import array

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.samplers.base import Appended, CallEnd, CallInput, CallStart, End, Prompt, Text
from engine.samplers.improv import Improv, _example
from protocol.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    McpCall,
    Message,
)

NOW = {"type": "function", "name": "now", "parameters": {"type": "object"}}
RAW = {"type": "custom", "name": "raw"}


async def segment(sampling, *items):
    return [tuple(step) async for step in sampling.sample(Appended(items, array("I")))]


def opened(tools=(), **numbers):
    tool_choice = numbers.pop("tool_choice", "auto")
    return Improv(**numbers).open(Prompt("resp_1", "m", tuple(tools), tool_choice))


async def test_without_tools_it_answers_at_once():
    """The first segment is the answer, of as many words as asked for."""
    ((answer, end),) = await segment(opened(words=5))
    assert (Text("the rollout waits while a."), End()) == (answer, end)


async def test_a_long_answer_repeats_its_words():
    """More words than it knows are no problem."""
    ((answer, _),) = await segment(opened(words=100))
    assert 100 == len(answer.text.split())


async def test_with_tools_it_calls_so_many_times_and_then_reports():
    """So many segments are one call each; the answer counts the outputs and their characters."""
    sampling = opened([NOW], calls=2, words=1)
    call = (CallStart(0, "now"), CallInput(0, "{}"), CallEnd(0), End())
    expected = [
        [call],
        [call],
        [(Text("2 tool outputs with 5 characters came back: the."), End())],
    ]
    actual = [
        await segment(sampling, Message("user", "hi")),
        await segment(sampling, FunctionCall("c1", "now", "{}"), FunctionCallOutput("c1", "no")),
        await segment(sampling, CustomToolCall("c2", "raw", ""), CustomToolCallOutput("c2", "one")),
    ]
    assert expected == actual
    await sampling.aclose()


async def test_a_history_that_is_sent_whole_is_as_good_as_one_that_was_heard():
    """The calls are counted in what is there, those of the server's own tools too, from the last word of a user on."""
    rounds = [
        FunctionCall("c1", "now", "{}"),
        FunctionCallOutput("c1", "no"),
        McpCall("m1", "srv", "now", "{}"),
    ]
    for history, expected in (([], CallStart), (rounds[:2], CallStart), (rounds, Text)):
        steps = await segment(opened([NOW], calls=2), Message("user", "hi"), *history)
        assert isinstance(steps[0][0], expected)
    again = await segment(opened([NOW], calls=2), Message("user", "hi"), *rounds, Message("user", "and?"))
    assert isinstance(again[0][0], CallStart)


async def test_it_takes_the_tools_in_turn():
    """With two tools both are called, a custom one with raw text."""
    sampling = opened([NOW, RAW], calls=2)
    steps = [await segment(sampling), await segment(sampling, FunctionCall("c1", "now", "{}"))]
    assert [("now", "{}"), ("raw", "example")] == [(step[0][0].name, step[0][1].text) for step in steps]


async def test_tools_in_a_namespace_are_called_with_it():
    """A tool inside a namespace bears its name; an empty namespace offers nothing."""
    sampling = opened(
        [{"type": "namespace", "name": "clock", "tools": [NOW]}, {"type": "namespace", "name": "x"}]
    )
    ((start, *_),) = await segment(sampling)
    assert CallStart(0, "now", "clock") == start


@pytest.mark.parametrize(
    ("tools", "tool_choice"), [([NOW], "none"), ([{"type": "web_search"}], "auto"), ([], "auto")]
)
async def test_what_may_not_be_called_is_not_called(tools, tool_choice):
    """Neither with `tool_choice: none` nor with tools of other kinds does it call."""
    ((part, _),) = await segment(opened(tools, tool_choice=tool_choice))
    assert Text is type(part)


async def test_a_tool_without_schema_gets_an_empty_object():
    """Absent and null parameters mean an object without members."""
    for tool in ({"type": "function", "name": "f"}, {"type": "function", "name": "f", "parameters": None}):
        ((_, given_input, *_),) = await segment(opened([tool]))
        assert "{}" == given_input.text


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["b", "a"]}, "b"),
        ({"type": "integer"}, 1),
        ({"type": "number"}, 1.5),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": "array"}, []),
        ({"type": ["integer", "null"]}, 1),
        ({}, "example"),
        ({"type": "unheard-of"}, "example"),
        ({"type": "object", "required": ["a"]}, {"a": "example"}),
        (
            {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {}}, "required": ["a"]},
            {"a": True},
        ),
    ],
)
def test_an_example_has_the_schemas_shape(schema, expected):
    """Required members only, the first of the allowed values, else one value of the type."""
    assert expected == _example(schema)


schemas = st.recursive(
    st.sampled_from(["string", "integer", "number", "boolean", "array", "null"]).map(
        lambda kind: {"type": kind}
    ),
    lambda inner: st.dictionaries(st.text("abc", min_size=1), inner, max_size=3).map(
        lambda members: {"type": "object", "properties": members, "required": sorted(members)}
    ),
    max_leaves=8,
)


@given(schema=schemas)
async def test_the_arguments_fit_the_schema(schema):
    """Whatever nested object a tool asks for, its arguments are valid by its schema."""
    whole = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    ((_, given_input, *_),) = await segment(opened([{**NOW, "parameters": whole}]))
    jsonschema.validate(orjson.loads(given_input.text), whole)


async def test_two_rollouts_say_the_same():
    """What it says depends on the prompt alone."""
    assert await segment(opened([NOW])) == await segment(opened([NOW]))
