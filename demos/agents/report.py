"""What a test run said, read from its output: the output of unittest and of pytest, verbose or not.

A reader of outputs must be content with less: an output may be cut in its middle, or be none of the two.
What cannot be read is missing from the report; nothing here raises.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import attrs

_FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d{1,9})|^(\S+\.py):(\d{1,9}): ', re.MULTILINE)

_RAN = re.compile(r"^Ran (\d{1,9}) tests? in ", re.MULTILINE)
_COUNTED = re.compile(r"\b(?:failures|errors|unexpected successes)=(\d{1,9})")
_VERDICT = re.compile(r"^(OK|FAILED)\b.*$", re.MULTILINE)
_LINE = re.compile(
    r"^ *(\w+) \(([\w.]+)\)((?: \[[^\n]*?\])?(?: \([^\n]*?\))?)(?:\n[^\n]*?)? \.\.\. (ok|FAIL|ERROR)$",
    re.MULTILINE,
)
_SECTION = re.compile(r"^=+\n(?:FAIL|ERROR): (\w+) \(([\w.]+)\)(.*)$", re.MULTILINE)

_PYTEST_SUMMARY = re.compile(r"^=* ?((?:\d{1,9} [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)
_PYTEST_LINE = re.compile(r"^(\S+\.py(?:::\S.*?)?) (PASSED|FAILED|ERROR)\b", re.MULTILINE)
_PYTEST_SHORT = re.compile(r"^(PASSED|FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
_PYTEST_SECTION = re.compile(r"^_{3,} (?:ERROR (?:at \w+ of|collecting) )?(\S.*?) _{3,}$", re.MULTILINE)


@attrs.frozen
class Place:
    """A line of a file, by the path the output gives."""

    path: str
    line: int


@attrs.frozen(eq=False)
class Report:
    """A test run. Tests go by the id their runner prints: dotted for unittest, a path and `::` for pytest."""

    ran: int
    """How many tests ran; 0 if the run did not get to its summary."""
    failed: int
    failing: Mapping[str, tuple[Place, ...]]
    """The failing tests, each with the lines of its traceback, outermost first."""
    passing: frozenset[str]

    @property
    def finished(self) -> bool:
        """Whether there was a summary that counts tests."""
        return self.ran > 0

    @property
    def passed(self) -> bool:
        """Whether tests ran and none failed."""
        return self.finished and self.failed == 0

    @property
    def in_words(self) -> str:
        """A line for people."""
        if not self.finished:
            return "no summary of tests in the output"
        return f"all {self.ran} tests pass" if self.passed else f"{self.failed} of {self.ran} tests fail"

    def repairs(self, before: "Report") -> bool:
        """Whether this run is better than the one before: fewer failures, and no test that newly fails.

        Where a module could not be loaded before, its tests are all new: then more of them passing is better.
        """
        if not self.finished or before.passing - self.passing:
            return False
        if self.failed < before.failed and self.ran >= before.ran:
            return self.failing.keys() <= before.failing.keys()
        return self.ran > before.ran and self.passing > before.passing

    def advances(self, before: "Report") -> bool:
        """Whether the same tests fail, but some of them later than before and none earlier."""
        if (
            not self.finished
            or self.failing.keys() != before.failing.keys()
            or self.passing != before.passing
        ):
            return False
        steps = [_last_line(self.failing[test]) - _last_line(before.failing[test]) for test in self.failing]
        return self.failed <= before.failed and min(steps, default=0) >= 0 and any(steps)


@lru_cache(maxsize=256)
def report_of(output: str) -> Report:
    """Read a test run's output. Cached, because a policy is replayed from its beginning at each segment."""
    summary = _PYTEST_SUMMARY.search(output)
    return _from_pytest(output, summary[1]) if summary else _from_unittest(output)


def _from_unittest(output: str) -> Report:
    lines = {_test_id(*match.groups()[:3]): match[4] for match in _LINE.finditer(output)}
    failing: dict[str, tuple[Place, ...]] = {test: () for test, said in lines.items() if said != "ok"}
    for match, text in _parts(_SECTION, output):
        failing[_test_id(match[1], match[2], match[3])] = _places(text)
    ran, verdict = _RAN.search(output), _VERDICT.search(output, _end_of_last(_RAN, output))
    if not ran or not verdict:
        return Report(0, 0, failing, frozenset())
    counted = sum(int(number) for number in _COUNTED.findall(verdict[0]))
    # A test whose subtests fail has a line for each of them, and may have none, or "ok", for itself.
    passing = frozenset(
        t for t, said in lines.items() if said == "ok" and not any(f.startswith(t) for f in failing)
    )
    failed = max(counted, 1) if verdict[1] == "FAILED" else 0
    return Report(int(ran[1]), failed, failing, passing)


def _from_pytest(output: str, summary: str) -> Report:
    counts = {word.rstrip("s"): int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", summary)}
    said = {match[1]: match[2] for match in _PYTEST_LINE.finditer(output)}
    said |= {match[2]: match[1] for match in _PYTEST_SHORT.finditer(output)}
    sections = {match[1]: _places(text) for match, text in _parts(_PYTEST_SECTION, output)}
    failing = {
        test: sections.get(_section_title(test), ()) for test, word in said.items() if word != "PASSED"
    }
    failed = counts.get("failed", 0) + counts.get("error", 0)
    passing = frozenset(test for test, word in said.items() if word == "PASSED")
    return Report(failed + counts.get("passed", 0), failed, failing, passing)


def _parts(heading: re.Pattern[str], output: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each heading with the text up to the next one."""
    found = list(heading.finditer(output))
    ends = [match.start() for match in found] + [len(output)]
    for match, end in zip(found, ends[1:], strict=True):
        yield match, output[match.end() : end]


def _places(text: str) -> tuple[Place, ...]:
    return tuple(Place(match[1] or match[3], int(match[2] or match[4])) for match in _FRAME.finditer(text))


def _test_id(name: str, dotted: str, rest: str) -> str:
    """Return one id for what Python 3.11 writes `(module.Class.test)` and 3.10 `(module.Class)`."""
    whole = dotted if dotted.endswith(f".{name}") else f"{dotted}.{name}"
    return whole + rest.rstrip()


def _section_title(test: str) -> str:
    """Return what stands over a test's traceback; for a file that cannot be collected, its path."""
    return ".".join(test.split("::")[1:]) or test


def _end_of_last(pattern: re.Pattern[str], output: str) -> int:
    return max((match.end() for match in pattern.finditer(output)), default=0)


def _last_line(places: tuple[Place, ...]) -> int:
    """Return how far a test got: the line in its own file, which is where its traceback begins."""
    return next((place.line for place in reversed(places) if place.path == places[0].path), 0)
