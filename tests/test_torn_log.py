"""The end of a store's log that no transaction is in: what is told from what (T28).

That a store with a torn log opens, has what it can have and says so is in `tests/test_store.py`.
"""

from pathlib import Path

import pytest

from engine.config import DEFAULT_LIMITS
from engine.store_file import StoreFile
from engine.torn_log import log_of, torn_bytes
from tests.store_writer import response

PAGE_BYTES = 4096


@pytest.mark.parametrize(("log_bytes", "expected"), [(0, 0), (20, 20), (32, 0)])
def test_a_log_without_a_transaction_has_lost_at_most_its_header(
    tmp_path: Path, log_bytes: int, expected: int
) -> None:
    """Cut off at its start, in its header or behind it, the log holds nothing, and only half a header was torn."""
    path = tmp_path / "store"
    StoreFile(path, DEFAULT_LIMITS).close()
    log_of(path).write_bytes(bytes(log_bytes))
    file = StoreFile(path, DEFAULT_LIMITS)
    assert file.torn_bytes == expected
    file.close()


def test_a_file_without_a_log_has_lost_nothing(tmp_path: Path) -> None:
    """A store that was closed has none."""
    assert torn_bytes(log_of(tmp_path / "store"), 3, PAGE_BYTES) == 0


@pytest.mark.parametrize("torn", [False, True])
def test_what_an_older_log_left_in_the_file_is_not_torn(tmp_path: Path, *, torn: bool) -> None:
    """A log that began anew in the same file has old frames behind its end; if its own first frame is bad, all is torn."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    file = StoreFile(path, DEFAULT_LIMITS)
    for number in range(30):
        with file.transaction(writes=True):
            file.put(response(number))
    whole = path.read_bytes()
    old_bytes = log_of(path).stat().st_size
    file._value("PRAGMA wal_checkpoint(PASSIVE)")
    folded = path.read_bytes()
    for number in (30, 31):  # over the oldest frames, and far from all of them
        with file.transaction(writes=True):
            file.put(response(number))
    log = bytearray(log_of(path).read_bytes())
    file.close()
    assert len(log) == old_bytes
    assert folded != whole
    log[100] ^= 255 * torn
    copy.write_bytes(folded)
    log_of(copy).write_bytes(log)

    opened = StoreFile(copy, DEFAULT_LIMITS)

    assert opened.torn_bytes == (old_bytes - 32 if torn else 0)
    assert (opened.get("alice", response(31).response_id) is None) == torn
    opened.close()
