"""The inbox of a suspended rollout: batches are whole or not at all, and patience ends when it should."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from engine.inbox import Inbox
from protocol.dialects import APPEND, INJECT
from protocol.errors import RemoteProtocolError
from protocol.items import CustomToolCall, CustomToolCallOutput, FunctionCall, FunctionCallOutput, Message
from protocol.pending import PendingCalls


def output(call_id: str, text: str = "out") -> FunctionCallOutput:
    return FunctionCallOutput(call_id, text)


def make(*call_ids: str, dialect=APPEND, max_held: int = 100) -> "tuple[Inbox, list[tuple[str, ...]]]":
    """An inbox with these calls pending, and the list of what it told as accepted."""
    pending = PendingCalls("resp_1", dialect)
    for call_id in call_ids:
        pending.finished(FunctionCall(call_id, "f", "{}"))
    told: list[tuple[str, ...]] = []
    return Inbox(pending, life=trio.CancelScope(), max_held=max_held, accepted=told.append), told


async def waited(inbox: Inbox, seconds: float, *, restarts: bool = False, offers=()) -> tuple[bool, float]:
    """Wait while offers come at their times; what the wait said, and how long it took."""
    async with trio.open_nursery() as nursery:

        async def offer(at: float, items) -> None:
            await trio.sleep(at)
            inbox.offer(items)

        for at, items in offers:
            nursery.start_soon(offer, at, items)
        began = trio.current_time()
        with inbox.life:
            await inbox.wait_complete(seconds, restarts=restarts)
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
    return not inbox.life.cancelled_caught, took


async def test_the_last_output_ends_the_wait(autojump_clock):
    """A partial batch keeps the rollout waiting; the last output resumes it at once."""
    inbox, told = make("a", "b")
    outcome = await waited(inbox, 10, offers=[(1, [output("b")]), (2, [output("a")])])
    assert (True, 2.0) == outcome
    assert [("b",), ("a",)] == told


async def test_outputs_are_taken_in_call_order_and_messages_after_them():
    """Whatever the order of arrival, the context gets outputs as the calls stood, then messages as they came."""
    inbox, told = make("a", "b")
    first, second = Message("user", "1"), Message("user", "2")
    inbox.offer([first, output("b")])
    inbox.offer([second, output("a")])
    assert (4, ()) == (inbox.held, inbox.pending)
    assert (output("a"), output("b"), first, second) == inbox.take()
    assert (0, ()) == (inbox.held, inbox.take())
    assert [("b",), ("a",)] == told


async def test_without_pending_calls_there_is_no_wait(autojump_clock):
    """Outputs that came before the pause make it end as it begins."""
    inbox, _ = make("a")
    inbox.offer([output("a")])
    assert (True, 0.0) == await waited(inbox, 10)


async def test_patience_ends(autojump_clock):
    """Without the outputs the wait is over after its time, and says so."""
    inbox, _ = make("a", "b")
    assert (False, 10.0) == await waited(inbox, 10, offers=[(9, [output("a")])])
    assert ("b",) == inbox.pending


async def test_no_time_at_all_has_passed_at_once(autojump_clock):
    """A patience of 0 does not wait."""
    inbox, _ = make("a")
    assert (False, 0.0) == await waited(inbox, 0)


async def test_endless_patience_waits_for_days(autojump_clock):
    """An infinite patience ends with the output only, and a restart of it is infinite too."""
    inbox, _ = make("a", "b")
    days = 86_400.0 * 30
    offers = [(days / 2, [output("a")]), (days, [output("b")])]
    assert (True, days) == await waited(inbox, float("inf"), restarts=True, offers=offers)


async def test_each_accepted_output_starts_the_time_again(autojump_clock):
    """With restarts the patience counts from the last accepted output."""
    inbox, _ = make("a", "b", "c", dialect=INJECT)
    offers = [(9, [output("a")]), (18, [output("b")])]
    assert (False, 28.0) == await waited(inbox, 10, restarts=True, offers=offers)


async def test_a_message_does_not_start_the_time_again(autojump_clock):
    """Only outputs show that the client is working on its calls."""
    inbox, _ = make("a")
    offers = [(9, [Message("user", "wait for me")])]
    assert (False, 10.0) == await waited(inbox, 10, restarts=True, offers=offers)


async def test_a_refused_batch_does_not_start_the_time_again(autojump_clock):
    """What is refused changes nothing, not even the deadline."""
    inbox, _ = make("a")

    async def refused() -> None:
        await trio.sleep(9)
        with pytest.raises(RemoteProtocolError):
            inbox.offer([output("nobody")])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused)
        assert (False, 10.0) == await waited(inbox, 10, restarts=True)


async def test_an_output_in_time_counts_however_late_the_rollout_runs(mock_clock):
    """What was accepted before the deadline ends the pause, also if its time is over when the waiter runs."""
    inbox, _ = make("a")
    results = []

    async def wait() -> None:
        with inbox.life:
            await inbox.wait_complete(10, restarts=False)
        results.append(inbox.life.cancelled_caught)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        inbox.offer([output("a")])
        mock_clock.jump(20)
    assert [False] == results


async def test_a_second_pause_has_its_own_calls_and_time(autojump_clock):
    """After a pause the inbox serves the next one; the end of the first is not the end of the second."""
    pending = PendingCalls("resp_1", APPEND)
    inbox = Inbox(pending, life=trio.CancelScope(), max_held=10, accepted=lambda _: None)

    async def answer(call_id: str) -> None:
        await trio.sleep(6)
        inbox.offer([output(call_id)])

    with inbox.life:
        async with trio.open_nursery() as nursery:
            for call_id in ("a", "b"):
                pending.finished(FunctionCall(call_id, "f", "{}"))
                nursery.start_soon(answer, call_id)
                await inbox.wait_complete(10, restarts=False)
                assert (output(call_id),) == inbox.take()
                await trio.sleep(60)  # no pause is this long, but this is none
    assert (False, 132.0) == (inbox.life.cancelled_caught, trio.current_time())


async def test_a_wait_cancelled_from_outside_is_cancelled(autojump_clock):
    """The inbox does not take somebody else's cancellation for its own deadline."""
    inbox, _ = make("a")
    with trio.move_on_after(3) as scope:
        await inbox.wait_complete(10, restarts=False)
    assert (True, ("a",)) == (scope.cancelled_caught, inbox.pending)


