"""The command line: what is wrong is said in a line, exit codes are what the help says, signals end things cleanly."""

import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager

import orjson
import pytest

from engine import arguments
from engine.call_command import ShellTool, variables, websocket_url
from engine.cli import main
from engine.client import FORMS
from engine.config import Limits
from engine.limit_settings import limit_rows, read_limits
from engine.models import ModelTable
from engine.pointers import POINTERS, pointer
from engine.samplers.chat import NOTICE
from engine.serve_command import example
from protocol import trace
from tests.command import ROOT, Running, environment, suspended

SHELL = "policy:demos.agents.shell?rate=5000"
RUN = ("--tool", 'exec_command(cmd)=sh -c "$ARG_cmd"')


@contextmanager
def served(*words, **more):
    with Running("serve", "--port", "0", *words, **more) as running:
        url = re.search(r"ws://\S+", running.line_with("serving ws://"))[0]
        yield running, url


@pytest.fixture(scope="module")
def shell_url():
    """A server whose model is the shell agent."""
    with served("--sampler", SHELL) as (_, url):
        yield url


# --- help and wrong usage


def test_help_is_there_at_once():
    """`--help` imports neither trio nor the engine's parts, so it is there at once."""
    heavy = "{'trio', 'attrs', 'rich', 'engine.engine'}"
    program = f"import sys; from engine.cli import main; main(['--help']); print(sorted({heavy} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        env=environment(),
        check=True,
    )
    assert process.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["demo", "serve", "call"])
def test_help_teaches(command, capsys):
    """Each command's help has examples and says what its exit codes mean."""
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert (f"suspended {command} " in out.split("examples:")[1], "130  interrupted" in out) == (True, True)


@pytest.mark.parametrize("command", ["demo", "call"])
def test_help_says_what_each_form_is(command, capsys):
    """The help knows the client's forms, no more and no fewer, and has a line of words for each."""
    assert tuple(arguments.FORMS) == tuple(FORMS)
    main([command, "--help"])
    out = capsys.readouterr().out
    assert [name for name, words in arguments.FORMS.items() if f"  {name:6}  {words}\n" not in out] == []


def test_serve_help_lists_all_limits(capsys):
    """The help of `serve` has a line for each limit, with its default."""
    main(["serve", "--help"])
    out = capsys.readouterr().out
    missing = [
        row.name
        for row in limit_rows()
        if not re.search(rf"^  {row.name} +{row.default}\b", out, re.MULTILINE)
    ]
    assert missing == []


