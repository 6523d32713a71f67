"""The stages: each incremental form equals its full form, and refusals have the catalogue's words."""

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.classifier import DEFAULT_PATTERNS, NEW_STREAM
from engine.models import ModelTable
from engine.stages import (
    Account,
    CallLedger,
    Classifier,
    ClassifierState,
    Classify,
    Match,
    Persist,
    PersistedRollout,
    Resolve,
    RolloutUsage,
    Segment,
    Streams,
    Tool,
    ToolChoice,
    ToolTable,
    Validate,
    tools_added_by,
)
from engine.tool_table import MAX_SCHEMA_BYTES, SchemaCheck
from protocol.errors import RemoteProtocolError
from protocol.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    Message,
    Opaque,
    Reasoning,
    ToolSearchCall,
    ToolSearchOutput,
    output_for,
)
from protocol.usage import Usage

HOSTED = {"clock": ("now", "zone"), "maths": ("add", "now")}


def answer(call, *arguments, **options):
    """What a refusal says, or None."""
    try:
        call(*arguments, **options)
    except RemoteProtocolError as error:
        return error.code, error.message, error.param, error.status
    return None


def function(name, **fields):
    return {"type": "function", "name": name, **fields}


# --- tools


def test_functions_customs_and_namespaces_are_callable():
    """A table knows each client tool by namespace and name, and nothing else."""
    tools = [
        function("f", parameters={"type": "object"}),
        {"type": "custom", "name": "patch", "format": {"type": "text"}},
        {"type": "namespace", "name": "crm", "tools": [function("f2"), {"type": "custom", "name": "c2"}]},
        {"type": "tool_search", "execution": "client"},
        {"type": "web_search_preview"},
        {"type": "invented_last_month", "name": "x"},
    ]
    table = Validate().tools(tools)
    expected = {
        ("f", None): "function",
        ("patch", None): "custom",
        ("tool_search", None): "search",
        ("f2", "crm"): "function",
        ("c2", "crm"): "custom",
    }
    names = ["f", "patch", "f2", "c2", "x", "tool_search", "web_search_preview"]
    kinds = {(name, space): table.kind_of(name, space) for name in names for space in (None, "crm")}
    assert expected == {key: kind for key, kind in kinds.items() if kind is not None}


def test_of_two_tools_with_one_name_the_later_wins():
    """A name stands for the last tool that has it, in one list and over several."""
    validate = Validate()
    table = validate.tools([function("f"), {"type": "custom", "name": "f"}])
    expected = "custom"
    assert expected == table.kind_of("f")
    assert validate.tools([function("f")], table) == validate.tools([function("f")])


def test_hosted_tools_of_a_known_label_are_callable_where_allowed():
    """An `mcp` tool opens the engine's own tools of its label, or those that it allows; other labels open nothing."""
    table = Validate(HOSTED).tools(
        [
            {"type": "mcp", "server_label": "clock", "allowed_tools": ["now", "never"]},
            {
                "type": "mcp",
                "server_label": "stranger",
                "server_url": "https://example.com",
                "authorization": "x",
            },
        ]
    )
    assert ToolTable({}, {"clock": frozenset({"now"})}) == table
    expected = Tool("hosted", "now", "clock")
    assert expected == table.find("now") == table.find("now", "clock")
    assert not any(table.kind_of(*key) for key in (("zone",), ("never",), ("now", "stranger")))


def test_a_bare_hosted_name_means_the_later_label_and_the_clients_tool_first():
    """Without a label a call means the client's own tool, then the last label that has the name."""
    labels = [{"type": "mcp", "server_label": label} for label in ("clock", "maths")]
    validate = Validate(HOSTED)
    found = [
        validate.tools(tools).find("now")
        for tools in (labels, labels[::-1], [*labels, labels[0]], [function("now"), *labels])
    ]
    expected = ["maths", "clock", "clock", None]
    assert expected == [tool.namespace for tool in found]
    again = validate.tools(labels[:1], validate.tools(labels))
    assert found[2] == again.find("now")


