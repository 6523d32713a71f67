"""Five forms, one rollout: naive HTTP, optimised HTTP, create, append and inject do the same, so speed cannot come from less.

A seeded model decides by what it has heard: it thinks, talks, and calls up to three tools at once. The same conversation and
the same outputs go through every form. Compared: the items (ids renamed), what each tool was asked, the token ids of the
context at the start of each segment, and the sampled tokens.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.context import Context, Preamble
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Prefilled,
    Prompt,
    Steps,
    Text,
    Thought,
)
from engine.testing import Served, serving, simulate, simulated_engine
from protocol.items import OUTPUTS, Item
from tests.http_peer import HttpPeer

TOOLS = (
    {"type": "function", "name": "f", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
)
WORDS = ["one", "two", "three", "<|start|>", "vier", "中", "😀", "\n", "end"]


class Model:
    """Says the same to the same conversation; remembers the context of each segment as token ids."""

    def __init__(self, seed: int, rounds: int) -> None:
        self.seed = seed
        self.rounds = rounds
        self.contexts: list[list[int]] = []

    def open(self, _prompt: Prompt) -> "_Speaking":
        return _Speaking(self)


class _Speaking:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: tuple[Item, ...] = ()

    async def sample(self, appended: Appended) -> Steps:
        fresh = not self._known
        self._known += appended.items
        context = list(Context.full(self._known, Preamble(None, TOOLS)).tokens_from(0))
        # what a fresh sampling is given is the whole context; a warm one is given its end
        given_tokens = list(appended.tokens)
        assert given_tokens == (context if fresh else context[len(context) - len(given_tokens) :])
        self._model.contexts.append(context)
        yield (Prefilled(0, len(given_tokens)),)
        for part in self._parts():
            yield (part,)

    def _parts(self) -> list[Any]:
        outputs = [item for item in self._known if isinstance(item, OUTPUTS)]
        source = random.Random(f"{self._model.seed} {len(outputs)} {[item.output for item in outputs]}")
        parts: list[Any] = [Thought(source.choice(WORDS)) for _ in range(source.randrange(3))]
        parts += [Text(source.choice(WORDS)) for _ in range(source.randrange(1, 6))]
        turns = sum(1 for item in self._known if item.type in {"reasoning", "message"})
        calls = source.randrange(1, 4) if len(outputs) < self._model.rounds and turns < 20 else 0
        for index in range(calls):
            name = source.choice(["f", "patch"])
            words = source.choice(WORDS)
            written = words if name == "patch" else orjson.dumps({"word": words}).decode()
            parts += [CallStart(index, name), CallInput(index, written), CallEnd(index)]
        return [*parts, End()]

    async def aclose(self) -> None:
        """Nothing is held."""


@attrs.frozen
class Done:
    """What a form made of a conversation."""

    items: list[dict[str, Any]]
    asked: list[tuple[str, str]]
    contexts: list[list[int]]
    output_tokens: int


def renamed(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without what may differ: ids, and the marks that only inject responses carry."""
    return [
        {key: value for key, value in item.items() if key not in {"id", "call_id", "agent", "phase"}}
        for item in items
    ]


def answers(items: list[dict[str, Any]], output: Callable[[str], str]) -> list[dict[str, Any]]:
    """The outputs of the calls among the items: a function of what was asked."""
    calls = [item for item in items if item["type"] in {"function_call", "custom_tool_call"}]
    return [
        {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output(_asked(call)[1])}
        for call in calls
    ]


def _asked(call: Mapping[str, Any]) -> tuple[str, str]:
    return call["name"], call["arguments"] if call["type"] == "function_call" else call["input"]


Talk = Callable[[Served, str, Callable[[str], str]], Any]


async def by_http(served: Served, prompt: str, output: Callable[[str], str]) -> list[dict[str, Any]]:
    """The whole history with each request."""
    peer = HttpPeer(await served.open_stream())
    history: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    made: list[dict[str, Any]] = []
    while True:
        body = {"model": "m", "input": history, "tools": TOOLS, "store": False}
        await peer.send("POST", "/v1/responses", body)
        items = (await peer.answer()).json["output"]
        made += items
        more = answers(items, output)
        if not more:
            await peer.stream.aclose()
            return made
        history += [*items, *more]


