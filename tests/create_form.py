"""What the tests of the create form share: a model that answers what it is told last, and a client that takes turns.

The model looks at the newest item only, so it says the same whether its sampling is new or goes on from a response before.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from engine import vocabulary
from engine.config import DEFAULT_LIMITS, Limits
from engine.models import ModelEntry, ModelTable
from engine.samplers.base import Appended, CallEnd, CallInput, CallStart, Prompt, Step, Steps
from engine.samplers.paced import Pace, Paced
from engine.samplers.scripted import END, Raise, Stall, call, say
from engine.testing import MemoryTrace, Served, serving, simulate, simulated_engine
from protocol.items import Item, Message, text_of
from tests.scenarios import CUSTOM, FUNCTION, TERMINAL, Outcome, Talk, findings, wait_idle

STALL_SECONDS: Final = 10.0
"""How long the model pauses when it is told to `wait`."""
WAITS: Final[Sequence[Step | Stall]] = [*say("Wait."), Stall(STALL_SECONDS), *say("Done."), END]
ACTIONS: Final[Mapping[str, Sequence[Step | Stall | Raise]]] = {
    "call": [call("f"), END],
    "patch": [call("patch", "*** Begin"), END],
    "search": [call("tool_search", '{"query":"x"}'), END],
    "search slowly": [
        (CallStart(0, "tool_search"),),
        Stall(STALL_SECONDS),
        (CallInput(0, '{"query":"x"}'), CallEnd(0)),
        END,
    ],
    "use it": [call("found", "raw"), END],
    "both": [call("f"), call("patch", "*** Begin", index=1), END],
    "wait": WAITS,
    "wait and call": [*say("Wait."), Stall(STALL_SECONDS), call("f"), END],
    "wait with the end": [*say("Wait."), Stall(STALL_SECONDS), END],
    "call, and wait with the end": [call("f"), *say("Wait."), Stall(STALL_SECONDS), END],
    "call slowly": [
        (CallStart(0, "f"),),
        Stall(STALL_SECONDS),
        (CallInput(0, "{}"), CallEnd(0)),
        END,
    ],
    "call both slowly": [
        (CallStart(0, "f"),),
        Stall(STALL_SECONDS),
        (CallInput(0, "{}"), CallEnd(0)),
        call("patch", "*** Begin", index=1),
        END,
    ],
    "fail": [*say("Hm."), Raise(RuntimeError("no GPU"))],
    "wait and fail": [*say("Hm."), Stall(STALL_SECONDS), Raise(RuntimeError("no GPU"))],
    "talk": [*say("one two three four five", step_characters=4), END],
}
"""What the model does on these messages; it repeats every other one."""


class Parrot:
    """Does what the newest item says; remembers what it was asked."""

    def __init__(self) -> None:
        self.open_samplings = 0
        self.contexts: list[tuple[Item, ...]] = []
        """All that the model knew at the start of each segment."""
        self.fed: list[str] = []
        """What each segment was given anew, as text."""
        self.stopped_at: list[float] = []
        """When a segment was broken off."""

    def open(self, _prompt: Prompt) -> "_Parroting":
        """Start a sampling."""
        self.open_samplings += 1
        return _Parroting(self)


class _Parroting:
    def __init__(self, parrot: Parrot) -> None:
        self._parrot = parrot
        self._known: tuple[Item, ...] = ()
        self._closed = False

    async def sample(self, appended: Appended) -> Steps:
        self._known += appended.items
        self._parrot.contexts.append(self._known)
        self._parrot.fed.append(vocabulary.decode(appended.tokens))
        over = False
        try:
            for act in _answer_to(appended.items):
                if isinstance(act, Stall):
                    await trio.sleep(act.seconds)
                elif isinstance(act, Raise):
                    raise act.error
                else:
                    await trio.lowlevel.checkpoint()
                    over = act is END
                    yield act
        finally:
            if not over:
                self._parrot.stopped_at.append(trio.current_time())

    async def aclose(self) -> None:
        self._parrot.open_samplings -= not self._closed
        self._closed = True
        await trio.lowlevel.checkpoint()


def _answer_to(items: Sequence[Item]) -> Sequence[Any]:
    newest = items[-1] if items else None
    text = text_of(newest.content) if isinstance(newest, Message) else "ok"
    return ACTIONS.get(text) or [*say(f"You said {text}."), END]


class Caller(Talk):
    """A client of the create form, with `store: false` unless a test says otherwise."""

    def create(self, text: Any = "go", **members: Any) -> None:
        """Ask for a response."""
        defaults: dict[str, Any] = {"tools": [FUNCTION, CUSTOM], "store": False}
        super().create(text, **{**defaults, **members})

    async def turn(self, text: Any = "go", **members: Any) -> dict[str, Any]:
        """Ask for a response and read up to its end; the final resource. Fails on any other answer."""
        self.create(text, **members)
        frame = await self.until(*TERMINAL, "error")
        assert frame["type"] != "error", frame
        resource: dict[str, Any] = frame["response"]
        return resource

    async def refused(self, text: Any = "go", **members: Any) -> dict[str, Any]:
        """Ask for a response that is refused; the `error` frame, which must be the next one."""
        self.create(text, **members)
        frame = await self.next()
        assert frame["type"] == "error", frame
        return frame

    async def misses(self, response_id: str, **members: Any) -> None:
        """This response cannot be continued here; the answer is the one of an id that never was."""
        frame = await self.refused("more", previous_response_id=response_id, **members)
        lane = {"stream_id": members["stream_id"]} if "stream_id" in members else {}
        assert frame == not_found(response_id) | lane


Program = Callable[[Caller], Awaitable[None]]


class Left(Outcome):
    """What a run left behind."""

    def heard(self, segment: int = -1) -> list[str]:
        """The messages in the context of a segment, when the model began it."""
        return [text_of(item.content) for item in self.sampler.contexts[segment] if isinstance(item, Message)]

    def kinds(self, segment: int = -1) -> list[str]:
        """The types of the items there."""
        return [item.type for item in self.sampler.contexts[segment]]


def run(
    program: Program,
    *,
    limits: Limits = DEFAULT_LIMITS,
    models: ModelTable | None = None,
    may_be_empty: bool = False,
    pace: Pace | None = None,
) -> Left:
    """Run a program against an engine whose model is a parrot, at once or at a `pace`; its trace and remains are checked."""
    left = Left()
    simulate(lambda: _converse(program, left, limits, models, pace), seed=1)
    assert findings(left, may_be_empty=may_be_empty) == []
    return left


async def _converse(
    program: Program, left: Left, limits: Limits, models: ModelTable | None, pace: Pace | None
) -> None:
    left.sampler = Parrot()
    left.engine = simulated_engine(
        Paced(left.sampler, pace, tick_seconds=limits.tick_seconds) if pace else left.sampler,
        seed=1,
        limits=limits,
        models=models or ModelTable((ModelEntry(name="m", context_tokens=4000),)),
        on_report=left.reports.append,
    )
    trace = MemoryTrace()
    async with serving(left.engine, trace=trace) as served:
        async with connect(served) as caller:
            left.frames = caller.frames
            await program(caller)
        await wait_idle(served)
    left.lines = trace.lines()


@asynccontextmanager
async def connect(served: Served) -> AsyncIterator[Caller]:
    """A further connection to the server of a run."""
    async with served.connect_raw(append=False) as raw:
        yield Caller(raw, "create", served)


def not_found(response_id: str) -> dict[str, Any]:
    """The one answer for every response that cannot be continued (reference 4.4)."""
    return error_frame(
        "previous_response_not_found",
        f"Previous response with id '{response_id}' not found.",
        "previous_response_id",
    )


def error_frame(
    code: str | None,
    message: str,
    param: str | None = None,
    *,
    status: int = 400,
    type: str = "invalid_request_error",  # noqa: A002  # the wire's own name
) -> dict[str, Any]:
    """An `error` frame on the default lane, whole."""
    error = {"type": type, "code": code, "message": message, "param": param}
    return {"type": "error", "status": status, "error": error}


def user(text: str) -> dict[str, Any]:
    """A message."""
    return {"type": "message", "role": "user", "content": text}


def text_in(resource: Mapping[str, Any]) -> str:
    """What the model wrote in a response."""
    parts = [part for item in resource["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)
