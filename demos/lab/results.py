"""The result file: append-only JSON lines that a run can be resumed from and everything else is computed from.

A record is written when its rollout has ended, in one write; a process that is killed leaves at most one torn line,
which the next run drops and says so. One that is kept for good may be compressed (`.gz`): it is read, not appended to.
A file belongs to one plan (experiment, config, seed), and another is refused:
figures of two plans in one file would look like one experiment. A resumed run on another commit leaves a note.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import attrs
import orjson

from demos.lab.records import (
    Environment,
    Header,
    Note,
    Record,
    Rollout,
    RolloutKey,
    as_json,
    differences,
    from_json,
)

RESULTS, WALL, VIRTUAL = "results.jsonl", "wall.jsonl", "virtual.jsonl"
"""What the result files of an experiment are called; where both clocks were run, the report is of `WALL`."""
COMPRESSED: Final = ".gz"
"""How the name of a compressed one ends."""
RESUMED = "resumed"
"""Topic of the note that a run leaves which goes on with a file of another environment."""


class ResultsError(ValueError):
    """The file is not what it is used as. The message names the file, the place and the way out."""


class ResultsReader:
    """The records of a file in its order, one line in memory at a time; iterate as often as you like.

    Raises ResultsError for a line that is no record, here for the first and while iterating for the others.
    A torn last line is left out; `torn_bytes` says how long it was, once an iteration has come to its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn_bytes = 0
        line = next(_lines(path), b"")
        if not line.endswith(b"\n"):
            raise ResultsError(f"{path} holds no result: it has no whole line; remove it and run again")
        header = _record(path, 1, line)
        if not isinstance(header, Header):
            raise ResultsError(f"{path}, line 1: a result file begins with a header")
        self.header = header

    def __iter__(self) -> Iterator[Record]:
        for number, line in enumerate(_lines(self.path), 1):
            if not line.endswith(b"\n"):
                self.torn_bytes = len(line)
            elif number > 1:
                record = _record(self.path, number, line)
                if isinstance(record, Header):
                    raise ResultsError(
                        f"{self.path}, line {number}: a second header; one file is one run, split it here"
                    )
                yield record

    def rollouts(self) -> Iterator[Rollout]:
        """Without the notes."""
        return (record for record in self if isinstance(record, Rollout))

    def notes(self) -> Iterator[Note]:
        """Only the notes."""
        return (record for record in self if isinstance(record, Note))


@attrs.define
class ResultsFile:
    """A file that a run appends to; `open` it, and leave its context to close it."""

    path: Path
    header: Header
    remarks: tuple[str, ...]
    """What happened at opening that a person should read."""
    _file: BinaryIO
    _done: set[RolloutKey]

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        experiment: str,
        config: Mapping[str, Any],
        seed: int,
        environment: Environment,
        began: str,
        conflicts: Sequence[str] | None = None,
    ) -> Self:
        """Begin a file, or go on with one of the same plan; `conflicts` are for its head (`demos.lab.scenario`).

        ResultsError: the file is of another plan, or no result file; nothing was changed.
        """
        plain = orjson.loads(orjson.dumps(config))
        asked = Header(
            experiment=experiment,
            config=plain,
            seed=seed,
            environment=environment,
            began=began,
            submission_valid=None if conflicts is None else not conflicts,
            conflicts=tuple(conflicts or ()),
        )
        whole_bytes, torn_bytes = _whole_and_torn(path)
        reader = ResultsReader(path) if whole_bytes else None
        done = _resumable(reader, asked) if reader else set()
        if torn_bytes:
            with path.open("r+b") as damaged:
                damaged.truncate(whole_bytes)
        header = reader.header if reader else asked
        results = cls(path, header, _torn_remarks(path, torn_bytes), path.open("ab"), done)
        if reader is None:
            results._append(asked)
        elif environment != header.environment:
            results.write(Note(topic=RESUMED, detail=attrs.asdict(environment) | {"began": began}))
        return results

    def done(self) -> frozenset[RolloutKey]:
        """The rollouts that need not be run again: those in the file, failed ones too."""
        return frozenset(self._done)

    def write(self, record: Record) -> None:
        """Append a record. ValueError: the rollout is in the file already."""
        if isinstance(record, Rollout):
            if record.key in self._done:
                raise ValueError(f"{record.key} is in {self.path} already; look in done() before a run")
            self._done.add(record.key)
        self._append(record)

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, record: Header | Record) -> None:
        self._file.write(orjson.dumps(as_json(record), option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()


def result_files(place: Path) -> list[Path]:
    """The file itself, or those of a directory, first that which the report is of. `ResultsError`: there are none."""
    if place.is_file():
        return [place]
    names = [f"{name}{end}" for name in (RESULTS, WALL, VIRTUAL) for end in ("", COMPRESSED)]
    found = [place / name for name in names if (place / name).is_file()]
    if not found:
        raise ResultsError(
            f"{place} holds no result file; `suspended lab EXPERIMENT --out {place}` writes one"
        )
    return found


def plain_bytes(path: Path) -> bytes:
    """The whole of a file, compressed or not. `ResultsError`: what is compressed is damaged; `OSError`."""
    return b"".join(_lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    """Of a file, compressed or not. `ResultsError`: what is compressed is damaged; `OSError`."""
    if path.suffix != COMPRESSED:
        with path.open("rb") as file:
            yield from file
        return
    try:
        with gzip.open(path) as unpacked:
            yield from unpacked
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ResultsError(f"{path} is damaged ({error}); get it again") from error


def _record(path: Path, number: int, line: bytes) -> Header | Record:
    try:
        return from_json(orjson.loads(line))
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ResultsError(f"{path}, line {number}: {problem}") from error


def _whole_and_torn(path: Path) -> tuple[int, int]:
    """How many bytes stand in whole lines, and how many behind the last of them."""
    if not path.exists():
        return 0, 0
    whole = torn = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                whole += len(line)
            else:
                torn = len(line)
    return whole, torn


def _resumable(reader: ResultsReader, asked: Header) -> set[RolloutKey]:
    """What the file holds; ResultsError if it is of another plan."""
    theirs, ours = (
        {"experiment": header.experiment, "seed": header.seed, "config": header.config}
        for header in (reader.header, asked)
    )
    found = [line.removeprefix(".") for line in differences("", theirs, ours)]
    if found:
        raise ResultsError(
            f"{reader.path} holds another plan: {'; '.join(found)}. "
            "Write to another directory, or remove the file to begin again."
        )
    return {rollout.key for rollout in reader.rollouts()}


def _torn_remarks(path: Path, torn_bytes: int) -> tuple[str, ...]:
    if not torn_bytes:
        return ()
    return (f"{path}: dropped a torn last line of {torn_bytes} bytes; its rollout is run again",)
