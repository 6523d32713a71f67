"""A rollout of a real model, small as it is: forced calls, free text, and the same tokens whatever carries them."""

import json
import os
import random
import signal
from array import array
from contextlib import aclosing

import jsonschema
import pytest
import trio

from demos.live.real import INSTRUCTIONS, QUESTION, TOOLS
from engine.engine import Engine
from engine.formats.registry import make_format
from engine.samplers.tokens import TokenOptions, TokenSampler
from engine.testing import serving
from protocol.errors import refusal
from protocol.events import OutputTextDelta
from protocol.items import FunctionCall, Message, text_of
from tests.smollm2 import running, tokens_of, until, weights

pytestmark = pytest.mark.models

CALLS = 3
SCHEMAS = {tool["name"]: tool["parameters"] for tool in TOOLS}
ALPHABET = [
    *"abXY '\t\r\n 019_-.,!|<>{}\"é中😀ß",
    "  ",
    "\u3000",
    "\x85",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
]


class Recorded:
    """A backend, and what it was given and what it reported."""

    def __init__(self, backend):
        self._backend = backend
        self.prompts: list[array[int]] = []
        self.counts: list[tuple[int, int]] = []

    def __getattr__(self, name):
        return getattr(self._backend, name)

    async def generate(self, handle, tokens, sampling):
        self.prompts.append(tokens[:])
        async with aclosing(self._backend.generate(handle, tokens, sampling)) as pieces:
            async for piece in pieces:
                if piece.reused_tokens is not None:
                    self.counts.append((piece.reused_tokens, piece.computed_tokens))
                yield piece


def chatml_of_the_file():
    return make_format(None, None, {"forced_calls": str(CALLS)}, weights())


async def rollout_in(form, backend, **options):
    """One rollout: its items, what was reported of it, and the recorder; `options` are those of the engine."""
    recorded, reports = Recorded(backend), []
    sampler = TokenSampler(chatml_of_the_file(), recorded, TokenOptions(max_tokens=80))
    engine, kept = Engine.make(sampler, on_report=reports.append, **options), []
    engine.persist = type(engine.persist)(kept.append)

    async def get_weather(city):
        return f"{city}: sunny, 20 degrees"

    async def get_time(city):
        return f"{city}: 9 in the morning"

    functions = {"get_weather": get_weather, "get_time": get_time}
    async with (
        serving(engine) as served,
        served.connect_client(form) as client,
        client.rollout(
            model="smollm2", instructions=INSTRUCTIONS, input=QUESTION, tools=TOOLS, functions=functions
        ) as rollout,
    ):
        ended = await rollout.wait_ended()
    assert "completed" == ended.status
    return list(kept[-1].items), ended, reports, recorded


async def test_a_rollout_calls_tools_and_answers_in_its_own_words():
    """In each form: three calls that fit their schemas, then text; usage is what the backend reports.

    Append and create give the model the same ids. So does HTTP, because what was sampled is put back; its drift is counted.
    """
    prompts, drifts = {}, {}
    async with running() as (_, backend):
        for form in ("append", "create", "http"):
            _, ended, reports, recorded = await rollout_in(form, backend)
            prompts[form] = recorded.prompts
            drifts[form] = sum(report.hooks.get("drift", 0) for report in reports)
            computed = sum(report.usage.uncached_input_tokens for report in reports)
            cached = sum(report.usage.cached_input_tokens for report in reports)
            assert (sum(one for one, _ in recorded.counts), sum(two for _, two in recorded.counts)) == (
                cached,
                computed,
            )
            assert CALLS + 1 == len(recorded.prompts)
            last = ended.output[-1]
            assert isinstance(last, Message)
            assert text_of(last.content)
            if form == "append":
                calls = [item for item in ended.output if isinstance(item, FunctionCall)]
                assert CALLS == len(calls)
                for call in calls:
                    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
                warm = recorded.counts[1:]
                assert all(reused > computed for reused, computed in warm)
    assert prompts["append"] == prompts["create"] == prompts["http"]
    assert (0, 0) == (drifts["append"], drifts["create"])
    assert drifts["http"] > 0


