"""Harmony's tokens as parts: analysis is thought, final and commentary are text, a recipient makes a call.

A state machine of one step per token. Within a message a plain token costs one lookup and one decoding step; between
messages the header is collected and read when it is whole. Only markers, which are numbers, change the state: a model
that spells one in letters says those letters.

Malformed is: a header without a channel, of an unknown channel or of another role than the assistant; an end within a
header; a marker within a message; words between messages; in strict mode also arguments that are no JSON object.
The strict parser raises `MalformedOutputError`; the other one shows as text what it cannot read, and counts it.
"""

import codecs
import re
from array import array
from collections.abc import Sequence
from typing import Final, Literal

import attrs
import orjson

from engine.formats.harmony_tools import Recipient, Recipients
from engine.formats.o200k import FIRST_SPECIAL, O200k
from engine.samplers.base import CallEnd, CallInput, CallStart, End, Part, StopReason, Text, Thought
from engine.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START

END_OF_TEXT: Final = 199999
SEPARATOR: Final = "\n\n"
"""Between two messages of the model that become one item, such as a preamble and the answer."""
MAX_HEADER_TOKENS: Final = 256

_ENDS: Final = frozenset({END, CALL, RETURN, END_OF_TEXT})
_RECIPIENT: Final = re.compile(r"(?:^|\s)to=(\S+)")
_NOBODY: Final = frozenset({"all", "user", "assistant"})
_PROSE: Final[dict[str, type[Text] | type[Thought]]] = {
    "analysis": Thought,
    "commentary": Text,
    "final": Text,
}

_Place = Literal["header", "content", "between"]


class MalformedOutputError(ValueError):
    """The model did not keep to the format."""


@attrs.define
class HarmonyCounts:
    """What happened since the start; for metrics."""

    malformed: int = 0
    """Things shown as text because they could not be read."""
    repaired_calls: int = 0
    """Calls without any arguments, made an empty object."""
    forgotten_items: int = 0
    """Reasoning items left out because their turn was over."""
    forgotten_characters: int = 0


