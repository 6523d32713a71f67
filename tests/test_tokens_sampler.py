"""A sampler over tokens: only what is new is rendered, the tokens are the truth, and failures are the response's alone."""

import threading
from array import array
from contextlib import aclosing
from functools import partial

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.base import BackendError
from engine.backends.scripted import Fault, ScriptedBackend, ScriptedPace, pseudo_model
from engine.formats.chatml import ChatML
from engine.hosted import HostedTool
from engine.samplers.base import Appended, CallEnd, ContextFullError, End, Prefilled, Prompt, Text
from engine.samplers.tokens import LONG_TOKENS, TokenOptions, TokenSampler
from engine.samplers.turns import TurnMemory
from engine.testing import check_sampler, serving, simulate, simulated_engine
from protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    McpCall,
    Message,
    OutputText,
    ToolSearchOutput,
)
from tests.chatml import QWEN, chatml, joined, text_of_tokens, tokens_of

READ = {
    "type": "function",
    "name": "read",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'
PROMPT = Prompt("resp_1", "m", (READ,), instructions="Be brief.")
USER = Message("user", "go")
ROLLOUT = (f"I look.\n{CALL}<|im_end|>", f"{CALL}\n{CALL}<|im_end|>", "All is 😀.<|im_end|>")


def script(*segments):
    return [tokens_of(segment) for segment in segments]


def backend(*segments, **options):
    return ScriptedBackend(script(*segments), **options)


def sampler_over(backend_, *, options=None, **format_options):
    return TokenSampler(chatml(**format_options), backend_, options)


async def sampled(sampling, *items):
    """The parts of a segment."""
    steps = sampling.sample(Appended(items, array("I")))
    return [part async for step in steps for part in step]


def prefilled(parts):
    return next((part.reused, part.computed) for part in parts if isinstance(part, Prefilled))


def called(*ids):
    return tuple(FunctionCall(id_, "read", '{"path": "a.py"}', id=f"fc_{id_}") for id_ in ids)


def answers(*ids):
    return tuple(FunctionCallOutput(id_, f"of {id_}") for id_ in ids)


def said(text, id_="msg_1"):
    return Message("assistant", (OutputText(text),), id_)


# --- the sequence ----------------------------------------------------------------------------------------------------


async def test_only_what_is_new_is_rendered():
    """The second prompt is the first one, what was sampled, and the outputs; nothing was tokenized twice."""
    played = backend(*ROLLOUT)
    sampling = sampler_over(played).open(PROMPT)
    first = await sampled(sampling, USER)
    second = await sampled(sampling, said("I look."), *called("c1"), *answers("c1"))
    third = await sampled(sampling, *called("c2", "c3"), *answers("c2", "c3"), Message("user", "and?"))
    await sampling.aclose()
    opening = "<|im_start|>assistant\n"
    new = [
        "\n<|im_start|>user\n<tool_response>\nof c1\n</tool_response><|im_end|>\n" + opening,
        "\n<|im_start|>user\n<tool_response>\nof c2\n</tool_response>\n<tool_response>\nof c3\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nand?<|im_end|>\n" + opening,
    ]
    one, two, three = played.prompts
    assert one + tokens_of(ROLLOUT[0]) == two[: len(two) - len(tokens_of(new[0]))]
    assert new[0] == text_of_tokens(two[len(one) + len(tokens_of(ROLLOUT[0])) :])
    assert new[1] == text_of_tokens(three[len(two) + len(tokens_of(ROLLOUT[1])) :])
    call = ("call", 0, None, "read", '{"path": "a.py"}')
    assert [("text", "I look."), call, ("end", "tool_calls")] == joined(first)
    assert [call, (call[0], 1, *call[2:]), ("end", "tool_calls")] == joined(second)
    assert [("text", "All is 😀."), ("end", "stop")] == joined(third)
    warm = len(one) + len(tokens_of(ROLLOUT[0]))
    assert [(0, len(one)), (warm, len(two) - warm)] == [prefilled(first), prefilled(second)]


async def test_a_context_that_was_read_ahead_is_warm_for_the_first_words():
    """Nothing is said and nothing of it stays in the sequence; the next prompt is the same as without, and finds it read."""
    seen = []
    for ahead in (False, True):
        played = backend(*(["!"] if ahead else []), *ROLLOUT)
        sampling = sampler_over(played).open(PROMPT)
        if ahead:
            steps = sampling.sample(Appended((USER,), array("I"), only_read=True))
            read = [part async for step in steps for part in step]
            assert [Prefilled(0, len(played.prompts[0]), exact=True), End()] == read
        seen.append((prefilled(await sampled(sampling, *(() if ahead else (USER,)))), played.prompts))
        await sampling.aclose()
    (cold, (prompt,)), (warm, (before, again)) = seen
    opening = tokens_of("<|im_start|>assistant\n")
    assert prompt == again == before + opening
    assert [(0, len(prompt)), (len(before), len(opening))] == [cold, warm]


class Patient(ChatML):
    """Renders nothing before another task has run."""

    def __init__(self):
        super().__init__(QWEN)
        self.others_ran = threading.Event()

    def items(self, items, before):
        assert self.others_ran.wait(timeout=60), "the loop is blocked"
        return super().items(items, before)


async def test_a_long_text_is_tokenized_beside_the_loop():
    """While it is, others run; the prompt is the one that a short way would have made."""
    long = Message("user", "word " * LONG_TOKENS)
    patient, direct = Patient(), ChatML(QWEN)
    prompts = []
    for form, announced in ((patient, LONG_TOKENS + 1), (direct, 0)):
        played = backend(*ROLLOUT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, patient.others_ran.set)
            tokens = array("I", [0]) * announced
            steps = TokenSampler(form, played).open(PROMPT).sample(Appended((long,), tokens, announced))
            assert [part async for step in steps for part in step]
        prompts.append(played.prompts)
    assert prompts[0] == prompts[1]


async def test_the_state_of_the_model_may_be_lost_saved_and_brought_back():
    """After a drop all is computed again, after a restore all but the last token is there; the prompts are the same."""
    seen = []
    for loss in ("none", "drop", "save"):
        played = backend(*ROLLOUT)
        sampling = sampler_over(played).open(PROMPT)
        await sampled(sampling, USER)
        resident = sampling.resident_tokens
        if loss == "drop":
            await sampling.drop()
        elif loss == "save":
            await sampling.save()
            assert (True, 0, True, resident) == (
                sampling.saves,
                sampling.resident_tokens,
                await sampling.restore(),
                sampling.resident_tokens,
            )
        parts = await sampled(sampling, said("I look."), *called("c1"), *answers("c1"))
        seen.append((prefilled(parts)[0], joined(parts), played.prompts[1]))
    warm, cold, restored = seen
    assert (warm[1:], warm) == (cold[1:], restored)
    assert (0, True) == (cold[0], warm[0] > 0)


async def test_a_segment_that_is_closed_after_a_call_keeps_what_was_said():
    """The second of two calls was sampled, but not said; it is no part of the sequence, and the turn is closed."""
    played = backend(f"{CALL}\n{CALL}<|im_end|>", "Yes.<|im_end|>", piece_tokens=1000)
    sampling = sampler_over(played).open(PROMPT)
    steps = sampling.sample(Appended((USER,), array("I")))
    async for step in steps:
        if any(isinstance(part, CallEnd) for part in step):
            break
    await steps.aclose()
    await sampled(sampling, *called("c1"), *answers("c1"))
    tail = text_of_tokens(played.prompts[1][len(played.prompts[0]) :])
    assert f"{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\nof c1\n" in tail
    assert 1 == tail.count("<tool_call>")


async def test_what_the_rollout_did_not_take_is_taken_back():
    """A segment that was left after its first item has said only that."""
    played = backend(f"I look.\n{CALL}<|im_end|>", "Yes.<|im_end|>")
    sampling = sampler_over(played).open(PROMPT)
    steps = sampling.sample(Appended((USER,), array("I")))
    taken = []
    async for step in steps:
        taken += step
        if any(part.__class__.__name__ == "CallStart" for part in step):
            break
    await steps.aclose()
    await sampled(sampling, said("I look."), Message("user", "stop"))
    tail = text_of_tokens(played.prompts[1][len(played.prompts[0]) :])
    assert "I look.\n<|im_end|>\n<|im_start|>user\nstop<|im_end|>\n<|im_start|>assistant\n" == tail


async def test_a_hosted_call_is_answered_by_its_own_item():
    """Of a call that the engine ran, the model has written the call, and is given the output."""
    played = backend(ROLLOUT[0], "Yes.<|im_end|>")
    sampling = sampler_over(played).open(PROMPT)
    await sampled(sampling, USER)
    await sampled(sampling, said("I look."), McpCall("m1", "docs", "read", '{"path": "a.py"}', "text of it"))
    tail = text_of_tokens(played.prompts[1][len(played.prompts[0]) + len(tokens_of(ROLLOUT[0])) :])
    expected = (
        "\n<|im_start|>user\n<tool_response>\ntext of it\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert expected == tail


async def test_tools_that_were_found_are_known():
    """A custom tool that a search brought is read as one."""
    found = ToolSearchOutput("s1", ({"type": "custom", "name": "shell"},))
    written = '<tool_call>{"name": "shell", "arguments": {"input": "ls"}}</tool_call><|im_end|>'
    sampling = sampler_over(backend(written)).open(PROMPT)
    parts = await sampled(sampling, USER, found)
    assert [("call", 0, None, "shell", "ls"), ("end", "tool_calls")] == joined(parts)


async def test_the_window_of_the_model_is_a_limit_of_length():
    """What no longer fits is not sampled; what does not fit at all is an error of its own, and the backend hears nothing of it."""
    small = backend("one two three four five six<|im_end|>", context_tokens=60)
    parts = await sampled(sampler_over(small).open(attrs.evolve(PROMPT, tools=())), USER)
    room = small.samplings[0].max_tokens
    long = Message("user", "word " * 100)
    assert room == 60 - len(small.prompts[0])
    with pytest.raises(ContextFullError, match="fill the window of scripted"):
        await sampled(sampler_over(small).open(PROMPT), long)
    assert 1 == len(small.prompts)
    assert isinstance(parts[-1], End)


def test_the_window_of_the_model_is_that_of_the_server():
    """Without a table of models, a request beyond the window of the one there is is refused before anything is sampled."""
    engine = simulated_engine(sampler_over(backend("x", context_tokens=60)), seed=1)
    assert 60 == engine.resolve.table.find("any").context_tokens


async def test_the_client_says_how_to_sample_and_the_sampler_what_else():
    """Temperature and the like of the request go before the sampler's own."""
    played = backend("Yes.<|im_end|>", "Yes.<|im_end|>")
    options = TokenOptions(temperature=0.5, top_p=0.9, seed=7, max_tokens=10)
    await sampled(sampler_over(played, options=options).open(attrs.evolve(PROMPT, temperature=0.0)), USER)
    await sampled(sampler_over(played, options=options).open(attrs.evolve(PROMPT, top_p=0.1)), USER)
    seen = [(one.temperature, one.top_p, one.seed, one.max_tokens) for one in played.samplings]
    assert [(0.0, 0.9, 7, 10), (0.5, 0.1, 7, 10)] == seen


# --- forced calls ------------------------------------------------------------------------------------------------------


async def test_forced_calls_are_written_whole():
    """Lead, call under the schema, and tail make a turn as the model would write it; after so many, text is free."""
    written = '{"name": "read", "arguments": {"path": "a.py"}}<|im_end|>'
    played = backend(written, '"Done."<|im_end|>', keeps_schemas=True)
    sampler = sampler_over(played, forced_calls=1)
    sampling = sampler.open(PROMPT)
    first = await sampled(sampling, USER)
    second = await sampled(sampling, *called("c1"), *answers("c1"))
    assert [("call", 0, None, "read", '{"path": "a.py"}'), ("end", "tool_calls")] == joined(first)
    assert [("text", "Done."), ("end", "stop")] == joined(second)
    assert ["anyOf" in played.samplings[0].schema, "string"] == [False, played.samplings[1].schema["type"]]
    assert text_of_tokens(played.prompts[0]).endswith("<|im_start|>assistant\n<tool_call>\n")
    assert f"<|im_start|>assistant\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>" in text_of_tokens(
        played.prompts[1]
    )
    assert sampler.keeps_text_format


async def test_calls_are_forced_anew_after_each_word_of_the_user():
    """What counts is what was called since the user spoke."""
    written = '{"name": "read", "arguments": {"path": "a.py"}}<|im_end|>'
    played = backend(written, '"Done."<|im_end|>', written, keeps_schemas=True)
    sampling = sampler_over(played, forced_calls=1).open(PROMPT)
    await sampled(sampling, USER)
    await sampled(sampling, *called("c1"), *answers("c1"))
    last = await sampled(sampling, said("Done."), Message("user", "again"))
    assert ("call", 0, None, "read", '{"path": "a.py"}') == joined(last)[0]


async def test_a_backend_without_schemas_is_asked_for_none():
    """Then nothing is forced, and no form of answer is promised."""
    played = backend("Done.<|im_end|>")
    sampler = sampler_over(played, forced_calls=1)
    parts = await sampled(sampler.open(PROMPT), USER)
    assert ([("text", "Done."), ("end", "stop")], None) == (joined(parts), played.samplings[0].schema)
    assert not sampler.keeps_text_format


# --- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dies", "died"),
        ("times out", "timeout"),
        ("refuses", "refused"),
        ("lies", "broke_promise"),
        ("stops silently", "broke_promise"),
        ("chatters", "broke_promise"),
    ],
)
async def test_a_backend_that_fails_is_a_typed_error(kind, reason):
    """Whatever it does, the error says which kind it was."""
    sampler = sampler_over(backend(ROLLOUT[0], faults=[Fault(kind, 1, 3)]))
    sampling = sampler.open(PROMPT)
    with pytest.raises(BackendError) as failed:
        await sampled(sampling, USER)
    await sampling.aclose()
    assert (reason, 1, 0) == (
        failed.value.reason,
        sampler.statistics().failures,
        sampler.statistics().open_samplings,
    )


