"""The workshop's tools work in one folder and nowhere else, and never longer than they may."""

import os
import sys

import jsonschema
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from demos.workshop import (
    BROKEN_PROJECTS,
    DEFAULT_PROJECT,
    HEAD_BYTES,
    MAX_FILE_BYTES,
    TAIL_BYTES,
    Workshop,
    _Excerpt,
    copied_project,
    default_test_command,
)


@pytest.fixture
def workshop(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_bytes(b"x = 1\r\n")
    (tmp_path / "secret.txt").write_text("secret")
    return Workshop(root)


def running(workshop: Workshop, program: str, **settings) -> Workshop:
    return Workshop(workshop.root, [sys.executable, "-c", program], **settings)


async def test_list(workshop):
    """Files are listed by relative path, in order, without caches and hidden folders."""
    for name in ("sub/b.txt", "__pycache__/a.pyc", ".git/config"):
        (workshop.root / name).parent.mkdir()
        (workshop.root / name).touch()
    assert await workshop.list_files() == "a.py\nsub/b.txt\n"


async def test_text_is_read_as_it_is(workshop):
    """A file's text comes unchanged, line ends included."""
    assert await workshop.read_file(path="a.py") == "x = 1\r\n"


async def test_write_then_read(workshop):
    """What was written is read back; folders in between are made."""
    assert await workshop.write_file(path="new/b.py", content="é\r\n\n") == "wrote 5 bytes to new/b.py"
    assert (workshop.root / "new" / "b.py").read_bytes() == "é\r\n\n".encode()


ESCAPES = [
    "../secret.txt",
    "a/../../secret.txt",
    "/etc/passwd",
    "link.txt",
    "out/secret.txt",
    "..",
    ".",
    "",
    "a\0b",
    ".git/config",
]


@pytest.mark.parametrize("path", [*ESCAPES, 7, None])
async def test_escapes_are_refused(path, workshop):
    """A path that leads out, by dots, from the root or by a link, is neither read nor written."""
    (workshop.root / "link.txt").symlink_to("../secret.txt")
    (workshop.root / "out").symlink_to("..")
    secret = workshop.root.parent / "secret.txt"
    assert (await workshop.read_file(path)).startswith(f"error: {path!r} ")
    assert (await workshop.write_file(path, "mine")).startswith(f"error: {path!r} ")
    assert secret.read_text() == "secret"
    assert sorted(path.name for path in workshop.root.parent.iterdir()) == ["project", "secret.txt"]


async def test_absolute_path_inside_is_refused(workshop):
    """An absolute path is refused even where it leads inside: the agent does not know where it is."""
    assert "give a path relative to it" in await workshop.read_file(str(workshop.root / "a.py"))


async def test_what_cannot_be_read_is_said(workshop):
    """A missing file, a folder, bytes that are no text, and too much text are answered by an error."""
    (workshop.root / "folder").mkdir()
    (workshop.root / "image").write_bytes(b"\xff\xd8")
    (workshop.root / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    answers = [await workshop.read_file(path) for path in ("missing", "folder", "image", "large")]
    assert [answer.split(";")[0] for answer in answers] == [
        "error: 'missing' is no file",
        "error: 'folder' is no file",
        "error: this is no UTF-8 text",
        f"error: 'large' has more than {MAX_FILE_BYTES} bytes",
    ]


async def test_what_cannot_be_written_is_said(workshop):
    """Too much text, text that is no Unicode, and a folder's name are answered by an error."""
    (workshop.root / "folder").mkdir()
    assert (await workshop.write_file("b", "x" * (MAX_FILE_BYTES + 1))).startswith("error: the content has ")
    assert (await workshop.write_file("b", "\ud800")).startswith("error: this is no UTF-8 text")
    assert (await workshop.write_file("folder", "x")).startswith("error: Is a directory")
    assert not (workshop.root / "b").exists()


async def test_tests_are_run(tmp_path):
    """The default command needs nothing but Python, and paths in its output are the project's own."""
    workshop = Workshop(copied_project(BROKEN_PROJECTS / DEFAULT_PROJECT, tmp_path))
    output = await workshop.run_tests()
    assert "Ran 11 tests" in output
    assert 'File "test_parking.py", line ' in output
    assert str(tmp_path) not in output
    assert output.endswith("exit code 1\n")
    assert not list(tmp_path.rglob("__pycache__"))


async def test_tests_have_a_small_environment(workshop, monkeypatch):
    """The tests get no variable they do not need, so no key."""
    monkeypatch.setenv("SUSPENDED_API_KEY", "key")
    output = await running(workshop, "import os; print(*os.environ)").run_tests()
    assert "PYTHONDONTWRITEBYTECODE" in output
    assert "SUSPENDED_API_KEY" not in output


async def test_tests_get_no_input(workshop):
    """Tests that ask for input find none, instead of waiting for it."""
    assert await running(workshop, "input()").run_tests() != ""


async def test_time_limit(workshop, autojump_clock):
    """Tests that do not end are stopped at the limit, and the output says so."""
    output = await running(workshop, "while True: pass", timeout_seconds=30).run_tests()
    assert output.endswith("error: stopped after 30 seconds, the tests did not end\n")
    assert trio.current_time() == 30


FORKING = """
import os, subprocess, sys
alive = os.open("alive", os.O_WRONLY)
subprocess.Popen([sys.executable, "-c", "while True: pass"], pass_fds=[alive])
os.write(alive, b"started")
{rest}
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a named pipe, and process groups")
@pytest.mark.parametrize("rest", ["while True: pass", "os._exit(0)"])
async def test_cancel_kills_all(rest, workshop):
    """Cancelled, the tests are killed with what they started, even if they themselves have ended."""
    os.mkfifo(workshop.root / "alive")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running(workshop, FORKING.format(rest=rest)).run_tests)
        pipe = await trio.open_file(workshop.root / "alive", "rb", buffering=0)
        assert await pipe.read(7) == b"started"
        nursery.cancel_scope.cancel()
    async with pipe:
        # A pipe ends when the last process that could write to it is dead.
        assert await pipe.read() == b""


async def test_missing_command_is_said(workshop):
    """A test command that does not exist is an answer, not an exception."""
    assert (await Workshop(workshop.root, ["no-such-program"]).run_tests()).endswith(
        "No such file or directory; give another test command\n"
    )


async def test_long_output_is_cut_in_its_middle(workshop):
    """Of a long output come the beginning and the end, and how much is missing."""
    output = await running(workshop, "print('first'); print('x' * 1_000_000); print('last')").run_tests()
    assert output.startswith("first\nxxx")
    assert output.endswith("xxx\nlast\n\nexit code 0\n")
    assert len(output) < HEAD_BYTES + TAIL_BYTES + 100


@given(st.lists(st.integers(0, HEAD_BYTES).map(lambda size: b"z" * size), max_size=8))
def test_excerpt_forgets_nothing_silently(chunks):
    """What is kept and what is said to be left out add up to what there was."""
    excerpt = _Excerpt()
    for chunk in chunks:
        excerpt.add(chunk)
    assert len(excerpt.head) + len(excerpt.tail) + excerpt.left_out == sum(map(len, chunks))
    assert len(excerpt.tail) <= TAIL_BYTES


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"test_a.py": "import unittest"}, ["unittest", "discover", "-v"]),
        ({"tests/test_a.py": "import unittest"}, ["unittest", "discover", "-v", "-s", "tests"]),
        (
            {"tests/test_a.py": "import unittest", "tests/__init__.py": ""},
            ["unittest", "discover", "-v", "-s", "tests", "-t", "."],
        ),
        (
            {"tests/test_a.py": "def test_a(): pass"},
            ["pytest", "-v", "--tb=native", "-p", "no:cacheprovider"],
        ),
        (
            {"test_a.py": "import unittest", "pyproject.toml": "[tool.pytest.ini_options]"},
            ["pytest", "-v", "--tb=native", "-p", "no:cacheprovider"],
        ),
        ({"a.py": ""}, ["unittest", "discover", "-v"]),
    ],
)
def test_how_tests_are_run(files, expected, tmp_path):
    """A project that uses pytest is tested by it, any other by unittest, wherever its tests are."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert default_test_command(tmp_path) == [sys.executable, "-m", *expected]


def test_schemas_fit_the_tools(workshop):
    """Each tool is declared by its name, its parameters are those of the function, and the schema is one."""
    schemas, tools = workshop.schemas(), workshop.tools()
    assert [schema["name"] for schema in schemas] == list(tools)
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema["parameters"])
        code = tools[schema["name"]].__func__.__code__
        assert list(schema["parameters"]["properties"]) == list(code.co_varnames[1 : code.co_argcount])


def test_copy_leaves_caches_behind(tmp_path):
    """A copied project has its files, and neither caches nor git's data."""
    source = tmp_path / "source"
    for name in ("a.py", "__pycache__/a.pyc", ".git/config"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    copy = copied_project(source, tmp_path / "into")
    assert [path.name for path in copy.rglob("*")] == ["a.py"]
