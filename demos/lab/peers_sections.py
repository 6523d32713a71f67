"""What a result file of the comparison with other servers holds, and the sections that show it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from demos.lab.peers import PROBE, SERVER, TURN
from demos.lab.peers_arms import ARMS, CONTINUED, GROUPS, HOP, SSE, STEADY, WEBSOCKET, Arm
from demos.lab.peers_facts import CONTRACTS
from demos.lab.peers_plot import Bar, bars
from demos.lab.report import Cell, Section, Table
from demos.lab.results import ResultsReader
from demos.lab.statistics import median
from protocol.invariants import RULES

CPU: Final = "cpu_us_per_delta"
OURS: Final = "ours"
RATIOS: Final = (
    ("ours-sse", "aimock-sse"),
    ("ours-sse", "llm-mock-sse"),
    ("ours-ws", "aimock-ws"),
    ("ours-continued", "ours-ws"),
    ("ours-continued", "aimock-ws"),
    ("litellm-ours", "ours-sse"),
    ("litellm-aimock", "aimock-sse"),
    ("ours-paced", "aimock-paced"),
    ("ours-stepped", "aimock-paced"),
)

Detail = Mapping[str, Any]


@attrs.frozen
class Results:
    """What a file holds, sorted out."""

    servers: Mapping[str, Detail]
    turns: Mapping[str, Sequence[Detail]]
    """Of each arm, those that ended well."""
    errors: Mapping[str, Sequence[Detail]]
    facts: Mapping[str, Sequence[Mapping[str, str]]]

    def middle(self, arm: str, what: str) -> float | None:
        """The median over all turns of an arm; None: there are none, or the figure is not known."""
        return median(turn[what] for turn in self.turns.get(arm, ()) if turn[what] is not None)

    def ratios(self, arm: str, base: str, what: str = CPU) -> list[float]:
        """In each block that has both."""
        mine, theirs = self._blocks(arm, what), self._blocks(base, what)
        return [mine[block] / theirs[block] for block in mine if theirs.get(block)]

    def _blocks(self, arm: str, what: str) -> dict[int, float]:
        found: dict[int, list[float]] = defaultdict(list)
        for turn in self.turns.get(arm, ()):
            if turn[what] is not None:
                found[turn["block"]].append(turn[what])
        return {block: value for block, values in found.items() if (value := median(values)) is not None}


def read(reader: ResultsReader) -> Results:
    """Of a server that was started again, the last note counts."""
    servers: dict[str, Detail] = {}
    turns: dict[str, list[Detail]] = defaultdict(list)
    errors: dict[str, list[Detail]] = defaultdict(list)
    facts: dict[str, Sequence[Mapping[str, str]]] = {}
    for note in reader.notes():
        detail = note.detail
        if note.topic == SERVER:
            servers[detail["server"]] = detail
        elif note.topic == TURN:
            (errors if "error" in detail else turns)[detail["arm"]].append(detail)
        elif note.topic == PROBE:
            facts[detail["arm"]] = detail["facts"]
    return Results(servers, turns, errors, facts)


# --- sections ------------------------------------------------------------------------------------------------------


def sections(results: Results, source: str) -> Iterator[Section]:
    """All of them, in their order."""
    yield _cpu("CPU time of a delta, as fast as it goes", (SSE, WEBSOCKET, CONTINUED, HOP), results, source)
    yield _cpu("CPU time of a delta, 1,000 a second", (STEADY,), results, source)
    yield _ratios(results, source)
    yield _findings(results, source)
    yield from _matrix(results, source)
    yield _contracts(source)


def _cpu(title: str, groups: Sequence[str], results: Results, source: str) -> Section:
    arms = [arm for group in groups for arm in ARMS.values() if arm.group == group]
    told = [
        f"{arm.title} ({arm.group}) {value:.3g}" for arm in arms if (value := results.middle(arm.name, CPU))
    ]
    return Section(
        title=title,
        sentence=f"CPU µs a delta at the median: {', '.join(told)}." if told else "No data.",
        source=source,
        picture=bars(
            [_bar(arm, results) for arm in arms],
            title=title,
            x_label="CPU µs for a delta; whiskers: lowest and highest turn; blue: this engine",
        ),
        table=Table(
            (
                "what may be compared",
                "server",
                "CPU, µs/delta",
                "lowest",
                "highest",
                "server behind, µs/delta",
                "first event, ms",
                "first delta, ms",
                "whole turn, ms",
                "bytes up",
                "bytes down/delta",
                "connections",
                "turns",
                "failed",
            ),
            tuple(_row(arm, results) for arm in arms),
        ),
        caveat=" ".join(f"{group}: {GROUPS[group]}" for group in groups),
    )


def _bar(arm: Arm, results: Results) -> Bar:
    seen = [turn[CPU] for turn in results.turns.get(arm.name, ()) if turn[CPU] is not None]
    label = f"{arm.title}, {arm.group.removeprefix('flood, ')}"
    if not seen:
        return Bar(label, None)
    return Bar(label, median(seen), min(seen), max(seen), ours=arm.server.startswith(OURS))


def _row(arm: Arm, results: Results) -> tuple[Cell, ...]:
    turns = results.turns.get(arm.name, ())
    seen = [turn[CPU] for turn in turns if turn[CPU] is not None]
    middles = (
        results.middle(arm.name, what)
        for what in (
            "behind_cpu_us_per_delta",
            "first_event_ms",
            "first_delta_ms",
            "whole_ms",
            "bytes_up",
            "bytes_down_per_delta",
        )
    )
    return (
        arm.group,
        arm.title,
        median(seen),
        min(seen, default=None),
        max(seen, default=None),
        *middles,
        max((turn["connections"] for turn in turns), default=None),
        len(turns),
        len(results.errors.get(arm.name, ())),
    )


def _ratios(results: Results, source: str) -> Section:
    rows: list[tuple[Cell, ...]] = []
    for name, base in RATIOS:
        found = results.ratios(name, base)
        shown = f"{ARMS[name].title} ({ARMS[name].group}) / {ARMS[base].title} ({ARMS[base].group})"
        rows.append((shown, median(found), min(found, default=None), max(found, default=None), len(found)))
    known = [f"{row[0]} {row[1]:.2f}" for row in rows if isinstance(row[1], float)]
    return Section(
        title="Ratios of CPU time within a block",
        sentence=f"At the median over blocks: {', '.join(known)}." if known else "No data.",
        source=source,
        table=Table(("CPU time for a delta", "median", "lowest", "highest", "blocks"), tuple(rows)),
        caveat="Servers of different contracts do different work: what each does stands below.",
    )


def _findings(results: Results, source: str) -> Section:
    rows: list[tuple[Cell, ...]] = []
    for arm in ARMS.values():
        turns = results.turns.get(arm.name, ())
        total: Counter[str] = Counter()
        for turn in turns:
            total.update(turn["findings"])
        rows += [
            (arm.title, arm.group, rule, RULES[rule].statement, count, len(turns))
            for rule, count in sorted(total.items())
        ]
    broken = sorted({str(row[0]) for row in rows})
    measured = [arm for arm in ARMS.values() if results.turns.get(arm.name)]
    return Section(
        title="What the trace checker finds",
        sentence=f"It finds something at {', '.join(broken)}."
        if broken
        else "It finds nothing at any."
        if measured
        else "No data.",
        source=source,
        table=Table(("server", "of", "rule", "it says", "times", "turns"), tuple(rows)),
        caveat="A rule counts once for each event that breaks it. A mock without numbers may serve clients that need none.",
    )


def _matrix(results: Results, source: str) -> Iterator[Section]:
    names = [*dict.fromkeys(fact["name"] for facts in results.facts.values() for fact in facts)]
    columns = [ARMS[arm] for arm in ARMS if arm in results.facts]
    by_arm = {arm: {fact["name"]: fact for fact in facts} for arm, facts in results.facts.items()}
    heads = tuple(f"{arm.title}, {arm.way}" for arm in columns)
    rows = tuple((name, *(_verdict(by_arm[arm.name].get(name)) for arm in columns)) for name in names)
    yield Section(
        title="What each does and does not do, as observed",
        sentence=f"{len(names)} facts about {len(columns)} servers and ways, each by a request and what came back."
        if columns
        else "No data.",
        source=source,
        table=Table(("fact", *heads), rows),
        caveat="What came back stands in the next table. `unknown`: it does not show from outside. Empty: not asked in this way.",
    )
    seen = tuple(
        (arm.title, arm.way, fact["name"], fact["verdict"], fact["seen"])
        for arm in columns
        for fact in results.facts[arm.name]
    )
    yield Section(
        title="What came back",
        sentence=f"{len(seen)} answers to probes.",
        source=source,
        table=Table(("server", "way", "fact", "verdict", "seen"), seen),
    )


def _verdict(fact: Mapping[str, str] | None) -> str:
    return "" if fact is None else fact["verdict"]


def _contracts(source: str) -> Section:
    return Section(
        title="What cannot be seen from outside",
        sentence="Taken from the sources named, not observed.",
        source=source,
        table=Table(
            ("server", "how events are made and sent", "work for the text", "safety stage", "source"),
            tuple(attrs.astuple(row) for row in CONTRACTS),
        ),
    )