@pytest.mark.parametrize("kind", ["dies", "times out", "refuses"])
@pytest.mark.parametrize("after_tokens", [0, 3, 9])
async def test_a_failed_segment_goes_on_from_its_tokens(kind, after_tokens):
    """With a retry the same is said as without the failure, each token once, and counted once."""
    whole = await sampled(sampler_over(backend(ROLLOUT[0])).open(PROMPT), USER)
    played = backend(ROLLOUT[0], faults=[Fault(kind, 1, after_tokens)])
    sampler = sampler_over(played, options=TokenOptions(retries=1))
    parts = await sampled(sampler.open(PROMPT), USER)
    assert whole == parts
    assert (1, 1) == (sampler.statistics().retries, sampler.statistics().failures)
    kept = 0 if kind == "refuses" else after_tokens
    assert played.prompts[0] + tokens_of(ROLLOUT[0])[:kept] == played.prompts[1]


class LateCounts(ScriptedBackend):
    """Says at the end of a generation what it reused, or, if it `says` nothing, never."""

    says = True

    async def generate(self, handle, tokens, sampling):
        async with aclosing(super().generate(handle, tokens, sampling)) as pieces:
            counts = await anext(pieces)
            async for piece in pieces:
                says = self.says and piece.finish is not None
                yield attrs.evolve(counts, tokens=piece.tokens, finish=piece.finish) if says else piece


