"""Steering: a user's word to a response that is being made (reference 4.6).

Accepted means queued: the response ends at the end of the item it is writing, and a successor with the words as input
starts by itself. If the response has stopped for the client's outputs instead, the words wait for the create that brings
them and go in front of its input.
A submission is never lost: it is applied, or given back unchanged.
"""

from collections.abc import Iterator

import attrs

from engine.intake import input_items
from engine.snapshot import Snapshot
from protocol.errors import refusal
from protocol.events import ResponseCreate, ResponseSteer, Steer, SteerAccepted, SteerFailed, SteerPending
from protocol.items import CALLS, CustomToolCall, Item, Message
from protocol.session import steer_failed


@attrs.frozen
class Submission:
    """A steer that was accepted."""

    id: str
    steer: ResponseSteer

    @property
    def items(self) -> tuple[Item, ...]:
        """Its words as items."""
        words = self.steer.input
        return (Message("user", words),) if isinstance(words, str) else words


class Steering:
    """The submissions of one lane, from acceptance to their successor."""

    __slots__ = ("_limit", "_waiting_for", "submissions")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.submissions: tuple[Submission, ...] = ()
        self._waiting_for: str | None = None
        """The steered response, once it has ended: the create that continues it takes the submissions along."""

    def accept(self, steer: ResponseSteer, submission_id: str) -> SteerAccepted:
        """Queue a submission. `RemoteProtocolError`: as many as may wait do so already."""
        if len(self.submissions) >= self._limit:
            raise refusal("too_many_steers", response_id=steer.previous_response_id, limit=self._limit)
        self.submissions, self._waiting_for = (*self.submissions, Submission(submission_id, steer)), None
        return SteerAccepted(Steer(steer.previous_response_id, submission_id))

    def response_ended(self, snapshot: Snapshot | None) -> Iterator[SteerPending | SteerFailed]:
        """What is said of each submission when the steered response has ended; None = it cannot be continued."""
        if snapshot is None:
            yield from self.fail("it failed.")
        elif snapshot.calls.pending:
            self._waiting_for = snapshot.response_id
            required = tuple(_stub(item) for item in _pending_calls(snapshot))
            for submission in self.submissions:
                steered = Steer(submission.steer.previous_response_id, submission.id)
                yield SteerPending("waiting_for_required_input", required, steered)

    def successor(self, create: ResponseCreate, snapshot: Snapshot | None) -> ResponseCreate | None:
        """The create that applies the submissions: all settings of the steered one, the words as its input."""
        if not self.submissions or snapshot is None or snapshot.calls.pending:
            return None
        self._waiting_for = snapshot.response_id
        return attrs.evolve(create, input=(), previous_response_id=snapshot.response_id)

    def joined(self, create: ResponseCreate) -> ResponseCreate:
        """A create that takes the waiting submissions along, if it is the one for them; else unchanged."""
        if not self.takes(create):
            return create
        words = tuple(item for submission in self.submissions for item in submission.items)
        return attrs.evolve(create, input=(*words, *input_items(create)))

    def takes(self, create: ResponseCreate) -> bool:
        """Is this the create that the submissions wait for?"""
        return bool(self.submissions) and create.previous_response_id == self._waiting_for

    def applied(self) -> None:
        """The successor exists: that is the commit point."""
        self.submissions, self._waiting_for = (), None

    def fail(self, reason: str) -> Iterator[SteerFailed]:
        """Give every submission back."""
        submissions = self.submissions
        self.applied()
        for submission in submissions:
            error = refusal(
                "successor_failed", response_id=submission.steer.previous_response_id, reason=reason
            )
            yield steer_failed(submission.steer, error, submission.id)


def _pending_calls(snapshot: Snapshot) -> Iterator[Item]:
    pending = set(snapshot.calls.pending)
    output = snapshot.resource.output if snapshot.resource is not None else ()
    return (item for item in output if isinstance(item, CALLS) and item.call_id in pending)


def _stub(call: Item) -> dict[str, str]:
    """What the client must send; outputs of custom tools have no name (reference 4.6)."""
    assert isinstance(call, CALLS)
    stub = {"type": f"{call.type}_output", "call_id": call.call_id}
    return stub if isinstance(call, CustomToolCall) else {**stub, "name": call.name}


def check_steer(steer: ResponseSteer) -> None:
    """`RemoteProtocolError` if the frame itself cannot be taken."""
    if steer.fault is not None:
        raise refusal("steer_input", reason=steer.fault)
