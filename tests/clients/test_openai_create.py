"""The official Python SDK in the launched forms: create over WebSocket, sync and async, and HTTP, plain and streamed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.types.responses import Response

from tests.clients.calls import CREATE, TERMINAL, outputs_of, run_printed
from tests.clients.served import Served, Trace, serve
from tests.clients.tap import tapped
from tests.clients.typed import classes, misfits
from tests.clients.weather import ANSWER, CITIES

pytestmark = pytest.mark.clients

WAYS = {"one_by_one": len(CITIES) + 1, "together": 2}
"""How the model makes its calls, and so many responses that takes."""


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How the model makes its calls."""
    return request.param


@pytest.fixture(scope="module")
def served(way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model does so, for all tests here."""
    with serve(
        tmp_path_factory.mktemp("openai"), f"policy:tests.clients.weather:{way}", shared=True
    ) as running:
        yield running


def next_create(response: Any) -> dict[str, Any] | None:
    """What goes on after a response; None at the end."""
    outputs = outputs_of(response)
    return {**CREATE, "previous_response_id": response.id, "input": outputs} if outputs else None


def ask_sync(http_url: str) -> list[Any]:
    """A rollout over the blocking connection; all its events."""
    events, create = [], CREATE
    with (
        OpenAI(api_key="sk-test", base_url=http_url) as client,
        client.responses.connect() as connection,
    ):
        while create:
            connection.response.create(**create)
            for event in connection:
                events.append(event)
                if event.type in TERMINAL:
                    break
            assert event.type == "response.completed", event
            create = next_create(event.response)
    return events


async def ask_async(http_url: str, *first: dict[str, Any]) -> list[Any]:
    """The same over the other one, after some frames by hand."""
    events = []
    async with (
        AsyncOpenAI(api_key="sk-test", base_url=http_url) as client,
        client.responses.connect() as connection,
    ):

        async def answer() -> Any:
            async for event in connection:
                events.append(event)
                if event.type in TERMINAL:
                    return event
            raise AssertionError("the connection ended")

        parent = {}
        for frame in first:
            await connection.send(frame)
            parent = {"previous_response_id": (await answer()).response.id}
        create = {**CREATE, **parent}
        while create:
            await connection.response.create(**create)
            event = await answer()
            assert event.type == "response.completed", event
            create = next_create(event.response)
    return events


def is_right(trace: Trace, events: list[Any], responses: int) -> None:
    """The final text is right, each response names the last, each event is of its class and all keep the order."""
    completed = [event.response for event in events if event.type == "response.completed"]
    assert completed[-1].output_text == ANSWER
    assert len(completed) == responses
    parents = [frame.get("previous_response_id") for frame in trace.frames("in")]
    assert parents == [None, *(response.id for response in completed[:-1])]
    assert [type(event) for event in events] == [classes("create")[event.type] for event in events]
    assert misfits("create", trace.frames("out")) == []


def test_sync_connection(served, way):
    """The blocking connection does a rollout, a response per pause."""
    events = ask_sync(served.http_url)
    trace = served.trace_of(events[0].response.id)
    is_right(trace, events, WAYS[way])


def test_async_connection(served, way):
    """The asynchronous connection does the same."""
    events = served.run("the end of the rollout", ask_async(served.http_url))
    trace = served.trace_of(events[0].response.id)
    is_right(trace, events, WAYS[way])


def test_warm_up(served, way):
    """A create that generates nothing is completed with no output, and the rollout goes on from it."""
    warm_up = {**CREATE, "type": "response.create", "input": [], "generate": False}
    events = served.run("the end of the rollout", ask_async(served.http_url, warm_up))
    trace = served.trace_of(events[0].response.id)
    is_right(trace, events, WAYS[way] + 1)
    first = next(event for event in events if event.type == "response.completed")
    assert (first.response.output, first.response.usage.output_tokens) == ([], 0)


def test_refused_parent_is_an_event(served):
    """An unknown parent is an `error` event of its class, and the connection goes on with the next create."""

    async def ask() -> list[Any]:
        unknown = {**CREATE, "type": "response.create", "previous_response_id": "resp_of_nobody"}
        async with (
            AsyncOpenAI(api_key="sk-test", base_url=served.http_url) as client,
            client.responses.connect() as connection,
        ):
            await connection.send(unknown)
            refused = await anext(aiter(connection))
            await connection.response.create(**CREATE)
            return [refused, await anext(aiter(connection))]

    refused, created = served.run("two answers", ask())
    assert (refused.type, refused.error.code, refused.status) == ("error", "previous_response_not_found", 400)
    assert type(refused) is classes("create")["error"]
    assert created.type == "response.created"


@pytest.mark.parametrize("way", ["one_by_one"], indirect=True, scope="module")
def test_printed_lines(served):
    """The lines that the server prints for this client make a response."""
    first_to_end = "    response = next(event for event in connection if event.type in TERMINAL)\n"
    names = run_printed(served, "openai", first_to_end, OpenAI=OpenAI, TERMINAL=TERMINAL)
    names["client"].close()
    assert names["response"].type == "response.completed"


# --- HTTP


def plain(client: OpenAI, create: dict[str, Any]) -> Any:
    """One answer, which is what its class says."""
    response = client.responses.create(**create)
    return Response.model_validate(response.to_dict())


def streamed(client: OpenAI, create: dict[str, Any]) -> Any:
    """Read as events, each of which has its class."""
    with client.responses.create(**create, stream=True) as stream:
        events = list(stream)
    assert [type(event) for event in events] == [classes("http")[event.type] for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events[-1].response


def accumulated(client: OpenAI, create: dict[str, Any]) -> Any:
    """Read by the accumulator, which builds the response from the events, and adds text to their deltas."""
    text = ""
    with client.responses.stream(**create) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
                assert event.snapshot == text
        response = stream.get_final_response()
    assert response.output_text == text
    return response


def test_http_async(served):
    """The asynchronous client reads the same events, each by its class."""

    async def ask() -> list[Any]:
        async with AsyncOpenAI(api_key="sk-test", base_url=served.http_url) as client:
            return [event async for event in await client.responses.create(**CREATE, stream=True)]

    events = served.run("the end of the response", ask())
    assert [type(event) for event in events] == [classes("http")[event.type] for event in events]
    assert events[-1].type == "response.completed"


@pytest.mark.parametrize("ask", [plain, streamed, accumulated])
@pytest.mark.parametrize("store", [True, False], ids=["by id", "whole history"])
def test_http(served, way, ask: Callable[[OpenAI, dict[str, Any]], Any], store):
    """Over HTTP a rollout goes on by the last response's id where that is stored, else by all its items."""
    responses, history = [], [{"role": "user", "content": CREATE["input"]}]
    create = {**CREATE, "store": store, "input": history}
    with tapped(served) as tap, OpenAI(api_key="sk-test", base_url=tap.http_url) as client:
        while True:
            response = ask(client, create)
            responses.append(response)
            outputs = outputs_of(response)
            if not outputs:
                break
            history = [*history, *(item.to_dict() for item in response.output), *outputs]
            more = {"previous_response_id": response.id, "input": outputs} if store else {"input": history}
            create = {**CREATE, "store": store, **more}
    assert responses[-1].output_text == ANSWER
    assert len(responses) == WAYS[way]
    assert {response.status for response in responses} == {"completed"}
    assert bool(tap.events()) == (ask is not plain)
    assert misfits("http", tap.events()) == []


@pytest.mark.parametrize("way", ["one_by_one"], indirect=True, scope="module")
def test_stored_response(served):
    """A stored response is retrieved, plain and as its events, its input is listed, and once deleted it is not found."""
    with OpenAI(api_key="sk-test", base_url=served.http_url) as client:
        made = client.responses.create(**{**CREATE, "store": True})
        assert client.responses.retrieve(made.id) == made
        events = list(client.responses.retrieve(made.id, stream=True))
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        later = list(client.responses.retrieve(made.id, stream=True, starting_after=3))
        assert later == events[4:]
        listed = client.responses.input_items.list(made.id)
        assert [(item.role, item.content[0].text) for item in listed] == [("user", CREATE["input"])]
        client.responses.delete(made.id)
        with pytest.raises(NotFoundError) as raised:
            client.responses.retrieve(made.id)
    assert raised.value.status_code == 404


@pytest.mark.parametrize("way", ["one_by_one"], indirect=True, scope="module")
def test_input_tokens_are_counted(served):
    """The count of a create's input is what the response of the same create reports."""
    asked = {name: value for name, value in CREATE.items() if name != "store"}
    with OpenAI(api_key="sk-test", base_url=served.http_url) as client:
        counted = client.responses.input_tokens.count(**asked)
        made = client.responses.create(**CREATE)
    assert counted.input_tokens == made.usage.input_tokens


def test_cancel(tmp_path):
    """A stored response is cancelled from a second request while it is streamed, and both see it."""
    with (
        serve(tmp_path, "paced:rate=5,words=1000,calls=0") as served,
        OpenAI(api_key="sk-test", base_url=served.http_url) as client,
        client.responses.create(model="test-model", input="hi", stream=True) as stream,
    ):
        created = next(iter(stream))
        cancelled = client.responses.cancel(created.response.id)
        events = list(stream)
    assert cancelled.status == "cancelled"
    assert (events[-1].type, events[-1].response.status) == ("response.failed", "cancelled")
