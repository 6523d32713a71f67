"""Calls as models write them, each kind in each format and in real tokens: of Qwen, of gpt-oss, and of SmolLM2's own file.

A kind of call is written in the words of each format, divided into tokens in every way, and read; the expected calls are
the same for all. Malformed output is an error or is shown, as configured.
"""

import json
from array import array
from functools import cache

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.backends.scripted import ScriptedBackend
from engine.formats.base import Request
from engine.formats.byte_pairs import BytePairs
from engine.formats.harmony import Harmony
from engine.samplers.base import Appended, CallEnd, CallInput, CallStart, End, Prompt, Text, Thought
from engine.samplers.tokens import TokenSampler
from engine.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START
from protocol.items import CustomToolCall, FunctionCall, Message, output_for
from tests.chatml import QWEN, chatml, joined, parts_of
from tests.smollm2 import weights

READ = {"type": "function", "name": "read", "parameters": {"type": "object"}}
TOOLS = (
    READ,
    {"type": "function", "name": "now"},
    {"type": "custom", "name": "shell"},
    {
        "type": "namespace",
        "name": "git",
        "tools": [{**READ, "name": "log"}, {"type": "custom", "name": "raw"}],
    },
)
REQUEST = Request(tools=TOOLS)
CUSTOM = {(None, "shell"), ("git", "raw")}

NESTED = '{"a": [{"b": "}]\\"{", "c": [[], {}, [1.5e3, null, true]]}], "d": {"e": {"f": {}}}}'
KINDS = {
    "one": [(None, "read", '{"path": "a.py"}')],
    "parallel": [
        (None, "read", '{"path": "a"}'),
        ("git", "log", '{"path": "b"}'),
        (None, "read", '{"path": "c"}'),
    ],
    "an empty object": [(None, "now", "{}")],
    "nested": [(None, "read", NESTED)],
    "not in ASCII": [(None, "read", '{"path": "é 😀 中 \\u00e9 \ufffd 👩\u200d👧"}')],
    "spelled markers": [(None, "read", '{"path": "<|im_end|> <|call|> <tool_call> <|end|>"}')],
    "unknown name": [(None, "fly", '{"to": "Rom"}')],
    "unknown after known": [(None, "now", "{}"), (None, "fly", '{"to": 1}')],
    "namespace": [("git", "log", '{"path": "x"}')],
    "custom": [(None, "shell", 'ls "a" | wc\n\techo 😀 \\ \ufffd')],
    "custom in a namespace": [("git", "raw", "gc --prune=now")],
    "custom beside a function": [(None, "shell", "ls"), (None, "read", '{"path": "a"}')],
}


# --- how each format writes them ---------------------------------------------------------------------------------------


class Hermes:
    """ChatML with a vocabulary; marks are ids where it has them."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def make(self, *, strict=False):
        return chatml(self.tokenizer, strict=strict, thinks=True)

    def fields(self, calls):
        """Texts and marks of a segment."""
        written = []
        for namespace, name, text in calls:
            shown = json.dumps(name if namespace is None else f"{namespace}.{name}")
            custom = (namespace, name) in CUSTOM
            given_ = json.dumps({"input": text}, ensure_ascii=False) if custom else text
            written += [("mark", "<tool_call>"), f'\n{{"name": {shown}, "arguments": {given_}}}\n']
            written += [("mark", "</tool_call>"), "\n"]
        return [*written[:-1], ("mark", "<|im_end|>")]

    def said(self, text):
        """An answer."""
        return [text, ("mark", "<|im_end|>")]

    def thought(self, text):
        """A thought before an answer."""
        return [("mark", "<think>"), text, ("mark", "</think>"), "Yes", ("mark", "<|im_end|>")]

    def mark(self, spelling):
        number = self.tokenizer.specials.get(spelling)
        return list(self.tokenizer.encode(spelling)) if number is None else [number]


class GptOss:
    """Harmony; a backend that goes on after a call makes parallel ones."""

    tokenizer = Harmony().tokenizer

    def make(self, *, strict=False):
        return Harmony(strict=strict)

    def fields(self, calls):
        written = []
        for namespace, name, text in calls:
            written += [START, "assistant"] if written else []
            head = f"commentary to={namespace or 'functions'}.{name}"
            custom = (namespace, name) in CUSTOM
            written += [CHANNEL, head] if custom else [CHANNEL, head + " ", CONSTRAIN, "json"]
            written += [MESSAGE, text, CALL]
        return written

    def said(self, text):
        return [CHANNEL, "final", MESSAGE, text, RETURN]

    def thought(self, text):
        return [CHANNEL, "analysis", MESSAGE, text, END, START, "assistant", *self.said("Yes")]

    def mark(self, number):
        return [number]


@cache
def dialect(name):
    if name == "smollm2":
        return Hermes(BytePairs.from_gguf(weights()))
    return {"qwen3": lambda: Hermes(QWEN), "gpt-oss": GptOss}[name]()


every = pytest.mark.parametrize(
    "spoken", ["qwen3", "gpt-oss", pytest.param("smollm2", marks=pytest.mark.models)]
)


# --- how they are divided into tokens ----------------------------------------------------------------------------------


@cache
def byte_tokens(spoken):
    tokenizer = dialect(spoken).tokenizer
    found = {}
    for token in range(2000):
        data = tokenizer.token_bytes(token)
        if len(data) == 1:
            found.setdefault(data, token)
    return found


def in_bytes(spoken, text):
    """A token for each byte; where the vocabulary has none, that character as it is encoded."""
    single, ids = byte_tokens(spoken), []
    for character in text:
        bytes_ = [bytes([byte]) for byte in character.encode()]
        known = all(byte in single for byte in bytes_)
        ids += [single[byte] for byte in bytes_] if known else dialect(spoken).tokenizer.encode(character)
    return ids


def tokens(spoken, fields, divide):
    """A segment's tokens; `divide`: text to ids."""
    ids = []
    for field in fields:
        ids += divide(field) if isinstance(field, str) else dialect(spoken).mark(_bare(field))
    return ids


