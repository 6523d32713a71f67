"""The assembly: whatever parts a sampler sends, the events are in the one legal order and the items say what was sampled.

`Checker` is a small reading of the rules N2, I1 to I9 and C1 to C6, independent of the engine's own tables;
beside it each event is sent by a real `Record`, which knows the order of the response.
"""

import sys
from collections import defaultdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.assembly import Assembly
from engine.samplers.base import CallEnd, CallInput, CallStart, Text, Thought
from engine.stages import Tool, ToolTable
from protocol import events
from protocol.dialects import APPEND, CREATE, INJECT
from protocol.errors import LocalProtocolError
from protocol.items import CustomToolCall, FunctionCall, McpCall, Message, Reasoning, text_of
from protocol.record import Record

TOOLS = ToolTable(
    client={
        (None, "f"): Tool("function", "f"),
        (None, "raw"): Tool("custom", "raw"),
        ("ns", "f"): Tool("function", "f", "ns"),
    },
    hosted={"label": frozenset({"hosted"})},
)
KNOWN = "call_of_the_chain"


class Checker:
    """Follows the item events of one response and asserts the rules; knows wire types only."""

    def __init__(self) -> None:
        self.items: list = []
        self.ids: set[str] = set()
        self.call_ids: set[str] = set()
        self.added = None
        self.text, self.part, self.closed_text, self.closed_part = [], None, None, None

    def take(self, event) -> None:
        kind = event.type.removeprefix("response.")
        if kind == "output_item.added":
            self._added(event)
            return
        assert self.added is not None, f"I1, I8: {kind} while no item is open"
        assert len(self.items) == event.output_index, f"N2: {kind}"
        if kind == "output_item.done":
            self._done(event.item)
            return
        assert self.added.id == event.item_id, f"I2: {kind}"
        getattr(self, "_" + kind.replace(".", "_"))(event)

    def _added(self, event) -> None:
        item = event.item
        assert self.added is None, "I9: two items are open"
        assert len(self.items) == event.output_index, "N2"
        assert item.id not in self.ids, "I2: an id twice"
        assert item.status == "in_progress", "I3"
        self.ids.add(item.id)
        if isinstance(item, Message):
            assert ("assistant", ()) == (item.role, item.content), "I3, C1"
        elif isinstance(item, Reasoning):
            assert ((), ()) == (item.summary, item.content), "I3"
        elif isinstance(item, FunctionCall | CustomToolCall):
            assert "" not in (item.name, item.call_id), "I3"
            assert item.call_id not in self.call_ids | {KNOWN}, "I7"
            self.call_ids.add(item.call_id)
            assert "" == self._argument(item), "I3, C5"
        else:
            assert ("", None, None) == (item.arguments, item.output, item.error), "I3"
        self.added = item
        self.text, self.part, self.closed_text, self.closed_part = [], None, None, None

    @staticmethod
    def _argument(item) -> str:
        return item.input if isinstance(item, CustomToolCall) else item.arguments

    def _content_part_added(self, event) -> None:
        assert self.part is None, "C2"
        assert (0, "") == (event.content_index, event.part.text), "N3, C1"
        self.part = event.part.type

    def _piece(self, event, *kinds) -> None:
        assert isinstance(self.added, kinds), "C4"
        assert self.closed_text is None, "C2"
        assert event.delta, "an empty delta says nothing"
        self.text.append(event.delta)

    def _close_text(self, text) -> None:
        assert self.closed_text is None, "C2, C6: closed twice"
        assert "".join(self.text) == text, "C3, C5"
        self.closed_text = text

    def _output_text_delta(self, event) -> None:
        assert "output_text" == self.part, "C1, C4"
        self._piece(event, Message)

    def _reasoning_text_delta(self, event) -> None:
        assert "reasoning_text" == self.part, "C1, C4"
        self._piece(event, Reasoning)

    def _output_text_done(self, event) -> None:
        self._close_text(event.text)

    _reasoning_text_done = _output_text_done

    def _content_part_done(self, event) -> None:
        assert self.closed_text is not None, "C2"
        assert self.closed_part is None, "C2"
        assert (self.part, self.closed_text) == (event.part.type, event.part.text), "C3"
        self.closed_part = event.part

    def _function_call_arguments_delta(self, event) -> None:
        self._piece(event, FunctionCall)

    def _custom_tool_call_input_delta(self, event) -> None:
        self._piece(event, CustomToolCall)

    def _mcp_call_arguments_delta(self, event) -> None:
        self._piece(event, McpCall)

    def _function_call_arguments_done(self, event) -> None:
        assert self.added.name == event.name, "I5"
        self._close_text(event.arguments)

    def _custom_tool_call_input_done(self, event) -> None:
        self._close_text(event.input)

    def _mcp_call_arguments_done(self, event) -> None:
        self._close_text(event.arguments)

    def _mcp_call_in_progress(self, event) -> None:
        assert not self.text, "hosted calls begin before their arguments"

    def _mcp_call_completed(self, event) -> None:
        assert self.closed_text is not None, "C6"

    _mcp_call_failed = _mcp_call_completed

    def _done(self, item) -> None:
        same = ("id", "type", "role", "name", "call_id", "namespace", "server_label", "agent")
        for name in same:
            assert getattr(self.added, name, None) == getattr(item, name, None), f"I5: {name}"
        assert self.closed_text is not None, "C2, C6"
        if isinstance(item, Message | Reasoning):
            assert self.closed_part is not None, "C2"
            assert (self.closed_part,) == item.content, "C3"
        else:
            assert self.closed_text == self._argument(item), "C5"
        self.items.append(item)
        self.added = None


