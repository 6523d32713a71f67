"""The real peers of the lab: what the comparison says of them is so, and every arm of it ends well."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from demos.lab import peers
from demos.lab.environment import environment
from demos.lab.peers import PROBE, RUNS, SERVER, TURN, PeersPlan, config, measure
from demos.lab.peers_arms import ARMS
from demos.lab.peers_servers import SERVERS
from demos.lab.records import Note
from demos.lab.results import ResultsFile, ResultsReader
from tests.clients.conftest import missing
from tests.clients.served import ROOT

pytestmark = [
    pytest.mark.clients,
    pytest.mark.nightly,
    pytest.mark.eventless,  # the servers are the experiment's own, and it holds what they say against the rules
]
PLAN = PeersPlan(blocks=1, paced_blocks=1, turns=1, words=100)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[Note]:
    """Of one block with all of them."""
    folder = Path(os.environ.get("PEERS") or ROOT / ".cache/peers")
    for needed in ("npm/node_modules/@copilotkit/aimock", "venv/bin/litellm", "venv/bin/llm-mock-api"):
        if not (folder / needed).exists():
            missing(
                f"no {needed} in {folder}: `suspended lab peers --help` says what to install, or set PEERS"
            )
    path = tmp_path_factory.mktemp("peers") / "results.jsonl"
    with (
        pytest.MonkeyPatch.context() as patch,
        ResultsFile.open(
            path,
            experiment="peers",
            config=config(quick=True, trace=None),
            seed=0,
            environment=environment(),
            began="now",
        ) as file,
    ):
        patch.setattr(peers, "IDLE_SECONDS", 0.01)
        measure(file, PLAN, 0, folder, lambda _: None)
    return [*ResultsReader(path).notes()]


def of(notes: list[Note], topic: str) -> list[Mapping[str, Any]]:
    return [note.detail for note in notes if note.topic == topic]


def test_all_of_them_run(notes: list[Note]) -> None:
    """As this lab starts them, in the versions that it names."""
    assert dict.fromkeys(SERVERS, RUNS) == {one["server"]: one["state"] for one in of(notes, SERVER)}


def test_every_arm_ends_well(notes: list[Note]) -> None:
    """With as many deltas as the others, on one connection."""
    seen = {one["arm"]: one.get("error") or (one["deltas"], one["connections"]) for one in of(notes, TURN)}
    assert dict.fromkeys(ARMS, (PLAN.words, 1)) == seen


def test_what_the_mocks_leave_out_is_seen(notes: list[Note]) -> None:
    """aimock numbers no event and knows no previous response; through a gateway everything is as the server behind it says."""
    known = {one["arm"]: {fact["name"]: fact["verdict"] for fact in one["facts"]} for one in of(notes, PROBE)}
    names = ("numbers its events", "refuses an unknown previous_response_id")
    verdicts = {arm: tuple(facts[name] for name in names) for arm, facts in known.items()}
    assert verdicts == {
        "ours-sse": ("yes", "yes"),
        "ours-ws": ("yes", "yes"),
        "aimock-sse": ("no", "no"),
        "aimock-ws": ("no", "no"),
        "llm-mock-sse": ("yes", "no"),
        "litellm-aimock": ("no", "no"),
        "litellm-ours": ("yes", "yes"),
    }
    sockets = {arm for arm, facts in known.items() if facts.get("answers over WebSocket") == "yes"}
    assert sockets == {"ours-sse", "aimock-sse"}


def test_only_others_break_rules(notes: list[Note]) -> None:
    """Of this engine the checker finds nothing, by itself and behind a gateway."""
    found: Counter[str] = Counter()
    for one in of(notes, TURN):
        found[one["arm"]] += sum(one["findings"].values())
    assert {arm for arm, count in found.items() if count} == {
        "aimock-sse",
        "aimock-ws",
        "aimock-paced",
        "litellm-aimock",
        "llm-mock-sse",
    }
