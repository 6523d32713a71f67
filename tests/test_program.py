"""A script replayed segment by segment is the script run once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.samplers.policy import ReplayError, Say, Think, Use, program
from protocol.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    McpCall,
    Message,
    OutputText,
)
from tests.replay import moves_by_driving, moves_by_replay

STEPS = st.lists(
    st.one_of(
        st.builds(Say, st.text(max_size=5)),
        st.builds(Think, st.text(max_size=5)),
        st.builds(Use, st.sampled_from("ab"), st.dictionaries(st.sampled_from("xy"), st.integers())),
        st.lists(st.builds(Use, st.sampled_from("ab"), st.just({})), min_size=1, max_size=3).map(tuple),
    ),
    max_size=8,
)


@settings(max_examples=50)
@given(STEPS)
def test_replay_equals_driving(steps):
    """For any script: the same moves, and none is made twice; each sees the outputs of the calls before."""

    def script(_prompt, _tools):
        seen = ""
        for step in steps:
            output = yield step
            seen += str(output or "")
            yield Think(seen)

    def numbered():
        count = iter(range(1000))
        return lambda use: f"{use.name}{next(count)}"

    assert moves_by_replay(program(script), numbered()) == moves_by_driving(script, numbered())


def test_program_that_changes_its_mind_is_refused():
    """A script that makes another call than the conversation has is told so, with both calls."""
    names = iter("ab")

    def script(_prompt, _tools):
        yield Use(next(names), {})

    with pytest.raises(ReplayError, match=r"calls Use.*'b'.* where the conversation has Use.*'a'"):
        moves_by_replay(program(script), lambda _use: "")


def greet(prompt, _tools):
    name = yield Use("ask", {"about": prompt})
    yield Say(f"{prompt}: {name}")


CALL, OUTPUT = FunctionCall("c1", "ask", '{"about": "one"}'), FunctionCallOutput("c1", "Ada")
ONE, TWO = Message("user", "one"), Message("user", "two")
DONE = Message("assistant", (OutputText("one: Ada"),))


@pytest.mark.parametrize(
    ("items", "restart", "expected"),
    [
        ((ONE,), True, [Use("ask", {"about": "one"})]),
        ((ONE, CALL, OUTPUT), True, [Say("one: Ada")]),
        ((ONE, CALL, OUTPUT, DONE, TWO), False, [Use("ask", {"about": "two"})]),
        ((ONE, CALL, OUTPUT, TWO), True, [Use("ask", {"about": "two"})]),
        ((ONE, CALL, OUTPUT, TWO), False, [Say("one: Ada")]),
        ((ONE, CALL), True, [Use("ask", {"about": "one"})]),
    ],
)
def test_where_a_run_begins(items, restart, expected):
    """A run begins at the last user message; one that comes between calls begins a run only if it may."""
    assert program(greet, restart=restart)(items, ()) == expected


def test_custom_and_hosted_calls_are_replayed():
    """A script calls custom and hosted tools as it calls any: raw text in, and text out."""

    def script(_prompt, _tools):
        patched = yield Use("patch", "*** Begin")
        found, failed = yield (Use("find", {"n": 1}), Use("find", {"n": 2}))
        yield Say(f"{patched} {found} {failed}")

    items = (
        ONE,
        CustomToolCall("c1", "patch", "*** Begin"),
        CustomToolCallOutput("c1", "done"),
        McpCall("m1", "local", "find", '{"n":1}', output="one"),
        McpCall("m2", "local", "find", '{"n":2}', error="none"),
    )
    assert program(script)(items, ()) == [Say("done one none")]


def test_outputs_go_to_their_calls():
    """Outputs in another order than the calls are matched by call id."""

    def script(_prompt, _tools):
        first, second = yield (Use("a", {"to": ("x",)}), Use("b", {}))
        yield Say(f"{first}{second}")

    calls = (FunctionCall("c1", "a", '{"to":["x"]}'), FunctionCall("c2", "b", "{}"))
    outputs = (FunctionCallOutput("c2", "2"), FunctionCallOutput("c1", "1"))
    assert program(script)((ONE, *calls, *outputs), ()) == [Say("12")]


def test_hosted_calls_may_come_after_the_clients():
    """In a step that mixes them, the hosted call stands after the client's, wherever the program named it."""

    def script(_prompt, _tools):
        hosted, local, again = yield (Use("find", {}), Use("read", {}), Use("find", {}))
        yield Say(f"{hosted} {local} {again}")

    items = (
        ONE,
        FunctionCall("c1", "read", "{}"),
        McpCall("m1", "local", "find", "{}", output="first"),
        McpCall("m2", "local", "find", "{}", output="second"),
        FunctionCallOutput("c1", "mine"),
    )
    assert program(script)(items, ()) == [Say("first mine second")]
