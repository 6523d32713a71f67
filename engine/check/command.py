"""`suspended check`: is this event stream in order? Reads logs of any kind, says what is wrong while it reads.

Per record it reads a line, parses it and feeds the checker, and nothing else: so large files are checked at the
checker's speed, and in constant memory.
"""

import os
import stat
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Self, TextIO

import attrs

from engine.check.progress import Progress, Readable
from engine.check.report import HumanReport, JsonReport, Report, Totals
from engine.check.waiting import Attentive, alarm
from protocol import readers
from protocol.invariants import Checker, Groups, Violation

CLEAN, VIOLATED, NO_TRACE, VACUOUS, INTERRUPTED = 0, 1, 2, 3, 130
STDIN: Final = "-"


@attrs.frozen
class CheckSettings:
    """What to check, and how to say it."""

    files: tuple[str, ...]
    """Paths, or `-`."""
    profile: str
    kind: str | None
    """One of `readers.FORMATS`; None: what it looks like."""
    dialect: str | None
    """The form of a log that is no trace; None: what it looks like."""
    json: bool
    colour: bool
    progress: bool

    @classmethod
    def read(cls, arguments: Namespace, *, colour: bool, progress: bool) -> Self:
        """From the command line. `ValueError`: no file, or standard input twice."""
        files = tuple(arguments.files)
        if not files:
            raise ValueError("check: which file? - reads standard input; --list and --explain RULE need none")
        if files.count(STDIN) > 1:
            raise ValueError("check: standard input (-) can be read once")
        return cls(
            files=files,
            profile=arguments.profile,
            kind=arguments.format,
            dialect=arguments.form,
            json=arguments.json,
            colour=colour,
            progress=progress,
        )


def check(settings: CheckSettings, stdin: Readable | None, stdout: TextIO, stderr: TextIO) -> int:
    """Check all files; the exit code. What is no trace is complained of, and the others are checked all the same.

    `BrokenPipeError`: nobody reads what is said. Ctrl-C ends it with the totals so far.
    """
    progress = Progress(stderr if settings.progress else None, _total_bytes(settings.files, stdin))

    def say(line: str, to: TextIO = stdout) -> None:
        progress.clear()
        encoding = to.encoding or "utf-8"
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=to, flush=True)

    report = JsonReport(say) if settings.json else HumanReport(say, colour=settings.colour)
    run = _Run(settings, report)
    try:
        for name in settings.files:
            try:
                with _opened(name, stdin) as file:
                    run.file(name, progress.chunks(file))
            except BrokenPipeError:
                raise
            except (readers.TraceError, OSError) as error:
                run.totals.refused_files += 1
                say(f"suspended: {_complaint(name, error, settings)}", stderr)
        run.finish_groups()
        code = run.exit_code
    except KeyboardInterrupt:
        run.leave()
        code = INTERRUPTED
    report.end(run.totals, code)
    return code


class _Run:
    """The checkers of one command."""

    def __init__(self, settings: CheckSettings, report: Report) -> None:
        self._settings = settings
        self._report = report
        self._groups = Groups()
        self._checker: Checker | None = None
        self._header: dict[str, Any] = {}
        self.totals = Totals()

    def file(self, name: str, chunks: Iterable[bytes]) -> None:
        """Check a file. `TraceError`: it is none, from some line on; what came before counts."""
        try:
            entries = self._entries(chunks)
            self._traces(name, entries)
        finally:
            self.leave()
        self.totals.files += 1

    def _entries(self, chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        lines = readers.lines_of(chunks)
        kind = self._settings.kind
        if kind is None:
            kind, lines = readers.detected(lines)
        return readers.entries(kind, lines, self._settings.dialect)

    def _traces(self, name: str, entries: Iterable[dict[str, Any]]) -> None:
        traces = 0
        feed: Callable[[dict[str, Any]], Sequence[Violation]] = _no_header
        for entry in entries:
            if "trace" in entry:
                self._finish()
                traces += 1
                feed = self._begin(name, traces, entry)
            elif found := feed(entry):
                self._say(found)
        self._finish()

    def _begin(
        self, name: str, number: int, header: dict[str, Any]
    ) -> Callable[[dict[str, Any]], Sequence[Violation]]:
        self._header = {**header, "name": self._name(name, number, header.get("name"))}
        self._checker = Checker(self._header, profile=self._settings.profile)
        return self._checker.feed

    def _name(self, file: str, number: int, named: object) -> str:
        """A trace's own name, with the file if there are several; without a name its place in the file."""
        file = "standard input" if file == STDIN else file
        if not named:
            return file if number == 1 else f"{file}#{number}"
        return str(named) if len(self._settings.files) == 1 else f"{file}: {named}"

    def _finish(self) -> None:
        """The trace is over."""
        if self._checker is None:
            return
        self._say(self._checker.finish())
        if self._header.get("group") is not None:
            self._groups.feed(self._header, self._checker)
        self.leave()

    def leave(self) -> None:
        """Count the trace as far as it was read; nothing is said about its end."""
        if self._checker is not None:
            self.totals.add(self._checker.summary())
            self._checker = None

    def finish_groups(self) -> None:
        """Compare the traces of each group."""
        found = self._groups.finish()
        self.totals.violations.update(violation.rule for violation in found)
        self._report.violations(found, lambda _: ())

    def _say(self, found: Sequence[Violation]) -> None:
        if found and self._checker is not None:
            self._report.violations(found, self._checker.shown)

    @property
    def exit_code(self) -> int:
        """What came of it."""
        if self.totals.refused_files:
            return NO_TRACE
        if self.totals.violations.total():
            return VIOLATED
        return VACUOUS if self.totals.vacuous else CLEAN


def _no_header(record: dict[str, Any]) -> Sequence[Violation]:
    raise AssertionError(f"a reader gave a record before a header: {record}")


@contextmanager
def _opened(name: str, stdin: Readable | None) -> Iterator[Readable]:
    """The file, closed afterwards, and read so that Ctrl-C ends the wait for more of it. `OSError`."""
    with _file(name, stdin) as file, alarm() as signals:
        yield Attentive(file, signals)


def _file(name: str, stdin: Readable | None) -> AbstractContextManager[Readable]:
    """To be closed afterwards; standard input is not ours to close. `OSError`."""
    if name != STDIN:
        return Path(name).open("rb")
    if stdin is None:
        raise OSError("standard input is closed")
    return nullcontext(stdin)


def _total_bytes(names: Iterable[str], stdin: Readable | None) -> int | None:
    """Of all files together; None: one of them has no size."""
    total = 0
    for name in names:
        try:
            status = os.fstat(stdin.fileno()) if name == STDIN and stdin else Path(name).stat()
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total


def _complaint(name: str, error: Exception, settings: CheckSettings) -> str:
    if isinstance(error, OSError):
        return str(error)
    kinds = ", ".join(readers.FORMATS)
    hint = f"(--format says what it is: {kinds})" if settings.kind is None else f"(read as {settings.kind})"
    return f"{'standard input' if name == STDIN else name}: {error} {hint}"
