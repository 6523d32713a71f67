"""The basic ordering rules of a response, checked over a recorded trace; written from the reference, not from the engine.

It shares no code with the engine: plain dictionaries, one pass, one small object for each response.
`check` returns what it found, each finding with the record's number; an empty list is a clean trace.
It also refuses to pass over nothing: a trace without a response is reported unless the caller says it may be empty.
"""

from collections import Counter
from typing import Any

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
ANSWERS = {"response.inject.created", "response.inject.failed"}
CALLS = {"function_call", "custom_tool_call"}
DELTA_OF = {
    "response.output_text.delta": "response.output_text.done",
    "response.reasoning_text.delta": "response.reasoning_text.done",
    "response.function_call_arguments.delta": "response.function_call_arguments.done",
    "response.custom_tool_call_input.delta": "response.custom_tool_call_input.done",
    "response.mcp_call_arguments.delta": "response.mcp_call_arguments.done",
}
WHOLE_FIELD = {
    "response.output_text.done": "text",
    "response.reasoning_text.done": "text",
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
    "response.mcp_call_arguments.done": "arguments",
}
ITEM_FIELD = {"function_call": "arguments", "custom_tool_call": "input", "mcp_call": "arguments"}


class Seen:
    """One response as the trace shows it."""

    def __init__(self, response_id: str, lane: str | None) -> None:
        self.response_id = response_id
        self.lane = lane
        self.hooks: list[str] = []
        self.next_number = 0
        self.started = False
        self.terminal: str | None = None
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.deltas = ""
        self.whole: str | None = None
        self.part: str | None = None
        self.pending: dict[str, None] = {}
        self.calls: list[str] = []
        self.accepted: set[str] = set()
        self.done_shown = False
        self.suspended = False
        self.slot = False
        self.superseded = False
        self.usages: list[dict[str, Any]] = []
        self.total_usage: dict[str, int] | None = None
        self.ended_at: int | None = None
        self.ended_time = 0.0


