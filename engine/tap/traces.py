"""What a tap writes down and checks: one trace for each dialect, with all connections of that dialect in it.

Not one for each connection: a trace says of every record which connection it is of, while its header has room for one
dialect. So records are written as they come, in constant memory and without a second copy, connections that interleave
do not disturb each other, and the rules about several connections and requests (a cancel, a continuation on another
socket) can be evaluated.

A record is made once: the line that is written and the object that is checked say the same.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from protocol import trace
from protocol.invariants import Checker, Summary, Violation

TAP_HOOKS: Final = ("connection_open", "connection_close", "gap")
"""What a tap sees completely."""
FORMS: Final = ("http", "create", "inject", "append")
"""The dialects, each with a file of its own."""
SOURCE: Final = "suspended tap"
MAX_UNWRITTEN_BYTES: Final = 256 * 1024
"""Lines of one batch that are written together."""

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
_log = logging.getLogger(__name__)

OnViolations = Callable[[Sequence[Violation], Callable[[Violation], Sequence[str]]], None]
"""Is told of violations, and how to show the records that prove one."""


class TraceLog:
    """The file of one trace; only whole lines are ever in it, but for a power cut."""

    def __init__(self, path: Path) -> None:
        """Opens it behind what is there already. `OSError`: it cannot be written, or another tap writes to it."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size = _size_of_whole_lines(self._file)
            os.ftruncate(self._file, self._size)
        except BlockingIOError:
            os.close(self._file)
            raise OSError(f"{path} is being written by another tap; give each a folder of its own") from None
        except OSError:
            os.close(self._file)
            raise

    def append(self, lines: bytes) -> int:
        """Write, and say where. `OSError`: nothing of it was written."""
        at, view = self._size, memoryview(lines)
        try:
            while view:
                written = os.pwrite(self._file, view, self._size)
                self._size += written
                view = view[written:]
        except OSError:
            self._size = at
            os.ftruncate(self._file, at)
            raise
        return at

    def overwrite(self, at: int, text: bytes) -> None:
        """Put other text of the same length into its place. `OSError`."""
        os.pwrite(self._file, text, at)

    def close(self) -> None:
        """Once."""
        os.close(self._file)


