"""The rollouts that policies are compared over, as numbers: contexts, outputs, and how long their tools take.

Three workloads, numbers only:

    calls     pauses by tool, from the published medians and tail of TraceLab (arXiv 2606.30560, CC BY 4.0; credit:
              TraceLab, SyFI Lab, University of Washington). It publishes medians for read, edit and bash and quantiles for
              all calls together; that 35 % of the calls are reads and 15 % edits, and that both spread as all calls do
              below their 90th percentile, is our assumption.
    gaps      pauses from the quantiles of 41,462 client gaps of Claude Code, 1 s apart and with the user's own time in
              them (callanjfox/kv-cache-tester, Apache-2.0). One tool: no policy can tell a long call by its name.
    recorded  rollouts of a trace file as they are, up to 24 calls of each; only where there is such a file.

Sizes of contexts, outputs and answers: the quantiles of kv-cache-tester, for both that are drawn. Quantiles are joined by
straight lines in the logarithm; what is above the last is not drawn. The model's pace is a fit to the same traffic: 1.09 s a
segment, 67 sampled tokens and 5,952 read tokens a second. A simulated token stands for a block of 32 real ones.

`eta` is Continuum's: the negated correlation of calls done and calls left, at the pauses. If it is positive, a rollout that has called
often ends soon, and it pays to keep its state for the sake of the queue; its rule for how long a state stays has it as a factor.
"""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from demos.lab import published
from demos.lab.workload import WorkloadError

ROLLOUTS: Final = 64
MAX_CALLS: Final = 24
UNCUT_ROLLOUTS: Final = 3_671
"""As many as kv-cache-tester's traffic has."""
BLOCK: Final = 32
"""Real tokens of a simulated one."""
CALLS: Final = published.CALLS[:4]
"""Without the last hundredth, whose rollouts alone would be most of the work."""


@attrs.frozen
class PlannedCall:
    """One segment that ends in a call, and what comes of it."""

    tool: str
    sampled_tokens: int
    pause_seconds: float
    output_tokens: int


@attrs.frozen
class Plan:
    """One rollout; tokens are blocks."""

    context_tokens: int
    calls: tuple[PlannedCall, ...]
    last_tokens: int


def blocks(tokens: float) -> int:
    """In simulated tokens, at least one."""
    return max(1, round(tokens / BLOCK))


def drawn_plans(seed: int, pause: Callable[[random.Random], tuple[str, float]]) -> list[Plan]:
    """The rollouts of a seed; `pause` draws a tool and its time."""
    source = random.Random(seed)  # noqa: S311  # a workload, no secret

    def call() -> PlannedCall:
        tool, seconds = pause(source)
        sampled, new = (
            published.drawn(source, published.SAMPLED_TOKENS),
            published.drawn(source, published.NEW_TOKENS),
        )
        return PlannedCall(tool, blocks(sampled), seconds, blocks(new))

    return [
        Plan(
            blocks(published.drawn(source, published.CONTEXT_TOKENS)),
            tuple(call() for _ in range(min(MAX_CALLS, round(published.drawn(source, CALLS))))),
            blocks(published.drawn(source, published.SAMPLED_TOKENS)),
        )
        for _ in range(ROLLOUTS)
    ]


def call_pause(source: random.Random) -> tuple[str, float]:
    """By tool."""
    (tool,) = source.choices(list(published.TOOLS), [share for share, _ in published.TOOLS.values()])
    return tool, published.drawn(source, published.TOOLS[tool][1])


def gap_pause(source: random.Random) -> tuple[str, float]:
    """Of the one tool."""
    return "tool", published.drawn(source, published.GAP_SECONDS)


def recorded_plans(seed: int, trace: Path) -> list[Plan]:
    """Rollouts of a trace, drawn by the seed. `WorkloadError`, `OSError`: the file."""
    lines = trace.read_bytes().splitlines()
    try:
        chosen = random.Random(seed).sample(lines, min(ROLLOUTS, len(lines)))  # noqa: S311  # a workload, no secret
        return [_recorded(orjson.loads(line)) for line in chosen]
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError) as error:
        raise WorkloadError(
            f"{trace.name} is no trace that policies can run ({error}); a line is one rollout, and its steps are "
            "[new_in, out, tool_s, ..., context, new]"
        ) from error


def _recorded(line: Mapping[str, Any]) -> Plan:
    steps = line["steps"][: MAX_CALLS + 1]
    calls = tuple(
        PlannedCall("tool", blocks(step[1]), step[2] or 0.0, blocks(after[5] or after[0]))
        for step, after in pairwise(steps)
    )
    return Plan(blocks(steps[0][4]), calls, blocks(steps[-1][1]))


def workloads(trace: Path | None) -> dict[str, Callable[[int], list[Plan]]]:
    """By name; each makes the rollouts of a seed."""
    found: dict[str, Callable[[int], list[Plan]]] = {
        "calls": lambda seed: drawn_plans(seed, call_pause),
        "gaps": lambda seed: drawn_plans(seed, gap_pause),
    }
    if trace is not None:
        found["recorded"] = lambda seed: recorded_plans(seed, trace)
    return found


def uncut_calls(workload: str, seed: int, trace: Path | None) -> list[int]:
    """How many calls rollouts of a workload have that nothing was cut from: of the file, or drawn from its quantiles."""
    if workload == "recorded" and trace is not None:
        return [len(orjson.loads(line)["steps"]) - 1 for line in trace.read_bytes().splitlines()]
    source = random.Random(seed)  # noqa: S311  # a workload, no secret
    return [round(published.drawn(source, published.CALLS)) for _ in range(UNCUT_ROLLOUTS)]


def eta_of(calls: Sequence[int]) -> float | None:
    """At all pauses of rollouts with so many calls, of (calls done, calls left); None: there is nothing to correlate."""
    done = [number for count in calls for number in range(1, count + 1)]
    left = [number for count in calls for number in reversed(range(count))]
    return None if len(set(done)) < 2 else -statistics.correlation(done, left)
