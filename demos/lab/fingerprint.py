"""Which code a figure is of: the digest of each source file at the run, and how much of it is another since.

A run keeps the digests of all files that could take part. Which of them an experiment runs is found from its first
module by following its imports, so that a report that was drawn anew makes no measurement old.
It needs no git, and a changed comment counts: a file is the same, or it is not.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import attrs

PACKAGES: Final = ("engine", "protocol", "demos/lab")
CHECKOUT: Final = Path(__file__).resolve().parents[2]
"""Or where the packages are installed."""
_DIGEST_CHARACTERS: Final = 10
"""40 bits: two versions of one file are told apart, and nobody is held off."""

Code = Mapping[str, tuple[str, int]]
"""By path from the root: digest and number of lines."""


@attrs.frozen
class Age:
    """How much of what an experiment runs is another than when it was measured."""

    changed: tuple[str, ...]
    """Files that differ, or were not there."""
    changed_lines: int
    lines: int
    """Of all files that it runs now."""

    @property
    def share(self) -> float:
        """0: the very same code; 1 also where nothing is left of it."""
        return self.changed_lines / self.lines if self.lines else 1.0


def fingerprint(root: Path = CHECKOUT) -> Code:
    """Of all source files there; one that cannot be read is left out."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            try:
                found[path.relative_to(root).as_posix()] = _digest(path.read_bytes())
            except OSError:
                continue
    return found


def age(code: Code, first: str, root: Path = CHECKOUT) -> Age:
    """Of a measurement of the code `code`, by what its first module reaches today. `OSError`, `SyntaxError`."""
    now = {path: _digest((root / path).read_bytes()) for path in reached(first, root)}
    changed = sorted(path for path, seen in now.items() if code.get(path) != seen)
    return Age(tuple(changed), sum(now[path][1] for path in changed), sum(lines for _, lines in now.values()))


def reached(first: str, root: Path = CHECKOUT) -> frozenset[str]:
    """The files that a module imports, and what those import, itself included. `OSError`, `SyntaxError`."""
    found: set[str] = set()
    modules = [first]
    while modules:
        path = _file_of(modules.pop(), root)
        if path is not None and path not in found:
            found.add(path)
            modules += _imports((root / path).read_text())
    return frozenset(found)


def _file_of(module: str, root: Path) -> str | None:
    """Of a module in one of the packages."""
    stem = module.replace(".", "/")
    if not any(f"{stem}/".startswith(f"{package}/") for package in PACKAGES):
        return None
    places = (f"{stem}.py", f"{stem}/__init__.py")
    return next((place for place in places if (root / place).is_file()), None)


@cache
def _imports(text: str) -> tuple[str, ...]:
    """Everything that may be a module. Absolute imports only: others are not written here."""
    return tuple(dict.fromkeys(_imported(ast.parse(text).body)))


def _imported(body: Iterable[ast.AST]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{name.name}" for name in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=otherwise):
                yield from _imported(otherwise)
            case _:
                yield from _imported(ast.iter_child_nodes(node))


def _digest(content: bytes) -> tuple[str, int]:
    lines = content.splitlines()
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:_DIGEST_CHARACTERS], len(lines)
