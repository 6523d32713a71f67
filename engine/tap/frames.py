"""WebSocket messages as a bystander reads them: one direction's frames, cut anywhere, masked or compressed.

Not wsproto, which is a party to the conversation and costs as much as the whole of an event here.
"""

import re
import zlib
from collections.abc import Iterator
from typing import Final

import attrs

from engine.tap.http import Unreadable

TEXT, BINARY, CLOSE = 1, 2, 8
_CONTINUATION = 0
_DATA = frozenset({_CONTINUATION, TEXT, BINARY})
_DEFLATE_TAIL: Final = b"\x00\x00\xff\xff"
_CONTROLS = frozenset({CLOSE, 9, 10})
_MAX_CONTROL_BYTES: Final = 125
_FIN, _COMPRESSED, _OTHER_RESERVED, _CONTROL, _MASKED = 0x80, 0x40, 0x30, 0x08, 0x80
_WHOLE_TEXT: Final = _FIN | TEXT


@attrs.frozen
class TooLarge:
    """A message was skipped."""

    size_bytes: int


Message = tuple[int, bytes | TooLarge]
"""Opcode (text, binary, close) and payload."""


class Compression:
    """What the two sides agreed on about permessage-deflate (RFC 7692)."""

    def __init__(self, extensions: str) -> None:
        """`extensions`: the value of `Sec-WebSocket-Extensions` in the answer. `Unreadable`: others than that one."""
        offers = [offer.strip().lower() for offer in extensions.split(",") if offer.strip()]
        names = [re.split(r"[;\s]", offer, maxsplit=1)[0] for offer in offers]
        if names not in ([], ["permessage-deflate"]):
            raise Unreadable(f"WebSocket extensions {', '.join(names)}")
        self.agreed = bool(names)
        self._settings = extensions.lower()

    def keeps_context(self, side: str) -> bool:
        """Does this side ("client" or "server") refer back to earlier messages?"""
        return f"{side}_no_context_takeover" not in self._settings


class FrameReader:
    """The messages of one direction."""

    def __init__(self, max_message_bytes: int, *, compressed: bool, keeps_context: bool) -> None:
        self._max_bytes = max_message_bytes
        self._compressed = compressed
        self._keeps_context = keeps_context
        self._inflate = zlib.decompressobj(wbits=-15)
        self._rest = bytearray()
        """A frame that is not whole."""
        self._wanted_bytes = 0
        """So long must `_rest` be before it is worth a look."""
        self._opcode = 0
        """Of the message that has begun; 0: none has."""
        self._parts: list[bytes] = []
        self._message_bytes = 0
        self._deflated = False
        self._skip_bytes = 0
        """Left of a frame whose message is too large."""

    def read(self, data: bytes) -> Iterator[Message]:
        """The messages that are whole now; pings and pongs are none. `Unreadable`."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted_bytes:
                return
            data = bytes(self._rest)
        at, size = min(self._skip_bytes, len(data)), len(data)
        self._skip_bytes -= at
        self._wanted_bytes = 2
        while at + 2 <= size:
            first, second = data[at], data[at + 1]
            start, length = at + 2, second & 0x7F
            if length >= 126:
                start += 2 if length == 126 else 8
                length = int.from_bytes(data[at + 2 : start], "big")
            masked = second & _MASKED
            start += 4 if masked else 0
            end = start + length
            if end > size:
                self._wanted_bytes = end - at if start <= size else start - at
                if start > size or not self._is_too_large(first, length):
                    break
                self._skip_bytes, end = end - size, size
            payload = data[start:end]
            if masked:
                payload = unmasked(payload, data[start - 4 : start])
            at = end
            if first == _WHOLE_TEXT and not self._opcode and length <= self._max_bytes:
                yield TEXT, payload  # nearly all are of this kind
            else:
                yield from self._frame(first, payload, length)
        self._rest = bytearray(data[at:])

    def _is_too_large(self, first: int, length: int) -> bool:
        """Is this frame one whose end need not be waited for? `Unreadable`: a control frame is never large."""
        if first & _CONTROL:
            if length > _MAX_CONTROL_BYTES:
                raise Unreadable(f"a control frame of {length} bytes")
            return False
        return self._message_bytes + length > self._max_bytes

    def _frame(self, first: int, payload: bytes, length: int) -> Iterator[Message]:
        opcode = first & 0x0F
        if first & _OTHER_RESERVED or (first & _COMPRESSED and not self._compressed):
            raise Unreadable("a WebSocket frame with bits that were not agreed on")
        if opcode not in _DATA:
            if opcode not in _CONTROLS or length > _MAX_CONTROL_BYTES or not first & _FIN:
                raise Unreadable("a WebSocket frame of no known kind")
            if opcode == CLOSE:
                yield CLOSE, payload
            return
        if (opcode == _CONTINUATION) != bool(self._opcode):
            raise Unreadable("a WebSocket message inside of another one, or the rest of none")
        if not self._opcode:
            self._opcode, self._deflated = opcode, bool(first & _COMPRESSED)
        self._message_bytes += length
        if self._message_bytes <= self._max_bytes:
            self._parts.append(payload)
        else:
            self._parts.clear()
        if first & _FIN:
            yield self._opcode, self._message()
            self._opcode, self._message_bytes = 0, 0
            self._parts.clear()

    def _message(self) -> bytes | TooLarge:
        too_large = self._message_bytes > self._max_bytes
        if not self._deflated:
            return TooLarge(self._message_bytes) if too_large else b"".join(self._parts)
        if not too_large:
            try:
                text = self._inflate.decompress(b"".join(self._parts) + _DEFLATE_TAIL, self._max_bytes + 1)
            except zlib.error as error:
                raise Unreadable("a compressed message that is broken") from error
            too_large = len(text) > self._max_bytes
        if too_large and self._keeps_context:
            raise Unreadable(
                f"a compressed message of more than {self._max_bytes} bytes"
            )  # later ones refer to it
        if not self._keeps_context or self._inflate.eof:
            self._inflate = zlib.decompressobj(wbits=-15)
        return TooLarge(self._message_bytes) if too_large else text


def unmasked(payload: bytes, key: bytes) -> bytes:
    """A client's payload as it was (RFC 6455 5.3)."""
    size = len(payload)
    pad = int.from_bytes((key * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(payload, "little") ^ pad).to_bytes(size, "little")
