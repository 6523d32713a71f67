"""What a demo's rollout came to, as rows for people and as JSON for programs.

A rollout is one response, or several: what the server reports of each is summed up.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from demos.agents.report import Report
from demos.live.story import TERMINAL
from engine.engine import RolloutReport
from engine.server import printable

SHOWN_STAGES_MS = 0.05
"""Stages that took less are summed up in one row."""


@attrs.frozen(kw_only=True)
class Measured:
    """The outcome, and the numbers of both sides."""

    form: str
    problem: str | None
    """What went wrong with the rollout itself."""
    tests: Report
    """Of a test run after the rollout."""
    frames: Counter[str]
    """By direction and type: `< response.done`."""
    seconds: float
    bytes_out: int
    bytes_in: int
    reports: Sequence[RolloutReport]
    """The server's own, of each response that ended there."""
    last_words: str
    """What the agent said of it."""
    diff: str

    @property
    def passed(self) -> bool:
        """Did it all work out?"""
        return self.problem is None and self.tests.passed

    def rows(self) -> Iterator[tuple[str, str]]:
        """Names and values."""
        received = sum(count for name, count in self.frames.items() if name.startswith("<"))
        sent = sum(count for name, count in self.frames.items() if name.startswith(">"))
        ended = ", ".join(
            f"{count} {name.rpartition('.')[2]}"
            for name, count in self.frames.items()
            if name[2:] in TERMINAL
        )
        created = self.frames["< response.created"]
        yield "responses", f"{created} created, {ended or 'no end'}, {self.seconds:.1f} s"
        yield "events", f"{received:,} received, {sent:,} sent, on one connection"
        yield "bytes", f"{self.bytes_in:,} received, {self.bytes_out:,} sent"
        if self.reports:
            hooks, usage = self.hooks, self.usage
            yield "suspensions", _suspensions(hooks, created)
            if created > 1:
                between = self.seconds - self.stages_ns["wall"] / 1e9
                yield "between them", f"{between:.1f} s without a response: tools, and the way there and back"
            yield "pre-inference", _times(hooks["pre_inference"])
            yield "post-inference", _times(hooks["post_inference"])
            yield (
                "tokens in",
                f"{usage['uncached_input_tokens']:,} read, {usage['cached_input_tokens']:,} kept warm",
            )
            yield "tokens out", f"{usage['output_tokens']:,} in {usage['segments']} segments"

    @property
    def hooks(self) -> Counter[str]:
        """How often each stage and hook point ran."""
        return _summed(report.hooks for report in self.reports)

    @property
    def usage(self) -> Counter[str]:
        """Tokens and segments."""
        return _summed(attrs.asdict(report.usage) for report in self.reports)

    @property
    def stages_ns(self) -> Counter[str]:
        """The server's time by stage, and as `wall` all of it."""
        ledgers = [report.ledger for report in self.reports]
        return _summed({**ledger.stages, "wall": ledger.wall_ns} for ledger in ledgers)

    def ledger_rows(self) -> Iterator[tuple[str, float, float]]:
        """(stage, milliseconds, share) of the server's time, the most first, the residual last."""
        spent_ms = {name: ns / 1e6 for name, ns in self.stages_ns.items() if ns}
        if not spent_ms:
            return
        wall, residual = spent_ms.pop("wall"), spent_ms.pop("other", 0.0)
        for name, spent in sorted(spent_ms.items(), key=lambda stage: -stage[1]):
            if spent >= SHOWN_STAGES_MS:
                yield name, spent, spent / wall
        small = [spent for spent in spent_ms.values() if spent < SHOWN_STAGES_MS]
        if small:
            yield f"{len(small)} others", sum(small), sum(small) / wall
        yield "residual", residual, residual / wall

    @property
    def verdict(self) -> str:
        """The last line."""
        tests = f"tests after the rollout: {self.tests.in_words}"
        return tests if self.problem is None else f"{self.problem}; {tests}"

    def as_json(self) -> dict[str, Any]:
        """Plain data, one object."""
        return {
            "form": self.form,
            "passed": self.passed,
            "problem": self.problem,
            "last_words": self.last_words,
            "tests": {"ran": self.tests.ran, "failed": self.tests.failed},
            "frames": dict(self.frames),
            "seconds": round(self.seconds, 3),
            "bytes_out": self.bytes_out,
            "bytes_in": self.bytes_in,
            "hooks": dict(self.hooks),
            "usage": dict(self.usage),
            "reports": [report.as_json() for report in self.reports],
            "diff": self.diff,
        }


def _summed(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total


def _suspensions(hooks: Mapping[str, int], responses: int) -> str:
    suspended = hooks.get("suspend", 0)
    if not suspended and responses > 1:
        return "none: a response ended at its calls, and their outputs started the next one"
    return f"{suspended}, resumed {_times(hooks.get('resume', 0))}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def changes(before: Path, after: Path) -> str:
    """How the files of two folders differ, as a unified diff; files that are no text are passed over."""
    found: list[str] = []
    for path in sorted(after.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(after)
            try:
                old = (before / name).read_text("utf-8").splitlines() if (before / name).is_file() else []
                new = path.read_text("utf-8").splitlines()
            except UnicodeDecodeError:
                continue
            found += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=1, lineterm="")
    return "".join(f"{printable(line)}\n" for line in found)
