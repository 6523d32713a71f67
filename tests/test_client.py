"""The client over memory streams: tools, the same in each form, refusals, and servers that break the rules."""

import orjson
import pytest
import trio
from trio.testing import memory_stream_pair

from engine.client import FORMS, RolloutRefusedError, connect
from engine.config import Limits
from engine.engine import Engine
from engine.local import memory_client
from engine.recorder import NoRecorder
from engine.samplers.policy import PolicySampler, Say, Use, program
from engine.samplers.scripted import END, Scripted, Stall, call, say
from engine.testing import serving
from engine.transport import serve_transport
from protocol.errors import RemoteProtocolError
from protocol.events import OutputItemDone, ResponseCreated
from protocol.items import CALLS, text_of

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}


def engine_of(*segments):
    return Engine.make(Scripted(segments))


async def answers_of(engine, functions, form="append"):
    """Run a rollout; what its tools' outputs were, as the engine kept them."""
    kept = []
    engine.persist = type(engine.persist)(kept.append)
    create = {"model": "m", "input": "go", "tools": [ADD]}
    async with (
        memory_client(engine, form=form) as client,
        client.rollout(**create, functions=functions) as rollout,
    ):
        await rollout.wait_ended()
    return [text_of(item.output) for item in kept[0].items if hasattr(item, "output")]


async def add(a, b):
    await trio.sleep(a)
    return a + b


async def fails(**_):
    raise LookupError("no such shelf")


async def identified(call_id, a, b):
    await trio.lowlevel.checkpoint()
    return f"{a + b} for {call_id.split('_')[0]}"


def answering(answer):
    async def function(**_):
        await trio.lowlevel.checkpoint()
        return answer

    return {"add": function}


async def opens(**_):
    await trio.lowlevel.checkpoint()
    raise OSError("no file bad\udcff")


class Heard(NoRecorder):
    """Counts frames of the server."""

    count = 0

    def frame_out(self, text: bytes) -> None:
        self.count += 1


async def test_a_rollout_that_nobody_reads_is_not_read_on(autojump_clock):
    """Only so many events are heard ahead of the user, and one that waits for its place; none is lost."""
    heard = Heard()
    async with (
        serving(engine_of([*say("word " * 50), END])) as served,
        connect(
            "ws://test/v1/responses",
            limits=Limits(max_unread_events=3),
            recorder=heard,
            stream=await served.open_stream(),
        ) as client,
        client.rollout(model="m", input="go") as rollout,
    ):
        await trio.testing.wait_all_tasks_blocked()
        assert 3 + 1 == heard.count
        assert len([event async for event in rollout]) == heard.count > 10


@pytest.mark.parametrize("form", ["append", "inject"])
async def test_outputs_stand_in_call_order_whatever_finishes_first(form, autojump_clock):
    """Two tools run at once; the slower one is first in the context because its call was."""
    engine = engine_of(
        [call("add", '{"a":9,"b":1}'), call("add", '{"a":1,"b":1}', index=1), END], [*say("done"), END]
    )
    assert ["10", "2"] == await answers_of(engine, {"add": add}, form)


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ({"add": fails}, "error: LookupError: no such shelf"),
        ({}, "error: there is no tool named 'add'; there are: none"),
        ({"add": identified}, "3 for call"),
        ({"add": opens}, "error: OSError: no file bad\\udcff"),
        (answering({"a": [1, None]}), '{"a":[1,null]}'),
        (answering({1}), "error: TypeError: Type is not JSON serializable: set"),
        (answering(b"x"), "error: TypeError: Type is not JSON serializable: bytes"),
        (answering({1: 2}), "error: TypeError: Dict key must be str"),
        (answering(2**70), "error: TypeError: Integer exceeds 64-bit range"),
        (answering({"a": "\udcff"}), "error: TypeError: str is not valid UTF-8: surrogates not allowed"),
        (
            answering("bad\udcff"),
            (
                "error: UnicodeEncodeError: 'utf-8' codec can't encode character '\\udcff' in position 3: "
                "surrogates not allowed"
            ),
        ),
    ],
)
async def test_what_a_function_does_becomes_the_output(functions, expected, autojump_clock):
    """An error's text, the lack of a tool, or the answer, if it can be sent: the rollout goes on with it."""
    engine = engine_of([call("add", '{"a":1,"b":2}'), END], [*say("done"), END])
    assert [expected] == await answers_of(engine, functions)


