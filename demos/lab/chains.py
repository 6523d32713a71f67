"""From the records of any trace to its rollouts: which response goes on with which, and what was sent and said in each.

A rollout is a chain of responses. A response goes on with the one that its request names as the previous one, or with
the one whose whole input its own begins with; a suspended response is a chain by itself. Where no requests were
recorded, a response that names no previous one is taken to go on with the one before it if that ended in open calls:
a guess, and marked as one.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import attrs

from demos.lab.chain import Chain, Piece, json_bytes, pieces_of, prefixes_of
from demos.lab.loose import object_at, objects, text_at
from demos.lab.published import Form
from protocol.readers.headers import TERMINAL_TYPES

_FORMS: Final[Mapping[str, Form]] = {"http": "http", "create": "create"}
_NO_OUTPUT: Final = frozenset({"response.created", "response.in_progress", "response.queued"})
_FAILED: Final = frozenset({"response.failed", "response.cancelled"})
_LATER: Final = frozenset({"response.append", "response.inject"})


@attrs.define(eq=False)
class _Lane:
    """What is open on a lane of a connection."""

    asked: deque[Chain] = attrs.field(factory=deque)
    """Requests without an answer so far."""
    chain: Chain | None = None
    """Of the response that was created last."""
    response_id: str = ""
    """The response's; a server may give none."""
    said_items: bool = False
    paused: bool = False


