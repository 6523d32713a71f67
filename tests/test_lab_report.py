"""demos.lab.plots, maps, timeline, report, page and wording: pictures that do not change, a page that needs nothing."""

import csv
import io
import os
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import attrs
import pytest
from rich.console import Console

from tests.lab_rollouts import ENVIRONMENT, HEADER, IN_ORDER, residual, rollout

pytest.importorskip("numpy", reason="the extra [lab] is not installed")
pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab import canvas, maps, plots, timeline
from demos.lab.page import page
from demos.lab.publish import terminal, write
from demos.lab.records import Note, Tokens
from demos.lab.report import Check, Picture, Report, Section, Sheet, Table, shown
from demos.lab.statistics import compare
from demos.lab.validity import judged
from demos.lab.wording import saving_sentence, trust
from tests.pictures import faults_of

EVIL = "<script>alert('x')</script> & \"quotes\" --> $5"

SPEEDS, CALLS = (65.0, 1000.0, 4000.0), (1.0, 20.0, 100.0)
RISING = ((-0.1, 0.0, 0.1), (0.1, 0.4, 0.6), (0.2, 0.6, 0.95))
PANELS = (
    maps.Panel(EVIL, SPEEDS, CALLS, RISING),
    maps.Panel("gaps", SPEEDS, CALLS, ((None, *RISING[0][1:]), *RISING[1:])),
)
CLAIMS = (
    maps.Claim(EVIL, 1000, 20, 0.4),
    maps.Claim("b", 1000, 20, 0.39),
    maps.Claim("c", 65, 20, 0.29, "gaps"),
)
SPANS = (timeline.Span("server", "sampling", 0, 1, "s"), timeline.Span("client", EVIL, 1, 1.2))

DRAWINGS: dict[str, Callable[[], Picture]] = {
    "lines": lambda: plots.lines(
        [
            plots.Series(EVIL, (1, 10), (0.5, None), (0.4, None), (0.6, None)),
            plots.Series("b", (1, 10), (0.1, -0.2)),
        ],
        title=EVIL,
        x_label="turn",
        y_label="saving",
        percent=True,
        level=0.4,
    ),
    "logarithmic lines": lambda: plots.lines(
        [plots.Series("a", (1, 10), (1, 1000))], title="t", x_label="n", y_label="ms", log_x=True, log_y=True
    ),
    "waterfall": lambda: plots.waterfall(
        (EVIL, 10.0),
        [plots.Step("a", -4.0, -5.0, -3.0, marked=True), plots.Step("b", 1.0)],
        "end",
        title="t",
        unit="s",
        marked="m",
    ),
    "intervals": lambda: plots.intervals(
        [plots.Estimate(EVIL, 0.4, 0.3, 0.5), plots.Estimate("b", 0.1), plots.Estimate("c", None)],
        title="t",
        x_label="saving",
        level=0,
        percent=True,
    ),
    "stages": lambda: plots.stages(
        {EVIL: {"decode": 1.0, "other": 0.1}, "append": {"encode": 0.2}, "empty": {}}, title="t", unit="ms"
    ),
    "claim map": lambda: maps.claim_map(PANELS, CLAIMS, title="t"),
    "flat claim map": lambda: maps.claim_map([attrs.evolve(PANELS[0], saving=[[0.3] * 3] * 3)], title="t"),
    "strip": lambda: maps.strip(
        [EVIL, "b"], ["x", "y"], [(1.0, None), (3.0, None)], title="t", unit="s", better="high"
    ),
    "timeline": lambda: timeline.timeline(SPANS, [timeline.Message("server", "client", 1, 1.1)], title="t"),
}

drawing = pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)


@drawing
def test_the_same_data_is_the_same_picture(draw):
    """A plot drawn twice has the same bytes, whatever was drawn between; there is no date in it."""
    first = draw().svg
    _ = DRAWINGS["stages"]().svg
    assert draw().svg == first
    assert not re.search(r"\b20\d\d-\d\d-\d\d", first)


