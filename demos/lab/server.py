"""The server of one rollout: a fresh engine, so that no arm finds what another one left in a cache.

What it says at the end is what only a server knows: where its time went, what it computed, and, by the trace checker, whether
the exchange was in order. The trace is kept as it comes and made into records when the clock has stopped: reading
every frame meanwhile would be dearest where most bytes are sent.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import pairwise
from typing import Any, Final, Literal

import attrs
import trio

from demos.lab.content import ScriptedWork
from demos.lab.records import ServerCost, Tokens
from demos.lab.workload import Work
from engine.config import Limits
from engine.engine import Engine, RolloutReport
from engine.ledger import Clock, monotonic_ns
from engine.recorder import DEFAULT_MAX_TRACE_BYTES, HttpRecorder, Recorder, TraceFile
from engine.samplers.paced import Pace, Paced
from engine.server import Server
from protocol import trace
from protocol.invariants import Checker

PROFILE: Final = "this-engine"
_HEARD: Final = frozenset({"frame_in", "request"})
"""What a recorder is told when a client has said something."""
_LONG_SECONDS: Final = 1e9
LIMITS: Final = Limits(
    suspend_timeout_seconds=0,
    inject_grace_seconds=_LONG_SECONDS,
    keep_alive_seconds=_LONG_SECONDS,
    max_connection_seconds=_LONG_SECONDS,
    max_frames_per_second=1_000_000,
    max_message_bytes=64 * 1024 * 1024,
    send_timeout_seconds=60.0,
)
"""Nothing ends while a tool runs, in any form: what that would cost is another question."""


@attrs.frozen(kw_only=True)
class Setup:
    """What a server is started with."""

    work: Work
    seed: int
    http_variant: Literal["naive", "optimised"]
    pace: Pace
    tick_seconds: float
    at_once: bool = False
    """Does its model say all steps in one segment?"""


@attrs.frozen(kw_only=True)
class Served:
    """What it said at the end."""

    cost: ServerCost
    tokens: Tokens
    findings: tuple[str, ...]
    """Of the trace checker: rule, what was expected, what was seen."""
    traces: int
    """How many were checked: one for each connection, over HTTP one for each request."""
    sampler_late_seconds: float
    """The longest time by which a step of the model left after it was due."""


class RolloutServer:
    """`run` it in a task; then `close` it once the client has gone."""

    def __init__(self, setup: Setup, *, clock_ns: Clock = monotonic_ns, **parts: Any) -> None:
        """`parts`: of the engine, such as ids from a seed."""
        self._reports: list[RolloutReport] = []
        self._traces = KeptTraces()
        script = ScriptedWork(setup.work, setup.seed, at_once=setup.at_once)
        self._paced = Paced(script, setup.pace, tick_seconds=setup.tick_seconds)
        limits = attrs.evolve(LIMITS, tick_seconds=setup.tick_seconds)
        engine = Engine.make(
            self._paced,
            limits=limits,
            http_variant=setup.http_variant,
            clock_ns=clock_ns,
            on_report=self._reports.append,
            **parts,
        )
        self._server = Server(engine, trace=self._traces)
        self._over = trio.Event()
        self._cpu_began = 0.0

    async def run(
        self,
        listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
        *,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `close`."""
        try:
            await self._server.run_on(listeners, task_status=task_status)
        finally:
            self._over.set()

    def begin(self) -> None:
        """The client comes next: what CPU time is spent from now on counts. Not a checkpoint."""
        gc.collect()
        self._cpu_began = time.process_time()

    async def close(self, *, measures_cpu: bool) -> Served:
        """Shut down, read the traces, and say what was measured. A checkpoint."""
        cpu_s = time.process_time() - self._cpu_began
        turn_cpu_s = self._traces.cpu_of_turns(self._cpu_began + cpu_s)
        self._server.drain()
        await self._over.wait()
        findings, count = self._traces.check()
        stages: Counter[str] = Counter()
        for report in self._reports:
            stages.update(report.ledger.stages)
        usages = [report.usage for report in self._reports]
        return Served(
            cost=ServerCost(
                cpu_s=cpu_s if measures_cpu else None,
                wall_ns=sum(report.ledger.wall_ns for report in self._reports),
                stages=dict(stages),
                responses=len(self._reports),
                turn_cpu_s=turn_cpu_s if measures_cpu else (),
            ),
            tokens=Tokens(
                sampled=self._paced.statistics.tokens,
                reused=sum(usage.cached_input_tokens for usage in usages),
                computed=sum(usage.uncached_input_tokens for usage in usages),
            ),
            findings=findings,
            traces=count,
            sampler_late_seconds=self._paced.statistics.late_seconds_max,
        )


