"""Matrices of E2M1, a float of 4 bits: NVFP4 and MXFP4 of modelopt and compressed-tensors.

A byte has two neighbouring columns, the first in its low half. NVFP4 has an E4M3 scale for 16
columns and a float32 scale for the matrix; MXFP4 has an E8M0 scale for 32. Sources:
`nvfp4_tensor.py` of TensorRT Model Optimizer, `fp4_quantized.py` and `forward.py` of
compressed-tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.extensions.packed.matrix import PackedMatrix, require
from heddle.weights.quants import E2M1_DOUBLED, e4m3
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from heddle.extensions.packed.matrix import Decoded, DecodeRows
    from heddle.extensions.packed.values import Codes
    from heddle.weights.huggingface.quantised import Read, Stored

_E2M1 = E2M1_DOUBLED / np.float32(2)


def nvfp4(stem: str, codes: str, factor: str, tensors: Stored, *, divides: bool) -> PackedMatrix:
    """A matrix of NVFP4.

    A value is code * (scale * factor), or code * (scale / factor) if the factor `divides`. The type
    NVFP4 has no factor, so the matrix is read as F32.

    Args:
        stem: the first part of its tensors' names.
        codes: the last part of the name of its codes.
        factor: the same of its float32 scale.
        tensors: all tensors of the folder.
        divides: whether scales are divided by the factor.
    """
    parts = (f"{stem}.{codes}", f"{stem}.weight_scale", f"{stem}.{factor}")
    rows, columns = _shape(parts[0], parts[1], 16, ("F8_E4M3",), tensors)
    one = tensors.get(parts[2])
    require(tensors, parts[2], ("F32",), *(() if one is None else one.shape))
    if one is not None and one.shape not in ((), (1,), (1, 1)):
        raise ModelFileError(
            f"tensor {parts[2]} has shape {one.shape}; one value is required", field=parts[2]
        )
    source = _Nvfp4(parts, divides)
    return PackedMatrix(
        f"{stem}.weight", TensorType.F32, (rows, columns), parts, source.open, by_rows=True
    )


@dataclass(frozen=True, slots=True)
class _Nvfp4:
    """The parts are the codes, the scales and the factor."""

    parts: tuple[str, str, str]
    divides: bool

    def open(self, read: Read) -> DecodeRows:
        """Read the factor. All else is read when rows are decoded."""
        factor = read(self.parts[2]).reshape(-1)[0]

        def decode(rows: slice) -> Decoded:
            scales = e4m3(read(self.parts[1], rows))
            scales = scales / factor if self.divides else scales * factor
            codes = _codes(read(self.parts[0], rows))
            return _E2M1[codes], np.repeat(scales, 16, axis=1), None

        return decode


def mxfp4(stem: str, codes: str, tensors: Stored, *, scales: str = "weight_scale") -> PackedMatrix:
    """A matrix of MXFP4. `codes` and `scales` are the last parts of the names of both."""
    parts = (f"{stem}.{codes}", f"{stem}.{scales}")
    shape = _shape(parts[0], parts[1], 32, ("U8", "F8_E8M0"), tensors)

    def open_parts(read: Read) -> DecodeRows:
        def decode(rows: slice) -> Decoded:
            return _codes(read(parts[0], rows)), read(parts[1], rows), None

        return decode

    return PackedMatrix(f"{stem}.weight", TensorType.MXFP4, shape, parts, open_parts, by_rows=True)


def _shape(
    codes: str, scales: str, group: int, dtypes: tuple[str, ...], tensors: Stored
) -> tuple[int, int]:
    """The rows and columns of a matrix, whose scales must fit them."""
    rows, stored = require(tensors, codes, ("U8", "I8"), None, None).shape
    if 2 * stored % group:
        raise ModelFileError(
            f"tensor {codes} has {2 * stored} columns, which are no whole groups of {group}",
            field=codes,
        )
    require(tensors, scales, dtypes, rows, 2 * stored // group)
    return rows, 2 * stored


def _codes(pairs: Codes) -> Codes:
    pairs = pairs.view(np.uint8)
    return np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)
