"""The server: listeners, the door, one task per connection, and an orderly end.

The door decides before the upgrade: path, key, origin, number of connections (reference 1.2).
A connection's crash ends that connection; a bug in this file ends the process.

Shutting down (`Server.drain`): no new connection, no new create; suspended rollouts end as their dialect says,
sampling ones may go on for `drain_seconds`; then every connection is closed with 1001.
"""

import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TypeVar

import attrs
import orjson
import trio

from engine.connection import Connection, ConnectionStatistics
from engine.engine import Engine
from engine.handshake import Handshake, HandshakeFailed, Refusal
from engine.recorder import NoRecorder, Recorders
from engine.scheduler import SlotStatistics
from engine.transport import ServerTransport, serve_transport
from engine.vocabulary import check_vocabulary
from protocol.errors import RemoteProtocolError, refusal

log = logging.getLogger(__name__)
AnyListener = TypeVar("AnyListener", bound=trio.abc.Listener[trio.abc.Stream])

PATHS = frozenset({"/v1/responses", "/responses", "/v1/codex/responses", "/codex/responses"})
APPEND_TOKEN = "responses_websockets=2026-02-04"  # noqa: S105  # a feature's name, no secret
ACCEPT_PAUSE_SECONDS = 0.1
"""After a failed accept; long enough not to spin, short enough not to be noticed."""
_JSON = ("content-type", "application/json")


@attrs.frozen
class ServerStatistics:
    """What a server holds."""

    connections: tuple[ConnectionStatistics, ...]
    slots: SlotStatistics


