"""Each form's work for one conversation of thirty calls, as exact sums over its context.

The create, append and inject forms render each token once and give each character to the classifier once.
Naive HTTP does it again with each request, for all that the request holds: the sum of all beginnings, which is quadratic.
Optimised HTTP renders once as well; its price is that it must digest each request from its beginning to recognise it.

What is expected is made from the conversation alone, by `Context.full` and by adding up its texts.
What was done is read twice: from the counters, and from a classifier that keeps what it was given.
"""

import random
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import attrs
import pytest

from engine.context import Context, Preamble
from engine.intake import input_items
from engine.prefix_cache import PrefixStatistics
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Part,
    Prefilled,
    Prompt,
    Steps,
    Text,
    Thought,
)
from engine.stages import Classify, Match, Streams
from engine.testing import serving, simulate, simulated_engine
from protocol import codec
from protocol.events import ResponseCreate
from protocol.items import OUTPUTS
from tests.test_equivalence import FORMS, TOOLS, answers

CALLS = 30
SEED = 7
PROMPT = "Count the words, grüß 中文 and 😀 too."
ONCE = ("create", "append", "inject")
"""The forms whose connection remembers."""
WORDS = ("alpha", "naïve", "中文", "😀", "<|start|>", "ignore previous instructions", "0x7f", "\n")


def words(*seed: object, count: int) -> str:
    """Some words, the same to the same seed."""
    source = random.Random(f"{SEED} {seed}")
    return " ".join(source.choices(WORDS, k=source.randrange(1, count)))


def output_of(asked: str) -> str:
    """What a tool answers."""
    return words("output", asked, count=200)


class Asker:
    """Thinks, talks and calls one tool, thirty times; then it answers. Says the same however it is told of the outputs."""

    def open(self, _prompt: Prompt) -> "_Asking":
        return _Asking()


class _Asking:
    def __init__(self) -> None:
        self._outputs = 0

    async def sample(self, appended: Appended) -> Steps:
        self._outputs += sum(isinstance(item, OUTPUTS) for item in appended.items)
        yield (Prefilled(appended.context_tokens - len(appended.tokens), len(appended.tokens)),)
        yield (Thought(words("thought", self._outputs, count=9)), Text(words("text", self._outputs, count=9)))
        yield (*(_call(self._outputs) if self._outputs < CALLS else ()), End())

    async def aclose(self) -> None:
        """Nothing is held."""


def _call(number: int) -> Sequence[Part]:
    if number % 3 == 0:
        return CallStart(0, "patch"), CallInput(0, words("patch", number, count=9)), CallEnd(0)
    return CallStart(0, "f"), CallInput(0, f'{{"number":{number}}}'), CallEnd(0)


class Listening(Classify):
    """The classifier, keeping the text that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[str] = []
        self.outputs: list[str] = []

    def input_text(self, streams: Streams, piece: str) -> tuple[Streams, tuple[Match, ...]]:
        self.inputs.append(piece)
        return super().input_text(streams, piece)

    def output_text(self, streams: Streams, piece: str) -> tuple[Streams, tuple[Match, ...]]:
        self.outputs.append(piece)
        return super().output_text(streams, piece)


@attrs.frozen
class Played:
    """What a form did."""

    made: list[dict[str, Any]]
    """The model's items."""
    work: list[dict[str, int]]
    """Response by response."""
    heard_inputs: str
    heard_outputs: str
    prefixes: PrefixStatistics
    remembered_schemas: int
    """Schemas of tools that the engine looked at, and remembers from then on."""

    @property
    def total(self) -> dict[str, int]:
        """The work of all responses."""
        return {name: sum(work[name] for work in self.work) for name in self.work[0]}


@cache
def play(form: str) -> Played:
    """The conversation in one form."""
    talk, variant = FORMS[form]
    reports: list[Any] = []
    classify = Listening()

    async def run() -> Played:
        engine = simulated_engine(Asker(), seed=1, on_report=reports.append, http_variant=variant)
        engine.classify = classify
        async with serving(engine) as served:
            return Played(
                made=await talk(served, PROMPT, output_of),
                work=[dict(report.work) for report in reports],
                heard_inputs="".join(classify.inputs),
                heard_outputs="".join(classify.outputs),
                prefixes=served.server.prefixes.statistics(),
                remembered_schemas=engine.validate.schemas.checked,
            )

    played: Played = simulate(run, seed=1)
    return played


