"""protocol.codec: text and events are one, and nothing that is no event passes."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, get_args

import attrs
import orjson
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.beta.beta_responses_server_event import BetaResponsesServerEvent
from openai.types.responses import ResponseError, ResponseStreamEvent
from openai.types.responses.responses_server_event import ResponsesServerEvent

from protocol import codec, events, items
from protocol.dialects import DIALECTS
from protocol.errors import CATALOGUE, RemoteProtocolError
from protocol.session import ClientSession, ServerSession
from protocol.usage import Usage
from tests import strategies as wire


def decode_client(text: str | bytes) -> events.ClientEvent:
    return codec.client_event(codec.parse(text))


def decode_server(text: str | bytes) -> events.ServerEvent:
    return codec.server_event(codec.parse(text, echoed=False))


def refused(decode: Callable[[str | bytes], Any], data: Any) -> RemoteProtocolError:
    """The error of a frame that must not pass."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode(json.dumps(data))
    return caught.value


# --- there and back --------------------------------------------------------------------------------------------------


@given(wire.client_events)
def test_client_events_come_back(event: events.ClientEvent) -> None:
    """What a client encodes is decoded as the same event."""
    assert decode_client(codec.encode(event)) == event


@given(wire.server_events, st.integers(0, 2**53), wire.json_objects)
def test_server_events_come_back(event: events.ServerEvent, number: int, agent: dict[str, Any]) -> None:
    """What a server encodes is decoded as the same event, whatever the last hop adds."""
    text = codec.encode(event, {"sequence_number": number, "agent": agent})
    decoded = decode_server(text)
    if isinstance(event, events.UnknownEvent):
        assert decoded == events.UnknownEvent({**event.raw, "sequence_number": number, "agent": agent})
    else:
        assert decoded == event


@given(wire.input_items)
def test_items_come_back(item: items.Item) -> None:
    """Every item survives the wire, in a client's input as in a server's output."""
    assert decode_server(codec.encode(events.OutputItemDone(0, item))) == events.OutputItemDone(0, item)


@given(wire.server_events.filter(lambda event: not isinstance(event, events.ErrorEvent)))
def test_encoding_writes_the_type_first_and_extras_last(event: events.ServerEvent) -> None:
    """A frame begins with its type, so that logs are readable, and ends with what the last hop adds."""
    members = list(orjson.loads(codec.encode(event, {"sequence_number": 7, "stream_id": "a"})))
    assert members[-2:] == ["sequence_number", "stream_id"]
    if not isinstance(event, events.UnknownEvent):
        assert members[0] == "type"
        assert members[1:-2] == list(codec.unstructure(event))


class Letter(items.Message):
    """Somebody's own kind of message."""


