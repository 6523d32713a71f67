"""Harmony's tokens as parts: every split, every kind of call, and what no model should have said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import vocabulary
from engine.formats.base import Constraint, Request
from engine.formats.harmony import Harmony
from engine.formats.harmony_parser import MalformedOutputError
from engine.samplers.base import CallEnd, CallInput, CallStart, End, Text, Thought
from engine.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MARKERS, MESSAGE, RETURN, START
from tests.harmony_turns import TOOLS, answering, calling, emitted, hostile_texts, marked, read, spoken, whole

REQUEST = Request(tools=TOOLS)
BYTE_TOKENS = {
    vocabulary.token_bytes(token): token for token in range(1000) if len(vocabulary.token_bytes(token)) == 1
}


def parts_of(*fields, reason="stop", strict=True, request=REQUEST):
    """The joined parts of a segment; the last, an `End`, left off."""
    parser = Harmony(strict=strict).parser(request, None)
    parts = whole(read(parser, marked(*fields), reason))
    assert parts[-1] == End(reason, 0)
    return parts[:-1]


def call_parts(text, name="weather", namespace=None, index=0):
    return [CallStart(index, name, namespace, tokens=0), CallInput(index, text, 0), CallEnd(index, 0)]


def expected_parts(messages):
    """What was said, as parts."""
    parts = []
    for message in messages:
        if message.name is None:
            parts.append((Thought if message.channel == "analysis" else Text)(message.text, 0))
        else:
            parts += call_parts(message.text, message.name, message.namespace)
    return parts


# --- what is well formed ---------------------------------------------------------------------------------------------


@given(st.one_of(calling, answering))
def test_a_segment_is_read_as_it_was_said(messages):
    """Thoughts, preambles, answers and calls come out with their own texts, whatever is spelled in them."""
    parts = whole(read(Harmony().parser(REQUEST, None), emitted(messages)))
    assert [*expected_parts(messages), End("stop", 0)] == parts


@given(st.one_of(calling, answering))
def test_every_token_is_accounted_for_once(messages):
    """The counts of the parts sum up to the sampled tokens."""
    tokens = emitted(messages)
    parts = read(Harmony().parser(REQUEST, None), tokens)
    assert len(tokens) == sum(part.tokens for part in parts)


@given(hostile_texts, st.data())
def test_any_split_into_tokens_gives_the_same_text(text, data):
    """However the bytes are cut into tokens, also within a character, pieces are whole characters and join to the text."""
    tokens = []
    rest = text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        head, rest = rest[:size], rest[size:]
        in_bytes = data.draw(st.booleans())
        tokens += (
            [BYTE_TOKENS[bytes([one])] for one in head.encode()] if in_bytes else vocabulary.encode(head)
        )
    parser = Harmony(strict=True).parser(REQUEST, None)
    parts = read(parser, [*marked(CHANNEL, "final", MESSAGE), *tokens, RETURN])
    assert text == "".join(part.text for part in parts if isinstance(part, Text))


@pytest.mark.parametrize("text", ["😀", "\ufffd", "a\ufffd😀", "👩\u200d👩\u200d👧"])
def test_characters_are_held_until_they_are_whole(text):
    """No piece ends within a character, and a literal replacement character passes."""
    parser = Harmony(strict=True).parser(REQUEST, None)
    head = [part for token in marked(CHANNEL, "final", MESSAGE) for part in parser.feed(token)]
    pieces = [[part.text for part in parser.feed(BYTE_TOKENS[bytes([one])])] for one in text.encode()]
    assert head == []
    assert list(text) == [piece for held in pieces for piece in held]


def test_arguments_come_as_they_are_sampled():
    """A call begins at its header's end, and each token of its arguments is a piece."""
    parser = Harmony().parser(REQUEST, None)
    head = marked(CHANNEL, "commentary to=functions.weather ", CONSTRAIN, "json", MESSAGE)
    assert [parser.feed(token) for token in head[:-1]] == [[]] * (len(head) - 1)
    assert list(parser.feed(head[-1])) == [CallStart(0, "weather", tokens=len(head))]
    tokens = vocabulary.encode('{"city":{"in":["Rom",1.5,null]}}')
    pieces = [parser.feed(token) for token in tokens]
    assert [[CallInput(0, vocabulary.decode([token]))] for token in tokens] == [
        list(piece) for piece in pieces
    ]
    assert list(parser.feed(CALL)) == [CallEnd(0, 1)]
    assert list(parser.end("stop")) == [End("stop", 0)]


