"""What a rollout costs as it grows: memory over 10,000 frames, and time over the size of a tool's output.

*Frames*: one rollout of the append form, scripted sampler: each segment calls one tool, the client appends its output,
1,700 times; that is 10,200 frames (five events and one append each round). Every tenth of the way the server's traced
memory is read after a full collection, and the size of the rollout's context as the engine counts it. Flat but for the context means: the memory of the second half's rounds is at most `FRAME_BOUND` times that of
the first half's, and so is the CPU time of a round.

*Output*: one rollout, appends with an output of 1, 2 and 4 MiB of mixed text, in random order in blocks. CPU time of
the server from before the append is sent until the next `response.done`: reading, decoding, validating, rendering (real
tokens) and classifying. Linear means: 4 MiB take at most `LINEAR_BOUND` times four times the time of 1 MiB.
That the rollout goes on proves that 4 MiB are accepted at the default limits.

Contract: nothing waits for anything but the append for the segment before. Collector: default.
Not measured: TLS, many such rollouts at once, lateness of other rollouts meanwhile.
"""

import random
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio

from engine.config import MIB, Limits
from engine.engine import Engine
from engine.samplers.base import Prompt
from engine.samplers.scripted import END, Script, Scripted, call
from engine.server import Server
from tests.bench.harness import (
    RawClient,
    ServerProcess,
    Spread,
    Verdicts,
    append,
    create,
    in_blocks,
    is_quick,
    ratio,
    server_process,
    text_frame,
)

ROUNDS = 1700
FRAMES_A_ROUND = 6
TENTHS = 10
FRAME_BOUND = 1.25
LINEAR_BOUND = 1.25


def call_id(number: int) -> str:
    """As long as a real one."""
    return f"call_{number:032}"


# --- the server process --------------------------------------------------------------------------------------------


def _script(_prompt: Prompt) -> Script:
    return [[call("look", "{}", call_id=call_id(number)), END] for number in range(2 * ROUNDS)]


async def start(nursery: trio.Nursery, _options: Any) -> Mapping[str, Callable[..., Any]]:
    """One server."""
    server = Server(Engine.make(Scripted(_script), limits=Limits(max_frames_per_second=100_000)))
    listeners = await nursery.start(server.run)

    def context_bytes() -> int:
        (connection,) = server._connections
        (rollout,) = connection._open.values()
        return int(rollout._intake.context.bytes)

    return {"port": listeners[0].socket.getsockname, "context_bytes": context_bytes}


class Growing:
    """A rollout that goes round after round."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._client = RawClient(server.ask("port")[1])
        self._round = 0
        self._client.send(create())
        self._client.read_until("response.done")

    def go(self, rounds: int, output: str) -> float:
        """CPU seconds of the server for so many rounds."""
        frames = [text_frame(append(call_id(self._round + n), output)) for n in range(rounds)]
        self._round += rounds
        with self._server.cpu_seconds() as spent:
            for frame in frames:
                self._client.send_frame(frame)
                self._client.read_until("response.done")
        return spent[0]


# --- frames --------------------------------------------------------------------------------------------------------


def _report_frames(verdicts: Verdicts, rounds: int) -> None:
    """Memory, read from a rollout that is traced; time, from one that is not."""
    step = rounds // TENTHS
    with server_process(start) as server:
        memory, context, rollout = [], [], Growing(server)
        rollout.go(1, "42")
        for _ in range(TENTHS + 1):
            memory.append(server.ask("traced_bytes"))
            context.append(server.ask("context_bytes"))
            rollout.go(step - 1, "42")
            server.ask("collect")
    with server_process(start) as server:
        rollout = Growing(server)
        rollout.go(1, "42")
        seconds = [rollout.go(step - 1, "42") for _ in range(TENTHS)]
    frames = rounds * FRAMES_A_ROUND
    grown, counted = memory[-1] - memory[0], context[-1] - context[0]
    print(f"{frames} frames: {grown / rounds:.0f} bytes a round, of which context {counted / rounds:.0f}")
    half = TENTHS // 2
    by_memory = (memory[-1] - memory[half]) / (memory[half] - memory[0])
    by_time = statistics.median(seconds[half:]) / statistics.median(seconds[:half])
    print(f"      CPU a round: {statistics.median(seconds) / (step - 1) * 1e6:.0f} µs")
    verdicts.at_most(f"{frames} frames: memory ratio of second half to first", by_memory, FRAME_BOUND)
    verdicts.at_most(f"{frames} frames: CPU ratio of second half to first", by_time, FRAME_BOUND)


# --- output --------------------------------------------------------------------------------------------------------


def mixed_text(size: int, *, seed: int = 0) -> str:
    """Words, numbers, punctuation and some letters beyond ASCII; about `size` bytes."""
    source = random.Random(seed)
    words = [
        "def",
        "return",
        "error:",
        "naïve",
        "中文",
        "x += 1\n",
        "0x7f",
        "the",
        "line",
        "of",
        "output",
        "—",
    ]
    line = " ".join(source.choices(words, k=2000))
    return (line * (size // len(line.encode()) + 1)).encode()[:size].decode(errors="ignore")


def _report_output(verdicts: Verdicts, *, blocks: int, unit_bytes: int) -> None:
    with server_process(start) as server:
        rollout = Growing(server)
        outputs = {f"{n} times {unit_bytes} bytes": mixed_text(n * unit_bytes) for n in (1, 2, 4)}
        measured = in_blocks({name: partial(rollout.go, 1, text) for name, text in outputs.items()}, blocks)
    one, two, four = measured
    for name, values in measured.items():
        print(f"      {name}: {Spread(tuple(value * 1e3 for value in values))} ms CPU")
    print(f"      ratio two/one: {ratio(measured, two, one)}")
    compared = ratio(measured, four, one)
    print(f"      ratio four/one: {compared}")
    verdicts.at_most("output, time of 4 in units of four times 1: ratio", compared.median / 4, LINEAR_BOUND)


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    quick = is_quick(__doc__, arguments)
    verdicts = Verdicts(quick=quick)
    _report_frames(verdicts, 100 if quick else ROUNDS)
    _report_output(verdicts, blocks=1 if quick else 5, unit_bytes=MIB // 16 if quick else MIB)
    return verdicts.exit_code


if __name__ == "__main__":
    sys.exit(main())
