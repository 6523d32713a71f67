"""Pending calls: which outputs a rollout waits for, and the one validator of what comes in (reference 2.4).

A call is pending from its `response.output_item.done` until an output for it is accepted.
A batch is atomic: `check` looks at all of it and changes nothing; `commit` cannot fail.
The rules that differ between forms (messages, re-sent items, words) come in as the dialect's row.
"""

from collections.abc import Sequence

import attrs

from protocol import items
from protocol.dialects import Dialect
from protocol.errors import refusal
from protocol.items import CALLS, OUTPUTS, Call, Item, Message, Output, text_of


@attrs.frozen
class Batch:
    """A checked batch: outputs by call, then messages, both in the order they came; re-sent items are gone."""

    outputs: tuple[Output, ...]
    messages: tuple[Message, ...] = ()


@attrs.define
class PendingCalls:
    """The calls of one rollout, and what was accepted for them in this pause."""

    response_id: str
    dialect: Dialect
    _calls: dict[str, Call] = attrs.field(factory=dict)
    """Every client call announced, in call order (`output_index`)."""
    _open: dict[str, None] = attrs.field(factory=dict)
    """Ids without an output, in call order."""
    _awaited: list[str] = attrs.field(factory=list)
    """Ids whose output was not taken yet, in call order."""
    _outputs: dict[str, Output] = attrs.field(factory=dict)
    """Accepted and not yet taken into the context."""
    _messages: list[Message] = attrs.field(factory=list)
    _sent: dict[tuple[str, str], None] = attrs.field(factory=dict)
    """What the server itself sent, by each key under which it may come back."""
    _unread: list[Item] = attrs.field(factory=list)
    """Sent items whose keys are not in `_sent` yet: they are made when a client first sends something back."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Ids of the pending calls, in call order."""
        return tuple(self._open)

    @property
    def held(self) -> int:
        """Items accepted but not yet taken."""
        return len(self._outputs) + len(self._messages)

    def knows(self, call_id: str) -> bool:
        """Was a call with this id announced in this rollout?"""
        return call_id in self._calls

    def finished(self, item: Item) -> None:
        """An output item is done; a client's call is pending from now on."""
        if self.dialect.drops_resent:
            self._unread.append(item)
        if isinstance(item, CALLS):
            self._calls[item.call_id] = item
            self._open[item.call_id] = None
            self._awaited.append(item.call_id)

    def check(self, batch: Sequence[Item]) -> Batch:
        """The batch, sorted. `RemoteProtocolError` for its first bad member; nothing is changed either way."""
        outputs: dict[str, Output] = {}
        messages: list[Message] = []
        for item in batch:
            if isinstance(item, OUTPUTS):
                self._check_output(item, outputs)
                outputs[item.call_id] = item
            elif self._is_message(item):
                messages.append(item)  # type: ignore[arg-type]  # narrowed by the call
            elif not self._was_sent(item):
                raise refusal("not_acceptable", type=item.type, verb=self.dialect.verb)
        return Batch(tuple(outputs.values()), tuple(messages))

    def _check_output(self, item: Output, seen: dict[str, Output]) -> None:
        call = self._calls.get(item.call_id)
        if call is None or items.OUTPUT_OF[type(call)] is not type(item):
            raise refusal("not_pending", call_id=item.call_id, response_id=self.response_id)
        if item.call_id not in self._open or item.call_id in seen:
            raise refusal("has_output", call_id=item.call_id)

    def _is_message(self, item: Item) -> bool:
        return self.dialect.takes_messages and isinstance(item, Message) and item.role != "assistant"

    def _was_sent(self, item: Item) -> bool:
        for sent in self._unread:
            self._sent.update(dict.fromkeys(_keys(sent)))
        self._unread.clear()
        return any(key in self._sent for key in _keys(item))

    def commit(self, batch: Batch) -> tuple[str, ...]:
        """Accept a checked batch; the ids of the calls it answered. Cannot fail."""
        for output in batch.outputs:
            del self._open[output.call_id]
            self._outputs[output.call_id] = output
        self._messages.extend(batch.messages)
        return tuple(output.call_id for output in batch.outputs)

    def take(self) -> tuple[Item, ...]:
        """What goes into the context now: outputs in call order, then messages as they came (reference 2.4)."""
        ordered = [self._outputs.pop(call_id) for call_id in self._awaited if call_id in self._outputs]
        self._awaited = list(self._open)
        messages, self._messages = self._messages, []
        return (*ordered, *messages)


def _keys(item: Item) -> list[tuple[str, str]]:
    """Under what an item may be recognised: id, else call id, else sealed content, else role and text (3.5 rule 7)."""
    keys: list[tuple[str, str]] = []
    for name in ("id", "call_id", "encrypted_content"):
        value = getattr(item, name, None)
        if value:
            keys.append((name, value))
    if isinstance(item, Message) and item.role == "assistant":
        keys.append(("text", text_of(item.content)))
    return keys
