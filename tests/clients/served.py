"""The real server in a process of its own, and what it recorded of each connection.

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import attrs
import pytest

from protocol import trace
from tests import oracle

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT_SECONDS = 90.0
"""For each thing waited for: a hundred times what it takes, since a loaded machine is no failure."""
POLL_SECONDS = 0.05
TAIL_LINES, TAIL_CHARACTERS = 25, 300

T = TypeVar("T")


@attrs.frozen
class Trace:
    """What passed over one connection."""

    header: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    @property
    def findings(self) -> list[str]:
        """What is wrong with it by the rules of order; [] if nothing."""
        return oracle.check(dict(self.header), [dict(record) for record in self.records])

    def frames(self, direction: trace.Direction, *types: str) -> list[dict[str, Any]]:
        """Frames of a direction, in order: all, or those of some types."""
        frames = [record["frame"] for record in self.records if record["dir"] == direction]
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

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.process = process
        self._log = folder / "server.log"
        self._trace = folder / "trace.jsonl"
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
        """The traces of all connections, as soon as so many have ended; 0: those of now."""

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

    def _recorded(self) -> list[Trace]:
        """Traces so far; a connection's lines are written at once, but maybe not read so."""
        if not self._trace.exists():
            return []
        try:
            traces = [Trace(*found) for found in trace.read(self._trace.read_bytes().splitlines())]
        except ValueError:
            return []
        return [found for found in traces if found.counts("hook")["connection_close"]]


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(line[:TAIL_CHARACTERS] for line in lines[-TAIL_LINES:]) or "(nothing)"


@contextmanager
def serve(folder: Path, sampler: str, *more: str, port: int = 0) -> Iterator[Served]:
    """A server, on a free port if none is named, stopped at the end of the block; its files go to `folder`."""
    options = ("--port", str(port), "--sampler", sampler, "--trace", str(folder / "trace.jsonl"), *more)
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
        yield Served(process, folder)
    finally:
        process.kill()
        process.wait()