@pytest.mark.parametrize(("says", "faults"), [(True, ()), (True, (Fault("times out", 1, 3),)), (False, ())])
async def test_counts_that_come_late_or_never_are_of_the_prompt(says, faults):
    """What was sampled before a failure is no input; a backend that does not say is taken to have read everything."""
    played = LateCounts(script(ROLLOUT[0]), faults=faults)
    played.says = says
    parts = await sampled(sampler_over(played, options=TokenOptions(retries=1)).open(PROMPT), USER)
    (told,) = [part for part in parts if isinstance(part, Prefilled)]
    assert (len(played.prompts[0]), True) == (told.reused + told.computed, told.exact)
    assert (told.reused > 0) == bool(faults)
    assert [
        ("text", "I look."),
        ("call", 0, None, "read", '{"path": "a.py"}'),
        ("end", "tool_calls"),
    ] == joined(parts)


async def test_a_forced_call_is_retried_from_its_beginning():
    """A schema holds from the first token on, so the call is sampled again and must be the same."""
    written = '{"name": "read", "arguments": {"path": "a.py"}}<|im_end|>'
    again = ScriptedBackend(lambda _: tokens_of(written), keeps_schemas=True, faults=[Fault("dies", 1, 5)])
    sampler = sampler_over(again, options=TokenOptions(retries=1), forced_calls=1)
    parts = await sampled(sampler.open(PROMPT), USER)
    assert [("call", 0, None, "read", '{"path": "a.py"}'), ("end", "tool_calls")] == joined(parts)
    assert again.prompts[0] == again.prompts[1]


