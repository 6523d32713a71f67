"""The client's HTTP: events out of any pieces, one connection kept alive, and servers that answer badly."""

from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import lockstep_stream_pair, memory_stream_pair

from engine.client import ConnectionLostError, RolloutRefusedError, connect
from engine.client_http import HttpUnreachable, refusal_frame
from engine.client_sse import EventReader
from engine.config import Limits
from engine.engine import Engine
from engine.local import memory_client
from engine.samplers.policy import PolicySampler, Say, Use, program
from engine.samplers.scripted import END, Scripted, Stall, say
from engine.testing import serving
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.events import ResponseCreated, ResponseInject
from protocol.items import FunctionCallOutput

TOOL = {"type": "function", "name": "tool", "parameters": {"type": "object"}}

# --- events ----------------------------------------------------------------------------------------------------------


def read(*pieces):
    reader = EventReader(1000)
    return [event for piece in pieces for event in reader.feed(piece)]


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "response.done"]), st.text(min_size=1)), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.data(),
)
def test_events_are_the_same_whatever_the_pieces(said, line_end, data):
    """Cut anywhere, with each kind of line's end, a stream has the same events."""
    expected = []
    text = ""
    for name, words in said:
        lines = words.replace("\r", "\n").split("\n")
        text += f"event: {name}{line_end}" if name else f": a comment{line_end}"
        text += "".join(f"data: {line}{line_end}" for line in lines) + line_end
        if any(lines) or len(lines) > 1:
            expected.append((name, "\n".join(lines).encode()))
    raw = f"{text}: end\n".encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert read(*pieces) == expected


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data:x\n\n", [("", b"x")]),
        (b"data:  x\n\n", [("", b" x")]),
        (b"id: 3\nretry: 9\ndata: x\n\n", [("", b"x")]),
        (b"event: a\n\ndata: x\n\n", [("", b"x")]),
        (b"data\n\n: ping\n\n", []),
        (b"data: x\n", []),
        (b"data: x\r\n\r\n", [("", b"x")]),
    ],
)
def test_what_the_standard_says_of_fields(stream, expected):
    """One space after the colon is no part of a value; unknown fields, comments and empty events are passed over."""
    assert read(stream) == expected


@pytest.mark.parametrize("stream", [b"data: %b", b"data: %b\n", b"data: x\ndata: %b\n", b": %b"])
def test_an_event_has_a_bound(stream):
    """What grows over the bound without an end is refused, in a line or over many."""
    with pytest.raises(RemoteProtocolError, match="more than 1,000 bytes"):
        read(stream % (b"x" * 1001))


# --- one connection --------------------------------------------------------------------------------------------------


def asks_twice(_prompt, _tools):
    yield Use("tool", {})
    yield Use("tool", {})
    yield Say("done")


@pytest.mark.parametrize(("seconds", "connections"), [(0, 1), (60, 1), (100, 3)])
async def test_one_connection_as_long_as_the_server_keeps_it(seconds, connections, autojump_clock):
    """Requests share a connection; if the server closes it while a tool runs, the next request opens another one."""
    assert 60 < Limits().keep_alive_seconds < 100

    async def tool():
        await trio.sleep(seconds)
        return ""

    async with (
        serving(Engine.make(PolicySampler(program(asks_twice)))) as served,
        served.connect_client("http", redial=served.open_stream) as client,
        client.rollout(model="m", input="go", tools=[TOOL], functions={"tool": tool}) as rollout,
    ):
        await rollout.wait_ended()
        counts = served.server.statistics()
    assert (rollout.text, counts.http_accepted, counts.http_requests) == ("done", connections, 3)


async def test_a_connection_closed_between_rollouts_is_replaced(autojump_clock):
    """If the server has closed the connection before a rollout begins, it begins on another one."""
    async with memory_client(Engine.make(Scripted([[*say("fine"), END]])), form="http") as client:
        for _ in range(2):
            async with client.rollout(model="m", input="go") as rollout:
                await rollout.wait_ended()
            await trio.sleep(100)
    assert rollout.text == "fine"


