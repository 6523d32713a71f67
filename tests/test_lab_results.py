"""demos.lab.records, results, environment and validity: what a run writes is what figures are computed from."""

import subprocess
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.lab import environment as surroundings
from demos.lab.records import (
    Note,
    PairKey,
    RolloutKey,
    ServerCost,
    Tokens,
    as_json,
    cell_key,
    cell_name,
    from_json,
)
from demos.lab.results import ResultsError, ResultsFile, ResultsReader
from demos.lab.validity import Bounds, base_arm, judged, late_p99_s
from tests.lab_rollouts import CELL, ENVIRONMENT, HEADER, IN_ORDER, SERVER, residual, rollout

PLAN: dict[str, Any] = {
    "experiment": "ladder",
    "config": {"arms": ["optimised", "append"], "rtt_ms": 30},
    "seed": 7,
    "environment": ENVIRONMENT,
    "began": "2026-11-30T02:00:00Z",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "results.jsonl"


def opened(path: Path, **changes: Any) -> ResultsFile:
    """The file, opened for the plan of these tests."""
    return ResultsFile.open(path, **{**PLAN, **changes})


seconds = st.none() | st.floats(0, 1e6)


@given(
    st.builds(
        rollout,
        arm=st.text(max_size=5),
        created_s=seconds,
        total_s=seconds,
        server=st.none() | st.just(SERVER),
        error=st.none() | st.text(max_size=5),
        valid=st.booleans(),
        reasons=st.lists(st.text(max_size=5)).map(tuple),
        tokens=st.builds(Tokens, sampled=st.integers(0, 10**9), reused=st.just(0), computed=st.just(1)),
    )
)
def test_a_rollout_comes_back_as_it_was_written(record):
    """Writing and reading a rollout gives an equal one; None stays None."""
    assert from_json(orjson.loads(orjson.dumps(as_json(record)))) == record


def test_a_header_is_one_flat_line():
    """Commit, versions and host stand in the header itself, and it comes back as it was."""
    line = as_json(HEADER)
    assert list(line) == [
        "v",
        "kind",
        "experiment",
        "config",
        "seed",
        "began",
        "submission_valid",
        "conflicts",
        "commit",
        "dirty",
        "versions",
        "host",
        "code",
    ]
    assert from_json(line) == HEADER


def test_members_that_a_newer_lab_adds_are_passed_over():
    """An unknown member is no error, in a record nor within it."""
    line = as_json(IN_ORDER) | {"weather": "rain"}
    line["tokens"]["imagined"] = 3
    assert from_json(line) == IN_ORDER


def test_a_cell_is_told_by_its_values():
    """The order of the axes and the kind of number make no other cell."""
    assert cell_key({"b": 30, "a": "Z"}) == cell_key({"a": "Z", "b": 30.0})
    assert cell_name(CELL) == "calls=2 rtt_ms=30 tokens_per_second=1000 tool=Z"


def test_a_rollout_failed_without_an_end_or_with_an_error():
    """A rollout without a total failed, and so did one that names an error."""
    assert [one.failed for one in (IN_ORDER, rollout(total_s=None), rollout(error="refused"))] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("server", "share"),
    [
        (residual(0.0), 0.0),
        (residual(0.01), 0.01),
        (attrs.evolve(SERVER, stages={"sample": 450_000, "suspended": 500_000}), 0.1),
        (ServerCost(cpu_s=None, wall_ns=5, stages={"suspended": 5}, responses=1), None),
        (ServerCost(cpu_s=None, wall_ns=0, stages={}, responses=0), None),
    ],
)
def test_the_residual_is_a_share_of_the_server_s_own_time(server, share):
    """What no stage claims, named or left out, is compared with the time in which the server did not wait for tools."""
    assert server.residual_share == (None if share is None else pytest.approx(share))


def test_a_file_holds_what_was_written_in_its_order(path):
    """A reader gives header, rollouts and notes as they were written, as often as it is asked."""
    note = Note(topic="weather", detail={"rain": True})
    with opened(path) as results:
        results.write(IN_ORDER)
        results.write(note)
        results.write(rollout(arm="optimised"))
    reader = ResultsReader(path)
    assert reader.header == HEADER
    assert list(reader) == list(reader) == [IN_ORDER, note, rollout(arm="optimised")]
    assert list(reader.rollouts()) == [IN_ORDER, rollout(arm="optimised")]
    assert list(reader.notes()) == [note]


def test_a_record_is_in_the_file_at_once(path):
    """A record can be read before the file is closed: a run that is killed loses what it was doing and no more."""
    with opened(path) as results:
        results.write(IN_ORDER)
        assert list(ResultsReader(path)) == [IN_ORDER]


