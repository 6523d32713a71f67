"""Server-sent events: how they are framed, sent, kept and sent again; failures, pings, and readers who are slow."""

from itertools import pairwise

import attrs
import orjson
import pytest
import trio

from engine.config import Limits
from engine.faults import FaultPlan, Way
from engine.samplers.scripted import END, Raise, Stall, call, say
from engine.sse import EventLog
from engine.storage import MemoryStore
from protocol import events
from protocol.dialects import HTTP
from protocol.errors import RemoteProtocolError
from protocol.events import Response, ResponseError
from protocol.items import Message, OutputText
from protocol.record import Record
from tests.http_peer import HttpPeer, events_in
from tests.test_http import TOOL, http, told, words

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


async def streamed(peer: HttpPeer, **members):
    return await peer.create(stream=True, **members)


# --- the form ------------------------------------------------------------------------------------------------------


async def test_a_stream_is_numbered_named_and_done(autojump_clock):
    """Each event is named by its type, numbered from 0 without a gap; the terminal one is followed by `[DONE]`."""
    async with http([[*say("hello there"), call("f"), END]]) as (_, peer):
        answer = await streamed(await peer(), tools=[TOOL])
    *numbered, done = answer.events
    assert ("text/event-stream", "no-store") == (
        answer.headers["content-type"],
        answer.headers["cache-control"],
    )
    assert [kind for kind, _ in numbered] == [data["type"] for _, data in numbered]
    assert list(range(len(numbered))) == [data["sequence_number"] for _, data in numbered]
    assert (["response.created", "response.in_progress"], "response.completed", ("", "[DONE]")) == (
        [kind for kind, _ in numbered[:2]],
        numbered[-1][0],
        done,
    )
    assert numbered[-1][1]["response"]["output"] == [
        data["item"] for kind, data in numbered if kind == "response.output_item.done"
    ]


async def test_events_are_those_of_the_websocket(autojump_clock):
    """The same rollout in the create form says the same, but for ids."""
    script = [[*say("hello there"), call("f", call_id="call_1"), END]]
    async with http(script) as (served, peer):
        over_http = [data for kind, data in (await streamed(await peer(), tools=[TOOL])).events if kind]
        async with served.connect_raw(append=False) as raw:
            raw.send({"type": "response.create", "model": "m", "input": "hi", "tools": [TOOL]})
            frames = [await raw.receive()]
            while frames[-1]["type"] not in TERMINAL:
                frames.append(await raw.receive())
    assert [shape(data) for data in over_http] == [shape(frame) for frame in frames]


