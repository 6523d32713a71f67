"""What a tap reads out of relayed bytes: requests, events and messages as they were meant, gaps where it cannot, no keys."""

import gzip
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason, FrameProtocol, Opcode

from engine.frames import TEXT, frame
from engine.tap.http import HostRewriter
from engine.tap.observer import MAX_HELD_RECORDS, MAX_OPEN_EXCHANGES, ConnectionObserver
from engine.tap.traces import TAP_HOOKS, TapTraces
from protocol import trace

GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
UPGRADE = (
    b"GET /v1/responses%b HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%b\r\n"
)
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n%b\r\n"
CREATE = {"type": "response.create", "model": "m", "input": "hi"}
MAX_BYTES = 1000


class Watched:
    """An observer, and what it wrote."""

    def __init__(self, folder: Path, max_message_bytes: int = 1 << 20) -> None:
        self._folder = folder
        self._traces = TapTraces(folder, "any-server", lambda *_: None)
        self.observer = ConnectionObserver("c1", self._traces, max_message_bytes)
        self._t = 0.0

    def sees(self, way: str, data: bytes, sizes: Sequence[int] = ()) -> None:
        """Bytes that pass, in pieces of these sizes (over and over), or whole."""
        at = piece = 0
        while at < len(data):
            size = sizes[piece % len(sizes)] if sizes else len(data)
            self._t += 0.25
            self.observer.feed(self._t, way, data[at : at + size])
            at, piece = at + size, piece + 1

    def ends(self, way: str) -> None:
        self.observer.ended(self._t, way)

    def records(self, dialect: str, *, by: str = "network") -> list[dict[str, Any]]:
        """Those of a dialect's trace when the connection is over; times are left out, they never go back."""
        self.observer.close(self._t, by)
        list(self._traces.finish())
        path = self._folder / f"{dialect}.jsonl"
        [(header, records)] = trace.read(path.read_bytes().splitlines())
        assert (header["dialect"], header["hooks"], header["complete"]) == (dialect, list(TAP_HOOKS), True)
        times = [record.pop("t") for record in records]
        assert times == sorted(times)
        return records

    def said(self, dialect: str, **more: Any) -> list[Any]:
        """The records in few words: what was said of which connection in which direction."""
        return [
            (
                record["conn"],
                record["dir"],
                record.get("frame", record.get("raw", record.get("binary_bytes"))),
            )
            for record in self.records(dialect, **more)
        ]


@contextmanager
def watched(**options: Any) -> Iterator[Watched]:
    with tempfile.TemporaryDirectory() as folder:
        yield Watched(Path(folder), **options)


def post(body: Any, path: str = "/v1/responses", headers: bytes = b"") -> bytes:
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n"
    return head % (path.encode(), len(text), headers) + text


def answer(body: bytes, headers: bytes = b"", status: int = 200) -> bytes:
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
    return head % (status, len(body), headers) + body


def chunked(body: bytes, sizes: Sequence[int]) -> bytes:
    """A body in chunks of these sizes, over and over."""
    chunks, at, piece = [], 0, 0
    while at < len(body):
        part = body[at : at + sizes[piece % len(sizes)]]
        chunks.append(b"%x;why=not\r\n%b\r\n" % (len(part), part) if piece % 3 == 2 else _chunk(part))
        at, piece = at + len(part), piece + 1
    return b"".join(chunks) + b"0\r\nX-Trailer: 1\r\n\r\n"


def _chunk(part: bytes) -> bytes:
    return b"%X\r\n%b\r\n" % (len(part), part)


def opened(conn: str = "c1.1") -> Any:
    return conn, "hook", {"hook": "connection_open"}


def closed(conn: str = "c1.1", by: str = "server", **code: int) -> Any:
    return conn, "hook", {"hook": "connection_close", "by": by, **code}


def gap(note: str, conn: str = "c1.1") -> Any:
    return conn, "hook", {"hook": "gap", "note": note}


def asked(method: str = "GET", path: str = "/v1/models", conn: str = "c1.1", **more: Any) -> Any:
    return conn, "in", {"type": "http.request", "method": method, "path": path, **more}


def told(status: int = 200, conn: str = "c1.1", **more: Any) -> Any:
    return conn, "out", {"type": "http.response", "status": status, **more}


