"""Is this a whole GGUF file? Its header alone answers: truncation is told before an engine stumbles over it."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rigs.errors import CheckpointError

MAGIC: Final = b"GGUF"
READ_VERSIONS: Final = (2, 3)
"""Version 1 has other widths and has not been written since 2023."""

_DEFAULT_ALIGNMENT: Final = 32
_MAX_DIMENSIONS: Final = 8
"""ggml has 4; more is a sign of damage."""
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

TYPE_BLOCKS: Final[dict[int, tuple[int, int]]] = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 40),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
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
"""ggml's number of a tensor type -> values in a block, bytes of a block. Of a newer type only the offset is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    version: int
    tensors: int
    end_bytes: int
    """How long the file must be at least."""


def check_gguf(path: Path) -> GgufHeader:
    """Read the header and hold the file's length against it.

    Raises:
        CheckpointError: not GGUF, damaged, or truncated; the message says which.
        OSError: it cannot be read at all.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != MAGIC:
            shown = "it is empty" if not magic else f"it begins with {magic!r}, not {MAGIC!r}"
            raise CheckpointError(f"{path} is not a GGUF file: {shown}.")
        try:
            header = _read_header(file, size_bytes)
        except _HeaderEndError as error:
            raise CheckpointError(
                f"{path} is truncated or damaged: its header does not fit into its {size_bytes} bytes. Fetch it again."
            ) from error
        except _UnreadableError as error:
            raise CheckpointError(f"{path} cannot be used: {error}") from error
    if header.end_bytes > size_bytes:
        raise CheckpointError(
            f"{path} is truncated: its tensors reach to byte {header.end_bytes}, but the file has {size_bytes}. "
            "Fetch it again."
        )
    return header


class _HeaderEndError(Exception):
    """The file ends inside its header."""


class _UnreadableError(Exception):
    """A header that we do not understand; the message is for people."""


class _Reader:
    """Little-endian values from a file that may end too early."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes

    def bytes(self, count: int) -> bytes:
        if count > self._size_bytes:  # a damaged length: do not even ask for so much memory
            raise _HeaderEndError
        data = self._file.read(count)
        if len(data) < count:
            raise _HeaderEndError
        return data

    def skip(self, count: int) -> None:
        if self._file.tell() + count > self._size_bytes:
            raise _HeaderEndError
        self._file.seek(count, 1)

    def u32(self) -> int:
        return struct.unpack("<I", self.bytes(4))[0]

    def u64(self) -> int:
        return struct.unpack("<Q", self.bytes(8))[0]

    def string(self) -> bytes:
        return self.bytes(self.u64())

    def position(self) -> int:
        return self._file.tell()


def _read_header(file: BinaryIO, size_bytes: int) -> GgufHeader:
    reader = _Reader(file, size_bytes)
    version = reader.u32()
    if version not in READ_VERSIONS:
        big_endian = " (it is of a big-endian machine)" if version >> 16 else ""
        raise _UnreadableError(f"GGUF version {version}{big_endian}, of which only {READ_VERSIONS} are known here.")
    tensors, pairs = reader.u64(), reader.u64()
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(pairs):
        key, kind = reader.string(), reader.u32()
        if key == b"general.alignment" and kind == 4:  # u32
            alignment = reader.u32() or _DEFAULT_ALIGNMENT
        else:
            _skip_value(reader, kind)
    data_bytes = max((_tensor_end(reader) for _ in range(tensors)), default=0)
    data_start = -(-reader.position() // alignment) * alignment
    return GgufHeader(version=version, tensors=tensors, end_bytes=data_start + data_bytes if data_bytes else 0)


def _skip_value(reader: _Reader, kind: int) -> None:
    if kind in _SCALAR_BYTES:
        reader.skip(_SCALAR_BYTES[kind])
    elif kind == _STRING:
        reader.skip(reader.u64())
    elif kind == _ARRAY:
        element, count = reader.u32(), reader.u64()
        if element in _SCALAR_BYTES:
            reader.skip(_SCALAR_BYTES[element] * count)
        elif element == _STRING:
            for _ in range(count):
                reader.skip(reader.u64())
        else:  # arrays of arrays are allowed on paper; no writer makes them
            raise _UnreadableError(f"its header holds an array of the unknown kind {element}; the file is damaged.")
    else:
        raise _UnreadableError(f"its header holds a value of the unknown kind {kind}; the file is damaged or too new.")


def _tensor_end(reader: _Reader) -> int:
    """Read one tensor's description; where its data ends, counted from the start of all data."""
    reader.string()
    dimension_count = reader.u32()
    if dimension_count > _MAX_DIMENSIONS:
        raise _UnreadableError(f"its header holds a tensor of {dimension_count} dimensions; the file is damaged.")
    dimensions = [reader.u64() for _ in range(dimension_count)]
    kind, offset = reader.u32(), reader.u64()
    values_in_block, block_bytes = TYPE_BLOCKS.get(kind, (1, 0))
    return offset + math.prod(dimensions) // values_in_block * block_bytes
