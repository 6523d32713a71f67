"""Traces as pictures: what stands on a track, which arrows there are, and that Perfetto itself reads all of it."""

from argparse import ArgumentParser
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.lab import perfetto
from demos.lab.exchanges import exchanges_of
from demos.lab.lives import FIRST, INTAKE, RESUMING, SAMPLING, SUSPENDED
from demos.lab.tracks import Slice, lay
from protocol import trace
from tests.lab_traces import FORMS, GAP_SECONDS, LOOK_SECONDS, ODD_FRAMES, SEARCH_SECONDS, recorded
from tests.trace_processor import errors, query

SLICES = (
    "select s.id, s.name, s.category, s.ts, s.dur, s.depth, s.track_id, t.name as thread, p.name as process"
    " from slice s join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid)"
)
FLOWS = (
    "select o.name as source, o.category as source_kind, i.category as target_kind, p.name as process"
    " from flow f join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id"
    " join thread_track k on i.track_id = k.id join thread t using (utid) join process p using (upid)"
)
STATS = "select name, value, severity from stats"


@pytest.fixture(scope="module")
def files():
    """The lines of one rollout in each form."""
    return {form: recorded(form) for form in FORMS}


def exchange_of(lines):
    [exchange] = exchanges_of(lines, "t")
    return exchange


def picture(lines):
    return perfetto.trace_of(exchanges_of(lines, "t"))["traceEvents"]


def spans(events, *categories):
    return [event for event in events if event["ph"] == "X" and event["cat"] in categories]


def written(dialect, *records, hooks=(), **members):
    """A trace by hand: records are (seconds, direction, frame), hooks those that were recorded."""
    lines = [trace.header_line(dialect=dialect, source="test", hooks=hooks, **members)]
    lines += [trace.record_line(t, "c1", direction, frame) for t, direction, frame in records]
    return lines


def item(kind, number, **members):
    return {"type": kind, "id": f"item_{number}", **members}


def said(number, *, begins, ends, kind="message", lane=None, **members):
    """An item of the output, from one time to another."""
    made = item(kind, number, **members)
    where = {} if lane is None else {"stream_id": lane}
    return [
        (begins, "out", {"type": "response.output_item.added", "item": made, **where}),
        (ends, "out", {"type": "response.output_item.done", "item": made, **where}),
    ]


def created(t, number, **members):
    response = {"id": f"resp_{number}", "model": "m", "created_at": 1000}
    return (t, "out", {"type": "response.created", "response": response, **members})


def over(t, number, status="completed", **members):
    frame = {"type": f"response.{status}", "response": {"id": f"resp_{number}", "status": status}}
    return (t, "out", {**frame, **members})


CREATE = {"type": "response.create", "model": "m", "input": "hi"}


# --- traces of the engine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_stages_fill_a_response_without_a_gap(files, form):
    """The stages of a response follow each other from the request to the end, and their lengths add up to its own."""
    for life in exchange_of(files[form]).lives:
        edges = [(stage.start_s, stage.end_s) for stage in life.stages]
        assert [life.asked_s, *(end for _, end in edges)] == [*(start for start, _ in edges), life.ended_s]
        assert sum(stage.seconds for stage in life.stages) == pytest.approx(life.ended_s - life.asked_s)


@pytest.mark.parametrize("form", ["append", "inject"])
def test_a_suspended_response_is_one_with_its_suspensions(files, form):
    """In the forms that suspend there is one response with two suspensions, as long as the slowest of their tools."""
    events = picture(files[form])
    assert len(spans(events, "response")) == 1
    assert [span["dur"] for span in spans(events, "suspension")] == [
        round(SEARCH_SECONDS * 1e6),
        round(LOOK_SECONDS * 1e6),
    ]


@pytest.mark.parametrize("form", ["http", "create"])
def test_the_tools_stand_between_the_responses_of_the_other_forms(files, form):
    """In the forms that end at calls there are three responses, and between them what the tools took."""
    responses = spans(picture(files[form]), "response")
    gaps = [later["ts"] - earlier["ts"] - earlier["dur"] for earlier, later in pairwise(responses)]
    assert gaps == [round(SEARCH_SECONDS * 1e6), round(LOOK_SECONDS * 1e6)]


def test_every_form_has_the_same_segments(files):
    """The same rollout has three segments of the same lengths in each form: what differs is what is between them."""
    lengths = [[span["dur"] for span in spans(picture(files[form]), "segment")] for form in FORMS]
    assert lengths[1:] == lengths[:-1]
    assert len(lengths[0]) == 3


