"""One request over HTTP and its answer, as records: what is said of it, when, and what is left out."""

from typing import Any, Final
from urllib.parse import parse_qs

import orjson

from engine.tap.http import Head, Unpack, Unreadable, as_it_is, unpacker
from engine.tap.secrets import Secrets
from engine.tap.sse import SseReader
from engine.tap.traces import DialectTrace, TapTraces
from protocol.trace import parsed

MAX_TEXT_CHARACTERS: Final = 4096
"""Of a body that is no JSON, as an error page."""
_FIELDS: Final = (b"event:", b"data:", b"id:", b"retry:", b":")
"""What a stream of events begins with, whatever it calls itself."""


class Exchange:
    """Is told what passes, part by part; writes records as soon as they are whole."""

    def __init__(
        self, name: str, request: Head, secrets: Secrets, traces: TapTraces, max_body_bytes: int
    ) -> None:
        self.request = request
        self._name = name
        self._secrets = secrets
        self._traces = traces
        self._max_body_bytes = max_body_bytes
        self._path, self._query = secrets.target(request.target)
        self._question: _Text | None = _Text(request, max_body_bytes)
        self._is_open = self._is_over = False
        self._status = 0
        self._answer: _Text | None = None
        """While it is collected; an answer is either text or events."""
        self._events: SseReader | None = None
        self._unpack: Unpack = as_it_is

    @property
    def _trace(self) -> DialectTrace:
        """That of HTTP; it begins when the first has something to say, and not with an upgrade."""
        return self._traces.of("http")

    @property
    def asks_for_append(self) -> bool:
        """Does its address say so?"""
        return parse_qs(self._query).get("dialect", [""])[0] == "append"

    def open(self, t: float) -> None:
        """It begins. Not to be told of a request for an upgrade before that was refused."""
        if not self._is_open:
            self._is_open = True
            self._trace.hook(t, self._name, "connection_open")

    def request_part(self, part: bytes) -> None:
        """A part of the request's body."""
        if self._question is not None and part:
            self._question.add(part)

    def asked(self, t: float, *, whole: bool = True) -> None:
        """The request is whole, or will be looked at no more. Idempotent."""
        if self._question is not None:
            self.open(t)
            frame = {"type": "http.request", "method": self.request.method, "path": self._path}
            if self._query:
                frame["query"] = self._query
            question, self._question = self._question, None
            if not whole:
                question.missing = question.missing or "it was cut off"
            self._write(t, "in", frame, question)

    def answered(self, t: float, head: Head) -> None:
        """The answer begins."""
        self.asked(t, whole=False)
        self._status = head.status
        if head.headers.get("content-type", "").lower().startswith("text/event-stream"):
            self._begin_events(t)
            try:
                self._unpack = unpacker(head)
            except Unreadable as reason:
                self._stop_events(t, reason)
        else:
            self._answer = _Text(head, self._max_body_bytes)

    def answer_part(self, t: float, part: bytes) -> None:
        """A part of the answer's body."""
        if self._events is not None:
            self._read_events(t, part)
        elif self._answer is not None and part:
            fresh = not self._answer.text
            self._answer.add(part)
            if fresh and self._answer.text.startswith(_FIELDS):
                begun, self._unpack = bytes(self._answer.text), self._answer.unpack
                self._answer = None
                self._begin_events(t)
                self._read_text(t, begun)

    def end(self, t: float) -> None:
        """The answer is whole."""
        self._write_answer(t)
        self._close(t, "server")

    def cut(self, t: float, by: str) -> None:
        """It will not go on."""
        if self._is_over:
            return
        self.asked(t, whole=False)
        if self._answer is not None:
            self._answer.missing = self._answer.missing or "it was cut off"
            self._write_answer(t)
        self._close(t, by)

    def gap(self, t: float, note: str) -> None:
        """Something is missing here."""
        self._trace.hook(t, self._name, "gap", note=note)

    # --- an answer in events ---------------------------------------------------------------------------------------

    def _begin_events(self, t: float) -> None:
        self._trace.say(t, self._name, "out", frame={"type": "http.response", "status": self._status})
        self._events = SseReader(self._max_body_bytes)

    def _read_events(self, t: float, part: bytes) -> None:
        try:
            if self._unpack is as_it_is:
                self._read_text(t, part)
                return
            for text in self._unpack(part):
                self._read_text(t, text)
        except Unreadable as reason:
            self._stop_events(t, reason)

    def _read_text(self, t: float, text: bytes) -> None:
        assert self._events is not None
        for event, data in self._events.read(text):
            self._trace.frame(t, self._name, "out", self._secrets.clean(data), event)

    def _stop_events(self, t: float, reason: Unreadable) -> None:
        self._events = None
        self.gap(t, f"{reason}; the rest of this answer is not observed")

    # --- whole bodies ------------------------------------------------------------------------------------------------

    def _write_answer(self, t: float) -> None:
        if self._answer is not None:
            self._write(t, "out", {"type": "http.response", "status": self._status}, self._answer)
            self._answer = None

    def _write(self, t: float, direction: str, frame: dict[str, Any], text: "_Text") -> None:
        payload, body = orjson.dumps(frame), text.body(self._secrets)
        if body is not None:
            payload = b'%b,"body":%b}' % (payload[:-1], body)
        self._trace.frame(t, self._name, direction, payload)
        if text.missing:
            self.gap(t, f"the body of the {'request' if direction == 'in' else 'answer'}: {text.missing}")

    def _close(self, t: float, by: str) -> None:
        self._is_over = True
        self._trace.hook(t, self._name, "connection_close", by=by)


class _Text:
    """A body that is collected, as far as it can be."""

    def __init__(self, head: Head, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.text = bytearray()
        self.missing = ""
        """Why it is not there."""
        self.unpack: Unpack = as_it_is
        try:
            self.unpack = unpacker(head)
        except Unreadable as reason:
            self.missing = str(reason)

    def add(self, part: bytes) -> None:
        if self.missing:
            return
        try:
            for text in self.unpack(part):
                self.text += text
                if len(self.text) > self._max_bytes:
                    self.missing = f"more than {self._max_bytes} bytes"
                    break
        except Unreadable as reason:
            self.missing = str(reason)
        if self.missing:
            self.text.clear()

    def body(self, secrets: Secrets) -> bytes | None:
        """What it says, as JSON: what was sent if it is that, else a string; None: nothing, or not what was said."""
        if self.missing or not self.text:
            return None
        text = secrets.clean(bytes(self.text))
        try:
            is_json = len(parsed(b"[%b]" % text)) == 1
        except ValueError:
            is_json = False
        return text if is_json else orjson.dumps(text.decode("utf-8", "replace")[:MAX_TEXT_CHARACTERS])
