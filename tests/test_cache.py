"""The connection's cache: which responses may be continued, which lane forgets, and what is closed."""

from array import array

import attrs
import pytest
import trio

from engine.cache import ConnectionCache
from engine.config import Limits
from engine.context import Context, Preamble
from engine.snapshot import Snapshot, Warm
from engine.stages import CallLedger, Streams
from protocol.errors import RemoteProtocolError
from protocol.items import Message


def snapshot(response_id: str, characters: int = 100) -> Snapshot:
    """A response that is remembered, of about so many bytes."""
    context = Context(Preamble(), slice_bytes=1 << 20)
    for _ in context.extend_in_slices([Message("user", "x" * characters)]):
        pass
    return Snapshot(
        response_id=response_id, context=context, calls=CallLedger(), streams=Streams(), held_tokens=0
    )


def refused(act, *args) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as error:
        act(*args)
    return error.value


def parents(cache: ConnectionCache, *response_ids: str) -> list[str]:
    """Those of the ids that may still be continued."""

    def remembered_by(response_id: str) -> bool:
        try:
            return cache.find(response_id)[1].response_id == response_id
        except RemoteProtocolError:
            return False

    return [response_id for response_id in response_ids if remembered_by(response_id)]


def test_a_parent_is_a_lanes_latest_and_no_other():
    """A response is found on whichever lane has it last; older ones and unknown ones are refused by name."""
    cache = ConnectionCache(Limits())
    first, second = snapshot("resp_1"), snapshot("resp_2")
    cache.remember("a", first)
    assert ("a", first) == cache.find("resp_1")
    cache.remember("a", second)
    assert ("a", second) == cache.find("resp_2")
    error = refused(cache.find, "resp_1")
    expected = (
        "previous_response_not_found",
        "Previous response with id 'resp_1' not found.",
        "previous_response_id",
    )
    assert expected == (error.code, error.message, error.param)


def remembered(max_bytes: int, *names: str) -> ConnectionCache:
    """A cache whose lanes have each remembered a response called like them, in this order."""
    cache = ConnectionCache(Limits(max_context_bytes=max_bytes))
    for name in names:
        cache.remember(name, snapshot(name))
    return cache


SIZE = snapshot("any").context.bytes


def test_over_the_memory_limit_the_longest_unused_lane_forgets():
    """As many as fit are kept, the latest of them; exactly the limit still fits."""
    cache = remembered(2 * SIZE, "a", "b", "c")
    assert ["b", "c"] == parents(cache, "a", "b", "c")


def test_a_lane_that_was_used_again_is_not_the_longest_unused():
    """To remember is to use: the lane that has waited longest is another one now."""
    cache = remembered(2 * SIZE, "a", "b")
    cache.remember("a", snapshot("a2"))
    cache.remember("c", snapshot("c"))
    assert ["a2", "c"] == parents(cache, "a", "b", "a2", "c")


def test_one_response_may_make_several_lanes_forget():
    """Until it fits, one lane after the other."""
    cache = remembered(3 * SIZE, "a", "b", "c")
    big = snapshot("big", characters=600)
    assert 2 * SIZE < big.context.bytes <= 3 * SIZE
    cache.remember("d", big)
    assert ["big"] == parents(cache, "a", "b", "c", "big")


def test_the_latest_response_is_kept_however_big():
    """The lane that has just ended is not forgotten by its own size."""
    assert ["b"] == parents(remembered(1, "a", "b"), "a", "b")


def test_what_responses_share_counts_once():
    """Two lanes that hold the same log take the memory of one."""
    shared = snapshot("one")
    cache = ConnectionCache(Limits(max_context_bytes=SIZE))
    cache.remember("a", shared)
    cache.remember("b", attrs.evolve(shared, response_id="two"))
    assert ["one", "two"] == parents(cache, "one", "two")


def test_a_lane_that_forgot_by_itself_is_no_trouble():
    """A lane whose latest was evicted elsewhere frees nothing, and the next one goes."""
    cache = remembered(2 * SIZE, "a", "b")
    cache.forget("a")
    cache.remember("c", snapshot("c"))
    assert ["b", "c"] == parents(cache, "b", "c")
    cache.remember("d", snapshot("d"))
    assert ["c", "d"] == parents(cache, "b", "c", "d")


class Warming:
    """A sampling that counts how often it was closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = 0
        self._error = error

    async def aclose(self) -> None:
        self.closed += 1
        await trio.lowlevel.checkpoint()
        if self._error is not None:
            raise self._error


def warm(response_id: str, sampling: Warming) -> Snapshot:
    return attrs.evolve(snapshot(response_id), warm=Warm(sampling, "m", "auto", 0, array("I"), ()))


async def test_what_is_forgotten_is_closed_once():
    """A snapshot that goes leaves its sampling to be closed, one that was taken is not closed here."""
    cache, gone, taken, kept = ConnectionCache(Limits()), Warming(), Warming(), Warming()
    cache.remember("a", warm("resp_1", gone))
    cache.remember("b", warm("resp_2", taken))
    cache.remember("c", warm("resp_3", kept))
    assert taken is cache.find("resp_2")[1].take_warm("m", "auto").sampling
    for lane in "ab":
        cache.forget(lane)
    await cache.close_dropped()
    assert (1, 0, 0) == (gone.closed, taken.closed, kept.closed)
    await cache.aclose()
    await cache.aclose()
    assert (1, 0, 1) == (gone.closed, taken.closed, kept.closed)


async def test_a_sampling_that_cannot_be_closed_does_not_keep_the_others():
    """An error while closing is logged and the next one is closed."""
    cache, bad, good = ConnectionCache(Limits()), Warming(RuntimeError("no")), Warming()
    cache.remember("a", warm("resp_1", bad))
    cache.remember("b", warm("resp_2", good))
    await cache.aclose()
    assert (1, 1) == (bad.closed, good.closed)


@pytest.mark.parametrize(
    ("model", "choice", "fits"), [("m", "auto", True), ("n", "auto", False), ("m", "none", False)]
)
def test_a_warm_sampling_fits_its_own_model_and_choice_only(model, choice, fits):
    """Another model or tool choice begins anew; the first who fits has it, the second does not."""
    left = warm("resp_1", Warming())
    assert fits == (left.take_warm(model, choice) is not None)
    assert (not fits) == (left.take_warm("m", "auto") is not None)


def test_a_deleted_response_is_not_found():
    """Forgetting by id forgets on whichever lane has it."""
    cache = remembered(1 << 20, "a", "b")
    cache.forget_response("a")
    assert ["b"] == parents(cache, "a", "b")


def test_statistics_say_what_was_found():
    """Found, missed and evicted are counted."""
    cache = remembered(SIZE, "a", "b")
    parents(cache, "a", "b")
    statistics = cache.statistics()
    assert (1, SIZE, 1, 1, 1) == (
        statistics.snapshots,
        statistics.held_bytes,
        statistics.found,
        statistics.missed,
        statistics.evicted,
    )
