"""The opening handshake around the library: what a client asked for, how it is refused, and how it fails."""

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import SplitResult, parse_qsl

import attrs
import trio

from engine.config import Limits

_SERVER: Final = re.compile(r"^https?://[^/?]*", re.IGNORECASE)
"""Before the path, where a client asks as if we were a proxy (RFC 9112, 3.2.2: it is to be taken)."""


class HandshakeFailed(Exception):  # noqa: N818  # named beside TransportClosed
    """No connection came about; the stream is closed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"WebSocket handshake failed: {reason}")
        self.reason = reason


class HandshakeRejected(HandshakeFailed):
    """The server answered, and refused."""

    def __init__(self, status: int, body: bytes, headers: Sequence[tuple[str, str]]) -> None:
        super().__init__(f"status {status}: {body[:200]!r}")
        self.status = status
        self.body = body
        self.headers = tuple(headers)


@attrs.frozen
class Handshake:
    """What the client asked for."""

    path: str
    """Without the query."""
    query: dict[str, str]
    """The first value of each name."""
    headers: tuple[tuple[str, str], ...]
    """(lower-case name, value) in order; `Host` is missing, the library consumes it."""

    def header_values(self, name: str) -> list[str]:
        """All values of one header, by any case of its name."""
        return [value for key, value in self.headers if key == name.lower()]


@attrs.frozen
class Refusal:
    """The HTTP answer instead of an upgrade."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def read_handshake(
    target: str, raw_headers: Sequence[tuple[bytes, bytes]], subprotocols: Sequence[str]
) -> Handshake:
    """The request as the library has read it; it takes the subprotocols out of the headers, here they are back."""
    path, _, query = _SERVER.sub("", target).partition("?")
    first_values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        first_values.setdefault(name, value)
    headers = header_texts(raw_headers)
    if subprotocols:
        headers += (("sec-websocket-protocol", ", ".join(subprotocols)),)
    return Handshake(path or "/", first_values, headers)


def refuse_malformed(handshake: Handshake) -> Refusal | None:
    """What the library lets pass. With a body h11 and `InboundFrames` would disagree about where frames begin."""
    has_body = handshake.header_values("transfer-encoding") or any(
        value != "0" for value in handshake.header_values("content-length")
    )
    if has_body:
        return Refusal(400, b"an upgrade request has no body\n", (("content-type", "text/plain"),))
    if len(handshake.header_values("sec-websocket-key")) != 1:
        return Refusal(400, b"one Sec-WebSocket-Key is needed\n", (("content-type", "text/plain"),))
    return None


def header_texts(headers: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Names in lower case; latin-1 maps every byte, and no byte of a stranger may raise here."""
    return tuple((name.lower().decode("latin-1"), value.decode("latin-1")) for name, value in headers)


@contextmanager
def handshake_deadline(limits: Limits) -> Iterator[None]:
    """Raise `HandshakeFailed` if the body takes longer than `handshake_timeout_seconds`."""
    try:
        with trio.fail_after(limits.handshake_timeout_seconds):
            yield
    except trio.TooSlowError:
        raise HandshakeFailed(f"not done within {limits.handshake_timeout_seconds:g} s") from None


async def dial(parts: SplitResult) -> trio.abc.Stream:
    """Connect to the host of a `ws` or `wss` URL, TLS included. Raises `HandshakeFailed`."""
    host, secure = parts.hostname or "", parts.scheme == "wss"
    port = parts.port or (443 if secure else 80)
    try:
        stream = await trio.open_tcp_stream(host, port)
        return await _secure(stream, host) if secure else stream
    except OSError as error:
        raise HandshakeFailed(f"cannot reach {host}:{port} ({error})") from error
    except trio.BrokenResourceError as error:
        raise HandshakeFailed(f"no TLS with {host}:{port} ({error.__cause__})") from error


async def _secure(stream: trio.SocketStream, host: str) -> trio.abc.Stream:
    """TLS over `stream`. The handshake is done here, so that a bad certificate is named and not a hang-up."""
    context = ssl.create_default_context()
    secured = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(secured)
        raise
    return secured
