"""The client's own search for tools: a call like others, whose output is the tools it found (reference 2.4, 8.1, 8.4).

Suspended in the append and inject forms it is a row of `tests/scenarios.py`.
"""

from typing import Any

import pytest
import trio

from engine.compact import compacted, sizes_of
from engine.samplers.scripted import END, Script, Scripted, call, say
from engine.testing import serving, simulate, simulated_engine
from protocol.items import (
    FunctionCall,
    Item,
    Message,
    Opaque,
    ToolSearchCall,
    ToolSearchOutput,
    output_for,
)
from tests.create_form import Caller, error_frame, run, text_in
from tests.http_peer import HttpPeer
from tests.scenarios import FOUND, FUNCTION, SEARCH, TERMINAL, Talk, wait_idle
from tests.test_steering import steered

SEARCHED: Script = [
    [call("tool_search", '{"query":"x"}'), END],
    [call("found", "raw"), END],
    [*say("ok"), END],
]
SERVERS_OWN = [
    {
        "type": "tool_search_call",
        "call_id": None,
        "execution": "server",
        "arguments": {},
        "status": "completed",
    },
    {
        "type": "tool_search_output",
        "call_id": None,
        "execution": "server",
        "status": "completed",
        "tools": [FOUND],
    },
]


# --- a call like others --------------------------------------------------------------------------------------------


def test_a_search_is_a_call_and_what_it_found_can_be_called():
    """Two events show it whole; its output goes on the chain; the tool that was found is a custom tool from then on."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("search", tools=[SEARCH])
        (searched,) = first["output"]
        assert searched == {
            "id": searched["id"],
            "type": "tool_search_call",
            "status": "completed",
            "call_id": searched["call_id"],
            "execution": "client",
            "arguments": {"query": "x"},
        }
        kinds = [frame["type"].removeprefix("response.") for frame in caller.frames]
        items = ["output_item.added", "output_item.done"]
        assert kinds == ["created", "in_progress", *items, "completed"]
        second = await caller.turn(
            [caller.output(0), {"role": "user", "content": "use it"}], previous_response_id=first["id"]
        )
        assert ["custom_tool_call"] == [item["type"] for item in second["output"]]
        third = await caller.turn([caller.output(1)], previous_response_id=second["id"], tools=[])
        assert "You said ok." == text_in(third)

    left = run(program)

    called = [
        "tool_search_call",
        "tool_search_output",
        "message",
        "custom_tool_call",
        "custom_tool_call_output",
    ]
    assert ["message", *called] == left.kinds()


@pytest.mark.parametrize("execution", [{}, {"execution": None}, {"execution": "client"}])
def test_an_output_says_by_its_call_id_that_it_is_the_clients(execution: dict[str, Any]):
    """Who ran the search may be left out: a server's own has no call id."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("search", tools=[SEARCH])
        output = {**caller.output(0), **execution}
        assert "You said ok." == text_in(await caller.turn([output], previous_response_id=first["id"]))

    run(program)


def test_a_search_is_answered_by_tools_and_by_nothing_else():
    """Missing, of another kind, unknown, twice: each is refused in the words of other calls, and the right output works."""

    async def program(caller: Caller) -> None:
        first = await caller.turn("search", tools=[SEARCH])
        output = caller.output(0)
        call_id = output["call_id"]
        none = f"No tool output found for function call {call_id}."
        no_call = "No tool call found for function call output with call_id "
        wrong: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
            ([{"role": "user", "content": "and?"}], error_frame(None, none, "input")),
            (
                [{"type": "function_call_output", "call_id": call_id, "output": "[]"}],
                error_frame(None, f"{no_call}{call_id}.", "input"),
            ),
            ([{**output, "call_id": "call_x"}], error_frame(None, f"{no_call}call_x.", "input")),
            (
                [output, output],
                error_frame("invalid_input", f"Tool call '{call_id}' already has an output.", "input"),
            ),
            (
                [{**output, "tools": "none"}],
                error_frame(
                    "invalid_type",
                    "Invalid type for 'input[0].tools': expected a list of objects.",
                    "input[0].tools",
                ),
            ),
            (
                [{**output, "tools": [{"type": "function"}]}],
                error_frame(
                    "missing_required_parameter",
                    "Missing required parameter: 'input.tools[0].name'.",
                    "input.tools[0].name",
                ),
            ),
        ]
        for items, refused in wrong:
            frame = await caller.refused(items, previous_response_id=first["id"], stream_id="fork")
            assert frame == refused | {"stream_id": "fork"}
        await caller.turn([output], previous_response_id=first["id"])

    run(program)


