"""The kept results: what the README's figures are of is valid, no older than its bound, and what they are made from."""

import gzip
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab import canvas, computed, figures, keep
from demos.lab.arms import arm_of
from demos.lab.command import OK, USAGE, Terminal, lab
from demos.lab.fingerprint import age, fingerprint, reached
from demos.lab.kept_results import KEPT, MOST_CHANGED, RUNNER, Kept, complaints, kept, named
from demos.lab.plan import Plan
from demos.lab.records import Header, Note, as_json, from_json
from demos.lab.report import Report, Section
from demos.lab.reports import made
from demos.lab.results import RESULTS, ResultsError, ResultsFile
from demos.lab.scenario import FINISHED
from demos.lab.statistics import compare
from tests.command import ROOT, environment
from tests.lab_rollouts import CELL, ENVIRONMENT, HEADER, SERVER, rollout
from tests.pictures import faults_of
from tests.readme import README

PACKED = f"{RESULTS}.gz"
SECONDS = {"optimised": 2.0, "append": 1.0}
"""Of a rollout in these tests; other arms take 4."""


def write_ladder(directory: Path, *, quick: bool = False, code: Any = None, **changes: Any) -> Path:
    """Results of a ladder that nobody ran: whole and in order, but for the changes of its environment."""
    plan = Plan.load("ladder", quick=quick)
    directory.mkdir(parents=True, exist_ok=True)
    with ResultsFile.open(
        directory / RESULTS,
        experiment="ladder",
        config={**plan.config(), "clock": plan.clock},
        seed=0,
        environment=attrs.evolve(ENVIRONMENT, code=fingerprint() if code is None else code, **changes),
        began="2026-11-30T02:00:00Z",
        conflicts=(),
    ) as file:
        for case in plan.cases(0):
            arm = arm_of(case.arm)
            file.write(
                rollout(
                    cell=case.cell.axes,
                    arm=case.arm,
                    work=case.work.name,
                    seed=case.seed,
                    block=case.block,
                    order=case.order,
                    total_s=SECONDS.get(arm.name, 4.0) * (1 + case.block / 1_000),
                    connections=arm.connections(31),
                    server=attrs.evolve(SERVER, cpu_s=0.02),
                )
            )
        file.write(Note(topic=FINISHED, detail={}))
    return directory


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run wrote."""
    return write_ladder(tmp_path_factory.mktemp("ran") / "any-name")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, ladder: Path) -> Path:
    """Where those results are kept."""
    folder = tmp_path_factory.mktemp("kept")
    keep.keep(ladder, folder)
    return folder


# --- what is in the package ----------------------------------------------------------------------------------------


def test_what_is_kept_may_stand_in_the_readme():
    """All kept results open, are whole, valid, of today's plans, and of code that is not too old; else the message says how
    to renew them."""
    assert {one.name: complaints(one.directory) for one in kept()} == {one.name: [] for one in kept()}


@pytest.mark.parametrize("one", kept(), ids=lambda one: one.name)
def test_each_kept_picture_can_be_read(one):
    """No text of a whole report's pictures is cut off, or lies over another."""
    pictures = [section.picture for section in made(one.directory).report.sections if section.picture]
    assert pictures
    with canvas.look():
        sheets = [picture.draw.figure() for picture in pictures]
        assert [(sheet.get_suptitle(), fault) for sheet in sheets for fault in faults_of(sheet)] == []


def test_a_floor_is_no_arm_among_others():
    """Its one turn is the work of all: beside a turn, or a rollout with turns, it would be no comparison."""
    sections = made(named("turns").directory).report.sections
    cells = [cell for section in sections if section.table for row in section.table.rows for cell in row]
    assert "append" in cells
    assert not {"floor", "floor-http"} & {*cells}


def test_the_readme_says_what_the_kept_results_give():
    """Its figures are those that are made from the files, to the letter."""
    assert f"<!-- generated: figures -->\n\n{figures.block()}\n\n<!-- end -->" in README.read_text()


def test_the_sections_that_are_quoted_are_there():
    """None of what is kept is told by its summary because a title has changed."""
    for one in kept():
        row = figures.ROWS.get(one.name)
        titles = [section.title for section in made(one.directory).report.sections]
        wanted = row.sections if row else ()
        assert [name for name in wanted if not any(re.match(name, title) for title in titles)] == []


