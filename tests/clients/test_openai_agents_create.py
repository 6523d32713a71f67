"""openai-agents in the launched forms: a session on one WebSocket, whole history or chained, and its HTTP provider."""

from collections.abc import Callable, Coroutine, Iterator
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

WAYS = {"one_by_one": len(CITIES) + 1, "together": 2}
"""How the model makes its calls, and so many responses that takes."""


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How the model makes its calls."""
    return request.param


@pytest.fixture(scope="module")
def served(way, openai_agents: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model does so, for all tests here."""
    with serve(
        tmp_path_factory.mktemp("agents"), f"policy:tests.clients.weather:{way}", shared=True
    ) as running:
        yield running


def agent_asking(asked: list[str]) -> Any:
    """An agent with one tool that notes what it was asked."""
    from agents import Agent, function_tool, set_tracing_disabled

    set_tracing_disabled(disabled=True)

    @function_tool
    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        asked.append(city)
        return weather_of(city)

    return Agent(name="Reporter", instructions="Be brief.", tools=[get_weather], model="test-model")


async def by_session(served: Served, asked: list[str], **options: Any) -> list[Any]:
    """Two runs of a session, streamed."""
    from agents import responses_websocket_session

    results = []
    async with responses_websocket_session(
        api_key="sk-test", base_url=served.http_url, websocket_base_url=served.ws_url
    ) as session:
        for _ in range(2):
            result = session.run_streamed(agent_asking(asked), "How is the weather?", **options)
            async for _event in result.stream_events():
                pass
            results.append(result)
    return results


async def by_provider(url: str, asked: list[str], **options: Any) -> list[Any]:
    """A run over HTTP, plain, and a streamed one."""
    from agents import OpenAIProvider, RunConfig, Runner
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key="sk-test", base_url=url) as client:
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client, use_responses=True))
        question = (agent_asking(asked), "How is the weather?")
        plain = await Runner.run(*question, run_config=config, **options)
        streamed = Runner.run_streamed(*question, run_config=config, **options)
        async for _event in streamed.stream_events():
            pass
        return [plain, streamed]


def run(
    served: Served, client: Callable[..., Coroutine[Any, Any, list[Any]]], *where: Any, **options: Any
) -> None:
    """Run a client; it has two results, and both are right."""
    asked: list[str] = []
    results = served.run("the end of the agent", client(*where, asked, **options))
    assert [result.final_output for result in results] == [ANSWER, ANSWER]
    assert sorted(asked) == sorted(CITIES * 2)


@pytest.mark.parametrize("chained", [False, True], ids=["whole history", "chained"])
def test_session(served, way, chained):
    """A session has one connection for all runs; chained, each create names the last response and has outputs only."""
    before = len(served.traces(0))
    run(served, by_session, served, auto_previous_response_id=chained)
    (trace,) = served.traces(before + 1)[before:]
    responses = WAYS[way]
    assert trace.counts("in") == {"response.create": 2 * responses}
    assert trace.counts("out")["response.completed"] == 2 * responses
    ids = [frame["response"]["id"] for frame in trace.frames("out", "response.completed")]
    parents = [frame.get("previous_response_id") for frame in trace.frames("in")]
    a_run = slice(0, responses)
    assert parents[a_run] == [None, *(ids[: responses - 1] if chained else [None] * (responses - 1))]
    if chained:
        later = trace.frames("in")[1:responses]
        assert {item["type"] for frame in later for item in frame["input"]} == {"function_call_output"}
    assert misfits("create", trace.frames("out")) == []


@pytest.mark.parametrize("chained", [False, True], ids=["whole history", "chained"])
def test_http(served, way, chained):
    """Over HTTP the provider gets the same answer, plain and streamed."""
    with tapped(served) as tap:
        run(served, by_provider, tap.http_url, auto_previous_response_id=chained)
    assert len(tap.requests()) == 2 * WAYS[way]
    assert [request.get("stream") is True for request in tap.requests()].count(True) == WAYS[way]
    assert any(request.get("previous_response_id") for request in tap.requests()) == chained
    assert [event["type"] for event in tap.events()].count("response.completed") == WAYS[way]
    assert misfits("http", tap.events()) == []


def test_printed_lines(served, way):
    """The lines that the server prints make a model of the inject form, and a provider of the create form."""
    from agents import OpenAIProvider, RunConfig, Runner
    from agents.extensions.experimental.hosted_multi_agent import OpenAIHostedMultiAgentModel
    from openai import AsyncOpenAI

    classes = {kind.__name__: kind for kind in (AsyncOpenAI, OpenAIHostedMultiAgentModel, OpenAIProvider)}
    asked: list[str] = []

    async def run_both() -> list[Any]:
        names = run_printed(served, "openai_agents", **classes)
        async with names["client"]:
            agent, question = agent_asking(asked), "How is the weather?"
            config = RunConfig(model_provider=names["provider"])
            chained = await Runner.run(agent, question, run_config=config)
            hosted = await Runner.run(agent.clone(model=names["model"]), question)
            await names["model"].close()
            await names["provider"].aclose()
            return [chained, hosted]

    before = len(served.traces(0))
    results = served.run("the end of the agents", run_both())
    traces = served.traces(before + 2)[before:]
    assert [result.final_output for result in results] == [ANSWER, ANSWER]
    creates = sorted(trace.counts("in")["response.create"] for trace in traces)
    assert creates == [1, WAYS[way]]
