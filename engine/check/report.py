"""What `suspended check` says: each violation as it is found, then what was checked and what was not.

Everything in a trace comes from strangers: on its way to the terminal control characters are escaped.
"""

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from protocol.invariants import RULES, Summary, Violation

Say = Callable[[str], None]
"""Writes a line, at once."""

_MEMBERS: Final = ("rule", "trace", "record", "conn", "lane", "response_id", "expected", "seen", "prefix")
"""What `--json` says of a violation."""
_WIDTH: Final = 100
_BOLD_RED: Final = "\x1b[1;31m"
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"


def printable(text: str) -> str:
    """Text from a trace, safe for a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@attrs.define
class Totals:
    """Of all traces so far."""

    files: int = 0
    refused_files: int = 0
    traces: int = 0
    records: int = 0
    responses: int = 0
    events: Counter[str] = attrs.field(factory=Counter)
    """By form."""
    violations: Counter[str] = attrs.field(factory=Counter)
    """By rule."""
    not_evaluated: dict[str, Counter[str]] = attrs.field(factory=dict)
    """By rule: in how many traces, for each reason."""

    def add(self, summary: Summary) -> None:
        """Count a trace."""
        self.traces += 1
        self.records += summary.records
        self.responses += summary.responses
        self.events.update(summary.events)
        self.violations.update(summary.violations)
        for rule, reason in summary.not_evaluated.items():
            self.not_evaluated.setdefault(rule, Counter())[reason] += 1

    @property
    def vacuous(self) -> bool:
        """Nothing was checked: no event of a response, or no rule was evaluated on any trace."""
        evaluated = any(self.times_missed(rule) < self.traces for rule in RULES)
        return not (self.events.total() and evaluated)

    def times_missed(self, rule: str) -> int:
        """On how many traces a rule was not evaluated."""
        return self.not_evaluated.get(rule, Counter()).total()

    def reason(self, rule: str) -> str:
        """Why a rule was not evaluated, and on how many traces if not on all."""
        said = "; ".join(self.not_evaluated[rule])
        count = self.times_missed(rule)
        return said if count >= self.traces else f"{said} ({count} of {self.traces} traces)"

    def as_json(self) -> dict[str, Any]:
        """As the last line of `--json` has it."""
        return {
            "files": self.files,
            "traces": self.traces,
            "records": self.records,
            "responses": self.responses,
            "events": dict(self.events),
            "violations": {rule: self.violations[rule] for rule in RULES if self.violations[rule]},
            "not_evaluated": {rule: self.reason(rule) for rule in RULES if rule in self.not_evaluated},
        }


class Report(Protocol):
    """How it is said."""

    def violations(self, found: Iterable[Violation], shown: Callable[[Violation], Sequence[str]]) -> None:
        """Say these, now."""

    def end(self, totals: Totals, exit_code: int) -> None:
        """Say what came of it."""


class JsonReport:
    """An object a line."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def violations(self, found: Iterable[Violation], shown: Callable[[Violation], Sequence[str]]) -> None:  # noqa: ARG002  # the prefix is said by its numbers
        """A line for each."""
        for violation in found:
            members = {member: getattr(violation, member) for member in _MEMBERS}
            self._say(json.dumps(members))  # escapes lone surrogates, which orjson refuses

    def end(self, totals: Totals, exit_code: int) -> None:
        """The last line."""
        self._say(json.dumps({"summary": {**totals.as_json(), "exit_code": exit_code}}))


class HumanReport:
    """Lines to read and to paste into a bug report."""

    def __init__(self, say: Say, *, colour: bool) -> None:
        self._say = say
        self._colour = colour
        self._trace: str | None = None
        self._stated: set[str] = set()

    def violations(self, found: Iterable[Violation], shown: Callable[[Violation], Sequence[str]]) -> None:
        """A paragraph for each; a rule is stated when it is broken for the first time."""
        for violation in found:
            if violation.trace != self._trace:
                self._trace = violation.trace
                self._say(f"trace {printable(violation.trace)}\n")
            lane = f"  lane {printable(violation.lane)}" if violation.lane is not None else ""
            self._say(
                f"{printable(violation.response_id or '-')}  {self._in(_BOLD_RED, violation.rule)}  "
                f"record {violation.record}  conn {printable(violation.conn)}{lane}"
            )
            if violation.rule not in self._stated:
                self._stated.add(violation.rule)
                self._say(_paragraph("rule:", RULES[violation.rule].statement))
            self._say(_paragraph("expected:", printable(violation.expected)))
            self._say(_paragraph("seen:", printable(violation.seen)))
            for line in shown(violation):
                self._say(self._in(_DIM, f"    {printable(line)}"))
            self._say("")

    def end(self, totals: Totals, exit_code: int) -> None:  # noqa: ARG002  # it is the exit code
        """The totals."""
        forms = ", ".join(f"{form} {count:,}" for form, count in totals.events.items() if count)
        self._say(
            f"checked {_count(totals.events.total(), 'event')} of {_count(totals.responses, 'response')}"
            f"{f' ({forms})' if forms else ''}: {_count(totals.records, 'record')} in "
            f"{_count(totals.traces, 'trace')}, {_count(totals.files, 'file')}"
        )
        broken = "  ".join(f"{rule}:{totals.violations[rule]}" for rule in RULES if totals.violations[rule])
        total = totals.violations.total()
        self._say(self._in(_BOLD_RED, f"{_count(total, 'violation')}: {broken}") if total else "no violation")
        for reason, rules in _by_reason(totals).items():
            self._say(_paragraph(f"not evaluated, {printable(reason)}:", " ".join(rules), indent="    "))
        partly = {rule: count for rule in RULES if 0 < (count := totals.times_missed(rule)) < totals.traces}
        if partly:
            label = f"not evaluated on some of {_count(totals.traces, 'trace')} (--json says why):"
            some = " ".join(f"{rule}:{count}" for rule, count in partly.items())
            self._say(_paragraph(label, some, indent="    "))
        if totals.vacuous:
            why = "no rule could be evaluated" if totals.events.total() else "no event of a response was read"
            self._say(f"nothing was checked: {why}")

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colour else text


def _by_reason(totals: Totals) -> Mapping[str, list[str]]:
    """The rules that were evaluated on no trace, by the most common reason; `--json` has all reasons."""
    grouped: dict[str, list[str]] = {}
    for rule in RULES:
        if totals.times_missed(rule) >= totals.traces > 0:
            reason, _ = totals.not_evaluated[rule].most_common(1)[0]
            grouped.setdefault(reason, []).append(rule)
    return grouped


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _paragraph(label: str, text: str, indent: str = "            ") -> str:
    """A label and a text, wrapped so that it can be pasted anywhere."""
    return textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=f"  {label:9} ",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
