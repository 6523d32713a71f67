"""`suspended demo` repairs a project in any form, in one response where the form suspends, and its trace proves it."""

import shutil
import signal
import time
from functools import cache

import orjson
import pytest

from demos.workshop import BROKEN_PROJECTS, DEFAULT_PROJECT
from protocol import trace
from tests.command import Running, suspended

FAST = ("--rate", "5000")
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
ANSWER_OF = {"append": "response.append", "inject": "response.inject"}


ONE_RESPONSE = ("append", "inject")
MANY_RESPONSES = ("create", "http")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the demo once for a form and attempt: form, the ended process, the traces' records, what was measured."""

    @cache
    def run_in(form, _attempt=1):
        folder = tmp_path_factory.mktemp(form)
        files = ("--trace", folder / "trace.jsonl", "--json", folder / "measured.json")
        process = suspended("demo", "--plain", "--form", form, *FAST, *files)
        traces = list(trace.read((folder / "trace.jsonl").read_bytes().splitlines()))
        records = [record for _, records in traces for record in records]
        return form, process, records, orjson.loads((folder / "measured.json").read_bytes())

    return run_in


@pytest.fixture(params=(*ONE_RESPONSE, *MANY_RESPONSES))
def shown(request, run):
    """A run in each form."""
    return run(request.param)


@pytest.fixture(params=ONE_RESPONSE)
def suspending(request, run):
    """A run in each form in which the response suspends."""
    return run(request.param)


@pytest.fixture(params=MANY_RESPONSES)
def going_on(request, run):
    """A run in each form in which another response goes on."""
    return run(request.param)


def frames(records, direction):
    return [record["frame"] for record in records if record["dir"] == direction]


def hooks(records, name):
    return [frame for frame in frames(records, "hook") if frame["hook"] == name]


def test_ends_with_passing_tests(shown):
    """The demo exits with 0, and its last line says that all tests pass."""
    _, process, _, measured = shown
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "tests after the rollout: all 11 tests pass"
    assert (measured["passed"], process.stderr) == (True, "")


def test_one_response(suspending):
    """There is one create, one `response.created`, and one terminal event, which is the last frame."""
    _, _, records, _ = suspending
    sent = [frame["type"] for frame in frames(records, "out")]
    assert [frame["type"] for frame in frames(records, "in")].count("response.create") == 1
    assert sent.count("response.created") == 1
    assert [name for name in sent if name in TERMINAL] == sent[-1:] == ["response.completed"]


def test_suspends(suspending):
    """The response suspends three times at least, and every pause ends by an answer of the form's own kind."""
    form, _, records, measured = suspending
    pauses = len(hooks(records, "suspend"))
    assert pauses >= 3
    assert len(hooks(records, "resume")) == pauses == measured["hooks"]["suspend"]
    assert {frame["type"] for frame in frames(records, "in")} == {"response.create", ANSWER_OF[form]}
    done = sum(frame["type"] == "response.done" for frame in frames(records, "out"))
    assert done == (pauses if form == "append" else 0)


def test_numbered_without_a_gap(suspending):
    """Sequence numbers are 0, 1, 2… over the whole response, across all pauses."""
    _, _, records, _ = suspending
    numbers = [frame["sequence_number"] for frame in frames(records, "out")]
    assert numbers == list(range(len(numbers)))


def test_before_and_after_run_once(suspending):
    """Pre-inference and post-inference ran exactly once."""
    _, _, records, measured = suspending
    assert [len(hooks(records, name)) for name in ("pre_inference", "post_inference")] == [1, 1]
    assert [measured["hooks"][name] for name in ("pre_inference", "post_inference")] == [1, 1]


def test_a_response_for_each_round(going_on):
    """Where a response ends at its calls there is one for each round, with all that is done before and after, and no pause."""
    form, process, records, measured = going_on
    sent = [frame["type"] for frame in frames(records, "out") if frame != "[DONE]"]
    created = sent.count("response.created")
    assert created == sent.count("response.completed") == len(measured["reports"]) > 10
    assert [len(hooks(records, name)) for name in ("pre_inference", "post_inference")] == [created] * 2
    assert (measured["hooks"]["pre_inference"], measured["hooks"].get("suspend", 0)) == (created, 0)
    assert {report["dialect"] for report in measured["reports"]} == {form}
    assert measured["frames"]["> response.create"] == created
    assert f"responses       {created} created, {created} completed, " in process.stdout
    assert "suspensions     none: a response ended at its calls" in process.stdout


def test_the_forms_differ_in_what_is_sent(run):
    """The same repair in each form; with a response for each round more is sent, over HTTP much more."""
    shown = {form: run(form)[3] for form in (*ONE_RESPONSE, *MANY_RESPONSES)}
    assert len({(measured["diff"], measured["last_words"]) for measured in shown.values()}) == 1
    assert len({measured["usage"]["output_tokens"] for measured in shown.values()}) == 1
    sent = {form: measured["bytes_out"] for form, measured in shown.items()}
    assert sent["append"] < sent["create"] < 0.25 * sent["http"]


def test_ledger_claims_the_time(suspending, run):
    """Less than 2 % of the server's time is claimed by no stage.

    What else this machine does is only ever added to that, in between two stages as anywhere, so the best of some counts.
    """
    form = suspending[0]
    least = 1.0
    for attempt in range(1, 6):
        (report,) = run(form, attempt)[3]["reports"]
        least = min(least, report["ledger"]["residual"])
        if least < 0.02:
            break
    assert least < 0.02


def test_plain_is_plain(shown):
    """Plain output has no control characters, so no colours either."""
    _, process, _, _ = shown
    assert [c for c in process.stdout if not c.isprintable() and c != "\n"] == []


def test_the_original_stays_as_it_is(tmp_path):
    """A project of the user's is repaired in a copy."""
    project = tmp_path / "mine"
    shutil.copytree(BROKEN_PROJECTS / "rates", project, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path.name: path.read_bytes() for path in project.iterdir()}
    process = suspended("demo", *FAST, "--project", project)
    assert process.returncode == 0, process.stderr
    assert "+BASIS_POINTS = 10000" in process.stdout.splitlines()
    assert {path.name: path.read_bytes() for path in project.iterdir()} == before


def test_a_project_beyond_repair(tmp_path):
    """If the tests still fail at the end the exit code is 1, whatever the agent says."""
    (tmp_path / "test_it.py").write_text(
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual('a', 'b')\n"
    )
    process = suspended("demo", *FAST, "--project", tmp_path)
    assert (process.returncode, process.stderr) == (1, "")
    assert process.stdout.splitlines()[-1] == "tests after the rollout: 1 of 1 tests fail"


def test_interrupted():
    """Ctrl-C ends the demo at once, with 130 and without a traceback."""
    with Running("demo", "--rate", "20") as running:
        running.line_with("response.created")
        began = time.monotonic()
        running.signal(signal.SIGINT)
        code, _, err = running.ended()
    assert (code, err) == (130, "suspended: interrupted\n")
    assert time.monotonic() - began < 5


def test_default_project_is_broken_here():
    """The demo's project is shipped with its slips: nobody has repaired the original."""
    text = (BROKEN_PROJECTS / DEFAULT_PROJECT / "parking.py").read_text()
    assert "if minutes < FREE_MINUTES" in text