@pytest.mark.parametrize("tool", [{**SEARCH, "execution": "server"}, {"type": "tool_search"}])
def test_a_search_that_the_server_should_run_is_never_called(tool: dict[str, Any]):
    """The name is nobody's then: what the model calls is a function the client knows best."""

    async def program(caller: Caller) -> None:
        resource = await caller.turn("search", tools=[tool])
        assert ["function_call"] == [item["type"] for item in resource["output"]]
        assert [tool] == resource["tools"]

    run(program)


def test_a_search_of_a_server_is_history():
    """Items of another server's own search answer nothing and need no answer; the tools in them are offered."""

    async def program(caller: Caller) -> None:
        resource = await caller.turn([*SERVERS_OWN, {"role": "user", "content": "use it"}], tools=[])
        assert ["custom_tool_call"] == [item["type"] for item in resource["output"]]

    assert ["tool_search_call", "tool_search_output", "message"] == run(program).kinds()


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("", {}),
        ('{"a":[1]}', {"a": [1]}),
        ("7", 7),
        ("{not json", "{not json"),
        ("[" * 300 + "]" * 300, "[" * 300 + "]" * 300),
    ],
)
def test_what_a_model_writes_is_the_arguments(written: str, arguments: Any):
    """As JSON where it is some that can be written again, else as it is."""

    async def scenario() -> None:
        sampler = Scripted([[call("tool_search", written), END]])
        async with serving(simulated_engine(sampler, seed=1)) as served:
            peer = HttpPeer(await served.open_stream())
            answer = await peer.create(tools=[SEARCH])
            assert [arguments] == [item["arguments"] for item in answer.json["output"]]
            await peer.stream.aclose()

    simulate(scenario, seed=1)


def test_over_http_the_whole_history_gives_the_model_the_same():
    """By id or with everything sent again: the same input tokens, and the same call of what was found."""

    async def scenario() -> None:
        sampler = Scripted(lambda prompt: SEARCHED[{"m": 0, "m1": 1, "m2": 2}[prompt.model] :])
        async with serving(simulated_engine(sampler, seed=1)) as served:
            peer = HttpPeer(await served.open_stream())
            history: list[Any] = [{"role": "user", "content": "go"}]
            first = (await peer.create(input=history, tools=[SEARCH])).json
            output = {
                "type": "tool_search_output",
                "call_id": first["output"][0]["call_id"],
                "tools": [FOUND],
            }
            by_id = (
                await peer.create(
                    input=[output], tools=[SEARCH], model="m1", previous_response_id=first["id"]
                )
            ).json
            history += [*first["output"], output]
            by_history = (await peer.create(input=history, tools=[SEARCH], model="m1")).json
            for each in (by_id, by_history):
                assert ["custom_tool_call"] == [item["type"] for item in each["output"]]
            assert by_id["usage"]["input_tokens"] == by_history["usage"]["input_tokens"]
            listed = await peer.ask("GET", f"/v1/responses/{by_id['id']}/input_items")
            assert [output["call_id"]] == [item["call_id"] for item in listed.json["data"]]
            await peer.stream.aclose()

    simulate(scenario, seed=1)


# --- while a rollout waits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["append", "inject"])
def test_a_found_tool_that_cannot_be_read_is_not_offered(form: str):
    """The output was accepted: its good tools can be called in the same response, the bad ones are nobody's."""
    bad = {"type": "custom", "name": "bad", "format": {"type": "grammar", "syntax": "none"}}
    script: Script = [SEARCHED[0], [call("bad", "1"), call("found", "raw", index=1), END], SEARCHED[2]]

    async def scenario() -> None:
        async with serving(simulated_engine(Scripted(script), seed=1)) as served:
            async with served.connect_raw(append=form == "append") as raw:
                talk = Talk(raw, form, served)
                talk.create(tools=[SEARCH])
                await talk.until_suspended(1)
                talk.put({**talk.output(0), "tools": [bad, {"type": "function"}, {}, FOUND]})
                await talk.until_suspended(3)
                assert ["function_call", "custom_tool_call"] == [item["type"] for item in talk.calls[1:]]
                talk.answer(1, 2)
                assert "completed" == (await talk.until_ended())["response"]["status"]
            await wait_idle(served)

    simulate(scenario, seed=1)


