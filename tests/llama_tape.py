"""What went over the wire between `LlamaBackend` and a real llama.cpp server, recorded once and played in tests.

    python -m tests.llama_tape

runs every scenario with SmolLM2 and writes `llama_tapes.json`: for each its connections, for each connection what was
sent and what came, by turns. A player answers with what came, if what is sent is what was sent then: so a test fails if
our side asks otherwise, and the answers are llama.cpp's own. Names of files are chance, and compared as such.
"""

import json
import os
import re
import sys
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import trio

from engine.backends.base import BackendError, Generated, Sampling
from engine.backends.http import BackendHttp, Patience
from engine.backends.llama import LlamaBackend, RemoteLlama
from engine.backends.llama_child import LlamaChild, LlamaSettings
from engine.weights import cache_folder, find

PLACE = Path(__file__).with_name("llama_tapes.json")
URL = "http://127.0.0.1:8080"
_FILE = re.compile(r"[0-9a-f]{12}-(\d+)")

EMOJI = array(
    "I", (1, 4093, 198, 48010, 3869, 42, 15107, 230, 231, 10813, 116, 228, 5549, 137, 17097, 137, 112, 36518)
)
EMOJI.extend((2, 198, 1, 520, 9531, 198))
"""Repeat exactly: two emoji of three tokens each, and so on."""
SUM = array(
    "I",
    (1, 4093, 198, 1780, 314, 216, 33, 27, 33, 47, 19842, 351, 582, 1230, 805, 30, 2, 198, 1, 520, 9531, 198),
)
"""What is 1+1? Answer with one number only."""
TOKYO = array(
    "I", (1, 4093, 198, 26533, 549, 260, 2240, 282, 17097, 247, 126, 16736, 122, 347, 20110, 28, 281, 4931)
)
TOKYO.extend((3870, 30, 2, 198, 1, 520, 9531, 198))
"""Give me the city of 東京 as JSON, in Japanese characters."""
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
STOP = frozenset({2})
"""<|im_end|>"""
UNKNOWN_TOKEN = 49_157


async def collected(
    backend: LlamaBackend, handle: Any, tokens: "Any", **sampling: Any
) -> "tuple[list[int], tuple[int, int] | None, str | None]":
    """The sampled tokens, (reused, computed), and the finish."""
    pieces: list[Generated] = []
    wanted = Sampling(**({"stop_tokens": STOP} | sampling))
    async with aclosing(backend.generate(handle, array("I", tokens), wanted)) as generated:
        pieces.extend([piece async for piece in generated])
    counts = [(p.reused_tokens, p.computed_tokens) for p in pieces if p.reused_tokens is not None]
    assert len(counts) <= 1, "counted once"
    assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1), "the finish is last"
    return [token for p in pieces for token in p.tokens], (counts or [None])[0], pieces[-1].finish


# --- the scenarios -------------------------------------------------------------------------------------------------


async def free_with_holes(backend: LlamaBackend) -> Any:
    return await collected(backend, backend.open(), EMOJI, max_tokens=9)


async def cut_in_a_character(backend: LlamaBackend) -> Any:
    return await collected(backend, backend.open(), EMOJI, max_tokens=2)


async def schema_with_holes(backend: LlamaBackend) -> Any:
    return await collected(backend, backend.open(), TOKYO, max_tokens=40, schema=CITY)


async def whole_answer(backend: LlamaBackend) -> Any:
    return await collected(backend, backend.open(), SUM, max_tokens=40)


async def saved_and_restored(backend: LlamaBackend) -> Any:
    handle = backend.open()
    said, _, _ = await collected(backend, handle, SUM, max_tokens=4)
    await backend.save(handle)
    resident = handle.resident_tokens
    was_there = await backend.restore(handle)
    return resident, was_there, await collected(backend, handle, [*SUM, *said], max_tokens=4)


async def forked(backend: LlamaBackend) -> Any:
    handle = backend.open()
    said, _, _ = await collected(backend, handle, SUM, max_tokens=4)
    fork = await backend.fork(handle)
    both = [await collected(backend, each, [*SUM, *said], max_tokens=4) for each in (fork, handle)]
    await backend.drop(fork)
    return both


async def dropped(backend: LlamaBackend) -> Any:
    handle = backend.open()
    said, _, _ = await collected(backend, handle, SUM, max_tokens=4)
    await backend.drop(handle)
    resident = handle.resident_tokens
    return resident, await collected(backend, handle, [*SUM, *said], max_tokens=4)


async def released(backend: LlamaBackend) -> Any:
    handle = backend.open("one")
    said, _, _ = await collected(backend, handle, SUM, max_tokens=4)
    await backend.release(handle)
    finders = [backend.open(cache_key) for cache_key in ("another", "one", None)]
    answers = []
    for finder in finders:
        answers.append(await collected(backend, finder, [*SUM, *said], max_tokens=4))
        await backend.release(finder)
    return handle.resident_tokens, answers


