"""The report: the pages of several experiments as one, with what is in it on top.

Each experiment stays where it is, with its own page, results and pictures; this page links to them.
"""

import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

import attrs

from demos.lab.page import Place, body, head
from demos.lab.report import Report

TITLE: Final = "The report: one rollout in every form"
NAME: Final = "index.html"


@attrs.frozen
class Chapter:
    """An experiment and where its files are."""

    report: Report
    directory: Path


def write_together(chapters: Sequence[Chapter], directory: Path) -> Path:
    """Write `index.html` there; the path of it. `ValueError`: nothing is to be shown. `OSError`."""
    if not chapters:
        raise ValueError("no experiment is to be shown; name the directories of their results")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAME
    path.write_text("\n".join(_page(chapters, directory)) + "\n", encoding="utf-8")
    return path


def _page(chapters: Sequence[Chapter], directory: Path) -> Iterator[str]:
    places = [_place(number, chapter, directory) for number, chapter in enumerate(chapters, 1)]
    yield from head(TITLE)
    yield f"<h1>{escape(TITLE)}</h1>\n<nav><ol>"
    for chapter, place in zip(chapters, places, strict=True):
        yield from _entry(chapter.report, place)
    yield "</ol></nav>"
    for chapter, place in zip(chapters, places, strict=True):
        yield f'<article id="{place.prefix}top">'
        yield from body(chapter.report, place)
        yield "</article>"
    yield "</body>\n</html>"


def _place(number: int, chapter: Chapter, directory: Path) -> Place:
    way = os.path.relpath(chapter.directory, directory)
    return Place("" if way == "." else f"{way}/", f"chapter-{number}-", 2)


def _entry(report: Report, place: Place) -> Iterator[str]:
    """Of the table of contents: an invalid run says so here already."""
    mark = ' <strong class="fail">invalid</strong>' if report.failures else ""
    yield f'<li><a href="#{place.prefix}top">{escape(report.title)}</a>{mark}, {place.link("report.html")}\n<ul>'
    for number, section in enumerate(report.sections, 1):
        yield f'<li><a href="#{place.section(number)}">{escape(section.title)}</a></li>'
    yield "</ul></li>"
