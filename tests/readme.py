"""The README's generated parts. `python -m tests.readme` writes them; a test holds that they are current."""

import re
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from engine.limit_settings import limit_rows
from engine.pointers import DEFAULT_PLACE, POINTERS
from protocol.dialects import APPEND, CREATE, INJECT, Dialect, Ending
from protocol.states import diagram

README = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

ENDINGS: Mapping[Ending, str] = {
    Ending.COMPLETED: "the model has said all",
    Ending.MAX_OUTPUT_TOKENS: "`max_output_tokens` reached",
    Ending.MAX_TOOL_CALLS: "`max_tool_calls` reached",
    Ending.STEERED: "a user's word waits (create form)",
    Ending.FAILED: "the sampler failed",
    Ending.MODEL_LOST: "what runs the model failed",
    Ending.CONTEXT_FULL: "the context is full",
    Ending.CANCELLED: "cancelled",
    Ending.EXPIRED: "no output came in time",
    Ending.ABANDONED: "a new create took its place",
    Ending.DISCONNECTED: "the client went away",
    Ending.DRAINED: "the server shut down",
}


def clients() -> str:
    """The lines of `suspended serve` for each client, with its default port."""
    blocks = [
        f"**{found.client}**, {found.note}:\n\n```{found.language}\n{found.at(DEFAULT_PLACE)}```"
        for found in POINTERS
    ]
    return "\n\n".join(blocks)


def mermaid(dialect: str) -> str:
    """A state diagram."""
    return f"```mermaid\n{diagram(dialect)}\n```"


def endings() -> str:
    """The table of all endings, by where they happen."""
    lines = ["| ending | while sampling | suspended, append | suspended, inject |", "|---|---|---|---|"]
    for ending, words in ENDINGS.items():
        cells = [_led_to(CREATE.sampling_endings, ending)]
        cells += [_led_to(dialect.suspended_endings, ending) for dialect in (APPEND, INJECT)]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _led_to(rows: Mapping[Ending, object], ending: Ending) -> str:
    row = rows.get(ending)
    if row is None:
        return ""
    frame = f"`response.{row.frame}`" if row.frame else "nothing"
    return frame if row.frame == row.status else f"{frame}, {row.status}"


def sampling_differs(dialects: tuple[Dialect, ...]) -> bool:
    """Would one column for all dialects be a lie?"""
    return any(dialect.sampling_endings != CREATE.sampling_endings for dialect in dialects)


def limits() -> str:
    """The table of all limits."""
    rows = [f"| `{row.name}` | {row.default} | {row.reason} |" for row in limit_rows()]
    return "\n".join(["| limit | default | |", "|---|--:|---|", *rows])


def figures() -> str | None:
    """What the lab measured, of the results that are kept; None: the extra [lab] is not installed."""
    if any(find_spec(name) is None for name in ("numpy", "matplotlib")):
        return None
    from demos.lab.figures import block  # needs the extra

    return block()


PARTS: Mapping[str, Callable[[], str | None]] = {
    "clients": clients,
    "append": lambda: mermaid("append"),
    "inject": lambda: mermaid("inject"),
    "endings": endings,
    "limits": limits,
    "figures": figures,
}


def written(text: str) -> str:
    """A README with its generated parts made anew; what cannot be made here stays. `KeyError`: an unknown part."""

    def part(match: re.Match[str]) -> str:
        made = PARTS[match[2]]()
        return match[0] if made is None else f"{match[1]}\n{made}\n\n{match[4]}"

    return _BLOCK.sub(part, text)


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
    if figures() is None:
        sys.exit("The figures stay as they were: they need `pip install -e '.[lab]'`.")
