"""The context: appending equals rendering again, text cannot forge markers, forks are independent."""

import sys
from array import array
from collections import Counter

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.context import ITEM_BYTES, Context, Preamble, held_bytes, render_item
from engine.rendering import MAX_DOCUMENT_BYTES
from engine.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MARKERS,
    MESSAGE,
    START,
    decode,
    is_special,
    special_spellings,
)
from protocol import items
from protocol.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    ItemReference,
    McpCall,
    Message,
    Opaque,
    OpaquePart,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    ToolSearchCall,
    ToolSearchOutput,
)

SPELLINGS = sorted(special_spellings())  # loads the vocabulary outside of any test's deadline
HOSTILE = [
    *MARKERS,
    *(spelling.replace("|", "\uff5c") for spelling in MARKERS),
    "<|",
    "|>",
    "\uff5c>",
    "assistant",
]
texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(HOSTILE)), max_size=5).map("".join)
names = texts.filter(bool)
raw = st.fixed_dictionaries({"type": names, "data": texts})
parts = st.one_of(
    texts.map(InputText),
    texts.map(OutputText),
    texts.map(Refusal),
    raw.map(OpaquePart),
    st.just(OpaquePart({})),
)
contents = st.one_of(texts, st.lists(parts, max_size=3).map(tuple))
maybe = st.one_of(st.none(), names)
any_items = st.one_of(
    st.builds(
        Message,
        role=st.sampled_from(["user", "assistant", "system", "developer"]),
        content=contents,
        phase=st.sampled_from([None, "commentary", "final_answer"]),
    ),
    st.builds(
        Reasoning,
        summary=st.lists(texts.map(SummaryText), max_size=2).map(tuple),
        content=st.one_of(st.none(), st.lists(texts.map(ReasoningText), max_size=2).map(tuple)),
        encrypted_content=maybe,
    ),
    st.builds(FunctionCall, call_id=names, name=names, arguments=texts, namespace=maybe),
    st.builds(CustomToolCall, call_id=names, name=names, input=texts, namespace=maybe),
    st.builds(FunctionCallOutput, call_id=names, output=contents),
    st.builds(CustomToolCallOutput, call_id=names, output=contents),
    st.builds(ToolSearchCall, call_id=names, arguments=raw),
    st.builds(ToolSearchOutput, call_id=names, tools=st.lists(raw, max_size=2).map(tuple)),
    st.builds(McpCall, id=names, server_label=names, name=names, arguments=texts, output=maybe, error=maybe),
    raw.map(Opaque),
    st.fixed_dictionaries(
        {"type": st.just("additional_tools"), "tools": st.lists(raw, min_size=1, max_size=2)}
    ).map(Opaque),
)
item_lists = st.lists(any_items, max_size=8)
preambles = st.builds(Preamble, instructions=maybe, tools=st.lists(raw, max_size=2).map(tuple))


def expected_markers(item):
    """How many of each marker an item of this kind has, whatever its text is."""
    match item:
        case Message():
            found = {START: 1, MESSAGE: 1, END: 1}
        case Reasoning():
            found = {START: 1, CHANNEL: 1, MESSAGE: 1, END: 1}
        case FunctionCall() | CustomToolCall() | ToolSearchCall():
            found = {START: 1, CHANNEL: 1, CONSTRAIN: 3, MESSAGE: 1, CALL: 1}
        case FunctionCallOutput() | CustomToolCallOutput():
            found = {START: 1, CHANNEL: 1, CONSTRAIN: 1, MESSAGE: 1, END: 1}
        case ToolSearchOutput(tools=tools):
            each = 1 + len(tools)
            found = {START: each, CHANNEL: each, CONSTRAIN: 1, MESSAGE: each, END: each}
        case McpCall():
            found = {START: 2, CHANNEL: 2, CONSTRAIN: 4, MESSAGE: 2, CALL: 1, END: 1}
        case Opaque():
            each = len(item.raw["tools"]) if item.type == "additional_tools" else 1
            found = {START: each, CHANNEL: each, MESSAGE: each, END: each}
    return +Counter(found)


def specials(tokens):
    return Counter(token for token in tokens if is_special(token))


def fields(tokens):
    """The texts between markers, with the marker before each."""
    found = []
    for token in tokens:
        if is_special(token):
            found.append((token, []))
        else:
            found[-1][1].append(token)
    return [(marker, decode(ids)) for marker, ids in found]


def rendered(item):
    return [token for piece in render_item(item) for token in piece]


def user(text):
    return Message(role="user", content=text)