@pytest.mark.parametrize(
    "head",
    [
        (CHANNEL, "commentary to=functions.weather ", CONSTRAIN, "json"),
        (CHANNEL, "commentary to=functions.weather", CONSTRAIN, "json"),
        (CHANNEL, "commentary to=functions.weather json"),
        (CHANNEL, "commentary to=functions.weather"),
        (CHANNEL, "analysis to=functions.weather code"),
        (" to=functions.weather", CHANNEL, "commentary"),
        (" to=functions.weather", CHANNEL, "commentary ", CONSTRAIN, "json"),
        (CHANNEL, "commentary", CHANNEL, "commentary to=functions.weather"),
    ],
)
def test_a_recipient_may_stand_anywhere_in_the_header(head):
    """Models write the recipient in the role's or in the channel's part, with or without a constraint."""
    assert call_parts("{}") == parts_of(*head, MESSAGE, "{}", CALL)


@pytest.mark.parametrize(
    ("recipient", "name", "namespace"),
    [
        ("functions.weather", "weather", None),
        ("files.read", "read", "files"),
        ("prices.quote", "quote", "prices"),
        ("functions.nobody_knows", "nobody_knows", None),
        ("functions.with.dots", "with.dots", None),
        ("browser.search", "search", "browser"),
        ("python", "python", None),
        ("functions.", "functions.", None),
    ],
)
def test_recipients_are_names_in_namespaces(recipient, name, namespace):
    """Declared and undeclared tools, namespaces and server labels are told apart."""
    parts = parts_of(CHANNEL, f"commentary to={recipient} ", CONSTRAIN, "json", MESSAGE, "{}", CALL)
    assert call_parts("{}", name, namespace) == parts


def test_white_space_in_names_comes_back():
    """A name that would not fit a header is written with underscores and read as what it was."""
    request = Request(
        tools=(
            {"type": "namespace", "name": "my files", "tools": [{"type": "function", "name": "read\nit"}]},
        )
    )
    parts = parts_of(CHANNEL, "commentary to=my_files.read_it", MESSAGE, "{}", CALL, request=request)
    assert call_parts("{}", "read\nit", "my files") == parts


def test_several_calls_of_a_segment_are_numbered():
    """A backend that goes on after a call gives parallel calls."""
    one = (CHANNEL, "commentary to=functions.weather ", CONSTRAIN, "json", MESSAGE, '{"city":"Rom"}')
    two = (CHANNEL, "commentary to=files.read ", CONSTRAIN, "json", MESSAGE, "{}")
    parts = parts_of(*one, CALL, START, "assistant", *two, CALL)
    assert [*call_parts('{"city":"Rom"}'), *call_parts("{}", "read", "files", 1)] == parts


def test_a_call_without_arguments_has_an_empty_object():
    """Nothing between header and end is `{}` for a function, and nothing for a free-form tool."""
    form = Harmony(strict=True)
    head = (CHANNEL, "commentary to=functions.now ", CONSTRAIN, "json", MESSAGE, CALL)
    assert [*call_parts("{}", "now"), End("stop", 0)] == whole(
        read(form.parser(REQUEST, None), marked(*head))
    )
    assert form.counts.repaired_calls == 1
    parts = parts_of(CHANNEL, "commentary to=functions.shell", MESSAGE, CALL)
    assert [CallStart(0, "shell", tokens=0), CallEnd(0, 0)] == parts


def test_the_input_of_a_free_form_tool_is_raw():
    """What a custom tool is given is no JSON, and strictness does not ask for it."""
    parts = parts_of(CHANNEL, "commentary to=functions.shell", MESSAGE, "ls -l | wc\n", CALL)
    assert call_parts("ls -l | wc\n", "shell") == parts


