"""Codex CLI 0.107.0: one task in the append, the create and the HTTP form, from one binary by its feature flags."""

import contextlib
import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

from engine.config import DEFAULT_LIMITS
from engine.engine import Engine
from engine.pointers import pointer
from engine.recorder import TraceFile
from engine.samplers.registry import make_sampler
from engine.server import Server
from tests.clients.codex import SAMPLER, Home, command_line, config_of, run_codex
from tests.clients.conftest import CODEX_VERSION
from tests.clients.order import recorded
from tests.clients.served import POLL_SECONDS, TIME_LIMIT_SECONDS, Trace, serve
from tests.clients.tap import events_of, tapped
from tests.clients.typed import misfits

pytestmark = pytest.mark.clients

FEATURES: Mapping[str, str | None] = {
    "append": "responses_websockets",
    "create": "responses_websockets_v2",
    "http": None,
}
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
OUTCOMES = (
    "ok; no output",
    "ok; no output",
    "ok; alpha",
    "ok; no output",
    "exit code 2; ls: cannot access 'nowhere': No such file or directory",
    "exit code 3; no output",
)
SAID = f"{len(COMMANDS)} commands run:\n" + "\n".join(
    f"{number}. `{command}`: {outcome}"
    for number, (command, outcome) in enumerate(zip(COMMANDS, OUTCOMES, strict=True), 1)
)


@attrs.frozen
class Run:
    """What a run of Codex left behind."""

    form: str
    home: Home
    completed: "subprocess.CompletedProcess[str]"
    traces: Sequence[Trace]
    """Of its WebSocket connections or its requests, as the server recorded them."""
    requests: Sequence[dict[str, Any]]
    """Frames of the client, or bodies it posted, as the tap saw them."""
    events: Sequence[dict[str, Any]]
    server_exit_code: int

    def count(self, kind: str) -> int:
        """How many events of a type there were."""
        return [event["type"] for event in self.events].count(kind)

    def resources(self, *kinds: str) -> list[dict[str, Any]]:
        """The responses that events of these types bear."""
        return [event["response"] for event in self.events if event["type"] in kinds]

    def usages(self) -> list[dict[str, Any]]:
        """Of all segments in which something was sampled; of a warm-up Codex does not count the usage."""
        found = [resource["usage"] for resource in self.resources("response.done", "response.completed")]
        return [usage for usage in found if usage["output_tokens"]]


