"""Runs the demo: engine, client and workshop in one process, one rollout between them, over a real socket, in any form."""

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import orjson
import trio

from demos.agents.report import report_of
from demos.live.measured import Measured, changes
from demos.live.screen import LiveScreen, PlainScreen, Screen
from demos.live.story import TERMINAL, Story
from demos.workshop import BROKEN_PROJECTS, DEFAULT_PROJECT, Workshop, copied_project
from engine.client import FORMS, Client, ClientRollout, Form, RolloutRefusedError, connect
from engine.config import Limits
from engine.engine import Engine, RolloutReport
from engine.local import local_server
from engine.recorder import HttpRecorder, NoHttpRecorder, NoRecorder, Recorder, TraceFile
from engine.samplers.registry import make_sampler
from engine.server import printable
from protocol.events import OutputTextDelta, OutputTextDone, ReasoningTextDelta, ReasoningTextDone

PROMPT = "The tests of this project fail. Please repair it."
MODEL = "repair"
REDRAW_SECONDS = 1 / 15


@attrs.frozen(kw_only=True)
class DemoSettings:
    """What to show, and how."""

    form: Form
    rate: float
    project: Path | None
    """None: the built-in one."""
    trace: Path | None
    json: Path | None
    plain: bool
    colour: bool


async def run_demo(settings: DemoSettings) -> int:
    """Run it; 0 if the tests pass at the end, else 1. A checkpoint."""
    folder = Path(tempfile.mkdtemp(prefix="suspended-demo-"))
    try:
        project = (settings.project or BROKEN_PROJECTS / DEFAULT_PROJECT).resolve()
        copy = await trio.to_thread.run_sync(copied_project, project, folder)
        measured = await _repair(settings, project, Workshop(copy))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if settings.json is not None:
        settings.json.write_bytes(orjson.dumps(measured.as_json(), option=orjson.OPT_INDENT_2) + b"\n")
    return 0 if measured.passed else 1


async def _repair(settings: DemoSettings, project: Path, workshop: Workshop) -> Measured:
    story = Story(trio.current_time)
    screen: Screen = PlainScreen(sys.stdout) if settings.plain else LiveScreen(colour=settings.colour)
    story.on_note = screen.note
    reports: list[RolloutReport] = []
    limits = Limits()
    engine = Engine.make(
        make_sampler(f"policy:demos.agents.repair?rate={settings.rate:g}", limits),
        limits=limits,
        on_report=reports.append,
    )
    with _trace_file(settings.trace) as trace:
        async with local_server(engine, trace=_Watching(story, trace)) as url:
            title = f"{settings.form} form, {FORMS[settings.form].url(url)}, a copy of {project}"
            with screen.showing(story, title):
                async with (
                    _redrawn(screen),
                    connect(url, form=settings.form, recorder=_Frames(story)) as client,
                ):
                    problem = await _roll(client, workshop, story)
                    bytes_out, bytes_in = client.bytes_out, client.bytes_in
                story.settle()
    # what the agent says of its work is not believed: the tests are run once more
    output = await workshop.run_tests()
    measured = Measured(
        form=settings.form,
        problem=problem,
        tests=report_of(output),
        frames=story.frames,
        seconds=story.ended,
        bytes_out=bytes_out,
        bytes_in=bytes_in,
        reports=reports,
        last_words=next((note.text for note in reversed(story.notes) if note.who == "agent"), ""),
        diff=await trio.to_thread.run_sync(changes, project, workshop.root),
    )
    screen.summary(measured)
    return measured


async def _roll(client: Client, workshop: Workshop, story: Story) -> str | None:
    """The rollout; what went wrong with it, if anything."""
    story.start()
    functions = {name: _told(name, function, story) for name, function in workshop.tools().items()}
    async with client.rollout(
        model=MODEL, input=PROMPT, tools=workshop.schemas(), functions=functions
    ) as rollout:
        try:
            await _listen(rollout, story)
        except RolloutRefusedError as error:
            return f"refused: {error}"
        if rollout.response is None:
            return f"the connection ended before the rollout did ({rollout.lost})"
        return (
            None if rollout.response.status == "completed" else f"the response is {rollout.response.status}"
        )


