"""Which calls a context holds and which of them are open: the meaning check of input, in its incremental form.

The rules are those of reference 2.4 for creates: an output answers an earlier call of its own kind, once.
A batch is taken whole or not at all; a refused one changes nothing.
A client that uses a call id again after it was answered (some models number from zero each turn) opens a new call;
while the first is open the second is refused, since one output would answer both.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Final, Self

from protocol.errors import refusal
from protocol.items import (
    CALLS,
    OUTPUT_OF,
    OUTPUTS,
    Call,
    Item,
    ItemReference,
    Opaque,
    Output,
)

FEW_IDS: Final = 4


class CallLedger:
    """Calls, their outputs and item ids of one context; grows with it, never looks back."""

    __slots__ = ("_item_ids", "_kinds", "_pending")

    def __init__(self) -> None:
        self._kinds: dict[str, type] = {}
        self._pending: tuple[str, ...] = ()  # in call order
        self._item_ids: tuple[str, ...] | set[str] = ()  # a set of few has four times the size

    @classmethod
    def full(cls, items: Iterable[Item]) -> Self:
        """The ledger of a whole context. `RemoteProtocolError` as `admit`."""
        ledger = cls()
        ledger.admit(tuple(items))
        return ledger

    def fork(self) -> "CallLedger":
        """An independent copy; linear in the number of calls and ids."""
        copy = CallLedger()
        copy._kinds = self._kinds.copy()
        copy._pending = self._pending
        copy._item_ids = self._item_ids.copy() if isinstance(self._item_ids, set) else self._item_ids
        return copy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallLedger):
            return NotImplemented
        mine = (self._kinds, self._pending, set(self._item_ids))
        return mine == (other._kinds, other._pending, set(other._item_ids))

    __hash__ = None  # type: ignore[assignment]  # changes as it grows

    @property
    def pending(self) -> tuple[str, ...]:
        """Ids of the calls without output, in call order."""
        return self._pending

    def has_call(self, call_id: str) -> bool:
        """Whether the context has a call of this id, open or answered."""
        return call_id in self._kinds

    def admit(self, items: Sequence[Item], *, start: int = 0, all_answered: bool = False) -> tuple[Item, ...]:
        """Check and take the next items; returns them without references, whose items are in the context already.

        `start` is the place of the first one in the client's `input`, for the words of errors.
        `all_answered`: refuse also if a call is open at the end, as a create must.
        `RemoteProtocolError` (nothing taken): the first fault in order.
        """
        if (
            len(items) == 1
            and not all_answered
            and isinstance(output := items[0], OUTPUTS)
            and output.id is None
        ):
            self._answer(output)  # nearly all that comes later than a create
            return (output,)
        batch = _Batch(self._kinds, self._pending, self._item_ids)
        kept = tuple([item for place, item in enumerate(items, start) if batch.take(place, item)])
        if all_answered and batch.pending:
            raise refusal("no_output", call_id=next(iter(batch.pending)))
        self._kinds.update(batch.kinds)
        self._pending = tuple(batch.pending)
        self._know(batch.item_ids)
        return kept

    def _answer(self, output: Output) -> None:
        _check_answer(output, self._kinds.get(output.call_id), self._pending)
        self._pending = tuple([call_id for call_id in self._pending if call_id != output.call_id])

    def _know(self, item_ids: set[str]) -> None:
        if not isinstance(self._item_ids, set) and len(self._item_ids) + len(item_ids) > FEW_IDS:
            self._item_ids = set(self._item_ids)
        if isinstance(self._item_ids, set):
            self._item_ids |= item_ids
        elif item_ids:
            self._item_ids = (*self._item_ids, *item_ids)


class _Batch:
    """Changes that are not yet in the ledger, over the ledger's own state."""

    def __init__(
        self, kinds: dict[str, type], pending: tuple[str, ...], item_ids: tuple[str, ...] | set[str]
    ) -> None:
        self._known_kinds = kinds
        self._known_item_ids = item_ids
        self.kinds: dict[str, type] = {}
        self.pending = dict.fromkeys(pending)  # small: the calls of one segment
        self.item_ids: set[str] = set()

    def take(self, place: int, item: Item) -> bool:
        """Note one item; False for a reference, which adds nothing to the context."""
        if isinstance(item, ItemReference):
            if item.id not in self.item_ids and item.id not in self._known_item_ids:
                raise refusal("item_not_found", id=item.id)
            return False
        if isinstance(item, CALLS):
            self._take_call(place, item)
        elif isinstance(item, OUTPUTS):
            self._take_output(item)
        item_id = item.raw.get("id") if isinstance(item, Opaque) else item.id
        if isinstance(item_id, str):
            self.item_ids.add(item_id)
        return True

    def _take_call(self, place: int, call: Call) -> None:
        if call.call_id in self.pending:
            raise refusal("invalid_value", field=f"input[{place}].call_id")
        self.kinds[call.call_id] = type(call)
        self.pending[call.call_id] = None

    def _take_output(self, output: Output) -> None:
        kind = self.kinds.get(output.call_id) or self._known_kinds.get(output.call_id)
        _check_answer(output, kind, self.pending)
        del self.pending[output.call_id]


def _check_answer(output: Output, kind: type | None, pending: Container[str]) -> None:
    """`kind`: the class of the call that it answers."""
    if kind is None or not isinstance(output, OUTPUT_OF[kind]):
        raise refusal("no_call", call_id=output.call_id)
    if output.call_id not in pending:
        raise refusal("has_output", call_id=output.call_id)