@pytest.fixture(scope="module", params=FEATURES)
def run(request: pytest.FixtureRequest, codex: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run with six commands in each form, through a tap, looked at by the tests below."""
    folder, form = tmp_path_factory.mktemp("codex"), request.param
    with serve(folder, SAMPLER) as served:
        with tapped(served) as tap:
            home = Home.make(folder, config_of(tap.address, form, feature=FEATURES[form]))
            completed = run_codex(served, home, command_line(codex, *COMMANDS))
        exit_code = served.stop()
        traces = served.exchanges() if form == "http" else served.traces(0)
    return Run(form, home, completed, traces, tap.requests(), tap.events(), exit_code)


@pytest.mark.eventless
def test_codex_is_the_release_meant(codex):
    """The binary is of the last version that has the append form."""
    shown = subprocess.run([codex, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown.split()[-1] == CODEX_VERSION


# --- the same in every form


def test_files_are_really_written(run):
    """Every command ran in Codex's folder, and what they wrote is there, and nothing else."""
    assert run.home.files() == FILES


def test_final_text_is_on_standard_output(run):
    """Codex prints the last message, and that tells how each command ended, the two failing ones included."""
    assert run.completed.stdout.strip() == SAID


def test_commands_are_called_and_answered_in_order(run):
    """Each `exec_command` call bears one command, and is answered by the request after it."""
    items = [event["item"] for event in run.events if event["type"] == "response.output_item.done"]
    calls = [item for item in items if item["type"] == "function_call"]
    assert [call["name"] for call in calls] == ["exec_command"] * len(COMMANDS)
    assert [orjson.loads(call["arguments"])["cmd"] for call in calls] == list(COMMANDS)
    answered = [request["input"][-1]["call_id"] for request in run.requests[-len(COMMANDS) :]]
    assert answered == [call["call_id"] for call in calls]


def test_nothing_failed(run):
    """No error and no terminal event but `response.completed`."""
    bad = {"error", "response.failed", "response.incomplete"}
    assert [event for event in run.events if event["type"] in bad] == []


def test_events_are_numbered_without_a_gap(run):
    """Sequence numbers count 0, 1, 2… over each response, its suspensions included."""
    begun = [at for at, event in enumerate(run.events) if event["type"] == "response.created"]
    numbers = [event["sequence_number"] for event in run.events]
    ends = [*begun[1:], len(numbers)]
    assert begun[0] == 0
    assert [numbers[a:b] for a, b in zip(begun, ends, strict=True)] == [
        list(range(b - a)) for a, b in zip(begun, ends, strict=True)
    ]


def test_frames_have_the_official_types(run):
    """Each event but `response.done` is one of the official SDK's."""
    assert misfits(run.form, run.events) == []


def test_tap_saw_what_the_server_recorded(run):
    """Every event that the tap saw is in the server's traces, in the same order."""
    assert [event for trace in run.traces for event in events_of(trace)] == run.events


def test_codex_shows_the_tokens_used(run):
    """Codex adds up uncached input and output of all that was sampled: what we said, as it understands it."""
    told = sum(
        usage["total_tokens"] - usage["input_tokens_details"]["cached_tokens"] for usage in run.usages()
    )
    shown = re.search(r"tokens used\n([\d,]+)", run.completed.stderr)
    assert shown is not None, run.completed.stderr
    assert int(shown[1].replace(",", "")) == told


def test_server_ends_cleanly_afterwards(run):
    """SIGTERM ends the server without a complaint."""
    assert run.server_exit_code == 0


# --- and what makes the forms differ


def of_form(*forms: str) -> pytest.MarkDecorator:
    """For tests that are about one form."""
    return pytest.mark.parametrize("run", forms, indirect=True, scope="module")


@of_form("append")
def test_whole_rollout_is_one_response(run):
    """Append: one connection, one create, an append and a `response.done` per call, one terminal event, one id."""
    calls = len(COMMANDS)
    (trace,) = run.traces
    assert trace.header["dialect"] == "append"
    assert trace.counts("in") == {"response.create": 1, "response.append": calls}
    assert (run.count("response.created"), run.count("response.done"), run.count("response.completed")) == (
        1,
        calls,
        1,
    )
    assert len(trace.response_ids()) == 1


@of_form("append")
def test_stages_run_once_per_rollout(run):
    """Append: pre- and post-inference ran once, a slot was taken once per segment and each time given back."""
    hooks, segments = run.traces[0].counts("hook"), len(COMMANDS) + 1
    assert (hooks["pre_inference"], hooks["post_inference"]) == (1, 1)
    assert (hooks["suspend"], hooks["resume"]) == (len(COMMANDS), len(COMMANDS))
    assert (hooks["slot_acquire"], hooks["slot_release"]) == (segments, segments)


@of_form("append", "create")
def test_what_is_held_is_cached(run):
    """Append and create: after the first, every segment reports all of the context that was there before as cached."""
    before = [usage["total_tokens"] for usage in run.usages()[:-1]]
    cached = [usage["input_tokens_details"]["cached_tokens"] for usage in run.usages()[1:]]
    assert cached == before


@of_form("create")
def test_each_turn_names_the_last(run):
    """Create: a warm-up that generates nothing, then a response per call, each sent with the id of the last one only."""
    ids = [resource["id"] for resource in run.resources("response.completed")]
    warm_up, first, *turns = run.requests
    assert (len(run.traces), len(ids)) == (1, len(COMMANDS) + 2)
    assert (warm_up["generate"], run.resources("response.completed")[0]["output"]) == (False, [])
    assert first["previous_response_id"] == ids[0]
    assert [turn["previous_response_id"] for turn in turns] == ids[1:-1]
    assert [[item["type"] for item in turn["input"]] for turn in turns] == [["function_call_output"]] * len(
        COMMANDS
    )


@of_form("http")
def test_each_request_has_all(run):
    """HTTP: a request per call, each with the whole history and no id of another response."""
    assert len(run.requests) == len(COMMANDS) + 1
    lengths = [len(request["input"]) for request in run.requests]
    assert lengths == sorted(set(lengths))
    assert [request.get("previous_response_id") for request in run.requests] == [None] * len(lengths)


def test_printed_settings_work_and_a_long_command_is_waited_for(codex, tmp_path):
    """With the settings that the server prints, Codex finishes a command that outlasts its own patience of 10 s."""
    with serve(tmp_path, SAMPLER) as served:
        settings = pointer("codex").at(served.place)
        served.wait_for(
            "the settings for Codex", lambda: textwrap.indent(settings, "    ") in served.printed()
        )
        home = Home.make(tmp_path, settings)
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


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_nothing_is_left_of_a_codex_that_went_away(codex, tmp_path, how):
    """Interrupted or killed while its rollout is suspended, Codex leaves no connection, rollout or slot behind."""
    reports = []
    engine = Engine.make(make_sampler(SAMPLER, DEFAULT_LIMITS), on_report=reports.append)
    with (
        recorded(tmp_path / "trace.jsonl") as recording,
        contextlib.closing(TraceFile(recording.path)) as trace_file,
    ):
        server = Server(engine, trace=trace_file)
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(server.run)
            address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
            home = Home.make(tmp_path, config_of(address, "append", feature=FEATURES["append"]))
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
