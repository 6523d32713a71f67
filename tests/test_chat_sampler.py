"""Chat-completions endpoints in the place of a model: streams of many habits, each giving the right items and events."""

import itertools
from array import array
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import BackendError
from engine.backends.http import BackendHttp, Patience
from engine.config import DEFAULT_LIMITS
from engine.samplers.base import Appended, Prompt, Text, Thought
from engine.samplers.chat import ChatSampler, make_chat
from engine.samplers.chat_markup import MarkedCall, Markup, Prose
from engine.samplers.chat_request import ChatTool, ChatTools, messages_of, tool_choice_of
from engine.samplers.chat_stream import ChatReader
from engine.testing import MemoryTrace, check_sampler, serving, simulated_engine
from protocol import trace as traces
from protocol.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    McpCall,
    Message,
    Opaque,
    OpaquePart,
    OutputText,
    Reasoning,
)
from tests.backend_peer import backend_peer
from tests.create_form import Caller
from tests.scenarios import CUSTOM, FUNCTION, NAMESPACE, TERMINAL, violations_in

TOOLS = [FUNCTION, {**FUNCTION, "name": "g"}, CUSTOM, NAMESPACE]
URL = "http://model:11434/v1"


# --- streams -------------------------------------------------------------------------------------------------------


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def piece(name=None, arguments=None, *, index=None, call_id=None) -> dict[str, Any]:
    """A piece of a call; what is None is not in it."""
    function = {"name": name, "arguments": arguments}
    whole = {"index": index, "id": call_id, "function": {k: v for k, v in function.items() if v is not None}}
    return {key: value for key, value in whole.items() if value is not None}


def calls(*pieces: dict[str, Any]) -> dict[str, Any]:
    return chunk(tool_calls=list(pieces))


def usage(prompt=10, completion=5, **details: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"choices": [], "usage": counts | details}


STOP = chunk("stop")
CALLED = chunk("tool_calls")


# --- running -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def model(*streams: Any, **options: Any):
    """A sampler over an endpoint that plays these streams, one a request; a stream may be a function instead."""

    async def answer(asked, reply):
        stream = streams[len(peer.asked) - 1]
        await (stream(asked, reply) if callable(stream) else reply.play(*stream))

    async with backend_peer(answer) as peer:
        yield ChatSampler(BackendHttp(URL, dialled=peer.dial), **options), peer


async def one_response(*stream: Any, tools: Sequence[Any] = TOOLS, **members: Any) -> dict[str, Any]:
    """The final resource of a response over one stream. The checker has read all its events."""
    async with model(stream) as (sampler, _):
        return await respond(sampler, tools=tools, **members)


async def respond(sampler, **members: Any) -> dict[str, Any]:
    trace = MemoryTrace()
    engine = simulated_engine(sampler, seed=1)
    async with serving(engine, trace=trace) as served, served.connect_raw(append=False) as raw:
        caller = Caller(raw, "create", served)
        raw.send({"type": "response.create", "model": "m", "input": "go", "store": False, **members})
        resource = (await caller.until(*TERMINAL, "error"))["response"]
    assert [one for each in traces.read(trace.lines()) for one in violations_in(*each)] == []
    return resource


async def rolled(sampler, **functions: Any) -> Any:
    """The final resource of a rollout in the append form, with these tools."""
    async with (
        serving(simulated_engine(sampler, seed=1)) as served,
        served.connect_client() as client,
        client.rollout(model="m", input="go", tools=TOOLS, functions=functions) as rollout,
    ):
        return await rollout.wait_ended()


def said(resource) -> list[Any]:
    """The output in short: texts, and calls as tuples."""
    return [_short(item) for item in resource["output"]]


def _short(item):
    if item["type"] == "message":
        return "".join(part["text"] for part in item["content"])
    if item["type"] == "reasoning":
        return {"thought": "".join(part["text"] for part in item["content"])}
    name = f"{item['namespace']}.{item['name']}" if item.get("namespace") else item["name"]
    return (name, item["arguments"] if item["type"] == "function_call" else {"raw": item["input"]})


