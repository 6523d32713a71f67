"""What a GGUF file says of its model: the metadata at its head, read without the weights.

The layout is that of the format's versions 2 and 3: magic, version, two counts, then keys with typed values.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

MAGIC: Final = b"GGUF"
_VERSIONS: Final = frozenset({2, 3})
_STRING, _ARRAY = 8, 9
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_MAX_STRING_BYTES: Final = 1 << 24
_MAX_LIST_ITEMS: Final = 1 << 22


def read_metadata(path: Path) -> Mapping[str, Any]:
    """All metadata of a file. `OSError`; `ValueError`: it is no such file, or cut off. Blocks for some 0.1 s."""
    with path.open("rb") as file:
        try:
            return _read(file)
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path}: the metadata is cut off or damaged ({error}); fetch it again"
            ) from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _read(file: BinaryIO) -> Mapping[str, Any]:
    if file.read(4) != MAGIC:
        raise ValueError("not a GGUF file; it should begin with the letters GGUF")
    version, _tensors, entries = struct.unpack("<IQQ", file.read(20))
    if version not in _VERSIONS:
        raise ValueError(f"GGUF version {version}; versions 2 and 3 can be read: convert the file again")
    metadata = {}
    for _ in range(entries):
        key = _string(file)
        metadata[key] = _value(file, _number(file, 4))
    return metadata


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        kind, count = _number(file, 4), _number(file, 10)
        if count > _MAX_LIST_ITEMS:
            raise ValueError(f"a list of {count} entries in the metadata; the file is damaged")
        return [_value(file, kind) for _ in range(count)]
    return _number(file, kind)


def _number(file: BinaryIO, kind: int) -> Any:
    if kind not in _NUMBERS:
        raise ValueError(f"a value of unknown type {kind} in the metadata")
    form = _NUMBERS[kind]
    return form.unpack(file.read(form.size))[0]


def _string(file: BinaryIO) -> str:
    size = _number(file, 10)
    if size > _MAX_STRING_BYTES:
        raise ValueError(f"a text of {size} bytes in the metadata; the file is damaged")
    data = file.read(size)
    if len(data) < size:
        raise struct.error(f"{len(data)} bytes where {size} should be")
    return data.decode()
