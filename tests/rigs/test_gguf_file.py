import struct

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigs.errors import CheckpointError
from rigs.gguf_file import TYPE_BLOCKS, check_gguf
from tests.rigs.tiny_weights import write_tiny_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("weights") / "tiny.gguf")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "model.gguf"


def test_a_whole_file_is_read_by_its_header(whole, scratch):
    scratch.write_bytes(whole)
    header = check_gguf(scratch)
    assert (header.version, header.tensors) == (3, 3)
    # The last tensor ends with the file, but for the padding behind it.
    assert len(whole) - 32 < header.end_bytes <= len(whole)


def test_the_sizes_of_tensor_types_are_those_of_the_formats_own_library():
    theirs = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: theirs[kind] for kind in TYPE_BLOCKS} == TYPE_BLOCKS


@pytest.mark.parametrize("kept", [0.999, 0.9, 0.5, 0.1])
def test_a_file_cut_in_its_tensors_is_truncated(whole, scratch, kept):
    size = int(len(whole) * kept)
    scratch.write_bytes(whole[:size])
    with pytest.raises(
        CheckpointError, match=rf"is truncated: its tensors reach to byte \d+, but the file has {size}\."
    ):
        check_gguf(scratch)


@pytest.mark.parametrize("size", [5, 8, 23, 24, 40, 300])
def test_a_file_cut_in_its_header_is_truncated_or_damaged(whole, scratch, size):
    scratch.write_bytes(whole[:size])
    with pytest.raises(CheckpointError, match=f"truncated or damaged: its header does not fit into its {size} bytes"):
        check_gguf(scratch)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"<!doctype html>", "begins with b'<!do'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1,"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99), "unknown kind 99"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 1),
            "array of the unknown kind 9",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sI", 1, b"k", 1 << 30), "1073741824 dimensions"),
    ],
)
def test_what_is_no_gguf_is_told_in_words(scratch, content, said):
    scratch.write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        check_gguf(scratch)


@given(st.integers(0, 600), st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_a_damaged_header_is_an_answer_and_never_a_crash(whole, scratch, position, byte):
    damaged = bytearray(whole)
    damaged[position % len(damaged)] = byte
    scratch.write_bytes(damaged)
    try:
        check_gguf(scratch)
    except CheckpointError as error:
        assert str(scratch) in str(error)  # noqa: PT017 - either way is right; only other exceptions are not


def test_a_tensor_type_of_the_future_is_checked_by_its_offset_only(scratch):
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 64, 250, 4096)
    scratch.write_bytes(header.ljust(4096, b"\0"))
    with pytest.raises(CheckpointError, match="truncated"):
        check_gguf(scratch)
    scratch.write_bytes(header.ljust(4096 + 64, b"\0"))
    assert check_gguf(scratch).end_bytes == 4096 + 64