# --- habits of endpoints -------------------------------------------------------------------------------------------

F, G = ("f", '{"a":1}'), ("g", '{"b":[2]}')

HABITS = {
    "in pieces, by index": (
        [
            chunk(role="assistant", content=""),
            calls(piece("f", "", index=0, call_id="call_a")),
            calls(piece(arguments='{"a"', index=0)),
            calls(piece(arguments=":1}", index=0)),
            calls(piece("g", "", index=1, call_id="call_b")),
            calls(piece(arguments='{"b":[2]}', index=1)),
            CALLED,
            usage(),
        ],
        [F, G],
    ),
    "one whole call a chunk": (
        [
            calls(piece("f", '{"a":1}', index=0, call_id="x")),
            calls(piece("g", '{"b":[2]}', index=1, call_id="y")),
            STOP,
        ],
        [F, G],
    ),
    "three calls in a chunk, one without arguments (maximhq/bifrost#7235)": (
        [
            calls(
                piece("f", '{"a":1}', index=0, call_id="x"),
                piece("f", index=1, call_id="y"),
                piece("g", '{"b":[2]}', index=2, call_id="z"),
            ),
            CALLED,
        ],
        [F, ("f", "{}"), G],
    ),
    "all under index 0, with ids (BerriAI/litellm#21331)": (
        [
            calls(piece("f", '{"a":1}', index=0, call_id="x")),
            calls(piece("g", '{"b":[2]}', index=0, call_id="y")),
            CALLED,
        ],
        [F, G],
    ),
    "all under index 0 in a chunk, without ids": (
        [calls(piece("f", '{"a":1}', index=0), piece("f", '{"a":1}', index=0), piece("g", index=0)), CALLED],
        [F, F, ("g", "{}")],
    ),
    "all under index 0, without ids, the same tool again": (
        [calls(piece("f", '{"a":1}', index=0)), calls(piece("f", '{"a":1}', index=0)), CALLED],
        [F, F],
    ),
    "pieces that alternate": (
        [
            calls(piece("f", '{"a"', index=0, call_id="x"), piece("g", '{"b"', index=1, call_id="y")),
            calls(piece(arguments=":1}", index=0), piece(arguments=":[2]}", index=1)),
            CALLED,
        ],
        [F, G],
    ),
    "no index": (
        [
            calls(piece("f", '{"a"', call_id="x")),
            calls(piece(arguments=":1}")),
            calls(piece("g", call_id="y")),
            calls(piece(arguments='{"b":[2]}', call_id="y")),
            CALLED,
        ],
        [F, G],
    ),
    "neither index nor id (router-for-me/CLIProxyAPI#4219)": (
        [calls(piece("f", '{"a":1}'), piece("g", '{"b":[2]}')), CALLED],
        [F, G],
    ),
    "the head again with each piece": (
        [
            calls(piece("f", '{"a"', index=0, call_id="x")),
            calls(piece("f", ":1}", index=0, call_id="x")),
            calls(piece("f", "", index=0, call_id="x")),
            CALLED,
        ],
        [F],
    ),
    "arguments before the name": (
        [calls(piece(arguments='{"a"', index=0)), calls(piece("f", ":1}", index=0, call_id="x")), CALLED],
        [F],
    ),
    "arguments as an object": ([calls(piece("f", {"a": 1}, index=0)), CALLED], [F]),
    "a whole message (lidge-jun/opencodex#4652)": (
        [
            {
                "choices": [
                    {
                        "message": {"content": None, "tool_calls": [piece("f", '{"a":1}', call_id="x")]},
                        "finish_reason": "tool_calls",
                    }
                ]
            }
        ],
        [F],
    ),
    "the old function_call": (
        [
            chunk(function_call={"name": "f", "arguments": '{"a"'}),
            chunk(function_call={"arguments": ":1}"}),
            chunk("function_call"),
        ],
        [F],
    ),
    "text, then a call": (
        [chunk(content="Let me "), chunk(content="look."), calls(piece("f", '{"a":1}', index=0)), CALLED],
        ["Let me look.", F],
    ),
    "reasoning in either field, then text": (
        [chunk(reasoning_content="Hm"), chunk(reasoning=", so"), chunk(content="Hi"), STOP],
        [{"thought": "Hm, so"}, "Hi"],
    ),
    "reasoning in the text": (
        [chunk(content="<thi"), chunk(content="nk>\nHm</th"), chunk(content="ink>\n\nHi"), STOP],
        [{"thought": "Hm"}, "Hi"],
    ),
    "text in parts": ([chunk(content=[{"type": "text", "text": "Hi"}]), STOP], ["Hi"]),
    "a call in the text (vllm-project/vllm#29725)": (
        [
            chunk(content="I look.\n<tool"),
            chunk(content='_call>\n{"name": "f", "argu'),
            chunk(content='ments": {"a":1}}\n</tool_call'),
            chunk(content='>\n<tool_call>{"name":"g","arguments":{"b":[2]}}</tool_call>'),
            STOP,
        ],
        ["I look.\n", F, G],
    ),
    "a call in the text without its last mark": (
        [chunk(content='<tool_call>{"name":"f","arguments":{"a":1}}'), STOP],
        [F],
    ),
    "what only looks like a call stays text": (
        [chunk(content='<tool_call>{"name":"nobody"}</tool_call> <tool_call>oh'), STOP],
        ['<tool_call>{"name":"nobody"}</tool_call> <tool_call>oh'],
    ),
    "no finish reason, but the end mark (router-for-me/CLIProxyAPI#4860)": ([chunk(content="Hi")], ["Hi"]),
    "a custom tool (antirez/ds4#745)": (
        [
            calls(piece("patch", '{"inp', index=0, call_id="x")),
            calls(piece(arguments='ut":"*** Begin\\n"}', index=0)),
            CALLED,
        ],
        [("patch", {"raw": "*** Begin\n"})],
    ),
    "a custom tool that is given raw text": (
        [calls(piece("patch", "*** Begin", index=0)), CALLED],
        [("patch", {"raw": "*** Begin"})],
    ),
    "text in the middle of a call, and after it": (
        [
            calls(piece("f", '{"a"', index=0)),
            chunk(content="Hm. "),
            calls(piece(arguments=":1}", index=0)),
            chunk(content="\n"),
            chunk(content="Done."),
            STOP,
        ],
        [F, "Hm. Done."],
    ),
    "text between calls": (
        [
            calls(piece("f", '{"a":1}', index=0)),
            chunk(content="And "),
            calls(piece("g", '{"b":[2]}', index=1)),
            STOP,
        ],
        [F, "And ", G],
    ),
    "a namespace": ([calls(piece("git__log", "{}", index=0)), CALLED], [("git.log", "{}")]),
    "an unknown tool": ([calls(piece("rm", "{}", index=0)), CALLED], [("rm", "{}")]),
    "chunks without anything": (
        [{"choices": []}, chunk(), chunk(content="Hi"), chunk(content=None), {"choices": None}, STOP],
        ["Hi"],
    ),
}


