"""The recorded sequences of the inject form, and one nobody recorded, get their answers from the running engine.

What is expected is written here; where the recordings lie beside the repository, both are compared.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from engine.client import Client, connect
from engine.config import Limits
from engine.engine import Engine
from engine.samplers.scripted import END, Scripted, Stall, call, say
from engine.server import Server
from protocol import codec

RECORDINGS = Path(__file__).parents[2] / "shared" / "recordings"
needs_recordings = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason="the recordings are not beside the repository"
)

TOOL = {"type": "function", "name": "edge_echo", "parameters": {"type": "object"}}
CREATE = {
    "type": "response.create",
    "model": "m",
    "store": True,
    "multi_agent": {"enabled": True, "max_concurrent_subagents": 1},
    "input": "call edge_echo once, then reply with its output",
    "tools": [TOOL],
}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "EDGE_OK"}
UNKNOWN = {**OUTPUT, "call_id": "call_edge_unknown"}

CALL = [call("edge_echo", call_id="call_1"), END]
REPLY = [*say("EDGE_OK", step_characters=4), END]


def inject(*batch: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.inject", "response_id": "resp_1", "input": list(batch)}


# --- the peers -------------------------------------------------------------------------------------------------------


class Ids:
    """`resp_1`, `fc_1`, `msg_1`, …, as the recordings name them."""

    def __init__(self) -> None:
        self._made: dict[str, int] = {}

    def __call__(self, prefix: str) -> str:
        self._made[prefix] = self._made.get(prefix, 0) + 1
        return f"{prefix}_{self._made[prefix]}"


class Exchange:
    """Frames as they are on the wire; a session of ours follows them, so an illegal one fails the test."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.received: list[dict[str, Any]] = []

    def send(self, *frames: dict[str, Any]) -> None:
        """Send frames as they are, back to back."""
        for frame in frames:
            self._client.send(codec.client_event(codec.parse(json.dumps(frame))))

    async def read(self) -> dict[str, Any]:
        """The next frame of the server."""
        text = await self._client._transport.receive()
        self._client._session.receive(text)
        frame: dict[str, Any] = json.loads(text)
        self.received.append(frame)
        return frame

    async def read_until(self, kind: str, **members: Any) -> list[dict[str, Any]]:
        """Frames up to the first of this type that has these members."""
        frames = []
        while True:
            frames.append(await self.read())
            if frames[-1]["type"] == kind and frames[-1].items() >= members.items():
                return frames


@asynccontextmanager
async def exchange(script: Any, **limits: Any) -> AsyncIterator[Exchange]:
    """A client connected to an engine that plays the script."""
    engine = Engine.make(Scripted(script), limits=Limits(**limits), new_id=Ids(), wall_seconds=lambda: 1)
    client_end, server_end = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Server(engine).serve, server_end)
        async with connect("ws://localhost/v1/responses", form="inject", stream=client_end) as client:
            yield Exchange(client)


# --- what is compared ------------------------------------------------------------------------------------------------

KEPT = ("type", "sequence_number", "output_index", "content_index", "agent", "response_id")
WORDS = ("delta", "text", "arguments", "input", "error", "part")


def essence(frame: dict[str, Any]) -> dict[str, Any]:
    """A frame without times, token counts, padding, and the members that a recording leaves out of the resource."""
    kept = {key: frame[key] for key in (*KEPT, *WORDS) if key in frame}
    if "item" in frame:
        item = dict(frame["item"])
        item.pop("phase" if frame["type"].endswith("added") else "", None)  # only known when the item is done
        kept["item"] = item
    if "response" in frame:
        response = frame["response"]
        kept["response"] = {
            key: response[key] for key in ("id", "status", "error", "previous_response_id", "output")
        }
    return kept


def recorded(name: str) -> list[dict[str, Any]]:
    """Essence of the server's frames in a recording."""
    lines = [json.loads(line) for line in (RECORDINGS / f"inject-{name}.jsonl").read_text().splitlines()]
    return [essence(line["frame"]) for line in lines if line.get("dir") == "server" and "frame" in line]


def numbers(frames: Sequence[dict[str, Any]]) -> list[int]:
    return [frame["sequence_number"] for frame in frames]


