"""Is this event stream in order? The rules, and a checker that reads a trace record by record.

Constant work for a record and constant memory for a trace; nothing is raised by what stands in a record.
A rule that a trace cannot show is reported as not evaluated, never as passed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocol.rules import clients, closing, framing, hooks, server
from protocol.rules.rule import PROFILES, Rule, Summary, Violation, line
from protocol.rules.run import IN_A_GAP, LETTERS, RULES, Run
from protocol.rules.script import Script
from protocol.rules.session_rules import W11

__all__ = ["PROFILES", "RULES", "Checker", "Groups", "Rule", "Summary", "Violation"]

AT_THE_END: Final = frozenset({"R3", "R6", "R7", "W10", "W15", "S10", "S13", "S16", "S20", "L1", "U3"})
"""What these say about the end of a trace cannot be judged when the recorder stopped first."""
_NOTHING: Final[Sequence[Violation]] = ()


class Checker:
    """One trace. `ValueError`: an unknown profile."""

    def __init__(self, header: Mapping[str, Any], *, profile: str = "any-server") -> None:
        if profile not in PROFILES:
            raise ValueError(f"unknown profile {profile!r}; known: {', '.join(PROFILES)}")
        self._run = Run(header, profile)
        self._finished = False

    def feed(self, record: Mapping[str, Any]) -> Sequence[Violation]:
        """The next record. Violations that are certain now; nearly always none."""
        run = self._run
        number = run.number = run.number + 1
        try:
            # the short way: the next delta of the open part of a response about which there is no doubt
            frame = record["frame"]
            piece = frame.get("delta")
            if type(piece) is str and piece.isascii():
                conn = run.conns[record["conn"]]
                response: Any = conn.lanes[frame.get("stream_id")]
                part = response.part
                takes = part.takes
                count = frame["sequence_number"]
                place = frame["output_index"]
                index = frame.get(part.index_key)
                if (
                    response.calm
                    and frame["type"] == takes
                    and frame["item_id"] == part.item_id
                    and place == part.output_index
                    and index == part.index
                    and count == response.next
                    and type(count) is type(place) is int
                    and type(index) is type(part.index)
                    and record["dir"] == "out"
                    and record.get("event", takes) == takes
                ):
                    response.next = count + 1
                    response.events += 1
                    part.pieces.append(piece)
                    response.tail.append((number, record.get("t"), takes, count, place))
                    conn.last = number
                    run.record = record
                    return _NOTHING
        except (KeyError, TypeError, AttributeError):
            pass  # no delta, or one that needs a closer look
        try:  # noqa: SIM105  # a context manager costs more
            self._read(record)
        except RecursionError:
            pass  # nested too deep to be judged
        if not run.found:
            return _NOTHING
        found, run.found = run.found, []
        return found

    def _read(self, record: Mapping[str, Any]) -> None:
        run = self._run
        run.record = record
        t, name, direction = record.get("t"), record.get("conn"), record.get("dir")
        if type(t) is float or type(t) is int:
            run.t = t
        conn = run.conns.get(name) if type(name) is str else None
        if conn is None:
            conn = run.connection(name if isinstance(name, str) else "")
        frame = record.get("frame")
        if direction == "out":
            conn.last = run.number
            if type(frame) is dict:
                kind = frame.get("type")
                if type(kind) is str:
                    server.sent(run, conn, record, frame, kind)
                else:
                    framing.no_type(run, conn, frame)
            elif frame == "[DONE]":
                framing.end_mark(run, conn)
            else:
                framing.no_frame(run, conn, record)
        elif direction == "hook":
            if isinstance(frame, dict):
                hooks.hook(run, conn, frame)
        elif direction == "in":
            conn.last = run.number
            clients.sent(run, conn, frame)

    def finish(self) -> Sequence[Violation]:
        """The end of the trace. Violations that only the end shows; a second call finds nothing."""
        run = self._run
        if self._finished:
            return _NOTHING
        self._finished = True
        t = run.record.get("t")
        if type(t) is float or type(t) is int:
            run.t = t
        closing.finish(run)
        found, run.found = run.found, []
        return found

    def summary(self) -> Summary:
        """The totals so far."""
        run = self._run
        events = Counter(run.events)
        for response in run.live.values():
            events[response.dialect] += response.events
        names = {letter: name for name, letter in LETTERS.items()}
        return Summary(
            run.number,
            {names[letter]: count for letter, count in sorted(events.items()) if count},
            run.responses,
            {rule: run.counts[rule] for rule in RULES if run.counts[rule]},
            self._not_evaluated(),
        )

    def _not_evaluated(self) -> dict[str, str]:
        run = self._run
        reasons = {}
        for rule in RULES.values():
            reason = run.absent.get(rule.id)
            if reason is None and not run.letters & set(rule.dialects):
                reason = f"dialect: only in {', '.join(name for name, letter in LETTERS.items() if letter in rule.dialects)}"
            if reason is None and rule.id in ("S3", "S6") and "a" not in run.letters:
                missing = [hook for hook in ("suspend", "resume") if hook not in run.hooks]
                reason = f"hook missing: {', '.join(missing)}" if missing else None
            if reason is None and not run.complete and rule.id in AT_THE_END:
                reason = "incomplete: the recorder stopped before the end"
            if reason is None and run.gaps and rule.id in IN_A_GAP:
                reason = f"gap: frames are missing on {', '.join(sorted(run.gaps))}"
            if reason is not None:
                reasons[rule.id] = reason
        return reasons

    def shown(self, violation: Violation) -> list[str]:
        """The prefix of a violation, one line a record; left-out records of a very long response as one line."""
        return [line(entry) if entry else f"{'…':>5}  events of this response" for entry in violation.entries]

    @property
    def script(self) -> Script | None:
        """What the rollout of this trace said, for `Groups`; None when its header names no group."""
        return self._run.script

    @property
    def name(self) -> str:
        """The name of the trace."""
        return self._run.name

    def groups_violation(self, expected: str, seen: str) -> Violation | None:
        """Rule W11 broken by this trace; None when its profile does not have the rule."""
        run = self._run
        if W11.id not in run.active:
            return None
        run.counts[W11.id] += 1
        conn = next(iter(run.conns), "")
        return Violation(W11.id, run.name, run.number, conn, None, None, expected, seen, (run.number,))


class Groups:
    """Rule W11: the traces of one group say the same. A group that has only one trace says nothing."""

    def __init__(self) -> None:
        self._members: dict[str, list[tuple[str, Checker]]] = {}

    def feed(self, header: Mapping[str, Any], checker: Checker) -> None:
        """A trace that has been read to its end."""
        group = header.get("group")
        if isinstance(group, str) and checker.script is not None:
            self._members.setdefault(group, []).append((checker.name, checker))

    def finish(self) -> Sequence[Violation]:
        """Which traces differ from most of their group (from its first where none is in the majority)."""
        found: list[Violation] = []
        for group, members in self._members.items():
            said = [checker.script.said for _, checker in members if checker.script is not None]
            usual = Counter(said).most_common(1)[0][0]
            model = members[said.index(usual)]
            for (_, checker), script in zip(members, said, strict=True):
                if script == usual or checker.script is None or model[1].script is None:
                    continue
                theirs, ours = model[1].script.differs(checker.script)
                violation = checker.groups_violation(f"as in {model[0]!r} of group {group!r}: {theirs}", ours)
                if violation is not None:
                    found.append(violation)
        return found
