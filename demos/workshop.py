"""A workshop: one folder, and the tools an agent may use in it.

The tools are real: they list, read and write files of the folder, and run its tests in a process of their own.
They are also all: a path that leads out of the folder is refused, by whatever way it leads out.
What goes wrong is told to the agent as the tool's output, which then begins with `error:`; nothing is raised.

The folder's *tests* are programs that run with the rights of whoever runs the workshop.
A time limit and a small environment keep accidents short; they are no sandbox.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

BROKEN_PROJECTS = Path(__file__).parent / "broken"
"""Small projects with a slip or two in each; `DEFAULT_PROJECT` is the one the demo repairs."""

DEFAULT_PROJECT = "parking"

MAX_FILE_BYTES = 256 * 1024
MAX_LISTED_FILES = 500
HEAD_BYTES, TAIL_BYTES = 12 * 1024, 4 * 1024
"""How much of a test run's output is kept: its beginning, and its end with the summary."""

PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "TEMP", "TMP")
"""Of our environment, what a test run gets. Keys and tokens are not among it."""

SET_FOR_TESTS: Mapping[str, str] = {
    # A file written twice within a second would else be taken for its compiled former self.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}

PYTEST_SIGNS: Mapping[str, str] = {
    "pytest.ini": "",
    "conftest.py": "",
    "pyproject.toml": "[tool.pytest",
    "tox.ini": "[pytest]",
    "setup.cfg": "[tool:pytest]",
}
"""Files that say a project is tested by pytest, if they hold this text."""


class PathRefusedError(Exception):
    """The agent named a path that is none of its business; the message is the answer it gets."""


def _resolved(path: Path) -> Path:
    return path.resolve()


@attrs.define
class Workshop:
    """The tools of one folder. Files are read anew at each call: others may work in it too."""

    root: Path = attrs.field(converter=_resolved)
    test_command: Sequence[str] | None = None
    """How to run the tests, from inside the folder; None finds out, see `default_test_command`."""
    timeout_seconds: float = 20

    def tools(self) -> dict[str, Callable[..., Awaitable[str]]]:
        """Return the tools by name; each takes its JSON arguments by keyword and returns its output's text."""
        return {
            "list_files": self.list_files,
            "read_file": self.read_file,
            "write_file": self.write_file,
            "run_tests": self.run_tests,
        }

    def schemas(self) -> list[dict[str, Any]]:
        """Return the tools as a request declares them."""
        path = {"path": {"type": "string", "description": "relative to the project's folder"}}
        content = {"content": {"type": "string", "description": "the whole new text"}}
        return [
            _schema("list_files", "List the project's files, one path a line.", {}),
            _schema("read_file", "Read a text file of the project.", path),
            _schema("write_file", "Write a text file of the project, replacing it.", path | content),
            _schema("run_tests", "Run the project's tests and return what they print.", {}),
        ]

    async def list_files(self) -> str:
        """Return the paths of all files, one a line, less hidden folders and caches. A checkpoint."""
        return await trio.to_thread.run_sync(self._listing)

    async def read_file(self, path: str) -> str:
        """Return a file's text exactly as it is. A checkpoint."""
        return await _answer(partial(self._read, path))

    async def write_file(self, path: str, content: str) -> str:
        """Replace or create a file, and the folders it is in. A checkpoint; a write once begun is finished."""
        return await _answer(partial(self._write, path, content))

    async def run_tests(self) -> str:
        """Run the tests; return their output, cut in its middle if long, and their exit code.

        A checkpoint. At the time limit, and when cancelled, the tests and what they started are killed.
        """
        command = self.test_command
        if command is None:
            command = await trio.to_thread.run_sync(default_test_command, self.root)
        excerpt = _Excerpt()
        ending = f"error: stopped after {self.timeout_seconds:g} seconds, the tests did not end"
        with trio.move_on_after(self.timeout_seconds):
            ending = await _run(command, self.root, excerpt)
        return f"{excerpt.text().replace(f'{self.root}{os.sep}', '')}\n{ending}\n"

    def _listing(self) -> str:
        found: list[str] = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
            found.extend((Path(folder) / name).relative_to(self.root).as_posix() for name in sorted(names))
            if len(found) > MAX_LISTED_FILES:
                break
        return "".join(f"{path}\n" for path in found[:MAX_LISTED_FILES])

    def _read(self, path: str) -> str:
        place = self._inside(path)
        if not place.is_file():
            raise PathRefusedError(f"{path!r} is no file; list_files shows which files there are")
        if place.stat().st_size > MAX_FILE_BYTES:
            raise PathRefusedError(f"{path!r} has more than {MAX_FILE_BYTES} bytes; read another file")
        return place.read_bytes().decode()

    def _write(self, path: str, content: str) -> str:
        data = content.encode()
        if len(data) > MAX_FILE_BYTES:
            raise PathRefusedError(f"the content has {len(data)} bytes; at most {MAX_FILE_BYTES} are written")
        place = self._inside(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return f"wrote {len(data)} bytes to {path}"

    def _inside(self, path: object) -> Path:
        """Return the place of a path in the folder, links followed; raise `PathRefusedError` outside of it."""
        if not isinstance(path, str) or not path or "\0" in path:
            raise PathRefusedError(
                f"{path!r} is no path; give the relative path of a file, as listed by list_files"
            )
        place = (self.root / path).resolve()
        if Path(path).is_absolute() or not place.is_relative_to(self.root) or place == self.root:
            raise PathRefusedError(f"{path!r} is not inside the project's folder; give a path relative to it")
        if ".git" in place.relative_to(self.root).parts:
            raise PathRefusedError(
                f"{path!r} belongs to git; only the project's own files are read and written"
            )
        return place


def default_test_command(root: Path) -> list[str]:
    """Return how to run a folder's tests: by pytest if it is used there and installed, else by unittest."""
    if importlib.util.find_spec("pytest") and _uses_pytest(root):
        return [sys.executable, "-m", "pytest", "-v", "--tb=native", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "unittest", "discover", "-v"]
    if (root / "tests").is_dir() and not any(root.glob("test*.py")):
        # Without `-t`, modules in a folder that is no package are found by their bare names.
        command += ["-s", "tests", *(("-t", ".") if (root / "tests" / "__init__.py").exists() else ())]
    return command


def copied_project(project: Path, into: Path) -> Path:
    """Copy a project's folder, less caches and git's data, into another; return the copy."""
    ignored = shutil.ignore_patterns("__pycache__", ".git", ".venv", "*.pyc")
    return Path(shutil.copytree(project, into / project.name, ignore=ignored, symlinks=True))


@attrs.define
class _Excerpt:
    """The beginning and the end of a stream of bytes, in bounded memory."""

    head: bytes = b""
    tail: bytes = b""
    left_out: int = 0

    def add(self, chunk: bytes) -> None:
        room = HEAD_BYTES - len(self.head)
        self.head += chunk[:room]
        tail = self.tail + chunk[room:]
        self.tail = tail[-TAIL_BYTES:]
        self.left_out += len(tail) - len(self.tail)

    def text(self) -> str:
        gap = f"\n[… {self.left_out} bytes left out …]\n".encode() if self.left_out else b""
        return (self.head + gap + self.tail).decode(errors="replace").replace("\r\n", "\n")


async def _run(command: Sequence[str], folder: Path, excerpt: _Excerpt) -> str:
    """Run a command to its end, its output added to the excerpt as it comes; return how it ended."""
    run = partial(
        trio.run_process,
        stdin=b"",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        cwd=folder,
        env=_environment(folder),
        start_new_session=True,
        deliver_cancel=_kill_all,
    )
    async with trio.open_nursery() as nursery:
        try:
            process: trio.Process = await nursery.start(run, command)
        except OSError as error:
            return f"error: cannot run {command[0]!r}: {error.strerror}; give another test command"
        assert process.stdout is not None
        try:
            async for chunk in process.stdout:
                excerpt.add(bytes(chunk))
            await process.wait()
        finally:
            # When the tests have ended, what they started may still live.
            await _kill_all(process)
    return f"exit code {process.returncode}"


async def _kill_all(process: trio.Process) -> None:
    """Kill the tests with all they started; where there are no process groups, the tests alone."""
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(folder: Path) -> dict[str, str]:
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment.update(SET_FOR_TESTS)
    if (folder / "src").is_dir():
        environment["PYTHONPATH"] = str(folder / "src")
    return environment


async def _answer(work: Callable[[], str]) -> str:
    """Do some file work in a thread; say as text what went wrong."""
    try:
        return await trio.to_thread.run_sync(work)
    except PathRefusedError as error:
        return f"error: {error}"
    except UnicodeError:
        return "error: this is no UTF-8 text; only text files are read and written"
    except OSError as error:
        return f"error: {error.strerror}; list_files shows which files there are"


def _uses_pytest(root: Path) -> bool:
    if any((root / name).is_file() and sign in _text(root / name) for name, sign in PYTEST_SIGNS.items()):
        return True
    tests = [*root.glob("test*.py"), *root.glob("tests/test*.py")]
    return bool(tests) and not any("unittest" in _text(test) for test in tests)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _schema(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }
