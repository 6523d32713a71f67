"""The claim map: the figures of its points, the engine beside the model, and a report from the file alone."""

import io
from argparse import Namespace
from pathlib import Path

import attrs
import orjson
import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab import claim_map, claim_map_report, claim_map_sections, computed
from demos.lab.claim_map import POINT, QUICK, Checked, MapPlan, break_even_seconds, cut, spread
from demos.lab.command import INVALID, OK, USAGE, Terminal, lab
from demos.lab.maps import Panel
from demos.lab.overhead import overhead_model_saving, sums_of
from demos.lab.published import REPORTS
from demos.lab.records import Note
from demos.lab.results import RESUMED, ResultsReader
from demos.lab.workload import Work, WorkloadError, uniform

TINY = attrs.evolve(
    QUICK,
    tokens_per_second=(65.0, 1_000.0),
    calls=(1, 20),
    rollouts=6,
    checked=(Checked(tokens_per_second=1_000.0, calls=1, tool="Z"),),
)


def said(*argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = lab(argv, Terminal(out=out, err=err, plain=True))
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small map, computed and reported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim_map, "QUICK", TINY)
        patch.setattr(claim_map_sections, "ASSUMPTIONS", {"no history term": None})  # a third of the pictures
        out = tmp_path_factory.mktemp("map") / "made"
        assert said("map", "--quick", "--out", str(out))[0] in (OK, INVALID)
        return out


def trace_file(path: Path, *tool_seconds: float | None) -> Path:
    """A rollout of 21 calls a tool time."""
    lines = [
        {"id": f"r{number}", "ctx0": 1_000, "steps": [[100, 50, seconds]] * 21 + [[100, 50, None]]}
        for number, seconds in enumerate(tool_seconds)
    ]
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return path


def test_a_map_has_a_point_for_every_place(made: Path) -> None:
    """Scenarios, depths, forms, assumptions and speeds, each combination once."""
    points = [note.detail for note in ResultsReader(made / "results.jsonl").notes() if note.topic == POINT]
    places = {
        tuple(point[name] for name in ("scenario", "calls", "form", "history", "tokens_per_second"))
        for point in points
    }
    assert len(places) == len(points) == 3 * 2 * 2 * 3 * 2
    assert {point["rollouts"] for point in points} == {6}


def test_the_spread_of_a_point_is_in_order_and_saves_less_with_tools(made: Path) -> None:
    """p10 to p90 rise; whatever tools take is added to both forms."""
    points = [note.detail for note in ResultsReader(made / "results.jsonl").notes() if note.topic == POINT]
    assert all(point["p10"] <= point["p50"] <= point["p90"] for point in points)
    medians = {
        tuple(value for name, value in point.items() if name[0] != "p"): point["p50"] for point in points
    }
    toolless = {key[1:]: value for key, value in medians.items() if key[0] == "Z"}
    assert all(value < toolless[key[1:]] for key, value in medians.items() if key[0] != "Z")


def test_the_engine_takes_what_the_model_says(made: Path) -> None:
    """The point that it runs is within the tolerance."""
    reader = ResultsReader(made / "results.jsonl")
    rollouts = [*reader.rollouts()]
    assert len(rollouts) == 3
    seconds = claim_map_report.modelled_seconds_of([*reader.notes()])
    assert all(abs(one.apart) < 0.02 for one in claim_map_report.compared(rollouts, seconds))


def test_every_section_has_its_sentence_its_picture_and_its_file(made: Path) -> None:
    """And the page stands alone."""
    page = (made / "report.html").read_text()
    assert page.count("<svg") == 5
    assert page.count('class="sentence"') == page.count('class="source"') == 7
    assert 'src="http' not in page


