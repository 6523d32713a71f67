"""What the checker remembers: connections, responses, and what waits for an answer. Data only."""

import math
from collections import deque
from typing import Any, Final

from protocol.rules.parts import Call, Item, Part
from protocol.rules.rule import Entry

HEAD: Final = 8
TAIL: Final = 24
"""Records kept for a prefix: the first of a response, and the last ones."""
REMEMBERED_IDS: Final = 256
"""Item and call ids kept of an ended response."""


class Create:
    """A request for a response, from its frame to its answer."""

    __slots__ = ("body", "conn", "entry", "lane", "number", "parent", "store", "t", "was_latest")

    def __init__(
        self, conn: "Connection", lane: str | None, body: dict[str, Any], number: int, t: float, entry: Entry
    ) -> None:
        self.conn = conn
        self.lane = lane
        self.body = body
        self.number = number
        self.t = t
        self.entry = entry
        parent = body.get("previous_response_id")
        self.parent = parent if isinstance(parent, str) else None
        self.store = body.get("store") is not False
        self.was_latest = False
        """Whether the parent was cached when the frame came."""

    @property
    def in_conversation(self) -> bool:
        """Whether it goes on from what a conversation holds, which a trace does not show."""
        return self.body.get("conversation") is not None

    @property
    def warm_up(self) -> bool:
        """Whether it asks for no output."""
        options = self.body.get("prompt_cache_options")
        return self.body.get("generate") is False or (
            isinstance(options, dict) and options.get("prewarm") is True
        )


class Control:
    """An append, inject, steer or cancel, until its outcome is known."""

    __slots__ = (
        "batch",
        "conn",
        "fault",
        "input",
        "kind",
        "lane",
        "malformed",
        "number",
        "response_id",
        "t",
        "taken",
        "vague",
    )

    def __init__(
        self, kind: str, conn: "Connection", lane: str | None, response_id: str | None, number: int, t: float
    ) -> None:
        self.kind = kind
        self.conn = conn
        self.lane = lane
        self.response_id = response_id
        self.number = number
        self.t = t
        self.input: Any = None
        self.batch: list[tuple[str, str]] = []
        """Call id and output type of each output in it."""
        self.fault: Any = None
        self.malformed = False
        """It may be refused for its form alone."""
        self.taken = False
        """Accepted already, though its answer is still to come."""
        self.vague = False
        """It holds items of which a trace cannot tell whether they are taken."""


def brings_calls(value: Any) -> bool:
    """Whether an input may hold calls."""
    return isinstance(value, list) and any(
        not isinstance(one, dict) or ("role" not in one and "output" not in one) for one in value
    )


def _open_and_newest(calls: dict[str, Call]) -> dict[str, Call]:
    """As many calls as are kept: those without output first, then the newest."""
    if len(calls) <= REMEMBERED_IDS:
        return dict(calls)
    newest = list(reversed(calls))
    newest.sort(key=lambda call_id: calls[call_id].answered)
    kept = set(newest[:REMEMBERED_IDS])
    return {call_id: call for call_id, call in calls.items() if call_id in kept}


class Ended:
    """What is kept of a response that is over: enough to know its id, its calls and its place in a chain."""

    __slots__ = (
        "cached",
        "calls",
        "conn",
        "dialect",
        "entries",
        "evicted",
        "forked",
        "gap",
        "hides",
        "hooks",
        "id",
        "items",
        "lane",
        "next",
        "parent",
        "principal",
        "reports",
        "status",
        "steers",
        "store",
        "t",
    )

    def __init__(self, response: "Response", status: str, principal: object, t: float) -> None:
        self.id = response.id
        self.conn = response.conn
        self.lane = response.lane
        self.dialect = response.dialect
        self.next = response.next
        self.status = status
        self.t = t
        self.store = response.store
        self.parent = response.parent
        self.principal = principal
        self.calls = _open_and_newest(response.calls)
        self.items = [
            (item.id, item.kind) for item in response.items[:REMEMBERED_IDS] if isinstance(item.id, str)
        ]
        self.entries = (*response.head[:1], *list(response.tail)[-1:])
        self.reports = response.reports
        self.cached = response.cached
        self.steers = response.steers
        create = response.create
        self.hides = (
            len(self.calls) < len(response.calls)
            or status == "cut"
            or (create is not None and (create.in_conversation or brings_calls(create.body.get("input"))))
        )
        """It may have calls that are not among these: too many, said elsewhere, or held by its input."""
        self.evicted = False
        self.forked = False
        self.gap = response.gap
        self.hooks = response.hooks


