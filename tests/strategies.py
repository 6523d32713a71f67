"""Hypothesis strategies for our own tests: items, client events, server events, and whole legal streams of each dialect.

Everything drawn is what the classes of `protocol` promise and JSON can say, so `decode(encode(x)) == x` must hold.
Texts are any Unicode but lone surrogates; numbers are what the wire keeps exactly.
What is for others too, plain dictionaries and whole exchanges, is in `protocol.strategies`.
A strategy with `hostile` in its name draws what a peer should not send.
"""

from collections.abc import Iterator
from typing import Any

import attrs
from hypothesis import strategies as st

from protocol import codec, events, items
from protocol.dialects import Dialect
from protocol.strategies.values import json_objects, json_values, maybe
from protocol.usage import Usage

texts = st.text(max_size=12)
"""Any text that UTF-8 can say."""
ids = st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=10)
indexes = st.integers(0, 1000)
counts = st.integers(0, 2**40)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
string_maps = st.dictionaries(texts, texts, max_size=3)


def tuples(
    of: st.SearchStrategy[Any], max_size: int = 3, min_size: int = 0
) -> st.SearchStrategy[tuple[Any, ...]]:
    """Tuples of any of these."""
    return st.lists(of, min_size=min_size, max_size=max_size).map(tuple)


# --- items -----------------------------------------------------------------------------------------------------------

opaque_parts = st.builds(
    lambda kind, rest: items.OpaquePart({**rest, "type": kind}),
    st.sampled_from(["input_image", "input_file", "something_new"]),
    json_objects,
)
output_texts = st.builds(
    items.OutputText, texts, tuples(json_objects, 2), tuples(json_objects, 2), type=st.just("output_text")
)
parts = (
    st.builds(items.InputText, texts, type=st.just("input_text"))
    | output_texts
    | st.builds(items.Refusal, texts, type=st.just("refusal"))
    | st.builds(items.ReasoningText, texts, type=st.just("reasoning_text"))
    | st.builds(items.SummaryText, texts, type=st.just("summary_text"))
    | opaque_parts
)
contents = texts | tuples(parts)
statuses = st.sampled_from(["in_progress", "completed", "incomplete"])
agents = st.builds(items.Agent, texts)
phases = st.sampled_from(["commentary", "final_answer"])
call_ids = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=12)
"""Printable and short, as an engine makes them."""


@st.composite
def messages(
    draw: st.DrawFn, roles: tuple[str, ...] = ("user", "assistant", "system", "developer")
) -> items.Message:
    """Messages of these roles."""
    return items.Message(
        draw(st.sampled_from(roles)),
        draw(contents),
        draw(maybe(ids)),
        draw(maybe(statuses)),
        draw(maybe(phases)),
        draw(maybe(agents)),
    )


reasonings = st.builds(
    items.Reasoning,
    id=maybe(ids),
    summary=tuples(parts),
    content=maybe(tuples(parts)),
    encrypted_content=maybe(texts),
    status=maybe(statuses),
    agent=maybe(agents),
    type=st.just("reasoning"),
)


def _calls(cls: type, kind: str) -> st.SearchStrategy[Any]:
    return st.builds(
        cls,
        call_ids,
        texts,
        texts,
        maybe(ids),
        maybe(texts),
        maybe(statuses),
        maybe(agents),
        type=st.just(kind),
    )


def _outputs(cls: type, kind: str) -> st.SearchStrategy[Any]:
    return st.builds(cls, call_ids, contents, maybe(ids), type=st.just(kind))


