"""The repairer repairs what it can, leaves the rest as it was, and believes nothing but its tools."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.agents.conversation import Conversation
from demos.agents.repair import MAX_TEST_RUNS, policy, repair
from demos.agents.report import Place, report_of
from demos.agents.suspicion import candidates
from demos.workshop import BROKEN_PROJECTS, Workshop, copied_project
from engine.samplers.policy import Say, Use
from tests.replay import PROMPT, moves_by_driving, moves_by_replay

PROJECTS = sorted(path.name for path in BROKEN_PROJECTS.iterdir())
SCHEMAS = Workshop(BROKEN_PROJECTS).schemas()


def texts_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def project(folder: Path, **sources: str) -> Workshop:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return Workshop(folder)


async def conversation_with(workshop: Workshop) -> Conversation:
    conversation = Conversation()
    await conversation.run(policy, PROMPT, workshop.tools(), workshop.schemas())
    return conversation


class FailingFolder:
    """A client whose files are in memory and whose one test fails whatever is written."""

    def __init__(self, module: str) -> None:
        test = "from module import f\n\nclass T:\n    def test_f(self):\n        self.assertEqual(f(1), 2)\n"
        self.files = {"module.py": module, "test_module.py": test}
        self.runs = 0

    def __call__(self, use: Use) -> str:
        match use:
            case Use("list_files"):
                return "".join(f"{path}\n" for path in self.files)
            case Use("read_file", {"path": path}):
                return self.files[path]
            case Use("write_file", {"path": path, "content": content}):
                self.files[path] = content
                return "written"
        self.runs += 1
        return (
            "test_f (test_module.T.test_f) ... FAIL\n\n"
            f"{'=' * 70}\nFAIL: test_f (test_module.T.test_f)\n{'-' * 70}\nTraceback (most recent call last):\n"
            '  File "test_module.py", line 5, in test_f\n    self.assertEqual(f(1), 2)\n'
            f"AssertionError\n\n{'-' * 70}\nRan 1 test in 0.000s\n\nFAILED (failures=1)\n"
        )


@pytest.mark.parametrize("name", PROJECTS)
async def test_broken_project_is_repaired(name, tmp_path):
    """Each of the broken projects ends with passing tests, and with the tests it had."""
    workshop = Workshop(copied_project(BROKEN_PROJECTS / name, tmp_path))
    before = texts_in(workshop.root)
    conversation = await conversation_with(workshop)
    after = texts_in(workshop.root)
    assert conversation.final_text.startswith("Repaired: all ")
    assert report_of(await workshop.run_tests()).passed
    tests = [path for path in before if path.startswith("test_")]
    assert [after[path] for path in tests] == [before[path] for path in tests]
    assert before != after


async def test_default_project_takes_a_dozen_calls(tmp_path):
    """The project the demo shows takes several attempts: at least a dozen calls, of each tool at least one."""
    conversation = await conversation_with(Workshop(copied_project(BROKEN_PROJECTS / "parking", tmp_path)))
    assert len(conversation.calls) >= 12
    assert {call.name for call in conversation.calls} == {
        "list_files",
        "read_file",
        "write_file",
        "run_tests",
    }


async def test_slips_that_hide_each_other(tmp_path):
    """Where no single edit means fewer failures, an edit that lets the test get further is built upon."""
    workshop = project(
        tmp_path,
        module="def low(a, b):\n    return max(a, b)\n\n\ndef far(a, b):\n    return a + b\n",
        test_module=(
            "import unittest\nfrom module import far, low\n\n\nclass T(unittest.TestCase):\n    def test_both(self):\n"
            "        self.assertEqual(low(1, 2), 1)\n        self.assertEqual(far(5, 3), 2)\n"
        ),
    )
    conversation = await conversation_with(workshop)
    assert conversation.final_text.startswith("Repaired: all 1 tests pass.")
    assert (
        tmp_path / "module.py"
    ).read_text() == "def low(a, b):\n    return min(a, b)\n\n\ndef far(a, b):\n    return a - b\n"


async def test_project_of_pytest_is_repaired(tmp_path):
    """A project whose tests are plain functions is run by pytest, and its output understood."""
    workshop = project(
        tmp_path,
        module="def is_adult(age):\n    return age > 18\n",
        test_module=(
            "from module import is_adult\n\n\ndef test_at_eighteen():\n    assert is_adult(18)\n\n\n"
            "def test_before():\n    assert not is_adult(17)\n"
        ),
    )
    conversation = await conversation_with(workshop)
    assert conversation.final_text.startswith("Repaired: all 2 tests pass. I changed module.py line 2")


async def test_what_cannot_be_repaired_is_left_as_it_was(tmp_path):
    """When all edits are tried, the files are as they were and the agent says that it gave up."""
    workshop = project(
        tmp_path,
        module="def greeting(name):\n    return 'Hello ' + name\n",
        test_module=(
            "import unittest\nfrom module import greeting\n\n\nclass T(unittest.TestCase):\n"
            "    def test_bow(self):\n        self.assertEqual(greeting('you'), 'a deep bow')\n"
        ),
    )
    before = texts_in(tmp_path)
    conversation = await conversation_with(workshop)
    assert conversation.final_text.startswith("I give up after ")
    assert conversation.final_text.endswith("The files are as they were.")
    assert texts_in(tmp_path) == before


async def test_steps_that_lead_nowhere_are_undone(tmp_path):
    """What only let a test get further is put back when nothing is repaired after it."""
    workshop = project(
        tmp_path,
        low="def low(a, b):\n    return max(a, b)\n",
        far="def far(a, b):\n    return a + b\n",
        test_module=(
            "import unittest\nfrom far import far\nfrom low import low\n\n\nclass T(unittest.TestCase):\n"
            "    def test_both(self):\n        self.assertEqual(low(1, 2), 1)\n"
            "        self.assertEqual(far(5, 3), 2)\n        self.assertEqual(low(1, 2), far)\n"
        ),
    )
    before = texts_in(tmp_path)
    conversation = await conversation_with(workshop)
    assert conversation.final_text.startswith("I give up after ")
    assert conversation.final_text.endswith("The files are as they were.")
    assert texts_in(tmp_path) == before
    said = " ".join(str(item) for item in conversation.items)
    assert "With far.py line 2: `+` to `-` a test gets further" in said


async def test_nothing_to_repair(tmp_path):
    """Where all tests pass, one run says so and nothing is written."""
    test = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_it(self):\n        pass\n"
    conversation = await conversation_with(project(tmp_path, test_module=test))
    assert [call.name for call in conversation.calls] == ["run_tests"]
    assert conversation.final_text == "All 1 tests pass already; there is nothing to repair."


def test_budget_is_kept():
    """With more edits than runs, the tests run as often as the budget says, and the files are put back."""
    module = "def f(x):\n" + "".join(f"    x = x + {n} * x\n" for n in range(40)) + "    return x\n"
    folder = FailingFolder(module)
    last = moves_by_replay(policy, folder, SCHEMAS)[-1]
    assert folder.runs == MAX_TEST_RUNS
    assert folder.files["module.py"] == module
    assert isinstance(last, Say)
    assert "my budget is used up" in last.text


def test_refused_writes_are_not_repeated():
    """A file that may not be written is tried once, then no more."""
    folder = FailingFolder("def f(x):\n    return x + 1\n")

    def answer(use: Use) -> str:
        return "error: read-only" if use.name == "write_file" else folder(use)

    moves = moves_by_replay(policy, answer, SCHEMAS)
    assert [move.name for move in moves if isinstance(move, Use)].count("write_file") == 1
    assert moves[-1].text.startswith("I give up after 1 test runs: ")


def test_what_could_not_be_put_back_is_said():
    """If the last edit cannot be undone, the agent does not claim that it was."""
    folder = FailingFolder("def f(x):\n    return x + 1\n")

    def answer(use: Use) -> str:
        return "error: read-only" if use.name == "write_file" and folder.runs > 1 else folder(use)

    moves = moves_by_replay(policy, answer, SCHEMAS)
    assert moves[-1] == Say("I give up, and could not put back my trial edits of module.py.")


def test_missing_tools_are_named():
    """Without its tools the agent calls nothing and says which it needs."""
    moves = moves_by_replay(policy, str, [tool for tool in SCHEMAS if tool["name"] != "run_tests"])
    assert moves == [Say("I cannot repair anything without these tools: run_tests.")]


UNITTEST_OUTPUT = FailingFolder("")(Use("run_tests", {}))
LIES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            UNITTEST_OUTPUT,
            UNITTEST_OUTPUT[: len(UNITTEST_OUTPUT) // 2],
            UNITTEST_OUTPUT.replace("line 5", "line 999999999"),
            UNITTEST_OUTPUT.replace("FAILED (failures=1)", "OK"),
            "error: stopped after 20 seconds",
            "module.py\ntest_module.py\n",
            "../../etc/passwd\nmodule.py\n",
            "import module\ndef f(x):\n    return x[0] < 1\n",
            "def f(:",
            "===== 2 failed, 3 passed in 0.10s =====\nFAILED test_module.py::test_f - boom\n",
            "\0",
        ]
    ),
)


@given(st.lists(LIES, min_size=1, max_size=12))
def test_lying_tools_do_not_break_it(lies):
    """Whatever the tools answer, the agent comes to an end within its budget, and says something last."""
    count = 0

    def answer(_use: Use) -> str:
        nonlocal count
        count += 1
        return lies[count % len(lies)]

    moves = moves_by_driving(repair, answer, SCHEMAS)
    runs = [move for move in moves if isinstance(move, Use) and move.name == "run_tests"]
    assert 1 <= len(runs) <= MAX_TEST_RUNS
    assert isinstance(moves[-1], Say)


def test_suspects_come_first():
    """Edits of a function only the failing tests reach come before the same edits of another."""
    files = {
        "module.py": "def good(x):\n    return x < 1\n\n\ndef bad(x):\n    return x < 1\n",
        "test_module.py": "def test_good():\n    assert good(0)\n\n\ndef test_bad():\n    assert bad(1)\n",
    }
    report = report_of(
        "test_module.py::test_good PASSED\ntest_module.py::test_bad FAILED\n==== 1 failed, 1 passed in 0.01s ====\n"
    )
    ranked = candidates(report, files)
    assert [candidate.edit.line for candidate in ranked[: len(ranked) // 2]] == [6] * (len(ranked) // 2)


def test_unittest_output_is_read():
    """From unittest's output come the counts, the failing tests with their lines, and the passing ones."""
    report = report_of(
        "test_a (test_m.T.test_a) ... ok\n"
        "test_b (test_m.T.test_b)\nWhat it does. ... FAIL\n"
        "test_c (test_m.T.test_c) ... \n  test_c (test_m.T.test_c) (n=2) ... FAIL\n\n"
        f"{'=' * 70}\nFAIL: test_b (test_m.T.test_b)\nWhat it does.\n{'-' * 70}\nTraceback (most recent call last):\n"
        '  File "test_m.py", line 7, in test_b\n    f()\n  File "m.py", line 2, in f\n    g()\nAssertionError\n\n'
        f"{'-' * 70}\nRan 3 tests in 0.001s\n\nFAILED (failures=2)\n"
    )
    assert (report.ran, report.failed) == (3, 2)
    assert report.failing == {
        "test_m.T.test_b": (Place("test_m.py", 7), Place("m.py", 2)),
        "test_m.T.test_c (n=2)": (),
    }
    assert report.passing == {"test_m.T.test_a"}


