"""Clients from npm: the official SDK's WebSocket connection, the AI SDK over HTTP, and the agents over both.

They need Node 22 and 24; npm has it as a package, so a machine with an older one runs them too.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.clients.calls import GET_WEATHER
from tests.clients.served import Served, serve
from tests.clients.typed import misfits
from tests.clients.weather import ANSWER, CITIES, WEATHER

pytestmark = pytest.mark.clients

PROGRAMS = Path(__file__).parent / "node"
Run = Callable[..., Any]


@pytest.fixture(scope="module", params=["one_by_one", "together"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model makes its calls one after the other, or all at once."""
    with serve(
        tmp_path_factory.mktemp("node"), f"policy:tests.clients.weather:{request.param}", shared=True
    ) as running:
        yield running


@pytest.fixture
def run(served, node, node_modules, tmp_path) -> Run:
    """Runs a program here with the packages of npm; what it printed."""

    def run_program(name: str, packages: Sequence[str], *arguments: Any) -> Any:
        modules = node_modules(*packages)
        (tmp_path / "node_modules").symlink_to(modules, target_is_directory=True)
        program = shutil.copy(PROGRAMS / name, tmp_path)
        words = [served.http_url, *(orjson.dumps(argument).decode() for argument in arguments)]
        completed = served.run_command(f"the end of {name}", [node, program, *words])
        assert completed.returncode == 0, completed.stderr
        return orjson.loads(completed.stdout.splitlines()[-1])

    return run_program


def test_responses_ws(served, run):
    """The official connection does a rollout in the create form; it hears every event, by the type it was sent with."""
    heard = run("responses_ws.mjs", ["openai", "ws"], WEATHER, GET_WEATHER)
    trace = served.trace_of(heard["ids"][0])
    assert heard["text"] == ANSWER
    assert heard["ids"] == [frame["response"]["id"] for frame in trace.frames("out", "response.completed")]
    assert heard["types"] == [frame["type"] for frame in trace.frames("out")]
    assert [frame.get("previous_response_id") for frame in trace.frames("in")] == [None, *heard["ids"][:-1]]
    assert misfits("create", trace.frames("out")) == []


@pytest.mark.nightly
def test_ai_sdk(run):
    """Both providers of the AI SDK get the answer, streamed and whole."""
    heard = run("ai_sdk.mjs", ["ai", "@ai-sdk/openai", "@ai-sdk/open-responses", "zod"], WEATHER)
    assert heard["texts"] == [ANSWER] * 4
    assert sorted(heard["asked"]) == sorted(CITIES * 4)


@pytest.mark.nightly
def test_agents(run):
    """An agent of the npm package gets the answer over WebSocket and over HTTP."""
    heard = run("agents.mjs", ["@openai/agents", "zod"], WEATHER)
    assert heard["texts"] == [ANSWER] * 2
    assert sorted(heard["asked"]) == sorted(CITIES * 2)
