"""What a client may say of its tools: how long they take, in the create's metadata.

    "metadata": {"tool_seconds": "run_tests=45, read_file=0.1"}

A hint is worth most for a tool that is new to the server or waits for a person. A wrong one costs its sender time: once
a tool has taken longer than it said, it counts as any other tool. Metadata, and not a member of the tool's definition:
every SDK can send it, and it is not part of what the model reads.
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from protocol.errors import RemoteProtocolError, refusal

KEY: Final = "tool_seconds"
_FIELD: Final = f"metadata.{KEY}"
MAX_SECONDS: Final = 7 * 24 * 3600.0
"""No pause is planned for longer than a week."""
_NAME: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""As tools are named."""


NONE: Final[Mapping[str, float]] = MappingProxyType({})
"""Shared: most rollouts have no hints, and thousands of them wait."""


def tool_seconds_of(metadata: Mapping[str, str] | None) -> Mapping[str, float]:
    """Seconds by tool name. `RemoteProtocolError`: the client's hint is no list of NAME=SECONDS."""
    text = metadata.get(KEY) if metadata else None
    if text is None:
        return NONE
    hints: dict[str, float] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise _nonsense(f"{pair.strip()[:80]!r} is not NAME=SECONDS.")
        if name in hints:
            raise _nonsense(f"{name!r} is in it twice.")
        hints[name] = _seconds(name, value)
    return hints


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_SECONDS:  # not a number is in no range
        raise _nonsense(f"{name}={text[:40]!r} is no number of seconds from 0 to {MAX_SECONDS:.0f}.")
    return seconds


def _nonsense(reason: str) -> RemoteProtocolError:
    return refusal("invalid_schema", field=_FIELD, reason=reason)