def test_nothing_but_results_is_kept():
    """Each folder is of an experiment, and holds compressed results."""
    for one in kept():
        assert one.header.experiment == one.name
        assert {path.suffix for path in one.directory.iterdir()} == {".gz"}
    assert {one.directory.parent for one in kept()} <= {KEPT}


# --- keeping -------------------------------------------------------------------------------------------------------


def test_valid_results_are_kept(ladder, folder):
    """There is nothing to say against them, and what is kept is what was run."""
    assert complaints(folder / "ladder") == []
    assert gzip.decompress((folder / "ladder" / PACKED).read_bytes()) == (ladder / RESULTS).read_bytes()


def test_the_same_results_give_the_same_bytes(ladder, folder, tmp_path):
    """Kept again, also from what was kept, a file does not change."""
    first = keep.keep(ladder, tmp_path / "first") / PACKED
    again = keep.keep(folder / "ladder", tmp_path / "second") / PACKED
    assert first.read_bytes() == again.read_bytes() == (folder / "ladder" / PACKED).read_bytes()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"quick": True}, "is not what `suspended lab ladder` runs today"),
        ({"code": {}}, "does not say which code"),
        ({"dirty": True}, "one known environment (changes that are in no commit)"),
    ],
)
def test_what_must_not_be_quoted_is_refused(tmp_path, capsys, changes, word):
    """The small version, a file without fingerprint and one whose report is invalid: each with its reason."""
    assert keep.main([str(write_ladder(tmp_path / "out", **changes))]) == keep.REFUSED
    assert word in capsys.readouterr().err


def test_an_unfinished_run_is_refused(ladder, tmp_path):
    """With a torn last line, and without the note that all is there."""
    content = (ladder / RESULTS).read_bytes()
    (tmp_path / RESULTS).write_bytes(content[:-9])
    assert complaints(tmp_path) == ["results.jsonl ends in a torn line: go on with it (--resume)"]
    (tmp_path / RESULTS).write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    assert complaints(tmp_path) == [
        "it is not submission-valid: results.jsonl does not hold all that was planned"
    ]


@pytest.mark.parametrize(("arguments", "code"), [([], keep.USAGE), (["nowhere"], keep.FAILED)])
def test_keeping_nothing_is_an_error(arguments, code, capsys):
    """Without a directory, or with one that holds no results."""
    assert keep.main(arguments) == code
    assert capsys.readouterr() != ("", "")


# --- damage and changes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
        lambda content: b"x" + content,
    ],
)
def test_a_damaged_file_is_refused(folder, tmp_path, damage):
    """Cut short, one bit changed, or no archive: no figure is made from it."""
    (tmp_path / "ladder").mkdir()
    (tmp_path / "ladder" / PACKED).write_bytes(damage((folder / "ladder" / PACKED).read_bytes()))
    with pytest.raises(ResultsError):
        complaints(tmp_path / "ladder")
    with pytest.raises(ResultsError):
        figures.block(tmp_path)


def test_an_edited_file_gives_other_figures(folder, ladder, tmp_path):
    """One number of one record changed: neither the ratio nor the name of the results is that of the README any more."""
    header, *lines = (ladder / RESULTS).read_bytes().splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if b'"arm":"append"' in line)
    lines[at] = lines[at].replace(b'"total_s":', b'"total_s":9', 1)
    (tmp_path / RESULTS).write_bytes(b"".join([header, *lines]))
    kept_again = keep.keep(tmp_path, tmp_path / "kept").parent
    before, after = figures.block(folder), figures.block(kept_again)
    assert Kept(folder / "ladder").digest in before
    assert Kept(folder / "ladder").digest not in after
    assert _row(before, "append") != _row(after, "append")
    assert _row(before, "inject") == _row(after, "inject")


# --- figures -------------------------------------------------------------------------------------------------------


def _row(block: str, arm: str) -> str:
    return next(line for line in block.splitlines() if line.startswith(f"| {arm}, "))


def test_the_table_holds_the_ratios_with_their_intervals(folder, ladder):
    """Half the time is a ratio of 0.50, each speed has its column, and the baseline stands as seconds."""
    block = figures.block(folder)
    cells = [cell.strip() for cell in _row(block, "append").strip("|").split("|")]
    assert cells[:4] == ["append, R3", *["0.50 (0.50\N{EN DASH}0.50)"] * 3]
    assert cells[-1] == "10.0"
    assert "| **optimised**, R1p | 1 = 2.0" in block
    assert "| optimised again (A/A) | 1.00 (" in block
    assert "commit `aaaaaaaaaa`" in block
    assert "2 cores of a processor" in block