@drawing
def test_a_picture_is_one_well_formed_element(draw):
    """A plot is an <svg> element that stands alone, and nothing in a label gets out of it as markup."""
    root = ET.fromstring(draw().svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not [one for one in root.iter() if isinstance(one.tag, str) and one.tag.endswith("}script")]


@drawing
def test_a_picture_is_also_a_png(draw):
    """The same sheet as a PNG file, the same bytes each time."""
    png = draw().png
    assert png.startswith(b"\x89PNG")
    assert draw().png == png


@drawing
@pytest.mark.parametrize(
    "title", ["t", "What a rollout takes, with a title in which each cell is named: " * 3]
)
def test_each_text_can_be_read(draw, title):
    """Nothing is cut off at the edge of a picture or lies over something else, be its title short or of three lines."""
    plan = draw().draw.figure
    with canvas.look():
        assert faults_of(plan.func(*plan.args, **{**plan.keywords, "title": title})) == []


def test_another_number_is_another_picture():
    """What is drawn depends on the data: a waterfall with another step differs."""
    one, other = (
        plots.waterfall(("a", 10.0), [plots.Step("b", change)], "c", title="t", unit="s")
        for change in (-1.0, -2.0)
    )
    assert one.svg != other.svg


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.4, "40 %"), (-0.0251, "\N{MINUS SIGN}2.5 %"), (-0.0, "0 %"), (-0.0001, "0 %"), (0.0001, "0 %")],
)
def test_what_is_rounded_to_nothing_has_no_sign(share, words):
    """A reader would take it for a loss."""
    assert canvas.percent(share) == words


def test_a_step_that_changes_nothing_says_so_without_a_sign():
    """Neither the seconds nor the share of it."""
    drawn = plots.waterfall(
        ("a", 10.0), [plots.Step("b", -0.0), plots.Step("c", -1.0)], "d", title="t", unit="s"
    )
    assert "0 s" in _texts(drawn)
    assert "\N{MINUS SIGN}1 s (\N{MINUS SIGN}10.0 %)" in _texts(drawn)


def test_a_level_has_its_name_in_the_legend():
    """A dashed line that nobody explains is a riddle."""
    drawn = plots.lines(
        [plots.Series("a", [1.0, 2.0], [1.0, 2.0])],
        title="t", x_label="x", y_label="y", level=1.5, level_name="the bound",
    )  # fmt: skip
    assert "the bound" in _texts(drawn)


def _texts(drawn: Picture) -> list[str]:
    """Letters are drawn as shapes; what they say stands beside them."""
    return re.findall(r"<!-- (.*?) -->", drawn.svg)


def test_the_look_leaves_the_user_s_settings_alone():
    """Drawing changes nothing outside of it, and nothing outside changes a drawing."""
    import matplotlib as mpl

    before = DRAWINGS["lines"]().svg
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": None}):
        assert DRAWINGS["lines"]().svg == before
        assert mpl.rcParams["font.size"] == 30


def test_text_stands_out_from_its_colour():
    """Light colours carry dark text, dark ones white."""
    assert [canvas.ink_on(fill) for fill in ("white", "#E69F00", "#0072B2", "black")] == [
        canvas.INK,
        canvas.INK,
        "white",
        "white",
    ]


def test_colours_come_again_only_with_another_hatch():
    """Twenty series differ from each other in colour or hatch, twenty lines in colour, marker or dashes."""
    assert len({(canvas.colour(index), canvas.hatch(index)) for index in range(20)}) == 20
    assert len({tuple(canvas.tell_apart(index).values()) for index in range(20)}) == 20
    assert canvas.RESIDUAL not in canvas.PALETTE


@pytest.mark.parametrize("saving", [[[0.1, 0.2]], [[0.1, 0.2, 0.3]] * 2, [[0.1, 0.2], [0.1]]])
def test_a_panel_that_is_no_grid_is_refused(saving):
    """Rows and axes that do not fit each other are named."""
    panel = maps.Panel("p", (65, 1000), (1, 20)[: len(saving)], saving)
    with pytest.raises(ValueError, match=r"panel 'p': \d calls by 2 speeds, and rows of \["):
        _ = maps.claim_map([panel], title="t").svg


def test_a_message_between_unknown_lanes_is_refused():
    """A lane that has no span is no place to send to."""
    with pytest.raises(
        ValueError, match=r"lanes \['moon'\] that have no span; there are \['server', 'client'\]"
    ):
        _ = timeline.timeline(SPANS, [timeline.Message("server", "moon", 0, 1)], title="t").svg


TABLE = Table(("arm", "saving, %"), ((EVIL, 41.25678), ("=1+1", None), ("n", -12_345)))
PICTURE = DRAWINGS["intervals"]()

