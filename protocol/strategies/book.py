"""What is written down of an exchange, and what a server knows of it: records, responses to go on from, open rollouts."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from protocol.strategies.outputs import Call
from protocol.strategies.plans import Dialect, Observed, Turn
from protocol.strategies.speaker import Speaker

JSON = dict[str, Any]

STEP_SECONDS: Final = 0.001
PATIENCE_SECONDS: Final = 2
"""How long the client waits before it hangs up: what was not answered until then was not answered."""

HOOKS: Final[Mapping[str, tuple[str, ...]]] = {
    "frames": (),
    "tap": ("connection_open", "connection_close"),
    "engine": (
        "connection_open",
        "connection_close",
        "pre_inference",
        "post_inference",
        "sampler_stop",
        "suspend",
        "accepted",
        "resume",
    ),
}
"""What is recorded completely."""


@attrs.frozen
class Parent:
    """A response that can be gone on from, and the calls that wait for their outputs."""

    response_id: str
    calls: tuple[Call, ...]
    tokens: int


@attrs.define
class Left:
    """A rollout that is suspended when its turn is over."""

    speaker: Speaker
    parent: Parent


class Book:
    """The records of one trace so far; what may be gone on from, and what is suspended, by lane."""

    def __init__(self, dialect: Dialect, observed: Observed) -> None:
        self.dialect = dialect
        self.hooks = HOOKS[observed]
        self.records: list[JSON] = []
        self.seconds = 0.0
        self.over = False
        """Is the connection gone?"""
        self.parents: dict[str | None, Parent] = {}
        self.left: dict[str | None, Left] = {}

    def put(self, conn: str, direction: str, frame: Any) -> None:
        """One record."""
        self.seconds += STEP_SECONDS
        record = {"t": round(self.seconds, 3), "conn": conn, "dir": direction, "frame": frame}
        if self.dialect == "http" and direction == "out" and _is_event(frame):
            record["event"] = frame["type"]
        self.records.append(record)

    def hook(self, conn: str, name: str, **members: Any) -> None:
        """A hook, if it is recorded here."""
        if name in self.hooks:
            self.put(conn, "hook", {"hook": name, **members})

    def hang_up(self, conn: str) -> None:
        """The client has heard enough."""
        self.seconds += PATIENCE_SECONDS
        self.hook(conn, "connection_close", by="client", code=1000)

    def ask(self, turn: Turn, conn: str, **members: Any) -> None:
        """The create of a turn."""
        body = {"model": "m", "input": [said("hi")], "store": self.dialect == "http", **members}
        if self.dialect == "http":
            request = {"type": "http.request", "method": "POST", "path": "/v1/responses"}
            self.put(conn, "in", {**request, "body": {**body, "stream": True}})
            return
        if self.dialect == "inject":
            body["multi_agent"] = {"enabled": True}
        if turn.lane is not None:
            body["stream_id"] = turn.lane
        self.put(conn, "in", {"type": "response.create", **body})

    def abandon(self, lane: str | None) -> None:
        """A suspended rollout is let go; nothing is sent for it, and it can be gone on from."""
        left = self.left.pop(lane, None)
        if left is not None:
            self.parents[lane] = left.parent
            ledger = left.speaker.tokens.ledger()
            self.hook("c1", "post_inference", response_id=left.speaker.id, usage=ledger)

    def evict(self, lane: str | None, response_id: str | None) -> None:
        """A create that failed takes the parent it named with it, if that is its own lane's latest (reference 4.4)."""
        own = self.parents.get(lane)
        if self.dialect != "http" and own is not None and own.response_id == response_id:
            del self.parents[lane]


def said(text: str) -> JSON:
    """A user's message."""
    return {"type": "message", "role": "user", "content": text}


def _is_event(frame: Any) -> bool:
    return isinstance(frame, dict) and not frame["type"].startswith("http.")
