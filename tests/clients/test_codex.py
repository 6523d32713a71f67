"""Codex CLI 0.107.0 in the append form: a whole rollout is one response on one connection."""

import contextlib
import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import orjson
import pytest
import trio

from engine.config import DEFAULT_LIMITS
from engine.engine import Engine
from engine.samplers.registry import make_sampler
from engine.server import Server
from tests.clients.conftest import CODEX_VERSION
from tests.clients.served import POLL_SECONDS, TIME_LIMIT_SECONDS, Trace, serve
from tests.clients.typed import misfits

pytestmark = pytest.mark.clients

SAMPLER = "policy:demos.agents.shell"
COMMANDS = (
    "echo alpha > one.txt",
    "printf 'beta\\ngamma\\n' > two.txt",
    "cat one.txt two.txt",
    "mkdir -p sub && tr a-z A-Z < two.txt > sub/three.txt",
    "ls nowhere",
    "wc -l < two.txt > four.txt; exit 3",
)
FILES = {
    "one.txt": "alpha\n",
    "two.txt": "beta\ngamma\n",
    "sub/three.txt": "BETA\nGAMMA\n",
    "four.txt": "2\n",
}
OUTCOMES = ("ok; no output", "ok; alpha", "exit code 2; ls: cannot access", "exit code 3; no output")
CONFIG = """
model = "test-model"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.local]
name = "local"
base_url = "http://{address}"
env_key = "LOCAL_KEY"
wire_api = "responses"
supports_websockets = true
stream_idle_timeout_ms = 60000
stream_max_retries = 1
request_max_retries = 0

[analytics]
enabled = false

[features]
responses_websockets = true
"""


@attrs.frozen
class Home:
    """Folders of a Codex that knows one server."""

    work: Path
    environment: dict[str, str]

    @classmethod
    def make(cls, folder: Path, config: str) -> "Home":
        home, work = folder / "home", folder / "work"
        home.mkdir()
        work.mkdir()
        (home / "config.toml").write_text(config)
        environment = {
            "CODEX_HOME": str(home),
            "HOME": str(home),
            "LOCAL_KEY": "sk-test",
            "KEY": "sk-test",
            "PATH": os.environ["PATH"],
            "LC_ALL": "C",
        }
        return cls(work, environment)


@attrs.frozen
class Run:
    """What a run of Codex left behind."""

    work: Path
    completed: "subprocess.CompletedProcess[str]"
    trace: Trace
    connections: int
    server_exit_code: int


def command_line(codex: Path, *commands: str) -> list[str | Path]:
    """A non-interactive run with a prompt that holds these commands."""
    prompt = "Please run:\n" + "\n".join(f"$ {command}" for command in commands)
    return [codex, "exec", "--skip-git-repo-check", prompt]


