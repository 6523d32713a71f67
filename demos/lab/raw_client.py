"""A client that costs little: a blocking socket, whole frames, and marks counted in what comes back, never JSON.

For measuring a server from outside by thousands of rollouts: a real client would be measured with it.
"""

import resource
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from engine.frames import TEXT, frame

SHED_SECONDS: Final = 20.0
"""A client that hears nothing for so long gives up: the run failed."""


class RawClient:
    """A blocking socket that writes masked frames; what comes back is read as bytes or as frames, never as JSON."""

    def __init__(self, port: int, *, append: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SHED_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = bytearray()
        try:
            self._shake_hands(append=append)
        except BaseException:
            self.socket.close()
            raise

    def _shake_hands(self, *, append: bool) -> None:
        self.socket.sendall(
            b"GET /v1/responses%b HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            % (b"?dialect=append" if append else b"")
        )
        while b"\r\n\r\n" not in self._unread:  # the server says nothing more before it is asked
            self.wait_first_byte()
        assert self._unread.startswith(b"HTTP/1.1 101"), self._unread
        self._unread.clear()

    def send(self, event: Mapping[str, Any]) -> None:
        """One text frame."""
        self.send_frame(text_frame(event))

    def send_frame(self, whole_frame: bytes) -> None:
        """A frame made before, so that its making is not timed."""
        self.socket.sendall(whole_frame)

    def wait_first_byte(self) -> None:
        """Wait for more bytes and keep them for `read_frame`."""
        self._unread += self.read_some()

    def read_frame(self) -> bytes:
        """The payload of the next whole frame."""
        start, size = 2, self._byte(1)
        if size >= 126:
            start = 4 if size == 126 else 10
            self._byte(start - 1)
            size = int.from_bytes(self._unread[2:start], "big")
        while len(self._unread) < start + size:
            self.wait_first_byte()
        payload = bytes(self._unread[start : start + size])
        del self._unread[: start + size]
        return payload

    def read_until(self, kind: str) -> bytes:
        """Frames up to the first event of this type, which is returned."""
        mark = b'{"type":"%b"' % kind.encode()
        while not (payload := self.read_frame()).startswith(mark):
            pass
        return payload

    def _byte(self, at: int) -> int:
        while len(self._unread) <= at:
            self.wait_first_byte()
        return self._unread[at]

    def read_some(self) -> bytes:
        """What is there; at least one byte."""
        data = self.socket.recv(1 << 18)
        assert data, "the server hung up"
        return data

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def text_frame(event: Mapping[str, Any]) -> bytes:
    """An event as a client sends it."""
    return frame(TEXT, orjson.dumps(event), masked=True)


class MarkCounter:
    """Counts marks in a stream of chunks, also those that are cut in two."""

    def __init__(self, *marks: bytes) -> None:
        self.counts = dict.fromkeys(marks, 0)
        self._keep = max(map(len, marks)) - 1
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """The next chunk."""
        window = self._tail + data
        for mark in self.counts:
            # a mark that lies whole in the tail was counted with the chunk before
            self.counts[mark] += window.count(mark) - self._tail.count(mark)
        self._tail = window[-self._keep :]


def create(*, stream_id: str | None = None, text: str = "go") -> dict[str, Any]:
    """A small `response.create` with one tool."""
    lane = {} if stream_id is None else {"stream_id": stream_id}
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    return {"type": "response.create", "model": "simulated", "input": text, "tools": [tool], **lane}


def append(call_id: str, output: str, *, stream_id: str | None = None) -> dict[str, Any]:
    """The answer to one call."""
    lane = {} if stream_id is None else {"stream_id": stream_id}
    answer = {"type": "function_call_output", "call_id": call_id, "output": output}
    return {"type": "response.append", "input": [answer], **lane}


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
