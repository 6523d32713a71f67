"""What HTTP shows of a response that is being made over a WebSocket, and the places that a key has over both."""

from contextlib import asynccontextmanager

import pytest

from engine.config import Limits
from engine.handshake import HandshakeRejected
from engine.samplers.scripted import END, Stall, call, say
from protocol.errors import refusal
from tests.test_http import KEYS, TOOL, bearer, http, told, words

FORMS = pytest.mark.parametrize("form", ["append", "inject", "create"])
SLOW = [[*say("well"), Stall(60), END]]


@asynccontextmanager
async def response_on_websocket(served, form, **members):
    """Its id, and a way to the next frame of a kind, once it samples."""
    async with served.connect_raw(append=form == "append") as raw:
        more = {"multi_agent": {"enabled": True}} if form == "inject" else {}
        raw.send({"type": "response.create", "model": "m", "input": "hi", **more, **members})

        async def until(kind):
            while (frame := await raw.receive())["type"] != kind:
                pass
            return frame

        yield (await until("response.created"))["response"]["id"], until, raw


@FORMS
async def test_it_is_in_progress(form, autojump_clock):
    """Retrieved while it samples: the same resource as in its first event."""
    async with http(SLOW) as (served, peer), response_on_websocket(served, form) as (response_id, until, _):
        await until("response.output_text.delta")
        shown = (await (await peer()).ask("GET", f"/v1/responses/{response_id}")).json
    assert (response_id, "in_progress", [], None) == tuple(
        shown[name] for name in ("id", "status", "output", "usage")
    )


async def test_a_suspended_one_shows_what_it_took_in(autojump_clock):
    """Appended outputs are in its input items, each with the id that it keeps when the response has ended."""
    script = [[call("f", call_id="call_1"), END], [call("f", call_id="call_2"), END], [*say("done"), END]]

    def output(number):
        return {"type": "function_call_output", "call_id": f"call_{number}", "output": "ok"}

    async with (
        http(script) as (served, peer),
        response_on_websocket(served, "append", tools=[TOOL]) as (response_id, until, raw),
    ):
        client, path = await peer(), f"/v1/responses/{response_id}"
        await until("response.done")
        raw.send({"type": "response.append", "input": [output(1)]})
        await until("response.done")
        assert "in_progress" == (await client.ask("GET", path)).json["status"]
        running = (await client.ask("GET", f"{path}/input_items?order=asc")).json["data"]
        raw.send({"type": "response.append", "input": [output(2)]})
        await until("response.completed")
        ended = (await client.ask("GET", f"{path}/input_items?order=asc")).json["data"]
        assert "completed" == (await client.ask("GET", path)).json["status"]
    assert ["message", "function_call_output"] == [item["type"] for item in running]
    assert [*running, {**running[1], "id": ended[2]["id"], "call_id": "call_2"}] == ended


