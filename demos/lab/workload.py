"""Rollouts as numbers: what is sent, sampled and waited for at each model call, and where such numbers come from.

    uniform(…)    every step alike; varied(…) makes others of the same kind
    built_in(…)   drawn from published quantiles, by seed (`demos.lab.published`: linear in the logarithm between two)
    read(path)    real rollouts, a file of one JSON object a line: {"id", "ctx0", "steps": [[new_in, out, tool_s, …], …]}

Three scenarios of tool time, of every source but `uniform`: `A` as it was recorded, `B` drawn from TraceLab's quantiles,
call by call, `Z` none. The draws of a rollout hang on the seed and its name alone: a selection does not change them.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import orjson

from demos.lab import published

Scenario = Literal["A", "B", "Z"]
SCENARIOS: Final = ("A", "B", "Z")


class WorkloadError(ValueError):
    """A file or a number is no workload; the message names file, line and field, and the way out."""


def _not_negative(instance: object, attribute: "attrs.Attribute[Any]", value: float) -> None:  # noqa: ARG001  # attrs' signature
    if not 0 <= value < math.inf:
        raise WorkloadError(f"{attribute.name} is {value!r}; it must be 0 or more")


@attrs.frozen
class Step:
    """One model call."""

    new_tokens: int = attrs.field(validator=_not_negative)
    """What the client sends before it: at the first step the prompt without the history, later the tool's output."""
    sampled_tokens: int = attrs.field(validator=_not_negative)
    """With the call that it ends in."""
    tool_seconds: float = attrs.field(validator=_not_negative)
    """The client's time after it; 0 at the last step."""


@attrs.frozen
class Work:
    """One rollout."""

    name: str
    history_tokens: int = attrs.field(validator=_not_negative)
    """The context before its first step: sent as items by the forms that send again, else a part of the first create."""
    steps: tuple[Step, ...]

    def __attrs_post_init__(self) -> None:
        if not self.steps:
            raise WorkloadError(f"{self.name}: a rollout has at least one step")

    @property
    def calls(self) -> int:
        """Of tools: after each step but the last."""
        return len(self.steps) - 1

    @property
    def sampled_tokens(self) -> int:
        """Of all steps."""
        return sum(step.sampled_tokens for step in self.steps)

    @property
    def tool_seconds(self) -> float:
        """Of all steps."""
        return math.fsum(step.tool_seconds for step in self.steps)

    def contexts(self) -> Iterator[int]:
        """Tokens of the whole input of each step."""
        context = self.history_tokens
        for step in self.steps:
            context += step.new_tokens
            yield context
            context += step.sampled_tokens


# --- sources -------------------------------------------------------------------------------------------------------


def uniform(
    calls: int,
    history_tokens: int,
    *,
    new_tokens: int = 200,
    sampled_tokens: int = 100,
    tool_seconds: float = 0.0,
) -> Work:
    """A rollout whose steps are alike."""
    if calls < 0:
        raise WorkloadError(f"calls is {calls}; it must be 0 or more")
    step = Step(new_tokens, sampled_tokens, tool_seconds)
    return Work(
        f"uniform-{calls}-{history_tokens}",
        history_tokens,
        (*[step] * calls, attrs.evolve(step, tool_seconds=0.0)),
    )


def varied(work: Work, spread: float, number: int, seed: int) -> Work:
    """Another rollout of the same kind: as many calls, other lengths; in the mean over all of them, it is `work`.

    What a rollout's steps are sent and sample is drawn around its own mean, and that around the one of `work`; both
    evenly, from 1 - `spread` to 1 + `spread` of it. The history stays as it is.
    """
    name = f"{work.name}-{number}"
    source = _source(seed, name, "lengths")

    def factor() -> float:
        return source.uniform(1 - spread, 1 + spread)

    news, samples = factor(), factor()
    steps = tuple(
        attrs.evolve(
            step,
            new_tokens=round(step.new_tokens * news * factor()),
            sampled_tokens=round(step.sampled_tokens * samples * factor()),
        )
        for step in work.steps
    )
    return Work(name, work.history_tokens, steps)


def built_in(
    count: int, seed: int, *, scenario: Scenario = "B", min_calls: int = 1, max_calls: int = 91
) -> list[Work]:
    """Rollouts drawn from published quantiles; `A` takes Claude Code's gaps, with the user's own time in them.

    Every number is drawn on its own: that long rollouts have larger contexts, or slow tools longer outputs, is lost.
    """
    top = round(published.CALLS[-1][1])
    if count < 0 or not 0 <= min_calls <= max_calls or min_calls > top:
        raise WorkloadError(
            f"no {count} rollouts with {min_calls} to {max_calls} calls: the built-in has up to {top}"
        )
    return [
        _drawn_work(f"built-in-{number}", seed, scenario, min_calls, max_calls) for number in range(count)
    ]