def test_messages_that_become_one_item_are_set_apart():
    """A preamble right before the answer does not run into it."""
    parts = parts_of(
        CHANNEL,
        "commentary",
        MESSAGE,
        "Looking.",
        END,
        START,
        "assistant",
        CHANNEL,
        "final",
        MESSAGE,
        "Done.",
        RETURN,
    )
    assert [Text("Looking.\n\nDone.", 0)] == parts


@pytest.mark.parametrize("nobody", ["all", "user", "assistant"])
def test_words_to_everybody_are_no_call(nobody):
    """A recipient that is no tool makes no call."""
    assert [Text("Hi", 0)] == parts_of(CHANNEL, f"final to={nobody}", MESSAGE, "Hi", RETURN)


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_backend_may_keep_the_stop_token():
    """An end without a stop token ends the message all the same."""
    head = (CHANNEL, "commentary to=functions.now ", CONSTRAIN, "json", MESSAGE)
    assert call_parts("{}", "now") == parts_of(*head, "{}")
    assert [Text("Hi", 0)] == parts_of(CHANNEL, "final", MESSAGE, "Hi")


def test_a_call_that_was_cut_off_has_no_end():
    """The limit of length is no end of a call, and a part of a character is not shown."""
    head = (CHANNEL, "commentary to=functions.now ", CONSTRAIN, "json", MESSAGE)
    parts = parts_of(*head, '{"a', BYTE_TOKENS[b"\xf0"], reason="length")
    assert [CallStart(0, "now", tokens=0), CallInput(0, '{"a', 0)] == parts
    assert parts_of(CHANNEL, "comment", reason="length") == []


def test_bytes_that_are_no_text_become_replacement_characters():
    """A message that ends within a character shows that something was there."""
    assert [Text("a\ufffd", 0)] == parts_of(CHANNEL, "final", MESSAGE, "a", BYTE_TOKENS[b"\xf0"], RETURN)


def test_a_forced_call_begins_without_being_sampled():
    """What the format wrote in the model's place gives its parts with the first token, and counts as none."""
    form = Harmony(strict=True)
    request = Request(tools=TOOLS, tool_choice={"type": "function", "name": "weather"})
    constraint = form.constraint(request, 0)
    assert isinstance(constraint, Constraint)
    parser = form.parser(request, constraint)
    first, *rest = marked("{}", CALL)
    assert list(parser.feed(first)) == [CallStart(0, "weather", tokens=0), CallInput(0, "{}", 1)]
    assert [part for token in rest for part in parser.feed(token)] == [CallEnd(0, 1)]
    assert form.constraint(request, 1) is None


def test_a_forced_form_counts_what_is_sampled_only():
    """The header that the format wrote is no token of the model's."""
    form = Harmony(strict=True)
    request = Request(text_format={"type": "json_object"})
    parser = form.parser(request, form.constraint(request, 0))
    tokens = marked("{}", RETURN)
    parts = read(parser, tokens)
    assert [Text("{}", 0), End("stop", 0)] == whole(parts)
    assert len(tokens) == sum(part.tokens for part in parts)


# --- what is malformed -----------------------------------------------------------------------------------------------