@FORMS
async def test_one_that_is_not_stored_is_nowhere(form, autojump_clock):
    """`store: false` is kept from HTTP while it runs as well as afterwards, in every way."""
    async with (
        http(SLOW) as (served, peer),
        response_on_websocket(served, form, store=False) as (response_id, _, _raw),
    ):
        client = await peer()
        for method, rest in (("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("DELETE", "")):
            answer = await client.ask(method, f"/v1/responses/{response_id}{rest}")
            assert words("no_such_response", response_id=response_id) == told(answer)


@FORMS
async def test_its_events_are_not_sent_twice(form, autojump_clock):
    """A stream of it is refused with the reason and the way out; one that never was is just unknown."""
    async with http(SLOW) as (served, peer), response_on_websocket(served, form) as (response_id, _, _raw):
        client = await peer()
        answer = await client.ask("GET", f"/v1/responses/{response_id}?stream=true")
        assert words("not_replayed", response_id=response_id) == told(answer)
        assert 404 == (await client.ask("GET", "/v1/responses/resp_0?stream=true")).status


async def test_deleted_meanwhile_it_goes_on_and_is_not_stored(autojump_clock):
    """The client of the WebSocket gets its end; HTTP and a continuation find nothing."""
    async with (
        http([[Stall(10), *say("late"), END]]) as (served, peer),
        response_on_websocket(served, "create") as (response_id, until, _raw),
    ):
        client, path = await peer(), f"/v1/responses/{response_id}"
        deleted = await client.ask("DELETE", path)
        assert (200, True) == (deleted.status, deleted.json["deleted"])
        assert 404 == (await client.ask("GET", path)).status
        assert 404 == (await client.ask("DELETE", path)).status
        assert "completed" == (await until("response.completed"))["response"]["status"]
        assert 404 == (await client.ask("GET", path)).status


async def test_another_key_sees_what_a_stranger_sees(autojump_clock):
    """A foreign response over WebSocket answers like none on every surface (T20)."""
    async with (
        http(SLOW, key=KEYS) as (served, peer),
        served.connect_raw(append=False, headers=bearer("sk-a")) as raw,
    ):
        raw.send({"type": "response.create", "model": "m", "input": "secret"})
        response_id = (await raw.receive())["response"]["id"]
        stranger, owner = await peer(bearer("sk-b")), await peer(bearer("sk-a"))
        path = f"/v1/responses/{response_id}"
        for method, rest in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("GET", "/input_items"),
            ("POST", "/cancel"),
            ("DELETE", ""),
        ):
            answer = await stranger.ask(method, path + rest)
            assert words("no_such_response", response_id=response_id) == told(answer)
        assert "in_progress" == (await owner.ask("GET", path)).json["status"]


# --- the places of a key -------------------------------------------------------------------------------------------------


async def test_a_key_has_so_many_connections_over_both(autojump_clock):
    """One more is refused with 429 in the same words and closed; another key comes in; one that has gone makes room."""
    limits = Limits(max_connections_per_key=2)
    async with http(key=KEYS, limits=limits) as (served, peer):
        first, second = await peer(bearer("sk-a")), await peer(bearer("sk-a"))
        for client in (first, second, first, second):  # a second request takes no second place
            assert 200 == (await client.create()).status
        third = await peer(bearer("sk-a"))
        assert words("too_many_connections") == told(await third.create())
        assert await third.ended()
        with pytest.raises(HandshakeRejected, match="status 429"):
            async with served.connect_raw(headers=bearer("sk-a")):
                pytest.fail("one too many")
        assert 200 == (await (await peer(bearer("sk-b"))).create()).status
        await first.stream.aclose()
        async with served.connect_raw(headers=bearer("sk-a")):
            assert 429 == (await (await peer(bearer("sk-a"))).create()).status


async def test_a_connection_counts_for_whom_it_serves(autojump_clock):
    """One that asks with another key takes that key's place and leaves its own."""
    async with http(key=KEYS, limits=Limits(max_connections_per_key=1)) as (_, peer):
        proxy, other = await peer(), await peer(bearer("sk-a"))
        assert 200 == (await proxy.ask("GET", "/v1/models", headers=bearer("sk-a"))).status
        assert 200 == (await proxy.ask("GET", "/v1/models", headers=bearer("sk-b"))).status
        assert 200 == (await other.create()).status
        assert words("too_many_connections") == told(
            await proxy.ask("GET", "/v1/models", headers=bearer("sk-a"))
        )


async def test_without_keys_there_is_no_such_limit(autojump_clock):
    """Where nobody has a key, nobody is told apart."""
    async with http(limits=Limits(max_connections_per_key=1)) as (_, peer):
        for client in (await peer(), await peer()):
            assert 200 == (await client.create()).status


async def test_health_takes_no_place_of_a_key(autojump_clock):
    """What is open to all is asked of nobody's account."""
    async with http(key=KEYS, limits=Limits(max_connections_per_key=1)) as (_, peer):
        assert 200 == (await (await peer(bearer("sk-a"))).create()).status
        assert 200 == (await (await peer(bearer("sk-a"))).ask("GET", "/health")).status


def test_the_refusal_of_a_stream_has_a_code_of_the_reference():
    """`replay_gap`, with the member of the query that is at fault."""
    error = refusal("not_replayed", response_id="resp_1")
    assert (400, "replay_gap", "stream") == (error.status, error.code, error.param)
