"""The comparison of policies: paired by seed, rebuilt from its file, and eta by hand."""

import io
from pathlib import Path

import attrs
import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab import policies, policies_report
from demos.lab.command import INVALID, OK, Terminal, lab
from demos.lab.policies import ETA, QUICK, RUN, UNBOUNDED, run, run_key
from demos.lab.policy_workloads import ROLLOUTS, eta_of, recorded_plans, uncut_calls, workloads
from demos.lab.results import ResultsReader
from demos.lab.workload import WorkloadError
from engine.residency.policies import POLICIES

TINY = attrs.evolve(QUICK, seeds=1, rollouts=4, memory_shares=(0.5,))
LINE = '{"id": "r", "ctx0": 0, "steps": [[10, 64, 2.5, 0, 320, 10], [32, 32, null, 0, 416, 32]]}'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison, run and reported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "QUICK", TINY)
        out = tmp_path_factory.mktemp("policies") / "made"
        assert _lab("policies", "--quick", "--out", str(out))[0] in (OK, INVALID)
        return out


def _lab(*argv: str) -> tuple[int, str]:
    out = io.StringIO()
    return lab(argv, Terminal(out=out, err=io.StringIO(), plain=True)), out.getvalue()


def _runs(directory: Path) -> list[dict[str, object]]:
    notes = ResultsReader(directory / "results.jsonl").notes()
    return [dict(note.detail) for note in notes if note.topic == RUN]


def test_every_policy_runs_over_the_same_rollouts(made: Path) -> None:
    """For each workload and seed once without a bound and once under each policy; all rollouts end."""
    runs = _runs(made)
    assert len({run_key(one) for one in runs}) == len(runs) == 2 * 1 * (1 + len(POLICIES))
    assert {one["rollouts"] for one in runs} == {one["finished"] for one in runs} == {4}


def test_nothing_beats_having_all_memory(made: Path) -> None:
    """Without a bound a rollout takes no longer than with any policy, and no state is dropped."""
    for one in _runs(made):
        (best,) = (
            other
            for other in _runs(made)
            if (other["workload"], other["seed"], other["policy"])
            == (one["workload"], one["seed"], UNBOUNDED)
        )
        assert best["mean_s"] <= one["mean_s"]  # type: ignore[operator]  # both are numbers
        assert best["dropped"] == 0


def test_ratios_are_taken_seed_by_seed() -> None:
    """A seed that lacks the baseline is left out; `unbounded` has no share of its own."""
    runs = [
        {"policy": policy, "memory_share": share, "seed": seed, "mean_s": seconds}
        for policy, share, seed, seconds in (
            ("keep", 0.5, 0, 10.0),
            ("keep", 0.5, 1, 20.0),
            ("ttl", 0.5, 1, 10.0),
            ("ttl", 0.5, 2, 1.0),
            (UNBOUNDED, None, 0, 1.0),
        )
    ]
    assert policies_report.ratios(runs, "ttl", 0.5) == [0.5]
    assert policies_report.ratios(runs, UNBOUNDED, 0.5) == [0.1]


def test_the_report_is_made_again_from_the_file(made: Path) -> None:
    """`report` knows whose file it is, and makes the same page: for each workload its plots, and eta."""
    before = (made / "report.html").read_text()
    (made / "report.html").unlink()
    code, said = _lab("report", str(made))
    assert code in (OK, INVALID)
    assert (made / "report.html").read_text() == before
    assert before.count("<svg") == 2 * 3 + 1
    assert before.count('class="sentence"') == before.count('class="source"') == 2 * 3 + 1
    assert "s without a bound" in " ".join(said.split())


def test_a_comparison_that_was_stopped_goes_on(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is run, with the memory that was found to be needed, and gives the same figures."""
    monkeypatch.setattr(policies, "QUICK", TINY)
    monkeypatch.setattr("demos.lab.command.report", lambda _directory, _terminal: OK)
    lines = (made / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines[:7]))
    assert _lab("policies", "--quick", "--resume", "--out", str(tmp_path))[0] == OK
    assert _runs(tmp_path) == _runs(made)


def test_eta_is_the_negated_correlation_of_done_and_left() -> None:
    """Of equal rollouts it is 1, of those without a second call unknown, of one call and three 5/11 by hand."""
    assert eta_of([3, 3, 3]) == pytest.approx(1.0)
    assert eta_of([0, 1, 1]) is None
    assert eta_of([1, 3]) == pytest.approx(5 / 11)


def test_eta_is_kept_as_run_and_uncut(made: Path) -> None:
    """Both, for each workload and seed."""
    found = [note.detail for note in ResultsReader(made / "results.jsonl").notes() if note.topic == ETA]
    assert {(one["workload"], one["seed"]) for one in found} == {("calls", 0), ("gaps", 0)}
    assert {tuple(one["eta"]) for one in found} == {("as run", "uncut")}


def test_a_trace_adds_a_workload(tmp_path: Path) -> None:
    """Its rollouts as they are, in blocks; the last step's tool is nobody's."""
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{LINE}\n{LINE}\n")
    assert [*workloads(path)] == ["calls", "gaps", "recorded"]
    first, second = workloads(path)["recorded"](0)
    assert first == second
    assert (first.context_tokens, [call.pause_seconds for call in first.calls], first.last_tokens) == (
        10,
        [2.5],
        1,
    )
    assert uncut_calls("recorded", 0, path) == [1, 1]


@pytest.mark.parametrize("line", ["{", '{"id": "r"}', '{"steps": [[1, 2]]}', '{"steps": []}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, line: str) -> None:
    """In a line that names the file."""
    path = tmp_path / "mine.jsonl"
    path.write_text(line)
    with pytest.raises(WorkloadError, match=r"mine\.jsonl is no trace"):
        recorded_plans(0, path)


def test_a_memory_of_nothing_is_no_budget() -> None:
    """A policy needs something to decide about."""
    with pytest.raises(ValueError, match="no budget"):
        run(workloads(None)["calls"](0)[:1], "keep", 0, seed=0)


def test_a_seed_has_so_many_rollouts() -> None:
    """And always the same."""
    assert len(workloads(None)["gaps"](1)) == ROLLOUTS
    assert workloads(None)["gaps"](1) == workloads(None)["gaps"](1)
