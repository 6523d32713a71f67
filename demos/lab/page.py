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

from demos.lab.report import Cell, Check, Report, Section, Table, environment_rows, shown

FORMULA: Final = ("=", "+", "-", "@", "\t")
"""How a text begins that a spreadsheet would run; our numbers are written as numbers and not as text."""

STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; }
.sentence { font-weight: 600; } .source, .caveat { color: #555; font-size: .9rem; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } td.none { color: #777; font-style: italic; }
.pass { color: #006b4a; } .fail { color: #b00020; font-weight: 700; } .unmeasured { color: #777; }
.invalid { border: 2px solid #b00020; padding: .5rem 1rem; }
@media print { details { display: none; } section { break-inside: avoid; } }
"""


def page(report: Report) -> str:
    """The whole page. The same report gives the same text."""
    return "\n".join(_page(report)) + "\n"


def _page(report: Report) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{escape(report.title)}</h1>"
    if report.failures:
        yield '<div class="invalid"><p><strong>This run is invalid and not to be quoted.</strong></p>'
        yield f"{_list(f'{check.name}: {check.detail}' for check in report.failures)}</div>"
    yield _list(report.summary)
    for number, section in enumerate(report.sections, 1):
        yield from _section(number, section)
    yield "<h2>Can it be trusted?</h2>"
    yield from _checks(report.checks)
    yield f"<h2>Method</h2>\n{_list(report.method)}"
    if report.not_measured:
        yield f"<h2>What was not measured</h2>\n{_list(report.not_measured)}"
    yield "<h2>Environment</h2>\n<table>"
    for name, value in environment_rows(report.header):
        yield f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
    yield "</table>\n<h2>Files</h2>\n<ul>"
    for file in report.files:
        yield f"<li>{_link(file)}</li>"
    yield "</ul>\n</body>\n</html>"


def _section(number: int, section: Section) -> Iterator[str]:
    yield f'<section id="section-{number}">\n<h2>{escape(section.title)}</h2>'
    yield f'<p class="sentence">{escape(section.sentence)}</p>'
    if section.svg:
        yield f"<figure>{section.svg}</figure>"
    if section.caveat:
        yield f'<p class="caveat">{escape(section.caveat)}</p>'
    yield f'<p class="source">Built from {_link(section.source)}.</p>'
    if section.table is not None:
        opened = "" if section.svg else " open"
        yield f"<details{opened}><summary>The numbers</summary>"
        yield from _table(section.table)
        yield f"<p>{_download(section.table, f'section-{number}.csv')}</p></details>"
    yield "</section>"


def _checks(checks: Iterable[Check]) -> Iterator[str]:
    yield "<table>"
    for check in checks:
        style = {True: "pass", False: "fail", None: "unmeasured"}[check.passed]
        yield f'<tr><th>{escape(check.name)}</th><td class="{style}">{escape(check.mark)}</td>'
        yield f"<td>{escape(check.detail)}</td></tr>"
    yield "</table>"


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


def _link(file: str) -> str:
    """To a file beside the page: quoted, so that no name can be a scheme."""
    return f'<a href="{escape(quote(file))}">{escape(file)}</a>'


def _list(sentences: Iterable[str]) -> str:
    return "<ul>\n" + "".join(f"<li>{escape(sentence)}</li>\n" for sentence in sentences) + "</ul>"
