"""The door: who may come in, in which words the others are turned away, and what a crash behind it costs.

Both ends are the real WebSocket library, over memory streams in virtual time.
"""

import logging
from contextlib import asynccontextmanager

import attrs
import orjson
import pytest
import trio
import trio.testing

from engine.config import Limits
from engine.engine import Engine
from engine.samplers.scripted import END, Scripted, Stall, call, say
from engine.server import APPEND_TOKEN, PATHS, Server, is_loopback, opted_into_append, printable
from engine.transport import Handshake, HandshakeRejected, TransportClosed, connect_transport
from protocol.errors import refusal
from tests.http_peer import HttpPeer
from tests.wire import REQUEST, WirePeer

LIMITS = Limits()
KEY = "sk-secret"
BEARER = ("Authorization", f"Bearer {KEY}")
FOREIGN = ("Origin", "https://example.com")
NULL_ORIGIN = ("Origin", "null")
HELLO = [[*say("hello"), END]]


class Door:
    """A server and the knocks at its door."""

    def __init__(self, server: Server, nursery: trio.Nursery) -> None:
        self.server, self._nursery = server, nursery

    def stream(self) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self.server.serve, theirs)
        return ours

    def open(self, target: str = "/v1/responses", *headers):
        """A connected transport, as a context; `HandshakeRejected`."""
        return connect_transport(f"ws://localhost{target}", headers, LIMITS, self.stream())

    async def refusal(self, target: str = "/v1/responses", *headers) -> "HandshakeRejected | None":
        """How a knock was refused; None if it was not."""
        try:
            async with self.open(target, *headers):
                return None
        except HandshakeRejected as rejected:
            return rejected


@asynccontextmanager
async def door(*, key=None, limits=LIMITS, sampler=None, **parts):
    server = Server(Engine.make(sampler or Scripted(HELLO), limits=limits, **parts), key=key)
    async with trio.open_nursery() as nursery:
        yield Door(server, nursery)


def body_of(row: str) -> "tuple[int, object]":
    """Status and body of a line of the catalogue."""
    error = refusal(row)
    members = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return error.status, {"error": members}


def answer_of(rejected: HandshakeRejected) -> "tuple[int, object]":
    return rejected.status, orjson.loads(rejected.body)


async def create(transport, **members) -> None:
    transport.send_nowait(orjson.dumps({"type": "response.create", "model": "m", "input": "hi", **members}))
    transport.flush()


async def frames_of(transport) -> "tuple[list[dict], int | None]":
    """All frames up to the close, and its code."""
    frames = []
    try:
        while True:
            frames.append(orjson.loads(await transport.receive()))
    except TransportClosed as closed:
        return frames, closed.code


async def ended(transport) -> dict:
    """The terminal event of the next response."""
    while True:
        frame = orjson.loads(await transport.receive())
        if frame["type"] in ("response.completed", "response.failed", "response.incomplete", "error"):
            return frame


# --- path, key, origin ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PATHS))
async def test_each_path_leads_to_the_same_server(path, autojump_clock):
    """A rollout runs on every path that clients use."""
    async with door() as here, here.open(path) as transport:
        await create(transport)
        assert "response.completed" == (await ended(transport))["type"]


@pytest.mark.parametrize(
    "target", ["/", "/v1", "/v1/responses/", "/v1/chat/completions", "/V1/responses", "/x?v1/responses"]
)
async def test_another_path_is_not_found(target, autojump_clock):
    """Nothing is served elsewhere, and the answer says where."""
    async with door() as here:
        assert body_of("not_found") == answer_of(await here.refusal(target))


