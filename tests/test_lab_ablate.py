"""Which part is WebSocket: shares that add up, in each world, and a report from the file alone."""

import io
from pathlib import Path

import attrs
import pytest

pytest.importorskip("matplotlib", reason="the extra [lab] is not installed")

from demos.lab import ablate, ablate_report
from demos.lab.ablate import ABLATION, ADDED, GIVEN, QUICK, ablation, world
from demos.lab.ablation import waterfall
from demos.lab.command import INVALID, OK, Terminal, lab
from demos.lab.model import ARM_SAVINGS, SAVINGS, Model
from demos.lab.results import ResultsReader
from demos.lab.workload import WorkloadError, uniform
from tests.test_lab_claim_map import trace_file

TINY = attrs.evolve(QUICK, tokens_per_second=(1_000.0,), rollouts=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ablation, computed and reported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablate, "QUICK", TINY)
        out = tmp_path_factory.mktemp("ablate") / "made"
        assert lab(["ablate", "--quick", "--out", str(out)], _terminal()) in (OK, INVALID)
        return out


def _terminal() -> Terminal:
    return Terminal(out=io.StringIO(), err=io.StringIO(), plain=True)


def test_shares_and_both_orders_add_up_to_the_whole(made: Path) -> None:
    """In each world, from each beginning."""
    found = [note.detail for note in ResultsReader(made / "results.jsonl").notes() if note.topic == ABLATION]
    assert len(found) == 2 * 1 * 2 * len(GIVEN)
    for one in found:
        saved = one["without_s"] - one["with_all_s"]
        for part in ("shares_s", "in_order_s", "reverse_s"):
            assert sum(one[part].values()) == pytest.approx(saved)
            assert [*one[part]] != []


def test_what_is_given_is_not_shared_out_and_is_in_the_beginning() -> None:
    """From warm HTTP on a kept connection and a prefix cache are worth nothing more; the end is the same."""
    works = [uniform(20, 10_000)]
    here = world(1_000.0, 1.0)
    naive, warm = (ablation(works, here, given) for given in GIVEN.values())
    model = Model(works[0], here)
    assert set(warm.shares) == set(SAVINGS) - {"connection", "kv"}
    assert warm.without == pytest.approx(model.seconds(frozenset({"connection", "kv"})))
    assert warm.with_all == pytest.approx(naive.with_all)
    assert naive.without == pytest.approx(model.arm_seconds("naive"))


def test_the_reverse_is_the_order_from_behind() -> None:
    """Both begin and end at the same times."""
    works = [uniform(20, 10_000)]
    here = world(65.0, 0.0)
    found = ablation(works, here, frozenset())
    expected = waterfall(lambda savings: Model(works[0], here).seconds(savings), SAVINGS[::-1])
    assert [fall.saving for fall in found.reverse] == [fall.saving for fall in expected]
    assert [fall.after for fall in found.reverse] == pytest.approx([fall.after for fall in expected])


def test_what_websocket_forms_add_is_what_optimised_http_lacks() -> None:
    """The split of the report is that of the arms."""
    assert ADDED == set(SAVINGS) - ARM_SAVINGS["optimised"]


def test_the_share_of_a_websocket_is_of_what_is_saved() -> None:
    """Where nothing is saved there is none, and no division."""
    one = {"shares_s": {"bytes": 1.0, "routing": 2.0, "overlap": 3.0}}
    assert ablate_report.websocket_share(one) == 0.5
    assert ablate_report.websocket_share({"shares_s": {"bytes": 0.0, "routing": 0.0}}) is None


def test_the_page_has_a_waterfall_for_each_beginning(made: Path) -> None:
    """Each with its sentence and its file."""
    page = (made / "report.html").read_text()
    assert page.count("<svg") == 2 + 1 + 1
    assert page.count('class="sentence"') == page.count('class="source"') == 6
    assert "the forms over WebSocket add" in page


def test_an_ablation_that_was_stopped_goes_on(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes what is missing, and the figures are those of a run in one go."""
    monkeypatch.setattr(ablate, "QUICK", TINY)
    lines = (made / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines[:3]))
    monkeypatch.setattr("demos.lab.command.report", lambda _directory, _terminal: OK)
    assert lab(["ablate", "--quick", "--resume", "--out", str(tmp_path)], _terminal()) == OK
    again, before = (
        [note for note in ResultsReader(path / "results.jsonl").notes() if note.topic == ABLATION]
        for path in (tmp_path, made)
    )
    assert again == before


def test_a_trace_without_long_rollouts_is_refused(tmp_path: Path) -> None:
    """The claims are of 20 calls and more."""
    path = trace_file(tmp_path / "mine.jsonl", 1.0)
    assert len(ablate._works(TINY, "A", 0, path)) == 1
    with pytest.raises(WorkloadError, match="no rollout with 30 calls"):
        ablate._works(attrs.evolve(TINY, min_calls=30), "A", 0, path)
