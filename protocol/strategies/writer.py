"""Plans written down: a plan becomes a trace in which every rule of the protocol is kept.

The writer is the server and the client at once, so it knows what is legal next: which responses can be gone on from,
which calls wait, what an output is answered with. It holds no clock and draws nothing; one plan is one trace.
"""

from collections.abc import Iterator
from typing import Any, Final

import attrs

from protocol.errors import RemoteProtocolError, refusal
from protocol.strategies.book import Book, Parent
from protocol.strategies.conversation import DEADLINE_SECONDS, Conversation
from protocol.strategies.outputs import Call, output_of
from protocol.strategies.plans import Plan, Round, Turn

JSON = dict[str, Any]


@attrs.frozen
class Trace:
    """One trace: its header and its records, ready for a checker or, as JSON lines, for a file."""

    header: JSON
    records: tuple[JSON, ...]


def write(plan: Plan) -> Trace:
    """The trace of a plan."""
    return _Writer(plan).write()


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._book = Book(plan.dialect, plan.observed)
        self._requests = 0

    def write(self) -> Trace:
        if self._plan.dialect != "http":
            self._book.hook("c1", "connection_open")
        for round_ in self._plan.rounds:
            if not self._book.over:
                self._write_round(round_)
        if self._plan.dialect != "http" and not self._book.over:
            self._close()
        return Trace(self._header(), tuple(self._book.records))

    def _header(self) -> JSON:
        endings = {turn.rollout.ending for round_ in self._plan.rounds for turn in round_.turns}
        return {
            "trace": 1,
            "name": f"drawn, {self._plan.dialect} form",
            "dialect": self._plan.dialect,
            "transport": "sse" if self._plan.dialect == "http" else "websocket",
            "source": "protocol.strategies",
            "directions": ["in", "out", *(["hook"] if self._book.hooks else [])],
            "hooks": list(self._book.hooks),
            **({"suspend_deadline_s": DEADLINE_SECONDS} if "expired" in endings else {}),
        }

    def _close(self) -> None:
        self._book.hang_up("c1")
        for lane in list(self._book.left):
            self._book.abandon(lane)

    def _write_round(self, round_: Round) -> None:
        """Lets the lanes write a record each, in the plan's order, and then one after the other."""
        busy = {turn.lane for turn in round_.turns}
        running = [self._write_turn(turn, busy) for turn in round_.turns]
        order = iter(round_.order)
        while running:
            turn = running[next(order, 0) % len(running)]
            if next(turn, _END) is _END:
                running.remove(turn)

    def _write_turn(self, turn: Turn, busy: set[str | None]) -> Iterator[None]:
        http = self._plan.dialect == "http"
        self._requests += 1
        conn = f"c{self._requests}" if http else "c1"
        if http:
            self._book.hook(conn, "connection_open")
        parent = self._parent_of(turn, busy)
        if turn.refusal is not None and turn.lane not in self._book.left:
            yield from self._refuse(turn, parent, conn)
        else:
            yield from Conversation(self._book, turn, parent, conn).write()
        if http:
            self._book.hang_up(conn)

    def _parent_of(self, turn: Turn, busy: set[str | None]) -> Parent | None:
        """One of the responses that can be gone on from: the lane's own, and those of lanes that rest meanwhile."""
        book = self._book
        own = book.left[turn.lane].parent if turn.lane in book.left else book.parents.get(turn.lane)
        others = [parent for lane, parent in book.parents.items() if lane not in {*busy, *book.left}]
        found = [None, *([own] if own else []), *others]
        return found[turn.parent % len(found)]

    def _refuse(self, turn: Turn, parent: Parent | None, conn: str) -> Iterator[None]:
        """A create that cannot be, and its one answer. It takes the lane's own parent with it (reference 4.4)."""
        error, members = _refused(turn, parent)
        self._book.ask(turn, conn, **members)
        yield
        detail = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
        if self._plan.dialect == "http":
            answer = {"type": "http.response", "status": error.status, "body": {"error": detail}}
            self._book.put(conn, "out", answer)
            return
        lane = {} if turn.lane is None else {"stream_id": turn.lane}
        self._book.put(conn, "out", {"type": "error", "status": error.status, "error": detail, **lane})
        self._book.evict(turn.lane, members.get("previous_response_id"))


_END: Final = object()


def _refused(turn: Turn, parent: Parent | None) -> tuple[RemoteProtocolError, JSON]:
    """Why, and the members of the create that make it so."""
    going_on = {"previous_response_id": parent.response_id} if parent else {}
    if turn.refusal == "unknown parent":
        error = refusal("previous_not_found", response_id="resp_nobody")
        return error, {"previous_response_id": "resp_nobody"}
    if turn.refusal == "unknown output":
        return refusal("no_call", call_id="call_nobody"), {
            **going_on,
            "input": [output_of(Call("call_nobody"))],
        }
    return refusal("model_not_found", model="nobody"), {"model": "nobody"}
