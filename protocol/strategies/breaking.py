"""Legal traces made illegal, each in one way that has a name, with the rules that a checker must find broken.

A mutation knows the places in a trace where it can be done, and does it at one of them; the tables of mutations are beside this module.
Where it takes out, puts in or moves events, the numbers are made good again: a checker that only counts would see nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import attrs

from protocol.strategies.writer import Trace

JSON = dict[str, Any]
Records = list[JSON]
Sites = Callable[[Trace], Iterator[int]]
Change = Callable[[Records, int], None]
Test = Callable[[Sequence[JSON], int], bool]

COMPLETED: Final = "response.completed"
TERMINAL: Final = (COMPLETED, "response.incomplete", "response.failed")


@attrs.frozen
class Mutation:
    """One way to break a trace: its name, the rules of which each must be found broken, where, and how."""

    name: str
    rules: tuple[str, ...]
    sites: Sites
    change: Change
    renumbers: bool = True

    def apply(self, trace: Trace, site: int) -> Trace:
        """The trace, broken at one of its sites; the trace itself is left as it is."""
        records = deepcopy(list(trace.records))
        before = list(records)  # keeps what is taken out alive, so that no new frame gets its identity
        owners = owners_of(before)
        self.change(records, site)
        if self.renumbers:
            renumber(records, owners)
        return Trace({**trace.header, "name": f"{trace.header['name']}; {self.name}"}, tuple(records))


# --- reading records ---------------------------------------------------------------------------------------------


def kind_of(record: JSON) -> str:
    """The type of a record's frame; of a hook `{name}`; "" of anything else."""
    frame = record.get("frame")
    if not isinstance(frame, dict):
        return ""
    return str(frame.get("type") or f"{{{frame.get('hook')}}}")


def place_of(record: JSON) -> tuple[str, str | None]:
    """Connection and lane."""
    frame = record.get("frame")
    return record["conn"], frame.get("stream_id") if isinstance(frame, dict) else None


def _is_numbered(record: JSON) -> bool:
    frame = record.get("frame")
    return record["dir"] == "out" and isinstance(frame, dict) and "sequence_number" in frame


def owners_of(records: Sequence[JSON]) -> dict[int, str]:
    """The response of each numbered event, by the identity of its frame."""
    current: dict[tuple[str, str | None], str] = {}
    owners: dict[int, str] = {}
    for record in records:
        if not _is_numbered(record):
            continue
        frame = record["frame"]
        if kind_of(record) == "response.created":
            current[place_of(record)] = frame["response"]["id"]
        steered = frame.get("steer", {}).get("previous_response_id")
        owners[id(frame)] = frame.get("response_id") or steered or current.get(place_of(record), "")
    return owners


def renumber(records: Sequence[JSON], owners: Mapping[int, str]) -> None:
    """Numbers the events of each response from 0; one that was put in belongs to the one before it on its lane."""
    counts: dict[str, int] = {}
    last: dict[tuple[str, str | None], str] = {}
    known = {owners.get(id(record["frame"])) for record in records if kind_of(record) == "response.created"}
    for record in records:
        if not _is_numbered(record):
            continue
        frame = record["frame"]
        owner = owners.get(id(frame)) or last.get(place_of(record), "")
        last[place_of(record)] = owner
        if frame.get("response_id", owner) in known | {owner} and owner != "resp_nobody":
            frame["sequence_number"] = counts.get(owner, 0)
            counts[owner] = frame["sequence_number"] + 1


def ending_of(records: Sequence[JSON], at: int) -> JSON | None:
    """The terminal event of the response to which the lane's event at this place belongs."""
    owners = owners_of(records)
    owner = owners.get(id(records[at]["frame"]))
    ends = (r["frame"] for r in records if kind_of(r) in TERMINAL and owners[id(r["frame"])] == owner)
    return next(ends, None)


# --- where -------------------------------------------------------------------------------------------------------


