"""One rollout as a trace shows it: what was sent in it and was known already, and where its time went.

A chain is told, in the order of the trace, what its client sends and what its server says. It keeps digests and sums only.

A stopwatch runs from the first thing to the last and is always in one state, so the states partition the time:

    waiting    from a sending to the first output: the way there and back, everything before the model, its first token
    sampling   from the first output on, until the last call is whole or the response ends
    tools      from the last call's end until the client sends again; what the response still says meanwhile is in it
    idle       no call is open: somebody thinks, or the client has gone
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, Literal

import attrs
import orjson

from demos.lab.loose import count, object_at, objects, total
from demos.lab.published import Form

State = Literal["waiting", "sampling", "tools", "idle"]
STATES: Final[tuple[State, ...]] = ("waiting", "sampling", "tools", "idle")
PREAMBLE: Final = ("instructions", "tools")
"""What a request says besides its items, and mostly says again."""

_OUTPUT: Final = "_output"


def json_bytes(value: Any) -> int:
    """Its size as compact JSON: a trace does not know what stood between the members."""
    return len(_compact(value))


def _compact(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # half a character, or a number that is too large: strangers send both
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# --- items ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Piece:
    """An item, as its size and a mark that it has when the client sends it back, too."""

    mark: bytes
    size: int
    call_id: str | None = None
    is_answer: bool = False
    """The output of a call; a piece with a call's id that is none is the call."""


