"""HTTP/1.1 as a bystander reads it: where a message's head ends and what its body is, from copied bytes, without I/O.

Not h11, which is a party to the conversation: it judges what it hears, at several times the price of an event.
What cannot be understood raises `Unreadable`, and its reader stops reading; the bytes have long been passed on.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import attrs

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_CHUNK_LINE_BYTES: Final = 4096
INFLATED_AT_ONCE_BYTES: Final = 64 * 1024
"""So much of a compressed body is unpacked before it is looked at: a bomb costs time, not memory."""

_HEAD_END = re.compile(rb"\n\r?\n")
_REQUEST_LINE = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.[01]")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_HEX_DIGITS: Final = 16
"""Of a chunk's size and its line end, as most are."""
_NO_BODY_STATUSES = frozenset({204, 304})
_HOST_LINE = re.compile(rb"^(host:[ \t]*)[^\r\n]*", re.IGNORECASE | re.MULTILINE)


class Unreadable(Exception):  # noqa: N818  # what the bytes are, not what went wrong in here
    """These bytes are not what they should be; the message says what they should have been."""


@attrs.frozen
class Head:
    """The head of a request or an answer."""

    method: str
    target: str
    status: int
    """0 of a request; an answer has no method and no target."""
    headers: Mapping[str, str]
    """Names in lower case; values of a name that came more than once, joined with commas."""

    @property
    def upgrades_to_websocket(self) -> bool:
        """Does it ask for, or grant, a WebSocket?"""
        return self.headers.get("upgrade", "").lower() == "websocket"

    def tokens(self, name: str) -> list[str]:
        """A header that is a list, in lower case."""
        return [token.strip().lower() for token in self.headers.get(name, "").split(",") if token.strip()]


def read_head(raw: bytes) -> Head:
    """A head from its whole text. `Unreadable`."""
    first, *lines = raw.rstrip(b"\r\n").splitlines()
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or name != name.strip():
            raise Unreadable("a line of a head is no header")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if request := _REQUEST_LINE.fullmatch(first):
        return Head(request[1].decode(), request[2].decode(), 0, headers)
    if answer := _STATUS_LINE.fullmatch(first):
        return Head("", "", int(answer[1]), headers)
    raise Unreadable("this is no HTTP/1.1")


@attrs.define
class HeadReader:
    """Collects a head that may come in pieces."""

    _seen: bytearray = attrs.field(factory=bytearray)

    @property
    def begun(self) -> bool:
        """Are there bytes that do not end a head yet?"""
        return bool(self._seen)

    def read(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The whole head and what follows it; None if it goes on. `Unreadable`: it is too long."""
        if not self._seen:
            data = data.lstrip(b"\r\n")  # RFC 9112 2.2: empty lines before a head are no offence
        look_from = max(0, len(self._seen) - 3)
        self._seen += data
        end = _HEAD_END.search(self._seen, look_from)
        if end is None:
            if len(self._seen) > MAX_HEAD_BYTES:
                raise Unreadable(f"a head of more than {MAX_HEAD_BYTES} bytes")
            return None
        head, rest = bytes(self._seen[: end.end()]), bytes(self._seen[end.end() :])
        self._seen.clear()
        return head, rest

    def take(self) -> bytes:
        """What was collected, given back."""
        seen = bytes(self._seen)
        self._seen.clear()
        return seen


# --- bodies --------------------------------------------------------------------------------------------------------


class Body(Protocol):
    """Where a body ends."""

    done: bool

    def read(self, data: bytes, at: int) -> tuple[bytes, int]:
        """What of `data` from `at` on is payload, and where the next thing begins. `Unreadable`."""
        ...


class SizedBody:
    """A body whose length was told; also the one that is not there."""

    def __init__(self, size: int) -> None:
        self._left_bytes = size
        self.done = size == 0

    def read(self, data: bytes, at: int) -> tuple[bytes, int]:
        """As `Body`."""
        part = data[at : at + self._left_bytes]
        self._left_bytes -= len(part)
        self.done = not self._left_bytes
        return part, at + len(part)


class OpenBody:
    """A body that ends with the connection."""

    done = False

    def read(self, data: bytes, at: int) -> tuple[bytes, int]:
        """As `Body`."""
        return data[at:], len(data)


class ChunkedBody:
    """RFC 9112 7.1. Trailers are skipped."""

    def __init__(self) -> None:
        self.done = False
        self._left_bytes = 0
        """Of this chunk's data."""
        self._line = b""
        """The beginning of a line that was cut."""
        self._wants = self._size_line
        """What the next line is."""
        self._between = True
        """Nothing of the next chunk was read yet."""

    def read(self, data: bytes, at: int) -> tuple[bytes, int]:
        """As `Body`."""
        parts: list[bytes] = []
        size = len(data)
        while at < size and not self.done:
            if self._between:  # nearly always a whole chunk is there
                end = data.find(b"\r\n", at, at + _HEX_DIGITS)
                stop = end + 2 + _hex(data[at:end]) if end > at else size
                if stop + 2 <= size and end + 2 < stop and data[stop] == 13 and data[stop + 1] == 10:
                    parts.append(data[end + 2 : stop])
                    at = stop + 2
                    continue
                self._between = False
            if self._left_bytes:
                part = data[at : at + self._left_bytes]
                self._left_bytes -= len(part)
                at += len(part)
                parts.append(part)
                continue
            end = data.find(b"\n", at)
            self._line += data[at : end if end >= 0 else len(data)]
            if len(self._line) > MAX_CHUNK_LINE_BYTES:
                raise Unreadable(f"a line of more than {MAX_CHUNK_LINE_BYTES} bytes in a chunked body")
            if end < 0:
                at = len(data)
                break
            line, self._line, at = self._line.removesuffix(b"\r"), b"", end + 1
            self._wants(line)
        return (parts[0] if len(parts) == 1 else b"".join(parts)), at

    def _size_line(self, line: bytes) -> None:
        size = _CHUNK_LINE.fullmatch(line)
        if size is None:
            raise Unreadable("a chunk without a size")
        self._left_bytes = int(size[1], 16)
        self._wants = self._end_of_chunk if self._left_bytes else self._trailer

    def _end_of_chunk(self, line: bytes) -> None:
        if line:
            raise Unreadable("a chunk that is longer than its size")
        self._wants = self._size_line
        self._between = True

    def _trailer(self, line: bytes) -> None:
        self.done = not line


def _hex(digits: bytes) -> int:
    """The size of a chunk; 0 if it is not simply a number."""
    try:
        return int(digits, 16) if digits.isalnum() else 0
    except ValueError:
        return 0


def body_of_request(head: Head) -> Body:
    """RFC 9112 6.3. `Unreadable`: a length that is none."""
    return _body(head, otherwise=lambda: SizedBody(0))


def body_of_answer(head: Head, method: str) -> Body:
    """RFC 9112 6.3, with the method of the request. `Unreadable`: a length that is none."""
    if method == "HEAD" or head.status in _NO_BODY_STATUSES or head.status < 200:
        return SizedBody(0)
    return _body(head, otherwise=OpenBody)


def _body(head: Head, *, otherwise: Callable[[], Body]) -> Body:
    if codings := head.tokens("transfer-encoding"):
        if codings != ["chunked"]:
            raise Unreadable(f"transfer-encoding {', '.join(codings)}")
        return ChunkedBody()
    lengths = set(head.tokens("content-length"))
    if not lengths:
        return otherwise()
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdigit()):
        raise Unreadable("a content-length that is none")
    return SizedBody(int(length))


