"""demos.lab.together: several experiments as one page, each linked to its own files."""

import io
import re
from pathlib import Path

import attrs
import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab.command import INVALID, OK, USAGE, Terminal, lab
from demos.lab.kept_results import named
from demos.lab.report import Check, Report
from demos.lab.together import Chapter, write_together
from tests.test_lab_driver import SMALL
from tests.test_lab_report import DRAWINGS, REPORT, Page


def drawn(kind: str) -> Report:
    """The report with one picture, of this kind."""
    first, second, third = REPORT.sections
    picture = DRAWINGS[kind]()
    sections = (attrs.evolve(first, picture=None), attrs.evolve(second, picture=picture), third)
    return attrs.evolve(REPORT, sections=sections)


def test_a_page_of_several_reports_shares_no_id_and_finds_each_file(tmp_path):
    """Contents point to chapters and sections that are there; files are named by the way to them."""
    chapters = [
        Chapter(drawn(kind), tmp_path / name) for kind, name in (("lines", "ladder"), ("strip", "map"))
    ]
    path = write_together(chapters, tmp_path / "all")
    seen = Page(path.read_text())
    assert len(seen.ids) == len(set(seen.ids))
    inside = {address[1:] for address in seen.addresses if address.startswith("#")}
    assert {"chapter-1-top", "chapter-2-section-3"} <= inside <= set(seen.ids)
    for name in ("ladder", "map"):
        assert f"../{name}/results.jsonl" in seen.addresses
        assert f"../{name}/report.html" in seen.addresses
        assert f"../{name}/{REPORT.sections[1].stem(2)}.png" in seen.addresses
    assert seen.tags.count("h1") == 1
    assert not {"script", "link", "img", "iframe"} & set(seen.tags)


def test_an_invalid_run_says_so_in_the_contents(tmp_path):
    """Nobody has to read to the chapter to learn that it is not to be quoted."""
    bad = attrs.evolve(REPORT, title="bad", checks=(Check("A/A", False, "apart"),))
    text = write_together([Chapter(REPORT, tmp_path), Chapter(bad, tmp_path)], tmp_path).read_text()
    contents = text[text.index("<nav>") : text.index("</nav>")]
    assert re.search(r">bad</a> <strong[^>]*>invalid</strong>", contents)
    assert contents.count("invalid</strong>") == 1
    assert 'href="results.jsonl"' in text


def test_a_page_of_nothing_is_refused(tmp_path):
    """The way out is said."""
    with pytest.raises(ValueError, match="name the directories"):
        write_together([], tmp_path)


def test_the_command_makes_a_page_of_directories(tmp_path: Path) -> None:
    """Each directory keeps its own report, made anew."""
    file = tmp_path / "mine.toml"
    file.write_text(SMALL.replace("repeats = 2", "repeats = 1"))
    terminal = Terminal(out=io.StringIO(), err=io.StringIO(), plain=True)
    lab(["run", str(file), "--out", str(tmp_path / "a")], terminal)
    (tmp_path / "a" / "report.html").unlink()
    assert lab(["together", str(tmp_path / "a"), "--out", str(tmp_path)], terminal) in (OK, INVALID)
    assert (tmp_path / "a" / "report.html").is_file()
    assert 'href="a/results.jsonl"' in (tmp_path / "index.html").read_text()


def test_results_that_are_kept_stay_as_they_are(tmp_path: Path) -> None:
    """They are written out below the page, with their report, and only where no others lie."""
    terminal = Terminal(out=io.StringIO(), err=io.StringIO(), plain=True)
    place = named("alpha").directory
    before = sorted(place.iterdir())
    assert lab(["together", str(place), "--out", str(tmp_path)], terminal) in (OK, INVALID)
    assert sorted(place.iterdir()) == before
    assert {"report.html", "results.jsonl"} < {path.name for path in (tmp_path / "alpha").iterdir()}
    assert 'href="alpha/results.jsonl"' in (tmp_path / "index.html").read_text()
    (tmp_path / "alpha" / "results.jsonl").write_text("mine")
    assert lab(["together", str(place), "--out", str(tmp_path)], terminal) == USAGE
