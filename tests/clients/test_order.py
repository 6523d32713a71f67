"""What holds the client tests' recordings against the rules can fail: on a violation, and where nothing was recorded."""

import pytest

from demos.museum.exhibits import FOLDER
from tests.clients.order import Recording, checked, ended_traces, recorded, responses_checked

pytestmark = pytest.mark.eventless

SILENCE = (FOLDER / "07-silence.jsonl").read_bytes()
MENDED = SILENCE[SILENCE.index(b'{"trace"', 1) :]


def test_clean_recording_passes(tmp_path):
    """What is in order passes, and its responses are counted."""
    before = responses_checked()
    with recorded(tmp_path / "trace.jsonl") as recording:
        recording.path.write_bytes(MENDED)
    assert responses_checked() == before + 1


def test_violation_fails_the_block(tmp_path):
    """What is out of order fails, by the rule's name, with the records that show it."""
    with (
        pytest.raises(pytest.fail.Exception, match=r"R3: expected one terminal event[^$]*\#4"),
        recorded(tmp_path / "trace.jsonl") as recording,
    ):
        recording.path.write_bytes(SILENCE)


@pytest.mark.parametrize("written", [b"", MENDED[: MENDED.index(b"\n") + 1]], ids=["no trace", "no record"])
def test_nothing_fails_the_block(tmp_path, written):
    """Where no response was recorded the block fails, and with `eventless` it does not."""
    path = tmp_path / "trace.jsonl"
    with pytest.raises(pytest.fail.Exception, match="expected a response"), recorded(path):
        path.write_bytes(written)
    with recorded(path, eventless=True):
        path.write_bytes(written)


def test_something_fails_an_eventless_block(tmp_path):
    """Where no response is expected one that was recorded fails the block."""
    path = tmp_path / "trace.jsonl"
    with pytest.raises(pytest.fail.Exception, match="expected no response"), recorded(path, eventless=True):
        path.write_bytes(MENDED)


def test_growing_file_is_checked_once(tmp_path):
    """A second look at a file checks what came since the first one; of a line that is not whole, nothing."""
    recording = Recording(tmp_path / "trace.jsonl")
    recording.path.write_bytes(MENDED)
    recording.check()
    recording.check()
    assert recording.responses == 1
    recording.path.write_bytes(MENDED + SILENCE[:-20])
    recording.check()
    assert recording.responses == 1
    recording.path.write_bytes(MENDED + SILENCE)
    with pytest.raises(pytest.fail.Exception, match="R3"):
        recording.check()
    assert recording.responses == 3


def test_profile_is_the_engine_s_own(tmp_path):
    """Recordings are checked by all rules: two items that are open at once are no order of ours."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(MENDED)
    ((header, records),) = ended_traces(path)
    at = next(
        at for at, one in enumerate(records) if one["frame"].get("type") == "response.output_item.added"
    )
    second = {
        **records[at],
        "frame": {
            "type": "response.output_item.added",
            "sequence_number": 2,
            "output_index": 1,
            "item": {"id": "rs_2", "type": "reasoning", "summary": []},
        },
    }
    both = [*records[: at + 1], second]
    rules = {
        profile: {said.partition(":")[0] for said in checked(header, both, profile)[0]}
        for profile in ("any-server", Recording(path).profile)
    }
    assert rules["this-engine"] - rules["any-server"] == {"I9"}