pieces = st.lists(st.integers(1, 40), min_size=1, max_size=6)


# --- HTTP ------------------------------------------------------------------------------------------------------------


@given(pieces, pieces)
def test_requests_on_one_connection_are_read_however_they_are_cut(in_sizes, out_sizes):
    """Three exchanges on a connection that is kept alive become three connections of the trace, each with its body."""
    with watched() as seen:
        seen.sees("in", post({"a": 1}), in_sizes)
        seen.sees("out", b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b'{"b":2}'), out_sizes)
        seen.sees("in", GET, in_sizes)
        seen.sees(
            "out",
            b"HTTP/1.1 404 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b'{"c": 3}', out_sizes),
            out_sizes,
        )
        seen.sees(
            "in",
            b"\r\nPOST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b'{"d":[]}', in_sizes),
            in_sizes,
        )
        seen.sees("out", answer(b""), out_sizes)
        assert seen.said("http") == [
            opened(),
            asked("POST", "/v1/responses", body={"a": 1}),
            told(body={"b": 2}),
            closed(),
            opened("c1.2"),
            asked(conn="c1.2"),
            told(404, "c1.2", body={"c": 3}),
            closed("c1.2"),
            opened("c1.3"),
            asked("POST", "/x", "c1.3", body={"d": []}),
            told(conn="c1.3"),
            closed("c1.3"),
        ]


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (b"HEAD", b"HTTP/1.1 200 X\r\nContent-Length: 500\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 X\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 X\r\nContent-Length: 500\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ],
)
def test_an_answer_without_a_body_does_not_swallow_the_next_one(method, head):
    """After HEAD, 204 and 304 the next bytes are the next answer, whatever length was told."""
    with watched() as seen:
        seen.sees("in", method + GET.removeprefix(b"GET") + GET)
        seen.sees("out", head + answer(b'{"next":1}'))
        assert told(conn="c1.2", body={"next": 1}) in seen.said("http")


def test_pipelined_requests_get_their_answers_in_order():
    """Requests that do not wait are paired with the answers in the order of both."""
    with watched() as seen:
        seen.sees("in", post({"n": 1}) + post({"n": 2}) + GET)
        seen.sees("out", answer(b'{"n":1}') + answer(b'{"n":2}') + answer(b'{"n":3}'))
        answers = [words for words in seen.said("http") if words[1] == "out"]
    assert answers == [told(conn=f"c1.{n}", body={"n": n}) for n in (1, 2, 3)]


def test_more_requests_than_are_remembered_are_a_gap():
    """A client that asks on and on without an answer is not remembered without end."""
    with watched() as seen:
        seen.sees("in", GET * (MAX_OPEN_EXCHANGES + 1))
        gaps = [words for words in seen.said("http") if words[2].get("hook") == "gap"]
    assert len(gaps) == MAX_OPEN_EXCHANGES
    assert gaps[0] == gap(
        "more than 64 requests without an answer; the rest of this connection is not observed"
    )


def test_a_body_that_is_no_json_is_kept_as_text():
    """An error page of a proxy is in the trace, cut to 4,096 characters."""
    with watched() as seen:
        seen.sees("in", GET)
        seen.sees("out", answer(b"<html>" + b"x" * 5000, status=502))
        assert told(502, body="<html>" + "x" * 4090) in seen.said("http")


@pytest.mark.parametrize("depth", [300, 900])
def test_a_body_that_is_nested_deeply_is_kept(depth):
    """A body is written as it was sent, not made again."""
    body = b'{"a":' + b"[" * depth + b"1e2" + b"]" * depth + b"}"
    with watched() as seen:
        seen.sees("in", GET)
        seen.sees("out", answer(body))
        assert seen.said("http")[2] == told(body=orjson.loads(body))


