"""One conversation with a tool, and the clients that carry it: over HTTP, in the create form, in the append form.

A client costs the measured server nothing but its requests; its own CPU time is in another process.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs
import h11
import orjson

from engine import vocabulary
from tests.bench.growth import call_id, mixed_text
from tests.bench.harness import SHED_SECONDS, RawClient

CALLS: Final = 30
FIRST_TOKENS, LAST_TOKENS = 10_000, 55_000
TOOLS: Final = 10
INSTRUCTION_TOKENS: Final = 2000
OPENING_TOKENS: Final = 6240
"""With instructions, tools and markers `FIRST_TOKENS`."""
OUTPUT_TOKENS: Final = 1425
"""With the 75 of the model's words, its call and the markers a thirtieth of what the context grows by."""
MODEL: Final = "simulated"
"""The model's name goes on with the number of its calls."""


# --- what is said --------------------------------------------------------------------------------------------------


@attrs.frozen
class Conversation:
    """What a client says in it."""

    settings: Mapping[str, Any]
    """Of each request."""
    opening: str
    outputs: Sequence[str]

    @property
    def items(self) -> list[dict[str, Any]]:
        """The client's items, one a turn."""
        outputs = (
            {"type": "function_call_output", "call_id": call_id(n), "output": output}
            for n, output in enumerate(self.outputs)
        )
        return [{"type": "message", "role": "user", "content": self.opening}, *outputs]


def conversation(seed: int, calls: int) -> Conversation:
    """The seed's; with `CALLS` calls its context grows from `FIRST_TOKENS` to `LAST_TOKENS`."""
    settings = {
        "model": f"{MODEL}-{calls}",
        "instructions": text_of(INSTRUCTION_TOKENS, seed=seed),
        "tools": [tool(number) for number in range(TOOLS)],
        "store": False,
    }
    opening = text_of(OPENING_TOKENS, seed=1000 * seed)
    outputs = [text_of(OUTPUT_TOKENS, seed=1000 * seed + n) for n in range(1, calls + 1)]
    return Conversation(settings, opening, outputs)


def text_of(tokens: int, *, seed: int) -> str:
    """A text with so many tokens, give or take one or two."""
    return vocabulary.decode(vocabulary.encode(mixed_text(tokens * 6, seed=seed))[:tokens])


def tool(number: int) -> dict[str, Any]:
    """A function with six parameters: as large as those of a coding agent, and no two alike."""
    member = {"type": "string", "description": f"what tool {number} is told"}
    parameters = {
        "type": "object",
        "properties": dict.fromkeys(("path", "text", "pattern", "lines", "where", "why"), member),
        "required": ["path"],
        "additionalProperties": False,
    }
    description = f"Tool {number} looks at a file and says what is in it. " * 3
    return {
        "type": "function",
        "name": f"look{number}",
        "description": description,
        "parameters": parameters,
    }


# --- who says it ---------------------------------------------------------------------------------------------------


class Caller(Protocol):
    """One connection that carries a conversation in its form."""

    def say(self, item: Mapping[str, Any]) -> None:
        """Send the next item and read to the end of the turn."""

    def close(self) -> None:
        """Hang up."""


MakeCaller = Callable[[int, Mapping[str, Any]], Caller]
"""From a port and the settings of each request."""


class HttpCaller:
    """Repeats everything in each request, on one connection that is kept alive."""

    def __init__(self, port: int, settings: Mapping[str, Any]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SHED_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = h11.Connection(h11.CLIENT)
        self._settings = settings
        self._history: list[Mapping[str, Any]] = []

    def say(self, item: Mapping[str, Any]) -> None:
        """One request; its answer is a stream and is read whole."""
        self._history.append(item)
        body = orjson.dumps({**self._settings, "stream": True, "input": self._history})
        headers = [("Host", "localhost"), ("Content-Length", str(len(body)))]
        head = h11.Request(method="POST", target="/v1/responses", headers=headers)
        parts = (head, h11.Data(data=body), h11.EndOfMessage())
        self._socket.sendall(b"".join(self._parser.send(part) or b"" for part in parts))
        *_, last, _done = self._answer().decode().split("\n\n")[:-1]
        kind, data = last.split("\n")
        assert kind == "event: response.completed", last
        self._history += orjson.loads(data.removeprefix("data: "))["response"]["output"]

    def _answer(self) -> bytes:
        body = bytearray()
        while not isinstance(event := self._parser.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._parser.receive_data(self._socket.recv(1 << 18))
            elif isinstance(event, h11.Data):
                body += event.data
        self._parser.start_next_cycle()
        return bytes(body)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class CreateCaller:
    """Names the response before, and sends what is new."""

    def __init__(self, port: int, settings: Mapping[str, Any]) -> None:
        self._client = RawClient(port, append=False)
        self._settings = settings
        self._parent: dict[str, str] = {}

    def say(self, item: Mapping[str, Any]) -> None:
        """One response."""
        self._client.send({"type": "response.create", **self._settings, **self._parent, "input": [item]})
        completed = orjson.loads(self._client.read_until("response.completed"))
        self._parent = {"previous_response_id": completed["response"]["id"]}

    def close(self) -> None:
        """Hang up."""
        self._client.close()


class AppendCaller:
    """One response from the opening to the end."""

    def __init__(self, port: int, settings: Mapping[str, Any]) -> None:
        self._client = RawClient(port)
        self._settings = settings
        self._calls_left = int(settings["model"].removeprefix(f"{MODEL}-"))
        self._frame: dict[str, Any] = {"type": "response.create", **settings}

    def say(self, item: Mapping[str, Any]) -> None:
        """The create, or an append."""
        self._client.send({**self._frame, "input": [item]})
        self._frame = {"type": "response.append"}
        self._client.read_until("response.done" if self._calls_left else "response.completed")
        self._calls_left -= 1

    def close(self) -> None:
        """Hang up."""
        self._client.close()
