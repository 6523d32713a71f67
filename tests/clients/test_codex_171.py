"""Codex CLI 0.171.0, the newest: the create form over WebSocket, HTTP, and what it does when the line breaks."""

import signal
import subprocess
from collections.abc import Iterator

import orjson
import pytest

from engine.pointers import pointer
from tests.clients.codex import SAMPLER, Home, command_line, config_of, run_codex, running_codex
from tests.clients.conftest import NEW_CODEX_VERSION
from tests.clients.cut import Cut
from tests.clients.served import Served, Trace, serve
from tests.clients.shells import PATCH, PATCHED
from tests.clients.tap import tapped
from tests.clients.typed import misfits

pytestmark = pytest.mark.clients

COMMANDS = ("echo alpha > one.txt", "cat one.txt", "ls nowhere", "wc -l < one.txt > two.txt; exit 3")
FILES = {"one.txt": "alpha\n", "two.txt": "1\n"}
SAID = """\
4 commands run:
1. `echo alpha > one.txt`: ok; no output
2. `cat one.txt`: ok; alpha
3. `ls nowhere`: exit code 2; ls: cannot access 'nowhere': No such file or directory
4. `wc -l < one.txt > two.txt; exit 3`: exit code 3; no output"""
SLOW = "?rate=300"
"""Tokens in a second: so there is a middle to cut in."""
SLOWER = "?rate=30"
"""For a middle in which a signal arrives."""


def input_types(trace: Trace) -> list[list[str]]:
    """What each create brought."""
    return [[item["type"] for item in frame["input"]] for frame in trace.frames("in")]


def parents(trace: Trace) -> list[str | None]:
    """What each create named as the response before it."""
    return [frame.get("previous_response_id") for frame in trace.frames("in")]


def ids(trace: Trace) -> list[str]:
    """Of the completed responses, in order."""
    return [frame["response"]["id"] for frame in trace.frames("out", "response.completed")]


def complaints(served: Served) -> list[str]:
    """What the official types have against all that was sent."""
    return [misfit for trace in served.traces(0) for misfit in misfits("create", trace.frames("out"))]