async def test_without_a_way_to_open_another_connection_the_rollout_is_lost(autojump_clock):
    """A client of one given stream says that it is over, when the server has closed it."""

    async def tool():
        await trio.sleep(100)
        return ""

    async with (
        serving(Engine.make(PolicySampler(program(asks_twice)))) as served,
        served.connect_client("http") as client,
        client.rollout(model="m", input="go", tools=[TOOL], functions={"tool": tool}) as rollout,
    ):
        with pytest.raises(ConnectionLostError, match="no way to open another one"):
            await rollout.wait_ended()


async def test_leaving_a_rollout_closes_the_connection_and_stops_the_server(autojump_clock):
    """A rollout that is left while the model samples is over at the server at once, not when it would have ended."""
    ended = []
    engine = Engine.make(
        Scripted([[*say("Wait."), Stall(1000), END]]),
        on_report=lambda report: ended.append((report.ending, trio.current_time() - began)),
    )
    async with memory_client(engine, form="http") as client:
        began = trio.current_time()
        async with client.rollout(model="m", input="go") as rollout:
            await anext(rollout)
        await trio.sleep(1)
    ((ending, seconds),) = ended
    assert (ending, seconds < 1) == ("disconnected", True)


async def test_a_refusal_before_the_body_was_read_is_heard(autojump_clock):
    """A server that refuses a large body, and closes, is heard all the same."""
    engine = Engine.make(Scripted([[END]]), limits=Limits(max_message_bytes=1000))
    async with serving(engine) as served, served.connect_client("http") as client:
        with pytest.raises(RolloutRefusedError, match="larger than 1000 bytes"):
            async with client.rollout(model="m", input="x" * 1_000_000) as rollout:
                await rollout.wait_ended()


async def test_the_key_is_shown(autojump_clock):
    """A server with a key serves who shows it, and refuses others at their first request."""
    async with serving(Engine.make(Scripted([[*say("fine"), END]])), key="secret") as served:
        async with (
            served.connect_client("http", key="secret") as client,
            client.rollout(model="m", input="go") as rollout,
        ):
            assert (await rollout.wait_ended()).status == "completed"
        async with (
            served.connect_client("http", key="wrong") as client,
            client.rollout(model="m", input="go") as rollout,
        ):
            with pytest.raises(RolloutRefusedError, match="invalid_api_key"):
                await rollout.wait_ended()


async def test_bytes_are_counted_with_their_heads(autojump_clock):
    """The counts hold all that passed over the connection: heads, framing and bodies."""
    async with memory_client(Engine.make(Scripted([[*say("fine"), END]])), form="http") as client:
        assert (client.bytes_out, client.bytes_in) == (0, 0)
        async with client.rollout(model="m", input="x" * 5000) as rollout:
            events = [event async for event in rollout]
    assert 5200 < client.bytes_out < 5600
    assert client.bytes_in > 1000 * sum(isinstance(event, ResponseCreated) for event in events)


async def test_nobody_there():
    """Where nobody listens connecting fails, and says so without a word of WebSockets."""
    with pytest.raises(HttpUnreachable, match=r"^no HTTP connection: cannot reach 127\.0\.0\.1:1 "):
        async with connect("http://127.0.0.1:1/v1/responses", form="http"):
            pass


async def test_http_carries_creates_only(autojump_clock):
    """What HTTP cannot carry is refused on this side, and nothing is sent."""
    async with memory_client(Engine.make(Scripted([[END]])), form="http") as client:
        inject = ResponseInject(response_id="resp_1", input=(FunctionCallOutput("call_1", "x"),))
        with pytest.raises(LocalProtocolError, match=r"HTTP carries response\.create only"):
            client.send(inject)
        assert client.bytes_out == 0


# --- servers that answer badly ---------------------------------------------------------------------------------------

RESPONSE = {"id": "resp_1", "created_at": 1, "model": "m", "status": "completed", "output": []}
CREATED = {
    "type": "response.created",
    "sequence_number": 0,
    "response": {**RESPONSE, "status": "in_progress"},
}
COMPLETED = {"type": "response.completed", "sequence_number": 1, "response": RESPONSE}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n"


def event(frame, *, named=True):
    name = f"event: {frame['type']}\n".encode() if named else b""
    return name + b"data: " + orjson.dumps(frame) + b"\n\n"