class Server:
    """Serves an engine. `key`: what clients must show as bearer; None = no key, then loopback clients only."""

    def __init__(self, engine: Engine, *, key: str | None = None, trace: Recorders | None = None) -> None:
        self.engine = engine
        self._key = key
        self._trace = trace
        self._connections: dict[Connection, ServerTransport] = {}
        self._handshakes = 0
        self._draining = False
        self._accepting: trio.Nursery | None = None

    def statistics(self) -> ServerStatistics:
        """A frozen view."""
        return ServerStatistics(
            tuple(connection.statistics() for connection in self._connections), self.engine.slots.statistics()
        )

    # --- the whole life --------------------------------------------------------------------------------------------

    async def run(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        task_status: trio.TaskStatus[Sequence[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve until cancelled or drained. Starts with the listeners, so that a port of 0 can be read.

        `ValueError`: a public address without a key. `OSError`: the port is taken.
        """
        if self._key is None and not is_loopback(host):
            raise ValueError(f"refusing to serve {host!r} without a key: set one, or bind 127.0.0.1")
        check_vocabulary()
        await self.run_on(await trio.open_tcp_listeners(port, host=host), task_status=task_status)

    async def run_on(
        self, listeners: Sequence[AnyListener], *, task_status: trio.TaskStatus[Sequence[AnyListener]]
    ) -> None:
        """`run` without the binding: serve what any listeners accept, and close them. Those of the test kit are in memory."""
        async with trio.open_nursery() as nursery:
            self.start_samplers(nursery)
            async with trio.open_nursery() as self._accepting:
                for listener in listeners:
                    self._accepting.start_soon(self._accept, listener, nursery)
                task_status.started(listeners)
                if self._draining:
                    self._accepting.cancel_scope.cancel()
            with trio.move_on_after(self.engine.limits.drain_seconds):
                await self._wait_idle()
            await self._close_all()
            nursery.cancel_scope.cancel()

    def start_samplers(self, nursery: trio.Nursery) -> None:
        """Start the background tasks of the samplers that have one (a model's engine step)."""
        for sampler in {id(s): s for s in (self.engine.sampler, *self.engine.samplers.values())}.values():
            run: Callable[[], object] | None = getattr(sampler, "run", None)
            if run is not None:
                nursery.start_soon(run)  # type: ignore[arg-type]  # `base.Background`

    def cancel(self, response_id: str) -> bool:
        """Cancel a response that has not ended, sampling or suspended: it fails with status `cancelled` (reference 2.6).

        False if there is none. Not a checkpoint.
        """
        return any(connection.cancel(response_id) for connection in self._connections)

    def drain(self) -> None:
        """Begin to shut down; `run` returns when that is done. Idempotent, not a checkpoint."""
        self._draining = True
        for connection in self._connections:
            connection.drain()
        if self._accepting is not None:
            self._accepting.cancel_scope.cancel()

    async def _wait_idle(self) -> None:
        async with trio.open_nursery() as nursery:
            for connection in list(self._connections):
                nursery.start_soon(connection.wait_idle)

    async def _close_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for connection, transport in list(self._connections.items()):
                nursery.start_soon(self._close, connection, transport)

    async def _close(self, connection: Connection, transport: ServerTransport) -> None:
        """What still samples is cut; its terminal event goes before the close frame, after which nothing may."""
        connection.cut()
        with trio.move_on_after(self.engine.limits.cleanup_seconds):
            await connection.wait_idle()
        await transport.aclose(1001, "the server is shutting down")

    async def _accept(self, listener: trio.abc.Listener[trio.abc.Stream], nursery: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:  # out of file descriptors, most likely: those who are served go on
                    log.warning("cannot accept a connection: %s", error)
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
                else:
                    nursery.start_soon(self.serve, stream)

    # --- a connection ----------------------------------------------------------------------------------------------

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one client on any stream, from the upgrade request to the end. Never raises but `Cancelled`."""
        request_id = f"req_{secrets.token_hex(16)}"
        self._handshakes += 1
        in_handshake = True
        try:
            async with serve_transport(stream, self.engine.limits, self._admit, request_id=request_id) as (
                transport,
                handshake,
            ):
                self._handshakes -= 1
                in_handshake = False
                await self._serve_transport(transport, handshake)
        except HandshakeFailed as error:
            log.info("%s: no upgrade: %s", request_id, printable(str(error)))
        except Exception:
            log.exception("%s: connection crashed", request_id)
        finally:
            self._handshakes -= in_handshake

    async def _serve_transport(self, transport: ServerTransport, handshake: Handshake) -> None:
        append = opted_into_append(handshake)
        recorder = self._trace.recorder("append" if append else "create") if self._trace else NoRecorder()
        model = handshake.query.get("model")
        connection = Connection(self.engine, transport, recorder, append=append, model=model)
        self._connections[connection] = transport
        if self._draining:  # since it was let in
            connection.drain()
        try:
            await connection.run()
        except Exception:
            await transport.aclose(1011, "internal error")
            raise
        finally:
            del self._connections[connection]

    # --- the door --------------------------------------------------------------------------------------------------

    def _admit(self, handshake: Handshake) -> Refusal | None:
        try:
            self._check_door(handshake)
        except RemoteProtocolError as error:
            detail = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
            return Refusal(error.status, orjson.dumps({"error": detail}), (_JSON,))
        return None

    def _check_door(self, handshake: Handshake) -> None:
        if handshake.path not in PATHS:
            raise refusal("not_found")
        self._check_key(handshake)
        if self._draining:
            raise refusal("overloaded")
        if len(self._connections) + self._handshakes > self.engine.limits.max_connections:
            raise refusal("too_many_connections")

    def _check_key(self, handshake: Handshake) -> None:
        """Bearer key in constant time; without a key a browser's page on another site is kept out (T1, T2)."""
        origins = handshake.header_values("origin")
        if self._key is None:
            if origins:
                raise refusal("origin")
            return
        shown = handshake.header_values("authorization")
        expected = f"Bearer {self._key}".encode()
        if len(shown) != 1 or not hmac.compare_digest(shown[0].encode("latin-1", "replace"), expected):
            raise refusal("origin" if origins and not shown else "invalid_api_key")
        if "null" in origins:
            raise refusal("origin")


def opted_into_append(handshake: Handshake) -> bool:
    """By the beta header, exactly spelled, or by the query (reference 1.2)."""
    tokens = {token.strip() for value in handshake.header_values("openai-beta") for token in value.split(",")}
    return APPEND_TOKEN in tokens or handshake.query.get("dialect") == "append"


def is_loopback(host: str) -> bool:
    """Does binding `host` reach this machine only?"""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def printable(text: str) -> str:
    """Text from outside, safe for a log: control characters escaped (T25)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
