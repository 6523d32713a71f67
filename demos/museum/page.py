"""What the walk shows: runs of text with a style, and the three ways to put them on a medium."""

from collections.abc import Callable, Iterable
from html import escape
from typing import Final, Literal

Style = Literal["plain", "title", "dim", "wrong", "right"]
Run = tuple[str, Style]
Line = tuple[Run, ...]
Medium = Callable[[Line], str]

_CODES: Final[dict[Style, str]] = {"title": "1", "dim": "2", "wrong": "1;31", "right": "32"}
_COLOURS: Final[dict[Style, str]] = {
    "title": "font-weight:bold",
    "dim": "color:#777",
    "wrong": "color:#c00;font-weight:bold",
    "right": "color:#080",
}
_HEAD: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>A museum of order bugs</title>'
    '<meta name="viewport" content="width=device-width"><body style="margin:2em;background:#fff;color:#222">'
    '<pre style="font:14px/1.4 monospace">\n'
)
_FOOT: Final = "</pre></body></html>\n"


def plain(line: Line) -> str:
    """Text only."""
    return "".join(text for text, _ in line).rstrip()


def coloured(line: Line) -> str:
    """For a terminal."""
    return "".join(f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style in _CODES else text for text, style in line)


def html(lines: Iterable[Line]) -> str:
    """A page that needs nothing else."""
    return _HEAD + "".join(f"{_marked_up(line)}\n" for line in lines) + _FOOT


def _marked_up(line: Line) -> str:
    return "".join(
        f'<span style="{_COLOURS[style]}">{escape(text)}</span>' if style in _COLOURS else escape(text)
        for text, style in line
    )
