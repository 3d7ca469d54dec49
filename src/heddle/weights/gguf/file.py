"""Reads GGUF files, versions 2 and 3, little endian.

The format is specified in ggml's `docs/gguf.md`: a header, metadata as typed key-value pairs, one
record per tensor, then the tensors' bytes at aligned offsets. The reader checks every claim of a
file against the bytes that the file has. So a damaged or hostile file causes a
:class:`ModelFileError`, and not a crash or an allocation of the size it claims. `tensor_types.py`
decodes the bytes of tensors.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.weights.files import OpenFile
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4

_LENGTH = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    number: np.dtype(code)
    for number, code in {
        0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
        _BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip
_U32, _U64 = _NUMBERS[4], _NUMBERS[10]

# The first read, which holds most headers, and the limit on a header, in bytes. The header of the
# largest vocabulary known, 262,144 tokens and as many merges, takes 12 MB.
_FIRST_READ = 16 << 20
_LARGEST_HEADER = 256 << 20

# The fewest bytes of an entry. They bound how many entries a count may claim.
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 4 + 8

_TENSOR_TYPES = {int(kind): kind for kind in TensorType if kind.is_in_gguf}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The place of one tensor in the file, and how it is stored.

    Attributes:
        name: as in the file.
        shape: row-major, the last axis contiguous (the file's dimensions reversed).
        type: storage type.
        offset: first byte, from the start of the file.
        nbytes: its size in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


class StringArray(Sequence[str]):
    """An array of strings in the file, decoded when read.

    A vocabulary may have a quarter of a million strings, and most readers of a header need none.
    Reading a string that is not UTF-8 raises :class:`ModelFileError`.
    """

    def __init__(
        self, path: Path, field: str, buffer: memoryview, bounds: NDArray[np.int64]
    ) -> None:
        """`bounds` (n + 1,) holds the start of each string's length, then the last string's end."""
        self._path = path
        self._field = field
        self._buffer = buffer
        self._bounds = bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        start, end = self._bounds[position : position + 2].tolist()
        raw = self._buffer[start + _LENGTH.size : end]
        return _text(raw, self._path, f"{self._field}[{position}]")

    def __iter__(self) -> Iterator[str]:
        for position, (start, end) in enumerate(pairwise(self._bounds.tolist())):
            try:
                yield str(self._buffer[start + _LENGTH.size : end], "utf-8")
            except UnicodeDecodeError:
                yield self[position]  # raises, naming the element

    def __repr__(self) -> str:
        return f"<{len(self)} strings of {self._field}>"


class GGUFFile(OpenFile):
    """An open GGUF file.

    Attributes:
        version: version of the format, 2 or 3.
        metadata: values by key: int, float, bool, str, NumPy arrays and :class:`StringArray`.
        tensors: tensors by name, in the order of the file.
    """

    def _read_header(self) -> None:
        if self.stamp.size == 0:
            raise ModelFileError(f"{self.path} is empty; fetch it again", field="magic")
        size = min(_FIRST_READ, self.stamp.size)
        while True:
            buffer = self.read(0, size, "header")
            try:
                return self._parse_header(_Cursor(self.path, buffer, self.stamp.size))
            except (
                _LongerHeaderError
            ) as more:  # few files need this, so it starts from the beginning
                size = min(max(4 * size, more.end), self.stamp.size)

    def _parse_header(self, cursor: _Cursor) -> None:
        self.version = cursor.version()
        tensor_count = cursor.count("tensor_count", _SMALLEST_TENSOR)
        pair_count = cursor.count("metadata_count", _SMALLEST_PAIR)
        self.metadata: Mapping[str, object] = MappingProxyType(cursor.pairs(pair_count))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            cursor.tensors(tensor_count, _alignment(cursor, self.metadata))
        )

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of tensor `name`: (nbytes,), read now.

        Raises:
            ModelFileError: the file has no such tensor, or ends before the tensor does.
            ModelSourceError: the file cannot be read.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self.path}: tensor {name!r} is missing", field=name)
        return np.frombuffer(self.read(tensor.offset, tensor.nbytes, name), np.uint8)


class _LongerHeaderError(Exception):
    """The header is longer than the bytes that were read. It reaches at least up to byte `end`."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