Unpack = Callable[[bytes], Iterable[bytes]]
"""A part of a body as it was sent, in parts as it was meant."""


def as_it_is(data: bytes) -> Iterable[bytes]:
    """Nothing to unpack."""
    return (data,)


def unpacker(head: Head) -> Unpack:
    """What undoes the body's compression, piece by piece. `Unreadable`: none that this program knows."""
    codings = [coding for coding in head.tokens("content-encoding") if coding != "identity"]
    if not codings:
        return as_it_is
    if len(codings) > 1 or codings[0] not in {"gzip", "x-gzip", "deflate"}:
        raise Unreadable(f"content-encoding {', '.join(codings)}")
    return _Inflater().read


class _Inflater:
    """Gzip or deflate; of deflate both readings are about, with a zlib header and without."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=47)
        self._begun = False

    def read(self, data: bytes) -> Iterable[bytes]:
        part = b""
        # a full part may be followed by one that needs no more input
        while (data or len(part) == INFLATED_AT_ONCE_BYTES) and not self._inflate.eof:
            try:
                part = self._inflate.decompress(data, INFLATED_AT_ONCE_BYTES)
            except zlib.error as error:
                if self._begun:
                    raise Unreadable("a compressed body that is broken") from error
                self._begun, self._inflate = True, zlib.decompressobj(wbits=-15)
                continue
            self._begun = self._begun or bool(part)
            data = self._inflate.unconsumed_tail
            if part:
                yield part


# --- the host ------------------------------------------------------------------------------------------------------


class HostRewriter:
    """Puts another host into the heads of requests; every other byte passes as it is.

    A head is held until it is whole. Once a request cannot be understood, everything passes unchanged.
    """

    def __init__(self, host: bytes) -> None:
        self._host = host
        self._head = HeadReader()
        self._body: Body | None = None
        self._asked_to_upgrade = False
        self._transparent = False

    def pass_on(self, data: bytes) -> bytes:
        """What to send now."""
        out: list[bytes] = []
        try:
            while data and not self._transparent:
                data = self._step(data, out)
        except Unreadable:
            self._transparent = True
            out.append(self._head.take())
            return b"".join(out)
        return b"".join([*out, data])

    def rest(self) -> bytes:
        """What is still held, when no more comes."""
        return self._head.take()

    def _step(self, data: bytes, out: list[bytes]) -> bytes:
        """Move the next thing to `out`; what is left of the data."""
        if self._body is not None and not self._body.done:
            try:
                _, end = self._body.read(data, 0)
            except Unreadable:
                out.append(data)
                raise
            out.append(data[:end])
            return data[end:]
        if self._asked_to_upgrade and not self._head.begun and not data[:1].isalpha():
            self._transparent = True  # frames: the first byte of a client's is never a letter
            return data
        if not self._head.begun:
            blank = len(data) - len(data.lstrip(b"\r\n"))
            out.append(data[:blank])
        found = self._head.read(data)
        if found is None:
            return b""
        raw, rest = found
        try:
            head = read_head(raw)
            self._body = body_of_request(head)
        except Unreadable:
            out.extend((raw, rest))
            raise
        self._asked_to_upgrade = head.upgrades_to_websocket
        out.append(_HOST_LINE.sub(lambda match: match[1] + self._host, raw, count=1))
        return rest