async def test_over_http_a_history_that_comes_back_is_found_in_memory():
    """Each request after the first finds what the one before has left, as the backend reports; in naive HTTP none does."""
    seen = {}
    async with running() as (_, backend):
        for variant in ("naive", "optimised"):
            _, _, reports, recorded = await rollout_in("http", backend, http_variant=variant)
            seen[variant] = recorded
            cached = [report.usage.cached_input_tokens for report in reports]
            assert cached == [reused for reused, _ in recorded.counts]
        assert (CALLS, 0) == (backend.slots.finds, backend.slots.evictions)
    assert [(0, len(prompt)) for prompt in seen["naive"].prompts] == seen["naive"].counts
    assert seen["naive"].prompts == seen["optimised"].prompts
    first, *others = seen["optimised"].counts
    assert (0, len(seen["optimised"].prompts[0])) == first
    assert CALLS == len(others)
    assert all(reused > computed for reused, computed in others)


@pytest.mark.parametrize("retries", [0, 1])
async def test_the_death_of_the_model_ends_no_suspended_rollout(retries):
    """Killed while one rollout samples and two are suspended: the one fails or goes on, as configured; the two finish."""
    form = make_format(None, None, {"forced_calls": "1"}, weights())
    options = TokenOptions(max_tokens=80, retries=retries)
    waiting, go_on = [], trio.Event()

    async def get_time(city):
        waiting.append(city)
        await go_on.wait()
        return "9 in the morning"

    async def suspend(client, ends):
        async with client.rollout(
            model="m", input=QUESTION, tools=TOOLS[1:], functions={"get_time": get_time}
        ) as one:
            ends.append((await one.wait_ended()).status)

    async def talk(client, child):
        async with client.rollout(model="m", input="Tell me a long story about a fox.") as one:
            async for event in one:
                if isinstance(event, OutputTextDelta) and child.process_id in alive:
                    alive.remove(child.process_id)
                    os.kill(child.process_id, signal.SIGKILL)
        return one.response

    async with running(slots=3) as (child, backend):
        ends, alive = [], {child.process_id}
        engine = Engine.make(TokenSampler(form, backend, options))
        async with serving(engine) as served, trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(suspend, await nursery.start(connected, served), ends)
            await until(lambda: len(waiting) == 2)
            spoken = await talk(await nursery.start(connected, served), child)
            go_on.set()
            await until(lambda: len(ends) == 2)
            nursery.cancel_scope.cancel()
    assert set() == alive
    assert (spoken.status == "failed") == (retries == 0)
    if spoken.status == "failed":
        assert spoken.error.message == refusal("model_lost", response_id=spoken.id).message
    assert {"completed"} == set(ends)


async def test_three_rollouts_take_turns_in_two_slots():
    """All three are suspended at once: the state that made room was written away, and is found again when its tool is done."""
    form = make_format(None, None, {"forced_calls": "1"}, weights())
    waiting, go_on, reports = [], trio.Event(), []

    async def get_time(city):
        waiting.append(city)
        await go_on.wait()
        return "9 in the morning"

    async def roll_out(served):
        async with (
            served.connect_client("append") as client,
            client.rollout(
                model="m", input=QUESTION, tools=TOOLS[1:], functions={"get_time": get_time}
            ) as one,
        ):
            assert "completed" == (await one.wait_ended()).status

    async with running(slots=2) as (_, backend):
        sampler = TokenSampler(form, backend, TokenOptions(max_tokens=60))
        engine = Engine.make(sampler, kv_policy="keep", on_report=reports.append)
        async with serving(engine) as served, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(roll_out, served)
            await until(lambda: len(waiting) == 3)
            go_on.set()
        states = engine.residency.statistics()
        assert (0, 0) == (states.dropped, backend.slots.evictions)
    assert states.restored >= 1
    for report in reports:
        assert report.usage.cached_input_tokens > report.usage.uncached_input_tokens / 2
        assert 0 == report.hooks.get("cache_reset", 0)


async def connected(served, *, task_status):
    """A client in a task of its own."""
    async with served.connect_client("append") as client:
        task_status.started(client)
        await trio.sleep_forever()


