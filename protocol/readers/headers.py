"""What a log that is no trace lets one know: its form, its directions, who sent a frame. Guessed, and said honestly."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from protocol import trace
from protocol.events import CLIENT_CLASSES

Side = Literal["in", "out"]

CLIENT_TYPES: Final = frozenset({*CLIENT_CLASSES, "response.cancel", "http.request"})
"""What only a client sends."""
SERVER_TYPES: Final = frozenset({"error", "http.response"})
"""What a server sends, besides all else that begins with `response.`."""
TERMINAL_TYPES: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)

APPEND_TYPES: Final = ("response.append", "response.done")
"""What only the append form has."""

APPEND_BETA: Final = "responses_websockets=2026-02-04"
INJECT_BETA: Final = "responses_multi_agent"


def header(
    kind: str, dialect: str, transport: str, directions: Iterable[str], **members: Any
) -> dict[str, Any]:
    """The header of a log of another kind: no hook was recorded completely."""
    recorded = set(directions)
    return {
        "trace": trace.VERSION,
        "dialect": dialect,
        "transport": transport,
        "source": f"read from {kind}",
        "directions": [direction for direction in trace.DIRECTIONS if direction in recorded],
        "hooks": [],
        **members,
    }


def record(seconds: float, connection: str, direction: str, frame: Any) -> dict[str, Any]:
    """A record; what is no object (but `[DONE]`) is kept as `raw`."""
    head = {"t": seconds, "conn": connection, "dir": direction}
    if isinstance(frame, dict) or frame == "[DONE]":
        return {**head, "frame": frame}
    return {**head, "raw": str(frame)[: trace.MAX_RAW_CHARACTERS]}


def hook(seconds: float, connection: str, name: str, **members: Any) -> dict[str, Any]:
    """The record of something between the frames."""
    return record(seconds, connection, "hook", {"hook": name, **members})


def side_of(frame: Any) -> Side | None:
    """Who sent it, as far as its type says: `in` from the client, `out` from the server."""
    kind = frame.get("type") if isinstance(frame, dict) else None
    if not isinstance(kind, str):
        return None
    if kind in CLIENT_TYPES:
        return "in"
    return "out" if kind in SERVER_TYPES or kind.startswith("response.") else None


def is_websocket_only(frame: Mapping[str, Any]) -> bool:
    """No HTTP stream has such a frame: there an error has a number, and no status."""
    kind = str(frame.get("type"))
    if kind == "error" and "sequence_number" not in frame and type(frame.get("status")) is int:
        return True
    return kind in CLIENT_TYPES or kind == "response.done" or "stream_id" in frame or "inject" in kind


def dialect_of(frames: Iterable[Mapping[str, Any]], beta: str = "") -> str:
    """The form of a WebSocket connection: by the features its client asked for, else by its frames, else `create`."""
    found = "inject" if INJECT_BETA in beta else "create"
    for frame in () if APPEND_BETA in beta else frames:
        kind = str(frame.get("type"))
        agents = frame.get("multi_agent")
        if kind in APPEND_TYPES:
            return "append"
        if kind.startswith("response.inject") or (isinstance(agents, dict) and agents.get("enabled")):
            found = "inject"
    return "append" if APPEND_BETA in beta else found


def refuse_append(frame: Any, number: int) -> None:
    """`TraceError`: a frame of the append form, in a log whose first lines were taken for those of another."""
    if isinstance(frame, dict) and frame.get("type") in APPEND_TYPES:
        raise trace.TraceError(
            f"line {number}: {frame['type']} is of the append form, of which the first lines showed nothing; "
            "say it: --format frames --form append",
            number,
        )


class Exchanges:
    """Numbers the streams of a log that does not: each HTTP exchange is a connection of its own.

    A new one begins with a `response.created` after a terminal event, and with whatever follows `[DONE]`.
    So a second `response.created` in a stream that has not ended stays in it, for the checker to see.
    """

    def __init__(self) -> None:
        self._number = 1
        self._used = self._ended = self._done = False

    def begin(self) -> None:
        """The log says itself that a new one begins."""
        self._number += self._used
        self._used = self._ended = self._done = False

    def connection(self, frame: Any) -> str:
        """The connection of the next frame."""
        kind = frame.get("type") if isinstance(frame, dict) else frame
        if (self._done and kind != "[DONE]") or (self._ended and kind == "response.created"):
            self.begin()
        self._used = True
        self._done = self._done or kind == "[DONE]"
        self._ended = self._ended or (isinstance(kind, str) and kind in TERMINAL_TYPES)
        return f"c{self._number}"