@pytest.fixture(scope="module")
def run(codex: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One run with six commands, looked at by the tests below."""
    folder = tmp_path_factory.mktemp("codex")
    with serve(folder, SAMPLER) as served:
        home = Home.make(folder, CONFIG.format(address=served.address))
        completed = served.run_command(
            "the end of Codex", command_line(codex, *COMMANDS), cwd=home.work, env=home.environment
        )
        if completed.returncode != 0:
            served.fail(f"success of Codex, which ended with {completed.returncode}: {completed.stderr}")
        served.traces()
        exit_code = served.stop()
        traces = served.traces()  # again: a second connection would show now
        yield Run(home.work, completed, traces[0], len(traces), exit_code)


def test_codex_is_the_release_meant(codex):
    """The binary is of the last version that has the append form."""
    shown = subprocess.run([codex, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown.split()[-1] == CODEX_VERSION


def test_files_are_really_written(run):
    """Every command ran in Codex's folder, and what they wrote is there."""
    assert {name: (run.work / name).read_text() for name in FILES} == FILES


def test_final_text_is_on_standard_output(run):
    """Codex prints the last message, and that tells how each command ended."""
    lines = run.completed.stdout.splitlines()
    assert lines[0] == f"{len(COMMANDS)} commands run:"
    assert len(lines) == 1 + len(COMMANDS)
    assert [outcome for outcome in OUTCOMES if outcome not in run.completed.stdout] == []


def test_whole_rollout_is_one_response(run):
    """One connection, one create, an append and a `response.done` per call, one terminal event, one id."""
    calls = len(COMMANDS)
    assert run.connections == 1
    assert run.trace.header["dialect"] == "append"
    assert run.trace.counts("in") == {"response.create": 1, "response.append": calls}
    sent = run.trace.counts("out")
    assert (sent["response.created"], sent["response.done"], sent["response.completed"]) == (1, calls, 1)
    assert {"error", "response.failed", "response.incomplete"} & sent.keys() == set()
    assert len(run.trace.response_ids()) == 1


def test_commands_are_called_and_answered_in_order(run):
    """Each `exec_command` call bears one command, and each append answers the call just made."""
    done = run.trace.frames("out", "response.output_item.done")
    calls = [frame["item"] for frame in done if frame["item"]["type"] == "function_call"]
    assert [call["name"] for call in calls] == ["exec_command"] * len(COMMANDS)
    assert [orjson.loads(call["arguments"])["cmd"] for call in calls] == list(COMMANDS)
    appended = [frame["input"] for frame in run.trace.frames("in", "response.append")]
    assert [[item["call_id"] for item in items] for items in appended] == [
        [call["call_id"]] for call in calls
    ]


def test_events_are_numbered_without_a_gap(run):
    """Sequence numbers count 0, 1, 2… over the whole rollout, suspensions included."""
    numbers = [frame["sequence_number"] for frame in run.trace.frames("out")]
    assert numbers == list(range(len(numbers)))


def test_stages_run_once_per_rollout(run):
    """Pre- and post-inference ran once, a slot was taken once per segment and each time given back."""
    hooks, segments = run.trace.counts("hook"), len(COMMANDS) + 1
    assert (hooks["pre_inference"], hooks["post_inference"]) == (1, 1)
    assert (hooks["suspend"], hooks["resume"]) == (len(COMMANDS), len(COMMANDS))
    assert (hooks["slot_acquire"], hooks["slot_release"]) == (segments, segments)


def test_usage_counts_each_segment_once(run):
    """Every segment reports its own output, the true context size, and as cached what was already held."""
    frames = run.trace.frames("out", "response.done", "response.completed")
    usages = [frame["response"]["usage"] for frame in frames]
    cached = [usage["input_tokens_details"]["cached_tokens"] for usage in usages]
    totals = [usage["total_tokens"] for usage in usages]
    assert totals == [usage["input_tokens"] + usage["output_tokens"] for usage in usages]
    assert cached == [0, *totals[:-1]]
    (after,) = [frame for frame in run.trace.frames("hook") if frame["hook"] == "post_inference"]
    output = sum(usage["output_tokens"] for usage in usages)
    fresh = sum(usage["input_tokens"] for usage in usages) - sum(cached)
    assert after["usage"] == {"uncached_input_tokens": fresh, "output_tokens": output}


def test_codex_shows_the_tokens_used(run):
    """Codex adds up uncached input and output of all segments: the size of the context at the end."""
    last = run.trace.frames("out", "response.completed")[0]["response"]["usage"]["total_tokens"]
    shown = re.search(r"tokens used\n([\d,]+)", run.completed.stderr)
    assert shown is not None, run.completed.stderr
    assert int(shown[1].replace(",", "")) == last


def test_frames_have_the_official_types(run):
    """Each frame but `response.done` is one of the official SDK's server events."""
    assert misfits("append", run.trace.frames("out")) == []


def test_server_ends_cleanly_afterwards(run):
    """SIGTERM ends the server without a complaint."""
    assert run.server_exit_code == 0


def test_printed_settings_work_and_a_long_command_is_waited_for(codex, tmp_path):
    """With the settings that the server prints, Codex finishes a command that outlasts its own patience of 10 s."""
    with serve(tmp_path, SAMPLER) as served:
        served.wait_for("the settings for Codex", lambda: "responses_websockets = true" in served.printed())
        home = Home.make(tmp_path, printed_settings(served.printed()))
        command = [
            *command_line(codex, "sleep 10.5; echo late > late.txt"),
            "--sandbox",
            "danger-full-access",
        ]
        completed = served.run_command("the end of Codex", command, cwd=home.work, env=home.environment)
        (trace,) = served.traces()
    assert completed.stdout.splitlines()[-1].endswith("ok; no output")
    assert (home.work / "late.txt").read_text() == "late\n"
    calls = [frame["item"].get("name") for frame in trace.frames("out", "response.output_item.done")]
    assert calls == [None, "exec_command", "write_stdin", None]


def printed_settings(printed: str) -> str:
    """The indented block after the mention of Codex's file."""
    indented = printed.partition("config.toml")[2].partition("\n\n")[2].partition("\n\n")[0]
    return textwrap.dedent(indented)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_nothing_is_left_of_a_codex_that_went_away(codex, tmp_path, how):
    """Interrupted or killed while its rollout is suspended, Codex leaves no connection, rollout or slot behind."""
    reports = []
    engine = Engine.make(make_sampler(SAMPLER, DEFAULT_LIMITS), on_report=reports.append)
    server = Server(engine)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(server.run)
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
        home = Home.make(tmp_path, CONFIG.format(address=address))
        process = subprocess.Popen(  # noqa: ASYNC220  # a group of its own, to be killed whole
            command_line(codex, "sleep 8"),
            cwd=home.work,
            env=home.environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await until(server, lambda: suspended(server) == 1)
            os.killpg(process.pid, how)
            await until(server, lambda: not server.statistics().connections)
        finally:
            await end_group(process)
        slots = server.statistics().slots
        assert (slots.held, slots.waiting_new, slots.waiting_resumed) == (0, 0, 0)
        assert slots.free == DEFAULT_LIMITS.sampler_slots
        assert engine.open_rollouts == 0
        assert [(report.ending, report.hooks["post_inference"]) for report in reports] == [
            ("disconnected", 1)
        ]
        nursery.cancel_scope.cancel()


def suspended(server: Server) -> int:
    """Suspended rollouts of all connections."""
    return sum(connection.suspended for connection in server.statistics().connections)


async def until(server: Server, reached: Callable[[], bool]) -> None:
    """Wait for a state of the server."""
    with trio.move_on_after(TIME_LIMIT_SECONDS):
        while not reached():  # noqa: ASYNC110  # what is waited for happens in another process
            await trio.sleep(POLL_SECONDS)
        return
    pytest.fail(f"waited in vain; the server has {server.statistics()}")


async def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of a Codex; its first process is a wrapper, so the group is meant."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await trio.to_thread.run_sync(process.wait)
