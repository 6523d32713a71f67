"""The relay: what comes from one side goes to the other, byte for byte, and a copy of it to those who watch.

Each accepted connection has one of its own to the upstream, and two tasks that carry: read, note, write. Nothing is
queued on the way, so who reads slowly slows only whom it reads from. One task looks at the notes of all connections,
in batches and in slices (`engine.tap.notes`): what is seen is late by a moment, what is relayed is not.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

import attrs
import trio

from engine.nursery import leaves
from engine.tap.http import HostRewriter
from engine.tap.notes import OBSERVE_EVERY_SECONDS, Notes, Watch
from engine.tap.observer import By, Way
from engine.tap.sides import Lost, Side, side_of

MAX_CONNECTIONS: Final = 2048
CONNECT_SECONDS: Final = 15.0

_log = logging.getLogger(__name__)


class Destination(Protocol):
    """Where to; `engine.tap.sides.Upstream` is one."""

    @property
    def place(self) -> str:
        """As people call it."""

    @property
    def told_host(self) -> str | None:
        """What requests say in `Host` instead of what the client said; None: that is left as it is."""

    async def connect(self) -> Side:
        """A new connection. `OSError`, `trio.BrokenResourceError` of TLS."""


class _Link:
    """One connection from the client to the upstream."""

    def __init__(
        self, client: Side, server: Side, watch: Watch | None, rewriter: HostRewriter | None
    ) -> None:
        self.watch = watch
        self._client = client
        self._server = server
        self._rewriter = rewriter
        self._lost: Side | None = None
        self._sending = 0
        self._scope = trio.CancelScope()

    @property
    def idle(self) -> bool:
        """Does it only wait for another request? As far as has been looked."""
        return not self._sending and (self.watch is None or self.watch.idle)

    async def run(self) -> None:
        """Carry until both sides have ended, or one is lost; then close each as the other was."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._carry, "in", self._client, self._server)
                    nursery.start_soon(self._carry, "out", self._server, self._client)
        finally:
            if self.watch is not None:
                by: dict[Side | None, By] = {self._client: "client", self._server: "server"}
                self.watch.closed(by.get(self._lost, "network"))
            for side in (self._client, self._server):
                if self._lost is None:
                    await side.aclose()
                else:
                    side.reset()

    def end(self) -> None:
        """Carry nothing more."""
        self._scope.cancel()

    async def _carry(self, way: Way, source: Side, sink: Side) -> None:
        watch, rewriter = self.watch, self._rewriter if way == "in" else None
        try:
            while data := await source.receive():
                if watch is not None:
                    watch.seen(way, data)
                if rewriter is not None:
                    data = rewriter.pass_on(data)
                if data:
                    self._sending += 1
                    await sink.send(data)
                    self._sending -= 1
            if watch is not None:
                watch.ended(way)
            if rewriter is not None and (rest := rewriter.rest()):
                await sink.send(rest)
            if not await sink.end():
                self._scope.cancel()
        except Lost as lost:
            self._lost = self._lost or lost.side
            self._scope.cancel()


@attrs.define(eq=False)
class Tap:
    """A relay to one upstream."""

    upstream: Destination
    notes: Notes | None
    """None: nobody watches."""
    max_connections: int = MAX_CONNECTIONS
    connections: int = attrs.field(default=0, init=False)
    """So many were accepted."""
    _links: set[_Link] = attrs.field(factory=set, init=False)
    _open: int = attrs.field(default=0, init=False)
    _accepting: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def run(
        self,
        listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
        *,
        drain_seconds: float = 0.0,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `drain()`; then what is in the middle of something may go on for so long.

        When it has ended, cancelled too, all that was relayed has been looked at.
        """
        try:
            async with trio.open_nursery() as nursery:
                if self.notes is not None:
                    nursery.start_soon(self.notes.run)
                task_status.started()
                with self._accepting:
                    await trio.serve_listeners(self.serve, list(listeners), handler_nursery=nursery)
                with trio.move_on_after(drain_seconds):
                    await self._drained()
                nursery.cancel_scope.cancel()
        finally:
            if self.notes is not None:
                self.notes.look()

    def drain(self) -> None:
        """Accept no more."""
        self._accepting.cancel()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Relay one connection to its end. Raises nothing that a peer could cause."""
        client = side_of(stream)
        self.connections += 1
        name = f"c{self.connections}"
        if self._open >= self.max_connections:
            _log.warning("%s: more than %d connections at once, refused", name, self.max_connections)
            client.reset()
            return
        self._open += 1
        try:
            await self._relay(name, client)
        except Exception:  # noqa: BLE001  # one connection must not end the others
            _log.exception("%s: the relay failed", name)
        finally:
            self._open -= 1

    async def _relay(self, name: str, client: Side) -> None:
        try:
            with trio.fail_after(CONNECT_SECONDS):
                server = await self.upstream.connect()
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            _log.error("%s: no connection with %s (%s)", name, self.upstream.place, _reason(error))
            client.reset()
            return
        except BaseException:
            client.reset()
            raise
        told = self.upstream.told_host
        watch = self.notes.watch(name) if self.notes is not None else None
        link = _Link(client, server, watch, HostRewriter(told.encode()) if told is not None else None)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def _drained(self) -> None:
        """Wait for the connections to end; those that only wait for another request are ended here."""
        while self._links:
            if self.notes is not None:
                self.notes.look()
            for link in self._links:
                if link.idle:
                    link.end()
            await trio.sleep(OBSERVE_EVERY_SECONDS)


def _reason(error: BaseException) -> str:
    causes = error.__cause__ if isinstance(error, trio.BrokenResourceError) else None
    if isinstance(error, trio.TooSlowError):
        return f"none within {CONNECT_SECONDS:g} s"
    return "; ".join(str(leaf) for leaf in leaves(causes or error))