def _size_of_whole_lines(file: int) -> int:
    """Without a line that was torn by a power cut."""
    size = os.fstat(file).st_size
    while size:
        start = max(0, size - 65_536)
        end = os.pread(file, size - start, start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        size = start
    return 0


class DialectTrace:
    """One trace as it grows. Nothing here raises: what fails is logged, once, and the rest goes on without it."""

    def __init__(
        self, header: Mapping[str, Any], log: TraceLog | None, checker: Checker, on_violations: OnViolations
    ) -> None:
        self._log = log
        self._checker: Checker | None = checker
        self._on_violations = on_violations
        self._lines: list[bytes] = []
        self._unwritten_bytes = 0
        self._last_t = 0.0
        self._header_line = orjson.dumps({**header, "complete": False}) + b"\n"
        self._header_at = 0
        if log is not None:
            self._header_at = self._written(self._header_line) or 0

    def frame(
        self, t: float, connection: str, direction: str, payload: bytes, event: str | None = None
    ) -> None:
        """A message as it was on the wire. `event`: of a server-sent event, the name beside it."""
        t = self._last_t = max(t, self._last_t)
        try:
            values = orjson.loads(b"[%b]" % payload)  # nested once, as in the line
        except ValueError:
            values = _parsed_slowly(payload)
        if len(values) != 1 or type(values[0]) is not dict:
            self._no_object(t, connection, direction, payload, event)
            return
        if b"\n" in payload or b"\r" in payload:
            payload = payload.translate(_ONE_LINE)
        record = {"t": t, "conn": connection, "dir": direction, "frame": values[0]}
        head = (t, connection.encode(), direction.encode(), payload)
        if event is None:
            self._add(record, b'{"t":%.6f,"conn":"%b","dir":"%b","frame":%b}\n' % head)
        else:
            record["event"] = event
            line = b'{"t":%.6f,"conn":"%b","dir":"%b","frame":%b,"event":%b}\n'
            self._add(record, line % (*head, orjson.dumps(event)))

    def _no_object(
        self, t: float, connection: str, direction: str, payload: bytes, event: str | None
    ) -> None:
        members = {} if event is None else {"event": event}
        if payload.strip() == b"[DONE]":
            self.say(t, connection, direction, frame="[DONE]", **members)
        else:
            text = payload.decode("utf-8", "replace")[: trace.MAX_RAW_CHARACTERS]
            self.say(t, connection, direction, raw=text, **members)

    def say(self, t: float, connection: str, direction: str, **members: Any) -> None:
        """A record that is no message: a pseudo frame, a hook, the size of a binary message."""
        t = self._last_t = max(t, self._last_t)
        record = {"t": t, "conn": connection, "dir": direction, **members}
        self._add(record, orjson.dumps(record) + b"\n")

    def hook(self, t: float, connection: str, name: str, **members: Any) -> None:
        """Something happened between the frames."""
        self.say(t, connection, "hook", frame={"hook": name, **members})

    def flush(self) -> None:
        """Write what was said."""
        if self._lines:
            lines, self._lines, self._unwritten_bytes = b"".join(self._lines), [], 0
            self._written(lines)

    def finish(self) -> Summary | None:
        """The end of the trace: nothing comes any more. Until then its header says that it is not complete."""
        self.flush()
        checker = self._checker
        if checker is not None:
            self._check(checker.finish)
        if self._log is not None:
            line = self._header_line.replace(b'"complete":false', b'"complete":true ')
            try:
                self._log.overwrite(self._header_at, line)
            except OSError as error:
                self._give_up_writing(error)
        if self._log is not None:
            self._log.close()
        return checker.summary() if checker is not None else None

    def _add(self, record: Mapping[str, Any], line: bytes) -> None:
        if self._log is not None:
            self._lines.append(line)
            self._unwritten_bytes += len(line)
            if self._unwritten_bytes > MAX_UNWRITTEN_BYTES:
                self.flush()
        checker = self._checker
        if checker is not None:
            try:
                violations = checker.feed(record)
            except Exception:  # noqa: BLE001  # see `_give_up_checking`
                self._give_up_checking()
            else:
                self._report(checker, violations)

    def _check(self, ask: Callable[[], Sequence[Violation]]) -> None:
        assert self._checker is not None
        try:
            self._report(self._checker, ask())
        except Exception:  # noqa: BLE001  # see `_give_up_checking`
            self._give_up_checking()

    def _report(self, checker: Checker, violations: Sequence[Violation]) -> None:
        if violations:
            self._on_violations(violations, checker.shown)

    def _give_up_checking(self) -> None:
        """A checker that fails must not stop the recording, which may show why."""
        _log.exception("the checker failed; what follows is recorded and not checked")
        self._checker = None

    def _written(self, lines: bytes) -> int | None:
        if self._log is None:
            return None
        try:
            return self._log.append(lines)
        except OSError as error:
            self._give_up_writing(error)
            return None

    def _give_up_writing(self, error: OSError) -> None:
        """A full disk must not stop the relay."""
        _log.error("cannot write the trace any more: %s", error)
        assert self._log is not None
        self._log.close()
        self._log = None
        self._lines.clear()


def _parsed_slowly(payload: bytes) -> list[Any]:
    """What orjson refuses and is JSON all the same, as half a character; nothing if it is none."""
    try:
        values = trace.parsed(b"[%b]" % payload)
    except ValueError:
        return []
    return list(values)


@attrs.define(eq=False)
class TapTraces:
    """The traces of one tap, at most one for each dialect."""

    folder: Path | None
    """Where `<dialect>.jsonl` go; None: nothing is written."""
    profile: str
    on_violations: OnViolations
    _traces: dict[str, DialectTrace] = attrs.field(factory=dict, init=False)

    def of(self, dialect: str) -> DialectTrace:
        """The trace of a dialect; it begins when it is first asked for."""
        if dialect not in self._traces:
            self._traces[dialect] = self._begin(dialect)
        return self._traces[dialect]

    def flush(self) -> None:
        """Write what was said."""
        for each in self._traces.values():
            each.flush()

    def finish(self) -> Iterator[Summary]:
        """The end of all traces, and what was found in each."""
        ended, self._traces = self._traces, {}
        for each in ended.values():
            summary = each.finish()
            if summary is not None:
                yield summary

    def _begin(self, dialect: str) -> DialectTrace:
        header = orjson.loads(
            trace.header_line(
                dialect=dialect,
                source=SOURCE,
                transport="sse" if dialect == "http" else "websocket",
                hooks=TAP_HOOKS,
                name=dialect,
            )
        )
        log = None
        if self.folder is not None:
            try:
                log = TraceLog(self.folder / f"{dialect}.jsonl")
            except OSError as error:
                _log.error("no trace of the %s form is written: %s", dialect, error)
        return DialectTrace(header, log, Checker(header, profile=self.profile), self.on_violations)