@given(item_lists, st.data(), preambles)
def test_appending_in_any_batches_equals_rendering_at_once(conversation, data, preamble):
    """However items are split into batches, the tokens are those of the full form."""
    context = Context(preamble)
    rest = list(conversation)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        context.append(rest[:size])
        rest = rest[size:]
    context.append(())
    full = Context.full(conversation, preamble)
    assert full.tokens_from(0) == context.tokens_from(0)
    assert full.items == context.items == tuple(conversation)
    assert full.bytes == context.bytes


@given(item_lists, st.integers(1, 64))
def test_the_size_of_slices_does_not_show(conversation, slice_bytes):
    """Smaller slices yield more often and give the same tokens."""
    sliced = Context(slice_bytes=slice_bytes)
    sliced.append(conversation)
    assert Context.full(conversation).tokens_from(0) == sliced.tokens_from(0)


@given(item_lists, preambles)
def test_text_never_adds_or_removes_a_marker(conversation, preamble):
    """The markers of a context are exactly those that its items' kinds call for."""
    context = Context.full(conversation, preamble)
    head = len(preamble.tools) + (preamble.instructions is not None)
    expected = +Counter({START: head, CHANNEL: head, MESSAGE: head, END: head})
    for item in conversation:
        expected += expected_markers(item)
    assert expected == specials(context.tokens_from(0))


def test_every_special_token_cut_at_every_position_stays_text():
    """Two parts that together spell a control token, for all 1,091 of them and every cut, make no marker."""
    for spelling in SPELLINGS:
        for variant in (spelling, spelling.replace("|", "\uff5c")):
            cuts = tuple(
                InputText(half) for cut in range(len(variant)) for half in (variant[:cut], variant[cut:])
            )
            tokens = rendered(Message(role="user", content=cuts))
            assert Counter({START: 1, MESSAGE: 1, END: 1}) == specials(tokens)
            assert items.text_of(cuts) == fields(tokens)[1][1]


@given(names, names, texts, st.one_of(st.just(""), names))
def test_a_calls_fields_stand_alone_between_markers(call_id, name, arguments, namespace):
    """Namespace, name, number and arguments can be read back, so no text of one can pass for another."""
    tokens = rendered(FunctionCall(call_id=call_id, name=name, arguments=arguments, namespace=namespace))
    expected = [
        (START, "assistant"),
        (CHANNEL, "function"),
        (CONSTRAIN, namespace),
        (CONSTRAIN, name),
        (CONSTRAIN, "1"),
        (MESSAGE, arguments),
        (CALL, ""),
    ]
    assert expected == fields(tokens)


def test_an_output_names_its_call_and_kind():
    """An output has the number of the call it answers, whatever came between, and says which kind it answers."""
    calls = [CustomToolCall(call_id=f"call_{name}", name="f", input="") for name in "abc"]
    outputs = [CustomToolCallOutput(call_id=f"call_{name}", output="x") for name in "cab"]
    context = Context.full([*calls, *outputs])
    numbers = [fields(context.tokens_from(context.span(place).start))[2] for place in (3, 4, 5)]
    assert [(CONSTRAIN, "3"), (CONSTRAIN, "1"), (CONSTRAIN, "2")] == numbers


def test_a_call_id_used_again_means_the_later_call():
    """An output after the second use of an id has the second call's number."""
    pair = [
        CustomToolCall(call_id="call_1", name="f", input=""),
        CustomToolCallOutput(call_id="call_1", output="x"),
    ]
    context = Context.full([*pair, *pair])
    assert (CONSTRAIN, "2") == fields(context.tokens_from(context.span(3).start))[2]


def _renamed(item, salt):
    """The same item under another id; of a hosted call its own id is that of the call."""
    name = "id" if isinstance(item, McpCall) else "call_id"
    return attrs.evolve(item, **{name: f"{salt}{getattr(item, name)}"}) if hasattr(item, name) else item


@given(item_lists, st.integers(0, 9))
def test_ids_do_not_show(conversation, salt):
    """Two conversations that differ in their random ids only are the same tokens (S11)."""
    renamed = [_renamed(item, salt) for item in conversation]
    assert Context.full(conversation).tokens_from(0) == Context.full(renamed).tokens_from(0)


