"""HTTP: routes, refusals, and responses as JSON; over memory streams in virtual time, with h11 as the client."""

from contextlib import asynccontextmanager

import orjson
import pytest
import trio
import trio.testing

from engine.config import Limits
from engine.door import owner_of
from engine.routes import ROUTES, find_route
from engine.samplers.scripted import END, Raise, Scripted, Stall, call, say
from engine.storage import MemoryStore
from engine.testing import serving, simulated_engine
from protocol.errors import refusal
from tests.http_peer import HttpPeer

KEYS = ("sk-a", "sk-b")
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
HELLO = [[*say("hello there"), END]]


@asynccontextmanager
async def http(script=HELLO, *, key=None, limits=None, **parts):
    """A server in memory and a way to open connections to it."""
    engine = simulated_engine(Scripted(script), seed=1, limits=limits or Limits(), **parts)
    async with serving(engine, key=key) as served:

        async def peer(headers=()):
            return HttpPeer(await served.open_stream(), headers)

        served_peer = served, peer
        yield served_peer


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


def words(row, **values):
    """Status and body of a line of the catalogue."""
    error = refusal(row, **values)
    detail = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return error.status, {"error": detail}


def told(answer):
    return answer.status, answer.json


# --- the table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("pattern", sorted(ROUTES))
def test_each_route_is_found_with_and_without_the_version(prefix, pattern):
    """A path leads to its line of the table, and gives the id that stands in it."""
    route, named = find_route(prefix + pattern.replace("{}", "x%2Fy"))
    assert (ROUTES[pattern], "x/y" if "{}" in pattern else "") == (route, named)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "",
        "/v1/",
        "/v1/responses/",
        "/v1/chat/completions",
        "/v1/responses/a/b",
        "/V1/models",
        "x",
    ],
)
def test_other_paths_lead_nowhere(path):
    """Nothing is guessed."""
    assert None is find_route(path)


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/codex/responses", "/codex/responses"])
async def test_a_response_is_made_on_every_path_that_clients_use(path, autojump_clock):
    """The aliases serve `POST` as they serve the upgrade."""
    async with http() as (_, peer):
        answer = await (await peer()).create(path)
    assert (200, "completed") == (answer.status, answer.json["status"])


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/responses", "POST, GET"),
        ("PUT", "/v1/responses", "POST, GET"),
        ("POST", "/v1/responses/resp_1", "GET, DELETE"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
        ("DELETE", "/v1/models/m", "GET"),
        ("POST", "/metrics", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(method, path, allowed, autojump_clock):
    """405 with `Allow`, and the connection lives on."""
    async with http() as (_, peer):
        client = await peer()
        answer = await client.ask(method, path)
        assert 200 == (await client.ask("GET", "/health")).status
    assert words("wrong_method", method=method, allowed=allowed) == told(answer)
    assert allowed == answer.headers["allow"]


async def test_an_unknown_path_is_not_found_in_the_words_of_the_upgrade(autojump_clock):
    """404, before the key is looked at."""
    async with http(key="sk-a") as (_, peer):
        assert words("not_found") == told(await (await peer()).ask("GET", "/elsewhere"))


async def test_a_history_is_compacted_and_the_item_stands_for_it(autojump_clock):
    """The route answers one item, another create takes it as input; without a model it is refused by name."""
    async with http() as (_, peer):
        client = await peer()
        messages = [{"role": "user", "content": f"note {number}: remember the milk"} for number in range(3)]
        body = (await client.ask("POST", "/v1/responses/compact", {"model": "m", "input": messages})).json
        assert ("response.compaction", ["compaction"]) == (
            body["object"],
            [item["type"] for item in body["output"]],
        )
        made = (await client.create(input=[*body["output"], {"role": "user", "content": "and?"}])).json
        assert "completed" == made["status"]
        alone = (await client.create(input=[{"role": "user", "content": "and?"}])).json
        assert made["usage"]["input_tokens"] > alone["usage"]["input_tokens"]
        refused = await client.ask("POST", "/v1/responses/compact", {"input": messages})
    assert ("missing_required_parameter", "model") == (
        refused.json["error"]["code"],
        refused.json["error"]["param"],
    )


async def test_health_is_open_to_all(autojump_clock):
    """It needs no key."""
    async with http(key="sk-a") as (_, peer):
        answer = await (await peer()).ask("GET", "/health")
    assert (200, {"status": "ok"}) == told(answer)


async def test_models_are_those_of_the_table(autojump_clock):
    """Named ones are listed; any that is served can be retrieved; others are not found."""
    from engine.models import ModelTable

    table = ModelTable.from_toml(b'[[model]]\nname = "a"\ncreated = 7\n[[model]]\npattern = "b-*"\n')
    async with http(models=table) as (_, peer):
        client = await peer()
        listed = (await client.ask("GET", "/v1/models")).json
        one = (await client.ask("GET", "/v1/models/b-1")).json
        missing = await client.ask("GET", "/models/c")
    a = {"id": "a", "object": "model", "created": 7, "owned_by": "suspended-response"}
    assert ({"object": "list", "data": [a]}, "b-1") == (listed, one["id"])
    status, body = words("model_not_found", model="c")
    body["error"]["message"] += " Known here: a, b-*."
    assert (status, body) == told(missing)


async def test_metrics_are_text_and_have_the_counts(autojump_clock):
    """After a response its form and status are counted, and what the stages did; HEAD has no body."""
    async with http() as (_, peer):
        client = await peer()
        await client.create()
        answer = await client.ask("GET", "/metrics")
        head = await client.ask("HEAD", "/metrics")
    lines = answer.body.decode().splitlines()
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        'suspended_responses_total{form="http",status="completed"} 1.0',
        "suspended_http_connections 1.0",
        "suspended_http_requests_total 2.0",
        "suspended_rollouts_open 0.0",
        'suspended_work_total{what="validated_items"} 1.0',
    ):
        assert line in lines
    assert (200, b"") == (head.status, head.body)


# --- the door, for HTTP --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "headers", "row"),
    [
        (None, [], None),
        (None, [("Origin", "https://example.com")], "origin"),
        ("sk-a", bearer("sk-a"), None),
        ("sk-a", [], "invalid_api_key"),
        ("sk-a", bearer("sk-b"), "invalid_api_key"),
        ("sk-a", [("Origin", "https://example.com")], "origin"),
        ("sk-a", [*bearer("sk-a"), ("Origin", "null")], "opaque_origin"),
        (KEYS, bearer("sk-b"), None),
    ],
)
async def test_key_and_origin_are_asked_as_at_the_upgrade(key, headers, row, autojump_clock):
    """The same questions, and the catalogue's words."""
    async with http(key=key) as (_, peer):
        answer = await (await peer(headers)).create()
    assert (200, None) == (answer.status, row) if row is None else words(row) == told(answer)


