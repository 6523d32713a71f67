"""The walk: for each exhibit its label, the trace with the offending record marked, what `check` says, what is to change."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from demos.museum import drawing
from demos.museum.exhibits import Exhibit
from demos.museum.page import Line
from engine.check.report import HumanReport

_WIDTH: Final = 100
_BLANK: Final[Line] = ()


def walk(shown: Sequence[Exhibit]) -> Iterator[Line]:
    """All lines of the walk."""
    for number, exhibit in enumerate(shown, 1):
        yield from _exhibit(exhibit, f"{number}/{len(shown)}")
    found = sum(exhibit.is_found for exhibit in shown)
    yield ((f"{found} of {len(shown)} found by the rule on the label; mended, they are clean", "title"),)


def _exhibit(exhibit: Exhibit, place: str) -> Iterator[Line]:
    yield ((f"{place}  {exhibit.title}", "title"), (f"  {exhibit.source}", "dim"))
    yield _BLANK
    for label, text in (
        ("what happened", exhibit.wrong),
        ("the client saw", exhibit.seen),
        ("what is right", exhibit.right),
    ):
        yield from _paragraph(label, text)
    yield _BLANK
    yield from _trace(exhibit)
    yield _BLANK
    yield (("  check says", "dim"),)
    for line in _report(exhibit):
        yield ((f"    {line}" if line else "", "plain"),)
    yield _BLANK
    yield (("  put right", "dim"),)
    for line in drawing.differences(exhibit.broken, exhibit.mended):
        yield ((f"    {line}", "right" if line.startswith("+") else "dim"),)
    yield _BLANK
    yield _BLANK


def _paragraph(label: str, text: str) -> Iterator[Line]:
    first, *more = textwrap.wrap(text, _WIDTH - 18)
    yield ((f"  {label:14}  ", "dim"), (first, "plain"))
    for line in more:
        yield ((f"{'':18}{line}", "plain"),)


def _trace(exhibit: Exhibit) -> Iterator[Line]:
    broken = {violation.record: violation.rule for violation in exhibit.broken.violations(exhibit.profile)}
    for number, line in enumerate(drawing.lines(exhibit.broken), 1):
        if number in broken:
            yield ((f"▶ {line}  ◀ {broken[number]}", "wrong"),)
        else:
            yield ((f"  {line}", "plain"),)


def _report(exhibit: Exhibit) -> list[str]:
    """What `suspended check` prints, without the records: they stand above."""
    said: list[str] = []
    report = HumanReport(said.append, colour=False)
    report.violations(exhibit.broken.violations(exhibit.profile), lambda _: ())
    return [line for line in "\n".join(said).splitlines() if not line.startswith("trace ")][1:]