def test_what_was_run_is_said_where_it_differs():
    """An axis that is the same at each speed stands once, another one with each speed."""
    cells = {
        speed: {**CELL, "tokens_per_second": speed, "calls": calls}
        for speed, calls in ((65.0, 20), (4e3, 30))
    }
    told = figures._cells({speed: [rollout(cell=cell)] for speed, cell in cells.items()})
    assert told == "Rollouts: calls 20 at 65 tokens/s, 30 at 4,000 tokens/s; rtt ms 30; tool Z."


def test_sections_are_quoted_by_their_titles():
    """In the order that the row asks for, with their titles where it says so; if there is none, the summary is quoted."""
    sections = [
        Section(title="Cost, 65 tokens/s", sentence="It is 1.", source="f"),
        Section(title="Cost, 4,000 tokens/s", sentence="It is 2.", source="f"),
        Section(title="Size", sentence="It is 3.", source="f"),
    ]
    report = Report(
        title="t", header=HEADER, summary=("All in all 4.",), sections=tuple(sections), method=(), checks=(), files=()
    )  # fmt: skip
    told = figures.Told("wall clock", ("Size", "Cost.* 65 "))
    assert figures.quoted(report, told) == ["It is 3.", "It is 1."]
    assert figures.quoted(report, attrs.evolve(told, titled=True))[1] == "Cost, 65 tokens/s: It is 1."
    assert figures.quoted(report, figures.Told("wall clock", ("Weight",))) == ["All in all 4."]


def test_no_interval_is_said():
    """A ratio of one pair has none, and no pair no ratio."""
    pair = [rollout(), rollout(arm="optimised")]
    assert figures.ratio_cell(compare(pair, "optimised", "append")) == "1.00 (no interval)"
    assert figures.ratio_cell(compare(pair[:1], "optimised", "append")) == "no data"


def test_what_is_not_kept_is_not_measured(tmp_path, folder):
    """It is named, with no figure, whether others are kept or none."""
    assert figures.block(tmp_path / "nothing").startswith(
        "Not measured yet, so no figure of them stands here: `ladder`, "
    )
    last = figures.block(folder).splitlines()[-1]
    assert last.startswith("Not measured yet")
    assert "`ladder`" not in last
    assert "`scale`" in last


