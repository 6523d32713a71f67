"""A policy is a program in the place of the model: it sees the conversation and says what comes next.

A policy is called once per segment, with *all* items so far, and returns this segment's moves.
A segment without a `Use` ends the rollout.
A policy keeps nothing between two calls: all it knows is in the items.
So a rollout may be continued in another response, on another connection, by another process.

Writing such a function by hand is awkward, since what a program knows is best kept in its local variables.
`program()` therefore lets one write a generator that *waits* for its outputs::

    def greet(prompt: str, tools: Tools) -> Script:
        yield Say("I ask for your name.")
        name = yield Use("ask", {"question": "name?"})
        yield Say(f"Hello {name}!")

    policy = program(greet)

Each call of the policy runs the generator from its beginning and answers its calls from the items,
until it makes a call that has no output yet: that call, and what it said since the call before, is the segment.
A generator must therefore be deterministic: no clock, no randomness, no state outside of it.
"""

import importlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias

import attrs
import trio

from engine import vocabulary
from engine.samplers.base import (
    Appended,
    CallEnd,
    CallInput,
    CallStart,
    End,
    Prompt,
    Sampling,
    Step,
    Steps,
    Text,
    Thought,
)
from protocol.items import (
    Call,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpCall,
    Message,
    text_of,
)


@attrs.frozen
class Say:
    """A message to the user."""

    text: str


@attrs.frozen
class Think:
    """A piece of reasoning."""

    text: str


@attrs.frozen
class Use:
    """A tool call; `arguments` is an object for function tools, raw text for custom tools."""

    name: str
    arguments: Mapping[str, Any] | str
    namespace: str | None = None


Move: TypeAlias = Say | Think | Use
Tools: TypeAlias = Sequence[Mapping[str, Any]]


class Policy(Protocol):
    """A program in the place of the model."""

    def __call__(self, items: Sequence[Item], tools: Tools, /) -> Iterable[Move]:
        """Return the moves of the next segment, given all items in context order. Must not block."""
        ...


Script: TypeAlias = Generator[Move | tuple[Use, ...], Any, None]
"""Yields `Say` and `Think` (gets None), `Use` (gets the output's text), or several (gets a tuple of texts)."""


class ReplayError(Exception):
    """The conversation holds a call the program did not make: it is not deterministic, or not this one's."""


def program(script: Callable[[str, Tools], Script], *, restart: bool = True) -> Policy:
    """Make a policy of a generator function, which gets the text of the user's message and the tools.

    A run begins at the last user message; what came before is history and not shown to the script.
    With `restart=False`, a user message that arrives between two calls of a run does not begin a new one
    and is passed over, for scripts that would leave something half done.
    A call that never got an output (its rollout was cut) is made again.
    The policy raises `ReplayError` if the script, run again, makes other calls than the conversation has.
    """

    def policy(items: Sequence[Item], tools: Tools, /) -> list[Move]:
        prompt, run = _last_run(items, restart=restart)
        return _segment(script(prompt, tools), _answered(run))

    return policy


def _segment(script: Script, answered: Iterator[tuple[Use, str]]) -> list[Move]:
    """Run a script over the answered calls; return what it does after the last of them."""
    moves: list[Move] = []
    reply: object = None
    while True:
        try:
            move = script.send(reply)
        except StopIteration:
            return moves
        if isinstance(move, Say | Think):
            moves.append(move)
            reply = None
            continue
        uses = move if isinstance(move, tuple) else (move,)
        texts = _replies(uses, answered)
        if len(texts) < len(uses):
            script.close()
            return [*moves, *uses]
        moves.clear()
        reply = texts if isinstance(move, tuple) else texts[0]


def _replies(uses: tuple[Use, ...], answered: Iterator[tuple[Use, str]]) -> tuple[str, ...]:
    """Take the outputs of these calls, fewer than asked for where the conversation ends.

    Calls made together may stand in another order: those of hosted tools are written after the client's.
    """
    waiting = [_as_sent(use) for use in uses]
    texts: dict[int, str] = {}
    for made, text in islice(answered, len(uses)):
        open_uses = [index for index in range(len(uses)) if index not in texts]
        found = next((index for index in open_uses if waiting[index] == made), None)
        if found is None:
            raise ReplayError(
                f"the program calls {uses[open_uses[0]]!r} where the conversation has {made!r}; "
                "make the program deterministic, or begin a new run with a user message"
            )
        texts[found] = text
    return tuple(texts[index] for index in sorted(texts))