@pytest.mark.parametrize("other", ['{"name": "fly"}<|im_end|>', '{"name<|im_end|>'])
async def test_a_forced_call_that_comes_out_otherwise_fails(other):
    """What was said cannot be taken back."""
    tries = iter(['{"name": "read", "arguments": {"path": "a.py"}}<|im_end|>', other])
    again = ScriptedBackend(
        lambda _: tokens_of(next(tries)), keeps_schemas=True, faults=[Fault("dies", 1, 5)]
    )
    sampling = sampler_over(again, options=TokenOptions(retries=1), forced_calls=1).open(PROMPT)
    with pytest.raises(BackendError, match="after its failure") as failed:
        await sampled(sampling, USER)
    assert "broke_promise" == failed.value.reason


async def test_a_malformed_call_is_an_error_of_a_strict_format():
    """It ends the segment as a failure, and the sampling can be closed."""
    sampling = sampler_over(backend("<tool_call>\nread!\n</tool_call><|im_end|>"), strict=True).open(PROMPT)
    with pytest.raises(ValueError, match="malformed tool call"):
        await sampled(sampling, USER)
    await sampling.aclose()


# --- histories that come back ------------------------------------------------------------------------------------------

ODD_CALL = '<tool_call>\n{"name":"read",   "arguments":{"path":"a.py"}}\n</tool_call>'
HISTORY = (USER, said("I look."), *called("c1"), *answers("c1"))


