"""The comparison with other servers, as a report: what an event costs, what each does, what was not measured. From the file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from demos.lab.peers import MISSING, RUNS
from demos.lab.peers_arms import ARMS, STEADY
from demos.lab.peers_sections import OURS, Results, read, sections
from demos.lab.report import Check, Report
from demos.lab.results import ResultsReader
from demos.lab.statistics import median
from demos.lab.wording import known_environment

FEWEST_BLOCKS: Final = 5
SAME: Final = 1.5
"""By so much the same arm may differ from itself, at the median; the machine's CPU times move by 15 % and more."""
TARGET: Final = 1 / 3
"""Of aimock's CPU time for a delta over WebSocket."""
CONTROL: Final = ("ours-sse", "ours-sse#2")
METHOD: Final = (
    "One raw client for all: a blocking socket, the same bytes up, and what comes down is read when the clock has stopped.",
    "All servers run at once, each in a process group of its own; one is asked at a time, in drawn order within a block.",
    "A block of an arm is one connection: a turn that brings the history is thrown away, the next ones are measured.",
    "CPU time: of all processes of the server, from outside, until 0.2 s after the turn; what they take when idle is in it.",
    "For a delta: that of the whole turn, reading the history too, by its deltas; so it falls with longer answers.",
    "Figures are medians over all turns with their range; ratios are of medians within a block, with the range over blocks.",
    "Times are the client's, from the request's first byte; of an answer, the last byte.",
    "Findings: the trace checker's, by the rules that hold for any server (profile any-server).",
)
NOT_MEASURED: Final = (
    "Several connections at once, TLS, a network, memory, and clients that read slowly.",
    "aimock's and llm-mock-api's recording and chaos, LiteLLM's database, budgets, callbacks and several workers.",
    "A model: all answers are made beforehand or by a program.",
)


def report_of(path: Path) -> Report:
    """The report of a result file of `peers`; it is to be written beside it. `ResultsError`."""
    reader = ResultsReader(path)
    results = read(reader)
    return Report(
        title="The same client and turn against other servers",
        header=reader.header,
        summary=tuple(_summary(results)),
        sections=tuple(sections(results, path.name)),
        method=METHOD,
        checks=(*_checks(results), known_environment(reader.header, [*reader.notes()])),
        files=(path.name,),
        not_measured=(*absent(results), *NOT_MEASURED),
    )


def absent(results: Results) -> Iterator[str]:
    """Servers of which there are no figures, with the reason, and what would bring them."""
    for server in results.servers.values():
        if server["state"] == MISSING:
            yield f"{server['title']}: not measured: not installed, {server['reason']}"
        elif server["state"] != RUNS:
            yield f"{server['title']}: not measured: {server['reason']}"


def _summary(results: Results) -> Iterator[str]:
    found = results.ratios("ours-ws", "aimock-ws")
    ratio = median(found)
    if ratio is None:
        yield "Over WebSocket there is nothing to compare with: aimock was not measured."
    else:
        verdict = "reached" if ratio <= TARGET else "missed"
        yield (
            f"Over WebSocket this engine takes {ratio:.2f} of aimock's CPU time for a delta ({_range(found)} in "
            f"{len(found)} blocks), with all its work for the whole history; the target of {TARGET:.2f} is {verdict}."
        )
    yield from absent(results)


# --- checks --------------------------------------------------------------------------------------------------------


def _checks(results: Results) -> Iterator[Check]:
    failed = sum(map(len, results.errors.values()))
    why = "; ".join(f"{arm}: {errors[0]['error']}" for arm, errors in results.errors.items())
    yield Check("every turn ended well", not failed, f"{failed} failed" + (f"; {why}" if why else ""))
    ran = {arm: turns for arm, turns in results.turns.items() if turns}
    flood = [arm for arm in ran if ARMS[arm].group != STEADY]
    blocks = min((len({turn["block"] for turn in ran[arm]}) for arm in flood), default=0)
    yield Check("enough repeats", blocks >= FEWEST_BLOCKS, f"{blocks} blocks, at least {FEWEST_BLOCKS}")
    deltas = {turn["deltas"] for turns in ran.values() for turn in turns}
    shown = ", ".join(map(str, sorted(deltas)))
    yield Check(
        "equal work", len(deltas) == 1 if deltas else None, f"deltas of a turn: {shown or 'no turns'}"
    )
    most = max((turn["connections"] for turns in ran.values() for turn in turns), default=0)
    yield Check("warm baseline", most == 1 if ran else None, f"at most {most} connections of a client")
    found = results.ratios(*CONTROL)
    ratio = median(found)
    yield Check(
        "A/A shows no difference",
        None if ratio is None else 1 / SAME <= ratio <= SAME,
        f"the same arm twice: {ratio:.2f} ({_range(found)}), bound {SAME:g}" if ratio else "no data",
    )
    ours = [
        turn["findings"] for arm, turns in ran.items() if ARMS[arm].server.startswith(OURS) for turn in turns
    ]
    broken = sum(map(len, ours))
    yield Check(
        "protocol kept by this engine",
        not broken if ours else None,
        f"{broken} findings in {len(ours)} turns",
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
