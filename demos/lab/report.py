"""What an experiment has to show: sections that each stand for one sentence, and whether the run may be believed.

An experiment brings sections; the page, the terminal and the files beside them (`demos.lab.publish`) are made from the
same values, so that they cannot differ. A check that failed marks the whole report invalid, with its reason, on top.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import attrs

from demos.lab.records import Header

NO_DATA: Final = "no data"
_STEM_LENGTH: Final = 72
"""Of a file name without its ending: titles may be longer."""

Cell = str | int | float | None


@attrs.frozen
class Table:
    """The numbers of a plot. Columns carry their units; None is shown as `no data`."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = attrs.field()

    @rows.validator
    def _same_width(self, _: object, rows: tuple[tuple[Cell, ...], ...]) -> None:
        for row in rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells under {len(self.columns)} columns: {row}")


@attrs.frozen
class Sheet:
    """A plot that was drawn, in two forms."""

    svg: str = attrs.field()
    """An `<svg>` element, to stand in a page."""
    png: bytes = attrs.field(repr=False)
    """A file, for where SVG cannot be shown."""

    @svg.validator
    def _is_svg(self, _: object, svg: str) -> None:
        if not (svg.startswith("<svg") and svg.endswith("</svg>")):
            raise ValueError(f"a picture is one <svg> element, not {svg[:40]!r}...")


class Picture:
    """A plot, drawn when it is first looked at: who judges a report, or quotes it, looks at none.

    What is wrong with its data is raised then, too.
    """

    def __init__(self, draw: Callable[[], Sheet]) -> None:
        """`draw` is called once at most."""
        self.draw = draw

    @cached_property
    def _sheet(self) -> Sheet:
        return self.draw()

    @property
    def svg(self) -> str:
        """As `Sheet.svg`."""
        return self._sheet.svg

    @property
    def png(self) -> bytes:
        """As `Sheet.png`."""
        return self._sheet.png


@attrs.frozen(kw_only=True)
class Section:
    """A plot with the sentence that it supports, its numbers, and the file that it was built from."""

    title: str
    sentence: str
    source: str
    """The file, as a path from where the report is."""
    picture: Picture | None = None
    """As the functions of `demos.lab.plots` make it; None: a table only."""
    table: Table | None = None
    caveat: str = ""
    """What the plot does not show."""

    def stem(self, number: int) -> str:
        """What its files are called, as section `number` of a report: `03-the-cost-of-turn-n`."""
        words = re.findall(r"[a-z0-9]+", self.title.lower().replace(",", ""))
        return "-".join([f"{number:02}", *words])[:_STEM_LENGTH].rstrip("-")


@attrs.frozen
class Check:
    """One line of the checklist; None: not measured in this run."""

    name: str
    passed: bool | None
    detail: str

    @property
    def mark(self) -> str:
        """For people."""
        return {True: "pass", False: "FAIL", None: "not measured"}[self.passed]


@attrs.frozen
class Submission:
    """Is it the locked scenario: what the package's own file says, run whole and changed in nothing?"""

    reasons: tuple[str, ...]
    """Why not."""

    @property
    def valid(self) -> bool:
        """May it stand beside the figures of others who ran the same?"""
        return not self.reasons


@attrs.frozen(kw_only=True)
class Report:
    """Everything that is shown."""

    title: str
    header: Header
    summary: tuple[str, ...]
    """Sentences made from numbers (`demos.lab.wording`)."""
    sections: tuple[Section, ...]
    method: tuple[str, ...]
    checks: tuple[Check, ...]
    files: tuple[str, ...]
    """Results and exports, as paths from where the report is."""
    not_measured: tuple[str, ...] = ()
    submission: Submission | None = None
    """None: the file was written before results were stamped."""

    @property
    def failures(self) -> Sequence[Check]:
        """Why it must not be quoted; empty if it may."""
        return [check for check in self.checks if check.passed is False]


def shown(value: Cell) -> str:
    """A cell for people: four digits are as many as a measurement has."""
    match value:
        case None:
            return NO_DATA
        case str():
            return value
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}".replace("-", "\N{MINUS SIGN}")


def environment_rows(header: Header) -> list[tuple[str, str]]:
    """Where the run happened, as names and values."""
    environment = header.environment
    host = environment.host
    return [
        ("experiment", f"{header.experiment}, plan {header.digest}, seed {header.seed}"),
        ("began", header.began),
        (
            "commit",
            environment.commit + (", with changes that are in no commit" if environment.dirty else ""),
        ),
        ("host", f"{host.cores} cores, {host.cpu}, {host.platform}"),
        ("python", host.python),
        ("packages", ", ".join(f"{name} {version}" for name, version in environment.versions.items())),
    ]
