"""`suspended lab`, from the command line to the report."""

import io
import re
from pathlib import Path

import orjson
import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab.arguments import make_parser
from demos.lab.command import COMMANDS, FAILED, INVALID, OK, USAGE, Terminal, lab
from demos.lab.plan import experiments
from demos.lab.progress import Lines, duration
from demos.lab.records import cell_key
from demos.lab.results import ResultsReader
from demos.lab.split import floor_seconds
from engine.cli import main
from tests.test_lab_driver import SMALL, case_of


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick ladder, run once."""
    out = tmp_path_factory.mktemp("ladder") / "made"
    assert main(["lab", "ladder", "--quick", "--plain", "--out", str(out)]) in (OK, INVALID)
    return out


def said(*argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = lab(argv, Terminal(out=out, err=err, plain=True))
    return code, out.getvalue(), err.getvalue()


def test_the_quick_ladder_leaves_its_results_and_a_report(ladder: Path) -> None:
    """Every arm in every cell in every block, nothing failed; the page holds its plots and needs no network."""
    rollouts = [*ResultsReader(ladder / "results.jsonl").rollouts()]
    assert len(rollouts) == 8 * 3 * 2
    assert {(one.failed, one.valid, one.findings) for one in rollouts} == {(False, True, 0)}
    page = (ladder / "report.html").read_text()
    assert page.count("<svg") >= 6
    assert "optimised#2" in page
    assert not any(mark in page for mark in ('src="http', 'href="http', "@import", "url(http"))
    pictures = {path.name for kind in ("svg", "png") for path in ladder.glob(f"*.{kind}")}
    assert "01-time-per-rollout-65-tokens-s.png" in pictures
    assert all(f'href="{name}"' in page for name in pictures)


def test_the_bound_is_a_rollout_without_work(ladder: Path) -> None:
    """By the virtual clock append takes what nobody can save, and the two round trips that open its connection."""
    reader = ResultsReader(ladder / "results.jsonl")
    models = {cell_key(cell["axes"]): cell["model"] for cell in reader.header.config["cells"]}
    for one in reader.rollouts():
        floor_s = floor_seconds(one, models[cell_key(one.cell)])
        assert one.total_s is not None
        if one.arm == "append":
            assert one.total_s - floor_s == pytest.approx(2 * 0.030, abs=0.001 * 4 * len(one.turns))
        assert one.total_s > floor_s


def test_a_report_can_be_made_again_from_the_file_alone(ladder: Path) -> None:
    """It is the same page."""
    before = (ladder / "report.html").read_text()
    (ladder / "report.html").unlink()
    code, out, _ = said("report", str(ladder))
    assert code in (OK, INVALID)
    assert "A/A shows no difference" in out
    assert (ladder / "report.html").read_text() == before


def test_results_are_not_written_over(ladder: Path) -> None:
    """Who runs an experiment into a directory that has results is told of --resume."""
    code, _, err = said("ladder", "--quick", "--out", str(ladder))
    assert code == USAGE
    assert "--resume goes on with it" in err


def test_resuming_what_is_whole_runs_nothing(ladder: Path) -> None:
    """The file stays as it is."""
    before = (ladder / "results.jsonl").read_bytes()
    code, _, err = said("ladder", "--quick", "--resume", "--out", str(ladder))
    assert code in (OK, INVALID)
    assert "0 rollouts" in err
    assert (ladder / "results.jsonl").read_bytes() == before


def test_results_of_another_seed_are_refused(ladder: Path) -> None:
    """Figures of two plans never stand in one file."""
    code, _, err = said("ladder", "--quick", "--resume", "--seed", "1", "--out", str(ladder))
    assert code == USAGE
    assert "another plan" in err


def test_an_experiment_of_ones_own_is_run_by_its_file(tmp_path: Path) -> None:
    """By both clocks if it says so; then how far they are apart is said."""
    file = tmp_path / "mine.toml"
    file.write_text(SMALL)
    code, out, _ = said("run", str(file), "--out", str(tmp_path / "out"))
    assert code in (OK, INVALID)
    assert "append takes" in out or "No difference" in out
    header = orjson.loads((tmp_path / "out" / "results.jsonl").read_bytes().splitlines()[0])
    assert (header["experiment"], header["config"]["clock"]) == ("mine", "virtual")


def test_clocks_that_are_compared_are_compared_in_the_report(tmp_path: Path) -> None:
    """Two files, one verdict: how far they are apart, against what they may be."""
    file = tmp_path / "both.toml"
    file.write_text(
        SMALL.replace('clock = "virtual"', 'clock = "both"').replace("repeats = 2", "repeats = 1")
    )
    code, out, _ = said("run", str(file), "--out", str(tmp_path / "out"))
    assert code in (OK, INVALID)
    assert "append at calls=1" in out
    assert "tolerance 5.0 %" in out
    assert {path.name for path in (tmp_path / "out").glob("*.jsonl")} == {"virtual.jsonl", "wall.jsonl"}


def test_rollouts_that_are_not_there_leave_no_results(tmp_path: Path) -> None:
    """Whoever mends the path runs the same command again."""
    file, works, out = tmp_path / "mine.toml", tmp_path / "works.jsonl", tmp_path / "out"
    cell = SMALL[SMALL.index("calls = 1") : SMALL.index("rtt_ms")]
    file.write_text(SMALL.replace(cell, "").replace('"uniform"', f'"file"\npath = "{works}"'))
    code, _, err = said("run", str(file), "--out", str(out))
    assert (code, "work.path" in err) == (USAGE, True)
    works.write_text('{"id": "a", "ctx0": 0, "steps": [[10, 5, 0.5], [10, 5, 0]]}\n')
    assert said("run", str(file), "--out", str(out))[0] in (OK, INVALID)


def test_a_report_of_nothing_is_an_error(ladder: Path, tmp_path: Path) -> None:
    """Of a run that was stopped before its first rollout, and of one whose trace is empty, which leaves no results."""
    (tmp_path / "results.jsonl").write_bytes((ladder / "results.jsonl").read_bytes().splitlines(True)[0])
    code, _, err = said("report", str(tmp_path))
    assert (code, "holds no rollout yet" in err) == (USAGE, True)
    (tmp_path / "empty").touch()
    code, _, err = said("map", "--quick", "--trace", str(tmp_path / "empty"), "--out", str(tmp_path / "map"))
    assert (code, "empty has no rollout" in err) == (USAGE, True)
    assert not (tmp_path / "map" / "results.jsonl").exists()


def test_many_turns_are_shown_one_by_one(tmp_path: Path) -> None:
    """The cost of turn n is a line, and its ends are compared."""
    file = tmp_path / "soak.toml"
    file.write_text(SMALL.replace("calls = 1", "calls = 60").replace("repeats = 2", "repeats = 1"))
    _, out, _ = said("run", str(file), "--out", str(tmp_path / "out"))
    assert "turns 2 to 21" in out
    assert "The cost of turn n" in (tmp_path / "out" / "report.html").read_text()


def test_rollouts_that_fail_are_a_failure_of_the_command(tmp_path: Path) -> None:
    """They stand in the file all the same."""
    file = tmp_path / "late.toml"
    file.write_text(SMALL.replace("repeats = 2", "repeats = 1\ntimeout_s = 0.001"))
    code, _, err = said("run", str(file), "--out", str(tmp_path / "out"))
    assert code == FAILED
    assert "2 rollouts failed" in err
    assert len([*ResultsReader(tmp_path / "out" / "results.jsonl").rollouts()]) == 2


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["run", "nowhere.toml"], "No such file"),
        (["report", "nowhere"], "nowhere"),
        (["bill", "--format", "trace", "-", "-"], "standard input"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(argv: list[str], word: str) -> None:
    """With an exit code that is not 0, and no traceback."""
    code, _, err = said(*argv)
    assert code in (USAGE, FAILED)
    assert word in err
    assert "Traceback" not in err


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """It names every experiment, every arm, and the exit codes; `suspended --help` names the command."""
    assert main(["lab", "--help"]) == OK
    text = capsys.readouterr().out
    for word in (*experiments(), "R3i  inject", "exit codes", "calibrate", "bill", "--quick"):
        assert word in text
    assert main(["--help"]) == OK
    assert "lab" in capsys.readouterr().out


def test_show_prints_a_file_that_can_be_run(tmp_path: Path) -> None:
    """And says about how long it takes."""
    code, out, err = said("show", "alpha")
    assert (code, "takes about" in err) == (OK, True)
    (tmp_path / "mine.toml").write_text(out)
    assert 'source = "alpha"' in out


def test_lines_say_how_long_it_takes_by_how_long_it_took() -> None:
    """What was expected is corrected by what was seen; a line comes at most every ten seconds."""
    now = [0.0]
    lines: list[str] = []
    progress = Lines(lines.append, clock=lambda: now[0])
    progress.begin("wall", 4, 40.0)
    for now[0] in (20.0, 25.0, 60.0):
        progress.ran(case_of("append"), 10.0)
    assert lines == [
        "4 rollouts by the wall clock, about 40 s",
        "1 of 4, 1 min 00 s left",
        "3 of 4, 20 s left",
    ]
    assert duration(59.4) == "59 s"


@pytest.mark.parametrize("tool", ["calibrate", "bill", "perfetto", "spans"])
def test_each_tool_teaches_itself(tool, capsys):
    """Each has a help of its own, behind the one command."""
    with pytest.raises(SystemExit) as left:
        make_parser().parse_args([tool, "--help"])
    assert left.value.code == 0
    assert f"usage: suspended lab {tool}" in capsys.readouterr().out


def test_every_command_of_the_help_is_there_to_be_run(capsys):
    """What the parser takes and what can be done are the same names."""
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--help"])
    offered = capsys.readouterr().out.split("experiments and tools:")[1].split("An experiment is a file")[0]
    assert set(re.findall(r"^    ([a-z][a-z-]*)", offered, re.MULTILINE)) == {*COMMANDS}
