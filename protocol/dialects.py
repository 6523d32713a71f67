"""The dialects as rows: what differs between the forms is a value here, never a branch in the rollout.

`APPEND` is the prototype (reference 3), `INJECT` the public beta (5B), `CREATE` the form in which a call ends the response
(4; of it the rollout core needs the row only).
The row of a dialect says how a pause is shown, what may be put in, how refusals are answered, what usage counts,
and, in `endings`, which frame each way to end leads to (reference 2.6 and 2.7).
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, Literal

import attrs

from protocol.items import Agent


class Ending(Enum):
    """Every way a rollout ends."""

    COMPLETED = auto()
    MAX_OUTPUT_TOKENS = auto()
    MAX_TOOL_CALLS = auto()
    STEERED = auto()
    """A user's word waits: the successor goes on (reference 4.6)."""
    FAILED = auto()
    """The sampler raised, or stopped without its end mark."""
    MODEL_LOST = auto()
    """What runs the model died, was not reachable, was too slow, or broke its promise."""
    CONTEXT_FULL = auto()
    """Outputs came that no longer fit the model's window."""
    CANCELLED = auto()
    EXPIRED = auto()
    """No output came before the deadline."""
    ABANDONED = auto()
    """A new create took the lane while the rollout was suspended."""
    DISCONNECTED = auto()
    DRAINED = auto()
    """The server is shutting down."""


@attrs.frozen
class EndRow:
    """What an ending leads to.

    `frame`: the terminal event, None = nothing is sent. `status`: of the resource and of what is persisted.
    `error`: the catalogue's line in `response.error`; `reason`: in `incomplete_details`.
    `parent`: may a later create continue from it? (reference 2.5)
    """

    frame: Literal["completed", "incomplete", "failed"] | None
    status: Literal["completed", "incomplete", "failed", "cancelled"]
    error: str | None = None
    reason: str | None = None
    parent: bool = False


_COMPLETED: Final = EndRow("completed", "completed", parent=True)
_SILENT: Final = EndRow(None, "completed", parent=True)

_SAMPLING: Final[Mapping[Ending, EndRow]] = {
    Ending.COMPLETED: _COMPLETED,
    Ending.MAX_OUTPUT_TOKENS: EndRow("incomplete", "incomplete", reason="max_output_tokens", parent=True),
    Ending.MAX_TOOL_CALLS: EndRow("incomplete", "incomplete", reason="max_tool_calls", parent=True),
    Ending.STEERED: EndRow("incomplete", "incomplete", reason="steered", parent=True),
    Ending.FAILED: EndRow("failed", "failed", error="server_error"),
    Ending.MODEL_LOST: EndRow("failed", "failed", error="model_lost"),
    Ending.CONTEXT_FULL: EndRow("failed", "failed", error="context_length"),
    Ending.CANCELLED: EndRow("failed", "cancelled", error="cancelled"),
    Ending.DISCONNECTED: EndRow(None, "cancelled"),
    Ending.DRAINED: EndRow("failed", "failed", error="draining"),
}
"""Ended while sampling: the same in every dialect."""

_SUSPENDED: Final[Mapping[Ending, EndRow]] = {
    Ending.CANCELLED: _SAMPLING[Ending.CANCELLED],
    Ending.ABANDONED: _SILENT,
    Ending.DISCONNECTED: _SILENT,
}
"""Ended while suspended: a cut pause leaves "completed with its calls pending" (reference 2.7)."""


@attrs.frozen(kw_only=True)
class Dialect:
    """One row."""

    name: Literal["append", "inject", "create", "http"]
    suspends: bool
    """False: the response completes at a client's call, with the call in `output`."""
    says_done: bool = False
    """A pause is shown by `response.done`."""
    answers_input: bool = False
    """Each accepted or refused batch gets its own numbered answer; else refusals are `error` frames."""
    verb: str = "appended"
    """The word of refusals."""
    takes_messages: bool = False
    drops_resent: bool = False
    """Items the server itself sent may come back and are dropped (reference 3.5 rule 7)."""
    deadline: str | None = None
    """The field of the limits that bounds a pause."""
    zero_waits_for_ever: bool = False
    """A deadline of 0 is none; else it has passed at once."""
    deadline_restarts: bool = False
    """Each accepted output starts the deadline again."""
    usage_per_segment: bool = False
    """Usage of each segment on its own (7.2 row A); else one usage with all output."""
    agent: Agent | None = None
    marks_phase: bool = False
    steerable: bool = False
    sampling_endings: Mapping[Ending, EndRow] = attrs.field(default=_SAMPLING, repr=False)
    suspended_endings: Mapping[Ending, EndRow] = attrs.field(default=_SUSPENDED, repr=False)


APPEND: Final = Dialect(
    name="append",
    suspends=True,
    says_done=True,
    takes_messages=True,
    drops_resent=True,
    deadline="suspend_timeout_seconds",
    zero_waits_for_ever=True,
    usage_per_segment=True,
    # `failed`, not `completed`: the client would take the latter for a silent, empty end of its turn (3.5 rule 11)
    suspended_endings={
        **_SUSPENDED,
        Ending.EXPIRED: EndRow("failed", "failed", error="expired"),
        Ending.DRAINED: EndRow("failed", "failed", error="draining"),
    },
)
INJECT: Final = Dialect(
    name="inject",
    suspends=True,
    answers_input=True,
    verb="injected",
    deadline="inject_grace_seconds",
    deadline_restarts=True,
    agent=Agent(),
    marks_phase=True,
    suspended_endings={**_SUSPENDED, Ending.EXPIRED: _COMPLETED, Ending.DRAINED: _COMPLETED},
)
CREATE: Final = Dialect(name="create", suspends=False, usage_per_segment=True, steerable=True)
HTTP: Final = Dialect(
    name="http",
    suspends=False,
    usage_per_segment=True,
    # who has left hears nothing, but another reader may be there, or come, and a stream has one end (10.3)
    sampling_endings={**_SAMPLING, Ending.DISCONNECTED: _SAMPLING[Ending.CANCELLED]},
)

DIALECTS: Final[Mapping[str, Dialect]] = {row.name: row for row in (APPEND, INJECT, CREATE, HTTP)}
