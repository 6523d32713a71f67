"""What is served over HTTP: one table of routes, and what is asked of every request before its body is read.

The order of the questions: is anything served here (404), by this method (405), may the client come in (401, 403),
is there room (503, 429). An alias is the same route at another path (reference 1.1).
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import attrs
import orjson

from engine.engine import Engine
from engine.exchange import ClientGone, Exchange, Refused
from engine.http_create import HttpResponses
from engine.http_stored import StoredResponses
from engine.metrics import CONTENT_TYPE, Metrics
from engine.models import ModelEntry
from engine.recorder import HttpRecorder, HttpRecorders, NoHttpRecorder
from protocol.errors import RemoteProtocolError, refusal

log = logging.getLogger(__name__)

Handler = Callable[["HttpSite", Exchange, str], Awaitable[None]]
"""Answers a request; the text is the id in its path, if the path has one."""

_PREFIX: Final = "/v1"
_CODEX: Final = ("/v1/codex/responses", "/codex/responses")
_JSON: Final = (("content-type", "application/json"),)


@attrs.frozen
class Route:
    """One line of the table."""

    methods: Mapping[str, Handler]
    open_to_all: bool = False
    """Is it served without a key?"""
    upgrades: bool = False
    """Is a GET with an upgrade served here, by the WebSocket side?"""
    probe: bool = False
    """Is it asked by machines, again and again? Then it is not traced."""

    @property
    def allowed(self) -> str:
        """The methods, as the header names them."""
        return ", ".join((*self.methods, *(("GET",) if self.upgrades else ())))


@attrs.frozen(kw_only=True)
class HttpSite:
    """The routes, and what their handlers need. An `engine.http.Site`."""

    engine: Engine
    responses: HttpResponses
    stored: StoredResponses
    metrics: Metrics
    check: Callable[[Exchange], str]
    """Whose request it is. `RemoteProtocolError`: it may not come in, or there is no room."""
    recorders: HttpRecorders | None = None
    """What traces the requests, if anything does."""

    def recorder(self, path: str) -> HttpRecorder:
        """As `Site.recorder`."""
        found = find_route(path)
        if self.recorders is None or (found is not None and found[0].probe):
            return NoHttpRecorder()
        return self.recorders.http_recorder()

    def admit(self, exchange: Exchange) -> None:
        """As `Site.admit`."""
        found = find_route(exchange.handshake.path)
        if found is None:
            raise refusal("not_found")
        route, _ = found
        if exchange.method not in route.methods:
            error = refusal("wrong_method", method=exchange.method[:32], allowed=route.allowed)
            raise Refused(error, (("allow", route.allowed),))
        if not route.open_to_all:
            exchange.owner = self.check(exchange)

    async def serve(self, exchange: Exchange) -> None:
        """As `Site.serve`; a crash is answered with 500 before it ends the connection."""
        found = find_route(exchange.handshake.path)
        assert found is not None, "it was admitted"
        route, response_id = found
        try:
            await route.methods[exchange.method](self, exchange, response_id)
        except RemoteProtocolError as error:
            await exchange.refuse(error)
        except ClientGone:
            raise
        except Exception:
            if not exchange.begun:
                await exchange.refuse(refusal("server_error"))
            raise


# --- handlers ------------------------------------------------------------------------------------------------------


async def _create(site: HttpSite, exchange: Exchange, _: str) -> None:
    await site.responses.create(exchange)


async def _count_input(site: HttpSite, exchange: Exchange, _: str) -> None:
    await site.responses.count_input(exchange)


async def _compact(site: HttpSite, exchange: Exchange, _: str) -> None:
    await site.responses.compact(exchange)


async def _retrieve(site: HttpSite, exchange: Exchange, response_id: str) -> None:
    await site.stored.retrieve(exchange, response_id)


async def _delete(site: HttpSite, exchange: Exchange, response_id: str) -> None:
    await site.stored.delete(exchange, response_id)


async def _cancel(site: HttpSite, exchange: Exchange, response_id: str) -> None:
    await site.stored.cancel(exchange, response_id)


async def _input_items(site: HttpSite, exchange: Exchange, response_id: str) -> None:
    await site.stored.input_items(exchange, response_id)


async def _models(site: HttpSite, exchange: Exchange, _: str) -> None:
    entries = [_model_object(entry) for entry in site.engine.resolve.table.named]
    await exchange.answer(200, orjson.dumps({"object": "list", "data": entries}), _JSON)


async def _model(site: HttpSite, exchange: Exchange, name: str) -> None:
    await exchange.answer(200, orjson.dumps(_model_object(site.engine.resolve.model(name))), _JSON)


def _model_object(entry: ModelEntry) -> dict[str, Any]:
    return {"id": entry.name, "object": "model", "created": entry.created, "owned_by": "suspended-response"}


async def _health(_site: HttpSite, exchange: Exchange, _: str) -> None:
    await exchange.answer(200, b'{"status":"ok"}', _JSON)


async def _metrics(site: HttpSite, exchange: Exchange, _: str) -> None:
    await exchange.answer(200, site.metrics.text(), (("content-type", CONTENT_TYPE),))


# --- the table -----------------------------------------------------------------------------------------------------

ROUTES: Final[Mapping[str, Route]] = {
    "/responses": Route({"POST": _create}, upgrades=True),
    "/responses/compact": Route({"POST": _compact}),
    "/responses/input_tokens": Route({"POST": _count_input}),
    "/responses/{}": Route({"GET": _retrieve, "DELETE": _delete}),
    "/responses/{}/cancel": Route({"POST": _cancel}),
    "/responses/{}/input_items": Route({"GET": _input_items}),
    "/models": Route({"GET": _models}),
    "/models/{}": Route({"GET": _model}),
    "/health": Route({"GET": _health}, open_to_all=True, probe=True),
    "/metrics": Route({"GET": _metrics, "HEAD": _metrics}, probe=True),
}
"""By path, without the prefix; `{}` stands for one id."""


def find_route(path: str) -> tuple[Route, str] | None:
    """The route at a path, and the id in the path."""
    if path in _CODEX:
        path = "/responses"
    path = path.removeprefix(_PREFIX)
    if path in ROUTES:
        return ROUTES[path], ""
    parts = path.split("/")  # "", collection, id, perhaps more
    if len(parts) < 3 or not parts[2]:
        return None
    route = ROUTES.get("/".join(["", parts[1], "{}", *parts[3:]]))
    return (route, unquote(parts[2])) if route is not None else None
