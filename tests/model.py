"""A response as the reference describes it, in plain words and lists: what the real session is compared with.

No table, no coupling by conditions: `may` says for each happening of the server whether it is allowed now, in prose.
"""

from typing import Literal

import attrs

DialectName = Literal["append", "inject", "create"]


@attrs.define
class ModelResponse:
    """One response."""

    dialect: DialectName
    created: bool = False
    parked: bool = False
    """`response.done` was the last word."""
    end: str | None = None
    numbers: int = 0
    calls: list[str] = attrs.field(factory=list)
    answered: list[str] = attrs.field(factory=list)

    @property
    def pending(self) -> list[str]:
        """Calls that have no output."""
        return [call_id for call_id in self.calls if call_id not in self.answered]

    def may(self, happening: str) -> bool:
        """Is the server allowed to send this now?"""
        if happening == "created":
            return not self.created
        if happening == "inject_failed":  # an answer, also after the end
            return self.created and self.dialect == "inject"
        if not self.created or self.end is not None:
            return False
        if happening == "done":
            return self.dialect == "append" and not self.parked and bool(self.pending)
        if happening == "completed" and self.dialect == "append":
            return not self.pending
        if happening in {"output", "call"}:
            return not self.parked or not self.pending
        if happening == "in_progress":
            return not self.parked
        if happening == "inject_created":
            return self.dialect == "inject"
        return True

    def happens(self, happening: str, call_id: str = "") -> None:
        """The server sent it."""
        self.numbers += 1
        self.created = True
        if happening == "done":
            self.parked = True
        elif happening in {"output", "call"}:
            self.parked = False
        elif happening in {"completed", "incomplete", "failed"}:
            self.end = happening
        if happening == "call":
            self.calls.append(call_id)

    @property
    def state_name(self) -> str:
        """The name of the state the tables should be in."""
        if not self.created:
            return "IDLE"
        if self.end is not None:
            return self.end.upper()
        return "SUSPENDED" if self.parked else "SAMPLING"