async def remembered(sampler, spelled, *items):
    """A rollout over HTTP: it is sampled, and its items are known by their ids."""
    sampling = sampler.open(PROMPT)
    await sampled(sampling, USER)
    sampling.finished(items)
    await sampling.aclose()


def odd_rollout():
    return ScriptedBackend(
        lambda prompt: tokens_of(f"I look.\n{ODD_CALL}<|im_end|>" if len(prompt) < 200 else "Yes.<|im_end|>")
    )


async def test_a_history_that_is_ours_is_put_back_as_it_was_sampled():
    """The tokens are those of the first request and what was sampled, though a rendering differs; that is counted."""
    call = FunctionCall("c1", "read", '{"path":"a.py"}', id="fc_1")
    played = odd_rollout()
    sampler = sampler_over(played)
    await remembered(sampler, None, said("I look."), call)
    parts = await sampled(sampler.open(PROMPT), USER, said("I look."), call, *answers("c1"))
    one, two = played.prompts
    ids = one + tokens_of(f"I look.\n{ODD_CALL}<|im_end|>")
    assert ids == two[: len(ids)]
    assert 1 == parts[0].drifted_turns
    statistics = sampler.statistics()
    assert (1, 1, 1) == (statistics.remembered_turns, statistics.restored_turns, statistics.drifted_turns)


async def test_a_turn_that_would_be_rendered_the_same_is_no_drift():
    """It is put back all the same, and nothing is counted."""
    played = backend(ROLLOUT[0])
    sampler = sampler_over(played)
    await remembered(sampler, None, said("I look."), *called("c1"))
    played._script = [tokens_of("Yes.<|im_end|>")]
    parts = await sampled(sampler.open(PROMPT), *HISTORY)
    assert (0, 1) == (parts[0].drifted_turns, sampler.statistics().restored_turns)
    assert (
        chatml().preamble(sampler.open(PROMPT)._request)
        + chatml().items(HISTORY, ())
        + chatml().opening(None)
        == (played.prompts[1])
    )


@pytest.mark.parametrize(
    "history",
    [
        (USER, said("I looked."), *called("c1"), *answers("c1")),
        (USER, *called("c1"), *answers("c1")),
        (USER, said("I look."), attrs.evolve(called("c1")[0], arguments="{}"), *answers("c1")),
        (USER, said("I look."), *called("c2"), *answers("c2")),
        (USER, said("I look.", None)),
        (USER, said("I look.")),
    ],
    ids=["another text", "a part of it", "other arguments", "another id", "no id", "less than the turn"],
)
async def test_a_history_that_was_changed_is_rendered(history):
    """An item is ours only if nothing of its turn is missing or different."""
    played = odd_rollout()
    sampler = sampler_over(played)
    await remembered(sampler, None, said("I look."), *called("c1"))
    await sampled(sampler.open(PROMPT), *history)
    expected = (
        chatml().preamble(sampler.open(PROMPT)._request)
        + chatml().items(history, ())
        + chatml().opening(None)
    )
    assert (expected, 0) == (played.prompts[1], sampler.statistics().restored_turns)


