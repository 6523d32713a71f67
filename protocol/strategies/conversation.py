"""One create and what follows: a rollout with its pauses, the client's moves in them, and its end."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from protocol.errors import RemoteProtocolError, refusal
from protocol.strategies.book import Book, Left, Parent, said
from protocol.strategies.outputs import Call, Move, output_of
from protocol.strategies.plans import (
    CUT_ENDINGS,
    Item,
    Rollout,
    Segment,
    Turn,
    call_id,
)
from protocol.strategies.requests import append_frame, inject_frame
from protocol.strategies.speaker import Speaker, Tokens

JSON = dict[str, Any]

DEADLINE_SECONDS: Final = 30
"""How long a suspended response waits, in every trace that has such an end."""

_STOPS: Final = {
    "completed": "stop",
    "length": "length",
    "tool calls": "max_tool_calls",
    "failed": "error",
    "cancelled": "cancel",
    "disconnected": "cancel",
    "steered": "stop",
}
_REASONS: Final = {"length": "max_output_tokens", "tool calls": "max_tool_calls", "steered": "steered"}


class Conversation:
    """One turn that is not refused; and the next one, if its create comes meanwhile or of itself."""

    def __init__(self, book: Book, turn: Turn, parent: Parent | None, conn: str) -> None:
        self._book = book
        self._turn = turn
        self._parent = parent
        self._conn = conn
        self._calls: list[Call] = []
        """All calls of the rollout, in call order."""
        self._open: list[str] = []
        """Those without an output."""
        self._taken: list[str] = []
        """Those with one that is not in the context yet."""
        self._speaker = self._make_speaker(turn.rollout, parent)

    def _make_speaker(self, rollout: Rollout, parent: Parent | None) -> Speaker:
        held = parent.tokens if parent else 0
        fresh = 1 + len(parent.calls if parent else ())
        members = {"previous_response_id": parent.response_id if parent else None, "store": self._is_http}
        tokens = Tokens(held + fresh, held)
        return Speaker(self._put, rollout.number, self._book.dialect, self._turn.lane, tokens, **members)

    @property
    def _is_http(self) -> bool:
        return self._book.dialect == "http"

    def _put(self, frame: JSON) -> None:
        self._book.put(self._conn, "out", frame)

    def _send(self, frame: JSON) -> None:
        self._book.put(self._conn, "in", frame)

    def _hook(self, name: str, **members: Any) -> None:
        self._book.hook(self._conn, name, response_id=self._speaker.id, **members)

    def _refuse(self, error: RemoteProtocolError) -> None:
        lane = {} if self._turn.lane is None else {"stream_id": self._turn.lane}
        detail = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
        self._put({"type": "error", "status": error.status, "error": detail, **lane})

    # --- from the create to the end -------------------------------------------------------------------------------

    def write(self) -> Iterator[None]:
        """All of it; yields after each record or two."""
        members: JSON = {"generate": False} if self._turn.warm_up else {}
        if self._parent is not None:
            outputs = [output_of(call) for call in self._parent.calls]
            members |= {"previous_response_id": self._parent.response_id, "input": [*outputs, said("go on")]}
        self._book.ask(self._turn, self._conn, **members)
        yield
        self._book.abandon(self._turn.lane)
        if self._is_http:
            self._put({"type": "http.response", "status": 200})
        steered = self._turn.rollout.ending == "steered"
        waits = self._turn.next is not None and not steered
        yield from self._write_rollout(self._turn.rollout, next_waits=waits)
        if self._turn.next is not None and not self._turn.warm_up and not self._book.over:
            yield from self._write_next(self._turn.next, steered=steered)

    def _write_next(self, rollout: Rollout, *, steered: bool) -> Iterator[None]:
        """The successor of a steered response, which nobody asks for; or the create that waited."""
        parent = self._book.parents.get(self._turn.lane) if steered else None
        self._calls, self._open, self._taken = [], [], []
        self._speaker = self._make_speaker(rollout, parent)
        self._parent = parent
        yield from self._write_rollout(rollout)

    def _write_rollout(self, rollout: Rollout, *, next_waits: bool = False) -> Iterator[None]:
        self._hook("pre_inference")
        yield from self._speaker.say_begin()
        if self._turn.warm_up:
            self._end("completed", "stop")
            return
        if next_waits:
            self._book.ask(self._turn, self._conn)
            yield
        last = len(rollout.segments) - 1
        for place, segment in enumerate(rollout.segments):
            yield from self._write_segment(rollout, segment, place, is_last=place == last)
        yield from self._finish(rollout)

    # --- segments and pauses --------------------------------------------------------------------------------------

    def _write_segment(
        self, rollout: Rollout, segment: Segment, place: int, *, is_last: bool
    ) -> Iterator[None]:
        moves = list(segment.moves[:-1] if is_last else segment.moves)
        before = len(self._calls)
        for number, item in enumerate(segment.items, 1):
            final = is_last and number == len(segment.items)
            cut = rollout.cut if final and rollout.ending in CUT_ENDINGS and not segment.calls else None
            name = call_id(rollout.number, place, len(self._calls) - before)
            yield from self._write_item(rollout, item, Call(name, item.type), cut, final=final)
            while moves and not moves[0].paused and moves[0].after <= len(self._calls) - before:
                yield from self._move(moves.pop(0))
        if self._suspends and segment.calls:
            yield from self._pause(rollout, moves, is_last=is_last)

    @property
    def _suspends(self) -> bool:
        return self._book.dialect in ("append", "inject")

    def _write_item(
        self, rollout: Rollout, item: Item, call: Call, cut: int | None, *, final: bool
    ) -> Iterator[None]:
        ends = final and rollout.ending == "completed"
        events = self._speaker.say_item(
            item,
            call_id=call.call_id,
            status="incomplete" if final and rollout.ending == "length" else "completed",
            phase="final_answer" if ends else "commentary",
        )
        yield from events if cut is None else islice(events, cut)
        if item.is_call:
            self._calls.append(call)
            self._open.append(call.call_id)

    def _pause(self, rollout: Rollout, moves: Sequence[Move], *, is_last: bool) -> Iterator[None]:
        """The end of a segment with calls: a wait, unless all outputs are there already."""
        self._hook("sampler_stop", reason="tool_call")
        waits = bool(self._open)
        if waits:
            self._hook("suspend", pending=list(self._open))
            if self._book.dialect == "append":
                self._speaker.say_done()
            yield
            if rollout.stray:
                yield from self._stray()
        for move in moves:
            yield from self._move(move)
        if is_last:
            return
        ordered = [call.call_id for call in self._calls if call.call_id in self._taken]
        if waits:
            self._hook("resume", outputs=ordered)
        self._speaker.tokens.resumed(len(ordered))
        self._taken = []

    # --- the client's moves ---------------------------------------------------------------------------------------

    def _move(self, move: Move) -> Iterator[None]:
        """A frame of the client and its answer, if it gets one."""
        error = None
        if move.refused is not None:
            code, message = move.refused
            error = RemoteProtocolError(code, message, param="input")
        yield from self._answered(move.input, error)
        if error is None:
            self._open = [name for name in self._open if name not in move.answers]
            self._taken += move.answers

    def _answered(self, batch: Sequence[Any], error: RemoteProtocolError | None) -> Iterator[None]:
        if self._book.dialect == "append":
            self._send(append_frame(batch, self._turn.lane))
            yield
            if error is not None:
                self._refuse(error)
            else:
                self._hook("accepted", call_ids=_answers(batch))
        else:
            self._send(inject_frame(batch, self._speaker.id))
            yield
            if error is not None:
                failure = {"code": error.code, "message": error.message}
                self._speaker.say(
                    "inject.failed", response_id=self._speaker.id, input=list(batch), error=failure
                )
            else:
                self._hook("accepted", call_ids=_answers(batch))
                self._speaker.say("inject.created", response_id=self._speaker.id)
        yield

    def _stray(self) -> Iterator[None]:
        """An output for a response that nobody knows: refused, and this one is as it was."""
        call = next(call for call in self._calls if call.call_id in self._open)
        batch, error = [output_of(call)], refusal("response_not_found", response_id="resp_nobody")
        if self._book.dialect == "append":
            self._send({**append_frame(batch, self._turn.lane), "response_id": "resp_nobody"})
            yield
            self._refuse(error)
        else:
            self._send(inject_frame(batch, "resp_nobody"))
            yield
            failure = {"code": error.code, "message": error.message}
            self._put(
                {
                    "type": "response.inject.failed",
                    "sequence_number": 0,
                    "response_id": "resp_nobody",
                    "input": batch,
                    "error": failure,
                }
            )
        yield

    # --- the end --------------------------------------------------------------------------------------------------

    def _finish(self, rollout: Rollout) -> Iterator[None]:
        ending = rollout.ending
        if ending == "left":
            self._book.left[self._turn.lane] = Left(self._speaker, self._as_parent())
            return
        if ending == "disconnected":
            self._book.over = True
            self._book.hook(self._conn, "connection_close", by="client", code=1006)
            self._hook("sampler_stop", reason="cancel")
            self._hook("post_inference", usage=self._speaker.tokens.ledger())
            return
        if ending == "expired":
            self._book.seconds += DEADLINE_SECONDS - 1
            self._end("completed" if self._book.dialect == "inject" else "expired", None)
        elif ending == "cancelled":
            yield from self._ask_to_cancel()
            self._end("cancelled", None if self._open else "cancel")
        else:
            if ending == "steered":
                yield from self._steer()
            if ending == "failed" and self._is_http:
                self._speaker.say_error("The server had an error while processing your request.")
                yield
            self._end(ending, _STOPS[ending])
        yield
        if rollout.late and self._calls and self._suspends:
            row = "nothing_open" if self._book.dialect == "append" else "already_completed"
            error = refusal(row, response_id=self._speaker.id)
            yield from self._answered([output_of(self._calls[-1], "late")], error)

    def _end(self, ending: str, stop: str | None) -> None:
        """Hooks, the terminal event, and what is left behind."""
        speaker, lane = self._speaker, self._turn.lane
        if stop is not None:
            self._hook("sampler_stop", reason=stop)
        rows: dict[str, tuple[str, JSON]] = {
            "failed": (
                "failed",
                _error("server_error", "The server had an error while processing your request."),
            ),
            "cancelled": ("failed", _error("response_cancelled", f"Response '{speaker.id}' was cancelled.")),
            "expired": (
                "failed",
                _error(
                    "server_error",
                    f"Suspended response '{speaker.id}' received no tool output within {DEADLINE_SECONDS} s.",
                ),
            ),
        }
        kind, members = rows.get(ending, ("completed", {}))
        if ending in _REASONS:
            kind, members = "incomplete", {"incomplete_details": {"reason": _REASONS[ending]}}
        status = "cancelled" if ending == "cancelled" else None
        usage = speaker.final_usage(kind)
        self._hook("post_inference", usage=speaker.tokens.ledger())
        speaker.say_end(kind, status or kind, usage=usage, **members)
        if self._is_http:
            self._put("[DONE]")  # type: ignore[arg-type]  # the one frame that is no object
        if kind != "failed":
            self._book.parents[lane] = self._as_parent()
        elif ending != "cancelled" and self._parent is not None:
            self._book.evict(lane, self._parent.response_id)

    def _as_parent(self) -> Parent:
        calls = tuple(call for call in self._calls if call.call_id in self._open)
        tokens = self._speaker.tokens
        return Parent(self._speaker.id, calls, tokens.context + tokens.sampled)

    def _ask_to_cancel(self) -> Iterator[None]:
        conn, path = f"x{self._turn.rollout.number}", f"/v1/responses/{self._speaker.id}/cancel"
        self._book.put(conn, "in", {"type": "http.request", "method": "POST", "path": path, "body": {}})
        yield
        body = {"id": self._speaker.id, "object": "response", "status": "cancelled"}
        self._book.put(conn, "out", {"type": "http.response", "status": 200, "body": body})

    def _steer(self) -> Iterator[None]:
        response_id = self._speaker.id
        self._send({"type": "response.steer", "previous_response_id": response_id, "input": "shorter"})
        yield
        steer = {"id": f"steer_{self._turn.rollout.number}", "previous_response_id": response_id}
        self._speaker.say("steer.accepted", steer=steer)
        yield


def _answers(batch: Sequence[Any]) -> list[str]:
    return [item["call_id"] for item in batch if "call_id" in item]


def _error(code: str, message: str) -> JSON:
    return {"error": {"code": code, "message": message}}