class Run:
    """An assembly with a record and a checker behind it."""

    def __init__(self, dialect=APPEND) -> None:
        self.record = Record("resp_1", dialect)
        self.checker = Checker()
        self.events: list = []
        self._ids: defaultdict[str, int] = defaultdict(int)
        response = events.Response("resp_1", 1, "m")
        self.record.send(events.ResponseCreated(response))
        self._chain = {KNOWN}
        self.assembly = Assembly(self.emit, self.new_id, dialect, TOOLS, self._chain.__contains__)
        self.assembly.begin_segment()

    def begin_segment(self) -> None:
        """The next one; the chain knows the calls of those before."""
        self._chain |= self.checker.call_ids
        self.assembly.begin_segment()

    def emit(self, event) -> None:
        number = self.record.next_number
        self.record.send(event)
        assert number + 1 == self.record.next_number
        self.checker.take(event)
        self.events.append(event)

    def new_id(self, prefix: str) -> str:
        self._ids[prefix] += 1
        return f"{prefix}_new_{self._ids[prefix]}"

    def play(self, parts) -> None:
        for part in parts:
            if isinstance(part, Text):
                self.assembly.text(part.text)
            elif isinstance(part, Thought):
                self.assembly.thought(part.text)
            elif isinstance(part, CallStart):
                self.assembly.call_start(part)
            elif isinstance(part, CallInput):
                self.assembly.call_input(part)
            else:
                self.assembly.call_end(part.index)

    def types(self) -> list[str]:
        return [event.type.removeprefix("response.") for event in self.events]


pieces = st.text(max_size=3) | st.just("")
names = st.sampled_from(
    [
        ("f", None),
        ("f", "ns"),
        ("raw", None),
        ("hosted", None),
        ("hosted", "label"),
        ("nobody", None),
        ("f", "else"),
    ]
)
offered_ids = st.sampled_from([None, "", "call_0", "call_1", KNOWN])


