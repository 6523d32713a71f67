"""`suspended tap` between a client and the server: what really passed, as the command keeps it, and what it says of it."""

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protocol import trace
from tests.clients.order import OWN, checked
from tests.clients.served import ROOT, Served, Trace

_GREETING = re.compile(r"tap on http://(127\.0\.0\.1:\d+), to ")


class Tap:
    """A running tap. What passed can be read when its block has ended."""

    def __init__(self, served: Served) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tap-", dir=served.folder))
        self._log = self.folder / "tap.log"
        options = ["--listen", "127.0.0.1:0", "--upstream", f"http://{served.place}", "--trace", self.folder]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine", "tap", *options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        found = served.wait_for("the tap's address", lambda: _GREETING.search(self.printed()))
        path = served.address.partition("/")[2]
        self.address = f"{found[1]}/{path}"

    @property
    def http_url(self) -> str:
        """The base URL as the clients want it."""
        return f"http://{self.address}"

    def printed(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    def traces(self) -> list[Trace]:
        """What passed, by form: those in which anything did."""
        files = sorted(self.folder.glob("*.jsonl"))
        found = [Trace(*lines) for file in files for lines in trace.read(file.read_bytes().splitlines())]
        return [trace for trace in found if trace.records]

    def requests(self) -> list[dict[str, Any]]:
        """Frames and bodies that clients sent."""
        found = [frame for trace in self.traces() for frame in trace.frames("in")]
        bodies = [frame.get("body") if frame["type"] == "http.request" else frame for frame in found]
        return [body for body in bodies if body is not None]

    def events(self) -> list[dict[str, Any]]:
        """Frames and streamed events that they were sent."""
        return [event for trace in self.traces() for event in events_of(trace)]


def events_of(found: Trace) -> list[dict[str, Any]]:
    """What was sent to a client, without HTTP's own words: a body that was not streamed is no event."""
    return [frame for frame in found.frames("out") if frame["type"] != "http.response"]


@contextmanager
def tapped(served: Served) -> Iterator[Tap]:
    """A tap before a server. At the end of the block it ends well, and its traces are in order by our own rules, too."""
    tap = Tap(served)
    try:
        yield tap
        tap.process.send_signal(signal.SIGTERM)
        served.wait_for("the end of the tap", lambda: tap.process.poll() is not None)
    finally:
        tap.process.kill()
        code = tap.process.wait()
    found = [each for trace in tap.traces() for each in checked(trace.header, trace.records, OWN)[0]]
    assert (code, found) == (0, []), tap.printed()
