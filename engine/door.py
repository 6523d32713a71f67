"""The front door: reads the head of a stream's first request, and knows by it which way the stream goes.

One port serves both: a request to upgrade goes to the WebSocket library, which reads it again from the beginning
(`engine.streams.ReplayedStream`); anything else is HTTP and goes on with the parser that has read it.
Who may come in is asked here as well, in the same words for both.
"""

import hmac
import secrets
from collections.abc import Callable, Collection
from hashlib import blake2b
from typing import Final

import attrs
import h11
import orjson
import trio

from engine.config import Limits
from engine.handshake import Handshake, read_handshake
from engine.streams import ReplayedStream
from protocol.errors import RemoteProtocolError, refusal

ANYBODY: Final = ""
"""The owner of everything on a server without keys."""


class DoorFailed(Exception):  # noqa: N818  # named as the handshake's
    """No request came that can be read. `answer`: what to say to the peer, if it may still listen."""

    def __init__(self, reason: str, answer: RemoteProtocolError | None = None) -> None:
        super().__init__(f"no request: {reason}")
        self.answer = answer


@attrs.frozen
class Knock:
    """The first request of a stream."""

    stream: trio.abc.Stream
    parser: h11.Connection
    """Has read the request's head, and perhaps more."""
    request: h11.Request
    head: bytes
    handshake: Handshake
    """The same head, as both ways read it."""

    @property
    def wants_websocket(self) -> bool:
        """Is it a request to upgrade?"""
        values = self.handshake.header_values("upgrade")
        return any(token.strip().lower() == "websocket" for value in values for token in value.split(","))

    def replayed(self) -> ReplayedStream:
        """The stream as if nothing had been read of it."""
        return ReplayedStream(self.stream, self.head, self.parser.trailing_data[0])


async def answer_the_door(stream: trio.abc.Stream, limits: Limits) -> Knock:
    """Read the first head, within `handshake_timeout_seconds`. `DoorFailed`: there was none, or a bad one."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.max_head_bytes)
    read = bytearray()
    with trio.move_on_after(limits.handshake_timeout_seconds):
        while True:
            request = next_head(parser, limits)
            if request is not None:
                head = bytes(read[: len(read) - len(parser.trailing_data[0])])
                return Knock(stream, parser, request, head, handshake_of(request))
            data = await _receive(stream, limits)
            read += data
            parser.receive_data(bytes(data))
    raise DoorFailed(f"not done within {limits.handshake_timeout_seconds:g} s")


def next_head(parser: h11.Connection, limits: Limits) -> h11.Request | None:
    """The next request's head, if the parser has all of it. `DoorFailed`: what it has is no head, or the stream's end."""
    try:
        event = parser.next_event()
    except h11.RemoteProtocolError as error:
        too_large = error.error_status_hint == 431
        limit_bytes = limits.max_head_bytes
        answer = refusal("head_too_large", limit=limit_bytes) if too_large else refusal("bad_request")
        raise DoorFailed(str(error), None if parser.trailing_data[1] else answer) from None
    if isinstance(event, h11.ConnectionClosed):
        raise DoorFailed("the peer hung up")
    if not isinstance(event, h11.Request):
        return None
    if _head_bytes(event) > limits.max_head_bytes:  # it came in one piece, which the parser does not bound
        raise DoorFailed("a head that is too large", refusal("head_too_large", limit=limits.max_head_bytes))
    return event


def _head_bytes(request: h11.Request) -> int:
    """Without the empty line at its end."""
    fields = sum(len(name) + len(value) + len(b"\r\n: ") for name, value in request.headers.raw_items())
    return len(request.method) + len(request.target) + len(b"  HTTP/1.1") + fields


async def _receive(stream: trio.abc.Stream, limits: Limits) -> bytes | bytearray:
    try:
        return await stream.receive_some(limits.receive_buffer_bytes)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        raise DoorFailed("the peer hung up") from None


def handshake_of(request: h11.Request) -> Handshake:
    """Path, query and headers of a request."""
    return read_handshake(request.target.decode("latin-1"), list(request.headers), ())


class Doorkeeper:
    """Who may come in, by key and origin (reference 1.2). No keys: this machine's own programs, and no browser."""

    def __init__(self, keys: Collection[str]) -> None:
        self._asks = bool(keys)
        self._owners = {f"Bearer {key}".encode(): owner_of(key) for key in keys}

    def revoke(self, key: str) -> None:
        """The key lets nobody in any more; who is in with it may read on, but starts and brings nothing (T4)."""
        self._owners.pop(f"Bearer {key}".encode(), None)

    def check(self, owner: str, stream_id: str | None) -> None:
        """Again, for a frame of a client that is in. `RemoteProtocolError`: its key was revoked since."""
        if self._asks and owner not in self._owners.values():
            error = refusal("invalid_api_key")
            error.stream_id = stream_id
            raise error

    def owner(self, handshake: Handshake) -> str:
        """Whose request it is; the key is compared in constant time. `RemoteProtocolError`: it may not come in (T1, T2)."""
        origins = handshake.header_values("origin")
        if not self._asks:
            if origins:
                raise refusal("origin")
            return ANYBODY
        shown = handshake.header_values("authorization")
        owner = self._owner_of_header(shown[0]) if len(shown) == 1 else None
        if owner is None:
            raise refusal("origin" if origins and not shown else "invalid_api_key")
        if "null" in origins:
            raise refusal("opaque_origin")
        return owner

    def _owner_of_header(self, shown: str) -> str | None:
        """Compares with every key, whichever fits."""
        found = None
        for expected, owner in self._owners.items():
            if hmac.compare_digest(shown.encode("latin-1", "replace"), expected):
                found = owner
        return found


def owner_of(key: str) -> str:
    """The name under which a key's responses are kept."""
    return blake2b(key.encode(), digest_size=16).hexdigest()


def error_body(error: RemoteProtocolError) -> bytes:
    """The body of a refusal (reference 11.2), the same for an upgrade and for HTTP."""
    detail = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return orjson.dumps({"error": detail})


def new_request_id() -> str:
    """An id for one request."""
    return f"req_{secrets.token_hex(16)}"


def ids_from(first: str) -> Callable[[], str]:
    """Makes request ids, the first one given."""
    given = iter([first])
    return lambda: next(given, None) or new_request_id()
