"""Steering: a user's word to a response that is being made (reference 4.6).

Accepted means queued: the response ends at the end of the item it is writing, and a successor with the words as input
starts by itself. If the response has stopped for the client's outputs instead, the words wait for the create that brings
them and go in front of its input.
A submission is never lost: it is applied, or given back unchanged; also when another response takes the lane, from which
nobody can come back to the steered one.
"""

from collections.abc import Iterator

import attrs

from engine.intake import input_items
from engine.snapshot import Snapshot
from protocol.errors import refusal
from protocol.events import ResponseCreate, ResponseSteer, Steer, SteerAccepted, SteerFailed, SteerPending
from protocol.items import CALLS, OUTPUT_OF, FunctionCall, Item, Message
from protocol.session import steer_failed


@attrs.frozen
class Submission:
    """A steer that was accepted."""

    id: str
    steer: ResponseSteer

    @property
    def steered(self) -> str:
        """The response that it is for."""
        return self.steer.previous_response_id

    @property
    def items(self) -> tuple[Item, ...]:
        """Its words as items."""
        words = self.steer.input
        return (Message("user", words),) if isinstance(words, str) else words


class Steering:
    """The submissions of one lane, from acceptance to the successor of the response that each is for."""

    __slots__ = ("_limit", "submissions")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.submissions: tuple[Submission, ...] = ()

    def to(self, response_id: str | None) -> tuple[Submission, ...]:
        """Those that are for this response, in their order."""
        return tuple(some for some in self.submissions if some.steered == response_id)

    def accept(self, steer: ResponseSteer, submission_id: str) -> SteerAccepted:
        """Queue a submission. `RemoteProtocolError`: as many as may wait do so already."""
        steered = steer.previous_response_id
        if len(self.to(steered)) >= self._limit:
            raise refusal("too_many_steers", response_id=steered, limit=self._limit)
        self.submissions = (*self.submissions, Submission(submission_id, steer))
        return SteerAccepted(Steer(steered, submission_id))

    def response_ended(
        self, response_id: str, snapshot: Snapshot | None
    ) -> Iterator[SteerPending | SteerFailed]:
        """What is said of the submissions when a response of the lane has ended; no snapshot: nothing can continue it."""
        if snapshot is None:
            yield from self.fail(response_id, "it failed.")
            return
        for other in {some.steered: None for some in self.submissions if some.steered != response_id}:
            yield from self.fail(other, "another response has taken its lane.")
        if snapshot.calls.pending:
            required = tuple(_stub(item) for item in _pending_calls(snapshot))
            for submission in self.to(response_id):
                yield SteerPending(
                    "waiting_for_required_input", required, Steer(submission.steered, submission.id)
                )

    def successor(self, create: ResponseCreate, snapshot: Snapshot | None) -> ResponseCreate | None:
        """The create that applies the submissions: all settings of the steered one, the words as its input."""
        if snapshot is None or snapshot.calls.pending or not self.to(snapshot.response_id):
            return None
        return attrs.evolve(create, input=(), previous_response_id=snapshot.response_id)

    def joined(self, create: ResponseCreate) -> ResponseCreate:
        """A create that takes waiting submissions along, if it is the one for them; else unchanged."""
        submissions = self.to(create.previous_response_id)
        if not submissions:
            return create
        words = tuple(item for submission in submissions for item in submission.items)
        return attrs.evolve(create, input=(*words, *input_items(create)))

    def applied(self, response_id: str | None) -> None:
        """The successor of this response exists: that is the commit point."""
        self.submissions = tuple(some for some in self.submissions if some.steered != response_id)

    def fail(self, response_id: str | None, reason: str) -> Iterator[SteerFailed]:
        """Give every submission to this response back."""
        submissions = self.to(response_id)
        self.applied(response_id)
        for submission in submissions:
            error = refusal("successor_failed", response_id=submission.steered, reason=reason)
            yield steer_failed(submission.steer, error, submission.id)


def _pending_calls(snapshot: Snapshot) -> Iterator[Item]:
    pending = set(snapshot.calls.pending)
    output = snapshot.resource.output if snapshot.resource is not None else ()
    return (item for item in output if isinstance(item, CALLS) and item.call_id in pending)


def _stub(call: Item) -> dict[str, str]:
    """What the client must send; only outputs of functions have a name (reference 4.6)."""
    assert isinstance(call, CALLS)
    kind = attrs.fields_dict(OUTPUT_OF[type(call)])["type"].default
    stub = {"type": str(kind), "call_id": call.call_id}
    return {**stub, "name": call.name} if isinstance(call, FunctionCall) else stub


def check_steer(steer: ResponseSteer) -> None:
    """`RemoteProtocolError` if the frame itself cannot be taken."""
    if steer.fault is not None:
        raise refusal("steer_input", reason=steer.fault)
