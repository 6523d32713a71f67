"""Which overhead would explain a saving that somebody reported, and is there any that could?

A form that keeps `left` seconds of overhead a response, against one that has `o`: the rollout that samples for D seconds,
waits T for its tools and reads its history for H (of which the share r is work that the faster form saves) saves

    s = (n·(o - left) + r·H) / (D + T + H + n·o)        over n responses, so        o = (s·(D + T + H) - r·H + n·left) / n·(1 - s)

The saving grows with `o`. So the median rollout saves s exactly with the median of the rollouts' own overheads, which
makes intervals cheap: a bootstrap over the rollouts, seeded. What share of the history's term can be saved is not known,
so each answer is given for none, half and all of it. Above `most` seconds an overhead explains nothing: nobody has seen one.
"""

import math
import random
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from demos.lab import published, workload
from demos.lab.overhead import Sums, sums_of
from demos.lab.published import FITTED, OVERHEAD_SECONDS

EXPLAINED, NOT_EXPLAINED = 0, 1
REMOVABLE_SHARES: Final = (0.0, 0.5, 1.0)
DRAWS: Final = 1_000
CONFIDENCE: Final = 0.95
CLAIMED_CALLS: Final = 20
"""The claims are of rollouts with so many and more."""

SUMMARY: Final = "say which overhead of a response would explain a saving that somebody reported"
EPILOG: Final = """\
NUMBER is the saving in percent: 39 means that the faster form took 61 % of the time. For the median rollout of a workload,
at each speed of the model, with no, half and all of the work on the history saved besides, it says how many seconds of
overhead a response would have to have had, with a 95 % interval over the rollouts.

workloads:
  built-in           drawn from published quantiles of Claude Code's traffic; the default
  --works FILE       real rollouts, one JSON object a line: {"id", "ctx0", "steps": [[new_in, out, tool_s], ...]}
  --calls N          N calls, all alike, without a history

exit codes:
  0    some overhead up to --most would explain it, for some speed and share
  1    none would; the largest saving that one could make is said
  2    wrong usage, or a file that is no workload
"""


@attrs.frozen
class Needed:
    """What it takes at one speed, with one share of the history's work saved besides."""

    tokens_per_second: float
    removable_share: float
    seconds: float
    """Of overhead for each response, so that the median rollout saves as much."""
    low: float | None
    high: float | None
    """Its interval over the rollouts; None: there is one rollout only."""
    one_in_ten_seconds: float
    """So that a tenth of the rollouts does: what "up to" may mean."""
    bound: float
    """The median rollout's saving with the largest overhead."""
    explained: bool


@attrs.frozen
class Calibration:
    """The whole answer."""

    saving: float
    left_seconds: float
    most_seconds: float
    rollouts: int
    calls: tuple[int, int, int]
    """Fewest, median, most."""
    tool_share: float
    """Of all time at the slowest of the speeds, with the largest overhead: what no protocol changes."""
    decoding_share: float
    needed: tuple[Needed, ...]

    @property
    def explained(self) -> bool:
        """By any."""
        return any(each.explained for each in self.needed)