@pytest.mark.parametrize(
    ("key", "headers", "row"),
    [
        (None, [], None),
        (None, [FOREIGN], "origin"),
        (None, [NULL_ORIGIN], "origin"),
        (None, [FOREIGN, BEARER], "origin"),
        (None, [BEARER], None),
        (KEY, [BEARER], None),
        (KEY, [BEARER, FOREIGN], None),
        (KEY, [BEARER, NULL_ORIGIN], "opaque_origin"),
        (KEY, [FOREIGN], "origin"),
        (KEY, [], "invalid_api_key"),
        (KEY, [("Authorization", "Bearer sk-wrong")], "invalid_api_key"),
        (KEY, [("Authorization", f"bearer {KEY}")], "invalid_api_key"),
        (KEY, [("Authorization", KEY)], "invalid_api_key"),
        (KEY, [("Authorization", f"Bearer {KEY}é")], "invalid_api_key"),
        (KEY, [("Authorization", "Bearer sk-wrong"), FOREIGN], "invalid_api_key"),
        (KEY, [BEARER, BEARER], "invalid_api_key"),
    ],
)
async def test_key_and_origin_decide_before_the_upgrade(key, headers, row, autojump_clock):
    """Without a key no browser's page comes in; with one only who shows it; every refusal is the catalogue's."""
    async with door(key=key) as here:
        rejected = await here.refusal("/v1/responses", *headers)
        assert (row and body_of(row)) == (rejected and answer_of(rejected))


@pytest.mark.parametrize("query", [f"key={KEY}", f"api_key={KEY}", f"authorization=Bearer%20{KEY}"])
async def test_a_key_in_the_query_is_ignored(query, autojump_clock):
    """URLs are logged, so they hold no key."""
    async with door(key=KEY) as here:
        assert body_of("invalid_api_key") == answer_of(await here.refusal(f"/v1/responses?{query}"))


async def test_the_path_is_looked_at_before_the_key(autojump_clock):
    """A wrong path is not found, with or without key."""
    async with door(key=KEY) as here:
        assert body_of("not_found") == answer_of(await here.refusal("/elsewhere"))


# --- how many ------------------------------------------------------------------------------------------------------


async def test_only_so_many_connections_are_open_at_once(autojump_clock):
    """One more is refused; when one has gone there is room again."""
    async with door(limits=Limits(max_connections=2)) as here:
        async with here.open(), here.open():
            assert 2 == len(here.server.statistics().connections)
            assert body_of("too_many_connections") == answer_of(await here.refusal())
        await trio.testing.wait_all_tasks_blocked()
        assert (0, None) == (len(here.server.statistics().connections), await here.refusal())


async def test_switched_off_an_upgrade_is_told_so_and_http_is_served(autojump_clock):
    """426 with the header that goes with it, after the key; the same address answers requests."""
    async with door(key=KEY, websocket=False) as here:
        refused = await here.refusal("/v1/responses", BEARER)
        assert body_of("no_websocket") == answer_of(refused)
        assert 426 == refused.status
        assert ("upgrade", "websocket") in [(name.lower(), value) for name, value in refused.headers]
        assert body_of("invalid_api_key") == answer_of(await here.refusal())
        peer = HttpPeer(here.stream(), [BEARER])
        assert 200 == (await peer.create()).status
        await peer.stream.aclose()


async def test_unfinished_handshakes_count_as_connections(autojump_clock):
    """Who only opens streams takes places as well, until the handshake's time is over."""
    async with door(limits=Limits(max_connections=2)) as here:
        silent = [here.stream(), here.stream()]
        await trio.testing.wait_all_tasks_blocked()
        assert body_of("too_many_connections") == answer_of(await here.refusal())
        await trio.sleep(LIMITS.handshake_timeout_seconds + 1)
        assert None is await here.refusal()
        for stream in silent:
            await stream.aclose()


async def test_a_refused_knock_takes_no_place(autojump_clock):
    """However many are refused, there is room for the next."""
    async with door(limits=Limits(max_connections=1), key=KEY) as here:
        for _ in range(5):
            assert 401 == (await here.refusal()).status
        assert None is await here.refusal("/v1/responses", BEARER)


async def test_a_draining_server_lets_nobody_in(autojump_clock):
    """While it shuts down an upgrade is refused as overloaded, which clients retry elsewhere."""
    async with door(sampler=Scripted([[Stall(10), END]])) as here, trio.open_nursery() as nursery:
        listening, streams = trio.Event(), []

        class OneListener(trio.abc.Listener):
            async def accept(self):
                if not streams:
                    ours, theirs = trio.testing.memory_stream_pair()
                    streams.append(ours)
                    return theirs
                return await trio.sleep_forever()

            async def aclose(self):
                listening.set()

        await nursery.start(lambda task_status: here.server.run_on([OneListener()], task_status=task_status))
        await trio.testing.wait_all_tasks_blocked()
        async with connect_transport("ws://localhost/v1/responses", [], LIMITS, streams[0]) as transport:
            await create(transport)
            await trio.sleep(1)
            here.server.drain()
            assert body_of("overloaded") == answer_of(await here.refusal())
            assert "response.completed" == (await ended(transport))["type"]
            assert (True, ([], 1001)) == (listening.is_set(), await frames_of(transport))