REPORT = Report(
    title=EVIL,
    header=HEADER,
    summary=("append takes less", EVIL),
    sections=(
        Section(title=EVIL, sentence=EVIL, source=EVIL, picture=PICTURE, table=TABLE, caveat=EVIL),
        Section(title="again", sentence="s", source="results.jsonl", picture=PICTURE),
        Section(title="a table only", sentence="s", source="results.jsonl", table=TABLE),
    ),
    method=(EVIL,),
    checks=(Check("paired", True, EVIL), Check("A/A", None, "no arm ran twice")),
    files=("results.jsonl", "javascript:alert(1)"),
    not_measured=("real weights",),
)


class Page(HTMLParser):
    """What a browser would see: elements, ids, addresses and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "xlink:href", "src"}:
                self.addresses.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_needs_nothing():
    """No script, no address outside of the page but files beside it; what is evil in a text stays text."""
    seen = Page(page(REPORT))
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.tags)
    outside = {address for address in seen.addresses if not address.startswith(("#", "data:text/csv;"))}
    pictures = {f"{REPORT.sections[at].stem(at + 1)}.{kind}" for at in (0, 1) for kind in ("svg", "png")}
    assert outside == pictures | {
        "results.jsonl",
        "javascript%3Aalert%281%29",
        "%3Cscript%3Ealert%28%27x%27%29%3C/script%3E%20%26%20%22quotes%22%20--%3E%20%245",
    }
    assert "url(http" not in page(REPORT)
    assert seen.text.count(EVIL) >= 8


def test_pictures_share_a_page_without_sharing_ids():
    """An id occurs once, and each reference within a picture finds its own."""
    other = DRAWINGS["timeline"]()
    report = attrs.evolve(
        REPORT, sections=(REPORT.sections[0], attrs.evolve(REPORT.sections[1], picture=other))
    )
    seen = Page(page(report))
    assert len(seen.ids) == len(set(seen.ids))
    wanted = {address[1:] for address in seen.addresses if address.startswith("#")}
    assert wanted
    assert wanted <= set(seen.ids)


def test_a_page_is_the_same_for_the_same_report():
    """No date and no random name."""
    assert page(REPORT) == page(REPORT)


def test_numbers_can_be_taken_out_of_the_page():
    """The link at a table holds all its digits; a text that a spreadsheet would run is made harmless."""
    [address, _] = [one for one in Page(page(REPORT)).addresses if one.startswith("data:")]
    rows = list(csv.reader(io.StringIO(b64decode(address.partition(",")[2]).decode())))
    assert rows == [["arm", "saving, %"], [EVIL, "41.25678"], ["'=1+1", ""], ["n", "-12345"]]


def test_a_failed_check_is_said_on_top():
    """A report with a failed check begins with its reason, in the page and on the terminal."""
    report = attrs.evolve(REPORT, checks=(Check("generator on time", False, "p99 30 ms"),))
    text = Page(page(report)).text
    assert text.index("invalid and not to be quoted") < text.index("generator on time: p99 30 ms")
    assert text.index("generator on time: p99 30 ms") < text.index("append takes less")
    assert "invalid and not" not in page(REPORT)
    assert "INVALID, not to be quoted: generator on time" in printed(report)


def printed(report: Report) -> str:
    """What a terminal shows."""
    console = Console(file=io.StringIO(), width=200, record=True)
    terminal(report, console)
    return console.export_text()


def test_the_terminal_says_the_same_sentences():
    """Summary, the sentence of each section and each check stand in the terminal's summary, markup untouched."""
    text = printed(attrs.evolve(REPORT, summary=("saves [bold]40 %[/bold]",)))
    assert "- saves [bold]40 %[/bold]" in text
    assert f"- {EVIL}" in text
    assert re.search(r"A/A +not measured +no arm ran twice", text)


