"""The arms of an experiment: one row for each way to run the same rollout, from naive HTTP to one suspended response.

A row says what the client does and which server it needs; the driver knows no arm by name.
An arm may run twice in an experiment, as a control: `optimised#2` is `optimised` under another name.

Two arms are no rungs but the *floors* under them: the same work without turns, over each of the two transports.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import attrs

from demos.lab.validity import base_arm
from engine.client_forms import Form


@attrs.frozen(kw_only=True)
class Arm:
    """One row."""

    name: str
    rung: str
    """Its place on the ladder."""
    adds: str
    """What it has that the rung before has not."""
    form: Form
    """Of the client (`engine.client_forms`)."""
    http_variant: Literal["naive", "optimised"] = "optimised"
    """Of the server; WebSocket does not ask for it."""
    fresh_connections: bool = False
    """A new connection for each request."""
    whole_history: bool = False
    """Over WebSocket: each create brings the whole history, and names no response before it."""
    warms_up: bool = False
    """The history goes ahead in a create with `generate: false`; its time counts."""
    at_once: bool = False
    """Without turns: one response, whose create brings everything and whose model says everything."""

    @property
    def suspends(self) -> bool:
        """Is the whole rollout one response?"""
        return self.form in ("append", "inject")

    def responses(self, steps: int) -> int:
        """How many responses a rollout of so many steps is."""
        return 1 if self.suspends or self.at_once else steps + self.warms_up

    def turns(self, steps: int) -> int:
        """How often the client of a rollout of so many steps has something to say."""
        return 1 if self.at_once else steps

    @property
    def floor(self) -> str:
        """The arm that does the same without turns, over the same transport."""
        return "floor-http" if self.form == "http" else "floor"

    def connections(self, steps: int) -> int:
        """How many connections it takes."""
        return steps if self.fresh_connections else 1


ARMS: Final[Mapping[str, Arm]] = {
    row.name: row
    for row in (
        Arm(
            name="naive",
            rung="R0",
            adds="the whole history and all work each time, over a new connection",
            form="http",
            http_variant="naive",
            fresh_connections=True,
        ),
        Arm(
            name="naive-keep",
            rung="R0k",
            adds="the connection is kept",
            form="http",
            http_variant="naive",
        ),
        Arm(
            name="optimised",
            rung="R1p",
            adds="contexts and the model's state are found again by content",
            form="http",
        ),
        Arm(
            name="ws-full",
            rung="R2a",
            adds="WebSocket, with nothing else: the whole history and all work each time",
            form="create",
            whole_history=True,
        ),
        Arm(
            name="create",
            rung="R2",
            adds="previous_response_id: only what is new is sent and worked on",
            form="create",
        ),
        Arm(
            name="create-warm",
            rung="R2w",
            adds="the history goes ahead with generate: false",
            form="create",
            warms_up=True,
        ),
        Arm(name="append", rung="R3", adds="one response, suspended at each call", form="append"),
        Arm(name="inject", rung="R3i", adds="the same in the form of the public beta", form="inject"),
        Arm(
            name="floor",
            rung="F",
            adds="no rung: all of it without turns, over WebSocket",
            form="create",
            at_once=True,
        ),
        Arm(
            name="floor-http",
            rung="Fh",
            adds="no rung: all of it without turns, over HTTP",
            form="http",
            at_once=True,
        ),
    )
}
"""In the order of the ladder, and then what is under it."""

LADDER: Final = tuple(name for name, row in ARMS.items() if not row.at_once)
"""The rungs alone."""


def with_turns(names: Iterable[str]) -> list[str]:
    """Those of the arms that are no floors: who compares turns, or a rollout's time, compares them alone."""
    return [name for name in names if not arm_of(name).at_once]


def arm_of(name: str) -> Arm:
    """The row of an arm or of its repetition. `ValueError`: there is none."""
    row = ARMS.get(base_arm(name))
    if row is None:
        raise ValueError(f"there is no arm {name!r}; there are {', '.join(ARMS)}, each also as NAME#2")
    return row
