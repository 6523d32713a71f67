"""Two values in a message, cut so that it shows where they differ."""

from collections.abc import Iterable
from typing import Any

from protocol.rules.run import shown
from protocol.rules.tables import members, same_value


def both(ours: Any, theirs: Any, limit: int = 60) -> tuple[str, str]:
    """Each in few words; when these are the same, what stands at the first place where the values differ."""
    path = ""
    while shown(ours, limit) == shown(theirs, limit):
        if isinstance(ours, str) and isinstance(theirs, str):
            start = max(0, _same_length(ours, theirs) - limit // 6)
            path = f"{path} from character {start}".strip()
            ours, theirs = ours[start:], theirs[start:]
            break
        inner = ((key, _member(ours, key), _member(theirs, key)) for key in _keys(ours, theirs))
        step = next((one for one in inner if not same_value(*one[1:])), None)
        if step is None:
            break
        key, ours, theirs = step
        path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else key
    place = f"{path if len(path) <= 2 * limit else f'…{path[-2 * limit :]}'}: " if path else ""
    return f"{place}{shown(ours, limit)}", f"{place}{shown(theirs, limit)}"


def _keys(ours: Any, theirs: Any) -> Iterable[Any]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return members(ours, theirs)
    return range(max(len(ours), len(theirs))) if isinstance(ours, list) and isinstance(theirs, list) else ()


def _member(value: Any, key: Any) -> Any:
    return value.get(key) if isinstance(value, dict) else value[key] if key < len(value) else None


def _same_length(ours: str, theirs: str) -> int:
    """How many characters are the same from the start."""
    pairs = zip(ours, theirs, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))