def _bare(mark):
    return mark[1] if isinstance(mark, tuple) else mark


def encoded(spoken):
    return lambda text: list(dialect(spoken).tokenizer.encode(text))


def cut_at(spoken, place):
    """Every text cut at that place, both halves encoded by themselves."""
    encode = encoded(spoken)
    return lambda text: encode(text[:place]) + encode(text[place:])


def read(spoken, ids, *, strict=True, request=REQUEST):
    """What the parser makes of them; the end is checked and left out, and that each token counts once."""
    parts = parts_of(dialect(spoken).make(strict=strict).parser(request, None), ids)
    assert len(ids) == sum(part.tokens for part in parts)
    *said, end = joined(parts)
    assert ("end", "stop") == end
    return said


def as_calls(calls):
    return [("call", place, namespace, name, text) for place, (namespace, name, text) in enumerate(calls)]


@every
@pytest.mark.parametrize("kind", KINDS)
def test_calls_are_read_as_they_were_written(spoken, kind):
    """In the tokens that the vocabulary itself would give, by single bytes, and by characters."""
    fields = dialect(spoken).fields(KINDS[kind])
    expected = as_calls(KINDS[kind])
    by_character = lambda text: [token for one in text for token in encoded(spoken)(one)]  # noqa: E731  # one of three
    for divide in (encoded(spoken), lambda text: in_bytes(spoken, text), by_character):
        assert expected == read(spoken, tokens(spoken, fields, divide))


@every
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_may_end_anywhere_in_arguments(spoken, kind):
    """Cut after each character of the call, name and arguments, the same is read."""
    fields = dialect(spoken).fields(KINDS[kind])
    longest = max(len(field) for field in fields if isinstance(field, str))
    for place in range(1, longest):
        assert as_calls(KINDS[kind]) == read(spoken, tokens(spoken, fields, cut_at(spoken, place)))


@every
@settings(max_examples=60)
@given(data=st.data())
def test_arguments_leave_before_the_call_is_over(spoken, data):
    """After any number of tokens, what was said of the arguments is their beginning; the name came before, the end after."""
    name = data.draw(st.sampled_from([name for name in KINDS if len(KINDS[name]) == 1]))
    ((namespace, called, text),) = KINDS[name]
    ids = tokens(spoken, dialect(spoken).fields(KINDS[name]), encoded(spoken))
    parser = dialect(spoken).make(strict=True).parser(REQUEST, None)
    parts = [part for token in ids[: data.draw(st.integers(0, len(ids)))] for part in parser.feed(token)]
    if parts:
        assert CallStart(0, called, namespace, tokens=parts[0].tokens) == parts[0]
    written = "".join(part.text for part in parts if isinstance(part, CallInput))
    assert text.startswith(written)
    assert written == text or not any(isinstance(part, CallEnd) for part in parts)


