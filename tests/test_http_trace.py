"""HTTP in the trace format: what passed, what happened between, and nothing that is secret."""

from contextlib import asynccontextmanager

import orjson
import pytest
import trio
import trio.testing

from engine.recorder import TraceFile
from engine.samplers.scripted import END, Raise, Scripted, Stall, call, say
from engine.testing import MemoryTrace, serving, simulated_engine
from protocol import trace
from protocol.invariants import Checker
from tests.http_peer import HttpPeer
from tests.test_http import TOOL, bearer

HELLO = [[*say("hello there"), END]]
BODY = {"model": "m", "input": "hi"}


@asynccontextmanager
async def traced(script=HELLO, *, key=None, recorded=None, broken_rules=(), **parts):
    """A server in memory that is traced; a way to open connections to it, and the traces so far.

    Whatever happens, the checker finds no rule broken but those that are named.
    """
    recorded = recorded or MemoryTrace()
    async with serving(
        simulated_engine(Scripted(script), seed=1, **parts), key=key, trace=recorded
    ) as served:

        async def peer(headers=()):
            return HttpPeer(await served.open_stream(), headers)

        async def traces():
            # a client has its answer before the server is done with it
            await trio.testing.wait_all_tasks_blocked()
            return list(trace.read(recorded.lines()))

        yield peer, traces
    assert list(broken_rules) == violations(recorded.lines())


def violations(lines):
    """The rules that the checker finds broken in these traces, each by itself."""
    found = []
    for header, records in trace.read(lines):
        checker = Checker(header, profile="this-engine")
        for record in records:
            found += checker.feed(record)
        found += checker.finish()
    return [one.rule for one in found]


def frames(records, direction):
    return [record["frame"] for record in records if record["dir"] == direction]


def hooks(records):
    """Names of the hooks, in order."""
    return [frame["hook"] for frame in frames(records, "hook")]


def kinds(records):
    """What happened, in order: types of frames and names of hooks."""
    return [
        frame if frame == "[DONE]" else frame.get("hook") or frame["type"]
        for frame in (record["frame"] for record in records)
    ]


# --- what passed -----------------------------------------------------------------------------------------------------------


async def test_a_request_and_its_answer_are_a_trace(autojump_clock):
    """The pseudo frames hold method, path, status and the bodies as they were."""
    async with traced() as (peer, traces):
        answer = await (await peer()).ask("POST", "/v1/responses", BODY)
        [(header, records)] = await traces()
    assert ("http", "json", ["in", "out", "hook"], True) == tuple(
        header[name] for name in ("dialect", "transport", "directions", "complete")
    )
    assert list(trace.ENGINE_HOOKS) == header["hooks"]
    assert [{"type": "http.request", "method": "POST", "path": "/v1/responses", "body": BODY}] == frames(
        records, "in"
    )
    assert [{"type": "http.response", "status": 200, "body": answer.json}] == frames(records, "out")


