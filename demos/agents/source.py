"""A Python source with its tree: from a node to its text, and back to the place in the file."""

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

import attrs

MAX_SOURCE_CHARACTERS = 60_000
"""Larger files are mostly generated, and searching them would take longer than a segment may."""

MAX_NUMBER = 10**9
MAX_NUMBERS = 20
"""A source with more numbers than this holds a table, and mixing those up is no plausible slip."""

Located = ast.expr | ast.stmt


@attrs.frozen
class Source:
    """A parsed source. Positions are those of its UTF-8 bytes, as the tree has them."""

    data: bytes
    tree: ast.Module
    line_starts: tuple[int, ...]
    numbers: tuple[int, ...]
    """The whole numbers above one that are written in it: one of them may stand where another should."""

    def range_of(self, node: Located) -> tuple[int, int]:
        """Return where a node begins and ends."""
        last_line, last_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return (
            self.line_starts[node.lineno - 1] + node.col_offset,
            self.line_starts[last_line - 1] + last_column,
        )

    def text_of(self, node: Located) -> str:
        """Return a node as it is written, without parentheses around it."""
        start, end = self.range_of(node)
        return self.data[start:end].decode()

    def line_at(self, position: int) -> int:
        """Return the number, from 1, of the line a position is in."""
        return bisect_right(self.line_starts, position)

    def between(self, left: Located, right: Located, written: str) -> tuple[int, int] | None:
        """Find an operator between two operands; None where a comment or a continued line makes it unsure."""
        start, end = self.range_of(left)[1], self.range_of(right)[0]
        gap = self.data[start:end]
        if b"#" in gap or b"\\" in gap:
            return None
        pattern = re.escape(written.encode()).replace(rb"\ ", rb"\s+")
        found = re.search(pattern, gap)
        return (start + found.start(), start + found.end()) if found else None

    def units(self) -> Iterator["Unit"]:
        """Yield the functions of this source, and the names its modules and classes define by assignment."""
        yield from _units(self.tree.body, "")


@attrs.frozen
class Unit:
    """A piece of a source that has a name and is reached by it."""

    name: str
    owner: str
    """The class it is in, or nothing."""
    first_line: int
    last_line: int
    mentions: frozenset[str]
    """All names in it; whether they are calls is not known to a reader either."""


def _units(body: list[ast.stmt], owner: str) -> Iterator[Unit]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield _unit(node, name, owner)
            case ast.ClassDef(name=name):
                yield from _units(node.body, name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield _unit(node, name, owner)


def _unit(node: ast.stmt, name: str, owner: str) -> Unit:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return Unit(name, owner, node.lineno, node.end_lineno or node.lineno, frozenset(names))


@lru_cache(maxsize=64)
def parsed(text: str) -> Source | None:
    """Parse a source; None for what is no Python, or too large.

    Cached, because a policy is replayed from its beginning at each segment.
    """
    if len(text) > MAX_SOURCE_CHARACTERS:
        return None
    try:
        tree = _tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    data = text.encode()
    line_starts = (0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", data)))
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    numbers = {value for value in values if isinstance(value, int) and 1 < value < MAX_NUMBER}
    return Source(data, tree, line_starts, tuple(sorted(numbers)[:MAX_NUMBERS]))


def _tree(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # A strange escape in someone's source is not news to whoever runs the policy.
        warnings.simplefilter("ignore")
        return ast.parse(text)