def test_what_is_no_class_of_ours_is_written_as_it_is():
    """Plain data among items and parts, and a class made from one of ours, as a user of the client may give them."""
    part, call = (
        {"type": "input_text", "text": "hi"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    )
    create = events.ResponseCreate(model="m", input=(call, Letter("user", (part,))))
    message = {"role": "user", "content": [part], "type": "message"}
    assert orjson.loads(codec.encode(create))["input"] == [call, message]


# --- what is left out ------------------------------------------------------------------------------------------------


def each_class() -> dict[type, st.SearchStrategy[Any]]:
    """Strategies for every class that is written."""
    return {
        **wire.server_events_by_class,
        events.ResponseCreate: wire.creates,
        events.ResponseAppend: wire.appends,
        events.ResponseInject: wire.injects,
        items.Message: wire.messages(),
        items.Reasoning: wire.reasonings,
        items.FunctionCall: wire.function_calls,
        items.CustomToolCall: wire.custom_calls,
        items.FunctionCallOutput: wire.function_outputs,
        items.CustomToolCallOutput: wire.custom_outputs,
        items.ToolSearchCall: wire.search_calls,
        items.ToolSearchOutput: wire.search_outputs,
        items.McpCall: wire.mcp_calls,
    }


@given(st.sampled_from(list(each_class())).flatmap(lambda cls: each_class()[cls]))
def test_null_members_stay_away_exactly_where_the_table_says(value: Any) -> None:
    """A null member is left out if `OMITTED` lists it, and written otherwise; all others are always written."""
    names = {field.name for field in attrs.fields(type(value))} - {"raw_input"}
    absent = {name for name in codec.OMITTED.get(type(value), ()) if getattr(value, name) is None}
    assert set(codec.unstructure(value)) == names - absent


def test_the_table_of_omissions_names_members() -> None:
    """Every name in `OMITTED` is a member of its class that may be null."""
    for cls, names in codec.OMITTED.items():
        fields = attrs.fields_dict(cls)
        assert names <= set(fields)
        assert all(fields[name].default is None for name in names)


@given(wire.responses)
def test_a_resource_has_every_key(response: events.Response) -> None:
    """Every key of the resource is on the wire, null included, in the order of reference 6."""
    assert list(codec.unstructure(response)) == [field.name for field in attrs.fields(events.Response)]


AGENT = items.Agent()


@pytest.mark.parametrize(
    ("item", "written"),
    [
        (
            items.Message("assistant", (items.OutputText("a"), items.Refusal("b")), "msg_1", "completed"),
            (
                '{"role":"assistant","content":[{"text":"a","annotations":[],"logprobs":[],"type":"output_text"},'
                '{"refusal":"b","type":"refusal"}],"id":"msg_1","status":"completed","type":"message"}'
            ),
        ),
        (
            items.Message("assistant", (), "msg_1", "in_progress", "final_answer", AGENT),
            (
                '{"role":"assistant","content":[],"id":"msg_1","status":"in_progress","phase":"final_answer",'
                '"agent":{"agent_name":"/root"},"type":"message"}'
            ),
        ),
        (items.Message("user", "hi"), '{"role":"user","content":"hi","type":"message"}'),
        (items.Reasoning(), '{"summary":[],"encrypted_content":null,"type":"reasoning"}'),
        (
            items.Reasoning("rs_1", (items.SummaryText("s"),), (items.ReasoningText("t"),), "x", "completed"),
            (
                '{"id":"rs_1","summary":[{"text":"s","type":"summary_text"}],'
                '"content":[{"text":"t","type":"reasoning_text"}],"encrypted_content":"x","status":"completed",'
                '"type":"reasoning"}'
            ),
        ),
        (
            items.FunctionCall("call_1", "f", "{}", "fc_1", "ns", "completed"),
            (
                '{"call_id":"call_1","name":"f","arguments":"{}","id":"fc_1","namespace":"ns",'
                '"status":"completed","type":"function_call"}'
            ),
        ),
        (
            items.CustomToolCall("call_1", "f", "raw"),
            '{"call_id":"call_1","name":"f","input":"raw","type":"custom_tool_call"}',
        ),
        (
            items.FunctionCallOutput("call_1", (items.InputText("a"),)),
            '{"call_id":"call_1","output":[{"text":"a","type":"input_text"}],"type":"function_call_output"}',
        ),
        (
            items.CustomToolCallOutput("call_1", "", "ctco_1"),
            '{"call_id":"call_1","output":"","id":"ctco_1","type":"custom_tool_call_output"}',
        ),
        (
            items.McpCall("mcp_1", "lab", "f", "{}"),
            (
                '{"id":"mcp_1","server_label":"lab","name":"f","arguments":"{}","output":null,"error":null,'
                '"approval_request_id":null,"type":"mcp_call"}'
            ),
        ),
        (
            items.McpCall("mcp_1", "lab", "f", "{}", None, "no", "failed"),
            (
                '{"id":"mcp_1","server_label":"lab","name":"f","arguments":"{}","output":null,'
                '"error":{"type":"mcp_tool_execution_error","content":[{"type":"text","text":"no"}]},'
                '"status":"failed","approval_request_id":null,"type":"mcp_call"}'
            ),
        ),
        (items.ItemReference("msg_1"), '{"id":"msg_1","type":"item_reference"}'),
    ],
)
def test_items_are_written_in_the_shapes_of_the_reference(item: items.Item, written: str) -> None:
    """Each item has exactly the members of reference 8.1 and 8.2; what is null there stays, what is optional goes."""
    assert codec.unstructure(item) == orjson.loads(written)


@pytest.mark.parametrize(
    ("event", "written"),
    [
        (events.ResponseDone(), '{"type":"response.done"}'),
        (events.ResponseDone(events.Parked("resp_1")), '{"type":"response.done","response":{"id":"resp_1"}}'),
        (
            events.FunctionCallArgumentsDone("fc_1", 0, "{}"),
            '{"type":"response.function_call_arguments.done","item_id":"fc_1","output_index":0,"arguments":"{}"}',
        ),
        (
            events.OutputTextDelta("msg_1", 0, 0, "x"),
            (
                '{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,'
                '"delta":"x","logprobs":[]}'
            ),
        ),
        (
            events.ErrorEvent(400, events.ErrorDetail("t", None, "m")),
            '{"type":"error","status":400,"error":{"type":"t","code":null,"message":"m","param":null}}',
        ),
        (
            events.ResponseInject(response_id="resp_1", input=(items.FunctionCallOutput("c", "x"),)),
            (
                '{"type":"response.inject","response_id":"resp_1",'
                '"input":[{"call_id":"c","output":"x","type":"function_call_output"}]}'
            ),
        ),
        (
            events.ResponseAppend(input=(items.FunctionCallOutput("c", "x"),)),
            '{"type":"response.append","input":[{"call_id":"c","output":"x","type":"function_call_output"}]}',
        ),
        (events.ResponseCreate(), '{"type":"response.create"}'),
        (events.ResponseProcessed(), '{"type":"response.processed"}'),
    ],
)
def test_events_are_written_in_the_shapes_of_the_reference(event: Any, written: str) -> None:
    """Events with optional members have exactly those of reference 3.3, 5A, 5B.1 and 11.1."""
    assert orjson.loads(codec.encode(event)) == orjson.loads(written)


def test_usage_always_has_six_integers() -> None:
    """Usage is nested and whole: counts of zero are written."""
    done = events.ResponseDone(events.Parked("resp_1", Usage(10, 3, 0, 2, 1)))
    assert orjson.loads(codec.encode(done)) == {
        "type": "response.done",
        "response": {
            "id": "resp_1",
            "usage": {
                "input_tokens": 10,
                "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
                "output_tokens": 2,
                "output_tokens_details": {"reasoning_tokens": 1},
                "total_tokens": 12,
            },
        },
    }


@pytest.mark.parametrize("details", [None, {}])
def test_usage_without_details_counts_as_zero(details: Any) -> None:
    """Other servers leave the details out or null."""
    usage = {
        "input_tokens": 5,
        "input_tokens_details": details,
        "output_tokens": 2,
        "output_tokens_details": details,
    }
    event = decode_server(json.dumps({"type": "response.done", "response": {"usage": usage}}))
    assert event == events.ResponseDone(events.Parked(None, Usage(5, 0, 0, 2, 0)))


# --- what is not known -----------------------------------------------------------------------------------------------


@given(wire.creates, wire.json_objects)
def test_unknown_members_are_ignored(create: events.ResponseCreate, more: dict[str, Any]) -> None:
    """Clients add members each month; one we do not know changes nothing."""
    known = {field.name for field in attrs.fields(events.ResponseCreate)} | {"type"}
    unknown = {name: value for name, value in more.items() if name not in known}
    assert decode_client(codec.encode(create, unknown)) == create


@given(wire.opaque_items)
def test_items_of_unknown_type_are_kept_whole(item: items.Opaque) -> None:
    """An item of an unknown type is no error: it is kept as sent and echoed unchanged, key order included."""
    text = orjson.dumps({"type": "response.create", "input": [item.raw]})
    create = decode_client(text)
    assert create == events.ResponseCreate(input=(item,))
    assert codec.encode(create) == text


@given(wire.opaque_parts)
def test_parts_of_unknown_type_are_kept_whole(part: items.OpaquePart) -> None:
    """The same for images, files and whatever comes next."""
    message = {"type": "message", "role": "user", "content": [part.raw]}
    text = orjson.dumps({"type": "response.create", "input": [{**message, "content": [part.raw]}]})
    create = decode_client(text)
    assert create == events.ResponseCreate(input=(items.Message("user", (part,)),))
    assert isinstance(part.type, str)


def test_a_part_without_type_has_an_empty_one() -> None:
    """A part that names no type is opaque, and its type is the empty text."""
    create = decode_client('{"type":"response.create","input":[{"role":"user","content":[{"a":1}]}]}')
    part = items.OpaquePart({"a": 1})
    assert create == events.ResponseCreate(input=(items.Message("user", (part,)),))
    assert part.type == ""
    assert items.OpaquePart({"type": 3}).type == ""


def test_events_of_unknown_type_are_kept_whole() -> None:
    """A client meets new server events each month: they are kept and change nothing."""
    raw = {"type": "response.queued", "response": {"id": "resp_1"}, "sequence_number": 3}
    event = decode_server(json.dumps(raw))
    assert event == events.UnknownEvent(raw)
    assert event.type == "response.queued"
    assert orjson.loads(codec.encode(event)) == raw


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"role": "user", "content": "hi"}, items.Message("user", "hi")),
        ({"type": None, "role": "user", "content": "hi"}, items.Message("user", "hi")),
        ({"id": "msg_1"}, items.ItemReference("msg_1")),
        ({"type": None, "id": "msg_1"}, items.ItemReference("msg_1")),
        (
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": None, "logprobs": None}],
            },
            items.Message("assistant", (items.OutputText("a"),)),
        ),
        ({"type": "reasoning", "summary": None}, items.Reasoning()),
        ({"type": "reasoning", "summary": [], "content": []}, items.Reasoning(content=())),
        ({"type": "web_search_call"}, items.Opaque({"type": "web_search_call"})),
    ],
)
def test_items_may_leave_out_what_is_clear(sent: dict[str, Any], read: items.Item) -> None:
    """The type of messages and references may be missing or null; null lists of SDKs are empty ones."""
    assert decode_client(json.dumps({"type": "response.create", "input": [sent]})) == (
        events.ResponseCreate(input=(read,))
    )


