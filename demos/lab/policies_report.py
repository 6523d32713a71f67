"""Which model state should stay, shown: time, reuse and waits of every policy by workload and memory, and each `eta`.

All of it is built from one result file of `demos.lab.policies`.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from demos.lab import plots
from demos.lab.plots import Estimate, Series
from demos.lab.policies import ETA, NEED, PACE, RUN, SLOTS, UNBOUNDED, run_key
from demos.lab.policy_workloads import BLOCK, MAX_CALLS
from demos.lab.report import Cell, Check, Report, Section, Table
from demos.lab.results import ResultsReader
from demos.lab.wording import percent, trust

BASE: Final = "keep"
"""What a prefix cache does; ratios are to it."""
_CALM: Final = 0.1
"""An `eta` nearer to 0 says nothing of how soon a rollout ends (our choice)."""

METHOD: Final = (
    (
        f"Whole rollouts of the engine in virtual time, all begun at once on {SLOTS} slots, up to {MAX_CALLS} calls each, with a "
        f"simulated model: {PACE.first_token_seconds:g} s before each segment, {PACE.tokens_per_second * BLOCK:g} tokens/s "
        f"sampled, {(PACE.prefill_tokens_per_second or 0) * BLOCK:,.0f} tokens/s read. A simulated token stands for {BLOCK} real ones."
    ),
    "Memory is a share of the most that the same rollouts fill without a bound; ratios are taken seed by seed.",
    "`calls`: tools drawn from TraceLab's medians and tail. `gaps`: Claude Code's pauses, the user's own time in them.",
    "`recorded`: rollouts of the trace that was given, as they are.",
    "A rollout's time runs from its create to its end: waits for a slot and for memory, tools, and all that is computed.",
)
NOT_MEASURED: Final = (
    "Real memory, batching (a slot's speed does not depend on the others), saving to disk.",
    "Arrivals: all rollouts begin at once.",
)


def report_of(path: Path) -> Report:
    """The report of a result file; it is to be written beside it. `ResultsError`: the file is none."""
    reader = ResultsReader(path)
    notes = [*reader.notes()]
    runs = [*{run_key(note.detail): note.detail for note in notes if note.topic == RUN}.values()]
    etas = [note.detail for note in notes if note.topic == ETA]
    workloads = [*dict.fromkeys(run["workload"] for run in runs)]
    needs = {
        name: statistics.fmean(
            n.detail["tokens"] for n in notes if n.topic == NEED and n.detail["workload"] == name
        )
        for name in workloads
    }
    sections: list[Section] = []
    for name in workloads:
        own = [run for run in runs if run["workload"] == name]
        sections += [_ratios(own, name, path.name), _times(own, name, needs[name], path.name)]
        sections += [_reuse(own, name, path.name)]
    return Report(
        title="Policies: which model state should stay while tools run",
        header=reader.header,
        summary=(*_summary(runs, workloads),),
        sections=(*sections, *([_eta(etas, path.name)] if etas else [])),
        method=METHOD,
        checks=(_finished(runs), *trust(reader.header, notes, ())),
        files=(path.name,),
        not_measured=NOT_MEASURED,
    )


def ratios(runs: Sequence[Mapping[str, Any]], policy: str, share: float) -> list[float]:
    """Of the mean times to those of `keep`, seed by seed; seeds that lack one of both are left out."""
    base = {run["seed"]: run["mean_s"] for run in _at(runs, BASE, share)}
    own = _at(runs, policy, None if policy == UNBOUNDED else share)
    return [run["mean_s"] / base[run["seed"]] for run in own if run["seed"] in base]


def _at(runs: Sequence[Mapping[str, Any]], policy: str, share: float | None) -> list[Mapping[str, Any]]:
    return [run for run in runs if (run["policy"], run["memory_share"]) == (policy, share)]


def _shares(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    return sorted({run["memory_share"] for run in runs if run["memory_share"] is not None})


def _policies(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Bounded ones, `keep` first as it was run."""
    return [*dict.fromkeys(run["policy"] for run in runs if run["policy"] != UNBOUNDED)]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _summary(runs: Sequence[Mapping[str, Any]], workloads: Sequence[str]) -> Iterator[str]:
    for name in workloads:
        own = [run for run in runs if run["workload"] == name]
        for share in _shares(own)[:1]:
            found = {policy: _mean(ratios(own, policy, share)) for policy in _policies(own)}
            known = {policy: value for policy, value in found.items() if value is not None}
            if known:
                best = min(known, key=known.__getitem__)
                verdict = (
                    f"nothing beats {BASE}" if best == BASE else f"{best} is best, {_against(known[best])}"
                )
                yield f"{name}, {share:.0%} of the memory: {verdict}."