# --- what the conversation is, whoever carries it ------------------------------------------------------------------


@attrs.frozen
class Turn:
    """One segment: what the context is before it, and what the model says in it."""

    history: Sequence[Mapping[str, Any]]
    said: Sequence[Mapping[str, Any]]

    @property
    def whole(self) -> Sequence[Mapping[str, Any]]:
        """The context after it."""
        return [*self.history, *self.said]


@cache
def turns() -> list[Turn]:
    """The conversation in turns; a turn ends with its one call, the last one with the answer."""
    history: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": PROMPT}]
    said: list[dict[str, Any]] = []
    found = []
    for item in play("append").made:
        said.append(item)
        outputs = answers([item], output_of)
        if outputs:
            found.append(Turn(list(history), list(said)))
            history += [*said, *outputs]
            said.clear()
    return [*found, Turn(history, said)]


def tokens(items: Sequence[Mapping[str, Any]]) -> int:
    """The tokens of a context with these items, rendered from nothing."""
    create = codec.client_event({"type": "response.create", "input": [dict(item) for item in items]})
    assert isinstance(create, ResponseCreate)
    return len(Context.full(input_items(create), Preamble(None, TOOLS)))


@cache
def ends() -> list[int]:
    """The tokens of the context after each turn."""
    return [tokens(turn.whole) for turn in turns()]


def texts(items: Sequence[Mapping[str, Any]], *names: str) -> str:
    """The texts in these members, where an item has them."""
    members = [item[name] for item in items for name in names if isinstance(item.get(name), str | list)]
    return "".join(
        member if isinstance(member, str) else "".join(part["text"] for part in member) for member in members
    )


def input_text(items: Sequence[Mapping[str, Any]]) -> str:
    """What is to be classified of items that a client sends."""
    sent = [item for item in items if item["type"] == "message" or item["type"].endswith("_output")]
    return texts(sent, "content", "output")


def output_text(items: Sequence[Mapping[str, Any]]) -> str:
    """What is to be classified of items that the model writes."""
    return texts(items, "content", "arguments", "input")


def new_items() -> list[Mapping[str, Any]]:
    """All that the client said: its prompt and the outputs."""
    return [turns()[0].history[0], *(turn.history[-1] for turn in turns()[1:])]


# --- the tests -----------------------------------------------------------------------------------------------------


def test_the_conversation_is_the_same_in_all_forms() -> None:
    """Thirty calls, one a turn, and an answer; the same items but for their ids, so the sums below are comparable."""
    first, *others = [[_without_ids(item) for item in play(form).made] for form in FORMS]
    assert [first] * 4 == others
    assert CALLS + 1 == len(turns())
    assert CALLS + 1 == len(new_items())
    kinds = [item["type"] for item in turns()[-1].whole]
    assert CALLS == sum(kind.endswith("_call") for kind in kinds) == sum(k.endswith("_output") for k in kinds)


def _without_ids(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in {"id", "call_id", "agent", "phase"}}


@pytest.mark.parametrize("form", ["append", "inject"])
def test_a_suspended_response_does_everything_once(form: str) -> None:
    """One response: it renders the tokens of the final context and classifies all its text, and finds nothing done before."""
    once = len(input_text(new_items())) + sum(len(output_text(turn.said)) for turn in turns())
    assert [
        {
            "validated_items": CALLS + 1,
            "reused_items": 0,
            "read_tools": len(TOOLS),
            "reused_tools": 0,
            "rendered_tokens": ends()[-1],
            "reused_tokens": 0,
            "classified_characters": once,
        }
    ] == play(form).work