@pytest.mark.parametrize("body", [b'{"a":1},"status":{}', b"1]", b'{"a":1}}', b"\xff", b'{"a"'])
def test_a_body_cannot_pretend_to_be_more_than_a_body(body):
    """What would be JSON only inside of the record is text."""
    with watched() as seen:
        seen.sees("in", GET)
        seen.sees("out", answer(body))
        assert seen.said("http")[2] == told(body=body.decode("utf-8", "replace"))


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        (b"gzip", gzip.compress),
        (b"deflate", zlib.compress),
        (b"deflate", lambda text: zlib.compress(text)[2:-4]),
        (b"identity", bytes),
    ],
)
@given(sizes=pieces)
def test_a_compressed_body_is_unpacked(coding, pack, sizes):
    """Gzip and both readings of deflate are read, in the request and in the answer; the relay does not touch them."""
    if pack not in (gzip.compress, bytes):
        sizes = [max(3, size) for size in sizes]  # the two readings differ in the first two bytes
    text = b'{"long":"%b"}' % (b"abc" * 50)
    header = b"Content-Encoding: %b\r\n" % coding
    with watched() as seen:
        seen.sees("in", post(pack(text), headers=header))
        seen.sees(
            "out", answer(pack(text), header), [10_000] if pack not in (gzip.compress, bytes) else sizes
        )
        body = orjson.loads(text)
        assert seen.said("http")[1:3] == [asked("POST", "/v1/responses", body=body), told(body=body)]


def test_what_cannot_be_unpacked_is_a_gap_and_the_connection_goes_on():
    """A body in br or zstd is said to be missing; the next exchange is read."""
    with watched() as seen:
        seen.sees("in", post(b"(\xb5/\xfd", headers=b"Content-Encoding: zstd\r\n"))
        seen.sees("out", answer(b"\x0b\x02\x80", b"Content-Encoding: br\r\n"))
        seen.sees("in", GET)
        seen.sees("out", answer(b'{"next":1}'))
        assert seen.said("http") == [
            opened(),
            asked("POST", "/v1/responses"),
            gap("the body of the request: content-encoding zstd"),
            told(),
            gap("the body of the answer: content-encoding br"),
            closed(),
            opened("c1.2"),
            asked(conn="c1.2"),
            told(conn="c1.2", body={"next": 1}),
            closed("c1.2"),
        ]


def test_a_bomb_is_not_unpacked_into_memory():
    """A body that unpacks to more than is looked at is a gap; so is an event in it."""
    bomb = gzip.compress(b"data: " + b"x" * 10_000_000)
    with watched(max_message_bytes=MAX_BYTES) as seen:
        seen.sees("in", GET + GET)
        seen.sees("out", answer(bomb, b"Content-Encoding: gzip\r\n"))
        head = b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        seen.sees("out", head % len(bomb) + bomb)
        gaps = [words for words in seen.said("http") if words[2].get("hook") == "gap"]
    assert gaps == [
        gap("the body of the answer: more than 1000 bytes"),
        gap("an event of more than 1000 bytes; the rest of this answer is not observed", "c1.2"),
    ]


def test_a_large_body_is_a_gap_and_the_connection_goes_on():
    """What is larger than is looked at is skipped; where it ends is still known."""
    with watched(max_message_bytes=MAX_BYTES) as seen:
        seen.sees("in", post(b"x" * (MAX_BYTES + 1)) + GET)
        seen.sees("out", answer(b"y" * (MAX_BYTES + 1)) + answer(b'{"next":1}'))
        said = seen.said("http")
    assert gap("the body of the request: more than 1000 bytes") in said
    assert gap("the body of the answer: more than 1000 bytes") in said
    assert told(conn="c1.2", body={"next": 1}) in said


def test_a_body_may_end_with_the_connection():
    """Without a length the end of the connection ends the answer, and that is no fault."""
    with watched() as seen:
        seen.sees("in", GET)
        seen.sees("out", b'HTTP/1.0 200 X\r\nContent-Type: application/json\r\n\r\n{"a"')
        seen.sees("out", b":1}")
        seen.ends("out")
        assert seen.said("http") == [opened(), asked(), told(body={"a": 1}), closed()]


@pytest.mark.parametrize(("first", "by"), [("in", "client"), ("out", "server"), (None, "network")])
def test_an_exchange_that_is_cut_says_by_whom(first, by):
    """Whoever ended the connection first in the middle of an answer ended the exchange."""
    with watched() as seen:
        seen.sees("in", post({"stream": True}))
        seen.sees(
            "out",
            b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata: {}\n\n",
        )
        for way in (first, "out", "in") if first else ():
            seen.ends(way)
        assert seen.said("http")[-2:] == [("c1.1", "out", {}), closed(by=by)]