@pytest.mark.eventless
def test_codex_is_the_release_meant(new_codex):
    """The binary is of the version that was looked at."""
    shown = subprocess.run([new_codex, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown.split()[-1] == NEW_CODEX_VERSION


def test_create_form(new_codex, tmp_path):
    """A warm-up, then a response per call by the id of the last; files, failures and final text are as told."""
    with serve(tmp_path, SAMPLER) as served:
        home = Home.make(tmp_path, config_of(served.address, "create"))
        completed = run_codex(served, home, command_line(new_codex, *COMMANDS))
        (trace,) = served.traces()
    assert (completed.stdout.strip(), home.files()) == (SAID, FILES)
    warm_up, first, *turns = trace.frames("in")
    assert (warm_up["generate"], trace.frames("out", "response.completed")[0]["response"]["output"]) == (
        False,
        [],
    )
    assert parents(trace) == [None, *ids(trace)[:-1]]
    assert input_types(trace)[2:] == [["function_call_output"]] * len(COMMANDS)
    assert len(orjson.dumps(first["input"])) > len(orjson.dumps(turns[0]["input"]))
    assert trace.counts("out")["response.completed"] == len(COMMANDS) + 2
    assert {"error", "response.failed", "response.incomplete"} & trace.counts("out").keys() == set()
    assert complaints(served) == []


def test_http(new_codex, tmp_path):
    """Over HTTP the same task has the same outcome; each request has the whole history."""
    with serve(tmp_path, SAMPLER) as served, tapped(served) as tap:
        home = Home.make(tmp_path, config_of(tap.address, "http"))
        completed = run_codex(served, home, command_line(new_codex, *COMMANDS))
    assert (completed.stdout.strip(), home.files()) == (SAID, FILES)
    lengths = [len(request["input"]) for request in tap.requests()]
    assert (len(lengths), lengths) == (len(COMMANDS) + 1, sorted(set(lengths)))
    assert [event["type"] for event in tap.events()].count("response.completed") == len(lengths)
    assert misfits("http", tap.events()) == []


def test_parallel_calls(new_codex, tmp_path):
    """By the lines that the server prints: three calls in one response are run, and all outputs come back in one create."""
    with serve(tmp_path, "policy:tests.clients.shells:together") as served:
        home = Home.make(tmp_path, pointer("codex").at(served.place))
        command = [*command_line(new_codex, "echo a", "echo b", "echo c"), "--sandbox", "danger-full-access"]
        completed = run_codex(served, home, command)
        (trace,) = served.traces()
    assert completed.stdout.strip() == "a; b; c"
    assert input_types(trace)[2:] == [["function_call_output"] * 3]
    assert parents(trace) == [None, *ids(trace)[:-1]]
    assert complaints(served) == []


def test_custom_tool(new_codex, tmp_path):
    """The patch tool, which takes plain text, is called with a patch and writes the file."""
    with serve(tmp_path, "policy:tests.clients.shells:patch") as served:
        home = Home.make(tmp_path, config_of(served.address, "create"))
        completed = run_codex(served, home, [*command_line(new_codex, "patch"), "--model", "gpt-5.5"])
        (trace,) = served.traces()
    assert (completed.stdout.strip(), home.files()) == ("patched", {PATCHED: "hi\n"})
    calls = [
        frame["item"]
        for frame in trace.frames("out", "response.output_item.done")
        if frame["item"]["type"] == "custom_tool_call"
    ]
    assert [(call["name"], call["input"]) for call in calls] == [("apply_patch", PATCH)]
    assert input_types(trace)[2:] == [["custom_tool_call_output"]]
    assert complaints(served) == []


# --- recovery


@pytest.fixture(params=["create", "http"])
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Over WebSocket or HTTP."""
    return request.param


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_server_restarts_between_turns(new_codex, tmp_path, form, how):
    """While a command runs, the server is closed or killed and begins anew: Codex connects again and does the rest.

    The new server gets the whole history once, without a parent, and then outputs only.
    """
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    commands = (
        COMMANDS[0],
        "touch running; until [ -e go-on ]; do sleep 0.05; done; echo went on",
        *COMMANDS[2:],
    )
    log = tmp_path / "codex.log"
    killed_while_connected = form == "create" and how == signal.SIGKILL
    with serve(tmp_path / "first", SAMPLER, eventless=killed_while_connected) as served:
        home = Home.make(tmp_path, config_of(served.address, form, retries=3))
        with running_codex(home, command_line(new_codex, *commands), log) as codex:
            served.wait_for("the second command", (home.work / "running").exists)
            served.process.send_signal(how)
            served.wait_for_end()
            with serve(tmp_path / "second", SAMPLER, port=served.port) as again:
                (home.work / "go-on").touch()
                again.wait_for(f"the end of Codex ({log})", lambda: codex.poll() is not None)
                again.stop()
    said = log.read_text()
    assert codex.returncode == 0, said
    assert "2. `touch running" in said
    assert "ok; went on" in said
    assert {name: text for name, text in home.files().items() if text} == FILES
    if form == "create":
        (trace,) = again.traces(0)
        assert parents(trace) == [None, *ids(trace)[:-1]]
        assert input_types(trace)[0].count("function_call_output") == 2
        assert input_types(trace)[1:] == [["function_call_output"]] * 2
        assert complaints(again) == []
    if form == "create" and how == signal.SIGTERM:
        (trace,) = served.traces(0)
        assert trace.frames("hook")[-1] == {"hook": "connection_close", "by": "server", "code": 1001}


def test_connections_grow_old(new_codex, tmp_path):
    """A server that closes every connection after a second, with its typed error, is connected to again and again."""
    commands = [f"sleep 0.7; echo {number} > {number}.txt" for number in range(3)]
    with serve(tmp_path, SAMPLER, "--limit", "max_connection_seconds=1") as served:
        home = Home.make(tmp_path, config_of(served.address, "create", retries=3))
        completed = run_codex(served, home, command_line(new_codex, *commands))
        served.stop()
    assert completed.stdout.count("ok; no output") == len(commands)
    assert home.files() == {f"{number}.txt": f"{number}\n" for number in range(3)}
    *old, last = served.traces(0)
    assert len(old) > 1
    for trace in old:
        assert trace.frames("out")[-1]["error"]["code"] == "websocket_connection_limit_reached"
        assert trace.frames("hook")[-1] == {"hook": "connection_close", "by": "server", "code": 1001}
    assert parents(last)[0] is None
    assert complaints(served) == []


@pytest.mark.parametrize(
    ("mark", "appearances"),
    [
        (b'"response.created"', 4),
        (b'"response.function_call_arguments.delta"', 20),
        (b'"response.completed"', 3),
    ],
    ids=["at the beginning", "in a call", "at the end"],
)
def test_line_is_cut_in_mid_turn(new_codex, tmp_path, form, mark, appearances):
    """The line breaks while the model speaks: Codex connects again, sends all without a parent, every command is run."""
    with (
        serve(tmp_path, SAMPLER + SLOW) as served,
        Cut.on(served.address, mark=mark, appearances=appearances) as line,
    ):
        home = Home.make(tmp_path, config_of(line.address, form, retries=3))
        completed = run_codex(served, home, command_line(new_codex, *COMMANDS))
        served.stop()
    assert (line.interfered.is_set(), completed.stdout.strip(), home.files()) == (True, SAID, FILES)
    if form == "create":
        first, second = served.traces(0)
        assert parents(second) == [None, *ids(second)[:-1]]
        assert first.response_ids() & set(parents(second)) == set()
        assert complaints(served) == []


def test_server_shuts_down_in_mid_turn(new_codex, tmp_path, form):
    """The server, told to end, fails the response it is at and closes: Codex goes on with the one that comes after it."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    log = tmp_path / "codex.log"
    with serve(tmp_path / "first", SAMPLER + SLOWER, "--limit", "drain_seconds=0.01") as served:
        mark = {"mark": b'"response.function_call_arguments.delta"', "appearances": 14}  # in the second call
        with Cut.on(served.address, **mark, then=served.process.terminate) as line:
            home = Home.make(tmp_path, config_of(line.address, form, retries=10))
            with running_codex(home, command_line(new_codex, *COMMANDS), log) as codex:
                served.wait_for_end()
                with serve(tmp_path / "second", SAMPLER, port=served.port) as again:
                    again.wait_for(f"the end of Codex ({log})", lambda: codex.poll() is not None)
                    again.stop()
    said = log.read_text()
    assert (codex.returncode, line.interfered.is_set()) == (0, True), said
    assert SAID in said
    assert home.files() == FILES
    if form == "create":
        (first,), (second,) = served.traces(0), again.traces(0)
        assert first.counts("out")["response.failed"] == 1
        assert parents(second) == [None, *ids(second)[:-1]]
        assert complaints(served) + complaints(again) == []
