"""A tap on the line between a client and the server: it keeps what passed, and interferes where it is told.

What goes over HTTP stands in no trace, so the requests and events are read from here.
"""

import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import attrs
import orjson

BUFFER_BYTES = 65536
CONNECT_SECONDS = 5
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"^content-length: *(\d+)\r$", re.IGNORECASE | re.MULTILINE)
_SSE = re.compile(rb"^data: (\{.*\})$", re.MULTILINE)


@attrs.define(eq=False)
class Line:
    """What passed over one connection."""

    up: bytearray = attrs.Factory(bytearray)
    down: bytearray = attrs.Factory(bytearray)

    @property
    def is_websocket(self) -> bool:
        """Was it upgraded?"""
        return self.down.startswith(b"HTTP/1.1 101")

    def requests(self) -> list[dict[str, Any]]:
        """The bodies of what was posted, in order."""
        found, at = [], 0
        while (head_end := self.up.find(_HEAD_END, at)) >= 0:
            length = _LENGTH.search(self.up, at, head_end + 1)
            body = head_end + len(_HEAD_END)
            at = body + int(length[1]) if length else body
            if length:
                found.append(orjson.loads(self.up[body:at]))
        return found

    def events(self) -> list[dict[str, Any]]:
        """The events that were streamed over HTTP, in order; each is in a chunk of its own, whole."""
        return [orjson.loads(data) for data in _SSE.findall(self.down)]


class Tap:
    """Listens beside the server. Interferes once: after so many appearances of a mark in what the server says."""

    address: str
    """What the client is told, in the place of the server's."""

    def __init__(
        self,
        server: str,
        *,
        mark: bytes | None = None,
        appearances: int = 1,
        then: Callable[[], None] | None = None,
    ) -> None:
        """`server`: its address, `host:port/path`. `then`: what to do at the mark instead of cutting the line."""
        host_and_port, _, self._path = server.partition("/")
        host, _, port = host_and_port.partition(":")
        self._server = (host, int(port))
        self._mark, self._to_come, self._then = mark, appearances, then
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.lines: list[Line] = []
        self.interfered = threading.Event()

    @classmethod
    @contextmanager
    def on(cls, server: str, **more: Any) -> Iterator[Self]:
        """A tap that is there until the end of the block."""
        tap = cls(server, **more)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            tap.address = f"127.0.0.1:{listener.getsockname()[1]}/{tap._path}"
            threading.Thread(target=tap._accept, args=(listener,), daemon=True).start()
            try:
                yield tap
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                tap._hang_up(tap._sockets)

    @property
    def http_url(self) -> str:
        """The base URL as the clients want it."""
        return f"http://{self.address}"

    def requests(self) -> list[dict[str, Any]]:
        """Posted over any connection."""
        return [request for line in self.lines for request in line.requests()]

    def events(self) -> list[dict[str, Any]]:
        """Streamed over any connection."""
        return [event for line in self.lines if not line.is_websocket for event in line.events()]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server, CONNECT_SECONDS)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            line, pair = Line(), (client, server)
            self.lines.append(line)
            self._sockets += pair
            threading.Thread(target=self._pump, args=(client, server, line.up), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, line.down, pair), daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, kept: bytearray, both: Sequence[socket.socket] = ()
    ) -> None:
        """Carry one direction. `both` ends are given for what the server says."""
        with suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                seen = len(kept)
                kept += data
                end = self._position(kept, seen) if both else None
                if end is not None and self._then is None:
                    sink.sendall(data[: max(0, end - seen)])
                    del kept[end:]
                    self._hang_up(both)
                else:
                    sink.sendall(data)
                if end is not None:
                    self.interfered.set()
                    if self._then is not None:
                        self._then()
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _position(self, kept: bytearray, seen: int) -> int | None:
        """Behind the mark, if this is the one."""
        if self._mark is None or not self._to_come:
            return None
        with self._lock:
            at = max(0, seen - len(self._mark) + 1)
            while self._to_come and (at := kept.find(self._mark, at)) >= 0:
                at += len(self._mark)
                self._to_come -= 1
            return None if self._to_come else at

    def _hang_up(self, sockets: Sequence[socket.socket]) -> None:
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
