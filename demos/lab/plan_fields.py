"""The fields of an experiment file, each with what it may hold; a wrong one is named with its file and the way out."""

import copy
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from demos.lab.arms import ARMS, arm_of, with_turns
from demos.lab.records import CellValue
from demos.lab.workload import SCENARIOS

SIZES: Final = ("calls", "history_tokens", "new_tokens", "sampled_tokens")
"""Axes of a uniform workload; other workloads bring their own."""
SOURCES: Final = ("uniform", "alpha", "built-in", "file")
CLOCKS: Final = ("wall", "virtual", "both")
_PREFILL: Final = "prefill_tokens_per_second"
_MOST: Final = 1_000_000
"""Calls of a rollout, and tokens at once: it is held in memory."""
_MOST_ROLLOUTS: Final = 100_000
"""Of a plan: so is the whole design."""
Product = tuple[dict[str, CellValue], int, dict[str, Any]]
"""Axes, repeats and model costs of a cell."""


class PlanError(ValueError):
    """An experiment file is wrong; the message names the file, the field and what it may be."""


class _Fields:
    """One table of the file; every read names the field."""

    def __init__(self, table: Any, file: str, path: str, known: Collection[str]) -> None:
        self.where = f"{file}: {path}" if path else file
        if not isinstance(table, dict):
            raise PlanError(f"{self.where} is {table!r:.40}; it must be a table")
        self.table: Mapping[str, Any] = table
        self._file, self._path = file, path
        self.places: Mapping[str, str] = {}
        for name in table:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known))}"
                raise PlanError(f"{self.field(name)} is unknown{hint}")

    def inner(self, name: str, known: Collection[str]) -> "_Fields":
        """The table of that name; an empty one if there is none."""
        return _Fields(self.table.get(name, {}), self._file, self.place(name), known)

    def merged(self, layers: Sequence["_Fields"]) -> "_Fields":
        """What these tables hold, the last one that has a field before all others; it is named where it was written."""
        found = self.having({name: value for layer in layers for name, value in layer.table.items()})
        found.places = {name: layer.place(name) for layer in layers for name in layer.table}
        return found

    def having(self, values: Mapping[str, Any]) -> "_Fields":
        """With these in the place of its own."""
        found = copy.copy(self)
        found.table = {**self.table, **values}
        return found

    def field(self, name: str) -> str:
        """A field as errors name it."""
        return f"{self._file}: {self.place(name)}"

    def place(self, name: str) -> str:
        return self.places.get(name, f"{self._path}.{name}" if self._path else name)

    def text(self, name: str, choices: Collection[str] = (), default: str | None = None) -> str:
        value = self.table.get(name, default)
        if not isinstance(value, str) or (choices and value not in choices):
            must = f"one of {', '.join(choices)}" if choices else "a text"
            raise PlanError(f"{self.field(name)} is {value!r}; it must be {must}")
        return value

    def number(self, name: str, default: float | None = None, *, least: float = 0.0) -> float:
        return _number(self.table.get(name, default), self.field(name), least)

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        return _whole(self.table.get(name, default), self.field(name), least)

    def list_of(self, name: str, read: Callable[[Any, str], Any], default: Any = None) -> list[Any]:
        value = self.table.get(name, default)
        if not isinstance(value, list) or not value:
            raise PlanError(f"{self.field(name)} is {value!r}; it must be a list of at least one")
        return [read(entry, f"{self.field(name)}[{index}]") for index, entry in enumerate(value)]


def checked(table: Mapping[str, Any], file: str, *, quick: bool) -> dict[str, Any]:
    """The members of a `Plan` but its name, with `products` in the place of its cells. `PlanError`."""
    top = _Fields(table, file, "", _TOP)
    changes = top.inner("quick", _QUICK)
    shown = top.merged([top, changes]) if quick else top
    arms = tuple(shown.list_of("arms", _arm))
    if len(set(arms)) < len(arms):
        raise PlanError(f"{shown.field('arms')} names an arm twice; call the second one NAME#2")
    baseline = top.text("baseline", arms)
    others = [arm for arm in with_turns(arms) if arm != baseline]
    if not others:
        raise PlanError(
            f"{shown.field('arms')} has nothing to compare with {baseline}; add an arm with turns"
        )
    seeds = tuple(shown.list_of("seeds", _whole, [0]))
    if len(set(seeds)) < len(seeds):
        raise PlanError(f"{shown.field('seeds')} names a seed twice; more of the same are `repeats`")
    work = _work(top)
    if quick and "works" in changes.table:
        work["count"] = changes.whole("works", least=1)
    products = _products(top, changes, work["source"], arms, quick=quick)
    count = sum(repeats for _, repeats, _ in products) * len(arms) * len(seeds)
    if count > _MOST_ROLLOUTS:
        raise PlanError(
            f"{shown.field('repeats')}: all cells, arms and seeds are {count:,} rollouts; at most {_MOST_ROLLOUTS:,}"
        )
    return {
        "title": top.text("title"),
        "question": top.text("question"),
        "clock": shown.text("clock", CLOCKS),
        "arms": arms,
        "baseline": baseline,
        "headline": top.text("headline", others),
        "seeds": seeds,
        "timeout_s": top.number("timeout_s", 3600.0, least=1e-3),
        "work": work,
        "products": products,
    }


def _work(top: _Fields) -> dict[str, Any]:
    names = {"source", "count", "min_calls", "max_calls", "max_context_tokens", "path", "spread"}
    work = top.inner("work", names)
    source = work.text("source", SOURCES)
    values = {
        "source": source,
        "count": work.whole("count", 1, least=1),
        "min_calls": work.whole("min_calls", 1),
        "max_calls": work.whole("max_calls", 91, least=1),
        "max_context_tokens": work.whole("max_context_tokens", 0),
    }
    if source == "file" or "path" in work.table:
        values["path"] = work.text("path")
    if "spread" in work.table:
        values["spread"] = _spread(work.number("spread"), work.field("spread"), source)
    return values