WRONG = {
    "no command": ([], "required: demo | serve | call"),
    "no such command": (["dmeo"], "invalid choice"),
    "form": (["demo", "--form", "sse"], "choose from"),
    "form of a call": (["call", "http://h/v1", "x", "--form", "json"], "choose from"),
    "rate": (["demo", "--rate", "0"], "invalid positive number value: '0'"),
    "rate that is no number": (["demo", "--rate", "nan"], "invalid positive number value: 'nan'"),
    "project": (["demo", "--project", "/no/such"], "--project: '/no/such' is no folder"),
    "trace": (["demo", "--trace", "/no/such/file"], "--trace: "),
    "port": (["serve", "--port", "70000"], "invalid port value: '70000'"),
    "sampler": (["serve", "--sampler", "gpt"], "no sampler 'gpt'; there are paced"),
    "policy": (["serve", "--sampler", "policy:no.such"], "no policy 'no.such'"),
    "models": (["serve", "--models", "/no/such.toml"], "/no/such.toml"),
    "demo of a model and of a project": (["demo", "--model", "smollm2", "--project", "."], "--project"),
    "demo of a model as data": (["demo", "--model", "smollm2", "--json", "f.json"], "--json"),
    "hosted": (["serve", "--hosted", "engine.config:Limits"], "this is no HostedTool"),
    "hosted module": (["serve", "--hosted", "no.such:tools"], "write MODULE:NAME"),
    "limit": (["serve", "--limit", "max_conections=1"], "did you mean 'max_connections'?"),
    "limit without a value": (["serve", "--limit", "max_lanes"], "write NAME=VALUE"),
    "limit that is no number": (
        ["serve", "--limit", "max_lanes=x"],
        "limit max_lanes: 'x' is no whole number",
    ),
    "limit out of range": (["serve", "--limit", "drain_seconds=0"], "'drain_seconds' must be > 0"),
    "limits": (["serve", "--limits", "/no/such.toml"], "/no/such.toml"),
    "key": (["serve", "--key-env", "NO_SUCH_KEY"], "'NO_SUCH_KEY' is not set"),
    "public bind": (["serve", "--host", "0.0.0.0"], "Set SUSPENDED_API_KEY"),
    "url": (["call", "localhost:8080", "x"], "write http://host:port/v1"),
    "prompt": (["call", "http://localhost/v1", " "], "the prompt is empty"),
    "tool": (["call", "http://localhost/v1", "x", "--tool", "date"], "write 'name=command'"),
    "tool's argument": (["call", "http://localhost/v1", "x", "--tool", "a(b c)=d"], "'b c' is no name"),
    "same tool": (
        ["call", "http://localhost/v1", "x", "--tool", "a=b", "--tool", "a=c"],
        "'a' is given twice",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage(case, capsys, monkeypatch):
    """Wrong usage exits with 2, and the message names the value or says what to write instead."""
    monkeypatch.delenv("SUSPENDED_API_KEY", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words, said = WRONG[case]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (said in err, out, "Traceback" in err) == (True, "", False), err


def test_limits_of_a_file(tmp_path):
    """Limits are read from a TOML file; those of the command line win."""
    file = tmp_path / "limits.toml"
    file.write_text("max_lanes = 3\ndrain_seconds = 7\nmax_fragments = 5\n")
    expected = Limits(max_lanes=4, drain_seconds=7.0, max_fragments=5)
    assert read_limits(file, ["max_lanes=4"]) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_lanes = 'x'", "limit max_lanes: 'x' is no whole number"),
        ("max_lanes = true", "limit max_lanes: True is no whole number"),
        ("max_lanes = 1.5", "limit max_lanes: 1.5 is no whole number"),
        ("drain_seconds = []", "limit drain_seconds: [] is no number"),
        ("max_lane = 1", "there is no limit 'max_lane'; did you mean 'max_lanes'?"),
        ("nonsense", "not a TOML file"),
    ],
)
def test_wrong_limits_in_a_file(tmp_path, text, said):
    """What is wrong in a file of limits is named, with the file."""
    file = tmp_path / "limits.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        read_limits(file, [])
    assert str(raised.value).startswith(f"{file}: ")


# --- serve


def test_a_taken_port():
    """A port in use ends `serve` with 1 and names the way out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = suspended("serve", "--port", str(taken.getsockname()[1]))
    assert process.returncode == 1
    assert process.stderr.startswith("suspended: cannot listen on 127.0.0.1:")
    assert "--port 0 takes any free one" in process.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drains(number):
    """A signal drains an idle server, which then exits with 0, quickly."""
    with served() as (running, _):
        began = time.monotonic()
        running.signal(number)
        code, _, err = running.ended()
    assert (code, err) == (0, "")
    assert time.monotonic() - began < 5


def test_second_signal_stops_at_once():
    """While a rollout samples on, the first Ctrl-C drains and the second one stops at once, with 130."""
    with (
        served("--sampler", "paced:rate=1,words=1000") as (running, url),
        Running("call", url, "hi") as calling,
    ):
        calling.characters(4)
        running.signal(signal.SIGINT)
        running.line_with("draining")
        began = time.monotonic()
        running.signal(signal.SIGINT)
        assert running.ended()[0] == 130
        assert time.monotonic() - began < 5
        code, _, err = calling.ended()
    assert (code, "Traceback" in err) == (1, False)


def test_says_how_to_point_clients():
    """`serve` prints, with the real port, the lines of every client."""
    with served() as (running, url):
        running.signal(signal.SIGTERM)
        place = url.split("/")[2]
        out = running.ended()[1]
    lines = [line.strip() for line in out.splitlines()]
    said = [line for pointer in POINTERS for line in pointer.at(place).splitlines()]
    assert [line for line in said if line.strip() not in lines] == []


def test_points_clients_to_a_model_of_the_table(tmp_path):
    """With a table the lines name its first model, which is served as they say, and the sampler is that model's."""
    models = tmp_path / "models.toml"
    models.write_text(
        '[[model]]\npattern = "gpt-*"\n[[model]]\nname = "my \\"own\\""\nsampler = "paced:rate=9000,calls=0,words=1"\n'
    )
    with served("--models", models) as (running, url):
        called = suspended("call", url, "hi", "--model", 'my "own"')
        running.signal(signal.SIGTERM)
        out = running.ended()[1]
    place = url.split("/")[2]
    said = [line for pointer in POINTERS for line in pointer.at(place, 'my "own"').splitlines()]
    lines = [line.strip() for line in out.splitlines()]
    assert [line for line in said if line.strip() not in lines] == []
    assert ("default" in out, called.returncode) == (False, 0)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('pattern = "*"', "default"),
        ('pattern = "d?fault"', "default"),
        ('pattern = "gpt-*"\ndefault = true', "default"),
        ('pattern = "gpt-*"', "gpt-*"),
        ('pattern = "*"\n[[model]]\nname = "a"\n[[model]]\nname = "b"', "a"),
    ],
)
def test_a_model_to_ask_for(table, expected):
    """The first that has a name; of patterns alone what any client asks for, if it is served."""
    assert example(ModelTable.from_toml(f"[[model]]\n{table}".encode())).name == expected


