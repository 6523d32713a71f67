"""The create form: a call ends its response, and the next create goes on (reference 4.3, 7.2)."""

import re
from typing import Any

import pytest

from tests.create_form import ACTIONS, Caller, error_frame, run, text_in, user
from tests.scenarios import FUNCTION, TERMINAL

RANDOM_ID = re.compile(r"resp_[0-9a-f]{32}\Z")


def test_a_call_completes_its_response_and_a_create_with_the_output_goes_on():
    """The call is in `output`, the second response is a new one, and no frame of another form is ever sent."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("call")
        second = await caller.turn([caller.output(0, "42")], previous_response_id=first["id"])
        assert ["function_call"] == [item["type"] for item in first["output"]]
        assert (first["status"], second["status"]) == ("completed", "completed")
        assert (first["id"], second["previous_response_id"]) == (second["previous_response_id"], first["id"])
        assert all(RANDOM_ID.match(each["id"]) for each in (first, second))
        assert text_in(second) == "You said ok."

    left = run(program)

    kinds = [frame["type"] for frame in left.frames]
    assert (2, 2, 2) == tuple(
        kinds.count(f"response.{name}") for name in ("created", "in_progress", "completed")
    )
    assert not {"response.done", "response.inject.created", "error"} & set(kinds)
    assert not [frame for frame in left.frames if "agent" in frame or "stream_id" in frame]


def test_numbers_begin_at_zero_in_each_response():
    """No number is left out or used twice, from `created` to the terminal event."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("both")
        outputs = [caller.output(0), caller.output(1)]
        await caller.turn(outputs, previous_response_id=first["id"])

    left = run(program)

    numbers: list[list[int]] = []
    for frame in left.frames:
        if frame["type"] == "response.created":
            numbers.append([])
        numbers[-1].append(frame["sequence_number"])
    assert numbers == [list(range(len(each))) for each in numbers]
    assert len(numbers) == 2


@pytest.mark.parametrize(
    "members",
    [
        {"stream": True},
        {"stream": False},
        {"stream": True, "stream_options": {"include_obfuscation": False, "include_usage": True}},
        {"background": False},
        {"background": None},
        {"something_new": {"of": "next month"}},
        {"generate": True},
        {"generate": None},
        {"stream_id": None},
        {"previous_response_id": None},
        {"moderation": None, "access_programs": [], "image": {}, "background_options": {}},
        {"prompt_cache_options": {"prewarm": False}},
    ],
    ids=lambda members: ", ".join(f"{name}={value}" for name, value in members.items())[:40],
)
def test_what_has_no_meaning_here_is_ignored(members: dict[str, Any]):
    """The frames are those of a plain create."""

    async def program(caller: Caller) -> None:
        assert text_in(await caller.turn("hi", **members)) == "You said hi."
        assert caller.frames[-1]["response"]["background"] is False

    run(program)


@pytest.mark.parametrize("member", ["background", "conversation", "prompt"])
def test_what_cannot_be_done_here_is_refused(member: str):
    """A typed error names the member, nothing is created, and the next create works."""

    async def program(caller: Caller) -> None:
        frame = await caller.refused(**{member: True})
        assert frame == error_frame("unsupported_parameter", f"Unsupported parameter: '{member}'.", member)
        await caller.turn()

    run(program)


def test_a_conversation_beside_a_parent_is_refused():
    """Two parents are a contradiction; like every continuation that is refused it costs the parent its place (reference 4.4)."""

    async def program(caller: Caller) -> None:
        first = await caller.turn()
        frame = await caller.refused(conversation="conv_1", previous_response_id=first["id"])
        assert (frame["status"], frame["error"]["param"]) == (400, "conversation")
        await caller.misses(first["id"])

    run(program)


# --- continuing --------------------------------------------------------------------------------------------------


def test_the_context_is_the_whole_chain():
    """Input, output and new input of all turns, in order (BerriAI/litellm#37956, mudler/LocalAI)."""

    async def program(caller: Caller) -> None:
        parent = None
        for text in ([user("one"), user("two"), user("three")], "four", "five"):
            parent = (await caller.turn(text, previous_response_id=parent))["id"]

    left = run(program)

    expected = ["one", "two", "three", "You said three.", "four", "You said four.", "five"]
    assert left.heard() == expected


def test_instructions_are_not_inherited():
    """Each create brings its own or has none: neither the echo nor the context keeps the parent's."""

    async def program(caller: Caller) -> None:
        plain = await caller.turn("hi")
        long = await caller.turn("hi", instructions="Be very kind to everybody, always.")
        short = await caller.turn("more", previous_response_id=long["id"])
        other = await caller.turn("more", previous_response_id=short["id"], instructions="Be brief.")
        assert [each["instructions"] for each in (plain, long, short, other)] == [
            None,
            "Be very kind to everybody, always.",
            None,
            "Be brief.",
        ]

    left = run(program)

    heard = [("very kind" in fed, "Be brief" in fed) for fed in left.sampler.fed]
    assert heard == [(False, False), (True, False), (False, False), (False, True)]


