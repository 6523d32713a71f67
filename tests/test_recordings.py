"""Recorded exchanges of released clients and of the public beta's server, read by `protocol`.

The recordings are not part of this repository: without them beside it these tests are skipped.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from protocol import codec, events, items
from protocol.dialects import APPEND
from protocol.errors import RemoteProtocolError
from protocol.pending import PendingCalls
from protocol.session import ClientSession, ServerSession
from protocol.states import ResponseState

RECORDINGS = Path(__file__).parents[2] / "shared" / "recordings"
pytestmark = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason="the recordings are not beside the repository"
)

FILES = sorted(path.name for path in RECORDINGS.glob("*.jsonl"))
INJECT_FILES = [name for name in FILES if name.startswith("inject-")]
REFUSED = {
    # no opt-in, so each append is refused as an event of another form (reference 4.2, last row)
    "codex-0.98.0-append-resends.jsonl": [("response.append", "unsupported_event", "type")],
    "openai-python-3.57.0-create.jsonl": [("response.append", "unsupported_event", "type")],
}


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDINGS / name).read_text().splitlines()]


def client_frames(name: str) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Frames of the client, each with "did its connection opt into append?"."""
    append = False
    for line in lines_of(name):
        if "handshake" in line:
            beta = line["handshake"]["headers"].get("openai-beta", "")
            append = "responses_websockets=2026-02-04" in beta
        elif line.get("dir") == "client" and "frame" in line:
            # the body of an HTTP request is a create without its type
            yield append, {"type": "response.create", **line["frame"]}


def test_there_are_recordings() -> None:
    """The folder holds both kinds, so that the tests below test something."""
    assert len(INJECT_FILES) == 6
    assert len(FILES) > 12


@pytest.mark.parametrize("name", FILES)
def test_each_client_frame_is_read_or_refused_as_documented(name: str) -> None:
    """What released clients send is decoded and comes back, but for an append without its opt-in."""
    refused = []
    for append, frame in client_frames(name):
        try:
            event = ServerSession(append=append).receive(json.dumps(frame))
        except RemoteProtocolError as error:
            refused.append((frame["type"], error.code, error.param))
        else:
            assert event.type == frame["type"]
            assert codec.client_event(codec.parse(codec.encode(event))) == event
    assert refused == REFUSED.get(name, [])


@pytest.mark.parametrize("name", FILES)
def test_opted_in_every_frame_is_an_event(name: str) -> None:
    """On a connection of the append form all of them pass: the forms share one vocabulary."""
    for _, frame in client_frames(name):
        assert ServerSession(append=True).receive(json.dumps(frame)).type == frame["type"]


def test_items_without_meaning_to_us_pass_through() -> None:
    """Codex in code mode sends its tools as an item of its own: kept whole."""
    frames = [frame for _, frame in client_frames("codex-0.171.0-create-code-mode.jsonl")]
    raw = next(item for frame in frames for item in frame["input"] if item["type"] == "additional_tools")
    event = ServerSession(append=False).receive(json.dumps(next(f for f in frames if raw in f["input"])))
    assert isinstance(event, events.ResponseCreate)
    assert items.Opaque(raw) in (event.input or ())


def test_an_old_codex_sends_the_server_s_call_back() -> None:
    """Its append holds our call and then the output: the first is dropped, the second taken (3.5 rule 7)."""
    *_, (_, frame) = client_frames("codex-0.98.0-append-resends.jsonl")
    event = ServerSession(append=True).receive(json.dumps(frame))
    assert isinstance(event, events.ResponseAppend)
    assert [item.type for item in event.input] == ["function_call", "function_call_output"]
    pending = PendingCalls("resp_1", APPEND)
    pending.finished(items.FunctionCall("call_1", "shell_command", '{"command":"echo websocket"}', "fc_1"))
    assert pending.commit(pending.check(event.input)) == ("call_1",)
    assert pending.take() == event.input[1:]


@pytest.mark.parametrize("name", INJECT_FILES)
def test_the_recorded_server_is_followed(name: str) -> None:
    """Until the first left-out frame a client follows the recorded server: order, numbers and states are legal."""
    client = ClientSession(append=False)
    number, created = 0, False
    for line in lines_of(name):
        frame = line.get("frame")
        if "omitted" in line:
            break
        if frame is None:
            continue
        if line.get("dir") == "client":
            event = ServerSession(append=False).receive(json.dumps(frame))
            client.send(event)
            continue
        if frame["sequence_number"] is None:  # written from an account, without numbers
            continue
        number = 0 if frame["type"] == "response.created" else number
        received = client.receive(json.dumps(frame))
        created = True
        assert received.event.type == frame["type"]
        assert received.sequence_number == number
        assert received.record is not None
        assert received.record.state is not ResponseState.IDLE
        number += 1
    assert created or name == "inject-mixed-valid-invalid-active.jsonl"


@pytest.mark.parametrize("name", INJECT_FILES)
def test_recorded_frames_lose_only_what_they_should(name: str) -> None:
    """A recorded server frame read and written again has all its members, but padding and what the last hop adds."""
    added = {"sequence_number", "agent", "obfuscation"}
    for line in lines_of(name):
        frame = line.get("frame")
        if line.get("dir") == "server" and frame is not None and "response" not in frame:
            event = codec.server_event(codec.parse(json.dumps(frame)))
            assert (
                orjson.loads(codec.encode(event)).items()
                >= {key: value for key, value in frame.items() if key not in added}.items()
            )
