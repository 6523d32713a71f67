"""Compaction: what stays of a long context, and the item that carries it."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.call_ledger import CallLedger
from engine.compact import Compactor, compacted, over_threshold, sizes_of, threshold_of
from engine.context import Context, Preamble
from engine.seals import SealError, Seals
from protocol.errors import RemoteProtocolError
from protocol.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpCall,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    ReasoningText,
    text_of,
)
from tests.strategies import input_items, json_values

SECRET = b"0123456789abcdef"
TOOLS = Opaque({"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "x"}]})


def said(text: str, role: Any = "user") -> Message:
    return Message(role, text)


texts = st.text(st.characters(codec="utf-8"), max_size=60) | st.integers(1, 60).map("word ".__mul__)
rounds = st.one_of(
    st.builds(lambda text, role: [said(text, role)], texts, st.sampled_from(["user", "developer", "system"])),
    st.builds(lambda text: [Message("assistant", (OutputText(text),))], texts),
    st.builds(lambda text: [Reasoning("rs_1", content=(ReasoningText(text),))], texts),
    st.builds(lambda text: [McpCall("mcp_1", "lib", "look", "{}", output=text)], texts),
    st.builds(lambda a, b: [("function", a, b)], texts, texts),
    st.builds(lambda a, b: [("custom", a, b)], texts, texts),
    st.just([TOOLS]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Item]:
    """Turns of all kinds; calls have their outputs, alone or two at once, but for the last ones perhaps."""
    made: list[Item] = []
    waiting: list[Item] = []
    for number, turn in enumerate(draw(st.lists(rounds, max_size=12))):
        for member in turn:
            if not isinstance(member, tuple):
                made += waiting
                waiting = []
                made.append(member)
                continue
            kind, written, output = member
            call_id = f"call_{number}"
            if kind == "function":
                made.append(FunctionCall(call_id, "f", written))
                waiting.append(FunctionCallOutput(call_id, output))
            else:
                made.append(CustomToolCall(call_id, "patch", written))
                waiting.append(CustomToolCallOutput(call_id, output))
    return made + waiting[: draw(st.integers(0, len(waiting)))]


# --- what stays ----------------------------------------------------------------------------------------------------


@given(histories(), st.integers(0, 600))
def test_the_result_fits_the_budget_but_for_what_must_stay(history: list[Item], budget: int):
    """Only items that bring tools and calls without an output may take more."""
    kept = compacted(history, budget)
    open_calls = CallLedger.full(history).pending
    needed = [item for item in history if item is TOOLS or getattr(item, "call_id", None) in open_calls]
    assert sum(sizes_of(kept)) <= max(budget, sum(sizes_of(needed)))


@given(histories(), st.integers(0, 600))
def test_the_result_is_a_context_that_can_go_on(history: list[Item], budget: int):
    """No output without its call, the same calls open, the same tools brought."""
    kept = compacted(history, budget)
    assert CallLedger.full(kept).pending == CallLedger.full(history).pending
    assert kept.count(TOOLS) == history.count(TOOLS)


@given(histories(), st.integers(0, 600))
def test_the_result_is_the_same_each_time(history: list[Item], budget: int):
    """With sizes given or measured."""
    assert compacted(history, budget) == compacted(history, budget, sizes_of(history))


@given(histories())
def test_what_fits_stays_as_it_is(history: list[Item]):
    """Exactly the budget is enough; one token less is not, unless all must stay."""
    size = sum(sizes_of(history))
    assert compacted(history, size) == tuple(history)
    if any(isinstance(item, Message | Reasoning | McpCall) for item in history):
        assert compacted(history, size - 1) != tuple(history)


@given(histories(), st.integers(0, 300))
def test_nothing_is_made_up(history: list[Item], budget: int):
    """Every item is one of the history, but for the note and the beginning of one message."""
    new = [item for item in compacted(history, budget) if item not in history]
    notes = [item for item in new if text_of(item.content).startswith("The conversation up to here")]
    assert len(notes) <= 1
    for cut in (item for item in new if item not in notes):
        beginning = text_of(cut.content).removesuffix(" […]")
        assert any(
            isinstance(item, Message) and text_of(item.content).startswith(beginning) for item in history
        )


def long_history() -> list[Item]:
    history: list[Item] = [said("Be kind.", "developer"), said("Find the bug.")]
    for number in range(40):
        call = FunctionCall(f"call_{number}", "shell", f'{{"cmd": "look into file {number}"}}')
        history += [call, FunctionCallOutput(f"call_{number}", f"line {number} " * 50)]
    return [*history, Message("assistant", (OutputText("It is in file 7. " * 5),)), said("Then mend it.")]


def test_users_words_the_newest_items_and_a_list_of_calls_stay():
    """The task and its rules are there, so is the end, and the note counts and names what is gone."""
    kept = compacted(long_history(), 1500)
    words = [text_of(item.content) for item in kept if isinstance(item, Message)]
    note = next(text for text in words if text.startswith("The conversation up to here"))
    assert words[:2] == ["Be kind.", "Find the bug."]
    assert words[-1] == "Then mend it."
    shown = sum(isinstance(item, FunctionCall) for item in kept)
    assert 0 < shown < 40
    assert f"0 earlier messages, 0 of your answers, {40 - shown} calls with their outputs." in note
    assert note.splitlines()[-1] == f'- shell {{"cmd": "look into file {39 - shown}"}}'
    assert "line" not in note


def test_calls_without_an_output_stay_whatever_they_take():
    """Their outputs are still to come, and would answer nothing."""
    waiting = [FunctionCall("call_1", "f", "word " * 100), CustomToolCall("call_2", "patch", "x")]
    kept = compacted([said("do it"), *waiting, said("hurry")], 0)
    assert kept == tuple(waiting)


def test_a_message_that_fits_in_part_is_cut_and_says_so():
    """The oldest that has room keeps its beginning; those before it are counted."""
    kept = compacted([said("gone " * 100), said("start " + "middle " * 300), said("end")], 200)
    words = [text_of(item.content) for item in kept]
    assert words[0].startswith("start middle")
    assert words[0].endswith(" […]")
    assert "1 earlier messages" in words[1]
    assert words[2:] == ["end"]


def test_compacting_again_goes_on():
    """The note of before is a message like others; the budget holds."""
    once = compacted(long_history(), 1500)
    again = compacted([*once, *long_history()], 1000)
    assert sum(sizes_of(again)) <= 1000


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instructions", ["Be brief.", "Be brief. " * 150])
def test_a_context_over_the_threshold_comes_to_half_of_it(instructions: str):
    """With instructions and tools counted; at the threshold nothing happens."""
    preamble = Preamble(instructions)
    context = Context.full(long_history(), preamble)
    assert over_threshold(context, len(context)) is None
    items = over_threshold(context, 2000)
    assert items is not None
    assert 600 < len(Context.full(items, preamble)) <= 1000


def test_nothing_is_compacted_where_nothing_is_gained():
    """Instructions above the threshold cannot be shortened, nor what must stay."""
    assert over_threshold(Context.full([], Preamble("Be brief. " * 100)), 20) is None
    assert over_threshold(Context.full([TOOLS], Preamble("Be brief. " * 100)), 20) is None


@pytest.mark.parametrize(
    ("management", "threshold"),
    [
        (None, None),
        ((), None),
        (({"type": "other", "compact_threshold": 5},), None),
        (({"type": "compaction"},), None),
        (({"type": "other"}, {"type": "compaction", "compact_threshold": 5}), 5),
    ],
)
def test_a_threshold_is_read_from_the_create(management: Any, threshold: int | None):
    """Unknown kinds are ignored, and a kind without a number asks for nothing."""
    assert threshold_of(management) == threshold


@pytest.mark.parametrize(
    ("value", "code"), [("5", "invalid_type"), (True, "invalid_type"), (0, "invalid_value")]
)
def test_a_threshold_that_is_none_is_refused(value: Any, code: str):
    """By its path."""
    with pytest.raises(RemoteProtocolError) as refused:
        threshold_of(({}, {"type": "compaction", "compact_threshold": value}))
    assert (refused.value.code, refused.value.param) == (code, "context_management[1].compact_threshold")


# --- the item --------------------------------------------------------------------------------------------------------


@given(st.lists(input_items, max_size=5))
def test_a_compaction_item_stands_for_its_items(items: list[Item]):
    """Made, sent as JSON and read again by its owner it is what it was made of, beside others that stay."""
    compactor = Compactor(Seals(SECRET))
    item = compactor.item(items, "me", "cmp_1")
    assert set(item.raw) == {"id", "type", "encrypted_content"}
    assert compactor.expanded([said("a"), item, said("b")], "me") == (said("a"), *items, said("b"))


@given(st.lists(input_items, max_size=3))
def test_the_same_items_are_the_same_token(items: list[Item]):
    """So a client's history is the same bytes, and a cache may be keyed by them."""
    one, other = (Compactor(Seals(SECRET)).item(items, "me", "cmp_1") for _ in range(2))
    assert one == other


