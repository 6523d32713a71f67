"""`python -m demos.museum`: a walk through order bugs that were public."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from demos.museum import page
from demos.museum.exhibits import Exhibit, exhibits
from demos.museum.walk import walk

OK, NOT_FOUND, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Show what is asked for; the exit code: 1 if the checker does not say what a label says."""
    parser = argparse.ArgumentParser(prog="python -m demos.museum", description=__doc__)
    parser.add_argument("which", nargs="*", help="a rule, a project or a part of a name; default: all")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the walk as a page instead")
    arguments = parser.parse_args(argv)
    shown = [exhibit for exhibit in exhibits() if _is_meant(exhibit, arguments.which)]
    if not shown:
        rules = " ".join(exhibit.rule for exhibit in exhibits())
        print(f"nothing here is called {' '.join(arguments.which)}; rules on show: {rules}", file=sys.stderr)
        return USAGE
    if arguments.html is not None:
        arguments.html.write_text(page.html(walk(shown)), encoding="utf-8")
    else:
        _print(shown)
    return OK if all(exhibit.is_found for exhibit in shown) else NOT_FOUND


def _print(shown: Sequence[Exhibit]) -> None:
    medium = page.coloured if _has_colour() else page.plain
    try:
        for line in walk(shown):
            print(medium(line))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough; without this Python complains when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_meant(exhibit: Exhibit, words: Sequence[str]) -> bool:
    names = f"{exhibit.name} {exhibit.title} {exhibit.source}".lower()
    return not words or any(word.upper() == exhibit.rule or word.lower() in names for word in words)


def _has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


if __name__ == "__main__":
    sys.exit(main())