def test_a_run_goes_on_where_it_stopped(path):
    """Opened again for the same plan, the file says what is done, keeps its header, and is appended to."""
    with opened(path) as results:
        assert results.done() == frozenset()
        results.write(IN_ORDER)
    with opened(path, began="later") as results:
        assert results.done() == {RolloutKey(PairKey(cell_key(CELL), "w1", 3, 0), "append")}
        results.write(rollout(block=1))
        assert results.remarks == ()
    reader = ResultsReader(path)
    assert reader.header == HEADER
    assert list(reader) == [IN_ORDER, rollout(block=1)]


@pytest.mark.parametrize("cut", [1, 100])
def test_a_torn_last_line_is_dropped_and_said(path, cut):
    """What a killed run left of its last line is no record; the next run removes it, says so, and runs it again."""
    with opened(path) as results:
        results.write(IN_ORDER)
        results.write(rollout(block=1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    torn = len(whole.splitlines(keepends=True)[-1]) - cut
    reader = ResultsReader(path)
    assert list(reader) == [IN_ORDER]
    assert reader.torn_bytes == torn
    with opened(path) as results:
        assert results.done() == {IN_ORDER.key}
        assert results.remarks == (
            f"{path}: dropped a torn last line of {torn} bytes; its rollout is run again",
        )
        results.write(rollout(block=1))
    assert path.read_bytes() == whole


def test_a_torn_header_is_no_beginning(path):
    """A file that holds a torn line only is begun again; to read it is an error with the way out."""
    path.write_bytes(b'{"v":1,"kind":"hea')
    with pytest.raises(ResultsError, match="no whole line; remove it and run again"):
        ResultsReader(path)
    with opened(path) as results:
        assert len(results.remarks) == 1
    assert ResultsReader(path).header == HEADER


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"seed": 8}, "seed: the file has 7, asked for 8"),
        ({"experiment": "sweep"}, 'experiment: the file has "ladder", asked for "sweep"'),
        ({"config": PLAN["config"] | {"rtt_ms": 80}}, "config.rtt_ms: the file has 30, asked for 80"),
        ({"config": {"rtt_ms": 30}}, 'config.arms: the file has ["optimised","append"], asked for nothing'),
    ],
)
def test_a_file_of_another_plan_is_refused(path, change, difference):
    """Another experiment, config or seed is an error that names each difference and the way out; nothing is written."""
    opened(path).close()
    before = path.read_bytes() + b'{"torn'
    path.write_bytes(before)
    with pytest.raises(ResultsError) as caught:
        opened(path, **change)
    assert str(caught.value) == (
        f"{path} holds another plan: {difference}. "
        "Write to another directory, or remove the file to begin again."
    )
    assert path.read_bytes() == before


def test_a_run_that_goes_on_elsewhere_leaves_a_note(path):
    """Another commit or machine is no other plan, but the file says where it went on."""
    opened(path).close()
    other = attrs.evolve(ENVIRONMENT, commit="b" * 40)
    opened(path, environment=other, began="later").close()
    [note] = ResultsReader(path).notes()
    assert (note.topic, note.detail["commit"], note.detail["began"]) == ("resumed", "b" * 40, "later")


def test_no_rollout_is_written_twice(path):
    """A rollout that is in the file already is refused, with its name."""
    with opened(path) as results:
        results.write(IN_ORDER)
        with pytest.raises(
            ValueError, match=r"append at calls=2 .*, work w1, seed 3, block 0 is in .* already"
        ):
            results.write(rollout(total_s=1.0))


LINE = as_json(IN_ORDER)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: unexpected end of data"),
        ("[]", "line 2: list indices must be integers"),
        (orjson.dumps(LINE | {"v": 2}).decode(), "line 2: schema version 2, and this lab reads 1"),
        (orjson.dumps(LINE | {"kind": "poem"}).decode(), "line 2: kind 'poem', and this lab knows"),
        (orjson.dumps({"v": 1, "kind": "rollout"}).decode(), "line 2: 'cell' is missing"),
        (orjson.dumps(LINE | {"tokens": {"sampled": 1}}).decode(), "line 2: 'reused' is missing"),
        (orjson.dumps(as_json(HEADER)).decode(), "line 2: a second header"),
    ],
)
def test_a_line_that_is_no_record_is_named(path, line, problem):
    """A whole line that cannot be read is an error with file, line and reason, never passed over."""
    opened(path).close()
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(ResultsError, match=problem) as caught:
        list(ResultsReader(path))
    assert str(caught.value).startswith(f"{path}, ")


