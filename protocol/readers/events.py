"""Events as openai-python's objects print them: `model_dump_json()`, `to_dict()` as JSON, or `repr`, one a line.

Only what the server sent, and only in the order in which the SDK gave it out. Class names of `repr` say nothing that
`type` does not, so any call with keyword arguments is an object.
All but `to_json` and `to_dict` write members that the server did not send, as null. Where that would matter they are
left out again: see `REQUIRED`.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from protocol.readers.headers import Exchanges, header, record, refuse_append
from protocol.trace import TraceError, parsed

FIRST_LINE: Final = re.compile(rb"[A-Z]\w*\(\w+=")
REQUIRED: Final = frozenset({"cached_tokens", "reasoning_tokens"})
"""Members of a usage's details that the SDK has no default for: null is what the server sent. Of others it may not be."""
_WAY_OUT: Final = "write one event a line, by event.to_json(indent=None) or repr(event)"


def read(lines: Iterable[bytes], dialect: str | None = None) -> Iterator[dict[str, Any]]:
    """Header and records. The dump has no times: all are 0. `TraceError`: a line that is no event, or no HTTP one."""
    yield header("an event dump", dialect or "http", "sse", ["out"])
    exchanges = Exchanges()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        event = _event(line, number)
        if dialect is None:
            refuse_append(event, number)
        yield record(0.0, exchanges.connection(event), "out", event)


def _event(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = _represented(line) if FIRST_LINE.match(line) else parsed(line)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise TraceError(f"line {number} is no event ({error}); {_WAY_OUT}", number) from None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise TraceError(f"line {number} is no event: it has no 'type'; {_WAY_OUT}", number)
    _leave_out_unset(value)
    return value


def _leave_out_unset(event: dict[str, Any]) -> None:
    response = event.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    for details in usage.values() if isinstance(usage, dict) else ():
        if isinstance(details, dict):
            for name in [name for name, value in details.items() if value is None and name not in REQUIRED]:
                del details[name]


def _represented(line: bytes) -> Any:
    return _value(ast.parse(line.decode(), mode="eval").body)


def _value(node: ast.expr) -> Any:
    """What an expression of literals and constructors stands for. Nothing is executed."""
    match node:
        case ast.Call(args=[], keywords=members):
            return {member.arg: _value(member.value) for member in members if member.arg}
        case ast.List(elts=values) | ast.Tuple(elts=values):
            return [_value(value) for value in values]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_value(key): _value(value) for key, value in pairs if key is not None}
        case _:
            return ast.literal_eval(node)