def test_resuming_a_whole_map_computes_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is added to the file, at most that its commit is another; without --resume it is not written over."""
    monkeypatch.setattr(claim_map, "QUICK", TINY)
    path = made / "results.jsonl"
    before = [*ResultsReader(path)]
    computed.run("map", Namespace(quick=True, trace=None, seed=0, locked=False), path, print)
    after = [one for one in ResultsReader(path) if not (isinstance(one, Note) and one.topic == RESUMED)]
    assert after == before
    code, _, err = said("map", "--quick", "--out", str(made))
    assert (code, "--resume goes on with it" in err) == (USAGE, True)


def test_what_was_computed_twice_counts_once() -> None:
    """A run that was stopped within a topic computes the topic again; the report takes the later."""
    first, other = {"calls": 1, "p50": 0.1}, {"calls": 2, "p50": 0.2}
    notes = [Note(topic=POINT, detail=detail) for detail in (first, other, {"calls": 1, "p50": 0.3})]
    assert claim_map_report.last_details(notes, POINT) == [{"calls": 1, "p50": 0.3}, other]


def test_below_the_break_even_a_form_saves_more_and_above_it_less() -> None:
    """With tools of just that time it saves just as much."""
    for form in claim_map.SAVING_FORMS:
        for share in (None, 0.0, 1.0):
            toolless = sums_of(uniform(20, 10_000))
            seconds = break_even_seconds(toolless, form, 1_000.0, removable_share=share, saving=0.02)
            there = sums_of(uniform(20, 10_000, tool_seconds=seconds))
            assert overhead_model_saving(there, form, 1_000.0, removable_share=share) == pytest.approx(0.02)
    assert break_even_seconds(sums_of(uniform(20, 10)), "create", 0.1, removable_share=None) == 0.0


def test_a_rollout_is_cut_after_a_call() -> None:
    """Nobody waits for the tool of the last step; a rollout that is too short is refused."""
    work = uniform(5, 100, tool_seconds=2.0)
    assert cut(work, 2) == attrs.evolve(uniform(2, 100, tool_seconds=2.0), name=work.name)
    assert cut(work, 5) == work
    with pytest.raises(WorkloadError, match="has 5 calls"):
        cut(work, 6)


def test_a_trace_takes_the_place_of_the_drawn_rollouts(tmp_path: Path) -> None:
    """Depths that no rollout has are no data, and so are recorded tools that nobody knows."""
    plan = MapPlan(calls=(20, 40), tokens_per_second=(65.0, 1_000.0))
    known = claim_map.works_of_scenarios(plan, 0, trace_file(tmp_path / "known.jsonl", 3.0, 4.0))
    assert set(known) == {"A", "B", "Z"}
    details = [note.detail for note in claim_map.points(known, plan)]
    assert {detail["rollouts"] for detail in details if detail["calls"] == 20} == {2}
    assert {detail["p50"] for detail in details if detail["calls"] == 40} == {None}
    unknown = claim_map.works_of_scenarios(plan, 0, trace_file(tmp_path / "unknown.jsonl", None))
    assert set(unknown) == {"B", "Z"}


def test_of_one_rollout_there_is_no_spread() -> None:
    """A single value is not three."""
    assert spread([0.5]) == {"p10": None, "p50": None, "p90": None}
    assert spread([0.0, 1.0]) == {"p10": 0.1, "p50": 0.5, "p90": 0.9}


def test_every_published_claim_has_its_place() -> None:
    """And is marked where the place is ours."""
    assert [report.who for report in REPORTS] == [*claim_map_sections.PLACES]
    labels = [claim.label for claim in claim_map_sections.claims()]
    assert [label for label in labels if "*" not in label] == ["OpenAI, up to", "OpenAI alpha"]


def test_where_nothing_is_known_nothing_is_told() -> None:
    """A panel without data says so, and one that reaches the claim says from where on."""
    empty = Panel("no tool time", (65.0, 1_000.0), (1, 20), [[None, None], [None, None]])
    assert claim_map_sections._told(empty) == "no tool time, no data"
    reached = attrs.evolve(empty, saving=[[0.01, 0.5], [None, 0.3]])
    assert claim_map_sections._told(reached) == (
        "no tool time, 40 % from 1,000 tokens/s on (at most 50.0 %, at 1,000 tokens/s and 1 call) "
        "and less than 2 % at 1 of 3 points"
    )


def test_too_long_rollouts_are_not_run_by_the_engine() -> None:
    """Whose texts would be too many is left to the model."""
    long = Work("long", 10**6, uniform(5, 0).steps)
    assert [*claim_map.cases({"Z": [long]}, QUICK, 0)] == []
    assert len([*claim_map.cases({"Z": [long, uniform(5, 0)]}, QUICK, 0)]) == 3


def test_a_file_of_another_experiment_has_no_reporter_here(made: Path) -> None:
    """Only heads that name one of these do."""
    header = ResultsReader(made / "results.jsonl").header
    assert computed.reporter(header) is claim_map_report.report_of
    assert computed.reporter(attrs.evolve(header, config={})) is None