# --- the answer's headers ------------------------------------------------------------------------------------------


async def test_every_answer_has_its_own_request_id(autojump_clock):
    """Upgrades, refusals and answers to nonsense carry `x-request-id`, each another one."""
    async with door() as here:
        async with here.open() as transport:
            found = [dict(transport.answer_headers)["x-request-id"]]
        rejected = await here.refusal("/elsewhere")
        found.append(dict(rejected.headers)["x-request-id"])
        peer = WirePeer(here.stream())
        await peer.send(b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = (await peer.read_head()).decode()
        found.append(head.partition("x-request-id: ")[2].partition("\r\n")[0])
        await peer.stream.aclose()
    assert [True] * 3 == [value.startswith("req_") and len(value) == 36 for value in found]
    assert 3 == len(set(found))


async def test_a_refusal_is_json(autojump_clock):
    """Its content type says so."""
    async with door() as here:
        rejected = await here.refusal("/elsewhere")
    assert "application/json" == dict(rejected.headers)["content-type"]


async def test_nothing_is_negotiated(autojump_clock):
    """Offered extensions are not taken."""
    async with door() as here:
        peer = WirePeer(here.stream())
        head = await peer.upgrade(b"Sec-WebSocket-Extensions: permessage-deflate\r\n")
        await peer.stream.aclose()
    assert (True, False) == (head.startswith(b"HTTP/1.1 101"), b"extensions" in head.lower())


# --- opting in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "query", "append"),
    [
        ([], {}, False),
        ([("openai-beta", APPEND_TOKEN)], {}, True),
        ([("openai-beta", f"other=1,  {APPEND_TOKEN} ,more")], {}, True),
        ([("openai-beta", "other=1"), ("openai-beta", APPEND_TOKEN)], {}, True),
        ([("openai-beta", "responses_websockets=2026-02-06")], {}, False),
        ([("openai-beta", APPEND_TOKEN + "x")], {}, False),
        ([("openai-beta", APPEND_TOKEN.upper())], {}, False),
        ([("x-openai-beta", APPEND_TOKEN)], {}, False),
        ([], {"dialect": "append"}, True),
        ([], {"dialect": "inject"}, False),
    ],
)
def test_the_append_form_is_opted_into_by_header_or_query(headers, query, append):
    """A token of a comma list, which may repeat, spelled exactly; or the query for who cannot set headers."""
    assert append is opted_into_append(Handshake("/v1/responses", query, tuple(headers)))


@pytest.mark.parametrize(
    ("target", "headers", "pause"),
    [
        ("/v1/responses", [("OpenAI-Beta", f"a=b, {APPEND_TOKEN}")], "response.done"),
        ("/v1/responses?dialect=append", [], "response.done"),
        ("/v1/responses", [], "response.completed"),
    ],
)
async def test_the_form_of_a_connection_follows(target, headers, pause, autojump_clock):
    """A call suspends the response of who opted in, and completes that of who did not."""
    async with door(sampler=Scripted([[call("f"), END]])) as here, here.open(target, *headers) as transport:
        await create(transport, tools=[{"type": "function", "name": "f"}])
        seen = None
        while seen not in ("response.done", "response.completed"):
            seen = orjson.loads(await transport.receive())["type"]
    assert pause == seen


async def test_the_model_may_be_in_the_query(autojump_clock):
    """It serves creates that name none; the body's own wins."""
    async with door() as here, here.open("/v1/responses?model=asked&model=second") as transport:
        models = []
        for members in ({"model": None}, {"model": "own"}):
            await create(transport, **members)
            models.append((await ended(transport))["response"]["model"])
    assert ["asked", "own"] == models


# --- where it binds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
async def test_a_public_address_needs_a_key(host):
    """Without a key it refuses to bind anything but loopback, and says what to do."""
    server = Server(Engine.make(Scripted(HELLO)))
    with pytest.raises(ValueError, match=r"without a key: set one, or bind 127\.0\.0\.1"):
        await server.run(host)


