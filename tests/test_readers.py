"""protocol.readers: whatever log an exchange was kept in, the same frames come out of it, or it is refused by line."""

import base64
import json
import tracemalloc
from itertools import chain, pairwise, repeat

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import responses as sdk

from protocol import readers, trace
from protocol.dialects import HTTP
from protocol.readers import lines as reader_lines
from protocol.readers.lines import Clock, lines_of, seconds_of
from protocol.record import Record
from tests.strategies import json_objects, streams

HEADER = trace.header_line(dialect="append", source="test")
CREATED = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}}
DELTA = {"type": "response.output_text.delta", "sequence_number": 1, "delta": "x"}
COMPLETED = {"type": "response.completed", "sequence_number": 2, "response": {"id": "resp_1"}}
CREATE = {"type": "response.create", "model": "m", "input": "hi"}


def entries_of(log, kind=None, dialect=None):
    """All that is read from a log, as text, bytes or JSON lines."""
    if isinstance(log, list):
        log = b"".join(orjson.dumps(line) + b"\n" for line in log)
    text = log.encode() if isinstance(log, str) else log
    lines = lines_of([text])
    if kind is None:
        kind, lines = readers.detected(lines)
    return list(readers.entries(kind, lines, dialect))


def kind_of(text):
    return readers.detected(lines_of([text.encode()]))[0]


def frames_of(entries):
    return [entry["frame"] for entry in entries if "trace" not in entry]


def exchange_of(entries):
    """Connection, direction and frame of each record."""
    return [(entry["conn"], entry["dir"], entry["frame"]) for entry in entries if "trace" not in entry]


def sse(*frames):
    return "".join(f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n" for frame in frames)


def cut(text, places):
    """A text in pieces."""
    borders = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(borders)]


# --- lines


@given(
    st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf"]), max_size=12),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_lines_are_the_same_however_the_text_is_cut(parts, places):
    """Any pieces of a text give the lines of the whole, without a byte order mark at its beginning."""
    text = b"".join(parts)
    assert list(lines_of(cut(text, places))) == text.removeprefix(b"\xef\xbb\xbf").splitlines()


def test_a_text_without_lines_is_refused(monkeypatch):
    """What has no line breaks does not fill the memory: it is refused, by line."""
    monkeypatch.setattr(reader_lines, "MAX_LINE_BYTES", 10)
    with pytest.raises(trace.TraceError, match=r"line 2 is longer than 10 bytes") as refusal:
        list(lines_of(chain([b"a\n"], repeat(b"xxxx"))))
    assert refusal.value.line == 2


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1.5, 1.5),
        ("1.5", 1.5),
        (1767225600123, 1767225600.123),
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T01:00:00.250+01:00", 1767225600.25),
        ("2026-01-01 00:00:00,5", 1767225600.5),
        ("2025-12-31T16:00:00-0800", 1767225600.0),
        ("soon", None),
        ("0000-01-01T00:00:00Z", None),
        (None, None),
        (True, None),
        (float("nan"), None),
    ],
)
def test_times_are_read_as_logs_write_them(value, seconds):
    """Seconds, milliseconds and dates are points in time; anything else is none."""
    assert seconds_of(value) == seconds


def test_a_clock_never_goes_back():
    """Times count from the first; an unknown or earlier one is the last."""
    clock = Clock()
    assert [clock.seconds(instant) for instant in (None, 100.0, 100.5, None, 100.25, 101.0)] == [
        0.0,
        0.0,
        0.5,
        0.5,
        0.5,
        1.0,
    ]


# --- traces


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6),
            st.sampled_from(["c1", "c2"]),
            st.sampled_from(["in", "out", "hook"]),
            json_objects,
        ),
        max_size=4,
    ),
    st.lists(st.integers(0, 10**4), max_size=4),
)
def test_a_trace_comes_back_entry_by_entry(exchange, places):
    """What `header_line` and `record_line` wrote is what is read, however the file is cut into pieces."""
    text = HEADER + b"".join(trace.record_line(t / 1000, *rest) for t, *rest in exchange)
    kind, lines = readers.detected(lines_of(cut(text, places)))
    assert (kind, list(readers.entries(kind, lines))) == (
        "trace",
        [
            orjson.loads(HEADER),
            *({"t": t / 1000, "conn": conn, "dir": way, "frame": frame} for t, conn, way, frame in exchange),
        ],
    )


