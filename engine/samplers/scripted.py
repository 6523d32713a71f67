"""A sampler with exact steps, for tests: what it says is what is written, when it is written.

A script is a list of segments, a segment a list of steps and of *acts*: stall, raise, or end without a word.
A step may be any split of parts, also an odd one. The n-th `sample()` of a rollout plays the n-th segment.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import trio

from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Part,
    Prefilled,
    Prompt,
    Sampling,
    Step,
    Steps,
    Text,
)


@attrs.frozen
class Stall:
    """Sample nothing for so long."""

    seconds: float


@attrs.frozen
class Raise:
    """Fail here."""

    error: Exception


@attrs.frozen
class Silence:
    """Stop without an `End`, as broken backends do."""


Act: TypeAlias = Stall | Raise | Silence
Segment: TypeAlias = Sequence[Step | Act]
Script: TypeAlias = Sequence[Segment]


def say(text: str, *, step_characters: int = 8) -> list[Step]:
    """Steps that write `text` in pieces."""
    return [(Text(text[at : at + step_characters]),) for at in range(0, len(text), step_characters)]


def call(
    name: str,
    arguments: str = "{}",
    *,
    index: int = 0,
    namespace: str | None = None,
    call_id: str | None = None,
) -> Step:
    """One step that is a whole call."""
    parts: tuple[Part, ...] = (
        CallStart(index, name, namespace, call_id),
        CallInput(index, arguments),
        CallEnd(index),
    )
    return parts


END: Step = (End(),)


def _told(prefilled: Prefilled, segment: Segment) -> Segment:
    """The segment with `prefilled` in its first step, or in a step before its first act."""
    first = segment[0] if segment else None
    if first is None or isinstance(first, Act):
        return ((prefilled,), *segment)
    return ((prefilled, *first), *segment[1:])


class Scripted:
    """Plays the same script to every rollout, or the script that a function makes of the prompt."""

    keeps_text_format = True  # whoever wrote the script knows what is asked

    def __init__(self, script: Script | Callable[[Prompt], Script]) -> None:
        self._script = script
        self.open_samplings = 0
        """Samplings not yet closed; 0 when nothing leaks."""

    def open(self, prompt: Prompt) -> Sampling:
        """Start a rollout."""
        script = self._script(prompt) if callable(self._script) else self._script
        self.open_samplings += 1
        return _Playing(self, script)


class _Playing:
    def __init__(self, sampler: Scripted, script: Script) -> None:
        self._sampler = sampler
        self._segments = iter(script)
        self._fed_tokens = 0
        self._closed = False

    async def sample(self, appended: Appended) -> Steps:
        for step in _told(appended.prefilled, next(self._segments, [END])):
            if isinstance(step, Stall):
                await trio.sleep(step.seconds)
            elif isinstance(step, Raise):
                raise step.error
            elif isinstance(step, Silence):
                return
            else:
                await trio.lowlevel.checkpoint()
                yield step

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._sampler.open_samplings -= 1
        await trio.lowlevel.checkpoint()
