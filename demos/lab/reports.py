"""The report of what lies somewhere: a directory of an experiment or a result file, compressed or not, whoever's it is.

Needs the extra.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import attrs

from demos.lab import computed
from demos.lab.agreement import TOLERANCE, Agreement, agreement_section, agreements, farthest
from demos.lab.report import Report
from demos.lab.results import VIRTUAL, ResultsReader, result_files
from demos.lab.scenario import submission_of
from demos.lab.sections import report_of


@attrs.frozen
class Made:
    """A report, and what it was made of besides its file."""

    report: Report
    agreements: Sequence[Agreement]
    """Of the two clocks, where both were run."""


def made(place: Path) -> Made:
    """The report of a file or directory. `ResultsError`, `OSError`."""
    return _made(tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in result_files(place)))


@lru_cache(maxsize=16)
def _made(files: Sequence[tuple[Path, int, int]]) -> Made:
    """Of files as they are now. Pictures take seconds, and who judges a report may want to quote it as well."""
    path, *others = (path for path, _, _ in files)
    virtual = next((other for other in others if other.name.startswith(VIRTUAL)), None)
    found = agreements(virtual, path) if virtual else []
    apart = farthest(found)
    shows = computed.reporter(ResultsReader(path).header)
    clocks = None if apart is None else (apart, TOLERANCE)
    report = shows(path) if shows else report_of(path, clocks=clocks)
    if found:
        report = attrs.evolve(report, sections=(*report.sections, agreement_section(found, path.name)))
    submission = submission_of([path, *others], [check.name for check in report.failures])
    return Made(attrs.evolve(report, submission=submission), found)
