"""Lanes: which creates wait, and how many may."""

import pytest

from engine.config import Limits
from engine.lanes import Lane, Lanes, QueuedCreate
from engine.ledger import Ledger
from engine.steering import Steering
from protocol.errors import RemoteProtocolError
from protocol.events import ResponseCreate


def queued(name: str = "m", size_bytes: int = 1) -> QueuedCreate:
    return QueuedCreate(ResponseCreate(model=name), size_bytes, Ledger())


def refused(act, *args) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as error:
        act(*args)
    return error.value


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


def test_lanes_are_told_apart_by_identity():
    """Two lanes with equal contents are two lanes."""
    assert Lane("a", steering=Steering(1)) != Lane("a", steering=Steering(1))
