"""Pending calls: which outputs a rollout waits for, and the one validator of what comes in (reference 2.4).

A call is pending from its `response.output_item.done` until an output for it is accepted.
A batch is atomic: `check` looks at all of it and changes nothing; `commit` cannot fail.
The rules that differ between forms (messages, re-sent items, words) come in as the dialect's row.
"""

from collections.abc import Sequence

import attrs

from protocol.dialects import Dialect
from protocol.errors import refusal
from protocol.items import CALLS, OUTPUT_OF, OUTPUTS, Call, Item, Message, Output, text_of


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
    _awaited: dict[str, Call | Output] = attrs.field(factory=dict)
    """By id, in call order: calls whose output was not taken yet; one that was accepted stands in its call's place."""
    _open_count: int = 0
    """How many of these have no output."""
    _taken: dict[str, type] | None = None
    """By id, what answered the calls before these. This and what follows is made when it is first needed: thousands wait."""
    _messages: tuple[Message, ...] = ()
    _sent: dict[tuple[str, str], None] | None = None
    """What the server itself sent, by each key under which it may come back."""
    _unread: list[Item] | None = None
    """Sent items whose keys are not in `_sent` yet: they are made when a client first sends something back."""

    def __len__(self) -> int:
        return self._open_count

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Ids of the pending calls, in call order."""
        return tuple([call_id for call_id, known in self._awaited.items() if isinstance(known, CALLS)])

    @property
    def held(self) -> int:
        """Items accepted but not yet taken."""
        return len(self._awaited) - self._open_count + len(self._messages)

    def knows(self, call_id: str) -> bool:
        """Was a call with this id announced in this rollout?"""
        return self._answer_to(call_id) is not None

    def _answer_to(self, call_id: str) -> type | None:
        """The class that answers this call, or did; None: there is no such call."""
        known = self._awaited.get(call_id)
        if known is None:
            return self._taken.get(call_id) if self._taken is not None else None
        return OUTPUT_OF[type(known)] if isinstance(known, CALLS) else type(known)

    def finished(self, item: Item) -> None:
        """An output item is done; a client's call is pending from now on."""
        if self.dialect.drops_resent:
            self._unread = self._unread if self._unread is not None else []
            self._unread.append(item)
        if isinstance(item, CALLS):
            self._open_count += not isinstance(self._awaited.get(item.call_id), CALLS)
            self._awaited[item.call_id] = item

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
        if self._answer_to(item.call_id) is not type(item):
            raise refusal("not_pending", call_id=item.call_id, response_id=self.response_id)
        if not isinstance(self._awaited.get(item.call_id), CALLS) or item.call_id in seen:
            raise refusal("has_output", call_id=item.call_id)

    def _is_message(self, item: Item) -> bool:
        return self.dialect.takes_messages and isinstance(item, Message) and item.role != "assistant"

    def _was_sent(self, item: Item) -> bool:
        sent = self._sent = self._sent if self._sent is not None else {}
        for one in self._unread or ():
            sent.update(dict.fromkeys(_keys(one)))
        self._unread = None
        return any(key in sent for key in _keys(item))

    def commit(self, batch: Batch) -> tuple[str, ...]:
        """Accept a checked batch; the ids of the calls it answered. Cannot fail."""
        for output in batch.outputs:
            self._awaited[output.call_id] = output
        self._open_count -= len(batch.outputs)
        self._messages += batch.messages
        return tuple([output.call_id for output in batch.outputs])

    def take(self) -> tuple[Item, ...]:
        """What goes into the context now: outputs in call order, then messages as they came (reference 2.4)."""
        outputs = [known for known in self._awaited.values() if isinstance(known, OUTPUTS)]
        if outputs:
            self._taken = self._taken if self._taken is not None else {}
            for output in outputs:
                self._taken[output.call_id] = type(output)
            self._awaited = {
                call_id: call for call_id, call in self._awaited.items() if isinstance(call, CALLS)
            }
        messages, self._messages = self._messages, ()
        return (*outputs, *messages)


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