@pytest.mark.parametrize("arguments", ["[1]", '{"c":1}', "{"])
async def test_arguments_that_do_not_fit_are_told_to_the_model(arguments, autojump_clock):
    """Arguments that are no object, or not the function's, give an error as output."""
    (output,) = await answers_of(engine_of([call("add", arguments), END], [*say("done"), END]), {"add": add})
    assert output.startswith("error: ")


async def test_a_refused_create_raises_what_the_server_said(autojump_clock):
    """Iterating over a refused rollout raises the server's error, not a group of it."""
    async with memory_client(engine_of([END])) as client:
        with pytest.raises(RolloutRefusedError) as refused:
            async with client.rollout(model="m", input="go", previous_response_id="resp_none") as rollout:
                await rollout.wait_ended()
    assert "previous_response_not_found" == refused.value.error.code


async def test_leaving_a_rollout_early_lets_the_next_one_abandon_it(autojump_clock):
    """A rollout left while its tool runs is abandoned by the next create on the connection."""
    engine = engine_of([call("add", '{"a":1,"b":1}'), END])
    endings = []
    engine.on_report = lambda report: endings.append(report.ending)

    async def never(**_):
        await trio.sleep_forever()

    async with memory_client(engine) as client:
        async with client.rollout(model="m", input="go", tools=[ADD], functions={"add": never}) as rollout:
            async for event in rollout:
                if event.type == "response.done":
                    break
        engine.sampler = Scripted([[*say("second"), END]])
        async with client.rollout(model="m", input="again") as second:
            await second.wait_ended()
    assert ["abandoned", "completed"] == endings
    assert "second" == second.text


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([{"type": "response.output_text.delta"}], "Missing required parameter"),
        ([{"type": "response.done", "sequence_number": 0}], "before any response.created"),
        (["created", {"type": "response.done", "sequence_number": 1}], "illegal in state SAMPLING"),
        (["created", "created"], "answers no response.create"),
        (
            ["created", {"type": "response.inject.created", "response_id": "resp_1", "sequence_number": 5}],
            "illegal",
        ),
    ],
)
async def test_a_server_that_breaks_the_order_is_told_by_name(frames, complaint, autojump_clock):
    """The client walks the same tables: an illegal event raises, and says what was wrong."""
    ours, theirs = memory_stream_pair()
    limits = Limits()
    created = {
        "type": "response.created",
        "sequence_number": 0,
        "response": {"id": "resp_1", "created_at": 1, "model": "m"},
    }

    async def bad_server():
        async with serve_transport(theirs, limits, lambda _: None, request_id="r") as (transport, _):
            await transport.receive()
            for frame in frames:
                transport.send_nowait(orjson.dumps(created if frame == "created" else frame))
            transport.flush()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bad_server)
        async with connect("ws://test/v1/responses", stream=ours) as client:
            with pytest.raises(RemoteProtocolError, match=complaint):
                async with client.rollout(model="m", input="go") as rollout:
                    await rollout.wait_ended()
        nursery.cancel_scope.cancel()


# --- the same in each form -------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("add", "fails")]
ONE_RESPONSE = ("append", "inject")


def asks(_prompt, _tools):
    """Three calls at once, of which one fails, then another one, then the answer."""
    yield Say("I count.")
    first = yield (Use("add", {"a": 9, "b": 1}), Use("fails", {}), Use("add", {"a": 1, "b": 1}))
    second = yield Use("add", {"a": int(first[0]), "b": int(first[2])})
    yield Say(f"{first} and {second}.")


class Sent(NoRecorder):
    """What the client sends."""

    def __init__(self):
        self.frames = []

    def frame_in(self, text):
        self.frames.append(orjson.loads(text))


async def played(form, **members):
    """The rollout of `asks` in one form: calls, text, responses, frames that were sent, reports."""
    reports, sent = [], Sent()
    engine = Engine.make(PolicySampler(program(asks)), on_report=reports.append)
    create = {"model": "m", "input": "go", "tools": TOOLS, "functions": {"add": add, "fails": fails}}
    async with (
        memory_client(engine, form=form, recorder=sent) as client,
        client.rollout(**create, **members) as rollout,
    ):
        items = [event.item async for event in rollout if isinstance(event, OutputItemDone)]
    calls = [(item.name, item.arguments) for item in items if isinstance(item, CALLS)]
    return calls, rollout, sent.frames, reports