@pytest.mark.parametrize(
    ("error", "read"),
    [
        (None, None),
        ("no", "no"),
        ({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}, "no"),
        ({"type": "mcp_tool_execution_error", "content": "no"}, "no"),
        ({"type": "mcp_protocol_error", "code": 1, "message": "no"}, "no"),
        ({"type": "http_error", "code": 500}, '{"type":"http_error","code":500}'),
        (
            {"type": "mcp_tool_execution_error", "content": []},
            '{"type":"mcp_tool_execution_error","content":[]}',
        ),
    ],
)
def test_a_hosted_tool_s_error_is_text_in_any_of_its_forms(error: Any, read: str | None) -> None:
    """Servers write a hosted tool's error as text or as an object; it is words here."""
    item = {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "l",
        "name": "f",
        "arguments": "{}",
        "error": error,
    }
    create = decode_client(json.dumps({"type": "response.create", "input": [item]}))
    assert create == events.ResponseCreate(input=(items.McpCall("mcp_1", "l", "f", "{}", error=read),))


@pytest.mark.parametrize("name", sorted(field.name for field in attrs.fields(events.ResponseCreate)))
def test_null_means_absent_in_a_create(name: str) -> None:
    """Every member of a create may be null, which is the same as leaving it out."""
    assert decode_client(json.dumps({"type": "response.create", name: None})) == events.ResponseCreate()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("append", [True, False])
