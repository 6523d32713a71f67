"""llama.cpp's server as a child process: started, watched, started again when it dies, and never left behind.

    starting ──► up ──► died ──► (wait) ──► starting ──► up …
        │                          └────◄── failed ◄─┘
        └──► failed, if none was ever up: for good

The first one that does not come up is the last one: what is wrong with a model, or with the memory for it, does not pass.
Whoever asks is told why, in llama.cpp's own words.

It runs in a private temporary folder that also holds saved states, which outlive it: a rollout whose state was saved
goes on from there even in the next child. States in slots die with it, and their tokens are read again.

The child ends when its standard input ends, so even if this process is killed. It is killed at once when the supervising
task is cancelled: there is nothing in it that must be put in order.
"""

import json
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import trio

from engine.backends import llama_server
from engine.backends.base import BackendError
from engine.backends.http import BackendHttp, Patience

log = logging.getLogger(__name__)

_ADDRESS: Final = '{"url": '
"""So begins the line that says where it listens."""
MAX_LINE_BYTES: Final = 64 * 1024
LAST_LINES: Final = 3
"""Of the child's log: told when it did not come up and called nothing an error."""
FIRST_ERRORS: Final = 3
"""Of its log: told instead, as the first ones say what the others came of."""
MAX_TOLD_CHARACTERS: Final = 300
"""Of a line."""
FIRST_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 10.0
"""Between two starts; it doubles with each child that died young."""
GROWN_UP_SECONDS: Final = 30.0


@attrs.frozen(kw_only=True)
class LlamaSettings:
    """What to run, and how large."""

    model: Path
    slots: int = 4
    context_tokens: int = 8192
    """Of each slot."""
    threads: int | None = None
    """None: by the cores that are there and what they do already."""
    batch_tokens: int = 64
    """Read at once. A batch cannot be cancelled, and others' tokens wait for it; more than this made it 3 to 9 % faster on
    one thread, half of it 16 % slower."""
    ready_seconds: float = 120.0
    """How long it may take to load the model."""
    silence_seconds: float = 60.0
    """How long it may say nothing while it is asked for something."""


def thread_count(cores: int, load: float, *, ci: bool) -> int:
    """How many threads to compute with: more than there are idle cores slow each other down, twenty-fold at worst."""
    return 1 if ci else max(1, min(cores, cores - round(load)))


def threads_now() -> int:
    """For this machine, now."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return thread_count(cores, load, ci=bool(os.environ.get("CI")))


@attrs.define
class _LastWords:
    """What a child's log says of its end."""

    lines: deque[str] = attrs.field(factory=lambda: deque(maxlen=LAST_LINES))
    errors: list[str] = attrs.field(factory=list)

    def hear(self, line: str) -> None:
        """Remember a line, or not."""
        self.lines.append(line)
        stamp, is_error, words = line.partition(" E ")
        if is_error and " " not in stamp and len(self.errors) < FIRST_ERRORS:
            self.errors.append(words)

    def __str__(self) -> str:
        """In one line, whatever is in them: some of it may be out of the model's file."""
        told = (
            "".join(character if character.isprintable() else " " for character in line[:MAX_TOLD_CHARACTERS])
            for line in self.errors or self.lines
        )
        return " / ".join(filter(None, map(str.strip, told))) or "it said nothing"


@attrs.define
class _Address:
    """Where the child listens, once that is settled; None then: it ended without saying it."""

    url: str | None = None
    settled: trio.Event = attrs.field(factory=trio.Event)