async def test_a_stream_is_its_events(autojump_clock):
    """The head has no body; the events are those that came, each with its line, and `[DONE]` is a text."""
    async with traced() as (peer, traces):
        answer = await (await peer()).create(stream=True)
        [(header, records)] = await traces()
    assert "sse" == header["transport"]
    begun, *told = [record for record in records if record["dir"] == "out"]
    assert {"type": "http.response", "status": 200} == begun["frame"]
    assert answer.events == [(record.get("event", ""), record["frame"]) for record in told]
    assert "[DONE]" == told[-1]["frame"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_hooks_stand_where_it_happened(stream, autojump_clock):
    """Pre-inference before the beginning, post-inference and the usage row before the end, as over WebSocket."""
    async with traced() as (peer, traces):
        await (await peer()).create(stream=stream)
        [(_, records)] = await traces()
    assert [
        "connection_open",
        "slot_acquire",
        "pre_inference",
        "context",
        "sampler_stop",
        "slot_release",
        "usage_record",
        "post_inference",
    ] == hooks(records)
    happened = kinds(records)
    assert ["connection_open", "http.request"] == happened[:2]
    if stream:
        started = happened.index("http.response")
        assert ["pre_inference", "http.response", "response.created"] == happened[started - 1 : started + 2]
        assert ["post_inference", "response.completed", "[DONE]"] == happened[-3:]
    else:
        assert ["post_inference", "http.response"] == happened[-2:]


async def test_a_failure_has_its_error_first(autojump_clock, caplog):
    """The `error` event is written with its line, before `response.failed`."""
    async with traced([[*say("well"), Raise(ValueError("no"))]]) as (peer, traces):
        await (await peer()).create(stream=True)
        [(_, records)] = await traces()
    last = [(record["event"], record["frame"]["type"]) for record in records if "event" in record][-2:]
    assert [("error", "error"), ("response.failed", "response.failed")] == last
    assert {"reason": "error"}.items() <= next(
        frame for frame in frames(records, "hook") if frame["hook"] == "sampler_stop"
    ).items()


async def test_each_request_of_a_connection_has_its_own_trace(autojump_clock):
    """`conn` names the request, and the time begins anew."""
    async with traced() as (peer, traces):
        client = await peer()
        made = (await client.create()).json
        await trio.sleep(5)
        await client.ask("GET", f"/v1/responses/{made['id']}/input_items?order=asc&limit=1")
        (_, first), (_, second) = await traces()
    assert [{"c1"}, {"c2"}] == [{record["conn"] for record in records} for records in (first, second)]
    assert 0 == second[0]["t"]
    request, answer = second[1]["frame"], second[2]["frame"]
    assert ("GET", {"order": "asc", "limit": "1"}) == (request["method"], request["query"])
    assert "body" not in request
    assert "list" == answer["body"]["object"]


async def test_a_second_sending_is_attached_to_its_response(autojump_clock):
    """The hook says from which number on; the events are those of the first sending."""
    async with traced() as (peer, traces):
        client = await peer()
        response_id = (await client.create(stream=True)).events[0][1]["response"]["id"]
        await client.ask("GET", f"/v1/responses/{response_id}?stream=true&starting_after=2")
        (_, first), (header, second) = await traces()
    assert "sse" == header["transport"]
    assert ["connection_open", "http.request", "attach", "gap", "http.response"] == kinds(second)[:5]
    assert ["connection_open", "connection_close", "attach"] == header["hooks"]
    assert {"hook": "attach", "response_id": response_id, "starting_after": 2} == second[2]["frame"]
    sent = [(record.get("event"), record["frame"]) for record in first if record["dir"] == "out"]
    again = [(record.get("event"), record["frame"]) for record in second if record["dir"] == "out"]
    assert again == [sent[0], *sent[4:]]  # without the events 0 to 2


async def test_what_machines_ask_again_and_again_is_not_traced(autojump_clock):
    """Health and metrics leave no trace; nor does a server without one."""
    async with traced() as (peer, traces):
        client = await peer()
        assert [200, 200] == [(await client.ask("GET", path)).status for path in ("/health", "/metrics")]
        assert [] == await traces()


# --- what did not work -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/responses", {"input": "hi"}, 400),
        ("POST", "/v1/responses", {"model": "m", "stream": True, "input": 7}, 400),
        ("POST", "/v1/nowhere", {"model": "m"}, 404),
        ("PUT", "/v1/responses", {"model": "m"}, 405),
        ("GET", "/v1/responses/resp_0", None, 404),
    ],
)
async def test_a_refusal_is_an_answer(method, path, body, status, autojump_clock):
    """The status and the body that the client got; nothing began."""
    async with traced() as (peer, traces):
        answer = await (await peer()).ask(method, path, body)
        [(header, records)] = await traces()
    assert status == answer.status
    assert [{"type": "http.response", "status": status, "body": answer.json}] == frames(records, "out")
    assert "json" == header["transport"]
    assert {"pre_inference", "usage_record", "connection_close"}.isdisjoint(hooks(records))


