"""The form that a client wants the answer to have, `text.format`: read, and refused where nobody would keep to it.

A model that writes as it likes under a schema would be a lie that only the client's parser finds. So a sampler says of
itself whether it keeps to the form that `Prompt.text_format` asks for, and one that does not say so does not.
"""

from collections.abc import Mapping
from typing import Any, Final

from engine.engine import Engine
from engine.models import ModelEntry
from protocol.errors import refusal
from protocol.events import ResponseCreate

FIELD: Final = "text.format"
_TYPES: Final = frozenset({"text", "json_object", "json_schema"})


def text_format_of(engine: Engine, create: ResponseCreate, model: ModelEntry) -> Mapping[str, Any] | None:
    """The form; None: any text. `RemoteProtocolError`: it is none, or the model's sampler does not keep to one."""
    wanted = (create.text or {}).get("format")
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping):
        raise refusal("invalid_type", field=FIELD, expected="an object")
    kind = _text_in(wanted, "type")
    if kind not in _TYPES:
        raise refusal("invalid_value", field=f"{FIELD}.type")
    if kind == "text":
        return None
    if kind == "json_schema":
        _check_schema(engine, wanted)
    if not getattr(engine.sampler_of(model), "keeps_text_format", False):
        raise refusal("text_format", model=model.name, type=kind)
    return wanted


def _check_schema(engine: Engine, wanted: Mapping[str, Any]) -> None:
    _text_in(wanted, "name")
    if wanted.get("schema") is None:
        raise refusal("missing", field=f"{FIELD}.schema")
    if not isinstance(wanted["schema"], Mapping):
        raise refusal("invalid_type", field=f"{FIELD}.schema", expected="an object")
    engine.validate.schemas.check(wanted["schema"], f"{FIELD}.schema")


def _text_in(wanted: Mapping[str, Any], name: str) -> str:
    if wanted.get(name) is None:
        raise refusal("missing", field=f"{FIELD}.{name}")
    if not isinstance(wanted[name], str):
        raise refusal("invalid_type", field=f"{FIELD}.{name}", expected="a string")
    return str(wanted[name])
