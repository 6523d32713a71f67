"""protocol.trace: what is written is read again, and what is no trace is refused."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import trace
from tests.strategies import json_objects

HEADER = trace.header_line(dialect="append", source="test")


def test_a_header_says_what_the_trace_holds() -> None:
    """A header is one line with version, form, transport, source, directions, hooks and the caller's members."""
    line = trace.header_line(
        dialect="inject", source="demo", transport="memory", directions=("out",), hooks=(), seed=7
    )
    assert line.endswith(b"\n")
    assert orjson.loads(line) == {
        "trace": 1,
        "dialect": "inject",
        "transport": "memory",
        "source": "demo",
        "directions": ["out"],
        "hooks": [],
        "seed": 7,
    }


def test_a_header_lists_the_engine_s_hooks() -> None:
    """Unless told otherwise, a header promises both directions and all hooks of the engine."""
    header = orjson.loads(HEADER)
    assert header["directions"] == ["in", "out", "hook"]
    assert header["hooks"] == list(trace.ENGINE_HOOKS)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6), st.sampled_from(["c1", "c2"]), st.sampled_from(["in", "out"]), json_objects
        ),
        max_size=4,
    )
)
def test_records_come_back(exchange: list[tuple[int, str, Any, dict[str, Any]]]) -> None:
    """Header and records are read as they were written, whether a frame came as data or as bytes."""
    lines = [HEADER]
    for milliseconds, connection, direction, frame in exchange:
        forms = (frame, orjson.dumps(frame))
        lines += [trace.record_line(milliseconds / 1000, connection, direction, form) for form in forms]
    [(header, records)] = trace.read(b"".join(lines).splitlines())
    assert header == orjson.loads(HEADER)
    assert records == [
        {"t": milliseconds / 1000, "conn": connection, "dir": direction, "frame": frame}
        for milliseconds, connection, direction, frame in exchange
        for _ in range(2)
    ]


def test_a_frame_keeps_its_bytes() -> None:
    """A frame given as bytes is written as it was on the wire: key order, spaces and number forms stay."""
    frame = b'{"b": 1.50, "a" :1e2}'
    line = trace.record_line(0.25, "c1", "in", b" " + frame + b"\n")
    assert line == b'{"t":0.25,"conn":"c1","dir":"in","frame":' + frame + b"}\n"


@pytest.mark.parametrize(
    ("frame", "raw"),
    [
        (b"not json", "not json"),
        (b"[1]", "[1]"),
        (b'"text"', '"text"'),
        (b"", ""),
        (b"{},{}", "{},{}"),
        (b"{}],[{}", "{}],[{}"),
        (b'{},"dir":"out"', '{},"dir":"out"'),
        (b"\xff\xfe", "��"),
        (b"x" * 5000, "x" * 4096),
    ],
)
def test_what_is_no_object_is_kept_as_text(frame: bytes, raw: str) -> None:
    """A frame that is no JSON object is kept as text, cut at 4096 characters."""
    assert orjson.loads(trace.record_line(1, "c1", "in", frame)) == {
        "t": 1,
        "conn": "c1",
        "dir": "in",
        "raw": raw,
    }


def test_a_frame_over_several_lines_stays_one_record() -> None:
    """A frame with line breaks between its members is one line of the trace: readers go by lines."""
    line = trace.record_line(0, "c1", "in", b'{"a":\n1,\r\n"b":2}')
    [(_, records)] = trace.read((HEADER + line).splitlines())
    assert [record["frame"] for record in records] == [{"a": 1, "b": 2}]


def test_the_deepest_frame_is_read_again() -> None:
    """A frame nested as deeply as JSON is read at all does not make its trace unreadable."""
    deepest = b'{"a":' * 1023 + b"{}" + b"}" * 1023
    orjson.loads(deepest)
    [(_, records)] = trace.read([HEADER, trace.record_line(0, "c1", "in", deepest)])
    assert records[0]["raw"] == deepest.decode()[:4096]


def test_times_are_microseconds() -> None:
    """Times are rounded to a microsecond."""
    assert orjson.loads(trace.record_line(0.12345678, "c1", "out", {}))["t"] == 0.123457


def test_a_hook_is_a_record() -> None:
    """What happens between frames is a record of its own direction, named by `hook`."""
    assert orjson.loads(trace.hook_line(2, "c1", "resume", {"outputs": ["call_1"]})) == {
        "t": 2,
        "conn": "c1",
        "dir": "hook",
        "frame": {"hook": "resume", "outputs": ["call_1"]},
    }


def test_a_file_may_hold_several_traces() -> None:
    """Each header starts a trace; empty lines are nothing."""
    record = trace.record_line(0, "c1", "in", {"n": 1})
    lines = [HEADER, record, b"\n", HEADER, HEADER, record, record]
    assert [len(records) for _, records in trace.read(lines)] == [1, 0, 2]


def test_text_lines_are_read_too() -> None:
    """A file opened as text reads the same."""
    assert [header["dialect"] for header, _ in trace.read([HEADER.decode()])] == ["append"]


def test_an_empty_file_holds_no_trace() -> None:
    """Without a line there is no trace and no error."""
    assert list(trace.read([])) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b'{"t":0}'], "line 1 comes before any header"),
        ([b"", b'{"t":0}'], "line 2 comes before any header"),
        ([b'{"trace":2}'], "line 1: trace version 2 is unknown; this reader knows 1"),
        ([HEADER, b'{"trace":"1"}'], "line 2: trace version '1' is unknown"),
        ([HEADER, b"[1]"], "line 2 is no JSON object"),
        ([HEADER, b"{"], "line 2 is no JSON"),
        ([HEADER, b'{"conn":"c1","dir":"sideways","frame":{}}'], "line 2 is no record"),
        ([HEADER, b'{"conn":1,"dir":"in","frame":{}}'], "line 2 is no record"),
    ],
)
def test_what_is_no_trace_is_refused(lines: list[bytes], message: str) -> None:
    """A record without a header, an unknown version, and a line that is no object are named by their line."""
    with pytest.raises(ValueError, match=message):
        list(trace.read(lines))