def test_pytest_output_is_read():
    """From pytest's output, here with its long tracebacks, comes the same."""
    report = report_of(
        "test_m.py::T::test_a PASSED  [ 50%]\ntest_m.py::T::test_b FAILED  [100%]\n"
        "=== FAILURES ===\n_______ T.test_b _______\n    def test_b(self):\n>       f()\n\ntest_m.py:7: \n"
        "_ _ _ _ _\n\nm.py:2: ZeroDivisionError\n"
        "=== short test summary info ===\nFAILED test_m.py::T::test_b - ZeroDivisionError\n"
        "=== 1 failed, 1 passed in 0.02s ===\n"
    )
    assert (report.ran, report.failed) == (2, 1)
    assert report.failing == {"test_m.py::T::test_b": (Place("test_m.py", 7), Place("m.py", 2))}
    assert report.passing == {"test_m.py::T::test_a"}


@given(st.text())
def test_any_output_is_read(output):
    """Text that is no test output makes a report without tests."""
    assert not report_of(output).passed


def test_replay_of_repair_equals_driving_it():
    """Replaying the repairer segment by segment makes the moves that running it once makes."""
    module = "def f(x):\n    return x + 1 if x < 3 else x - 1\n"
    assert moves_by_replay(policy, FailingFolder(module), SCHEMAS) == moves_by_driving(
        repair, FailingFolder(module), SCHEMAS
    )