def at(
    *kinds: str, when: Test | None = None, dialects: Sequence[str] = (), hooks: bool | None = None
) -> Sites:
    """Records of these kinds for which the test holds, in traces of these dialects; with all hooks, or with none."""

    def sites(trace: Trace) -> Iterator[int]:
        if dialects and trace.header["dialect"] not in dialects:
            return
        if hooks is not None and hooks != ("pre_inference" in trace.header["hooks"]):
            return
        if hooks is False and trace.header["hooks"]:
            return
        for place, record in enumerate(trace.records):
            if kind_of(record) in kinds and (when is None or when(trace.records, place)):
                yield place

    return sites


def events(when: Test | None = None) -> Sites:
    """Every numbered event."""

    def sites(trace: Trace) -> Iterator[int]:
        for place, record in enumerate(trace.records):
            if _is_numbered(record) and (when is None or when(trace.records, place)):
                yield place

    return sites


def has(*path: str) -> Test:
    """Something that counts as true lies at this path of the frame."""

    def test(records: Sequence[JSON], place: int) -> bool:
        value = records[place]["frame"]
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return bool(value)

    return test


def before(*kinds: str) -> Test:
    """The next record is of these kinds, on the same connection and lane."""
    return lambda records, place: (
        place + 1 < len(records)
        and kind_of(records[place + 1]) in kinds
        and place_of(records[place + 1]) == place_of(records[place])
    )


def after(*kinds: str) -> Test:
    """The record before is of these kinds, on the same connection and lane."""
    return lambda records, place: (
        place > 0
        and kind_of(records[place - 1]) in kinds
        and place_of(records[place - 1]) == place_of(records[place])
    )


def both(*tests: Test) -> Test:
    """All of them."""
    return lambda records, place: all(test(records, place) for test in tests)


def ends_completed(records: Sequence[JSON], place: int) -> bool:
    """The response to which the lane's event at this place belongs is completed in the end."""
    end = ending_of(records, place)
    return end is not None and end["type"] == COMPLETED


def counts(*path: str, least: int) -> Test:
    """At least so many members lie at this path."""

    def test(records: Sequence[JSON], place: int) -> bool:
        value = records[place]["frame"]
        for name in path:
            value = value[name]
        return len(value) >= least

    return test


# --- how ---------------------------------------------------------------------------------------------------------


def drop(records: Records, place: int) -> None:
    """Take a record out."""
    del records[place]


def double(records: Records, place: int) -> None:
    """Put a record in again, right behind itself."""
    records.insert(place + 1, deepcopy(records[place]))


def swap(records: Records, place: int) -> None:
    """Exchange what two neighbours say; the times stay where they are."""
    one, other = records[place], records[place + 1]
    one["t"], other["t"] = other["t"], one["t"]
    records[place], records[place + 1] = other, one


def alter(change: Callable[[JSON], Any]) -> Change:
    """Change a frame."""

    def apply(records: Records, place: int) -> None:
        change(records[place]["frame"])

    return apply


def put(path: Sequence[str], value: Any) -> Change:
    """Set what lies at a path of the frame; a function is given the old value."""

    def apply(records: Records, place: int) -> None:
        *outer, name = path
        holder = records[place]["frame"]
        for step in outer:
            holder = holder[step]
        holder[name] = value(holder.get(name)) if callable(value) else value

    return apply


def without(*path: str) -> Change:
    """Delete what lies at a path of the frame."""

    def apply(records: Records, place: int) -> None:
        *outer, name = path
        holder = records[place]["frame"]
        for step in outer:
            holder = holder[step]
        del holder[name]

    return apply


def put_in(make: Callable[[Records, int], JSON], *, behind: bool = True) -> Change:
    """Put a frame of the server in, behind a record or before it."""

    def apply(records: Records, place: int) -> None:
        frame = {**make(records, place), "sequence_number": 0}
        record = {**records[place], "dir": "out", "frame": frame}
        if "event" in record:
            record["event"] = frame["type"]
        records.insert(place + behind, record)

    return apply


def complete(records: Records, place: int) -> None:
    """A failed or incomplete response says that it is completed."""
    frame = records[place]["frame"]
    frame["type"] = COMPLETED
    frame["response"] |= {"status": "completed", "error": None, "incomplete_details": None}
    if "event" in records[place]:
        records[place]["event"] = COMPLETED