def test_a_request_that_is_answered_before_its_end_is_in_the_trace():
    """An early refusal of a large body: the request stands before the answer, and that its body is missing is said."""
    with watched() as seen:
        seen.sees("in", post({"a": 1})[:-3])
        seen.sees("out", answer(b'{"error":{}}', status=413))
        assert seen.said("http") == [
            opened(),
            asked("POST", "/v1/responses"),
            gap("the body of the request: it was cut off"),
            told(413, body={"error": {}}),
            closed(),
        ]


# --- events ------------------------------------------------------------------------------------------------------------

events = st.lists(
    st.tuples(
        st.sampled_from([None, "response.created", "é", ""]),
        st.one_of(
            st.dictionaries(
                st.text(max_size=5), st.one_of(st.integers(0, 9), st.text(max_size=9)), max_size=3
            ),
            st.just("[DONE]"),
            st.sampled_from(["no json", "[1]", "{", '{"a":1},{"b":2}', '{"a":1},"dir":{"b":2}']),
        ),
    ),
    max_size=6,
)


@settings(max_examples=200)
@given(
    events,
    st.sampled_from([[b"\n"], [b"\r\n"], [b"\r"], [b"\n", b"\r\n"], [b"\r\n", b"\r\n", b"\n"]]),
    st.booleans(),
    pieces,
    pieces,
)
def test_events_are_read_however_they_are_cut(written, line_ends, comments, chunks, sizes):
    """Every event is a record with its name beside it, for each line end, chunking and cut; comments are none."""
    lines = []
    for name, data in written:
        lines += [b": ping", b""] * comments
        lines += [b"id: 7"] * comments + ([] if name is None else [b"event: " + name.encode()])
        text = data.encode() if isinstance(data, str) else orjson.dumps(data)
        lines += [b"data:" + b" " * (not comments or text.startswith(b" ")) + text, b""]
    ended = [line + line_ends[number % len(line_ends)] for number, line in enumerate(lines)]
    body = b"".join([*ended, b"data: {}"])  # the last one is not whole
    with watched() as seen:
        seen.sees("in", post({"stream": True}))
        seen.sees("out", b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream; charset=utf-8\r\n")
        seen.sees("out", b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, chunks), sizes)
        _, _, response, *records, _ = seen.records("http")
        assert response == {"conn": "c1.1", "dir": "out", "frame": {"type": "http.response", "status": 200}}
        assert records == [event_record(name, data) for name, data in written]


def event_record(name: str | None, data: Any) -> dict[str, Any]:
    value = {"frame": data} if isinstance(data, dict) or data == "[DONE]" else {"raw": data}
    return {"conn": "c1.1", "dir": "out", **value, **({} if name is None else {"event": name})}


def test_data_of_several_lines_is_one_event():
    """Lines of data are joined, and a line break in the JSON becomes a space in the trace's line."""
    with watched() as seen:
        seen.sees("in", GET)
        seen.sees(
            "out",
            b'HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\n\r\n\xef\xbb\xbfdata: {"a":\ndata: 1}\n\n',
        )
        assert ("c1.1", "out", {"a": 1}) in seen.said("http")


@pytest.mark.parametrize("content_type", [b"text/plain", b"application/json", None])
def test_a_stream_that_does_not_say_so_is_recognised(content_type):
    """Events under a wrong content type, or none, are events."""
    header = b"Content-Type: %b\r\n" % content_type if content_type else b""
    with watched() as seen:
        seen.sees("in", GET)
        seen.sees("out", b"HTTP/1.1 200 X\r\n" + header + b"\r\nevent: x\nda")
        seen.sees("out", b'ta: {"type":"x"}\n\n')
        assert seen.records("http")[2:4] == [
            {"conn": "c1.1", "dir": "out", "frame": {"type": "http.response", "status": 200}},
            {"conn": "c1.1", "dir": "out", "frame": {"type": "x"}, "event": "x"},
        ]


# --- WebSocket -----------------------------------------------------------------------------------------------------------

