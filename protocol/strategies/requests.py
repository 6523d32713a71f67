"""What a client sends: create bodies of each form, and frames of outputs and of steering, as plain dictionaries."""

from collections.abc import Sequence
from typing import Any, Literal

from hypothesis import strategies as st

from protocol.codec import RANGES
from protocol.strategies.items import inputs
from protocol.strategies.outputs import Call, output_of
from protocol.strategies.values import json_objects, lanes, maybe, names, texts

JSON = dict[str, Any]
Form = Literal["http", "create", "inject", "append"]

function_tools = st.fixed_dictionaries(
    {"type": st.just("function"), "name": names, "parameters": st.just({"type": "object"})},
    optional={"description": texts, "strict": st.booleans()},
)
tools = (
    function_tools
    | st.fixed_dictionaries({"type": st.just("custom"), "name": names})
    | st.fixed_dictionaries({"type": st.just("mcp"), "server_label": st.just("lib")})
    | st.just({"type": "web_search"})
    | st.just({"type": "something_new"})
)
"""Tools of any kind, one of them of a kind nobody knows. Shrinks to a function `f` without parameters."""


def _number(name: str) -> st.SearchStrategy[Any]:
    low, high = RANGES[name]
    if name in {"top_logprobs", "max_tool_calls", "max_output_tokens"}:
        return st.integers(max(int(low), 16 if name == "max_output_tokens" else 0), min(int(high), 4096))
    return st.floats(low, high)


_WISHES: dict[str, st.SearchStrategy[Any]] = {
    "instructions": maybe(texts),
    "tools": st.lists(tools, max_size=3, unique_by=lambda tool: tool.get("name", tool["type"])),
    "tool_choice": st.sampled_from(("auto", "none")),
    "parallel_tool_calls": st.booleans(),
    **{name: maybe(_number(name)) for name in RANGES},
    "reasoning": maybe(st.fixed_dictionaries({"effort": st.sampled_from(("low", "high"))})),
    "include": st.just(["reasoning.encrypted_content"]),
    "metadata": st.dictionaries(names, texts, max_size=2),
    "truncation": st.sampled_from(("disabled", "auto")),
    "user": maybe(texts),
    "prompt_cache_key": maybe(texts),
    "client_metadata": st.dictionaries(names, texts, max_size=1),
    "something_new": json_objects,
}


@st.composite
def creates(
    draw: st.DrawFn,
    form: Form = "http",
    *,
    model: str = "m",
    parent: str | None = None,
    calls: Sequence[Call] = (),
) -> JSON:
    """Create bodies that a server must take, in this form: an HTTP body, or a `response.create` frame.

    Without `parent` they need nothing from before: no `previous_response_id`, and each call of the input has its output.
    With `parent` they go on from it, and `input` begins with an output for each of its open `calls`.
    Each of the optional members is there or not, and among them is one that no server knows.
    Shrinks to the model and the empty text.
    """
    body: JSON = {"model": model, "input": draw(inputs)}
    if parent is not None:
        said = body["input"] if isinstance(body["input"], list) else []
        body |= {"previous_response_id": parent, "input": [*(dict(output_of(call)) for call in calls), *said]}
    body |= draw(st.fixed_dictionaries({}, optional=_WISHES))
    if form == "http":
        return body | {"stream": True, "store": draw(st.booleans())}
    if form == "inject":
        body["multi_agent"] = {"enabled": True}
    lane = draw(maybe(lanes))
    if lane is not None:
        body["stream_id"] = lane
    return {"type": "response.create", **body, "store": draw(st.booleans())}


def append_frame(batch: Sequence[Any], lane: str | None = None) -> JSON:
    """The `response.append` frame of a batch, as a move of a tool-output program has it."""
    return {"type": "response.append", "input": list(batch), **({} if lane is None else {"stream_id": lane})}


def inject_frame(batch: Sequence[Any], response_id: str) -> JSON:
    """The `response.inject` frame of a batch, as a move of a tool-output program has it."""
    return {"type": "response.inject", "response_id": response_id, "input": list(batch)}


@st.composite
def steers(draw: st.DrawFn, response_id: str = "resp_1") -> JSON:
    """`response.steer` frames that a server must take. Shrinks to the text `0`."""
    said = draw(st.text(min_size=1, max_size=12))
    messages = [{"type": "message", "role": "user", "content": said}]
    return {
        "type": "response.steer",
        "previous_response_id": response_id,
        "input": draw(st.sampled_from((said, messages))),
    }
