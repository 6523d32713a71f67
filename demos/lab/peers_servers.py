"""Servers of the comparison with peers: where each is found, how it is started, what CPU time it takes, and how it is ended.

Each is a process group of its own with a log; its CPU time is read from outside, over all processes of the group. A peer that
is not installed says which command would install it; one that does not start says what it wrote last.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

import engine
from demos.lab.peers_policy import ARGUMENTS, WORD

AIMOCK_VERSION: Final = "1.43.0"
LITELLM_VERSION: Final = "1.108.7"
LLM_MOCK_VERSION: Final = "0.1.2"
INSTALL_AIMOCK: Final = f"npm install --prefix DIR/npm @copilotkit/aimock@{AIMOCK_VERSION}"
INSTALL_PYPI: Final = (
    "python3 -m venv DIR/venv && "
    f"DIR/venv/bin/pip install 'litellm[proxy]=={LITELLM_VERSION}' llm-mock-api=={LLM_MOCK_VERSION}"
)
INSTALL: Final = f"  {INSTALL_AIMOCK}\n  {INSTALL_PYPI}"
"""DIR is what `--peers` names."""

FLOOD, PACED, CALLS = "flood", "paced", "calls"
"""Names of models: words as fast as they go, a thousand a second, and a call of a tool."""
TOKENS_PER_SECOND: Final = 1_000
START_SECONDS: Final = 90.0
"""The slowest takes ten; a loaded machine is no failure."""
STOP_SECONDS: Final = 5.0
TAIL_CHARACTERS: Final = 300
_KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
"""No key of the user's, and no proxy, reaches a peer."""


class NotInstalled(Exception):  # noqa: N818  # a state, and no fault
    """The message is the command that installs it."""


class NotStarted(Exception):  # noqa: N818  # a state, and no fault
    """The message says what happened, with the end of its log."""


@attrs.frozen(kw_only=True)
class Place:
    """What a server is started with."""

    peers: Path
    """Where peers are installed."""
    folder: Path
    """For files that it needs; its working directory, unless it says another."""
    port: int
    words: int
    """Of the answer, for those that are told beforehand."""
    upstream: int | None = None
    """Port of the server behind it."""


@attrs.frozen(kw_only=True)
class Launch:
    """The command."""

    command: tuple[str | Path, ...]
    environment: Mapping[str, str] = attrs.field(factory=dict)
    key: str | None = None
    """That clients have to show."""
    directory: Path | None = None


@attrs.frozen(kw_only=True)
class Server:
    """A row: a server as the experiment starts it."""

    name: str
    title: str
    launch: Callable[[Place], Launch]
    """`NotInstalled`."""
    behind: str | None = None
    """Name of the server that it hands requests on to."""


# --- one that runs -------------------------------------------------------------------------------------------------


@attrs.define
class Running:
    """Made by `started`."""

    server: Server
    port: int
    key: str | None
    start_seconds: float
    _process: "subprocess.Popen[bytes]"
    _log: Path
    _seen: dict[int, float] = attrs.field(factory=dict)
    """CPU seconds of each process of the group, as last seen: what ends keeps what it took."""

    @property
    def alive(self) -> bool:
        """Its first process has not ended."""
        return self._process.poll() is None

    def cpu_seconds(self) -> float | None:
        """So far, of all its processes; None: this system does not say."""
        for process_id in _group(self._process.pid):
            try:
                # as `clock_getcpuclockid` of Linux makes it
                self._seen[process_id] = time.clock_gettime(~process_id << 3 | 2)
            except OSError:  # it has just ended
                continue
        return sum(self._seen.values()) if self._seen else None

    def last_words(self) -> str:
        """The end of its log."""
        return last_words(self._log)


def last_words(log: Path) -> str:
    """The end of a log, in one line."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return " ".join(text.split())[-TAIL_CHARACTERS:] or "it wrote nothing"


def _group(leader: int) -> Iterator[int]:
    """Processes of a group, where there is /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader:
            yield int(entry.name)


@contextmanager
def started(
    server: Server, peers: Path, logs: Path, words: int, upstream: Running | None = None
) -> Iterator[Running]:
    """Start a server, wait until it takes connections, and end its whole group at the end. `NotInstalled`, `NotStarted`.

    `logs`: for its log and its files.
    """
    folder = logs / server.name
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    place = Place(
        peers=peers.resolve(),
        folder=folder.resolve(),
        port=port,
        words=words,
        upstream=None if upstream is None else upstream.port,
    )
    launch = server.launch(place)
    log, began = folder / "server.log", time.monotonic()
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                launch.command,
                cwd=launch.directory or folder,
                env=_environment(launch),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise NotStarted(f"{server.name} cannot be run: {error}") from error
    try:
        _wait_for(server.name, process, port, log)
        yield Running(server, port, launch.key, time.monotonic() - began, process, log)
    finally:
        _stop(process)