def shape(value):
    """All but ids and the values of usage."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items() if k not in {"id", "item_id", "usage", "created_at"}}
    return [shape(member) for member in value] if isinstance(value, list) else value


async def test_an_event_is_never_torn_over_two_sends(autojump_clock):
    """Each piece that arrives ends with a whole event, and the head comes with the first of them."""
    async with http([[*say("many words " * 50, step_characters=3), END]]) as (_, peer):
        client = await peer()
        await client.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        await client.answer()
    assert len(client.sends) > 50
    for piece in client.sends:
        assert piece.endswith((b"\n\n\r\n", b"0\r\n\r\n"))
        assert piece.count(b"\r\n\r\n") - piece.endswith(b"0\r\n\r\n") <= 1
    assert b"response.created" in client.sends[0]


async def test_a_comment_keeps_a_silent_stream_alive(autojump_clock):
    """Every 15 s while nothing else is sent, and no comment between events (router-for-me/CLIProxyAPI#5413)."""
    async with http([[Stall(200), *say("late"), END]]) as (_, peer):
        client = await peer()
        await client.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        await client.head()
        arrivals = [(trio.current_time(), part) async for part in client.data()]
    pings = [at for at, part in arrivals if part == b": ping\n\n"]
    assert [15.0 * n for n in range(1, 14)] == pings
    assert {15.0} == {later - earlier for earlier, later in pairwise(pings)}


async def test_no_comment_is_sent_before_the_response_begins(autojump_clock):
    """While it waits for a slot nothing is sent, not even the status."""
    async with http([[Stall(100), END]], limits=Limits(sampler_slots=1)) as (_, peer):
        first, second = await peer(), await peer()
        await first.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(1)
        await second.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        status, _ = await second.head()
        assert (200, 100) == (status, trio.current_time())


async def test_an_older_client_gets_a_stream_as_well(autojump_clock):
    """HTTP/1.0 knows no chunks: the end of the connection is the end of the stream."""
    body = orjson.dumps({"model": "m", "input": "hi", "stream": True})
    async with http() as (_, peer):
        client = await peer()
        await client.stream.send_all(
            b"POST /v1/responses HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        received = b""
        while part := await client.stream.receive_some():
            received += part
    head, _, stream = received.partition(b"\r\n\r\n")
    assert (False, ("", "[DONE]")) == (b"chunked" in head.lower(), list(events_in(stream))[-1])


# --- ends ----------------------------------------------------------------------------------------------------------


async def test_a_failure_is_an_error_then_the_terminal_event(autojump_clock, caplog):
    """`error`, flat and nested and with a number of its own, then `response.failed`, then `[DONE]` (R6; Wei-Shaw/sub2api#5289, vllm-project/vllm#38190)."""
    async with http([[*say("one"), Raise(ValueError("by design"))]]) as (_, peer):
        answer = await streamed(await peer())
    (_, before), (kind, error), (failed, response), done = answer.events[-4:]
    message = "The server had an error while processing your request."
    detail = {"type": "server_error", "code": "server_error", "message": message, "param": None}
    assert 200 == answer.status
    assert ("error", "response.failed", ("", "[DONE]")) == (kind, failed, done)
    assert {
        "type": "error",
        "sequence_number": before["sequence_number"] + 1,
        "code": "server_error",
        "message": message,
        "param": None,
        "error": detail,
    } == error
    assert (error["sequence_number"] + 1, {"code": "server_error", "message": message}) == (
        response["sequence_number"],
        response["response"]["error"],
    )


async def test_a_sampler_that_fails_at_once_has_begun(autojump_clock, caplog):
    """Before its first token: the response was accepted, so the stream says created, error, failed, done."""
    async with http([[Raise(ValueError("by design"))]]) as (_, peer):
        answer = await streamed(await peer())
    assert ["response.created", "response.in_progress", "error", "response.failed", ""] == [
        kind for kind, _ in answer.events
    ]


async def test_a_cancellation_is_no_error(autojump_clock):
    """`response.failed` with status `cancelled`, then `[DONE]`; nobody is to blame."""
    async with http([[Stall(100), END]]) as (served, peer):
        client = await peer()
        await client.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        await trio.sleep(1)
        (live,) = served.server.live
        assert True is served.server.cancel(live.response_id)
        assert False is served.server.cancel(live.response_id)
        answer = await client.answer()
    (kind, failed), done = answer.events[-2:]
    assert ("response.failed", "cancelled", "[DONE]") == (kind, failed["response"]["status"], done[1])
    assert ["response.created", "response.in_progress", "response.failed"] == [
        k for k, _ in answer.events[:-1]
    ]


async def test_a_reader_that_goes_away_stops_its_sampling(autojump_clock):
    """In mid-stream: the slot is free within a second."""
    async with http([[*say("one"), Stall(1000), END]]) as (served, peer):
        client = await peer()
        await client.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        await client.head()
        await client.stream.aclose()
        await trio.sleep(1)
        assert (0, 0) == (len(served.server.live), served.server.statistics().slots.held)
        assert 0 == served.server.statistics().http_connections


async def test_a_slow_reader_slows_its_own_sampling_and_is_cut(autojump_clock):
    """What is unsent stays near the high-water mark, others stream on, and after 10 s without progress it is over."""
    limits = Limits(outbox_high_water_bytes=2000, send_timeout_seconds=10)
    plan = FaultPlan(outbound=Way(stall_at_bytes=20_000, stall_seconds=1000))
    async with http([[*say("word " * 4000), END]], limits=limits) as (served, peer):
        slow = HttpPeer(await served.open_stream(plan))
        await slow.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        await trio.sleep(9)
        (live,) = served.server.live
        assert 0 < live.events.unsent_bytes < 2 * limits.outbox_high_water_bytes
        assert "[DONE]" == (await streamed(await peer())).events[-1][1]
        assert 9 == trio.current_time()
        await trio.sleep(2)
        assert (0, 0) == (len(served.server.live), served.server.statistics().slots.held)
        (record,) = [r for r in served.server.engine.store._records.values() if r.status != "completed"]
    assert "cancelled" == record.status


# --- again ---------------------------------------------------------------------------------------------------------


async def replay(peer, response_id, after=None):
    query = "" if after is None else f"&starting_after={after}"
    return await peer.ask("GET", f"/v1/responses/{response_id}?stream=true{query}")


@pytest.mark.parametrize("stream", [True, False])
async def test_events_are_sent_again_byte_for_byte(stream, autojump_clock):
    """From the beginning, or after a number, for a while after the end; whatever the create asked for."""
    async with http() as (_, peer):
        client = await peer()
        made = await client.create(stream=stream)
        response_id = made.events[0][1]["response"]["id"] if stream else made.json["id"]
        whole = await replay(client, response_id)
        assert whole.events[-1] == ("", "[DONE]")
        if stream:
            assert made.body == whole.body
        count = len(whole.events) - 1
        for after in (0, 3, count - 1, count + 5):
            part = await replay(client, response_id, after)
            assert whole.body.endswith(part.body)
            assert whole.events[min(after + 1, count) :] == part.events
        for wrong in ("x", "-2", "1e3", "9" * 20):
            assert words("invalid_value", field="starting_after") == told(
                await replay(client, response_id, wrong)
            )


async def test_a_running_response_is_followed(autojump_clock):
    """What was, then what comes, to the end: two followers and the creator see the same bytes."""
    async with http([[*say("one two"), Stall(40), *say(" three"), END]]) as (served, peer):
        creator, followers = await peer(), [await peer(), await peer()]
        await creator.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        await trio.sleep(1)
        (live,) = served.server.live
        answers = []

        async def follow(client):
            answers.append(await replay(client, live.response_id))

        async with trio.open_nursery() as nursery:
            for client in followers:
                nursery.start_soon(follow, client)
            made = await creator.answer()
    pinged = made.body.replace(b": ping\n\n", b"")
    assert [pinged] * 2 == [answer.body.replace(b": ping\n\n", b"") for answer in answers]
    assert 2 == made.body.count(b": ping\n\n")


async def test_a_follower_that_goes_away_stops_nothing(autojump_clock):
    """The response is its creator's."""
    async with http([[Stall(10), *say("done"), END]]) as (served, peer):
        creator, follower = await peer(), await peer()
        await creator.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(1)
        (live,) = served.server.live
        await follower.send("GET", f"/v1/responses/{live.response_id}?stream=true")
        await follower.head()
        await follower.stream.aclose()
        assert 200 == (await creator.answer()).status


async def test_a_creator_that_goes_away_ends_it_for_its_followers(autojump_clock):
    """Who follows hears that it was cancelled, and who comes later hears the same: a stream has one end."""
    async with http([[*say("one two"), Stall(40), *say(" three"), END]]) as (served, peer):
        creator, follower = await peer(), await peer()
        await creator.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        await creator.head()
        (live,) = served.server.live
        await follower.send("GET", f"/v1/responses/{live.response_id}?stream=true")
        await trio.sleep(1)
        await creator.stream.aclose()
        followed = await follower.answer()
        again = await replay(await peer(), live.response_id)
    (_, ended), done = followed.events[-2:]
    assert ("response.failed", "cancelled") == (ended["type"], ended["response"]["status"])
    assert ("", "[DONE]") == done
    assert followed.body.replace(b": ping\n\n", b"") == again.body


async def test_what_is_no_longer_kept_is_a_gap(autojump_clock):
    """Only so many bytes of events are kept: from what is left on it can be replayed, from before it is refused."""
    async with http([[*say("word " * 300), END]], limits=Limits(max_kept_event_bytes=20_000)) as (_, peer):
        client = await peer()
        made = await streamed(client)
        response_id = made.events[0][1]["response"]["id"]
        last = made.events[-2][1]["sequence_number"]
        assert words("replay_gap", response_id=response_id, number=0) == told(
            await replay(client, response_id)
        )
        assert made.events[-2:] == (await replay(client, response_id, last - 1)).events


async def test_the_events_of_so_many_responses_are_kept(autojump_clock):
    """Older ones are still retrieved, but no longer as a stream."""
    async with http(limits=Limits(max_kept_responses=2)) as (_, peer):
        client = await peer()
        made = [(await client.create()).json["id"] for _ in range(3)]
        gap = await replay(client, made[0])
        assert words("replay_gap", response_id=made[0], number=0) == told(gap)
        assert [200, 200] == [(await replay(client, response_id)).status for response_id in made[1:]]
        assert 200 == (await client.ask("GET", f"/v1/responses/{made[0]}")).status


# --- the log alone -------------------------------------------------------------------------------------------------


def log_with(limits=None, *, queued=True, kept=True):
    return EventLog(Record("resp_1", HTTP), limits or Limits(), queued=queued, kept=kept)


RESPONSE = Response("resp_1", 0, "m")


def begin(log):
    log.emit(events.ResponseCreated(RESPONSE))
    log.emit(events.ResponseInProgress(RESPONSE))


async def test_the_terminal_event_waits_for_the_store(autojump_clock):
    """Nobody is told of an end that is not yet kept: here the store takes three seconds."""

    class Slow(MemoryStore):
        async def put(self, record, *more):
            await trio.sleep(3)
            await super().put(record, *more)

    async with http(store=Slow()) as (served, peer):
        client = await peer()
        await client.send("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        ended = [trio.current_time() async for part in client_data(client) if b"response.completed" in part]
        assert [3.0] == ended
        assert 1 == len(served.server.engine.store)


async def client_data(client):
    await client.head()
    async for part in client.data():
        yield part


def test_an_unkept_response_holds_nothing_back_and_keeps_nothing():
    """`store: false` costs no memory after its events were sent."""
    log = log_with(kept=False)
    begin(log)
    taken = log.take()
    assert (2, []) == (taken.count(b"event: "), list(log._events))


def test_without_a_writer_nothing_is_queued():
    """An answer as JSON holds no stream in memory; a writer that is gone neither."""
    silent, gone = log_with(queued=False), log_with()
    gone.drop_writer()
    begin(silent)
    begin(gone)
    assert (0, 0) == (silent.unsent_bytes, gone.unsent_bytes)


def opening(_agent, item_id, index, *, piece=""):
    item = Message("assistant", (), item_id)
    return events.OutputItemAdded(index, item), events.OutputTextDelta(item_id, index, 0, piece)


def closing(_agent, item_id, index, text):
    return (events.OutputTextDone(item_id, index, 0, text),)


def test_pieces_are_written_as_their_deltas():
    """Several at once are the bytes of one delta after the other, queued and kept."""
    together, each = log_with(), log_with()
    added, first = opening(None, "msg_1", 0, piece="a")
    begin(together)
    begin(each)
    together.open(opening, "msg_1", 0)(["a", "b"])
    together.emit_made(closing, "msg_1", 0, "ab")
    for event in (added, first, attrs.evolve(first, delta="b"), events.OutputTextDone("msg_1", 0, 0, "ab")):
        each.emit(event)
    assert each.events_from(2) == together.events_from(2)
    assert each.take() == together.take()


def test_a_flush_tells_whether_the_writer_keeps_up():
    """Above the mark it says no, until half of it is taken."""
    log = log_with(Limits(outbox_high_water_bytes=1000))
    begin(log)
    log.take()
    log.take()
    assert log.flush()
    log.emit(events.OutputItemAdded(0, Message("assistant", (OutputText("x" * 2000),), id="msg_1")))
    assert not log.flush()


async def test_the_rollout_waits_for_its_writer(autojump_clock):
    """Above the mark it waits, at half of it it goes on; when the writer is gone it goes on at once."""
    limits = Limits(outbox_high_water_bytes=1000)
    item = Message("assistant", (OutputText("x" * 2000),), id="msg_1")
    for release in (lambda log: (log.take(), log.take()), EventLog.drop_writer):
        log = log_with(limits)
        begin(log)
        log.emit(events.OutputItemAdded(0, item))
        with trio.move_on_after(1) as waiting:
            await log.wait_writable()
        release(log)
        await log.wait_writable()
        assert waiting.cancelled_caught


def test_an_error_has_the_type_of_its_line():
    """The type beside the code is the catalogue's, whoever failed."""
    log = log_with()
    begin(log)
    error = ResponseError("invalid_prompt", "too long")
    log.emit(events.ResponseFailed(Response("resp_1", 0, "m", status="failed", error=error)))
    log.close()
    (_, told_error) = list(events_in(log.take()))[2]
    assert ("invalid_request_error", 2) == (told_error["error"]["type"], told_error["sequence_number"])


def test_a_gap_names_the_first_number_that_is_missing():
    """In the words of the catalogue."""
    log = log_with(Limits(max_kept_event_bytes=1))
    begin(log)
    with pytest.raises(RemoteProtocolError, match="from number 0 on are no longer kept"):
        log.events_from(0)
    assert 1 == len(log.events_from(1))
