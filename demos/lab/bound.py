"""Why a form does not save more: the bound, what is taken of it, and what would have to be true for the claimed saving.

Against naive HTTP nearly everything can be saved. Against an HTTP that keeps its connection and finds its prefix again,
model and round trips are most of what is left, and no form of the protocol shortens them. The report says how much that
is, from the same rollouts, so that who doubts the small saving finds the place where a larger one would have to come from.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from demos.lab.arms import with_turns
from demos.lab.budget_plot import Budget, budgets
from demos.lab.overhead import alpha_work, overhead_model_saving, sums_of
from demos.lab.published import ALPHA_SAVING_INTERVAL, OVERHEAD_SECONDS
from demos.lab.records import CellKey, CellValue, Rollout
from demos.lab.report import Cell, Section, Table
from demos.lab.split import AVOIDABLE, MEANINGS, NEEDED, PARTS, Split, costs_of, inputs_once, mean_split
from demos.lab.statistics import Comparison, compare
from demos.lab.wording import percent

MOST_TOLD: Final = 6
"""Cells in a sentence or picture; all are in the table."""
TARGETS: Final[Mapping[float, float]] = {1_000.0: 0.40, 4_000.0: 0.65}
"""By the model's speed: what a suspended response was expected to save of warm, prefix-cached HTTP, in `SETTING`."""
SETTING: Final[Mapping[str, CellValue]] = {"calls": 30, "history_tokens": 10_000, "rtt_ms": 30, "tool": "Z"}
_SUSPENDED: Final = frozenset({"append", "inject"})
_SHOWN_ARMS: Final = ("naive", "optimised", "create", "append")


@attrs.frozen(kw_only=True)
class CellBound:
    """One cell: baseline and headline as sums of parts, and how much of the difference was possible."""

    name: str
    speed: float
    turns: float
    """Of a rollout, in the mean."""
    rtt_s: float
    splits: Mapping[str, Split]
    """By arm."""
    base: str
    mine: str
    saving: Comparison
    naive_saving: Comparison | None
    target: float | None
    """The saving that was expected here."""

    @property
    def needed_s(self) -> float:
        """No form is faster."""
        return self.splits[self.mine].needed_s

    @property
    def base_s(self) -> float:
        """Of the baseline."""
        return self.splits[self.base].total_s

    @property
    def mine_s(self) -> float:
        """Of the headline's arm."""
        return self.splits[self.mine].total_s

    @property
    def bound(self) -> float:
        """The most that any form can save of the baseline."""
        return 1 - self.needed_s / self.base_s

    @property
    def taken(self) -> float:
        """How much of what can be saved the headline's arm saves."""
        return (self.base_s - self.mine_s) / (self.base_s - self.needed_s)

    @property
    def bound_without_network(self) -> float:
        """The same, were there no round trip at all."""
        network_s = self.turns * self.rtt_s
        return 1 - (self.needed_s - network_s) / (self.base_s - network_s)

    def besides_decoding_ms(self, total_s: float) -> float:
        """What a response costs of such a total, in the sense of the published overheads: all but decoding."""
        return 1e3 * (total_s - self.splits[self.mine].parts["decoding"]) / self.turns

    def base_needed_s(self, saving: float, mine_s: float) -> float:
        """How long the baseline would have to be for such a saving."""
        return mine_s / (1 - saving)


def bounds(
    cells: Mapping[CellKey, Sequence[Rollout]], names: Mapping[CellKey, str], config: Mapping[str, Any]
) -> Iterator[CellBound]:
    """Of each cell in which both arms ended."""
    base, mine = config["baseline"], config["headline"]
    for cell, records in cells.items():
        model, once = costs_of(config, cell), inputs_once(records)
        splits = {
            arm: found
            for arm in with_turns(config["arms"])
            if (found := mean_split(records, arm, model, once))
        }
        if base not in splits or mine not in splits:
            continue
        speed = float(dict(cell)["tokens_per_second"])
        expected = mine in _SUSPENDED and base == "optimised" and not model["overhead_ms"]
        yield CellBound(
            name=names[cell],
            speed=speed,
            turns=_turns(records, mine),
            rtt_s=float(dict(cell)["rtt_ms"]) / 1e3,
            splits=splits,
            base=base,
            mine=mine,
            saving=compare(records, base, mine),
            naive_saving=compare(records, "naive", mine) if "naive" in splits else None,
            target=TARGETS.get(speed) if expected and dict(cell).items() >= SETTING.items() else None,
        )


def _turns(records: Sequence[Rollout], arm: str) -> float:
    counts = [len(one.turns) for one in records if one.arm == arm and one.valid and not one.failed]
    return sum(counts) / len(counts)


def bound_sections(
    cells: Mapping[CellKey, Sequence[Rollout]],
    names: Mapping[CellKey, str],
    config: Mapping[str, Any],
    source: str,
) -> Iterator[Section]:
    """Where the time goes and what no form can save; then, where a saving was expected, what it would have taken."""
    found = [*bounds(cells, names, config)]
    if not found:
        return
    yield _split_section(found, source)
    expected = [(one, one.target) for one in found if one.target is not None]
    if expected:
        yield _conditions(expected, source)