class Oracle:
    """Reads the records of one trace in order."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.responses: dict[str, Seen] = {}
        self.current: dict[str | None, Seen] = {}
        self.at = 0
        self.owed: tuple[int, str, str | None] | None = None
        self.last_in = self.last_out = self.last_event = 0
        self.now = self.closed_time = 0.0
        self.unless_dead: list[tuple[int, str]] = []
        self.steered: set[str] = set()
        """Responses with words that wait for a successor."""
        self.creates: Counter[str | None] = Counter()
        self.answered: Counter[str | None] = Counter()
        self.closed = False

    def say(self, holds: object, words: str) -> None:
        if not holds:
            self.findings.append(f"record {self.at}: {words}")

    def say_unless_dead(self, holds: object, words: str) -> None:
        """Frames for a connection that is gone are not recorded: what rests on them counts only if some frame follows."""
        if not holds:
            self.unless_dead.append((self.at, words))

    def read(self, record: dict[str, Any]) -> None:
        self.at += 1
        self.now = record["t"]
        frame = record.get("frame")
        if record["dir"] == "hook":
            self.hook(frame)
        elif record["dir"] == "in":
            self.settle()
            self.last_in = self.at
            if isinstance(frame, dict):
                self.client(frame)
        else:
            self.last_out = self.at
            self.last_event = self.at if frame["type"] != "error" else self.last_event
            self.server(frame)

    # --- from the client ---------------------------------------------------------------------------------------

    def client(self, frame: dict[str, Any]) -> None:
        kind = frame.get("type")
        if kind == "response.create":
            self.creates[frame.get("stream_id")] += 1
            response = self.current.get(frame.get("stream_id"))
            if response is not None:
                response.superseded = True
        elif kind in {"response.append", "response.inject"}:
            self.owed = (self.at, kind, frame.get("response_id"))

    def settle(self) -> None:
        """Each append and inject is answered at once, past every queue."""
        if self.owed is not None:
            at, kind, _ = self.owed
            self.say_unless_dead(False, f"the {kind} of record {at} got no answer before the next frame")
        self.owed = None

    # --- inside the engine -------------------------------------------------------------------------------------

    def hook(self, frame: dict[str, Any]) -> None:
        name, response_id = frame["hook"], frame.get("response_id")
        if name == "connection_close":
            self.closed, self.closed_time = True, self.now
        if response_id is None:
            return
        response = self.responses.setdefault(response_id, Seen(response_id, None))
        response.hooks.append(name)
        handler = getattr(self, f"on_{name}", None)
        if handler is not None:
            handler(response, frame)

    def on_pre_inference(self, response: Seen, _frame: dict[str, Any]) -> None:
        self.say(not response.started, "pre_inference comes after response.created")

    def on_post_inference(self, response: Seen, frame: dict[str, Any]) -> None:
        self.say_unless_dead(response.started, "post_inference without response.created")
        self.say(response.terminal is None, "post_inference comes after the terminal event")
        self.say(not response.slot, "post_inference while a slot is held")
        response.ended_at, response.ended_time = self.at, self.now
        response.total_usage = frame["usage"]

    def on_suspend(self, response: Seen, frame: dict[str, Any]) -> None:
        self.say_unless_dead(
            frame["pending"] == list(response.pending), "suspend names other calls than are pending"
        )
        self.say_unless_dead(response.pending, "suspended without a pending call")
        self.say(not response.slot, "suspended with a slot")
        response.suspended = True

    def on_resume(self, response: Seen, frame: dict[str, Any]) -> None:
        self.say(not response.pending, "resumed while a call is pending")
        order = [call for call in response.calls if call in frame["outputs"]]
        self.say(frame["outputs"] == order, "outputs do not enter the context in call order")
        self.say(set(frame["outputs"]) == response.accepted, "resumed with other outputs than were accepted")
        response.accepted = set()
        response.suspended = response.done_shown = False

    def on_accepted(self, response: Seen, frame: dict[str, Any]) -> None:
        self.say(self.owed is not None, "accepted, but nothing was sent")
        for call_id in frame["call_ids"]:
            self.say(call_id in response.pending, f"accepted {call_id}, which is not pending")
            response.pending.pop(call_id, None)
            response.accepted.add(call_id)
        if self.owed is not None and self.owed[1] == "response.append":
            self.owed = None

    def on_slot_acquire(self, response: Seen, _frame: dict[str, Any]) -> None:
        self.say(not response.slot, "a second slot")
        response.slot = True

    def on_slot_release(self, response: Seen, _frame: dict[str, Any]) -> None:
        self.say(response.slot, "a slot released twice")
        response.slot = False

    # --- from the server ---------------------------------------------------------------------------------------

    def server(self, frame: dict[str, Any]) -> None:
        kind, lane = frame["type"], frame.get("stream_id")
        if kind == "error":
            self.say(type(frame.get("status")) is int, "an error without status")
            self.say({"type", "code", "message", "param"} == set(frame["error"]), "an error of another shape")
            self.say("sequence_number" not in frame, "a numbered error frame")
            self.owed = None
            return
        if kind == "response.created":
            self.created(frame, lane)
        if kind == "response.inject.failed" and frame["error"]["code"] == "response_not_found":
            self.say(
                (frame["sequence_number"], lane) == (0, None),
                "an answer about an unknown response is numbered",
            )
            self.owed = None
            return
        if kind.startswith("response.steer."):
            self.steer_answer(frame, kind)
            return
        response = self.responses.get(frame["response_id"]) if kind in ANSWERS else self.current.get(lane)
        if response is None:
            self.say(False, f"{kind} before any response.created")
            return
        self.say(
            frame.get("sequence_number") == response.next_number,
            f"{kind} should be number {response.next_number}",
        )
        response.next_number += 1
        self.say(response.lane == lane, f"{kind} is on lane {lane}, its response on {response.lane}")
        if kind in ANSWERS:
            self.answer(frame, kind)
            return
        self.say(response.terminal is None, f"{kind} after the terminal event")
        self.say(response.ended_at is None or kind in TERMINAL, f"{kind} after post_inference")
        self.event(response, kind, frame)

    def created(self, frame: dict[str, Any], lane: str | None) -> None:
        before = self.current.get(lane)
        if before is not None:
            self.say(
                before.ended_at is not None, "a response began on a lane before the last one there ended"
            )
        response_id = frame["response"]["id"]
        response = self.responses.setdefault(response_id, Seen(response_id, lane))
        self.say(not response.started, "a response was created twice")
        response.lane, response.started = lane, True
        if frame["response"]["previous_response_id"] in self.steered:
            self.steered.discard(
                frame["response"]["previous_response_id"]
            )  # a successor: nobody asked for it by a create
            self.creates[lane] += 1
        self.answered[lane] += 1
        # an earlier create that was refused makes this laxer, never stricter
        response.superseded = self.creates[lane] > self.answered[lane]
        self.current[lane] = response

    def answer(self, frame: dict[str, Any], kind: str) -> None:
        asked = self.owed is not None and self.owed[1:] == ("response.inject", frame["response_id"])
        self.say(asked, f"{kind} answers no response.inject")
        self.owed = None

    def event(self, response: Seen, kind: str, frame: dict[str, Any]) -> None:
        number = frame["sequence_number"]
        self.say((kind == "response.created") == (number == 0), f"{kind} is number {number}")
        self.say((kind == "response.in_progress") == (number == 1), f"{kind} is number {number}")
        if kind in {"response.created", "response.in_progress"}:
            resource = frame["response"]
            self.say(
                (resource["status"], resource["output"], resource["usage"]) == ("in_progress", [], None),
                "not new",
            )
        elif kind == "response.done":
            self.done(response, frame)
        elif kind in TERMINAL:
            self.terminal(response, kind, frame["response"])
        else:
            self.say(not response.suspended, f"{kind} while suspended")
            self.output(response, kind, frame)

    def done(self, response: Seen, frame: dict[str, Any]) -> None:
        self.say(response.suspended, "response.done, but not suspended")
        self.say(response.pending, "response.done without a pending call")
        self.say(response.open is None, "response.done while an item is open")
        self.say(not response.done_shown, "response.done twice in a suspension")
        response.done_shown = True
        response.usages.append(frame["response"]["usage"])

    def terminal(self, response: Seen, kind: str, resource: dict[str, Any]) -> None:
        status = resource["status"]
        self.say(resource["id"] == response.response_id, "the terminal event is another response's")
        self.say(
            kind == f"response.{status}" or (kind, status) == ("response.failed", "cancelled"),
            f"{kind} {status}",
        )
        self.say(response.open is None or kind == "response.failed", f"{kind} while an item is open")
        self.say(response.hooks.count("post_inference") == 1, f"{kind} without post_inference")
        self.say(resource["output"] == response.items, "output is not the list of the done items")
        details, error = resource["incomplete_details"], resource["error"]
        self.say(
            (details is not None) == (status == "incomplete"), f"incomplete_details of {status}: {details}"
        )
        self.say((error is not None) == (kind == "response.failed"), f"error of {status}: {error}")
        response.terminal = kind
        if resource["usage"] is not None:
            response.usages.append(resource["usage"])

    def steer_answer(self, frame: dict[str, Any], kind: str) -> None:
        """Numbered with the steered response, also after its end; 0 where there is none (reference 4.6)."""
        response = self.responses.get(frame["steer"]["previous_response_id"])
        if response is None:
            self.say(frame["sequence_number"] == 0, f"{kind} about an unknown response is numbered")
            return
        self.say(
            frame["sequence_number"] == response.next_number,
            f"{kind} should be number {response.next_number}",
        )
        response.next_number += 1
        if kind == "response.steer.accepted":
            self.say(response.terminal is None, f"{kind} after the terminal event")
            self.steered.add(response.response_id)
        elif "id" in frame["steer"]:  # what was accepted now waits for a create, or came back
            self.steered.discard(response.response_id)

    def output(self, response: Seen, kind: str, frame: dict[str, Any]) -> None:
        index = frame["output_index"]
        if kind == "response.output_item.added":
            self.say(response.open is None, "an item begins while another is open")
            self.say(index == len(response.items), f"output_index {index} for item {len(response.items)}")
            self.say(
                frame["item"]["id"] not in [item["id"] for item in response.items], "an item id comes again"
            )
            response.open, response.deltas, response.whole, response.part = frame["item"], "", None, None
            return
        if response.open is None:
            self.say(False, f"{kind} while no item is open")
            return
        self.say(index == len(response.items), f"{kind} has output_index {index}")
        if kind == "response.output_item.done":
            self.item_done(response, frame["item"])
            return
        self.say(frame["item_id"] == response.open["id"], f"{kind} is about another item")
        if kind == "response.content_part.added":
            self.say(
                response.part is None and frame["part"]["text"] == "", "a part begins twice, or with text"
            )
            response.part = "open"
        elif kind == "response.content_part.done":
            self.say(response.part == "open" and response.whole is not None, "a part ends before its text")
            self.say(frame["part"]["text"] == response.deltas, "the part's text is not that of its deltas")
            response.part = "done"
        elif kind in DELTA_OF:
            self.say(response.whole is None, "a delta after its text was done")
            self.say(frame["delta"], "an empty delta")
            response.deltas += frame["delta"]
        elif kind in WHOLE_FIELD:
            self.say(response.whole is None, f"{kind} twice")
            response.whole = frame[WHOLE_FIELD[kind]]
            self.say(response.whole == response.deltas, f"{kind} is not what the deltas said")

    def item_done(self, response: Seen, item: dict[str, Any]) -> None:
        opened, kind = response.open or {}, item["type"]
        same = ("id", "type", "role", "name", "call_id", "namespace")
        self.say(
            [opened.get(k) for k in same] == [item.get(k) for k in same], "an item changed while it was open"
        )
        if kind == "compaction":  # nobody writes it piece by piece
            self.say(opened == item, "a compaction changed while it was open")
            response.items.append(item)
            response.open = None
            return
        self.say(response.whole is not None, f"{kind} is done before its text")
        text = (
            item[ITEM_FIELD[kind]]
            if kind in ITEM_FIELD
            else "".join(part["text"] for part in item["content"])
        )
        self.say(text == response.deltas, f"the {kind} is not what its deltas said")
        self.say(kind in ITEM_FIELD or response.part == "done", f"{kind} is done before its part")
        response.items.append(item)
        response.open = None
        if kind in CALLS and item["status"] == "completed":
            self.say(item["call_id"] not in response.calls, "a call id comes again")
            response.calls.append(item["call_id"])
            response.pending[item["call_id"]] = None

    # --- at the end --------------------------------------------------------------------------------------------

    def finish(self, header: dict[str, Any]) -> None:
        self.say(header.get("complete", True), "the recorder stopped early")
        self.say(self.closed, "the trace does not end with connection_close")
        self.say(self.answered <= self.creates, "more responses than creates")
        for response in self.responses.values():
            self.response_over(response)
        # an input that came last may find the connection gone
        if self.owed is not None and self.owed[0] < self.last_out:
            self.settle()
        self.findings += [f"record {at}: {words}" for at, words in self.unless_dead if at < self.last_out]

    def response_over(self, response: Seen) -> None:
        name = response.response_id
        self.say(not response.slot, f"{name} still holds a slot")
        pre, post = response.hooks.count("pre_inference"), response.hooks.count("post_inference")
        self.say(pre == post, f"{name} had pre_inference {pre} times and post_inference {post} times")
        self.say(pre == 1 or (pre == 0 and not response.started), f"{name} had pre_inference {pre} times")
        if not response.started:
            return
        # a connection that ends may read a frame or two more; it does so in the same instant of virtual time
        connection_died = response.ended_at is not None and (
            response.ended_at > self.last_in
            or (response.ended_at > self.last_event and response.ended_time == self.closed_time)
        )
        self.say(
            response.terminal or response.superseded or connection_died,
            f"{name} ended without a terminal event, and neither a create nor the connection's end explains it",
        )
        if (
            response.terminal
            and response.usages
            and response.total_usage
            and "output_tokens" in response.total_usage
        ):
            self.usage(response)

    def usage(self, response: Seen) -> None:
        """Each segment reports its own (append), or the last frame all (inject); both add up to the engine's account."""
        for usage in response.usages:
            cached = usage["input_tokens_details"]["cached_tokens"]
            self.say(0 <= cached <= usage["input_tokens"], f"cached {cached} of {usage['input_tokens']}")
            self.say(usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], "a wrong total")
        output = sum(usage["output_tokens"] for usage in response.usages)
        self.say(output == response.total_usage["output_tokens"], f"{output} output tokens reported")


def check(header: dict[str, Any], records: list[dict[str, Any]], *, may_be_empty: bool = False) -> list[str]:
    """What is wrong with a trace; empty = nothing."""
    oracle = Oracle()
    for record in records:
        oracle.read(record)
    oracle.finish(header)
    oracle.say(may_be_empty or oracle.responses, "nothing to check: the trace has no response")
    return oracle.findings
