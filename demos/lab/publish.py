"""A report as files and as lines of a terminal."""

import re
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from demos.lab.page import page, stamp
from demos.lab.report import Report


def write(report: Report, directory: Path) -> Path:
    """Write `report.html` and, beside it, each plot as SVG and PNG, named after what it shows; the path of the page.

    OSError: the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "report.html"
    before = _pictures_of(path)
    for number, section in enumerate(report.sections, 1):
        if section.picture is not None:
            beside = directory / section.stem(number)
            svg = f'<?xml version="1.0" encoding="utf-8"?>\n{section.picture.svg}\n'
            beside.with_suffix(".svg").write_text(svg, encoding="utf-8")
            beside.with_suffix(".png").write_bytes(section.picture.png)
    path.write_text(page(report), encoding="utf-8")
    for name in before - _pictures_of(path):
        (directory / name).unlink(missing_ok=True)
    return path


def _pictures_of(path: Path) -> frozenset[str]:
    """The files that a page links to as its plots; those of an older page are of nothing that is still shown."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return frozenset(re.findall(r'href="(\d\d-[a-z0-9-]+\.(?:svg|png))"', text))


def terminal(report: Report, console: Console) -> None:
    """The same sentences and checks for people who look at a terminal."""
    console.print(Text(report.title, style="bold"))
    if report.failures:
        names = ", ".join(check.name for check in report.failures)
        console.print(Text(f"INVALID, not to be quoted: {names}", style="bold red"))
    for sentence in (*report.summary, *(section.sentence for section in report.sections)):
        console.print(Text(f"- {sentence}"))
    grid = Grid("check", "", "seen", box=None, pad_edge=False)
    styles = {True: "green", False: "bold red", None: "dim"}
    for check in report.checks:
        grid.add_row(Text(check.name), Text(check.mark, style=styles[check.passed]), Text(check.detail))
    console.print(grid)
    console.print(Text(stamp(report.submission)))