def test_a_trace_is_read_as_it_comes():
    """The first entries are there before the second piece of the file is: nothing is collected."""

    def pieces():
        yield HEADER + trace.record_line(0, "c1", "out", CREATED) + b"{"
        raise AssertionError("too early")

    kind, lines = readers.detected(lines_of(pieces()))
    found = readers.entries(kind, lines)
    assert [next(found), next(found)["frame"]] == [orjson.loads(HEADER), CREATED]


def test_half_a_character_is_read():
    """A lone surrogate, which strict JSON readers refuse, reaches the checker."""
    line = b'{"t":0,"conn":"c1","dir":"out","frame":{"type":"a","delta":"\\ud83d"}}'
    assert frames_of(entries_of(HEADER + line)) == [{"type": "a", "delta": "\ud83d"}]


def test_half_a_character_is_recorded_as_a_frame():
    """A frame with a lone surrogate is no less a frame: the recorder keeps it as it was."""
    line = trace.record_line(0, "c1", "out", b'{"type":"a","delta":"\\uD83D"}')
    assert frames_of(entries_of(HEADER + line)) == [{"type": "a", "delta": "\ud83d"}]


def test_a_large_trace_is_read_in_little_memory():
    """Of 50 MB of records less than 2 MB are in memory at once."""
    line = trace.record_line(0.5, "c1", "out", {**DELTA, "delta": "x" * 1000})
    block = line * 200
    blocks = 50_000_000 // len(block)
    kind, lines = readers.detected(lines_of(chain([HEADER], repeat(block, blocks))))
    tracemalloc.start()
    try:
        count = sum(1 for _ in readers.entries(kind, lines))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (count, peak < 2_000_000) == (1 + 200 * blocks, True)


# --- SSE


@given(
    streams(HTTP),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["", ": ping", "id: 7", "retry: 10", "nothing"]),
    st.booleans(),
    st.lists(st.integers(0, 10**4), max_size=5),
)
def test_an_sse_log_gives_the_frames_of_its_stream(stream, end, between, pretty, places):
    """Any line ends, comments, data over several lines and pieces: the frames are those that the server framed."""
    record = Record(stream.response_id, HTTP)
    frames = [orjson.loads(record.send(event)) for event in stream.steps]
    log = ""
    for frame in frames:
        data = json.dumps(frame, ensure_ascii=False, indent=1 if pretty else None)
        lines = [f"event: {frame['type']}", between, *(f"data: {line}" for line in data.split("\n"))]
        log += "".join(line + end for line in lines if line) + end
    log += f"data: [DONE]{end}{end}"
    kind, lines = readers.detected(lines_of(cut(log.encode(), places)))
    header, *records = readers.entries(kind, lines)
    assert (kind, header["dialect"], header["transport"], header["directions"]) == (
        "sse",
        "http",
        "sse",
        ["out"],
    )
    assert [(found["conn"], found.get("event"), found["frame"]) for found in records] == [
        *(("c1", frame["type"], frame) for frame in frames),
        ("c1", None, "[DONE]"),
    ]


def test_answers_in_one_log_are_connections_of_their_own():
    """A new answer begins after `[DONE]`, and with a creation after an end; one in mid-stream is the same answer's."""
    log = sse(CREATED, COMPLETED, CREATED, CREATED, COMPLETED) + "data: [DONE]\n\n" + sse(DELTA)
    found = [(entry["conn"], entry["frame"]) for entry in entries_of(log)[1:]]
    assert found == [
        ("c1", CREATED),
        ("c1", COMPLETED),
        ("c2", CREATED),
        ("c2", CREATED),
        ("c2", COMPLETED),
        ("c2", "[DONE]"),
        ("c3", DELTA),
    ]


def test_what_follows_an_end_is_for_the_checker():
    """Events after the terminal one, and a second `[DONE]`, stay in the answer that they are wrong in."""
    log = sse(CREATED, COMPLETED, DELTA) + "data: [DONE]\n\n" * 2
    assert {entry["conn"] for entry in entries_of(log)[1:]} == {"c1"}