@pytest.mark.parametrize("form", FORMS)
def test_segments_and_suspensions_add_up_to_the_trace(files, form):
    """What the model did and what the client did is all the time there is, from the first request to the last event."""
    events = picture(files[form])
    busy = sum(span["dur"] for span in spans(events, "segment"))
    waited = round((SEARCH_SECONDS + LOOK_SECONDS) * 1e6)
    first, last = exchange_of(files[form]).lives[0], exchange_of(files[form]).lives[-1]
    assert busy + waited == round((last.ended_s - first.asked_s) * 1e6)


@pytest.mark.parametrize("form", FORMS)
def test_every_call_has_an_arrow_to_its_output(files, form):
    """An arrow begins in the item of each call, passes its tool, and ends when the output came."""
    exchange = exchange_of(files[form])
    events = picture(files[form])
    calls = {span["args"]["call_id"]: span for span in spans(events, "item") if "call_id" in span["args"]}
    tools = {span["args"]["call_id"]: span for span in spans(events, "tool")}
    assert len(calls) == 3
    assert calls.keys() == tools.keys() == {tool.call_id for tool in exchange.tools}
    arrows = [event for event in events if event["ph"] in "stf"]
    for number, tool in enumerate(exchange.tools, 1):
        start, step, finish = (event for event in arrows if event["id"] == number)
        call, ran = calls[tool.call_id], tools[tool.call_id]
        assert (start["ph"], step["ph"], finish["ph"]) == ("s", "t", "f")
        assert call["ts"] <= start["ts"] < call["ts"] + call["dur"]
        assert (start["tid"], step["tid"]) == (call["tid"], ran["tid"])
        assert (step["ts"], finish["ts"]) == (ran["ts"], ran["ts"] + ran["dur"])
        assert finish["ts"] == round(tool.answered_s * 1e6)


def test_a_tool_begins_before_the_suspension_where_the_form_lets_it(files):
    """The first of two calls is answered in its own time where outputs go alone, and with the slowest where they go together."""
    first = {form: exchange_of(files[form]).tools[0] for form in FORMS}
    took = {form: round(tool.answered_s - tool.called_s, 6) for form, tool in first.items()}
    assert took["append"] == took["inject"] == LOOK_SECONDS
    assert took["http"] == took["create"] > SEARCH_SECONDS


def all_spans(events):
    return [event for event in events if event["ph"] == "X"]


@pytest.fixture(scope="module")
def read(files):
    """The events of all forms in one file, and what Perfetto makes of them: slices, flows, processes, counters, stats."""
    exchanges = [exchange for form in FORMS for exchange in exchanges_of(files[form], "t")]
    written_down = perfetto.trace_of(exchanges)
    rows = query(
        written_down,
        SLICES,
        FLOWS,
        "select pid, name from process where name is not null order by pid",
        "select t.name as name, max(c.value) as most from counter c join process_counter_track t"
        " on c.track_id = t.id group by t.name",
        STATS,
    )
    return written_down["traceEvents"], *rows


def test_perfetto_reads_every_slice_and_arrow(read):
    """The trace processor of Perfetto keeps each slice as long as it was, draws two legs for each call, and drops nothing."""
    events, slices, flows, _, _, stats = read
    assert errors(stats) == {}
    expected = [(one["name"], one["cat"], one["ts"] * 1000, one["dur"] * 1000) for one in all_spans(events)]
    assert sorted((row["name"], row["category"], row["ts"], row["dur"]) for row in slices) == sorted(expected)
    for form in FORMS:
        legs = [(row["source_kind"], row["target_kind"]) for row in flows if row["process"] == form]
        assert [source for source, _ in legs if source == "item"] == ["item"] * 3
        assert [target for source, target in legs if source == "item"] == ["tool"] * 3
        assert {target for source, target in legs if source == "tool"} == TAKERS[form]
        assert len(legs) == 6


TAKERS = {
    "http": {"stage"},
    "create": {"stage"},
    "append": {"stage", "suspension"},
    "inject": {"stage", "suspension"},
}
"""What an output comes into: another segment, or a suspension that goes on."""


def test_perfetto_shows_all_forms_beside_each_other(read):
    """Each form is a process of its own, named by it, in the order given; the depth of a slice is what it stands in."""
    _, slices, _, processes, counters, _ = read
    assert [(row["pid"], row["name"]) for row in processes] == list(enumerate(FORMS, 1))
    depths = {row["category"]: set() for row in slices}
    for row in slices:
        depths[row["category"]].add(row["depth"])
    assert depths == {
        "response": {0},
        "segment": {1},
        "suspension": {1},
        "stage": {2},
        "item": {3},
        "tool": {0},
    }
    most = {row["name"].removesuffix(" value"): row["most"] for row in counters}
    assert most["calls without an output"] == 2
    assert most["bytes from the client"] < most["bytes to the client"]