async def test_a_turn_of_which_a_part_is_no_item_of_ours_is_not_remembered():
    """A hosted call beside a client's one has its output in its item, so the turn could not be told from its items."""
    sampler = sampler_over(backend(ROLLOUT[1]))
    sampling = sampler.open(PROMPT)
    await sampled(sampling, USER)
    sampling.finished(called("c1"))
    sampling.finished([McpCall("m1", "docs", "read", "{}", "text of it")])
    sampling.finished([])
    assert 0 == sampler.statistics().remembered_turns


async def test_a_call_is_known_without_the_id_of_its_item():
    """Many clients leave item ids out; a call's own id is enough for its whole turn."""
    played = odd_rollout()
    sampler = sampler_over(played)
    await remembered(sampler, None, said("I look."), *called("c1"))
    bare = (USER, said("I look.", None), attrs.evolve(called("c1")[0], id=None), *answers("c1"))
    await sampled(sampler.open(PROMPT), *bare)
    assert 1 == sampler.statistics().restored_turns


def test_turns_are_forgotten_in_the_order_of_their_use():
    """The bound is in tokens; what was found last stays longest; a turn above the bound is not kept at all."""
    memory = TurnMemory(max_tokens=3 * 70)
    items = [(said("x", f"msg_{number}"),) for number in range(4)]
    for one in items[:3]:
        memory.remember(one, array("I", range(6)))
    assert memory.find(items[0], 0) is not None
    memory.remember(items[3], array("I", range(6)))
    assert [True, False, True, True] == [memory.find(one, 0) is not None for one in items]
    memory.remember((said("x", "msg_9"),), array("I", range(1000)))
    memory.remember((said("x", None),), array("I", range(6)))
    memory.remember(items[3], array("I", range(5)))
    assert (3, 5) == (len(memory), len(memory.find(items[3], 0).ids))


# --- the rules ---------------------------------------------------------------------------------------------------------

pieces = pytest.mark.parametrize("piece_tokens", [1, 4, 1000])


@pieces
def test_it_keeps_the_rules_of_samplers(piece_tokens):
    """Closed and cancelled at each step, in pieces of any size."""
    check_sampler(
        lambda: sampler_over(backend(*ROLLOUT, piece_tokens=piece_tokens)), prompt=PROMPT, items=(USER,)
    )


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), rounds=st.integers(1, 4))
def test_suspended_and_uninterrupted_rollouts_say_the_same(seed, rounds):
    """Under greedy sampling, a warm sequence goes on as a cold one: the model is a function of all tokens before."""
    model = pseudo_model(5000, QWEN.specials["<|im_end|>"])
    warm, cold = ScriptedBackend(model), ScriptedBackend(model)
    format_ = chatml()

    async def run():
        sampler = TokenSampler(format_, warm)
        sampling = sampler.open(PROMPT)
        items = [Message("user", f"go {seed}")]
        for number in range(rounds):
            parts = await sampled(sampling, *items)
            text = "".join(part.text for part in parts if isinstance(part, Text))
            again = TokenSampler(format_, cold).open(PROMPT)
            again.tokens, again._places = sampling.tokens[:], [(0, 0)]
            again_parts = await sampled_after(again)
            assert joined(again_parts) == joined(parts)
            items = [*([said(text)] if text else []), Message("user", f"and {number}?")]

    async def sampled_after(sampling):
        opening = format_.opening(None)
        del sampling.tokens[-len(opening) :]
        return await sampled(sampling)

    simulate(run, seed=0)
    assert warm.prompts == cold.prompts


# --- in the engine -----------------------------------------------------------------------------------------------------


