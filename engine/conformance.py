"""What a sampler must do, run against it: the eight rules of `engine.samplers.base`, in virtual time.

    def test_my_sampler():
        check_sampler(MySampler, items=(Message("user", "hello"),))

The rollout it drives is the sampler's own: it is given outputs for whatever tools it calls, until a segment calls none.
Then the same rollout is closed at each step, and cancelled at each step of the scheduler; all this once more by `push`,
if the sampling has that.
"""

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs
import trio
import trio.testing

from engine import vocabulary
from engine.conformance_push import Receiver, require
from engine.nursery import open_outliving_nursery
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Part,
    Prefilled,
    Prompt,
    Sampler,
    Sampling,
    Step,
    Steps,
    Text,
    Thought,
)
from engine.simulation import ActAtStep, simulate
from protocol.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Output,
    OutputText,
)

CLOSE_SECONDS: Final = 1.0
"""How long `aclose()` may take: it does not wait for a peer."""
MAX_SEGMENTS: Final = 1000
"""A sampler that calls tools for ever is not at fault, but cannot be checked to its end."""

Answer = Callable[[FunctionCall | CustomToolCall], str]


@attrs.frozen
class _Case:
    """One way to run the sampler's rollout."""

    make_sampler: Callable[[], Sampler]
    prompt: Prompt
    items: tuple[Item, ...]
    answer: Answer
    autojump_threshold: float
    reads_first: bool = False
    """Its first segment is only read."""
    pushed: bool = False
    """Its steps come by `push`."""
    said: list[Part] = attrs.field(factory=list)
    """What the last run heard."""
    ways: set[str] = attrs.field(factory=set)
    """How a sampling may be asked for a segment, but for `sample`."""

    def run(
        self, *, stop_after: int | None = None, raise_after: int | None = None, act: ActAtStep | None = None
    ) -> int:
        """Drive a new rollout, then close it, twice; returns how many steps it took, 0 if it was cancelled."""
        self.said.clear()
        return simulate(
            self._run,
            stop_after,
            raise_after,
            act,
            seed=0,
            instruments=[] if act is None else [act],
            autojump_threshold=self.autojump_threshold,
        )

    async def _run(self, stop_after: int | None, raise_after: int | None, act: ActAtStep | None) -> int:
        taken = 0
        sampler = self.make_sampler()
        async with open_outliving_nursery() as nursery:
            background: Callable[[], Awaitable[None]] | None = getattr(sampler, "run", None)
            if background is not None:
                nursery.start_soon(background)
            sampling = sampler.open(self.prompt)
            self.ways.update({"push"} & set(dir(sampling)))
            with trio.CancelScope() as scope:
                if act is not None:
                    act.act = scope.cancel
                taken = await _drive(sampling, self, scope, stop_after=stop_after, raise_after=raise_after)
            for _ in range(2):
                with trio.move_on_after(CLOSE_SECONDS) as closing:
                    await sampling.aclose()
                require(not closing.cancelled_caught, 3, f"aclose() took more than {CLOSE_SECONDS:g} s")
            nursery.cancel_scope.cancel()
        return taken


def check_sampler(
    make_sampler: Callable[[], Sampler],
    *,
    prompt: Prompt | None = None,
    items: Sequence[Item] = (Message("user", "hello"),),
    answer: Answer = lambda call: f"the output of {call.name}",
    autojump_threshold: float = 0.0,
) -> int:
    """Check a sampler by its rules; `AssertionError` names the one it breaks. Returns how many runs that took.

    Runs trio by itself, so call it from outside. `answer`: what the tools say. `autojump_threshold`: see `simulate`.
    """
    prompt = prompt or Prompt("resp_1", "m")
    case = _Case(make_sampler, prompt, tuple(items), answer, autojump_threshold)
    runs = _check(case)
    if "push" in case.ways:
        pulled = list(case.said)
        pushed = attrs.evolve(case, pushed=True, said=[])
        steps = pushed.run()
        require(pushed.said == pulled, 8, f"pushed are {pushed.said}, and pulled {pulled}")
        for raise_after in range(steps):
            pushed.run(raise_after=raise_after)
        runs += 1 + steps + _check(pushed)
    return runs


def _check(case: _Case) -> int:
    """Each way to run it; how many that were. The last is a whole one."""
    steps = case.run()
    if getattr(case.make_sampler(), "reads_ahead", False):
        attrs.evolve(case, reads_first=True).run()
    for stop_after in range(steps + 1):
        case.run(stop_after=stop_after)
    act = ActAtStep(1)
    while case.run(act=act) == 0 or act.acted:
        act = ActAtStep(act.step + 1)
    return 1 + steps + 1 + act.step


async def _drive(
    sampling: Sampling,
    case: _Case,
    scope: trio.CancelScope,
    *,
    stop_after: int | None,
    raise_after: int | None,
) -> int:
    """Take steps to the end of the rollout, or so many; returns how many it took. `scope` may get cancelled."""
    taken, new, context_tokens = 0, case.items, 0
    for number in range(MAX_SEGMENTS):
        only_read = case.reads_first and number == 0
        tokens = array("I", vocabulary.encode("".join(map(repr, new))))
        context_tokens += len(tokens)
        segment = _Segment(case.said)
        appended = Appended(new, tokens, context_tokens, only_read=only_read)
        watch, left = _Watch(), None if stop_after is None else stop_after - taken
        if not case.pushed:
            taken += await _pull(sampling.sample(appended), segment, scope, left)
        elif left != 0:
            raises = None if raise_after is None else raise_after - taken
            taken += await Receiver(segment.take_all, left, raises).receive(sampling, appended)
        if not segment.over:
            return taken
        require(watch.passed, 2, "a segment without a checkpoint starves all other rollouts")
        if only_read:
            require(
                segment.tokens == 0 and not segment.said(), 7, "a segment that is only read says something"
            )
            new = ()
            continue
        context_tokens += segment.tokens
        calls = segment.calls(case.prompt.tools)
        if not calls:
            return taken
        new = (*segment.said(), *calls, *(_output(call, case.answer(call)) for call in calls))
    raise AssertionError(
        f"the sampler still calls tools after {MAX_SEGMENTS} segments: pass an `answer` that ends it"
    )


