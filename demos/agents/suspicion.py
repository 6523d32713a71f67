"""Where to look first: which edits of which files are likely to repair the failing tests.

Nothing is executed here, so nobody knows which lines a test ran.
What is known: the tracebacks, and for each test the names it mentions, the names those mention, and so on.
A function that the failing tests reach and the passing ones do not is the suspect.
The measure is Ochiai's, of the spectrum-based fault localization literature, over names in place of coverage.
"""

import ast
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Self, TypeAlias

import attrs

from demos.agents.edits import Edit, edits
from demos.agents.report import Place, Report
from demos.agents.source import Unit, parsed

Spot: TypeAlias = tuple[str, Unit]
"""A function, after the path of its file."""

SUSPICION_WEIGHT = 6.0
"""How much plausibility a full suspect's edit may lack before a bystander's is tried: about the range of costs."""

ON_THE_LINE, NEAR_THE_LINE, NEAR_LINES = 3.0, 1.0, 3
"""What a traceback through a line is worth, and through one of the lines beside it."""


@attrs.frozen
class Candidate:
    """An edit of a file; the lower its rank, the sooner it is tried."""

    path: str
    edit: Edit
    rank: float

    @property
    def name(self) -> str:
        """The edit in words, for people; the same after an edit elsewhere in the file."""
        return f"{self.path} line {self.edit.line}: {self.edit.what}"


def candidates(
    report: Report, files: Mapping[str, str], promising: frozenset[str] = frozenset()
) -> list[Candidate]:
    """Return all edits of the files that are no tests, the most likely first.

    `promising` are names of edits that helped before, if less than another one: they come at the very first.
    """
    ranked = _ranked(report, tuple(files.items()))
    return (
        sorted(ranked, key=lambda candidate: candidate.name not in promising) if promising else list(ranked)
    )


@lru_cache(maxsize=32)
def _ranked(report: Report, files: tuple[tuple[str, str], ...]) -> tuple[Candidate, ...]:
    """Rank the edits. Cached, because a policy is replayed from its beginning at each segment."""
    texts = dict(files)
    suspects = suspicions(report, texts)
    lines = {place for places in report.failing.values() for place in places_in(places, texts)}
    found = []
    for path, text in files:
        if is_test(path):
            continue
        units = _units(text)
        near = sorted(place.line for place in lines if place.path == path)
        for edit in edits(text):
            suspicion = max((suspects[path, unit] for unit in units if _holds(unit, edit.line)), default=0.0)
            rank = edit.cost - SUSPICION_WEIGHT * suspicion - _nearness(edit.line, near)
            found.append(Candidate(path, edit, rank))
    return tuple(sorted(found, key=lambda c: (c.rank, c.path, c.edit.start, c.edit.cost, c.edit.replacement)))


def suspicions(report: Report, files: Mapping[str, str]) -> Mapping[Spot, float]:
    """Return for each function of the files how much the failing tests point at it, from 0 to 1."""
    index = _Index.over(files)
    failing = Counter(spot for test in report.failing for spot in index.reached(test))
    passing = Counter(spot for test in report.passing for spot in index.reached(test))
    total = max(len(report.failing), 1)
    return defaultdict(
        float, {spot: n / math.sqrt(total * (n + passing[spot])) for spot, n in failing.items()}
    )


def places_in(places: Iterable[Place], paths: Iterable[str]) -> Iterator[Place]:
    """Yield the places that are lines of these files, by the paths of these files."""
    known = sorted(paths, key=len, reverse=True)
    for place in places:
        slashed = place.path.replace("\\", "/")
        path = next((path for path in known if slashed == path or slashed.endswith(f"/{path}")), None)
        if path is not None and "/site-packages/" not in slashed and "/lib/python" not in slashed:
            yield Place(path, place.line)


def test_files(report: Report, paths: Iterable[str]) -> list[str]:
    """Return the files that failing tests are in, or have in their tracebacks."""
    known = list(paths)
    found = [place.path for places in report.failing.values() for place in places_in(places, known)]
    for test in report.failing:
        words = re.findall(r"\w+", test.split("::")[0])
        found.extend(path for path in known if PurePosixPath(path).stem in words and is_test(path))
    return list(dict.fromkeys(path for path in found if path.endswith(".py")))


def imported(text: str, paths: Iterable[str]) -> list[str]:
    """Return which of the files a source imports, as far as names tell."""
    source = parsed(text)
    names: list[str] = []
    for node in ast.walk(source.tree) if source else ():
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = [node.module] if node.module else []
            names.extend(".".join([*module, alias.name]) for alias in node.names)
            names.extend(module)
    files = {f"{name.replace('.', '/')}{end}" for name in names for end in (".py", "/__init__.py")}
    return [path for path in paths if any(path == file or path.endswith(f"/{file}") for file in files)]


def is_test(path: str) -> bool:
    """Whether a file holds tests, which are right by definition and are never edited."""
    pure = PurePosixPath(path)
    by_name = pure.name.startswith("test_") or pure.name.endswith("_test.py") or pure.name == "conftest.py"
    return by_name or bool({"test", "tests"} & set(pure.parts[:-1]))


def _units(text: str) -> tuple[Unit, ...]:
    source = parsed(text)
    return tuple(source.units()) if source else ()


@attrs.frozen
class _Index:
    """All functions of the files, by what one must mention to run them."""

    by_name: Mapping[str, list[Spot]]
    specials: Mapping[str, list[Spot]]
    """By class: whoever mentions a class may run each of its special methods."""
    by_owner: Mapping[str, list[Spot]]

    @classmethod
    def over(cls, files: Mapping[str, str]) -> Self:
        """Index the files."""
        by_name, specials, by_owner = defaultdict(list), defaultdict(list), defaultdict(list)
        for spot in ((path, unit) for path, text in files.items() for unit in _units(text)):
            unit = spot[1]
            by_name[unit.name].append(spot)
            by_owner[unit.owner].append(spot)
            if unit.name.startswith("__"):
                specials[unit.owner].append(spot)
        return cls(by_name, specials, by_owner)

    def reached(self, test: str) -> set[Spot]:
        """Follow the names from a test to all it may run."""
        words = dict.fromkeys(re.findall(r"\w+", test))
        found = [spot for word in words for spot in self.by_name.get(word, ())]
        starts = [(p, u) for p, u in found if is_test(p) and (not u.owner or u.owner in words)]
        owners = {unit.owner for _, unit in starts if unit.owner}
        # `setUp` and its like run with each test of their class, mentioned by none.
        beside = [spot for owner in sorted(owners) for spot in self.by_owner[owner]]
        waiting = starts + [spot for spot in beside if not spot[1].name.startswith("test")]
        reached = set(waiting)
        while waiting:
            for name in waiting.pop()[1].mentions:
                new = {*self.by_name.get(name, ()), *self.specials.get(name, ())} - reached
                reached |= new
                waiting.extend(new)
        return reached


def _holds(unit: Unit, line: int) -> bool:
    return unit.first_line <= line <= unit.last_line


def _nearness(line: int, near: list[int]) -> float:
    distance = min((abs(line - other) for other in near), default=NEAR_LINES + 1)
    return ON_THE_LINE if distance == 0 else NEAR_THE_LINE if distance <= NEAR_LINES else 0.0
