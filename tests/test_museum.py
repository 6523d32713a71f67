"""The museum: each exhibit is found by the rule on its label and no other, and is clean when it is mended."""

import os
import re
import subprocess
import sys

import attrs
import orjson
import pytest

from demos.museum import page
from demos.museum.exhibits import FOLDER, exhibits
from demos.museum.walk import walk
from protocol.invariants import PROFILES, RULES
from tests.command import ROOT, environment, suspended

EXHIBITS = exhibits()
each = pytest.mark.parametrize("exhibit", EXHIBITS, ids=[exhibit.name for exhibit in EXHIBITS])


def museum(*words, stdout=subprocess.PIPE, **variables):
    """Run the command as a person does."""
    return subprocess.run(
        [sys.executable, "-m", "demos.museum", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        cwd=ROOT,
        env=environment(**variables),
        timeout=60,
        check=False,
    )


@each
def test_is_found_by_the_rule_on_its_label_alone(exhibit):
    """The checker finds the exhibit's rule in the broken trace, and nothing else."""
    assert {violation.rule for violation in exhibit.broken.violations(exhibit.profile)} == {exhibit.rule}


@each
@pytest.mark.parametrize("profile", PROFILES)
def test_is_clean_when_mended(exhibit, profile):
    """In no profile has the checker anything against the mended trace."""
    assert exhibit.mended.violations(profile) == []


@each
def test_label_says_all(exhibit):
    """A label names a public report and a rule, and tells what happened, what the client saw and what is right."""
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", exhibit.source)
    assert exhibit.rule in RULES
    assert all(text.endswith((".", "!")) for text in (exhibit.wrong, exhibit.seen, exhibit.right))
    assert exhibit.mended.header["source"] == exhibit.source


def test_shows_different_bugs():
    """There are at least ten exhibits, no two by one rule, from all four forms."""
    assert len(EXHIBITS) >= 10
    assert len({exhibit.rule for exhibit in EXHIBITS}) == len(EXHIBITS)
    assert len({exhibit.source for exhibit in EXHIBITS}) == len(EXHIBITS)
    assert {exhibit.broken.header["dialect"] for exhibit in EXHIBITS} == {
        "http",
        "create",
        "inject",
        "append",
    }


def test_command_finds_them_in_the_files():
    """`suspended check`, given the files, reports these rules in the broken traces and nothing in the mended ones."""
    process = suspended("check", "--json", *sorted(FOLDER.glob("*.jsonl")))
    *violations, last = (orjson.loads(line) for line in process.stdout.splitlines())
    assert process.returncode == 1
    assert set(last["summary"]["violations"]) == {exhibit.rule for exhibit in EXHIBITS}
    assert [violation["trace"] for violation in violations if violation["trace"].endswith("mended")] == []


def test_walk_shows_each_exhibit():
    """The command ends well, says nothing on standard error, and shows all labels, each with its record marked."""
    process = museum()
    assert (process.returncode, process.stderr) == (0, "")
    for exhibit in EXHIBITS:
        assert f"{exhibit.title}  {exhibit.source}\n" in process.stdout
        marked = [line for line in process.stdout.splitlines() if line.endswith(f"◀ {exhibit.rule}")]
        assert [line[0] for line in marked] == ["▶"] * len(exhibit.broken.violations(exhibit.profile))
    count = len(EXHIBITS)
    assert process.stdout.splitlines()[-1].startswith(f"{count} of {count} found by the rule")
    assert "\x1b" not in process.stdout


@pytest.mark.parametrize(
    ("more", "has_colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals(more, has_colour):
    """On a terminal the walk has colours, unless they are not wanted."""
    ours, theirs = os.openpty()
    try:
        process = museum("R7", stdout=theirs, **{"TERM": "xterm", **more})
        said = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0
    assert ("\x1b[" in said) == has_colour


@pytest.mark.parametrize("words", [["s14"], ["term-llm"], ["cancelled-completed"], ["Cancelled, then"]])
def test_some_can_be_asked_for(words):
    """An exhibit is shown alone by its rule, its project, its file or its title."""
    process = museum(*words)
    assert process.returncode == 0
    assert process.stdout.startswith("1/1  Cancelled, then completed  SamSaffron/term-llm#789\n")


def test_unknown_exhibit_is_refused():
    """What is not there is named, with what is."""
    process = museum("Z9")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == (
        f"nothing here is called Z9; rules on show: {' '.join(exhibit.rule for exhibit in EXHIBITS)}\n"
    )


def test_page_is_self_contained(tmp_path):
    """`--html` writes one page that has every exhibit, with the marked lines in colour, and refers to nothing."""
    process = museum("--html", str(tmp_path / "museum.html"))
    text = (tmp_path / "museum.html").read_text(encoding="utf-8")
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    assert [exhibit.source for exhibit in EXHIBITS if exhibit.source not in text] == []
    assert re.findall(r"""(?:src|href|url)\s*[=(]|<script|<link""", text) == []


def test_page_escapes():
    """Text from a trace is no markup."""
    assert "a&lt;b&gt;&amp;" in page.html([(("a<b>&", "wrong"),)])


def test_wrong_label_is_noticed():
    """An exhibit whose label names another rule counts as not found."""
    mislabelled = attrs.evolve(EXHIBITS[0], rule="N1")
    *_, last = walk([mislabelled])
    assert not mislabelled.is_found
    assert page.plain(last).startswith("0 of 1 found")
