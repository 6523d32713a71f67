"""The report of the comparison with other servers, from result files made by hand."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab import computed, peers, peers_report, peers_servers
from demos.lab.command import FAILED as COMMAND_FAILED
from demos.lab.command import OK, USAGE, Terminal, lab
from demos.lab.environment import environment
from demos.lab.page import page
from demos.lab.peers import FAILED, MISSING, PROBE, RUNS, SERVER, TURN, config
from demos.lab.peers_arms import ARMS
from demos.lab.peers_report import report_of
from demos.lab.peers_sections import read
from demos.lab.records import Note
from demos.lab.report import Check, Report, Section
from demos.lab.results import ResultsFile, ResultsReader

CPU = {"ours-sse": 4.0, "ours-sse#2": 4.4, "ours-ws": 3.0, "aimock-ws": 12.0, "litellm-aimock": 240.0}
"""µs for a delta, of each arm in the first block; a tenth more in each further one."""


def turn(arm: str, block: int, **more: Any) -> Note:
    """A measured turn, with all figures but these the same."""
    detail = {
        "arm": arm,
        "block": block,
        "order": 0,
        "turn": 0,
        "deltas": 2_000,
        "first_event_ms": 5.0,
        "first_delta_ms": 6.0,
        "whole_ms": 10.0,
        "cpu_us_per_delta": CPU[arm] * (1 + block / 10),
        "behind_cpu_us_per_delta": 3.0 if arm.startswith("litellm") else None,
        "bytes_up": 51_000,
        "bytes_down_per_delta": 200.0,
        "events": {},
        "connections": 1,
        "usage": None,
        "findings": {"N1": 2_008} if arm == "aimock-ws" else {},
    }
    return Note(topic=TURN, detail={**detail, **more})


SERVERS = (
    Note(topic=SERVER, detail={"server": "ours", "title": "this engine", "state": RUNS}),
    Note(
        topic=SERVER,
        detail={
            "server": "llm-mock-api",
            "title": "llm-mock-api 0.1.2",
            "state": MISSING,
            "reason": "pip install it",
        },
    ),
    Note(
        topic=SERVER,
        detail={
            "server": "litellm-ours",
            "title": "LiteLLM",
            "state": FAILED,
            "reason": "it ended with 3: no licence",
        },
    ),
    Note(
        topic=PROBE,
        detail={
            "arm": "ours-sse",
            "facts": [
                {"name": "numbers its events", "verdict": "yes", "seen": "from 0 without a gap"},
                {"name": "names its events", "verdict": "no", "seen": "<0 of 2>"},
            ],
        },
    ),
    Note(
        topic=PROBE,
        detail={
            "arm": "aimock-ws",
            "facts": [{"name": "numbers its events", "verdict": "no", "seen": "none"}],
        },
    ),
)
TURNS = tuple(turn(arm, block) for block in range(5) for arm in CPU)


def written(path: Path, *notes: Note) -> Path:
    """A file that holds these."""
    with ResultsFile.open(
        path,
        experiment="peers",
        config={computed.COMPUTED: "peers", **config(quick=False, trace=None)},
        seed=0,
        environment=environment(),
        began="now",
    ) as file:
        for note in notes:
            file.write(note)
    return path


def reported(folder: Path, *notes: Note) -> Report:
    return report_of(written(folder / "results.jsonl", *notes))


def section(report: Report, title: str) -> Section:
    return next(one for one in report.sections if one.title.startswith(title))


def check(report: Report, name: str) -> Check:
    return next(one for one in report.checks if one.name == name)


def rows(one: Section) -> dict[Any, tuple[Any, ...]]:
    """By the first two cells."""
    assert one.table is not None
    return {row[:2]: row[2:] for row in one.table.rows}


def test_ratios_are_of_one_block_each(tmp_path: Path) -> None:
    """Their median, not the ratio of medians; arms that drift together keep theirs."""
    path = written(tmp_path / "results.jsonl", *TURNS, turn("ours-ws", 5))
    results = read(ResultsReader(path))
    assert [0.25] * 5 == pytest.approx(results.ratios("ours-ws", "aimock-ws"))
    assert results.ratios("ours-ws", "aimock-sse") == []
    assert "takes 0.25 of aimock's CPU time" in report_of(path).summary[0]
    assert "the target of 0.33 is reached" in report_of(path).summary[0]


def test_a_target_that_is_missed_is_said(tmp_path: Path) -> None:
    """And it does not make the run invalid: it is a result."""
    slow = [turn("ours-ws", block, cpu_us_per_delta=9.0) for block in range(5)]
    others = [one for one in TURNS if one.detail["arm"] != "ours-ws"]
    report = reported(tmp_path, *others, *slow)
    assert "is missed" in report.summary[0]
    assert {one.name for one in report.failures} <= {"one known environment"}


def test_what_was_not_measured_is_said_with_its_command(tmp_path: Path) -> None:
    """On top and below; its bar says so, and its row has no figure."""
    report = reported(tmp_path, *SERVERS, *TURNS)
    said = "llm-mock-api 0.1.2: not measured: not installed, pip install it"
    assert said in report.summary
    assert said in report.not_measured
    assert "LiteLLM: not measured: it ended with 3: no licence" in report.not_measured
    row = rows(section(report, "CPU time of a delta, as fast"))["flood, HTTP and SSE", "llm-mock-api"]
    assert row == (*[None] * 10, 0, 0)


def test_without_peers_there_is_a_report(tmp_path: Path) -> None:
    """Of an empty one nothing is claimed, and no check passes for lack of data."""
    report = reported(tmp_path)
    assert {"No data.", "0 answers to probes.", "Taken from the sources named, not observed."} == {
        one.sentence for one in report.sections
    }
    assert "nothing to compare with" in report.summary[0]
    unmeasured = {"equal work", "warm baseline", "A/A shows no difference", "protocol kept by this engine"}
    assert unmeasured == {one.name for one in report.checks if one.passed is None}


def test_figures_are_medians_with_their_range(tmp_path: Path) -> None:
    """Of all turns; the gateway's row has what the server behind it took, apart."""
    fast = rows(section(reported(tmp_path, *TURNS), "CPU time of a delta, as fast"))
    assert fast["flood, WebSocket", "aimock"][:3] == pytest.approx((14.4, 12.0, 16.8))
    assert fast["flood, through a gateway", "LiteLLM before aimock"][3] == 3.0
    assert fast["flood, WebSocket", "aimock"][3] is None


