"""Members of frames that strangers wrote: what has not the type that it should have is as good as missing."""

from collections.abc import Iterable, Mapping
from typing import Any


def object_at(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Empty, if there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def objects(values: Any) -> Iterable[Mapping[str, Any]]:
    """Those of a list."""
    return (value for value in values if isinstance(value, dict)) if isinstance(values, list) else ()


def text_at(parent: Mapping[str, Any], key: str) -> str | None:
    """An id or a name, which can be looked up by whatever it was; None: there is none."""
    value = parent.get(key)
    return None if value is None else str(value)


def count(value: Any) -> int | None:
    """A number of tokens."""
    return value if type(value) is int and value >= 0 else None


def total(counts: Iterable[int | None]) -> int | None:
    """None: of one it is not known, or there is none."""
    known = list(counts)
    return sum(number for number in known if number is not None) if known and None not in known else None
