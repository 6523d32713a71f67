"""What a model really sampled, remembered by the ids of the items that it became.

Over HTTP a history comes back as items. Rendered again they may be other tokens than those that were sampled: white space
is lost, JSON has many spellings, and one text has many divisions. The tokens are the truth, so a turn that is ours,
unchanged, is put back as it was sampled; whether its rendering would have differed (*drift*) is counted.

An item is ours if its id is one that we gave out, and its content is still the same. Ids cannot be guessed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import attrs

from protocol.items import CALLS, Item, Message, Reasoning, text_of

MAX_REMEMBERED_TOKENS: Final = 1 << 20
"""4 MB of ids; the turn used longest ago is forgotten first."""
_TURN_TOKENS: Final = 64
"""What a turn costs besides its tokens, in tokens."""

Said = tuple[str | None, ...]


@attrs.define(eq=False)
class Turn:
    """One segment of a model: what it became, and the tokens from behind its opening to the end of its closing."""

    said: tuple[Said, ...]
    ids: "array[int]"
    keys: tuple[str, ...]
    drifts: bool | None = None
    """Would its items be other tokens, rendered? None: nobody has looked."""

    @property
    def cost(self) -> int:
        """In tokens."""
        return len(self.ids) + _TURN_TOKENS


class TurnMemory:
    """The turns of all rollouts of a sampler, within a bound."""

    def __init__(self, max_tokens: int = MAX_REMEMBERED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._turns: OrderedDict[int, Turn] = OrderedDict()
        self._by_key: dict[str, Turn] = {}
        self._tokens = 0

    def __len__(self) -> int:
        """How many turns are known."""
        return len(self._turns)

    def remember(self, items: Sequence[Item], ids: "array[int]") -> None:
        """These items are what the model said with these tokens. Without any id they could not be found again."""
        keys = tuple(key for item in items if (key := _key(item)) is not None)
        turn = Turn(tuple(map(_said, items)), ids, keys)
        if not keys or turn.cost > self._max_tokens:
            return
        for key in keys:
            old = self._by_key.get(key)
            if old is not None:
                self._forget(old)
        for key in keys:
            self._by_key[key] = turn
        self._turns[id(turn)] = turn
        self._tokens += turn.cost
        while self._tokens > self._max_tokens:
            self._forget(next(iter(self._turns.values())))

    def find(self, items: Sequence[Item], at: int) -> Turn | None:
        """The turn that the items from the place `at` on are, all of it and unchanged."""
        place = at
        while place < len(items) and said_by_model(items[place]) and _key(items[place]) is None:
            place += 1
        if place == len(items) or not said_by_model(items[place]):
            return None
        turn = self._by_key.get(_key(items[place]) or "")
        if turn is None or tuple(map(_said, items[at : at + len(turn.said)])) != turn.said:
            return None
        self._turns.move_to_end(id(turn))
        return turn

    def _forget(self, turn: Turn) -> None:
        del self._turns[id(turn)]
        self._tokens -= turn.cost
        for key in turn.keys:
            self._by_key.pop(key, None)


def said_by_model(item: Item) -> bool:
    """Is it a kind of item that a model samples, all of it?"""
    if isinstance(item, Message):
        return item.role == "assistant"
    return isinstance(item, (Reasoning, *CALLS))


def _key(item: Item) -> str | None:
    """A call's own id: clients leave out the item's, some of them always."""
    return item.call_id if isinstance(item, CALLS) else getattr(item, "id", None)


def _said(item: Item) -> Said:
    """All of an item that a model has said."""
    if isinstance(item, Message):
        return ("message", item.role, text_of(item.content))
    if isinstance(item, Reasoning):
        return ("reasoning", text_of(item.content or ()))
    if isinstance(item, CALLS):
        namespace = getattr(item, "namespace", None)
        written = item.arguments if item.type == "function_call" else item.input
        return (item.type, item.call_id, item.name, namespace, written)
    return ("other", item.type)
