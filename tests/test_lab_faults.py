"""A lost connection: what each form loses is what arithmetic says, and no tool runs twice."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab.environment import environment
from demos.lab.fault_client import FaultForm
from demos.lab.faults import (
    FAULT,
    FORMS,
    NO_FAULT,
    POINTS,
    FaultPlan,
    FaultRun,
    config,
    fill,
    run_fault,
    runs_of,
)
from demos.lab.faults_report import Loss, losses_of, report_of
from demos.lab.records import Header, as_json
from demos.lab.results import ResultsFile

PLAN = FaultPlan(calls=2, history_tokens=400, new_tokens=100, sampled_tokens=20)
"""The middle turn is the second of three: it reads 100 tokens, and 20 are sampled at 200 a second."""
RTT, CLOSE = PLAN.rtt_ms / 1e3, 3 * PLAN.tick_ms / 1e3


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, str], FaultRun]:
    """Every form at every point."""
    made = [run for form in FORMS.values() for run in runs_of(PLAN, form, 7)]
    return {(run.rollout.arm, str(run.rollout.cell["point"])): run for run in made}


@pytest.fixture(scope="module")
def losses(runs: dict[tuple[str, str], FaultRun]) -> dict[tuple[str, str], Loss]:
    """What each cut cost."""
    details = {key: run.note.detail for key, run in runs.items()}
    found = losses_of([run.rollout for run in runs.values()], details)
    return {(loss.form, loss.point): loss for loss in found}


def test_every_rollout_ends_in_order_and_is_cut_once(runs: dict[tuple[str, str], FaultRun]) -> None:
    """All of them end, the trace checker finds nothing, and a cut hits whoever has a connection then."""
    assert [*runs] == [(form, point) for form in FORMS for point in (NO_FAULT, *POINTS)]
    assert {(run.rollout.failed, run.rollout.findings) for run in runs.values()} == {(False, 0)}
    idle = {("naive", "tool"), ("optimised", "tool")}  # no request is under way
    assert {key: run.note.detail["connections_lost"] for key, run in runs.items()} == {
        key: int(key[1] != NO_FAULT and key not in idle) for key in runs
    }


def test_no_tool_runs_twice(runs: dict[tuple[str, str], FaultRun]) -> None:
    """Each call's tool runs once, wherever the connection was lost."""
    assert {tuple(run.note.detail["tool_runs"]) for run in runs.values()} == {(1, 1)}


def test_what_was_sampled_and_not_heard_whole_is_sampled_again(
    losses: dict[tuple[str, str], Loss],
) -> None:
    """Half a turn when it is cut in its middle, all of the last one when its end is lost; else nothing."""
    for form in FORMS:
        assert losses[form, "sampling"].sampled == PLAN.sampled_tokens / 2
        assert losses[form, "end"].sampled == PLAN.sampled_tokens
        assert [losses[form, point].sampled for point in ("request", "reading", "tool", "output")] == [0] * 4


def test_without_state_on_a_new_connection_all_is_read_again(losses: dict[tuple[str, str], Loss]) -> None:
    """Over WebSocket the model reads the whole context once more; optimised HTTP finds it again."""
    for form in ("create", "create-store", "append", "append-store", "inject"):
        assert losses[form, "tool"].read > PLAN.history_tokens
    assert losses["optimised", "tool"].read == 0
    assert losses["optimised", "sampling"].read == 0


def test_a_stored_response_is_gone_on_from_with_few_bytes(losses: dict[tuple[str, str], Loss]) -> None:
    """Lost while a tool runs, `create-store` sends a handshake more; `create` the whole conversation."""
    history_bytes = 4 * PLAN.history_tokens
    assert losses["create-store", "tool"].bytes_up < 300
    assert losses["create", "tool"].bytes_up > history_bytes
    assert losses["append-store", "tool"].bytes_up < losses["append", "tool"].bytes_up - history_bytes


def test_a_stored_response_that_was_sampling_is_refused_and_the_conversation_sent(
    runs: dict[tuple[str, str], FaultRun],
) -> None:
    """The client cannot know that its output had arrived; it is told so once, and goes on."""
    refusals = {key: run.note.detail["refusals"] for key, run in runs.items() if run.note.detail["refusals"]}
    assert refusals == {("append-store", "reading"): 1}


