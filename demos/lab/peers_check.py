"""What the trace checker finds in what a peer said, under the rules that hold for any server."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import orjson

from demos.lab.peers_client import DONE, PATH, Answer, Way, as_object
from protocol import trace
from protocol.invariants import Checker

PROFILE: Final = "any-server"
_CONNECTION: Final = "c1"


class Referee:
    """Judges the exchanges of one connection; over HTTP each request with its answer is a trace, over WebSocket all are one."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._began = time.monotonic()
        self._checker = self._new()
        self._known: Counter[str] = Counter()

    def found(self, request: Mapping[str, Any], answer: Answer) -> dict[str, int]:
        """How often each rule was broken in this exchange, by rule."""
        if self._way == "sse":
            self._checker, self._known = self._new(), Counter()
            body = {**request, "stream": True}
            self._feed("in", {"type": "http.request", "method": "POST", "path": PATH, "body": body})
            self._feed("out", {"type": "http.response", "status": answer.status})
        else:
            self._feed("in", {"type": "response.create", **request})
        for name, data in answer.events:
            self._event(name, data)
        if self._way == "sse":
            self._checker.finish()
        seen = Counter(self._checker.summary().violations)
        new, self._known = seen - self._known, seen
        return dict(new)

    def _new(self) -> Checker:
        dialect, transport = ("http", "sse") if self._way == "sse" else ("create", "websocket")
        line = trace.header_line(dialect=dialect, transport=transport, source="suspended lab peers", hooks=())
        return Checker(orjson.loads(line), profile=PROFILE)

    def _event(self, name: str, data: bytes) -> None:
        event = {"event": name} if name else {}
        frame = as_object(data)
        if frame is not None:
            self._feed("out", frame, **event)
        elif data == DONE:
            self._feed("out", DONE.decode(), **event)
        else:
            self._add({"raw": data.decode(errors="replace")[: trace.MAX_RAW_CHARACTERS]}, "out", event)

    def _feed(self, direction: trace.Direction, frame: Any, **event: str) -> None:
        self._add({"frame": frame}, direction, event)

    def _add(self, content: Mapping[str, Any], direction: trace.Direction, event: Mapping[str, str]) -> None:
        self._checker.feed(
            {
                "t": time.monotonic() - self._began,
                "conn": _CONNECTION,
                "dir": direction,
                **event,
                **content,
            }
        )
