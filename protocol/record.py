"""One response as both sides see it: its state, walked along `protocol.states`, its numbers, its pending calls.

- An illegal event is a failed lookup in the table; it changes nothing and raises with event, state and dialect.
- A number is taken only after the encoding succeeded: a failed encode burns none.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from protocol import codec, events
from protocol.dialects import Dialect
from protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from protocol.events import OutputItemDone, ServerEvent
from protocol.pending import PendingCalls
from protocol.states import TERMINAL, Kind, ResponseState, step
from protocol.templates import Make, Template, fill_pieces, template_of

_LIFECYCLE: Final = frozenset(
    {
        events.ResponseCreated,
        events.ResponseInProgress,
        events.ResponseDone,
        *events.TERMINAL_CLASSES,
        events.InjectCreated,
        events.InjectFailed,
        events.SteerAccepted,
        events.SteerPending,
        events.SteerFailed,
    }
)
"""Events of the response as a whole: they carry no agent (reference 5A)."""


DeltaWriter = Callable[[Sequence[str]], list[bytes]]
"""Makes the frames of pieces of one place: their deltas."""


class Record:
    """One response: state, numbers, pending calls. `send` is the server's half, `follow` the client's."""

    __slots__ = (
        "_flows",
        "dialect",
        "next_number",
        "pending",
        "response_id",
        "state",
        "stream_id",
    )

    def __init__(self, response_id: str, dialect: Dialect, stream_id: str | None = None) -> None:
        self.response_id = response_id
        self.dialect = dialect
        self.stream_id = stream_id
        self.state = ResponseState.IDLE
        self.pending = PendingCalls(response_id, dialect)
        self.next_number = 0
        self._flows = False
        """Output was found legal, and nothing was sent since but more of it."""

    @property
    def _lane(self) -> dict[str, Any]:
        """Of every event. Made anew each time: a dict is as large as the rest of a record, and thousands of them wait."""
        return {} if self.stream_id is None else {"stream_id": self.stream_id}

    @property
    def _extras(self) -> dict[str, Any]:
        """Of events that are not of the response as a whole."""
        return codec.extras_of(self.dialect.agent, self.stream_id)

    @property
    def ended(self) -> bool:
        """Was a terminal event sent or seen?"""
        return self.state in TERMINAL

    def send(self, event: ServerEvent) -> bytes:
        """Advance by `event`, number it, encode it. `LocalProtocolError`: illegal here; nothing changed."""
        after = self._after(event, LocalProtocolError)
        extras = self._lane if type(event) in _LIFECYCLE else self._extras
        text = codec.encode(event, {"sequence_number": self.next_number, **extras})
        self.next_number += 1
        self._advance(event, after)
        return text

    def open(
        self, opening: Make, item_id: str, output_index: int, *texts: str
    ) -> tuple[tuple[str, ...], list[bytes], DeltaWriter]:
        """`send` for what `opening` makes of these values, but for its last, a delta: that is sent for each piece written.

        The hot path: no event is made for what is only bytes. → the types of all its events, the frames of all but the last,
        and what makes that of each piece; it raises as `send` does, and then has sent nothing.
        """
        template = template_of(opening, len(texts), self.dialect.agent)
        frames = self._fill(template, item_id, output_index, texts) if len(template.kinds) > 1 else []
        kind, pattern = template.kinds[-1], template.delta(item_id, output_index, self.stream_id)

        def write(pieces: Sequence[str]) -> list[bytes]:
            number = self.next_number
            if self._flows:
                written = fill_pieces(pattern, pieces, number)
            else:
                after, written = self._output(kind), fill_pieces(pattern, pieces, number)
                self.state, self._flows = after, True
            self.next_number = number + len(written)
            return written

        return template.kinds, frames, write

    def send_made(
        self, make: Make, item_id: str, output_index: int, *texts: str
    ) -> tuple[tuple[str, ...], list[bytes]]:
        """`send` for what `make` makes of these values, no `output_item.done` among it → types and frames."""
        template = template_of(make, len(texts), self.dialect.agent)
        return template.kinds, self._fill(template, item_id, output_index, texts)

    def _fill(self, template: Template, item_id: str, output_index: int, texts: Sequence[str]) -> list[bytes]:
        after = self.state if self._flows else self._output(template.kinds[0])
        frames = template.fill(self.next_number, item_id, output_index, texts, self.stream_id)
        # judged once: output leads to SAMPLING, where more of it is legal on no condition and changes nothing
        self.state, self._flows = after, True
        self.next_number += len(frames)
        return frames

    def follow(self, event: ServerEvent, number: int | None) -> None:
        """The client's half of `send`: `RemoteProtocolError` if the server broke the order or the numbers."""
        after = self._after(event, violation)
        # `response.done` is tolerated without a number: the prototype's client accepts that
        if number is not None or not isinstance(event, events.ResponseDone):
            if number != self.next_number:
                raise violation(f"sequence_number {number} of {event.type} should be {self.next_number}")
            self.next_number += 1
        self._advance(event, after)

    def pass_over(self, number: int | None) -> None:
        """An event of unknown type: no state changes, but it may have taken this response's next number."""
        if number == self.next_number:
            self.next_number += 1

    def _after(self, event: ServerEvent, error: Any) -> ResponseState:
        return self._judged(events.kind_of(event), event.type, error)

    def _output(self, name: str) -> ResponseState:
        return self._judged(Kind.OUTPUT, name, LocalProtocolError)

    def _judged(self, kind: Kind, name: str, error: Any) -> ResponseState:
        after = step(self.dialect.name, self.state, kind, len(self.pending))
        if after is None:
            raise error(
                f"{name} is illegal in state {self.state.name} of the {self.dialect.name} form "
                f"with {len(self.pending)} pending calls (response {self.response_id})"
            )
        return after

    def _advance(self, event: ServerEvent, after: ResponseState) -> None:
        self.state = after
        self._flows = False
        if isinstance(event, OutputItemDone):
            self.pending.finished(event.item)


def violation(message: str) -> ProtocolError:
    """The server broke a rule."""
    return RemoteProtocolError("protocol_violation", message)