messages = st.lists(
    st.one_of(
        st.dictionaries(st.text(max_size=5), st.text(max_size=300), max_size=3).map(orjson.dumps),
        st.sampled_from([b"no json", b'{ "a":\n1 }', b'"\\ud800"', b'{"half":"\\ud800"}', b""]),
        st.integers(0, 70_000).map(lambda size: b'{"x":"%b"}' % (b"y" * size)),
        st.tuples(st.just("binary"), st.integers(0, 70_000)),
        st.just("ping"),
    ),
    max_size=6,
)


def upgraded(seen: Watched, *, target: bytes = b"", asks: bytes = b"", grants: bytes = b"") -> None:
    seen.sees("in", UPGRADE % (target, asks))
    seen.sees("out", UPGRADED % grants)


def record_of(way: str, text: Any) -> Any:
    if isinstance(text, tuple):
        return "c1", way, text[1]
    try:
        value = trace.parsed(text)
    except ValueError:
        value = None
    return "c1", way, value if isinstance(value, dict) else text.decode()


@pytest.mark.parametrize(
    "settings_of_compression",
    [None, "", "server_no_context_takeover", "client_no_context_takeover; server_no_context_takeover"],
)
@given(messages, messages, st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.integers(1, 400))
@settings(max_examples=60)
def test_messages_are_read_however_they_are_sent(settings_of_compression, sent, received, sizes, fragment):
    """What another implementation frames, masks, fragments and compresses is read back, in the order of each side."""
    grants, sides = b"", {}
    for way in ("in", "out"):
        extensions = []
        if settings_of_compression is not None:
            offer = f"permessage-deflate; {settings_of_compression}".rstrip("; ")
            grants = b"Sec-WebSocket-Extensions: %b\r\n" % offer.encode()
            extension = PerMessageDeflate()
            extension.finalize(offer)
            extensions.append(extension)
        sides[way] = FrameProtocol(client=way == "in", extensions=extensions)
    with watched() as seen:
        upgraded(seen, grants=grants)
        seen.sees("in", wire(sides["in"], [orjson.dumps(CREATE), *sent], fragment), sizes)
        seen.sees("out", wire(sides["out"], received, fragment), sizes)
        seen.sees("in", bytes(sides["in"].close(CloseReason.GOING_AWAY)), sizes)
        said = seen.said("create")
    noted = [
        record_of(way, text)
        for way, texts in (("in", sent), ("out", received))
        for text in texts
        if text != "ping"
    ]
    assert said == [opened("c1"), ("c1", "in", CREATE), *noted, closed("c1", "client", code=1001)]


def wire(side: FrameProtocol, texts: Sequence[Any], fragment: int) -> bytes:
    """Messages as another implementation sends them, the second of three in fragments with a ping between."""
    out = b""
    for number, text in enumerate(texts):
        if text == "ping":
            out += bytes(side.ping(b"!"))
            continue
        payload: Any = b"\0" * text[1] if isinstance(text, tuple) else text.decode()
        if number % 3 != 1:
            out += bytes(side.send_data(payload))
            continue
        for at in range(0, len(payload), fragment * 100):
            out += bytes(side.send_data(payload[at : at + fragment * 100], fin=False)) + bytes(side.pong(b""))
        out += bytes(side.send_data(payload[:0], fin=True))
    return out


@pytest.mark.parametrize(
    ("target", "asks", "first", "dialect"),
    [
        (b"", b"", CREATE, "create"),
        (b"?dialect=append", b"", CREATE, "append"),
        (b"", b"OpenAI-Beta: x, responses_websockets=2026-02-04\r\n", CREATE, "append"),
        (b"", b"OpenAI-Beta: responses_websockets=2026-02-06\r\n", CREATE, "create"),
        (
            b"",
            b"OpenAI-Beta: responses_multi_agent=v1\r\n",
            {**CREATE, "multi_agent": {"enabled": True}},
            "inject",
        ),
        (b"", b"", {**CREATE, "multi_agent": {"enabled": False}}, "create"),
        (b"", b"", {"no": "create"}, "create"),
    ],
)
def test_the_dialect_is_that_of_the_handshake_or_of_the_first_create(target, asks, first, dialect):
    """What came before the client's first message is in the trace of the dialect that this message tells."""
    with watched() as seen:
        upgraded(seen, target=target, asks=asks)
        seen.sees("out", frame(TEXT, b'{"type":"hello"}'))
        seen.sees("in", frame(TEXT, orjson.dumps(first), masked=True))
        assert seen.said(dialect) == [
            opened("c1"),
            ("c1", "out", {"type": "hello"}),
            ("c1", "in", first),
            closed("c1", "network", code=1006),
        ]


