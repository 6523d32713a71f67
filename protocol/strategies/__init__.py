"""Hypothesis strategies for the Responses API: test your own server or client with what is legal, and with what is not.

Needs the extra `testing` (`pip install suspended-response[testing]`); nothing of our engine is in it.
A server of your own in twenty lines, and its test:

    from hypothesis import given
    from protocol.strategies import creates, http_exchange, resource, usage, violations

    def toy_server(request):  # yours is called here instead, over whatever it speaks
        part = {"type": "output_text", "text": str(request["input"]), "annotations": []}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        done = item | {"status": "completed", "content": [part]}
        at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        yield "response.created", {"response": resource("resp_1")}
        yield "response.output_item.added", {"output_index": 0, "item": item}
        yield "response.content_part.added", at | {"part": part | {"text": ""}}
        for piece in part["text"].splitlines(keepends=True):
            yield "response.output_text.delta", at | {"delta": piece}
        yield "response.output_text.done", at | {"text": part["text"]}
        yield "response.content_part.done", at | {"part": part}
        yield "response.output_item.done", {"output_index": 0, "item": done}
        ended = resource("resp_1", status="completed", output=[done], usage=usage(1, 1))
        yield "response.completed", {"response": ended}

    @given(creates("http"))
    def test_toy_server(request):
        events = [{"type": kind, "sequence_number": number, **members}
                  for number, (kind, members) in enumerate(toy_server(request))]
        assert violations(http_exchange(request, events)) == []

Leave `keepends=True` out, and Hypothesis finds a line break that was said and is in no delta (C3).

What there is, in the order in which you will want it:

    requests      creates(form), tools, steers(), append_frame, inject_frame
    items         OUTPUT_ITEMS, output_items, messages, answered_calls, histories, inputs
    outputs       tool_output_programs(calls): what a client answers, in what order, right and wrong; Call, Move, output_of
    streams       traces(dialect): whole legal exchanges, for a client to read or a checker to pass
    breakages     broken_traces(dialect), mutations(trace), MUTATIONS: one named thing wrong, and the rule that says so
    exchanges     http_exchange, websocket_exchange: what your server answered, as a trace; resource, usage; violations(trace)
    values        texts, json_values, json_objects, names, lanes, pieces

Everything drawn is bounded and shrinks to the smallest of its kind; each docstring says to what.
Frames, items and records are plain dictionaries, as JSON has them.
For more control draw a `plans(dialect)`, change it, and `write` it.
"""

from protocol.strategies.breaking import Mutation
from protocol.strategies.items import (
    OUTPUT_ITEMS,
    answered_calls,
    histories,
    inputs,
    messages,
    output_items,
)
from protocol.strategies.mutations import MUTATIONS, Mutated, broken_traces, mutations
from protocol.strategies.outputs import Call, Move, output_of, tool_output_programs
from protocol.strategies.plans import Plan, plans
from protocol.strategies.requests import append_frame, creates, inject_frame, steers, tools
from protocol.strategies.speaker import resource, usage
from protocol.strategies.traces import http_exchange, traces, violations, websocket_exchange
from protocol.strategies.values import json_objects, json_values, lanes, names, pieces, texts
from protocol.strategies.writer import Trace, write

__all__ = [
    "MUTATIONS",
    "OUTPUT_ITEMS",
    "Call",
    "Move",
    "Mutated",
    "Mutation",
    "Plan",
    "Trace",
    "answered_calls",
    "append_frame",
    "broken_traces",
    "creates",
    "histories",
    "http_exchange",
    "inject_frame",
    "inputs",
    "json_objects",
    "json_values",
    "lanes",
    "messages",
    "mutations",
    "names",
    "output_items",
    "output_of",
    "pieces",
    "plans",
    "resource",
    "steers",
    "texts",
    "tool_output_programs",
    "tools",
    "traces",
    "usage",
    "violations",
    "websocket_exchange",
    "write",
]