async def test_a_refused_stranger_uploads_nothing(autojump_clock):
    """The key is asked for before the body, and the connection closes instead of reading it."""
    async with http(key="sk-a") as (_, peer):
        client = await peer()
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        await client.stream.send_all(head)
        raw = await client.stream.receive_some(65536)
        assert (True, True) == (raw.startswith(b"HTTP/1.1 401"), b"connection: close" in raw.lower())
        assert await client.ended()


async def test_http_connections_take_places(autojump_clock):
    """Over the limit of connections a request is refused with 429."""
    async with http(limits=Limits(max_connections=1)) as (_, peer):
        first = await peer()
        assert 200 == (await first.create()).status
        assert words("too_many_connections") == told(await (await peer()).create())
        await first.stream.aclose()
        await trio.sleep(1)
        assert 200 == (await (await peer()).create()).status


async def test_every_answer_has_its_own_request_id(autojump_clock):
    """Also the second one of a connection, refusals and answers to nonsense."""
    async with http() as (_, peer):
        client = await peer()
        answers = [await client.create(), await client.ask("GET", "/x"), await client.ask("GET", "/health")]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert (3, {36}) == (len(ids), set(map(len, ids)))


# --- keep-alive, bodies --------------------------------------------------------------------------------------------


async def test_one_connection_serves_many_requests(autojump_clock):
    """Ten requests on one connection: the counts say one and ten."""
    async with http() as (served, peer):
        client = await peer()
        for _ in range(10):
            assert 200 == (await client.create()).status
        statistics = served.server.statistics()
    assert (1, 1, 10) == (statistics.http_accepted, statistics.http_connections, statistics.http_requests)