def test_times_do_not_go_back_where_connections_share_a_trace(tmp_path):
    """What was held until the dialect was known stands behind later records of others, with their time."""
    traces = TapTraces(tmp_path, "any-server", lambda *_: None)
    first, second = [ConnectionObserver(name, traces) for name in ("c1", "c2")]
    for t, observer in ((1.0, first), (2.0, second), (2.5, second), (3.0, first)):
        if t < 2.5:
            observer.feed(t, "in", UPGRADE % (b"", b""))
            observer.feed(t, "out", UPGRADED % b"")
        else:
            observer.feed(t, "in", frame(TEXT, orjson.dumps(CREATE), masked=True))
    list(traces.finish())
    [(_, records)] = trace.read((tmp_path / "create.jsonl").read_bytes().splitlines())
    assert [(record["conn"], record["t"]) for record in records] == [
        ("c2", 2.0),
        ("c2", 2.5),
        ("c1", 2.5),
        ("c1", 3.0),
    ]


def test_a_server_that_talks_first_is_not_held_back_for_ever():
    """After some messages the dialect is taken for `create`."""
    with watched() as seen:
        upgraded(seen)
        seen.sees("out", frame(TEXT, b"{}") * (2 * MAX_HELD_RECORDS))
        assert len(seen.said("create")) == 2 * MAX_HELD_RECORDS + 2


def test_a_frame_right_behind_the_handshake_is_read():
    """A client that does not wait for the answer to its upgrade has its frame in the trace, behind the opening."""
    with watched() as seen:
        seen.sees("in", UPGRADE % (b"", b"") + frame(TEXT, orjson.dumps(CREATE), masked=True))
        seen.sees("out", UPGRADED % b"" + frame(TEXT, b'{"type":"error"}'))
        said = seen.said("create")
    assert said[0] == opened("c1")
    assert sorted(said[1:3], key=str) == [("c1", "in", CREATE), ("c1", "out", {"type": "error"})]


def test_an_upgrade_that_is_refused_is_an_exchange():
    """A refusal is in the HTTP trace, and what follows on the connection is read as HTTP."""
    with watched() as seen:
        seen.sees("in", UPGRADE % (b"", b"") + GET)
        seen.sees("out", answer(b'{"error":{}}', status=401) + answer(b'{"next":1}'))
        assert seen.said("http") == [
            opened(),
            asked(path="/v1/responses"),
            opened("c1.2"),
            asked(conn="c1.2"),
            told(401, body={"error": {}}),
            closed(),
            told(conn="c1.2", body={"next": 1}),
            closed("c1.2"),
        ]