@given(text=wire.hostile_texts | wire.hostile_texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_text_is_an_event_or_refused(append: bool, text: str | bytes) -> None:
    """Both sides answer any text with an event or `RemoteProtocolError`, and nothing else escapes."""
    for session in (ServerSession(append=append), ClientSession(append=append)):
        try:
            session.receive(text)
        except RemoteProtocolError as error:
            ServerSession(append=append).refuse(error)


@given(wire.hostile_events)
def test_any_object_is_an_event_or_refused(data: dict[str, Any]) -> None:
    """Known types and members with values of any type: an event, or a refusal that can be sent."""
    for session in (ServerSession(append=True), ClientSession(append=True)):
        try:
            session.receive(orjson.dumps(data))
        except RemoteProtocolError as error:
            ServerSession(append=True).refuse(error, error.stream_id)


def paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a value, the value itself not."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [p for key, value in inner for p in ((*path, key), *paths(value, (*path, key)))]


@given(st.data())
def test_a_wrong_value_at_any_path_is_refused_or_read(data: st.DataObject) -> None:
    """One value anywhere in a good frame replaced by another: still an event or a refusal, on both sides."""
    event = data.draw(wire.client_events | wire.server_events)
    frame = orjson.loads(codec.encode(event))
    path = data.draw(st.sampled_from(paths(frame)))
    place = frame
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(wire.hostile_values)
    for session in (ServerSession(append=True), ClientSession(append=True)):
        try:
            session.receive(orjson.dumps(frame))
        except RemoteProtocolError as error:
            ServerSession(append=True).refuse(error, error.stream_id)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_json"),
        ("[1]", "invalid_json"),
        ("null", "invalid_json"),
        ('{"type":NaN}', "invalid_json"),
        ('{"type":"response.create","temperature":1e999}', "invalid_json"),
        ('{"type":"response.create"}x', "invalid_json"),
        ('\ufeff{"type":"response.create"}', "invalid_json"),
        ('{"type":"response.create","model":"\\ud800"}', "invalid_json"),
        ('{"type":"response.create","model":"\ud800"}', "invalid_json"),
        (b'{"type":"response.create","model":"\xff"}', "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        ("{}", "invalid_event"),
        ('{"type":null}', "invalid_event"),
        ('{"type":1}', "invalid_event"),
        ('{"type":["response.create"]}', "invalid_event"),
        ('{"type":"response.cancel"}', "unsupported_event"),
        ('{"type":"response.interrupt"}', "unsupported_event"),
        ('{"type":"response.created"}', "unsupported_event"),
        ('{"type":""}', "unsupported_event"),
    ],
)
def test_what_is_no_event_has_its_code(text: str | bytes, code: str) -> None:
    """Text, object and type are told apart (reference 1.3 and 4.2)."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_client(text)
    assert (caught.value.code, caught.value.status) == (code, 400)


def test_an_unknown_type_is_shown_cut() -> None:
    """A type of any length is named in the refusal, but not at any length."""
    error = refused(decode_client, {"type": "x" * 1000})
    assert error.message == f"Unsupported event type '{'x' * 64}'."


@pytest.mark.parametrize("depth", [2, 200, *range(235, 260), 400, 1000, 1020])
def test_what_could_not_be_echoed_is_refused(depth: int) -> None:
    """JSON is read more deeply nested than it is written: what passes can be sent back inside a response."""
    text = '{"type":"response.create","tools":[{"a":' + "[" * depth + "]" * depth + "}]}"
    if depth > 243:
        with pytest.raises(RemoteProtocolError, match="not a JSON object"):
            decode_client(text)
        return
    read = decode_client(text)
    assert isinstance(read, events.ResponseCreate)
    created = events.ResponseCreated(events.Response("resp_1", 0, "m", tools=read.tools or ()))
    assert decode_server(codec.encode(created)) == created


def create(**members: Any) -> dict[str, Any]:
    return {"type": "response.create", **members}


def with_part(**part: Any) -> dict[str, Any]:
    return create(input=[{"role": "user", "content": "a"}, {"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    ("data", "code", "param", "message"),
    [
        (create(model=1), "invalid_type", "model", "a string"),
        (create(input=1), "invalid_type", "input", "a string or a list of items"),
        (create(input={}), "invalid_type", "input", "a string or a list of items"),
        (create(input=["hi"]), "invalid_type", "input[0]", "an object"),
        (create(input=[{"type": 3}]), "invalid_type", "input[0]", "an object with a string 'type'"),
        (create(input=[{}]), "missing_required_parameter", "input[0].id", ""),
        (create(input=[{"role": "user"}]), "missing_required_parameter", "input[0].content", ""),
        (create(input=[{"role": "tool", "content": ""}]), "invalid_value", "input[0].role", ""),
        (create(input=[{"role": 1, "content": ""}]), "invalid_type", "input[0].role", "a string"),
        (
            create(input=[{"role": "user", "content": 1}]),
            "invalid_type",
            "input[0].content",
            "a string or a list of content parts",
        ),
        (with_part(type="input_text"), "missing_required_parameter", "input[1].content[0].text", ""),
        (with_part(type="input_text", text=None), "invalid_type", "input[1].content[0].text", "a string"),
        (with_part(type=[1]), "invalid_type", "input[1].content[0]", "an object with a string 'type'"),
        (
            with_part(type="output_text", text="", annotations=["a"]),
            "invalid_type",
            "input[1].content[0].annotations[0]",
            "an object",
        ),
        (
            create(input=[{"type": "function_call", "call_id": "c", "name": "f"}]),
            "missing_required_parameter",
            "input[0].arguments",
            "",
        ),
        (
            create(input=[{"type": "function_call_output", "call_id": "c", "output": 1}]),
            "invalid_type",
            "input[0].output",
            "a string or a list of content parts",
        ),
        (
            create(input=[{"type": "function_call_output", "output": ""}]),
            "missing_required_parameter",
            "input[0].call_id",
            "",
        ),
        (
            create(input=[{"type": "reasoning", "summary": "a"}]),
            "invalid_type",
            "input[0].summary",
            "a list of content parts",
        ),
        (create(tools={}), "invalid_type", "tools", "a list of objects"),
        (create(tools=[{}, "f"]), "invalid_type", "tools[1]", "an object"),
        (create(tool_choice=1), "invalid_type", "tool_choice", "a string or an object"),
        (create(parallel_tool_calls="false"), "invalid_type", "parallel_tool_calls", "a boolean"),
        (create(parallel_tool_calls=0), "invalid_type", "parallel_tool_calls", "a boolean"),
        (create(store="true"), "invalid_type", "store", "a boolean"),
        (create(stream=1), "invalid_type", "stream", "a boolean"),
        (create(background="no"), "invalid_type", "background", "a boolean"),
        (create(temperature="1"), "invalid_type", "temperature", "a number"),
        (create(temperature=False), "invalid_type", "temperature", "a number"),
        (create(max_output_tokens="16"), "invalid_type", "max_output_tokens", "an integer"),
        (create(max_output_tokens=False), "invalid_type", "max_output_tokens", "an integer"),
        (create(max_output_tokens=16.0), "invalid_type", "max_output_tokens", "an integer"),
        (create(include="a"), "invalid_type", "include", "a list of strings"),
        (create(include=["a", 1]), "invalid_type", "include[1]", "a string"),
        (create(metadata=[]), "invalid_type", "metadata", "an object of strings"),
        (create(metadata={"a": 1}), "invalid_type", "metadata", "an object of strings"),
        (create(client_metadata={"a": None}), "invalid_type", "client_metadata", "an object of strings"),
        (create(reasoning=[]), "invalid_type", "reasoning", "an object"),
        (create(text="a"), "invalid_type", "text", "an object"),
        (create(multi_agent=True), "invalid_type", "multi_agent", "an object"),
        (create(multi_agent={"enabled": "x"}), "invalid_type", "multi_agent.enabled", "a boolean"),
        (create(multi_agent={"enabled": 1}), "invalid_type", "multi_agent.enabled", "a boolean"),
        (
            create(multi_agent={"enabled": True, "max_concurrent_subagents": "x"}),
            "invalid_type",
            "multi_agent.max_concurrent_subagents",
            "an integer",
        ),
        *(
            (create(reasoning={name: 5}), "invalid_type", f"reasoning.{name}", "a string")
            for name in ("effort", "summary", "context", "mode")
        ),
        (create(text={"verbosity": 5}), "invalid_type", "text.verbosity", "a string"),
        (create(prompt_cache_options=0), "invalid_type", "prompt_cache_options", "an object"),
        (
            create(prompt_cache_options={"prewarm": 5}),
            "invalid_type",
            "prompt_cache_options.prewarm",
            "a boolean",
        ),
        (create(stream_options=5), "invalid_type", "stream_options", "an object"),
        *(
            (create(stream_options={name: "no"}), "invalid_type", f"stream_options.{name}", "a boolean")
            for name in ("include_obfuscation", "include_usage")
        ),
        (create(truncation="some"), "invalid_value", "truncation", ""),
        (create(truncation=1), "invalid_type", "truncation", "a string"),
        (create(temperature=2.1), "invalid_value", "temperature", ""),
        (create(temperature=-0.1), "invalid_value", "temperature", ""),
        (create(top_p=1.01), "invalid_value", "top_p", ""),
        (create(presence_penalty=3), "invalid_value", "presence_penalty", ""),
        (create(frequency_penalty=-3), "invalid_value", "frequency_penalty", ""),
        (create(top_logprobs=21), "invalid_value", "top_logprobs", ""),
        (create(max_output_tokens=0), "invalid_value", "max_output_tokens", ""),
        (create(max_output_tokens=10**30), "invalid_value", "max_output_tokens", ""),
        (create(max_tool_calls=-1), "invalid_value", "max_tool_calls", ""),
        (create(metadata={str(n): "" for n in range(17)}), "invalid_value", "metadata", ""),
        (create(metadata={"k" * 65: ""}), "invalid_value", "metadata", ""),
        (create(metadata={"k": "v" * 513}), "invalid_value", "metadata", ""),
        (create(background=True), "unsupported_parameter", "background", ""),
        (create(conversation="conv_1"), "unsupported_parameter", "conversation", ""),
        (create(prompt={"id": "p"}), "unsupported_parameter", "prompt", ""),
        (create(stream_id=""), "invalid_stream_id", "stream_id", None),
        (create(stream_id="a" * 257), "invalid_stream_id", "stream_id", None),
        (create(stream_id="a b"), "invalid_stream_id", "stream_id", None),
        (create(stream_id="a\n"), "invalid_stream_id", "stream_id", None),
        (create(stream_id="é"), "invalid_stream_id", "stream_id", None),
        (create(stream_id=1), "invalid_stream_id", "stream_id", None),
    ],
)
def test_a_bad_member_of_a_create_is_named(data: Any, code: str, param: str, message: str | None) -> None:
    """Code and path of the first bad member, with what was expected in its place (reference 9)."""
    error = refused(decode_client, data)
    words = {
        "invalid_type": f"Invalid type for '{param}': expected {message}.",
        "invalid_value": f"Invalid value for '{param}'.",
        "missing_required_parameter": f"Missing required parameter: '{param}'.",
        "unsupported_parameter": f"Unsupported parameter: '{param}'.",
        "invalid_stream_id": error.message,
    }
    assert (error.code, error.param, error.status) == (code, param, 400)
    assert error.message == words[code]


@pytest.mark.parametrize(
    "members",
    [
        {"reasoning": {"effort": None, "summary": None, "context": "all_turns", "new": 1}},
        {"reasoning": {"effort": "utmost"}, "text": {"format": None, "verbosity": "chatty"}},
        {"multi_agent": {"enabled": None, "max_concurrent_subagents": 1}, "stream_options": None},
        {"prompt_cache_options": {"prewarm": None, "mode": "explicit", "ttl": "30m"}},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
)
def test_what_objects_of_a_create_hold_is_open(members: dict[str, Any]) -> None:
    """Null is absent, and a value or member that is not known passes: only types are refused."""
    read = decode_client(json.dumps(create(**members)))
    assert all(getattr(read, name, whole) == whole for name, whole in members.items())


@pytest.mark.parametrize("size", [0, 257])
@pytest.mark.parametrize("kind", ["response.create", "response.append", "response.inject"])
def test_a_call_id_is_short_and_printable(size: int, kind: str) -> None:
    """An empty, endless or unprintable call id is refused before anything remembers or logs it."""
    good = {"type": "function_call_output", "call_id": "c", "output": ""}
    for call_id in ("c" * size, "a\nb", "\x1b[31m"):
        data = {"type": kind, "response_id": "r", "input": [good, {**good, "call_id": call_id}]}
        error = refused(decode_client, data)
        assert (error.code, error.param) == ("invalid_value", "input[1].call_id")


@pytest.mark.parametrize("kind", ["response.append", "response.inject"])
@pytest.mark.parametrize("batch", [None, "a", {}, [], [1], [{"type": "x"}, None], ...])
def test_a_batch_is_a_list_of_objects(kind: str, batch: Any) -> None:
    """Input that is missing, empty, or no list of objects has one answer (reference 3.5 rule 10, 5B.2 rule 8)."""
    data = {"type": kind, "response_id": "r"} | ({} if batch is ... else {"input": batch})
    error = refused(decode_client, data)
    assert (error.code, error.param, error.message) == (
        "invalid_input",
        "input",
        "'input' must be a non-empty list of items.",
    )


def test_an_inject_names_its_response() -> None:
    """An inject without, or with a wrong, `response_id` is a refused frame."""
    batch = [{"type": "function_call_output", "call_id": "c", "output": ""}]
    missing = refused(decode_client, {"type": "response.inject", "input": batch})
    assert (missing.code, missing.param) == ("missing_required_parameter", "response_id")
    wrong = refused(decode_client, {"type": "response.inject", "input": batch, "response_id": 1})
    assert (wrong.code, wrong.param) == ("invalid_type", "response_id")


def test_an_inject_keeps_its_input_as_sent() -> None:
    """The batch as sent stays with the event, unknown members and key order included, to be given back."""
    batch = [{"output": "x", "call_id": "c", "type": "function_call_output", "extra": {"b": 1, "a": 2}}]
    text = json.dumps({"type": "response.inject", "response_id": "r", "input": batch, "raw_input": "mine"})
    event = decode_client(text)
    assert isinstance(event, events.ResponseInject)
    assert json.dumps(event.raw_input) == json.dumps(batch)
    assert event.input == (items.FunctionCallOutput("c", "x"),)


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        ({"type": "response.created"}, "missing_required_parameter", "response"),
        (
            {"type": "response.created", "response": {"id": "r", "created_at": "1", "model": "m"}},
            "invalid_type",
            "response.created_at",
        ),
        (
            {"type": "response.created", "response": {"id": "r", "created_at": True, "model": "m"}},
            "invalid_type",
            "response.created_at",
        ),
        ({"type": "response.output_item.done", "output_index": 0}, "missing_required_parameter", "item"),
        ({"type": "response.done", "response": {"usage": {}}}, "invalid_type", "response.usage"),
        (
            {"type": "response.done", "response": {"usage": {"input_tokens": -1, "output_tokens": 0}}},
            "invalid_value",
            "response.usage",
        ),
        (
            {
                "type": "response.done",
                "response": {
                    "usage": {
                        "input_tokens": 1,
                        "input_tokens_details": {"cached_tokens": 2},
                        "output_tokens": 0,
                    }
                },
            },
            "invalid_value",
            "response.usage",
        ),
        (
            {
                "type": "response.done",
                "response": {
                    "usage": {
                        "input_tokens": 1,
                        "output_tokens": 0,
                        "output_tokens_details": {"reasoning_tokens": 1},
                    }
                },
            },
            "invalid_value",
            "response.usage",
        ),
    ],
)
def test_a_bad_member_of_a_server_event_is_named(data: Any, code: str, param: str) -> None:
    """A client names what a server got wrong as a server does."""
    error = refused(decode_server, data)
    assert (error.code, error.param) == (code, param)


def test_text_that_is_no_unicode_cannot_be_encoded() -> None:
    """A lone surrogate raises `TypeError`."""
    with pytest.raises(TypeError):
        codec.encode(events.OutputTextDelta("msg_1", 0, 0, "\ud800"))


# --- the SDK's types -------------------------------------------------------------------------------------------------

_UNIONS: dict[str, Any] = {
    "stream": ResponseStreamEvent,
    "server": ResponsesServerEvent,
    "beta": BetaResponsesServerEvent,
}


@cache
def sdk_classes(union: str) -> dict[str, type[pydantic.BaseModel]]:
    """Type on the wire → the class that openai-python has for it."""
    members = get_args(get_args(_UNIONS[union])[0])
    return {get_args(cls.model_fields["type"].annotation)[0]: cls for cls in members}


BEYOND_THE_SDK = {"invalid_input"}
"""The code of a refused inject that the real server was recorded with and the SDK's list has not."""