async def test_pipelined_requests_are_answered_in_order(autojump_clock):
    """What is read while one is served is the next one's."""
    one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    async with http() as (_, peer):
        client = await peer()
        await client.stream.send_all(one * 3 + one.replace(b"/health", b"/v1/models"))
        received = b""
        while received.count(b"HTTP/1.1 200") < 4 or not received.endswith(b"}"):
            received += await client.stream.receive_some()
    assert [b"status", b"status", b"status", b"object"] == [
        part.partition(b'{"')[2].partition(b'"')[0] for part in received.split(b"HTTP/1.1 200")[1:]
    ]


async def test_an_idle_connection_is_closed_in_time(autojump_clock):
    """After `keep_alive_seconds` without a request."""
    async with http(limits=Limits(keep_alive_seconds=60)) as (_, peer):
        client = await peer()
        await client.ask("GET", "/health")
        begun = trio.current_time()
        assert await client.ended()
        assert 60 == trio.current_time() - begun


async def test_a_connection_that_asks_to_close_is_closed(autojump_clock):
    """`Connection: close` ends it after the answer."""
    async with http() as (_, peer):
        client = await peer()
        answer = await client.ask("GET", "/health", headers=[("Connection", "close")])
        assert (200, True) == (answer.status, await client.ended())


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_body_is_refused(chunked, autojump_clock):
    """413, whether the size was announced or not."""
    async with http(limits=Limits(max_message_bytes=1000)) as (_, peer):
        client = await peer()
        if chunked:
            head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3E9\r\n"
            await client.stream.send_all(head + b"x" * 1001)
            answer = await client.stream.receive_some(65536)
            assert answer.startswith(b"HTTP/1.1 413")
        else:
            answer = await client.ask("POST", "/v1/responses", b"x" * 1001)
            assert words("body_too_large", limit=1000) == told(answer)
        assert await client.ended()


async def test_a_body_of_exactly_the_limit_is_read(autojump_clock):
    """It is no JSON, and that is what is said."""
    async with http(limits=Limits(max_message_bytes=1000)) as (_, peer):
        assert words("invalid_json") == told(await (await peer()).ask("POST", "/v1/responses", b"x" * 1000))


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "gzip, identity"])
async def test_an_encoded_body_is_refused(encoding, autojump_clock):
    """415, for each encoding but none."""
    async with http() as (_, peer):
        answer = await (await peer()).ask("POST", "/v1/responses", b"{}", [("Content-Encoding", encoding)])
    assert words("bad_encoding", encoding=encoding) == told(answer)