def failed(number: int, code: str, message: str, *batch: dict[str, Any]) -> dict[str, Any]:
    """The refusal of a batch, all of it."""
    return {
        "type": "response.inject.failed",
        "response_id": "resp_1",
        "input": list(batch),
        "error": {"code": code, "message": message},
        "sequence_number": number,
    }


ALREADY_COMPLETED = ("response_already_completed", "Response 'resp_1' has already completed.")
HAS_OUTPUT = ("invalid_input", "Tool call 'call_1' already has an output.")
NOT_PENDING = ("invalid_input", "Tool call 'call_edge_unknown' is not pending on response 'resp_1'.")


# --- one answered twice ----------------------------------------------------------------------------------------------


async def play_duplicate_injection() -> list[dict[str, Any]]:
    async with exchange([CALL, REPLY]) as wire:
        wire.send(CREATE)
        await wire.read_until("response.output_item.done")
        wire.send(inject(OUTPUT), inject(OUTPUT))
        await wire.read_until("response.completed")
    return wire.received


async def test_an_output_sent_twice(autojump_clock: trio.testing.MockClock) -> None:
    """Back to back: the first is accepted as #6, the second refused as #7, the response goes on in one numbering."""
    frames = await play_duplicate_injection()
    assert numbers(frames) == list(range(16))
    assert frames[6] == {"type": "response.inject.created", "response_id": "resp_1", "sequence_number": 6}
    assert frames[7] == failed(7, *HAS_OUTPUT, OUTPUT)
    assert [frame["output_index"] for frame in frames if "item" in frame] == [0, 0, 1, 1]
    assert [item["type"] for item in frames[-1]["response"]["output"]] == ["function_call", "message"]
    assert [frame["type"] for frame in frames].count("response.created") == 1


@needs_recordings
async def test_an_output_sent_twice_as_recorded(autojump_clock: trio.testing.MockClock) -> None:
    """Frame by frame the engine answers what the recorded server answered."""
    frames = await play_duplicate_injection()
    assert [essence(frame) for frame in frames] == recorded("duplicate-injection")


# --- too late --------------------------------------------------------------------------------------------------------


async def play_late_continuation() -> list[dict[str, Any]]:
    async with exchange([CALL, REPLY]) as wire:
        wire.send(CREATE)
        await wire.read_until("response.completed")
        wire.send(inject(OUTPUT))
        await wire.read_until("response.inject.failed")
        wire.send({**CREATE, "input": [OUTPUT], "previous_response_id": "resp_1"})
        await wire.read_until("response.completed")
    return wire.received


async def test_an_output_that_comes_too_late(autojump_clock: trio.testing.MockClock) -> None:
    """The grace ends in `completed` #6 with the call pending; the inject is #7; a create with that input completes."""
    started = trio.current_time()
    frames = await play_late_continuation()
    assert trio.current_time() - started == pytest.approx(30, abs=1)
    first, second = frames[:8], frames[8:]
    assert (numbers(first), numbers(second)) == (list(range(8)), list(range(10)))
    ended = first[6]["response"]
    assert (first[6]["type"], ended["status"]) == ("response.completed", "completed")
    assert [(item["type"], item["call_id"]) for item in ended["output"]] == [("function_call", "call_1")]
    assert first[7] == failed(7, *ALREADY_COMPLETED, OUTPUT)
    resource = second[-1]["response"]
    assert (resource["id"], resource["status"], resource["previous_response_id"]) == (
        "resp_2",
        "completed",
        "resp_1",
    )
    assert resource["output"][0]["content"][0]["text"] == "EDGE_OK"


@needs_recordings
async def test_an_output_that_comes_too_late_as_recorded(autojump_clock: trio.testing.MockClock) -> None:
    """Frame by frame the engine answers what the recorded server answered, over both responses."""
    frames = await play_late_continuation()
    assert [essence(frame) for frame in frames] == recorded("late-continuation")


# --- the end was faster ----------------------------------------------------------------------------------------------


async def play_completion_wins(*batch: dict[str, Any]) -> list[dict[str, Any]]:
    async with exchange([CALL], inject_grace_seconds=0) as wire:
        wire.send(CREATE)
        await wire.read_until("response.output_item.done")
        wire.send(inject(*batch))
        await wire.read_until("response.inject.failed")
    return wire.received


BATCHES = [
    pytest.param("duplicate-in-batch-completion-wins", (OUTPUT, OUTPUT), id="twice in a batch"),
    pytest.param("mixed-valid-invalid-completion-wins", (OUTPUT, UNKNOWN), id="one good, one unknown"),
]