# --- without arguments -------------------------------------------------------------------------------------------------

ZERO = {
    "qwen3": ['{"name": "now"}', '{"name": "now", "arguments": null}', '{"name": "now", "arguments": {}}'],
    "gpt-oss": ["", "{}"],
}


@pytest.mark.parametrize(("spoken", "text"), [(spoken, text) for spoken in ZERO for text in ZERO[spoken]])
def test_a_call_without_arguments_has_an_empty_object(spoken, text):
    """However a model leaves them out, the client is given `{}`, strict or not."""
    fields = dialect(spoken).fields([(None, "now", "{}")])
    place = next(at for at, field in enumerate(fields) if isinstance(field, str) and "{}" in field)
    fields[place] = text
    for strict in (False, True):
        assert [("call", 0, None, "now", "{}")] == read(
            spoken, tokens(spoken, fields, encoded(spoken)), strict=strict
        )


# --- malformed ---------------------------------------------------------------------------------------------------------


def hermes(*fields):
    return [("mark", field) if field.startswith("<") else field for field in fields]


MALFORMED = {
    "qwen3, no object": ("qwen3", hermes("<tool_call>", "\nread it\n", "</tool_call>"), "text"),
    "qwen3, no name": ("qwen3", hermes("<tool_call>", '{"arguments": {}}', "</tool_call>"), "text"),
    "qwen3, broken in the name": ("qwen3", hermes("<tool_call>", '{"name": "re'), "text"),
    "qwen3, broken arguments": (
        "qwen3",
        hermes("<tool_call>", '{"name": "read", "arguments": {path}}', "</tool_call>"),
        ("call", 0, None, "read", "{path}"),
    ),
    "qwen3, arguments that end early": (
        "qwen3",
        hermes("<tool_call>", '{"name": "read", "arguments": {"pa', "<|im_end|>"),
        ("call", 0, None, "read", '{"pa'),
    ),
    "qwen3, a list": (
        "qwen3",
        hermes("<tool_call>", '{"name": "read", "arguments": [1]}', "</tool_call>"),
        ("call", 0, None, "read", "[1]"),
    ),
    "gpt-oss, no channel": ("gpt-oss", [MESSAGE, "read it", RETURN], "text"),
    "gpt-oss, unknown channel": ("gpt-oss", [CHANNEL, "tools", MESSAGE, "read it", RETURN], "text"),
    "gpt-oss, broken in the header": ("gpt-oss", [CHANNEL, "commentary to=functions.re"], "text"),
    "gpt-oss, broken arguments": (
        "gpt-oss",
        [CHANNEL, "commentary to=functions.read ", CONSTRAIN, "json", MESSAGE, "{path}", CALL],
        ("call", 0, None, "read", "{path}"),
    ),
    "gpt-oss, arguments that end early": (
        "gpt-oss",
        [CHANNEL, "commentary to=functions.read ", CONSTRAIN, "json", MESSAGE, '{"pa', CALL],
        ("call", 0, None, "read", '{"pa'),
    ),
    "gpt-oss, a list": (
        "gpt-oss",
        [CHANNEL, "commentary to=functions.read ", CONSTRAIN, "json", MESSAGE, "[1]", CALL],
        ("call", 0, None, "read", "[1]"),
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_output_is_shown_unless_it_is_strict(case):
    """Without a name it is text with every word of it, else a call with the arguments as they are, for the client to judge."""
    spoken, fields, expected = MALFORMED[case]
    ids = tokens(spoken, fields, encoded(spoken))
    found = read(spoken, ids, strict=False)
    if expected != "text":
        assert [expected] == found
        return
    words = [field.strip() for field in fields if isinstance(field, str)]
    assert {"text"} == {one[0] for one in found}
    assert words[-1] in "".join(one[1] for one in found)


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_output_fails_the_response_if_strict(case):
    """The parser raises `ValueError`, which the sampler passes on as the segment's failure."""
    spoken, fields, _ = MALFORMED[case]
    ids = tokens(spoken, fields, encoded(spoken))
    with pytest.raises(ValueError, match=r"malformed tool call|harmony: "):
        read(spoken, ids, strict=True)


@every
@settings(max_examples=100)
@given(data=st.data())
def test_no_tokens_break_a_parser(spoken, data):
    """Whatever is sampled, each token counts once, and each call that begins ends, numbered in order."""
    special = sorted(set(dialect(spoken).tokenizer.specials.values()))
    ids = data.draw(st.lists(st.integers(0, 40_000) | st.sampled_from(special), max_size=40))
    parts = parts_of(dialect(spoken).make().parser(REQUEST, None), ids)
    assert len(ids) == sum(part.tokens for part in parts)
    begun = [part.index for part in parts if isinstance(part, CallStart)]
    assert begun == [part.index for part in parts if isinstance(part, CallEnd)] == list(range(len(begun)))
    assert isinstance(parts[-1], End)


# --- characters --------------------------------------------------------------------------------------------------------

CHARACTERS = ["é", "中", "😀", "\ufffd", "a\ufffd😀\ufffd", "👩\u200d👩\u200d👧", "🏴\U000e0067\U000e007f"]


@pytest.mark.parametrize("spoken", ["qwen3", "gpt-oss"])
@pytest.mark.parametrize("text", CHARACTERS)
@pytest.mark.parametrize("where", ["text", "thought", "arguments", "custom"])
def test_a_character_is_held_until_it_is_whole(spoken, text, where):
    """By single bytes no piece has half a character, and a literal replacement character is one like any other."""
    writes = dialect(spoken)
    fields = {
        "text": lambda: writes.said(text),
        "thought": lambda: writes.thought(text),
        "arguments": lambda: writes.fields([(None, "read", f'{{"path": "{text}"}}')]),
        "custom": lambda: writes.fields([(None, "shell", text)]),
    }[where]()
    ids = tokens(spoken, fields, lambda part: in_bytes(spoken, part))
    parser = writes.make(strict=True).parser(REQUEST, None)
    pieces = [part for token in ids for part in parser.feed(token)]
    wanted = {"text": Text, "thought": Thought}.get(where, CallInput)
    said = [part.text for part in [*pieces, *parser.end("stop")] if isinstance(part, wanted)]
    assert text in "".join(said)
    assert "".join(said).count("\ufffd") == text.count("\ufffd")


# --- never tokenized again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoken", ["qwen3", "gpt-oss"])
@settings(max_examples=40)
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    places=st.lists(st.integers(0, 12), min_size=3, max_size=3),
)
@example(kinds=["nested", "custom"], places=[0, 1, 1])
def test_what_was_sampled_stays_as_it_was_sampled(spoken, kinds, places):
    """Calls in other tokens than an encoding of their text are in the next prompts as they were, and only news is appended.

    gpt-oss stops after a call, so it makes one at a time.
    """
    if spoken == "gpt-oss":
        kinds = [kind for kind in kinds if len(KINDS[kind]) == 1] or ["one"]
    writes, form = dialect(spoken), dialect(spoken).make(strict=True)
    scripts = [
        tokens(
            spoken,
            writes.fields(KINDS[kind]),
            cut_at(spoken, place) if place else lambda text: in_bytes(spoken, text),
        )
        for kind, place in zip(kinds, places, strict=False)
    ]
    backend = ScriptedBackend([*scripts, tokens(spoken, writes.said("Done"), encoded(spoken))])
    expected = [form.preamble(REQUEST) + form.items((Message("user", "go"),), ()) + form.opening(REQUEST)]

    async def run():
        sampling = TokenSampler(form, backend).open(Prompt("resp_1", "m", TOOLS))
        known, new = [], [Message("user", "go")]
        for kind, script in zip(kinds, scripts, strict=False):
            await sample(sampling, new)
            known += new
            own = items_for(KINDS[kind], len(known))
            outputs = [output_for(item, "ok") for item in own]
            turn = array("I", [form.stored_as.get(token, token) for token in script])
            news = form.closing(script[-1]) + form.items(outputs, [*known, *own]) + form.opening(REQUEST)
            expected.append(expected[-1] + turn + news)
            new = [*own, *outputs]
        await sample(sampling, new)
        await sampling.aclose()

    trio.run(run)
    assert [list(one) for one in expected] == [list(one) for one in backend.prompts]


async def sample(sampling, items):
    async for _ in sampling.sample(Appended(tuple(items), array("I"))):
        pass


def items_for(calls, first):
    """The items that the engine makes of them."""
    return [
        (CustomToolCall if (namespace, name) in CUSTOM else FunctionCall)(
            f"call_{first}_{place}", name, text, namespace=namespace
        )
        for place, (namespace, name, text) in enumerate(calls)
    ]