def test_perfetto_would_say_so():
    """Slices that cross on a track, and arrows that are numbered by text, are errors to Perfetto."""
    crossing = [
        {"ph": "X", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": ts, "dur": 10, "args": {}}
        for ts in (0, 5)
    ]
    arrow = {"ph": "s", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 1, "id": "1:call_1"}
    [stats] = query({"traceEvents": [*crossing, arrow]}, STATS)
    assert errors(stats) == {"slice_drop_overlapping_complete_event": 1, "flow_invalid_id": 1}


def test_bytes_are_counted_up(files):
    """The counters of a process end at what the records hold; resending the history is dearest, appending is cheapest."""
    up = {}
    for form in FORMS:
        counters = [event for event in picture(files[form]) if event["name"] == "bytes from the client"]
        values = [event["args"]["value"] for event in counters]
        assert values == sorted(values)
        up[form] = values[-1]
    assert up["http"] > up["create"] > up["inject"] > up["append"]


def test_rollouts_one_after_the_other_keep_their_distance():
    """Over HTTP, too, where each request is a trace of its own, the time between two rollouts is there."""
    for form in FORMS:
        lives = exchange_of(recorded(form, rollouts=2)).lives
        second = next(life for life in lives[1:] if life.continues is None)
        before = lives[lives.index(second) - 1]
        assert second.asked_s - before.ended_s == pytest.approx(GAP_SECONDS)


# --- traces by hand --------------------------------------------------------------------------------------------------


def test_without_hooks_a_suspension_begins_with_the_last_call():
    """Of a server that tells nothing of itself, a response waits from its last call to the output that it waits for."""
    call = {"kind": "function_call", "name": "look", "call_id": "call_1"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": ""}
    lines = written(
        "create",
        (0, "in", {**CREATE, "multi_agent": {"enabled": True}}),
        created(1, 1),
        *said(1, begins=2, ends=3, **call),
        (7, "in", {"type": "response.inject", "response_id": "resp_1", "input": [output]}),
        *said(2, begins=9, ends=10),
        over(11, 1),
    )
    exchange = exchange_of(lines)
    assert exchange.form == "inject"
    assert [(stage.name, stage.start_s, stage.end_s) for stage in exchange.lives[0].stages] == [
        (INTAKE, 0, 1),
        (FIRST, 1, 2),
        (SAMPLING, 2, 3),
        (SUSPENDED, 3, 7),
        (RESUMING, 7, 9),
        (SAMPLING, 9, 11),
    ]


def test_requests_without_a_beginning_follow_each_other():
    """Where it was not recorded when a request came, none of the time between requests is shown, and the file says so."""
    first = written("http", (0, "in", post()), created(1, 1), over(2, 1))
    second = written("http", (0, "in", post()), created(3, 2), over(4, 2))
    exchange = exchange_of([*first, *second])
    assert [(life.asked_s, life.ended_s) for life in exchange.lives] == [(0, 2), (2, 6)]
    assert perfetto.trace_of([exchange])["otherData"]["notes"] == (
        "t, http: the time between its traces was not recorded and is shown as none"
    )


def post():
    return {
        "type": "http.request",
        "method": "POST",
        "path": "/v1/responses",
        "body": {"model": "m", "input": "hi"},
    }


def test_a_log_that_is_no_trace_is_read_too():
    """An SSE log has no request: its response begins with its first event, and its time is what the log has of it."""
    response = {"id": "resp_1", "model": "m", "created_at": 1000}
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.done", "item": item("message", 1)},
        {"type": "response.completed", "response": {**response, "status": "completed"}},
    ]
    log = [b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events]
    exchange = exchange_of(log)
    assert (exchange.form, exchange.has_requests) == ("http", False)
    assert [(life.response_id, life.status) for life in exchange.lives] == [("resp_1", "completed")]
    assert [made.type for made in exchange.lives[0].items] == ["message"]


def test_what_comes_after_the_end_is_not_shown():
    """A server that goes on with a response whose connection has ended changes nothing of it."""
    lines = written(
        "create",
        (0, "in", CREATE),
        created(1, 1),
        (2, "hook", {"hook": "connection_close", "by": "client"}),
        *said(1, begins=3, ends=4),
        over(5, 1),
    )
    [life] = exchange_of(lines).lives
    assert (life.status, life.ended_s, life.items) == ("cut off", 2, [])


def test_an_answer_without_events_has_its_items_at_its_end():
    """What came as one JSON object is a response all the same, and its call waits for an output."""
    call = item("function_call", 1, name="look", call_id="call_1")
    body = {"id": "resp_1", "model": "m", "status": "completed", "output": [call]}
    exchange = exchange_of(
        written("http", (0, "in", post()), (2, "out", {"type": "http.response", "status": 200, "body": body}))
    )
    assert [(life.response_id, life.status, life.ended_s) for life in exchange.lives] == [
        ("resp_1", "completed", 2)
    ]
    assert [(made.type, made.start_s, made.end_s) for made in exchange.lives[0].items] == [
        ("function_call", 2, 2)
    ]
    assert [(tool.name, tool.called_s, tool.answered_s) for tool in exchange.tools] == [("look", 2, None)]


@pytest.mark.parametrize(
    ("request_frame", "answer"),
    [
        (CREATE, {"type": "error", "status": 404, "error": {"code": "not_here", "message": "no"}}),
        (post(), {"type": "http.response", "status": 404, "body": {"error": {"code": "not_here"}}}),
    ],
)
def test_a_refused_request_is_shown_as_such(request_frame, answer):
    """A request without a response is a slice to the moment when it was refused, with the reason."""
    dialect = "http" if request_frame is not CREATE else "create"
    events = picture(written(dialect, (0, "in", request_frame), (0.5, "out", answer)))
    [span] = spans(events, "response")
    assert (span["name"], span["dur"], span["args"]) == (
        "refused",
        500_000,
        {"status": "failed", "error": "not_here"},
    )


def test_a_connection_that_ends_cuts_off_its_response():
    """A response ends with its connection, or with the trace; an unanswered call has no arrow."""
    call = {"kind": "function_call", "name": "look", "call_id": "call_1"}
    begun = [(0, "in", CREATE), created(1, 1), *said(1, begins=2, ends=3, **call)]
    closed = written("create", *begun, (5, "hook", {"hook": "connection_close", "by": "network"}))
    for lines, status, ends in ((closed, "cut off", 5), (written("create", *begun), "unfinished", 3)):
        events = picture(lines)
        [span] = spans(events, "response")
        assert (span["args"]["status"], span["dur"]) == (status, ends * 1_000_000)
        [tool] = spans(events, "tool")
        assert tool["args"] == {"call_id": "call_1", "answered": "never"}
        assert [event for event in events if event["ph"] in "stf"] == []


@pytest.mark.parametrize("begun", [[created(1, 1)], []])
@pytest.mark.parametrize("frame", ODD_FRAMES, ids=str)
def test_odd_frames_of_a_server_are_shown(frame, begun):
    """Members that are not what they should be are taken for missing, before a response and in it; there is a picture all the same."""
    events = picture(written("create", (0, "in", CREATE), *begun, (2, "out", frame)))
    assert len(spans(events, "response")) == 1
    assert orjson.dumps(events)


def test_a_log_without_requests_does_not_say_that_a_call_was_never_answered():
    """Nobody recorded it; the file says so."""
    call = {"kind": "function_call", "name": "look", "call_id": "call_1"}
    lines = written("http", created(1, 1), *said(1, begins=2, ends=3, **call), over(4, 1), directions=["out"])
    [tool] = spans(picture(lines), "tool")
    assert tool["args"] == {"call_id": "call_1"}
    assert perfetto.trace_of(exchanges_of(lines, "t"))["otherData"]["notes"] == (
        "t, http: no requests in this log; when a call got its output is not known"
    )


def test_lanes_are_tracks():
    """Responses that run at once on two lanes of a connection stand on two tracks, each with its own items."""
    lines = written(
        "create",
        (0, "in", {**CREATE, "stream_id": "a"}),
        (0, "in", {**CREATE, "stream_id": "b"}),
        created(1, 1, stream_id="a"),
        created(1, 2, stream_id="b"),
        *said(1, begins=2, ends=3, lane="a"),
        *said(2, begins=4, ends=5, lane="b"),
        over(6, 1, stream_id="a"),
        over(7, 2, stream_id="b"),
    )
    events = picture(lines)
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert [(tracks[one["tid"]], one["name"], one["ts"]) for one in spans(events, "response", "item")] == [
        ("lane a", "response", 0),
        ("lane a", "message", 2_000_000),
        ("lane b", "response", 0),
        ("lane b", "message", 4_000_000),
    ]


def test_connections_are_processes():
    """Two connections of one form are two processes, each named by form and connection."""
    first = written("create", (0, "in", CREATE), created(1, 1), over(2, 1), began_s=0.0)
    second = [line.replace(b'"c1"', b'"c2"') for line in first]
    second[0] = second[0].replace(b'"began_s":0.0', b'"began_s":0.5')
    events = picture([*first, *second])
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "create · c1", 2: "create · c2"}
    assert [(span["pid"], span["ts"]) for span in spans(events, "response")] == [(1, 0), (2, 500_000)]


