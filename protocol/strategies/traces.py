"""Legal streams, and an exchange of your own as a trace: what a checker reads."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from protocol.invariants import Checker, Violation
from protocol.strategies.plans import Dialect, Observed, plans
from protocol.strategies.writer import Trace, write

JSON = Mapping[str, Any]
DIALECTS: Sequence[Dialect] = ("http", "create", "inject", "append")


@st.composite
def traces(draw: st.DrawFn, dialect: Dialect | None = None, observed: Observed | None = None) -> Trace:
    """Traces in which every rule is kept, in any dialect or in this one; a checker must find nothing, in any profile.

    Up to three rounds on up to three lanes: parallel calls, outputs in several frames, early, wrong and late ones,
    refused creates, forks, warm-ups, steering, reasoning, refusals, hosted tools, and every ending.
    `observed`: whether only frames are recorded, what a relay sees too, or every hook of an engine.
    Shrinks to one response over HTTP that says nothing.
    """
    chosen = draw(st.sampled_from(DIALECTS)) if dialect is None else dialect
    return write(draw(plans(chosen, observed)))


def http_exchange(body: JSON, events: Iterable[JSON], status: int = 200) -> Trace:
    """One streamed request and its answer as a trace, `[DONE]` included.

    With another `status` than 200 the first of the `events` is the body of a refusal.
    """
    request = {"type": "http.request", "method": "POST", "path": "/v1/responses", "body": dict(body)}
    answer: JSON = {"type": "http.response", "status": status}
    if status != 200:
        return _recorded("http", [("in", request), ("out", {**answer, "body": next(iter(events))})])
    streamed = [("out", event) for event in events]
    return _recorded("http", [("in", request), ("out", answer), *streamed, ("out", "[DONE]")])


def websocket_exchange(frames: Iterable[tuple[str, JSON]], dialect: Dialect = "create") -> Trace:
    """What went over one WebSocket as a trace: pairs of direction ("in": to the server, "out": from it) and frame."""
    return _recorded(dialect, frames)


def _recorded(dialect: Dialect, frames: Iterable[tuple[str, Any]]) -> Trace:
    sse = dialect == "http"
    header = {
        "trace": 1,
        "dialect": dialect,
        "transport": "sse" if sse else "websocket",
        "source": "protocol.strategies",
        "directions": ["in", "out"],
        "hooks": [],
    }
    records = []
    for number, (direction, frame) in enumerate(frames):
        record = {"t": round(number * 0.001, 3), "conn": "c1", "dir": direction, "frame": frame}
        if sse and direction == "out" and isinstance(frame, Mapping) and "status" not in frame:
            record["event"] = frame.get("type")
        records.append(record)
    return Trace(header, tuple(records))


def violations(trace: Trace, profile: str = "any-server") -> list[Violation]:
    """What the checker finds in a trace, the end of the trace included."""
    checker = Checker(trace.header, profile=profile)
    found = [violation for record in trace.records for violation in checker.feed(record)]
    return [*found, *checker.finish()]