@pytest.mark.parametrize(("stream", "expected"), HABITS.values(), ids=HABITS)
async def test_every_habit_gives_the_same_items(autojump_clock, stream, expected):
    """However an endpoint cuts and names what the model says, its items are whole, and the events in their legal order."""
    resource = await one_response(*stream)
    assert resource["status"] == "completed"
    assert said(resource) == expected
    ids = [item["call_id"] for item in resource["output"] if "call_id" in item]
    assert all(ids)
    assert len(set(ids)) == len(ids)


async def test_an_id_that_comes_again_in_each_turn_is_replaced(autojump_clock):
    """NousResearch/hermes-agent#111443: `call_0` in each turn becomes ids of which each is answered once."""
    streams = [[calls(piece("f", "{}", index=0, call_id="call_0")), CALLED]] * 3
    outputs = iter("abc")

    async def f():
        return next(outputs)

    async with model(*streams, [chunk(content="done"), STOP]) as (sampler, peer):
        assert (await rolled(sampler, f=f)).status == "completed"
    messages = peer.asked[-1].body["messages"]
    assert [message["role"] for message in messages] == ["user"] + ["assistant", "tool"] * 3
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["a", "b", "c"]
    made = [message["tool_calls"][0]["id"] for message in messages if message["role"] == "assistant"]
    assert made == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert len(set(made)) == 3


