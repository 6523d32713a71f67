"""A rollout's way to its client: the same frames traced or not, and a connection that is over swallows them."""

import attrs
import pytest

from engine.recorder import NoRecorder
from engine.transport import TransportClosed
from engine.wire_outbox import WireOutbox
from protocol.dialects import APPEND
from protocol.events import OutputItemAdded, OutputTextDelta, Response, ResponseCreated
from protocol.items import Message
from protocol.session import ServerSession

FIRST = OutputTextDelta("msg_1", 0, 0, "")
ADDED = OutputItemAdded(0, Message("assistant", (), "msg_1"))


def opening(_agent, item_id, index):
    return OutputItemAdded(index, Message("assistant", (), item_id)), OutputTextDelta(item_id, index, 0, "")


def closing(_agent, item_id, index):
    return (OutputItemAdded(index, Message("assistant", (), item_id)),)


def only_pieces(_agent, item_id, index):
    return (OutputTextDelta(item_id, index, 0, ""),)


class Wire:
    """A transport that keeps what it is given, until it is over."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.over = False

    def send_nowait(self, text: bytes) -> None:
        if not self.queue_all([text]):
            raise TransportClosed(1006, "")

    def queue_all(self, texts) -> bool:
        if not self.over:
            self.sent += texts
        return not self.over


class Told(NoRecorder):
    """A recorder that keeps frames."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def frame_out(self, text: bytes) -> None:
        self.frames.append(text)


def outbox(recorder) -> tuple[WireOutbox, Wire]:
    """With a response that has begun; frames are told to `recorder` as a connection does it."""
    wire = Wire()

    def send(text: bytes) -> None:
        try:
            wire.send_nowait(text)
        except TransportClosed:
            return
        recorder.frame_out(text)

    record = ServerSession(append=True).open("resp_1", APPEND, None)
    made = WireOutbox(record, send, wire, recorder)
    made.emit(ResponseCreated(Response("resp_1", 0, "m")))
    return made, wire


def test_pieces_are_the_same_frames_traced_or_not():
    """As one delta after the other, and the trace has each."""
    told = Told()
    (each, plainly), (quiet, untold), (loud, traced) = (
        outbox(NoRecorder()),
        outbox(NoRecorder()),
        outbox(told),
    )
    for event in (ADDED, attrs.evolve(FIRST, delta="a"), attrs.evolve(FIRST, delta="b"), ADDED):
        each.emit(event)
    for one in (quiet, loud):
        one.open(opening, "msg_1", 0)(["a", "b"])
        one.emit_made(closing, "msg_1", 0)
    assert plainly.sent == untold.sent == traced.sent == told.frames


@pytest.mark.parametrize("make", [NoRecorder, Told])
def test_a_connection_that_is_over_swallows_pieces(make):
    """Nothing fails, nothing is told, and the numbers go on."""
    recorder = make()
    made, wire = outbox(recorder)
    write = made.open(only_pieces, "msg_1", 0)
    write(["a"])
    wire.over = True
    write(["b", "c"])
    wire.over = False
    write(["d"])
    assert [0, 1, 4] == [
        int(text.split(b'"sequence_number":')[1].split(b",")[0].rstrip(b"}")) for text in wire.sent
    ]
    assert wire.sent == getattr(recorder, "frames", wire.sent)