def test_heads_of_answers_are_read():
    """`curl -i` writes the head before each answer: its status is kept, its headers are not events."""
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ndata: not an event\r\n\r\n"
    log = head + sse(CREATED) + "HTTP/2 500 \r\n\r\n" + sse(COMPLETED)
    assert exchange_of(entries_of(log)) == [
        ("c1", "out", {"type": "http.response", "status": 200}),
        ("c1", "out", CREATED),
        ("c2", "out", {"type": "http.response", "status": 500}),
        ("c2", "out", COMPLETED),
    ]


def test_text_that_is_no_object_is_kept_as_text():
    """An event whose data is no JSON object is a record all the same: what is wrong with it is a rule."""
    records = entries_of("data: oops\n\ndata: [1]\n\n")[1:]
    assert [record["raw"] for record in records] == ["oops", "[1]"]


@pytest.mark.parametrize(("rest", "count"), [("", 1), (json.dumps(DELTA), 2), (json.dumps(DELTA)[:-3], 1)])
def test_the_last_event_may_lack_its_end(rest, count):
    """A last event without its empty line counts if it is whole, and not if it was cut."""
    assert len(frames_of(entries_of(f"{sse(CREATED)}data: {rest}"))) == count


def test_no_event_is_no_log():
    """Lines without any event are refused."""
    with pytest.raises(trace.TraceError, match="no event in it"):
        entries_of(": ping\n\n: ping\n")


# --- WebSocket frames


def test_bare_frames_are_told_apart_by_their_types():
    """Without a wrapper, what only clients send is `in`, and all else `out`, also if it is unknown."""
    header, *records = entries_of([CREATE, CREATED, {"type": "codex.rate_limits"}])
    assert (header["dialect"], header["transport"], header["directions"]) == (
        "create",
        "websocket",
        ["in", "out"],
    )
    assert [record["dir"] for record in records] == ["in", "out", "out"]


WRAPPERS = {
    "the trace's words": [{"dir": "in", "frame": CREATE}, {"dir": "out", "frame": CREATED}],
    "a client's words": [{"dir": "out", "frame": CREATE}, {"dir": "in", "frame": CREATED}],
    "text in data": [
        {"direction": "sent", "data": json.dumps(CREATE)},
        {"direction": "received", "data": json.dumps(CREATED)},
    ],
    "a server's words": [
        {"direction": "received", "message": CREATE},
        {"direction": "sent", "message": CREATED},
    ],
    "own words": [{"from": "Alice", "payload": CREATE}, {"from": "Bob", "payload": CREATED}],
    "Chrome's messages": [
        {"type": "send", "time": 1767225600.0, "opcode": 1, "data": json.dumps(CREATE)},
        {"type": "receive", "time": 1767225600.5, "opcode": 1, "data": json.dumps(CREATED)},
    ],
    "beside the members": [{"dir": "in", "t": 1, **CREATE}, {"dir": "out", "t": 1.5, **CREATED}],
    "no word": [{"t": 0, "frame": CREATE}, {"t": 1, "frame": CREATED}],
}


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "server.warning", "message": "slow"},
        {"type": "server.notice", "text": '{"a":1}'},
        {"type": "x.blob", "data": {"a": 1}},
        {"type": "x.blob", "body": {"type": 1}},
    ],
)
def test_a_bare_frame_may_have_members_of_a_wrapper(frame):
    """What has a type, and no typed frame in it, is a frame itself, also if nobody knows its type."""
    assert exchange_of(entries_of([CREATE, frame])) == [("c1", "in", CREATE), ("c1", "out", frame)]
    assert kind_of(f"{json.dumps(frame)}\n{json.dumps(CREATED)}") == "events"


def test_a_typed_wrapper_is_seen_through():
    """What has a type is a wrapper if the frame in it has one as well."""
    assert exchange_of(entries_of([{"type": "message", "data": json.dumps(CREATE)}])) == [
        ("c1", "in", CREATE)
    ]