def test_items_that_cross_go_on_another_track():
    """Items of a server that writes two at once are on two tracks; Perfetto, which drops what crosses, drops none."""
    lines = written(
        "create",
        (0, "in", CREATE),
        created(0, 1),
        *sorted([*said(1, begins=1, ends=3), *said(2, begins=2, ends=4)], key=lambda record: record[0]),
        over(5, 1),
    )
    events = picture(lines)
    assert len({span["tid"] for span in spans(events, "item")}) == 2
    slices, stats = query({"traceEvents": events}, SLICES, STATS)
    assert errors(stats) == {}
    assert len(slices) == len(all_spans(events))


def test_perfetto_keeps_what_takes_no_time():
    """In virtual time much takes none: slices of no length at one moment are all there, and the arrows end in them."""
    call = {"kind": "function_call", "name": "look", "call_id": "call_1"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": ""}
    lines = written(
        "append",
        (0, "in", CREATE),
        created(0, 1),
        *said(1, begins=0, ends=0, **call),
        (0, "out", {"type": "response.done", "response": {"id": "resp_1"}}),
        (0, "in", {"type": "response.append", "input": [output]}),
        *said(2, begins=0, ends=0),
        over(0, 1),
    )
    events = picture(lines)
    slices, flows, stats = query({"traceEvents": events}, SLICES, FLOWS, STATS)
    assert errors(stats) == {}
    assert len(slices) == len(all_spans(events))
    assert len(flows) == 2


# --- tracks ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=12),
    st.booleans(),
)
def test_on_a_track_slices_nest_or_follow(lengths, nest):
    """Any two slices of a track are after each other, or, where that is allowed, one in the other; none is lost."""
    slices = [Slice("", "", start, start + length) for start, length in lengths]
    laid = lay(slices, nest=nest)
    assert {id(one) for one in laid} == {id(one) for one in slices}
    for index, one in enumerate(laid):
        for other in laid[index + 1 :]:
            if one.track != other.track:
                continue
            after = one.end_us <= other.start_us
            inside = one.start_us <= other.start_us <= other.end_us <= one.end_us
            assert after or (nest and inside)