function_calls = _calls(items.FunctionCall, "function_call")
custom_calls = _calls(items.CustomToolCall, "custom_tool_call")
search_calls = st.builds(
    items.ToolSearchCall,
    call_ids,
    json_objects | texts,
    maybe(ids),
    status=maybe(statuses),
    agent=maybe(agents),
    type=st.just("tool_search_call"),
)
calls = function_calls | custom_calls | search_calls
function_outputs = _outputs(items.FunctionCallOutput, "function_call_output")
custom_outputs = _outputs(items.CustomToolCallOutput, "custom_tool_call_output")
search_outputs = st.builds(
    items.ToolSearchOutput,
    call_ids,
    tuples(json_objects),
    maybe(ids),
    status=maybe(statuses),
    type=st.just("tool_search_output"),
)
outputs = function_outputs | custom_outputs | search_outputs
mcp_calls = st.builds(
    items.McpCall,
    ids,
    texts,
    texts,
    texts,
    maybe(texts),
    maybe(texts),
    maybe(statuses | st.just("failed")),
    maybe(ids),
    maybe(agents),
    type=st.just("mcp_call"),
)
opaque_items = st.builds(
    lambda kind, rest: items.Opaque({**rest, "type": kind}),
    st.sampled_from(["web_search_call", "compaction", "additional_tools", "something_new"]),
    st.dictionaries(texts.filter(lambda key: key != "call_id"), json_values, max_size=3),
)
input_items = (
    messages()
    | reasonings
    | calls
    | outputs
    | mcp_calls
    | opaque_items
    | st.builds(items.ItemReference, ids, type=st.just("item_reference"))
)
"""Every kind of item that a client may send."""


# --- client events ---------------------------------------------------------------------------------------------------

tools = st.one_of(
    st.fixed_dictionaries({"type": st.just("function"), "name": ids, "parameters": json_objects}),
    st.fixed_dictionaries({"type": st.just("custom"), "name": ids}),
    st.fixed_dictionaries({"type": st.just("web_search")}),
    json_objects,
)
stream_ids = st.from_regex(codec.STREAM_ID, fullmatch=True).map(lambda text: text[:256])


def _bounded(name: str) -> st.SearchStrategy[Any]:
    low, high = codec.RANGES[name]
    whole = name in {"top_logprobs", "max_output_tokens", "max_tool_calls"}
    return st.integers(int(low), int(high)) if whole else st.floats(low, high)


creates: st.SearchStrategy[events.ResponseCreate] = st.builds(
    events.ResponseCreate,
    **{name: maybe(_bounded(name)) for name in codec.RANGES},
    **dict.fromkeys(("model", "instructions", "previous_response_id", "service_tier", "user"), maybe(texts)),
    **dict.fromkeys(("safety_identifier", "prompt_cache_key"), maybe(texts)),
    **dict.fromkeys(("parallel_tool_calls", "store", "stream", "generate"), maybe(st.booleans())),
    **dict.fromkeys(("reasoning", "text", "multi_agent"), maybe(json_objects)),
    **dict.fromkeys(("metadata", "client_metadata"), maybe(string_maps)),
    input=maybe(texts | tuples(input_items)),
    tools=maybe(tuples(tools)),
    tool_choice=maybe(texts | json_objects),
    include=maybe(tuples(texts)),
    truncation=maybe(st.sampled_from(["auto", "disabled"])),
    background=maybe(st.just(value=False)),
    stream_id=maybe(stream_ids),
    conversation=st.none(),
    prompt=st.none(),
)
appends = st.builds(
    events.ResponseAppend,
    input=tuples(input_items, min_size=1),
    response_id=maybe(texts),
    previous_response_id=maybe(texts),
    stream_id=maybe(stream_ids),
    client_metadata=maybe(string_maps),
)


def as_sent(batch: tuple[items.Item, ...]) -> tuple[dict[str, Any], ...]:
    """The batch as its client writes it."""
    return tuple(codec.unstructure(item) for item in batch)


injects = st.builds(
    lambda response_id, batch: events.ResponseInject(
        response_id=response_id, input=batch, raw_input=as_sent(batch)
    ),
    texts,
    tuples(input_items, min_size=1),
)
user_messages = st.builds(
    items.Message, st.just("user"), texts | tuples(st.builds(items.InputText, texts), min_size=0)
)
steers = st.builds(
    lambda response_id, steered: events.ResponseSteer(
        previous_response_id=response_id,
        input=steered,
        raw_input=steered if isinstance(steered, str) else list(as_sent(steered)),
    ),
    ids,
    texts.filter(bool) | tuples(user_messages, min_size=1),
)
client_events = creates | appends | injects | steers | st.just(events.ResponseProcessed())


