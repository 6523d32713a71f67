"""`text.format`: an answer of the form that was asked for, or a refusal that names it; never any text in its place."""

from typing import Any, Literal

import jsonschema
import orjson
import pydantic
import pytest
import trio
from openai import BadRequestError, OpenAI

from engine.config import Limits
from engine.engine import Engine
from engine.samplers.improv import Improv
from engine.samplers.policy import PolicySampler, Say
from engine.samplers.registry import make_sampler
from engine.samplers.scripted import END, Scripted, say
from engine.server import Server
from engine.testing import serving, simulated_engine
from tests.http_peer import HttpPeer
from tests.test_http import told, words

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ASKED = {"type": "json_schema", "name": "answer", "schema": SCHEMA}


def speaking(text):
    """A program that says the same whatever is asked."""
    return PolicySampler(lambda items, tools: [Say(text)])


async def answer_to(sampler, *, transport="http", **members):
    """What a create with these members is answered."""
    async with serving(simulated_engine(sampler, seed=1)) as served:
        if transport == "http":
            return told(await HttpPeer(await served.open_stream()).create(**members))
        async with served.connect_raw(append=transport == "append") as raw:
            raw.send({"type": "response.create", "model": "m", "input": "hi", **members})
            while (frame := await raw.receive())["type"] not in {"error", "response.completed"}:
                pass
            return (frame["status"], frame) if frame["type"] == "error" else (200, frame["response"])


@pytest.mark.parametrize(
    ("form", "row", "values"),
    [
        ("json", "invalid_type", {"field": "text.format", "expected": "an object"}),
        ({}, "missing", {"field": "text.format.type"}),
        ({"type": 7}, "invalid_type", {"field": "text.format.type", "expected": "a string"}),
        ({"type": "xml"}, "invalid_value", {"field": "text.format.type"}),
        ({"type": "json_schema", "schema": SCHEMA}, "missing", {"field": "text.format.name"}),
        ({"type": "json_schema", "name": "a"}, "missing", {"field": "text.format.schema"}),
        (
            {"type": "json_schema", "name": "a", "schema": []},
            "invalid_type",
            {"field": "text.format.schema", "expected": "an object"},
        ),
    ],
)
async def test_what_is_no_form_is_refused_by_its_place(form, row, values, autojump_clock):
    """The path leads to the member that is wrong."""
    assert words(row, **values) == await answer_to(Improv(), text={"format": form})


async def test_a_schema_that_is_none_is_refused(autojump_clock):
    """As the schema of a tool, with the reason."""
    form = {**ASKED, "schema": {"type": "nonsense"}}
    status, body = await answer_to(Improv(), text={"format": form})
    assert (400, "invalid_value", "text.format.schema") == (
        status,
        body["error"]["code"],
        body["error"]["param"],
    )


@pytest.mark.parametrize("form", [None, {"type": "text"}])
async def test_plain_text_is_any_model_s(form, autojump_clock):
    """No form, or the form of text, is refused by nobody."""
    status, body = await answer_to(speaking("hello"), text={"format": form, "verbosity": "low"})
    assert (200, "low") == (status, body["text"]["verbosity"])


@pytest.mark.parametrize("transport", ["http", "create", "append"])
@pytest.mark.parametrize("form", [{"type": "json_object"}, ASKED], ids=["object", "schema"])
async def test_a_model_that_keeps_to_none_refuses_it(form, transport, autojump_clock):
    """In the same words over each transport, with the parameter and a way out."""
    status, body = await answer_to(speaking("hello"), transport=transport, text={"format": form})
    expected = words("text_format", model="m", type=form["type"])[1]["error"]
    assert (400, expected) == (status, body["error"])


async def test_the_simulated_model_says_an_example(autojump_clock):
    """What it answers under a schema is of that schema; under `json_object` it is an object."""
    for form, example in ((ASKED, {"a": 1}), ({"type": "json_object"}, {})):
        status, body = await answer_to(Improv(), text={"format": form})
        assert (200, example) == (status, orjson.loads(body["output"][0]["content"][0]["text"]))
        assert form == body["text"]["format"]


