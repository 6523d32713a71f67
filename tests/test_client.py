"""The client over memory streams: tools, refusals, and servers that break the rules."""

import orjson
import pytest
import trio
from trio.testing import memory_stream_pair

from engine.client import RolloutRefusedError, connect
from engine.config import Limits
from engine.engine import Engine
from engine.local import memory_client
from engine.samplers.scripted import END, Scripted, call, say
from engine.transport import serve_transport
from protocol.errors import RemoteProtocolError
from protocol.items import text_of

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}


def engine_of(*segments):
    return Engine.make(Scripted(segments))


async def answers_of(engine, functions, form="append"):
    """Run a rollout; what its tools' outputs were, as the engine kept them."""
    kept = []
    engine.persist = type(engine.persist)(kept.append)
    create = {"model": "m", "input": "go", "tools": [ADD]}
    async with (
        memory_client(engine, form=form) as client,
        client.rollout(**create, functions=functions) as rollout,
    ):
        await rollout.wait_ended()
    return [text_of(item.output) for item in kept[0].items if hasattr(item, "output")]


async def add(a, b):
    await trio.sleep(a)
    return a + b


async def fails(**_):
    raise LookupError("no such shelf")


async def identified(call_id, a, b):
    await trio.lowlevel.checkpoint()
    return f"{a + b} for {call_id.split('_')[0]}"


@pytest.mark.parametrize("form", ["append", "inject"])
async def test_outputs_stand_in_call_order_whatever_finishes_first(form, autojump_clock):
    """Two tools run at once; the slower one is first in the context because its call was."""
    engine = engine_of(
        [call("add", '{"a":9,"b":1}'), call("add", '{"a":1,"b":1}', index=1), END], [*say("done"), END]
    )
    assert ["10", "2"] == await answers_of(engine, {"add": add}, form)


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ({"add": fails}, "error: LookupError: no such shelf"),
        ({}, "error: there is no tool named 'add'; there are: none"),
        ({"add": identified}, "3 for call"),
    ],
)
async def test_what_a_function_does_becomes_the_output(functions, expected, autojump_clock):
    """An error's text, the lack of a tool, or the answer: the rollout goes on with it."""
    engine = engine_of([call("add", '{"a":1,"b":2}'), END], [*say("done"), END])
    assert [expected] == await answers_of(engine, functions)


@pytest.mark.parametrize("arguments", ["[1]", '{"c":1}', "{"])
async def test_arguments_that_do_not_fit_are_told_to_the_model(arguments, autojump_clock):
    """Arguments that are no object, or not the function's, give an error as output."""
    (output,) = await answers_of(engine_of([call("add", arguments), END], [*say("done"), END]), {"add": add})
    assert output.startswith("error: ")


async def test_a_refused_create_raises_what_the_server_said(autojump_clock):
    """Iterating over a refused rollout raises the server's error, not a group of it."""
    async with memory_client(engine_of([END])) as client:
        with pytest.raises(RolloutRefusedError) as refused:
            async with client.rollout(model="m", input="go", previous_response_id="resp_none") as rollout:
                await rollout.wait_ended()
    assert "previous_response_not_found" == refused.value.error.code


async def test_leaving_a_rollout_early_lets_the_next_one_abandon_it(autojump_clock):
    """A rollout left while its tool runs is abandoned by the next create on the connection."""
    engine = engine_of([call("add", '{"a":1,"b":1}'), END])
    endings = []
    engine.on_report = lambda report: endings.append(report.ending)

    async def never(**_):
        await trio.sleep_forever()

    async with memory_client(engine) as client:
        async with client.rollout(model="m", input="go", tools=[ADD], functions={"add": never}) as rollout:
            async for event in rollout:
                if event.type == "response.done":
                    break
        engine.sampler = Scripted([[*say("second"), END]])
        async with client.rollout(model="m", input="again") as second:
            await second.wait_ended()
    assert ["abandoned", "completed"] == endings
    assert "second" == second.text


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([{"type": "response.output_text.delta"}], "Missing required parameter"),
        ([{"type": "response.done", "sequence_number": 0}], "before any response.created"),
        (["created", {"type": "response.done", "sequence_number": 1}], "illegal in state SAMPLING"),
        (["created", "created"], "answers no response.create"),
        (
            ["created", {"type": "response.inject.created", "response_id": "resp_1", "sequence_number": 5}],
            "illegal",
        ),
    ],
)
async def test_a_server_that_breaks_the_order_is_told_by_name(frames, complaint, autojump_clock):
    """The client walks the same tables: an illegal event raises, and says what was wrong."""
    ours, theirs = memory_stream_pair()
    limits = Limits()
    created = {
        "type": "response.created",
        "sequence_number": 0,
        "response": {"id": "resp_1", "created_at": 1, "model": "m"},
    }

    async def bad_server():
        async with serve_transport(theirs, limits, lambda _: None, request_id="r") as (transport, _):
            await transport.receive()
            for frame in frames:
                transport.send_nowait(orjson.dumps(created if frame == "created" else frame))
            transport.flush()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bad_server)
        async with connect("ws://test/v1/responses", stream=ours) as client:
            with pytest.raises(RemoteProtocolError, match=complaint):
                async with client.rollout(model="m", input="go") as rollout:
                    await rollout.wait_ended()
        nursery.cancel_scope.cancel()