@pytest.mark.parametrize("form", FORMS)
async def test_a_rollout_is_the_same_in_each_form(form, autojump_clock):
    """Calls, their outputs in call order, an error among them, and all text are the same, whatever carries them."""
    calls, rollout, _, reports = await played(form)
    assert calls == [
        ("add", '{"a": 9, "b": 1}'),
        ("fails", "{}"),
        ("add", '{"a": 1, "b": 1}'),
        ("add", '{"a": 10, "b": 2}'),
    ]
    assert rollout.text == "I count.\n('10', 'error: LookupError: no such shelf', '2') and 12."
    assert rollout.response.status == "completed"
    assert sum(report.usage.segments for report in reports) == 3


@pytest.mark.parametrize("form", FORMS)
async def test_how_many_responses_a_rollout_is(form, autojump_clock):
    """One in the forms that suspend; else one for each round of calls and one for the answer, each of its own kind."""
    _, rollout, _, reports = await played(form)
    count = 1 if form in ONE_RESPONSE else 3
    assert [report.dialect for report in reports] == [form] * count
    assert len({response.id for response in rollout.responses}) == len(rollout.responses) == count
    assert rollout.response is rollout.responses[-1]
    assert sum(report.hooks["pre_inference"] for report in reports) == count


@pytest.mark.parametrize(("form", "more"), [("create", {}), ("http", {"store": True})])
async def test_what_is_new_is_sent_with_the_parents_id(form, more, autojump_clock):
    """In the create form, and over HTTP where the server stores, a turn brings its outputs and names the response before."""
    _, rollout, frames, _ = await played(form, **more)
    parents = [None, *(response.id for response in rollout.responses[:-1])]
    assert [frame.get("previous_response_id") for frame in frames] == parents
    assert [[item["output"] for item in frame["input"]] for frame in frames[1:]] == [
        ["10", "error: LookupError: no such shelf", "2"],
        ["12"],
    ]
    assert {(frame["model"], len(frame["tools"])) for frame in frames} == {("m", 2)}


async def test_over_http_the_whole_history_is_sent(autojump_clock):
    """Over HTTP each turn brings all items so far, stores nothing, and names no other response."""
    _, _, frames, _ = await played("http")
    assert {(frame["store"], frame["stream"], frame.get("previous_response_id")) for frame in frames} == {
        (False, True, None)
    }
    assert frames[0]["input"] == "go"
    call, output = "function_call", "function_call_output"
    first = ["message", "message", call, call, call, output, output, output]
    kinds = [[item["type"] for item in frame["input"]] for frame in frames[1:]]
    assert kinds == [first, [*first, call, output]]
    assert frames[2]["input"][: len(first)] == frames[1]["input"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_failing_engine_ends_the_rollout_in_each_form(form, autojump_clock):
    """What the sampler raises after a call ends the rollout with `response.failed`, and says why, but not what."""

    def breaks(_prompt, _tools):
        yield Use("add", {"a": 1, "b": 1})
        raise RuntimeError("no GPU")

    engine = Engine.make(PolicySampler(program(breaks)))
    async with (
        memory_client(engine, form=form) as client,
        client.rollout(model="m", input="go", tools=TOOLS, functions={"add": add}) as rollout,
    ):
        response = await rollout.wait_ended()
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert "GPU" not in response.error.message


@pytest.mark.parametrize("form", FORMS)
async def test_a_refused_turn_raises_in_each_form(form, autojump_clock):
    """A refused create raises with the server's code, and the client can begin another rollout."""
    async with memory_client(Engine.make(Scripted([[*say("fine"), END]])), form=form) as client:
        with pytest.raises(RolloutRefusedError) as refused:
            async with client.rollout(model="m", input="go", previous_response_id="resp_none") as rollout:
                await rollout.wait_ended()
        async with client.rollout(model="m", input="go") as rollout:
            await rollout.wait_ended()
    assert (refused.value.error.code, rollout.text) == ("previous_response_not_found", "fine")
    assert refused.value.error.param == "previous_response_id"


@pytest.mark.parametrize("form", FORMS)
async def test_what_cannot_be_sent_raises_as_it_is(form, autojump_clock):
    """A create that no JSON can hold raises without a group of errors, and the client can begin another rollout."""
    async with memory_client(engine_of([*say("fine"), END]), form=form) as client:
        with pytest.raises(TypeError, match="surrogates not allowed"):
            async with client.rollout(model="m", input="\udcff"):
                pytest.fail("there is no such rollout")
        async with client.rollout(model="m", input="go") as rollout:
            await rollout.wait_ended()
    assert rollout.text == "fine"


@pytest.mark.parametrize("form", FORMS)
async def test_rollouts_of_one_client_run_one_after_the_other(form, autojump_clock):
    """A rollout that another task opens waits until the first one is left, and each hears its own events."""
    heard = []

    async def run(client, after_seconds):
        await trio.sleep(after_seconds)
        async with client.rollout(model="m", input="go") as rollout:
            heard.append("begun")
            await rollout.wait_ended()
            heard.append(rollout.text)

    engine = engine_of([*say("done"), Stall(10), END])
    async with memory_client(engine, form=form) as client, trio.open_nursery() as nursery:
        for after_seconds in (0, 1):
            nursery.start_soon(run, client, after_seconds)
    assert heard == ["begun", "done"] * 2


def asks_once(_prompt, _tools):
    (answer,) = yield (Use("add", {}),)
    yield Say(answer)


@pytest.mark.parametrize("form", FORMS)
async def test_a_rollout_within_another_one_is_an_error(form, autojump_clock):
    """In the block, and in a tool or what it starts: to wait there for the rollout's end would be to wait for ever."""
    engine = Engine.make(PolicySampler(program(asks_once)))
    async with memory_client(engine, form=form) as client:

        async def nested():
            with pytest.raises(RuntimeError, match="leave it first, or connect another client"):
                async with client.rollout(model="m", input="go"):
                    pytest.fail("two at once")

        async def tool():
            await nested()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nested)
            return "both refused"

        async with client.rollout(model="m", input="go", tools=[ADD], functions={"add": tool}) as rollout:
            await nested()
            await rollout.wait_ended()
    assert rollout.text == "both refused"


