"""`suspended check`: what it says of which input, how it exits, and that it reads whatever size in little memory."""

import io
import json
import os
import re
import signal
import threading
import tracemalloc
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import attrs
import orjson
import pytest
from openai.types import responses as sdk

from engine.arguments import make_parser
from engine.check.command import CheckSettings, check
from engine.check.progress import Progress
from engine.check.rule_examples import EXAMPLES
from engine.check.rule_pages import page, table
from engine.check.waiting import Attentive, alarm, wait_for_input
from engine.cli import main
from protocol import readers, trace
from protocol.invariants import PROFILES, RULES
from tests.command import TIMEOUT_SECONDS, Running, suspended

USAGE = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 5,
}
CREATE = {"type": "response.create", "model": "m", "input": "hi"}


def response(status: str, response_id: str, **more: object) -> dict[str, object]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "previous_response_id": None,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **more,
    }


def answer(response_id: str = "resp_1", text: str = "hi") -> list[dict[str, object]]:
    """The events of a message, in order."""
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": f"msg_{response_id}", "type": "message", "role": "assistant"}
    done = {**message, "status": "completed", "content": [part]}
    place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
    events: list[dict[str, object]] = [
        {"type": "response.created", "response": response("in_progress", response_id)},
        {"type": "response.in_progress", "response": response("in_progress", response_id)},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**message, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": text},
        {"type": "response.output_text.done", **place, "text": text},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {
            "type": "response.completed",
            "response": response("completed", response_id, output=[done], usage=USAGE),
        },
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def sse(events: Iterable[dict[str, object]]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def trace_of(
    events: Iterable[dict[str, object]], *, dialect: str = "create", create: object = CREATE, **header
) -> bytes:
    """A trace of one socket: a create, then these events, one each 10 ms."""
    members = {"source": "test", "directions": ["in", "out"], "hooks": [], **header}
    lines = [trace.header_line(dialect=dialect, **members)]
    frames = [("in", create), *(("out", event) for event in events)]
    lines += [
        trace.record_line(number / 100, "c1", way, frame) for number, (way, frame) in enumerate(frames, 1)
    ]
    return b"".join(lines)


CLEAN = trace_of(answer())
CUT = trace_of(answer()[:5])


class Pieces(io.BytesIO):
    """A pipe in which one piece comes after the other; what is callable happens in between."""

    def __init__(self, pieces):
        super().__init__()
        self._pieces = iter(pieces)

    def read1(self, size=-1, /):
        for piece in self._pieces:
            if isinstance(piece, bytes):
                return piece
            piece()
        return b""


def settings_of(**changes):
    plain = CheckSettings(("-",), "any-server", None, None, json=False, colour=False, progress=False)
    return attrs.evolve(plain, **changes)


def checked(*pieces, **changes):
    """Exit code, output and errors of a check of these pieces of standard input."""
    out, err = io.StringIO(), io.StringIO()
    code = check(settings_of(**changes), Pieces(pieces), out, err)
    return code, out.getvalue(), err.getvalue()


def written(folder: Path, **files: bytes) -> tuple[str, ...]:
    paths = [folder / name.replace("_", ".") for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_bytes(content)
    return tuple(map(str, paths))


# --- what it says


def test_a_clean_trace_is_said_to_be_clean():
    """Without a violation: what was checked, what was not, and exit code 0."""
    code, out, err = checked(CLEAN)
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "checked 9 events of 1 response (create 9): 10 records in 1 trace, 1 file",
        "no violation",
    ]
    assert "not evaluated, profile" in out


def test_a_violation_is_explained():
    """A violation is where it is, the rule in words, what was expected, what was seen, and the records that show it."""
    code, out, _ = checked(CUT)
    assert code == 1
    assert out.split("checked")[0] == (
        "trace standard input\n\n"
        "resp_1  R3  record 6  conn c1\n"
        f"  rule:     {RULES['R3'].statement}\n"
        "  expected: one terminal event (completed, incomplete or failed)\n"
        "  seen:     end of the stream after response.output_text.delta\n"
        "        1     0.010  in   response.create\n"
        "        2     0.020  out  response.created  #0 id=resp_1\n"
        "        3     0.030  out  response.in_progress  #1\n"
        "        4     0.040  out  response.output_item.added  #2 [0] message msg_resp_1\n"
        "        5     0.050  out  response.content_part.added  #3 [0]\n"
        "        6     0.060  out  response.output_text.delta  #4 [0]\n"
        "\n"
    )
    assert "\n1 violation: R3:1\n" in out


def test_a_rule_is_stated_once():
    """When a rule is broken again, its statement is not repeated."""
    _, out, _ = checked(CUT + CUT)
    assert (out.count("  rule: "), out.count("  R3  record"), "trace standard input#2\n" in out) == (
        1,
        2,
        True,
    )


def test_json_lines_have_the_members_of_the_reference():
    """`--json`: a line for each violation with the agreed members, and a last line with the totals."""
    code, out, _ = checked(CUT, json=True)
    violation, last = map(json.loads, out.splitlines())
    assert code == 1
    assert list(violation) == [
        *("rule", "trace", "record", "conn", "lane", "response_id"),
        *("expected", "seen", "prefix"),
    ]
    assert (violation["rule"], violation["record"], violation["response_id"]) == ("R3", 6, "resp_1")
    assert all(isinstance(number, int) for number in violation["prefix"])
    summary = last["summary"]
    assert list(summary) == [
        *("files", "traces", "records", "responses"),
        *("events", "violations", "not_evaluated", "exit_code"),
    ]
    assert (summary["records"], summary["events"], summary["violations"]) == (6, {"create": 5}, {"R3": 1})
    assert set(summary["not_evaluated"]) < set(RULES)


def test_colour_is_for_terminals():
    """Escape sequences are said when colour is asked for, and never otherwise."""
    assert ["\x1b[" in checked(CUT, colour=colour)[1] for colour in (True, False)] == [True, False]


def test_a_trace_cannot_write_to_the_terminal():
    """Control characters of a trace come out escaped, in names, ids and what was seen, in both outputs."""
    hostile = "\x1b[2J\ud83d\u202e"
    text = json.dumps({**json.loads(CUT.splitlines()[0]), "name": hostile}).encode() + b"\n"
    text += CUT.split(b"\n", 1)[1].replace(b"resp_1", json.dumps(hostile).encode().strip(b'"'))
    for as_json in (False, True):
        code, out, _ = checked(text, json=as_json)
        assert (code, all(c.isprintable() or c == "\n" for c in out)) == (1, True)
        assert r"\u202e" in out


def test_any_terminal_s_encoding_will_do():
    """What a terminal cannot show is written in its place as an escape."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    pieces = [CUT.replace(b"resp_1", "répönse".encode())]
    assert check(settings_of(), Pieces(pieces), out, io.StringIO()) == 1
    assert rb"r\xe9p\xf6nse  R3" in out.buffer.getvalue()


def test_violations_are_said_as_they_are_found():
    """A violation is on the output before the next piece of the input is read."""
    out = io.StringIO()
    seen = []
    piece = trace_of([*answer()[:3], *answer()[4:]])
    pieces = [piece, lambda: seen.append(out.getvalue())]
    check(settings_of(json=True), Pieces(pieces), out, io.StringIO())
    assert '"rule": "N1"' in seen[0]


# --- exit codes


def har(*streams: tuple[int, str, list[dict[str, object]], str | None]) -> bytes:
    """Of the second, path, events and error of each stream."""
    entries = [
        {
            "startedDateTime": f"2026-01-01T00:00:{second:02}.000Z",
            "time": 500,
            "request": {
                "method": "GET" if "?" in path else "POST",
                "url": f"https://a/v1/responses{path}",
                "postData": {} if "?" in path else {"text": '{"model":"m","input":"hi","stream":true}'},
            },
            "response": {
                "status": 200,
                "content": {"mimeType": "text/event-stream", "text": sse(events)},
                "_error": error,
            },
        }
        for second, path, events, error in streams
    ]
    return json.dumps({"log": {"entries": entries}}).encode()


AGAIN = "/resp_1?stream=true"
NOTHING = trace.header_line(dialect="create", source="test")
EXIT_CODES = {
    "clean": (CLEAN, 0),
    "violation": (CUT, 1),
    "a violation in the second trace": (CLEAN + CUT, 1),
    "a clean SSE log": (sse(answer()).encode(), 0),
    "a cut SSE log": (sse(answer()[:5]).encode(), 1),
    "a resumed stream of a HAR file": (
        har((0, "", answer()[:4], None), (2, f"{AGAIN}&starting_after=3", answer()[4:], None)),
        0,
    ),
    "a stream of a HAR file, and its replay": (har((0, "", answer(), None), (2, AGAIN, answer(), None)), 0),
    "a cut stream of a HAR file": (har((0, "", answer()[:4], None)), 1),
    "a stream of a HAR file that was cut again": (
        har((0, "", answer()[:4], None), (2, f"{AGAIN}&starting_after=3", answer()[4:5], None)),
        1,
    ),
    "a stream of a HAR file that its client left": (har((0, "", answer()[:4], "net::ERR_ABORTED")), 0),
    "events of an SDK": (b"\n".join(map(orjson.dumps, answer())), 0),
    "frames": (b"\n".join(map(orjson.dumps, [{**CREATE, "stream": True}, *answer()])), 0),
    "no trace": (b"hello\n", 2),
    "empty": (b"", 2),
    "a trace that lost its header": (CLEAN.split(b"\n", 1)[1], 0),
    "unknown version": (b'{"trace":2}\n', 2),
    "cut in mid-line": (CLEAN[:-20], 2),
    "a violation before the cut": (trace_of([*answer()[:3], *answer()[4:]])[:-20], 2),
    "a header only": (NOTHING, 3),
    "only what the client sent": (trace_of([], directions=["in"]), 3),
}


@pytest.mark.parametrize(("text", "code"), EXIT_CODES.values(), ids=EXIT_CODES)
def test_exit_codes_are_those_of_the_help(text, code):
    """0 clean, 1 violations, 2 no trace, 3 nothing checked; and `--json` says the same number."""
    found, out, _ = checked(text, json=True)
    assert (found, json.loads(out.splitlines()[-1])["summary"]["exit_code"]) == (code, code)


def test_nothing_checked_is_not_a_pass():
    """A trace without any event is said to be unchecked, and why."""
    assert "nothing was checked: no event of a response was read" in checked(NOTHING)[1]


def test_what_is_no_trace_is_named_with_the_way_out():
    """A bad line is named with file, number and a hint; what was found before it is said."""
    code, out, err = checked(trace_of([*answer()[:3], *answer()[4:]]) + b"oops\n")
    assert (code, "  N1  record" in out) == (2, True)
    assert re.search(
        r"suspended: standard input: line 11 is no JSON.*--format says what it is: trace, sse", err
    )


def test_a_broken_end_is_not_taken_for_the_stream_s():
    """When the file ends in the middle of a line, nothing is said about the end of the stream."""
    assert "R3" not in checked(CUT[:-20])[1].split("not evaluated")[0]


def test_one_bad_file_does_not_hide_the_others(tmp_path):
    """A file that is missing or no trace is complained of; the others are checked; the exit code is 2."""
    bad, cut = written(tmp_path, bad_txt=b"hello\n", cut_jsonl=CUT)
    code, out, err = checked(files=tuple(map(str, (tmp_path / "missing", bad, cut))))
    assert (code, f"trace {cut}\n" in out, "1 file\n" in out) == (2, True, True)
    assert [
        str(path) in line for path, line in zip((tmp_path / "missing", bad), err.splitlines(), strict=True)
    ] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which file?"),
        (["-", "-"], "can be read once"),
        (["--profile", "mine", "x"], "choose from"),
        (["--format", "csv", "x"], "choose from"),
        (["--explain", "R33"], "no rule 'R33'; did you mean R3"),
        (["--explain", "zebra"], f"--list shows all {len(RULES)}"),
    ],
)
def test_wrong_usage_is_told_in_a_line(words, message, capsys):
    """Whatever is wrong with the command line is named with the way out, and the exit code is 2."""
    code = main(["check", *words])
    assert (code, message in capsys.readouterr().err) == (2, True)


# --- reading


SDK_CLASSES = (
    sdk.ResponseCreatedEvent,
    sdk.ResponseInProgressEvent,
    sdk.ResponseOutputItemAddedEvent,
    sdk.ResponseContentPartAddedEvent,
    sdk.ResponseTextDeltaEvent,
    sdk.ResponseTextDoneEvent,
    sdk.ResponseContentPartDoneEvent,
    sdk.ResponseOutputItemDoneEvent,
    sdk.ResponseCompletedEvent,
)
"""Of the events of `answer`, in order."""


@pytest.mark.parametrize(
    "write", [repr, lambda event: event.model_dump_json(), lambda event: event.to_json(indent=None)]
)
def test_events_of_openai_python_are_no_false_alarm(write):
    """What the SDK makes of a clean stream is clean, although it adds members; what the server did wrong is not."""
    for events, wrong in ((answer(), []), (with_null_tokens(answer()), ["U1"])):
        made = [cls.construct(**event) for cls, event in zip(SDK_CLASSES, events, strict=True)]
        _, out, _ = checked("\n".join(map(write, made)).encode(), json=True)
        assert [json.loads(line)["rule"] for line in out.splitlines()[:-1]] == wrong


def with_null_tokens(events):
    text = json.dumps(events).replace('"cached_tokens": 0', '"cached_tokens": null')
    return json.loads(text)


@pytest.mark.parametrize("kind", ["sse", "frames"])
def test_the_format_can_be_said(kind):
    """A format that is given is used, whatever the text looks like."""
    code, _, err = checked(CLEAN.split(b"\n", 1)[1], kind=kind)
    assert (code, "(read as sse)" in err) == ((2, True) if kind == "sse" else (0, False))


def test_the_form_can_be_said():
    """A form that is given is that of a log that does not say it."""
    _, out, _ = checked(sse(answer()).encode(), dialect="create", json=True)
    assert json.loads(out.splitlines()[-1])["summary"]["events"] == {"create": 9}


def test_an_sse_log_is_not_judged_by_its_requests():
    """Rules about requests and hooks are reported as not evaluated on a log without them."""
    _, out, _ = checked(sse(answer()).encode(), json=True)
    not_evaluated = json.loads(out.splitlines()[-1])["summary"]["not_evaluated"]
    assert {"R7", "W13", "S10", "R8"} <= set(not_evaluated)
    assert not {"R1", "R3", "N1", "I1", "C3"} & set(not_evaluated)


def test_a_rule_evaluated_on_some_traces_is_reported_with_their_number():
    """A rule that only one of two traces could judge is not passed over in silence."""
    _, out, _ = checked(CLEAN + trace_of(answer("resp_2"), directions=["out"]), json=True)
    reason = json.loads(out.splitlines()[-1])["summary"]["not_evaluated"]["R7"]
    assert reason.endswith("(1 of 2 traces)")


def test_traces_of_a_group_are_compared_over_files(tmp_path):
    """One rollout in two forms that say different things breaks W11, also when each form is a file of its own."""
    members = {"group": "g1"}
    files = written(
        tmp_path,
        one_jsonl=trace_of(answer(text="yes"), **members),
        two_jsonl=trace_of(answer("resp_2", text="no"), **members),
    )
    code, out, _ = checked(files=files, profile="this-engine", json=True)
    assert (code, [json.loads(line).get("rule") for line in out.splitlines()[:-1]]) == (1, ["W11"])
    assert checked(files=files, json=True)[0] == 0


def test_interruption_says_the_totals_so_far():
    """Ctrl-C ends with the totals of what was read, without a word about the end of the stream, and 130."""

    def interrupt():
        raise KeyboardInterrupt

    code, out, _ = checked(CUT, interrupt)
    assert (code, out.splitlines()[0]) == (
        130,
        "checked 5 events of 1 response (create 5): 6 records in 1 trace, 0 files",
    )


def test_a_large_file_is_checked_in_little_memory():
    """Of 50 MB less than 6 MB are in memory at once."""
    block = trace_of(answer("resp_00000", "x" * 20_000)).split(b"\n", 1)[1]
    count = 50_000_000 // len(block)
    header = trace.header_line(dialect="create", source="test", directions=["in", "out"], hooks=[])
    blocks = (block.replace(b"resp_00000", b"resp_%05d" % number) for number in range(count))
    out = io.StringIO()
    tracemalloc.start()
    try:
        code = check(settings_of(json=True), Pieces(chain([header], blocks)), out, io.StringIO())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    summary = json.loads(out.getvalue())["summary"]
    assert (code, summary["responses"], summary["records"]) == (0, count, 10 * count)
    assert peak < 6_000_000


@pytest.fixture
def pipe():
    """Both ends of one, and signals that end nothing. A wait that would last for ever ends with a word."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        deadline = threading.Timer(TIMEOUT_SECONDS, os.write, (writing, b"late"))
        deadline.start()
        yield reader, writer
        deadline.cancel()
    signal.signal(signal.SIGINT, before)


def test_a_signal_before_the_wait_ends_it(pipe):
    """However late it is noticed: nobody has to write anything for that, and the next wait is for input again."""
    reader, writer = pipe
    with alarm() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert not wait_for_input(reader, signals)
        writer.write(b"more")
        assert wait_for_input(reader, signals)


def test_a_signal_that_ends_nothing_costs_no_input(pipe):
    """It is read as if there had been none, to the end."""
    reader, writer = pipe
    writer.write(b"more")
    with alarm() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert Attentive(reader, signals).read1(100) == b"more"
        os.kill(os.getpid(), signal.SIGINT)
        writer.close()
        assert Attentive(reader, signals).read1(100) == b""


def test_who_was_woken_by_signals_before_is_again(pipe):
    """After the reading, as an event loop around it needs."""
    reader, _ = pipe
    with alarm() as outer:
        with alarm():
            pass
        os.kill(os.getpid(), signal.SIGINT)
        assert not wait_for_input(reader, outer)


def test_what_cannot_be_waited_for_is_read_at_once(tmp_path):
    """A file without a descriptor, a regular file, and a thread that gets no signals."""
    (path,) = written(tmp_path, a_txt=b"text")
    with alarm() as signals, Path(path).open("rb") as file:
        assert Attentive(file, signals).read1(100) == b"text"
        assert Attentive(io.BytesIO(b"text"), signals).read1(100) == b"text"
    codes = []
    thread = threading.Thread(target=lambda: codes.append(checked(CLEAN)[0]))
    thread.start()
    thread.join()
    assert codes == [0]


# --- progress


class Ticks:
    """A clock that goes on when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_progress_is_by_bytes():
    """The bar says share, size, speed and the time that is left; a line of output takes its place."""
    clock, terminal = Ticks(), io.StringIO()
    progress = Progress(terminal, 4_000_000, clock)
    chunks = progress.chunks(Pieces([b"x" * 1_000_000] * 4))
    next(chunks)
    clock.now = 10.0
    next(chunks)
    assert terminal.getvalue() == "\r\x1b[K[#######.....................]  25% of 4.0 MB, 0.1 MB/s, 0:30 left"
    progress.clear()
    progress.clear()
    assert terminal.getvalue().count("\x1b[K") == 2


def test_progress_without_a_size_counts():
    """Of a pipe only what was read and the speed are known."""
    clock = Ticks()
    progress = Progress(None, None, clock)
    list(progress.chunks(Pieces([b"x" * 3_000_000])))
    clock.now = 2.0
    assert progress.line() == "3.0 MB, 1.5 MB/s"


def test_progress_is_for_terminals():
    """Without a terminal nothing is drawn, however long it takes."""
    clock = Ticks()
    progress = Progress(None, 10, clock)
    for _ in progress.chunks(Pieces([b"x"] * 10)):
        clock.now += 1
    progress.clear()
    assert progress.line().startswith("[############################] 100%")


# --- rules, to read


def test_every_rule_has_an_example():
    """The examples are those of the rules there are, no more and no less, each with what is wrong in it."""
    assert set(EXAMPLES) == set(RULES)
    assert [rule for rule, (example, _) in EXAMPLES.items() if "!" not in example] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_is_explained(rule):
    """A rule's page has its statement, source, example and needs, in lines that fit a terminal."""
    text = page(rule.id.lower())
    words = " ".join(text.split())
    wanted = (rule.statement, rule.source, EXAMPLES[rule.id][0])
    assert [part for part in wanted if " ".join(part.split()) not in words] == []
    assert [hook for hook in rule.hooks if f"the hook {hook}" not in words] == []
    assert max(map(len, text.splitlines())) <= 100


def test_the_list_has_all_rules():
    """A line for each rule, in the order of the reference, under a heading."""
    heading, *lines = table().splitlines()
    assert heading.split() == ["rule", "scope", "forms", "profiles", "statement"]
    assert [line.split()[0] for line in lines] == list(RULES)


# --- as a person runs it


def test_help_teaches_by_examples(capsys):
    """The help has three examples, the formats, the profiles and the exit codes."""
    assert main(["check", "--help"]) == 0
    out = capsys.readouterr().out
    examples = out.split("examples:")[1].split("exit codes:")[0]
    assert examples.count("suspended check") == 3
    assert [word for word in (*readers.FORMATS, *PROFILES, "130  interrupted") if word not in out] == []


def test_arguments_are_those_of_the_checker():
    """The command line, which imports nothing heavy, offers the formats and profiles that there are."""
    for flag, names in (("--format", readers.FORMATS), ("--profile", PROFILES)):
        for name in names:
            assert getattr(make_parser().parse_args(["check", flag, name, "-"]), flag[2:]) == name


@pytest.mark.parametrize("words", [("--list",), ("--explain", "R3")])
def test_rules_are_shown_by_the_command(words, capsys):
    """`--list` and `--explain` need no file."""
    assert main(["check", *words]) == 0
    assert RULES["R3"].statement in " ".join(capsys.readouterr().out.split())


def test_the_command_reads_standard_input():
    """A log piped in is checked; without a terminal there is neither colour nor progress."""
    done = suspended("check", "-", stdin=sse(answer()[:5]))
    assert (done.returncode, done.stderr, "\x1b" in done.stdout) == (1, "", False)
    assert "resp_1  R3  record 5  conn c1" in done.stdout


def test_a_closed_pipe_ends_it_silently(tmp_path):
    """When whoever reads the output has enough, the command ends without a complaint."""
    (path,) = written(tmp_path, many_jsonl=CUT * 1000)
    with Running("check", path) as running:
        running.line_with("R3")
        running.close_output()
        assert running.ended_silently() == (1, "")


def test_ctrl_c_is_130(tmp_path):
    """SIGINT while it waits for more input: the totals so far, a word on standard error, and 130."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Running("check", pipe) as running, pipe.open("wb", buffering=0) as writer:
        writer.write(trace_of([*answer()[:3], answer()[4]]))
        running.line_with("N1")
        running.signal(signal.SIGINT)
        code, out, err = running.ended()
    assert (code, err) == (130, "suspended: interrupted\n")
    assert "checked 4 events" in out


# --- traces that are not of this repository, where they are beside it

SHARED = Path(__file__).parents[2] / "shared"
beside = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the vectors and recordings are not beside the repository"
)


@beside
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_clean_answers_are_clean_as_sse_logs(end):
    """The server's frames of each clean HTTP trace, written as an SSE log, come back, and are clean."""
    counted = 0
    for header, records in trace.read((SHARED / "vectors" / "clean.jsonl").read_bytes().splitlines()):
        frames = [
            record["frame"]
            for record in records
            if record["dir"] == "out"
            and (record["frame"] == "[DONE]" or "sequence_number" in record["frame"])
        ]
        if header["transport"] != "sse" or not frames or header.get("complete") is False:
            continue
        lines = []
        for frame in frames:
            name = [] if frame == "[DONE]" else [f"event: {frame['type']}"]
            lines += [*name, f"data: {frame if frame == '[DONE]' else json.dumps(frame)}", ""]
        log = "".join(line + end for line in lines).encode()
        kind, found = readers.detected(readers.lines_of([log]))
        assert [entry["frame"] for entry in readers.entries(kind, found) if "trace" not in entry] == frames
        if not header.get("model_emits_replacement"):  # an SSE log cannot say that
            assert checked(log)[0] == 0
            counted += 1
    assert counted > 8


@beside
def test_recordings_raise_no_false_alarm():
    """The recorded exchanges with the public beta's server are in order, and something of them was checked."""
    files = tuple(map(str, sorted((SHARED / "recordings").glob("*.jsonl"))))
    code, out, _ = checked(files=files, profile="openai", json=True)
    assert (code, len(out.splitlines()), len(files) > 12) == (0, 1, True)
