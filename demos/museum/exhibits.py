"""The exhibits: a file each, with the trace that went wrong, its label in the header, and the same trace mended.

They are made by hand after the public report that the label names; no byte of them is anybody's recording.
A report about another protocol is told in this one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import attrs

from protocol import trace
from protocol.invariants import Checker, Violation

FOLDER: Final = Path(__file__).parent


@attrs.frozen
class Telling:
    """How it went, or how it should have gone."""

    header: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    def violations(self, profile: str) -> list[Violation]:
        """What the checker finds."""
        checker = Checker(self.header, profile=profile)
        found = [violation for record in self.records for violation in checker.feed(record)]
        return [*found, *checker.finish()]


@attrs.frozen
class Exhibit:
    """A bug to look at."""

    name: str
    title: str
    source: str
    """The public report, `owner/name#number`."""
    rule: str
    """Which finds it."""
    profile: str
    wrong: str
    """What went on in the server."""
    seen: str
    """What came of it for the client."""
    right: str
    broken: Telling
    mended: Telling

    @classmethod
    def read(cls, path: Path) -> Self:
        """From its file. `TraceError`: it is none."""
        broken, mended = (Telling(*found) for found in trace.read(path.read_bytes().splitlines()))
        return cls(
            name=path.stem,
            title=broken.header["name"],
            source=broken.header["source"],
            broken=broken,
            mended=mended,
            **broken.header["label"],
        )

    @property
    def is_found(self) -> bool:
        """By its rule and no other; and the mended trace is clean."""
        rules = {violation.rule for violation in self.broken.violations(self.profile)}
        return rules == {self.rule} and not self.mended.violations(self.profile)


def exhibits() -> list[Exhibit]:
    """All of them, in the order of the walk: from the start of a response to its end, then what is between several."""
    return [Exhibit.read(path) for path in sorted(FOLDER.glob("*.jsonl"))]
