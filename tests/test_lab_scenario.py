"""demos.lab.scenario: what is the package's own experiment, changed in nothing, and what is not."""

import io
from pathlib import Path

import attrs
import orjson
import pytest

from tests.lab_rollouts import ENVIRONMENT, IN_ORDER

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab import scenario
from demos.lab.command import USAGE, Terminal, lab
from demos.lab.page import stamp
from demos.lab.plan import Plan, packaged_text
from demos.lab.records import Note
from demos.lab.report import Submission
from demos.lab.results import RESUMED, ResultsFile, ResultsReader
from tests.test_lab_driver import SMALL

LADDER = Plan.load("ladder")


def edited(old: str, new: str) -> Plan:
    """The packaged ladder with another line."""
    text = packaged_text("ladder")
    assert old in text
    return Plan.parse(text.replace(old, new), "ladder", "ladder.toml")


def test_the_package_s_own_experiment_is_the_locked_scenario():
    """On a known commit without changes nothing speaks against it, whoever holds the file."""
    assert scenario.plan_conflicts(LADDER, 0, ENVIRONMENT) == ()
    copy = Plan.parse(packaged_text("ladder"), "ladder", "a copy.toml")
    assert scenario.plan_conflicts(copy, 0, ENVIRONMENT) == ()


@pytest.mark.parametrize(
    ("plan", "seed", "environment", "reason"),
    [
        (Plan.load("ladder", quick=True), 0, ENVIRONMENT, "--quick is the small version"),
        (edited("rtt_ms = 30", "rtt_ms = 31"), 0, ENVIRONMENT, "rtt_ms: the file has 30, asked for 31"),
        (Plan.parse(SMALL, "mine", "mine.toml"), 0, ENVIRONMENT, "mine is no experiment of the package"),
        (LADDER, 5, ENVIRONMENT, "seed 5, and the locked scenario has 0"),
        (LADDER, 0, attrs.evolve(ENVIRONMENT, dirty=True), "changes that are in no commit"),
        (LADDER, 0, attrs.evolve(ENVIRONMENT, commit="unknown"), "the commit is not known"),
    ],
    ids=["quick", "edited", "own", "seed", "dirty", "unknown"],
)
def test_each_conflict_is_named(plan, seed, environment, reason):
    """Whatever would make the figures those of another experiment is a reason, and there is no other."""
    [found] = scenario.plan_conflicts(plan, seed, environment)
    assert reason in found


def test_what_is_computed_is_locked_by_the_same_rules(tmp_path):
    """The small version, rollouts of one's own and another seed conflict; nothing else does."""
    assert scenario.computed_conflicts(0, ENVIRONMENT, quick=False, trace=None) == ()
    found = scenario.computed_conflicts(1, ENVIRONMENT, quick=True, trace=tmp_path)
    assert [one.split()[0] for one in found] == ["--quick", "--trace", "seed"]


def written(path: Path, conflicts: tuple[str, ...] | None, *notes: str) -> Path:
    """A result file with this stamp and these notes."""
    with ResultsFile.open(
        path,
        experiment="ladder",
        config=LADDER.config(),
        seed=0,
        environment=ENVIRONMENT,
        began="2026-11-30T02:00:00Z",
        conflicts=conflicts,
    ) as file:
        file.write(IN_ORDER)
        for topic in notes:
            file.write(Note(topic=topic, detail={}))
    return path


@pytest.mark.parametrize(
    ("conflicts", "notes", "failures", "reasons"),
    [
        ((), [scenario.FINISHED], [], []),
        (("seed 5",), [scenario.FINISHED], [], ["seed 5"]),
        ((), [], [], ["results.jsonl does not hold all that was planned"]),
        ((), [RESUMED, scenario.FINISHED], [], ["results.jsonl was resumed in another environment"]),
        ((), [scenario.FINISHED], ["A/A", "warm"], ["checks failed: A/A, warm"]),
    ],
)
def test_a_report_says_whether_its_file_is_submission_valid(tmp_path, conflicts, notes, failures, reasons):
    """By the stamp of its head, by what happened since, and by its own checks."""
    path = written(tmp_path / "results.jsonl", conflicts, *notes)
    head = orjson.loads(path.read_bytes().splitlines()[0])
    assert (head["submission_valid"], head["conflicts"]) == (not conflicts, [*conflicts])
    found = scenario.submission_of([path], failures)
    assert found is not None
    assert (found.valid, [*found.reasons]) == (not reasons, reasons)


