"""Writes small GGUF files for tests: valid ones, and ones broken on purpose.

The same input gives the same bytes. A test may override each computed value (counts, offsets, type
numbers); nothing is checked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64 = 4, 5, 6, 7, 8, 9, 10, 11

_ARRAY_KINDS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7,
                "u8": 10, "i8": 11, "f8": 12}  # fmt: skip
_FLOAT_TYPES = {"f4": TensorType.F32, "f2": TensorType.F16}


@dataclass(frozen=True)
class Raw:
    """A metadata value as its type number and payload, valid or not."""

    kind: int
    payload: bytes


@dataclass(frozen=True)
class Tensor:
    """A tensor as bytes. `shape` is row-major; `offset` None places it after the one before."""

    name: str
    data: bytes
    shape: tuple[int, ...]
    type: int = TensorType.F32
    offset: int | None = None

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> Tensor:
        """A tensor from a float32 or float16 array."""
        array = np.ascontiguousarray(array)
        return cls(name, array.tobytes(), array.shape, _FLOAT_TYPES[array.dtype.str[1:]])

    @classmethod
    def random(cls, name: str, kind: TensorType, shape: tuple[int, ...], seed: int) -> Tensor:
        """A tensor of random bytes, of the size that `kind` and `shape` need."""
        size = prod(shape) // kind.block_elements * kind.block_bytes
        return cls(name, np.random.default_rng(seed).bytes(size), shape, kind)


def gguf_bytes(
    metadata: Mapping[str, object] | Iterable[tuple[str, object]],
    tensors: Iterable[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    metadata_count: int | None = None,
) -> bytes:
    """The bytes of a GGUF file.

    Values become: bool, str, int (the first of uint32, int32, uint64, int64 that holds it), float
    (float32), lists of str, NumPy arrays; :class:`Raw` goes as it is. Pairs instead of a mapping
    may repeat a key.
    """
    pairs = list(metadata.items() if hasattr(metadata, "items") else metadata)
    tensors = list(tensors)
    alignment = dict(pairs).get("general.alignment", 32)
    alignment = alignment if isinstance(alignment, int) else 32
    records, data = b"", bytearray()
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        offset = len(data) if tensor.offset is None else tensor.offset
        records += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
        records += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        records += struct.pack("<IQ", tensor.type, offset)
        data += tensor.data
    header = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if metadata_count is None else metadata_count,
    )
    header += b"".join(_string(key) + _value(value) for key, value in pairs) + records
    return header + bytes(-len(header) % alignment) + data


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Iterable[Tensor] = ()) -> Path:
    """Write a sound file; returns `path`."""
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")  # lone surrogates give invalid UTF-8
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    raw = value if isinstance(value, Raw) else _raw(value)
    return struct.pack("<I", raw.kind) + raw.payload


def _raw(value: object) -> Raw:
    match value:
        case bool():
            return Raw(BOOL, bytes([value]))
        case str():
            return Raw(STRING, _string(value))
        case int():
            return _integer(value)
        case float():
            return Raw(FLOAT32, struct.pack("<f", value))
        case np.ndarray():
            kind = _ARRAY_KINDS[value.dtype.str[1:]]
            return Raw(ARRAY, struct.pack("<IQ", kind, len(value)) + value.tobytes())
        case list():
            head = struct.pack("<IQ", STRING, len(value))
            return Raw(ARRAY, head + b"".join(_string(text) for text in value))
    raise TypeError(f"no metadata value: {value!r}")


def _integer(value: int) -> Raw:
    for kind, layout in ((UINT32, "<I"), (INT32, "<i"), (UINT64, "<Q"), (INT64, "<q")):
        try:
            return Raw(kind, struct.pack(layout, value))
        except struct.error:
            continue
    raise OverflowError(value)