def test_allowed_tools_may_be_a_filter_object():
    """`allowed_tools` with `tool_names` means the same as the plain list."""
    mcp = {"type": "mcp", "server_label": "clock"}
    plain = Validate(HOSTED).tools([{**mcp, "allowed_tools": ["zone"]}])
    assert plain == Validate(HOSTED).tools([{**mcp, "allowed_tools": {"tool_names": ["zone"]}}])
    assert frozenset({"zone"}) == plain.hosted["clock"]


@pytest.mark.parametrize(
    ("tool", "code", "param"),
    [
        ({}, "missing_required_parameter", "tools[0].type"),
        ({"type": 1}, "invalid_type", "tools[0].type"),
        ({"type": "function"}, "missing_required_parameter", "tools[0].name"),
        (function(""), "invalid_value", "tools[0].name"),
        ({"type": "custom", "name": 5}, "invalid_type", "tools[0].name"),
        (function("f", parameters="x"), "invalid_type", "tools[0].parameters"),
        (function("f", parameters={"type": "objekt"}), "invalid_value", "tools[0].parameters"),
        ({"type": "mcp"}, "missing_required_parameter", "tools[0].server_label"),
        (
            {"type": "mcp", "server_label": "clock", "allowed_tools": "now"},
            "invalid_type",
            "tools[0].allowed_tools",
        ),
        ({"type": "namespace", "name": "n", "tools": {}}, "invalid_type", "tools[0].tools"),
        ({"type": "namespace", "name": "n", "tools": [1]}, "invalid_type", "tools[0].tools[0]"),
        (
            {"type": "namespace", "name": "n", "tools": [{"type": "custom"}]},
            "missing_required_parameter",
            "tools[0].tools[0].name",
        ),
        ({"type": "custom", "name": "c", "format": "text"}, "invalid_type", "tools[0].format"),
        ({"type": "custom", "name": "c", "format": {"type": "xml"}}, "invalid_value", "tools[0].format.type"),
        (
            {
                "type": "custom",
                "name": "c",
                "format": {"type": "grammar", "syntax": "bnf", "definition": "x"},
            },
            "invalid_value",
            "tools[0].format.syntax",
        ),
        (
            {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark"}},
            "missing_required_parameter",
            "tools[0].format.definition",
        ),
    ],
)
def test_a_tool_without_meaning_is_refused_by_its_path(tool, code, param):
    """Each fault of a tool gives a 400 whose `param` leads to it."""
    found = answer(Validate(HOSTED).tools, [tool])
    assert (code, param, 400) == (found[0], *found[2:])


def test_a_wrong_schema_is_refused_with_the_place_in_it():
    """The words of the refusal say where the schema is wrong and by which rule."""
    schema = {"type": "object", "properties": {"a": {"type": "objekt"}}}
    message = "Invalid value for 'tools[0].parameters': 'anyOf' fails at '.properties.a.type'."
    assert message == answer(Validate().tools, [function("f", parameters=schema)])[1]


def test_older_dialects_of_json_schema_are_accepted():
    """A tuple of items is right in draft 7, which tool servers declare, and wrong without declaration."""
    schema = {"type": "array", "items": [{"type": "string"}]}
    assert answer(Validate().tools, [function("f", parameters=schema)]) is not None
    draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    assert answer(Validate().tools, [function("f", parameters=draft_7)]) is None
    for unknown in ("https://example.com/own", [1]):
        odd = {"$schema": unknown, "type": "object"}
        assert (answer(Validate().tools, [function("f", parameters=odd)]) is None) == isinstance(unknown, str)


@pytest.mark.parametrize("depth", [150, 400])
def test_a_schema_nested_too_deeply_is_refused(depth):
    """Depth that would exhaust the stack of checker or encoder is the client's fault, not ours."""
    schema = {}
    for _ in range(depth):
        schema = {"not": schema}
    message = "Invalid value for 'tools[0].parameters': the schema is nested too deeply."
    assert message == answer(Validate().tools, [function("f", parameters=schema)])[1]


def test_a_schema_above_the_bound_is_refused_unseen():
    """A schema that would take long to check is refused with both sizes."""
    validate = Validate()
    schema = {"description": "x" * MAX_SCHEMA_BYTES}
    size = len(orjson.dumps(schema))
    message = f"Invalid value for 'tools[0].parameters': the schema has {size} bytes, the limit is {MAX_SCHEMA_BYTES}."
    assert message == answer(validate.tools, [function("f", parameters=schema)])[1]
    assert not validate.schemas.checked


def test_the_same_schema_is_checked_once():
    """Schemas are remembered by content, whatever the order of their keys; faults as well."""
    validate = Validate()
    right = [{"type": "object", "title": "t"}, {"title": "t", "type": "object"}]
    for schema in (*right, *right, {"type": 1}, {"type": 1}):
        answer(validate.tools, [function("f", parameters=schema)])
    expected = 2
    assert expected == validate.schemas.checked
    assert answer(validate.tools, [function("f", parameters={"type": 1})]) is not None


def test_the_memory_of_schemas_is_bounded():
    """Beyond the bound the schema that was used longest ago is forgotten."""
    schemas = SchemaCheck(max_entries=2)
    for title in ("a", "b", "a", "c", "a", "b"):
        schemas.check({"title": title}, "x")
    expected = 4  # a, b, c and b again
    assert expected == schemas.checked


def test_many_tools_are_read_in_slices():
    """Between any two tools there is a place to let others run, inside namespaces too."""
    tools = [function("f"), {"type": "namespace", "name": "n", "tools": [function("a"), function("b")]}]
    assert sum(1 for _ in Validate().tools_in_slices(tools)) >= 3


tool_lists = st.lists(
    st.one_of(
        st.builds(function, st.sampled_from("abc")),
        st.builds(lambda name: {"type": "custom", "name": name}, st.sampled_from("abc")),
        st.builds(
            lambda space, name: {"type": "namespace", "name": space, "tools": [function(name)]},
            st.sampled_from("nm"),
            st.sampled_from("abc"),
        ),
        st.builds(
            lambda label, allowed: {"type": "mcp", "server_label": label, "allowed_tools": allowed},
            st.sampled_from(["clock", "maths", "other"]),
            st.one_of(st.none(), st.lists(st.sampled_from(["now", "add"]))),
        ),
    ),
    max_size=8,
)


@given(tool_lists, st.data())
def test_tools_added_in_batches_give_the_table_of_all(tools, data):
    """A table grown over any split of the tools equals the one read at once, in its bare hosted names too."""
    validate, table, rest = Validate(HOSTED), ToolTable(), tools
    full = validate.tools(tools)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        table, rest = validate.tools(rest[:size], table), rest[size:]
    assert full == table
    assert list(full.hosted) == list(table.hosted)


def test_items_may_bring_tools():
    """`additional_tools` and `tool_search_output` carry tools, other items and broken lists none."""
    tools = [function("f")]
    assert (tools[0],) == tools_added_by(Opaque({"type": "additional_tools", "tools": [*tools, 5]}))
    assert (tools[0],) == tools_added_by(Opaque({"type": "tool_search_output", "tools": tools}))
    for item in (
        Opaque({"type": "other", "tools": tools}),
        Opaque({"type": "additional_tools", "tools": 5}),
        Message(role="user", content="x"),
    ):
        assert not tools_added_by(item)


# --- tool_choice

CHOICE_TABLE = Validate(HOSTED).tools(
    [
        function("f"),
        {"type": "custom", "name": "c"},
        {"type": "namespace", "name": "n", "tools": [function("g")]},
        {"type": "mcp", "server_label": "clock"},
    ]
)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", frozenset({(None, "f")}))),
        ({"type": "custom", "name": "c"}, ToolChoice("required", frozenset({(None, "c")}))),
        (
            {"type": "function", "name": "g", "namespace": "n"},
            ToolChoice("required", frozenset({("n", "g")})),
        ),
        ({"type": "web_search"}, ToolChoice("auto")),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [
                    {"type": "custom", "name": "c"},
                    {"type": "mcp", "server_label": "clock", "name": "now"},
                    {"type": "web_search"},
                ],
            },
            ToolChoice("required", frozenset({(None, "c"), ("clock", "now")})),
        ),
        (
            {"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "clock"}]},
            ToolChoice("auto", frozenset({("clock", "now"), ("clock", "zone")})),
        ),
    ],
)
def test_a_tool_choice_is_a_mode_and_a_limit(choice, expected):
    """Each shape of the reference becomes a mode and, where tools are named, a hard limit."""
    assert expected == Validate().tool_choice(choice, CHOICE_TABLE)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "x"},
        {"type": "custom", "name": "x"},
        {"type": "function", "name": "x", "namespace": "n"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
    ],
)
def test_a_named_tool_that_is_not_offered_is_refused(choice):
    """The refusal has the words of the reference and points at `tool_choice`."""
    expected = ("invalid_value", "Tool choice 'x' not found in 'tools' parameter.", "tool_choice", 400)
    assert expected == answer(Validate().tool_choice, choice, CHOICE_TABLE)