@pytest.mark.parametrize("fragments", [1, 3])
def test_a_large_message_is_a_gap_and_the_next_one_is_read(fragments):
    """A message that is too large is skipped, whole or in fragments, and the reader does not lose its place."""
    part = b"x" * (MAX_BYTES // fragments + 1)
    opcodes = [Opcode.TEXT, *[Opcode.CONTINUATION] * (fragments - 1)]
    large = b"".join(
        frame((0x80 if number == fragments - 1 else 0) | opcode, part)
        for number, opcode in enumerate(opcodes)
    )
    with watched(max_message_bytes=MAX_BYTES) as seen:
        upgraded(seen)
        seen.sees("in", frame(TEXT, orjson.dumps(CREATE), masked=True))
        seen.sees("out", large + frame(TEXT, b'{"next":1}'), [7])
        assert seen.said("create")[2:4] == [
            gap(f"a message of {len(part) * fragments} bytes is too large to be looked at", "c1"),
            ("c1", "out", {"next": 1}),
        ]


def test_a_compressed_bomb_ends_the_observation():
    """A message that unpacks to more than is looked at is a gap for good: later messages refer to it."""
    packer = zlib.compressobj(wbits=-15)
    bomb = (packer.compress(b"x" * 10_000_000) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
    with watched() as seen:
        upgraded(seen, grants=b"Sec-WebSocket-Extensions: permessage-deflate\r\n")
        seen.sees("in", frame(TEXT, orjson.dumps(CREATE), masked=True))
        seen.sees("out", frame(TEXT | 0x40, bomb) + frame(TEXT, b"{}"))
        note = "a compressed message of more than 1048576 bytes; the rest of this connection is not observed"
        assert seen.said("create")[2:] == [gap(note, "c1"), closed("c1", "network", code=1006)]


# --- what is no HTTP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "data"),
    [
        ("in", b"\x16\x03\x01\x02\x00 a TLS client\r\n\r\n"),
        ("in", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("in", b"x" * 70_000),
        ("in", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        ("in", b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        ("in", b"GET / HTTP/1.1\r\n folded\r\n\r\n"),
        ("in", answer(b"")),
        ("out", answer(b"")),
        ("out", GET),
    ],
)
def test_garbage_is_a_gap(way, data):
    """What is no HTTP/1.1 makes one gap, is read no further, and the end of the connection is still in the trace."""
    with watched() as seen:
        seen.sees(way, data)
        seen.sees("in", GET)
        seen.sees("out", answer(b"{}"))
        [missing, end] = seen.said("http", by="client")
    assert missing[:2] == ("c1", "hook")
    assert missing[2]["note"].endswith("; the rest of this connection is not observed")
    assert end == closed("c1", "client")


@settings(max_examples=300)
@given(st.data())
def test_no_bytes_make_the_observer_fail(data):
    """Whatever passes, in whatever state: records are written, or a gap, and nothing is raised."""
    starts = st.sampled_from(
        [
            b"",
            GET,
            UPGRADE % (b"", b""),
            UPGRADED % b"",
            answer(b"{}"),
            post(b"{}"),
            b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n",
            frame(TEXT, b"{}"),
        ]
    )
    with watched(max_message_bytes=50) as seen:
        if data.draw(st.booleans()):
            upgraded(
                seen,
                grants=data.draw(st.sampled_from([b"", b"Sec-WebSocket-Extensions: permessage-deflate\r\n"])),
            )
        for _ in range(data.draw(st.integers(1, 5))):
            seen.sees(
                data.draw(st.sampled_from(["in", "out"])),
                data.draw(starts) + data.draw(st.binary(max_size=60)),
            )
        seen.observer.close(9.0, "client")


# --- keys --------------------------------------------------------------------------------------------------------------------

KEY = "sk-live-0123456789abcdef"


@pytest.mark.parametrize(
    "headers",
    [
        b"Authorization: Bearer KEY\r\n",
        b"authorization:   KEY\r\n",
        b"Api-Key: KEY\r\n",
        b"X-API-Key: KEY\r\n",
        b"Cookie: a=b; session=KEY\r\n",
        b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.KEY\r\n",
    ],
)
def test_a_key_is_nowhere_in_the_trace(headers):
    """A key of the head is not written, wherever it is repeated: address, bodies, events, frames of both sides."""
    headers = headers.replace(b"KEY", KEY.encode())
    with tempfile.TemporaryDirectory() as folder:
        seen = Watched(Path(folder))
        repeated = {"model": "m", "why": f"wrong key {KEY}"}
        seen.sees("in", post(repeated, f"/v1/{KEY}/x?model={KEY}&api-key={KEY}", headers))
        seen.sees("out", answer(orjson.dumps(repeated)))
        upgraded(seen, target=b"?token=" + KEY.encode(), asks=headers)
        seen.sees("in", frame(TEXT, orjson.dumps({**CREATE, **repeated}), masked=True))
        seen.sees("out", frame(TEXT, orjson.dumps(repeated)))
        said = seen.said("http") + seen.said("create")
        text = b"".join(path.read_bytes() for path in Path(folder).iterdir())
    assert KEY.encode() not in text
    assert (
        asked("POST", "/v1/***/x", query="model=***&api-key=***", body={"model": "m", "why": "wrong key ***"})
        in said
    )
    assert ("c1", "out", {"model": "m", "why": "wrong key ***"}) in said


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/v1/responses?dialect=append&stream=true", "/v1/responses", "dialect=append&stream=true"),
        ("/v1?key=abc&Api_Key=x&sig=1", "/v1", "key=***&Api_Key=***&sig=***"),
        ("/v1?api-version=2025-01-01&include[]=x", "/v1", "api-version=2025-01-01&include[]=x"),
        ("http://user:password@host/v1?token=x", "/v1", "token=***"),
        ("/keys/sk-abcdefghijklmnop", "/keys/***", None),
        ("//v1/odd", "//v1/odd", None),
        ("*", "*", None),
    ],
)
def test_an_address_keeps_only_what_is_known_to_be_harmless(target, path, query):
    """Values of unknown names in a query, and what looks like a key in a path, are hidden."""
    with watched() as seen:
        seen.sees("in", b"OPTIONS %b HTTP/1.1\r\nHost: a\r\n\r\n" % target.encode())
        more = {} if query is None else {"query": query}
        assert seen.said("http")[1] == asked("OPTIONS", path, **more)


def test_the_authorization_of_a_tool_is_hidden():
    """A frame that hands on a key of its own, for a tool's server, is written without it and is otherwise the same."""
    tool = (
        b'{"type":"mcp","authorization" : "Bearer \\"x\\" y","headers":{"Authorization":"z","A":"b"},"n":1e2}'
    )
    with watched() as seen:
        upgraded(seen)
        seen.sees("in", frame(TEXT, b'{"type":"response.create","tools":[%b]}' % tool, masked=True))
        [_, (_, _, create), _] = seen.said("create")
    assert create["tools"] == [
        {"type": "mcp", "authorization": "***", "headers": {"Authorization": "***", "A": "b"}, "n": 100.0}
    ]


def test_a_short_key_is_no_secret():
    """A key such as `sk-test` is not looked for: it would be found in innocent words."""
    with watched() as seen:
        seen.sees("in", post({"input": "test"}, headers=b"Authorization: Bearer test\r\n"))
        assert seen.said("http")[1] == asked("POST", "/v1/responses", body={"input": "test"})


# --- the host ----------------------------------------------------------------------------------------------------------------

requests = st.lists(
    st.sampled_from(
        [
            post({"host": "Host: a\r\n"}, headers=b"X-Host: a\r\n"),
            b"\r\n" + GET,
            b"GET / HTTP/1.1\r\nhOST:a\r\nhost: second\r\n\r\n",
            b"PUT /Host: HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunked(b"\nHost: a\r\n\r\n", [3, 5]),
            b"GET / HTTP/1.0\nHost: a\n\n",
        ]
    ),
    max_size=4,
)
tails = st.sampled_from(
    [
        b"",
        UPGRADE % (b"", b"") + frame(TEXT, b"\nHost: a\r\n\r\n", masked=True),
        b"\0\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHo",
        UPGRADE % (b"", b"") + GET,
    ]
)


@settings(max_examples=300)
@given(requests, tails, pieces)
def test_only_the_host_of_a_request_is_rewritten(heads, tail, sizes):
    """However requests are cut, every byte arrives in order but the value of each head's first Host."""
    rewriter, sent = HostRewriter(b"upstream:1"), b""
    whole = b"".join([*heads, tail])
    at = piece = 0
    while at < len(whole):
        sent += rewriter.pass_on(whole[at : at + sizes[piece % len(sizes)]])
        at, piece = at + sizes[piece % len(sizes)], piece + 1
    sent += rewriter.rest()
    assert sent == b"".join(with_host(text) for text in [*heads, tail])


def with_host(text: bytes) -> bytes:
    """By plain means: the value after the first line that begins with `host`, in the part that is a head."""
    head_end = max(text.find(b"\r\n\r\n", 4), text.find(b"\n\n"))
    if head_end < 0 or text.startswith(b"\0"):
        return text
    head, rest = text[:head_end], text[head_end:]
    lines = head.split(b"\n")
    for number, line in enumerate(lines):
        if number and line.lower().startswith(b"host"):
            end = b"\r" if line.endswith(b"\r") else b""
            blank = b" " if b": " in line else b""
            lines[number] = line[: line.index(b":") + 1] + blank + b"upstream:1" + end
            break
    return b"\n".join(lines) + (
        with_host(rest[4:]).join([b"\r\n\r\n", b""]) if rest[4:].startswith(b"GET") else rest
    )