# --- server events ---------------------------------------------------------------------------------------------------


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """Counts whose parts do not exceed their wholes."""
    inputs, sampled = draw(counts), draw(counts)
    return Usage(inputs, draw(st.integers(0, inputs)), draw(counts), sampled, draw(st.integers(0, sampled)))


function_tools = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "name": ids,
        "description": maybe(texts),
        "parameters": json_objects,
        "strict": st.booleans(),
    }
)
written_texts = st.builds(items.OutputText, texts)
thoughts = st.builds(items.ReasoningText, texts)
engine_output = st.one_of(
    st.builds(
        lambda id_, written, status, phase: items.Message("assistant", written, id_, status, phase),
        ids,
        tuples(written_texts, 2),
        statuses,
        maybe(phases),
    ),
    st.builds(
        lambda id_, thought, status: items.Reasoning(id_, (), thought, None, status),
        ids,
        tuples(thoughts, 2),
        statuses,
    ),
    *(
        st.builds(cls, call_ids, ids, texts, ids, maybe(ids), statuses, st.none(), type=st.just(kind))
        for cls, kind in ((items.FunctionCall, "function_call"), (items.CustomToolCall, "custom_tool_call"))
    ),
    st.builds(
        items.McpCall,
        ids,
        ids,
        ids,
        texts,
        maybe(texts),
        maybe(texts),
        st.sampled_from(["in_progress", "completed", "failed"]),
        st.none(),
        st.none(),
        type=st.just("mcp_call"),
    ),
)
"""Items as the engine writes them."""

responses = st.builds(
    events.Response,
    id=ids,
    created_at=st.integers(0, 2**40),
    model=texts,
    status=st.sampled_from(["in_progress", "completed", "incomplete", "failed", "cancelled"]),
    completed_at=maybe(st.integers(0, 2**40)),
    error=maybe(st.builds(events.ResponseError, st.just("server_error"), texts)),
    incomplete_details=maybe(
        st.builds(events.IncompleteDetails, st.sampled_from(["max_output_tokens", "content_filter"]))
    ),
    previous_response_id=maybe(ids),
    instructions=maybe(texts),
    output=tuples(engine_output),
    tools=tuples(function_tools),
    tool_choice=st.sampled_from(["auto", "none", "required"])
    | st.fixed_dictionaries({"type": st.just("function"), "name": ids}),
    parallel_tool_calls=st.booleans(),
    max_output_tokens=maybe(counts),
    max_tool_calls=maybe(counts),
    temperature=_bounded("temperature"),
    top_p=_bounded("top_p"),
    presence_penalty=_bounded("presence_penalty"),
    frequency_penalty=_bounded("frequency_penalty"),
    top_logprobs=_bounded("top_logprobs"),
    metadata=string_maps,
    store=st.booleans(),
    user=maybe(texts),
    safety_identifier=maybe(texts),
    prompt_cache_key=maybe(texts),
    usage=maybe(usages()),
    truncation=st.sampled_from(["auto", "disabled"]),
    service_tier=st.sampled_from(["auto", "default"]),
    reasoning=st.just({"effort": None, "summary": None}),
    text=st.just({"format": {"type": "text"}, "verbosity": "medium"}),
    background=st.just(value=False),
    object=st.just("response"),
)

_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "response": responses,
    "item": engine_output,
    "part": written_texts | thoughts,
    "logprobs": st.just(()),
    "input": texts,
    "name": maybe(texts),
    **dict.fromkeys(("output_index", "content_index"), indexes),
    **dict.fromkeys(("item_id", "response_id"), ids),
    **dict.fromkeys(("delta", "text", "arguments"), texts),
}
"""Strategies by the name of a member; a name means the same in every event but the two below."""