async def test_a_script_sees_what_is_asked(autojump_clock):
    """The prompt has the form; on a chain it is each turn's own, and a sampling is not gone on with under another."""
    seen = []

    def script(prompt):
        seen.append(prompt.text_format)
        return [[*say("{}"), END]] * 3

    async with (
        serving(simulated_engine(Scripted(script), seed=1)) as served,
        served.connect_raw(append=False) as raw,
    ):
        parent: dict[str, Any] = {}
        for form in ({"format": ASKED}, {"format": ASKED}, {}):
            create = {"type": "response.create", "model": "m", "input": "hi", "text": form, **parent}
            raw.send(create)
            while (frame := await raw.receive())["type"] != "response.completed":
                pass
            parent = {"previous_response_id": frame["response"]["id"]}
    assert [ASKED, None] == seen  # the second turn went on with the first one's sampling


async def test_a_schema_without_end_has_a_short_example(autojump_clock):
    """One that names itself ten times over costs no more than a plain one."""
    node = {"type": "object", "properties": {}, "required": [str(number) for number in range(10)]}
    node["properties"] = {name: {"$ref": "#/$defs/node"} for name in node["required"]}
    form = {**ASKED, "schema": {"$ref": "#/$defs/node", "$defs": {"node": node}}}
    status, body = await answer_to(Improv(), text={"format": form})
    text = body["output"][0]["content"][0]["text"]
    assert (200, True) == (status, len(text) < 50_000)
    assert {str(number) for number in range(10)} == set(orjson.loads(text))


# --- the released SDK ------------------------------------------------------------------------------------------------------


class Place(pydantic.BaseModel):
    name: str
    kind: Literal["town", "village"]
    inhabitants: int | None


class Journey(pydantic.BaseModel):
    places: list[Place]
    by_train: bool
    start: Place


async def parsed_by_sdk(sampler):
    """What `responses.parse` makes of the answer, on a real port."""
    server = Server(Engine.make(sampler))

    def parse(url):
        with OpenAI(api_key="k", base_url=url, max_retries=0) as client:
            return client.responses.parse(model="m", input="where to?", text_format=Journey).output_parsed

    async with trio.open_nursery() as nursery:
        server.start_samplers(nursery)
        (listener,) = await nursery.start(server.run)
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
        try:
            return await trio.to_thread.run_sync(parse, url)
        finally:
            nursery.cancel_scope.cancel()


async def test_the_sdk_parses_what_serve_says_by_itself():
    """`responses.parse` with nested models, a union and a literal, against the default sampler."""
    journey = await parsed_by_sdk(make_sampler("paced:first=0.001,rate=10000", Limits()))
    place = Place(name="example", kind="town", inhabitants=1)
    assert Journey(places=[], by_train=True, start=place) == journey


async def test_the_sdk_raises_the_refusal():
    """A model that keeps to no form is an error of its own class with the parameter, not one of a parser."""
    with pytest.RaisesGroup(
        pytest.RaisesExc(BadRequestError, check=lambda error: error.param == "text.format")
    ):
        await parsed_by_sdk(speaking("hello"))


def test_the_example_is_of_the_sdk_s_own_schema():
    """The strict schema that the SDK makes of a model is kept to, whatever else it would parse."""
    from openai.lib._pydantic import to_strict_json_schema  # what the SDK sends

    schema = to_strict_json_schema(Journey)
    text = trio.run(_said, {"type": "json_schema", "name": "j", "schema": schema})
    jsonschema.validate(orjson.loads(text), schema)


async def _said(form):
    async with serving(simulated_engine(Improv(), seed=1)) as served:
        answer = await HttpPeer(await served.open_stream()).create(text={"format": form})
        return answer.json["output"][0]["content"][0]["text"]
