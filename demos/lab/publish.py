"""A report as files and as lines of a terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from demos.lab.page import page
from demos.lab.report import Report


def write(report: Report, directory: Path) -> Path:
    """Write `report.html` and, beside it, each plot as an SVG file of its own; the path of the page.

    OSError: the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for number, section in enumerate(report.sections, 1):
        if section.svg:
            picture = f'<?xml version="1.0" encoding="utf-8"?>\n{section.svg}\n'
            (directory / f"plot-{number:02}.svg").write_text(picture, encoding="utf-8")
    path = directory / "report.html"
    path.write_text(page(report), encoding="utf-8")
    return path


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