async def test_a_call_is_told_when_the_next_one_begins(autojump_clock):
    """A call whose arguments are whole is done while the one after it still comes."""

    async def stream(asked, reply):
        await reply.begin_stream()
        for content in (
            calls(piece("f", '{"a":1}', index=0)),
            calls(piece("g", "", index=1)),
        ):
            await reply.event(content)
        await trio.sleep(60)
        await reply.event(CALLED)
        await reply.end_stream()

    async with (
        model(stream) as (sampler, _),
        serving(simulated_engine(sampler, seed=1)) as served,
        served.connect_raw(append=False) as raw,
    ):
        caller = Caller(raw, "create", served)
        caller.create("go", tools=TOOLS)
        began = trio.current_time()
        frame = await caller.until("response.output_item.done")
        assert (frame["item"]["name"], trio.current_time() - began) == ("f", 0)


# --- ends that are none --------------------------------------------------------------------------------------------


async def silent(asked, reply):
    await reply.begin_stream()
    await reply.event(chunk(content="Hi"))
    await reply.wait_left()


async def cut(asked, reply):
    await reply.begin_stream()
    await reply.event(chunk(content="Hi"))
    await reply.hang_up()


async def without_end(asked, reply):
    await reply.play(chunk(content="Hi"), done=False)


async def overloaded(asked, reply):
    await reply.json({"error": {"message": "try later"}}, status=503)


FAILURES = {
    "an error in mid-stream": [chunk(content="Hi"), {"error": {"message": "out of memory", "code": 500}}],
    "an error as text": [chunk(content="Hi"), {"error": "out of memory"}],
    "only reasoning, and no finish reason (ollama/ollama#17118)": [chunk(reasoning="Hm")],
    "no end mark, and no finish reason": without_end,
    "the connection is cut": cut,
    "silence": silent,
    "a refusal": overloaded,
    "a content filter": [chunk(content="Hi"), chunk("content_filter")],
    "a call that was announced and not made": [CALLED],
    "arguments of nothing": [calls(piece(arguments="{}", index=0)), CALLED],
    "no chunks": [["Hi"], "Hi"],
    "choices that are none": [{"choices": [None]}],
    "half a character": [b'{"choices":[{"delta":{"content":"\\ud83d"}}]}'],
}


@pytest.mark.parametrize("stream", FAILURES.values(), ids=FAILURES)
async def test_an_answer_without_a_good_end_fails_the_response_and_nothing_else(autojump_clock, stream):
    """Whatever ends an answer early is one `response.failed`, and the next response works."""
    async with model(stream, [chunk(content="Hi"), STOP]) as (sampler, _):
        trace = MemoryTrace()
        engine = simulated_engine(sampler, seed=1)
        async with serving(engine, trace=trace) as served, served.connect_raw(append=False) as raw:
            caller = Caller(raw, "create", served)
            failed = await caller.turn("go", tools=TOOLS)
            assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
            assert said(await caller.turn("go", tools=TOOLS)) == ["Hi"]
        assert [one for each in traces.read(trace.lines()) for one in violations_in(*each)] == []


async def test_an_end_after_the_finish_reason_is_one(autojump_clock):
    """Once there was a finish reason neither a cut nor silence takes the answer back."""

    async def cut_late(asked, reply):
        await reply.begin_stream()
        await reply.event(chunk("stop", content="Hi"))
        await reply.hang_up()

    async def silent_late(asked, reply):
        await reply.begin_stream()
        await reply.event(chunk("stop", content="Hi"))
        await reply.wait_left()

    for stream in (cut_late, silent_late):
        async with model(stream) as (sampler, _):
            began = trio.current_time()
            assert said(await respond(sampler)) == ["Hi"]
            assert trio.current_time() - began < 3


