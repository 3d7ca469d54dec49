"""Reads safetensors files.

The README of huggingface/safetensors specifies the format: 8 bytes with the length of the header,
the header in JSON, the bytes of the tensors. The header maps a tensor's name to its dtype, shape
and `data_offsets`, which count from the end of the header. The tensors fill the file without gaps
or overlaps. The reader checks all of that before it reads or allocates anything.
"""

from __future__ import annotations

import reprlib
import struct
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from heddle.errors import ModelFileError
from heddle.weights.files import OpenFile
from heddle.weights.huggingface.json_files import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 32 << 20
"""Most bytes of a header, which describes 250,000 tensors. The format allows 100 MB; JSON of this
size would take 2 GB of memory."""
_MOST_DIMENSIONS = 8
"""Most dimensions of a tensor. Known models have at most 5."""

DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of one element, by dtype."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Type and place of one tensor.

    Attributes:
        dtype: name of the type in the file.
        shape: row-major, the last axis contiguous.
        offset: first byte, from the start of the file.
        nbytes: size in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile(OpenFile):
    """An open safetensors file.

    Attributes:
        tensors: by name, in the order of the header.
    """

    tensors: Mapping[str, StoredTensor]

    def put_under(self, folder: str) -> None:
        """Name the tensors `folder/name` from now on."""
        named = {f"{folder}/{name}": tensor for name, tensor in self.tensors.items()}
        self.tensors = MappingProxyType(named)

    def _read_header(self) -> None:
        start, header = self._header()
        tensors = {
            name: self._tensor(name, entry, start)
            for name, entry in header.items()
            if name != "__metadata__"
        }
        self._check_places(tensors, start)
        self.tensors = MappingProxyType(tensors)

    def _header(self) -> tuple[int, dict[str, object]]:
        """The first byte of the tensors, and the header."""
        if self.stamp.size < _LENGTH.size:
            self._fail("header", f"does not fit in a file of {self.stamp.size} bytes")
        (length,) = _LENGTH.unpack(self.read(0, _LENGTH.size, "header"))
        start = _LENGTH.size + length
        if length > _LARGEST_HEADER or start > self.stamp.size:
            self._fail("header", f"claims {length} bytes in a file of {self.stamp.size}")
        raw = self.read(_LENGTH.size, length, "header")
        try:
            header = parse_json(bytes(raw), unique=True)
        except (ValueError, RecursionError) as error:  # wrong UTF-8 is a ValueError, too
            self._fail("header", f"is not JSON: {error}")
        if not isinstance(header, dict):
            self._fail("header", "must be a JSON object")
        return start, header

    def _tensor(self, name: str, entry: object, start: int) -> StoredTensor:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self._fail(name, "must have dtype, shape and data_offsets, and nothing else")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            self._fail(name, f"has the unknown dtype {dtype!r}")
        if not _are_counts(shape):
            self._fail(name, f"has the shape {reprlib.repr(shape)}, which is no list of counts")
        if len(shape) > _MOST_DIMENSIONS:
            self._fail(name, f"has {len(shape)} dimensions; at most {_MOST_DIMENSIONS} are allowed")
        if not _are_counts(offsets) or len(offsets) != 2:
            self._fail(name, f"has data_offsets {reprlib.repr(offsets)}, which are not two counts")
        first, end = offsets
        bits = prod(shape) * DTYPE_BITS[dtype]
        if end - first != bits // 8 or bits % 8:
            self._fail(
                name, f"has {end - first} bytes, and {dtype} of shape {shape} takes {bits / 8:g}"
            )
        if start + end > self.stamp.size:
            self._fail(
                name,
                f"ends at byte {start + end}, and the file has {self.stamp.size} bytes",
            )
        return StoredTensor(dtype, tuple(shape), start + first, end - first)

    def _check_places(self, tensors: Mapping[str, StoredTensor], start: int) -> None:
        """Check that the tensors fill the file from byte `start` on."""
        position = start
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
            if tensor.offset != position:
                self._fail(name, f"begins at byte {tensor.offset}, not at {position}")
            position += tensor.nbytes
        if position != self.stamp.size:
            self._fail("tensors", f"end at byte {position} of {self.stamp.size}")

    def _fail(self, field: str, problem: str) -> NoReturn:
        raise ModelFileError(
            f"{self.path}: {field} {problem}; the file is damaged, fetch it again", field=field
        )


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
