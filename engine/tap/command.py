"""`suspended tap`: a relay that watches, from the command line's values to the totals at its end."""

import ipaddress
import logging
import os
import signal
import ssl
from argparse import Namespace
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

import attrs
import trio

from engine.check.report import HumanReport, JsonReport, Report, Totals
from engine.tap.notes import Notes
from engine.tap.relay import Tap
from engine.tap.sides import Upstream
from engine.tap.traces import FORMS, TapTraces, TraceLog

CLEAN, VIOLATED, VACUOUS = 0, 1, 3
MAX_UNSAID_LINES: Final = 10_000
"""Waiting for a terminal that does not take them; more are counted, not said. The trace has them all."""
_log = logging.getLogger(__name__)
_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}


@attrs.frozen(kw_only=True)
class TapSettings:
    """Where to listen, where to relay to, what to keep and to say."""

    host: str
    port: int
    upstream: Upstream
    upstream_url: str
    trace: Path | None
    profile: str
    json: bool
    colour: bool
    drain_seconds: float

    @classmethod
    def read(cls, arguments: Namespace, *, colour: bool) -> Self:
        """From the command line; makes the trace's folder. `ValueError`, `OSError`: what is wrong with it."""
        host, port = read_address(arguments.listen)
        upstream = read_upstream(arguments.upstream, arguments.host)
        if not 0 <= arguments.drain < float("inf"):
            raise ValueError(f"--drain: {arguments.drain:g} is no number of seconds")
        if arguments.trace is not None:
            _check_folder(arguments.trace)
        return cls(
            host=host,
            port=port,
            upstream=upstream,
            upstream_url=arguments.upstream,
            trace=arguments.trace,
            profile=arguments.profile,
            json=arguments.json,
            colour=colour,
            drain_seconds=arguments.drain,
        )


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written before the work is done, not after it. `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise OSError(f"--trace: no file can be made in {folder}")
    for form in FORMS:
        if (path := folder / f"{form}.jsonl").exists():
            TraceLog(path).close()


def read_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; a port alone is one of this machine. `ValueError`."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"--listen: {text!r} has no port; write HOST:PORT, e.g. 127.0.0.1:8787")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def read_upstream(url: str, host: str | None) -> Upstream:
    """Where a URL leads. `host`: `keep`, `upstream`, or None for what suits it. `ValueError`."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"--upstream: {url!r}: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"--upstream: {url!r} is no http, https, ws or wss URL, e.g. https://api.openai.com")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(
            f"--upstream: {url!r} has more than a host and a port; "
            f"the rest is the client's: write {parts.scheme}://{_place(parts)}"
        )
    keeps_host = host == "keep" or (host is None and is_this_machine(parts.hostname))
    return Upstream(
        host=parts.hostname,
        port=_PORTS[parts.scheme] if port is None else port,
        tls=ssl.create_default_context() if parts.scheme in {"https", "wss"} else None,
        told_host=None if keeps_host else _place(parts),
    )


def _place(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def is_this_machine(host: str) -> bool:
    """A loopback address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class _Printer:
    """Says lines in a thread, so that a terminal that stands still does not stop the relay."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lines: deque[str] = deque()
        self._unsaid = 0
        self._news = trio.Event()
        self._is_deaf = False

    def add(self, line: str) -> None:
        if len(self._lines) < MAX_UNSAID_LINES:
            self._lines.append(line)
            self._news.set()
        else:
            self._unsaid += 1

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await trio.to_thread.run_sync(self.empty)

    def empty(self) -> None:
        """Say what waits. Whoever reads it may have enough: then nothing more is said."""
        while self._lines and not self._is_deaf:
            try:
                self._say(self._lines.popleft())
            except OSError:
                self._is_deaf = True
        if self._unsaid and not self._is_deaf:
            unsaid, self._unsaid = self._unsaid, 0
            self._say(f"({unsaid:,} lines more were not said)")


async def tap(settings: TapSettings, signals: AsyncIterator[int], say: Callable[[str], None]) -> int:
    """Relay until a signal; the exit code. `OSError`: cannot listen."""
    printer = _Printer(say)
    report: Report = (
        JsonReport(printer.add) if settings.json else HumanReport(printer.add, colour=settings.colour)
    )
    traces = TapTraces(settings.trace, settings.profile, report.violations)
    relay = Tap(settings.upstream, Notes(traces))
    listeners = await _listen(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(printer.run)
        say_beside = _log.info if settings.json else printer.add
        say_beside(_greeting(settings, listeners[0].socket.getsockname()[1]))
        await _run(relay, listeners, settings, signals, say_beside)
        nursery.cancel_scope.cancel()
    totals = Totals()
    for summary in traces.finish():
        totals.add(summary)
    totals.files = totals.traces if settings.trace is not None else 0
    code = VIOLATED if totals.violations.total() else VACUOUS if totals.vacuous else CLEAN
    if not settings.json:
        printer.add(f"{relay.connections:,} connection{'' if relay.connections == 1 else 's'}")
    report.end(totals, code)
    printer.empty()
    return code


async def _run(
    relay: Tap,
    listeners: list[trio.SocketListener],
    settings: TapSettings,
    signals: AsyncIterator[int],
    say: Callable[[str], None],
) -> None:
    async def run() -> None:
        await relay.run(listeners, drain_seconds=settings.drain_seconds)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        if await anext(signals) == signal.SIGTERM:
            relay.drain()
            say(f"draining for at most {settings.drain_seconds:g} s; once more to stop at once")
            await anext(signals)
        nursery.cancel_scope.cancel()


async def _listen(settings: TapSettings) -> list[trio.SocketListener]:
    try:
        return list(await trio.open_tcp_listeners(settings.port, host=settings.host))
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise OSError(
            f"cannot listen on {where}: {error.strerror or error}; port 0 takes any free one"
        ) from error


def _greeting(settings: TapSettings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    kept = f"traces in {settings.trace}" if settings.trace is not None else "no trace is kept"
    told = settings.upstream.told_host
    named = f"requests say Host: {told}" if told is not None else "no byte is changed"
    lines = [
        f"tap on http://{host}:{port}, to {settings.upstream_url}  (profile {settings.profile}; {kept}; {named})"
    ]
    if not is_this_machine(settings.host):
        lines.append("keys and prompts of clients elsewhere come here unencrypted")
    return "\n".join(lines)