@pytest.mark.parametrize(
    "pieces",
    [
        [chunk(content="Hi")],
        [calls(piece("f", '{"a', index=0))],
        [calls(piece("patch", '{"input":"*', index=0))],
    ],
    ids=["text", "arguments", "input"],
)
async def test_a_limit_of_length_is_incomplete(autojump_clock, pieces):
    """jundot/omlx#2817: `length` is no completion, in text and in arguments."""
    resource = await one_response(*pieces, chunk("length"))
    assert resource["status"] == "incomplete"
    assert resource["incomplete_details"] == {"reason": "max_output_tokens"}
    assert resource["output"][-1]["status"] == "incomplete"


async def test_leaving_closes_the_connection_at_once(autojump_clock):
    """vllm-project/vllm#54947: a client that hangs up while the endpoint answers ends its request without any delay."""
    left_at = []

    async def endless(asked, reply):
        await reply.begin_stream()
        await reply.event(chunk(content="Hi"))
        await reply.wait_left()
        left_at.append(trio.current_time())

    async with model(endless) as (sampler, _), serving(simulated_engine(sampler, seed=1)) as served:
        async with served.connect_raw(append=False) as raw:
            caller = Caller(raw, "create", served)
            caller.create("go")
            await caller.until("response.output_text.delta")
        closed_at = trio.current_time()
        await trio.sleep(1)
    (at,) = left_at
    assert at - closed_at <= 0.2


# --- counts --------------------------------------------------------------------------------------------------------


async def usage_of(*stream: Any) -> tuple[Any, ...]:
    counts = (await one_response(*stream))["usage"]
    return (
        counts["input_tokens"],
        counts["input_tokens_details"]["cached_tokens"],
        counts["output_tokens"],
        counts["output_tokens_details"]["reasoning_tokens"],
    )


async def test_usage_is_what_the_endpoint_counts(autojump_clock):
    """Prompt, cached and output tokens are those of the last chunk; reasoning is counted in chunks."""
    said_cached = usage(100, 9, prompt_tokens_details={"cached_tokens": 64})
    assert await usage_of(chunk(reasoning="a"), chunk(content="b"), STOP, said_cached) == (100, 64, 9, 1)


async def test_what_llama_and_deepseek_say_of_their_caches_is_understood(autojump_clock):
    """Llama.cpp's timings and DeepSeek's own member count as reports of cached tokens."""
    timings = {**usage(100, 2), "timings": {"cache_n": 90, "prompt_n": 10}}
    assert await usage_of(chunk(content="a"), STOP, timings) == (100, 90, 2, 0)
    hit = usage(100, 2, prompt_cache_hit_tokens=80, prompt_cache_miss_tokens=20)
    assert await usage_of(chunk(content="a"), STOP, hit) == (100, 80, 2, 0)


@pytest.mark.parametrize("details", [{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {}}])
async def test_an_endpoint_that_says_nothing_of_a_cache_has_none(autojump_clock, details):
    """Without a report no token counts as cached, also in a second segment, and the statistics say how often."""
    first = [calls(piece("f", "{}", index=0)), CALLED, usage(10, 2, **details)]
    second = [chunk(content="done"), STOP, usage(20, 1, **details)]

    async def f():
        return "out"

    async with model(first, second) as (sampler, _):
        response = await rolled(sampler, f=f)
    assert response.usage.cached_tokens == 0
    assert (sampler.statistics.requests, sampler.statistics.uncounted_requests) == (2, 2)
    assert (sampler.statistics.prompt_tokens, sampler.statistics.cached_tokens) == (30, 0)


async def test_an_endpoint_without_usage_is_counted_in_chunks(autojump_clock):
    """Each chunk of text is one token where nobody says better."""
    assert (await usage_of(chunk(content="a"), chunk(content="b"), STOP))[2] == 2


# --- the request ---------------------------------------------------------------------------------------------------


async def asked_with(*, options: Any = {}, **members: Any) -> dict[str, Any]:  # noqa: B006  # read only
    async with model([chunk(content="Hi"), STOP], **options) as (sampler, peer):
        await respond(sampler, **members)
    (asked,) = peer.asked
    assert asked.target == "/v1/chat/completions"
    return asked.body