@pytest.mark.parametrize(
    ("output", "error", "shown"),
    [("42", None, "42"), (None, "timed out", "timed out"), ("", "ignored", ""), (None, None, "")],
)
def test_a_hosted_calls_output_is_a_part_of_its_own(output, error, shown):
    """From `answer` on, a hosted call's tokens are its output or else its error: what the model has not seen."""
    call = McpCall(id="mcp_1", server_label="lab", name="f", arguments="{}", output=output, error=error)
    context = Context.full([user("x"), call])
    span = context.span(1)
    expected = [(START, "tool"), (CHANNEL, "hosted"), (CONSTRAIN, "1"), (MESSAGE, shown), (END, "")]
    assert expected == fields(context.tokens_from(span.answer, span.end))
    last_of_call = context.tokens_from(span.start, span.answer)[-1]
    assert last_of_call == CALL


def test_spans_partition_the_tokens_after_the_preamble():
    """Each item's span begins where the one before ended, and holds the item's own rendering."""
    conversation = [user("a"), FunctionCall(call_id="c", name="f", arguments="{}"), user("")]
    context = Context.full(conversation, Preamble("be brief"))
    end = context.preamble_tokens
    for place, item in enumerate(conversation):
        span = context.span(place)
        assert end == span.start == span.answer
        assert array("I", rendered(item)) == context.tokens_from(span.start, span.end)
        end = span.end
    assert len(context) == end
    for place in (-1, 3):
        with pytest.raises(IndexError, match="not among the 3 items"):
            context.span(place)


def test_images_and_unknown_parts_are_placeholders():
    """A part that is no text is shown by its type only, and weighs what it holds."""
    image = OpaquePart({"type": "input_image", "image_url": "data:" + "A" * 100_000})
    context = Context.full([Message(role="user", content=(InputText("see "), image))])
    expected = (MESSAGE, "see [input_image]")
    assert expected == fields(context.tokens_from(0))[1]
    assert context.bytes > 100_000


def test_unknown_items_are_documents_without_their_encrypted_content():
    """An unknown item is its JSON, a very long one its type alone; encrypted content is never shown."""
    short = rendered(Opaque({"type": "compaction", "encrypted_content": "abc", "id": "cmp_1"}))
    expected = '{"type":"compaction","id":"cmp_1"}'
    assert expected == fields(short)[2][1]
    long = rendered(Opaque({"type": "screenshot", "data": "A" * MAX_DOCUMENT_BYTES}))
    placeholder = "[screenshot]"
    assert placeholder == fields(long)[2][1]


def test_encrypted_reasoning_is_held_but_not_shown():
    """Raw reasoning is shown, else its summary; what is encrypted only counts as memory."""
    summary, secret = (SummaryText("short"),), "x" * 10_000
    for reasoning, shown in [
        (Reasoning(summary=summary, content=(ReasoningText("long"),), encrypted_content=secret), "long"),
        (Reasoning(summary=summary, content=(), encrypted_content=secret), "short"),
    ]:
        context = Context.full([reasoning])
        assert (MESSAGE, shown) == fields(context.tokens_from(0))[2]
        assert context.bytes > 10_000


def test_credentials_of_foreign_tools_are_not_shown():
    """Of a tool the engine never calls only type, label and names are rendered."""
    tool = {"type": "mcp", "server_label": "crm", "authorization": "Bearer x", "headers": {"k": "v"}}
    tokens = Context.full([], Preamble(tools=(tool,))).tokens_from(0)
    expected = '{"type":"mcp","server_label":"crm"}'
    assert expected == fields(tokens)[2][1]


def test_the_preamble_stands_first_with_tools_before_instructions():
    """Tools change less often than instructions, so they come first; an empty append is enough to render both."""
    context = Context(Preamble("be brief", ({"type": "function", "name": "f"},)))
    assert 0 == len(context) == context.preamble_tokens
    context.append(())
    expected = ["tool", "instructions"]
    assert expected == [text for marker, text in fields(context.tokens_from(0)) if marker == CHANNEL]
    assert len(context) == context.preamble_tokens > 0


def test_an_unresolved_reference_is_refused():
    """A reference has no tokens of its own; the error says who resolves it."""
    with pytest.raises(
        ValueError, match="'msg_1' cannot be rendered; pass items through the call ledger first"
    ):
        Context.full([ItemReference("msg_1")])


@given(item_lists, item_lists, item_lists)
def test_forks_do_not_disturb_each_other(shared, left, right):
    """Two contexts that go on from one, in turns, each have what they would have alone; the parent is as before."""
    parent = Context.full(shared)
    before = parent.tokens_from(0)
    one, other = parent.fork(), parent.fork()
    for place in range(max(len(left), len(right))):
        one.append(left[place : place + 1])
        other.append(right[place : place + 1])
    assert Context.full(shared + left).tokens_from(0) == one.tokens_from(0)
    assert Context.full(shared + right).tokens_from(0) == other.tokens_from(0)
    assert (before, tuple(shared)) == (parent.tokens_from(0), parent.items)
    assert (tuple(shared + left), tuple(shared + right)) == (one.items, other.items)
    assert one.bytes == Context.full(shared + left).bytes


