"""Harmony, the chat format of gpt-oss: messages with channels, and calls that are messages to a tool.

    system │ developer: instructions, tools │ item item … │ <|start|>assistant │ what the model samples

The model itself begins its further messages, until it stops: after an answer with `<|return|>`, which is kept as
`<|end|>`, or after one call with `<|call|>`. Nothing closes its turn beyond that.

Rendering is ours (`harmony_render`), reading too (`harmony_parser`); `Harmony.checked` compares the first with the
reference renderer. Every text from outside is encoded by a vocabulary in which no spelling leads to a control token.
"""

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self

import attrs
import orjson

from engine.formats.base import Constraint, Request
from engine.formats.harmony_library import check_library, library_is_installed, load_library
from engine.formats.harmony_parser import END_OF_TEXT, HarmonyCounts, HarmonyParser
from engine.formats.harmony_render import (
    UNKNOWN_TOOL,
    Forgetting,
    Layout,
    authors,
    is_commentary,
    item_layout,
    message_layout,
    text_of,
)
from engine.formats.harmony_tools import (
    FUNCTIONS,
    Namespace,
    Recipients,
    namespaces,
    recipient,
    tool_key,
    tools_section,
)
from engine.formats.o200k import O200k
from engine.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START
from protocol.items import Item, Reasoning

IDENTITY: Final = "You are ChatGPT, a large language model trained by OpenAI."
"""What the model was trained with; another identity belongs into the instructions."""

_CHANNELS: Final = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
_CALLS_GO_TO: Final = "\nCalls to these tools must go to the commentary channel: 'functions'."


@attrs.frozen(kw_only=True)
class Harmony:
    """`engine.formats.base.Format` for gpt-oss."""

    effort: Literal["low", "medium", "high"] = "medium"
    """How much the model should think."""
    knowledge_cutoff: str | None = "2024-06"
    current_date: str | None = None
    """ISO, told to the model; None: it is not told, and two days' prompts are the same tokens."""
    strict: bool = False
    """Is malformed output a failure of the response? Else it is shown as text."""
    keeps_reasoning: bool = False
    """Are the thoughts of finished turns shown again? Otherwise a new user turn forgets them (`kept_before`)."""
    tokenizer: O200k = attrs.field(factory=O200k, eq=False)
    counts: HarmonyCounts = attrs.field(factory=HarmonyCounts, eq=False)
    name: str = attrs.field(default="harmony", init=False)
    stop_tokens: frozenset[int] = attrs.field(default=frozenset({RETURN, CALL, END_OF_TEXT}), init=False)
    stored_as: Mapping[int, int] = attrs.field(
        default=MappingProxyType({RETURN: END, END_OF_TEXT: END}), init=False
    )

    @classmethod
    def checked(cls, cache_dir: Path, **options: Any) -> Self:
        """The format, after the reference renderer agreed with it; 0.4 s, before the server listens.

        `HarmonyLibraryError`: the extra `harmony` is missing, or another package is in its place.
        """
        check_library(*load_library(cache_dir), _rendered_whole)
        return cls(**options)

    # --- rendering -------------------------------------------------------------------------------------------------

    def preamble(self, request: Request) -> "array[int]":
        """The system message; then instructions, tools and the answer's form, as one developer message.

        Tools that must not be called (`tool_choice` is `none`) are not shown.
        """
        spaces = namespaces(request.tools) if request.tool_choice != "none" else []
        tokens = self._encode(message_layout("system", self._system_text(spaces)))
        sections = []
        if request.instructions is not None:
            sections += ["# Instructions", request.instructions]
        if spaces:
            sections.append(tools_section(spaces))
        if request.text_format is not None:
            sections.append(_response_format(request.text_format))
        if sections:
            tokens += self._encode(message_layout("developer", "\n\n".join(sections)))
        return tokens

    def items(self, items: Sequence[Item], before: Sequence[Item]) -> "array[int]":
        """These items; reasoning of turns that are over within them is left out, and counted."""
        tokens = array("I")
        recipients = authors(items, before)
        settled = 0 if self.keeps_reasoning else Forgetting(before, items).settled()
        for place, item in enumerate(items):
            if isinstance(item, Reasoning) and place < settled:
                self._forget(item)
                continue
            following = items[place + 1] if place + 1 < len(items) else None
            author = recipients.get(getattr(item, "call_id", ""), f"{FUNCTIONS}.{UNKNOWN_TOOL}")
            tokens += self._encode(
                item_layout(item, commentary=is_commentary(item, following), author=author)
            )
        return tokens

    def kept_before(self, before: Sequence[Item], items: Sequence[Item]) -> int:
        """Up to the first reasoning that a user message among `items` makes us forget; all, if there is none.

        Looks back as far as the turn that ended.
        """
        return len(before) if self.keeps_reasoning else Forgetting(before, items).kept_before()

    def opening(self, request: Request) -> "array[int]":  # noqa: ARG002  # the same whatever was asked
        """`<|start|>assistant`."""
        return self._encode(iter((START, "assistant")))

    def closing(self, last_token: int | None) -> "array[int]":
        """Nothing after a whole message; an end after one that was cut off."""
        return array("I", () if last_token in _WHOLE else (END,))

    # --- sampling --------------------------------------------------------------------------------------------------

    def constraint(self, request: Request, said_items: int) -> Constraint | None:
        """A forced call of the one tool that is asked for, or an answer in a form.

        A schema begins after the header, so it can neither choose between tools nor let the model think first.
        With several tools to choose from, or tools besides a form, there is no constraint.
        """
        if request.text_format is not None and not namespaces(request.tools):
            schema = request.text_format.get("schema")
            form = schema if isinstance(schema, Mapping) else {"type": "object"}
            return Constraint(schema=form, lead=self._lead("final"))
        if said_items:
            return None
        found = _only_function(request)
        if found is None:
            return None
        addressed, schema = found
        return Constraint(schema=schema, lead=self._lead(f"commentary to={addressed}"))

    def parser(self, request: Request, constraint: Constraint | None) -> HarmonyParser:
        """A reader for one segment."""
        return HarmonyParser(
            self.tokenizer,
            Recipients(request.tools),
            strict=self.strict,
            counts=self.counts,
            lead=constraint.lead if constraint is not None else None,
        )

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _system_text(self, spaces: Sequence[Namespace]) -> str:
        top = [IDENTITY]
        if self.knowledge_cutoff is not None:
            top.append(f"Knowledge cutoff: {self.knowledge_cutoff}")
        if self.current_date is not None:
            top.append(f"Current date: {self.current_date}")
        calls = _CALLS_GO_TO if any(space.name == FUNCTIONS for space in spaces) else ""
        return "\n\n".join(("\n".join(top), f"Reasoning: {self.effort}", _CHANNELS + calls))

    def _lead(self, header: str) -> "array[int]":
        return self._encode(iter((CHANNEL, f"{header} ", CONSTRAIN, "json", MESSAGE)))

    def _forget(self, item: Reasoning) -> None:
        self.counts.forgotten_items += 1
        self.counts.forgotten_characters += len(text_of(item.content or item.summary))

    def _encode(self, layout: Layout) -> "array[int]":
        tokens = array("I")
        for field in layout:
            if isinstance(field, int):
                tokens.append(field)
            else:
                tokens += self.tokenizer.encode(field)
        return tokens