def _against(ratio: float) -> str:
    if ratio == 1:
        return f"as long as {BASE}"
    return f"{percent(abs(1 - ratio))} {'less' if ratio < 1 else 'more'} time than {BASE}"


def _ratios(runs: Sequence[Mapping[str, Any]], name: str, source: str) -> Section:
    shares = _shares(runs)
    found = {
        (share, policy): ratios(runs, policy, share)
        for share in shares
        for policy in (UNBOUNDED, *_policies(runs))
        if policy != BASE
    }
    tightest = shares[0]
    told = ", ".join(
        f"{policy} {_against(statistics.fmean(values))}"
        for (share, policy), values in found.items()
        if share == tightest and policy != UNBOUNDED and values
    )
    bound = found[tightest, UNBOUNDED]
    best = f"; no policy can do better than {statistics.fmean(bound):.2f} times" if bound else ""
    return Section(
        title=f"Ratio to {BASE}, workload {name}",
        sentence=f"{name}, with {tightest:.0%} of the memory that is needed: {told or 'no data'}{best}.",
        source=source,
        picture=plots.intervals(
            [
                Estimate(
                    f"{policy}, {share:.0%}",
                    _mean(values),
                    *((min(values), max(values)) if values else (None, None)),
                )
                for (share, policy), values in found.items()
            ],
            title=f"Mean rollout time as a ratio to {BASE}, workload {name}",
            x_label=f"ratio to {BASE} with the same memory; the line is the range over seeds, not an interval",
            level=1.0,
        ),
        table=Table(
            ("memory", "policy", "seeds", "ratio", "lowest", "highest"),
            tuple(
                (
                    f"{share:.0%}",
                    policy,
                    len(values),
                    _mean(values),
                    min(values, default=None),
                    max(values, default=None),
                )
                for (share, policy), values in found.items()
            ),
        ),
        caveat="Left of the line is faster. `unbounded` has all the memory it wants, whatever the share.",
    )


def _times(runs: Sequence[Mapping[str, Any]], name: str, need: float, source: str) -> Section:
    shares = _shares(runs)

    def line(policy: str, of: Callable[[Sequence[float]], float]) -> list[float | None]:
        return [
            of([run["mean_s"] for run in at]) if (at := _at(runs, policy, share)) else None
            for share in shares
        ]

    series = [
        Series(
            policy,
            [100 * share for share in shares],
            line(policy, statistics.fmean),
            line(policy, min),
            line(policy, max),
        )
        for policy in _policies(runs)
    ]
    unbounded = _mean([run["mean_s"] for run in runs if run["policy"] == UNBOUNDED])
    ends = [value for one in series if (value := one.y[-1]) is not None]
    told = f"{min(ends):,.0f} to {max(ends):,.0f} s" if ends else "no data"
    return Section(
        title=f"Time by memory, workload {name}",
        sentence=f"{name}: with {shares[-1]:.0%} of the {need * BLOCK:,.0f} tokens that are needed the policies take {told} a "
        f"rollout{'' if unbounded is None else f', and {unbounded:,.0f} s without a bound'}.",
        source=source,
        picture=plots.lines(
            series,
            title=f"Mean time of a rollout by memory, workload {name}",
            x_label="memory, % of what is filled without a bound",
            y_label="mean time of a rollout, s",
            level=unbounded,
            level_name="without a bound",
        ),
        table=Table(
            ("policy", *(f"{share:.0%}: mean, s" for share in shares)),
            tuple((one.label, *one.y) for one in series),
        ),
        caveat="Bands are ranges over seeds.",
    )