class Response:
    """One response while it may still say something."""

    __slots__ = (
        "accepted",
        "attached",
        "by_id",
        "cached",
        "calls",
        "calm",
        "cancelled",
        "closed_at",
        "conn",
        "create",
        "dialect",
        "done_shown",
        "doubts",
        "errored",
        "events",
        "gap",
        "head",
        "hooks",
        "id",
        "identity",
        "item",
        "items",
        "journal",
        "lane",
        "ledger",
        "next",
        "next_index",
        "over_at",
        "parent",
        "part",
        "paused_at",
        "pending",
        "replay",
        "reports",
        "resume_order",
        "segments",
        "sent",
        "steers",
        "stop",
        "store",
        "superseded",
        "suspended",
        "suspended_at",
        "tail",
        "talked",
        "undone",
        "unsettled",
    )

    def __init__(self, response_id: str | None, conn: "Connection", lane: str | None, dialect: str) -> None:
        self.id = response_id
        self.conn = conn
        self.lane = lane
        self.dialect = dialect
        self.create: Create | None = None
        self.parent: str | None = None
        self.store = True
        self.identity: dict[str, Any] | None = None
        self.next = 0
        self.next_index = 0
        self.events = 0
        self.calm = False
        """No pause, doubt, gap or replay: the next event of an open part needs no further thought."""
        self.item: Item | None = None
        self.items: list[Item] = []
        self.undone: dict[Item, None] = {}
        """Announced and not done, in their order."""
        self.by_id: dict[str, Item] = {}
        self.part: Part | None = None
        self.calls: dict[str, Call] = {}
        self.pending: dict[str, Call] = {}
        self.talked: set[str] = set()
        """Which of created, queued, in_progress and output have been seen."""
        self.errored = False
        self.suspended = False
        self.suspended_at = 0.0
        self.paused_at = 0.0
        self.over_at = math.inf
        """When the rollout had ended, though its end was still to be told."""
        self.superseded = False
        """A create was sent on its lane: as soon as it waits for outputs it may be over without a word."""
        self.done_shown = False
        self.accepted = 0
        """Outputs accepted in this suspension."""
        self.resume_order: list[str] = []
        self.unsettled: list[Control] = []
        """Appends that have neither been accepted nor refused."""
        self.segments: list[dict[str, Any]] = []
        self.cached: int | None = None
        self.ledger: dict[str, Any] | None = None
        self.hooks: dict[str, int] = {}
        self.stop: str | None = None
        self.cancelled = False
        self.closed_at: tuple[float, str] | None = None
        self.steers: dict[str, Control] = {}
        self.attached: str | None = None
        self.replay: int | None = None
        self.sent: dict[int, bytes] | None = None
        self.journal: set[object] = set()
        self.gap = False
        self.doubts = False
        self.reports: dict[object, int] = {}
        self.head: list[Entry] = []
        self.tail: deque[Entry] = deque(maxlen=TAIL)

    @property
    def ending(self) -> bool:
        """Whether nothing can come of it but its end: its sampling has stopped for good, or it samples nothing."""
        return self.stop not in (None, "tool_call") or (self.create is not None and self.create.warm_up)


class Connection:
    """One connection (for HTTP: one request) and what waits on it."""

    __slots__ = (
        "asked_at",
        "begun",
        "begun_with",
        "closed",
        "controls",
        "creates",
        "crossed",
        "done",
        "gap",
        "gave_up",
        "id",
        "lanes",
        "last",
        "latest",
        "limited",
        "open_t",
        "owed",
        "owed_at",
        "recent",
        "refused",
        "replays",
        "reports",
        "request",
        "status",
        "steers",
        "tail",
    )

    def __init__(self, conn_id: str) -> None:
        self.id = conn_id
        self.lanes: dict[str | None, Response | Ended | None] = {}
        self.latest: dict[str | None, Ended] = {}
        self.creates: dict[str | None, deque[Create]] = {}
        self.controls: deque[Control] = deque()
        self.steers: deque[Control] = deque()
        self.refused: deque[str] = deque(maxlen=REMEMBERED_IDS)
        """Call ids of refused batches."""
        self.owed = 0
        """Frames that may be answered by an error although they are no create, append or inject."""
        self.begun = 0
        """Responses that began here."""
        self.asked_at = self.owed_at = 0
        self.begun_with = 0
        """The record of its first frame."""
        self.open_t: float | None = None
        self.closed: tuple[float, str] | None = None
        self.limited = False
        self.crossed = 0
        """The newest append that counts as accepted though it may have met the end of its response."""
        self.gap = False
        self.gave_up: tuple[Response, int, float] | None = None
        """A response that ended in its pause before its time: in which record, and after how many seconds."""
        self.done = False
        self.request: str | None = None
        self.status: int | None = None
        self.replays = False
        """It was asked for what a response that has ended said: that was judged when it was said first."""
        self.last = 0
        self.recent: str = ""
        """The last type sent here, for a report about the end."""
        self.reports: dict[object, int] = {}
        self.tail: deque[tuple[str | None, Entry]] = deque(maxlen=TAIL)
