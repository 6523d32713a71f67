"""The real server in a process of its own, and what it recorded of each connection.

No trace goes unread: `serve` has every server record, and holds the recording against the rules of order.
Whatever is waited for has a time limit, and when it runs out the failure says what was waited for
and shows the ends of the trace and of the server's log.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import attrs
import pytest

from protocol import trace
from tests.clients.order import Recording, ended_traces, recorded

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT_SECONDS = 90.0
"""For each thing waited for: a hundred times what it takes, since a loaded machine is no failure."""
POLL_SECONDS = 0.05
OPEN_NOW = ("suspended_websocket_connections", "suspended_rollouts_open")
"""Names in `/metrics`."""
TAIL_LINES, TAIL_CHARACTERS = 25, 300

T = TypeVar("T")


@attrs.frozen
class Trace:
    """What passed over one connection."""

    header: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    @property
    def is_http(self) -> bool:
        """Of one request and its answer, not of a WebSocket connection?"""
        return self.header["dialect"] == "http"

    def frames(self, direction: trace.Direction, *types: str) -> list[dict[str, Any]]:
        """Frames of a direction, in order: all, or those of some types. What is no object, as `[DONE]`, is left out."""
        frames = [record["frame"] for record in self.records if record["dir"] == direction]
        frames = [frame for frame in frames if isinstance(frame, dict)]
        return [frame for frame in frames if not types or frame["type"] in types]

    def counts(self, direction: trace.Direction) -> Counter[str]:
        """How many frames of each type (or hooks of each name) there were."""
        key = "hook" if direction == "hook" else "type"
        return Counter(frame[key] for frame in self.frames(direction))

    def response_ids(self) -> set[str]:
        """Every id that a response event of the server bore."""
        return {frame["response"]["id"] for frame in self.frames("out") if "response" in frame}


class Served:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, recording: Recording) -> None:
        self.process = process
        self.folder = folder
        self.recording = recording
        self._log = folder / "server.log"
        self._trace = recording.path
        found = self.wait_for(
            "the server's address", lambda: re.search(r"://127\.0\.0\.1:(\d+)/", self.printed())
        )
        self.address = f"127.0.0.1:{found[1]}/v1"

    @property
    def place(self) -> str:
        """Host and port."""
        return self.address.partition("/")[0]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.place.partition(":")[2])

    @property
    def http_url(self) -> str:
        """The base URL as the clients want it."""
        return f"http://{self.address}"

    @property
    def ws_url(self) -> str:
        """The same for those that want the WebSocket scheme."""
        return f"ws://{self.address}"

    def wait_for(self, what: str, look: Callable[[], T | None]) -> T:
        """Look until there is something, and return it."""
        give_up = time.monotonic() + TIME_LIMIT_SECONDS
        while not (found := look()):
            if time.monotonic() > give_up or self.process.poll() is not None:
                self.fail(what)
            time.sleep(POLL_SECONDS)
        return found

    def run(self, what: str, client: Coroutine[Any, Any, T]) -> T:
        """Run a client of this process."""
        try:
            return asyncio.run(asyncio.wait_for(client, TIME_LIMIT_SECONDS))
        except TimeoutError:
            self.fail(what)

    def run_command(
        self, what: str, command: Sequence[str | Path], **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a client that is a command; its input is empty."""
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT_SECONDS,
                check=False,
                **options,
            )
        except subprocess.TimeoutExpired as expired:
            self.fail(f"{what}; it wrote {expired.stdout!r} and {expired.stderr!r}")

    def traces(self, count: int = 1) -> list[Trace]:
        """The traces of all WebSocket connections, as soon as so many have ended; 0: those of now."""

        def ended() -> list[Trace] | None:
            found = self._recorded()
            return found if len(found) >= count else None

        return self.wait_for(f"the end of {count} connections", ended) if count else self._recorded()

    def trace_of(self, response_id: str) -> Trace:
        """The trace of the connection that a response was on, as soon as that has ended."""

        def found() -> Trace | None:
            return next((trace for trace in self._recorded() if response_id in trace.response_ids()), None)

        return self.wait_for(f"the end of the connection of {response_id}", found)

    def stop(self) -> int:
        """End the server as an operator would, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_for_end()

    def wait_for_end(self) -> int:
        """Wait until the server has ended, and return its exit code."""
        try:
            return self.process.wait(TIME_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            self.fail("the server's end")

    def fail(self, what: str) -> NoReturn:
        """Fail the test: what was waited for, and how far things had got."""
        if self.process.poll() is None:  # connections are written down when they end
            self.process.terminate()
            try:
                self.process.wait(TIME_LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        pytest.fail(
            f"waited in vain for {what}\n"
            f"--- end of the trace\n{_tail(self._trace)}\n"
            f"--- end of the server's log (exit code {self.process.poll()})\n{_tail(self._log)}"
        )

    def printed(self) -> str:
        """What the server has written so far."""
        return self._log.read_text(errors="replace")

    def wait_until_idle(self) -> None:
        """Wait until no client is there: what they did is recorded then."""
        self.wait_for("the end of all connections", self._is_idle)

    def _is_idle(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIME_LIMIT_SECONDS)
        with closing(connection):
            connection.request("GET", "/metrics")
            answer = connection.getresponse().read().decode()
        values = dict(line.rsplit(" ", 1) for line in answer.splitlines())
        return {float(values[name]) for name in OPEN_NOW} == {0.0}

    def exchanges(self) -> list[Trace]:
        """The traces of all requests over HTTP that are over."""
        return [trace for trace in self._ended() if trace.is_http]

    def _recorded(self) -> list[Trace]:
        return [trace for trace in self._ended() if not trace.is_http]

    def _ended(self) -> list[Trace]:
        return [Trace(*lines) for lines in ended_traces(self._trace)]


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(line[:TAIL_CHARACTERS] for line in lines[-TAIL_LINES:]) or "(nothing)"


RUNNING: list[Served] = []
"""Servers whose block has not ended."""


@contextmanager
def serve(
    folder: Path, sampler: str, *more: str, port: int = 0, shared: bool = False, eventless: bool = False
) -> Iterator[Served]:
    """A server, on a free port if none is named, stopped at the end of the block; its files go to `folder`.

    What it recorded is held against the rules of order then, if not before; `eventless` as for `recorded`.
    `shared`: by several tests, each of which has to record something; if all are skipped there is nothing.
    """
    options = ("--port", str(port), "--sampler", sampler, "--trace", str(folder / "trace.jsonl"), *more)
    with recorded(folder / "trace.jsonl", eventless=None if shared else eventless) as recording:
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "engine", "serve", *options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        try:
            served = Served(process, folder, recording)
            RUNNING.append(served)
            try:
                yield served
                if process.poll() is None and (code := served.stop()) != 0:
                    served.fail(f"a clean end of the server, which ended with {code}")
            finally:
                RUNNING.remove(served)
        finally:
            process.kill()
            process.wait()
