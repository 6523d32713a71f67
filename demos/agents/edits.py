"""Small edits of a Python source: each repairs one kind of slip a programmer makes.

An edit replaces one range of text, found by the syntax tree and applied to the source as written,
so that comments and formatting stay.
Each edit has a *cost*: how implausible it is, before anything is known of the failure.
Off-by-one and a wrong comparison are cheap; a constant ten times as large is dear.

Every edited source parses; `tests/test_repair.py` holds us to that.
Text inside of f-strings is left alone: before Python 3.12 its positions are not those of the file.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import attrs

from demos.agents.source import Source, parsed

COMPARISONS: Mapping[type[ast.cmpop], tuple[str, tuple[tuple[str, int], ...]]] = {
    ast.Lt: ("<", (("<=", 1), (">", 3), (">=", 4))),
    ast.LtE: ("<=", (("<", 1), (">=", 3), (">", 4))),
    ast.Gt: (">", ((">=", 1), ("<", 3), ("<=", 4))),
    ast.GtE: (">=", ((">", 1), ("<=", 3), ("<", 4))),
    ast.Eq: ("==", (("!=", 2), ("<=", 5), (">=", 5))),
    ast.NotEq: ("!=", (("==", 2), ("<", 5), (">", 5))),
    ast.Is: ("is", (("is not", 2),)),
    ast.IsNot: ("is not", (("is", 2),)),
    ast.In: ("in", (("not in", 2),)),
    ast.NotIn: ("not in", (("in", 2),)),
}
"""How each comparison is written, what it may have been meant to be, and at which cost."""

OPERATORS: Mapping[type[ast.operator], tuple[str, tuple[tuple[str, int], ...]]] = {
    ast.Add: ("+", (("-", 2), ("*", 4))),
    ast.Sub: ("-", (("+", 2),)),
    ast.Mult: ("*", (("/", 3), ("+", 4), ("**", 4))),
    ast.Div: ("/", (("//", 2), ("*", 3))),
    ast.FloorDiv: ("//", (("/", 2), ("%", 3))),
    ast.Mod: ("%", (("//", 3),)),
    ast.Pow: ("**", (("*", 3),)),
    ast.BitAnd: ("&", (("|", 2),)),
    ast.BitOr: ("|", (("&", 2),)),
    ast.LShift: ("<<", ((">>", 2),)),
    ast.RShift: (">>", (("<<", 2),)),
}

_TWINS = (
    "min max, any all, floor ceil, startswith endswith, ljust rjust, find rfind, upper lower, append extend"
)
NAMES: Mapping[str, str] = {
    name: twin
    for pair in (*_TWINS.split(", "), "lstrip strip", "rstrip strip")
    for name, twin in (pair.split(), pair.split()[::-1])
    if name != "strip"
}
"""Functions and methods that are taken for one another."""

ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
"""Operators whose operands matter in their order."""

SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""What can stand beside any operator without parentheses. No constant: `1 .real` is not `1.real`."""

LOOP_COST = 4
"""Added in what keeps a `while` going: a wrong edit there may never end."""

LAST_COST = 2
"""Added in `[-1]`, which says "the last" and seldom means another."""


@attrs.frozen
class Edit:
    """One replacement in one source."""

    start: int
    """Position in the source's UTF-8 bytes, as `end` is."""
    end: int
    replacement: str
    line: int
    what: str
    """The edit in words, for people: `<` to `<=`."""
    cost: int


def applied(text: str, edit: Edit) -> str:
    """Return the text with the edit made."""
    data = text.encode()
    return (data[: edit.start] + edit.replacement.encode() + data[edit.end :]).decode()


@lru_cache(maxsize=64)
def edits(text: str) -> tuple[Edit, ...]:
    """Return all edits of a source, in the order of their place; none if the source does not parse.

    Cached, because a policy is replayed from its beginning at each segment.
    """
    source = parsed(text)
    if source is None:
        return ()
    found = _Finder(source).edits()
    return tuple(sorted(set(found), key=lambda edit: (edit.start, edit.end, edit.cost, edit.replacement)))


