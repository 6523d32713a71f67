"""PolicySampler: a program's moves as a sampler's steps; load_policy: a program by its import path."""

import json
import re
from array import array

import pytest

from engine import vocabulary
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Prefilled,
    Prompt,
    Text,
    Thought,
)
from engine.samplers.policy import PolicySampler, Say, Think, Use, load_policy
from protocol.items import FunctionCallOutput, Message

TOOLS = ({"type": "function", "name": "now"},)
PROMPT = Prompt("resp_1", "m", TOOLS)
policy = "not callable"


def greet(items, tools, /):
    """A policy to be found by its path."""
    return [Say(f"{len(items)} items, {len(tools)} tools")]


async def segment(sampling, items=(), *, new=0, held=0):
    appended = Appended(tuple(items), array("I", [1] * new), held + new)
    return [tuple(step) async for step in sampling.sample(appended)]


async def test_each_move_is_a_step_with_its_tokens():
    """Words carry the vocabulary's count; a call is its start, its input and its end, numbered by its place."""
    moves = [
        Think("why not"),
        Say("hello world"),
        Use("now", {"zone": "UTC"}, "clock"),
        Use("raw", "some text"),
    ]
    arguments = json.dumps({"zone": "UTC"})

    def count(text):
        return len(vocabulary.encode(text))

    expected = [
        (Prefilled(30, 12),),
        (Thought("why not", count("why not")),),
        (Text("hello world", count("hello world")),),
        (CallStart(2, "now", "clock"), CallInput(2, arguments, count(arguments)), CallEnd(2)),
        (CallStart(3, "raw", None), CallInput(3, "some text", count("some text")), CallEnd(3)),
        (End(),),
    ]
    sampling = PolicySampler(lambda _items, _tools: moves).open(PROMPT)
    assert expected == await segment(sampling, new=12, held=30)


async def test_a_policy_sees_all_items_so_far_and_the_tools():
    """In each segment it gets what came before and what is new, in order, and the prompt's tools."""
    seen = []

    def watch(items, tools, /):
        seen.append((list(items), tools))
        return []

    sampling = PolicySampler(watch).open(PROMPT)
    first, second = Message("user", "hi"), FunctionCallOutput("call_1", "noon")
    await segment(sampling, [first])
    await segment(sampling, [second])
    assert [([first], TOOLS), ([first, second], TOOLS)] == seen


async def test_two_rollouts_of_one_policy_share_nothing():
    """Items of one sampling are not seen by the other."""
    sampler = PolicySampler(greet)
    one, other = sampler.open(PROMPT), sampler.open(PROMPT)
    await segment(one, [Message("user", "a"), Message("user", "b")])
    steps = await segment(other, [Message("user", "c")])
    assert "1 items, 1 tools" == steps[1][0].text


async def test_a_policy_that_fails_fails_the_segment():
    """What the policy raises comes out of the sampling, which can then be closed, twice."""

    def broken(_items, _tools, /):
        raise ZeroDivisionError("by design")

    sampling = PolicySampler(broken).open(PROMPT)
    with pytest.raises(ZeroDivisionError, match="by design"):
        await segment(sampling)
    await sampling.aclose()
    await sampling.aclose()


def test_a_policy_is_found_by_its_module_and_name():
    """`module:name` is the attribute of that name."""
    assert load_policy(f"{__name__}:greet").__name__ == "greet"


def test_a_policy_is_found_by_its_module_alone():
    """Without a name it is the module's `policy`."""
    import demos.agents.repair as module

    assert module.policy is load_policy("demos.agents.repair")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "no.such.module",
            "no policy 'no.such.module': cannot import 'no.such.module' (No module named 'no')",
        ),
        ("json:missing", "no policy 'json:missing': 'json' has no callable 'missing'"),
        ("json", "no policy 'json': 'json' has no callable 'policy'"),
        (f"{__name__}:policy", f"no policy '{__name__}:policy': '{__name__}' has no callable 'policy'"),
        ("", "no policy ''"),
        (":name", "no policy ':name'"),
    ],
)
def test_a_path_without_a_policy_says_what_was_looked_for(path, message):
    """Each wrong path is a `ValueError` with the module or the name that is not there."""
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        load_policy(path)


async def test_two_moves_of_one_kind_in_a_row_are_two_lines():
    """What is said or thought twice does not run together; after another kind nothing is put between."""
    moves = [Say("a"), Say("b"), Think("c"), Think("d"), Use("now", {}), Say("e")]
    steps = await segment(PolicySampler(lambda _items, _tools: moves).open(PROMPT))
    assert ["a", "\nb", "c", "\nd", "e"] == [
        part.text for step in steps for part in step if isinstance(part, Text | Thought)
    ]