# --- the command -----------------------------------------------------------------------------------------------------


def parsed(*words):
    parser = ArgumentParser()
    perfetto.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_the_command_writes_one_file_of_all_forms(tmp_path, capsys):
    """Several trace files become one picture, whose processes are named by form and file; the last line says what to do."""
    paths = []
    for form in ("http", "append"):
        paths.append(tmp_path / f"my-{form}.jsonl")
        paths[-1].write_bytes(b"".join(recorded(form)))
    out = tmp_path / "both.json"
    assert perfetto.run(parsed(*paths, "--out", out)) == 0
    events = orjson.loads(out.read_bytes())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["http · my-http", "append · my-append"]
    assert capsys.readouterr().out == (
        f"{out}: http, append; 6 calls; open it in ui.perfetto.dev or chrome://tracing\n"
    )


def test_the_command_refuses_a_trace_without_responses(tmp_path):
    """A trace in which nothing was asked makes no picture; the error names it and the way out."""
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(trace.header_line(dialect="append", source="test"))
    with pytest.raises(trace.TraceError, match=r"no response in .*empty.jsonl; record one with --trace"):
        perfetto.run(parsed(empty, "--out", tmp_path / "out.json"))


def test_the_command_says_which_file_is_no_trace(tmp_path):
    """A file that cannot be read as a trace is named, with the reason."""
    other = tmp_path / "notes.txt"
    other.write_text("nothing of the kind\n")
    with pytest.raises(trace.TraceError, match=r"notes.txt: "):
        perfetto.run(parsed(other, "--out", tmp_path / "out.json"))


def test_the_command_says_which_file_is_not_there(tmp_path):
    """A file that cannot be read is no trace either, and wrong usage."""
    with pytest.raises(trace.TraceError, match=r"No such file.*missing.jsonl"):
        perfetto.run(parsed(tmp_path / "missing.jsonl", "--out", tmp_path / "out.json"))


def test_the_same_trace_gives_the_same_picture():
    """The events depend on the trace alone."""
    first, second = (orjson.dumps(picture(recorded("append"))) for _ in range(2))
    assert first == second