def allowed(*tools):
    return {"type": "allowed_tools", "tools": list(tools)}


@pytest.mark.parametrize(
    ("choice", "code", "param"),
    [
        ("sometimes", "invalid_value", "tool_choice"),
        ({}, "missing_required_parameter", "tool_choice.type"),
        ({"name": "f"}, "missing_required_parameter", "tool_choice.type"),
        ({"type": None, "name": "f"}, "invalid_type", "tool_choice.type"),
        ({"type": "custom", "name": "f"}, "invalid_value", "tool_choice"),
        ({"type": "function"}, "missing_required_parameter", "tool_choice.name"),
        ({"type": "custom", "name": 5}, "invalid_type", "tool_choice.name"),
        ({"type": "function", "name": ["f"]}, "invalid_type", "tool_choice.name"),
        ({"type": "function", "name": "g", "namespace": ["n"]}, "invalid_type", "tool_choice.namespace"),
        ({"type": "allowed_tools", "mode": "none", "tools": []}, "invalid_value", "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto"}, "invalid_type", "tool_choice.tools"),
        (allowed("f"), "invalid_type", "tool_choice.tools[0]"),
        (allowed({"name": "f"}), "missing_required_parameter", "tool_choice.tools[0].type"),
        (
            allowed(function("f"), {"type": "function"}),
            "missing_required_parameter",
            "tool_choice.tools[1].name",
        ),
        (allowed({"type": "custom", "name": 5}), "invalid_type", "tool_choice.tools[0].name"),
        (allowed({"type": "mcp"}), "missing_required_parameter", "tool_choice.tools[0].server_label"),
    ],
)
def test_a_tool_choice_of_no_known_shape_is_refused(choice, code, param):
    """A choice that means nothing, or a tool of another kind, is refused with its path."""
    refused = answer(Validate().tool_choice, choice, CHOICE_TABLE)
    assert (code, param) == (refused[0], refused[2])