def test_tools_come_from_the_new_create():
    """A tool that is no longer offered is not found; one that is new is; the echo has the create's own."""

    async def program(caller: Caller) -> None:
        parent = await caller.turn("hi", tools=[FUNCTION])
        other = {**FUNCTION, "name": "g"}
        choice = {"type": "function", "name": "g"}
        turn = await caller.turn("more", previous_response_id=parent["id"], tools=[other], tool_choice=choice)
        assert [tool["name"] for tool in turn["tools"]] == ["g"]
        frame = await caller.refused("more", previous_response_id=turn["id"], tools=[], tool_choice=choice)
        assert frame == error_frame(
            "invalid_value", "Tool choice 'g' not found in 'tools' parameter.", "tool_choice"
        )

    run(program)


def test_tools_in_an_item_travel_with_the_context():
    """`additional_tools` are offered in later turns that do not repeat them (reference 8.1)."""

    async def program(caller: Caller) -> None:
        bringing = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}
        first = await caller.turn([bringing, user("hi")], tools=[])
        choice = {"type": "function", "name": "f"}
        second = await caller.turn("call", previous_response_id=first["id"], tools=[], tool_choice=choice)
        assert [item["type"] for item in second["output"]] == ["function_call"]

    run(program)


def test_other_members_are_taken_from_the_new_create():
    """Neither limits, nor metadata, nor the sampling's numbers are inherited."""

    async def program(caller: Caller) -> None:
        set_once = {"max_output_tokens": 100, "metadata": {"a": "b"}, "temperature": 0.5, "user": "me"}
        first = await caller.turn("hi", **set_once)
        second = await caller.turn("hi", previous_response_id=first["id"])
        assert {name: first[name] for name in set_once} == set_once
        assert [second[name] for name in set_once] == [None, {}, 1.0, None]

    run(program)


def test_an_empty_delta_is_a_turn():
    """`input: []`, or none at all, with a parent: the model goes on with what is there."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("hi")
        second = await caller.turn([], previous_response_id=first["id"])
        third = await caller.turn(None, previous_response_id=second["id"])
        assert [each["status"] for each in (second, third)] == ["completed", "completed"]

    left = run(program)

    assert left.heard()[:2] == ["hi", "You said hi."]
    assert len(left.sampler.contexts) == 3


def test_no_parent_is_a_new_conversation_on_a_used_lane():
    """Absent or null: the context holds the new input only (router-for-me/CLIProxyAPI#5811, router-for-me/CLIProxyAPI#2266)."""

    async def program(caller: Caller) -> None:
        fresh = await caller.turn("hi")
        await caller.turn("call")
        for members in ({}, {"previous_response_id": None}):
            turn = await caller.turn("hi", **members)
            assert turn["usage"] == fresh["usage"]

    left = run(program)

    assert left.heard() == ["hi"]


# --- usage -------------------------------------------------------------------------------------------------------


def test_usage_is_the_whole_context_with_what_was_reused_of_it():
    """Input grows by the parent's output and the new input; what the parent had is cached; output is one's own."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("talk")
        second = await caller.turn("talk", previous_response_id=first["id"])
        third = await caller.turn("talk")
        one, two, three = (each["usage"] for each in (first, second, third))
        assert (one["input_tokens_details"]["cached_tokens"], three) == (0, one)
        assert 0 < two["input_tokens_details"]["cached_tokens"] < two["input_tokens"]
        assert two["input_tokens"] > one["input_tokens"] + one["output_tokens"]
        for usage in (one, two):
            assert usage["output_tokens"] == len(ACTIONS["talk"]) - 1
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
            assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
            assert set(usage["output_tokens_details"]) == {"reasoning_tokens"}

    run(program)


def test_a_response_that_ran_out_of_tokens_is_incomplete_and_a_parent():
    """`response.incomplete` with its reason; what was written so far is in the next context."""

    async def program(caller: Caller) -> None:
        cut = await caller.turn("talk", max_output_tokens=2)
        assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (caller.frames[-1]["type"], cut["usage"]["output_tokens"]) == ("response.incomplete", 2)
        assert cut["output"][-1]["status"] == "incomplete"
        await caller.turn("hi", previous_response_id=cut["id"])

    left = run(program)

    assert left.heard() == ["talk", "one two ", "hi"]


def test_the_frames_of_a_response_tell_of_one_resource():
    """Id, creation time, model and parent are the same in the first, second and last event."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("hi")
        await caller.turn("talk", previous_response_id=first["id"])

    left = run(program)

    names = ("response.created", "response.in_progress", *TERMINAL)
    resources = [frame["response"] for frame in left.frames if frame["type"] in names]
    same = ("id", "created_at", "model", "previous_response_id", "instructions", "store")
    told = [tuple(resource[name] for name in same) for resource in resources]
    assert [told[0]] * 3 + [told[3]] * 3 == told