@st.composite
def segments(draw: st.DrawFn):
    """The parts of a segment as any sampler may send them: prose, and calls whose pieces alternate."""
    parts, alive, index = [], [], 0
    for _ in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(["text", "thought", "start", "input", "input", "end"]))
        if kind in ("text", "thought"):
            parts.append((Text if kind == "text" else Thought)(draw(pieces)))
            alive = []  # prose ends all calls
        elif kind == "start":
            name, namespace = draw(names)
            parts.append(CallStart(index, name, namespace, draw(offered_ids)))
            alive.append(index)
            index += 1
        elif alive:
            which = draw(st.sampled_from(alive))
            if kind == "input":
                parts.append(CallInput(which, draw(pieces)))
            else:
                parts.append(CallEnd(which))
                alive.remove(which)
    return parts


def is_hosted(start) -> bool:
    return start.name == "hosted"


def said_by(parts):
    """What a naive reader finds in the parts: texts of prose runs, then of calls by kind."""
    prose, calls = [], {}
    previous = None
    for part in parts:
        if isinstance(part, Text | Thought):
            if previous is not type(part):
                prose.append((type(part), []))
            prose[-1][1].append(part.text)
        elif isinstance(part, CallStart):
            calls[part.index] = (part, [])
        elif isinstance(part, CallInput):
            calls[part.index][1].append(part.text)
        previous = (
            type(part)
            if isinstance(part, Text | Thought)
            else previous
            if isinstance(part, CallInput | CallEnd)
            else None
        )
    texts = [(kind, "".join(found)) for kind, found in prose]
    client = [
        (start.name, start.namespace, "".join(found))
        for start, found in calls.values()
        if not is_hosted(start)
    ]
    hosted = ["".join(found) or "{}" for start, found in calls.values() if is_hosted(start)]
    return texts, client, hosted


@given(
    drawn=st.lists(segments(), min_size=1, max_size=3),
    dialect=st.sampled_from([APPEND, INJECT, CREATE]),
    failing=st.booleans(),
)
@example(
    [[CallStart(0, "f", call_id="x"), CallEnd(0), CallStart(1, "f", call_id="x"), CallEnd(1)]], APPEND, False
)
@example([[CallStart(0, "hosted"), CallInput(0, "")]], APPEND, False)
@example(
    [[CallStart(0, "f"), CallStart(1, "raw"), CallInput(1, "b"), CallInput(0, "a"), CallEnd(1)]],
    APPEND,
    False,
)
def test_any_parts_become_a_legal_stream_that_says_what_was_sampled(drawn, dialect, failing):
    """The events obey the rules, the items are those of the events, and their texts are the parts' concatenations."""
    run = Run(dialect)
    for parts in drawn:
        run.begin_segment()
        before = len(run.assembly.items)
        run.play(parts)
        run.assembly.end_segment(final=True)
        client_calls = run.assembly.client_calls
        for call in run.assembly.hosted:
            run.assembly.write_hosted_start(call)
            run.assembly.write_hosted_end(call, None if failing else "out", "no" if failing else None)
        items = run.assembly.items[before:]
        texts, client, hosted = said_by(parts)
        kinds = {Message: Text, Reasoning: Thought}
        actual = (
            [(kinds[type(i)], text_of(i.content)) for i in items if isinstance(i, Message | Reasoning)],
            [
                (i.name, i.namespace, i.input if isinstance(i, CustomToolCall) else i.arguments)
                for i in items
                if isinstance(i, FunctionCall | CustomToolCall)
            ],
            [i.arguments for i in items if isinstance(i, McpCall)],
            client_calls,
        )
        filled = [(n, ns, text if (n, ns) == ("raw", None) else text or "{}") for n, ns, text in client]
        assert (texts, filled, hosted, len(client)) == actual
    assert run.checker.items == run.assembly.items
    assert None is run.checker.added
    statuses = {item.status for item in run.assembly.items if not isinstance(item, McpCall)}
    assert statuses <= {"completed"}


@given(parts=segments(), at=st.integers(0, 14))
def test_a_cut_leaves_one_incomplete_item_at_most_and_it_is_the_last(parts, at):
    """Wherever a limit ends the sampling, the stream is legal, the open item is done as incomplete, the rest is whole."""
    run = Run()
    run.play(parts[:at])
    was_open = run.checker.added is not None
    run.assembly.cut()
    statuses = [item.status for item in run.assembly.items]
    expected = ["completed"] * (len(statuses) - was_open) + ["incomplete"] * was_open
    assert (expected, None, []) == (statuses, run.checker.added, run.assembly.hosted)
    assert run.checker.items == run.assembly.items