def test_a_models_name_is_quoted_as_each_language_wants_it():
    """What a client reads is the name, whatever is in it."""
    name = 'a"b\\c d'
    codex, shell = (pointer(client).at("h:1", name) for client in ("codex", "shell"))
    assert (tomllib.loads(codex)["model"], shlex.split(shell)[4]) == (name, name)
    assert shlex.split(pointer("shell").at("h:1")) == ["suspended", "call", "http://h:1/v1", "hello"]


def test_serve_says_that_chat_keeps_nothing_warm():
    """A sampler that promises no warm state is named at the start, with what that means."""
    spec = "chat:http://127.0.0.1:1/v1?model=x"
    with served("--sampler", spec) as (running, _):
        assert running.line_with("warm") == f"{spec}: {NOTICE}\n"


HELP_CODES = {
    "demo": "tests still fail, or the rollout failed; with --model also: the model cannot be loaded",
    "serve": "it cannot listen, or a model cannot be loaded",
    "call": "the rollout failed, or was refused",
}


@pytest.mark.parametrize("command", HELP_CODES)
def test_help_says_what_failing_is(command, capsys):
    """Exit code 1 means something of its own in each command."""
    main([command, "--help"])
    assert f"  1    {HELP_CODES[command]}\n" in capsys.readouterr().out


def test_serve_help_shows_clients(capsys):
    """The help of `serve` has the lines of every client, with the default port, and each client has few."""
    main(["serve", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    said = [line for pointer in POINTERS for line in pointer.at("127.0.0.1:8080").splitlines()]
    assert [line for line in said if line.strip() not in lines] == []
    assert max(len(pointer.lines.splitlines()) for pointer in POINTERS) <= 4


def test_log_lines_are_not_forged():
    """What a peer sends is escaped in the log: one line, no control characters."""
    with served() as (running, url):
        with socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0]))) as peer:
            peer.sendall(b"GET /v1/responses HTTP/1.1\r\nHost: \x1b[31mevil\r\nUpgrade: websocket\r\n\r\n")
            peer.recv(1000)
        running.signal(signal.SIGTERM)
        _, _, err = running.ended()
    assert len(err.splitlines()) == 1
    assert [c for c in err if not c.isprintable() and c != "\n"] == []


# --- call


@pytest.mark.parametrize("form", FORMS)
def test_call_runs_tools(form, shell_url):
    """`call` runs the shell commands the model asks for, and prints what the model says of them, whatever the form."""
    process = suspended("call", shell_url, "--form", form, *RUN, "-", stdin="$ echo $((20 + 3))\n$ exit 7")
    assert process.returncode == 0, process.stderr
    assert process.stdout == (
        "I run 2 commands, one at a time.\n2 commands run:\n"
        "1. `echo $((20 + 3))`: exit code unknown; 23\n2. `exit 7`: exit code 7; Exit code: 7\n"
    )
    assert process.stderr.splitlines() == [
        '> exec_command {"cmd": "echo $((20 + 3))"}',
        "< exec_command: 3 bytes",
        '> exec_command {"cmd": "exit 7"}',
        "< exec_command: 13 bytes, exit code 7",
    ]


@pytest.mark.parametrize(("form", "lines"), [("append", 1), ("inject", 1), ("create", 2), ("http", 2)])
def test_call_prints_json(form, lines, shell_url):
    """With `--json` each response is a line of the output: one in the forms that suspend, else one for each round."""
    url = shell_url.replace("ws:", "http:").removesuffix("/responses")
    process = suspended("call", url, "--form", form, *RUN, "--json", "$ date")
    responses = [orjson.loads(line) for line in process.stdout.splitlines()]
    assert [response["status"] for response in responses] == ["completed"] * lines
    assert responses[-1]["output"][-1]["content"][0]["text"].startswith("1 command run")


@pytest.mark.parametrize(
    ("form", "said"), [("append", "401"), ("create", "401"), ("http", "invalid_api_key")]
)
def test_call_shows_a_key(form, said):
    """With the server's key a call is served; without it, it ends with 1 and says why."""
    with served(SUSPENDED_API_KEY="secret") as (_, url):
        right = suspended("call", url, "hi", "--form", form, "--key-env", "MINE", MINE="secret")
        wrong = suspended("call", url, "hi", "--form", form)
    assert (right.returncode, right.stderr) == (0, "")
    assert (wrong.returncode, said in wrong.stderr, "Traceback" in wrong.stderr) == (1, True, False)


def test_serve_without_websocket():
    """With `--no-websocket` an upgrade ends with 426, and the same address serves requests."""
    with served("--no-websocket") as (_, url):
        refused = suspended("call", url, "--form", "create", "hi")
        served_all_the_same = suspended("call", url, "--form", "http", "hi")
    assert (refused.returncode, "426" in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)
    assert (served_all_the_same.returncode, served_all_the_same.stderr) == (0, "")


