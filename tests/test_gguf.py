"""Whether a model's file is whole: what its tensors need, compared with its size."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.gguf import read_metadata, require_whole
from tests.smollm2 import weights
from tests.test_byte_pairs import gguf

F32, F16, Q4_1, Q6_K, UNKNOWN = 0, 1, 3, 14, 99


def tensor(kind, offset, *shape, name="blk.0.weight"):
    """An entry of the table of tensors."""
    written = name.encode()
    return (
        struct.pack("<Q", len(written))
        + written
        + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    )


def model(*tensors, alignment=32, data=b"", metadata=None):
    """A file with such a table, and data from the next multiple of the alignment."""
    head = gguf(metadata or {"general.alignment": alignment})
    head = head[:8] + struct.pack("<Q", len(tensors)) + head[16:] + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


SMALL = model(tensor(F32, 0, 2, 3), tensor(Q4_1, 32, 64, 2), data=bytes(32 + 80))
"""Its last weight is in its last byte."""


@pytest.mark.parametrize(
    ("tensors", "size_bytes"),
    [
        ([(F32, 0, 2, 3)], 24),
        ([(F16, 64, 5)], 74),
        ([(Q4_1, 0, 64, 2), (F32, 96, 1)], 100),
        ([(F32, 320, 1), (Q6_K, 0, 256)], 324),
        ([(F32, 32)], 36),
        ([(UNKNOWN, 32, 1000)], 32),
        ([], 0),
    ],
)
@pytest.mark.parametrize("alignment", [32, 64])
def test_a_file_needs_what_its_tensors_need(tmp_path, tensors, size_bytes, alignment):
    """Up to the end of the last one; a type that nobody knows is no reason to refuse, and neither is more data."""
    whole = model(*(tensor(*each) for each in tensors), alignment=alignment, data=bytes(size_bytes))
    path = tmp_path / "model.gguf"
    for more in (b"", b"more"):
        path.write_bytes(whole + more)
        require_whole(path)
    if size_bytes:
        path.write_bytes(whole[:-1])
        with pytest.raises(ValueError, match=f"cut short: {len(whole) - 1} of {len(whole)} bytes; fetch it"):
            require_whole(path)


@given(kept=st.integers(0, len(SMALL) - 1))
def test_no_cut_goes_unseen(tmp_path_factory, kept):
    """Wherever a file is cut, it is refused, by its path and in one line."""
    path = tmp_path_factory.mktemp("cut") / "model.gguf"
    path.write_bytes(SMALL[:kept])
    with pytest.raises(ValueError, match=r"cut|not a GGUF file") as refused:
        require_whole(path)
    assert (str(path) in str(refused.value), "\n" in str(refused.value)) == (True, False)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (model(tensor(F32, 0, 1, 1, 1, 1, 1)), "'blk.0.weight' has 5 dimensions; the file is damaged"),
        (model(tensor(F32, 0, 1), metadata={"general.alignment": "x"}), "an alignment of 'x' bytes"),
        (model(tensor(F32, 0, 1), metadata={"general.alignment": 0}), "an alignment of 0 bytes"),
        (model(tensor(F32, 1 << 62, 1 << 62, 1 << 62), data=bytes(9)), "cut short"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, data, words):
    """The error says what is damaged."""
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=words):
        require_whole(path)


def test_a_cut_file_has_its_metadata_still(tmp_path):
    """A vocabulary can be read out of a file whose weights are not all there."""
    path = tmp_path / "model.gguf"
    path.write_bytes(SMALL[:-1])
    assert read_metadata(path) == {"general.alignment": 32}


@pytest.mark.models
def test_real_weights_are_whole_to_the_byte(tmp_path):
    """The real file needs every byte that it has."""
    whole = weights().read_bytes()
    require_whole(weights())
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=f"{len(whole) - 1:,} of {len(whole):,} bytes"):
        require_whole(path)
