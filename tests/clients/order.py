"""The rules of order, held against all that a server recorded, whether or not a test asks for it.

Each trace of a recording is checked once, as soon as its connection has ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from protocol import trace
from protocol.invariants import Checker

OWN = "this-engine"

TraceLines = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]


def ended_traces(path: Path) -> list[TraceLines]:
    """Of a file that may still grow: a connection's trace is written as a whole, but maybe not read so."""
    text = path.read_bytes() if path.exists() else b""
    try:
        found = list(trace.read(text.splitlines()))
    except trace.TraceError:
        return []
    return found if text.endswith(b"\n") else []


def checked(
    header: Mapping[str, Any], records: Sequence[Mapping[str, Any]], profile: str
) -> tuple[list[str], int]:
    """What the rules have against a trace, each with the records that show it; and how many responses are in it."""
    checker = Checker(header, profile=profile)
    found = [violation for record in records for violation in checker.feed(record)]
    found += checker.finish()
    said = [
        "\n  ".join((f"{each.rule}: expected {each.expected}; seen {each.seen}", *checker.shown(each)))
        for each in found
    ]
    return said, checker.summary().responses


@attrs.define(eq=False)
class Recording:
    """The traces of one server."""

    path: Path
    profile: str = OWN
    responses: int = 0
    """Of which events were checked so far."""
    _traces: int = 0

    def check(self) -> None:
        """Check what has ended since the last time; fail if something is out of order."""
        new = ended_traces(self.path)[self._traces :]
        self._traces += len(new)
        found: list[str] = []
        for header, records in new:
            said, responses = checked(header, records, self.profile)
            found += said
            self.responses += responses
        if found:
            pytest.fail(f"out of order, in {self.path}:\n" + "\n".join(found), pytrace=False)


RECORDINGS: list[Recording] = []
"""Of all servers of this run of tests."""


@contextmanager
def recorded(path: Path, *, eventless: bool | None = False) -> Iterator[Recording]:
    """What is recorded there by the end of the block is in order, and there are events in it.

    `eventless`: there are none, since the server is killed before its first connection ends; None: it may be so.
    """
    recording = Recording(path)
    RECORDINGS.append(recording)
    yield recording
    recording.check()
    if eventless is bool(recording.responses):
        expected = "no response" if eventless else "a response"
        pytest.fail(f"expected {expected} in {path}; there are {recording.responses}", pytrace=False)


def responses_checked() -> int:
    """In all recordings."""
    return sum(recording.responses for recording in RECORDINGS)
