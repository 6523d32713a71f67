"""What a chat format promises: items become tokens, appended at markers only; tokens become parts, one by one.

    preamble │ item item item … │ opening │ what the model samples, up to a stop token │ closing │ item item …

The first call writes everything up to the opening; later ones only what is new, after the closing of the model's turn.
Cached + sampled + appended equals the full rendering, token for token, as long as the model's own turn is kept as it was
sampled; a rendering of its finished items instead may tokenize otherwise, which is *drift* and counted, never hidden.

Text from outside (messages, outputs, names, ids, arguments, instructions) goes through `Tokenizer.encode`, in which no
spelling leads to a control token; control tokens are written as numbers.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from engine.samplers.base import Part, StopReason
from protocol.items import Item

Tokens = array  # of type code "I"


class Tokenizer(Protocol):
    """A model's own vocabulary."""

    def encode(self, text: str) -> "array[int]":
        """The ids of untrusted text: never a control token. `ValueError`: a lone surrogate."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, perhaps a part of a character only; nothing for a control token."""
        ...

    @property
    def specials(self) -> Mapping[str, int]:
        """Every control token: its spelling and id."""
        ...


@attrs.frozen(kw_only=True)
class Request:
    """What the model is told about the rollout as a whole."""

    instructions: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    text_format: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class Constraint:
    """What the sampled text must look like from its first token on: a JSON schema, for backends that can enforce one.

    `lead` is written by the format in the model's place before it, such as the marker and the head of a tool call;
    `tail` after it, in place of the stop token, such as the marker that ends the call.
    """

    schema: Mapping[str, Any]
    lead: "array[int]" = attrs.field(factory=lambda: array("I"))
    tail: "array[int]" = attrs.field(factory=lambda: array("I"))


class Parser(Protocol):
    """Reads one segment of the model's tokens."""

    def feed(self, token: int) -> Sequence[Part]:
        """The next sampled token: the parts that are certain now, each with the tokens that it stands for.

        Characters and markers that are split over tokens are held until they are whole. A stop token gives no text.
        `ValueError`: malformed, where the format is strict; nothing but `aclose` of the sampling follows.
        """
        ...

    def end(self, reason: StopReason) -> Sequence[Part]:
        """The segment is over: what was still held, then `End`. `ValueError`: malformed, where the format is strict."""
        ...


class Format(Protocol):
    """One chat format over one tokenizer. It remembers nothing of a rollout, so one serves all."""

    @property
    def name(self) -> str:
        """As in the model table."""
        ...

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Which tokens end a segment."""
        ...

    @property
    def stored_as(self) -> Mapping[int, int]:
        """What a sampled stop token is in the sequence from then on, where that is another token; usually empty.

        Harmony's `<|return|>` says "stop" and is kept as `<|end|>`. It is the last one of its segment, so no cache has
        read it yet.
        """
        ...

    def preamble(self, request: Request) -> "array[int]":
        """What stands before the first item: begin of text, system message, tools."""
        ...

    def items(self, items: Sequence[Item], before: Sequence[Item]) -> "array[int]":
        """These items, in order, each whole between its markers; `before` are all items before them (call names)."""
        ...

    def kept_before(self, before: Sequence[Item], items: Sequence[Item]) -> int:
        """How many of `before` stay as rendered when `items` follow: usually all.

        A format that forgets reasoning at a new user turn says where the sequence must be cut: from there on everything is
        rendered again, as `items(before[kept:] + items, before[:kept])`. Whoever does not cut keeps more than a full
        rendering has, which is no error: the model then reads its old reasoning.
        """
        ...

    def opening(self, request: Request) -> "array[int]":
        """What stands before the model's own words."""
        ...

    def closing(self, last_token: int | None) -> "array[int]":
        """What makes the model's turn whole after its last token, which is no stop token if it was cut off; None: nobody knows."""
        ...

    def constraint(self, request: Request, said_items: int) -> Constraint | None:
        """What the next segment must look like, if anything. `said_items`: how many calls were made since the last user turn."""
        ...

    def parser(self, request: Request, constraint: Constraint | None) -> Parser:
        """A reader for one segment."""
        ...
