"""Finding known strings in text that arrives in pieces, without looking at old text again.

All patterns are searched at once by one automaton (Aho and Corasick), in linear time.
A stream's state is a *value*: how much was read, and a tail one character shorter than the longest pattern.
The tail is read again with the next piece, so a pattern that is split over pieces is found when its last character comes.
The automaton's own iterator can also go on with a next string, but it cannot be copied, and a forked rollout
needs the state of its parent as often as the client goes back to it.

Letters compare without case in ASCII only.
Full case folding changes lengths and depends on neighbours (a final sigma), so offsets would move and cuts would matter.

Pieces of one stream are joined without anything between them: a pattern may span two tool outputs.
Texts that a client sends and text that the model writes are two streams.
"""

from collections.abc import Mapping
from typing import Final

import ahocorasick
import attrs

DEFAULT_PATTERNS: Final[Mapping[str, str]] = {
    # text that pretends to be the chat format
    "control_token_start": "<|start|>",
    "control_token_message": "<|message|>",
    "control_token_end": "<|end|>",
    "control_token_channel": "<|channel|>",
    "control_token_call": "<|call|>",
    "control_token_return": "<|return|>",
    "control_token_chatml": "<|im_start|>",
    "control_token_endoftext": "<|endoftext|>",
    "control_token_look_alike": "<\uff5c",
    "control_token_instruction": "[INST]",
    # text that gives the model orders
    "override_previous": "ignore previous instructions",
    "override_all_previous": "ignore all previous instructions",
    "override_above": "ignore the instructions above",
    "override_disregard": "disregard previous instructions",
    "prompt_leak": "reveal your system prompt",
    # secrets that should not travel
    "secret_private_key": "PRIVATE KEY-----",
    "secret_aws_key_id": "AKIA",
    "secret_github_token": "ghp_",
    "secret_slack_token": "xoxb-",
}
"""A short list to show the mechanism with; deployments bring their own."""


@attrs.frozen
class Match:
    """A pattern was found: `name` of the pattern, and where it is in its stream, in characters."""

    name: str
    start: int
    end: int


@attrs.frozen
class ClassifierState:
    """Where a stream stands; share it freely, it never changes."""

    read_characters: int = 0
    tail: str = ""


NEW_STREAM: Final = ClassifierState()


class Classifier:
    """A set of named patterns. Stateless; one serves all streams."""

    def __init__(self, patterns: Mapping[str, str] = DEFAULT_PATTERNS) -> None:
        """`ValueError`: an empty pattern, or two that are the same but for ASCII case."""
        names: dict[str, str] = {}
        for name, spelling in patterns.items():
            folded = _fold(spelling)
            if not folded:
                raise ValueError(f"pattern {name!r} is empty and would match everywhere; remove it")
            if folded in names:
                raise ValueError(
                    f"patterns {names[folded]!r} and {name!r} are the same text {spelling!r}; remove one"
                )
            names[folded] = name
        self._tail_characters = max(map(len, names), default=1) - 1
        self._automaton = ahocorasick.Automaton() if names else None
        if self._automaton is not None:
            for folded, name in names.items():
                self._automaton.add_word(folded, (name, len(folded)))
            self._automaton.make_automaton()

    def classify(self, state: ClassifierState, piece: str) -> tuple[ClassifierState, tuple[Match, ...]]:
        """Read the next piece of a stream: its new state, and the matches that end in this piece, by end and start.

        The work is linear in the piece; give long texts in slices to let others run in between.
        """
        if self._automaton is None or not piece:
            return attrs.evolve(state, read_characters=state.read_characters + len(piece)), ()
        window = state.tail + _fold(piece)
        origin = state.read_characters - len(state.tail)
        matches = [
            Match(name, origin + last + 1 - length, origin + last + 1)
            for last, (name, length) in self._automaton.iter(window)
            if last >= len(state.tail)  # the others were reported with the piece they ended in
        ]
        tail = window[-self._tail_characters :] if self._tail_characters else ""
        return ClassifierState(state.read_characters + len(piece), tail), tuple(matches)

    def full(self, text: str) -> tuple[Match, ...]:
        """All matches of a whole text."""
        return self.classify(NEW_STREAM, text)[1]


def _fold(text: str) -> str:
    """Lower ASCII letters and nothing else: as many characters as before, whatever is next to them."""
    if text.isascii():
        return text.lower()
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
