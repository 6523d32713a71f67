"""Echoes for the suite: the engine's transport in both roles, and a sloppy server that must fail.

The engine closes with 1003 on a binary message, and the suite sends many. So messages are taken and given one layer
below `receive()`: from the library, behind the engine's stream, which counts, cuts, frames and closes as always.
Text goes back by the engine's own entrance, a binary message by the library's.

The limits are those the server has by default: the largest message of these cases has 256 KiB, the longest 51
fragments. The performance cases (9.*) are of 16 MiB and of 65,536 fragments, which no client of the engine sends.
"""

import re
from typing import Any
from urllib.parse import urlencode

import trio
from trio_websocket import ConnectionClosed
from wsproto.utilities import generate_accept_token

from engine.config import DEFAULT_LIMITS
from engine.frames import CLOSE, TEXT, frame
from engine.transport import HandshakeFailed, TransportClosed, connect_transport, serve_transport

AGENT = "engine"


async def echo(transport: Any) -> None:
    """Give every message back until the connection is over."""
    library = transport._connection
    try:
        while True:
            message = await library.get_message()
            if isinstance(message, bytes):
                await library.send_message(message)
            else:
                transport.send_nowait(message.encode())
                transport.flush()
    except (ConnectionClosed, TransportClosed):
        return


# --- the engine as server ------------------------------------------------------------------------------------------


async def serve_echo(stream: trio.abc.Stream) -> None:
    """One connection."""
    try:
        async with serve_transport(stream, DEFAULT_LIMITS, lambda _: None, request_id="req") as (
            transport,
            _,
        ):
            await echo(transport)
    except HandshakeFailed:
        return


# --- the engine as client ------------------------------------------------------------------------------------------


async def count_cases(url: str) -> int:
    """How many cases the suite has for a client."""
    async with connect_transport(f"{url}/getCaseCount", [], DEFAULT_LIMITS) as transport:
        return int(await transport.receive())


async def be_tried(url: str, cases: int) -> None:
    """Meet the suite in one connection for each case, then tell it that these were all."""
    targets = [f"/runCase?{urlencode({'case': case, 'agent': AGENT})}" for case in range(1, cases + 1)]
    for target in [*targets, f"/updateReports?agent={AGENT}"]:
        async with connect_transport(url + target, [], DEFAULT_LIMITS) as transport:
            await echo(transport)


# --- the negative control ------------------------------------------------------------------------------------------


async def serve_sloppily(stream: trio.abc.Stream) -> None:
    """Answer each frame by itself, whatever it is, as one whole text; and a close as it came."""
    peer = _SloppyPeer(stream)
    try:
        await peer.upgrade()
        while True:
            await peer.answer_a_frame()
    except (EOFError, trio.BrokenResourceError):
        return
    finally:
        await trio.aclose_forcefully(stream)


class _SloppyPeer:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream, self._unread = stream, bytearray()

    async def upgrade(self) -> None:
        while b"\r\n\r\n" not in self._unread:
            await self._more()
        head = await self._take(self._unread.index(b"\r\n\r\n") + 4)
        key = re.search(rb"(?i)^sec-websocket-key: *(\S+)", head, re.MULTILINE)
        assert key, head
        accept = generate_accept_token(key[1]).decode()
        answer = (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        await self._stream.send_all(answer.encode())

    async def answer_a_frame(self) -> None:
        first, second = await self._take(2)
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await self._take(2 if size == 126 else 8), "big")
        mask, masked = await self._take(4), await self._take(size)
        payload = bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked))
        is_close = first & 0x0F == CLOSE & 0x0F
        await self._stream.send_all(frame(CLOSE if is_close else TEXT, payload))
        if is_close:
            raise EOFError

    async def _take(self, size: int) -> bytes:
        while len(self._unread) < size:
            await self._more()
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    async def _more(self) -> None:
        data = await self._stream.receive_some()
        if not data:
            raise EOFError
        self._unread += data
