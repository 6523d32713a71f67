"""One rollout of two tools at once and one alone, in each form: traces of the real engine, in virtual time."""

from typing import Any, Final

import trio

from engine.client import Form
from engine.samplers.paced import Pace, Paced
from engine.samplers.policy import PolicySampler, Say, Script, Think, Tools, Use, program
from engine.testing import MemoryTrace, serving, simulate, simulated_engine

FORMS: Final[tuple[Form, ...]] = ("http", "create", "append", "inject")
LOOK_SECONDS: Final = 0.25
SEARCH_SECONDS: Final = 1.5
GAP_SECONDS: Final = 0.5
"""After each rollout."""
TOOLS: Final = [
    {"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "search")
]


def _ended(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"id": "resp_1", "status": kind, **members}}


def _done(**members: Any) -> dict[str, Any]:
    item = {"type": "function_call", "id": "a", "call_id": "c", "name": "f", **members}
    return {"type": "response.output_item.done", "item": item}


def _created(response: Any) -> dict[str, Any]:
    return {"type": "response.created", "response": response}


ODD_FRAMES: Final[tuple[dict[str, Any], ...]] = (
    _ended("failed", error="boom"),
    _ended("failed", error={"code": ["boom"]}),
    _ended("incomplete", incomplete_details="x", usage="x"),
    _ended("completed", usage=[1]),
    _ended("completed", usage={"input_tokens": "many", "output_tokens": 2, "input_tokens_details": "x"}),
    _ended("completed") | {"response": None},
    _ended("completed", status=["completed"]),
    _done(call_id=["c"], name=7),
    _done(id=["a"]),
    {"type": "response.output_item.done", "item": None},
    {"type": "response.output_item.done", "item": []},
    {"type": "response.output_item.added"},
    _created([1]),
    _created("resp_1"),
    _created({"id": ["a"], "created_at": "2024-01-01", "model": {"a": 1}}),
    {"type": "error", "error": "boom"},
    {"type": "http.response", "status": "500", "body": "boom"},
    {"type": "http.response", "status": 500, "body": {"error": "boom"}},
    {"type": "http.response", "status": 200, "body": {"object": "response", "output": [None]}},
)
"""What no server should say."""


def recorded(form: Form, *, rollouts: int = 1) -> list[bytes]:
    """The lines of a trace file: so many rollouts one after the other, by one client. Each has three segments and three calls."""
    return simulate(_record, form, rollouts, seed=1)


async def _record(form: Form, rollouts: int) -> list[bytes]:
    memory = MemoryTrace()
    pace = Pace(tokens_per_second=50, first_token_seconds=0.1)
    sampler = Paced(PolicySampler(program(_script)), pace, tick_seconds=0.002)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sampler.run)
        async with (
            serving(simulated_engine(sampler, seed=1), trace=memory) as served,
            served.connect_client(form, redial=served.open_stream) as client,
        ):
            for _ in range(rollouts):
                async with client.rollout(
                    model="m", input="which one?", tools=TOOLS, functions={"look": _look, "search": _search}
                ) as rollout:
                    assert (await rollout.wait_ended()).status == "completed"
                await trio.sleep(GAP_SECONDS)
        nursery.cancel_scope.cancel()
    return memory.lines()


def _script(_prompt: str, _tools: Tools) -> Script:
    yield Think("there may be several of them")
    yield Say("I look and search.")
    yield Use("look", {"at": 1}), Use("search", {"words": "x"})
    yield Use("look", {"at": 2})
    yield Say("It is the third one.")


async def _look(at: int) -> str:
    await trio.sleep(LOOK_SECONDS)
    return f"seen at {at}"


async def _search(words: str) -> str:
    await trio.sleep(SEARCH_SECONDS)
    return f"found {words}"
