"""Frameworks that speak HTTP only: langchain-openai and litellm."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.calls import CREATE, outputs_of, run_printed
from tests.clients.conftest import installed
from tests.clients.served import Served, serve
from tests.clients.tap import tapped
from tests.clients.typed import misfits
from tests.clients.weather import ANSWER, CITIES, weather_of

pytestmark = [
    pytest.mark.clients,
    pytest.mark.nightly,
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
def served(way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model does so, for all tests here."""
    with serve(
        tmp_path_factory.mktemp("http"), f"policy:tests.clients.weather:{way}", shared=True
    ) as running:
        yield running


@pytest.mark.parametrize("chained", [False, True], ids=["whole history", "chained"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_langchain(served, way, chained, streamed):
    """A chat model with a tool gets the answer, plain and streamed, by whole history and by the last id."""
    installed("langchain_openai", "langchain-openai")
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        return weather_of(city)

    def say(messages: list[Any]) -> Any:
        if not streamed:
            return model.invoke(messages)
        first, *more = model.stream(messages)
        return sum(more, first)

    with tapped(served) as tap:
        chat = ChatOpenAI(
            model="test-model",
            base_url=tap.http_url,
            api_key="sk-test",
            use_responses_api=True,
            use_previous_response_id=chained,
        )
        model = chat.bind_tools([get_weather])
        messages: list[Any] = [HumanMessage("How is the weather?")]
        while (answer := say(messages)).tool_calls:
            outputs = [
                ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
                for call in answer.tool_calls
            ]
            messages += [answer, *outputs]
    assert answer.text == ANSWER
    assert len(tap.requests()) == WAYS[way]
    assert any(request.get("previous_response_id") for request in tap.requests()) == chained
    assert bool(tap.events()) == streamed
    assert misfits("http", tap.events()) == []


def test_litellm(served, way, monkeypatch):
    """litellm's `responses` does a rollout by the last id, and streams."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    installed("litellm", "litellm")
    import litellm

    where = {"model": "openai/test-model", "api_base": served.http_url, "api_key": "sk-test"}
    question = {"input": CREATE["input"], "tools": CREATE["tools"]}
    answers = [litellm.responses(**where, **question)]
    while outputs := outputs_of(answers[-1]):
        more = {**question, "input": outputs, "previous_response_id": answers[-1].id}
        answers.append(litellm.responses(**where, **more))
    assert answers[-1].output[-1].content[0].text == ANSWER
    assert len(answers) == WAYS[way]
    types = [event.type for event in litellm.responses(**where, **question, stream=True)]
    assert types[-1] == "response.completed"


def test_printed_lines(served, monkeypatch):
    """The lines that the server prints make a chat model, and a response of litellm's."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    installed("langchain_openai", "langchain-openai")
    installed("litellm", "litellm")
    import litellm
    from langchain_openai import ChatOpenAI

    names = run_printed(served, "frameworks", ChatOpenAI=ChatOpenAI, litellm=litellm)
    assert [item.type for item in names["answer"].output] == ["function_call"] * len(names["answer"].output)
    assert len(names["model"].invoke("hello").tool_calls) == len(names["answer"].output)
