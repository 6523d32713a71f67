"""What a rule is, what a violation is, and which rules a profile has: names and words only, no checking."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

PROFILES: Final = ("any-server", "openai", "this-engine")

ALL: Final = "hcia"
SOCKET: Final = "cia"
PAUSING: Final = "ia"
"""Dialect letters: h HTTP, c create, i inject, a append."""

Entry = tuple[Any, ...]
"""One record in few words: number, time, type, sequence number, output index, and unless it is a server's event
without more to say: direction, the rest."""


@attrs.frozen
class Rule:
    """One testable statement about a trace.

    `scope`: A = server frames are enough, C = client frames too, H = hooks; E = our decision, for `this-engine`.
    `hooks`: without all of these in the trace's header the rule is not evaluated.
    `member`: likewise a member of the header.
    """

    id: str
    statement: str
    source: str
    scope: str
    dialects: str
    hooks: tuple[str, ...] = ()
    engine_only: bool = False
    clients: bool = False
    """Not a matter of the server alone, so not in `any-server`."""
    member: str | None = None

    def holds_in(self, profile: str) -> bool:
        """Whether this profile has the rule."""
        if profile == "this-engine":
            return True
        return not self.engine_only and not (self.clients and profile == "any-server")


@attrs.frozen
class Violation:
    """One place where a trace breaks a rule, with the shortest prefix of records that shows it (their numbers)."""

    rule: str
    trace: str
    record: int
    conn: str
    lane: str | None
    response_id: str | None
    expected: str
    seen: str
    prefix: tuple[int, ...]
    entries: tuple[Entry, ...] = attrs.field(default=(), repr=False, eq=False)
    """What the prefix shows, in few words: of a very long response the first records and the last ones."""


@attrs.frozen
class Summary:
    """The totals of one trace."""

    records: int
    events: Mapping[str, int]
    """Response events by dialect."""
    responses: int
    violations: Mapping[str, int]
    """All of them, also those that were only counted."""
    not_evaluated: Mapping[str, str]
    """Rule and reason; such a rule says nothing about this trace."""


def line(entry: Entry) -> str:
    """One record of a prefix as one line of text."""
    number, time, kind, sequence, index, direction, detail = (*entry, "out", "")[:7]
    stamp = f"{time:.3f}" if isinstance(time, int | float) else "-"
    words = f"{number:>5}  {stamp:>8}  {direction:<4} {kind}"
    if sequence is not None:
        words += f"  #{sequence}"
    if index is not None:
        words += f" [{index}]"
    return f"{words} {detail}".rstrip()
