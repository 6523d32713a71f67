"""The server: listeners, the door, one task per connection, and an orderly end.

One port, two ways in: the door (`engine.door`) reads a stream's first head and sends it to the WebSocket side or to
HTTP (`engine.http`). Both ask the same before they let anyone in: path, key, origin, room (reference 1.2).
A connection's crash ends that connection; a bug in this file ends the process.

Shutting down (`Server.drain`): no new connection, no new create; suspended rollouts end as their dialect says,
sampling ones may go on for `drain_seconds`; then every connection is closed with 1001.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import TypeVar

import trio

from engine.connection import Connection
from engine.door import (
    DoorFailed,
    Doorkeeper,
    Knock,
    answer_the_door,
    error_body,
    ids_from,
    new_request_id,
)
from engine.elsewhere import Elsewhere
from engine.engine import Engine
from engine.exchange import Exchange
from engine.handshake import Handshake, HandshakeFailed, Refusal
from engine.http import HttpConnection, HttpCounts, say_no
from engine.http_create import HttpResponses
from engine.http_stored import StoredResponses
from engine.live import LiveResponses
from engine.metrics import Metrics
from engine.prefix_cache import PrefixCache
from engine.readings import ServerStatistics, readings
from engine.recorder import HttpRecorders, Recorders, recorder_from
from engine.routes import HttpSite
from engine.transport import ServerTransport, serve_transport
from engine.vocabulary import check_vocabulary
from protocol.dialects import Ending
from protocol.errors import RemoteProtocolError, refusal

log = logging.getLogger(__name__)
AnyListener = TypeVar("AnyListener", bound=trio.abc.Listener[trio.abc.Stream])

PATHS = frozenset({"/v1/responses", "/responses", "/v1/codex/responses", "/codex/responses"})
APPEND_TOKEN = "responses_websockets=2026-02-04"  # noqa: S105  # a feature's name, no secret
ACCEPT_PAUSE_SECONDS = 0.1
"""After a failed accept; long enough not to spin, short enough not to be noticed."""
_JSON = ("content-type", "application/json")


class Server:
    """Serves an engine. `key`: what clients must show as bearer, or several keys, each with responses of its own.

    None = no key, then loopback clients only.
    """

    def __init__(
        self, engine: Engine, *, key: str | Sequence[str] | None = None, trace: Recorders | None = None
    ) -> None:
        self.engine = engine
        self.live = LiveResponses(engine.limits)
        self._owners: dict[Connection, str] = {}
        self.prefixes = PrefixCache(engine.limits, engine.classify)
        self.site = HttpSite(
            engine=engine,
            responses=HttpResponses(engine, self.live, self.prefixes),
            stored=StoredResponses(engine.store, self.live, engine.limits, Elsewhere(self._owners)),
            metrics=Metrics(lambda: readings(self.statistics(), self.prefixes.statistics(), engine)),
            check=self._check_request,
            recorders=trace if isinstance(trace, HttpRecorders) else None,
        )
        engine.on_report = self.site.metrics.listening(engine.on_report)
        self._keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        self.doorkeeper = Doorkeeper(self._keys)
        self._trace = trace
        self._connections: dict[Connection, ServerTransport] = {}
        self._http: set[HttpConnection] = set()
        self._http_counts = HttpCounts()
        self._knocking = 0
        self._draining = False
        self._accepting: trio.Nursery | None = None

    def statistics(self) -> ServerStatistics:
        """A frozen view."""
        return ServerStatistics(
            tuple(connection.statistics() for connection in self._connections),
            self.engine.slots.statistics(),
            len(self._http),
            self._http_counts.connections,
            self._http_counts.requests,
            self.engine.residency.statistics(),
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
        if not self._keys and not is_loopback(host):
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
        for response in self.live:
            if response.response_id == response_id and not response.rollout.over:
                response.rollout.stop(Ending.CANCELLED)
                return True
        return any(connection.cancel(response_id) for connection in self._connections)

    def drain(self) -> None:
        """Begin to shut down; `run` returns when that is done. Idempotent, not a checkpoint."""
        self._draining = True
        for connection in self._connections:
            connection.drain()
        for http in self._http:
            http.drain()
        if self._accepting is not None:
            self._accepting.cancel_scope.cancel()

    async def _wait_idle(self) -> None:
        async with trio.open_nursery() as nursery:
            for connection in list(self._connections):
                nursery.start_soon(connection.wait_idle)
            for http in list(self._http):
                nursery.start_soon(http.over.wait)

    async def _close_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for connection, transport in list(self._connections.items()):
                nursery.start_soon(self._close, connection, transport)
            nursery.start_soon(self._close_http)

    async def _close_http(self) -> None:
        """The same for HTTP: an answer that is cut says so, and its connection ends."""
        for response in self.live:
            response.rollout.stop(Ending.DRAINED)
        with trio.move_on_after(self.engine.limits.cleanup_seconds):
            for http in list(self._http):
                await http.over.wait()

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
        """Serve one client on any stream, from its first request to the end. Never raises but `Cancelled`."""
        request_id = new_request_id()
        with self._knock_counted() as let_in:
            try:
                knock = await answer_the_door(stream, self.engine.limits)
                if knock.wants_websocket:
                    await self._serve_websocket(knock, request_id, let_in)
                else:
                    let_in()
                    await self._serve_http(knock, request_id)
            except DoorFailed as error:
                log.info("%s: %s", request_id, printable(str(error)))
                await self._turn_away(stream, error, request_id)
            except (
                HandshakeFailed,
                RemoteProtocolError,
            ) as error:  # the latter: its key was revoked meanwhile
                log.info("%s: no upgrade: %s", request_id, printable(str(error)))
            except Exception:
                log.exception("%s: connection crashed", request_id)

    async def _turn_away(self, stream: trio.abc.Stream, error: DoorFailed, request_id: str) -> None:
        if error.answer is not None:
            await say_no(stream, error.answer, request_id, self.engine.limits)
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)

    async def _serve_http(self, knock: Knock, request_id: str) -> None:
        connection = HttpConnection(
            knock, self.engine.limits, self.site, ids_from(request_id), self._http_counts
        )
        self._http_counts.connections += 1
        self._http.add(connection)
        try:
            await connection.run()
        finally:
            self._http.discard(connection)
            await connection.aclose()

    async def _serve_websocket(self, knock: Knock, request_id: str, let_in: Callable[[], None]) -> None:
        async with serve_transport(
            knock.replayed(), self.engine.limits, self._admit, request_id=request_id
        ) as (transport, handshake):
            let_in()
            await self._serve_transport(transport, handshake)

    @contextmanager
    def _knock_counted(self) -> Iterator[Callable[[], None]]:
        """Whoever is not in yet takes a place as well, until the given function is called, or the end."""
        self._knocking += 1
        outside = True

        def let_in() -> None:
            nonlocal outside
            self._knocking -= outside
            outside = False

        try:
            yield let_in
        finally:
            let_in()

    async def _serve_transport(self, transport: ServerTransport, handshake: Handshake) -> None:
        append = opted_into_append(handshake)
        recorder = recorder_from(self._trace, self.engine.limits, append=append)
        owner = self.doorkeeper.owner(handshake)
        connection = Connection(
            self.engine,
            transport,
            recorder,
            append=append,
            owner=owner,
            model=handshake.query.get("model"),
            check=partial(self.doorkeeper.check, owner),
        )
        self._connections[connection], self._owners[connection] = transport, owner
        if self._draining:  # since it was let in
            connection.drain()
        try:
            await connection.run()
        except Exception:
            await transport.aclose(1011, "internal error")
            raise
        finally:
            del self._connections[connection], self._owners[connection]

    # --- the door --------------------------------------------------------------------------------------------------

    def _admit(self, handshake: Handshake) -> Refusal | None:
        try:
            if handshake.path not in PATHS:
                raise refusal("not_found")
            self._check_place(self._check_room(handshake))
            if not self.engine.websocket:
                raise refusal("no_websocket")
        except RemoteProtocolError as error:
            offer = (("upgrade", "websocket"),) if error.status == 426 else ()  # HTTP wants it said, even so
            return Refusal(error.status, error_body(error), (_JSON, *offer))
        return None

    def _check_room(self, handshake: Handshake) -> str:
        """Whose request it is. `RemoteProtocolError`: it may not come in, or there is no room."""
        owner = self.doorkeeper.owner(handshake)
        if self._draining:
            raise refusal("overloaded")
        open_now = len(self._connections) + len(self._http) + self._knocking
        if open_now > self.engine.limits.max_connections:
            raise refusal("too_many_connections")
        return owner

    def _check_request(self, exchange: Exchange) -> str:
        """As `_check_room`; a connection takes one place of the key of whom it serves."""
        owner = self._check_room(exchange.handshake)
        if exchange.connection.owner != owner:
            self._check_place(owner)
        return owner

    def _check_place(self, owner: str) -> None:
        """`RemoteProtocolError`: a key has so many connections, of both kinds, already."""
        taken = list(self._owners.values()).count(owner) + sum(http.owner == owner for http in self._http)
        if owner and taken >= self.engine.limits.max_connections_per_key:
            raise refusal("too_many_connections")


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