@pytest.mark.parametrize("log", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_are_seen_through(log):
    """Whatever the wrapper calls a direction, it is learnt from the frames."""
    assert exchange_of(entries_of(log)) == [("c1", "in", CREATE), ("c1", "out", CREATED)]


def test_arrows_are_directions():
    """A line that begins with an arrow is a frame of that direction, as tools for the terminal print it."""
    log = f"> {json.dumps(CREATE)}\n< {json.dumps(CREATED)}\n"
    assert exchange_of(entries_of(log)) == [("c1", "in", CREATE), ("c1", "out", CREATED)]


def test_a_word_serves_frames_that_tell_nothing():
    """Text and unknown frames go by the word, with the meaning that the other frames gave it, or its opposite."""
    _, *records = entries_of([{"dir": "in", "frame": CREATED}, {"dir": "out", "data": "hello"}])
    assert [(record["dir"], record.get("raw")) for record in records] == [("out", None), ("in", "hello")]


def test_what_happens_beside_the_frames_is_a_hook():
    """Handshake, close, omitted frames and remarks are hooks; an HTTP request makes a connection of its own."""
    log = [
        {"t_ms": 0, "dir": "client", "handshake": {"headers": {"openai-beta": "responses_multi_agent=v1"}}},
        {"t_ms": 2, "dir": "client", "frame": CREATE},
        {"t_ms": None, "dir": "server", "omitted": {"what": "deltas"}},
        {"t_ms": 1500, "dir": "server", "close": 1000},
    ]
    header, *records = entries_of(log)
    assert (header["dialect"], header["directions"], header["hooks"]) == ("inject", ["in", "hook"], [])
    assert [(record["t"], record["frame"].get("hook"), record["frame"].get("by")) for record in records] == [
        (0.0, "connection_open", None),
        (0.002, None, None),
        (0.002, "gap", None),
        (1.5, "connection_close", "server"),
    ]
    request = {"dir": "client", "http": {"method": "POST", "path": "/v1/responses"}, "frame": {"model": "m"}}
    header, *records = entries_of([request, request])
    body = {"type": "http.request", "method": "POST", "path": "/v1/responses", "body": {"model": "m"}}
    assert (header["dialect"], exchange_of(records)) == ("http", [("c1", "in", body), ("c2", "in", body)])


def test_connections_and_binary_messages_are_kept():
    """A wrapper's connection is the record's; a binary message is its size."""
    _, *records = entries_of(
        [
            {"dir": "in", "conn": 7, "frame": CREATE},
            {"dir": "out", "connection_id": "x", "frame": CREATED},
            {"dir": "out", "opcode": 2, "data": base64.b64encode(b"x" * 300).decode()},
        ]
    )
    assert [record["conn"] for record in records] == ["c7", "x", "c1"]
    assert records[2]["binary_bytes"] == 300


@pytest.mark.parametrize(
    ("frames", "dialect"),
    [
        ([CREATE, CREATED], "create"),
        ([CREATE, CREATED, {"type": "response.done"}], "append"),
        ([CREATE, {"type": "response.append", "input": []}], "append"),
        ([{**CREATE, "multi_agent": {"enabled": True}}, CREATED], "inject"),
        ([{**CREATE, "multi_agent": {"enabled": False}}, CREATED], "create"),
        ([CREATE, {"type": "response.inject.failed"}], "inject"),
    ],
)
def test_the_form_is_guessed_from_the_frames(frames, dialect):
    """Appends and `response.done` make it append, injects and agents inject, nothing of that create."""
    assert entries_of(frames)[0]["dialect"] == dialect


def test_the_form_can_be_said():
    """A form that is given is not guessed."""
    assert entries_of([CREATE, CREATED], dialect="append")[0]["dialect"] == "append"


@pytest.mark.parametrize("kind", ["frames", "events"])
@pytest.mark.parametrize("late", ["response.done", "response.append"])
def test_a_form_that_shows_too_late_is_asked_for(kind, late, monkeypatch):
    """A guess that a later frame proves wrong is no verdict on it; a form that was said is."""
    monkeypatch.setattr(reader_lines, "HEAD_LINES", 2)
    log = [CREATED, DELTA, DELTA, {"type": late}]
    with pytest.raises(trace.TraceError, match=r"line 4: .*--format frames --form append") as refusal:
        entries_of(log, kind)
    assert refusal.value.line == 4
    assert frames_of(entries_of(log, kind, "create")) == log


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is no frame"),
        ("[]", "line 2 is no frame"),
        ('{"a":1}', "line 2 is no frame"),
        ('{"dir":"sideways","data":"hello"}', "line 2: who sent it"),
    ],
)
def test_a_line_without_a_frame_is_refused(line, message):
    """A line that is no frame, or nobody's, is named, with what to write instead."""
    with pytest.raises(trace.TraceError, match=message) as refusal:
        entries_of(f"{json.dumps({'dir': 'in', 'frame': CREATE})}\n{line}\n")
    assert (refusal.value.line, '"dir": "in"' in str(refusal.value)) == (2, True)


