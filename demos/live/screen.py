"""Two ways to show the story: lines that can be pasted, and a picture that moves."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demos.live.measured import Measured
from demos.live.story import Note, Story
from engine.server import printable

CELL_SECONDS = 0.05
MAX_CELLS = 100
CELLS_PER_SECOND = round(1 / CELL_SECONDS)
SPENT = {
    "samples": ("█", "green"),
    "suspended": ("░", "yellow"),
    "run_tests": ("█", "magenta"),
    "": (" ", ""),
}
"""How a lane's cell looks; any tool but `run_tests` looks like `FILE_TOOL`."""
FILE_TOOL = ("▄", "cyan")
COLOURS = {"server": "yellow", "client": "magenta", "agent": "bold", "wire": "dim"}


class Screen(Protocol):
    """Where the demo is shown."""

    def note(self, note: Note) -> None:
        """Something happened."""
        ...

    def refresh(self) -> None:
        """A moment has passed."""
        ...

    def showing(self, story: Story, title: str) -> AbstractContextManager[object]:
        """Show the story while the block runs."""
        ...

    def summary(self, measured: Measured) -> None:
        """Show what it came to."""
        ...


class PlainScreen:
    """A line for each thing."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def _print(self, line: str = "") -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    def note(self, note: Note) -> None:
        """Print it."""
        times = f" x {note.repeats}" if note.repeats > 1 else ""
        self._print(f"{note.seconds:7.3f} s  {note.who:6}  {printable(note.text)}{times}")

    def refresh(self) -> None:
        """Lines do not move."""

    def showing(self, story: Story, title: str) -> AbstractContextManager[object]:  # noqa: ARG002  # notes tell it
        """Print the title."""
        self._print(f"suspended demo: {printable(title)}\n")
        return nullcontext()

    def summary(self, measured: Measured) -> None:
        """Print the tables, the changes and the verdict."""
        self._print()
        for name, value in measured.rows():
            self._print(f"{name:14}  {value}")
        self._print("\nwhere the server's time went:")
        for name, spent_ms, share in measured.ledger_rows():
            self._print(f"{name:14}  {spent_ms:10.2f} ms  {share:6.1%}")
        self._print(f"\nchanges:\n{measured.diff or 'none'}")
        self._print(measured.verdict)


class LiveScreen:
    """The two lanes as they grow, the agent's words, and what passes between."""

    def __init__(self, *, colour: bool) -> None:
        self._console = Console(no_color=not colour, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._story = Story(lambda: 0.0)
        self._title = ""

    def note(self, note: Note) -> None:
        """Shown at the next moment."""

    def refresh(self) -> None:
        """Draw it anew."""
        self._live.update(self._picture(), refresh=True)

    @contextmanager
    def showing(self, story: Story, title: str) -> Iterator[None]:
        """Draw while the block runs; the timeline stays."""
        self._story, self._title = story, title
        with self._live:
            yield
        self._console.print(Group(self._head(), *self._timeline(limit=20)))

    def _picture(self) -> RenderableType:
        story, height = self._story, self._console.size.height
        top = [self._head(), *self._timeline(limit=2 if height < 36 else 4)]
        agent = [note for note in story.notes if note.who == "agent"][-5:]
        words = [
            Text(f"  {note.text}", "dim" if note.text.startswith("(") else "", no_wrap=True) for note in agent
        ]
        words.append(Text(f"  {printable(story.saying[-200:])}▌", no_wrap=True, overflow="ellipsis"))
        rest = [note for note in story.notes if note.who != "agent"]
        room = max(3, height - len(top) - len(words) - 6)
        passing = [self._line(note) for note in rest[-room:]]
        passing += [Text("")] * (room - len(passing))
        return Group(
            *top, Text("agent", "bold"), *words, Text(""), Text("what passes", "bold"), *passing, self._foot()
        )

    def _head(self) -> Text:
        return Text(f"suspended demo: {printable(self._title)}\n", "bold", no_wrap=True, overflow="ellipsis")

    def _foot(self) -> Text:
        story = self._story
        now = story.server.current or ("is over" if story.responses else "…")
        if story.client.current:
            now += f", the client runs {story.client.current}"
        events = sum(count for name, count in story.frames.items() if name.startswith("<"))
        which = "one response" if story.responses <= 1 else f"response {story.responses}"
        return Text(
            f"{which}: {now} · {story.suspensions} suspensions · {events:,} events",
            "reverse",
            no_wrap=True,
        )

    def _line(self, note: Note) -> Text:
        times = f" x {note.repeats}" if note.repeats > 1 else ""
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"  {note.seconds:5.2f} s  ", "dim")
        line.append(f"{note.who:7}", COLOURS[note.who])
        line.append(f"{note.text}{times}", COLOURS[note.who] if note.who == "wire" else "")
        return line

    def _timeline(self, limit: int) -> list[Text]:
        """The last rows of the lanes; each row begins at a whole second."""
        story = self._story
        seconds = max(1, min(MAX_CELLS, self._console.size.width - 18) // CELLS_PER_SECOND)
        now = story.ended or story.now
        rows: list[Text] = []
        for row in range(int(now // seconds) + 1)[-limit:]:
            start, end = row * seconds, min((row + 1) * seconds, now)
            for label, lane in (("server", story.server), ("client", story.client)):
                text = Text(f"{start:4d} s " if label == "server" else " " * 7, "dim", no_wrap=True)
                text.append(f"{label} ", "bold")
                for what in lane.cells(start, end, CELL_SECONDS):
                    text.append(*SPENT.get(what, FILE_TOOL))
                rows.append(text)
            rows.append(Text(""))
        return [_legend(), *rows]

    def summary(self, measured: Measured) -> None:
        """Print the tables, the changes and the verdict."""
        numbers = Table.grid(padding=(0, 2))
        for name, value in measured.rows():
            numbers.add_row(Text(name, "bold"), value)
        ledger = Table.grid(padding=(0, 2))
        ledger.add_column()
        ledger.add_column(justify="right")
        ledger.add_column(justify="right")
        for name, spent_ms, share in measured.ledger_rows():
            ledger.add_row(Text(name, "bold"), f"{spent_ms:,.1f} ms", f"{share:.1%}")
        sides = Table.grid(padding=(0, 6))
        sides.add_row(numbers, ledger)
        self._console.print(sides)
        self._console.print()
        self._console.print(Text(f"{printable(measured.last_words)}\n"))
        for line in measured.diff.rstrip().splitlines():
            colour = {"+": "green", "-": "red", "@": "dim"}.get(line[:1], "")
            self._console.print(Text(f"  {line}", colour))
        self._console.print(
            Text(f"\n{printable(measured.verdict)}", "bold green" if measured.passed else "bold red")
        )


def _legend() -> Text:
    text = Text(" " * 14, no_wrap=True, overflow="ellipsis")
    for what, words in (
        ("samples", "sampling"),
        ("suspended", "suspended"),
        ("run_tests", "runs tests"),
        ("file", "reads, writes"),
    ):
        text.append(*SPENT.get(what, FILE_TOOL))
        text.append(f" {words}   ", "dim")
    return text