async def evicted(backend: LlamaBackend) -> Any:
    handles = [backend.open(cache_key) for cache_key in ("one", "another", "one", "a third")]
    return [await collected(backend, handle, SUM, max_tokens=4) for handle in handles]


async def refused(backend: LlamaBackend) -> Any:
    try:
        await collected(backend, backend.open(), [UNKNOWN_TOKEN], max_tokens=4)
    except BackendError as error:
        return error.reason, "invalid tokens" in str(error)
    return None


Scenario = Callable[[LlamaBackend], Awaitable[Any]]
SCENARIOS: "tuple[Scenario, ...]" = (
    free_with_holes,
    cut_in_a_character,
    schema_with_holes,
    whole_answer,
    saved_and_restored,
    forked,
    dropped,
    released,
    evicted,
    refused,
)


# --- playing -------------------------------------------------------------------------------------------------------

Turn = list[str]
"""["sent" or "came", text]"""


class Played(trio.abc.Stream):
    """One recorded connection."""

    def __init__(self, turns: "list[Turn]") -> None:
        self.turns = [list(turn) for turn in turns]

    async def send_all(self, data: "bytes | bytearray | memoryview") -> None:
        await trio.lowlevel.checkpoint()
        kind, expected = self.turns.pop(0)
        assert (kind, _FILE.sub(r"FILE-\1", expected)) == (
            "sent",
            _FILE.sub(r"FILE-\1", bytes(data).decode()),
        )

    async def receive_some(self, _max_bytes: "int | None" = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self.turns:
            return b""
        kind, text = self.turns.pop(0)
        assert kind == "came", f"nothing comes before this was sent: {text}"
        if text == "(silence)":
            await trio.sleep_forever()
        return text.encode()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Tape:
    """The connections of one scenario. `changed`: what a llama.cpp would say that is not as it should be."""

    def __init__(self, name: str, changed: "Callable[[str], str]" = str) -> None:
        recorded: list[list[Turn]] = json.loads(PLACE.read_text())[name]
        changing = [
            [[kind, changed(text) if kind == "came" else text] for kind, text in turns] for turns in recorded
        ]
        self.left = [Played(turns) for turns in changing]

    async def dialled(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if not self.left:
            raise OSError("nobody listens")
        return self.left.pop(0)

    def backend(self, **options: Any) -> LlamaBackend:
        http = BackendHttp(URL, dialled=self.dialled, patience=Patience(silence_seconds=30))
        return LlamaBackend(RemoteLlama(http), **options)


# --- recording -----------------------------------------------------------------------------------------------------


class _Recorded(trio.abc.Stream):
    def __init__(self, stream: trio.abc.Stream, turns: "list[tuple[str, bytes]]") -> None:
        self._stream = stream
        self._turns = turns

    def _note(self, kind: str, data: bytes) -> None:
        if data and self._turns and self._turns[-1][0] == kind == "came":
            self._turns[-1] = (kind, self._turns[-1][1] + data)
        elif data:
            self._turns.append((kind, data))

    async def send_all(self, data: "bytes | bytearray | memoryview") -> None:
        self._note("sent", bytes(data))
        await self._stream.send_all(data)

    async def receive_some(self, max_bytes: "int | None" = None) -> bytes:
        data = bytes(await self._stream.receive_some(max_bytes))
        self._note("came", data)
        return data

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _record() -> None:
    tapes: dict[str, list[list[tuple[str, str]]]] = {}
    model = find("smollm2", cache_folder(os.environ, Path.home()))
    shown = "smollm2".ljust(len(str(model)), "_")  # as long, or the lengths that HTTP says would be wrong
    for scenario in SCENARIOS:
        connections: list[list[tuple[str, bytes]]] = []
        async with trio.open_nursery() as nursery:
            child = LlamaChild(LlamaSettings(model=model, slots=2, context_tokens=1024, threads=1))
            await nursery.start(child.run)
            port = int((await child.ready()).url.rpartition(":")[2])

            async def dialled(port: int = port, into: "list[list[tuple[str, bytes]]]" = connections) -> Any:
                into.append([])
                return _Recorded(await trio.open_tcp_stream("127.0.0.1", port), into[-1])

            http = BackendHttp(URL, dialled=dialled)
            result = await scenario(LlamaBackend(RemoteLlama(http)))
            await http.aclose()
            nursery.cancel_scope.cancel()
        print(scenario.__name__, result)
        tapes[scenario.__name__] = [
            [(kind, data.decode().replace(str(model), shown)) for kind, data in turns]
            for turns in connections
        ]
    PLACE.write_text(json.dumps(tapes, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(trio.run(_record))