def test_without_the_extra_the_figures_stay():
    """Where numpy is missing the README's figures are left as they are, and the rest is made."""
    program = (
        "import sys; sys.modules['numpy'] = sys.modules['matplotlib'] = None\n"
        "from tests.readme import figures, written\n"
        "print(figures(), '\\nold\\n' in written('<!-- generated: figures -->\\nold\\n<!-- end -->\\n'))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout == "None True\n"


# --- age -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of four files of nine lines in all; the report is run by no experiment."""
    contents = {
        "demos/lab/runner.py": "from typing import TYPE_CHECKING\n\nfrom engine import loop\nif TYPE_CHECKING:\n    import demos.lab.plots\n",
        "engine/loop.py": "def run():\n    import protocol.words as words\n    return words\n",
        "protocol/words.py": "WORD = 1\n",
        "demos/lab/plots.py": "import demos.lab.runner\n" * 50,
    }
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_imports_lead_to_what_is_run(tree):
    """In functions, too; not what only type checkers import, and nothing outside of the packages."""
    assert reached(RUNNER, tree) == {"demos/lab/runner.py", "engine/loop.py", "protocol/words.py"}


def test_age_is_a_share_of_lines(tree):
    """Of the files that are run, however many others there are; a file that is new has changed."""
    code = fingerprint(tree)
    assert age(code, RUNNER, tree).share == 0
    (tree / "demos/lab/plots.py").write_text("import os\n")
    assert age(code, RUNNER, tree).share == 0
    (tree / "protocol/words.py").write_text("WORD = 2\n")
    assert age(code, RUNNER, tree) == attrs.evolve(
        age({}, RUNNER, tree), changed=("protocol/words.py",), changed_lines=1
    )
    assert (age({}, RUNNER, tree).share, age(code, "demos.lab.gone", tree).share) == (1, 1)


def test_line_ends_are_no_change(tree):
    """A checkout with the line ends of another system is the same code."""
    code = fingerprint(tree)
    path = tree / "engine/loop.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert age(code, RUNNER, tree).share == 0


def test_a_figure_that_is_too_old_is_refused(tree, tmp_path):
    """Up to the bound nothing is said; above it the message says how much has changed and what to run."""
    ladder = write_ladder(tmp_path / "out", code=fingerprint(tree))
    (tree / "engine/loop.py").write_text("def run():\n    from protocol import words\n    return words\n")
    assert 3 / 9 == age(fingerprint(tree) | {"engine/loop.py": ("", 3)}, RUNNER, tree).share == MOST_CHANGED
    assert complaints(ladder, tree) == []
    (tree / "protocol/words.py").write_text("WORD = 2\n")
    (told,) = complaints(ladder, tree)
    assert "4 of the 9 lines" in told
    assert (
        "`suspended lab ladder --out DIR`, `python -m demos.lab.keep DIR`, `python -m tests.readme`" in told
    )


@pytest.mark.parametrize("first", [RUNNER, *(one.module for one in computed.EXPERIMENTS.values())])
def test_no_report_makes_a_measurement_old(first):
    """What draws, tells and prints is reached from no experiment; what it runs is."""
    found = reached(first)
    assert f"{first.replace('.', '/')}.py" in found
    assert [
        path
        for path in found
        if "report" in path or "sections" in path or path.endswith(("plots.py", "page.py"))
    ] == [path for path in found if path == "demos/lab/report.py"]


def test_the_engine_is_what_the_ladder_measures():
    """Server and client, forms and protocol, and the processes that run them."""
    wanted = {
        "engine/rollout.py",
        "engine/client.py",
        "protocol/session.py",
        "demos/lab/driver.py",
        "demos/lab/wall.py",
    }
    assert wanted <= reached(RUNNER)


def test_a_header_without_code_is_read():
    """Older files have none; with one it comes back as it was."""
    line = as_json(HEADER)
    del line["code"]
    old = from_json(line)
    assert isinstance(old, Header)
    assert old.environment.code == {}
    new = attrs.evolve(HEADER, environment=attrs.evolve(ENVIRONMENT, code={"engine/a.py": ("ab", 3)}))
    assert from_json(as_json(new)) == new


# --- for those who quote -------------------------------------------------------------------------------------------


def said(*argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = lab(argv, Terminal(out=out, err=err, plain=True))
    return code, out.getvalue(), err.getvalue()


def test_a_kept_file_can_be_opened(folder, ladder, tmp_path):
    """`suspended lab report` takes a compressed file and writes the results, as they were, with their report beside them."""
    out = tmp_path / "out"
    code, told, _ = said("report", str(folder / "ladder" / PACKED), "--out", str(out))
    assert code == OK
    assert "append takes 50.0 % less time" in told
    assert (out / RESULTS).read_bytes() == (ladder / RESULTS).read_bytes()
    assert (out / "report.html").is_file()
    (out / RESULTS).write_text("mine\n")
    assert said("report", str(folder / "ladder"), "--out", str(out))[0] == USAGE


def test_a_result_file_has_its_report_beside_it(ladder, tmp_path, monkeypatch):
    """Whatever it is called, and nothing is written elsewhere; elsewhere it has the name by which results are found."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    lone = tmp_path / "a" / "lone.jsonl"
    lone.write_bytes((ladder / RESULTS).read_bytes())
    assert said("report", "a/lone.jsonl")[0] == OK
    assert 'href="lone.jsonl"' in (tmp_path / "a" / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert said("report", "a/lone.jsonl", "--out", "b")[0] == OK
    assert {RESULTS, "report.html"} < {path.name for path in (tmp_path / "b").iterdir()}


def test_what_is_no_result_is_copied_nowhere(tmp_path):
    """Its first line is read before anything is written."""
    (tmp_path / "A.sse").write_text("data: 1\n")
    assert said("report", str(tmp_path / "A.sse"), "--out", str(tmp_path / "out"))[0] == USAGE
    assert not (tmp_path / "out").exists()


def test_kept_results_are_named():
    """Without a name they are listed; a wrong one names those there are."""
    code, told, _ = said("kept")
    assert (code, [line.partition(":")[0] for line in told.splitlines()]) == (
        OK,
        [one.name for one in kept()],
    )
    code, _, err = said("kept", "no-such")
    assert code == USAGE
    assert "no results of 'no-such' are kept; there are: " in err
