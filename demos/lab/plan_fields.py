"""The fields of an experiment file, each with what it may hold; a wrong one is named with its file and the way out."""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from demos.lab.arms import ARMS, arm_of
from demos.lab.records import CellValue
from demos.lab.workload import SCENARIOS

SIZES: Final = ("calls", "history_tokens", "new_tokens", "sampled_tokens")
"""Axes of a uniform workload; other workloads bring their own."""
SOURCES: Final = ("uniform", "alpha", "built-in", "file")
CLOCKS: Final = ("wall", "virtual", "both")
_PREFILL: Final = "prefill_tokens_per_second"
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
        self._table = table
        self._file, self._path = file, path
        for name in table:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known))}"
                raise PlanError(f"{self.field(name)} is unknown{hint}")

    def field(self, name: str) -> str:
        """A field as errors name it."""
        return f"{self._file}: {self._path}.{name}" if self._path else f"{self._file}: {name}"

    def text(self, name: str, choices: Collection[str] = (), default: str | None = None) -> str:
        value = self._table.get(name, default)
        if not isinstance(value, str) or (choices and value not in choices):
            must = f"one of {', '.join(choices)}" if choices else "a text"
            raise PlanError(f"{self.field(name)} is {value!r}; it must be {must}")
        return value

    def number(self, name: str, default: float | None = None, *, least: float = 0.0) -> float:
        return _number(self._table.get(name, default), self.field(name), least)

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        return _whole(self._table.get(name, default), self.field(name), least)

    def list_of(self, name: str, read: Callable[[Any, str], Any], default: Any = None) -> list[Any]:
        value = self._table.get(name, default)
        if not isinstance(value, list) or not value:
            raise PlanError(f"{self.field(name)} is {value!r}; it must be a list of at least one")
        return [read(entry, f"{self.field(name)}[{index}]") for index, entry in enumerate(value)]


def checked(table: Mapping[str, Any], file: str, *, quick: bool) -> dict[str, Any]:
    """The members of a `Plan` but its name, with `products` in the place of its cells. `PlanError`."""
    top = _Fields(table, file, "", _TOP)
    changes = _Fields(table.get("quick", {}), file, "quick", _QUICK)
    shown = _Fields({**table, **changes._table}, file, "", _TOP | _QUICK) if quick else top  # noqa: SLF001  # one module
    arms = tuple(shown.list_of("arms", _arm))
    if len(set(arms)) < len(arms):
        raise PlanError(f"{shown.field('arms')} names an arm twice; call the second one NAME#2")
    work = _work(table.get("work", {}), file)
    if quick and "works" in table.get("quick", {}):
        work["count"] = changes.whole("works", least=1)
    return {
        "title": top.text("title"),
        "question": top.text("question"),
        "clock": shown.text("clock", CLOCKS),
        "arms": arms,
        "baseline": top.text("baseline", arms),
        "headline": top.text("headline", arms),
        "seeds": tuple(shown.list_of("seeds", _whole, [0])),
        "timeout_s": top.number("timeout_s", 3600.0, least=1e-3),
        "work": work,
        "products": _products(table, file, work["source"], arms, quick=quick),
    }


def _work(table: Any, file: str) -> dict[str, Any]:
    names = {"source", "count", "min_calls", "max_calls", "max_context_tokens", "path", "spread"}
    work = _Fields(table, file, "work", names)
    source = work.text("source", SOURCES)
    values = {
        "source": source,
        "count": work.whole("count", 1, least=1),
        "min_calls": work.whole("min_calls", 1),
        "max_calls": work.whole("max_calls", 91, least=1),
        "max_context_tokens": work.whole("max_context_tokens", 0),
    }
    if source == "file" or "path" in work._table:  # noqa: SLF001  # one module
        values["path"] = work.text("path")
    if "spread" in work._table:  # noqa: SLF001  # one module
        values["spread"] = _spread(work.number("spread"), work.field("spread"), source)
    return values


def _spread(value: float, field: str, source: str) -> float:
    if not value < 1 or source != "uniform":
        raise PlanError(f"{field} is {value!r}; it must be less than 1, and is for the source uniform")
    return value


def _products(
    table: Mapping[str, Any], file: str, source: str, arms: Collection[str], *, quick: bool
) -> list[Product]:
    changes = table.get("quick", {}) if quick else {}
    base = {"repeats": table.get("repeats", 1), **table.get("model", {})}
    parts = changes.get("cells", table.get("cells", [{}]))
    if not isinstance(parts, list) or not parts:
        raise PlanError(f"{file}: cells is {parts!r:.40}; write [[cells]] for each of them")
    products: list[Product] = []
    for index, part in enumerate(parts):
        path = f"cells[{index}]" if "cells" in table else "cell"
        own = _Fields(part, file, path, _axes(source) | _SETTINGS)._table  # noqa: SLF001  # one module
        whole = {**base, **table.get("cell", {}), **own, **changes.get("cell", {})}
        if "repeats" in changes:
            whole["repeats"] = changes["repeats"]
        for one, axis in _prefills(whole, f"{file}: {path}.{_PREFILL}"):
            cell = _Fields(one, file, path, _axes(source) | _SETTINGS)
            products += [
                ({**axes, **axis}, repeats, model)
                for axes, repeats, model in _product(cell, source, one, arms)
            ]
    seen = [tuple(sorted(axes.items(), key=str)) for axes, _, _ in products]
    if len(set(seen)) < len(seen):
        raise PlanError(f"{file}: cells: two of them have the same axes; merge them")
    return products


def _product(
    cell: _Fields, source: str, whole: Mapping[str, Any], arms: Collection[str]
) -> Iterator[Product]:
    settings = (cell.whole("repeats", least=1), _model(cell, whole, arms))
    values = []
    for name in sorted(_axes(source)):
        given = whole.get(name)
        entries = given if isinstance(given, list) else [given]
        if not entries:
            raise PlanError(f"{cell.field(name)} is an empty list")
        values.append([(name, _AXES[name](entry, cell.field(name))) for entry in entries])
    for chosen in itertools.product(*values):
        yield dict(chosen), *settings


def _prefills(
    whole: Mapping[str, Any], field: str
) -> list[tuple[Mapping[str, Any], Mapping[str, CellValue]]]:
    """How fast the model reads is a cost like others, and an axis besides where it is a list."""
    speeds = whole.get(_PREFILL)
    if not isinstance(speeds, list):
        return [(whole, {})]
    if not speeds:
        raise PlanError(f"{field} is an empty list")
    return [({**whole, _PREFILL: speed}, {_PREFILL: speed}) for speed in speeds]


def _model(cell: _Fields, whole: Mapping[str, Any], arms: Collection[str]) -> dict[str, Any]:
    given = whole.get("overhead_ms", {})
    overheads = _Fields(given, cell.where, "overhead_ms", ARMS)
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


def _speed(value: Any, field: str) -> CellValue:
    return _number(value, field, 1.0)


_AXES: Final[Mapping[str, Callable[[Any, str], CellValue]]] = {
    "tokens_per_second": _speed,
    "rtt_ms": _number,
    "tool": _tool,
    **dict.fromkeys(SIZES, _whole),
}
_MODEL: Final = {"first_token_ms", "prefill_tokens_per_second", "tick_ms", "overhead_ms"}
_SETTINGS: Final = {"repeats"} | _MODEL
_TOP: Final = {
    "title", "question", "clock", "arms", "baseline", "headline", "seeds", "repeats", "timeout_s", "work", "cell", "cells",
    "model", "quick",
}  # fmt: skip
_QUICK: Final = {"clock", "arms", "seeds", "repeats", "cell", "cells", "works"}