def test_forks_made_before_the_preamble_is_rendered_are_independent():
    """A fork of an empty context renders the preamble for itself."""
    parent = Context(Preamble("be brief"))
    fork = parent.fork()
    fork.append([user("a")])
    parent.append([user("b")])
    assert Context.full([user("a")], Preamble("be brief")).tokens_from(0) == fork.tokens_from(0)
    assert Context.full([user("b")], Preamble("be brief")).tokens_from(0) == parent.tokens_from(0)


def test_forks_that_are_extended_in_alternating_slices_are_independent():
    """Slices of two forks may interleave: an item enters in one step."""
    parent = Context.full([user("root")])
    one, other = Context.fork(parent), parent.fork()
    texts_of = {one: "a " * 100_000, other: "b " * 100_000}
    steps = [context.extend_in_slices([user(text), user("end")]) for context, text in texts_of.items()]
    turns = 0
    while steps:
        steps = [step for step in steps if next(step, "done") != "done"]
        turns += 1
    assert turns > 3
    for context, text in texts_of.items():
        assert Context.full([user("root"), user(text), user("end")]).tokens_from(0) == context.tokens_from(0)


def test_shared_memory_counts_once():
    """A parent and the fork that went on from it weigh as much as the fork; a second fork adds its own copy."""
    parent = Context.full([user("x" * 10_000)])
    first = parent.fork()
    first.append([user("y" * 1000)])
    assert first.bytes == held_bytes([parent, first])
    second = parent.fork()
    second.append([user("z")])
    assert first.bytes + second.bytes == held_bytes([parent, first, second])


def test_another_preamble_starts_over():
    """Instructions are not inherited: under the same preamble a context is forked, under another rebuilt."""
    parent = Context.full([user("hi")], Preamble("be brief"))
    same, missing = parent.continued(Preamble("be brief"))
    assert (parent.tokens_from(0), ()) == (same.tokens_from(0), missing)
    other, missing = parent.continued(Preamble("be long"))
    other.append(missing)
    assert Context.full([user("hi")], Preamble("be long")).tokens_from(0) == other.tokens_from(0)


def test_stopping_between_slices_leaves_whole_items():
    """A context whose extension was dropped has the finished items and goes on from there."""
    context = Context(slice_bytes=1000)
    steps = context.extend_in_slices([user("first"), user("word " * 40_000)])
    next(steps)
    steps.close()
    assert Context.full([user("first")]).tokens_from(0) == context.tokens_from(0)
    context.append([user("next")])
    assert Context.full([user("first"), user("next")]).tokens_from(0) == context.tokens_from(0)


def test_long_items_yield_by_text_and_many_small_ones_by_number():
    """Between two yields lies about one slice of work, be it one long item or many tiny ones."""
    slice_bytes = 64 * 1024
    long = Context(slice_bytes=slice_bytes)
    slices = 16
    assert slices == sum(1 for _ in long.extend_in_slices([user("x" * slices * slice_bytes)]))
    many = Context(slice_bytes=slice_bytes)
    yields = sum(1 for _ in many.extend_in_slices([user("x")] * 1000))
    assert 1000 * ITEM_BYTES // slice_bytes == yields


def test_rendered_pieces_are_bounded():
    """A piece of one item stands for less than a slice and one piece of the vocabulary."""
    pieces = list(render_item(user("中" * 100_000), slice_bytes=1000))
    assert len(pieces) >= 6
    assert all(len(piece) <= 16 * 1024 + 8 for piece in pieces)


def calls_of_append(context):
    """How many functions are called to append one item."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        context.append([user("one more")])
    finally:
        sys.setprofile(None)
    return count


def test_appending_does_not_look_at_what_is_there():
    """To append one item takes as many steps at 2,000 items as at two."""
    short, long = Context.full([user("x")] * 2), Context.full([user("x")] * 2000)
    assert calls_of_append(short) == calls_of_append(long)


def test_a_fork_in_a_chain_of_turns_copies_nothing():
    """Whoever goes on from the newest state shares the buffer with it: memory grows by the new items only."""
    context, chain = Context.full([user("x" * 1000)]), []
    for turn in range(50):
        chain.append(context)
        context = context.fork()
        context.append([user(f"turn {turn}")])
    assert context.bytes == held_bytes([*chain, context])