async def rollout_over(
    played, *, form="append", options=None, reports=None, hosted=(), tools=(READ,), **format_options
):
    """One rollout of the engine's own client; its resource."""
    sampler = sampler_over(played, options=options, **format_options)
    engine = simulated_engine(
        sampler, seed=1, on_report=(reports if reports is not None else []).append, hosted_tools=hosted
    )

    async def read(path):
        return f"of {path}"

    async with (
        serving(engine) as served,
        served.connect_client(form) as client,
        client.rollout(
            model="m", input="go", tools=tools, functions={"read": read}, instructions="Be brief."
        ) as rollout,
    ):
        ended = await rollout.wait_ended()
    assert 0 == played.running == sampler.statistics().open_samplings
    return ended


def by_turns(*segments):
    """A script for forms in which each request may begin on a new handle: by the number of outputs in the prompt."""
    mark = QWEN.specials["<tool_response>"]
    return ScriptedBackend(lambda prompt: tokens_of(segments[prompt.count(mark)]))


TURNS = (f"I look.\n{CALL}<|im_end|>", f"{ODD_CALL}<|im_end|>", f"{CALL}<|im_end|>", "All is 😀.<|im_end|>")


def test_usage_is_what_the_backend_reports():
    """Input is what it reused and computed, cached what it reused; output is every sampled token, stop tokens included."""
    played, reports = by_turns(*TURNS), []
    simulate(partial(rollout_over, played, reports=reports), seed=1)
    usage = reports[0].usage
    sampled_tokens = sum(len(tokens_of(turn)) for turn in TURNS)
    computed = len(played.prompts[-1]) - sum(len(tokens_of(turn)) for turn in TURNS[:-1])
    assert (sampled_tokens, computed, 4) == (usage.output_tokens, usage.uncached_input_tokens, usage.segments)
    assert sum(map(len, played.prompts)) - computed == usage.cached_input_tokens


def test_the_model_is_given_the_same_tokens_in_every_form():
    """Append and create by their warm state, HTTP because what is ours is put back; there the drift is counted."""
    prompts, drifts = {}, {}
    for form in ("append", "inject", "create", "http"):
        played, reports = by_turns(*TURNS), []
        ended = simulate(partial(rollout_over, played, form=form, reports=reports), seed=1)
        assert "completed" == ended.status
        prompts[form] = played.prompts
        drifts[form] = sum(report.hooks.get("drift", 0) for report in reports)
    assert {"append": 0, "inject": 0, "create": 0, "http": 2} == drifts
    for given_to_model in prompts.values():
        assert prompts["append"] == given_to_model


def test_a_state_that_was_lost_meanwhile_is_computed_again_and_said():
    """While the tool ran the backend forgot everything: usage says so, and so does a hook; the rollout completes."""

    async def scenario(form):
        played, reports = by_turns(TURNS[0], "Yes.<|im_end|>"), []
        engine = simulated_engine(sampler_over(played), seed=1, on_report=reports.append)

        async def read(path):
            del played.handles[0].held[:]
            return path

        async with (
            serving(engine) as served,
            served.connect_client(form) as client,
            client.rollout(model="m", input="go", tools=(READ,), functions={"read": read}) as rollout,
        ):
            status = (await rollout.wait_ended()).status
        cached = sum(report.usage.cached_input_tokens for report in reports)
        return status, cached, sum(report.hooks.get("cache_reset", 0) for report in reports)

    for form in ("append", "create"):
        assert ("completed", 0, 1) == simulate(partial(scenario, form), seed=1)


def test_a_backend_that_dies_ends_its_response_only():
    """One of two rollouts fails, in words of its own and counted by its reason; the other one completes on the same server."""
    hooks = []

    async def scenario():
        played = backend("Yes.<|im_end|>", faults=[Fault("dies", 1, 1)])
        engine = simulated_engine(
            sampler_over(played), seed=1, on_report=lambda report: hooks.append(report.hooks)
        )
        async with serving(engine) as served, served.connect_client() as client:
            seen = []
            for _ in range(2):
                async with client.rollout(model="m", input="go") as rollout:
                    ended = await rollout.wait_ended()
                seen.append((ended.status, ended.error and (ended.error.code, ended.error.message)))
        return seen

    (failed, (code, words)), completed = simulate(scenario, seed=1)
    assert ("failed", "server_error", ("completed", None)) == (failed, code, completed)
    assert words.endswith("stopped answering; send the request again.")
    assert [1, 0] == [each.get("model_died", 0) for each in hooks]