class ChainReader:
    """Is told of headers and records, in order; `chains` are what came of them."""

    def __init__(self) -> None:
        self.chains: list[Chain] = []
        self.notes: dict[str, None] = {}
        """What the traces cannot show, each said once."""
        self._by_response: dict[str, Chain] = {}
        self._by_prefix: dict[bytes, list[Chain]] = {}
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._trace = ""
        self._dialect = ""
        self._has_requests = self._has_times = True
        self._clock = self._file_clock = object()
        self._began_s = 0.0
        self._last: Chain | None = None

    # --- one trace after the other ---

    def begin(self, header: Mapping[str, Any], trace: str) -> None:
        """A trace begins."""
        self.end()
        self._trace = trace
        self._dialect = str(header.get("dialect", ""))
        self._has_requests = "in" in header.get("directions", ("in",))
        self._has_times = False
        began_s = header.get("began_s")
        self._clock = object() if began_s is None else self._file_clock
        self._began_s = float(began_s or 0.0)
        self._lanes.clear()
        self._last = None
        if not self._has_requests:
            self._note(
                "no requests in this log: nothing is known of what was sent; which response goes on with which is "
                "guessed from its calls, and what passed between two of them counts as tools"
            )
        if "out" not in header.get("directions", ("out",)):
            self._note("no answers in this log: nothing is known of what the model read, said and took")
        if header.get("source") == "read from a HAR file":
            self._note("a HAR file has no times within an answer: sampling is part of waiting")

    def end(self) -> None:
        """The trace is over."""
        if self._trace and not self._has_times and any(chain.trace == self._trace for chain in self.chains):
            self._note("no times in this log: no seconds")
        self._trace = ""

    def _note(self, words: str) -> None:
        self.notes.setdefault(words)

    def record(self, record: Mapping[str, Any]) -> None:
        """A record of it."""
        frame, t = record.get("frame"), float(record.get("t") or 0.0)
        if not isinstance(frame, dict):
            return
        self._has_times = self._has_times or t > 0
        seconds = self._began_s + t
        name = record.get("lane") or frame.get("stream_id") or ""
        lane = self._lanes.setdefault((str(record["conn"]), str(name)), _Lane())
        if record["dir"] == "in":
            self._client(frame, seconds, lane)
        elif record["dir"] == "out":
            self._server(frame, seconds, lane)
        elif frame.get("hook") == "gap":
            self._note(f"frames are missing here: {frame.get('note') or 'nobody says why'}")

    # --- what a client sends ---

    def _client(self, frame: Mapping[str, Any], seconds: float, lane: _Lane) -> None:
        kind = frame.get("type")
        if kind in _LATER:
            self._more(frame, seconds, lane)
        elif kind == "response.create":
            self._request(frame, seconds, lane)
        elif kind == "http.request" and self._is_create(frame):
            self._request(frame["body"], seconds, lane)

    def _is_create(self, frame: Mapping[str, Any]) -> bool:
        if frame.get("method") != "POST" or not str(frame.get("path")).endswith("/responses"):
            return False
        if not isinstance(frame.get("body"), dict):
            self._note("a request without a body in the log: it is not counted")
            return False
        return True

    def _more(self, frame: Mapping[str, Any], seconds: float, lane: _Lane) -> None:
        """Outputs for a response that is open."""
        chain = self._by_response.get(str(frame.get("response_id"))) or lane.chain
        if chain is None and lane.asked:
            chain = lane.asked[-1]  # its answer is not in the log
        if chain is None:
            return
        if frame["type"] == "response.inject":
            chain.is_usage_whole = True
            self._note(
                "this form says its usage once, at the end: what other forms would have cost is not known"
            )
        chain.form = "suspended"
        chain.sends(frame, json_bytes(frame))
        chain.moment(self._clock, seconds, "sent")
        lane.paused = False

    def _request(self, body: Mapping[str, Any], seconds: float, lane: _Lane) -> None:
        previous = self._by_response.get(str(body.get("previous_response_id")))
        pieces = pieces_of(body.get("input"))
        prefixes = prefixes_of(pieces)
        chain, known = (previous, 0) if previous else self._with_prefix(pieces, prefixes)
        if chain is None:
            chain = self._new_chain()
        elif known:
            chain.form = "http"
        else:
            chain.form = "create"
        chain.sends(body, json_bytes(body), known)
        chain.moment(self._clock, seconds, "sent")
        chain.may_come_again = chain.brings_back
        if not body.get("previous_response_id") and prefixes:
            self._index(chain, prefixes[-1])
        lane.asked.append(chain)

    def _with_prefix(self, pieces: list[Piece], prefixes: list[bytes]) -> tuple[Chain | None, int]:
        """The chain that this request goes on with, and how many of its items that had sent.

        All of them: it is another, with the same beginning, unless there is no good answer: then it was tried again.
        """
        for known in range(len(prefixes), 0, -1):
            found = self._by_prefix.get(prefixes[known - 1], [])
            if known == len(pieces):
                found = [chain for chain in found if chain.may_come_again]
            if found:
                expecting = (chain for chain in reversed(found) if chain.expects(*pieces[known : known + 1]))
                return next(expecting, found[-1]), known
        return None, 0

    def _index(self, chain: Chain, prefix: bytes) -> None:
        if chain.prefix is not None:
            self._by_prefix[chain.prefix].remove(chain)
            if not self._by_prefix[chain.prefix]:
                del self._by_prefix[chain.prefix]
        chain.prefix = prefix
        self._by_prefix.setdefault(prefix, []).append(chain)

    def _new_chain(self) -> Chain:
        chain = Chain(self._trace, form=_FORMS.get(self._dialect, "suspended"))
        self.chains.append(chain)
        return chain

    # --- what a server says ---

    def _server(self, frame: Mapping[str, Any], seconds: float, lane: _Lane) -> None:
        kind = str(frame.get("type"))
        if kind == "response.created":
            self._created(object_at(frame, "response"), seconds, lane)
        elif kind == "http.response":
            self._answered(frame, seconds, lane)
        elif kind == "error":
            self._refuse(seconds, lane)
        elif kind == "response.done" or kind in TERMINAL_TYPES:
            self._over(object_at(frame, "response"), seconds, lane, kind)
        elif kind.startswith("response.") and kind not in _NO_OUTPUT and ".inject." not in kind:
            self._output(frame if kind == "response.output_item.done" else {}, seconds, lane)

    def _created(self, response: Mapping[str, Any], seconds: float, lane: _Lane) -> None:
        response_id = text_at(response, "id") or ""
        known = self._by_response.get(response_id)
        if (
            known is not None and not lane.asked
        ):  # the client reads on elsewhere; ids may be used again in other traces
            lane.chain, lane.response_id = known, response_id
            return
        if lane.asked:
            chain = lane.asked.popleft()
        else:
            chain = self._guessed(response)
            chain.pending.clear()
            chain.may_come_again = False
            chain.moment(self._clock, seconds, "sent")
        if response_id:
            self._by_response[response_id] = chain
        chain.responses += 1
        chain.saying.add(response_id)
        chain.first_response = chain.first_response or response_id or None
        lane.chain = self._last = chain
        lane.response_id = response_id
        lane.said_items = lane.paused = False

    def _guessed(self, response: Mapping[str, Any]) -> Chain:
        """Nobody was seen to ask for it."""
        named = response.get("previous_response_id")
        previous = self._by_response.get(str(named))
        if previous is not None:
            previous.form = "create"
            return previous
        last = None if named is not None or self._has_requests else self._last
        if last is not None and (last.pending or last.may_come_again):
            last.guessed = True
            return last
        return self._new_chain()

    def _answered(self, frame: Mapping[str, Any], seconds: float, lane: _Lane) -> None:
        """By HTTP: refused, or all at once, or by the events that follow."""
        status, body = frame.get("status"), frame.get("body")
        if isinstance(status, int) and status >= 400:
            self._refuse(seconds, lane)
        elif isinstance(body, dict) and body.get("object") == "response" and self._is_new(body):
            self._created(body, seconds, lane)
            self._over(body, seconds, lane, f"response.{body.get('status')}")

    def _is_new(self, response: Mapping[str, Any]) -> bool:
        return bool(response.get("id")) and str(response["id"]) not in self._by_response

    def _refuse(self, seconds: float, lane: _Lane) -> None:
        if lane.asked:
            chain = lane.asked.popleft()
            chain.may_come_again = True
            chain.refusals += 1
            chain.moment(self._clock, seconds, "over")

    def _output(self, frame: Mapping[str, Any], seconds: float, lane: _Lane) -> None:
        """Something of the answer; `frame`: of an item that is whole, or empty."""
        chain = lane.chain
        if chain is None:
            return
        if lane.paused and not self._has_requests:  # it was answered, unseen
            chain.pending.clear()
            chain.moment(self._clock, seconds, "sent")
        lane.paused = False
        chain.saying.add(lane.response_id)
        item = object_at(frame, "item")
        if item:
            lane.said_items = True
        is_call = bool(item) and chain.says(item)
        chain.moment(self._clock, seconds, "call" if is_call else "output")

    def _over(self, response: Mapping[str, Any], seconds: float, lane: _Lane, kind: str) -> None:
        response_id = text_at(response, "id") or lane.response_id
        chain = self._by_response.get(response_id) or lane.chain
        if chain is None:
            self._note("an answer that does not begin in this log: it is not counted")
            return
        if not lane.said_items:
            for item in objects(response.get("output")):
                chain.says(item)
        chain.used(response.get("usage"))
        chain.moment(self._clock, seconds, "over")
        chain.saying.discard(response_id)
        chain.may_come_again = kind in _FAILED
        lane.paused = kind == "response.done"
