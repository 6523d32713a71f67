"""Which sequence lies in which slot of a llama.cpp server. Without I/O; only taking a slot may wait.

    of a handle ──► released: found again by its tokens, by a handle of the same cache key ──► of that handle
        │ another's need                     │ another's need
        └──────────► taken with what is in it, which is not to be found (`Slot.foreign`)

A server has a fixed number of slots, and each keeps the state of the last sequence that was in it. There may be more
handles than slots: whoever needs one takes its own, else one whose content is of use to it, else an empty one, else the one
that was given up longest ago, else the one whose owner was away longest. The owner that lost it is cold, which is no harm,
as its tokens are the truth. Who waits for a slot is served in turn.

The server reuses whatever a slot has in common with a prompt. Between handles of one cache key that is as it should be. Of
another's state nobody may learn, not even by how soon an answer begins, so in a foreign slot the first prompt is read whole.
"""

from array import array

import attrs
import trio


@attrs.define(eq=False)
class LlamaHandle:
    """The state of one sequence: in a slot, in a file, or nowhere."""

    number: int
    cache_key: str | None = None
    """Who shares states with it; None: nobody."""
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
    foreign: bool = False
    """What is in it is not its owner's, who has not read anything yet: not to be reused."""
    tokens: "array[int]" = attrs.field(factory=lambda: array("I"))
    """What the last owner left, as `LlamaHandle.tokens`; nothing while there is an owner."""
    cache_key: str | None = None
    """Of who left it; None: nobody finds it."""
    lost: bool = False
    """The server began anew while it was busy."""

    def useful_tokens(self, tokens: "array[int]") -> int:
        """So many tokens could be reused; 0 if most of what is in it could not: that may be of more use to others."""
        common = common_prefix(self.tokens, tokens)
        return common if 2 * common >= len(self.tokens) else 0

    def leave_nothing(self) -> None:
        """Whatever is in it, nobody finds it again."""
        self.tokens, self.cache_key = array("I"), None


class Slots:
    """All places of one server."""

    def __init__(self, count: int) -> None:
        self._slots = [Slot(index) for index in range(count)]
        self._turns = trio.CapacityLimiter(count)
        """As many turns as slots: who has one finds a slot that is not busy."""
        self._uses = 0
        self.evictions = 0
        """How many states were lost to others, by handles that had not released them."""
        self.finds = 0
        """How many states were found again by their content."""

    @property
    def count(self) -> int:
        """How many places there are."""
        return len(self._slots)

    @property
    def owned(self) -> int:
        """How many places hold the state of a handle."""
        return sum(slot.owner is not None for slot in self._slots)

    async def take(self, handle: LlamaHandle, tokens: "array[int] | None" = None) -> Slot:
        """A slot for a handle, busy until it is given back; a checkpoint.

        One that was not its own is chosen by what it has in common with `tokens`, the handle's sequence. If there may be
        something to reuse, that is `handle.tokens` then. Without `tokens`, and for a handle with a file, nothing is.
        """
        turns = self._turns
        await turns.acquire_on_behalf_of(handle)
        slot = handle.slot
        if slot is None:
            sought = None if handle.file is not None else tokens
            slot = self._found(handle.cache_key, sought) or self._oldest()
            self._hand_over(slot, handle, seeks=sought is not None)
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
        if slot.lost:
            self._empty(slot)
        self._turns.release_on_behalf_of(handle)

    def leave(self, handle: LlamaHandle) -> None:
        """The handle gives its slot up for good, if it has one, and nothing is to be found there."""
        if handle.slot is not None:
            handle.slot.owner = None
            handle.slot = None

    def lose(self, handle: LlamaHandle) -> None:
        """The state in the handle's slot is gone."""
        self.leave(handle)
        handle.tokens = array("I")

    def release(self, handle: LlamaHandle) -> None:
        """The handle gives its slot up, if it has one; its state may be found there by its cache key."""
        slot, tokens = handle.slot, handle.tokens
        self.lose(handle)
        if slot is not None and not slot.foreign:
            slot.tokens, slot.cache_key = tokens, handle.cache_key

    def forget(self) -> None:
        """The server began anew, so what it held is lost. Places in use stay in use until they are given back."""
        for slot in self._slots:
            if slot.busy:
                slot.lost = True
            else:
                self._empty(slot)

    def _empty(self, slot: Slot) -> None:
        slot.lost = False
        slot.leave_nothing()
        if slot.owner is not None:
            self.lose(slot.owner)

    @property
    def _idle(self) -> list[Slot]:
        return [slot for slot in self._slots if not slot.busy]

    def _found(self, cache_key: str | None, tokens: "array[int] | None") -> Slot | None:
        """The one that is of most use, the later one if several are."""
        if cache_key is None or tokens is None:
            return None
        left = [slot for slot in self._idle if slot.cache_key == cache_key]
        useful, _, index = max(
            ((slot.useful_tokens(tokens), slot.used, slot.index) for slot in left), default=(0, 0, 0)
        )
        self.finds += useful > 0
        return self._slots[index] if useful else None

    def _oldest(self) -> Slot:
        """Where least is lost."""
        return min(self._idle, key=lambda slot: (slot.owner is not None, len(slot.tokens) > 0, slot.used))

    def _hand_over(self, slot: Slot, handle: LlamaHandle, *, seeks: bool) -> None:
        """Whatever the last owner lost or left there, a handle of the same key may reuse."""
        if slot.owner is not None:
            self.evictions += 1
            self.release(slot.owner)
        shared = seeks and handle.cache_key is not None and slot.cache_key == handle.cache_key
        if shared:
            handle.tokens = slot.tokens
        elif handle.file is None:
            handle.tokens = array("I")
        slot.leave_nothing()
        slot.owner, handle.slot, slot.foreign = handle, slot, not shared


def common_prefix(one: "array[int]", other: "array[int]") -> int:
    """How many tokens two sequences have in common, from the first on."""
    mine, others = memoryview(one).cast("B"), memoryview(other).cast("B")
    size, low, high = one.itemsize, 0, min(len(one), len(other))
    while low < high:  # the first `low` are the same, and those after `high` are not all
        middle = (low + high + 1) // 2
        if mine[low * size : middle * size] == others[low * size : middle * size]:
            low = middle
        else:
            high = middle - 1
    return low
