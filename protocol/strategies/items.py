"""Items as they are on the wire: what a client sends, what a server's `output` holds, one strategy for each type.

Items are plain dictionaries, since they are for servers and clients that are not this package's.
"""

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

from protocol.strategies.outputs import OUTPUT_OF
from protocol.strategies.values import arguments, json_objects, maybe, names, texts

JSON = dict[str, Any]
_ids = st.integers(0, 999)


def _identified(prefix: str, **members: Any) -> st.SearchStrategy[JSON]:
    """Objects with an `id` of this prefix and these members, some of them strategies."""
    drawn = {
        name: value if isinstance(value, st.SearchStrategy) else st.just(value)
        for name, value in members.items()
    }
    return st.fixed_dictionaries({"id": _ids.map(lambda number: f"{prefix}_{number}"), **drawn})


# --- parts -------------------------------------------------------------------------------------------------------

output_texts: Final = st.fixed_dictionaries(
    {"type": st.just("output_text"), "text": texts, "annotations": st.just([]), "logprobs": st.just([])}
)
refusals: Final = st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts})
reasoning_texts: Final = st.fixed_dictionaries({"type": st.just("reasoning_text"), "text": texts})
summary_texts: Final = st.fixed_dictionaries({"type": st.just("summary_text"), "text": texts})
input_parts: Final = st.fixed_dictionaries({"type": st.just("input_text"), "text": texts}) | st.sampled_from(
    (
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
        {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="},
    )
)
"""What a user's message or a tool's output may hold. Shrinks to an empty `input_text`."""

contents: Final = texts | st.lists(input_parts, min_size=1, max_size=2)
"""A text, or parts. Shrinks to the empty text."""


# --- output ------------------------------------------------------------------------------------------------------

_calls = {
    "function_call": _identified(
        "fc",
        type="function_call",
        status="completed",
        call_id=_ids.map("call_{}".format),
        name=names,
        arguments=arguments,
    ),
    "custom_tool_call": _identified(
        "ctc",
        type="custom_tool_call",
        status="completed",
        call_id=_ids.map("call_{}".format),
        name=names,
        input=texts,
    ),
}

OUTPUT_ITEMS: Final[Mapping[str, st.SearchStrategy[JSON]]] = {
    "message": _identified(
        "msg",
        type="message",
        status=st.sampled_from(("completed", "incomplete")),
        role="assistant",
        content=st.lists(output_texts | refusals, max_size=2),
    ),
    **_calls,
    "reasoning": _identified(
        "rs",
        type="reasoning",
        summary=st.lists(summary_texts, max_size=2),
        content=st.lists(reasoning_texts, max_size=1),
        encrypted_content=maybe(st.just("sealed")),
    ),
    "mcp_call": _identified(
        "mcp",
        type="mcp_call",
        status="completed",
        server_label="lib",
        name=names,
        arguments=arguments,
        output=texts,
        error=None,
        approval_request_id=None,
    ),
    "mcp_list_tools": _identified(
        "mcpl",
        type="mcp_list_tools",
        server_label="lib",
        tools=st.lists(st.fixed_dictionaries({"name": names})),
    ),
    "mcp_approval_request": _identified(
        "mcpr", type="mcp_approval_request", server_label="lib", name=names, arguments=arguments
    ),
    "web_search_call": _identified(
        "ws",
        type="web_search_call",
        status=st.sampled_from(("completed", "searching", "failed")),
        action={"type": "search", "query": "q"},
    ),
    "file_search_call": _identified(
        "fs", type="file_search_call", status="completed", queries=st.lists(texts, max_size=1), results=None
    ),
    "image_generation_call": _identified(
        "ig", type="image_generation_call", status=st.sampled_from(("completed", "generating")), result="aGk="
    ),
    "code_interpreter_call": _identified(
        "ci",
        type="code_interpreter_call",
        status="completed",
        code=texts,
        container_id="cntr_1",
        outputs=None,
    ),
    "tool_search_call": _identified(
        "ts",
        type="tool_search_call",
        status="completed",
        call_id=_ids.map("call_{}".format),
        execution="client",
        arguments=json_objects,
    ),
    "tool_search_output": _identified(
        "tso",
        type="tool_search_output",
        status="completed",
        call_id=_ids.map("call_{}".format),
        execution="server",
        tools=[],
    ),
    "local_shell_call": _identified(
        "lsh",
        type="local_shell_call",
        status="completed",
        call_id=_ids.map("call_{}".format),
        action={"type": "exec", "command": ["ls"], "env": {}},
    ),
    "compaction": _identified("cmp", type="compaction", encrypted_content="sealed"),
}
"""Whole items as they stand in `response.output`, by type; each shrinks to its smallest."""

output_items: Final = st.one_of(*OUTPUT_ITEMS.values())
"""Any of them. Shrinks to an empty message."""


# --- input -------------------------------------------------------------------------------------------------------

messages: Final = st.fixed_dictionaries(
    {
        "type": st.just("message"),
        "role": st.sampled_from(("user", "developer", "system")),
        "content": contents,
    }
)
"""What a user, a developer or a system says. Shrinks to a user who says nothing."""

_sent_back = st.one_of(
    *(OUTPUT_ITEMS[name] for name in ("message", "web_search_call", "compaction", "mcp_call"))
)


@st.composite
def answered_calls(draw: st.DrawFn, number: int = 0) -> list[JSON]:
    """A call and its output, the calls of a history being told apart by `number`. Shrinks to `f({})` and ''."""
    call = draw(st.one_of(*_calls.values()))
    call = {**call, "id": f"{call['id']}_{number}", "call_id": f"call_{number}"}
    output = {"type": OUTPUT_OF[call["type"]], "call_id": call["call_id"], "output": draw(contents)}
    return [call, output]


@st.composite
def histories(draw: st.DrawFn) -> list[JSON]:
    """Input that a server can take without having seen anything before: every call has its output, none two.

    Reasoning stands before the item it belongs to. Shrinks to one empty message of a user.
    """
    found: list[JSON] = []
    for number in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            found.append({**draw(OUTPUT_ITEMS["reasoning"]), "id": f"rs_{number}"})
        found += draw(
            answered_calls(number) | _sent_back.map(lambda item: [item]) | messages.map(lambda item: [item])
        )
    return [*found, draw(messages)]


inputs: Final = texts | histories()
"""The `input` of a create without a parent. Shrinks to the empty text."""
