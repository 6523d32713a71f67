"""A line between a client and the server that is interfered with once, where it is told."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

BUFFER_BYTES = 65536
CONNECT_SECONDS = 5


class Cut:
    """Listens beside the server, and carries all. After so many appearances of a mark in what the server says it cuts."""

    address: str
    """What the client is told, in the place of the server's."""

    def __init__(
        self, server: str, *, mark: bytes, appearances: int = 1, then: Callable[[], None] | None = None
    ) -> None:
        """`server`: its address, `host:port/path`. `then`: what to do at the mark instead of cutting the line."""
        host_and_port, _, self._path = server.partition("/")
        host, _, port = host_and_port.partition(":")
        self._server = (host, int(port))
        self._mark, self._to_come, self._then = mark, appearances, then
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.interfered = threading.Event()

    @classmethod
    @contextmanager
    def on(cls, server: str, **more: Any) -> Iterator[Self]:
        """A line that is there until the end of the block."""
        line = cls(server, **more)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            line.address = f"127.0.0.1:{listener.getsockname()[1]}/{line._path}"
            threading.Thread(target=line._accept, args=(listener,), daemon=True).start()
            try:
                yield line
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                line._hang_up(line._sockets)

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
            pair = (client, server)
            self._sockets += pair
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, pair), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, both: Sequence[socket.socket] = ()) -> None:
        """Carry one direction. `both` ends are given for what the server says."""
        kept = bytearray()
        with suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                seen = len(kept)
                kept += data
                end = self._position(kept, seen) if both else None
                if end is not None and self._then is None:
                    sink.sendall(data[: max(0, end - seen)])
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
        if not self._to_come:
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
