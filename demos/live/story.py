"""What happened, as it is told: two lanes of spans over time, notes, and counts. Knows neither engine nor terminal.

Whoever watches is told of each note at once; a screen looks at the lanes whenever it likes.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal

import attrs

TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Frames that end a response."""
Who = Literal["server", "client", "agent", "wire"]


@attrs.define
class Span:
    """Something that took a while. `end` is None while it lasts."""

    what: str
    start: float
    end: float | None = None


@attrs.define
class Lane:
    """One side's spans, one after the other."""

    spans: list[Span] = attrs.Factory(list)

    @property
    def current(self) -> str:
        """What is going on; empty if nothing is."""
        return self.spans[-1].what if self.spans and self.spans[-1].end is None else ""

    def enter(self, what: str, now: float) -> None:
        """From now on it is `what`; nothing if that is empty."""
        if self.current == what:
            return
        if self.spans and self.spans[-1].end is None:
            self.spans[-1].end = now
        if what:
            self.spans.append(Span(what, now))

    def cells(self, start: float, end: float, seconds: float) -> list[str]:
        """What to show for each slice of `seconds` in a stretch of time: its briefest span, as the telling one."""
        found = [""] * round((end - start) / seconds)
        lasted = [float("inf")] * len(found)
        for span in self.spans:
            until = end if span.end is None else span.end
            first, last = int((span.start - start) / seconds), int((until - start) / seconds)
            for index in range(max(first, 0), min(last + 1, len(found))):
                if until - span.start < lasted[index]:
                    found[index], lasted[index] = span.what, until - span.start
        return found


@attrs.frozen
class Note:
    """One thing that happened, in words."""

    seconds: float
    who: Who
    text: str
    repeats: int = 1
    """How often in a row."""


@attrs.define
class Story:
    """The whole of it. `clock` is in seconds; it begins with `start`."""

    clock: Callable[[], float]
    on_note: Callable[[Note], None] = attrs.field(default=lambda _: None)
    """Told of each note; one that repeats is told when something else follows."""
    server: Lane = attrs.Factory(Lane)
    client: Lane = attrs.Factory(Lane)
    notes: list[Note] = attrs.Factory(list)
    frames: Counter[str] = attrs.Factory(Counter)
    """By direction and type."""
    suspensions: int = 0
    ended: float = 0.0
    """When the rollout was over."""
    began: float | None = None
    saying: str = ""
    """What the agent is in the middle of saying."""
    _running: list[str] = attrs.Factory(list)

    @property
    def responses(self) -> int:
        """How many there were so far."""
        return self.frames["< response.created"]

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return 0.0 if self.began is None else self.clock() - self.began

    def start(self) -> None:
        """The story begins now."""
        self.began = self.clock()

    def note(self, who: Who, text: str) -> None:
        """Something happened."""
        self.settle()
        self.notes.append(Note(self.now, who, text))
        if who != "wire":
            self.on_note(self.notes[-1])

    def settle(self) -> None:
        """Tell of the note that could still have repeated."""
        if self.notes and self.notes[-1].who == "wire":
            self.on_note(self.notes[-1])

    def frame(self, arrow: str, kind: str, detail: str) -> None:
        """A frame passed; a run of the same kind is one note."""
        self.frames[f"{arrow} {kind}"] += 1
        text = f"{arrow} {kind}{detail}"
        last = self.notes[-1] if self.notes else None
        if last is not None and last.who == "wire" and last.text == text and kind.endswith(".delta"):
            self.notes[-1] = attrs.evolve(last, repeats=last.repeats + 1)
        else:
            self.note("wire", text)

    def hook(self, name: str, members: Any) -> None:
        """What the server tells of itself between the frames."""
        now = self.now
        if name == "slot_acquire":
            self.server.enter("samples", now)
        elif name == "suspend":
            self.server.enter("suspended", now)
            self.suspensions += 1
            waiting = len(members["pending"])
            self.note("server", f"suspended: waits for {waiting} output{'s' if waiting > 1 else ''}")
        elif name == "resume":
            self.note("server", "resumes where it was")
        elif name == "post_inference":
            self.server.enter("", now)
            self.ended = now

    def tool_starts(self, name: str, arguments: str) -> None:
        """The client runs a tool."""
        self._running.append(name)
        self.client.enter(name, self.now)
        self.note("client", f"runs {name}({arguments})")

    def tool_ends(self, name: str, outcome: str) -> None:
        """It has ended."""
        self._running.remove(name)
        self.client.enter(self._running[-1] if self._running else "", self.now)
        self.note("client", f"{name}: {outcome}")

    def says(self, piece: str) -> None:
        """The agent says, or thinks, a bit more."""
        self.saying += piece

    def said(self, *, thought: bool = False) -> None:
        """It has finished what it was saying."""
        for line in filter(None, self.saying.split("\n")):
            self.note("agent", f"({line})" if thought else line)
        self.saying = ""