def calibrate(
    works: Sequence[Sums],
    saving: float,
    *,
    rates: Sequence[float] = (published.TOKENS_PER_SECOND, published.FAST_TOKENS_PER_SECOND),
    left_seconds: float = OVERHEAD_SECONDS["create"],
    most_seconds: float = FITTED.fixed_seconds.high,
    seed: int = 0,
    draws: int = DRAWS,
) -> Calibration:
    """`saving` is a share of 0 up to 1. `ValueError`: it is none, no rollout, or more overhead is left than there may be."""
    if not 0 <= saving < 1:
        raise ValueError(f"a saving of {saving:.0%} is none: it must be 0 % or more, and less than 100 %")
    if not works:
        raise ValueError("no rollout")
    if not 0 <= left_seconds <= most_seconds < math.inf:
        raise ValueError(
            f"--left {left_seconds:g} s must be 0 or more and at most --most, {most_seconds:g} s, which is finite"
        )
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise ValueError("--tokens-per-second must be more than 0, and finite")
    source = random.Random(seed)  # noqa: S311  # a bootstrap, not a secret
    resamples = [source.choices(range(len(works)), k=len(works)) for _ in range(draws)]
    calls = sorted(sums.responses - 1 for sums in works)
    total = math.fsum(_seconds(sums, min(rates)) + sums.responses * most_seconds for sums in works)
    return Calibration(
        saving=saving,
        left_seconds=left_seconds,
        most_seconds=most_seconds,
        rollouts=len(works),
        calls=(calls[0], calls[len(calls) // 2], calls[-1]),
        tool_share=math.fsum(sums.tool_seconds for sums in works) / total,
        decoding_share=sum(sums.sampled_tokens for sums in works) / min(rates) / total,
        needed=tuple(
            _needed(works, saving, rate, share, left_seconds, most_seconds, resamples)
            for rate in rates
            for share in REMOVABLE_SHARES
        ),
    )


def needed_seconds(
    sums: Sums, saving: float, tokens_per_second: float, *, removable_share: float, left_seconds: float
) -> float:
    """The overhead with which this rollout saves as much; not less than what is left: then the history explains it."""
    removed = removable_share * _history_seconds(sums)
    wanted = saving * _seconds(sums, tokens_per_second) - removed + sums.responses * left_seconds
    return max(left_seconds, wanted / (sums.responses * (1 - saving)))


def saving_with(
    sums: Sums,
    overhead_seconds: float,
    tokens_per_second: float,
    *,
    removable_share: float,
    left_seconds: float,
) -> float:
    """What this rollout saves with an overhead; the inverse of `needed_seconds`."""
    saved = sums.responses * (overhead_seconds - left_seconds) + removable_share * _history_seconds(sums)
    return saved / (_seconds(sums, tokens_per_second) + sums.responses * overhead_seconds)


def _history_seconds(sums: Sums) -> float:
    return FITTED.seconds_per_context_token.value * sums.context_tokens


def _seconds(sums: Sums, tokens_per_second: float) -> float:
    """All but the overhead."""
    return sums.sampled_tokens / tokens_per_second + sums.tool_seconds + _history_seconds(sums)


def _needed(
    works: Sequence[Sums],
    saving: float,
    rate: float,
    share: float,
    left_seconds: float,
    most_seconds: float,
    resamples: Sequence[Sequence[int]],
) -> Needed:
    each = [
        needed_seconds(sums, saving, rate, removable_share=share, left_seconds=left_seconds) for sums in works
    ]
    medians = sorted(statistics.median([each[index] for index in resample]) for resample in resamples)
    outside = int(len(medians) * (1 - CONFIDENCE) / 2)
    median = statistics.median(each)
    return Needed(
        tokens_per_second=rate,
        removable_share=share,
        seconds=median,
        low=medians[outside] if len(works) > 1 else None,
        high=medians[-1 - outside] if len(works) > 1 else None,
        one_in_ten_seconds=sorted(each)[(len(each) - 1) // 10],
        bound=statistics.median(
            saving_with(sums, most_seconds, rate, removable_share=share, left_seconds=left_seconds)
            for sums in works
        ),
        explained=median <= most_seconds,
    )


# --- what is said --------------------------------------------------------------------------------------------------


def lines_of(calibration: Calibration) -> Iterator[str]:
    """For the terminal."""
    yield (
        f"a saving of {calibration.saving:.1%}, of {_rollouts(calibration)}, the faster form keeping {calibration.left_seconds:g} s a response"
    )
    yield ""
    yield "tokens/s  history saved  overhead needed, s [95 %]    for one in ten  at most, with the largest overhead"
    for each in calibration.needed:
        interval = f"{each.seconds:.3f} {_interval(each)}"
        yield (
            f"{each.tokens_per_second:8,.0f}  {each.removable_share:13.0%}  {interval:27}  "
            f"{each.one_in_ten_seconds:14.3f}  {each.bound:.1%}{'' if each.explained else '  not explained'}"
        )
    yield ""
    yield _verdict(calibration)
    yield (
        f"for comparison, overheads that OpenAI's ten timings leave at {published.TOKENS_PER_SECOND:g} tokens/s: "
        f"{OVERHEAD_SECONDS['http']:g} s (HTTP), {OVERHEAD_SECONDS['create']:g} s (WebSocket)"
    )


def _rollouts(calibration: Calibration) -> str:
    fewest, median, most = calibration.calls
    if calibration.rollouts == 1:
        return f"one rollout with {median} calls"
    return f"the median of {calibration.rollouts:,} rollouts with {fewest} to {most} calls (median {median})"


def _interval(needed: Needed) -> str:
    if needed.low is None or needed.high is None:
        return "[one rollout]"
    return f"[{needed.low:.3f}, {needed.high:.3f}]"


def _verdict(calibration: Calibration) -> str:
    largest = f"{calibration.most_seconds:g} s a response"
    if not calibration.explained:
        return (
            f"no overhead up to {largest} explains it: the median rollout saves at most "
            f"{max(each.bound for each in calibration.needed):.1%}. With that overhead, at the slowest speed, tools are "
            f"{calibration.tool_share:.0%} of the time and decoding is {calibration.decoding_share:.0%}; no form changes either"
        )
    least = min((each for each in calibration.needed if each.explained), key=lambda each: each.seconds)
    if least.seconds <= calibration.left_seconds:
        return (
            f"explained without any overhead of a response at {least.tokens_per_second:,.0f} tokens/s, if "
            f"{least.removable_share:.0%} of the work on the history can be saved: whether it can, nobody has published"
        )
    return (
        f"explained from {least.seconds:.3f} s a response on (largest: {largest}), "
        f"at {least.tokens_per_second:,.0f} tokens/s with {least.removable_share:.0%} of the work on the history saved"
    )


def as_json(calibration: Calibration) -> dict[str, Any]:
    """All of it."""
    return {**attrs.asdict(calibration), "explained": calibration.explained}


# --- the command ---------------------------------------------------------------------------------------------------


def add_arguments(parser: ArgumentParser) -> None:
    """The command's arguments; `SUMMARY` and `EPILOG` are its help."""
    add = parser.add_argument
    add("saving", type=float, metavar="NUMBER", help="the reported saving, in percent")
    add("--works", type=Path, metavar="FILE", help="real rollouts (default: the built-in workload)")
    add("--calls", type=int, metavar="N", help="instead: one rollout of N calls, all alike")
    add(
        "--sampled-tokens",
        type=int,
        default=100,
        metavar="N",
        help="with --calls: of each step (default: 100; OpenAI's ten timings have 19)",
    )
    add(
        "--scenario",
        choices=workload.SCENARIOS,
        default="B",
        help="tool times: A as recorded, B drawn, Z none",
    )
    add(
        "--min-calls",
        type=int,
        default=CLAIMED_CALLS,
        metavar="N",
        help="rollouts with at least N (default: 20)",
    )
    add("--rollouts", type=int, default=400, metavar="N", help="at most so many, by seed (default: 400)")
    add(
        "--tokens-per-second",
        type=float,
        nargs="+",
        default=[published.TOKENS_PER_SECOND, published.FAST_TOKENS_PER_SECOND],
        metavar="N",
        help="of the model (default: 65 1000)",
    )
    add(
        "--left",
        type=float,
        default=OVERHEAD_SECONDS["create"],
        metavar="SECONDS",
        help="overhead that the faster form keeps (default: 0.384)",
    )
    add(
        "--most",
        type=float,
        default=FITTED.fixed_seconds.high,
        metavar="SECONDS",
        help="the largest to believe in (default: 1.248)",
    )
    add("--seed", type=int, default=0)
    add("--json", action="store_true", help="one JSON object instead")


def run(arguments: Namespace, say: Callable[[str], None] = print) -> int:
    """The exit code. `ValueError`: the numbers or the file are wrong."""
    calibration = calibrate(
        [sums_of(work) for work in _works(arguments)],
        arguments.saving / 100,
        rates=arguments.tokens_per_second,
        left_seconds=arguments.left,
        most_seconds=arguments.most,
        seed=arguments.seed,
    )
    if arguments.json:
        say(orjson.dumps(as_json(calibration)).decode())
    else:
        for line in lines_of(calibration):
            say(line)
    return EXPLAINED if calibration.explained else NOT_EXPLAINED


def _alike(arguments: Namespace) -> workload.Work:
    return workload.uniform(arguments.calls, 0, sampled_tokens=arguments.sampled_tokens)


def _works(arguments: Namespace) -> Sequence[workload.Work]:
    seed, scenario, count = arguments.seed, arguments.scenario, arguments.rollouts
    if count < 1 or arguments.min_calls < 0:
        raise ValueError(f"--rollouts {count} and --min-calls {arguments.min_calls} must be at least 1 and 0")
    if arguments.calls is not None and arguments.works is not None:
        raise ValueError("--calls and --works exclude each other")
    if arguments.calls is not None:
        return [workload.with_scenario(_alike(arguments), scenario, seed)]
    if arguments.works is None:
        return workload.built_in(count, seed, scenario=scenario, min_calls=arguments.min_calls)
    try:
        works = workload.read(arguments.works, scenario=scenario, seed=seed, min_calls=arguments.min_calls)
    except OSError as error:
        raise workload.WorkloadError(f"--works {arguments.works}: {error.strerror}") from error
    if not works:
        raise workload.WorkloadError(f"{arguments.works} has no rollout of --min-calls {arguments.min_calls}")
    return workload.selected(works, count, seed)