async def test_a_slow_body_is_cut_off(autojump_clock):
    """One byte a second: 408 at the deadline (T9)."""
    async with http(limits=Limits(body_timeout_seconds=20)) as (_, peer):
        client = await peer()
        await client.stream.send_all(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def drip():
                while True:
                    await client.stream.send_all(b"x")
                    await trio.sleep(1)

            nursery.start_soon(drip)
            raw = await client.stream.receive_some(65536)
            nursery.cancel_scope.cancel()
        assert (True, 20) == (raw.startswith(b"HTTP/1.1 408"), trio.current_time() - begun)


async def test_a_client_that_waits_is_told_to_go_on(autojump_clock):
    """`Expect: 100-continue` gets its 100 before the body is sent."""
    body = orjson.dumps({"model": "m", "input": "hi"})
    head = (
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    async with http() as (_, peer):
        client = await peer()
        await client.stream.send_all(head)
        assert (await client.stream.receive_some(65536)).startswith(b"HTTP/1.1 100")
        await client.stream.send_all(body)
        assert (await client.stream.receive_some(65536)).startswith(b"HTTP/1.1 200")


# --- refusals: the words of the other form -------------------------------------------------------------------------

BODIES = [
    [],
    {},
    {"model": "m", "input": 7},
    {"model": 7, "input": "hi"},
    {"model": "m", "input": "hi", "background": True},
    {"model": "m", "input": "hi", "conversation": "conv_1"},
    {"model": "m", "input": "hi", "prompt": {"id": "p"}},
    {"model": "m", "input": "hi", "temperature": 9},
    {"model": "m", "input": "hi", "tools": [{"type": "function"}]},
    {"model": "m", "input": "hi", "tool_choice": {"type": "function", "name": "g"}},
    {"model": "x" * 300, "input": "hi"},
    {"model": "m", "input": "hi", "previous_response_id": "resp_unknown"},
    {"model": "m", "input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
    {"model": "m", "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]},
    {"model": "m", "input": [{"type": "item_reference", "id": "msg_x"}]},
    {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text"}]}]},
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body)[:60])
async def test_a_refusal_says_the_same_over_http_and_over_websocket(body, autojump_clock):
    """Status and error are those of the `error` frame, and no response exists."""
    async with http() as (served, peer):
        answer = await (await peer()).ask("POST", "/v1/responses", body)
        async with served.connect_raw(append=False) as raw:
            raw.send({"type": "response.create", **body} if isinstance(body, dict) else body)
            frame = await raw.receive()
        assert 0 == len(served.server.live)
    assert ("error", frame["status"], frame["error"]) == (frame["type"], answer.status, answer.error)


@pytest.mark.parametrize("stream", [False, True])
async def test_no_status_is_sent_before_a_request_is_accepted(stream, autojump_clock):
    """A refusal of the stages has its own status, also if a stream was asked for."""
    async with http() as (_, peer):
        answer = await (await peer()).create(stream=stream, input=[{"type": "item_reference", "id": "msg_x"}])
    assert words("item_not_found", id="msg_x") == told(answer)


async def test_a_full_server_refuses(autojump_clock):
    """503 when as many rollouts are open as may be."""
    async with http([[Stall(10), END]], limits=Limits(max_open_rollouts=1)) as (_, peer):
        first = await peer()
        await first.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(1)
        assert words("overloaded") == told(await (await peer()).create())
        assert 200 == (await first.answer()).status


# --- responses as JSON ---------------------------------------------------------------------------------------------


async def test_a_failure_is_a_status_of_its_own(autojump_clock, caplog):
    """500 and the body, not a resource."""
    async with http([[*say("one"), Raise(ValueError("by design"))]]) as (_, peer):
        answer = await (await peer()).create()
    assert words("server_error") == told(answer)


async def test_a_limit_is_no_failure(autojump_clock):
    """200, with status `incomplete` and the reason."""
    async with http([[*say("one two three four"), END]]) as (_, peer):
        answer = await (await peer()).create(max_output_tokens=2)
    assert (200, "incomplete", {"reason": "max_output_tokens"}) == (
        answer.status,
        answer.json["status"],
        answer.json["incomplete_details"],
    )


async def test_a_warm_up_samples_nothing(autojump_clock):
    """`generate: false` completes with no output; the response can be continued."""
    async with http() as (_, peer):
        client = await peer()
        warm = (await client.create(generate=False)).json
        after = (await client.create(previous_response_id=warm["id"], input=[])).json
    assert ("completed", [], 0) == (warm["status"], warm["output"], warm["usage"]["output_tokens"])
    assert "hello there" == after["output"][0]["content"][0]["text"]


async def test_multi_agent_means_nothing_here(autojump_clock):
    """The response ends at the call, as every one over HTTP; a lane's name is ignored, whatever it is."""
    async with http([[call("f"), END]]) as (_, peer):
        answer = await (await peer()).create(
            tools=[TOOL], multi_agent={"enabled": True}, stream_id="not a name!"
        )
    assert (200, "completed", "function_call") == (
        answer.status,
        answer.json["status"],
        answer.json["output"][0]["type"],
    )


async def test_the_tool_loop_by_id_and_by_history_gives_the_model_the_same(autojump_clock):
    """A continuation costs the same input tokens as the whole history sent again."""

    def script(prompt):
        return [[call("f", call_id="call_1"), END]]

    output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    async with http(script) as (_, peer):
        client = await peer()
        first = (await client.create(tools=[TOOL])).json
        by_id = (await client.create(tools=[TOOL], previous_response_id=first["id"], input=[output])).json
        history = [{"role": "user", "content": "hi"}, *first["output"], output]
        whole = (await client.create(tools=[TOOL], input=history)).json
    assert by_id["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert (first["id"], None) == (by_id["previous_response_id"], whole["previous_response_id"])


async def test_a_failed_response_cannot_be_continued(autojump_clock, caplog):
    """It is stored, and named as a parent it is not found."""
    async with http([[*say("one"), Raise(ValueError("by design"))]]) as (served, peer):
        client = await peer()
        assert 500 == (await client.create()).status
        ((_, response_id),) = served.server.engine.store._records
        assert "failed" == (await client.ask("GET", f"/v1/responses/{response_id}")).json["status"]
        answer = await client.create(previous_response_id=response_id)
    assert words("previous_not_found", response_id=response_id) == told(answer)


async def test_a_client_that_goes_away_stops_its_sampling(autojump_clock):
    """The rollout is over within a second of the end of the stream, and its record says cancelled."""
    async with http([[Stall(1000), END]]) as (served, peer):
        client = await peer()
        await client.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(1)
        assert 1 == len(served.server.live)
        await client.stream.aclose()
        await trio.sleep(1)
        assert (0, 0, 0) == (
            len(served.server.live),
            served.server.engine.open_rollouts,
            served.server.statistics().slots.held,
        )
        (record,) = served.server.engine.store._records.values()
    assert "cancelled" == record.status


async def test_a_crash_is_answered_and_ends_its_connection_only(autojump_clock, caplog):
    """A bug in a stage is a 500, then the end of that connection; others are served."""

    class Broken(MemoryStore):
        async def get(self, owner, response_id):
            raise ZeroDivisionError(response_id)

    async with http(store=Broken()) as (_, peer):
        client, other = await peer(), await peer()
        answer = await client.ask("GET", "/v1/responses/resp_1")
        assert words("server_error") == told(answer)
        assert await client.ended()
        assert 200 == (await other.create()).status
    assert ["engine.server"] == [record.name for record in caplog.records if record.levelname == "ERROR"]


# --- afterwards ----------------------------------------------------------------------------------------------------


async def test_a_stored_response_is_retrieved_until_it_is_deleted(autojump_clock):
    """The same bytes as the create's answer; then 404, also as a parent."""
    async with http() as (_, peer):
        client = await peer()
        made = await client.create()
        path = f"/v1/responses/{made.json['id']}"
        assert made.body == (await client.ask("GET", path)).body
        deleted = await client.ask("DELETE", path)
        assert (200, {"id": made.json["id"], "object": "response", "deleted": True}) == told(deleted)
        for method, target in (
            ("GET", path),
            ("DELETE", path),
            ("POST", path + "/cancel"),
            ("GET", path + "/input_items"),
        ):
            assert words("no_such_response", response_id=made.json["id"]) == told(
                await client.ask(method, target)
            )
        gone = await client.create(previous_response_id=made.json["id"])
    assert words("previous_not_found", response_id=made.json["id"]) == told(gone)


async def test_an_unstored_response_is_nowhere(autojump_clock):
    """`store: false`: not retrieved, not continued, not listed."""
    async with http() as (served, peer):
        client = await peer()
        made = (await client.create(store=False)).json
        assert 404 == (await client.ask("GET", f"/v1/responses/{made['id']}")).status
        assert 400 == (await client.create(previous_response_id=made["id"])).status
        assert 0 == len(served.server.engine.store)


async def test_a_running_response_is_retrieved(autojump_clock):
    """In progress, without output; deleted meanwhile it goes on and is not stored."""
    async with http([[Stall(10), *say("late"), END]]) as (served, peer):
        client, other = await peer(), await peer()
        await client.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(1)
        (live,) = served.server.live
        path = f"/v1/responses/{live.response_id}"
        running = (await other.ask("GET", path)).json
        assert ("in_progress", []) == (running["status"], running["output"])
        assert "hi" == (await other.ask("GET", path + "/input_items")).json["data"][0]["content"][0]["text"]
        assert 200 == (await other.ask("DELETE", path)).status
        assert 404 == (await other.ask("GET", path)).status
        assert "completed" == (await client.answer()).json["status"]
        assert 404 == (await other.ask("GET", path)).status


async def test_cancelling_answers_both(autojump_clock):
    """The canceller gets the resource, who waits gets 409; cancelled again it is shown unchanged."""
    async with http([[*say("some words"), Stall(100), END]]) as (served, peer):
        client, other = await peer(), await peer()
        await client.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(1)
        (live,) = served.server.live
        path = f"/v1/responses/{live.response_id}/cancel"
        cancelled = await other.ask("POST", path)
        again = await other.ask("POST", path)
        waiting = await client.answer()
    assert (200, "cancelled", "invalid_prompt") == (
        cancelled.status,
        cancelled.json["status"],
        cancelled.json["error"]["code"],
    )
    assert cancelled.body == again.body
    assert words("cancelled", response_id=live.response_id) == told(waiting)


async def test_a_response_over_websocket_is_cancelled_too(autojump_clock):
    """Whatever its form: here it is suspended in the append form."""
    async with http([[call("f"), END]]) as (served, peer), served.connect_raw() as raw:
        raw.send({"type": "response.create", "model": "m", "input": "hi", "tools": [TOOL]})
        frames = [await raw.receive()]
        while frames[-1]["type"] != "response.done":
            frames.append(await raw.receive())
        response_id = frames[0]["response"]["id"]
        answer = await (await peer()).ask("POST", f"/v1/responses/{response_id}/cancel")
        failed = await raw.receive()
    assert (200, "cancelled") == (answer.status, answer.json["status"])
    assert ("response.failed", answer.json) == (failed["type"], failed["response"])


async def test_what_ended_is_cancelled_without_effect(autojump_clock):
    """200 with the unchanged resource."""
    async with http() as (_, peer):
        client = await peer()
        made = await client.create()
        answer = await client.ask("POST", f"/v1/responses/{made.json['id']}/cancel")
    assert (200, made.body) == (answer.status, answer.body)


async def test_another_key_sees_what_a_stranger_sees(autojump_clock):
    """On every surface a foreign id answers like a random one, live or ended (T20, W6)."""
    async with http([[Stall(1), *say("secret"), END]], key=KEYS) as (served, peer):
        owner, stranger = await peer(bearer("sk-a")), await peer(bearer("sk-b"))
        made = (await owner.create(input="my secret")).json["id"]
        await owner.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(0.5)
        (live,) = served.server.live
        unknown = "resp_" + "0" * 32
        for response_id in (made, live.response_id):
            for method, suffix in (
                ("GET", ""),
                ("GET", "?stream=true"),
                ("DELETE", ""),
                ("POST", "/cancel"),
                ("GET", "/input_items"),
            ):
                foreign = await stranger.ask(method, f"/v1/responses/{response_id}{suffix}")
                random = await stranger.ask(method, f"/v1/responses/{unknown}{suffix}")
                assert random.body.replace(unknown.encode(), b"") == foreign.body.replace(
                    response_id.encode(), b""
                )
                assert (404, 404) == (random.status, foreign.status)
            foreign = await stranger.create(previous_response_id=response_id)
            assert words("previous_not_found", response_id=response_id) == told(foreign)
        assert 200 == (await owner.answer()).status
        assert 200 == (await owner.ask("GET", f"/v1/responses/{made}")).status


def test_an_owner_is_no_key():
    """It is derived from the key, tells nothing of it, and two keys have two."""
    assert (True, False) == (owner_of("a") != owner_of("b"), "sk-a" in owner_of("sk-a"))


# --- input items ---------------------------------------------------------------------------------------------------


async def test_input_items_are_listed_in_pages(autojump_clock):
    """Newest first unless asked otherwise; each item has an id, by which the next page is found."""
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    async with http() as (_, peer):
        client = await peer()
        made = (await client.create(input=items)).json["id"]

        async def page(query=""):
            return (await client.ask("GET", f"/v1/responses/{made}/input_items{query}")).json

        def texts(found):
            return "".join(item["content"][0]["text"] for item in found["data"])

        whole = await page()
        first = await page("?limit=2&order=asc")
        second = await page(f"?limit=2&order=asc&after={first['last_id']}")
        last = await page(f"?limit=2&order=asc&after={second['last_id']}")
        assert ("43210", "01", "23", "4") == tuple(map(texts, (whole, first, second, last)))
        assert [False, True, True, False] == [found["has_more"] for found in (whole, first, second, last)]
        assert whole == await page()
        for query, field in (
            ("?limit=0", "limit"),
            ("?limit=101", "limit"),
            ("?limit=x", "limit"),
            ("?order=up", "order"),
            ("?after=msg_0", "after"),
        ):
            answer = await client.ask("GET", f"/v1/responses/{made}/input_items{query}")
            assert words("invalid_value", field=field) == told(answer)


async def test_only_its_own_input_is_listed(autojump_clock):
    """A continuation's list does not repeat its parent's items; ids that the client gave are kept."""
    async with http() as (_, peer):
        client = await peer()
        first = (await client.create()).json["id"]
        item = {"type": "message", "role": "user", "content": "more", "id": "msg_mine"}
        second = (await client.create(previous_response_id=first, input=[item])).json["id"]
        listed = (await client.ask("GET", f"/v1/responses/{second}/input_items")).json
    assert (["msg_mine"], "msg_mine") == ([found["id"] for found in listed["data"]], listed["first_id"])


# --- input tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["naive", "optimised"])
async def test_the_counted_tokens_are_those_of_the_response(variant, autojump_clock):
    """Counting says what the usage will say, also for a continuation; a refusal is the create's."""
    async with http(http_variant=variant) as (_, peer):
        client = await peer()
        first = (await client.create(input="hello", instructions="be nice")).json
        body = {"model": "m", "input": "more", "previous_response_id": first["id"], "tools": [TOOL]}
        counted = (await client.ask("POST", "/v1/responses/input_tokens", body)).json
        used = (await client.create(**body)).json["usage"]["input_tokens"]
        wrong = await client.ask("POST", "/v1/responses/input_tokens", {"input": "hi"})
    assert {"object": "response.input_tokens", "input_tokens": used} == counted
    assert words("missing", field="model") == told(wrong)


# --- the end of the server -----------------------------------------------------------------------------------------


async def test_a_draining_server_finishes_what_it_samples(autojump_clock):
    """The answer comes whole, idle connections are closed at once, and the server is gone before the time is over."""
    async with http([[Stall(5), *say("done"), END]]) as (served, peer):
        busy, idle = await peer(), await peer()
        await idle.ask("GET", "/health")
        await busy.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(1)
        served.server.drain()
        assert (True, 1) == (await idle.ended(), trio.current_time())
        answer = await busy.answer()
        assert ("completed", "close") == (answer.json["status"], answer.headers["connection"])
        assert await busy.ended()


async def test_what_is_sampled_too_long_is_cut_in_a_draining_server(autojump_clock):
    """It is answered with 503, which clients send again."""
    async with http([[Stall(500), END]], limits=Limits(drain_seconds=3)) as (served, peer):
        busy = await peer()
        await busy.send("POST", "/v1/responses", {"model": "m", "input": "hi"})
        await trio.sleep(1)
        served.server.drain()
        answer = await busy.answer()
        assert (503, 4) == (answer.status, trio.current_time())
    assert words("draining") == told(answer)


async def test_a_store_that_fails_costs_the_record_and_not_the_answer(autojump_clock, caplog):
    """The response is answered; the log says what was not stored."""

    class Full(MemoryStore):
        async def put(self, record):
            raise OSError("disk full")

    async with http(store=Full()) as (_, peer):
        assert 200 == (await (await peer()).create()).status
    assert ["engine.keeping"] == [record.name for record in caplog.records if record.levelname == "ERROR"]


# --- the store in memory -------------------------------------------------------------------------------------------


def stored(number, size=10):
    from engine.storage import StoredResponse

    return StoredResponse(response_id=f"resp_{number}", owner="me", resource=b"x" * size)


async def test_the_memory_store_is_bounded_by_count_and_bytes(autojump_clock):
    """The least recently used response goes first; putting one again changes nothing."""
    store = MemoryStore(Limits(max_stored_responses=3, max_stored_bytes=100))
    for number in range(3):
        await store.put(stored(number))
    await store.put(stored(0, size=99))
    assert 10 == len((await store.get("me", "resp_0")).resource)
    await store.put(stored(3))
    assert None is await store.get("me", "resp_1")
    await store.put(stored(4, size=85))
    assert ["resp_3", "resp_4"] == [response_id for _, response_id in store._records]
    assert (True, False, None) == (
        await store.delete("me", "resp_3"),
        await store.delete("me", "resp_3"),
        await store.get("you", "resp_4"),
    )