def test_a_retry_is_not_seen_by_the_client():
    """Killed in the middle of a segment, the rollout goes on from its tokens."""
    whole = simulate(partial(rollout_over, backend(*ROLLOUT)), seed=1)
    dying = backend(*ROLLOUT, faults=[Fault("dies", 2, 4)])
    again = simulate(partial(rollout_over, dying, options=TokenOptions(retries=1)), seed=1)
    assert whole == again


def test_a_hosted_tool_is_shown_and_run():
    """Its schema is in the prompt, under its label, and its output in the next one."""

    async def find(path):
        return f"found {path}"

    tool = HostedTool("docs", "find", find, READ["parameters"], "Finds things.")
    offered = ({"type": "mcp", "server_label": "docs"},)
    call = CALL.replace('"read"', '"docs.find"')
    played = backend(f"{call}<|im_end|>", "Yes.<|im_end|>")
    ended = simulate(partial(rollout_over, played, hosted=[tool], tools=offered), seed=1)
    assert ["mcp_call", "message"] == [item.type for item in ended.output]
    assert '"name": "docs.find", "description": "Finds things."' in text_of_tokens(played.prompts[0])
    assert "<tool_response>\nfound a.py\n</tool_response>" in text_of_tokens(played.prompts[1])


def test_one_call_at_a_time_leaves_the_others_out():
    """With `parallel_tool_calls` false the second call is neither an item nor in the sequence."""

    async def scenario():
        played = backend(f"{CALL}\n{CALL}<|im_end|>", "Yes.<|im_end|>", piece_tokens=1000)
        engine = simulated_engine(sampler_over(played), seed=1)
        async with serving(engine) as served, served.connect_client() as client:

            async def read(path):
                return path

            async with client.rollout(
                model="m", input="go", tools=(READ,), functions={"read": read}, parallel_tool_calls=False
            ) as rollout:
                ended = await rollout.wait_ended()
        return ended, played.prompts[1]

    ended, prompt = simulate(scenario, seed=1)
    assert ["function_call", "message"] == [item.type for item in ended.output]
    assert 1 == text_of_tokens(prompt).count('{"name": "read", "arguments": {"path"')


def test_a_cancelled_rollout_samples_no_more_tokens():
    """Within 200 ms of the cancellation the backend has stopped; of hundreds of tokens only a few were sampled."""

    async def scenario():
        played = ScriptedBackend([[100] * 500], pace=ScriptedPace(token_seconds=0.05))
        engine = simulated_engine(sampler_over(played), seed=1)
        async with (
            serving(engine) as served,
            served.connect_client() as client,
            client.rollout(model="m", input="go") as rollout,
        ):
            created = await anext(aiter(rollout))
            await trio.sleep(1.0)
            before = played.generated_tokens
            assert served.server.cancel(created.response.id)
            await trio.sleep(0.2)
            after, running = played.generated_tokens, played.running
            await rollout.wait_ended()
        return before, after, running

    before, after, running = simulate(scenario, seed=1)
    assert (True, 0) == (0 < before <= after <= before + 1, running)


# --- what ended rollouts leave ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "dropped", "is_found"),
    [("a", "a", False, True), ("a", "b", False, False), (None, None, False, False), ("a", "a", True, False)],
    ids=["its own", "another's", "nobody's", "what a policy dropped"],
)
async def test_a_history_that_comes_back_finds_what_its_rollout_left(first, second, dropped, is_found):
    """A later sampling of the same cache key reads only what is new after the turn that was sampled; the ids are the same."""
    played = backend(ROLLOUT[2])
    sampler = sampler_over(played)
    one = sampler.open(attrs.evolve(PROMPT, cache_key=first))
    await sampled(one, USER)
    answer = said("All is 😀.")
    one.finished((answer,))
    if dropped:
        await one.drop()
    for _ in range(2):
        await one.aclose()
    assert 0 == one.resident_tokens
    two = sampler.open(attrs.evolve(PROMPT, cache_key=second))
    parts = await sampled(two, USER, answer, Message("user", "and now?"))
    prompt, history = len(played.prompts[1]), len(played.prompts[0]) + len(tokens_of(ROLLOUT[2]))
    assert played.prompts[1][:history] == played.prompts[0] + array("I", tokens_of(ROLLOUT[2]))
    assert (history if is_found else 0, prompt - history if is_found else prompt) == prefilled(parts)