async def test_a_client_that_goes_away_is_seen_to_go(autojump_clock):
    """The close stands where it was noticed: nothing is sent after it, and what ran is ended and counted."""
    async with traced([[*say("one"), Stall(60), *say("two"), END]]) as (peer, traces):
        client = await peer()
        await client.send("POST", "/v1/responses", {**BODY, "stream": True})
        await client.head()
        await trio.sleep(1)
        await client.stream.aclose()
        [(_, records)] = await traces()
    happened = kinds(records)
    at = happened.index("connection_close")
    assert {"hook": "connection_close", "by": "client"} == records[at]["frame"]
    assert ["sampler_stop", "slot_release", "usage_record", "post_inference"] == happened[at + 1 :]
    assert "cancel" == records[at + 1]["frame"]["reason"]
    assert 1 == records[at]["t"]


async def test_an_answer_that_the_server_breaks_off_says_so(autojump_clock, caplog):
    """The server goes away in the middle of a stream: the close is its own."""
    recorded = MemoryTrace()
    async with traced([[*say("one"), Stall(60), END]], recorded=recorded, broken_rules=["R3"]) as (peer, _):
        client = await peer()
        await client.send("POST", "/v1/responses", {**BODY, "stream": True})
        await client.head()
        await trio.sleep(1)
    [(_, records)] = trace.read(recorded.lines())
    assert {"hook": "connection_close", "by": "server"} == next(
        frame for frame in frames(records, "hook") if frame["hook"] == "connection_close"
    )


async def test_a_body_that_is_no_object_is_a_text(autojump_clock):
    """Cut as all such text; one that closes its object early adds no member to the frame."""
    bodies = [b"[1]", b"nonsense \xff", b'{"a":1},"status":7,"b":{}', b"x" * 5000]
    async with traced() as (peer, traces):
        client = await peer()
        for body in bodies:
            assert 400 == (await client.ask("POST", "/v1/responses", body)).status
        asked = [frames(records, "in")[0] for _, records in await traces()]
    assert ["[1]", "nonsense �", bodies[2].decode(), "x" * trace.MAX_RAW_CHARACTERS] == [
        frame["body"] for frame in asked
    ]
    assert all({"type", "method", "path", "body"} == set(frame) for frame in asked)


async def test_line_breaks_of_a_body_do_not_break_the_record(autojump_clock):
    """A body over several lines is one record, with the same content."""
    async with traced() as (peer, traces):
        await (await peer()).ask("POST", "/v1/responses", b'{"model":\r\n"m",\n"input":"a\\nb"}')
        [(_, records)] = await traces()
    assert {"model": "m", "input": "a\nb"} == frames(records, "in")[0]["body"]


async def test_a_long_trace_stops_and_says_so(autojump_clock):
    """Over the limit nothing more is kept of that request; others are not harmed."""
    recorded = MemoryTrace(max_trace_bytes=3000)
    async with traced([[*say("word " * 500), END]], recorded=recorded) as (peer, traces):
        client = await peer()
        await client.create(stream=True)
        await client.ask("GET", "/v1/models")
        (long, records), (short, _) = await traces()
    assert (False, True) == (long["complete"], short["complete"])
    assert "[DONE]" not in kinds(records)


# --- secrets ---------------------------------------------------------------------------------------------------------------


async def test_no_key_is_written(tmp_path, autojump_clock):
    """Neither that of a header, right or wrong, nor one that stands in the query by mistake."""
    recorded = TraceFile(tmp_path / "t.jsonl")
    async with serving(simulated_engine(Scripted(HELLO), seed=1), key="sk-canary", trace=recorded) as served:
        for headers in (bearer("sk-canary"), bearer("wrong-canary"), []):
            client = HttpPeer(await served.open_stream(), headers)
            path = "/v1/responses?api_key=sk-canary&key=sk-canary&model=m"
            await client.ask("POST", path, BODY, [("x-api-key", "sk-canary")])
    recorded.close()
    written = (tmp_path / "t.jsonl").read_bytes()
    assert b"canary" not in written
    (_, first), (_, second), (_, third) = trace.read(written.splitlines())
    assert {"api_key": "[removed]", "key": "[removed]", "model": "m"} == first[1]["frame"]["query"]
    assert [200, 401, 401] == [frames(each, "out")[0]["status"] for each in (first, second, third)]
    assert "body" not in second[1]["frame"]  # it was not read


