"""Writes GGUF files, version 3, little endian; `file.py` says where the format is specified.

A file appears whole or not at all: it is written under a temporary name beside its place, synced,
and renamed.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from heddle.errors import ModelSourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from heddle.weights.tensor_types import TensorType

ALIGNMENT = 32

_BOOL, _STRING, _ARRAY, _UINT32, _INT32, _FLOAT32, _UINT64, _INT64 = 7, 8, 9, 4, 5, 6, 10, 11
_ARRAY_KINDS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": _BOOL,
                "u8": 10, "i8": 11, "f8": 12}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write.

    Attributes:
        name: as in the file.
        shape: row-major, the last axis contiguous.
        type: storage type.
        content: returns its bytes (nbytes,), uint8.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    content: Callable[[], NDArray[np.uint8]]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return prod(self.shape) // self.type.block_elements * self.type.block_bytes


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Sequence[NewTensor],
    progress: Callable[[int], None] = lambda written: None,
) -> None:
    """Write a file with these values and tensors; `progress` is called with the bytes written.

    The first call, with 0, says that the disk has enough space.

    Values are bool, int, float (as float32), str, NumPy arrays and sequences of str. An int becomes
    the first of uint32, int32, uint64 and int64 that holds it.

    Raises:
        ModelSourceError: the file cannot be written, or the disk has too little space.
    """
    header = _header(metadata, tensors)
    needed = len(header) + sum(_aligned(tensor.nbytes) for tensor in tensors)
    with _new_file(path, needed) as file:
        progress(0)
        file.write(header)
        written = 0
        for tensor in tensors:
            content = tensor.content()
            assert content.nbytes == tensor.nbytes, tensor.name
            file.write(content.data)
            file.write(bytes(_aligned(tensor.nbytes) - tensor.nbytes))
            written += tensor.nbytes
            progress(written)


@contextmanager
def _new_file(path: Path, size: int) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end, unless an exception is raised."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        free = shutil.disk_usage(path.parent).free
        if size > free:
            raise ModelSourceError(
                f"{path} needs {size / 1e6:,.0f} MB, and its disk has {free / 1e6:,.0f} MB free;"
                " delete files there, or write to another disk"
            )
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise ModelSourceError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _header(metadata: Mapping[str, object], tensors: Sequence[NewTensor]) -> bytes:
    pairs = [_string(key) + _value(value) for key, value in metadata.items()]
    records, offset = [], 0
    for tensor in tensors:
        dimensions = tensor.shape[::-1]
        sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        records.append(_string(tensor.name) + sizes + struct.pack("<IQ", tensor.type, offset))
        offset += _aligned(tensor.nbytes)
    counts = struct.pack("<IQQ", 3, len(records), len(pairs))
    header = b"".join([b"GGUF", counts, *pairs, *records])
    return header.ljust(_aligned(len(header)), b"\0")


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    """The number of a value's type, and its bytes."""
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return _integer(value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case np.ndarray():
            kind = _ARRAY_KINDS[value.dtype.str[1:]]
            return struct.pack("<IIQ", _ARRAY, kind, len(value)) + value.tobytes()
        case Sequence():
            head = struct.pack("<IIQ", _ARRAY, _STRING, len(value))
            return head + b"".join(_string(str(item)) for item in value)
    raise TypeError(f"GGUF has no type for {value!r}")


def _integer(value: int) -> bytes:
    kinds = ((_UINT32, "I"), (_INT32, "i"), (_UINT64, "Q"), (_INT64, "q"))
    for kind, code in kinds:
        try:
            return struct.pack(f"<I{code}", kind, value)
        except struct.error:
            continue
    raise TypeError(f"GGUF has no type for {value}")