def test_a_file_without_a_header_is_no_result(path):
    """A file that begins with a rollout is refused."""
    path.write_bytes(orjson.dumps(LINE) + b"\n")
    with pytest.raises(ResultsError, match="line 1: a result file begins with a header"):
        ResultsReader(path)


def test_the_environment_names_commit_versions_and_machine(tmp_path):
    """In a checkout its commit stands, and whether it held changes; installed packages have their versions."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    clean = surroundings.environment(tmp_path)
    (tmp_path / "new").touch()
    assert (clean.commit, clean.dirty) == (commit, False)
    assert surroundings.environment(tmp_path).dirty
    assert clean.versions["attrs"] == attrs.__version__
    assert clean.host.cores >= 1


def test_no_checkout_is_an_unknown_commit(tmp_path):
    """Outside of a checkout, and in a directory within another project's, the commit is unknown."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    inside = tmp_path / "site-packages"
    inside.mkdir()
    for directory in (inside, tmp_path / "missing"):
        found = surroundings.environment(directory)
        assert (found.commit, found.dirty) == ("unknown", False)


OPTIMISED = rollout(arm="optimised")


@pytest.mark.parametrize(
    ("group", "reasons"),
    [
        ([IN_ORDER, OPTIMISED], [(), ()]),
        (
            [rollout(late_s=0.0101), OPTIMISED],
            [("late generator: p99 10.1 ms, bound 10.0 ms",)] * 2,
        ),
        ([rollout(late_s=0.0099), OPTIMISED], [(), ()]),
        (
            [IN_ORDER, rollout(arm="optimised", connections=2), rollout(arm="optimised#2", connections=3)],
            [(), ("2 connections of one client, bound 1",), ("3 connections of one client, bound 1",)],
        ),
        ([IN_ORDER, rollout(arm="naive", connections=30)], [(), ()]),
        (
            [IN_ORDER, rollout(arm="optimised", tokens=Tokens(sampled=401, reused=0, computed=0))],
            [("unequal work: append sampled 400, optimised sampled 401",)] * 2,
        ),
        (
            [
                IN_ORDER,
                rollout(arm="optimised", total_s=None, tokens=Tokens(sampled=3, reused=0, computed=0)),
            ],
            [(), ()],
        ),
        (
            [IN_ORDER, rollout(block=1, tokens=Tokens(sampled=401, reused=0, computed=0))],
            [(), ()],
        ),
        (
            [rollout(server=residual(0.031)), OPTIMISED],
            [("residual 3.1% of server time, bound 3.0%",), ()],
        ),
        ([rollout(server=residual(0.029)), rollout(arm="optimised", server=None)], [(), ()]),
        (
            [rollout(block=block, server=residual(share)) for block, share in enumerate((0.01, 0.02, 0.5))],
            [()] * 3,
        ),
        (
            [rollout(block=block, server=residual(share)) for block, share in enumerate((0.01, 0.04, 0.5))],
            [("residual 4.0% of server time, bound 3.0%",)] * 3,
        ),
        ([rollout(findings=2), OPTIMISED], [("2 findings of the trace checker",), ()]),
        (
            [rollout(findings=1, connections=2), OPTIMISED],
            [("2 connections of one client, bound 1", "1 findings of the trace checker"), ()],
        ),
        ([rollout(valid=False, reasons=("said the driver",)), OPTIMISED], [("said the driver",), ()]),
        ([], []),
    ],
)
def test_a_broken_rule_stamps_the_records_that_it_concerns(group, reasons):
    """Each rule of the checklist stamps its records with its reason, keeps their order, and loses none."""
    stamped = judged(group)
    assert [one.reasons for one in stamped] == reasons
    assert [one.valid for one in stamped] == [not why for why in reasons]
    assert [one.key for one in stamped] == [one.key for one in group]
    assert judged(stamped) == stamped


def test_bounds_are_the_plan_s():
    """What is late or unexplained depends on the bounds given."""
    strict = Bounds(late_p99_s=0.0001, residual_share=0.001)
    assert len(judged([IN_ORDER], strict)[0].reasons) == 2


def test_a_record_that_was_stamped_without_a_reason_stays_invalid():
    """A stamp in the file is never taken back."""
    assert not judged([rollout(valid=False)])[0].valid


def test_lateness_is_that_of_the_hundredth_worst():
    """The p99 of 200 starts is the third from the end, one of the measured values; of none it is None."""
    starts = [rollout(late_s=float(late), block=late) for late in range(200)]
    assert late_p99_s(starts) == 197.0
    assert late_p99_s([]) is None


def test_a_repeated_arm_is_known_by_its_base():
    """What stands behind # tells repeats apart."""
    assert [base_arm(name) for name in ("optimised", "optimised#2")] == ["optimised", "optimised"]