async def test_with_a_key_any_address_may_be_bound():
    """It listens on a free port, and tells which."""
    server = Server(Engine.make(Scripted(HELLO)), key=KEY)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(server.run, "0.0.0.0")
        assert listeners[0].socket.getsockname()[1] > 0
        server.drain()


async def test_by_default_it_binds_loopback():
    """Without options only this machine can reach it, and a drained server has closed its port."""
    server = Server(Engine.make(Scripted(HELLO)))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(server.run)
        host, port = listeners[0].socket.getsockname()
        async with connect_transport(f"ws://{host}:{port}/v1/responses", [], LIMITS) as transport:
            await create(transport)
            assert "response.completed" == (await ended(transport))["type"]
        server.drain()
    assert ("127.0.0.1", -1) == (host, listeners[0].socket.fileno())


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_told_from_public(host, loopback):
    """By the address, or by the one name that is known to be local."""
    assert loopback is is_loopback(host)


# --- logs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "logged"),
    [
        ("plain é 中", "plain é 中"),
        ("a\r\nb", "a\\r\\nb"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u202egnirts", "\\u202egnirts"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_from_outside_is_printable_in_a_log(text, logged):
    """Line ends, escapes, and what turns the direction of writing are spelled out."""
    assert logged == printable(text)


async def test_a_failed_handshake_is_one_printable_line(autojump_clock, caplog):
    """Whatever a stranger sends, the log gets one line with the request's id."""
    caplog.set_level(logging.INFO, "engine.server")
    async with door() as here:
        peer = WirePeer(here.stream())
        await peer.send(b"\x1b[31m\r\nnonsense\r\n\r\n")
        await peer.stream.aclose()
    (message,) = [record.getMessage() for record in caplog.records]
    assert (True, True) == (message.startswith("req_"), message.isprintable())


# --- a crash behind the door ---------------------------------------------------------------------------------------


async def test_a_crash_ends_its_own_connection_only(autojump_clock, caplog):
    """An error of the engine closes that connection with 1011; a hundred others complete what they sample."""

    def report(told) -> None:
        if told.usage.output_tokens > 5:
            raise ZeroDivisionError("by design")

    def script(prompt):
        return [[Stall(1), *say("boom " * 20 if prompt.model == "boom" else "ok"), END]]

    caplog.set_level(logging.CRITICAL, "engine")
    outcomes = []

    async def talk(here: Door, number: int) -> None:
        async with here.open() as transport:
            await create(transport, model="boom" if number == 50 else "m")
            if number == 50:
                outcomes.append((number, (await frames_of(transport))[1]))
            else:
                outcomes.append((number, (await ended(transport))["type"]))
                await create(transport)  # and it still serves afterwards
                assert "response.completed" == (await ended(transport))["type"]

    async with door(sampler=Scripted(script), on_report=report) as here, trio.open_nursery() as nursery:
        for number in range(101):
            nursery.start_soon(talk, here, number)
    expected = [(n, 1011 if n == 50 else "response.completed") for n in range(101)]
    assert expected == sorted(outcomes)
    assert () == here.server.statistics().connections


async def test_a_crash_in_reading_ends_its_own_connection_only(autojump_clock, caplog):
    """An error while a frame is handled, not in a rollout, is the same."""

    def new_id(prefix: str) -> str:
        raise ZeroDivisionError(prefix)

    caplog.set_level(logging.CRITICAL, "engine")
    async with door(new_id=new_id) as here, here.open() as other:
        async with here.open() as transport:
            await create(transport)
            assert ([], 1011) == await frames_of(transport)
        other.send_nowait(b"{")
        other.flush()
        assert "invalid_json" == orjson.loads(await other.receive())["error"]["code"]


def test_the_statistics_are_a_frozen_view():
    """Nobody changes a server through what it tells."""
    statistics = Server(Engine.make(Scripted(HELLO))).statistics()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        statistics.connections = ()
    assert ((), 256) == (statistics.connections, statistics.slots.free)


def test_the_request_of_these_tests_is_of_a_served_path():
    """The raw request that the wire helper sends knocks at the right door."""
    assert REQUEST.split()[1].split(b"?")[0].decode() in PATHS
