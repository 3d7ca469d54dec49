"""bitsandbytes: codes of 4 bits that are indices into a map of floats, and int8.

With 4 bits a module has `weight` (two codes a byte, the first in the high half), and beside it
`weight.absmax` (a scale for each block of values, which run on from row to row), `weight.quant_map`
(16 floats) and `weight.quant_state.bitsandbytes__nf4` or `__fp4`: JSON with the shape, the block
and the dtype. With double quantisation absmax is bytes: a scale is nested_quant_map[byte] *
nested_absmax + nested_offset. With 8 bits a module has `weight` (int8) and `SCB`, the largest
magnitude of each row. The definitions are in `bitsandbytes/functional.py` (`QuantState`) and
`backends/default/ops.py`.

A value is computed in float32 and rounded to the dtype of the state, as bitsandbytes does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from heddle.errors import ModelFileError
from heddle.extensions.packed.matrix import PackedMatrix, require, stems
from heddle.weights.huggingface.json_files import parse_json
from heddle.weights.huggingface.quantised import refuse
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.extensions.packed.matrix import Decoded, DecodeRows
    from heddle.extensions.packed.values import Floats
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.quantised import Read, Stored

_KINDS = ("nf4", "fp4")
_STATE = "weight.quant_state.bitsandbytes__"
_LARGEST_STATE = 4096
"""Most bytes of a state. Those of real folders have some 200."""
_LARGEST_SIZE = 1 << 40
_DTYPES = {"bfloat16": TensorType.BF16, "float16": TensorType.F16, "float32": TensorType.F32}
_OF_127 = np.float32(7.874015718698502e-3)
"""1 / 127, as `int8_vectorwise_dequant` has it."""


def bitsandbytes(settings: Config, tensors: Stored, read: Read) -> list[PackedMatrix]:
    """LLM.int8 (Dettmers et al. 2022, arXiv:2208.07339) and QLoRA's 4 bits (arXiv:2305.14314)."""
    bits = [bits for bits in (4, 8) if settings.get(f"load_in_{bits}bit") is True]
    if len(bits) != 1:
        found = {key: settings.get(key) for key in ("load_in_4bit", "load_in_8bit")}
        raise refuse("load_in_4bit", found, "supported: either of load_in_4bit and load_in_8bit")
    if bits == [8]:
        return [_int8(stem, tensors) for stem in stems(tensors, ".SCB")]
    return [
        _four_bits(stem, kind, tensors, read)
        for kind in _KINDS
        for stem in stems(tensors, f".{_STATE}{kind}")
    ]


def _int8(stem: str, tensors: Stored) -> PackedMatrix:
    """A matrix of int8, with a scale for each row."""
    parts = (f"{stem}.weight", f"{stem}.SCB")
    rows, columns = require(tensors, parts[0], ("I8",), None, None).shape
    require(tensors, parts[1], ("F32",), rows)

    def open_parts(read: Read) -> DecodeRows:
        def decode(some: slice) -> Decoded:
            largest = read(parts[1], some).reshape(-1, 1)
            products = read(parts[0], some).astype(np.float32) * largest
            return products, np.full((1, 1), _OF_127), None

        return decode

    return PackedMatrix(parts[0], TensorType.F32, (rows, columns), parts, open_parts, by_rows=True)


@dataclass(frozen=True, slots=True)
class _State:
    """How one matrix of 4 bits is stored.

    Attributes:
        label: the name of its tensor, which begins those of all parts.
        columns: values of a row.
        block: values that share a scale.
        nested: scales that share a scale; 0: scales are float32.
        offset: what is added to scales that are bytes.
    """

    label: str
    columns: int
    block: int
    nested: int
    offset: np.float32

    def open(self, read: Read) -> DecodeRows:
        """Read the map and the scales. The codes are read when rows are decoded."""
        levels = read(f"{self.label}.quant_map")
        scales = self._scales(read)

        def decode(rows: slice) -> Decoded:
            start, end = rows.start * self.columns, rows.stop * self.columns
            pairs = read(self.label, slice(start // 2, end // 2)).reshape(-1)
            codes = np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(-1, self.columns)
            own = scales[np.arange(start, end) // self.block]
            return levels[codes], own.reshape(codes.shape), None

        return decode

    def _scales(self, read: Read) -> Floats:
        """The scale of each block."""
        stored: NDArray[Any] = read(f"{self.label}.absmax")
        if not self.nested:
            return stored
        levels = read(f"{self.label}.nested_quant_map")
        largest = read(f"{self.label}.nested_absmax")[np.arange(len(stored)) // self.nested]
        scales: Floats = levels[stored] * largest + self.offset
        return scales


def _four_bits(stem: str, kind: str, tensors: Stored, read: Read) -> PackedMatrix:
    label, state_label = f"{stem}.weight", f"{stem}.{_STATE}{kind}"
    found = _read_state(state_label, tensors, read)
    shape, dtype = found.get("shape"), found.get("dtype")
    rows, columns = _sizes(state_label, "shape", shape, 2)
    (block,) = _sizes(state_label, "blocksize", [found.get("blocksize")], 1)
    if columns % 2 or str(dtype) not in _DTYPES:
        _fail(state_label, f"names shape {shape!r} and dtype {dtype!r}")
    require(tensors, label, ("U8",), rows * columns // 2, 1)
    require(tensors, f"{label}.quant_map", ("F32",), 16)
    blocks = -(-rows * columns // block)
    names, nested, offset = ["absmax", "quant_map"], 0, 0.0
    if "nested_blocksize" in found:
        (nested,) = _sizes(state_label, "nested_blocksize", [found["nested_blocksize"]], 1)
        given = found.get("nested_offset")
        if type(given) is not float:
            _fail(state_label, f"names nested_offset {given!r}")
        offset = given
        require(tensors, f"{label}.nested_absmax", ("F32",), -(-blocks // nested))
        require(tensors, f"{label}.nested_quant_map", ("F32",), 256)
        names += ["nested_absmax", "nested_quant_map"]
    require(tensors, f"{label}.absmax", ("U8",) if nested else ("F32",), blocks)
    with np.errstate(over="ignore"):
        state = _State(label, columns, block, nested, np.float32(offset))
    parts = (label, state_label, *(f"{label}.{name}" for name in names))
    return PackedMatrix(
        label, _DTYPES[str(dtype)], (rows, columns), parts, state.open, by_rows=True
    )


def _read_state(label: str, tensors: Stored, read: Read) -> Config:
    """The JSON object in a tensor of bytes."""
    (size,) = require(tensors, label, ("U8",), None).shape
    if size > _LARGEST_STATE:
        _fail(label, f"has {size} bytes, more than {_LARGEST_STATE}")
    try:
        found = parse_json(read(label).tobytes())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"tensor {label} is not JSON: {error}", field=label) from error
    if not isinstance(found, dict):
        _fail(label, "must hold a JSON object")
    return found


def _sizes(label: str, key: str, value: object, count: int) -> list[int]:
    """Positive whole numbers of a state. No array is made of such a size."""
    if not isinstance(value, list) or len(value) != count:
        _fail(label, f"names {key} {value!r}")
    if not all(type(one) is int and 0 < one <= _LARGEST_SIZE for one in value):
        _fail(label, f"names {key} {value!r}")
    return value


def _fail(label: str, problem: str) -> NoReturn:
    raise ModelFileError(
        f"tensor {label} {problem}; the file is damaged, fetch it again", field=label
    )