def free_port() -> int:
    """One that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(launch: Launch) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {**kept, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", **launch.environment}


def _wait_for(name: str, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            raise NotStarted(f"{name} ended with {process.returncode}: {last_words(log)}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > give_up:
                raise NotStarted(
                    f"{name} took no connection within {START_SECONDS:g} s: {last_words(log)}"
                ) from None
            time.sleep(0.05)
        else:
            return


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the group: politely, then not."""
    _signal(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:  # nobody of it is left
        return


# --- which there are -----------------------------------------------------------------------------------------------


def _ours(sampler: str, *more: str) -> Callable[[Place], Launch]:
    def launch(place: Place) -> Launch:
        spec = f"policy:demos.lab.peers_policy?{sampler},first=0,prefill=1e12"
        options = ("--port", str(place.port), "--sampler", spec, "--http-variant", "optimised", *more)
        root = Path(engine.__file__).resolve().parents[1]
        return Launch(command=(sys.executable, "-m", "engine", "serve", *options), directory=root)

    return launch


def _aimock(place: Place) -> Launch:
    modules = place.peers / "npm" / "node_modules"
    script = modules / "@copilotkit" / "aimock" / "dist" / "cli.js"
    own_node = modules / "node" / "bin" / "node"
    node = own_node if own_node.exists() else shutil.which("node")
    if not script.exists() or node is None:
        raise NotInstalled(INSTALL_AIMOCK + ("" if node else " node@24"))
    fixtures = place.folder / "fixtures.json"
    fixtures.write_bytes(orjson.dumps({"fixtures": _fixtures(place.words)}))
    options = ("--port", str(place.port), "--fixtures", fixtures, "--log-level", "warn")
    return Launch(command=(node, script, *options))


def _fixtures(words: int) -> list[dict[str, Any]]:
    text = {"response": {"content": WORD * words}, "chunkSize": len(WORD)}
    call = {"name": "look", "arguments": orjson.dumps(ARGUMENTS).decode()}
    return [
        {"match": {"model": FLOOD}, **text, "latency": 0},
        {"match": {"model": PACED}, **text, "latency": 1_000 // TOKENS_PER_SECOND},
        {"match": {"model": CALLS}, "response": {"toolCalls": [call]}, "chunkSize": len(WORD)},
    ]


def _litellm(place: Place) -> Launch:
    program = place.peers / "venv" / "bin" / "litellm"
    if not program.exists():
        raise NotInstalled(INSTALL_PYPI)
    base = f"http://127.0.0.1:{place.upstream}/v1"
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": base, "api_key": "none"},
        }
        for name in (FLOOD, PACED, CALLS)
    ]
    config = place.folder / "config.yaml"
    config.write_bytes(orjson.dumps({"model_list": models}))  # JSON is YAML
    key = f"sk-{secrets.token_hex(24)}"
    return Launch(
        command=(program, "--config", config, "--host", "127.0.0.1", "--port", str(place.port)),
        environment={
            "LITELLM_MASTER_KEY": key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network for prices
            "LITELLM_LOG": "ERROR",
        },
        key=key,
    )


def _llm_mock(place: Place) -> Launch:
    program = place.peers / "venv" / "bin" / "llm-mock-api"
    if not program.exists():
        raise NotInstalled(INSTALL_PYPI)
    call = {"name": "look", "args": dict(ARGUMENTS)}
    rules = [
        {"when": {"model": FLOOD}, "reply": WORD * place.words},
        {"when": {"model": CALLS}, "reply": {"tools": [call]}},
    ]
    path = place.folder / "rules.json5"
    path.write_bytes(orjson.dumps(rules))  # JSON is JSON5
    options = ("-p", str(place.port), "-r", path, "-l", "0", "-c", str(len(WORD)))
    return Launch(command=(program, "start", *options))


SERVERS: Final[Mapping[str, Server]] = {
    row.name: row
    for row in (
        Server(name="ours", title="this engine", launch=_ours("rate=1e12")),
        Server(name="ours-paced", title="this engine, paced", launch=_ours(f"rate={TOKENS_PER_SECOND}")),
        Server(
            name="ours-stepped",
            title="this engine, paced, a step for each token",
            launch=_ours(f"rate={TOKENS_PER_SECOND}", "--limit", f"tick_seconds={1 / TOKENS_PER_SECOND}"),
        ),
        Server(name="aimock", title=f"aimock {AIMOCK_VERSION}", launch=_aimock),
        Server(name="llm-mock-api", title=f"llm-mock-api {LLM_MOCK_VERSION}", launch=_llm_mock),
        Server(
            name="litellm-aimock",
            title=f"LiteLLM proxy {LITELLM_VERSION} before aimock",
            launch=_litellm,
            behind="aimock",
        ),
        Server(
            name="litellm-ours",
            title=f"LiteLLM proxy {LITELLM_VERSION} before this engine",
            launch=_litellm,
            behind="ours",
        ),
    )
}
"""Who is behind another one stands before it."""
