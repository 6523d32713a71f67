"""Lanes: which creates wait, how many may, and which lane forgets when memory is short."""

import pytest

from engine.config import Limits
from engine.context import Context, Preamble
from engine.intake import Snapshot
from engine.lanes import Lane, Lanes, QueuedCreate
from engine.ledger import Ledger
from engine.stages import CallLedger, Streams
from protocol.errors import RemoteProtocolError
from protocol.events import ResponseCreate
from protocol.items import Message


def queued(name: str = "m", size_bytes: int = 1) -> QueuedCreate:
    return QueuedCreate(ResponseCreate(model=name), size_bytes, Ledger())


def snapshot(response_id: str, characters: int = 100) -> Snapshot:
    """A response that is remembered, of about so many bytes."""
    context = Context(Preamble(), slice_bytes=1 << 20)
    for _ in context.extend_in_slices([Message("user", "x" * characters)]):
        pass
    return Snapshot(response_id, context, CallLedger(), Streams(), 0)


def refused(act, *args) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as error:
        act(*args)
    return error.value


def parents(lanes: Lanes, *response_ids: str) -> list[str]:
    """Those of the ids that may still be continued."""

    def remembered_by(response_id: str) -> bool:
        try:
            return lanes.parent_of(response_id)[1].response_id == response_id
        except RemoteProtocolError:
            return False

    return [response_id for response_id in response_ids if remembered_by(response_id)]


def test_the_default_lane_is_always_there():
    """A connection begins with the lane without a name, which counts as one."""
    lanes = Lanes(Limits())
    lane = lanes.known(None)
    assert (1, True, None) == (len(lanes), lanes.lane(None) is lane, lane.stream_id)


def test_a_lane_is_made_when_it_is_first_named():
    """The same name is the same lane; asking whether it is known does not make it."""
    lanes = Lanes(Limits())
    assert None is lanes.known("a")
    lane = lanes.lane("a")
    assert (True, True, 2) == (lanes.lane("a") is lane, lanes.known("a") is lane, len(lanes))


def test_only_so_many_names_are_lanes():
    """One more name than the limit is refused and makes no lane; the default lane is not one of them."""
    lanes = Lanes(Limits(max_lanes=2))
    for name in ("a", "b"):
        lanes.lane(name)
    error = refused(lanes.lane, "c")
    expected = ("websocket_stream_limit_reached", "stream_id", True)
    assert expected == (error.code, error.param, "(2)" in error.message)
    assert (3, None) == (len(lanes), lanes.known("c"))
    assert lanes.lane("a") is lanes.known("a")


def test_creates_of_a_lane_come_in_order():
    """First in, first out; what has come out is no longer counted."""
    lanes = Lanes(Limits())
    lane = lanes.lane(None)
    for name in ("a", "b", "c"):
        lanes.enqueue(lane, queued(name))
    assert 3 == lanes.queued
    assert ["a", "b", "c"] == [lanes.dequeue(lane).create.model for _ in range(3)]
    assert 0 == lanes.queued


def test_only_so_many_creates_wait_on_all_lanes_together():
    """The limit is the connection's; a place that is free again may be taken."""
    lanes = Lanes(Limits(max_queued_creates=2))
    one, other = lanes.lane("a"), lanes.lane("b")
    lanes.enqueue(one, queued())
    lanes.enqueue(other, queued())
    error = refused(lanes.enqueue, one, queued())
    assert ("websocket_queue_limit_reached", 429, 2, 1) == (
        error.code,
        error.status,
        lanes.queued,
        len(one.queue),
    )
    lanes.dequeue(other)
    lanes.enqueue(one, queued())
    assert 2 == lanes.queued


def test_only_so_many_bytes_wait():
    """Exactly the limit fits, a byte more does not; what left makes room."""
    lanes = Lanes(Limits(max_queued_create_bytes=10))
    lane = lanes.lane(None)
    lanes.enqueue(lane, queued(size_bytes=6))
    lanes.enqueue(lane, queued(size_bytes=4))
    assert "websocket_queue_limit_reached" == refused(lanes.enqueue, lane, queued(size_bytes=1)).code
    lanes.dequeue(lane)
    lanes.enqueue(lane, queued(size_bytes=6))
    assert 2 == lanes.queued


