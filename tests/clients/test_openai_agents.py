"""openai-agents' hosted multi-agent model in the inject form: three tool calls in one response."""

from typing import Any

import attrs
import pytest

from tests.clients.served import Trace, serve
from tests.clients.typed import misfits
from tests.clients.weather import ANSWER, CITIES, weather_of

pytestmark = [
    pytest.mark.clients,
    # warnings of the client's own libraries are not ours to mend
    pytest.mark.filterwarnings("default"),
]


@attrs.frozen
class Run:
    """What a run of the client left behind."""

    final_output: str
    usage: Any
    asked: list[str]
    trace: Trace
    connections: int


async def ask(http_url: str, ws_url: str) -> tuple[Any, list[str]]:
    """Run an agent with one tool; return its result and the cities asked for."""
    from agents import Agent, Runner, function_tool, set_tracing_disabled
    from agents.extensions.experimental.hosted_multi_agent import OpenAIHostedMultiAgentModel
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)
    asked: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        asked.append(city)
        return weather_of(city)

    async with AsyncOpenAI(api_key="sk-test", base_url=http_url, websocket_base_url=ws_url) as client:
        model = OpenAIHostedMultiAgentModel("test-model", client)
        agent = Agent(name="Reporter", instructions="Be brief.", tools=[get_weather], model=model)
        try:
            return await Runner.run(agent, "How is the weather?"), asked
        finally:
            await model.close()


@pytest.fixture(scope="module", params=["one_by_one", "together"])
def run(request: pytest.FixtureRequest, openai_agents: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run for each way to make three calls, looked at by the tests below."""
    folder = tmp_path_factory.mktemp("agents")
    with serve(folder, f"policy:tests.clients.weather:{request.param}") as served:
        result, asked = served.run("the end of the agent", ask(served.http_url, served.ws_url))
        served.traces()
        served.stop()
        traces = served.traces()  # again: a second connection would show now
    return Run(result.final_output, result.context_wrapper.usage, asked, traces[0], len(traces))


def test_agent_gets_its_answer(run):
    """The tool ran once for each call, and the final output is made of all three outputs."""
    assert sorted(run.asked) == sorted(CITIES)
    assert run.final_output == ANSWER


def test_whole_rollout_is_one_response(run):
    """One connection, one create, an accepted inject per call, one terminal event, one id."""
    assert run.connections == 1
    assert run.trace.header["dialect"] == "create"
    assert run.trace.counts("in") == {"response.create": 1, "response.inject": len(CITIES)}
    sent = run.trace.counts("out")
    assert (sent["response.created"], sent["response.inject.created"], sent["response.completed"]) == (
        1,
        3,
        1,
    )
    assert {"error", "response.done", "response.inject.failed", "response.failed"} & sent.keys() == set()
    assert len(run.trace.response_ids()) == 1


def test_client_counts_one_request(run):
    """The client's own usage says one request, with the tokens of the terminal event."""
    told = run.trace.frames("out", "response.completed")[0]["response"]["usage"]
    usage = run.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (
        1,
        told["input_tokens"],
        told["output_tokens"],
    )


def test_events_are_numbered_without_a_gap(run):
    """Sequence numbers count 0, 1, 2… over the whole rollout, answers to injects included."""
    numbers = [frame["sequence_number"] for frame in run.trace.frames("out")]
    assert numbers == list(range(len(numbers)))


def test_stages_run_once_per_rollout(run):
    """Pre- and post-inference ran once, and every slot was given back."""
    hooks = run.trace.counts("hook")
    assert (hooks["pre_inference"], hooks["post_inference"]) == (1, 1)
    assert hooks["slot_acquire"] == hooks["slot_release"]


def test_frames_have_the_official_types(run):
    """Each frame is one of the official SDK's server events of the beta."""
    assert misfits("inject", run.trace.frames("out")) == []
