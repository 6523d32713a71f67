"""The released Python SDK against a real port: every call that the HTTP form has an answer for."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import trio
from openai import OpenAI

from engine.engine import Engine
from engine.samplers.scripted import END, Scripted, Stall, call, say
from engine.server import Server
from tests.test_http import KEYS

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "w",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def script(prompt):
    """Three tool rounds, then text: decided by the model's name, as each round is a new response."""
    return {
        "calls": [[*say("let me see"), call("weather", '{"city": "Oslo"}'), END]],
        "slow": [[*say("one"), Stall(600), END]],
    }.get(prompt.model, [[*say("it is sunny"), END]])


@asynccontextmanager
async def sdk(**parts):
    """Runs functions of the blocking client in a thread, against a server on a free port."""
    server = Server(Engine.make(Scripted(script), **parts), key=KEYS)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(server.run)
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"

        async def run(work: Callable[[OpenAI], Any], key: str = KEYS[0]) -> Any:
            def in_thread() -> Any:
                with OpenAI(api_key=key, base_url=url, max_retries=0) as client:
                    return work(client)

            return await trio.to_thread.run_sync(in_thread)

        yield server, run
        nursery.cancel_scope.cancel()


def outputs(response):
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in response.output
        if item.type == "function_call"
    ]


def test_a_tool_loop_in_each_way():
    """Whole or streamed, by id or by history: three tool rounds, then the text, and no parse error."""

    def whole(client, **members):
        return client.responses.create(**members)

    def streamed(client, **members):
        events = list(client.responses.create(stream=True, **members))
        assert list(range(len(events))) == [event.sequence_number for event in events]
        return events[-1].response

    def accumulated(client, **members):
        with client.responses.stream(**members) as stream:
            kinds = [event.type for event in stream]
            assert ("response.created", "response.completed") == (kinds[0], kinds[-1])
            return stream.get_final_response()

    def loop(make, *, by_id):
        def work(client):
            history, parent = [{"role": "user", "content": "weather?"}], None
            for turn in range(4):
                response = make(
                    client,
                    model="calls" if turn < 3 else "answers",
                    input=history,
                    tools=[TOOL],
                    store=by_id,
                    **({"previous_response_id": parent} if parent else {}),
                )
                if by_id:
                    parent, history = response.id, outputs(response)
                else:
                    history = [*history, *(item.to_dict() for item in response.output), *outputs(response)]
            return response.output_text

        return work

    async def main():
        async with sdk() as (server, run):
            for by_id in (True, False):
                assert "it is sunny" == await run(loop(whole, by_id=by_id))
            statistics = server.statistics()
            assert (2, 8) == (statistics.http_accepted, statistics.http_requests)
            for make in (streamed, accumulated):
                for by_id in (True, False):
                    assert "it is sunny" == await run(loop(make, by_id=by_id))
            assert 24 == server.statistics().http_requests

    trio.run(main)


def test_what_the_sdk_does_with_a_response_afterwards():
    """Retrieve, its stream, input items, input tokens, delete; and what is gone raises `NotFoundError`."""

    def work(client):
        made = client.responses.create(model="m", input=[{"role": "user", "content": "hi"}])
        assert made == client.responses.retrieve(made.id)
        again = list(client.responses.retrieve(made.id, stream=True, starting_after=1))
        assert ([2, 3], made) == ([event.sequence_number for event in again[:2]], again[-1].response)
        assert ["hi"] == [
            item.content[0].text for item in client.responses.input_items.list(made.id, limit=1)
        ]
        counted = client.responses.input_tokens.count(model="m", input=[{"role": "user", "content": "hi"}])
        assert made.usage.input_tokens == counted.input_tokens
        assert made == client.responses.cancel(made.id)
        client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{made.id}' not found"):
            client.responses.retrieve(made.id)
        assert [] == list(client.models.list())
        assert "m" == client.models.retrieve("m").id

    async def main():
        async with sdk() as (_, run):
            await run(work)

    trio.run(main)


def test_a_running_response_is_cancelled_by_the_sdk():
    """The stream of one client ends with `response.failed`, after another one's `cancel`."""
    made, begun = [], trio.Event()

    def create(client):
        for event in client.responses.create(model="slow", input="hi", stream=True):
            if not made:
                made.append(event.response.id)
                trio.from_thread.run_sync(begun.set)
        return event

    async def main():
        async with sdk() as (_, run), trio.open_nursery() as nursery:

            async def cancel():
                await begun.wait()
                cancelled = await run(lambda client: client.responses.cancel(made[0]))
                assert "cancelled" == cancelled.status

            nursery.start_soon(cancel)
            event = await run(create)
            assert ("response.failed", "cancelled") == (event.type, event.response.status)

    trio.run(main)


def test_refusals_are_the_sdk_s_exceptions():
    """Each status is the class that the SDK has for it, with our words."""

    def work(client):
        for members, kind, code in (
            ({"temperature": 9}, openai.BadRequestError, "invalid_value"),
            ({"previous_response_id": "resp_x"}, openai.BadRequestError, "previous_response_not_found"),
            ({"background": True}, openai.BadRequestError, "unsupported_parameter"),
            ({"max_output_tokens": 0, "stream": True}, openai.BadRequestError, "invalid_value"),
        ):
            with pytest.raises(kind) as caught:
                client.responses.create(model="m", input="hi", **members)
            assert (code, True) == (caught.value.code, caught.value.request_id.startswith("req_"))

    def stranger(client):
        with pytest.raises(openai.AuthenticationError):
            client.responses.create(model="m", input="hi")

    async def main():
        async with sdk() as (_, run):
            await run(work)
            await run(stranger, key="sk-unknown")

    trio.run(main)
