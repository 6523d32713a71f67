"""HTTP/1.1 towards a backend: JSON goes out, JSON or a stream of server-sent events comes in, and closing is cancelling.

A connection is kept for the next request once its answer was read to the end. An answer that is left before closes its
connection, which is how these servers learn that nobody wants the rest.

Whatever goes wrong is a `BackendError` with its reason. The key is written into the request and nowhere else: it is
blotted out where a server's answer repeats it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import orjson
import trio

from engine.backends.base import BackendError
from engine.backends.http_connection import Connection, EndedUnasked
from engine.handshake import HandshakeFailed, dial

Dial = Callable[[], Awaitable[trio.abc.Stream]]

MAX_IDLE_CONNECTIONS: Final = 16
QUOTED_CHARACTERS: Final = 300
STALE_SECONDS: Final = 1.0
"""Within them a kept connection shows that it had ended before it was used."""

_SCHEMES: Final = {"http": "ws", "https": "wss"}  # `dial` knows by it whether to use TLS


class BackendRefusedError(BackendError):
    """The backend answered, with a status other than 2xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("refused", message)
        self.status = status


@attrs.frozen(kw_only=True)
class Patience:
    """How long to wait for a backend."""

    connect_seconds: float = 5.0
    """For a connection, TLS included."""
    silence_seconds: float = 300.0
    """For the next byte, in either direction. A long prompt is read in silence."""