def _drawn_work(name: str, seed: int, scenario: Scenario, min_calls: int, max_calls: int) -> Work:
    source = _source(seed, name, "work")
    calls = -1
    while not min_calls <= calls:  # what is above the most is cut, so that this ends soon
        calls = min(max_calls, round(published.drawn(source, published.CALLS)))
    history = round(published.drawn(source, published.CONTEXT_TOKENS))
    steps = [
        Step(
            round(published.drawn(source, published.NEW_TOKENS)),
            round(published.drawn(source, published.SAMPLED_TOKENS)),
            published.drawn(source, published.GAP_SECONDS),
        )
        for _ in range(calls + 1)
    ]
    steps[-1] = attrs.evolve(steps[-1], tool_seconds=0.0)
    return with_scenario(Work(name, history, tuple(steps)), scenario, seed)


def with_scenario(work: Work, scenario: Scenario, seed: int) -> Work:
    """The same rollout with other tool times; `A` changes nothing."""
    if scenario not in SCENARIOS:
        raise WorkloadError(f"scenario {scenario!r}: there are {', '.join(SCENARIOS)}")
    if scenario == "A":
        return work
    source = _source(seed, work.name, "tools")

    def seconds() -> float:
        return published.drawn(source, published.CALL_SECONDS_WITH_TAIL) if scenario == "B" else 0.0

    *calls, last = work.steps
    return attrs.evolve(work, steps=(*(attrs.evolve(step, tool_seconds=seconds()) for step in calls), last))


def _source(seed: int, name: str, what: str) -> random.Random:
    return random.Random(f"{seed}/{name}/{what}")  # noqa: S311  # a workload, not a secret


def selected(works: Sequence[Work], count: int, seed: int) -> list[Work]:
    """So many of them, by seed, in their order; all if there are no more."""
    if count >= len(works):
        return list(works)
    chosen = _source(seed, str(len(works)), "selection").sample(range(len(works)), count)
    return [works[index] for index in sorted(chosen)]


# --- files ---------------------------------------------------------------------------------------------------------


def read(path: Path, *, scenario: Scenario = "A", seed: int = 0, min_calls: int = 0) -> list[Work]:
    """The rollouts of a file with at least so many calls. `WorkloadError`, `OSError`."""
    with path.open("rb") as file:
        return list(works_of(file, path.name, scenario=scenario, seed=seed, min_calls=min_calls))


def works_of(
    lines: Iterable[bytes], name: str, *, scenario: Scenario = "A", seed: int = 0, min_calls: int = 0
) -> Iterator[Work]:
    """Those of its lines; `name` is said in errors."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            work = _work(orjson.loads(line), scenario)
        except orjson.JSONDecodeError as error:
            raise WorkloadError(f"{name}, line {number}: no JSON ({error}); one rollout a line") from None
        except WorkloadError as error:
            raise WorkloadError(f"{name}, line {number}: {error}") from None
        if work.calls >= min_calls:
            yield with_scenario(work, scenario, seed)


def _work(value: Any, scenario: Scenario) -> Work:
    """A line.

    `new_in` counts what missed a cache, the model's own output too where its blocks were not full. So what the client
    sends is the growth of `context` without the output before it, where the file has a context; if that is negative,
    which it is by some tens of tokens where counts were rounded, it is taken for nothing.
    """
    if not isinstance(value, dict):
        raise WorkloadError('it is no object; a rollout is {"id", "ctx0", "steps"}')
    name, rows = value.get("id"), value.get("steps")
    if not isinstance(name, str):
        raise WorkloadError(f"id is {name!r}; it must be a text")
    if not isinstance(rows, list) or not rows:
        raise WorkloadError(f"steps is {rows!r:.40}; it must be a list of at least one [new_in, out, tool_s]")
    if "t0" in value and scenario == "A":
        raise WorkloadError(
            "it has a t0: its column 2 is the time from request to request, no tool time; take scenario B or Z"
        )
    steps = []
    before: tuple[int, int] | None = None
    for index, row in enumerate(rows):
        where = f"steps[{index}]"
        if not isinstance(row, list) or len(row) < 3:
            raise WorkloadError(f"{where} is {row!r:.40}; it must be [new_in, out, tool_s, …]")
        new, out = _count(row[0], f"{where}[0] (new_in)"), _count(row[1], f"{where}[1] (out)")
        context = _count(row[4], f"{where}[4] (context)") if len(row) > 4 else None
        if before is not None and context is not None:
            new = max(0, context - sum(before))
        before = None if context is None else (context, out)
        is_last = index == len(rows) - 1
        steps.append(Step(new, out, 0.0 if is_last else _tool_seconds(row[2], where, scenario)))
    return Work(name, _count(value.get("ctx0"), "ctx0"), tuple(steps))


def _tool_seconds(value: Any, where: str, scenario: Scenario) -> float:
    """What is not known is not 0: only a scenario that does not ask for it goes on."""
    if value is None and scenario != "A":
        return 0.0
    if value is None:
        raise WorkloadError(f"{where}[2] (tool_s) is not known; take scenario B (drawn) or Z (none)")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise WorkloadError(f"{where}[2] (tool_s) is {value!r}; it must be seconds, 0 or more")
    return float(value)


def _count(value: Any, field: str) -> int:
    if type(value) is not int or value < 0:
        raise WorkloadError(f"{field} is {value!r}; it must be a whole number of 0 or more")
    return value