def test_offering_is_not_a_checkpoint():
    """A batch is in before anybody else runs, also outside of any wait."""
    inbox, told = make("a")
    inbox.offer([output("a")])  # not even a running trio is needed
    assert [("a",)] == told


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([output("a"), output("x")], "Tool call 'x' is not pending on response 'resp_1'."),
        ([output("a"), output("a", "2")], "Tool call 'a' already has an output."),
        ([output("a"), CustomToolCallOutput("b", "")], "Tool call 'b' is not pending on response 'resp_1'."),
        ([output("a"), Message("assistant", "me")], "Item of type 'message' cannot be appended."),
        (
            [output("a"), CustomToolCall("z", "raw", "")],
            "Item of type 'custom_tool_call' cannot be appended.",
        ),
    ],
)
def test_one_bad_member_refuses_all_of_a_batch(batch, message):
    """A refusal changes nothing: the good members may be sent again."""
    inbox, told = make("a", "b")
    with pytest.raises(RemoteProtocolError) as refused:
        inbox.offer(batch)
    assert (message, ("a", "b"), 0, []) == (refused.value.message, inbox.pending, inbox.held, told)
    inbox.offer([output("a")])
    assert [("a",)] == told


def test_more_than_may_be_held_is_refused_whole():
    """Messages and outputs count together; a batch over the limit leaves what was held, and room is room again later."""
    inbox, told = make("a", "b", max_held=2)
    inbox.offer([Message("user", "1")])
    with pytest.raises(RemoteProtocolError) as refused:
        inbox.offer([Message("user", "2"), output("a")])
    expected = ("invalid_input", 429, ("a", "b"), 1)
    assert expected == (refused.value.code, refused.value.status, inbox.pending, inbox.held)
    inbox.offer([output("a")])
    inbox.take()
    inbox.offer([output("b")])
    assert [(), ("a",), ("b",)] == told


@given(
    batches=st.lists(st.lists(st.sampled_from("abcdex"), min_size=1, max_size=3), max_size=8),
    max_held=st.integers(1, 4),
)
def test_any_batches_are_accepted_or_refused_whole(batches, max_held):
    """After each batch the pending calls and the held items are those of the batches accepted so far."""
    inbox, told = make(*"abcde", max_held=max_held)
    answered: list[str] = []
    for batch in batches:
        good = len(set(batch)) == len(batch) and not set(batch) & {*answered, "x"}
        fits = len(answered) + len(batch) <= max_held
        try:
            inbox.offer([output(call_id) for call_id in batch])
            accepted = True
        except RemoteProtocolError:
            accepted = False
        assert (good and fits) == accepted
        answered += batch if accepted else []
        pending = tuple(call_id for call_id in "abcde" if call_id not in answered)
        assert (pending, len(answered)) == (inbox.pending, inbox.held)
    assert answered == [call_id for batch in told for call_id in batch]
    assert tuple(output(call_id) for call_id in sorted(answered)) == inbox.take()