# --- hooks of both transports ----------------------------------------------------------------------------------------------


async def test_the_context_says_what_it_inherits(autojump_clock):
    """By id the parent is named, by history nobody is, whatever the server remembers of it (W14)."""
    async with traced() as (peer, traces):
        client = await peer()
        first = (await client.create()).json
        await client.create(previous_response_id=first["id"], input="two")
        history = [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "two"}]
        await client.create(input=history)
        contexts = [
            frame
            for _, records in await traces()
            for frame in frames(records, "hook")
            if frame["hook"] == "context"
        ]
    assert [[], [first["id"]], []] == [context["inherited"] for context in contexts]


async def test_over_websocket_the_same_hooks_are_written(autojump_clock):
    """What a create inherits, its usage row with its key, and a stop that a cancellation made."""
    script = [[*say("one"), END], [*say("two"), Stall(60), END]]
    recorded = MemoryTrace()
    async with serving(simulated_engine(Scripted(script), seed=1), trace=recorded) as served:
        async with served.connect_raw(append=False) as raw:
            raw.send({"type": "response.create", **BODY})
            while (frame := await raw.receive())["type"] != "response.completed":
                pass
            first = frame["response"]["id"]
            new = {"type": "response.create", **BODY, "previous_response_id": first}
            raw.send(new)
            while (frame := await raw.receive())["type"] != "response.output_text.delta":
                if frame["type"] == "response.created":
                    second = frame["response"]["id"]
            assert served.server.cancel(second)
            while (await raw.receive())["type"] != "response.failed":
                pass
        await trio.testing.wait_all_tasks_blocked()
    [(_, records)] = trace.read(recorded.lines())
    told = frames(records, "hook")
    assert [
        {"hook": "context", "response_id": first, "inherited": [], "input_items": 1},
        {"hook": "context", "response_id": second, "inherited": [first], "input_items": 1},
    ] == [hook for hook in told if hook["hook"] == "context"]
    assert [{"hook": "usage_record", "response_id": each, "key": each} for each in (first, second)] == [
        hook for hook in told if hook["hook"] == "usage_record"
    ]
    assert ["stop", "cancel"] == [hook["reason"] for hook in told if hook["hook"] == "sampler_stop"]


async def test_no_row_no_hook(autojump_clock, caplog):
    """A store that fails costs the record: the trace does not claim one, and the checker misses it."""

    class Full:
        async def record_usage(self, row):
            raise OSError("disk full")

    async with traced(store=Full(), broken_rules=["U3"]) as (peer, traces):
        assert 200 == (await (await peer()).create()).status
        [(_, records)] = await traces()
    assert "usage_record" not in hooks(records)
    assert "post_inference" in hooks(records)


async def test_the_trace_survives_a_tool_loop(autojump_clock):
    """Every line is a record or a header, whatever the requests were."""
    async with traced([[call("f", call_id="call_1"), END]]) as (peer, traces):
        client = await peer()
        made = (await client.create(tools=[TOOL])).json
        output = {"type": "function_call_output", "call_id": "call_1", "output": "é\u2028\n"}
        await client.create(tools=[TOOL], previous_response_id=made["id"], input=[output])
        await client.ask("POST", f"/v1/responses/{made['id']}/cancel")
        await client.ask("DELETE", f"/v1/responses/{made['id']}")
        found = await traces()
    assert 4 == len(found)
    assert "é\u2028\n" == frames(found[1][1], "in")[0]["body"]["input"][0]["output"]
    assert ["tool_call"] == [
        frame["reason"] for frame in frames(found[0][1], "hook") if frame["hook"] == "sampler_stop"
    ]
    assert orjson.loads(orjson.dumps(found[3][1][2]["frame"]["body"]))["deleted"]
