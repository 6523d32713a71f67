"""protocol.pending: the validator of tool outputs, against a model made of lists."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.dialects import APPEND, INJECT, Dialect
from protocol.errors import RemoteProtocolError
from protocol.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Message,
    Opaque,
    OutputText,
    Reasoning,
)
from protocol.pending import PendingCalls

NAMES = ["append", "inject"]


def function(call_id: str) -> FunctionCall:
    return FunctionCall(call_id, "f", "{}", f"fc_{call_id}")


def custom(call_id: str) -> CustomToolCall:
    return CustomToolCall(call_id, "g", "", f"ctc_{call_id}")


def pending_calls(dialect: Dialect, *items: Item) -> PendingCalls:
    """What a response waits for after these items."""
    pending = PendingCalls("resp_1", dialect)
    for item in items:
        pending.finished(item)
    return pending


def refusal_of(pending: PendingCalls, *batch: Item) -> str:
    """The words with which a batch is refused; nothing may have changed."""
    before = (pending.call_ids, pending.held)
    with pytest.raises(RemoteProtocolError) as caught:
        pending.check(batch)
    assert (pending.call_ids, pending.held) == before
    assert (caught.value.code, caught.value.param, caught.value.status) == ("invalid_input", "input", 400)
    return caught.value.message


# --- against a model -------------------------------------------------------------------------------------------------


@attrs.define
class Naive:
    """The rules of reference 2.4, said once more and slowly."""

    dialect: Dialect
    announced: list[Any] = attrs.field(factory=list)
    answered: list[str] = attrs.field(factory=list)
    untaken: list[Any] = attrs.field(factory=list)

    def call(self, call_id: str) -> Any:
        return next((call for call in self.announced if call.call_id == call_id), None)

    def verdict(self, batch: Sequence[Any]) -> str | None:
        seen: list[str] = []
        for item in batch:
            if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
                call = self.call(item.call_id)
                fits = call is not None and item.type == call.type + "_output"
                if not fits:
                    return f"Tool call '{item.call_id}' is not pending on response 'resp_1'."
                if item.call_id in self.answered + seen:
                    return f"Tool call '{item.call_id}' already has an output."
                seen.append(item.call_id)
            elif self.dialect is INJECT:
                return f"Item of type '{item.type}' cannot be injected."
            elif not isinstance(item, Message) and self.call(item.call_id) is None:
                return f"Item of type '{item.type}' cannot be appended."
        return None

    def accept(self, batch: Sequence[Any]) -> None:
        kept = [item for item in batch if not isinstance(item, FunctionCall | CustomToolCall)]
        self.answered += [item.call_id for item in kept if not isinstance(item, Message)]
        self.untaken += kept

    def taken(self) -> list[Any]:
        order = [call.call_id for call in self.announced]
        outputs = [item for item in self.untaken if not isinstance(item, Message)]
        messages = [item for item in self.untaken if isinstance(item, Message)]
        self.untaken = []
        return sorted(outputs, key=lambda output: order.index(output.call_id)) + messages


IDS = st.sampled_from(["a", "b", "c", "d"])
BATCHES = st.lists(
    st.builds(FunctionCallOutput, IDS, st.sampled_from(["x", "y"]))
    | st.builds(CustomToolCallOutput, IDS, st.just("x"))
    | st.builds(function, IDS)
    | st.builds(custom, IDS)
    | st.builds(Message, st.just("user"), st.sampled_from(["hi", "stop"])),
    max_size=4,
)
STEPS = st.lists(
    st.tuples(st.just("call"), st.builds(function, IDS) | st.builds(custom, IDS))
    | st.tuples(st.just("offer"), BATCHES)
    | st.tuples(st.just("take"), st.none()),
    max_size=20,
)


@pytest.mark.parametrize("dialect", [APPEND, INJECT], ids=NAMES)
@given(steps=STEPS)
def test_a_history_is_judged_as_the_model_judges_it(dialect: Dialect, steps: list[tuple[str, Any]]) -> None:
    """Any order of calls, batches and takes: the same verdicts and words, pending calls, and context order."""
    pending, model = PendingCalls("resp_1", dialect), Naive(dialect)
    for step, value in steps:
        if step == "call" and model.call(value.call_id) is None:  # an engine makes its call ids unique
            pending.finished(value)
            model.announced.append(value)
        elif step == "offer":
            verdict = model.verdict(value)
            if verdict is not None:
                assert refusal_of(pending, *value) == verdict
                continue
            answered = pending.commit(pending.check(value))
            assert answered == tuple(i.call_id for i in value if i.type.endswith("_output"))
            model.accept(value)
        elif step == "take":
            assert list(pending.take()) == model.taken()
        open_ids = [call.call_id for call in model.announced if call.call_id not in model.answered]
        assert (list(pending.call_ids), len(pending)) == (open_ids, len(open_ids))
        assert pending.held == len(model.untaken)
        assert all(pending.knows(call.call_id) for call in model.announced)
    assert list(pending.take()) == model.taken()
    assert pending.take() == ()


# --- the words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [APPEND, INJECT], ids=NAMES)
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([FunctionCallOutput("z", "")], "Tool call 'z' is not pending on response 'resp_1'."),
        ([CustomToolCallOutput("a", "")], "Tool call 'a' is not pending on response 'resp_1'."),
        ([FunctionCallOutput("b", "")], "Tool call 'b' is not pending on response 'resp_1'."),
        (
            [FunctionCallOutput("a", ""), FunctionCallOutput("a", "")],
            "Tool call 'a' already has an output.",
        ),
        (
            [FunctionCallOutput("a", ""), FunctionCallOutput("z", ""), FunctionCallOutput("a", "")],
            "Tool call 'z' is not pending on response 'resp_1'.",
        ),
        (
            [FunctionCallOutput("a", ""), FunctionCallOutput("a", ""), FunctionCallOutput("z", "")],
            "Tool call 'a' already has an output.",
        ),
    ],
)
def test_the_first_bad_member_is_named(dialect: Dialect, batch: list[Item], message: str) -> None:
    """A batch with several faults is refused whole, in the words of its first bad member (reference 5B.2)."""
    pending = pending_calls(dialect, function("a"), custom("b"))
    assert refusal_of(pending, *batch) == message
    assert pending.call_ids == ("a", "b")


def test_an_answered_call_is_said_to_be_answered() -> None:
    """A second output is refused as such, also after the first has gone into the context."""
    pending = pending_calls(INJECT, function("a"), function("b"))
    pending.commit(pending.check([FunctionCallOutput("a", "1")]))
    assert refusal_of(pending, FunctionCallOutput("a", "2")) == "Tool call 'a' already has an output."
    assert pending.take() == (FunctionCallOutput("a", "1"),)
    assert refusal_of(pending, FunctionCallOutput("a", "2")) == "Tool call 'a' already has an output."
    assert pending.call_ids == ("b",)


@pytest.mark.parametrize(
    ("item", "name"),
    [
        (Message("user", "hi"), "message"),
        (Message("assistant", "hi"), "message"),
        (Reasoning(), "reasoning"),
        (function("a"), "function_call"),
        (ItemReference("msg_1"), "item_reference"),
        (Opaque({"type": "tool_search_output"}), "tool_search_output"),
    ],
)
def test_an_inject_takes_outputs_only(item: Item, name: str) -> None:
    """In the inject form every other kind of item refuses the batch, also one the server itself sent."""
    pending = pending_calls(INJECT, function("a"))
    batch = (FunctionCallOutput("a", ""), item)
    assert refusal_of(pending, *batch) == f"Item of type '{name}' cannot be injected."


# --- append: messages and what comes back ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["user", "developer", "system"])
def test_messages_come_after_the_outputs(role: Any) -> None:
    """In the append form messages are accepted and follow the outputs of their pause (reference 3.5 rule 6)."""
    pending = pending_calls(APPEND, function("a"), function("b"))
    hurry = Message(role, "hurry")
    assert pending.commit(pending.check([hurry, FunctionCallOutput("b", "2")])) == ("b",)
    assert pending.commit(pending.check([FunctionCallOutput("a", "1")])) == ("a",)
    assert pending.held == 3
    assert pending.take() == (FunctionCallOutput("a", "1"), FunctionCallOutput("b", "2"), hurry)


SENT: list[Item] = [
    Reasoning("rs_1", (), None, "sealed"),
    Message("assistant", (OutputText("hi"),), "msg_1"),
    function("a"),
]


@pytest.mark.parametrize(
    "item",
    [
        *SENT,
        FunctionCall("a", "other", "{}"),
        FunctionCall("z", "f", "{}", "fc_a"),
        Reasoning(None, (), None, "sealed"),
        Reasoning("rs_1"),
        Message("assistant", "hi"),
        Message("assistant", (OutputText("h"), OutputText("i"))),
        Message("assistant", "changed", "msg_1"),
    ],
)
def test_what_the_server_sent_is_dropped_when_it_comes_back(item: Item) -> None:
    """A re-sent item is known by id, call id, sealed content, or role and text (reference 3.5 rule 7)."""
    pending = pending_calls(APPEND, *SENT)
    batch = pending.check([item, FunctionCallOutput("a", "1")])
    assert (batch.outputs, batch.messages) == ((FunctionCallOutput("a", "1"),), ())


@pytest.mark.parametrize(
    "item",
    [
        function("z"),
        Reasoning("rs_2"),
        Reasoning(),
        Message("assistant", "ho"),
        Opaque({"type": "web_search_call", "id": "ws_1"}),
    ],
)
def test_what_nobody_sent_refuses_the_append(item: Item) -> None:
    """An output item that the server never sent is no input."""
    pending = pending_calls(APPEND, *SENT)
    assert refusal_of(pending, item) == f"Item of type '{item.type}' cannot be appended."


def test_only_outputs_of_calls_are_waited_for() -> None:
    """Messages and reasoning that are done leave nothing pending."""
    assert not pending_calls(APPEND, *SENT[:2])
    assert pending_calls(APPEND, *SENT).call_ids == ("a",)
    assert not pending_calls(APPEND).knows("a")
