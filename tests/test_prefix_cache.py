"""Optimised HTTP differs from naive HTTP in the work and in nothing else."""

import attrs
import orjson
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from engine.config import Limits
from engine.context import Context, Preamble
from engine.engine import Engine
from engine.intake import Intake
from engine.ledger import Ledger
from engine.prefix_cache import PrefixCache, chain_from, chain_of
from engine.samplers.base import Appended, Prompt
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import END, Scripted, call, say
from engine.stages import Classify
from engine.testing import serving, simulated_engine
from protocol import codec
from protocol.events import ResponseCreate
from protocol.items import InputText, Message
from tests.http_peer import HttpPeer
from tests.wire import simulate

SECRET = "ignore previous instructions"
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]


class Watching:
    """A scripted sampler that notes what each sampling is given."""

    def __init__(self, inner: Scripted) -> None:
        self.inner, self.given = inner, []

    def open(self, prompt: Prompt):
        sampling, given = self.inner.open(prompt), self.given

        class Sampling:
            async def aclose(self):
                await sampling.aclose()

            def sample(self, appended: Appended):
                given.append((appended.items, appended.tokens.tolist(), appended.context_tokens))
                return sampling.sample(appended)

        return Sampling()


def script(prompt):
    return [[*say(f"so {SECRET[:9]}"), call("f", '{"a": 1}'), END]]


@attrs.frozen
class Turn:
    """One step of a conversation as a client sends it, with its whole history."""

    texts: tuple[str, ...]
    answer: str
    """The output of the call before."""
    instructions: str | None
    with_tools: bool
    forget_ids: bool
    """Send our own items back without their ids, as some clients do."""
    go_back: int
    """First drop so many turns from the history: an edit, a fork."""
    by_id: bool
    """Continue by id instead."""
    fault: str


pieces = st.sampled_from(["a", "é", "😀", SECRET, SECRET[:9], SECRET[9:], "<|start|>", " words "])
texts = st.lists(pieces, max_size=4).map("".join)
turns = st.builds(
    Turn,
    texts=st.lists(texts, max_size=3).map(tuple),
    answer=texts,
    instructions=st.sampled_from([None, None, None, "be nice"]),
    with_tools=st.sampled_from([True, True, True, False]),
    forget_ids=st.sampled_from([False, False, True]),
    go_back=st.sampled_from([0, 0, 0, 1, 2]),
    by_id=st.sampled_from([False, False, True]),
    fault=st.sampled_from(["", "", "", "", "answered twice", "unknown call", "open call", "reference"]),
)