def _event(cls: Any) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{field.name: _FIELDS[field.name] for field in attrs.fields(cls)})


response_dones = st.builds(events.ResponseDone, maybe(st.builds(events.Parked, maybe(ids), maybe(usages()))))
inject_failures = st.builds(
    events.InjectFailed,
    ids,
    tuples(
        st.builds(items.FunctionCallOutput, call_ids, texts | tuples(st.builds(items.InputText, texts))),
        min_size=1,
    ).map(as_sent),
    st.builds(
        events.InjectError,
        st.sampled_from(["invalid_input", "response_already_completed", "response_not_found"]),
        texts,
    ),
)
error_events = st.builds(
    events.ErrorEvent,
    st.sampled_from([400, 404, 429, 500, 503]),
    st.builds(events.ErrorDetail, texts, maybe(texts), texts, maybe(texts)),
    maybe(stream_ids),
)
unknown_events = st.builds(
    lambda kind, rest: events.UnknownEvent({**rest, "type": kind}),
    st.sampled_from(["response.queued", "response.refusal.delta", "something.new"]),
    st.dictionaries(
        texts.filter(lambda key: key not in {"type", "sequence_number", "stream_id"}), json_values, max_size=3
    ),
)
submissions = st.builds(events.Steer, ids, ids)
steer_failures = st.builds(
    events.SteerFailed,
    st.builds(
        events.SteerError,
        st.sampled_from(
            ["response_not_found", "invalid_input", "too_many_pending_steers", "response_not_active"]
        ),
        texts,
    ),
    st.builds(events.Steer, ids, maybe(ids), texts),
)
steer_pendings = st.builds(
    events.SteerPending,
    st.just("waiting_for_required_input"),
    st.just(({"type": "function_call_output", "call_id": "call_1", "name": "f"},)),
    submissions,
)
_SPECIAL: dict[type, st.SearchStrategy[Any]] = {
    events.ResponseDone: response_dones,
    events.InjectFailed: inject_failures,
    events.ErrorEvent: error_events,
    events.SteerAccepted: st.builds(events.SteerAccepted, submissions),
    events.SteerPending: steer_pendings,
    events.SteerFailed: steer_failures,
}
server_events_by_class: dict[type, st.SearchStrategy[Any]] = {
    cls: _SPECIAL[cls] if cls in _SPECIAL else _event(cls) for cls in events.SERVER_CLASSES.values()
}
"""Each class of server event, with a strategy for it."""
server_events = st.one_of(*server_events_by_class.values(), unknown_events)
deltas = st.one_of(*(server_events_by_class[cls] for cls in events.DELTA_CLASSES))


# --- legal streams ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Stream:
    """What one response sends from `created` to its terminal event, and which outputs it waits for in between."""

    dialect: Dialect
    response_id: str
    steps: tuple[events.ServerEvent | tuple[items.Output, ...], ...]
    """A tuple of outputs is a batch the client sends there."""


_RESPONSE = events.Response("resp_1", 1, "m")


def _item_events(index: int, item: items.Item, piece: str) -> Iterator[events.ServerEvent]:
    """One item with all its events, in the order of reference 2.3."""
    yield events.OutputItemAdded(index, item)
    if isinstance(item, items.Message):
        part = items.OutputText(piece)
        yield events.ContentPartAdded(f"i{index}", index, 0, items.OutputText(""))
        yield events.OutputTextDelta(f"i{index}", index, 0, piece)
        yield events.OutputTextDone(f"i{index}", index, 0, piece)
        yield events.ContentPartDone(f"i{index}", index, 0, part)
    elif isinstance(item, items.FunctionCall):
        yield events.FunctionCallArgumentsDelta(f"i{index}", index, piece)
        yield events.FunctionCallArgumentsDone(f"i{index}", index, piece, item.name)
    elif isinstance(item, items.CustomToolCall):
        yield events.CustomToolCallInputDelta(f"i{index}", index, piece)
        yield events.CustomToolCallInputDone(f"i{index}", index, piece)
    yield events.OutputItemDone(index, item)