async def _pull(steps: Steps, segment: "_Segment", scope: trio.CancelScope, limit: int | None) -> int:
    """Take steps to the end of the segment, or so many; how many."""
    taken = 0
    try:
        while not segment.over and taken != limit:
            segment.take(await _next(steps, scope))
            taken += 1
        if segment.over:
            await _require_nothing_left(steps)
    except AssertionError:
        with suppress(RuntimeError, BaseExceptionGroup):  # it is broken anyway; its rule has been found
            await steps.aclose()
        raise
    await _close(steps)
    return taken


async def _next(steps: Steps, scope: trio.CancelScope) -> Step:
    """The next step. A scope or nursery that is left open by a `yield` crosses the one in here, and trio says so."""
    crossed = None
    cancelled, watch = scope.cancel_called, _Watch()
    try:
        with trio.CancelScope():
            step = await _step_or_nothing(steps)
    except RuntimeError as error:
        crossed = error
    require(crossed is None, 6, f"a cancel scope or nursery is held across a yield ({crossed})")
    require(not (cancelled and watch.passed), 2, "a cancellation was swallowed")
    require(bool(step), 1, "a step is empty, or the segment stopped without an End")
    return step


async def _close(steps: Steps) -> None:
    ignored = None
    try:
        await steps.aclose()
    except RuntimeError as error:
        ignored = error
    require(ignored is None, 2, f"sample() goes on when it is closed ({ignored})")


async def _require_nothing_left(steps: Steps) -> None:
    more = await _step_or_nothing(steps)
    require(not more, 1, f"{more} comes after the step with the End")


async def _step_or_nothing(steps: Steps) -> Step:
    try:
        return await anext(steps)
    except StopAsyncIteration:
        return ()


class _Watch:
    """Tells whether a checkpoint was passed since it was made."""

    def __init__(self) -> None:
        self._block = trio.testing.assert_checkpoints()
        self._block.__enter__()

    @property
    def passed(self) -> bool:
        try:
            self._block.__exit__(None, None, None)
        except AssertionError:
            return False
        return True


@attrs.define
class _Call:
    start: CallStart
    pieces: list[str] = attrs.field(factory=list)
    over: bool = False


@attrs.define
class _Segment:
    """What a segment said, checked part by part."""

    parts: list[Part]
    over: bool = False
    tokens: int = 0
    _texts: list[str] = attrs.field(factory=list)
    _calls: dict[int, _Call] = attrs.field(factory=dict)

    def take_all(self, step: Step) -> bool:
        """As `take`; True when the segment is over."""
        self.take(step)
        return self.over

    def take(self, step: Step) -> None:
        self.parts += step
        for part in step:
            require(not self.over, 1, f"{part} comes after the End")
            require(part.tokens >= 0, 1, f"{part} stands for a negative number of tokens")
            self.tokens += part.tokens
            match part:
                case Text(text) | Thought(text):
                    _require_whole(text)
                    self._texts.append(text)
                case CallStart(index=index):
                    require(index not in self._calls, 1, f"call {index} begins twice in a segment")
                    self._calls[index] = _Call(part)
                case CallInput(index, text):
                    _require_whole(text)
                    self._open_call(index).pieces.append(text)
                case CallEnd(index):
                    self._open_call(index).over = True
                case End():
                    self.over = True
                case Prefilled(reused, computed):
                    require(reused >= 0 and computed >= 0, 1, f"{part} is negative")

    def _open_call(self, index: int) -> _Call:
        call = self._calls.get(index)
        require(call is not None and not call.over, 1, f"a part of call {index}, which is not open")
        assert call is not None
        return call

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> list[FunctionCall | CustomToolCall]:
        """The calls as items; their kinds are those of the tools."""
        return [_item(call, place, tools) for place, call in self._calls.items()]

    def said(self) -> tuple[Item, ...]:
        """The text as an item, if there is any."""
        text = "".join(self._texts)
        return (Message("assistant", (OutputText(text),), "msg_1"),) if text else ()


def _item(call: _Call, place: int, tools: Sequence[Mapping[str, Any]]) -> FunctionCall | CustomToolCall:
    start, written = call.start, "".join(call.pieces)
    custom = any(tool.get("type") == "custom" and tool.get("name") == start.name for tool in tools)
    call_id = start.call_id or f"call_{place}"
    if custom:
        return CustomToolCall(call_id, start.name, written, namespace=start.namespace)
    return FunctionCall(call_id, start.name, written or "{}", namespace=start.namespace)


def _output(call: FunctionCall | CustomToolCall, text: str) -> Output:
    answer = FunctionCallOutput if isinstance(call, FunctionCall) else CustomToolCallOutput
    return answer(call.call_id, text)


def _require_whole(text: str) -> None:
    whole = True
    try:
        text.encode()
    except UnicodeEncodeError:
        whole = False
    require(whole, 4, f"{text!r} is not made of whole characters")
