"""WebSocket frames as bytes, without I/O: making whole ones to send, counting the headers of those that arrive.

The library counts characters of finished payloads, so a flood of empty fragments, or of four-byte characters, would
pass its limit. `InboundFrames` reads the headers before the library does, and reads nothing else.
`whole_text` reads the plainest of messages itself, and leaves all others, and all that is wrong, to the library.
"""

import os
import re
import struct
from collections import deque

import attrs

from engine.config import Limits

MAX_CLOSE_REASON_BYTES = 123
"""RFC 6455 5.5: a control frame carries 125 bytes, two of them the code."""

TEXT, CLOSE = 0x81, 0x88
"""First bytes of the two kinds of whole frames that are made here."""
CONTROL = 0x08
_FINAL, _MASKED = 0x80, 0x80
medium_header = struct.Struct("!BBH").pack
"""Of a frame of 126 to 65,535 bytes: first byte, 126 and perhaps the mask's mark, size."""
# The same end of a head as h11 sees: two readers that disagree about it would count different frames.
_HEAD_END = re.compile(rb"\n\r?\n")


def frame(first: int, payload: bytes, *, masked: bool = False) -> bytes:
    """One whole frame; `first` is the first byte (final bit and opcode), a client's frame is `masked`."""
    size, mark = len(payload), _MASKED if masked else 0
    if size < 126:
        header = bytes((first, mark | size))
    elif size < 65_536:
        header = medium_header(first, mark | 126, size)
    else:
        header = struct.pack("!BBQ", first, mark | 127, size)
    if not masked:
        return header + payload
    key = os.urandom(4)
    pad = int.from_bytes((key * (size // 4 + 1))[:size], "little")
    return header + key + (int.from_bytes(payload, "little") ^ pad).to_bytes(size, "little")


def whole_text(data: bytes | bytearray) -> bytes | None:
    """The message, if `data` is exactly one whole frame of a client's text below 64 KiB; else, or if it is bad, None."""
    size = len(data)
    if size < 6 or data[0] != TEXT or data[1] < _MASKED or data[1] == _MASKED | 127:
        return None
    key_at, length = 2, data[1] & 0x7F
    if length == 126:
        key_at, length = 4, int.from_bytes(data[2:4], "big")
        if length < 126:
            return None  # more bytes than the size needs
    start = key_at + 4
    if size != start + length:
        return None
    pad = (data[key_at:start] * (length // 4 + 1))[:length]
    number = int.from_bytes(data[start:], "little") ^ int.from_bytes(pad, "little")
    text = number.to_bytes(length, "little")
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return None
    return text


def close_frame(code: int, reason: str, *, masked: bool = False) -> bytes:
    """A close frame; a long reason is cut between two characters."""
    text = reason.encode()[:MAX_CLOSE_REASON_BYTES].decode(errors="ignore")
    return frame(CLOSE, struct.pack("!H", code) + text.encode(), masked=masked)


@attrs.define(eq=False)
class InboundFrames:
    """Counts what a client sends, from frame headers alone; payloads are skipped, never copied.

    Pure: bytes and a time go in, a number of admitted bytes comes out.
    Whatever it and the library could read differently is refused here: a head of other length, a frame before the
    answer to the handshake (wsproto drops it), a control frame with a long payload.
    """

    limits: Limits
    answered: bool = False
    """Set by the owner when the answer to the handshake goes out; RFC 6455 4.1: the client waits for it."""
    violation: tuple[int, str] | None = None
    """Close code and reason of the first limit that was passed."""
    peer_closing: bool = False
    frames: int = 0
    messages: int = 0
    """Of text or bytes, whose last header has come."""
    _in_head: bool = True
    _head_bytes: int = 0
    _head_tail: bytes = b""
    _header: bytearray = attrs.field(factory=bytearray)
    _header_size: int = 2
    _payload_left: int = 0
    _message_bytes: int = 0
    _fragments: int = 0
    _recent: "deque[tuple[float, int]]" = attrs.field(factory=deque)
    """(time, frames) of the last second, one entry for each chunk that held a header."""
    _recent_frames: int = 0

    def take_text(self, data: bytes | bytearray, now: float) -> bytes | None:
        """`whole_text` of the next bytes, counted; None, and nothing counted: they are for `admit`."""
        if self._in_head or self._payload_left or self._header or self._fragments:
            return None  # something is half read
        text = whole_text(data)
        self._forget(now - 1.0)
        if (
            text is None
            or self._recent_frames >= self.limits.max_frames_per_second
            or len(text) > self.limits.max_message_bytes
        ):
            return None
        self.frames += 1
        self.messages += 1
        self._recent_frames += 1
        self._recent.append((now, 1))
        return text

    def admit(self, data: bytes | bytearray, now: float) -> int:
        """How many leading bytes of `data` may be passed on; fewer than all of them if and only if `violation` is set.

        A frame that passes a limit is cut off before its payload.
        """
        position = self._skip_head(data) if self._in_head else 0
        if position < len(data) and not self.answered:
            self._violate(1002, "data before the answer to the handshake")
        frames_before = self.frames
        self._forget(now - 1.0)
        while position < len(data) and self.violation is None:
            if self._payload_left:
                skipped = min(self._payload_left, len(data) - position)
                self._payload_left -= skipped
                position += skipped
                continue
            taken = data[position : position + self._header_size - len(self._header)]
            self._header += taken
            position += len(taken)
            if self._header_is_whole():
                start = max(
                    0, position - self._header_size
                )  # in this chunk; the header may have begun in the last
                self._enter_frame()
                position = position if self.violation is None else start
        if self.frames > frames_before:
            self._recent.append((now, self.frames - frames_before))
        return position if self.violation is None or self.answered else 0

    def _skip_head(self, data: bytes | bytearray) -> int:
        seen = self._head_tail + data
        end = _HEAD_END.search(seen)
        size = end.end() - len(self._head_tail) if end else len(data)
        self._head_bytes += size
        self._head_tail, self._in_head = seen[-2:], end is None
        if self._head_bytes > self.limits.max_head_bytes + len(b"\r\n\r\n"):  # as the door counts it
            self._violate(1009, f"more than {self.limits.max_head_bytes} bytes of headers")
        return size

    def _header_is_whole(self) -> bool:
        """Whether `_header` is complete; learns from the first two bytes how long it is."""
        if len(self._header) == 2:
            mark = self._header[1]
            extended = {126: 2, 127: 8}.get(mark & 0x7F, 0)
            self._header_size = 2 + extended + (4 if mark & _MASKED else 0)
        return len(self._header) == self._header_size

    def _enter_frame(self) -> None:
        first, size = self._header[0], self._header[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(self._header[2 : 4 if size == 126 else 10], "big")
        self._header.clear()
        self._header_size = 2
        self._payload_left = size
        self.frames += 1
        self._recent_frames += 1
        if self._recent_frames > self.limits.max_frames_per_second:
            self._violate(1008, f"more than {self.limits.max_frames_per_second} frames in a second")
        elif first & CONTROL:
            self.peer_closing = self.peer_closing or first & 0x0F == CLOSE & 0x0F
            if size > 125:
                self._violate(1002, "a control frame of more than 125 bytes")
        else:
            self._count_fragment(size, final=bool(first & _FINAL))

    def _count_fragment(self, size: int, *, final: bool) -> None:
        self._fragments += 1
        self._message_bytes += size
        if self._message_bytes > self.limits.max_message_bytes:
            self._violate(1009, f"a message of more than {self.limits.max_message_bytes} bytes")
        elif self._fragments > self.limits.max_fragments:
            self._violate(1008, f"a message of more than {self.limits.max_fragments} fragments")
        elif final:
            self._fragments = self._message_bytes = 0
            self.messages += 1

    def _forget(self, horizon: float) -> None:
        while self._recent and self._recent[0][0] <= horizon:
            self._recent_frames -= self._recent.popleft()[1]

    def _violate(self, code: int, reason: str) -> None:
        if self.violation is None:
            self.violation = (code, reason)