# --- traces --------------------------------------------------------------------------------------------------------


class KeptTraces:
    """Gives each connection and each HTTP request a recorder that only notes what it is told, and when."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._cpu_heard: list[float] = []

    def recorder(self, dialect: str, deadline_seconds: float) -> Recorder:
        """As `engine.recorder.Recorders`."""
        kept: Recorder = self._keep(lambda file: file.recorder(dialect, deadline_seconds))
        return kept

    def http_recorder(self) -> HttpRecorder:
        """As `engine.recorder.HttpRecorders`."""
        kept: HttpRecorder = self._keep(lambda file: file.http_recorder())
        return kept

    def _keep(self, make: Callable[[TraceFile], Any]) -> Any:
        kept = _Kept(make, self._cpu_heard)
        self._kept.append(kept)
        return kept

    def cpu_of_turns(self, cpu_end: float) -> tuple[float, ...]:
        """CPU seconds of this process from one thing that a client said to the next; the last one until `cpu_end`."""
        return tuple(after - before for before, after in pairwise([*self._cpu_heard, cpu_end]))

    def lines(self) -> list[bytes]:
        """The trace file that a recorder which writes at once would have written."""
        file = _PlayedTrace()
        for kept in self._kept:
            file.play(kept)
        return file.lines()

    def check(self) -> tuple[tuple[str, ...], int]:
        """What the checker finds in all of them, and how many there are."""
        findings: list[str] = []
        count = 0
        for header, records in trace.read(self.lines()):
            checker = Checker(header, profile=PROFILE)
            found = [violation for record in records for violation in checker.feed(record)]
            count += 1
            findings += (
                f"{violation.rule}: expected {violation.expected}, saw {violation.seen}"
                for violation in (*found, *checker.finish())
            )
        return tuple(findings), count


class _Kept:
    """Any recorder, played later."""

    def __init__(self, make: Callable[[TraceFile], Any], cpu_heard: list[float]) -> None:
        """`cpu_heard`: is told the process's CPU time each time a client says something."""
        self.make = make
        self.told: list[tuple[float, str, tuple[Any, ...]]] = []
        self._now = trio.lowlevel.current_clock().current_time  # for each frame: the shortest way to it
        self.began = self._now()
        self._cpu_heard = cpu_heard

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(*arguments: Any) -> None:
            self.told.append((self._now(), name, arguments))

        def note_heard(*arguments: Any) -> None:
            self._cpu_heard.append(time.process_time())
            note(*arguments)

        if name.startswith("_"):
            raise AttributeError(name)
        setattr(self, name, note_heard if name in _HEARD else note)  # the next time it is found without this
        return getattr(self, name)  # type: ignore[no-any-return]  # it has just been set


class _PlayedTrace(TraceFile):
    """A trace in memory, with the times at which things were told."""

    def __init__(self) -> None:
        self._max_trace_bytes = 4 * DEFAULT_MAX_TRACE_BYTES
        self._file = self._memory = BytesIO()
        self._connections = 0
        self._now = 0.0

    def current_time(self) -> float:
        """Of what is being played."""
        return self._now

    def play(self, kept: _Kept) -> None:
        """One recorder's life."""
        self._now = kept.began
        recorder = kept.make(self)
        for self._now, name, arguments in kept.told:
            getattr(recorder, name)(*arguments)

    def lines(self) -> list[bytes]:
        """All that was written."""
        return self._memory.getvalue().splitlines(keepends=True)
