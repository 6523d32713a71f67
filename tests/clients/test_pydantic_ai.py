"""pydantic-ai, the one released client of lanes: three runs at once on one WebSocket, and over HTTP."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.calls import run_printed
from tests.clients.served import Served, serve
from tests.clients.tap import tapped
from tests.clients.typed import misfits
from tests.clients.weather import ANSWER, CITIES, weather_of

pytestmark = [
    pytest.mark.clients,
    # warnings of the client's own libraries are not ours to mend
    pytest.mark.filterwarnings("default"),
]

RUNS = 3


@pytest.fixture(scope="module")
def served(pydantic_ai: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model asks three times, slowly enough for runs to meet."""
    sampler = "policy:tests.clients.weather:one_by_one?rate=20"
    with serve(tmp_path_factory.mktemp("pydantic"), sampler, shared=True) as running:
        yield running


def make_agent(url: str, asked: list[str], **settings: Any) -> Any:
    """An agent with one tool."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIResponsesModel(
        "test-model",
        provider=OpenAIProvider(base_url=url, api_key="sk-test"),
        profile=OpenAIModelProfile(openai_responses_supports_websocket_stream_id=True),
    )
    agent = Agent(model, instructions="Be brief.", model_settings=OpenAIResponsesModelSettings(**settings))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        asked.append(city)
        return weather_of(city)

    return agent


async def ask_at_once(url: str, **settings: Any) -> tuple[list[str], list[str]]:
    """Runs that go on at the same time; what they say, and what they asked."""
    asked: list[str] = []
    agent = make_agent(url, asked, **settings)
    async with agent:
        results = await asyncio.gather(*[agent.run(f"How is the weather? ({i})") for i in range(RUNS)])
    return [result.output for result in results], asked


def test_lanes(served):
    """Three runs share a socket, each on a lane of its own, where it chains; they sample at the same time."""
    said, asked = served.run(
        "the end of the runs", ask_at_once(served.http_url, openai_transport="websocket", openai_store=False)
    )
    (trace,) = served.traces()
    assert (said, sorted(asked)) == ([ANSWER] * RUNS, sorted(CITIES * RUNS))
    creates = trace.frames("in")
    lanes = {frame.get("stream_id") for frame in creates}
    assert (len(lanes), len(creates)) == (RUNS, RUNS * (len(CITIES) + 1))
    for lane in lanes:
        ids = [
            frame["response"]["id"]
            for frame in trace.frames("out", "response.completed")
            if frame.get("stream_id") == lane
        ]
        parents = [frame.get("previous_response_id") for frame in creates if frame.get("stream_id") == lane]
        assert parents == [None, *ids[:-1]]
    assert most_at_once(trace.frames("out")) == RUNS
    assert misfits("create", trace.frames("out")) == []


def most_at_once(frames: list[dict[str, Any]]) -> int:
    """How many responses were going on at most."""
    going_on = most = 0
    for frame in frames:
        going_on += (frame["type"] == "response.created") - (frame["type"] == "response.completed")
        most = max(most, going_on)
    return most


def test_http(served):
    """Over HTTP the same three runs get the same answers."""
    with tapped(served) as tap:
        said, asked = served.run("the end of the runs", ask_at_once(tap.http_url, openai_store=False))
    assert (said, sorted(asked)) == ([ANSWER] * RUNS, sorted(CITIES * RUNS))
    assert len(tap.requests()) == RUNS * (len(CITIES) + 1)


def test_printed_lines(served):
    """The lines that the server prints make an agent that uses the WebSocket."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    classes = {kind.__name__: kind for kind in (Agent, OpenAIResponsesModel, OpenAIProvider)}

    async def ask() -> str:
        agent = run_printed(served, "pydantic_ai", **classes)["agent"]

        @agent.tool_plain
        def get_weather(city: str) -> str:
            return weather_of(city)

        return (await agent.run("How is the weather?")).output

    before = len(served.traces(0))
    assert served.run("the end of the run", ask()) == ANSWER
    (trace,) = served.traces(before + 1)[before:]
    assert trace.counts("in") == {"response.create": len(CITIES) + 1}