def test_facts_stand_side_by_side(tmp_path: Path) -> None:
    """What was asked in one way only is empty in the other, and what came back is shown as text."""
    report = reported(tmp_path, *SERVERS)
    matrix = section(report, "What each does and does not do").table
    assert matrix is not None
    assert matrix.columns == ("fact", "this engine, sse", "aimock, websocket")
    assert matrix.rows == (("numbers its events", "yes", "no"), ("names its events", "no", ""))
    assert "&lt;0 of 2&gt;" in page(report)


def test_findings_are_shown_by_rule(tmp_path: Path) -> None:
    """With what the rule says; another server's are no fault of the run."""
    report = reported(tmp_path, *TURNS)
    found = rows(section(report, "What the trace checker finds"))
    assert found["aimock", "flood, WebSocket"][0] == "N1"
    assert found["aimock", "flood, WebSocket"][2:] == (5 * 2_008, 5)
    assert check(report, "protocol kept by this engine").passed


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (
            Note(topic=TURN, detail={"arm": "aimock-ws", "block": 5, "error": "it hung up"}),
            "every turn ended well",
        ),
        (turn("ours-sse", 5, findings={"N1": 1}), "protocol kept by this engine"),
        (turn("ours-sse", 5, deltas=1_999), "equal work"),
        (turn("ours-sse", 5, connections=2), "warm baseline"),
    ],
)
def test_what_breaks_the_rules_makes_it_invalid(tmp_path: Path, more: Note, name: str) -> None:
    """Each by its own check."""
    assert check(reported(tmp_path, *TURNS), name).passed
    again = tmp_path / "again"
    again.mkdir()
    assert check(reported(again, *TURNS, more), name).passed is False


def test_few_repeats_and_a_loud_machine_are_invalid(tmp_path: Path) -> None:
    """Fewer than five blocks prove nothing, nor does a run in which an arm differs from itself."""
    few = [one for one in TURNS if one.detail["block"] < 4]
    loud = [turn("ours-sse#2", block, cpu_us_per_delta=9.0) for block in range(5)]
    assert check(reported(tmp_path, *few), "enough repeats").passed is False
    again = tmp_path / "again"
    again.mkdir()
    others = [one for one in TURNS if one.detail["arm"] != "ours-sse#2"]
    assert check(reported(again, *others, *loud), "A/A shows no difference").passed is False


def test_the_command_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its option to the report: here nothing is installed, and our own server is asked once."""
    monkeypatch.setattr(peers, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(peers, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(
        peers.PeersPlan, "quick", lambda: peers.PeersPlan(blocks=1, paced_blocks=0, turns=1, words=20)
    )
    out, err = io.StringIO(), io.StringIO()
    argv = ("peers", "--quick", "--peers", str(tmp_path / "nothing"), "--out", str(tmp_path / "out"))
    code = lab(argv, Terminal(out=out, err=err, plain=True))
    assert code not in (OK, USAGE, COMMAND_FAILED)  # one block proves nothing
    assert peers_servers.INSTALL_AIMOCK in err.getvalue()
    assert "not installed" in (tmp_path / "out" / "report.html").read_text()
    assert (
        computed.reporter(ResultsReader(tmp_path / "out" / "results.jsonl").header) is peers_report.report_of
    )
    assert lab((*argv, "--trace", "x.jsonl", "--resume"), Terminal(out=out, err=err, plain=True)) == USAGE


def test_the_help_says_how_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    """The exact commands, each on a line of its own."""
    with pytest.raises(SystemExit):
        lab(("peers", "--help"), Terminal(out=io.StringIO(), err=io.StringIO(), plain=True))
    printed = capsys.readouterr().out.splitlines()
    assert {f"  {peers_servers.INSTALL_AIMOCK}", f"  {peers_servers.INSTALL_PYPI}"} <= {*printed}


def test_every_arm_is_shown(tmp_path: Path) -> None:
    """In one of the two tables, whether it ran or not."""
    report = reported(tmp_path)
    shown: Mapping[Any, Any] = {**rows(report.sections[0]), **rows(report.sections[1])}
    assert {(arm.group, arm.title) for arm in ARMS.values()} == shown.keys()