async def test_the_request_is_a_streamed_one_with_tools_and_instructions(autojump_clock):
    """The request has model, messages, functions and the wish for usage, and no choice where it is free."""
    body = await asked_with(tools=TOOLS, instructions="Be brief.", temperature=0.5)
    assert body.pop("tools")[2]["function"]["parameters"]["required"] == ["input"]
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
    }


async def test_options_change_the_request(autojump_clock):
    """The endpoint's own name of the model is used, usage is not asked for, and a form is passed on, if so configured."""
    options = {"model": "qwen", "asks_usage": False, "keeps_text_format": True}
    schema = {"type": "object"}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    body = await asked_with(options=options, tools=[], text=text)
    assert body["model"] == "qwen"
    assert "stream_options" not in body
    assert "tools" not in body
    inner = {"name": "x", "schema": schema, "strict": True}
    assert body["response_format"] == {"type": "json_schema", "json_schema": inner}
    body = await asked_with(options=options, text={"format": {"type": "json_object"}})
    assert body["response_format"] == {"type": "json_object"}


ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}


@pytest.mark.parametrize(
    ("choice", "first", "later"),
    [
        ("auto", ("auto", None), ("auto", None)),
        ("none", ("none", None), ("none", None)),
        ("required", ("required", None), ("auto", None)),
        (
            {"type": "function", "name": "f"},
            ({"type": "function", "function": {"name": "f"}}, None),
            ("auto", None),
        ),
        (
            {"type": "function", "name": "log", "namespace": "git"},
            ({"type": "function", "function": {"name": "git__log"}}, None),
            ("auto", None),
        ),
        (ALLOWED, ("required", ["g"]), ("auto", ["g"])),
        ({"type": "web_search"}, ("auto", None), ("auto", None)),
    ],
)
def test_a_choice_that_forces_a_call_is_fulfilled_by_one(choice, first, later):
    """A tool choice is passed on in chat's shape; after a call none is forced any more, allowed tools stay a limit."""
    tools = ChatTools(TOOLS)
    assert tool_choice_of(choice, tools, called=False) == first
    assert tool_choice_of(choice, tools, called=True) == later


def test_names_are_flattened_and_found_again():
    """Long, odd and equal names of tools become names that endpoints take, and each leads back to its own tool."""
    odd = [
        ("a.b", None),
        ("a_b", None),
        ("b", "a"),
        ("a__b", None),
        ("x" * 80, None),
        ("x" * 80, "n"),
        ("ü", "ü"),
    ]
    tools = ChatTools([])
    for name, namespace in odd:
        function = {"type": "function", "name": name}
        tools.add(
            [function if namespace is None else {"type": "namespace", "name": namespace, "tools": [function]}]
        )
    flat = [tools.name_of(name, namespace) for name, namespace in odd]
    assert len(set(flat)) == len(odd)
    assert all(len(name) <= 64 and name.isascii() for name in flat)
    assert [tools.find(name) for name in flat] == [ChatTool(name, namespace) for name, namespace in odd]
    assert [one["function"]["name"] for one in tools.functions()] == flat
    assert tools.find("unknown") == ChatTool("unknown")


def test_hosted_tools_are_offered_as_functions_and_others_are_not():
    """A tool that the engine runs is offered under its label; what nobody here can run is not."""
    hosted = {
        "type": "mcp",
        "server_label": "lib",
        "tools": [{"type": "function", "name": "find", "description": "d"}],
    }
    tools = ChatTools([hosted, {"type": "web_search"}, {"type": "tool_search"}])
    (offered,) = tools.functions()
    assert offered["function"] == {
        "name": "lib__find",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
    }
    assert tools.find("lib__find") == ChatTool("find", "lib")