def test_a_report_is_a_page_and_its_pictures(tmp_path):
    """Each plot is also a file of its own that an image viewer opens."""
    path = write(REPORT, tmp_path / "out")
    assert path.read_text() == page(REPORT)
    stems = ["01-script-alert-x-script-quotes-5", "02-again"]
    files = [f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")]
    assert sorted(one.name for one in path.parent.iterdir()) == [*files, "report.html"]
    ET.parse(path.parent / f"{stems[0]}.svg")
    assert (path.parent / f"{stems[0]}.png").read_bytes() == PICTURE.png


def test_a_report_made_again_leaves_no_picture_behind(tmp_path):
    """What only the page before showed goes with it; other files stay."""
    path = write(REPORT, tmp_path)
    (tmp_path / "03-mine.png").touch()
    first, second, third = REPORT.sections
    write(attrs.evolve(REPORT, sections=(first, attrs.evolve(second, title="renamed"), third)), tmp_path)
    names = {one.name for one in path.parent.iterdir()}
    assert {"02-renamed.png", "02-renamed.svg", "03-mine.png"} <= names
    assert not {"02-again.png", "02-again.svg"} & names


def test_no_picture_but_ours_gets_in():
    """A section's picture is one <svg> element."""
    with pytest.raises(ValueError, match="one <svg> element, not '<img"):
        Sheet("<img src=x>", b"")


def test_a_table_is_rectangular():
    """A row of another width than the columns is refused."""
    with pytest.raises(ValueError, match="a row of 1 cells under 2 columns"):
        Table(("a", "b"), (("x",),))


def test_cells_for_people_have_four_digits():
    """No data is said, never 0."""
    assert [shown(cell) for cell in (None, 0, 1234567, 0.123456, -2.5, "x")] == [
        "no data",
        "0",
        "1,234,567",
        "0.1235",
        "\N{MINUS SIGN}2.5",
        "x",
    ]


def pairs(saving: float, count: int = 10, **changes: object) -> list:
    """Rollouts of two arms, the second of which saves as much, give or take a little."""
    return [
        rollout(
            arm=arm,
            work=f"w{number}",
            order=(number + place) % 2,
            total_s=10.0 if arm == "optimised" else 10 * (1 - saving) + 0.1 * (number % 3 - 1),
            **changes,
        )
        for number in range(count)
        for place, arm in enumerate(("optimised", "append"))
    ]


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (
            pairs(0.4),
            r"Append takes 40\.1 % less time per rollout than optimised \(saving 95 % interval 39\.\d % to 40\.\d %, n = 10 pairs of 10 rollouts\)\.",
        ),
        (
            pairs(-0.1),
            r"Append takes 9\.9 % more time per rollout than optimised \(saving 95 % interval \N{MINUS SIGN}\d+\.\d % to \N{MINUS SIGN}\d\.\d %, .*",
        ),
        (
            pairs(0.0, 9),
            r"No difference shown between Append and optimised in time per rollout: saving 0\.0 % .*",
        ),
        (
            pairs(-1e-5, 9),
            r"No difference shown between Append and optimised in time per rollout: saving 0\.0 % .*",
        ),
        (
            pairs(0.4, 1),
            r"Append takes 41\.0 % less time per rollout than optimised \(one pair, too few for an interval\)\.",
        ),
        (
            [rollout(total_s=None), rollout(arm="optimised")],
            r"No data for Append against optimised: nothing is said of time per rollout; left out: 1 failed, 1 unpaired\.",
        ),
    ],
)
def test_a_sentence_says_what_its_numbers_show(records, sentence):
    """Less, more, no difference, no interval, no data: each has its own sentence, with counts."""
    seen = compare(records, "optimised", "append", resamples=500)
    assert re.fullmatch(sentence, saving_sentence(seen, titles={"append": "Append"}))


def checks(records: list, header: object = HEADER, notes: tuple = (), **how: object) -> dict[str, tuple]:
    """The checklist of a run, by name."""
    return {
        check.name: (check.passed, check.detail) for check in trust(header, notes, judged(records), **how)
    }


def test_a_run_in_order_passes_each_check_that_it_measured():
    """Every check has a verdict with what was seen; what was not measured is neither passed nor failed."""
    records = pairs(0.4)
    comparison = compare(records, "optimised", "append", resamples=500)
    again = compare(
        [*records, *(attrs.evolve(one, arm="optimised#2") for one in records if one.arm == "optimised")],
        "optimised",
        "optimised#2",
        resamples=500,
    )
    assert checks(records, comparisons=[comparison], repeated=[again], clocks=(-0.013, 0.05)) == {
        "paired design": (True, "10 of 10 rollouts ran in all 2 arms, same work and seed"),
        "order randomised in blocks": (True, "2 orders of the arms in 10 blocks"),
        "intervals stated": (True, "1 comparisons, each with its interval"),
        "A/A shows no difference": (True, "optimised twice: saving 0.0 % to 0.0 %"),
        "warm baseline": (True, "at most 1 connections of a client in arms that keep theirs"),
        "cold, warm and resumed turns apart": (
            True,
            "20 cold, 0 warm and 20 resumed turns, each kind by itself",
        ),
        "generator on time": (True, "p99 0.20 ms late, bound 10 ms"),
        "server time explained": (True, "median residual: append 1.0 %, optimised 1.0 %"),
        "virtual and wall clock agree": (True, "\N{MINUS SIGN}1.3 % apart, tolerance 5.0 %"),
        "equal work in all arms": (True, "0 rollouts sampled other tokens than their pair"),
        "protocol kept": (True, "0 findings of the trace checker in 20 rollouts"),
        "all rollouts counted": (True, "of 20 rollouts 0 failed and 0 are invalid"),
        "one known environment": (True, f"commit {'a' * 12}"),
    }


