"""What the official SDK's types say of a frame."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, get_args

import pydantic
from openai.types.beta import BetaResponsesServerEvent
from openai.types.responses import ResponsesServerEvent, ResponseStreamEvent

Form = Literal["append", "create", "http", "inject"]

_UNIONS: Final[Mapping[Form, Any]] = {
    "append": ResponsesServerEvent,
    "create": ResponsesServerEvent,
    "http": ResponseStreamEvent,
    "inject": BetaResponsesServerEvent,
}
UNTYPED: Final = frozenset({"response.done"})
"""Known to the prototype only."""
UNLISTED_CODE: Final = "invalid_input"
"""OpenAI's server refuses injects by this code; the types list only others."""
LISTED_CODE: Final = "response_not_found"


@functools.cache
def classes(form: Form) -> Mapping[str, type[pydantic.BaseModel]]:
    """The event classes of a form's connection, by the type of their frames."""
    members = get_args(get_args(_UNIONS[form])[0])
    return {name: member for member in members for name in get_args(member.model_fields["type"].annotation)}


def misfits(form: Form, frames: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the types have against the frames; [] if nothing."""
    found = []
    for frame in frames:
        kind = frame["type"]
        if kind in UNTYPED:
            continue
        if kind not in classes(form):
            found.append(f"{kind}: no such event")
            continue
        try:
            classes(form)[kind].model_validate(_listed(frame))
        except pydantic.ValidationError as error:
            found.append(f"{kind}: {error}")
    return found


def _listed(frame: Mapping[str, Any]) -> Mapping[str, Any]:
    """The frame, with the one code that the types do not list replaced."""
    if frame["type"] != "response.inject.failed" or frame["error"]["code"] != UNLISTED_CODE:
        return frame
    return {**frame, "error": {**frame["error"], "code": LISTED_CODE}}
