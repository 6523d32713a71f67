"""One rollout's time as a sum of parts: what every form must take, and what a form may do without.

The first parts are what the plan asks of model, network and tools; no form is faster than their sum. Of the rest the
opening of connections is counted in round trips, client and server were measured by their own clocks, and `delivery` is
what is left: sockets, the delaying process, and waiting for a processor. So the parts add up to the whole by construction,
and what they hide would have to be in the last one.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from demos.lab.arms import arm_of
from demos.lab.records import NOT_SERVER_TIME, CellKey, PairKey, Rollout

NEEDED: Final = ("decoding", "first token", "reading new input", "round trips", "tools")
AVOIDABLE: Final = ("added overhead", "reading again", "opening", "client", "server", "delivery")
PARTS: Final = NEEDED + AVOIDABLE
_THE_MODEL_S: Final = ("decoding", "first token", "reading new input", "added overhead", "reading again")
MEANINGS: Final[Mapping[str, str]] = {
    "decoding": "tokens sampled over the model's speed",
    "first token": "the model's delay before the first token of each turn",
    "reading new input": "each token of the input once, over the speed of prefill",
    "round trips": "one for each turn, as the tool runs at the client",
    "tools": "as planned",
    "added overhead": "what the plan adds to each turn of a form, as others report it",
    "reading again": "tokens of the input that the model had read before",
    "opening": "round trips of TCP, of the WebSocket's upgrade, and of a warm-up",
    "client": "between the end of a turn and sending the next, and at both ends",
    "server": "from reading a request or an output to the last event, beyond the model's time",
    "delivery": "what is left: sockets, the delaying process, waiting for a processor",
}


@attrs.frozen
class Split:
    """In seconds, by part; the server's is in delivery where no server was asked."""

    parts: Mapping[str, float]

    @property
    def needed_s(self) -> float:
        """No form is faster."""
        return sum(self.parts[name] for name in NEEDED)

    @property
    def total_s(self) -> float:
        """The rollout's own."""
        return sum(self.parts.values())


def floor_seconds(rollout: Rollout, model: Mapping[str, Any], computed_tokens: int | None = None) -> float:
    """What no form can save of a rollout; `computed_tokens`: its input, each token once, if it read some again."""
    return sum(_needed(rollout, model, computed_tokens).values())


def split(rollout: Rollout, model: Mapping[str, Any], computed_tokens: int) -> Split | None:
    """`model`: the costs of the rollout's cell, as in the plan. None: it did not end."""
    total_s = rollout.total_s
    if rollout.failed or total_s is None:
        return None
    parts = _needed(rollout, model, computed_tokens)
    again = max(0, rollout.tokens.computed - computed_tokens)
    parts["added overhead"] = (
        len(rollout.turns) * model["overhead_ms"].get(arm_of(rollout.arm).name, 0.0) / 1e3
    )
    parts["reading again"] = again / float(model["prefill_tokens_per_second"])
    parts["opening"] = _opening_round_trips(rollout) * _rtt_s(rollout)
    parts["client"] = rollout.late_s + _gaps_s(rollout) - parts["tools"] + _end_s(rollout, total_s)
    parts["server"] = _server_s(rollout, parts)
    parts["delivery"] = total_s - sum(parts.values())
    return Split(parts)


def mean_split(
    records: Sequence[Rollout], arm: str, model: Mapping[str, Any], once: Mapping[PairKey, int]
) -> Split | None:
    """Of an arm's rollouts among the records, part by part; `once` is of `inputs_once`. None: none ended."""
    mine = [one for one in records if one.arm == arm and one.valid and not one.failed]
    found = [split(one, model, once[one.key.pair]) for one in mine]
    known = [one.parts for one in found if one is not None]
    if not known:
        return None
    return Split({name: sum(parts[name] for parts in known) / len(known) for name in PARTS})


def inputs_once(records: Sequence[Rollout]) -> Mapping[PairKey, int]:
    """Of each pair the fewest tokens that an arm had to read: each of them once."""
    fewest: dict[PairKey, int] = {}
    for one in records:
        if not one.failed:
            pair, computed = one.key.pair, one.tokens.computed
            fewest[pair] = min(fewest.get(pair, computed), computed)
    return fewest


def costs_of(config: Mapping[str, Any], cell: CellKey) -> Mapping[str, Any]:
    """What the model costs in a cell. KeyError: it is none of the plan."""
    for one in config["cells"]:
        if tuple(sorted(one["axes"].items())) == cell:
            model: Mapping[str, Any] = one["model"]
            return model
    raise KeyError(cell)


def _needed(rollout: Rollout, model: Mapping[str, Any], computed_tokens: int | None) -> dict[str, float]:
    turns = len(rollout.turns)
    computed = rollout.tokens.computed if computed_tokens is None else computed_tokens
    return {
        "decoding": rollout.tokens.sampled / float(rollout.cell["tokens_per_second"]),
        "first token": turns * model["first_token_ms"] / 1e3,
        "reading new input": computed / float(model["prefill_tokens_per_second"]),
        "round trips": turns * _rtt_s(rollout),
        "tools": _tools_s(rollout),
    }


def _rtt_s(rollout: Rollout) -> float:
    return float(rollout.cell["rtt_ms"]) / 1e3


def _tools_s(rollout: Rollout) -> float:
    """As the cell says; where it draws them, all time between turns."""
    tool = rollout.cell["tool"]
    if tool == "Z":
        return 0.0
    return _gaps_s(rollout) if isinstance(tool, str) else float(tool) * (len(rollout.turns) - 1)


def _gaps_s(rollout: Rollout) -> float:
    """Between the turns."""
    pairs = pairwise(rollout.turns)
    return sum(max(0.0, after.sent_s - before.done_s) for before, after in pairs if before.done_s is not None)


def _end_s(rollout: Rollout, total_s: float) -> float:
    done_s = rollout.turns[-1].done_s if rollout.turns else None
    return 0.0 if done_s is None else max(0.0, total_s - done_s)


def _opening_round_trips(rollout: Rollout) -> int:
    arm = arm_of(rollout.arm)
    upgrades = 0 if arm.form == "http" else rollout.connections
    return rollout.connections + upgrades + arm.warms_up


def _server_s(rollout: Rollout, parts: Mapping[str, float]) -> float:
    if rollout.server is None:
        return 0.0
    waiting_ns = sum(rollout.server.stages.get(stage, 0) for stage in NOT_SERVER_TIME)
    model_s = sum(parts[name] for name in _THE_MODEL_S)
    return (rollout.server.wall_ns - waiting_ns) / 1e9 - model_s