DIRTY = attrs.evolve(HEADER, environment=attrs.evolve(ENVIRONMENT, commit="unknown", dirty=True))
ONE = compare(pairs(0.4, 1), "optimised", "append", resamples=100)
FAR = compare(pairs(0.4), "optimised", "append", resamples=100)


@pytest.mark.parametrize(
    ("name", "detail", "records", "how"),
    [
        ("paired design", "10 of 11 rollouts", [*pairs(0.4), rollout(work="alone")], {}),
        (
            "order randomised in blocks",
            "1 orders of the arms in 10 blocks",
            [attrs.evolve(one, order=1 if one.arm == "append" else 0) for one in pairs(0.4)],
            {},
        ),
        ("intervals stated", "none for append against optimised", pairs(0.4), {"comparisons": [ONE, FAR]}),
        ("A/A shows no difference", "optimised twice: saving 39", pairs(0.4), {"repeated": [FAR]}),
        ("warm baseline", "at most 4 connections", pairs(0.4, connections=4), {}),
        ("generator on time", "p99 11.00 ms late", pairs(0.4, late_s=0.011), {}),
        ("server time explained", "append 4.0 %", pairs(0.4, server=residual(0.04)), {}),
        ("virtual and wall clock agree", "7.0 % apart", pairs(0.4), {"clocks": (0.07, 0.05)}),
        (
            "equal work in all arms",
            "2 rollouts",
            [IN_ORDER, rollout(arm="optimised", tokens=Tokens(sampled=1, reused=0, computed=0))],
            {},
        ),
        ("protocol kept", "20 findings", pairs(0.4, findings=1), {}),
        (
            "all rollouts counted",
            "0 failed and 20 are invalid (20: 1 findings of the trace checker)",
            pairs(0.4, findings=1),
            {},
        ),
        ("all rollouts counted", "1 failed", [*pairs(0.4), rollout(error="lost")], {}),
        (
            "one known environment",
            "commit unknown, changes that are in no commit",
            pairs(0.4),
            {"header": DIRTY},
        ),
        (
            "one known environment",
            "resumed in another environment 1 times",
            pairs(0.4),
            {"notes": (Note(topic="resumed", detail={}),)},
        ),
    ],
)
def test_each_check_fails_on_what_it_is_for(name, detail, records, how):
    """A run that breaks a rule fails the check of this rule and says what was seen."""
    passed, seen = checks(records, **how)[name]
    assert passed is False
    assert detail in seen


@pytest.mark.parametrize(
    ("name", "detail", "records", "how"),
    [
        (
            "order randomised in blocks",
            "1 orders of the arms in 7 blocks, too few to tell from chance",
            [attrs.evolve(one, order=int(one.arm == "append")) for one in pairs(0.4, 7)],
            {},
        ),
        ("A/A shows no difference", "too few rollouts for an interval", pairs(0.4), {"repeated": [ONE]}),
        ("A/A shows no difference", "no arm ran twice", pairs(0.4), {}),
    ],
)
def test_what_too_few_rollouts_show_is_not_measured(name, detail, records, how):
    """It may be chance, so it is no fault either; and that it was tried is said."""
    assert checks(records, **how)[name] == (None, detail)


def test_a_run_without_records_passes_nothing_that_needs_them():
    """No data is no pass: of an empty run only the environment is known."""
    assert {name for name, (passed, _) in checks([]).items() if passed is not None} == {
        "one known environment"
    }


def test_another_process_draws_and_writes_the_same():
    """Picture and page do not depend on the order in which a process happens to keep its sets."""
    code = "from tests.test_lab_report import DRAWINGS, REPORT, page; print(page(REPORT), DRAWINGS['claim map']().svg)"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