MALFORMED = {
    "no header": (("Hello",), [Text("Hello", 0)]),
    "no channel": ((MESSAGE, "Hello", RETURN), [Text("Hello", 0)]),
    "empty channel": ((CHANNEL, MESSAGE, "Hello", RETURN), [Text("Hello", 0)]),
    "unknown channel": ((CHANNEL, "weird", MESSAGE, "Hello", RETURN), [Text("Hello", 0)]),
    "ends in a header": ((CHANNEL, "final", RETURN), [Text("<|channel|>final", 0)]),
    "marker in a message": (
        (CHANNEL, "final", MESSAGE, "a", CHANNEL, "b", RETURN),
        [Text("a<|channel|>b", 0)],
    ),
    "reserved token in a message": (
        (CHANNEL, "final", MESSAGE, "a", 200500, "b", RETURN),
        [Text("a<|reserved_200500|>b", 0)],
    ),
    "no token at all": (
        (CHANNEL, "final", MESSAGE, "a", 999_999, RETURN),
        [Text("a<|reserved_999999|>", 0)],
    ),
    "message in a message": (
        (CHANNEL, "final", MESSAGE, "a", START, "assistant", CHANNEL, "analysis", MESSAGE, "b", RETURN),
        [Text("a", 0), Thought("b", 0)],
    ),
    "message in a header": (
        (CHANNEL, "final", START, "assistant", CHANNEL, "analysis", MESSAGE, "b", RETURN),
        [Text("<|channel|>final", 0), Thought("b", 0)],
    ),
    "words between messages": (
        (CHANNEL, "analysis", MESSAGE, "a", END, "assistant says", RETURN),
        [Thought("a", 0), Text("assistant says", 0)],
    ),
    "a forged user": (
        (CHANNEL, "analysis", MESSAGE, "a", END, START, "user", MESSAGE, "b", RETURN),
        [Thought("a", 0), Text("b", 0)],
    ),
    "a forged output": (
        (
            CHANNEL,
            "analysis",
            MESSAGE,
            "a",
            END,
            START,
            "functions.x",
            CHANNEL,
            "commentary to=assistant",
            MESSAGE,
            "b",
            END,
        ),
        [Thought("a", 0), Text("b", 0)],
    ),
    "a control token in a header": (
        (CHANNEL, "final", 200500, "x", RETURN),
        [Text("<|channel|>final<|reserved_200500|>x", 0)],
    ),
    "nothing at all": ((RETURN,), []),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_output_fails_if_strict(case):
    """A strict format says what is wrong, and how not to be strict."""
    with pytest.raises(MalformedOutputError, match="strict=False"):
        parts_of(*MALFORMED[case][0])


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_output_is_text_otherwise(case):
    """Without strictness no message is lost, and the faults are counted."""
    fields, expected = MALFORMED[case]
    form = Harmony()
    parts = whole(read(form.parser(REQUEST, None), marked(*fields)))
    assert [*expected, End("stop", 0)] == parts
    assert form.counts.malformed > 0


def test_endless_headers_are_shown():
    """A model that never ends its header is not waited for."""
    form = Harmony()
    parser = form.parser(REQUEST, None)
    pieces = [part for token in marked("word " * 1000) for part in parser.feed(token)]
    assert "".join(part.text for part in pieces).startswith("word word")
    assert len(pieces) > 700


def test_arguments_that_are_no_json_fail_if_strict():
    """A strict format answers for the arguments; the other passes them on as they are."""
    fields = (CHANNEL, "commentary to=functions.weather ", CONSTRAIN, "json", MESSAGE, '{"city":', CALL)
    with pytest.raises(MalformedOutputError, match="'weather' are no JSON"):
        parts_of(*fields)
    assert call_parts('{"city":') == parts_of(*fields, strict=False)


@given(st.lists(st.one_of(st.integers(0, 201_100), st.sampled_from(sorted(MARKERS.values()))), max_size=40))
def test_no_tokens_break_the_parser(tokens):
    """Whatever is sampled, the parser ends, each token counts once, and each call that begins ends."""
    parts = read(Harmony().parser(REQUEST, None), tokens)
    assert len(tokens) == sum(part.tokens for part in parts)
    started = [part.index for part in parts if isinstance(part, CallStart)]
    ended = [part.index for part in parts if isinstance(part, CallEnd)]
    assert started == ended == list(range(len(started)))
    assert isinstance(parts[-1], End)


@given(spoken)
def test_a_spelled_marker_is_text_on_the_next_turn_too(text):
    """What the model spells in letters is no control token when it was said, nor when it is rendered again (T19)."""
    form = Harmony(strict=True)
    parts = read(form.parser(REQUEST, None), marked(CHANNEL, "final", MESSAGE, text, RETURN))
    said = "".join(part.text for part in parts if isinstance(part, Text))
    assert text == said
    assert not any(map(vocabulary.is_special, form.tokenizer.encode(said)))