def test_a_choice_limits_what_may_be_called():
    """`none` permits nothing, a limit permits its members, anything else permits all."""
    f, c = CHOICE_TABLE.find("f"), CHOICE_TABLE.find("c")
    choices = [ToolChoice("none"), ToolChoice("auto", frozenset({(None, "f")})), ToolChoice("required")]
    expected = [(False, False), (True, False), (True, True)]
    assert expected == [(choice.permits(f), choice.permits(c)) for choice in choices]


# --- the ledger of calls

call_ids = st.sampled_from(["a", "b"])
calls = st.one_of(
    st.builds(FunctionCall, call_id=call_ids, name=st.just("f"), arguments=st.just("{}")),
    st.builds(CustomToolCall, call_id=call_ids, name=st.just("c"), input=st.just("")),
    st.builds(ToolSearchCall, call_id=call_ids, arguments=st.just({})),
)
output_ids = st.sampled_from([None, "", "m1"])
outputs = st.one_of(
    st.builds(FunctionCallOutput, call_id=call_ids, output=st.just("1"), id=output_ids),
    st.builds(CustomToolCallOutput, call_id=call_ids, output=st.just("2"), id=output_ids),
    st.builds(ToolSearchOutput, call_id=call_ids, tools=st.just(())),
)
others = st.one_of(
    st.builds(Message, role=st.just("user"), content=st.just("x"), id=st.sampled_from([None, "m1", "m2"])),
    st.builds(
        Opaque, st.fixed_dictionaries({"type": st.just("compaction"), "id": st.sampled_from(["m1", 5])})
    ),
    st.just(Reasoning()),
)
answered = st.tuples(calls, output_ids).map(
    lambda drawn: [drawn[0], attrs.evolve(output_for(drawn[0], "3"), id=drawn[1])]
)
noted = st.just([Message(role="user", content="x", id="m1"), Reasoning(), ItemReference("m1")])
loose = st.one_of(calls, outputs, others, st.just(ItemReference("m2"))).map(lambda item: [item])


