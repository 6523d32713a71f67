"""`suspended serve`: an engine from the command line's values, served until a signal asks for the end."""

import importlib
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

import attrs
import trio

from engine.backends.base import BackendError
from engine.compact import Compactor
from engine.config import Limits
from engine.engine import Engine
from engine.hosted import HostedTool
from engine.limit_settings import read_limits
from engine.models import ModelEntry, ModelTable
from engine.nursery import leaves
from engine.pointers import DEFAULT_MODEL, pointed
from engine.recorder import TraceFile
from engine.samplers.chat import NOTICE, is_chat
from engine.samplers.registry import make_sampler
from engine.seals import Seals, secret_beside
from engine.server import Server, is_loopback
from engine.store import SqliteStore, StoreError
from protocol.errors import RemoteProtocolError

OK, INTERRUPTED = 0, 130


@attrs.frozen(kw_only=True)
class ServeSettings:
    """What to serve, and where."""

    host: str
    port: int
    engine: Engine
    sampler: str
    """As it was named."""
    key: str | None
    trace: Path | None
    store: SqliteStore | None = None
    """What keeps responses, if they are kept in a file."""

    @classmethod
    def read(cls, arguments: Namespace, *, key: str | None, trace: Path | None) -> Self:
        """Make them of the command line. `ValueError`, `OSError`: what is wrong with it, or with a file it names."""
        if key is None and not is_loopback(arguments.host):
            raise ValueError(
                f"refusing to serve {arguments.host!r} without a key: whoever reaches it could use it. "
                "Set SUSPENDED_API_KEY, name another variable with --key-env, or leave --host out"
            )
        limits = read_limits(arguments.limits, arguments.limit)
        engine = _engine(arguments, limits)
        try:
            store = SqliteStore(arguments.store, limits) if arguments.store else None
        except StoreError as error:
            raise ValueError(f"--store: {error}") from error
        if store is not None:
            engine.store = store
            engine.compactor = Compactor(Seals(secret_beside(arguments.store)))
        return cls(
            host=arguments.host,
            port=arguments.port,
            engine=engine,
            sampler=arguments.sampler,
            key=key,
            trace=trace,
            store=store,
        )


def _engine(arguments: Namespace, limits: Limits) -> Engine:
    return Engine.make(
        make_sampler(arguments.sampler, limits),
        limits=limits,
        models=ModelTable.from_toml(arguments.models) if arguments.models else None,
        make_sampler=partial(make_sampler, limits=limits),
        hosted_tools=[tool for path in arguments.hosted for tool in load_hosted(path)],
        kv_policy=arguments.kv_policy,
        http_variant=arguments.http_variant,
        websocket=arguments.websocket,
    )


def load_hosted(path: str) -> Sequence[HostedTool]:
    """The hosted tools at an import path, `module:NAME`: one, or an iterable of them. `ValueError` if there are none."""
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--hosted {path!r}: {error}; write MODULE:NAME") from error
    tools = [found] if isinstance(found, HostedTool) else list(found) if isinstance(found, Iterable) else []
    if not tools or not all(isinstance(tool, HostedTool) for tool in tools):
        raise ValueError(f"--hosted {path!r}: this is no HostedTool and no list of them")
    return tools


async def serve(settings: ServeSettings, signals: AsyncIterator[int], say: Callable[[str], None]) -> int:
    """Serve until drained after the first of `signals`, or until the second; the exit code.

    `OSError`: it cannot listen, or a model that is to run here cannot be loaded.
    """
    trace = TraceFile(settings.trace) if settings.trace else None
    try:
        server = Server(settings.engine, key=settings.key, trace=trace)
        return await _serve(server, settings, signals, say)
    except* BackendError as errors:
        raise OSError("; ".join(map(str, leaves(errors)))) from errors
    finally:
        if trace is not None:
            trace.close()


@asynccontextmanager
async def kept(store: SqliteStore | None) -> AsyncIterator[None]:
    """Keep a store running while the block runs; all that it was given is in the file afterwards."""
    async with trio.open_nursery() as nursery:
        if store is not None:
            await nursery.start(store.run)
        try:
            yield
        finally:
            if store is not None:
                await store.aclose()


async def _serve(
    server: Server, settings: ServeSettings, signals: AsyncIterator[int], say: Callable[[str], None]
) -> int:
    code = INTERRUPTED

    async def run(*, task_status: trio.TaskStatus[Sequence[trio.SocketListener]]) -> None:
        nonlocal code
        try:
            await server.run(settings.host, settings.port, task_status=task_status)
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise OSError(
                f"cannot listen on {where}: {error.strerror}; --port 0 takes any free one"
            ) from error
        code = OK
        nursery.cancel_scope.cancel()

    async def announce(port: int) -> None:
        """Whoever asks before the models are loaded waits for them, too."""
        for sampler in (settings.engine.sampler, *settings.engine.samplers.values()):
            wait_loaded = getattr(getattr(sampler, "backend", None), "wait_loaded", None)
            if wait_loaded is not None:
                await wait_loaded()
        say(how_to_point(settings, port))

    async with kept(settings.store), trio.open_nursery() as nursery:
        listeners = await nursery.start(run)
        nursery.start_soon(announce, listeners[0].socket.getsockname()[1])
        await anext(signals)
        server.drain()
        say(f"draining for at most {settings.engine.limits.drain_seconds:g} s; once more to stop at once")
        await anext(signals)
        nursery.cancel_scope.cancel()
    return code


def how_to_point(settings: ServeSettings, port: int) -> str:
    """What to tell clients, so that they come here."""
    host = settings.host if is_loopback(settings.host) else "THIS_HOST"
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    guard = "a key is required" if settings.key else "no key, this machine only"
    key = "the key" if settings.key else "any text"
    table = settings.engine.resolve.table
    model = example(table)
    specs = dict.fromkeys(entry.sampler or settings.sampler for entry in table.entries)
    sampler = model.sampler or settings.sampler
    what = f"sampler {sampler}" if model.name == DEFAULT_MODEL else f"model {model.name}, sampler {sampler}"
    return "\n".join(
        (
            f"serving ws://{at}/v1/responses  ({what}; {guard})",
            *(f"{spec}: {NOTICE}" for spec in specs if is_chat(spec)),
            "",
            f"How to point clients here; KEY is {key}.",
            "",
            *pointed(at, model.name),
        )
    )


def example(table: ModelTable) -> ModelEntry:
    """A model to ask for: the first with a name, else `default` if a pattern has it, else whatever the first pattern has."""
    if table.named:
        return table.named[0]
    try:
        return table.find(DEFAULT_MODEL)
    except RemoteProtocolError:
        return table.entries[0]
