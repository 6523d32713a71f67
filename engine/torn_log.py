"""What SQLite left out of its log when it opened a file: a tail that was torn is cut off in silence, and should not be.

    the log = a header of 32 bytes, then frames: 24 bytes of header, and one page

On opening, SQLite takes the frames up to the end of the last whole transaction and forgets the rest.
The rest is one of two things. It is *old* if it was written before the log last began anew: frames name the
generation they belong to (two salts, of which the first counts up), and nothing is lost with them.
Else it was *torn*: a transaction that a kill cut short, or one that the disk garbled.
"""

import struct
from pathlib import Path
from typing import Final

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
_HEADER_SALTS_AT: Final = 16
_FRAME_SALTS_AT: Final = 8
_SALTS: Final = struct.Struct(">II")
_GENERATIONS: Final = 1 << 16
"""A log that began anew more often since than this cannot be told from garbage."""


def log_of(path: Path) -> Path:
    """The log beside a database."""
    return path.with_name(f"{path.name}-wal")


def torn_bytes(log: Path, whole_frames: int, page_bytes: int) -> int:
    """The size of the torn tail of a log of which SQLite took so many frames; 0 = nothing was torn. `OSError`."""
    if not log.exists():
        return 0
    size = log.stat().st_size
    end = HEADER_BYTES + max(0, whole_frames) * (FRAME_HEADER_BYTES + page_bytes)
    if size <= end:
        return size if size < HEADER_BYTES else 0
    with log.open("rb") as file:
        header = file.read(HEADER_BYTES)
        file.seek(end)
        frame = file.read(FRAME_HEADER_BYTES)
    return 0 if _is_old(frame, header) else size - end


def _is_old(frame: bytes, header: bytes) -> bool:
    """Was a frame written before the log of this header began?"""
    if len(frame) < FRAME_HEADER_BYTES:
        return False
    now: int = _SALTS.unpack_from(header, _HEADER_SALTS_AT)[0]
    then: int = _SALTS.unpack_from(frame, _FRAME_SALTS_AT)[0]
    return 0 < (now - then) % (1 << 32) <= _GENERATIONS