# --- event dumps


def sdk_event():
    part = sdk.ResponseOutputText(annotations=[], text="é\n'\"", type="output_text")
    item = sdk.ResponseOutputMessage(
        id="msg_1", content=[part], role="assistant", status="completed", type="message"
    )
    return sdk.ResponseOutputItemDoneEvent(
        item=item, output_index=0, sequence_number=3, type="response.output_item.done"
    )


@pytest.mark.parametrize(
    ("line", "with_unset"),
    [
        (lambda event: event.to_json(indent=None), False),
        (lambda event: json.dumps(event.to_dict()), False),
        (lambda event: event.model_dump_json(), True),
        (repr, True),
        (str, True),
    ],
    ids=["to_json", "to_dict", "model_dump_json", "repr", "print"],
)
def test_openai_python_s_events_are_read(line, with_unset):
    """Each way of the SDK to write an event on a line gives the event back, with what the way adds to it."""
    event = sdk_event()
    header, record = entries_of(line(event))
    assert (header["dialect"], header["directions"]) == ("http", ["out"])
    assert record["frame"] == event.model_dump(exclude_unset=not with_unset)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("E(type=open('x'))", "line 2 is no event"),
        ("E(type=1", "line 2 is no event"),
        ('{"a":1}', "line 2 is no event: it has no 'type'"),
        ("oops", "line 2 is no event"),
    ],
)
def test_what_is_no_event_is_refused(line, message):
    """A dump is read, never executed, and a line that is no event is named."""
    with pytest.raises(trace.TraceError, match=message):
        entries_of(f"{json.dumps(CREATED)}\n{line}\n", "events")


# --- HAR


def har(*entries):
    return json.dumps({"log": {"version": "1.2", "entries": list(entries)}})


def har_entry(
    text, *, url="https://a/v1/responses?key=1", kind="text/event-stream", status=200, error=None, **more
):
    content = {"mimeType": kind} if text is None else {"mimeType": kind, "text": text}
    return {
        "startedDateTime": "2026-01-01T00:00:00.000Z",
        "time": 500,
        "request": {"method": "POST", "url": url, "postData": {"text": '{"model":"m","stream":true}'}},
        "response": {"status": status, "content": {"size": 9, **content}, "_error": error},
        **more,
    }


REQUEST = {
    "type": "http.request",
    "method": "POST",
    "path": "/v1/responses",
    "body": {"model": "m", "stream": True},
}
ANSWER = {"type": "http.response", "status": 200}


@given(streams(HTTP), st.booleans())
def test_a_har_file_gives_the_exchange_back(stream, encoded):
    """Request, status and events of a stream come back from a HAR file, whether its text is encoded or not."""
    record = Record(stream.response_id, HTTP)
    frames = [orjson.loads(record.send(event)) for event in stream.steps]
    entry = har_entry(sse(*frames))
    if encoded:
        content = entry["response"]["content"]
        content.update(text=base64.b64encode(content["text"].encode()).decode(), encoding="base64")
    header, *records = entries_of(har(entry))
    assert (header["transport"], header["directions"]) == ("sse", ["in", "out"])
    assert exchange_of(records) == [
        ("c1", way, frame) for way, frame in (("in", REQUEST), ("out", ANSWER))
    ] + [("c1", "out", frame) for frame in frames]
    assert [found["t"] for found in records] == [0.0, *[0.5] * (1 + len(frames))]


def test_har_exchanges_are_in_the_order_of_time():
    """Exchanges that overlap are woven by time; other people's are left out."""
    late = har_entry("{}", kind="application/json", startedDateTime="2026-01-01T00:00:00.200Z", time=100)
    other = har_entry("{}", kind="application/json", url="https://a/chat")
    found = exchange_of(entries_of(har(har_entry(sse(CREATED)), other, late)))
    assert [(connection, way) for connection, way, _ in found] == [
        ("c1", "in"),
        ("c2", "in"),
        ("c2", "out"),
        ("c1", "out"),
        ("c1", "out"),
    ]


def test_a_har_file_without_content_has_gaps():
    """Events that were not saved are missing, not wrong."""
    assert [frame.get("hook") for frame in frames_of(entries_of(har(har_entry(None))))] == [None, None, "gap"]