def test_the_create_form_does_everything_once() -> None:
    """Turn by turn it renders and classifies what the turn adds to the context before, and reuses all of that context."""
    added = [after - before for before, after in pairwise([0, *ends()])]
    contexts = [0, *(len(turn.whole) for turn in turns()[:-1])]
    expected = [
        {
            "validated_items": 1,
            "reused_items": items,
            "read_tools": 0 if before else len(TOOLS),
            "reused_tools": len(TOOLS) if before else 0,
            "rendered_tokens": new,
            "reused_tokens": before,
            "classified_characters": len(input_text([sent])) + len(output_text(turn.said)),
        }
        for turn, sent, new, before, items in zip(
            turns(), new_items(), added, [0, *ends()[:-1]], contexts, strict=True
        )
    ]
    assert expected == play("create").work
    assert ends()[-1] == play("create").total["rendered_tokens"]


def test_naive_http_does_everything_again_with_each_request() -> None:
    """Each request validates, renders and classifies all that it holds: in sum the contexts of all turns."""
    expected = [
        {
            "validated_items": len(turn.history),
            "reused_items": 0,
            "read_tools": len(TOOLS),
            "reused_tools": 0,
            "rendered_tokens": end,
            "reused_tokens": 0,
            "classified_characters": len(input_text(turn.history)) + len(output_text(turn.said)),
        }
        for turn, end in zip(turns(), ends(), strict=True)
    ]
    assert expected == play("naive HTTP").work
    assert sum(ends()) == play("naive HTTP").total["rendered_tokens"]
    assert PrefixStatistics(0, 0, 0, 0, 0, 0, 0) == play("naive HTTP").prefixes


def test_optimised_http_does_as_the_create_form_for_the_price_of_digests() -> None:
    """Its stages do what those of the create form do; beside them it digests each item again with each request,
    and classifies what the model said a second time, as the input that it is in the next request.
    """
    assert play("create").work == play("optimised HTTP").work
    assert (
        PrefixStatistics(
            prefixes=2 * (CALLS + 1),
            hits=CALLS,
            misses=1,
            reused_tokens=sum(ends()[:-1]),
            reused_items=sum(len(turn.whole) for turn in turns()[:-1]),
            digested_items=sum(len(turn.whole) for turn in turns()),
            classified_characters=sum(len(input_text(turn.said)) for turn in turns()),
        )
        == play("optimised HTTP").prefixes
    )


@pytest.mark.parametrize("form", ONCE)
def test_the_classifier_reads_each_text_once_and_in_order(form: str) -> None:
    """What it was given is all texts of the conversation, each once, whatever the counters say."""
    played = play(form)
    assert input_text(new_items()) == played.heard_inputs
    assert "".join(output_text(turn.said) for turn in turns()) == played.heard_outputs


def test_over_naive_http_the_classifier_reads_the_whole_history_each_time() -> None:
    """What it was given is the history of each request, one after the other."""
    played = play("naive HTTP")
    assert "".join(input_text(turn.history) for turn in turns()) == played.heard_inputs
    assert "".join(output_text(turn.said) for turn in turns()) == played.heard_outputs


def test_over_optimised_http_the_classifier_reads_a_history_once() -> None:
    """What it was given is the final history, each text once, and what the model wrote once more while that was written."""
    played = play("optimised HTTP")
    assert input_text(turns()[-1].whole) == played.heard_inputs
    assert "".join(output_text(turn.said) for turn in turns()) == played.heard_outputs


@pytest.mark.parametrize("form", FORMS)
def test_only_naive_http_remembers_no_schema(form: str) -> None:
    """The one schema among the tools is looked at once and remembered; over naive HTTP it is read anew each time."""
    schemas = sum("parameters" in tool for tool in TOOLS)
    assert (0 if form == "naive HTTP" else schemas) == play(form).remembered_schemas


def test_a_forgetful_engine_looks_at_the_same_schema_again() -> None:
    """It checks each time, with the answer of the engine that remembers, and leaves that one's memory alone."""
    engine = simulated_engine(Asker(), seed=1)
    forgetful = engine.forgetful()
    first, second = forgetful.validate.tools(TOOLS), forgetful.validate.tools(TOOLS)
    assert (0, 2) == (engine.validate.schemas.checked, forgetful.validate.schemas.checked)
    assert engine.validate.tools(TOOLS) == first == second
    assert engine.resolve.model("m") == forgetful.resolve.model("m") == forgetful.resolve.model("m")