def _rendered_whole(request: Request, items: Sequence[Item]) -> "array[int]":
    form = Harmony(keeps_reasoning=True)
    return form.preamble(request) + form.items(items, ()) + form.opening(request)


def make_harmony(options: Mapping[str, str], cache_dir: Path) -> Harmony:
    """The format with options as they are written on a command line or in the model table (`HARMONY_OPTIONS`).

    `check`: `yes` compares with the reference renderer, `no` does not; else that is done if one is installed.
    `ValueError`: an unknown option or value. `HarmonyLibraryError`: as `Harmony.checked`.
    """
    values: dict[str, Any] = {}
    check = library_is_installed()
    for key, text in options.items():
        allowed = HARMONY_OPTIONS.get(key)
        if allowed is None:
            raise ValueError(
                f"the format harmony has no option {key!r}; there are {', '.join(HARMONY_OPTIONS)}"
            )
        if allowed and text not in allowed:
            raise ValueError(f"{key}={text!r} is none of {', '.join(allowed)}")
        if key == "check":
            check = text == "yes"
        else:
            values[key] = text == "yes" if allowed == _YES_NO else text
    return Harmony.checked(cache_dir, **values) if check else Harmony(**values)


_YES_NO: Final = ("yes", "no")
HARMONY_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "effort": ("low", "medium", "high"),
    "knowledge_cutoff": (),
    "current_date": (),
    "strict": _YES_NO,
    "keeps_reasoning": _YES_NO,
    "check": _YES_NO,
}
"""Options and their values; none listed: any text."""

_WHOLE: Final = frozenset({END, RETURN, CALL, END_OF_TEXT})


def _only_function(request: Request) -> tuple[str, Mapping[str, Any]] | None:
    """The recipient and schema of the function that must be called; None if it is none, or not one only."""
    choice, named = request.tool_choice, None
    if isinstance(choice, Mapping):
        if choice.get("type") == "function":
            named = tool_key(choice)
        elif choice.get("type") == "allowed_tools" and choice.get("mode") == "required":
            listed = choice.get("tools")
            if not (isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], Mapping)):
                return None
            named = tool_key(listed[0])
        else:
            return None
    elif choice != "required":
        return None
    wanted = [
        (space, tool)
        for space in namespaces(request.tools)
        for tool in space.tools
        if named is None or (None if space.name == FUNCTIONS else space.name, tool.name) == named
    ]
    if len(wanted) != 1 or wanted[0][1].custom:
        return None
    space, tool = wanted[0]
    schema = tool.parameters if isinstance(tool.parameters, Mapping) else {"type": "object"}
    return recipient(tool.name, space.name), schema


def _response_format(form: Mapping[str, Any]) -> str:
    """The section that asks for an answer of a form."""
    lines = ["# Response Formats", "", f"## {form.get('name', form.get('type'))}", ""]
    if isinstance(form.get("description"), str):
        lines += [f"// {line}" for line in form["description"].split("\n")]
    lines.append(orjson.dumps(form.get("schema", {"type": "object"})).decode())
    return "\n".join(lines)
