"""The README's generated parts. `python -m tests.readme` writes them; a test holds that they are current."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

from engine.limit_settings import limit_rows
from engine.serve_command import how_to_point
from protocol.dialects import APPEND, CREATE, INJECT, Dialect, Ending
from protocol.states import diagram

README = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

ENDINGS: Mapping[Ending, str] = {
    Ending.COMPLETED: "the model has said all",
    Ending.MAX_OUTPUT_TOKENS: "`max_output_tokens` reached",
    Ending.MAX_TOOL_CALLS: "`max_tool_calls` reached",
    Ending.FAILED: "the sampler failed",
    Ending.CONTEXT_FULL: "the context is full",
    Ending.CANCELLED: "cancelled",
    Ending.EXPIRED: "no output came in time",
    Ending.ABANDONED: "a new create took its place",
    Ending.DISCONNECTED: "the client went away",
    Ending.DRAINED: "the server shut down",
}


def codex() -> str:
    """The lines of `suspended serve` for Codex, with its default port."""
    settings = SimpleNamespace(host="127.0.0.1", sampler="", key=None)
    told = how_to_point(settings, 8080)
    lines = told[told.index("    model = ") : told.index("\nopenai-python")].strip("\n").splitlines()
    return "\n".join(["```toml", *(line.removeprefix("    ") for line in lines), "```"])


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


PARTS: Mapping[str, Callable[[], str]] = {
    "codex": codex,
    "append": lambda: mermaid("append"),
    "inject": lambda: mermaid("inject"),
    "endings": endings,
    "limits": limits,
}


def written(text: str) -> str:
    """A README with its generated parts made anew. `KeyError`: an unknown part."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n\n{match[4]}", text)


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