def test_an_exchange_without_an_answer_was_left_by_its_client():
    """Status 0 is a browser's word for an exchange that it gave up."""
    _, *records = entries_of(har(har_entry(None, status=0)))
    assert [frame.get("hook") for frame in frames_of(records)] == [None, "connection_close"]


TORN = sse(CREATED) + "event: x\ndata: {"
LOST = ("hook", {"hook": "connection_close", "by": "network"})
LEFT = ("hook", {"hook": "connection_close", "by": "client"})


@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        (har_entry(TORN), [("out", CREATED)]),
        (har_entry(TORN, error="net::ERR_CONNECTION_RESET"), [("out", CREATED)]),
        (har_entry(TORN, error="net::ERR_ABORTED"), [("out", CREATED), LEFT]),
        (har_entry(TORN, error="NS_BINDING_ABORTED"), [("out", CREATED), LEFT]),
        (har_entry('{"id":', kind="application/json", error="net::ERR_ABORTED"), [LEFT]),
        (har_entry(sse(CREATED)[:-2]), [("out", CREATED)]),
    ],
)
def test_an_answer_may_lack_its_end(entry, answer):
    """What was cut off in its data was never whole; that the server is not to blame is known if the client left."""
    assert exchange_of(entries_of(har(entry))) == [
        ("c1", way, frame) for way, frame in [("in", REQUEST), ("out", ANSWER), *answer]
    ]


def watching(text, query, second=0, error=None):
    request = {"method": "GET", "url": f"https://a/v1/responses/resp_1?{query}"}
    begun = f"2026-01-01T00:00:{second:02}.000Z"
    return har_entry(text, request=request, startedDateTime=begun, error=error)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("stream=true&starting_after=1&key=1", {"query": {"stream": "true", "starting_after": "1"}}),
        ("key=1", {}),
    ],
)
def test_a_har_file_says_what_is_asked_for_again(query, said):
    """The query of a resumed stream is kept, as far as the protocol knows it: a key in it is not."""
    asked = {"type": "http.request", "method": "GET", "path": "/v1/responses/resp_1", **said}
    assert frames_of(entries_of(har(watching(sse(COMPLETED), query)))) == [asked, ANSWER, COMPLETED]


def test_who_asks_for_a_stream_again_has_lost_it():
    """Each stream of a response but the last was lost, or left; the last, or any other, may have ended too soon."""
    query = "stream=true&starting_after="
    found = exchange_of(
        entries_of(
            har(
                har_entry(sse(CREATED)),
                har_entry(sse({**CREATED, "response": {"id": "resp_2"}})),
                watching(sse(DELTA), f"{query}0", 2),
                watching("", f"{query}1", 4, error="net::ERR_ABORTED"),
                watching("", f"{query}1", 6),
            )
        )
    )
    hooks = [(connection, way, frame) for connection, way, frame in found if way == "hook"]
    assert hooks == [("c1", *LOST), ("c3", *LOST), ("c4", *LEFT)]


def test_chrome_s_websocket_messages_are_read():
    """Messages of a WebSocket make a trace; whether it was closed is not known, so its end is not judged."""
    socket = har_entry(
        None,
        kind="x-unknown",
        _webSocketMessages=[
            {"type": "send", "time": 1767225600.0, "opcode": 1, "data": json.dumps(CREATE)},
            {"type": "receive", "time": 1767225600.25, "opcode": 1, "data": json.dumps(CREATED)},
            {
                "type": "receive",
                "time": 1767225600.5,
                "opcode": 1,
                "data": json.dumps({"type": "response.done"}),
            },
        ],
    )
    header, *records = entries_of(har(socket))
    assert (header["dialect"], header["transport"], header["complete"]) == ("append", "websocket", False)
    assert [(found["t"], found["dir"], found["frame"]["type"]) for found in records] == [
        (0.0, "in", "response.create"),
        (0.25, "out", "response.created"),
        (0.5, "out", "response.done"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"log":{"entries":[]}}', "none of the 0 exchanges"),
        (har(har_entry("{}", kind="application/json", url="https://a/chat")), "none of the 1 exchanges"),
        (har(har_entry("{}", kind="application/json", url="//[")), "none of the 1 exchanges"),
        ('{"log":{}}', "no HAR file"),
        ('{"log":{"entries":3}}', "no list"),
        ('{"log":[1', "no HAR file"),
    ],
)
def test_a_har_file_with_nothing_of_ours_is_refused(text, message):
    """A HAR file that is broken, or has no exchange of a Responses API, is refused."""
    with pytest.raises(trace.TraceError, match=message):
        entries_of(text)


