"""How a backend on a server is written: `http://host:8000/base?model=NAME&key=VARIABLE&…`, as the command line and the model table have it.

A key is never written down there, only the name of the environment variable that holds it.
"""

import math
import os
import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl

from engine.backends.http import BackendHttp, Patience

HTTP_OPTIONS: Final = ("key", "silence")
"""What `http_of` understands: the variable with the key, and for how many seconds the server may say nothing."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def split_options(kind: str, rest: str, known: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """The URL and the options after it. `ValueError`: which option there is not, and which there are."""
    url, _, query = rest.partition("?")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ValueError(f"{kind}: no option {name!r}; there are {', '.join(sorted(known))}")
        options[name] = value
    if not url:
        raise ValueError(f"{kind}: needs a URL, such as {kind}:http://127.0.0.1:8000")
    return url, options


def http_of(kind: str, url: str, options: Mapping[str, str]) -> BackendHttp:
    """The way to the server. `ValueError`: no URL, or no such environment variable."""
    try:
        silence_seconds = positive_number(kind, options, "silence", Patience().silence_seconds)
        return BackendHttp(
            url, key=_key(kind, options.get("key")), patience=Patience(silence_seconds=silence_seconds)
        )
    except ValueError as error:
        raise ValueError(f"{kind}: {str(error).removeprefix(f'{kind}: ')}") from None


def positive_number(kind: str, options: Mapping[str, str], name: str, default: float) -> float:
    """An option above 0. `ValueError`: it is not."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{kind}: {name}={text!r} is not a number above 0")
    return value


def whole_number(kind: str, options: Mapping[str, str], name: str, default: int) -> int:
    """A whole option above 0. `ValueError`: it is not."""
    value = positive_number(kind, options, name, default)
    if value != int(value):
        raise ValueError(f"{kind}: {name}={options[name]!r} is not a whole number")
    return int(value)


def yes_or_no(kind: str, options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """An option `yes` or `no`. `ValueError`: it is neither."""
    text = options.get(name)
    if text not in (None, "yes", "no"):
        raise ValueError(f"{kind}: {name}={text!r} is neither yes nor no")
    return default if text is None else text == "yes"


def _key(kind: str, variable: str | None) -> str | None:
    """The value is not shown, even where it should be a name: people paste the key itself."""
    if variable is None:
        return None
    if not _VARIABLE.fullmatch(variable):
        raise ValueError(f"{kind}: key= is the name of an environment variable, not the key itself")
    key = os.environ.get(variable)
    if not key:
        raise ValueError(f"{kind}: key= names an environment variable that is not set, or empty")
    return key