def test_a_file_without_a_stamp_has_no_verdict(tmp_path):
    """It was written before anybody asked; it is neither valid nor not."""
    path = written(tmp_path / "results.jsonl", None, scenario.FINISHED)
    assert scenario.submission_of([path], []) is None
    assert [*scenario.resume_conflicts(path, ENVIRONMENT)] == ["results.jsonl has no stamp"]


def test_going_on_elsewhere_is_a_conflict(tmp_path):
    """A file may be resumed where it was begun, and if it was begun as the locked scenario."""
    path = written(tmp_path / "results.jsonl", ())
    assert scenario.resume_conflicts(path, ENVIRONMENT) == ()
    assert scenario.resume_conflicts(tmp_path / "none.jsonl", ENVIRONMENT) == ()
    other = attrs.evolve(ENVIRONMENT, versions={"attrs": "1"})
    assert scenario.resume_conflicts(path, other) == ("results.jsonl was begun in another environment",)
    quick = written(tmp_path / "quick.jsonl", ("--quick is the small version",))
    assert scenario.resume_conflicts(quick, ENVIRONMENT) == ("--quick is the small version",)


def test_the_end_is_noted_once(tmp_path):
    """A run that finds its file whole adds nothing to it."""
    path = written(tmp_path / "results.jsonl", ())
    for _ in range(2):
        with ResultsFile.open(
            path,
            experiment="ladder",
            config=LADDER.config(),
            seed=0,
            environment=ENVIRONMENT,
            began="later",
            conflicts=(),
        ) as file:
            scenario.finish(file)
    notes = [*ResultsReader(path).notes()]
    assert [(note.topic, note.detail) for note in notes] == [(scenario.FINISHED, {"rollouts": 1})]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["ladder", "--quick"], "--quick is the small version"),
        (["map", "--quick", "--seed", "3"], "seed 3, and the locked scenario has 0"),
    ],
)
def test_a_locked_run_is_refused_before_it_begins(tmp_path, argv, reason):
    """With every conflict in one line, and no file behind it."""
    out, err = io.StringIO(), io.StringIO()
    code = lab([*argv, "--locked", "--out", str(tmp_path / "out")], Terminal(out=out, err=err, plain=True))
    assert code == USAGE
    assert reason in err.getvalue()
    assert not [*tmp_path.rglob("*.jsonl")]


def test_a_run_that_is_not_locked_is_stamped_with_its_reasons(tmp_path):
    """It runs; its head and its report say that it is not submission-valid, and why."""
    file = tmp_path / "mine.toml"
    file.write_text(SMALL.replace("repeats = 2", "repeats = 1"))
    out = io.StringIO()
    lab(
        ["run", str(file), "--out", str(tmp_path / "out")],
        Terminal(out=out, err=io.StringIO(), plain=True),
    )
    header = ResultsReader(tmp_path / "out" / "results.jsonl").header
    assert header.submission_valid is False
    assert "mine is no experiment of the package" in header.conflicts
    for text in (out.getvalue(), (tmp_path / "out" / "report.html").read_text()):
        assert "Submission-valid: no. mine is no experiment of the package" in text


def test_the_verdict_is_a_sentence():
    """Yes, no with reasons, or not known."""
    assert stamp(Submission(())).startswith("Submission-valid: yes.")
    assert stamp(Submission(("a", "b"))) == "Submission-valid: no. a; b."
    assert stamp(None).startswith("Submission-valid: not known")