def ledger_items(max_size):
    """Mostly items that fit together, so that long inputs reach their end; some that do not."""
    groups = st.lists(st.one_of(answered, noted, others.map(lambda item: [item]), loose), max_size=max_size)
    return groups.map(lambda several: [item for group in several for item in group])


@given(ledger_items(6), st.data())
def test_checking_in_batches_equals_checking_all(conversation, data):
    """Over any split of the items the ledger meets the same first fault, or ends in the same state."""
    full, whole = CallLedger(), []
    full_answer = answer(lambda: whole.extend(full.admit(conversation)))
    ledger, kept, place, found = CallLedger(), [], 0, None
    while place < len(conversation) and found is None:
        size = data.draw(st.integers(1, len(conversation) - place))
        batch = conversation[place : place + size]
        found = answer(lambda batch=batch, place=place: kept.extend(ledger.admit(batch, start=place)))
        place += size
    assert full_answer == found
    if found is None:
        assert full == ledger
        assert whole == kept
        assert full.pending == ledger.pending


@given(ledger_items(3), ledger_items(3))
def test_a_refused_batch_changes_nothing(before, batch):
    """After a refusal the ledger is what it was, so the corrected batch may be sent."""
    ledger = CallLedger()
    answer(ledger.admit, before)
    copy = ledger.fork()
    if answer(ledger.admit, batch, all_answered=True) is not None:
        assert copy == ledger
    else:
        assert copy.fork() == copy
        assert not ledger.pending


def call(call_id):
    return FunctionCall(call_id=call_id, name="f", arguments="{}")


def output(call_id):
    return FunctionCallOutput(call_id=call_id, output="1")


@pytest.mark.parametrize(
    ("conversation", "expected"),
    [
        ([output("x")], (None, "No tool call found for function call output with call_id x.")),
        ([output("x"), call("x")], (None, "No tool call found for function call output with call_id x.")),
        (
            [call("x"), CustomToolCallOutput(call_id="x", output="")],
            (None, "No tool call found for function call output with call_id x."),
        ),
        ([call("x"), output("x"), output("x")], ("invalid_input", "Tool call 'x' already has an output.")),
        ([call("x"), call("y"), output("y")], (None, "No tool output found for function call x.")),
        ([ItemReference("msg_9")], (None, "Item with id 'msg_9' not found.")),
    ],
)
def test_faults_of_input_have_the_catalogues_words(conversation, expected):
    """What does not fit together is refused with `param` `input`."""
    assert (*expected, "input", 400) == answer(Validate().whole_context, conversation)