@attrs.frozen
class _Finder:
    """Walks the tree and asks each kind of slip for its edits."""

    source: Source

    def edits(self) -> Iterator[Edit]:
        yield from self._below(self.source.tree, extra_cost=0)

    def _below(self, node: ast.AST, *, extra_cost: int) -> Iterator[Edit]:
        for edit in self._at(node):
            yield attrs.evolve(edit, cost=edit.cost + extra_cost)
        for child, role in _children(node):
            in_loop = isinstance(node, ast.While) and (role == "test" or isinstance(child, ast.AugAssign))
            is_last = isinstance(node, ast.Subscript) and isinstance(child, ast.UnaryOp)
            more = LOOP_COST if in_loop else LAST_COST if is_last else 0
            yield from self._below(child, extra_cost=extra_cost + more)

    def _at(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Compare():
                yield from self._comparisons(node)
            case ast.BinOp():
                yield from self._operators(node)
            case ast.AugAssign():
                yield from self._assignments(node)
                yield from self._off_by_one((node.value,), cost=4)
            case ast.Assign():
                yield from self._off_by_one((node.value,), cost=4)
            case ast.BoolOp():
                yield from self._connectives(node)
            case ast.UnaryOp():
                yield from self._signs(node)
            case ast.Constant():
                yield from self._constants(node)
            case ast.Call():
                yield from self._arguments(node)
                yield from self._off_by_one(node.args if _named(node.func, "range") else ())
            case ast.Subscript():
                yield from self._off_by_one(_bounds(node.slice))
            case ast.Return(value=ast.Tuple(elts=[_, _] as pair)):
                yield from self._swapped(pair, 3)
            case ast.Return(value=ast.expr() as value):
                yield from self._off_by_one((value,), cost=5)
                yield from self._negations(value, cost=4)
            case ast.Break() | ast.Continue():
                other = "continue" if isinstance(node, ast.Break) else "break"
                yield self._replace(node, other, 4)
        match node:
            case ast.If() | ast.IfExp() | ast.While():
                yield from self._negations(node.test)
            case ast.comprehension():
                for test in node.ifs:
                    yield from self._negations(test)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in NAMES:
                yield from self._renamed(node, name)

    def _comparisons(self, node: ast.Compare) -> Iterator[Edit]:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            yield from self._between(left, right, *COMPARISONS[type(operator)])

    def _operators(self, node: ast.BinOp) -> Iterator[Edit]:
        if any(_is_text(side) for side in (node.left, node.right)) or type(node.op) not in OPERATORS:
            return
        written, others = OPERATORS[type(node.op)]
        yield from self._between(node.left, node.right, written, others)
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            yield from self._off_by_one((node.left, node.right), parenthesise=True)
        if isinstance(node.op, ORDERED):
            yield from self._swapped([node.left, node.right], 5, parenthesise=True)
        if isinstance(node.op, ast.Add | ast.Sub) and _is_one(node.right):
            place = self.source.between(node.left, node.right, written)
            if place is not None:
                whole = self.source.range_of(node)
                before = self.source.data[: place[0]].rstrip(b" ")
                yield self._edit(len(before), whole[1], "", f"drop `{written} 1`", 2)

    def _assignments(self, node: ast.AugAssign) -> Iterator[Edit]:
        if type(node.op) in OPERATORS and not _is_text(node.value):
            written, others = OPERATORS[type(node.op)]
            others = tuple((f"{other}=", cost) for other, cost in others)
            yield from self._between(node.target, node.value, f"{written}=", (*others, ("=", 5)))

    def _connectives(self, node: ast.BoolOp) -> Iterator[Edit]:
        written, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from self._between(left, right, written, ((other, 2),))
        for operand in node.values:
            yield from self._negations(operand)

    def _signs(self, node: ast.UnaryOp) -> Iterator[Edit]:
        written = {ast.Not: "not", ast.USub: "-"}.get(type(node.op))
        start, end = self.source.range_of(node)
        if written and (prefix := re.match(rf"{written}\s*", self.source.data[start:end].decode())):
            # `return-1` must not become `return1`.
            gap = " " if self.source.data[start - 1 : start].isalnum() else ""
            yield self._edit(start, start + len(prefix[0].encode()), gap, f"drop `{written}`", 2)

    def _negations(self, test: ast.expr, cost: int = 2) -> Iterator[Edit]:
        text = self.source.text_of(test)
        if isinstance(test, SIMPLE):
            yield self._replace(test, f"not {text}", cost)
        elif isinstance(test, ast.BoolOp):
            yield self._replace(test, f"not ({text})", cost)

    def _constants(self, node: ast.Constant) -> Iterator[Edit]:
        value, text = node.value, self.source.text_of(node)
        if isinstance(value, bool):
            yield self._replace(node, str(not value), 3)
        elif isinstance(value, int) and re.fullmatch(r"\d{1,18}", text):
            # Off by one is a slip of small numbers; larger round ones are rather off by a factor.
            beside, tenfold = (2 if value <= 2 else 4), (3 if value and value % 10 == 0 else 6)
            others = {value + 1: beside, value - 1: beside, value * 10: tenfold, value // 10: 6}
            others |= {other: 5 for other in self.source.numbers if other not in others}
            yield from (self._replace(node, str(n), cost) for n, cost in others.items() if n != value)
        elif isinstance(value, float) and re.fullmatch(r"\d+\.\d+", text):
            yield from (
                self._replace(node, repr(n), 5) for n in (value * 10, value / 10, 1 - value) if n != value
            )

    def _arguments(self, node: ast.Call) -> Iterator[Edit]:
        for pair in zip(node.args, node.args[1:], strict=False):
            yield from self._swapped(pair, 2)

    def _off_by_one(
        self, places: Iterable[ast.expr], cost: int = 2, *, parenthesise: bool = False
    ) -> Iterator[Edit]:
        for place in places:
            text = self.source.text_of(place)
            is_sum = isinstance(place, ast.BinOp) and isinstance(place.op, ast.Add | ast.Sub)
            if is_sum or isinstance(place, SIMPLE):
                for step in ("+ 1", "- 1"):
                    # A sum that is an operand of something stronger stands in parentheses already.
                    other = f"({text} {step})" if parenthesise and not is_sum else f"{text} {step}"
                    yield self._replace(place, other, cost)

    def _swapped(self, pair: Iterable[ast.expr], cost: int, *, parenthesise: bool = False) -> Iterator[Edit]:
        first, second = pair
        if any(
            isinstance(side, ast.Starred | ast.Yield | ast.YieldFrom | ast.NamedExpr)
            for side in (first, second)
        ):
            return
        left, right = self.source.text_of(first), self.source.text_of(second)
        if left == right or len(left) + len(right) > 80:
            return
        start, end = self.source.range_of(first)[0], self.source.range_of(second)[1]
        middle = self.source.data[self.source.range_of(first)[1] : self.source.range_of(second)[0]].decode()
        sides = [
            f"({text})" if parenthesise and not isinstance(side, (*SIMPLE, ast.Constant)) else text
            for side, text in ((second, right), (first, left))
        ]
        yield self._edit(start, end, middle.join(sides), f"swap `{left}` and `{right}`", cost)

    def _renamed(self, node: ast.expr, name: str) -> Iterator[Edit]:
        end = self.source.range_of(node)[1]
        start = end - len(name)
        if self.source.data[start:end] == name.encode():
            yield self._edit(start, end, NAMES[name], f"`{name}` to `{NAMES[name]}`", 1)

    def _between(
        self, left: ast.expr, right: ast.expr, written: str, others: Iterable[tuple[str, int]]
    ) -> Iterator[Edit]:
        place = self.source.between(left, right, written)
        if place is not None:
            for other, cost in others:
                yield self._edit(*place, other, f"`{written}` to `{other}`", cost)

    def _replace(self, node: ast.expr | ast.stmt, replacement: str, cost: int) -> Edit:
        what = f"`{self.source.text_of(node)}` to `{replacement}`"
        return self._edit(*self.source.range_of(node), replacement, what, cost)

    def _edit(self, start: int, end: int, replacement: str, what: str, cost: int) -> Edit:
        return Edit(start, end, replacement, self.source.line_at(start), what, cost)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the children that may be edited, with the field they are in."""
    if isinstance(node, ast.JoinedStr | ast.pattern):
        return
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
            continue
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                yield child, field


def _bounds(place: ast.expr) -> list[ast.expr]:
    """Return the index of a subscript, or the bounds of its slice."""
    if isinstance(place, ast.Slice):
        return [bound for bound in (place.lower, place.upper) if bound is not None]
    return [place]


def _named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1 and not isinstance(node.value, bool)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