def test_a_connection_that_is_over_lets_nothing_start():
    """All lanes' queues are empty, and their places and bytes are free."""
    lanes = Lanes(Limits(max_queued_create_bytes=10))
    for name in ("a", "b", None):
        lanes.enqueue(lanes.lane(name), queued(size_bytes=3))
    lanes.drop_queued()
    assert (0, 0) == (lanes.queued, sum(len(lanes.lane(name).queue) for name in ("a", "b", None)))
    lanes.enqueue(lanes.lane("a"), queued(size_bytes=10))


def test_a_parent_is_a_lanes_latest_and_no_other():
    """A response is found on whichever lane has it last; older ones and unknown ones are refused by name."""
    lanes = Lanes(Limits())
    lane = lanes.lane("a")
    first, second = snapshot("resp_1"), snapshot("resp_2")
    lanes.remember(lane, first)
    assert (lane, first) == lanes.parent_of("resp_1")
    lanes.remember(lane, second)
    assert (lane, second) == lanes.parent_of("resp_2")
    error = refused(lanes.parent_of, "resp_1")
    expected = (
        "previous_response_not_found",
        "Previous response with id 'resp_1' not found.",
        "previous_response_id",
    )
    assert expected == (error.code, error.message, error.param)


def remembered(max_bytes: int, *names: str) -> Lanes:
    """Lanes that have each remembered a response called like them, in this order."""
    lanes = Lanes(Limits(max_context_bytes=max_bytes))
    for name in names:
        lanes.remember(lanes.lane(name), snapshot(name))
    return lanes


SIZE = snapshot("any").context.bytes


def test_over_the_memory_limit_the_longest_unused_lane_forgets():
    """As many as fit are kept, the latest of them; exactly the limit still fits."""
    lanes = remembered(2 * SIZE, "a", "b", "c")
    assert ["b", "c"] == parents(lanes, "a", "b", "c")


def test_a_lane_that_was_used_again_is_not_the_longest_unused():
    """To remember is to use: the lane that has waited longest is another one now."""
    lanes = remembered(2 * SIZE, "a", "b")
    lanes.remember(lanes.lane("a"), snapshot("a2"))
    lanes.remember(lanes.lane("c"), snapshot("c"))
    assert ["a2", "c"] == parents(lanes, "a", "b", "a2", "c")


def test_one_response_may_make_several_lanes_forget():
    """Until it fits, one lane after the other."""
    lanes = remembered(3 * SIZE, "a", "b", "c")
    big = snapshot("big", characters=600)
    assert 2 * SIZE < big.context.bytes <= 3 * SIZE
    lanes.remember(lanes.lane("d"), big)
    assert ["big"] == parents(lanes, "a", "b", "c", "big")


def test_the_latest_response_is_kept_however_big():
    """The lane that has just ended is not forgotten by its own size."""
    assert ["b"] == parents(remembered(1, "a", "b"), "a", "b")


def test_what_responses_share_counts_once():
    """Two lanes that hold the same log take the memory of one."""
    shared = snapshot("one")
    lanes = Lanes(Limits(max_context_bytes=SIZE))
    lanes.remember(lanes.lane("a"), shared)
    lanes.remember(lanes.lane("b"), Snapshot("two", shared.context, CallLedger(), Streams(), 0))
    assert ["one", "two"] == parents(lanes, "one", "two")


def test_a_lane_that_forgot_by_itself_is_no_trouble():
    """A lane whose latest was evicted elsewhere frees nothing, and the next one goes."""
    lanes = remembered(2 * SIZE, "a", "b")
    lanes.lane("a").latest = None
    lanes.remember(lanes.lane("c"), snapshot("c"))
    assert ["b", "c"] == parents(lanes, "b", "c")
    lanes.remember(lanes.lane("d"), snapshot("d"))
    assert ["c", "d"] == parents(lanes, "b", "c", "d")


def test_lanes_are_told_apart_by_identity():
    """Two lanes with equal contents are two lanes."""
    assert Lane("a") != Lane("a")