class LlamaChild:
    """`LlamaServer` in a child process. Run it in a nursery: `await nursery.start(child.run)`."""

    def __init__(self, settings: LlamaSettings, *, program: Sequence[str] | None = None) -> None:
        self.incarnation = 0
        self.process_id: int | None = None
        """Of the child that is up."""
        self._settings = settings
        self._program = program or (sys.executable, "-P", str(Path(llama_server.__file__)))
        self._folder: Path | None = None
        self._http: BackendHttp | None = None
        self._news = trio.Event()
        self._failure: str | None = "it was not started"
        """Why nobody needs to wait for it."""
        self._last_words = _LastWords()

    async def ready(self) -> BackendHttp:
        """As `LlamaServer.ready`: waits for a child that is starting, as long as it may take to load the model."""
        with trio.move_on_after(self._settings.ready_seconds):
            while self._http is None and self._failure is None:
                await self._news.wait()
        await trio.lowlevel.checkpoint()
        if self._http is None:
            why = self._failure or f"it is not ready after {self._settings.ready_seconds:g} s"
            raise BackendError("unreachable", f"llama.cpp: {why}")
        return self._http

    def discard(self, file: str) -> None:
        """As `LlamaServer.discard`."""
        if self._folder is not None:
            try:
                (self._folder / file).unlink(missing_ok=True)
            except OSError as error:
                log.warning("a saved state stays behind: %s", error)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a child running until cancelled. It has started when the first one is up, or has failed to come up.

        That failure is what `ready` raises from then on; nothing is started again.
        """
        with TemporaryDirectory(prefix="llama-") as folder:
            self._folder = Path(folder)
            self._failure = None
            pause = FIRST_PAUSE_SECONDS
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._announce, task_status)
                    while True:
                        grown_up = await self._live()
                        if not self.incarnation:
                            await trio.sleep_forever()
                        pause = FIRST_PAUSE_SECONDS if grown_up else min(2 * pause, MAX_PAUSE_SECONDS)
                        log.warning("llama.cpp is started again in %.1f s", pause)
                        await trio.sleep(pause)
            finally:
                self._folder = None
                self._tell(failure="it was stopped")

    async def _announce(self, task_status: trio.TaskStatus[None]) -> None:
        while self._http is None and self._failure is None:
            await self._news.wait()
        task_status.started()

    # --- one child -------------------------------------------------------------------------------------------------

    async def _live(self) -> bool:
        """One child from its start to its end; whether it lived long."""
        came_up_at, process = None, None
        http: BackendHttp | None = None
        try:
            async with trio.open_nursery() as nursery:
                process = await nursery.start(self._spawned)
                self._last_words = _LastWords()
                nursery.start_soon(self._log_lines, process.stderr)
                address = _Address()
                nursery.start_soon(self._log_lines, process.stdout, address)
                with trio.move_on_after(self._settings.ready_seconds) as waiting:
                    await address.settled.wait()
                if waiting.cancelled_caught:
                    self._last_words.errors.append(f"no answer within {self._settings.ready_seconds:g} s")
                if address.url is None:
                    process.kill()
                else:
                    came_up_at = trio.current_time()
                    self.process_id = process.pid
                    self.incarnation += 1
                    patience = Patience(silence_seconds=self._settings.silence_seconds)
                    http = BackendHttp(address.url, patience=patience)
                    self._tell(http=http)
                    log.info("llama.cpp is up at %s, process %d", address.url, process.pid)
                status = await process.wait()
            self._lose(status, came_up=came_up_at is not None)
        except* OSError as error:
            self._tell(failure=f"it cannot be started: {error.exceptions[0]}")
        finally:
            if http is not None:
                await http.aclose()
            for stream in () if process is None else (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await trio.aclose_forcefully(stream)
        return came_up_at is not None and trio.current_time() - came_up_at >= GROWN_UP_SECONDS

    async def _spawned(self, *, task_status: trio.TaskStatus[trio.Process]) -> None:
        command = [*self._program, json.dumps(self._arguments())]
        run: Callable[..., object] = partial(
            trio.run_process,
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            deliver_cancel=_kill,
        )
        await run(task_status=task_status)  # type: ignore[misc]  # the partial's result is awaitable

    def _arguments(self) -> dict[str, object]:
        settings = self._settings
        return {
            "model": str(settings.model.absolute()),
            "slots": settings.slots,
            "context_tokens": settings.context_tokens,
            "batch_tokens": settings.batch_tokens,
            "threads": settings.threads or threads_now(),
            "save_folder": str(self._folder),
        }

    def _lose(self, status: int, *, came_up: bool) -> None:
        how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        if came_up:
            log.warning("llama.cpp, process %s, ended with %s", self.process_id, how)
            self._tell()
        else:
            failure = f"it ended with {how} before it was up: {self._last_words}"
            if self.incarnation:
                log.warning("llama.cpp: %s", failure)
            self._tell(failure=failure)
        self.process_id = None

    async def _log_lines(
        self, stream: trio.abc.ReceiveStream | None, address: "_Address | None" = None
    ) -> None:
        """Log what the child says, to the end; the first line with an address is taken out."""
        assert stream is not None, "it is a pipe"
        unread = b""
        while piece := await stream.receive_some():
            *lines, unread = (unread + bytes(piece))[-MAX_LINE_BYTES:].split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                if address is not None and address.url is None and text.startswith(_ADDRESS):
                    address.url = str(json.loads(text)["url"])
                    address.settled.set()
                else:
                    log.debug("llama.cpp: %s", text)
                    self._last_words.hear(text)
        if address is not None:
            address.settled.set()

    def _tell(self, *, http: BackendHttp | None = None, failure: str | None = None) -> None:
        """How things stand; everybody who waits looks again."""
        self._http, self._failure = http, failure
        news, self._news = self._news, trio.Event()
        news.set()


async def _kill(process: trio.Process) -> None:
    process.kill()
    await trio.lowlevel.checkpoint()
