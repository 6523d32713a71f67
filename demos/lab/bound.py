"""What no form can save: the time of network, model and tools, against which a saving is to be seen.

A turn of any form waits for one round trip, the model's first token and its tokens, and reads what is new; between turns
the client's tool runs. What a rollout takes besides is work of client and server, and the opening of connections.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from demos.lab.arms import arm_of
from demos.lab.records import CellKey, Rollout, cell_key
from demos.lab.report import Cell, Section, Table
from demos.lab.statistics import median
from demos.lab.wording import percent

MOST_TOLD: Final = 6
"""Cells in the sentence; all are in the table."""


def floor_seconds(rollout: Rollout, model: Mapping[str, Any]) -> float:
    """Of a rollout that computes each token once; `model`: the costs of its cell, as in the plan."""
    turns = rollout.turns
    first_token_ms: float = model["first_token_ms"] + model["overhead_ms"].get(arm_of(rollout.arm).name, 0.0)
    tools = sum(
        max(0.0, after.sent_s - before.done_s)
        for before, after in pairwise(turns)
        if before.done_s is not None
    )
    return (
        len(turns) * (float(rollout.cell["rtt_ms"]) + first_token_ms) / 1e3
        + rollout.tokens.sampled / float(rollout.cell["tokens_per_second"])
        + rollout.tokens.computed / float(model["prefill_tokens_per_second"])
        + tools
    )


def bound(
    cells: Mapping[CellKey, Sequence[Rollout]],
    names: Mapping[CellKey, str],
    config: Mapping[str, Any],
    source: str,
) -> Section:
    """In each cell: the baseline, what of it nobody can save, and how much of the rest the headline's arm saves."""
    models = {cell_key(cell["axes"]): cell["model"] for cell in config["cells"]}
    rows: list[tuple[Cell, ...]] = []
    told = []
    for cell, records in cells.items():
        seconds = {
            arm: median(one.total_s for one in records if one.arm == arm and not one.failed)
            for arm in (config["baseline"], config["headline"])
        }
        floor = median(
            floor_seconds(one, models[cell])
            for one in records
            if one.arm == config["headline"] and not one.failed
        )
        base, mine = seconds.values()
        most = 1 - floor / base if floor is not None and base else None
        saved = 1 - mine / base if mine is not None and base else None
        rows.append(
            (names[cell], base, mine, floor, *(None if x is None else 100 * x for x in (most, saved)))
        )
        if most is not None and saved is not None:
            told.append(f"{names[cell]}: at most {percent(most)}, of which {percent(saved)} are saved")
    return Section(
        title="The bound",
        sentence=f"Were all work of client and server free, {config['headline']} would save of {config['baseline']}'s "
        f"time {'; '.join(told[:MOST_TOLD]) or 'no data'}{'; and so on' * (len(told) > MOST_TOLD)}.",
        source=source,
        table=Table(
            (
                "cell",
                f"{config['baseline']}, s",
                f"{config['headline']}, s",
                "network, model and tools, s",
                "most that can be saved, %",
                "saved, %",
            ),
            tuple(rows),
        ),
        caveat="A round trip for each turn, decoding, the first token's delay, reading each token once, and tools. "
        "Medians of each arm, invalid rollouts included.",
    )