async def test_our_tokens_are_those_of_llama_cpp():
    """For texts of any kind, control tokens' spellings among them, both vocabularies agree."""
    tokenizer = chatml_of_the_file()._tokenizer
    chance = random.Random(5)
    async with running(slots=1) as (child, _):
        for _ in range(200):
            text = "".join(chance.choice(ALPHABET) for _ in range(chance.randint(1, 40)))
            assert await tokens_of(child, text) == list(tokenizer.encode(text))


@pytest.mark.parametrize(
    "text", ["<|im_end|>\n<|im_start|>system\n", "<|endoftext|>", "<repo_name><file_sep>"]
)
def test_no_text_is_a_control_token_of_this_model(text):
    """Its own vocabulary spells its control tokens as text, and reads them back."""
    tokenizer = chatml_of_the_file()._tokenizer
    ids = tokenizer.encode(text)
    assert text == b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert set() == set(ids) & set(tokenizer.specials.values())


def test_every_control_token_of_this_model_is_text_however_it_is_cut():
    """Each one whole, cut at each position, doubled, and with look-alikes is spelled in ids of text (T18)."""
    tokenizer = chatml_of_the_file()._tokenizer
    controls = set(tokenizer.specials.values())
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(tokenizer.specials)
    for mark in tokenizer.specials:
        pieces = [[mark[:at], mark[at:]] for at in range(len(mark))]
        for texts in [*pieces, [mark + mark], [mark.replace("|", "\uff5c")], [f" {mark}\n"]]:
            ids = [token for text in texts for token in tokenizer.encode(text)]
            assert "".join(texts) == b"".join(map(tokenizer.token_bytes, ids)).decode()
            assert set() == controls & set(ids)


class Lossy(Recorded):
    """One whose state can be taken away while a tool runs."""

    async def generate(self, handle, tokens, sampling):
        self.handle = handle
        async with aclosing(super().generate(handle, tokens, sampling)) as pieces:
            async for piece in pieces:
                yield piece


async def rollout_that_loses_its_state(backend, lose):
    """What was said, the model's prompts, and how much was reused and computed, segment by segment."""
    lossy = Lossy(backend)
    form = make_format(None, None, {"forced_calls": "1"}, weights())

    async def get_time(city):
        await lose(lossy)
        return f"{city}: 9 in the morning"

    async with (
        serving(Engine.make(TokenSampler(form, lossy, TokenOptions(max_tokens=40)))) as served,
        served.connect_client("append") as client,
        client.rollout(
            model="m", input="Ask for the time in Paris.", tools=TOOLS[1:], functions={"get_time": get_time}
        ) as rollout,
    ):
        ended = await rollout.wait_ended()
    (call,) = (item for item in ended.output if isinstance(item, FunctionCall))
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    (words,) = (text_of(item.content) for item in ended.output if isinstance(item, Message))
    assert words
    return (call.arguments, words, ended.status), lossy.prompts, lossy.counts


async def test_a_rollout_says_the_same_whatever_became_of_its_state():
    """Kept, dropped, or saved and brought back while its tool runs: the same tokens in, the same words out, greedy.

    What was brought back is the same to the last token. What was read again is rounded otherwise, so where the model wavers
    it may go on otherwise: its beginning is compared. Each has a server of its own, where nothing is warm by accident.
    """

    async def keep(lossy):
        await trio.lowlevel.checkpoint()

    async def drop(lossy):
        await lossy.drop(lossy.handle)

    async def save(lossy):
        await lossy.save(lossy.handle)
        assert 0 == lossy.handle.resident_tokens

    outcomes = []
    for lose in (keep, drop, save):
        async with running(slots=1) as (_, backend):
            outcomes.append(await rollout_that_loses_its_state(backend, lose))
    kept, dropped, saved = outcomes
    assert kept == saved
    ((arguments, words, _), prompts, (first, (reused, computed))) = kept
    assert reused > computed
    assert (arguments, prompts, [first, (0, reused + computed)]) == (dropped[0][0], *dropped[1:])
    assert words[:20] == dropped[0][1][:20]
