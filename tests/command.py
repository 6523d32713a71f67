"""Runs `suspended` as a person does: in a process of its own."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent
TIMEOUT_SECONDS = 60
_ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}


def environment(**more: str) -> dict[str, str]:
    """Without keys, colours and settings of whoever runs the tests."""
    return {**_ENVIRONMENT, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **more}


def suspended(
    *words: str | Path, stdin: str = "", cwd: Path = ROOT, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "engine", *map(str, words)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment(**more),
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


class Running:
    """A command that goes on; a context manager that leaves nothing behind."""

    def __init__(self, *words: str | Path, cwd: Path = ROOT, **more: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            cwd=cwd,
            env=environment(**more),
        )
        self._deadline = threading.Timer(TIMEOUT_SECONDS, self._process.kill)

    def __enter__(self) -> Self:
        self._deadline.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline.cancel()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()

    def line_with(self, text: str) -> str:
        """Wait for a line of its output."""
        for line in self._process.stdout:
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in the output; errors: {self._process.stderr.read()}")

    def characters(self, count: int) -> str:
        """Wait for so much output."""
        return self._process.stdout.read(count)

    def error_line_with(self, text: str) -> str:
        """Wait for a line of its errors."""
        return next(line for line in self._process.stderr if text in line)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, the rest of its output, its errors."""
        out, err = self._process.stdout.read(), self._process.stderr.read()
        return self._process.wait(), out, err

    def close_output(self) -> None:
        """Read no more of its output."""
        self._process.stdout.close()

    def ended_silently(self) -> tuple[int, str]:
        """Wait for its end when its output is closed: exit code, its errors."""
        err = self._process.stderr.read()
        return self._process.wait(), err
