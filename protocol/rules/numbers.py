"""N1 to N3: everything is counted, from 0, without a hole."""

from typing import Any

from protocol.rules.parts import Item, Part
from protocol.rules.run import Run, shown
from protocol.rules.session_rules import W3
from protocol.rules.state import Ended, Response
from protocol.rules.stream_rules import N1, N2, N3


def count(run: Run, of: Response | Ended, frame: dict[str, Any]) -> None:
    """The sequence number of an event; a wrong one becomes the new base."""
    number = frame.get("sequence_number")
    if type(number) is int and number == of.next:
        of.next = number + 1
        return
    if type(number) is not int:
        run.report(
            N1,
            f"sequence_number {of.next}",
            "none" if number is None else f"sequence_number {shown(number)}",
            of=of,
        )
        if type(of) is Response:
            of.doubts = True
        return
    if type(of) is Response and of.doubts:
        of.doubts = False  # whether the event without a number was counted is the server's choice
    else:
        run.report(N1, f"sequence_number {of.next}", f"sequence_number {number}", of=of)
        if type(of) is Response and not of.events and of.conn.begun > 1:
            run.report(W3, "a response that counts from 0", f"sequence_number {number}", of=of)
    of.next = number + 1


def next_index(run: Run, response: Response, frame: dict[str, Any]) -> int:
    """The index of an added item."""
    index, expected = frame.get("output_index"), response.next_index
    if type(index) is not int or index != expected:
        run.report(
            N2,
            f"output_index {expected}",
            "none" if index is None else f"output_index {shown(index)}",
            of=response,
            item=("added", len(response.items)),
        )
        index = index if type(index) is int and 0 <= index < 2**31 else expected
    response.next_index = index + 1
    return index


def item_index(run: Run, response: Response, item: Item, frame: dict[str, Any]) -> None:
    """The index in a later event of an item."""
    index = frame.get("output_index")
    if index != item.index or type(index) is not int:
        run.report(
            N2,
            f"output_index {item.index}",
            "none" if index is None else f"output_index {shown(index)}",
            of=response,
            item=item.index,
        )


def new_part(run: Run, response: Response, item: Item, parts: list[Part], key: str, value: object) -> None:
    """The index of an added part."""
    if type(value) is not int or value != len(parts):
        run.report(
            N3,
            f"{key} {len(parts)}",
            "none" if value is None else f"{key} {shown(value)}",
            of=response,
            item=item.index,
        )
