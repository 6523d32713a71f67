"""One response as a server says it: the grammar of events, numbers, items and usage, without any server.

Written from the reference, not from the engine, with which it shares nothing: what both say alike, two readers agreed on.
Each method writes one event, or yields after each of several, so that a caller may stop or let others speak in between.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

import attrs

from protocol.strategies.plans import Dialect, Item, Part

JSON = dict[str, Any]
Put = Callable[[JSON], None]

FIRST_SECOND: Final = 1_767_225_600
"""`created_at` of the first response."""

_AGENT: Final = {"agent_name": "/root"}
_KINDS: Final = {
    "function_call": ("fc", "arguments", "function_call_arguments"),
    "custom_tool_call": ("ctc", "input", "custom_tool_call_input"),
    "mcp_call": ("mcp", "arguments", "mcp_call_arguments"),
}
"""Prefix of the id, the member that is streamed, and the name of its events."""

_PARTS: Final = {
    "output_text": ("text", "output_text", "content_part", "content_index"),
    "refusal": ("refusal", "refusal", "content_part", "content_index"),
    "reasoning_text": ("text", "reasoning_text", "content_part", "content_index"),
    "summary_text": ("text", "reasoning_summary_text", "reasoning_summary_part", "summary_index"),
}
"""The member that holds the text, the name of its events, of its part's events, and of its index."""


