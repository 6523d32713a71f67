"""How much the checker sees: clean traces, one server event of each changed, and the share of changes that is noticed.

    python -m tests.mutation_score [MUTANTS]     mutants of each dialect; 0 = all

Five operators, on every dialect: drop, double, swap with the next event, truncate behind it, alter one member.
Printed are the share found by dialect and operator, the survivors that are legal with the reason, and what was missed.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from protocol.strategies import violations
from tests.legal_mutants import reason_of
from tests.mutants import DIALECTS, OPERATORS, Mutant, sampled

PROFILE = "this-engine"
SAMPLE = 3000
"""Mutants of each dialect that CI looks at."""


@attrs.define
class Score:
    """What became of the mutants of one dialect, by operator."""

    found: Counter[str] = attrs.field(factory=Counter)
    legal: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """By operator and reason."""
    missed: list[Mutant] = attrs.field(factory=list)

    @property
    def share(self) -> float:
        """Found, of those that change meaning."""
        found = sum(self.found.values())
        return found / max(1, found + len(self.missed))


def is_found(mutant: Mutant) -> bool:
    """Does the checker report anything? It must not break down either."""
    return bool(violations(mutant.made(), PROFILE))


def score(mutants: Sequence[Mutant]) -> Score:
    """Look at each."""
    result = Score()
    for mutant in mutants:
        if is_found(mutant):
            result.found[mutant.operator] += 1
        elif (reason := reason_of(mutant)) is not None:
            result.legal[mutant.operator, reason] += 1
        else:
            result.missed.append(mutant)
    return result


def described(mutant: Mutant) -> str:
    """One line."""
    where = f"record {mutant.place + 1} of '{mutant.before.header.get('name', 'engine')}'"
    member = ".".join(map(str, mutant.path))
    return f"{mutant.operator} {mutant.kind} {member} ({where})"


def report(scores: Mapping[str, Score]) -> Iterator[str]:
    """The table, the survivors with their reasons, and what was missed."""
    yield f"{'':9}" + "".join(f"{operator:>18}" for operator in OPERATORS) + f"{'all':>9}"
    for dialect, result in scores.items():
        cells = []
        for operator in OPERATORS:
            found = result.found[operator]
            missed = sum(mutant.operator == operator for mutant in result.missed)
            legal = sum(count for (name, _), count in result.legal.items() if name == operator)
            cells.append(f"{found}/{found + missed} (+{legal})")
        yield f"{dialect:9}" + "".join(f"{cell:>18}" for cell in cells) + f"{result.share:9.2%}"
    reasons: Counter[str] = Counter()
    for result in scores.values():
        for (_, reason), count in result.legal.items():
            reasons[reason] += count
    yield "\nsurvivors that are legal, in brackets above:"
    yield from (f"{count:6} {reason}" for reason, count in reasons.most_common())
    missed = [described(mutant) for result in scores.values() for mutant in result.missed]
    yield f"\nmissed: {len(missed)}"
    yield from missed


def main(argv: Sequence[str]) -> None:
    """Print it."""
    count = int(argv[0]) if argv else SAMPLE
    scores = {dialect: score(sampled(dialect, count)) for dialect in DIALECTS}
    for line in report(scores):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
