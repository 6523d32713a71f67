"""The server of the scale experiment, in a process of its own, with the collector set as it is told.

Streams are paced; every other model calls a tool at once and then says a word, unpaced, so that resuming is the engine's own work.
"""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import trio

from demos.lab.process import Answer
from demos.lab.raw_client import resident_bytes
from engine.collector import THRESHOLDS, settle
from engine.config import Limits
from engine.engine import Engine
from engine.rollout import Rollout
from engine.samplers.base import End, Prompt, Sampling, Text
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import END, Script, Scripted, call
from engine.server import Server

CALL_ID: Final = "call_00000000000000000000000000000001"
TALK: Final = "talk-"
"""A model's name that begins so writes as many tokens as its rest says."""
LIMITS: Final = Limits(max_frames_per_second=100_000, tick_seconds=0.002, suspend_timeout_seconds=0)
_FULL: Final = 2


def _set_nothing() -> None:
    """The interpreter's own."""


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def _raise_thresholds() -> None:
    gc.set_threshold(*THRESHOLDS)


COLLECTORS: Final[Mapping[str, tuple[str, Callable[[], None]]]] = {
    "default": ("the interpreter's default", _set_nothing),
    "freeze": ("what lives after the start is frozen: gc.freeze()", _freeze),
    "thresholds": ("gc.set_threshold(10_000, 20, 50)", _raise_thresholds),
    "both": ("both of these, as `suspended serve` does", settle),
}
"""By name: in words, and what the server does once it has started."""


@attrs.define
class Collections:
    """What the collector did since it was asked last."""

    counts: list[int] = attrs.Factory(lambda: [0, 0, 0])
    seconds: float = 0.0
    longest_seconds: float = 0.0


class _CollectorWatch:
    def __init__(self) -> None:
        self.seen = Collections()
        self._began = 0.0
        gc.callbacks.append(self._told)

    def _told(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        seconds = time.perf_counter() - self._began
        self.seen.counts[info["generation"]] += 1
        self.seen.seconds += seconds
        self.seen.longest_seconds = max(self.seen.longest_seconds, seconds)

    def taken(self) -> Collections:
        seen, self.seen = self.seen, Collections()
        return seen


class _Models:
    """Streams at a pace, everything else at once."""

    def __init__(self, tokens_per_second: float) -> None:
        self._paced = Paced(
            Scripted(_stream),
            Pace(tokens_per_second=tokens_per_second, first_token_seconds=0.05),
            tick_seconds=LIMITS.tick_seconds,
        )
        self._unpaced = Scripted(_calling)

    async def run(self) -> None:
        await self._paced.run()

    def open(self, prompt: Prompt) -> Sampling:
        return (self._paced if prompt.model.startswith(TALK) else self._unpaced).open(prompt)


def _stream(prompt: Prompt) -> Script:
    return [[(Text(" token" * int(prompt.model.removeprefix(TALK))), End())]]


_CALLING: Final[Script] = [[call("look", "{}", call_id=CALL_ID), END], [(Text("done"),), END]]
"""One for all: what a rollout holds is to be the engine's, not the script of the model that it plays with."""


def _calling(_prompt: Prompt) -> Script:
    return _CALLING


def start(nursery: trio.Nursery) -> Mapping[str, Answer]:
    """As `demos.lab.process.Start`."""
    watch = _CollectorWatch()
    servers: list[Server] = []

    async def open_(tokens_per_second: float) -> int:
        server = Server(Engine.make(_Models(tokens_per_second), limits=LIMITS))
        listeners = await nursery.start(server.run)
        servers.append(server)
        return int(listeners[0].socket.getsockname()[1])

    async def collector(name: str) -> None:
        await trio.lowlevel.checkpoint()
        COLLECTORS[name][1]()

    async def suspended() -> int:
        await trio.lowlevel.checkpoint()
        return sum(one.suspended for server in servers for one in server.statistics().connections)

    async def resident() -> int:
        """After a full collection."""
        await trio.lowlevel.checkpoint()
        gc.collect()
        return resident_bytes()

    async def context_bytes() -> int:
        """Of all rollouts that are open, as the engine counts them against its limits."""
        await trio.lowlevel.checkpoint()
        rollouts = [one for one in gc.get_objects() if isinstance(one, Rollout)]
        return sum(one.context.bytes for one in rollouts if one.suspended)

    async def full_collection() -> float:
        """How long one takes, in seconds."""
        await trio.lowlevel.checkpoint()
        began = time.perf_counter()
        gc.collect(_FULL)
        return time.perf_counter() - began

    async def collections() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {**attrs.asdict(watch.taken()), "cpu_seconds": time.process_time()}

    return {
        "open": open_,
        "collector": collector,
        "suspended": suspended,
        "resident": resident,
        "context_bytes": context_bytes,
        "full_collection": full_collection,
        "collections": collections,
    }