def pieces_of(items: Any) -> list[Piece]:
    """Of an `input` or `output`; a text is one message of the user."""
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    return [_piece(item) for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _piece(item: Mapping[str, Any]) -> Piece:
    kind, call_id = str(item.get("type", "message")), item.get("call_id")
    if isinstance(call_id, str):
        return Piece(_digest([kind, call_id]), json_bytes(item), call_id, kind.endswith(_OUTPUT))
    if kind == "message":
        return Piece(_digest([kind, item.get("role"), _text(item.get("content"))]), json_bytes(item))
    same = {name: value for name, value in item.items() if name not in {"id", "status"}}
    return Piece(_digest(item.get("encrypted_content") or item.get("id") or same), json_bytes(item))


def _text(content: Any) -> Any:
    """The words of a message alone: a client drops annotations and may write a part as a text."""
    if not isinstance(content, list):
        return content
    parts = [part.get("text", part) if isinstance(part, dict) else part for part in content]
    return parts[0] if len(parts) == 1 else parts


def _digest(value: Any) -> bytes:
    return blake2b(_compact(value), digest_size=16).digest()


def prefixes_of(pieces: Iterable[Piece]) -> list[bytes]:
    """A digest for each beginning of a list of items, the whole one last."""
    digests, so_far = [], b""
    for piece in pieces:
        so_far = blake2b(so_far + piece.mark, digest_size=16).digest()
        digests.append(so_far)
    return digests


# --- what is counted -----------------------------------------------------------------------------------------------


@attrs.define
class Sent:
    """Everything a client sent."""

    requests: int = 0
    """And appends, and injects."""
    bytes: int = 0
    resent_bytes: int = 0
    """Of items, tools and instructions that the server had been sent, or had said itself."""
    items: int = 0
    resent_items: int = 0
    shares: list[float] = attrs.field(factory=list)
    """Of each request but the first: how much of it was sent again."""
    full_bytes: int = 0
    """What a form would have sent that brings everything with each request."""


@attrs.frozen
class Segment:
    """What the server said of one stretch of sampling."""

    input_tokens: int
    cached_tokens: int | None
    output_tokens: int
    seen_tokens: int
    """Of the input: there, or sampled and not left out since, in the stretch before."""
    reasoning_tokens: int = 0
    """Of the output."""

    @property
    def uncached_tokens(self) -> int | None:
        """Of the input: read anew."""
        return None if self.cached_tokens is None else self.input_tokens - self.cached_tokens

    @property
    def redone_tokens(self) -> int | None:
        """Of the uncached: read, or sampled, before."""
        if self.uncached_tokens is None:
            return None
        return max(0, self.uncached_tokens - (self.input_tokens - self.seen_tokens))


@attrs.define(eq=False)
class Chain:
    """A rollout while it is read."""

    trace: str
    first_response: str | None = None
    form: Form = "suspended"
    guessed: bool = False
    """Its responses were put together by their order alone."""
    may_come_again: bool = False
    """Its last request: it was refused, its answer failed, or has no end and the request a history that no other has."""
    refusals: int = 0
    responses: int = 0
    calls: int = 0
    sent: Sent = attrs.field(factory=Sent)
    segments: list[Segment] = attrs.field(factory=list)
    segments_without_usage: int = 0
    saying: set[str] = attrs.field(factory=set)
    """Responses that have not ended, and do not pause."""
    is_usage_whole: bool = False
    """One for several stretches."""
    seconds: dict[State, float] = attrs.field(factory=lambda: dict.fromkeys(STATES, 0.0))
    later_waiting_seconds: float = 0.0
    """Of the waiting: after the first response, or segment."""
    clocks: int = 0
    """Of how many traces; what is between two of them has no time."""
    pending: set[str] = attrs.field(factory=set)
    preamble_bytes: int = 0
    prefix: bytes | None = None
    """Of the items of its last request that brought all."""
    brings_back: bool = False
    """Has its client sent what the server said?"""
    brings_reasoning: bool = False
    _known_bytes: int = 0
    _said: Counter[bytes] = attrs.field(factory=Counter)
    """What the server said and the client has not sent back yet."""
    _preamble: dict[str, bytes] = attrs.field(factory=dict)
    _clock: object = None
    _last_seconds: float = 0.0
    _state: State = "idle"
    _sendings: int = 0

    # --- what is sent and said ---

    def sends(self, body: Mapping[str, Any], size: int, known: int = 0) -> None:
        """A request or an append. `known`: how many of its first items were in the last one that brought all."""
        pieces = pieces_of(body.get("input"))
        back = [piece for piece in pieces[known:] if self._takes_back(piece)]
        self.brings_back = self.brings_back or bool(back)
        self.brings_reasoning = self.brings_reasoning or any(
            item.get("type") == "reasoning" for item in objects(body.get("input"))
        )
        again = [*pieces[:known], *back]
        resent_items = sum(piece.size for piece in again)
        resent = resent_items + self._resent_preamble(body)
        sent = self.sent
        if sent.requests:
            sent.shares.append(resent / size)
        sent.requests += 1
        sent.bytes += size
        sent.resent_bytes += resent
        sent.items += len(pieces)
        sent.resent_items += len(again)
        missing = 0 if any(name in body for name in PREAMBLE) else self.preamble_bytes
        # a history brings the calls before it, whoever said them; items it left out on purpose are not missing
        lacking = 0 if known else self._known_bytes - resent_items
        sent.full_bytes += size + missing + max(0, lacking)
        self._known_bytes += sum(piece.size for piece in pieces) - resent_items
        self.pending.difference_update(piece.call_id for piece in pieces if piece.is_answer and piece.call_id)

    def says(self, item: Mapping[str, Any]) -> bool:
        """An item of the output is whole. Is it a call that waits for the client?"""
        (piece,) = pieces_of([item])
        self._said[piece.mark] += 1
        self._known_bytes += piece.size
        if piece.call_id is None or piece.is_answer:
            return False
        self.calls += 1
        self.pending.add(piece.call_id)
        return True

    def expects(self, *pieces: Piece) -> bool:
        """Has the server said them, and the client not sent them back yet?"""
        return all(self._said[piece.mark] > 0 for piece in pieces)

    def _takes_back(self, piece: Piece) -> bool:
        expected = self.expects(piece)
        self._said[piece.mark] -= expected
        return expected

    def _resent_preamble(self, body: Mapping[str, Any]) -> int:
        there = {name: body[name] for name in PREAMBLE if body.get(name)}
        if there:
            self.preamble_bytes = sum(map(json_bytes, there.values()))
        marks = {name: _digest(value) for name, value in there.items()}
        resent = sum(
            json_bytes(there[name]) for name, mark in marks.items() if self._preamble.get(name) == mark
        )
        self._preamble.update(marks)
        return resent

    def used(self, usage: Any) -> None:
        """A stretch of sampling is over; its usage, if the server said one."""
        usage = usage if isinstance(usage, dict) else {}
        cached = count(object_at(usage, "input_tokens_details").get("cached_tokens"))
        read, sampled = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
        if read is None or sampled is None or (cached or 0) > read:
            self.segments_without_usage += 1
            return
        reasoning = count(object_at(usage, "output_tokens_details").get("reasoning_tokens")) or 0
        self.segments.append(
            Segment(read, cached, sampled, min(read, self._held_tokens()), min(sampled, reasoning))
        )

    def _held_tokens(self) -> int:
        """Of the stretch before: what the next can have read again."""
        if not self.segments:
            return 0
        last = self.segments[-1]
        left_out = last.reasoning_tokens if self.leaves_out_reasoning else 0
        return last.input_tokens + last.output_tokens - left_out

    @property
    def leaves_out_reasoning(self) -> bool:
        """A history is what its client sends; in other forms the server keeps what it said."""
        return self.form == "http" and not self.brings_reasoning

    @property
    def answers_without_usage(self) -> int:
        """Those that have no end among them."""
        return self.segments_without_usage + len(self.saying)

    # --- time ---

    def moment(self, clock: object, seconds: float, what: Literal["sent", "output", "call", "over"]) -> None:
        """Something happened; `over`: a pause, or the end of a response."""
        if clock is not self._clock:
            self._clock = clock
            self._last_seconds = seconds
            self.clocks += 1
        else:
            goes_on = self._state == "tools" and what in {"output", "call"}
            passed = max(0.0, seconds - self._last_seconds)  # traces of a file may overlap
            self.seconds["sampling" if goes_on else self._state] += passed
            if self._state == "waiting" and self._sendings > 1:
                self.later_waiting_seconds += passed
        self._last_seconds = max(seconds, self._last_seconds)
        self._sendings += what == "sent"
        self._state = self._after(what)

    def _after(self, what: str) -> State:
        if what == "sent":
            return "waiting"
        if what == "output":
            return "sampling"
        return "tools" if self.pending else "idle"

    @property
    def wall_seconds(self) -> float:
        """From the first thing to the last."""
        return sum(self.seconds.values())

    @property
    def redone_tokens(self) -> int | None:
        """Of all stretches; None: of one it is not known."""
        return total(segment.redone_tokens for segment in self.segments)

    @property
    def uncached_tokens(self) -> int | None:
        """Of all stretches; None: of one it is not known."""
        return total(segment.uncached_tokens for segment in self.segments)