# --- which format it is

DETECTION = {
    "trace": [HEADER.decode(), "\n" + HEADER.decode(), "\ufeff" + HEADER.decode()],
    "sse": ["event: a\n", "data: {}\n", ": ping\n", "id: 1\n", "HTTP/1.1 200 OK\n", "\n\ndata: x\n"],
    "frames": [
        '{"dir":"in","frame":{}}',
        '{"type":"send","data":"{}"}',
        f"{json.dumps(CREATED)}\n{json.dumps(CREATE)}",
        f"{json.dumps(CREATED)}\n{json.dumps({'type': 'response.done'})}",
        json.dumps({**CREATED, "stream_id": "a"}),
        f"{json.dumps(CREATED)}\n{json.dumps({'type': 'error', 'status': 400, 'error': {}})}",
        "< {}",
        '{"t":0,"handshake":{}}',
    ],
    "har": ['{"log":{}}', '{\n  "log": {\n', '\n{\n"log":\n{'],
    "events": [
        json.dumps(CREATED),
        "ResponseCreatedEvent(response=Response(id='a'))",
        json.dumps({"type": "error", "sequence_number": 1, "status": 400}),
        json.dumps({"type": "error", "message": "no", "status": None}),
    ],
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in DETECTION.items() for text in texts]
)
def test_the_format_is_found_out(kind, text):
    """The first lines tell which format it is."""
    assert kind_of(text) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "it is empty"),
        (b"\n \n", "it is empty"),
        (b"hello\n", "line 1 begins with 'hello'"),
        (b'[{"type":"a"}]', "one JSON list"),
        (b'{\n"type": "a"}', "line 1 is JSON, but no record"),
        (b'\n{"object":"response"}', "line 2 is JSON, but no record"),
        (b"\x1f\x8b\x08", "gzip -d"),
        (b"\xff\xfe{\x00", "UTF-16"),
    ],
)
def test_what_is_no_log_is_refused(text, message):
    """What no reader knows is refused, with the way out where there is one."""
    with pytest.raises(trace.TraceError, match=message):
        readers.detected(lines_of([text]))


@given(
    st.sampled_from([*readers.FORMATS, None]), st.binary(max_size=60) | st.text(max_size=60).map(str.encode)
)
def test_any_input_is_read_or_refused(kind, text):
    """Whatever the bytes, a reader gives a header and records, or says that it is no log; nothing else comes of it."""
    try:
        found = entries_of(text, kind)
    except trace.TraceError:
        return
    assert all("trace" in entry or entry["dir"] in trace.DIRECTIONS for entry in found)
    assert found == [] or "trace" in found[0]


@given(
    st.sampled_from([*readers.FORMATS, None]),
    st.lists(
        st.dictionaries(
            st.sampled_from(
                ["type", "dir", "frame", "data", "t", "conn", "log", "http", "close", "opcode", "trace"]
            ),
            json_objects
            | st.sampled_from(["in", "send", "response.done", "{}", 1, 2, None, [], {"entries": [{}]}]),
        ),
        max_size=3,
    ),
)
def test_any_members_are_read_or_refused(kind, objects):
    """Wrappers with members of any type are read or refused, too."""
    try:
        entries_of(objects, kind)
    except trace.TraceError:
        return


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.dictionaries(
                st.sampled_from(
                    [
                        "request",
                        "response",
                        "url",
                        "content",
                        "text",
                        "status",
                        "encoding",
                        "mimeType",
                        "time",
                        "_webSocketMessages",
                        "type",
                        "data",
                    ]
                ),
                inner,
            )
            | st.lists(inner, max_size=2)
        ),
        max_leaves=12,
    )
)
def test_any_har_entry_is_read_or_refused(value):
    """Whatever is in an exchange of a HAR file, it is read or left out."""
    entry = har_entry(sse(CREATED))
    entries_of(har(entry, value, {**entry, **value} if isinstance(value, dict) else entry))
