"""Text cut into lines, whatever the pieces it comes in; a look at the first of them; times as logs write them."""

import calendar
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from protocol.trace import TraceError

MAX_LINE_BYTES: Final = 256 * 1024 * 1024
"""Constant memory means: a bounded number of lines. What has no line breaks at all is refused here."""
HEAD_LINES: Final = 4096
HEAD_BYTES: Final = 8 * 1024 * 1024
"""How far a reader looks ahead to guess what a log does not say: this many lines, or this many bytes."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_ISO: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)([.,]\d+)?\s*(Z|UTC|[+-]\d\d:?\d\d)?", re.IGNORECASE
)
_LEAST_MILLISECONDS: Final = 1e11
"""As seconds this is the year 5138: so large a time is in milliseconds."""


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    r"""Lines without their ends, which are `\n`, `\r\n` or `\r`; without a byte order mark. `TraceError`: too long."""
    unfinished: list[bytes] = []
    unfinished_bytes = number = 0
    carriage_return = b""
    for chunk in _unmarked(chunks):
        text = carriage_return + chunk
        carriage_return = b"\r" if text.endswith(b"\r") else b""  # may be half of a line's end
        text = text.removesuffix(b"\r")
        pieces = text.splitlines()
        last = pieces.pop() if pieces and not text.endswith((b"\n", b"\r")) else b""
        if pieces and unfinished:
            pieces[0] = b"".join([*unfinished, pieces[0]])
            unfinished, unfinished_bytes = [], 0
        number += len(pieces)
        yield from pieces
        if last:
            unfinished.append(last)
            unfinished_bytes += len(last)
        if unfinished_bytes > MAX_LINE_BYTES:
            raise TraceError(
                f"line {number + 1} is longer than {MAX_LINE_BYTES:,} bytes: is this a text?", number + 1
            )
    if unfinished or carriage_return:
        yield b"".join(unfinished)


def _unmarked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Without the byte order mark that some editors write, and that no format here wants."""
    beginning = b""
    rest = iter(chunks)
    for chunk in rest:
        beginning += chunk
        if len(beginning) >= len(_BYTE_ORDER_MARK):
            break
    yield beginning.removeprefix(_BYTE_ORDER_MARK)
    yield from rest


def looked_ahead(lines: Iterable[bytes]) -> tuple[list[bytes], Iterator[bytes]]:
    """The first lines, and all of them."""
    rest = iter(lines)
    head: list[bytes] = []
    size = 0
    for line in rest:
        head.append(line)
        size += len(line)
        if len(head) >= HEAD_LINES or size >= HEAD_BYTES:
            break
    return head, chain(head, rest)


def seconds_of(value: Any) -> float | None:
    """A point in time: a number of seconds or milliseconds, as number or text, or an ISO date; None if it is none."""
    if isinstance(value, str):
        match = _ISO.match(value.strip())
        try:
            if match:
                return _iso_seconds(match)
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        return None
    return value / 1000 if value >= _LEAST_MILLISECONDS else float(value)


def _iso_seconds(match: re.Match[str]) -> float:
    """`ValueError`: there is no year 0."""
    *parts, fraction, zone = match.groups()
    year, month, day, hour, minute, second = map(int, parts)
    whole = calendar.timegm((year, max(1, min(month, 12)), max(1, day), hour, minute, second))
    offset = 0
    if zone and zone[0] in "+-":
        offset = int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return whole - offset + (float(fraction.replace(",", ".")) if fraction else 0.0)


class Clock:
    """Times of a log as a trace has them: seconds since the first one, never going back; an unknown one is the last."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0

    def seconds(self, instant: float | None) -> float:
        """Seconds since the first instant."""
        if instant is not None:
            if self._first is None:
                self._first = instant
            self._last = max(self._last, round(instant - self._first, 6))
        return self._last