@pytest.mark.parametrize("form", FORMS)
async def test_a_response_cancelled_by_the_server_ends_in_each_form(form, autojump_clock):
    """A response that the server cancels while it samples ends the rollout as failed, with the status `cancelled`."""
    engine = Engine.make(Scripted([[*say("Wait."), Stall(1000), END]]))
    async with (
        serving(engine) as served,
        served.connect_client(form) as client,
        client.rollout(model="m", input="go") as rollout,
    ):
        async for event in rollout:
            if isinstance(event, ResponseCreated):
                await trio.sleep(1)
                assert served.server.cancel(event.response.id)
    assert rollout.response.status == "cancelled"


@pytest.mark.parametrize("form", FORMS)
async def test_a_rollout_left_in_the_middle_is_not_heard_by_the_next_one(form, autojump_clock):
    """Events of a rollout that was left while it sampled are passed over; the next rollout hears its own only."""
    engine = Engine.make(Scripted([[*say("first"), Stall(10), *say(" more"), END]]))
    endings = []
    engine.on_report = lambda report: endings.append(report.ending)
    async with memory_client(engine, form=form) as client:
        async with client.rollout(model="m", input="go") as rollout:
            await anext(rollout)
        engine.sampler = Scripted([[*say("second"), END]])
        async with client.rollout(model="m", input="again") as second:
            await second.wait_ended()
    assert (rollout.response, second.text) == (None, "second")
    assert endings == ["disconnected" if form == "http" else "completed", "completed"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_lost_connection_is_no_end_of_a_rollout(form, autojump_clock):
    """If the server dies between two turns, or in one, there is no final response, and the reason is told."""
    engine = Engine.make(PolicySampler(program(asks)))
    async with serving(engine) as served, served.connect_client(form) as client:

        async def kills(**_):
            served.scope.cancel()
            await trio.sleep(1)
            return "0"

        async with client.rollout(
            model="m", input="go", tools=TOOLS, functions={"add": kills, "fails": fails}
        ) as rollout:
            async for _ in rollout:
                pass
    assert rollout.response is None
    assert "connection closed" in rollout.lost


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("url", ["ws://h:1/v1/responses?a=b", "http://h:1/v1/responses?a=b"])
def test_each_form_takes_each_url(form, url):
    """A form writes a server's URL with its own scheme, and keeps the rest."""
    scheme = "http" if form == "http" else "ws"
    assert FORMS[form].url(url) == f"{scheme}://h:1/v1/responses?a=b"
    assert FORMS[form].url(url.replace("://", "s://")) == f"{scheme}s://h:1/v1/responses?a=b"


@pytest.mark.parametrize("url", ["h:1/v1", "ftp://h/v1", "http://", ""])
def test_what_is_no_url_of_a_server(url):
    """A URL without a scheme that is known, or without a host, is refused by name."""
    with pytest.raises(ValueError, match="a URL is ws://host/path"):
        FORMS["create"].url(url)