def _last_run(items: Sequence[Item], *, restart: bool) -> tuple[str, Sequence[Item]]:
    """Return the prompt of the last run and the items after it."""
    running = False
    prompt, start = "", 0
    for position, item in enumerate(items):
        if not isinstance(item, Message):
            running = isinstance(item, FunctionCallOutput | CustomToolCallOutput | McpCall | Call)
        elif item.role == "assistant":
            running = False
        elif item.role == "user" and (restart or not running):
            prompt, start = text_of(item.content), position + 1
    return prompt, items[start:]


def _answered(run: Sequence[Item]) -> Iterator[tuple[Use, str]]:
    """Pair each call with its output's text, in the order of the calls."""
    texts = {
        item.call_id: text_of(item.output)
        for item in run
        if isinstance(item, FunctionCallOutput | CustomToolCallOutput)
    }
    for item in run:
        match item:
            case FunctionCall() if item.call_id in texts:
                yield Use(item.name, _decoded(item.arguments), item.namespace), texts[item.call_id]
            case CustomToolCall() if item.call_id in texts:
                yield Use(item.name, item.input, item.namespace), texts[item.call_id]
            case McpCall():
                # A hosted tool's call: the script does not know, and need not, that the server runs it.
                yield Use(item.name, _decoded(item.arguments)), item.error or item.output or ""


def _as_sent(use: Use) -> Use:
    """Return the call as it looks after a journey through JSON, where a tuple has become a list."""
    if isinstance(use.arguments, str):
        return use
    return attrs.evolve(use, arguments=json.loads(json.dumps(use.arguments)))


def _decoded(arguments: str) -> Any:
    """Decode a call's arguments; text that is no JSON stays text, and equals no program's call."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


class PolicySampler:
    """A sampler that asks a policy. It has no pace of its own: `engine.samplers.paced` gives it one."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def open(self, prompt: Prompt) -> Sampling:
        """Start a rollout."""
        return _Following(self._policy, prompt.tools)


class _Following:
    def __init__(self, policy: Policy, tools: Tools) -> None:
        self._policy = policy
        self._tools = tools
        self._items: list[Item] = []

    async def sample(self, appended: Appended) -> Steps:
        await trio.lowlevel.checkpoint()
        self._items += appended.items
        yield (appended.prefilled,)
        before: Move | None = None
        for index, move in enumerate(self._policy(self._items, self._tools)):
            if isinstance(move, Say | Think) and type(move) is type(before):
                yield _parts_of(index, attrs.evolve(move, text=f"\n{move.text}"))  # two moves are two lines
            else:
                yield _parts_of(index, move)
            before = move
        yield (End(),)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _parts_of(index: int, move: Move) -> Step:
    match move:
        case Say(text):
            return (Text(text, _count(text)),)
        case Think(text):
            return (Thought(text, _count(text)),)
        case Use(name, arguments, namespace):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            return (CallStart(index, name, namespace), CallInput(index, text, _count(text)), CallEnd(index))


def _count(text: str) -> int:
    return len(vocabulary.encode(text))


def load_policy(path: str) -> Policy:
    """The policy at an import path, `package.module` (its `policy`) or `package.module:name`.

    `ValueError` if there is none: says what was looked for.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:  # the last two: no name, or a relative one
        raise ValueError(f"no policy {path!r}: cannot import {module_name!r} ({error})") from error
    policy = getattr(module, name or "policy", None)
    if not callable(policy):
        raise ValueError(  # noqa: TRY004  # a wrong path is a wrong value, whatever is there
            f"no policy {path!r}: {module_name!r} has no callable {name or 'policy'!r}"
        )
    return policy  # type: ignore[no-any-return]  # whoever names it vouches for it
