"""What a GGUF file says of its model: the metadata at its head, read without the weights.

The layout is that of the format's versions 2 and 3: magic, version, two counts, then keys with typed values, then the
tensors' names, shapes, types and places, then their data, from the next multiple of the alignment.
"""

import math
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

MAGIC: Final = b"GGUF"
_VERSIONS: Final = frozenset({2, 3})
_STRING, _ARRAY = 8, 9
_COUNT, _SIZE = 4, 10
"""The two types of numbers that are no values of the metadata: 32 bits and 64."""
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
_MAX_DIMENSIONS: Final = 4
_ALIGNMENT: Final = 32
"""Unless the metadata says another one."""
_BLOCKS: Final[Mapping[int, tuple[int, int]]] = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}
"""By a tensor's type: how many weights are a block, and its bytes. A type that is not here is counted as empty."""


def read_metadata(path: Path) -> Mapping[str, Any]:
    """All metadata of a file. `OSError`; `ValueError`: it is no such file, or cut off. Blocks for some 0.1 s."""
    with _opened(path) as file:
        return _read(file)[0]


def require_whole(path: Path) -> None:
    """Compare a file's size with what its tensors need. `OSError`; `ValueError`: as of `read_metadata`, or it is cut short.

    Blocks as `read_metadata` does; no weights are read.
    """
    with _opened(path) as file:
        metadata, tensors = _read(file)
        needed = _data_end(file, tensors)
        if needed:
            alignment = metadata.get("general.alignment", _ALIGNMENT)
            if type(alignment) is not int or alignment < 1:
                raise ValueError(f"an alignment of {alignment!r} bytes; the file is damaged")
            needed += -(-file.tell() // alignment) * alignment
        size = os.fstat(file.fileno()).st_size
        if size < needed:
            raise ValueError(f"the file is cut short: {size:,} of {needed:,} bytes; fetch it again")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file, for reading; what is wrong with it is said with its path."""
    with path.open("rb") as file:
        try:
            yield file
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path}: the metadata is cut off or damaged ({error}); fetch it again"
            ) from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _read(file: BinaryIO) -> tuple[Mapping[str, Any], int]:
    """The metadata, and how many tensors follow."""
    if file.read(4) != MAGIC:
        raise ValueError("not a GGUF file; it should begin with the letters GGUF")
    version, tensors, entries = struct.unpack("<IQQ", file.read(20))
    if version not in _VERSIONS:
        raise ValueError(f"GGUF version {version}; versions 2 and 3 can be read: convert the file again")
    metadata = {}
    for _ in range(entries):
        key = _string(file)
        metadata[key] = _value(file, _number(file, _COUNT))
    return metadata, tensors


def _data_end(file: BinaryIO, tensors: int) -> int:
    """How far the data of the tensors reach, from where the data begin; the file is right after their table then."""
    end = 0
    for _ in range(tensors):
        name, dimensions = _string(file), _number(file, _COUNT)
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name!r} has {dimensions} dimensions; the file is damaged")
        weights = math.prod(_number(file, _SIZE) for _ in range(dimensions))
        block_weights, block_bytes = _BLOCKS.get(_number(file, _COUNT), (1, 0))
        end = max(end, _number(file, _SIZE) + weights // block_weights * block_bytes)
    return end


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        kind, count = _number(file, _COUNT), _number(file, _SIZE)
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
    size = _number(file, _SIZE)
    if size > _MAX_STRING_BYTES:
        raise ValueError(f"a text of {size} bytes in the metadata; the file is damaged")
    data = file.read(size)
    if len(data) < size:
        raise struct.error(f"{len(data)} bytes where {size} should be")
    return data.decode()