class HarmonyParser:
    """`engine.formats.base.Parser` of one segment; it begins after `<|start|>assistant`."""

    def __init__(
        self,
        tokenizer: O200k,
        recipients: Recipients,
        *,
        strict: bool,
        counts: HarmonyCounts,
        lead: "array[int] | None" = None,
    ) -> None:
        """`lead`: what the format wrote in the model's place; its parts come with the first token, as of none."""
        self._bytes_of = tokenizer.token_bytes
        self._recipients = recipients
        self._strict = strict
        self._counts = counts
        self._unaccounted = 0
        self._place: _Place = "header"
        self._header: list[int] = []
        self._opened = True
        self._kind: type[Text | Thought] | None = None
        self._last_prose: type[Text | Thought] | None = None
        self._separates = False
        self._recipient: Recipient | None = None
        self._calls = 0
        self._characters = 0
        self._written: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ahead: list[Part] = []
        led = [part for token in lead or () for part in self.feed(token)]
        self._ahead = [attrs.evolve(part, tokens=0) for part in led]
        self._unaccounted = 0

    def feed(self, token: int) -> Sequence[Part]:
        """The next sampled token. `MalformedOutputError` if strict."""
        self._unaccounted += 1
        if self._place == "content" and token < FIRST_SPECIAL:
            piece = self._decoder.decode(self._bytes_of(token))
            parts = self._pieces(piece) if piece else []
        elif self._place == "content":
            parts = self._control_in_content(token)
        elif self._place == "header":
            parts = self._in_header(token)
        else:
            parts = self._between(token)
        if self._ahead:
            parts, self._ahead = [*self._ahead, *parts], []
        return parts

    def end(self, reason: StopReason) -> Sequence[Part]:
        """The segment is over. `MalformedOutputError` if strict and it broke off in a header."""
        parts, self._ahead = self._ahead, []
        if reason != "length":  # what a limit cut off is no fault of the model, and never whole
            if self._place == "header" and (self._header or self._opened):
                parts += self._unread("the output ends within a header")
            parts += self._close()
        return [*parts, End(reason, self._take())]

    # --- headers ---------------------------------------------------------------------------------------------------

    def _in_header(self, token: int) -> list[Part]:
        if token == MESSAGE:
            return self._open()
        if token in _ENDS:
            return [*self._unread("a message ends within its header"), *self._close()]
        if token == START:
            return [*self._unread("a message begins within a header"), *self._close(), *self._start()]
        self._header.append(token)
        if token >= FIRST_SPECIAL and token not in (CHANNEL, CONSTRAIN):
            return self._unread(f"the control token {token} within a header")
        if len(self._header) > MAX_HEADER_TOKENS:
            return self._unread(f"a header of more than {MAX_HEADER_TOKENS} tokens")
        return []

    def _between(self, token: int) -> list[Part]:
        if token == START:
            return self._start()
        if token in _ENDS:
            return []
        self._header = [token]
        return self._unread("words between two messages")

    def _start(self) -> list[Part]:
        self._place, self._header, self._opened = "header", [], False
        return []

    def _open(self) -> list[Part]:
        """The header is whole."""
        role, channel = self._sections()
        named = _RECIPIENT.search(channel) or _RECIPIENT.search(role)
        words = channel.split(maxsplit=1)
        speaker = "assistant" if self._opened else role.split(" ", 1)[0]
        if speaker != "assistant":
            return self._unheaded(f"a message of {speaker[:40]!r} from the model")
        if named is not None and named[1] not in _NOBODY:
            return self._open_call(named[1])
        if not words or words[0] not in _PROSE:
            return self._unheaded(
                f"no channel is named {words[0][:40]!r}" if words else "a message without a channel"
            )
        self._open_prose(_PROSE[words[0]])
        return []

    def _sections(self) -> tuple[str, str]:
        """The words before the first and after the last channel marker; a constraint's are nobody's."""
        sections, skipped = [bytearray()], bytearray()
        target = sections[-1]
        for token in self._header:
            if token == CHANNEL:
                target = bytearray()
                sections.append(target)
            elif token == CONSTRAIN:
                target = skipped
            else:
                target += self._bytes_of(token)
        read = [section.decode("utf-8", "replace") for section in sections]
        return read[0], read[-1] if len(read) > 1 else ""

    def _unheaded(self, fault: str) -> list[Part]:
        """A whole header that makes no sense: the message is text."""
        self._malformed(fault)
        self._header, self._opened = [], False
        self._open_prose(Text)
        return []

    def _unread(self, fault: str) -> list[Part]:
        """What was collected is no header: it is text, and so is what follows in this message."""
        self._malformed(fault)
        text = b"".join(map(self._spelled, self._header)).decode("utf-8", "replace")
        if not self._opened:
            text = text.removeprefix("assistant")
        self._header, self._opened = [], False
        self._open_prose(Text)
        return self._pieces(text) if text else []

    # --- messages --------------------------------------------------------------------------------------------------

    def _open_prose(self, kind: type[Text] | type[Thought]) -> None:
        self._place, self._kind, self._recipient = "content", kind, None
        self._separates = self._last_prose is kind

    def _open_call(self, spelled: str) -> list[Part]:
        self._place, self._kind, self._last_prose = "content", None, None
        self._recipient = self._recipients.read(spelled)
        self._characters = 0
        self._written.clear()
        self._calls += 1
        start = CallStart(
            self._calls - 1, self._recipient.name, self._recipient.namespace, tokens=self._take()
        )
        return [start]

    def _pieces(self, text: str) -> list[Part]:
        kind = self._kind
        if kind is None:
            self._characters += len(text)
            if self._strict:
                self._written.append(text)
            return [CallInput(self._calls - 1, text, self._take())]
        if self._separates:
            self._separates = False
            return [kind(SEPARATOR, 0), kind(text, self._take())]
        self._last_prose = kind
        return [kind(text, self._take())]

    def _control_in_content(self, token: int) -> list[Part]:
        if token in _ENDS:
            return self._close()
        held = self._decoder.decode(b"", final=True)
        parts = self._pieces(held) if held else []
        if token == START:
            self._malformed("a message begins within another")
            return [*parts, *self._close(), *self._start()]
        self._malformed(f"the control token {token} within a message")
        return [*parts, *self._pieces(self._spelled(token).decode())]

    def _close(self) -> list[Part]:
        """The message is whole."""
        if self._place != "content":
            self._place = "between"
            return []
        held = self._decoder.decode(b"", final=True)
        parts = self._pieces(held) if held else []
        self._place = "between"
        if self._recipient is not None:
            parts += self._close_call(self._recipient)
        self._recipient = None
        return parts

    def _close_call(self, called: Recipient) -> list[Part]:
        parts: list[Part] = []
        if not self._characters and not called.custom:
            self._counts.repaired_calls += 1
            parts.append(CallInput(self._calls - 1, "{}", 0))
        elif self._strict and not called.custom:
            _check_json("".join(self._written), called)
        parts.append(CallEnd(self._calls - 1, self._take()))
        return parts

    def _malformed(self, fault: str) -> None:
        self._counts.malformed += 1
        if self._strict:
            raise MalformedOutputError(
                f"harmony: {fault}; the format's `strict=False` shows such output as text"
            )

    def _spelled(self, token: int) -> bytes:
        return self._bytes_of(token) or f"<|{_SPELLINGS.get(token, f'reserved_{token}')}|>".encode()

    def _take(self) -> int:
        tokens, self._unaccounted = self._unaccounted, 0
        return tokens


_SPELLINGS: Final = {
    END: "end",
    CALL: "call",
    RETURN: "return",
    START: "start",
    CHANNEL: "channel",
    MESSAGE: "message",
    CONSTRAIN: "constrain",
    END_OF_TEXT: "endoftext",
}


def _check_json(text: str, called: Recipient) -> None:
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise MalformedOutputError(
            f"harmony: the arguments of {called.name[:40]!r} are no JSON: {error}"
        ) from error
    if not isinstance(value, dict):
        raise MalformedOutputError(
            f"harmony: the arguments of {called.name[:40]!r} are no object: {text[:40]!r}"
        )