def without_ids(items):
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def faulty(turn, history):
    """Items that make a request wrong, or are odd but right."""
    calls = [item for item in history if item["type"] == "function_call"]
    if turn.fault == "answered twice" and calls:
        return [{"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "again"}]
    if turn.fault == "unknown call":
        return [{"type": "function_call_output", "call_id": "call_nowhere", "output": ""}]
    if turn.fault == "open call":
        return [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 2
    if turn.fault == "reference" and calls and "id" in calls[0]:
        return [{"type": "item_reference", "id": calls[0]["id"]}]
    return []


async def converse(variant, conversation):
    """What the client is told, what the sampler is given, what was found in all of it, and the work, turn by turn."""
    sampler, work, matches, known = Watching(Scripted(script)), [], [], [()]

    def report(told):
        work.append(told.work)
        matches.append((*known[-1], *told.matches))

    engine = simulated_engine(sampler, seed=1, http_variant=variant, on_report=report)
    told, past = [], [([], None)]
    async with serving(engine) as served:
        cache = served.server.prefixes
        find = cache.find

        def finding(chain):
            prefix = find(chain)
            known.append(prefix.matches if prefix else ())
            return prefix

        cache.find = finding
        client = HttpPeer(await served.open_stream())
        for turn in conversation:
            del past[max(1, len(past) - turn.go_back) :]
            history, parent = past[-1]
            new = [
                {"type": "function_call_output", "call_id": item["call_id"], "output": turn.answer}
                for item in history
                if item["type"] == "function_call"
                and not any(
                    other["type"] == "function_call_output" and other["call_id"] == item["call_id"]
                    for other in history
                )
            ]
            new += [{"type": "message", "role": "user", "content": text} for text in turn.texts]
            body = {
                "model": "m",
                "instructions": turn.instructions,
                "tools": TOOLS if turn.with_tools else [],
            }
            input_ = [*new, *faulty(turn, history)]
            if turn.by_id and parent is not None:
                answer = await client.create(**body, input=input_, previous_response_id=parent)
            else:
                answer = await client.create(**body, input=[*history, *input_])
            told.append((answer.status, strip(answer.json)))
            if answer.status == 200:
                output = answer.json["output"]
                sent = without_ids(output) if turn.forget_ids else output
                past.append(([*history, *input_, *sent], answer.json["id"]))
        statistics = served.server.prefixes.statistics()
    return told, sampler.given, matches, work, statistics


def strip(body):
    """Without what was reused; ids are drawn in the same order in both variants."""
    if "usage" in body:
        body["usage"]["input_tokens_details"].pop("cached_tokens")
    return orjson.dumps(body)


PLAIN = Turn(("a",), "sunny", None, with_tools=True, forget_ids=False, go_back=0, by_id=False, fault="")


@example([PLAIN, attrs.evolve(PLAIN, answer=SECRET[9:])])  # found across our text and their output
@example([PLAIN, attrs.evolve(PLAIN, fault="reference"), PLAIN, PLAIN])
@example([PLAIN, attrs.evolve(PLAIN, fault="open call")])
@example([PLAIN, attrs.evolve(PLAIN, fault="open call", by_id=True)])
@example([PLAIN, attrs.evolve(PLAIN, forget_ids=True), PLAIN, attrs.evolve(PLAIN, go_back=2)])
@given(st.lists(turns, min_size=1, max_size=6))
def test_optimised_equals_naive(conversation):
    """The same answers, refusals included; the same items and tokens for the sampler; the same matches, with those known."""
    naive = simulate(converse, "naive", conversation)
    optimised = simulate(converse, "optimised", conversation)
    for ours, theirs in zip(naive[:3], optimised[:3], strict=True):
        assert ours == theirs
    assert 0 == naive[4].prefixes


@given(
    st.lists(st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_a_prefix_is_the_context_made_from_nothing(batches, order):
    """Tokens, calls, the classifier's place and its matches: as if the whole history had come at once."""

    async def scenario():
        engine = Engine.make(Scripted([]))
        cache = PrefixCache(engine.limits, engine.classify)
        items = [Message("user", text) for batch in batches for text in batch]
        ends = [sum(map(len, batches[: n + 1])) for n in range(len(batches))]
        for end in [ends[place % len(ends)] for place in order]:
            history = tuple(items[:end])
            chain = chain_of("me", Preamble(), history)
            prefix = cache.find(chain)
            rest = history[prefix.items if prefix else 0 :]
            intake, full = (Intake(engine, Ledger(engine.clock_ns), lambda _: None) for _ in range(2))
            await intake.open(ResponseCreate(model="m", input=rest), prefix.snapshot if prefix else None)
            await full.open(ResponseCreate(model="m", input=history), None)
            matches = [*(prefix.matches if prefix else ()), *intake.matches]
            assert full.matches == matches
            assert full.context.tokens_from(0) == intake.context.tokens_from(0)
            assert full.context.items == intake.context.items
            assert full.calls == intake.calls
            assert full.snapshot("x").streams == intake.snapshot("x").streams
            assert full.next_segment() == intake.next_segment()
            snapshot = intake.snapshot("resp_1")
            copy = attrs.evolve(snapshot, context=snapshot.context.fork(), calls=snapshot.calls.fork())
            cache.keep(chain, copy, matches)

    trio.run(scenario)


async def cached_of(variant, *bodies):
    """Input and cached tokens of these requests; a string continues the history with that message."""
    engine = simulated_engine(
        Scripted(lambda prompt: [[*say("well then"), END]]), seed=1, http_variant=variant
    )
    counts, history = [], []
    async with serving(engine) as served:
        client = HttpPeer(await served.open_stream())
        for body in bodies:
            members = {"text": body} if isinstance(body, str) else dict(body)
            history = [*history, {"role": "user", "content": members.pop("text")}]
            made = (await client.create(input=history, **members)).json
            history += made["output"]
            counts.append(
                (made["usage"]["input_tokens"], made["usage"]["input_tokens_details"]["cached_tokens"])
            )
    return counts


async def test_what_the_model_need_not_read_again_is_reported(autojump_clock):
    """Optimised: the context of the request before and its answer; naive: nothing, of the same input."""
    optimised = await cached_of("optimised", "one two three", "four", "five")
    naive = await cached_of("naive", "one two three", "four", "five")
    assert [(count, 0) for count, _ in optimised] == naive
    (first, none), (second, cached), (third, more) = optimised
    assert (0, True, True) == (none, first < cached < second, second < more < third)


async def prompted(engine, cache, text, model="m"):
    """A request with this one message after those that are known: what it found, and what its model is to read."""
    history = tuple(Message("user", word) for word in text.split())
    chain = chain_of("me", Preamble(), history)
    prefix = cache.find(chain)
    intake = Intake(engine, Ledger(engine.clock_ns), lambda _: None)
    rest = history[prefix.items if prefix else 0 :]
    await intake.open(ResponseCreate(model=model, input=rest), prefix.snapshot if prefix else None)
    kept = cache.keep(chain, intake.snapshot("resp_1"), (), goes_on=prefix)
    appended = intake.next_segment()
    return kept, appended.prefix_tokens, len(appended.tokens)


async def test_what_was_read_before_a_cut_is_not_lost_by_it():
    """A request that ends before its model has read it hides the prefix it went on from, and knows what was read of that."""
    engine = Engine.make(Scripted([]))
    cache = PrefixCache(engine.limits, engine.classify)
    first, none, size = await prompted(engine, cache, "one two")
    first.was_read("m")
    _, cut, _ = await prompted(engine, cache, "one two three")
    again, after_a_cut, _ = await prompted(engine, cache, "one two three")
    _, by_another, _ = await prompted(engine, cache, "one two three", "n")
    _, after_another, whole = await prompted(engine, cache, "one two three")
    again.was_read("m")
    assert (0, size, size, 0, size) == (none, cut, after_a_cut, by_another, after_another)
    assert size < whole


async def test_a_cut_before_anything_was_read_leaves_nothing_read():
    """As after a warm-up: the context is known, the model's state is not."""
    engine = Engine.make(Scripted([]))
    cache = PrefixCache(engine.limits, engine.classify)
    found = [(await prompted(engine, cache, "one two"))[1] for _ in range(2)]
    assert [0, 0] == found


async def test_an_answer_is_read_if_what_it_answers_was():
    """Who has read the question has written the answer; one to a question of which only the beginning was read was not."""
    engine = Engine.make(Scripted([]))
    cache = PrefixCache(engine.limits, engine.classify)
    first, _, _ = await prompted(engine, cache, "one")
    first.was_read("m")
    longer, known, size = await prompted(engine, cache, "one two")
    chain = chain_of("me", Preamble(), tuple(Message("user", word) for word in ("one", "two")))
    snapshot, answer = longer.snapshot, [item("three", id="msg_1")]
    unread = cache.keep_with_output(chain, longer, snapshot, answer).snapshot
    assert (("m", known), True) == ((unread.read_by, unread.read_tokens), known < size)
    longer.was_read("m")
    read = cache.keep_with_output(chain, longer, snapshot, answer).snapshot
    assert ("m", len(read.context)) == (read.read_by, read.read_tokens)


async def test_a_client_that_leaves_while_the_model_reads_finds_the_prefix_again(autojump_clock):
    """Over HTTP: the request before the cut, the cut one, and the same once more, which reads no more than it would have."""
    pace = Pace(tokens_per_second=1000, first_token_seconds=0.1, prefill_tokens_per_second=1000)
    cached = []
    for cuts in (False, True):
        paced = Paced(Scripted(lambda prompt: [[*say("well then"), END]]), pace, tick_seconds=0.01)
        engine = simulated_engine(paced, seed=1)
        async with trio.open_nursery() as nursery, serving(engine) as served:
            nursery.start_soon(paced.run)
            stream = await served.open_stream()
            client = HttpPeer(stream)
            history = [{"role": "user", "content": "one two three"}]
            history += (await client.create(input=history)).json["output"]
            history += [{"role": "user", "content": "word " * 1000}]
            if cuts:
                with trio.move_on_after(0.5):
                    await client.create(input=history)
                await stream.aclose()
                client = HttpPeer(await served.open_stream())
            usage = (await client.create(input=history)).json["usage"]
            cached.append(usage["input_tokens_details"]["cached_tokens"])
            nursery.cancel_scope.cancel()
    assert cached[0] == cached[1] > 0


async def test_another_model_has_read_nothing(autojump_clock):
    """The rendered prefix is reused, and the model reads it as new; so after a warm-up, which no model reads."""
    other = await cached_of("optimised", "one", {"text": "two", "model": "n"})
    warmed = await cached_of("optimised", {"text": "one", "generate": False}, "two")
    assert [0, 0, 0, 0] == [cached for _, cached in (*other, *warmed)]


async def test_a_loop_over_http_renders_each_token_twice_at_most(autojump_clock):
    """Thirty turns: naive work grows with the square of the turns, optimised work with the turns."""
    turn = Turn(("more words " * 20,), "sunny " * 20, None, True, False, 0, False, "")
    found = {}
    for variant in ("naive", "optimised"):
        *_, work, statistics = await converse(variant, [turn] * 30)
        found[variant] = sum(report["rendered_tokens"] for report in work)
        hits = statistics.hits
    assert 29 == hits
    assert found["naive"] > 8 * found["optimised"]


# --- keys ----------------------------------------------------------------------------------------------------------


def item(text, **members):
    return Message("user", (InputText(text),), **members)


BASE = ("me", Preamble("i", ({"name": "f"},)), (item("a"), item("b")))
OTHERS = [
    ("you", *BASE[1:]),
    ("me", Preamble("j", BASE[1].tools), BASE[2]),
    ("me", Preamble(None, BASE[1].tools), BASE[2]),
    ("me", Preamble("i", ({"name": "g"},)), BASE[2]),
    ("me", Preamble("i", ({"name": "f", "x": 1},)), BASE[2]),
    (*BASE[:2], (item("ab"),)),
    (*BASE[:2], (item("b"), item("a"))),
    (*BASE[:2], (item("a", id="msg_1"), item("b"))),
    (*BASE[:2], (Message("user", "a"), item("b"))),
    (*BASE[:2], (Message("assistant", (InputText("a"),)), item("b"))),
]


@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
def test_whatever_matters_is_in_the_key(other):
    """Owner, instructions, tools, and each item with all its members and its place."""
    assert chain_of(*BASE)[-1] != chain_of(*other)[-1]


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (0, False), ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
)
def test_what_python_calls_equal_may_be_spelled_otherwise(one, other):
    """Tools are rendered as JSON, so their spelling is the key."""
    assert one == other
    chains = [chain_of("me", Preamble(None, ({"x": value},)), ())[-1] for value in (one, other)]
    assert chains[0] != chains[1]


def test_a_chain_grows_at_its_end():
    """Longer histories have the keys of their prefixes; items can be added later."""
    whole = chain_of(*BASE)
    assert whole[:2] == chain_of(BASE[0], BASE[1], BASE[2][:1])
    assert whole[1:] == list(chain_from(whole[0], BASE[2]))


# --- bounds --------------------------------------------------------------------------------------------------------


async def kept(cache, text):
    engine = Engine.make(Scripted([]))
    intake = Intake(engine, Ledger(engine.clock_ns), lambda _: None)
    await intake.open(ResponseCreate(model="m", input=text), None)
    chain = chain_of("me", Preamble(), (Message("user", text),))
    cache.keep(chain, intake.snapshot("resp_1"), ())
    return chain


async def test_the_least_recently_used_prefix_goes_first():
    """By count: a found one stays."""
    cache = PrefixCache(Limits(max_prefixes=2), Classify())
    first, second = await kept(cache, "1"), await kept(cache, "2")
    assert cache.find(first) is not None
    await kept(cache, "3")
    assert (True, None) == (cache.find(first) is not None, cache.find(second))
    statistics = cache.statistics()
    assert (2, 2, 1, 2) == (statistics.prefixes, statistics.hits, statistics.misses, statistics.reused_items)


async def test_the_memory_of_prefixes_is_bounded():
    """However many large contexts come, what is held stays within an eighth of the limit over it."""
    limits = Limits(max_prefix_bytes=1_000_000)
    cache = PrefixCache(limits, Classify())
    for number in range(60):
        await kept(cache, f"{number} " + "word " * 10_000)
        assert cache._held_bytes() < limits.max_prefix_bytes * 9 // 8 + 200_000
    assert cache.statistics().prefixes < 20


def test_items_survive_the_way_to_the_client_and_back():
    """Our own items come back with the same key, so the output is part of the prefix."""
    ours = Context.full([item("a")]).items
    sent = orjson.loads(orjson.dumps([codec.unstructure(one) for one in ours]))
    (back,) = codec.client_event({"type": "response.create", "input": sent}).input
    assert list(chain_from(b"", ours)) == list(chain_from(b"", [back]))
