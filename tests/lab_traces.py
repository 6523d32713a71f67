"""One rollout of two tools at once and one alone, in each form: traces of the real engine, in virtual time."""

from typing import Final

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