@pytest.mark.parametrize(("name", "batch"), BATCHES)
async def test_a_response_that_ends_first(
    name: str, batch: tuple[dict[str, Any], ...], autojump_clock: trio.testing.MockClock
) -> None:
    """Without grace the response ends at the call; what is wrong with the batch is no longer looked at."""
    frames = await play_completion_wins(*batch)
    assert numbers(frames) == list(range(8))
    assert frames[6]["type"] == "response.completed"
    assert frames[7] == failed(7, *ALREADY_COMPLETED, *batch)


@needs_recordings
@pytest.mark.parametrize(("name", "batch"), BATCHES)
async def test_a_response_that_ends_first_as_recorded(
    name: str, batch: tuple[dict[str, Any], ...], autojump_clock: trio.testing.MockClock
) -> None:
    """Frame by frame the engine answers what the recorded server answered."""
    frames = await play_completion_wins(*batch)
    assert [essence(frame) for frame in frames] == recorded(name)


# --- one bad member, while the response is busy ----------------------------------------------------------------------

BUSY = [call("edge_echo", call_id="call_1"), *say("1"), Stall(5), *say("."), END]
"""The model goes on writing after its call, as the recorded one did in a child agent."""


async def play_active(*batch: dict[str, Any]) -> list[dict[str, Any]]:
    async with exchange([BUSY, REPLY]) as wire:
        wire.send(CREATE)
        await wire.read_until("response.output_text.delta", delta="1")
        wire.send(inject(*batch), inject(OUTPUT))
        await wire.read_until("response.completed")
    return wire.received


def answers(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers to injects, without the numbers, which depend on how much was written in between."""
    return [
        {key: value for key, value in frame.items() if key != "sequence_number"}
        for frame in frames
        if frame["type"].startswith("response.inject.")
    ]


ACTIVE = [
    pytest.param("duplicate-in-batch-active", (OUTPUT, OUTPUT), HAS_OUTPUT, id="twice in a batch"),
    pytest.param("mixed-valid-invalid-active", (OUTPUT, UNKNOWN), NOT_PENDING, id="one good, one unknown"),
]


@pytest.mark.parametrize(("name", "batch", "error"), ACTIVE)
async def test_a_batch_with_one_bad_member(
    name: str,
    batch: tuple[dict[str, Any], ...],
    error: tuple[str, str],
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is refused whole with the next number, the good output is then accepted alone, writing goes on meanwhile."""
    frames = await play_active(*batch)
    assert numbers(frames) == list(range(len(frames)))
    at = next(n for n, frame in enumerate(frames) if frame["type"] == "response.inject.failed")
    assert frames[at - 1]["type"] == "response.output_text.delta"
    assert frames[at] == failed(at, *error, *batch)
    assert frames[at + 1] == {
        "type": "response.inject.created",
        "response_id": "resp_1",
        "sequence_number": at + 1,
    }
    assert (frames[at + 2]["type"], frames[at + 2]["delta"]) == ("response.output_text.delta", ".")
    types = [item["type"] for item in frames[-1]["response"]["output"]]
    assert types == ["function_call", "message", "message"]


@needs_recordings
@pytest.mark.parametrize(("name", "batch", "error"), ACTIVE)
async def test_a_batch_with_one_bad_member_as_recorded(
    name: str,
    batch: tuple[dict[str, Any], ...],
    error: tuple[str, str],
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Codes, words and returned input are those of the recorded server."""
    assert answers(await play_active(*batch)) == answers(recorded(name))


# --- one nobody recorded ---------------------------------------------------------------------------------------------


async def test_an_output_for_an_abandoned_response(autojump_clock: trio.testing.MockClock) -> None:
    """A create abandons the suspended response without a frame; a later inject for it is too late (reference 2.6)."""
    async with exchange([CALL, REPLY]) as wire:
        wire.send(CREATE)
        await wire.read_until("response.output_item.done")
        wire.send(CREATE)
        await wire.read_until("response.completed")
        wire.send(inject(OUTPUT))
        answer = await wire.read()
    assert answer == failed(6, *ALREADY_COMPLETED, OUTPUT)
    ends = [frame["response"]["id"] for frame in wire.received if frame["type"] == "response.completed"]
    assert ends == ["resp_2"]