def test_a_call_id_may_be_used_again_once_it_is_answered():
    """Models that number their calls from zero each turn are served; two open calls with one id are not."""
    turn = [call("call_0"), output("call_0")]
    ledger = Validate().whole_context(turn + turn)
    assert ledger.has_call("call_0")
    assert not ledger.pending
    assert answer(CallLedger().admit, [call("call_0"), call("call_0")])[2] == "input[1].call_id"


def test_pending_calls_are_in_call_order():
    """The ledger lists open calls as they were called, a reopened one last."""
    ledger = CallLedger.full([call("a"), call("b"), output("a"), call("c"), call("a")])
    expected = ("b", "c", "a")
    assert expected == ledger.pending


def test_a_parents_calls_must_be_answered_by_the_create():
    """The ledger of the parent carries its open calls into the check of the next input."""
    parent = CallLedger.full([call("a")])
    validate = Validate()
    expected = (None, "No tool output found for function call a.", "input", 400)
    assert expected == answer(validate.context, parent, [Message(role="user", content="go on")])
    assert (output("a"),) == validate.context(parent, [output("a")])


def test_a_reference_to_an_item_of_the_context_adds_nothing():
    """The item it names is in the context already; rendering it twice would show the model two."""
    message = Message(role="user", content="x", id="m1")
    assert (message,) == CallLedger().admit([message, ItemReference("m1")])


def test_a_forked_ledger_is_independent():
    """Two continuations of one parent answer the same call without knowing of each other."""
    parent = CallLedger.full([call("a")])
    one, other = parent.fork(), parent.fork()
    one.admit([output("a")])
    expected = (("a",), (), ("a",))
    assert expected == (parent.pending, one.pending, other.pending)
    other.admit([output("a")])
    assert one == other != parent


# --- classify

PATTERNS = {"ab": "ab", "aba": "aba", "b": "b", "long": "abcabc", "case": "XyZ", "wide": "\uff5c😀"}
fragments = st.sampled_from([*PATTERNS.values(), *"abcxYZ\uff5c😀\u0130ßΣ", "abc", "bcab", "xy", "XYZ", "AB"])
streams = st.lists(st.lists(fragments, max_size=3).map("".join), max_size=8)


def found_by_looking(text):
    """The matches by definition: each place, each pattern."""
    lower = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    matches = [
        Match(name, start, start + len(spelling))
        for name, spelling in PATTERNS.items()
        for start in range(len(text))
        if lower.startswith(spelling.lower(), start)
    ]
    return sorted(matches, key=lambda match: (match.end, match.start))


@given(streams)
def test_matches_over_any_split_are_those_of_the_whole(pieces):
    """However a stream is cut, each match is found once, at its place in the stream, when its last character comes."""
    classifier, text = Classifier(PATTERNS), "".join(pieces)
    state, matches = NEW_STREAM, []
    for piece in pieces:
        before = state.read_characters
        state, found = classifier.classify(state, piece)
        assert all(before < match.end <= state.read_characters for match in found)
        matches += found
    assert found_by_looking(text) == matches
    assert matches == list(classifier.full(text))
    assert len(text) == state.read_characters
    assert len(state.tail) < max(map(len, PATTERNS.values()))


def test_a_state_can_be_continued_twice():
    """A fork goes on from its parent's state; neither sees the other's text."""
    classifier = Classifier({"x": "abc"})
    parent, _ = classifier.classify(NEW_STREAM, "ab")
    _, one = classifier.classify(parent, "c")
    _, other = classifier.classify(parent, "abc")
    assert ((Match("x", 0, 3),), (Match("x", 2, 5),)) == (one, other)