@asynccontextmanager
async def answered(answer, **limits):
    """A rollout over HTTP with a server that reads the request and answers with these bytes, then hangs up."""
    ours, theirs = memory_stream_pair()

    async def serve():
        request = b""
        while not request.endswith(b"}"):
            request += await theirs.receive_some()
        await theirs.send_all(answer)
        await theirs.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with (
            connect("http://test/v1/responses", form="http", stream=ours, limits=Limits(**limits)) as client,
            client.rollout(model="m", input="go") as rollout,
        ):
            yield rollout


@pytest.mark.parametrize("named", [True, False])
async def test_a_plain_server(named):
    """A server may name its events or not, end its answer by hanging up, and say "continue" first."""
    body = event(CREATED, named=named) + event(COMPLETED, named=named)
    async with answered(b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM + body) as rollout:
        assert (await rollout.wait_ended()).id == "resp_1"


CUT = STREAM.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "the server hung up in the middle of it"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "what came is none: "),
        (STREAM + event(CREATED), "the answer ended before the response did"),
        (CUT + b"5\r\nda", "the server hung up in the middle of it"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 9\r\n\r\nx", "the server hung up in the middle of it"),
    ],
)
async def test_an_answer_that_breaks_off(answer, reason):
    """A connection that ends in an answer is lost, and the reason says where."""
    with pytest.raises(ExceptionGroup) as raised:
        async with answered(answer) as rollout:
            await rollout.wait_ended()
    (error,) = raised.value.exceptions
    assert isinstance(error, ConnectionLostError)
    assert reason in str(error)


def refused(status, body, kind="application/json"):
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("answer", "kind", "code", "words"),
    [
        (
            refused(429, b'{"error":{"message":"slow down","type":"too_many","code":"rate","param":null}}'),
            "too_many",
            "rate",
            "slow down",
        ),
        (refused(400, b'{"error":{"message":"no","code":7}}'), "invalid_request_error", None, "no"),
        (refused(502, b"<html>", "text/html"), "server_error", None, "status 502 and '<html>'"),
        (refused(404, b'{"error":"gone"}'), "invalid_request_error", None, 'status 404 and \'{"error":'),
        (refused(307, b""), "invalid_request_error", None, "status 307"),
        (refused(200, b"{}"), "invalid_request_error", None, "status 200 and '{}'"),
    ],
)
async def test_what_is_no_stream_is_a_refusal(answer, kind, code, words):
    """Each answer but a stream raises what it says; what is not of the API's kind is quoted with its status."""
    async with answered(answer) as rollout:
        with pytest.raises(RolloutRefusedError) as raised:
            await rollout.wait_ended()
    error = raised.value.error
    assert (error.type, error.code, words in error.message) == (kind, code, True)


async def test_of_a_refusal_the_beginning_is_read():
    """So many bytes: what is cut off there is no object any more, and is quoted."""
    answer = refused(429, b'{"error":{"message":"slow down","type":"too_many","code":"rate","param":null}}')
    async with answered(answer, max_refusal_bytes=20) as rollout:
        with pytest.raises(RolloutRefusedError) as raised:
            await rollout.wait_ended()
    assert """'{"error":{"message":'""" in raised.value.error.message


def test_a_refusal_frame_is_small():
    """Of a body that is quoted, the beginning is."""
    assert len(refusal_frame(500, b"x" * 1_000_000)) < 500


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"data: nonsense\n\n", "not a JSON object"),
        (event(CREATED) + event(CREATED), r"answers no response\.create"),
        (event(CREATED) + event({**COMPLETED, "sequence_number": 7}), "sequence_number 7 "),
        (event(CREATED) + b"data: " + b"x" * 3000 + b"\n\n", "more than 2,000 bytes"),
    ],
)
async def test_a_server_that_breaks_the_order_over_http(body, complaint):
    """The same rules hold as over WebSocket, and events have a bound."""
    async with answered(STREAM + body, max_message_bytes=2000) as rollout:
        with pytest.raises(RemoteProtocolError, match=complaint):
            await rollout.wait_ended()


async def test_a_server_that_does_not_read(autojump_clock):
    """A request that moves no byte for `send_timeout_seconds` ends the connection."""
    ours, _theirs = lockstep_stream_pair()
    async with (
        connect("http://test/v1/responses", form="http", stream=ours) as client,
        client.rollout(model="m", input="go") as rollout,
    ):
        with pytest.raises(ConnectionLostError, match="nothing was read for 10 s"):
            await rollout.wait_ended()
    assert trio.current_time() == pytest.approx(Limits().send_timeout_seconds)
