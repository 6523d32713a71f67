"""A model that speaks harmony under the rollout core: what it is given, turn by turn, is the full rendering."""

from array import array

import trio

from engine.backends.scripted import ScriptedBackend
from engine.engine import Engine
from engine.formats.base import Request
from engine.formats.harmony import Harmony
from engine.local import memory_client
from engine.samplers.base import Appended, Prompt
from engine.samplers.tokens import TokenOptions, TokenSampler
from protocol.items import FunctionCallOutput, Message, Reasoning
from tests.harmony_turns import TOOLS, Said, emitted, items_of

THINKS = Said("analysis", "I need the weather <|end|>.")
CALLS = Said("commentary", '{"city":"Rom 😀"}', "weather")
ANSWERS = Said("final", "Sunny <|return|>.")


def whole(form, request, items):
    return form.preamble(request) + form.items(items, ()) + form.opening(request)


async def weather(city):
    await trio.lowlevel.checkpoint()
    return f"sunny in {city} <|start|>"


async def test_the_prompts_of_a_rollout_are_full_renderings():
    """With calls over the wire each prompt equals what would be rendered from nothing, and no text is lost or obeyed."""
    form = Harmony(strict=True)
    said = [[THINKS, Said("commentary", "Let me look."), CALLS], [CALLS], [THINKS, ANSWERS]]
    backend = ScriptedBackend([emitted(messages) for messages in said])
    engine = Engine.make(TokenSampler(form, backend))
    kept = []
    engine.persist = type(engine.persist)(kept.append)
    async with memory_client(engine) as client:
        create = {
            "model": "m",
            "input": "How is Rome?",
            "instructions": "Be brief.",
            "tools": list(TOOLS[:1]),
        }
        async with client.rollout(**create, functions={"weather": weather}) as rollout:
            await rollout.wait_ended()
    items = list(kept[0].items)
    assert [item.type for item in items] == [
        *("message", "reasoning", "message", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "reasoning", "message"),
    ]
    request = Request(instructions="Be brief.", tools=TOOLS[:1])
    expected = [whole(form, request, items[:place]) for place in (1, 5, 7)]
    assert expected == backend.prompts


async def take(sampling, items):
    async for _ in sampling.sample(Appended(tuple(items), array("I"))):
        pass


async def test_a_new_user_turn_is_cut_to_the_full_rendering():
    """On a warm sequence the next turn's prompt is what would be rendered from nothing, without the old thoughts."""
    form = Harmony(strict=True)
    turn = [[THINKS, CALLS], [ANSWERS]]
    backend = ScriptedBackend([emitted(messages) for messages in (*turn, *turn)])
    sampler = TokenSampler(form, backend)
    sampling = sampler.open(Prompt("resp_1", "m"))
    question, again = Message("user", "How is Rome?"), Message("user", "And now?")
    await take(sampling, [question])
    called = items_of(form_parts(form, turn[0]))
    output = FunctionCallOutput(called[-1].call_id, "It is sunny.")
    await take(sampling, [*called, output])
    answered = items_of(form_parts(form, turn[1]))
    await take(sampling, [*answered, again])
    history = [question, *called, output, *answered, again]
    assert any(isinstance(item, Reasoning) for item in history)
    assert whole(form, Request(), history) == backend.prompts[-1]
    assert sampler.statistics().cuts == 1
    assert form.counts.forgotten_items > 0
    await sampling.aclose()


async def test_a_turn_cut_off_behind_a_whole_message_is_not_ended_twice():
    """Where the limit of length falls between two messages, what stays is the full rendering of what was said."""
    form = Harmony(keeps_reasoning=True)
    limit = len(THINKS.tokens) + 1
    backend = ScriptedBackend([emitted([THINKS, ANSWERS]), emitted([ANSWERS])])
    sampling = TokenSampler(form, backend, TokenOptions(max_tokens=limit)).open(Prompt("resp_1", "m"))
    question, again = Message("user", "How is Rome?"), Message("user", "Go on.")
    await take(sampling, [question])
    thought = items_of(form_parts(form, [THINKS, ANSWERS]))[0]
    await take(sampling, [thought, again])
    assert whole(form, Request(), [question, thought, again]) == backend.prompts[-1]
    await sampling.aclose()


def form_parts(form, messages):
    """The parts of a segment."""
    parser = form.parser(Request(), None)
    parts = [part for token in emitted(messages) for part in parser.feed(token)]
    return [*parts, *parser.end("stop")]