def _reuse(runs: Sequence[Mapping[str, Any]], name: str, source: str) -> Section:
    shares = _shares(runs)
    rows: list[tuple[Cell, ...]] = []
    for share, policy in [
        (None, UNBOUNDED),
        *((share, policy) for share in shares for policy in _policies(runs)),
    ]:
        at = _at(runs, policy, share)
        means = [_mean([run[value] for run in at]) for value in ("cached", "dropped")]
        rows.append(
            (
                "no bound" if share is None else f"{share:.0%}",
                policy,
                None if means[0] is None else 100 * means[0],
                means[1],
                max((run["slot_wait_s"] for run in at), default=None),
                max((run["room_wait_s"] for run in at), default=None),
            )
        )
    cached = {
        policy: _mean([run["cached"] for run in _at(runs, policy, shares[0])]) for policy in _policies(runs)
    }
    told = ", ".join(f"{policy} {percent(value)}" for policy, value in cached.items() if value is not None)
    series = [
        Series(
            policy,
            [100 * share for share in shares],
            [_mean([run["cached"] for run in _at(runs, policy, share)]) for share in shares],
        )
        for policy in _policies(runs)
    ]
    return Section(
        title=f"What is found in memory, and the longest waits, workload {name}",
        sentence=f"{name}, with {shares[0]:.0%} of the memory: of the prompts' tokens are found in memory: {told or 'no data'}.",
        source=source,
        picture=plots.lines(
            series,
            title=f"Share of the prompts' tokens that was in memory, workload {name}",
            x_label="memory, % of what is filled without a bound",
            y_label="found in memory",
            percent=True,
        ),
        table=Table(
            (
                "memory",
                "policy",
                "found, %",
                "states dropped",
                "longest wait for a slot, s",
                "longest for memory, s",
            ),
            tuple(rows),
        ),
        caveat="What is found in memory is no end in itself: a state that is kept may make others wait.",
    )


def _eta(etas: Sequence[Mapping[str, Any]], source: str) -> Section:
    found: dict[str, list[float]] = {}
    for one in etas:
        for which, eta in one["eta"].items():
            found.setdefault(f"{one['workload']}, {which}", []).extend([] if eta is None else [eta])
    told = "; ".join(
        f"{name} {statistics.fmean(values):+.2f} ({_meaning(statistics.fmean(values))})"
        for name, values in found.items()
        if values
    )
    return Section(
        title="eta: does a rollout that has called often end soon?",
        sentence=f"{told or 'No data'}.".replace("-", "\N{MINUS SIGN}"),
        source=source,
        picture=plots.intervals(
            [
                Estimate(name, _mean(values), *((min(values), max(values)) if values else (None, None)))
                for name, values in found.items()
            ],
            title="eta: the negated correlation of calls done and calls left, at the pauses",
            x_label="eta; the line is the range over seeds, not an interval",
            level=0.0,
        ),
        table=Table(
            ("workload", "seeds", "eta", "lowest", "highest"),
            tuple(
                (name, len(values), _mean(values), min(values, default=None), max(values, default=None))
                for name, values in found.items()
            ),
        ),
        caveat=f"As run: cut after {MAX_CALLS} calls, which makes long rollouts alike and lifts eta; of few rollouts. Uncut: of the "
        "whole file, or of as many drawn call counts; a drawn one knows nothing but the published quantiles.",
    )


def _meaning(eta: float) -> str:
    if eta > _CALM:
        return "it does, as the queueing term of ttl takes for granted"
    return (
        "it does not: the queueing term of ttl vanishes"
        if eta > -_CALM
        else "rather the opposite: that term turns negative"
    )


def _finished(runs: Sequence[Mapping[str, Any]]) -> Check:
    missing = sum(run["rollouts"] - run["finished"] for run in runs)
    detail = f"{missing} of {sum(run['rollouts'] for run in runs)} rollouts did not end well"
    return Check("all rollouts of all runs ended", missing == 0 if runs else None, detail)