def _split_section(found: Sequence[CellBound], source: str) -> Section:
    base, mine = found[0].base, found[0].mine
    missed = [
        f"{100 * one.target:.0f} %" for one in found if one.target and (one.saving.saving or 0.0) < one.target
    ]
    title = (
        f"Why {mine} is not {' or '.join(missed)} faster than {base} here"
        if missed
        else "The bound: what no form can save"
    )
    told = "; ".join(_told(one) for one in found[:MOST_TOLD])
    return Section(
        title=title,
        sentence=f"Every form waits for the model and for one round trip a turn; were all else free, a form would save of "
        f"{base}'s time {told}{'; and so on' * (len(found) > MOST_TOLD)}.",
        source=source,
        picture=budgets(
            [_panel(one) for one in found[:MOST_TOLD]],
            NEEDED,
            AVOIDABLE,
            title="Where a rollout's time goes: grey has to be, and what is in colour a form may do without",
        ),
        table=Table(
            ("cell", "arm", *(f"{name}, s" for name in PARTS), "sum, s", "of it must be, s"),
            tuple(
                (one.name, arm, *(split.parts[name] for name in PARTS), split.total_s, split.needed_s)
                for one in found
                for arm, split in one.splits.items()
            ),
        ),
        caveat="; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items())
        + ". Means of valid rollouts.",
    )


def _told(one: CellBound) -> str:
    saved = one.saving.saving
    told = f"at {one.name} at most {percent(one.bound)}"
    return told if saved is None else f"{told} ({one.mine} saves {percent(saved)})"


def _panel(one: CellBound) -> Budget:
    arms = [arm for arm in dict.fromkeys((*_SHOWN_ARMS, one.base, one.mine)) if arm in one.splits]
    return Budget(
        title=f"{one.name}: model and round trips {one.needed_s:.2f} s of {one.base}'s {one.base_s:.2f} s, "
        f"at most {percent(one.bound)} saved",
        bars={arm: one.splits[arm].parts for arm in arms},
        bound_s=one.needed_s,
        target_s=one.base_s * (1 - one.target) if one.target is not None else None,
        target=f"{100 * one.target:.0f} % less than {one.base}" if one.target is not None else "",
    )


def _conditions(expected: Sequence[tuple[CellBound, float]], source: str) -> Section:
    told = " ".join(_condition(*one) for one in expected)
    low, high = ALPHA_SAVING_INTERVAL
    alpha = sums_of(alpha_work())
    reproduced = [overhead_model_saving(alpha, "create", speed) for speed in (65.0, 1_000.0)]
    return Section(
        title="What would have to be true for the expected saving",
        sentence=f"{told} OpenAI's ten timings leave {1e3 * OVERHEAD_SECONDS['http']:.0f} ms a response over HTTP and "
        f"{1e3 * OVERHEAD_SECONDS['create']:.0f} ms over its WebSocket: with these two constants the same arithmetic gives its "
        f"saving, {percent(reproduced[0])} at 65 tokens/s (interval of the timings {percent(low)} to {percent(high)}) and "
        f"{percent(reproduced[1])} at 1,000. So the claim is about services that spend that much on a response, and not "
        f"about WebSocket against an HTTP like the one here.",
        source=source,
        table=Table(_CONDITION_COLUMNS, tuple(_condition_row(*one) for one in expected)),
        caveat="A response's cost besides decoding has its round trip, the model's first token and prefill in it, as the "
        "published overheads have. With these, the rollouts of this file are taken to cost the published figure "
        "for each response in the place of what was measured.",
    )


def _condition(one: CellBound, target: float) -> str:
    asked = one.besides_decoding_ms(one.base_needed_s(target, one.mine_s))
    least = one.besides_decoding_ms(one.base_needed_s(target, one.needed_s))
    return (
        f"At {one.name} {one.base} spends {one.besides_decoding_ms(one.base_s):.0f} ms on a response besides decoding and "
        f"{one.mine} {one.besides_decoding_ms(one.mine_s):.0f} ms; {100 * target:.0f} % less would ask for a baseline of "
        f"{asked:.0f} ms, and of {least:.0f} ms even against a form without any cost of its own.{_of_naive(one)}"
    )


def _of_naive(one: CellBound) -> str:
    saved = one.naive_saving.saving if one.naive_saving else None
    return "" if saved is None else f" Of naive HTTP {one.mine} saves {percent(saved)} there."


_CONDITION_COLUMNS: Final = (
    "cell", "expected, %", "saved, %", "low, %", "high, %", "bound, %", "of the bound taken, %", "bound without network, %",
    "baseline besides decoding, ms a response", "headline", "baseline that it would take, ms",
    "the same against a form that costs nothing, ms", "naive besides decoding, ms", "saved of naive, %",
    "create saves with the published overheads, %", "suspended, as measured here, against the published HTTP, %",
)  # fmt: skip


def _condition_row(one: CellBound, target: float) -> tuple[Cell, ...]:
    interval = one.saving.saving_interval
    decoding = one.splits[one.mine].parts["decoding"]
    http, create = (decoding + one.turns * OVERHEAD_SECONDS[form] for form in ("http", "create"))
    naive = one.splits.get("naive")
    shares = (
        target, one.saving.saving, interval.low if interval else None, interval.high if interval else None, one.bound,
        one.taken, one.bound_without_network,
    )  # fmt: skip
    return (
        one.name,
        *(_hundredfold(share) for share in shares),
        one.besides_decoding_ms(one.base_s),
        one.besides_decoding_ms(one.mine_s),
        one.besides_decoding_ms(one.base_needed_s(target, one.mine_s)),
        one.besides_decoding_ms(one.base_needed_s(target, one.needed_s)),
        None if naive is None else one.besides_decoding_ms(naive.total_s),
        _hundredfold(one.naive_saving.saving if one.naive_saving else None),
        100 * (1 - create / http),
        100 * (1 - one.mine_s / http),
    )


def _hundredfold(share: float | None) -> float | None:
    return None if share is None else 100 * share