@pytest.mark.parametrize("form", ["append", "inject"])
def test_a_suspended_search_refuses_what_does_not_answer_it(form: str):
    """A function's output, a server's own search, and a second answer: nothing changes, and the right output goes on."""

    async def scenario() -> None:
        async with serving(
            simulated_engine(Scripted([[call("tool_search"), call("f", index=1), END], SEARCHED[2]]), seed=1)
        ) as served:
            async with served.connect_raw(append=form == "append") as raw:
                talk = Talk(raw, form, served)
                talk.create(tools=[SEARCH, FUNCTION])
                await talk.until_suspended(2)
                output = talk.output(0)
                call_id, response_id = output["call_id"], talk.response_ids[0]
                verb = {"append": "appended", "inject": "injected"}[form]
                not_pending = f"Tool call '{call_id}' is not pending on response '{response_id}'."
                for item, words in (
                    ({"type": "function_call_output", "call_id": call_id, "output": ""}, not_pending),
                    (SERVERS_OWN[1], f"Item of type 'tool_search_output' cannot be {verb}."),
                ):
                    talk.put(item)
                    frame = await talk.until("error", "response.inject.failed")
                    assert ("invalid_input", words) == (frame["error"]["code"], frame["error"]["message"])
                talk.answer(0)
                talk.answer(0)
                frame = await talk.until("error", "response.inject.failed")
                assert f"Tool call '{call_id}' already has an output." == frame["error"]["message"]
                talk.answer(1)
                assert "completed" == (await talk.until_ended())["response"]["status"]
            await wait_idle(served)

    simulate(scenario, seed=1)


def test_words_that_wait_for_a_search_say_so():
    """The stub of a pending steer is the output that the client must send, without a name."""

    async def program(caller: Caller) -> None:
        response_id, _ = await steered(caller, "search slowly", tools=[SEARCH])
        ended = await caller.until(*TERMINAL)
        (made,) = ended["response"]["output"]
        pending = await caller.until("response.steer.pending")
        assert [{"type": "tool_search_output", "call_id": made["call_id"]}] == pending["required_input"]
        await caller.turn([caller.output(0)], previous_response_id=response_id)

    assert "please hurry" == run(program).heard()[-1]


# --- elsewhere -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["append", "inject"])
def test_our_client_runs_a_function_for_it(form: Any):
    """It is named `tool_search`, is given the arguments as text, and answers with tools; one that fails has found none."""
    asked: list[str] = []

    async def tool_search(arguments: str) -> list[Any]:
        asked.append(arguments)
        await trio.lowlevel.checkpoint()
        return [FOUND]

    async def found(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return text.upper()

    async def scenario() -> None:
        sampler = Scripted(SEARCHED)
        async with serving(simulated_engine(sampler, seed=1)) as served:
            async with (
                served.connect_client(form) as client,
                client.rollout(
                    model="m",
                    input="go",
                    tools=[SEARCH],
                    functions={"tool_search": tool_search, "found": found},
                ) as rollout,
            ):
                async for _ in rollout:
                    pass
            await wait_idle(served)

    simulate(scenario, seed=1)

    assert ['{"query":"x"}'] == asked


@pytest.mark.parametrize("text", ["error: no such tool", "{}", '["f"]', "[]"])
def test_a_text_that_lists_no_tools_has_found_none(text: str):
    """As an output it is an empty list, which answers the call."""
    assert ToolSearchOutput("call_1", ()) == output_for(ToolSearchCall("call_1", {}), text)


def test_compaction_keeps_what_brings_tools_with_its_call():
    """Alone the output would answer nothing; a search that found nothing is kept as well, as it costs nothing."""
    searched: list[Item] = [
        ToolSearchCall("call_1", {"query": "x"}),
        ToolSearchOutput("call_1", ({"type": "custom", "name": "found"},)),
    ]
    history = [
        *searched,
        *(Message("user", "word " * 50) for _ in range(20)),
        FunctionCall("call_2", "f", "{}"),
    ]
    kept = compacted(history, sum(sizes_of(history)) // 4)
    assert searched == [item for item in kept if not isinstance(item, Message | FunctionCall)]
    assert history[-1] in kept
    assert not any(isinstance(item, Opaque) for item in kept)