def _spread(value: float, field: str, source: str) -> float:
    if not value < 1 or source != "uniform":
        raise PlanError(f"{field} is {value!r}; it must be less than 1, and is for the source uniform")
    return value


def _products(
    top: _Fields, changes: _Fields, source: str, arms: Collection[str], *, quick: bool
) -> list[Product]:
    known = _axes(source) | _SETTINGS
    below = [top, top.inner("model", _MODEL), top.inner("cell", known)]
    above = [changes.inner("cell", known), changes]
    products: list[Product] = []
    for own in _parts(changes if quick and "cells" in changes.table else top, known):
        whole = own.merged([*below, own, *(above if quick else [])])
        for axis in _prefills(whole):
            products += [
                ({**axes, **axis}, repeats, model)
                for axes, repeats, model in _product(whole.having(axis), source, arms)
            ]
    seen = [tuple(sorted(axes.items(), key=str)) for axes, _, _ in products]
    if len(set(seen)) < len(seen):
        raise PlanError(f"{top.field('cells')}: two of them have the same axes; merge them")
    return products


def _parts(listed: _Fields, known: Collection[str]) -> list[_Fields]:
    """Its [[cells]]; one that says nothing of its own, if it has none."""
    parts = listed.table.get("cells")
    if parts is None:
        return [listed.having({"cell": {}}).inner("cell", known)]
    if not isinstance(parts, list) or not parts:
        raise PlanError(f"{listed.field('cells')} is {parts!r:.40}; write [[cells]] for each of them")
    names = [f"cells[{index}]" for index in range(len(parts))]
    named = listed.having(dict(zip(names, parts, strict=True)))
    return [named.inner(name, known) for name in names]


def _product(cell: _Fields, source: str, arms: Collection[str]) -> Iterator[Product]:
    settings = (cell.whole("repeats", 1, least=1), _model(cell, arms))
    values = []
    for name in sorted(_axes(source)):
        given = cell.table.get(name)
        entries = given if isinstance(given, list) else [given]
        if not entries:
            raise PlanError(f"{cell.field(name)} is an empty list")
        values.append([(name, _AXES[name](entry, cell.field(name))) for entry in entries])
    for chosen in itertools.product(*values):
        yield dict(chosen), *settings


def _prefills(cell: _Fields) -> list[Mapping[str, CellValue]]:
    """How fast the model reads is a cost like others, and an axis besides where it is a list."""
    speeds = cell.table.get(_PREFILL)
    if not isinstance(speeds, list):
        return [{}]
    if not speeds:
        raise PlanError(f"{cell.field(_PREFILL)} is an empty list")
    return [{_PREFILL: speed} for speed in speeds]


def _model(cell: _Fields, arms: Collection[str]) -> dict[str, Any]:
    given = cell.table.get("overhead_ms", {})
    overheads = cell.inner("overhead_ms", ARMS)
    needed = {arm_of(arm).name for arm in arms}
    if given and needed - given.keys():
        raise PlanError(
            f"{overheads.where} has nothing for {', '.join(sorted(needed - given.keys()))}; "
            "where it is given, it is given for each arm"
        )
    return {
        "first_token_ms": cell.number("first_token_ms", 0.0),
        "prefill_tokens_per_second": cell.number(_PREFILL, 100_000.0, least=1.0),
        "tick_ms": cell.number("tick_ms", 1.0, least=1e-3),
        "overhead_ms": {name: overheads.number(name) for name in given},
    }


def _axes(source: str) -> set[str]:
    return set(_AXES) if source == "uniform" else set(_AXES) - set(SIZES)


def _number(value: Any, field: str, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise PlanError(f"{field} is {value!r}; it must be a number of {least:g} or more")
    return value


def _whole(value: Any, field: str, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise PlanError(f"{field} is {value!r}; it must be a whole number of {least} or more")
    return value


def _arm(value: Any, field: str) -> str:
    try:
        arm_of(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise PlanError(f"{field}: {error}") from error
    return str(value)


def _tool(value: Any, field: str) -> CellValue:
    if isinstance(value, str) and value in SCENARIOS:
        return value
    if isinstance(value, str | bool) or not isinstance(value, int | float):
        raise PlanError(f"{field} is {value!r}; it must be Z (no tool time), A, B, or seconds")
    return _number(value, field)


def _size(value: Any, field: str) -> CellValue:
    if _whole(value, field) > _MOST:
        raise PlanError(f"{field} is {value!r}; it must be at most {_MOST:,}")
    return int(value)


def _speed(value: Any, field: str) -> CellValue:
    return _number(value, field, 1.0)


_AXES: Final[Mapping[str, Callable[[Any, str], CellValue]]] = {
    "tokens_per_second": _speed,
    "rtt_ms": _number,
    "tool": _tool,
    **dict.fromkeys(SIZES, _size),
}
_MODEL: Final = {"first_token_ms", "prefill_tokens_per_second", "tick_ms", "overhead_ms"}
_SETTINGS: Final = {"repeats"} | _MODEL
_TOP: Final = {
    "title", "question", "clock", "arms", "baseline", "headline", "seeds", "repeats", "timeout_s", "work", "cell", "cells",
    "model", "quick",
}  # fmt: skip
_QUICK: Final = {"clock", "arms", "seeds", "repeats", "cell", "cells", "works"}