class BackendHttp:
    """One server. Any number of requests at the same time, each on a connection of its own.

    `url`: `http://host[:port][/base]` or `https://…`; paths of requests are appended to it. `ValueError`: it is none.
    `key`: sent as a bearer token. `dialled`: makes connections in the place of TCP, for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        patience: Patience | None = None,
        dialled: Dial | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.hostname or "@" in parts.netloc or parts.query:
            raise ValueError(
                f"a backend's URL is http://host:port/base or https://host/base without user or query, not {_public(url)!r}"
            )
        if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
            raise ValueError(
                "a backend's key is ASCII text without spaces around it; this one cannot be sent"
            )
        there = parts._replace(scheme=_SCHEMES[parts.scheme])
        self.url = url.rstrip("/")
        self._base = parts.path.rstrip("/")
        self._headers = [("Host", parts.netloc), ("Content-Type", "application/json")]
        self._key = key
        self._patience = patience or Patience()
        self._dial: Dial = dialled or (lambda: dial(there))
        self._idle: list[Connection] = []
        self.connections_made = 0

    # --- asking ----------------------------------------------------------------------------------------------------

    async def post_json(self, path: str, body: Any, *, silence_seconds: float | None = None) -> Any:
        """The decoded answer to a `POST`; None if it has no body. `BackendError`."""
        return self._decoded(path, await self._whole("POST", path, body, silence_seconds))

    async def get_json(self, path: str, *, silence_seconds: float | None = None) -> Any:
        """The decoded answer to a `GET`; None if it has no body. `BackendError`."""
        return self._decoded(path, await self._whole("GET", path, None, silence_seconds))

    async def get_bytes(self, path: str, *, silence_seconds: float | None = None) -> bytes:
        """The answer to a `GET` as it is. `BackendError`."""
        return await self._whole("GET", path, None, silence_seconds)

    async def stream_json(
        self, path: str, body: Any, *, silence_seconds: float | None = None, shows_done: bool = False
    ) -> AsyncGenerator[Any, None]:
        """The decoded data of each event of the answer to a `POST`, up to `[DONE]` or its end. `BackendError`.

        A server that does not stream gives its one answer. A line `error: {…}` gives `{"error": {…}}`.
        `shows_done`: give None for `[DONE]`, to tell it from a mere end.
        Close it (`aclosing`), or be cancelled, to have the server stop.
        """
        connection = await self._asked("POST", path, body, silence_seconds)
        try:
            async with aclosing(connection.events()) as events:
                async for data in events:
                    yield self._decoded(path, data)
            if shows_done and connection.done:
                yield None
            await connection.linger()
        finally:
            await self._give_back(connection)

    async def aclose(self) -> None:
        """Close what is idle. Idempotent; works when cancelled; a checkpoint."""
        with trio.CancelScope(shield=True):
            while self._idle:
                await self._idle.pop().hang_up()
        await trio.lowlevel.checkpoint_if_cancelled()

    # --- connections -----------------------------------------------------------------------------------------------

    async def _whole(self, method: str, path: str, body: Any, silence_seconds: float | None) -> bytes:
        connection = await self._asked(method, path, body, silence_seconds)
        try:
            return await connection.whole()
        finally:
            await self._give_back(connection)

    async def _asked(self, method: str, path: str, body: Any, silence_seconds: float | None) -> Connection:
        """A connection whose answer's head was read and is good.

        A kept connection may end just when it is used; that shows at once, and then a new one is asked. A hang-up that
        comes later is an answer of its kind: what was asked may have run, or been the reason.
        """
        data = b"" if body is None else orjson.dumps(body)
        silence = self._patience.silence_seconds if silence_seconds is None else silence_seconds
        connection = self._kept()
        if connection is not None:
            asked_at = trio.current_time()
            try:
                return await self._ask_on(connection, method, path, data, silence)
            except EndedUnasked:
                if trio.current_time() - asked_at > STALE_SECONDS:
                    raise self._hung_up(path) from None
        try:
            return await self._ask_on(await self._new(), method, path, data, silence)
        except EndedUnasked:
            raise self._hung_up(path) from None

    async def _ask_on(
        self, connection: Connection, method: str, path: str, data: bytes, silence_seconds: float
    ) -> Connection:
        connection.silence_seconds = silence_seconds
        try:
            status = await connection.ask(method, self._base + path, self._head(data), data)
            await self._require_good(status, path, connection)
        except BaseException:
            await self._give_back(connection)
            raise
        return connection

    def _hung_up(self, path: str) -> BackendError:
        return BackendError("died", f"{self.url}{path}: the server hung up without an answer")

    async def _require_good(self, status: int, path: str, connection: Connection) -> None:
        if status // 100 != 2:
            said = await connection.beginning()
            raise BackendRefusedError(status, f"{self.url}{path} answered {status}: {self._quoted(said)}")

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_news:
                return connection
            connection.forget()
        return None

    async def _new(self) -> Connection:
        try:
            with trio.fail_after(self._patience.connect_seconds):
                stream = await self._dial()
        except trio.TooSlowError:
            raise BackendError(
                "unreachable", f"{self.url}: no connection within {self._patience.connect_seconds:g} s"
            ) from None
        except (HandshakeFailed, OSError, trio.BrokenResourceError) as error:
            why = error.reason if isinstance(error, HandshakeFailed) else str(error)
            raise BackendError("unreachable", f"{self.url}: {why}") from error
        self.connections_made += 1
        return Connection(stream, self.url)

    async def _give_back(self, connection: Connection) -> None:
        if connection.next_cycle() and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            await connection.hang_up()

    # --- texts -----------------------------------------------------------------------------------------------------

    def _head(self, data: bytes) -> list[tuple[str, str]]:
        secret = [("Authorization", f"Bearer {self._key}")] if self._key is not None else []
        return [*self._headers, *secret, ("Content-Length", str(len(data)))]

    def _decoded(self, path: str, data: bytes) -> Any:
        if not data:
            return None
        try:
            return orjson.loads(data)
        except ValueError:
            raise BackendError(
                "broke_promise", f"{self.url}{path} answered what is no JSON: {self._quoted(data)}"
            ) from None

    def _quoted(self, data: bytes) -> str:
        text = data.decode(errors="replace")
        return repr((text.replace(self._key, "***") if self._key else text)[:QUOTED_CHARACTERS])


def _public(url: str) -> str:
    """A URL as it may be shown: who is named before the host is nobody's business."""
    head, separator, rest = url.partition("://")
    return head + separator + rest.rpartition("@")[2] if separator else url
