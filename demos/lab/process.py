"""A part of an experiment in a process of its own, that can be asked questions over a pipe.

So server and network never wait for the client's interpreter, and the server's CPU time is its own.
"""

import multiprocessing
import signal
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import trio

Answer = Callable[..., Awaitable[Any]]
Start = Callable[[trio.Nursery], Mapping[str, Answer]]
"""Starts a child's tasks; what it returns can be asked for by name."""

STOP_SECONDS: Final = 10.0
_STOP: Final = "stop"


class ChildError(RuntimeError):
    """A child died, or an answer of its raised; the message has what it said."""


class Child:
    """Made by `child_process`."""

    def __init__(self, pipe: "Connection[Any, Any]", name: str) -> None:
        self._pipe = pipe
        self._name = name

    async def ask(self, question: str, *arguments: Any) -> Any:
        """Its answer. `ChildError`. Cancelled in between, nothing may be asked any more."""
        self._pipe.send((question, arguments))
        return await self.heard()

    async def heard(self) -> Any:
        """What it says next."""
        await trio.lowlevel.wait_readable(self._pipe.fileno())
        try:
            value, error = self._pipe.recv()
        except EOFError:
            raise ChildError(f"the {self._name} process has died") from None
        if error is not None:
            raise ChildError(f"the {self._name} process failed: {error}")
        return value


@asynccontextmanager
async def child_process(start: Start, name: str) -> AsyncIterator[Child]:
    """Run `start` in trio in a new process, until the block ends; it must be importable."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, start), daemon=True, name=f"lab-{name}")
    process.start()
    theirs.close()
    try:
        child = Child(ours, name)
        await child.heard()
        yield child
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_stop, ours, process)


def _stop(pipe: "Connection[Any, Any]", process: multiprocessing.process.BaseProcess) -> None:
    with suppress(OSError):  # it is gone already
        pipe.send((_STOP, ()))
    process.join(STOP_SECONDS)
    process.kill()
    process.join()
    pipe.close()


def _main(pipe: "Connection[Any, Any]", start: Start) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells all of us; the parent says when to stop
    trio.run(_answer, pipe, start)


async def _answer(pipe: "Connection[Any, Any]", start: Start) -> None:
    async with trio.open_nursery() as nursery:
        answers = start(nursery)
        pipe.send((None, None))
        while True:
            await trio.lowlevel.wait_readable(pipe.fileno())
            try:
                question, arguments = pipe.recv()
            except EOFError:
                question = _STOP
            if question == _STOP:
                nursery.cancel_scope.cancel()
                return
            try:
                pipe.send((await answers[question](*arguments), None))
            except Exception:  # noqa: BLE001  # told to who asked
                pipe.send((None, traceback.format_exc()))