def output_of(call: items.Call, text: str) -> items.Output:
    """The output of the right kind for a call."""
    return items.output_for(call, text)


@st.composite
def streams(draw: st.DrawFn, dialect: Dialect) -> Stream:
    """A whole legal response of a dialect: segments of text and calls, each pause answered, one terminal event."""
    steps: list[Any] = [events.ResponseCreated(_RESPONSE), events.ResponseInProgress(_RESPONSE)]
    index = 0
    for _ in range(draw(st.integers(1, 3))):
        pending: list[items.Call] = []
        for kind in draw(st.lists(st.sampled_from(["text", "function", "custom"]), min_size=1, max_size=3)):
            item: items.Item
            if kind == "text":
                item = items.Message("assistant", (), f"i{index}", "completed")
            else:
                cls = items.FunctionCall if kind == "function" else items.CustomToolCall
                item = cls(f"c{index}", "f", "{}", f"i{index}", None, "completed")
                pending.append(item)
            steps += _item_events(index, item, draw(texts))
            index += 1
        if not pending or not dialect.suspends:
            break
        if dialect.says_done:
            steps.append(events.ResponseDone(events.Parked("resp_1", draw(usages()))))
        waiting = list(draw(st.permutations(pending)))
        while waiting:
            size = draw(st.integers(1, len(waiting)))
            steps.append(tuple(output_of(call, draw(texts)) for call in waiting[:size]))
            if dialect.answers_input:
                steps.append(events.InjectCreated("resp_1"))
            del waiting[:size]
    ends = [events.ResponseCompleted, events.ResponseIncomplete, events.ResponseFailed]
    steps.append(draw(st.sampled_from(ends))(_RESPONSE))
    return Stream(dialect, "resp_1", tuple(steps))


# --- what a peer should not send -------------------------------------------------------------------------------------

hostile_texts = st.one_of(
    st.text(st.characters(), max_size=40),
    st.sampled_from(
        [
            "",
            "null",
            "[]",
            '"text"',
            "1",
            "NaN",
            '{"type": NaN}',
            '{"type": 1e999}',
            '{"type":"response.create","temperature":Infinity}',
            '{"type":"response.create"} {"type":"response.create"}',
            '\ufeff{"type":"response.create"}',
            '{"type":"response.create","model":"\\ud800"}',
            '{"type":"response.create","model":"\ud800"}',
            '{"type":"response.create","type":"response.processed"}',
            '{"type":null}',
            '{"type":["response.create"]}',
            '{"type":"' + "x" * 100_000 + '"}',
            '{"type":"response.create","max_output_tokens":' + "9" * 400 + "}",
            '{"type":"response.create","input":' + "[" * 100_000 + "]" * 100_000 + "}",
            '{"type":"response.create","tools":[{"a":' + "[" * 400 + "]" * 400 + "}]}",
            "[" * 100_000,
            '{"type":"response.inject","response_id":"r","input":[{}]}',
            '{"type":"response.append","input":[{"type":null}]}',
            '{"type":"response.append","input":[null]}',
        ]
    ),
)
"""Text that is no event, or only nearly one."""

_TYPES = st.sampled_from([*events.CLIENT_CLASSES, *events.SERVER_CLASSES, "something.new"])
_NAMES = st.sampled_from(
    sorted(
        {
            field.name
            for module in (events, items)
            for cls in vars(module).values()
            if attrs.has(cls)
            for field in attrs.fields(cls)
        }
        | {"sequence_number", "role"}
    )
)
hostile_values = st.recursive(
    scalars | st.sampled_from(["message", "function_call_output", "user", "output_text", "completed"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=10,
)
hostile_events = st.builds(
    lambda kind, rest: {**rest, "type": kind}, _TYPES, st.dictionaries(_NAMES, hostile_values)
)
"""Known types and member names with values of any type."""