def only_ours(frame: dict[str, Any]) -> dict[str, Any]:
    """Put a code of the SDK's list in place of one that only the wire has."""
    if frame["type"] == "response.inject.failed" and frame["error"]["code"] in BEYOND_THE_SDK:
        return {**frame, "error": {**frame["error"], "code": "response_not_found"}}
    return frame


def test_the_sdk_lacks_these_codes_only() -> None:
    """An ended response carries codes of the SDK's list only, a refused inject at most the recorded one beside it."""
    failed = sdk_classes("beta")["response.inject.failed"].model_fields["error"].annotation
    assert failed is not None
    ended = {
        CATALOGUE[row.error].code_in_response
        for dialect in DIALECTS.values()
        for row in (*dialect.sampling_endings.values(), *dialect.suspended_endings.values())
        if row.error is not None
    }
    refused = {
        CATALOGUE[name].code
        for name in ("not_pending", "has_output", "not_acceptable", "already_completed", "response_not_found")
    }
    known = {*get_args(ResponseError.model_fields["code"].annotation)}
    known_refusals = {*get_args(failed.model_fields["code"].annotation)}
    assert (set(), BEYOND_THE_SDK) == (ended - known, refused - known_refusals)


STEERING = {events.SteerAccepted, events.SteerPending, events.SteerFailed}
EMITTED = [
    (cls, union)
    for cls in wire.server_events_by_class
    for union in _UNIONS
    if cls is not events.ResponseDone
    and not (union != "beta" and cls in {events.InjectCreated, events.InjectFailed})
    and not (union == "stream" and cls in {events.ErrorEvent, *STEERING})  # HTTP's error has another shape
]


