"""A server's overhead: the CPU time that a form's turns cost, and that the same work without turns does not.

Much of a server's CPU time would be spent in any form: the simulated model's ticks, its tokens as events, and reading
what is new, once. Who compares forms by all of it compares mostly what they have in common.
So each form has a *floor*: the same engine and transport, the same script, history and tool outputs, in one response whose
create brings everything and whose model says everything in one segment, at the same pace. It has no turns, and it is run:
nothing of it is estimated. What a form takes more is due to its turns, by measurement and not by anybody's opinion of
which stages are overhead: requests, lifecycle events, looking up, reading again, suspending and going on.

    overhead of a turn = (CPU time of the form - CPU time of its floor) / turns

Both are of the same rollout and block. Raw CPU time stands beside it, and the difference of two forms of one transport is
the same with and without the floor.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from demos.lab.arms import arm_of, with_turns
from demos.lab.records import PairKey, Rollout
from demos.lab.statistics import Interval, mean_interval, ratio_of

EDGE_TURNS, MORE_EDGE_TURNS, MANY_TURNS = 5, 20, 100
"""So many turns at each end are compared; and how many where there are many turns, and what that is."""
_MS = 1e3


@attrs.frozen
class Overhead:
    """Of an arm, CPU milliseconds of the server for each turn; None where a floor or the arm was not measured."""

    arm: str
    pairs: int
    raw: float | None
    floor: float | None
    overhead: float | None
    interval: Interval | None


@attrs.frozen
class Share:
    """What an arm's overhead is of another's."""

    ratio: float | None
    interval: Interval | None
    units: int = 0
    """Rollouts and repeats of them."""

    @property
    def saving(self) -> float | None:
        """What it is less than the other's."""
        return None if self.ratio is None else 1 - self.ratio

    @property
    def saving_interval(self) -> Interval | None:
        """Of the saving."""
        return None if self.interval is None else Interval(1 - self.interval.high, 1 - self.interval.low)


def cpu_ms(rollout: Rollout) -> float | None:
    """Of its server; None: not known, or not to be counted."""
    cost = rollout.server
    if rollout.failed or not rollout.valid or cost is None or cost.cpu_s is None:
        return None
    return _MS * cost.cpu_s


def has_floors(records: Sequence[Rollout]) -> bool:
    """Was any floor run?"""
    return any(arm_of(record.arm).at_once for record in records)


def overheads(records: Sequence[Rollout], arms: Sequence[str]) -> list[Overhead]:
    """Of each arm with turns, over the rollouts of a cell that it and its floor ran."""
    known = _known(records)
    return [_overhead(known, arm) for arm in with_turns(arms)]


def share(records: Sequence[Rollout], base: str, arm: str) -> Share:
    """The ratio of sums over the rollouts that both arms and their floors ran, with a bootstrap over them."""
    known = _known(records)
    pairs = [pair for pair in known if _all_there(known[pair], base) and _all_there(known[pair], arm)]
    values = [[_of_pair(known[pair], one).overhead for pair in pairs] for one in (base, arm)]
    return Share(*ratio_of(*values), len(pairs)) if pairs else Share(None, None)


def raw_share(records: Sequence[Rollout], base: str, arm: str) -> Share:
    """The same of all CPU time, floors and all."""
    known = _known(records)
    both = [one for one in known.values() if base in one and arm in one]
    values = [[_per_turn(one, name) for one in both] for name in (base, arm)]
    return Share(*ratio_of(*values), len(both)) if both else Share(None, None)


def last_against_first(records: Sequence[Rollout], arm: str) -> Share:
    """CPU time of the last turns against that of the first ones, without the one that opens and the one that ends."""
    firsts, lasts = [], []
    for record in records:
        turns, edge = turn_cpu_ms(record), edge_turns(len(record.turns))
        if record.arm == arm and len(turns) >= 2 * (edge + 1):
            firsts.append(sum(turns[1 : edge + 1]))
            lasts.append(sum(turns[-edge - 1 : -1]))
    return Share(*ratio_of(firsts, lasts), len(firsts)) if firsts else Share(None, None)


def edge_turns(turns: int) -> int:
    """How many at each end of a rollout of so many are compared."""
    return EDGE_TURNS if turns < MANY_TURNS else MORE_EDGE_TURNS


def turn_cpu_ms(record: Rollout) -> list[float]:
    """Of each turn, from its request to the next one; empty where it is not known."""
    count = len(record.turns)
    costs = record.server.turn_cpu_s if record.server and cpu_ms(record) is not None else ()
    return [_MS * seconds for seconds in costs[-count:]] if len(costs) >= count else []


# --- pairs ---------------------------------------------------------------------------------------------------------

_Known = Mapping[str, tuple[float, int]]
"""By arm: CPU time and turns of one rollout in one block."""


@attrs.frozen
class _Parts:
    raw: float
    floor: float

    @property
    def overhead(self) -> float:
        return self.raw - self.floor


def _known(records: Sequence[Rollout]) -> dict[PairKey, dict[str, tuple[float, int]]]:
    known: dict[PairKey, dict[str, tuple[float, int]]] = defaultdict(dict)
    for record in records:
        ms = cpu_ms(record)
        if ms is not None:
            known[record.key.pair][record.arm] = (ms, len(record.turns))
    return known


def _all_there(known: _Known, arm: str) -> bool:
    return arm in known and arm_of(arm).floor in known


def _per_turn(known: _Known, arm: str) -> float:
    ms, turns = known[arm]
    return ms / turns


def _of_pair(known: _Known, arm: str) -> _Parts:
    ms, turns = known[arm]
    return _Parts(ms / turns, known[arm_of(arm).floor][0] / turns)


def _overhead(known: Mapping[PairKey, _Known], arm: str) -> Overhead:
    parts = [_of_pair(one, arm) for one in known.values() if _all_there(one, arm)]
    raw, _ = mean_interval(part.raw for part in parts)
    floor, _ = mean_interval(part.floor for part in parts)
    return Overhead(arm, len(parts), raw, floor, *mean_interval(part.overhead for part in parts))
