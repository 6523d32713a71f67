"""A rollout's numbers as words: texts of exactly so many tokens, the same in each arm.

`ClientContent` is what the client sends, `ScriptedWork` the model that says what the rollout's steps sample.
Which step it is, the model reads off the conversation: so many outputs as it holds, so many steps are over. So the same
script serves a rollout that is one response and one whose every step is another request.
"""

import random
from itertools import chain
from typing import Any, Final

import attrs
import orjson
import trio

from demos.lab.workload import Work
from engine import vocabulary
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Part,
    Prompt,
    Sampling,
    Steps,
    Text,
)
from protocol.items import FunctionCallOutput, InputText, Item, Message, OutputText

TOOL: Final = "work"
INSTRUCTIONS: Final = (
    "You repair programs. Look before you change, run the tests after it, and say what you did. " * 8
)
ITEM_TOKENS: Final = 500
"""Of a message of the history; the fitted traffic has a median of some 370 a step."""
_WORDS: Final = (  # noqa: SIM905  # a list of so many quotes is no easier to read
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one "
    "you were all her she there would their we him been has when who will no more if out so up said what its about than "
    "into them can only other time new some could these two may first then do any like my now over such our man me even "
    "most made after also did many off before must well back through years much where your way down should because long "
    "each just state those people too little good very make world still see own work"
).split()
"""Each is one token with the blank before it, whatever stands around it."""


def words(count: int, source: random.Random) -> str:
    """A text of so many tokens; some 4.6 bytes each."""
    return "".join(f" {word}" for word in source.choices(_WORDS, k=count))


def _source(work: Work, seed: int, what: str) -> random.Random:
    return random.Random(f"{seed}/{work.name}/{what}")  # noqa: S311  # texts, no secrets


def _tool(name: str) -> dict[str, Any]:
    text = {"type": "string", "description": f"What {name} is to work on, as it stands in the project."}
    parameters = {
        "type": "object",
        "properties": {"path": text, "text": text, "step": {"type": "integer"}},
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": f"{name}, in the project.",
        "parameters": parameters,
    }


TOOLS: Final = tuple(_tool(name) for name in (TOOL, "look", "list_files", "edit", "run_tests", "search"))
"""A small agent's; one of them is called."""


@attrs.frozen
class ClientContent:
    """What the client has to say in a rollout, made before its clock starts."""

    history: tuple[Item, ...]
    prompt: tuple[Item, ...]
    outputs: tuple[str, ...]
    """Of the tool, by step."""
    tool_seconds: tuple[float, ...]

    @classmethod
    def of(cls, work: Work, seed: int) -> "ClientContent":
        """Of a rollout; the same for the same seed."""
        source = _source(work, seed, "client")
        first, *later = work.steps
        prompt = words(first.new_tokens, source)
        return cls(
            history=tuple(_history(work.history_tokens, source)),
            prompt=(Message("user", prompt),) if prompt or not work.history_tokens else (),
            outputs=tuple(words(step.new_tokens, source) for step in later),
            tool_seconds=tuple(step.tool_seconds for step in work.steps[:-1]),
        )

    def at_once(self) -> tuple[Item, ...]:
        """All of it, as the input of one create: what tools put out is the user's, as nothing has called them yet."""
        return (*self.history, *self.prompt, *(Message("user", output) for output in self.outputs))


def _history(tokens: int, source: random.Random) -> list[Item]:
    """Messages of user and model in turns."""
    items: list[Item] = []
    while tokens > 0:
        text = words(min(tokens, ITEM_TOKENS), source)
        tokens -= ITEM_TOKENS
        is_users = len(items) % 2 == 0
        part = InputText(text) if is_users else OutputText(text)
        items.append(Message("user" if is_users else "assistant", (part,)))
    return items


# --- the model -----------------------------------------------------------------------------------------------------


class ScriptedWork:
    """A sampler that samples a rollout's steps, token for token; `engine.samplers.paced` gives it a pace."""

    def __init__(self, work: Work, seed: int, *, at_once: bool = False) -> None:
        """`at_once`: all steps are one segment."""
        source = _source(work, seed, "model")
        last = len(work.steps) - 1
        steps = [
            _step(
                index, step.sampled_tokens, source, call=(index if at_once else 0) if index < last else None
            )
            for index, step in enumerate(work.steps)
        ]
        segments = [tuple(chain.from_iterable(steps))] if at_once else steps
        self._segments = [(*parts, End()) for parts in segments]
        self.sampled_tokens = sum(part.tokens for parts in steps for part in parts)
        """Of the whole rollout; more than its numbers say where a step has fewer than a call needs."""

    def open(self, prompt: Prompt) -> Sampling:  # noqa: ARG002  # a sampler's signature
        """Start a response."""
        return _Playing(self._segments)


class _Playing:
    def __init__(self, segments: list[tuple[Part, ...]]) -> None:
        self._segments = segments
        self._step = 0

    async def sample(self, appended: Appended) -> Steps:
        await trio.lowlevel.checkpoint_if_cancelled()  # the pace around it lets others run
        self._step += sum(isinstance(item, FunctionCallOutput) for item in appended.items)
        yield self._segments[self._step]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()


def _step(index: int, tokens: int, source: random.Random, *, call: int | None) -> tuple[Part, ...]:
    """A text, and the call that it ends in; `call`: its number in the segment, None if there is none."""
    calls: tuple[Part, ...] = ()
    if call is not None:
        arguments = orjson.dumps({"step": index}).decode()
        cost = len(vocabulary.encode(arguments))
        calls = (
            CallStart(call, TOOL, call_id=f"call_{index}"),
            CallInput(call, arguments, cost),
            CallEnd(call),
        )
    left = tokens - sum(part.tokens for part in calls)
    text: tuple[Part, ...] = (Text(words(left, source), left),) if left > 0 else ()
    return (*text, *calls)
