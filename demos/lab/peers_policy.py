"""The model of our own server among the peers: so many words as it is asked for, or a call of the first tool it is offered."""

import re
from collections.abc import Mapping
from typing import Any, Final

from engine.samplers.policy import Say, Script, Tools, Use, program

WORD: Final = " token"
"""One token of the vocabulary, so a delta by itself; six characters, which is what the others cut by."""
FEWEST: Final = 1


def asked(words: int) -> str:
    """The user's message that asks for so many."""
    return f"Say {words} words."


def talk(prompt: str, tools: Tools) -> Script:
    """Whoever offers a tool gets a call."""
    if tools:
        yield Use(str(tools[0]["name"]), ARGUMENTS)
    number = re.search(r"\d+", prompt)
    yield Say(WORD * (int(number[0]) if number else FEWEST))


ARGUMENTS: Final[Mapping[str, Any]] = {"path": "README.md"}
policy = program(talk)
