"""The report as one HTML page that needs nothing: no network, no script, pictures and their numbers inside.

All text is escaped here, where it meets the markup. Pictures are elements that `demos.lab.canvas` made.
"""

import csv
import io
from base64 import b64encode
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final
from urllib.parse import quote

import attrs

from demos.lab.report import Cell, Check, Report, Section, Submission, Table, environment_rows, shown

FORMULA: Final = ("=", "+", "-", "@", "\t")
"""How a text begins that a spreadsheet would run; our numbers are written as numbers and not as text."""

STYLE: Final = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --faint: #595959; --rule: #ddd; --link: #0057a0;
  --good: #006b4a; --bad: #b00020; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --paper: #16181b; --faint: #a8a8a8; --rule: #3a3d42;
  --link: #8cc4ff; --good: #5fd3a4; --bad: #ff8a94; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
a { color: var(--link); } h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
h3 { font-size: 1.1rem; margin-top: 2rem; } nav li li { font-size: .9rem; }
figure, .wide { margin: 1rem 0; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 44rem; height: auto; background: #fff; border-radius: 4px; }
.sentence { font-weight: 600; } .source, .caveat { color: var(--faint); font-size: .9rem; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } td.none { color: var(--faint); font-style: italic; }
.pass { color: var(--good); } .fail { color: var(--bad); font-weight: 700; } .unmeasured { color: var(--faint); }
.invalid { border: 2px solid var(--bad); padding: .5rem 1rem; }
@media print { details { display: none; } section { break-inside: avoid; } }
"""
"""Pictures keep their white paper on a dark page, and on a narrow one are moved sideways before their text gets too small."""


@attrs.frozen
class Place:
    """Where a report stands in a page: alone, or as one of several."""

    beside: str = ""
    """The way from the page to the report's own files, ending with a slash."""
    prefix: str = ""
    """Of its ids, so that several do not share them."""
    level: int = 1
    """Of its heading; those within it are one lower."""

    def heading(self, text: str, below: int = 0) -> str:
        """Of the report, or below it."""
        level = self.level + below
        return f"<h{level}>{escape(text)}</h{level}>"

    def link(self, file: str) -> str:
        """To a file beside the report: quoted, so that no name can be a scheme."""
        return f'<a href="{escape(quote(self.beside + file))}">{escape(file)}</a>'

    def section(self, number: int) -> str:
        """The id of one."""
        return f"{self.prefix}section-{number}"


ALONE: Final = Place()


def page(report: Report) -> str:
    """The whole page. The same report gives the same text."""
    return "\n".join([*head(report.title), *body(report, ALONE), "</body>\n</html>"]) + "\n"


def head(title: str) -> Iterator[str]:
    """All before a page's body has anything in it."""
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>"


def body(report: Report, place: Place) -> Iterator[str]:
    """A report, wherever it stands."""
    yield place.heading(report.title)
    if report.failures:
        yield '<div class="invalid"><p><strong>This run is invalid and not to be quoted.</strong></p>'
        yield f"{_list(f'{check.name}: {check.detail}' for check in report.failures)}</div>"
    yield _list(report.summary)
    yield f"<p>{escape(stamp(report.submission))}</p>"
    for number, section in enumerate(report.sections, 1):
        yield from _section(number, section, place)
    yield place.heading("Can it be trusted?", 1)
    yield from _checks(report.checks)
    yield place.heading("Method", 1) + _list(report.method)
    if report.not_measured:
        yield place.heading("What was not measured", 1) + _list(report.not_measured)
    yield place.heading("Environment", 1) + '\n<div class="wide"><table>'
    for name, value in environment_rows(report.header):
        yield f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
    yield f"</table></div>\n{place.heading('Files', 1)}\n<ul>"
    for file in report.files:
        yield f"<li>{place.link(file)}</li>"
    yield "</ul>"


def stamp(submission: Submission | None) -> str:
    """Whether it is the locked scenario, as a sentence."""
    if submission is None:
        return "Submission-valid: not known, the file has no stamp."
    if submission.valid:
        return "Submission-valid: yes. It is the package's own experiment, whole and changed in nothing."
    return f"Submission-valid: no. {'; '.join(submission.reasons)}."


def _section(number: int, section: Section, place: Place) -> Iterator[str]:
    yield f'<section id="{place.section(number)}">\n{place.heading(section.title, 1)}'
    yield f'<p class="sentence">{escape(section.sentence)}</p>'
    if section.picture is not None:
        yield f"<figure>{section.picture.svg}</figure>"
    if section.caveat:
        yield f'<p class="caveat">{escape(section.caveat)}</p>'
    stem = section.stem(number)
    files = (
        f" As a picture: {place.link(f'{stem}.svg')}, {place.link(f'{stem}.png')}." if section.picture else ""
    )
    yield f'<p class="source">Built from {place.link(section.source)}.{files}</p>'
    if section.table is not None:
        opened = "" if section.picture else " open"
        yield f"<details{opened}><summary>The numbers</summary>"
        yield from _table(section.table)
        yield f"<p>{_download(section.table, f'{stem}.csv')}</p></details>"
    yield "</section>"


def _checks(checks: Iterable[Check]) -> Iterator[str]:
    yield '<div class="wide"><table>'
    for check in checks:
        style = {True: "pass", False: "fail", None: "unmeasured"}[check.passed]
        yield f'<tr><th>{escape(check.name)}</th><td class="{style}">{escape(check.mark)}</td>'
        yield f"<td>{escape(check.detail)}</td></tr>"
    yield "</table></div>"


def _table(table: Table) -> Iterator[str]:
    yield '<div class="wide"><table>'
    yield "<tr>" + "".join(f"<th>{escape(column)}</th>" for column in table.columns) + "</tr>"
    for row in table.rows:
        yield "<tr>" + "".join(_cell(cell) for cell in row) + "</tr>"
    yield "</table></div>"


def _cell(cell: Cell) -> str:
    style = "none" if cell is None else "" if isinstance(cell, str) else "number"
    return f'<td class="{style}">{escape(shown(cell))}</td>' if style else f"<td>{escape(shown(cell))}</td>"


def _download(table: Table, name: str) -> str:
    """A link that holds the table, all digits of it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_harmless(column) for column in table.columns)
    writer.writerows([_harmless(cell) for cell in row] for row in table.rows)
    data = b64encode(text.getvalue().encode()).decode()
    return f'<a download="{escape(name)}" href="data:text/csv;charset=utf-8;base64,{data}">{escape(name)}</a>'


def _harmless(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def _list(sentences: Iterable[str]) -> str:
    return "<ul>\n" + "".join(f"<li>{escape(sentence)}</li>\n" for sentence in sentences) + "</ul>"