def test_a_search_for_tools_is_a_function_and_what_it_finds_is_offered():
    """The client's own search is offered like a function; what cannot be a tool is passed over."""
    tools = ChatTools([{"type": "tool_search", "execution": "client", "description": "d"}])
    tools.add(
        [
            {
                "type": "namespace",
                "name": "n",
                "tools": ["x", {"type": "function"}, {"type": "custom", "name": "c"}],
            }
        ]
    )
    assert [one["function"]["name"] for one in tools.functions()] == ["tool_search", "n__c"]
    assert tools.find("tool_search").kind == "search"
    assert tools.find("n__c") == ChatTool("c", "n", "custom")
    strict = ChatTools([{**FUNCTION, "strict": True}]).functions()
    assert strict[0]["function"]["strict"] is True


async def test_the_connections_of_a_server_end_with_it(autojump_clock):
    """While a server runs a connection is kept; when it stops the sampler's task closes it."""
    async with model([chunk(content="Hi"), STOP]) as (sampler, peer):
        async with serving(simulated_engine(sampler, seed=1)) as served:
            async with served.connect_raw(append=False) as raw:
                await Caller(raw, "create", served).turn("go")
            assert peer.left == 0
        await trio.testing.wait_all_tasks_blocked()
        assert peer.left == 1


# --- messages ------------------------------------------------------------------------------------------------------


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_conversation_becomes_messages():
    """Calls belong to the message before them, outputs follow their calls, and reasoning and unknown items are left out."""
    items = (
        Message("developer", "Be kind."),
        Message("user", (InputText("What is "), OpaquePart({"type": "input_image", "image_url": "data:x"}))),
        Reasoning("rs_1"),
        Message("assistant", (OutputText("I look."),)),
        FunctionCall("c1", "f", '{"a":1}'),
        CustomToolCall("c2", "patch", "*** Begin"),
        Message("user", "hurry"),
        FunctionCallOutput("c1", "one"),
        CustomToolCallOutput(
            "c2", (InputText("two"), OpaquePart({"type": "input_image", "image_url": "data:y"}))
        ),
        FunctionCall("c3", "log", "{}", namespace="git"),
        FunctionCallOutput("c3", "three"),
        FunctionCall("c4", "f", "no JSON"),
        Opaque({"type": "web_search_call"}),
        McpCall("m1", "lib", "find", "{}", output="four"),
        McpCall("m2", "lib", "find", "{}", error="five"),
        Message("system", "Late."),
    )
    assert messages_of(items, "Be brief.", ChatTools(TOOLS)) == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is "},
                {"type": "image_url", "image_url": {"url": "data:x"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [called("c1", "f", '{"a":1}'), called("c2", "patch", '{"input":"*** Begin"}')],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two[input_image]"},
        {"role": "user", "content": "hurry"},
        {"role": "assistant", "content": None, "tool_calls": [called("c3", "git__log", "{}")]},
        {"role": "tool", "tool_call_id": "c3", "content": "three"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [called("c4", "f", '{"arguments":"no JSON"}'), called("m1", "lib__find", "{}")],
        },
        {"role": "tool", "tool_call_id": "c4", "content": "[no output]"},
        {"role": "tool", "tool_call_id": "m1", "content": "four"},
        {"role": "assistant", "content": None, "tool_calls": [called("m2", "lib__find", "{}")]},
        {"role": "tool", "tool_call_id": "m2", "content": "five"},
        {"role": "system", "content": "Late."},
    ]


# --- markup --------------------------------------------------------------------------------------------------------

MARKED = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            '{"name":"f","arguments":{"a":1}}',
            "<",
            "tool",
            "\n",
            "é",
            " ",
        ]
    ),
    max_size=12,
).map("".join)


def read_markup(text: str, cuts: Sequence[int]) -> list[Any]:
    markup, found = Markup(lambda name: name == "f"), []
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        found += markup.feed(text[start:end])
    found += markup.end()
    joined: list[Any] = []
    for one in found:
        if (
            isinstance(one, Prose)
            and joined
            and isinstance(joined[-1], Prose)
            and joined[-1].thought == one.thought
        ):
            joined[-1] = Prose(joined[-1].text + one.text, one.thought)
        else:
            joined.append(one)
    return joined