def frame_of(event: events.ServerEvent, union: str) -> dict[str, Any]:
    """As a session sends it."""
    agent = {"agent": {"agent_name": "/root"}} if union == "beta" else {}
    number = {} if isinstance(event, events.ErrorEvent) else {"sequence_number": 3}
    frame: dict[str, Any] = orjson.loads(codec.encode(event, {**number, **agent}))
    return only_ours(frame)


@pytest.mark.parametrize(("cls", "union"), EMITTED)
@settings(max_examples=8)  # the SDK's unions of items take milliseconds each
@given(data=st.data())
def test_every_event_is_one_of_the_sdk(cls: type, union: str, data: st.DataObject) -> None:
    """Each event we emit validates against openai-python's class of its type, `response.done` aside."""
    frame = frame_of(data.draw(wire.server_events_by_class[cls]), union)
    sdk_classes(union)[frame["type"]].model_validate(frame, strict=True)


@pytest.mark.parametrize(("cls", "union"), EMITTED)
@settings(max_examples=8)  # the SDK's unions of items take milliseconds each
@given(data=st.data())
def test_the_sdk_misses_what_it_requires(cls: type, union: str, data: st.DataObject) -> None:
    """The validation means something: without a member the SDK requires it fails."""
    frame = frame_of(data.draw(wire.server_events_by_class[cls]), union)
    sdk = sdk_classes(union)[frame["type"]]
    required = sorted(name for name, field in sdk.model_fields.items() if field.is_required())
    del frame[data.draw(st.sampled_from(required))]
    with pytest.raises(pydantic.ValidationError):
        sdk.model_validate(frame)


def test_the_sdk_knows_no_response_done() -> None:
    """`response.done` is the prototype's own: no SDK has a class for it, which is why it needs an opt-in."""
    assert not any("response.done" in sdk_classes(union) for union in _UNIONS)
