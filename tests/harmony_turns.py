"""Turns of gpt-oss as the model itself emits them, for tests: built from markers and words, not by the renderer."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import attrs
from hypothesis import strategies as st

from engine import vocabulary
from engine.formats.base import Parser
from engine.samplers.base import CallEnd, CallInput, CallStart, End, Part, StopReason, Text, Thought
from engine.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MARKERS, MESSAGE, RETURN, START
from protocol.items import (
    CALLS,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)

TOOLS = (
    {
        "type": "function",
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"type": "function", "name": "now"},
    {"type": "custom", "name": "shell", "description": "A shell."},
    {
        "type": "namespace",
        "name": "files",
        "description": "Files.",
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    },
    {"type": "mcp", "server_label": "prices", "allowed_tools": ["quote"]},
)
FUNCTIONS = (("weather", None), ("now", None), ("read", "files"), ("undeclared", None), ("odd", "elsewhere"))

LOOK_ALIKES = [spelling.replace("|", "\uff5c") for spelling in MARKERS]
hostile_texts = st.lists(
    st.one_of(
        # A character that no Python knows yet is a letter to one library and none to the other: Unicode 17's are.
        st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=12),
        st.sampled_from(
            [
                *MARKERS,
                *LOOK_ALIKES,
                "<|",
                "|>",
                "\ufffd",
                "<|endoftext|>",
                "assistant",
                " to=functions.x",
                "\n\n",
                "中😀",
            ]
        ),
    ),
    min_size=1,
    max_size=6,
).map("".join)
"""Any text, also none."""
spoken = hostile_texts.filter(bool)
"""What a model says is never nothing."""


def marked(*fields: int | str) -> list[int]:
    """Markers as they are, words encoded: an independent writing of what the model samples."""
    tokens: list[int] = []
    for field in fields:
        tokens += [field] if isinstance(field, int) else vocabulary.encode(field)
    return tokens


@attrs.frozen
class Said:
    """One message of the model, without its head `<|start|>assistant`."""

    channel: str
    text: str
    name: str | None = None
    namespace: str | None = None
    custom: bool = False

    @property
    def tokens(self) -> list[int]:
        if self.name is None:
            return marked(CHANNEL, self.channel, MESSAGE, self.text)
        head = f"{self.channel} to={self.namespace or 'functions'}.{self.name}"
        if self.custom:
            return marked(CHANNEL, head, MESSAGE, self.text, CALL)
        return marked(CHANNEL, head + " ", CONSTRAIN, "json", MESSAGE, self.text, CALL)


def emitted(messages: Sequence[Said]) -> list[int]:
    """One segment: the messages as sampled, the stop token included."""
    tokens = list(messages[0].tokens)
    for before, message in pairwise(messages):
        tokens += [] if before.name else [END]
        tokens += [*marked(START, "assistant"), *message.tokens]
    return tokens if messages[-1].name else [*tokens, RETURN]


def calls():
    functions = st.builds(
        lambda named, text: Said("commentary", text, *named), st.sampled_from(FUNCTIONS), spoken
    )
    return functions | st.builds(lambda text: Said("commentary", text, "shell", custom=True), spoken)


thoughts = st.lists(st.builds(lambda text: Said("analysis", text), spoken), max_size=1)
preambles = st.lists(st.builds(lambda text: Said("commentary", text), spoken), max_size=1)
calling = st.tuples(thoughts, preambles, calls()).map(lambda parts: [*parts[0], *parts[1], parts[2]])
"""A segment that ends with a call."""
answering = st.tuples(thoughts, st.builds(lambda text: Said("final", text), spoken)).map(
    lambda parts: [*parts[0], parts[1]]
)
"""A segment that ends with an answer."""


def read(parser: Parser, tokens: Iterable[int], reason: StopReason = "stop") -> list[Part]:
    """All parts of a segment."""
    parts: list[Part] = []
    for token in tokens:
        parts += parser.feed(token)
    return [*parts, *parser.end(reason)]


def whole(parts: Iterable[Part]) -> list[Part]:
    """The parts with neighbouring pieces of one thing joined, and no counts."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        bare = attrs.evolve(part, tokens=0)
        same = isinstance(bare, Text | Thought | CallInput) and type(last) is type(bare)
        if same and getattr(last, "index", None) == getattr(bare, "index", None):
            joined[-1] = attrs.evolve(last, text=last.text + bare.text)
        else:
            joined.append(bare)
    return joined


def items_of(parts: Iterable[Part], first_call: int = 0) -> list[Item]:
    """The items that the engine makes of a segment."""
    items: list[Item] = []
    for part in whole(parts):
        match part:
            case Thought(text=text):
                items.append(Reasoning(content=(ReasoningText(text),)))
            case Text(text=text):
                items.append(Message("assistant", (OutputText(text),)))
            case CallStart(name="shell"):
                items.append(CustomToolCall(f"call_{first_call + part.index}", "shell", ""))
            case CallStart(name=name, namespace=namespace):
                items.append(FunctionCall(f"call_{first_call + part.index}", name, "", namespace=namespace))
            case CallInput(text=text):
                field = "input" if isinstance(items[-1], CustomToolCall) else "arguments"
                items[-1] = attrs.evolve(items[-1], **{field: text})
            case CallEnd() | End():
                pass
    return items


def in_their_words(module, items):
    """Items as messages of the reference renderer."""
    make, role, recipients = module.Message, module.Role, {}
    for place, item in enumerate(items):
        match item:
            case Message(role="user", content=text):
                yield make.from_role_and_content(role.USER, text)
            case Message(content=(OutputText(text=text),)):
                goes_on = isinstance(
                    items[place + 1] if place + 1 < len(items) else None, (Reasoning, *CALLS)
                )
                channel = "commentary" if goes_on else "final"
                yield make.from_role_and_content(role.ASSISTANT, text).with_channel(channel)
            case Reasoning(content=(ReasoningText(text=text),)):
                yield make.from_role_and_content(role.ASSISTANT, text).with_channel("analysis")
            case FunctionCall() | CustomToolCall():
                recipients[item.call_id] = f"{item.namespace or 'functions'}.{item.name}"
                custom = isinstance(item, CustomToolCall)
                call = make.from_role_and_content(role.ASSISTANT, item.input if custom else item.arguments)
                call = call.with_channel("commentary").with_recipient(recipients[item.call_id])
                yield call if custom else call.with_content_type("<|constrain|>json")
            case FunctionCallOutput() | CustomToolCallOutput():
                author = module.Author.new(role.TOOL, recipients[item.call_id])
                output = make.from_author_and_content(author, item.output)
                yield output.with_channel("commentary").with_recipient("assistant")