@given(MARKED, st.lists(st.integers(0, 1000), max_size=20))
def test_markup_is_read_alike_however_it_is_cut(text, cuts):
    """Pieces of any size give the same texts, thoughts and calls as the whole."""
    assert read_markup(text, cuts) == read_markup(text, [])


@given(st.text())
def test_text_without_marks_is_left_as_it_is(text):
    """Text in which no mark begins comes out unchanged."""
    if "<t" not in text:
        assert "".join(one.text for one in read_markup(text, range(len(text)))) == text


def test_a_call_that_never_ends_becomes_text():
    """What follows an opening mark is not held for ever."""
    found = read_markup("<tool_call>" + "x" * (2 << 20), range(0, 2 << 20, 1 << 16))
    assert found == [Prose("<tool_call>" + "x" * (2 << 20))]


def test_whitespace_around_calls_says_nothing():
    """Between calls and after them no empty message is made of line ends."""
    one = '<tool_call>{"name":"f"}</tool_call>'
    assert read_markup(f"\n{one}\n\n{one}\n", []) == [MarkedCall("f", "{}")] * 2


def test_without_tools_nothing_is_markup():
    """A model that was offered no tools may talk about marks."""
    reader = ChatReader(ChatTools([]), URL)
    assert reader.feed(chunk(content="<think><tool_call>")) == [Text("<think><tool_call>")]
    assert reader.feed(chunk(reasoning_content="hm")) == [Thought("hm")]


# --- the promise, and how it is written ----------------------------------------------------------------------------


def test_the_sampler_keeps_the_rules():
    """`check_sampler` drives it, closes it and cancels it at each step."""

    class Hooked(ChatSampler):
        """Brings its own endpoint along: `run` is what a server starts with a sampler."""

        def __init__(self) -> None:
            self._listening = trio.Event()
            super().__init__(BackendHttp(URL, dialled=self._dial))

        async def _dial(self):
            await self._listening.wait()
            return await self._peer.dial()

        async def run(self) -> None:
            async with backend_peer(self._answer) as self._peer:
                self._listening.set()
                await trio.sleep_forever()

        async def _answer(self, asked, reply):
            if any(message["role"] == "tool" for message in asked.body["messages"]):
                await reply.play(chunk(content="do"), chunk(content="ne"), STOP, usage())
            else:
                await reply.play(chunk(content="I"), calls(piece("f", "{}", index=0)), CALLED, usage())

    assert check_sampler(Hooked) > 10


async def test_a_failure_has_its_reason(autojump_clock):
    """What the engine logs of a failure is a `BackendError` that says how the endpoint failed."""
    async with model(silent) as (sampler, _):
        sampler.http._patience = Patience(silence_seconds=5)
        steps = sampler.open(Prompt("resp_1", "m")).sample(Appended((Message("user", "x"),), array("I")))
        with pytest.raises(BackendError) as caught:
            async for _ in steps:
                pass
    assert caught.value.reason == "timeout"


def test_a_spec_is_read(monkeypatch):
    """A spec names URL, model and the variable of the key; the key itself is never in it."""
    monkeypatch.setenv("MODEL_KEY", "s3cret")
    sampler = make_chat(
        "http://127.0.0.1:11434/v1?model=qwen3&key=MODEL_KEY&formats=yes&usage=no", DEFAULT_LIMITS
    )
    assert sampler.http.url == "http://127.0.0.1:11434/v1"
    assert (sampler.model, sampler.keeps_text_format, sampler.asks_usage) == ("qwen3", True, False)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("", "chat: needs a URL, such as chat:http://"),
        ("localhost", "chat: a backend's URL is http"),
        ("http://h/v1?modell=x", "chat: no option 'modell'; there are formats, key, model, silence, usage"),
        ("http://h/v1?key=NOT_SET_ANYWHERE", "chat: key= names an environment variable that is not set"),
        ("http://h/v1?usage=maybe", "chat: usage='maybe' is neither yes nor no"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(rest, words):
    """A spec that cannot be read is a `ValueError` that says how to write it."""
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        make_chat(rest, DEFAULT_LIMITS)