def test_the_time_lost_is_connecting_waiting_and_doing_again(losses: dict[tuple[str, str], Loss]) -> None:
    """A request lost on its way costs the quarter of a round trip until the cut, and what a connection takes to open."""
    assert losses["optimised", "request"].seconds == pytest.approx(RTT * 1.25, abs=CLOSE)
    assert losses["append", "request"].seconds == pytest.approx(RTT * 2.25, abs=CLOSE)
    assert losses["naive", "tool"].seconds == 0
    sampled_s = PLAN.sampled_tokens / PLAN.tokens_per_second
    assert losses["optimised", "end"].seconds == pytest.approx(
        RTT * 1.75 + sampled_s + PLAN.first_token_ms / 1e3, abs=2 * CLOSE
    )


def test_the_same_seed_gives_the_same_records() -> None:
    """To the byte."""
    form = FORMS["append"]
    once, again = (
        [as_json(record) for record in (run.rollout, run.note)]
        for run in (run_fault(PLAN, form, 3, "tool", 1.0) for _ in range(2))
    )
    assert once == again


def test_the_report_is_made_from_the_file_alone(
    tmp_path: Path, runs: dict[tuple[str, str], FaultRun]
) -> None:
    """A plot and a sentence for each thing that is lost, with the file it was built from; all checks but the commit's pass."""
    path = tmp_path / "results.jsonl"
    with ResultsFile.open(
        path, experiment="faults", config=PLAN.config(), seed=7, environment=environment(), began="now"
    ) as file:
        for run in runs.values():
            file.write(run.note)
            file.write(run.rollout)
    report = report_of(path)
    assert [(bool(section.picture), section.source) for section in report.sections] == [
        (True, path.name)
    ] * 4 + [(False, path.name)]
    assert "20 tokens (the end is on its way) in every form" in report.sections[1].sentence
    assert report.sections[-1].sentence == "No tool ran twice: 49 rollouts of 2 calls, 42 of them cut."
    assert {check.passed for check in report.checks[:-1]} == {True}


def test_a_tool_that_ran_twice_is_said() -> None:
    """The count is of runs beyond the first, per call."""
    run = run_fault(PLAN, FORMS["naive"], 1, NO_FAULT, None)
    cut = run_fault(PLAN, FORMS["naive"], 1, "tool", 0.5)
    details = {
        ("naive", NO_FAULT): run.note.detail,
        ("naive", "tool"): {**cut.note.detail, "tool_runs": [2, 3]},
    }
    assert [loss.tools_again for loss in losses_of([run.rollout, cut.rollout], details)] == [3]


def test_a_resumed_run_does_only_the_forms_that_are_not_there(
    tmp_path: Path, runs: dict[tuple[str, str], FaultRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are in the file stay as they are."""
    path, said = tmp_path / "results.jsonl", list[str]()
    monkeypatch.setattr(FaultPlan, "quick", lambda: PLAN)
    asked = config(quick=True, trace=None)

    def opened() -> ResultsFile:
        return ResultsFile.open(
            path, experiment="faults", config=asked, seed=0, environment=environment(), began="now"
        )

    monkeypatch.setattr("demos.lab.faults.FORMS", {"naive": FORMS["naive"]})
    for _ in range(2):
        with opened() as file:
            fill(file, quick=True, seed=0, trace=None, say=said.append)
    assert said == ["naive: without a fault, then cut at 6 points"]
    assert runs["naive", NO_FAULT].note.topic == FAULT


def test_a_trace_is_refused() -> None:
    """The rollout that is cut is the experiment's own."""
    with pytest.raises(ValueError, match="leave it out"):
        config(quick=True, trace=Path("trace.jsonl"))


def test_forms_say_what_their_clients_do() -> None:
    """It is in the head of each result file, and so in the report."""
    assert isinstance(FORMS["append"], FaultForm)
    header = Header(experiment="faults", config=PLAN.config(), seed=0, environment=environment(), began="now")
    assert header.config["forms"] == {name: form.then for name, form in FORMS.items()}