def test_input_and_output_are_two_streams():
    """A pattern may span two inputs, but not an input and an output."""
    classify, streams = Classify({"x": "abc"}), Streams()
    streams, nothing = classify.input_text(streams, "ab")
    streams, mixed = classify.output_text(streams, "c")
    streams, whole = classify.input_text(streams, "c")
    assert ((), (), (Match("x", 0, 3),)) == (nothing, mixed, whole)


def test_every_default_pattern_is_found():
    """The patterns that come with the engine all work, in capitals too, and every one has a match of its own."""
    classifier = Classifier()
    for name, spelling in DEFAULT_PATTERNS.items():
        assert name in {match.name for match in classifier.full(f"xx{spelling.upper()}xx")}
    assert not classifier.full("An ordinary sentence with <b>tags</b> and a|b.")


def test_a_classifier_without_patterns_finds_nothing():
    """No patterns is a legal choice; the stream's offset still moves."""
    state, matches = Classifier({}).classify(NEW_STREAM, "abc")
    expected = (3, ())
    assert expected == (state.read_characters, matches)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [({"a": ""}, "'a' is empty"), ({"a": "Xy", "b": "xY"}, "'a' and 'b' are the same text 'xY'")],
)
def test_patterns_without_meaning_are_refused(patterns, message):
    """An empty pattern matches everywhere and a double one hides another: both are configuration errors."""
    with pytest.raises(ValueError, match=message):
        Classifier(patterns)


def test_what_a_stream_keeps_does_not_grow():
    """After 4 MiB a state holds one character less than the longest pattern, so a piece costs what a first one does."""
    classifier, state = Classifier({"x": "a" * 40}), NEW_STREAM
    for _ in range(64):
        state, matches = classifier.classify(state, "b" * 65_536)
        assert not matches
    expected = ClassifierState(4 * 1024 * 1024, "b" * 39)
    assert expected == state


# --- account


@st.composite
def rollouts(draw):
    """Segments of a growing context: each finds what the one before left as cached, and adds fresh input."""
    segments, held = [], draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 6))):
        context = held + draw(st.integers(0, 50))
        output_tokens = draw(st.integers(0, 50))
        segments.append(
            Segment(
                input_tokens=context,
                cached_tokens=held,
                output_tokens=output_tokens,
                reasoning_tokens=draw(st.integers(0, output_tokens)),
            )
        )
        held = context + output_tokens
    return segments


@given(rollouts(), st.data())
def test_reports_add_up_to_the_totals(segments, data):
    """Whenever a rollout reports, sums of output and of fresh input are its totals, and each total is the true context."""
    account, reports = Account(), []
    for segment in segments:
        assert segment.usage == account.add(segment)
        if data.draw(st.booleans()):
            reports.append(account.report())
            assert segment.input_tokens + segment.output_tokens == reports[-1].total_tokens
    reports.append(account.report())
    totals = account.totals
    assert Account.full(segments) == totals
    assert totals.output_tokens == sum(usage.output_tokens for usage in reports)
    assert totals.reasoning_tokens == sum(usage.reasoning_tokens for usage in reports)
    assert totals.uncached_input_tokens == sum(usage.input_tokens - usage.cached_tokens for usage in reports)
    sizes = [usage.input_tokens for usage in reports[1:]]
    assert all(size >= usage.total_tokens for size, usage in zip(sizes, reports, strict=False))


def test_the_recorded_inject_response_is_reproduced():
    """Form B states the context at the start of the last segment, what was cached at first, and all output."""
    account = Account()
    account.add(Segment(input_tokens=1149, output_tokens=14))
    account.add(Segment(input_tokens=1176, cached_tokens=1163, output_tokens=6))
    expected = Usage(input_tokens=1176, cached_tokens=0, output_tokens=20)
    assert (expected, 1196) == (account.final_report(), account.final_report().total_tokens)