@pytest.mark.parametrize("form", FORMS)
def test_call_to_nobody(form):
    """Where nobody listens a call ends with 1 and a line, which names the address as the form writes it."""
    process = suspended("call", "ws://127.0.0.1:1/v1/responses", "--form", form, "hi")
    assert (process.returncode, process.stderr.count("\n"), process.stdout) == (1, 1, "")
    assert f": {'http' if form == 'http' else 'ws'}://127.0.0.1:1/v1/responses: " in process.stderr


def test_call_of_an_unknown_model(tmp_path):
    """A refused create ends with 1 and the refusal's words."""
    models = tmp_path / "models.toml"
    models.write_text('[[model]]\nname = "only"\n')
    with served("--models", models) as (_, url):
        process = suspended("call", url, "hi", "--model", "other")
    assert (process.returncode, "model_not_found" in process.stderr) == (1, True)


@pytest.mark.parametrize("form", ["append", "http"])
def test_call_interrupted_while_a_tool_runs(form, shell_url):
    """Ctrl-C kills the tool that runs, and exits with 130 at once."""
    tool = "exec_command(cmd)=echo started >&2; sleep 600"
    with Running("call", shell_url, "--form", form, "--tool", tool, "$ x") as calling:
        calling.error_line_with("started")
        began = time.monotonic()
        calling.signal(signal.SIGINT)
        code, _, err = calling.ended()
    assert (code, err) == (130, "suspended: interrupted\n")
    assert time.monotonic() - began < 5


def test_a_slow_tool_is_killed(shell_url):
    """A command that runs into its time limit is killed; the model is told, and goes on."""
    tool = "exec_command(cmd)=sleep 600"
    process = suspended("call", shell_url, "--tool", tool, "--tool-timeout", "0.2", "$ x")
    assert (process.returncode, "error: killed after 0.2 seconds" in process.stdout) == (0, True)


def test_hosted_tools_and_trace(tmp_path):
    """`serve` runs hosted tools of a module in the current folder, and writes a trace."""
    (tmp_path / "mine.py").write_text(
        "from engine.hosted import HostedTool\n"
        "from engine.samplers.policy import Say, Use, program\n"
        "async def now(): return 'noon'\n"
        "TOOLS = [HostedTool('clock', 'now', now)]\n"
        "def script(prompt, tools):\n"
        "    yield Say(f'it is said: {prompt}')\n"
        "policy = program(script)\n"
    )
    words = ("--sampler", "policy:mine", "--hosted", "mine:TOOLS", "--trace", "t.jsonl")
    with served(*words, cwd=tmp_path) as (running, url):
        process = suspended("call", url, "hello")
        running.signal(signal.SIGTERM)
        running.ended()
    assert process.stdout == "it is said: hello\n"
    ((_, records),) = trace.read((tmp_path / "t.jsonl").read_bytes().splitlines())
    assert records[-1]["frame"]["hook"] == "connection_close"


def test_output_nobody_reads():
    """If whoever reads our output goes away, `call` ends without a traceback."""
    with served("--sampler", "paced:rate=5000,words=5000") as (_, url), Running("call", url, "hi") as calling:
        calling.characters(4)
        calling.close_output()
        code, err = calling.ended_silently()
    assert (code, err) == (1, "")


# --- the shapes


def test_tools_of_the_command_line():
    """A tool has one argument `input`, or those that are listed."""
    assert ShellTool.read("a=b") == ShellTool("a", ("input",), "b")
    assert ShellTool.read("a(x, y)=b=c (d)") == ShellTool("a", ("x", "y"), "b=c (d)")
    assert ShellTool.read("now()=date") == ShellTool("now", (), "date")


def test_variables():
    """Arguments become variables: text as it is, the rest as JSON; what no variable can hold is left out."""
    arguments = {
        "a": "x y",
        "n": [1, None],
        "not-a-name": "x",
        "PATH": "/evil",
        "nul": "\0",
        "long": "x" * 70_000,
    }
    assert variables(arguments) == {"ARG_a": "x y", "ARG_n": "[1,null]", "ARG_PATH": "/evil"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://h:1/v1", "ws://h:1/v1/responses"),
        ("http://h:1/v1/", "ws://h:1/v1/responses"),
        ("https://h", "wss://h/v1/responses"),
        ("ws://h:1/v1/responses?dialect=append", "ws://h:1/v1/responses?dialect=append"),
        ("wss://h/codex/responses", "wss://h/codex/responses"),
    ],
)
def test_addresses(given, expected):
    """An address is taken as SDKs spell it, or as it is."""
    assert websocket_url(given) == expected