def resource(response_id: str, **members: Any) -> JSON:
    """The response resource with all its keys (reference 6), as it is at the beginning but for these members."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": FIRST_SECOND,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "previous_response_id": None,
        "instructions": None,
        "output": [],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "truncation": "disabled",
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "user": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "usage": None,
        **members,
    }


@attrs.define
class Tokens:
    """What was read and sampled. A token is a delta, or an input item; what matters is that the sums are right.

    `context`: read at the start of the segment. `held`: of it, what was not read again.
    `all_…`: of the whole rollout.
    """

    context: int
    held: int
    sampled: int = 0
    thought: int = 0
    _reported: bool = False
    _first_held: int = 0
    all_sampled: int = 0
    _all_thought: int = 0
    all_fresh: int = 0

    def __attrs_post_init__(self) -> None:
        self._first_held = self.held
        self.all_fresh = self.context - self.held

    def count(self, *, thought: bool) -> None:
        """One more is sampled."""
        self.sampled += 1
        self.all_sampled += 1
        self.thought += thought
        self._all_thought += thought

    def resumed(self, items: int) -> None:
        """A new segment begins, with so many new input items; one whose end was not said goes on into it."""
        self.held = self.context + self.sampled if self._reported else self.held + self.sampled
        self.context += self.sampled + items
        self.all_fresh += items
        if self._reported:
            self.sampled = self.thought = 0
        self._reported = False

    def report(self) -> JSON:
        """The usage of the segment; when that was said at the pause already, that nothing was added since."""
        if self._reported:
            return usage(self.context + self.sampled, 0, cached=self.context + self.sampled)
        self._reported = True
        return usage(self.context, self.sampled, cached=self.held, thought=self.thought)

    def report_all(self) -> JSON:
        """One usage for all segments, as the inject form has it."""
        return usage(self.context, self.all_sampled, cached=self._first_held, thought=self._all_thought)

    def ledger(self) -> JSON:
        """What the hook after the rollout says."""
        return {"uncached_input_tokens": self.all_fresh, "output_tokens": self.all_sampled}


def usage(inputs: int, outputs: int, *, cached: int = 0, thought: int = 0) -> JSON:
    """The usage object (reference 7.1): tokens read and sampled; of these, read before, and thought."""
    return {
        "input_tokens": inputs,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": outputs,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": inputs + outputs,
    }


class Speaker:
    """One response. `put` takes its frames; `lane` is its `stream_id`, if any."""

    def __init__(
        self, put: Put, number: int, dialect: Dialect, lane: str | None, tokens: Tokens, **members: Any
    ) -> None:
        self._put = put
        self._number = number
        self._dialect = dialect
        self._lane = {} if lane is None else {"stream_id": lane}
        self._members = {"created_at": FIRST_SECOND + number, **members}
        self._next = 0
        self._added = 0
        self.id = f"resp_{number}"
        self.tokens = tokens
        self.output: list[JSON] = []

    def say(self, kind: str, **members: Any) -> None:
        """One event, numbered, with its lane."""
        self._put({"type": f"response.{kind}", "sequence_number": self._next, **members, **self._lane})
        self._next += 1

    def _say_of_item(self, kind: str, **members: Any) -> None:
        agent = {"agent": _AGENT} if self._dialect == "inject" else {}
        self.say(kind, **members, **agent)

    # --- the whole ------------------------------------------------------------------------------------------------

    def say_begin(self) -> Iterator[None]:
        """`created` and `in_progress`."""
        for kind in ("created", "in_progress"):
            self.say(kind, response=resource(self.id, **self._members))
            yield

    def say_done(self) -> None:
        """The append form's pause."""
        self.say("done", response={"id": self.id, "usage": self.tokens.report()})

    def say_error(self, message: str) -> None:
        """What precedes `failed` on SSE: flat for some readers, nested for others (reference 10.2)."""
        detail = {"code": "server_error", "message": message, "param": None}
        self._put(
            {
                "type": "error",
                "sequence_number": self._next,
                **detail,
                "error": {"type": "server_error", **detail},
            }
        )
        self._next += 1

    def final_usage(self, kind: str) -> JSON | None:
        """What the terminal event says of usage: nothing when it failed before a token."""
        if kind == "failed" and not self.tokens.all_sampled:
            return None
        return self.tokens.report_all() if self._dialect == "inject" else self.tokens.report()

    def say_end(self, kind: str, status: str, **members: Any) -> None:
        """The terminal event."""
        ended = {"status": status, "output": list(self.output), **members}
        if kind == "completed":
            ended["completed_at"] = FIRST_SECOND + self._number
        self.say(kind, response=resource(self.id, **self._members | ended))

    # --- items ----------------------------------------------------------------------------------------------------

    def say_item(
        self, plan: Item, *, call_id: str = "", status: str = "completed", phase: str | None = None
    ) -> Iterator[None]:
        """All events of an item; it is in `output` when the last one was written."""
        index, self._added = self._added, self._added + 1
        item = self._begun(plan, index, call_id, phase)
        self._say_of_item("output_item.added", output_index=index, item=deepcopy(item))
        yield
        at = {"item_id": item["id"], "output_index": index}
        if plan.type == "tool_search_call":
            self.tokens.count(thought=False)
        elif plan.type in _KINDS:
            yield from self._say_call(plan, item, at)
        else:
            yield from self._say_parts(plan, item, at)
        item["status"] = "failed" if plan.failed else status
        self.output.append(item)
        self._say_of_item("output_item.done", output_index=index, item=item)
        yield

    def _begun(self, plan: Item, index: int, call_id: str, phase: str | None) -> JSON:
        place = f"{self._number}_{index}"
        head = {"type": plan.type, "status": "in_progress"}
        agent = {"agent": _AGENT} if self._dialect == "inject" else {}
        if plan.type == "message":
            marked = {"phase": phase} if self._dialect == "inject" else {}
            return {"id": f"msg_{place}", **head, "role": "assistant", "content": [], **marked, **agent}
        if plan.type == "reasoning":
            return {
                "id": f"rs_{place}", **head, "summary": [], "content": [], "encrypted_content": None, **agent
            }  # fmt: skip
        if plan.type == "tool_search_call":
            return {
                "id": f"tsc_{place}",
                **head,
                "call_id": call_id,
                "execution": "client",
                "arguments": {},
                **agent,
            }
        prefix, member, _ = _KINDS[plan.type]
        named = {"id": f"{prefix}_{place}", **head, "name": plan.name, member: ""}
        if plan.type == "mcp_call":
            hosted = {"server_label": "lib", "output": None, "error": None, "approval_request_id": None}
            return {**named, **hosted, **agent}
        return {**named, "call_id": call_id, **agent}

    def _say_call(self, plan: Item, item: JSON, at: JSON) -> Iterator[None]:
        _, member, event = _KINDS[plan.type]
        hosted = plan.type == "mcp_call"
        if hosted:
            self._say_of_item("mcp_call.in_progress", **at)
            yield
        for piece in plan.pieces:
            self.tokens.count(thought=False)
            self._say_of_item(f"{event}.delta", **at, delta=piece)
            yield
        item[member] = "".join(plan.pieces)
        named = {"name": plan.name} if plan.type == "function_call" else {}
        self._say_of_item(f"{event}.done", **at, **{member: item[member]}, **named)
        yield
        if hosted:
            if plan.failed:
                item["error"] = {
                    "type": "mcp_tool_execution_error",
                    "content": [{"type": "text", "text": plan.result or ""}],
                }
            else:
                item["output"] = plan.result
            self._say_of_item(f"mcp_call.{'failed' if plan.failed else 'completed'}", **at)
            yield

    def _say_parts(self, plan: Item, item: JSON, at: JSON) -> Iterator[None]:
        for part in plan.parts:
            into: list[JSON] = item["summary"] if part.type == "summary_text" else item["content"]
            yield from self._say_part(part, into, at | {_PARTS[part.type][3]: len(into)})

    def _say_part(self, part: Part, into: list[JSON], at: JSON) -> Iterator[None]:
        member, event, holder, _ = _PARTS[part.type]
        more: JSON = {"annotations": [], "logprobs": []} if part.type == "output_text" else {}
        logprobs: JSON = {"logprobs": []} if part.type == "output_text" else {}
        self._say_of_item(f"{holder}.added", **at, part={"type": part.type, member: "", **more})
        yield
        for piece in part.pieces:
            self.tokens.count(thought=part.type == "reasoning_text")
            self._say_of_item(f"{event}.delta", **at, delta=piece, **logprobs)
            yield
        notes = [_annotation(number) for number in range(part.annotations)]
        for number, note in enumerate(notes):
            self._say_of_item("output_text.annotation.added", **at, annotation_index=number, annotation=note)
            yield
        whole = "".join(part.pieces)
        self._say_of_item(f"{event}.done", **at, **{member: whole}, **logprobs)
        yield
        closed = {"type": part.type, member: whole, **more, **({"annotations": notes} if notes else {})}
        self._say_of_item(f"{holder}.done", **at, part=closed)
        into.append(closed)
        yield


def _annotation(number: int) -> JSON:
    return {
        "type": "url_citation",
        "url": f"https://example.com/{number}",
        "title": "An example",
        "start_index": 0,
        "end_index": 1,
    }
