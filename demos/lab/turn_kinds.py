"""Cold, warm and resumed turns apart: what a connection and empty caches cost must not be taken for the cost of a turn.

The first turn of a rollout is *cold*: its connection is opened, and nobody knows its history; it counts from the intended
start. Where the history went ahead (`create-warm`) it is *warm*, and what that took stands beside it as opening.
All others are *resumed*: each brings the output of a tool, and counts from the moment when it is sent.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import attrs

from demos.lab import plots
from demos.lab.plots import Estimate
from demos.lab.records import Rollout
from demos.lab.report import NO_DATA, Cell, Section, Table
from demos.lab.statistics import Comparison, Interval, compare, mean_interval
from demos.lab.validity import WARM_FIRST, base_arm
from demos.lab.wording import percent

Kind = Literal["cold", "warm"]
"""Of a first turn."""
Part = Literal["first", "resumed"]
_BASELINE: Final = "the baseline"
_WHAT: Final[Mapping[Part, str]] = {"first": "First turn", "resumed": "resumed turns"}


def first_kind(arm: str) -> Kind:
    """Of an arm's first turn."""
    return "warm" if base_arm(arm) in WARM_FIRST else "cold"


def opening_s(rollout: Rollout) -> float | None:
    """Before its first turn was sent: the handshake of a WebSocket, and what was sent ahead. HTTP opens when it sends."""
    return rollout.turns[0].sent_s if rollout.turns else None


def first_turn_s(rollout: Rollout) -> float | None:
    """From the intended start to the first token: nothing of what comes before is left out."""
    return rollout.turns[0].first_s if rollout.turns else None


def resumed_turn_s(rollout: Rollout) -> float | None:
    """From sending a tool's output to the first token, the mean of a rollout's; None if one of them has no token."""
    waits = [None if turn.first_s is None else turn.first_s - turn.sent_s for turn in rollout.turns[1:]]
    known = [wait for wait in waits if wait is not None]
    return sum(known) / len(known) if known and len(known) == len(waits) else None


@attrs.frozen
class _Measured:
    """Of an arm, in seconds."""

    opening: float | None
    first: float | None
    first_interval: Interval | None
    resumed: float | None
    resumed_interval: Interval | None
    rollouts: int


def first_and_resumed(
    records: Sequence[Rollout], arms: Sequence[str], base: str, headline: str, name: str, source: str
) -> Section:
    """One cell: each arm's first turn beside its resumed ones, as times, each with its own interval and saving."""
    measured = {arm: _of_arm(records, arm) for arm in arms}
    others = [arm for arm in arms if arm != base]
    savings = {
        arm: [compare(records, base, arm, measure=measure) for measure in (first_turn_s, resumed_turn_s)]
        for arm in others
    }
    told = [
        f"{what}: {base} {_spoken(measured[base], part)}, {headline} {_spoken(measured[headline], part)}"
        f"{_sure(savings[headline][place])}"
        for place, (part, what) in enumerate(_WHAT.items())
        if headline in savings and base in measured
    ]
    return Section(
        title=f"First turn and resumed turns, {name}",
        sentence=f"Time to the first token at {name}. {'; '.join(told) or NO_DATA}.",
        source=source,
        picture=plots.beside(
            {
                "first turn, from the intended start": _estimates(measured, "first"),
                "resumed turns, from sending": _estimates(measured, "resumed"),
            },
            title=f"Time to the first token: the first turn and the resumed ones, {name}",
            x_label="time to the first token, ms; 95 % interval",
        ),
        table=_table(measured, savings, base),
        caveat="First turns begin with empty caches in every arm, and bring the history; an arm marked warm has sent it ahead, "
        "which is in its time as well. Means over rollouts; of a rollout's resumed turns their mean.",
    )


def _of_arm(records: Sequence[Rollout], arm: str) -> _Measured:
    mine = [one for one in records if one.arm == arm and one.valid and not one.failed]
    opening, _ = mean_interval(opening_s(one) for one in mine)
    first = mean_interval(first_turn_s(one) for one in mine)
    resumed = mean_interval(resumed_turn_s(one) for one in mine)
    return _Measured(opening, *first, *resumed, len(mine))


def _spoken(one: _Measured, part: Part) -> str:
    seconds = one.first if part == "first" else one.resumed
    return NO_DATA if seconds is None else f"{1e3 * seconds:.1f} ms"


def _sure(one: Comparison) -> str:
    """What of it is shown."""
    if one.saving is None:
        return ""
    interval = one.saving_interval
    sure = f", 95 % interval {percent(interval.low)} to {percent(interval.high)}" if interval else ""
    return f" (saving {percent(one.saving)}{sure}{': no difference shown' * bool(one.same)})"


def _estimates(measured: Mapping[str, _Measured], part: Part) -> list[Estimate]:
    made = []
    for arm, one in measured.items():
        value, interval = (
            (one.first, one.first_interval) if part == "first" else (one.resumed, one.resumed_interval)
        )
        label = f"{arm} (warm)" if first_kind(arm) == "warm" else arm
        made.append(Estimate(label, *_thousandfold(value, interval)))
    return made


def _table(
    measured: Mapping[str, _Measured], savings: Mapping[str, Sequence[Comparison]], base: str
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for arm, one in measured.items():
        found = savings.get(arm)
        rows.append(
            (
                arm,
                one.rollouts,
                first_kind(arm),
                _ms(one.opening),
                *_thousandfold(one.first, one.first_interval),
                _saved(found[0]) if found else _BASELINE,
                *_thousandfold(one.resumed, one.resumed_interval),
                _saved(found[1]) if found else _BASELINE,
            )
        )
    columns = (
        "arm", "rollouts", "first turn is", "before it is sent, ms", "first turn, ms", "low, ms", "high, ms",
        f"saving of it against {base}", "resumed turn, ms", "low, ms", "high, ms", f"saving of it against {base}",
    )  # fmt: skip
    return Table(columns, tuple(rows))


def _saved(one: Comparison) -> str | None:
    if one.saving is None:
        return None
    interval = one.saving_interval
    sure = f" ({percent(interval.low)} to {percent(interval.high)})" if interval else ""
    return f"{percent(one.saving)}{sure}"


def _thousandfold(
    value: float | None, interval: Interval | None
) -> tuple[float | None, float | None, float | None]:
    return _ms(value), _ms(interval.low) if interval else None, _ms(interval.high) if interval else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