def refused_token(compactor: Compactor, token: Any, owner: str) -> RemoteProtocolError:
    item = Opaque({"type": "compaction", "encrypted_content": token})
    with pytest.raises(RemoteProtocolError) as refused:
        compactor.expanded([said("a"), item], owner)
    return refused.value


def test_a_token_of_another_owner_is_like_a_forged_one():
    """Another key, another server, a changed letter, nonsense, nothing: one answer."""
    compactor = Compactor(Seals(SECRET))
    token = compactor.item([said("secret")], "me", "cmp_1").raw["encrypted_content"]
    elsewhere = Compactor(Seals(SECRET[::-1])).item([said("secret")], "me", "cmp_1").raw["encrypted_content"]
    cases = [(token, "you"), (token, ""), (elsewhere, "me"), ("nonsense", "me"), ("", "me"), ("ä", "me")]
    cases += [
        (token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :], "me")
        for place in (0, 20, 60)
    ]
    answers = {str(refused_token(compactor, *case).args) for case in cases}
    assert answers == {"(\"Invalid value for 'input[1].encrypted_content'.\",)"}
    error = refused_token(compactor, token, "you")
    assert (error.code, error.status, error.param) == ("invalid_value", 400, "input[1].encrypted_content")


def test_a_token_is_text():
    """A number is refused by its type; an item without a token is like one of unknown type."""
    compactor = Compactor()
    assert refused_token(compactor, 7, "me").code == "invalid_type"
    bare = Opaque({"type": "compaction", "id": "cmp_1"})
    assert compactor.expanded([bare], "me") == (bare,)


@given(json_values, st.text(max_size=5), st.integers(0), st.integers(1, 255))
def test_a_changed_token_is_not_opened(content: Any, owner: str, place: int, change: int):
    """Whatever is changed in its bytes."""
    seals = Seals(SECRET)
    token = seals.seal(content, owner)
    assert seals.open(token, owner) == content
    raw = bytearray(urlsafe_b64decode(token))
    raw[place % len(raw)] ^= change
    with pytest.raises(SealError):
        seals.open(urlsafe_b64encode(raw).decode(), owner)


def test_a_secret_that_can_be_guessed_is_refused():
    """Sixteen bytes at least; without one each server has its own."""
    with pytest.raises(ValueError, match="a secret of 3 bytes can be guessed"):
        Seals(b"abc")
    with pytest.raises(SealError):
        Seals().open(Seals().seal(1, "me"), "me")