def test_a_message_is_eight_events_at_least():
    """Added, part added, deltas, text done, part done, item done."""
    run = Run()
    run.play([Text("Hel"), Text(""), Text("lo")])
    run.assembly.end_segment(final=True)
    expected = [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert expected == run.types()


def test_alternating_pieces_give_two_whole_calls():
    """The second call is held while the first is open and then written at once, in the order of their starts."""
    run = Run()
    run.play(
        [CallStart(0, "f"), CallStart(1, "raw"), CallInput(0, "{"), CallInput(1, "x"), CallInput(0, "}")]
    )
    assert [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
    ] == run.types()
    run.play([CallEnd(1), CallInput(0, " "), CallEnd(0)])
    assert [("f", "{} "), ("raw", "x")] == [
        (item.name, getattr(item, "arguments", None) or item.input) for item in run.assembly.items
    ]


def test_a_call_without_arguments_has_an_empty_object():
    """A function call that was given nothing has one delta `{}`; a custom call stays empty."""
    run = Run()
    run.play([CallStart(0, "f"), CallEnd(0), CallStart(1, "raw"), CallEnd(1)])
    assert "{}" == run.assembly.items[0].arguments
    assert "" == run.assembly.items[1].input
    assert 1 == sum(isinstance(event, events.Delta) for event in run.events)


def test_a_name_nobody_listed_is_the_clients_function():
    """A call of an unknown tool goes to the client as it is."""
    run = Run()
    run.play([CallStart(0, "nobody", "where"), CallEnd(0)])
    item = run.assembly.items[0]
    assert (FunctionCall, "nobody", "where", 1) == (
        type(item),
        item.name,
        item.namespace,
        run.assembly.client_calls,
    )


def test_a_backends_own_id_is_kept_only_where_it_is_new():
    """Ids of the chain and of this response are replaced; others stay."""
    run = Run()
    for index, offered in enumerate(["call_0", "call_0", KNOWN, None, "call_1"]):
        run.play([CallStart(index, "f", call_id=offered), CallEnd(index)])
    expected = ["call_0", "call_new_1", "call_new_2", "call_new_3", "call_1"]
    assert expected == [item.call_id for item in run.assembly.items]


def test_a_hosted_call_is_written_when_the_segment_is_over():
    """Its item stays open while the tool runs, after the calls that a client must run were announced."""
    run = Run()
    run.play([CallStart(0, "hosted"), CallInput(0, "{}"), CallEnd(0), CallStart(1, "f"), CallEnd(1)])
    run.assembly.end_segment(final=True)
    (call,) = run.assembly.hosted
    assert ("label", "hosted", "{}") == (call.label, call.name, call.arguments)
    run.assembly.write_hosted_start(call)
    assert McpCall is type(run.checker.added)
    run.assembly.write_hosted_end(call, "noon", None)
    assert [FunctionCall, McpCall] == [type(item) for item in run.assembly.items]
    assert ("completed", "noon", None) == (
        run.assembly.items[1].status,
        run.assembly.items[1].output,
        run.assembly.items[1].error,
    )


def test_a_hosted_call_that_failed_says_so():
    """An error makes the item `failed`, with its own event."""
    run = Run()
    run.play([CallStart(0, "hosted")])
    run.assembly.end_segment(final=True)
    run.assembly.write_hosted_start(run.assembly.hosted[0])
    run.assembly.write_hosted_end(run.assembly.hosted[0], None, "broken")
    assert ("failed", "mcp_call.failed") == (run.assembly.items[0].status, run.types()[-2])


@pytest.mark.parametrize(
    ("dialect", "phases", "agent"),
    [(INJECT, ["commentary", "final_answer"], INJECT.agent), (APPEND, [None, None], None)],
)
def test_phase_and_agent_are_for_inject_alone(dialect, phases, agent):
    """A message before a call is commentary, the last is the answer; other forms do not say."""
    run = Run(dialect)
    run.play([Text("first"), CallStart(0, "f"), CallEnd(0), Text("last")])
    run.assembly.end_segment(final=True)
    items = run.assembly.items
    assert (phases, {agent}) == ([items[0].phase, items[2].phase], {item.agent for item in items})


def test_prose_between_thoughts_splits_them():
    """Text ends a thought and a thought ends text; each run is one item."""
    run = Run()
    run.play([Thought("a"), Thought("b"), Text("c"), Thought("d")])
    run.assembly.end_segment(final=True)
    assert [(Reasoning, "ab"), (Message, "c"), (Reasoning, "d")] == [
        (type(item), text_of(item.content)) for item in run.assembly.items
    ]


def test_input_of_a_call_that_never_began_is_an_error():
    """A sampler that invents an index is stopped by name, and nothing was said."""
    run = Run()
    with pytest.raises(KeyError, match="7"):
        run.play([CallInput(7, "x")])
    assert [] == run.events


def test_a_new_segment_forgets_the_calls_of_the_last():
    """Counts and held calls belong to one segment."""
    run = Run()
    run.play([CallStart(0, "f"), CallEnd(0), CallStart(1, "hosted")])
    run.assembly.end_segment(final=True)
    run.begin_segment()
    assert (0, []) == (run.assembly.client_calls, run.assembly.hosted)


def test_an_item_is_among_the_items_before_its_done_is_sent():
    """Whoever answers a finished call at once finds it there."""
    seen = []
    run = Run()

    def emit(event) -> None:
        if isinstance(event, events.OutputItemDone):
            seen.append(run.assembly.items[-1] == event.item)

    run.assembly = Assembly(emit, run.new_id, APPEND, TOOLS, lambda _: False)
    run.play([Text("a"), CallStart(0, "f"), CallEnd(0)])
    assert [True, True] == seen


def test_the_record_refuses_what_the_checker_forbids_after_the_end():
    """The record behind these tests is a real one: after the terminal event it sends no item."""
    run = Run()
    run.record.send(events.ResponseCompleted(events.Response("resp_1", 1, "m", "completed")))
    with pytest.raises(LocalProtocolError, match="illegal in state COMPLETED"):
        run.play([Text("late")])


def work_of(parts) -> int:
    """Python and C calls that assembling takes: a count, so the same on every machine."""
    run, calls = Run(), 0
    run.assembly = Assembly(lambda _: None, run.new_id, APPEND, TOOLS, lambda _: False)

    def count(_frame, _event, _argument) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        run.play(parts)
        run.assembly.end_segment(final=True)
    finally:
        sys.setprofile(None)
    return calls


def alternating(count: int) -> list:
    return [
        CallStart(0, "f"),
        CallStart(1, "raw"),
        *(CallInput(number % 2, "x") for number in range(count)),
        CallEnd(1),
        CallEnd(0),
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda count: [Text("x")] * count,
        alternating,
        lambda count: [
            part for i in range(count // 3) for part in (CallStart(i, "f"), CallInput(i, "x"), CallEnd(i))
        ],
    ],
    ids=["text", "alternating", "calls"],
)
def test_the_work_grows_as_the_parts_do(make):
    """Twice the parts are twice the calls of functions, not more."""
    once, twice = work_of(make(600)), work_of(make(1200))
    assert twice <= 2 * once


def test_nothing_is_joined_twice():
    """The characters that leave in events and items are so many times those that came in, however many pieces."""

    def characters(count: int) -> int:
        run = Run()
        run.play(alternating(count))
        run.assembly.end_segment(final=True)
        return sum(len(getattr(event, "delta", "")) for event in run.events)

    assert [1000, 2000] == [characters(1000), characters(2000)]
