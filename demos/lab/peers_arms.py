"""Which servers are asked in which way, and what may be compared: arms of one group have one contract."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from demos.lab.peers_client import Way
from demos.lab.peers_servers import FLOOD, PACED


@attrs.frozen(kw_only=True)
class Arm:
    """One server asked in one way."""

    name: str
    title: str
    group: str
    """What may be compared: the same contract."""
    server: str
    way: Way
    model: str = FLOOD
    continues: bool = False
    """Only the new message goes up, and names the response that holds the history."""

    @property
    def repeats(self) -> bool:
        """Are several turns of a connection the same work? A second one would continue a longer response."""
        return self.model == FLOOD and not self.continues


SSE, WEBSOCKET, HOP = "flood, HTTP and SSE", "flood, WebSocket", "flood, through a gateway"
CONTINUED, STEADY = "flood, only what is new goes up", "paced"
GROUPS: Final[Mapping[str, str]] = {
    SSE: "The whole history goes up, 2,000 deltas come down as fast as they go. This engine knows the history again by its "
    "content; mocks answer from a fixture.",
    WEBSOCKET: "The same over WebSocket; this engine does all work for the whole history each time.",
    HOP: "A gateway reads each event and writes it again; its own processes only, the server behind it is not counted.",
    CONTINUED: "This engine over WebSocket, by `previous_response_id`: the others are not asked to; what they make of such a request stands below.",
    STEADY: "1,000 deltas a second. This engine wakes once a step of 8 ms for all that is due, or once for each delta; aimock "
    "has a timer for each event.",
}
"""What the arms of a group have in common, and where their contracts differ."""


def _arm(name: str, title: str, group: str, server: str, way: Way, **more: Any) -> Arm:
    return Arm(name=name, title=title, group=group, server=server, way=way, **more)


ARMS: Final[Mapping[str, Arm]] = {
    arm.name: arm
    for arm in (
        _arm("ours-sse", "this engine", SSE, "ours", "sse"),
        _arm("ours-sse#2", "this engine, again", SSE, "ours", "sse"),
        _arm("aimock-sse", "aimock", SSE, "aimock", "sse"),
        _arm("llm-mock-sse", "llm-mock-api", SSE, "llm-mock-api", "sse"),
        _arm("ours-ws", "this engine", WEBSOCKET, "ours", "websocket"),
        _arm("aimock-ws", "aimock", WEBSOCKET, "aimock", "websocket"),
        _arm("litellm-aimock", "LiteLLM before aimock", HOP, "litellm-aimock", "sse"),
        _arm("litellm-ours", "LiteLLM before this engine", HOP, "litellm-ours", "sse"),
        _arm("ours-continued", "this engine", CONTINUED, "ours", "websocket", continues=True),
        _arm("ours-paced", "this engine, steps of 8 ms", STEADY, "ours-paced", "sse", model=PACED),
        _arm("ours-stepped", "this engine, steps of 1 ms", STEADY, "ours-stepped", "sse", model=PACED),
        _arm("aimock-paced", "aimock", STEADY, "aimock", "sse", model=PACED),
    )
}
"""In the order in which they are shown."""