def test_append_segments_report_only_their_own_output():
    """Form A marks what was held as cached and still states the true size of the context."""
    account = Account()
    account.add(Segment(input_tokens=1149, output_tokens=14))
    first = account.report()
    account.add(Segment(input_tokens=1176, cached_tokens=1163, output_tokens=6, reasoning_tokens=2))
    assert Usage(input_tokens=1149, output_tokens=14) == first
    assert (
        Usage(input_tokens=1176, cached_tokens=1163, output_tokens=6, reasoning_tokens=2) == account.report()
    )


def test_a_report_without_sampling_costs_nothing():
    """A rollout cut while suspended reports its context as cached and no output; one that never began reports zeros."""
    account = Account()
    assert Usage() == account.report()
    account.add(Segment(input_tokens=10, output_tokens=5))
    account.report()
    assert Usage(input_tokens=15, cached_tokens=15) == account.report() == account.report()


def test_a_compaction_keeps_the_final_report_valid():
    """If the context shrank below what was cached at first, cached is what fits."""
    account = Account()
    account.add(Segment(input_tokens=100, cached_tokens=90, output_tokens=1))
    account.add(Segment(input_tokens=20, cached_tokens=0, output_tokens=1))
    assert Usage(input_tokens=20, cached_tokens=20, output_tokens=2) == account.final_report()


@pytest.mark.parametrize(
    "counts",
    [
        {"input_tokens": 1, "cached_tokens": 2},
        {"output_tokens": 1, "reasoning_tokens": 2},
        {"input_tokens": -1},
        {"cache_write_tokens": True},
        {"output_tokens": 1.0},
    ],
)
def test_contradictory_usage_cannot_be_made(counts):
    """Parts exceed no whole and counts are whole numbers; the error names the field."""
    with pytest.raises(ValueError, match=list(counts)[-1]):
        Usage(**counts)


def test_a_contradictory_segment_is_not_counted():
    """A sampler's wrong count is an error that leaves the account as it was."""
    account = Account()
    with pytest.raises(ValueError, match="cached_tokens 2 exceed input_tokens 1"):
        account.add(Segment(input_tokens=1, cached_tokens=2))
    assert (RolloutUsage(), Usage()) == (account.totals, account.final_report())


# --- resolve and persist


def test_a_name_is_resolved_once():
    """The second look-up gives the very same entry."""
    resolve = Resolve(ModelTable.built_in())
    assert resolve.model("test-model") is resolve.model("test-model")
    assert ModelTable.built_in().find("demo") == resolve.model("demo")


def test_the_memory_of_names_is_bounded():
    """A client that invents names fills no memory; refused names are not kept at all."""
    resolve = Resolve(ModelTable.built_in())
    for number in range(1000):
        resolve.model(f"model-{number}")
    assert answer(resolve.model, "")[2] == "model"
    assert len(resolve._found) <= 256


def test_a_finished_rollout_reaches_the_sink():
    """Persist hands the record on as it is; without a sink it keeps nothing and raises nothing."""
    stored = []
    record = PersistedRollout(
        response_id="resp_1", status="completed", items=(Message(role="user", content="x"),)
    )
    Persist(stored.append).rollout(record)
    Persist().rollout(record)
    assert [record] == stored
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        record.status = "failed"


def test_stages_have_names():
    """Each stage is named as the hook that counts it."""
    expected = ["resolve", "validate", "classify", "account", "persist"]
    assert expected == [stage.name for stage in (Resolve, Validate, Classify, Account, Persist)]


@pytest.mark.parametrize("item_id", [None, "", "m1"])
def test_an_output_alone_is_taken_as_among_others(item_id):
    """The shorter way for one output knows of it what the longer one does, also an id that says nothing."""
    items = [call("a"), attrs.evolve(output("a"), id=item_id)]
    ledger = CallLedger()
    for item in items:
        ledger.admit([item])
    assert CallLedger.full(items) == ledger
