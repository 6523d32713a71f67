"""The claim map, shown: where the published claims hold, where they cannot, and where a form stops to matter.

All of it is built from one result file of `demos.lab.claim_map`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from demos.lab import canvas
from demos.lab.claim_map import (
    ARM_FORMS,
    BREAK_EVEN,
    CLAIMED_CALLS,
    HISTORY,
    MODELLED,
    POINT,
    SAVING_FORMS,
    WHOLE,
)
from demos.lab.claim_map_sections import (
    break_even_section,
    history_section,
    hundredfold,
    map_sections,
    whole_section,
)
from demos.lab.published import OVERHEAD_SECONDS
from demos.lab.records import CellKey, Note, Rollout, cell_key, cell_name
from demos.lab.report import Check, Report, Section, Table
from demos.lab.results import ResultsReader
from demos.lab.validity import judged
from demos.lab.wording import trust

ENGINE_TOLERANCE: Final = 0.02
"""Of a rollout's time: the engine's ticks are in it, and the model has none."""

METHOD: Final = (
    "Saving of a rollout's whole time against HTTP: decoding at the stated speed, tools, and an overhead for each response of "
    + ", ".join(f"{seconds:g} s ({form})" for form, seconds in OVERHEAD_SECONDS.items())
    + "; the first two are what OpenAI's ten timings leave at 65 tokens/s, the third is our assumption.",
    (
        "The term in the context of the fit to real traffic mixes work that a form could save with work that none can. So each "
        "figure is shown without it, with none of it saved and with all of it saved; the truth is between the last two."
    ),
    (
        "Tool times: none; as recorded (on a grid of 1 s, with the user's own time in them: an upper bound); drawn from "
        "TraceLab's quantiles, call by call, linear in the logarithm between two."
    ),
    "A depth of N calls: rollouts with at least N, cut after the N-th; the median over them.",
    "Points run by the engine: the three arms over memory streams in virtual time, with the same overhead before each segment.",
)
NOT_MEASURED: Final = (
    "Wall time: the map is a model; `suspended lab ladder` measures.",
    "How the overheads of a form change with the speed of the model, or with load: they are taken for constant.",
)


def report_of(path: Path) -> Report:
    """The report of a result file; it is to be written beside it. `ResultsError`: the file is none."""
    reader = ResultsReader(path)
    header, config = reader.header, reader.header.config
    notes, rollouts = [*reader.notes()], judged([*reader.rollouts()])
    found = {topic: last_details(notes, topic) for topic in (POINT, WHOLE, HISTORY, BREAK_EVEN)}
    beside = [*compared(rollouts, modelled_seconds_of(notes))]
    sections = [
        *map_sections(found[POINT], config, path.name),
        whole_section(found[WHOLE], path.name),
        *(history_section(found[HISTORY], form, path.name) for form in SAVING_FORMS),
        break_even_section(found[BREAK_EVEN], path.name),
        _engine(beside, path.name),
    ]
    return Report(
        title="The claim map: where a WebSocket saves 40 %, and where nothing",
        header=header,
        summary=(
            f"Workload: {_workload(config, found[WHOLE])}.",
            "The sentence under each picture is made from its numbers.",
        ),
        sections=tuple(sections),
        method=METHOD,
        checks=(_engine_agrees(beside), *trust(header, notes, rollouts)),
        files=(path.name,),
        not_measured=NOT_MEASURED,
    )


def last_details(notes: Sequence[Note], topic: str) -> list[Mapping[str, Any]]:
    """The details of a topic; of what was computed twice, as a resumed run may, the later."""
    results = {"p10", "p50", "p90", "rollouts", "saving"}
    by_place: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for note in notes:
        if note.topic == topic:
            by_place[tuple(value for name, value in note.detail.items() if name not in results)] = note.detail
    return [*by_place.values()]


def _workload(config: Mapping[str, Any], whole: Sequence[Mapping[str, Any]]) -> str:
    count = max((row["rollouts"] for row in whole), default=0)
    source = config["trace"] or "drawn from published quantiles"
    return f"{count} rollouts with {CLAIMED_CALLS} calls and more ({source})"


# --- the engine beside the model -----------------------------------------------------------------------------------


@attrs.frozen
class Compared:
    """One point: what the engine took and what the model says."""

    cell: CellKey
    arm: str
    engine_s: float
    model_s: float
    engine_saving: float | None
    """Against the arm that stands for HTTP."""
    model_saving: float | None

    @property
    def apart(self) -> float:
        """How much longer the engine took."""
        return self.engine_s / self.model_s - 1


def modelled_seconds_of(notes: Sequence[Note]) -> dict[str, float]:
    """By rollout."""
    return {note.detail["rollout"]: note.detail["seconds"] for note in notes if note.topic == MODELLED}


def compared(rollouts: Sequence[Rollout], modelled: Mapping[str, float]) -> Iterator[Compared]:
    """Each rollout that ended, with what the model says of it."""
    base = next(iter(ARM_FORMS))
    http = {
        cell_key(one.cell): (one.total_s, modelled[str(one.key)])
        for one in rollouts
        if one.arm == base and not one.failed
    }
    for one in sorted(rollouts, key=lambda one: (str(cell_key(one.cell)), [*ARM_FORMS].index(one.arm))):
        if one.failed or one.total_s is None:
            continue
        model_s = modelled[str(one.key)]
        engine_http, model_http = http.get(cell_key(one.cell), (None, None))
        yield Compared(
            cell_key(one.cell),
            one.arm,
            one.total_s,
            model_s,
            None if engine_http is None else 1 - one.total_s / engine_http,
            None if model_http is None else 1 - model_s / model_http,
        )


def _engine(beside: Sequence[Compared], source: str) -> Section:
    apart = max((one.apart for one in beside), key=abs, default=None)
    savings = [
        one.engine_saving - one.model_saving
        for one in beside
        if one.engine_saving is not None and one.model_saving is not None
    ]
    farthest = max(savings, key=abs, default=0.0)
    return Section(
        title="Points that the engine ran",
        sentence="No data: the engine ran no point."
        if apart is None
        else f"The real engine in virtual time and the model are {100 * apart:+.2g} % apart where they differ most, over "
        f"{len(beside)} rollouts; its saving differs by {100 * farthest:+.2g} percentage points at most.".replace(
            "-", "\N{MINUS SIGN}"
        ),
        source=source,
        table=Table(
            ("point", "arm", "engine, s", "model, s", "apart, %", "engine saves, %", "model says, %"),
            tuple(
                (
                    cell_name(one.cell),
                    one.arm,
                    one.engine_s,
                    one.model_s,
                    100 * one.apart,
                    hundredfold(one.engine_saving),
                    hundredfold(one.model_saving),
                )
                for one in beside
            ),
        ),
        caveat="One rollout a point; the engine's step, the first connection and its own order of things are what is left.",
    )


def _engine_agrees(beside: Sequence[Compared]) -> Check:
    name = "engine and model agree"
    if not beside:
        return Check(name, None, "the engine ran no point")
    apart = max((one.apart for one in beside), key=abs)
    detail = f"{100 * apart:+.2g} % apart at most, over {len(beside)} rollouts; tolerance {canvas.percent(ENGINE_TOLERANCE)}"
    return Check(name, abs(apart) <= ENGINE_TOLERANCE, detail)
