"""Which sequence lies in which slot of a llama.cpp server. Without I/O; only taking a slot may wait.

A server has a fixed number of slots, and each keeps the state of the last sequence that was in it. There may be more
handles than slots: whoever needs one takes its own, else one that nobody owns, else the one whose owner was away longest.
The owner that lost it is cold, which is no harm, as its tokens are the truth. Who waits for a slot is served in turn.
"""

from array import array

import attrs
import trio


@attrs.define(eq=False)
class LlamaHandle:
    """The state of one sequence: in a slot, in a file, or nowhere."""

    number: int
    tokens: "array[int]" = attrs.field(factory=lambda: array("I"))
    """Those that the state stands for; the last one may not have been read yet."""
    slot: "Slot | None" = None
    file: str | None = None
    """Where a saved state lies, by the server's naming."""
    restored: bool = False
    """It was brought back, and nobody has seen yet whether that worked."""

    @property
    def resident_tokens(self) -> int:
        """How many tokens are believed to be in the slot."""
        return max(0, len(self.tokens) - 1) if self.slot is not None else 0


@attrs.define(eq=False)
class Slot:
    """One place of the server."""

    index: int
    owner: LlamaHandle | None = None
    busy: bool = False
    used: int = 0
    """When: a larger number is later."""


class Slots:
    """All places of one server."""

    def __init__(self, count: int) -> None:
        self._slots = [Slot(index) for index in range(count)]
        self._turns = trio.CapacityLimiter(count)
        """As many turns as slots: who has one finds a slot that is not busy."""
        self._uses = 0
        self.evictions = 0
        """How many states were lost to others."""

    @property
    def count(self) -> int:
        """How many places there are."""
        return len(self._slots)

    @property
    def owned(self) -> int:
        """How many places hold the state of a handle."""
        return sum(slot.owner is not None for slot in self._slots)

    async def take(self, handle: LlamaHandle) -> Slot:
        """A slot for a handle, busy until it is given back; a checkpoint. It may hold anything but for its own state."""
        turns = self._turns
        await turns.acquire_on_behalf_of(handle)
        slot = handle.slot or self._oldest()
        if slot.owner is not handle:
            self._disown(slot)
            slot.owner, handle.slot = handle, slot
        slot.busy = True
        return slot

    def take_own_nowait(self, handle: LlamaHandle) -> Slot | None:
        """The handle's own slot; None if it has none, or if others wait for one, who will use it at once."""
        if handle.slot is None or handle.slot.busy:
            return None
        try:
            self._turns.acquire_on_behalf_of_nowait(handle)
        except trio.WouldBlock:
            return None
        handle.slot.busy = True
        return handle.slot

    def give_back(self, handle: LlamaHandle, slot: Slot) -> None:
        """The handle is done for now. If it still owns the slot, its state stays there until somebody needs the place."""
        self._uses += 1
        slot.busy, slot.used = False, self._uses
        self._turns.release_on_behalf_of(handle)

    def leave(self, handle: LlamaHandle) -> None:
        """The handle gives its slot up for good, if it has one."""
        if handle.slot is not None:
            handle.slot.owner = None
            handle.slot = None

    def lose(self, handle: LlamaHandle) -> None:
        """The state in the handle's slot is gone."""
        self.leave(handle)
        handle.tokens = array("I")

    def forget(self) -> None:
        """The server began anew, so what it held is lost. Places in use stay in use."""
        for slot in self._slots:
            if not slot.busy and slot.owner is not None:
                self.lose(slot.owner)

    def _oldest(self) -> Slot:
        idle = [slot for slot in self._slots if not slot.busy]
        return min(idle, key=lambda slot: (slot.owner is not None, slot.used))

    def _disown(self, slot: Slot) -> None:
        if slot.owner is not None:
            self.evictions += 1
            self.lose(slot.owner)