async def by_create(served: Served, prompt: str, output: Callable[[str], str]) -> list[dict[str, Any]]:
    """Only what is new, with the id of the response before."""
    made: list[dict[str, Any]] = []
    async with served.connect_raw(append=False) as raw:
        new: Any = prompt
        parent: dict[str, Any] = {}
        while True:
            raw.send(
                {
                    "type": "response.create",
                    "model": "m",
                    "input": new,
                    "tools": TOOLS,
                    "store": False,
                    **parent,
                }
            )
            while (frame := await raw.receive())["type"] != "response.completed":
                pass
            made += frame["response"]["output"]
            new, parent = (
                answers(frame["response"]["output"], output),
                {"previous_response_id": frame["response"]["id"]},
            )
            if not new:
                return made


async def by_append(served: Served, prompt: str, output: Callable[[str], str]) -> list[dict[str, Any]]:
    """One response; the outputs when it says that it waits."""
    async with served.connect_raw(append=True) as raw:
        raw.send({"type": "response.create", "model": "m", "input": prompt, "tools": TOOLS})
        items: list[dict[str, Any]] = []
        while (frame := await raw.receive())["type"] != "response.completed":
            if frame["type"] == "response.output_item.done":
                items.append(frame["item"])
            if frame["type"] == "response.done":
                raw.send({"type": "response.append", "input": answers(items, output)[::-1]})
                items = []
        made: list[dict[str, Any]] = frame["response"]["output"]
        return made


async def by_inject(served: Served, prompt: str, output: Callable[[str], str]) -> list[dict[str, Any]]:
    """One response; each output as soon as its call is there."""
    create = {
        "type": "response.create",
        "model": "m",
        "input": prompt,
        "tools": TOOLS,
        "multi_agent": {"enabled": True},
    }
    async with served.connect_raw(append=False) as raw:
        raw.send(create)
        while (frame := await raw.receive())["type"] != "response.completed":
            if frame["type"] == "response.created":
                response_id = frame["response"]["id"]
            if frame["type"] == "response.output_item.done":
                for one in answers([frame["item"]], output):
                    raw.send({"type": "response.inject", "response_id": response_id, "input": [one]})
        made: list[dict[str, Any]] = frame["response"]["output"]
        return made


FORMS: Mapping[str, tuple[Talk, str]] = {
    "naive HTTP": (by_http, "naive"),
    "optimised HTTP": (by_http, "optimised"),
    "create": (by_create, "optimised"),
    "append": (by_append, "optimised"),
    "inject": (by_inject, "optimised"),
}


def play(form: str, seed: int, rounds: int, prompt: str, output: Callable[[str], str]) -> Done:
    """One conversation in one form."""
    talk, variant = FORMS[form]
    model, reports = Model(seed, rounds), []

    async def run() -> list[dict[str, Any]]:
        engine = simulated_engine(model, seed=1, on_report=reports.append, http_variant=variant)
        async with serving(engine) as served:
            items: list[dict[str, Any]] = await talk(served, prompt, output)
            return items

    items = simulate(run, seed=1)
    asked = [_asked(item) for item in items if item["type"] in {"function_call", "custom_tool_call"}]
    return Done(renamed(items), asked, model.contexts, sum(report.usage.output_tokens for report in reports))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rounds=st.integers(0, 6),
    prompt=st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
    suffix=st.text(max_size=10),
)
def test_every_form_does_the_same(seed: int, rounds: int, prompt: str, suffix: str) -> None:
    """Items, calls, the context's token ids segment by segment, and the tokens sampled are equal in all five."""
    done = {form: play(form, seed, rounds, prompt, lambda asked: f"{asked}{suffix}") for form in FORMS}
    expected = done["naive HTTP"]
    for form, found in done.items():
        assert found == expected, form
    assert (rounds > 0) == bool(expected.asked)