class _Cursor:
    """A reading position in the header. Each read is checked against the bytes that are left."""

    def __init__(self, path: Path, buffer: memoryview, size: int) -> None:
        """`buffer` holds the beginning of the file, whose size is `size`."""
        self._path = path
        self._buffer = buffer
        self._size = size
        self._position = 0

    def fail(self, field: str, problem: str) -> NoReturn:
        raise ModelFileError(
            f"{self._path}: {field} {problem}; the file is damaged, fetch it again", field=field
        )

    def _take(self, size: int, field: str) -> int:
        """Skip `size` bytes. Returns where they start."""
        start = self._position
        left = self._size - start
        if size > left:
            self.fail(field, f"needs {size} bytes at byte {start}, where {left} are left")
        self._require(start + size, field)
        self._position = start + size
        return start

    def _require(self, end: int, field: str) -> None:
        """Raise unless the bytes up to `end`, which are in the file, have been read."""
        if end > _LARGEST_HEADER:
            self.fail(field, f"makes the header longer than {_LARGEST_HEADER} bytes")
        if end > len(self._buffer):
            raise _LongerHeaderError(end)

    def _numbers(self, dtype: np.dtype[Any], count: int, field: str) -> NDArray[Any]:
        start = self._take(count * dtype.itemsize, field)
        return np.frombuffer(self._buffer, dtype, count, start)

    def _integer(self, dtype: np.dtype[Any], field: str) -> int:
        return int(self._numbers(dtype, 1, field)[0])

    def version(self) -> int:
        """The format version, after the magic number."""
        start = self._take(len(_MAGIC), "magic")
        magic = bytes(self._buffer[start : self._position])
        if magic != _MAGIC:
            raise ModelFileError(
                f"{self._path} is not a GGUF file: it starts with {magic!r}, not {_MAGIC!r}",
                field="magic",
            )
        version = self._integer(_U32, "version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = f"big-endian GGUF {swapped}" if swapped in _VERSIONS else f"GGUF {version}"
            raise UnsupportedModelError(
                f"{self._path} is {what}; little-endian versions 2 and 3 are supported",
                param="version",
            )
        return version

    def count(self, field: str, smallest: int) -> int:
        """A count of entries that each take at least `smallest` bytes."""
        value = self._integer(_U64, field)
        left = self._size - self._position
        if value * smallest > left:
            self.fail(field, f"is {value}, more than fits in the {left} bytes left")
        return value

    def _string(self, field: str) -> str:
        size = self._integer(_U64, field)
        start = self._take(size, field)
        return _text(self._buffer[start : self._position], self._path, field)

    def _name(self, field: str) -> str:
        name = self._string(field)
        if not name:
            self.fail(field, "is empty")
        return name

    def _strings(self, count: int, field: str) -> StringArray:
        # The only loop over a vocabulary: 0.15 µs a string. An array takes 8 bytes an entry.
        bounds, position = array("q"), self._position
        size, read, last = _LENGTH.size, _LENGTH.unpack_from, len(self._buffer) - _LENGTH.size
        for index in range(count):
            if position > last:
                if position > self._size - size:
                    self.fail(f"{field}[{index}]", "lies past the end of the file")
                self._require(position + size, f"{field}[{index}]")
            bounds.append(position)
            position += size + read(self._buffer, position)[0]
        if position > self._size:
            self.fail(f"{field}[{count - 1}]", "runs past the end of the file")
        self._require(position, field)
        bounds.append(position)
        self._position = position
        return StringArray(self._path, field, self._buffer, np.frombuffer(bounds, np.int64))

    def pairs(self, count: int) -> dict[str, object]:
        """`count` metadata entries."""
        pairs: dict[str, object] = {}
        for key, value in self.each_pair(count):
            if key in pairs:
                self.fail(key, "occurs twice in the metadata")
            pairs[key] = value
        return pairs

    def each_pair(self, count: int) -> Iterator[tuple[str, object]]:
        """`count` metadata entries, one by one."""
        for index in range(count):
            key = self._name(f"metadata[{index}].key")
            yield key, self._value(self._integer(_U32, key), key)

    def _value(self, kind: int, field: str) -> object:
        if kind == _STRING:
            return self._string(field)
        if kind == _ARRAY:
            return self._array(field)
        return self._values(kind, 1, field)[0].item()

    def _array(self, field: str) -> object:
        kind = self._integer(_U32, field)
        count = self._integer(_U64, field)
        if kind == _ARRAY:  # no model has one, and the file could choose any depth
            self.fail(field, "is an array of arrays, which is not supported")
        if kind != _STRING:
            return self._values(kind, count, field)
        if count * _LENGTH.size > self._size - self._position:
            self.fail(field, f"claims {count} strings, more than fit in the file")
        return self._strings(count, field)

    def _values(self, kind: int, count: int, field: str) -> NDArray[Any]:
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            self.fail(field, f"has the unknown value type {kind}")
        values = self._numbers(dtype, count, field)
        if kind != _BOOL:
            return values.copy()  # aligned, and independent of the header's buffer
        if count and values.max() > 1:
            self.fail(field, f"has the value {values.max()} where a bool is 0 or 1")
        return values.astype(np.bool_)

    def tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        """`count` tensor records, with absolute offsets, checked."""
        tensors: dict[str, TensorInfo] = {}
        for index in range(count):
            tensor = self._tensor(f"tensors[{index}].name", alignment)
            if tensor.name in tensors:
                self.fail(tensor.name, "occurs twice among the tensors")
            tensors[tensor.name] = tensor
        start = _round_up(self._position, alignment)
        placed = {
            name: TensorInfo(name, info.shape, info.type, start + info.offset, info.nbytes)
            for name, info in tensors.items()
        }
        self._check_places(placed)
        return placed

    def _tensor(self, name_field: str, alignment: int) -> TensorInfo:
        """One tensor record. Its offset is relative to the start of the data."""
        name = self._name(name_field)
        dimensions = self._integer(_U32, name)
        if dimensions > _MAX_DIMENSIONS:
            self.fail(name, f"has {dimensions} dimensions; the limit is {_MAX_DIMENSIONS}")
        shape = tuple(self._numbers(_U64, dimensions, name)[::-1].tolist())
        number = self._integer(_U32, name)
        kind = _TENSOR_TYPES.get(number)
        if kind is None:
            self.fail(name, f"has the unknown tensor type {number}")
        row = shape[-1] if shape else 1
        if 0 in shape or row % kind.block_elements:
            self.fail(
                name,
                f"of shape {shape} does not divide into blocks of {kind.block_elements}"
                f" ({kind.name})",
            )
        offset = self._integer(_U64, name)
        if offset % alignment:
            self.fail(name, f"lies at offset {offset}, which is not a multiple of {alignment}")
        nbytes = prod(shape) // kind.block_elements * kind.block_bytes
        return TensorInfo(name, shape, kind, offset, nbytes)

    def _check_places(self, tensors: Mapping[str, TensorInfo]) -> None:
        in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for tensor in in_order:
            if tensor.offset + tensor.nbytes > self._size:
                self.fail(
                    tensor.name,
                    f"takes {tensor.nbytes} bytes at byte {tensor.offset}, past the end of the "
                    f"file at {self._size}",
                )
        for before, after in pairwise(in_order):
            if before.offset + before.nbytes > after.offset:
                self.fail(after.name, f"overlaps tensor {before.name!r}")


def architecture_in(head: bytes, path: Path, size: int) -> str | None:
    """`general.architecture` of a file that begins with `head`; None if `head` ends before it.

    `path` is the file's name for errors, and `size` its size in bytes. A damaged head gives None,
    too: who opens the whole file says what is wrong.

    Raises:
        UnsupportedModelError: the file has a version of the format that is not supported.
    """
    cursor = _Cursor(path, memoryview(head), size)
    try:
        cursor.version()
        cursor.count("tensor_count", _SMALLEST_TENSOR)
        for key, value in cursor.each_pair(cursor.count("metadata_count", _SMALLEST_PAIR)):
            if key == "general.architecture":
                return value if isinstance(value, str) else None
    except (_LongerHeaderError, ModelFileError):
        pass
    return None


def _text(raw: memoryview, path: Path, field: str) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(
            f"{path}: {field} is not UTF-8 ({error.reason} at its byte {error.start})", field=field
        ) from None


def shortest_float(value: float) -> float:
    """The shortest decimal with the float32 of `value`; `value` itself if it is no float32."""
    single = np.float32(value)
    return float(str(single)) if single == value else value


def _alignment(cursor: _Cursor, metadata: Mapping[str, object]) -> int:
    field = "general.alignment"
    value = metadata.get(field, _DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or value <= 0 or value & (value - 1):
        cursor.fail(field, f"is {value!r}, not a power of two")
    return value


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
