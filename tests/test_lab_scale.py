"""Many suspended rollouts: what is measured, how a setting of the collector is chosen, and the report of it."""

from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab import scale_window
from demos.lab.environment import environment
from demos.lab.records import Note
from demos.lab.report import Report
from demos.lab.results import ResultsFile
from demos.lab.scale import SCALE, ScalePlan, config, measure
from demos.lab.scale_report import added, beyond_context, chosen, noise, report_of
from demos.lab.scale_window import lateness, quantiles

QUIET = {"without": [4.0, 4.5, 4.0, 100.0, 4.0, 4.5], "with": [5.0, 100.0, 5.0, 5.2, 4.0]}
"""The 99th percentile of lateness in ms, window by window; one of each kind was disturbed."""


def detail_of(
    count: int, collector: str, late: dict[str, list[float]], *, bytes_each: float | None = 13_000.0
) -> dict[str, Any]:
    """What a run leaves of one count under one collector, with all figures but these the same."""

    def window(p99: float) -> dict[str, Any]:
        return {
            "late_p50_ms": 1.0,
            "late_p99_ms": p99,
            "late_max_ms": 2 * p99,
            "resume_p50_ms": 2.0,
            "resume_p99_ms": 3.0,
            "resumes": 40,
            "collections": [10, 1, 0],
            "collector_ms": 5.0,
            "longest_pause_ms": 1.5,
            "cpu_share": 0.5,
        }

    return {
        "count": count,
        "collector": collector,
        "suspended": count,
        "memory": None if bytes_each is None else {"bytes_each": bytes_each, "context_bytes_each": 1_300.0},
        "suspending": {
            "seconds": 1.0,
            "collections": [90, 9, 1],
            "collector_ms": 70.0,
            "longest_pause_ms": 44.0,
        },
        "full_collection_ms": 60.0,
        "load": [1.0, 2.0],
        "windows": {when: list(map(window, each)) for when, each in late.items()},
    }


def reported(path: Path, details: list[dict[str, Any]]) -> Report:
    """The report of a file that holds these."""
    with ResultsFile.open(
        path,
        experiment="scale",
        config={**config(quick=True, trace=None), "counts": sorted({one["count"] for one in details})},
        seed=0,
        environment=environment(),
        began="now",
    ) as file:
        for one in details:
            file.write(Note(topic=SCALE, detail=one))
    return report_of(path)


def test_lateness_is_against_the_line_through_the_earliest_token() -> None:
    """A stream that is late as a whole is not late; one token that is held up is."""
    assert lateness([5.0, 5.1, 5.25, 5.3], 10.0) == pytest.approx([0.0, 0.0, 0.05, 0.0])
    assert quantiles([float(value) for value in range(101)]) == (50.0, 99.0)


def test_what_the_suspended_add_is_the_difference_of_the_medians() -> None:
    """So that one hiccup in five does not count; nor does it for what two measurements of the same differ by."""
    detail = detail_of(10, "default", QUIET)
    assert added(detail) == pytest.approx(5.0 - 4.25)
    assert noise([detail]) == pytest.approx(4.5 - 4.0)


def test_the_worst_of_all_counts_is_what_measurements_differ_by() -> None:
    """Of several runs, the one whose windows without suspended rollouts are furthest apart."""
    calm, restless = {"without": [4.0, 4.0], "with": [4.0]}, {"without": [7.0, 4.0], "with": [4.0]}
    assert noise([detail_of(1, "default", calm), detail_of(10, "default", restless)]) == pytest.approx(3.0)


def test_memory_is_without_the_context_and_of_few_not_known() -> None:
    """No data is never 0."""
    assert beyond_context(detail_of(100, "default", QUIET)) == 11_700
    assert beyond_context(detail_of(1, "default", QUIET, bytes_each=None)) is None


@pytest.mark.parametrize(
    ("late_ms", "pause_ms", "name"),
    [
        (6.0, 43.0, "default"),  # shorter pauses, and by less than a step of the engine
        (6.0, 20.0, "freeze"),
        (9.0, 20.0, "default"),  # shorter pauses, and later tokens
    ],
)
def test_another_collector_must_earn_it(late_ms: float, pause_ms: float, name: str) -> None:
    """It is taken if its pauses are shorter by more than the noise and a step, and no token is later by more than that."""
    late = {"without": [4.0, 4.0], "with": [6.0]}
    other = detail_of(100, "freeze", {**late, "with": [late_ms]})
    other["suspending"] = {**other["suspending"], "longest_pause_ms": pause_ms}
    at_one = detail_of(1, "default", {**late, "with": [99.0]})  # the largest count decides
    choice, why = chosen([at_one, detail_of(100, "default", late), other], 2.0)
    assert choice == name
    assert f"taken is {name}" in why


def test_the_report_says_choice_bounds_and_load(tmp_path: Path) -> None:
    """Plots with the bounds of memory and lateness, each with its sentence and its file; all checks but the commit's pass."""
    details = [
        detail_of(count, name, QUIET, bytes_each=13_000.0 if count > 1 else None)
        for count in (1, 100)
        for name in ("default", "both")
    ]
    report = reported(tmp_path / "results.jsonl", details)
    assert [bool(section.picture) for section in report.sections] == [True] * 4 + [False]
    assert {section.source for section in report.sections} == {"results.jsonl"}
    memory, late = report.sections[:2]
    assert memory.sentence == "With 100 of them: default 11.70 kB, both 11.70 kB. The bound is 12."
    assert memory.table is not None
    assert memory.table.rows == ((1, None, None), (100, 11.7, 11.7))
    assert late.sentence.endswith("The bound is 5.")
    assert "load was 1.0 to 2.0" in report.summary[1]
    assert "taken is default" in report.summary[2]
    assert {check.passed for check in report.checks[:-1]} == {True}


def test_a_broken_bound_fails_the_report(tmp_path: Path) -> None:
    """So do runs in which fewer were suspended than were asked for."""
    details = [
        detail_of(100, "default", {"without": [4.0, 4.0], "with": [9.5]}, bytes_each=13_301.0)
        | {"suspended": 99}
    ]
    failed = {check.name for check in reported(tmp_path / "results.jsonl", details).failures}
    assert failed >= {"all of them were suspended", "memory within its bound", "lateness within its bound"}


def test_a_measurement_holds_as_many_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run for real, with a short stream: 30 rollouts on two connections are suspended at once, twice; each time all windows are seen."""
    monkeypatch.setattr(scale_window, "STREAMS", 2)
    plan = ScalePlan(counts=(30,), collectors=("freeze",), tokens=60, rounds=2, windows=2)
    detail = trio.run(measure, plan, 30, "freeze")
    assert (detail["suspended"], detail["memory"]) == (30, None)
    assert {when: len(windows) for when, windows in detail["windows"].items()} == {"without": 6, "with": 4}
    for window in (window for windows in detail["windows"].values() for window in windows):
        assert 0 <= window["late_p50_ms"] <= window["late_p99_ms"] <= window["late_max_ms"]
        assert window["resumes"] >= 2


def test_a_trace_is_refused() -> None:
    """The rollouts are the experiment's own."""
    with pytest.raises(ValueError, match="leave it out"):
        config(quick=True, trace=Path("trace.jsonl"))
