"""A model that has so many places and no more: who gets one, whose state stays in one, and what a client may say about it."""

import math

import trio

from engine.backends.scripted import ScriptedBackend, ScriptedPace
from engine.config import Limits
from engine.residency.policies import Keep
from engine.samplers.tokens import TokenSampler
from engine.testing import serving, simulated_engine
from tests.chatml import chatml, text_of_tokens, tokens_of
from tests.scenarios import FUNCTION

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>'
SEGMENTS = [tokens_of(text) for text in (CALL, CALL, "All is well.<|im_end|>")]
LIMITS = Limits(kv_tokens=1_000_000)
"""Room for everything, were it not for the places."""


def go_on(prompt):
    """Two calls, then a word; one that is told to talk talks at once."""
    text = text_of_tokens(prompt)
    return SEGMENTS[2] if "talk" in text else SEGMENTS[text.count("<tool_response>")]


async def rolled_out(served, text, tool_seconds=10.0, **members):
    """A rollout in the append form, to its end."""

    async def f():
        await trio.sleep(tool_seconds)
        return "ok"

    async with (
        served.connect_client("append") as client,
        client.rollout(model="m", input=text, tools=[FUNCTION], functions={"f": f}, **members) as rollout,
    ):
        assert "completed" == (await rollout.wait_ended()).status


async def test_states_are_as_many_as_places_and_the_others_are_saved(autojump_clock):
    """Three rollouts on two places: whose state makes room is written away and brought back, and nothing is read twice."""
    most = []

    def watched(prompt):
        most.append(sum(handle.resident_tokens > 0 for handle in backend.handles))
        return go_on(prompt)

    backend = ScriptedBackend(watched, slot_count=2)
    sampler = TokenSampler(chatml(), backend)
    engine = simulated_engine(sampler, seed=0, limits=LIMITS, kv_policy="keep")
    async with serving(engine) as served, trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(rolled_out, served, f"{number} " * 50)
    states = engine.residency.statistics()
    assert (2, 0) == (max(most), states.dropped)
    assert states.saved >= states.restored >= 2
    prompts = sorted((list(prompt) for prompt in backend.prompts), key=len)
    firsts = sum(map(len, prompts[:3]))
    assert firsts <= sampler.statistics().computed_tokens < 2 * firsts


async def test_a_models_places_go_to_resumed_rollouts_first(autojump_clock):
    """On one place that is held: who came back from its tool goes before who began earlier."""
    backend = ScriptedBackend(go_on, slot_count=1, pace=ScriptedPace(prefill_seconds=0.1))
    engine = simulated_engine(TokenSampler(chatml(), backend), seed=0, limits=LIMITS)
    async with serving(engine) as served, trio.open_nursery() as nursery:
        nursery.start_soon(rolled_out, served, "first", 60.0)
        await trio.sleep(50)  # it waits for its tool
        nursery.start_soon(rolled_out, served, "talk " * 2000)
        await trio.sleep(1)
        nursery.start_soon(rolled_out, served, "talk: began before it came back")
        await trio.sleep(100)
        assert 2 == engine.residency.statistics().slots_waiting
    order = [text_of_tokens(prompt) for prompt in backend.prompts]
    came_back = next(place for place, text in enumerate(order) if "<tool_response>" in text)
    assert came_back < next(place for place, text in enumerate(order) if "began before" in text)


async def test_a_client_says_how_long_its_tool_takes(autojump_clock):
    """The hint in a create's metadata is what a policy is told of the call."""
    told = []

    class Asked(Keep):
        def lapses_at(self, paused, view):
            told.extend((call.tool, call.expected_seconds) for call in paused.calls)
            return math.inf

    engine = simulated_engine(TokenSampler(chatml(), ScriptedBackend(go_on)), seed=0, limits=LIMITS)
    engine.residency.policy = Asked()
    async with serving(engine) as served:
        await rolled_out(served, "go", metadata={"tool_seconds": "f=45, g=1"})
    assert [("f", 45.0)] * 2 == told
