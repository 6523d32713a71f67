"""Limits as a person writes them: `NAME=VALUE` on the command line, the same names in a TOML file."""

import ast
import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from engine.config import Limits

_REFERENCE = re.compile(r" \(reference [^()]*\)")
"""Where a limit comes from; for who works on the engine."""

_FIELDS = {field.name: field for field in attrs.fields(Limits)}


@attrs.frozen
class LimitRow:
    """One limit, for people."""

    name: str
    default: str
    reason: str
    """Empty where the name says it."""


def limit_rows() -> tuple[LimitRow, ...]:
    """All limits in the order of `engine.config`, with the text beside each."""
    reasons = _reasons()
    return tuple(
        LimitRow(name, f"{field.default:.15g}", reasons.get(name, "")) for name, field in _FIELDS.items()
    )


def _reasons() -> dict[str, str]:
    """The string after a field is its documentation; Python keeps it in the source only."""
    body = next(
        node.body
        for node in ast.parse(textwrap.dedent(inspect.getsource(Limits))).body
        if isinstance(node, ast.ClassDef)
    )
    found = {}
    for before, after in pairwise(body):
        match before, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = _REFERENCE.sub("", " ".join(text.split()))
    return found


def read_limits(file: Path | None, pairs: Iterable[str]) -> Limits:
    """The limits of a file, overridden by `NAME=VALUE` pairs.

    `ValueError`: names the limit and says what it should be. `OSError`: there is no such file.
    """
    values: dict[str, Any] = _of_file(file) if file is not None else {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"limit {pair!r}: write NAME=VALUE, e.g. max_connections=100")
        values[name] = _number_of(name, text)
    return Limits(**values)


def _of_file(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_bytes().decode())
    except ValueError as error:  # not UTF-8, or not TOML
        raise ValueError(f"{file}: not a TOML file: {error}") from error
    try:
        return {name: _checked(name, value) for name, value in document.items()}
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _number_of(name: str, text: str) -> float:
    try:
        return _checked(name, int(text) if _whole(name) else float(text))
    except ValueError as error:
        if name not in _FIELDS:
            raise
        raise ValueError(f"limit {name}: {text!r} is no {_kind(name)}") from error


def _checked(name: str, value: Any) -> float:
    """A number of the right kind; whether it is in range is for `Limits` to say."""
    right = type(value) is int or (type(value) is float and not _whole(name))
    if not right:
        raise ValueError(f"limit {name}: {value!r} is no {_kind(name)}")
    return float(value) if not _whole(name) else int(value)


def _whole(name: str) -> bool:
    if name not in _FIELDS:
        near = get_close_matches(name, _FIELDS, n=1)
        meant = f"did you mean {near[0]!r}?" if near else "`suspended serve --help` lists them"
        raise ValueError(f"there is no limit {name!r}; {meant}")
    return isinstance(_FIELDS[name].default, int)


def _kind(name: str) -> str:
    return "whole number" if _whole(name) else "number"
