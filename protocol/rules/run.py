"""The reading of one trace: what is known so far, and how a violation is reported.

Memory is bounded whatever the length of the trace: ended responses are kept in a small form, the newest
`ENDED` of them; idle connections beyond `CONNECTIONS` are forgotten.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from protocol.rules.rule import Entry, Rule, Violation
from protocol.rules.script import Script
from protocol.rules.session_rules import SESSION_RULES
from protocol.rules.state import HEAD, TAIL, Connection, Ended, Response
from protocol.rules.stream_rules import STREAM_RULES

RULES: Final[Mapping[str, Rule]] = {rule.id: rule for rule in (*STREAM_RULES, *SESSION_RULES)}
LETTERS: Final = {"http": "h", "create": "c", "inject": "i", "append": "a"}
ENDED: Final = 4096
CONNECTIONS: Final = 4096
CHAIN: Final = 64
"""How many ancestors are looked at."""
PER_RESPONSE: Final = 5
ITEM_IDS: Final = 16384
"""Item ids whose owner is remembered."""

IN_A_GAP: Final = frozenset(
    {"N1", "N2", "N3", "R1", "R2", "R3", "R6", "R7"}
    | {f"I{number}" for number in range(1, 9)}
    | {f"C{number}" for number in range(1, 12)}
    | {"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S19", "S20", "S22", "S24", "S25"}
    | {"W1", "W2", "W3", "W4", "W5", "W7", "W8", "W10", "W12", "W13", "W15", "U2"}
)
"""Not evaluated on a connection of which frames are missing."""


LEFT_OUT: Final[Entry] = ()
"""Stands in a prefix for records of a response that are not kept."""


class Run:
    """One trace while it is read."""

    def __init__(self, header: Mapping[str, Any], profile: str) -> None:
        self.profile = profile
        name = header.get("name")
        self.name = name if isinstance(name, str) else ""
        self.engine = profile == "this-engine"
        self.letter = LETTERS.get(_text(header.get("dialect")), "h")
        self.sse = header.get("transport") == "sse"
        self.http = self.letter == "h"
        self.complete = header.get("complete") is not False
        self.durable = _text(header.get("durability")) in {"process", "power"}
        self.hooks = frozenset(_texts(header.get("hooks")))
        self.directions = frozenset(_texts(header.get("directions", ["in", "out"])))
        self.principals = _mapping(header.get("principals"))
        self.tokens = tuple(filter(None, _texts(header.get("special_tokens"))))
        self.overlap = max(map(len, self.tokens), default=1) - 1
        self.replacement = header.get("model_emits_replacement") is True
        deadline = header.get("suspend_deadline_s")
        self.deadline = (
            float(deadline) if isinstance(deadline, int | float) and not isinstance(deadline, bool) else None
        )
        members = frozenset({"special_tokens", "group", "suspend_deadline_s"} & header.keys())
        self.absent = absent(profile, self.directions, self.hooks, members, self.durable)
        self.active = RULES.keys() - self.absent.keys()
        self.journaling = self.durable and "journal" in self.hooks
        self.slow = self.journaling or bool(self.tokens) or (self.durable and "attach" in self.hooks)
        """Every event needs a second look."""
        self.number = 0
        self.t = 0.0
        self.conns: dict[str, Connection] = {}
        self.sweep_at = CONNECTIONS
        self.live: dict[str, Response] = {}
        self.ended: OrderedDict[str, Ended] = OrderedDict()
        self.displaced: deque[Response] = deque()
        """Open responses that are no longer current on their lane."""
        self.owners: dict[str, str | None] = {}
        """Which response an item id belongs to."""
        self.early: OrderedDict[str, dict[str, int]] = OrderedDict()
        """Hooks about responses that have not been created."""
        self.early_journal: OrderedDict[str, set[object]] = OrderedDict()
        self.slots: dict[str, float | None] = {}
        """Responses that hold a slot, and until when they may."""
        self.unfinished: OrderedDict[str, Ended] = OrderedDict()
        """Responses that ended without a terminal event and without post_inference."""
        self.record: Mapping[str, Any] = {}
        self.found: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.responses = 0
        self.letters = {self.letter}
        self.gaps: set[str] = set()
        self.not_found: str | None = None
        """The words for a parent that is not found."""
        self.usage_keys: OrderedDict[str, str] = OrderedDict()
        self.resets: int = 0
        """Record of the last cache_reset."""
        self.script = Script() if "group" in header else None

    # --- finding things ------------------------------------------------------------------------------------------

    def connection(self, conn_id: str) -> Connection:
        """The connection of this name; a new one makes room first."""
        conn = self.conns.get(conn_id)
        if conn is None:
            if len(self.conns) >= self.sweep_at:
                self._sweep()
            conn = self.conns[conn_id] = Connection(conn_id)
        return conn

    def _sweep(self) -> None:
        for name in [name for name, conn in self.conns.items() if not busy(conn)]:
            self._forget(name)
        oldest = sorted(self.conns, key=lambda name: self.conns[name].last)
        for name in oldest[: max(0, len(oldest) - CONNECTIONS)]:
            self._forget(name)  # nothing was heard of it for thousands of connections
        self.sweep_at = max(CONNECTIONS, 2 * len(self.conns))

    def _forget(self, name: str) -> None:
        conn = self.conns.pop(name)
        for response in list(conn.lanes.values()):
            if type(response) is Response:
                self.end(response, "forgotten")
        conn.lanes.clear()  # it and its responses name each other
        conn.gave_up = None
        conn.latest.clear()
        conn.creates.clear()

    def known(self, response_id: object) -> Response | Ended | None:
        """The response of this id, live or over."""
        if not isinstance(response_id, str):
            return None
        return self.live.get(response_id) or self.ended.get(response_id)

    def principal(self, conn: Connection) -> object:
        """The name of the key that a connection came with."""
        return self.principals.get(conn.id)

    def end(self, response: Response, status: str) -> Ended:
        """From now on only the small form of it is kept."""
        self.events[response.dialect] += response.events
        ended = Ended(response, status, self.principal(response.conn), self.t)
        if response.id is not None and self.live.get(response.id) is response:
            del self.live[response.id]
            self.ended[response.id] = ended
            if len(self.ended) > ENDED:
                self.ended.popitem(last=False)
            if status in {"abandoned", "cut"} and "post_inference" not in response.hooks:
                self.unfinished[response.id] = ended
                if len(self.unfinished) > ENDED:
                    self.unfinished.popitem(last=False)
        for lane, current in response.conn.lanes.items():
            if current is response:
                response.conn.lanes[lane] = ended
        return ended

    # --- reporting -----------------------------------------------------------------------------------------------

    def report(
        self,
        rule: Rule,
        expected: str,
        seen: str,
        *,
        of: Response | Ended | None = None,
        conn: Connection | None = None,
        lane: str | None = None,
        item: object = None,
        also: tuple[Response | Ended | None, ...] = (),
        record: int = 0,
        since: int = 0,
    ) -> bool:
        """A violation, if this profile, dialect and trace have the rule. True if they have."""
        conn = of.conn if conn is None and of is not None else conn
        if rule.id not in self.active or conn is None:
            return False
        if (of.dialect if of is not None else self.letter) not in rule.dialects:
            return False
        if rule.id in IN_A_GAP and (of.gap if of is not None else conn.gap):
            return True
        self.counts[rule.id] += 1
        reports = of.reports if of is not None else conn.reports
        count = reports.get(rule.id, 0)
        if count >= PER_RESPONSE or (item is not None and (rule.id, item) in reports):
            return True
        reports[rule.id] = count + 1
        if item is not None:
            reports[rule.id, item] = 1
        record = record or self.number
        entries = self._prefix(of, conn, of.lane if of is not None else lane, record, also, since)
        self.found.append(
            Violation(
                rule.id,
                self.name,
                record,
                conn.id,
                of.lane if of is not None else lane,
                of.id if of is not None else None,
                expected,
                seen,
                tuple(entry[0] for entry in entries if entry is not LEFT_OUT),
                tuple(entries),
            )
        )
        return True

    def _prefix(
        self,
        of: Response | Ended | None,
        conn: Connection,
        lane: str | None,
        record: int,
        also: tuple[Response | Ended | None, ...],
        since: int,
    ) -> list[Entry]:
        entries: dict[float, Entry] = {}
        if type(of) is Response and of.create is not None:
            since = since or of.create.number
            entries[of.create.number] = of.create.entry
        for lane_of, entry in conn.tail:
            if entry[0] >= since and (lane_of in (lane, "*") or lane is None):
                entries[entry[0]] = entry
        for one in (of, *also):
            if type(one) is Response:
                entries.update((entry[0], entry) for entry in (*one.head, *one.tail))
                if len(one.tail) == TAIL and one.tail[0][0] > one.head[-1][0] + 1:
                    entries[one.head[-1][0] + 0.5] = LEFT_OUT
            elif type(one) is Ended:
                entries.update((entry[0], entry) for entry in one.entries)
        if record == self.number and record not in entries:
            entries.update(self._this_record(conn))
        return [entries[number] for number in sorted(entries) if number <= record]

    def _this_record(self, conn: Connection) -> dict[float, Entry]:
        """The record that is being read, when it is one of this connection."""
        one = self.record
        frame, direction = one.get("frame"), one.get("dir")
        if one.get("conn") != conn.id or not isinstance(direction, str):
            return {}
        frame = frame if isinstance(frame, Mapping) else {"type": shown(frame)}
        kind = frame.get("type", frame.get("hook"))
        return {
            self.number: entry_of(self, direction[:4], kind if isinstance(kind, str) else shown(kind), frame)
        }

    # --- small helpers -------------------------------------------------------------------------------------------

    def written(self, response: Response) -> None:
        """A response with output has ended: its part of the script that W11 compares."""
        if self.script is not None:
            self.script.add(response)

    def chain(self, response: Response | Ended | None) -> list[Response | Ended]:
        """A response and its ancestors, as far as they are remembered, the nearest first."""
        found: list[Response | Ended] = []
        while response is not None and len(found) < CHAIN and response not in found:
            found.append(response)
            response = self.known(response.parent)
        return found


def busy(conn: Connection) -> bool:
    """Whether something on it is still to come."""
    return (
        any(type(one) is Response for one in conn.lanes.values())
        or any(conn.creates.values())
        or bool(conn.controls or conn.steers)
        or (conn.closed is None and bool(conn.latest) and conn.request is None)
    )


def note(response: Response, entry: Entry) -> None:
    """Keeps a record for the prefix of a later violation."""
    if not response.tail and len(response.head) < HEAD:
        response.head.append(entry)
    else:
        response.tail.append(entry)


@lru_cache(maxsize=64)
def absent(
    profile: str, directions: frozenset[str], hooks: frozenset[str], members: frozenset[str], durable: bool
) -> dict[str, str]:
    """Which rules cannot be judged at all from a trace with such a header, and why. Not to be changed."""
    found = {}
    for rule in RULES.values():
        needs = {"in"} if "C" in rule.scope and "A" not in rule.scope else set()
        needs |= {"out"} if "A" in rule.scope or "C" in rule.scope else set()
        needs |= {"hook"} if rule.hooks else set()
        missing = sorted(needs - directions)
        unseen = [hook for hook in rule.hooks if hook not in hooks]
        if not rule.holds_in(profile):
            found[rule.id] = f"profile: not in {profile}"
        elif missing:
            found[rule.id] = f"direction missing: {', '.join(missing)}"
        elif unseen:
            found[rule.id] = f"hook missing: {', '.join(unseen)}"
        elif rule.member is not None and rule.member not in members:
            found[rule.id] = f"header has no {rule.member}"
        elif rule.id in {"D1", "D2", "S15"} and not durable:
            found[rule.id] = "durability: memory"
    return found


def entry_of(run: Run, direction: str, kind: str, frame: Mapping[str, Any], detail: str = "") -> Entry:
    """A record in few words, all of them small."""
    return (
        run.number,
        run.t,
        kind[:80],
        _small(frame.get("sequence_number")),
        _small(frame.get("output_index")),
        direction,
        detail[:120],
    )


def _small(value: object) -> object:
    return value if value is None or type(value) is int else shown(value, 20)


def shown(value: object, limit: int = 60) -> str:
    """A value in a message, cut."""
    if isinstance(value, str) and len(value) > 4 * limit:
        value = value[: 4 * limit]
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__}, nested too deep"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
