"""The official Python SDK: the append form by hand, the inject form by its beta client, events typed."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.clients.calls import CREATE, TERMINAL, is_call, output_of
from tests.clients.served import Served, serve
from tests.clients.tap import Tap, tapped
from tests.clients.typed import UNTYPED, classes, misfits
from tests.clients.weather import ANSWER, CITIES

pytestmark = pytest.mark.clients

APPEND_HEADER = {"OpenAI-Beta": "responses_websockets=2026-02-04"}
INJECT_HEADER = {"OpenAI-Beta": "responses_multi_agent=v1"}


@pytest.fixture
def served(tmp_path, request) -> Iterator[Served]:
    """A server whose model makes its calls as the test's parameter says."""
    with serve(tmp_path, f"policy:tests.clients.weather:{request.param}") as running:
        yield running


def client_of(server: Served | Tap) -> AsyncOpenAI:
    """The SDK, pointed at the server, or at a tap before it."""
    return AsyncOpenAI(api_key="sk-test", base_url=server.http_url)


async def append_by_hand(server: Served | Tap) -> list[Any]:
    """Answer each `response.done` with one append; return the events up to the end."""
    events, calls = [], []
    async with (
        client_of(server) as client,
        client.responses.connect(extra_headers=APPEND_HEADER) as connection,
    ):
        await connection.response.create(**CREATE)
        async for event in connection:
            events.append(event)
            if is_call(event):
                calls.append(event.item)
            if event.type == "response.done":
                await connection.send(
                    {"type": "response.append", "input": [output_of(call) for call in calls]}
                )
                calls.clear()
            if event.type in TERMINAL:
                break
    return events


async def inject_each(server: Served | Tap) -> list[Any]:
    """Inject each call's output as its call comes, a wrong one first; return the events up to the end."""
    events = []
    async with (
        client_of(server) as client,
        client.beta.responses.connect(extra_headers=INJECT_HEADER) as connection,
    ):
        await connection.response.create(**CREATE, multi_agent={"enabled": True})
        async for event in connection:
            events.append(event)
            if is_call(event):
                response_id, output = events[0].response.id, output_of(event.item)
                await connection.response.inject(
                    response_id=response_id, input=[{**output, "call_id": "call_of_nobody"}]
                )
                await connection.response.inject(response_id=response_id, input=[output])
            if event.type in TERMINAL:
                break
    return events


@pytest.mark.parametrize(
    ("served", "pauses"), [("one_by_one", len(CITIES)), ("together", 1)], indirect=["served"]
)
def test_append_by_hand(served, pauses):
    """The SDK's own connection does a rollout in the append form, an append for each pause."""
    events = served.run("the end of the rollout", append_by_hand(served))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == ANSWER
    (trace,) = served.traces()
    assert trace.counts("in") == {"response.create": 1, "response.append": pauses}
    assert trace.counts("out")["response.done"] == pauses
    assert len(trace.response_ids()) == 1
    assert misfits("append", trace.frames("out")) == []


@pytest.mark.parametrize("served", ["one_by_one", "together"], indirect=True)
def test_inject_by_the_beta_client(served):
    """The beta connection injects outputs; one of an unknown call is refused and changes nothing."""
    events = served.run("the end of the rollout", inject_each(served))
    assert events[-1].type == "response.completed"
    said = [item for item in events[-1].response.output if item.type == "message"]
    assert said[-1].content[0].text == ANSWER
    (trace,) = served.traces()
    calls = len(CITIES)
    assert trace.counts("in") == {"response.create": 1, "response.inject": 2 * calls}
    sent = trace.counts("out")
    assert (sent["response.inject.created"], sent["response.inject.failed"]) == (calls, calls)
    refused = [event for event in events if event.type == "response.inject.failed"]
    assert {event.error.code for event in refused} == {"invalid_input"}
    assert {event.input[0].call_id for event in refused} == {"call_of_nobody"}
    assert misfits("inject", trace.frames("out")) == []


@pytest.mark.parametrize("served", ["one_by_one"], indirect=True)
@pytest.mark.parametrize(("rollout", "form"), [(append_by_hand, "append"), (inject_each, "inject")])
def test_events_reach_the_user_typed(served, rollout, form):
    """Each event but `response.done` comes out of the SDK as an instance of the class of its type."""
    events = served.run("the end of the rollout", rollout(served))
    typed = [event for event in events if event.type not in UNTYPED]
    assert [type(event) for event in typed] == [classes(form)[event.type] for event in typed]


@pytest.mark.parametrize("served", ["one_by_one", "together"], indirect=True)
@pytest.mark.parametrize(("rollout", "form"), [(append_by_hand, "append"), (inject_each, "inject")])
def test_through_a_tap(served, rollout, form):
    """`suspended tap` finds nothing, ends well, and keeps under the form's name the frames that the server recorded."""
    with tapped(served) as tap:
        events = served.run("the end of the rollout", rollout(tap))
    assert events[-1].type == "response.completed"
    (trace,) = served.traces()
    (kept,) = tap.traces()
    assert (kept.header["dialect"], kept.header["complete"]) == (form, True)
    for direction in ("in", "out"):
        assert kept.frames(direction) == trace.frames(direction)