async def _listen(rollout: ClientRollout, story: Story) -> None:
    async for event in rollout:
        if isinstance(event, OutputTextDelta | ReasoningTextDelta):
            story.says(event.delta)
        elif isinstance(event, OutputTextDone | ReasoningTextDone):
            story.said(thought=isinstance(event, ReasoningTextDone))


def _told(name: str, function: Callable[..., Awaitable[str]], story: Story) -> Callable[..., Awaitable[str]]:
    """A tool that tells the story when it runs."""

    async def tool(**arguments: Any) -> str:
        story.tool_starts(name, printable(", ".join(map(_short, arguments.values()))))
        output = "error: interrupted"
        try:
            output = await function(**arguments)
        finally:
            story.tool_ends(name, printable(_outcome(name, output)))
        return output

    return tool


def _short(argument: object) -> str:
    text = str(argument)
    return text if len(text) <= 40 and "\n" not in text else f"… {len(text.encode()):,} bytes"


def _outcome(name: str, output: str) -> str:
    if output.startswith("error:"):
        return output
    if name == "run_tests":
        return report_of(output).in_words
    if name == "list_files":
        return f"{len(output.splitlines())} files"
    return f"{len(output.encode()):,} bytes" if name == "read_file" else output


@contextmanager
def _trace_file(path: Path | None) -> Iterator[TraceFile | None]:
    trace = TraceFile(path) if path is not None else None
    try:
        yield trace
    finally:
        if trace is not None:
            trace.close()


@asynccontextmanager
async def _redrawn(screen: Screen) -> AsyncIterator[None]:
    """Look at the story again and again while the block runs."""

    async def redraw() -> None:
        while True:
            screen.refresh()
            await trio.sleep(REDRAW_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(redraw)
        yield
        nursery.cancel_scope.cancel()


@attrs.frozen
class _Watching:
    """The server's recorders: the trace's, if there is one, with the story listening to the hooks."""

    _story: Story
    _trace: TraceFile | None

    def recorder(self, dialect: str, deadline_seconds: float) -> Recorder:
        recorder = self._trace.recorder(dialect, deadline_seconds) if self._trace else NoRecorder()
        return _Hooks(self._story, recorder)

    def http_recorder(self) -> HttpRecorder:
        return _HttpHooks(self._story, self._trace.http_recorder() if self._trace else NoHttpRecorder())


@attrs.frozen
class _Hooks:
    _story: Story
    _next: Recorder

    def frame_in(self, text: bytes) -> None:
        self._next.frame_in(text)

    def frame_out(self, text: bytes) -> None:
        self._next.frame_out(text)

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        self._story.hook(name, members)
        self._next.hook(name, members)

    def close(self) -> None:
        self._next.close()


class _HttpHooks:
    """The same over HTTP, of one request."""

    def __init__(self, story: Story, to: HttpRecorder) -> None:
        self._story = story
        self._hook = to.hook
        self.request, self.response, self.event = to.request, to.response, to.event
        self.done, self.close = to.done, to.close

    def hook(self, name: str, members: Mapping[str, Any]) -> None:
        self._story.hook(name, members)
        self._hook(name, members)


class _Frames(NoRecorder):
    """The client's recorder: every frame by its type, and what the frames say of calls and outputs."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._open_calls: set[str] = set()

    def frame_in(self, text: bytes) -> None:
        frame = orjson.loads(text)
        items = frame["input"] if isinstance(frame.get("input"), list) else []
        outputs = {item["call_id"] for item in items if str(item.get("type")).endswith("_output")}
        new = len(outputs & self._open_calls)
        self._open_calls -= outputs
        detail = f" with {_counted(new, 'output')}" if new else ""
        if len(items) > new:
            detail += f" and {_counted(len(items) - new, 'earlier item')}"
        self._story.frame(">", frame["type"], f"{detail}, {len(text):,} bytes")

    def frame_out(self, text: bytes) -> None:
        frame = orjson.loads(text)
        detail = ""
        if frame["type"] == "response.output_item.done" and "call_id" in frame["item"]:
            self._open_calls.add(frame["item"]["call_id"])
        elif frame["type"] in TERMINAL and self._open_calls:
            detail = f", {_counted(len(self._open_calls), 'call')} unanswered"
        self._story.frame("<", frame["type"], detail)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
