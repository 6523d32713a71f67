"""Small traces for the checker's tests, told call by call; and edits that break them.

`Talk` writes what a well-behaved server would, numbered and complete; each method adds a few records.
"""

import copy
import json
from typing import Any

MODEL = {"model": "m", "created_at": 1800000000, "object": "response"}
ALL_HOOKS = ("pre_inference", "post_inference", "suspend", "accepted", "resume")
SOCKETS = {"create", "append", "inject"}


def usage(input_tokens: int = 10, output_tokens: int = 4, cached: int = 0, **members: Any) -> dict[str, Any]:
    """A usage that adds up."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
        **members,
    }


def output(call_id: str, words: str = "ok", kind: str = "function_call") -> dict[str, Any]:
    """A tool output."""
    return {"type": f"{kind}_output", "call_id": call_id, "output": words}


class Talk:
    """A trace in the making."""

    def __init__(self, dialect: str = "create", *hooks: str, **header: Any) -> None:
        self.header: dict[str, Any] = {
            "trace": 1,
            "name": "test",
            "dialect": dialect,
            "transport": "websocket" if dialect in SOCKETS else "sse",
            "source": "test",
            "directions": ["in", "out", "hook"] if hooks else ["in", "out"],
            "hooks": list(hooks),
            **header,
        }
        self.records: list[dict[str, Any]] = []
        self.conn, self.lane = "c1", None
        self.t = 0.0
        self.numbers: dict[str, int] = {}
        self.items: dict[str, list[dict[str, Any]]] = {}
        self.resources: dict[str, dict[str, Any]] = {}
        self.current = ""
        self.held = 0
        """Tokens that a suspended response of the append form holds."""

    def record(self, direction: str, frame: Any, **members: Any) -> "Talk":
        """One record, 10 ms after the last."""
        self.t = round(self.t + 0.01, 3)
        self.records.append({"t": self.t, "conn": self.conn, "dir": direction, "frame": frame, **members})
        return self

    def on(self, conn: str, lane: str | None = None) -> "Talk":
        """From here on on this connection and lane."""
        self.conn, self.lane = conn, lane
        return self

    def wait(self, seconds: float) -> "Talk":
        """Time passes."""
        self.t += seconds
        return self

    def sends(self, kind: str, **members: Any) -> "Talk":
        """A frame of the client."""
        return self.record("in", {"type": kind, **members})

    def hook(self, name: str, **members: Any) -> "Talk":
        """A hook."""
        return self.record("hook", {"hook": name, **members})

    def out(self, kind: str, **members: Any) -> "Talk":
        """An event of the current response, numbered unless it says otherwise."""
        frame: dict[str, Any] = {"type": kind}
        if "sequence_number" not in members:
            frame["sequence_number"] = self.numbers[self.current]
        frame.update(members)
        if type(frame["sequence_number"]) is int:
            self.numbers[self.current] = frame["sequence_number"] + 1
        if self.lane is not None:
            frame["stream_id"] = self.lane
        extra = {"event": kind} if self.header["transport"] == "sse" else {}
        return self.record("out", frame, **extra)

    def ask(self, **body: Any) -> "Talk":
        """A create, or an HTTP request with the begin of its answer."""
        body = {"model": "m", "input": "hi", "store": False, **body}
        if self.header["dialect"] == "http":
            self.sends("http.request", method="POST", path="/v1/responses", body={**body, "stream": True})
            return self.record("out", {"type": "http.response", "status": 200})
        if self.lane is not None:
            body["stream_id"] = self.lane
        if self.header["dialect"] == "inject":
            body.setdefault("multi_agent", {"enabled": True})
        return self.sends("response.create", **body)

    def begin(self, response_id: str = "r1", parent: str | None = None, **members: Any) -> "Talk":
        """`created` and `in_progress`."""
        self.current = response_id
        self.numbers[response_id], self.items[response_id], self.held = 0, [], 0
        resource = {
            "id": response_id,
            **MODEL,
            "previous_response_id": parent,
            "status": "in_progress",
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
        }
        self.resources[response_id] = resource
        self.out("response.created", response={**resource, **members})
        return self.out("response.in_progress", response=dict(resource))

    def add(self, item: dict[str, Any]) -> dict[str, Any]:
        """`output_item.added`; what its events say about themselves."""
        items = self.items[self.current]
        items.append(item)
        place = {"item_id": item.get("id"), "output_index": len(items) - 1}
        self.out("response.output_item.added", output_index=place["output_index"], item=dict(item))
        return place

    def finish(self, place: dict[str, Any], **members: Any) -> "Talk":
        """`output_item.done`."""
        item = self.items[self.current][place["output_index"]]
        item.update(members)
        return self.out("response.output_item.done", output_index=place["output_index"], item=dict(item))

    def message(
        self, *pieces: str, status: str = "completed", kind: str = "output_text", annotations: Any = ()
    ) -> "Talk":
        """A message, with every event of it."""
        name = f"msg_{self.current}_{len(self.items[self.current])}"
        place = self.add(
            {"id": name, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        )
        part = self.part(place, 0, *pieces or ("Hello",), kind=kind, annotations=annotations)
        return self.finish(place, status=status, content=[part])

    def part(
        self,
        place: dict[str, Any],
        index: int,
        *pieces: str,
        kind: str = "output_text",
        annotations: Any = (),
    ) -> dict[str, Any]:
        """A content part, with every event of it."""
        field = "refusal" if kind == "refusal" else "text"
        noted = {"annotations": []} if kind == "output_text" else {}
        at = {**place, "content_index": index}
        self.out("response.content_part.added", **at, part={"type": kind, field: "", **noted})
        for piece in pieces:
            self.out(f"response.{kind}.delta", **at, delta=piece)
        for number, one in enumerate(annotations):
            self.out("response.output_text.annotation.added", **at, annotation_index=number, annotation=one)
        self.out(f"response.{kind}.done", **at, **{field: "".join(pieces)})
        part = {"type": kind, field: "".join(pieces), **noted}
        if annotations:
            part["annotations"] = list(annotations)
        self.out("response.content_part.done", **at, part=part)
        return part

    def reasoning(self, *summary: str) -> "Talk":
        """A reasoning item with a summary."""
        place = self.add({"id": f"rs_{self.current}", "type": "reasoning", "summary": []})
        at = {**place, "summary_index": 0}
        part = {"type": "summary_text", "text": "".join(summary)}
        self.out("response.reasoning_summary_part.added", **at, part={"type": "summary_text", "text": ""})
        for piece in summary:
            self.out("response.reasoning_summary_text.delta", **at, delta=piece)
        self.out("response.reasoning_summary_text.done", **at, text=part["text"])
        self.out("response.reasoning_summary_part.done", **at, part=part)
        return self.finish(place, summary=[part])

    def call(self, *call_ids: str, arguments: str = "{}") -> "Talk":
        """Function calls, each with every event of it."""
        for call_id in call_ids:
            place = self.add(
                {
                    "id": f"fc_{call_id}",
                    "type": "function_call",
                    "status": "in_progress",
                    "name": "f",
                    "call_id": call_id,
                    "arguments": "",
                }
            )
            self.out("response.function_call_arguments.delta", **place, delta=arguments)
            self.out("response.function_call_arguments.done", **place, arguments=arguments)
            self.finish(place, status="completed", arguments=arguments)
        return self

    def pause(self, segment: dict[str, Any] | None = None) -> "Talk":
        """`response.done`."""
        return self.out("response.done", response={"id": self.current, "usage": segment or self.segment()})

    def segment(self) -> dict[str, Any]:
        """The usage of a segment: in append it begins with what is held."""
        used = usage(max(10, self.held), 4, self.held)
        if self.header["dialect"] == "append":
            self.held = used["total_tokens"]
        return used

    def suspend(self, *pending: str) -> "Talk":
        """The hook, and in append `response.done` after it."""
        self.hook("suspend", response_id=self.current, pending=list(pending))
        return self.pause() if self.header["dialect"] == "append" else self

    def append(self, *call_ids: str, **members: Any) -> "Talk":
        """`response.append` with outputs."""
        return self.sends("response.append", **{"input": [output(name) for name in call_ids], **members})

    def accepted(self, *call_ids: str) -> "Talk":
        """The hook."""
        return self.hook("accepted", response_id=self.current, call_ids=list(call_ids))

    def resume(self, *call_ids: str) -> "Talk":
        """The hook."""
        return self.hook("resume", response_id=self.current, outputs=list(call_ids))

    def inject(self, *call_ids: str, to: str | None = None) -> "Talk":
        """`response.inject` with outputs."""
        return self.sends(
            "response.inject", response_id=to or self.current, input=[output(name) for name in call_ids]
        )

    def taken(self) -> "Talk":
        """`response.inject.created`."""
        return self.out("response.inject.created", response_id=self.current)

    def end(
        self, status: str = "completed", *, segment: dict[str, Any] | None = None, **members: Any
    ) -> "Talk":
        """The terminal event, and over HTTP `[DONE]`."""
        resource = {
            **self.resources[self.current],
            "status": status,
            "output": copy.deepcopy(self.items[self.current]),
            "usage": segment or self.segment(),
        }
        if status == "incomplete":
            resource["incomplete_details"] = {"reason": "max_output_tokens"}
        if status in ("failed", "cancelled"):
            resource.update(error={"code": "server_error", "message": "No."}, usage=None)
        resource.update(members)
        kind = "response.failed" if status == "cancelled" else f"response.{status}"
        self.out(kind, response=resource)
        return self.record("out", "[DONE]") if self.header["transport"] == "sse" else self

    def error(
        self, code: str | None, message: str = "No.", *, status: Any = 400, param: Any = None
    ) -> "Talk":
        """An `error` frame of the connection."""
        said = {"type": "invalid_request_error", "code": code, "message": message, "param": param}
        lane = {} if self.lane is None else {"stream_id": self.lane}
        return self.record("out", {"type": "error", "status": status, **lane, "error": said})

    def missing(self, parent: str) -> "Talk":
        """`previous_response_not_found`."""
        return self.error(
            "previous_response_not_found",
            f"Previous response with id '{parent}' not found.",
            param="previous_response_id",
        )

    def turn(self, response_id: str = "r1", parent: str | None = None, **body: Any) -> "Talk":
        """A whole turn: asked, answered with a message, over."""
        if parent is not None:
            body["previous_response_id"] = parent
        return self.ask(**body).begin(response_id, parent).message().end()


def find(talk: Talk, kind: str, place: int = 0) -> int:
    """Where the n-th record of a type stands."""
    at = [
        number
        for number, one in enumerate(talk.records)
        if isinstance(one["frame"], dict) and kind in (one["frame"].get("type"), one["frame"].get("hook"))
    ]
    return at[place]


def untied(talk: Talk) -> Talk:
    """A copy in which no two frames share a member."""
    changed = copy.copy(talk)
    changed.records = json.loads(json.dumps(talk.records))
    return changed


def alter(talk: Talk, kind: str, place: int = 0, /, **members: Any) -> Talk:
    """The same trace with other members in one frame; `...` = without it; `response__x` = in the response."""
    changed = untied(talk)
    frame = changed.records[find(changed, kind, place)]["frame"]
    for name, value in members.items():
        *path, last = name.split("__")
        target = frame
        for step in path:
            target = target[int(step) if step.isdigit() else step]
        if value is ...:
            del target[last]
        else:
            target[last] = value
    return changed


def renumber(talk: Talk) -> Talk:
    """Sequence numbers 0, 1, … again, for a trace with one response."""
    number = 0
    for one in talk.records:
        if one["dir"] == "out" and isinstance(one["frame"], dict) and "sequence_number" in one["frame"]:
            one["frame"]["sequence_number"] = number
            number += 1
    return talk


def drop(talk: Talk, kind: str, place: int = 0, *, count: int = 1) -> Talk:
    """The same trace without some records, renumbered."""
    changed = untied(talk)
    at = find(changed, kind, place)
    del changed.records[at : at + count]
    return renumber(changed)


def move(talk: Talk, kind: str, place: int, to: str, to_place: int = 0) -> Talk:
    """The same trace with one record put before another, renumbered."""
    changed = untied(talk)
    one = changed.records.pop(find(changed, kind, place))
    changed.records.insert(find(changed, to, to_place), one)
    return renumber(changed)


def repeat(talk: Talk, kind: str, place: int = 0) -> Talk:
    """The same trace with one record twice, renumbered."""
    changed = untied(talk)
    at = find(changed, kind, place)
    changed.records.insert(at, copy.deepcopy(changed.records[at]))
    return renumber(changed)


def cut(talk: Talk, kind: str, place: int = 0) -> Talk:
    """The same trace up to this record."""
    changed = untied(talk)
    del changed.records[find(changed, kind, place) :]
    return changed
