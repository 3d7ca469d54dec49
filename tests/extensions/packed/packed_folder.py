"""Writes quantised matrices as GPTQ, AWQ, compressed-tensors and FP8 store them.

Written from the descriptions of these formats; no code of Heddle's is used. Each writer takes a
matrix of the model, quantises it, and returns the tensors to store and the values that they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from folder_writer import write_raw_safetensors
from tensor_blocks import E4M3

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from models.tiny.base import TinyModel

Arrays = dict[str, np.ndarray]

_DTYPES = {
    **{"f4": "F32", "f2": "F16", "i4": "I32", "i8": "I64", "i1": "I8"},
    **{"u4": "U32", "u1": "U8"},
}


@dataclass(frozen=True)
class Bfloat:
    """Values stored as BF16, which NumPy lacks."""

    values: np.ndarray


@dataclass(frozen=True)
class Float8:
    """Codes stored as F8_E4M3."""

    codes: np.ndarray


Storable = np.ndarray | Bfloat | Float8
Packed = tuple["Mapping[str, Storable]", np.ndarray]
"""The stored tensors of a matrix by the last part of their names, and the values that they mean."""


def write_packed(
    model: TinyModel, folder: Path, settings: object, packer: Callable[[np.ndarray], Packed]
) -> dict[str, np.ndarray]:
    """Write a model with all matrices of its layers packed. Returns the values they mean.

    `settings` are the folder's `quantization_config`.
    """
    model.write_folder(folder, quantization_config=settings)
    tensors: dict[str, Storable] = {}
    meant = {}
    for name, values in model.state().items():
        if "layers" in name and values.ndim == 2:
            parts, meant[name] = packer(values)
            tensors |= {
                f"{name.removesuffix('.weight')}.{part}": one for part, one in parts.items()
            }
        else:
            tensors[name] = values
    write_mixed(folder / "model.safetensors", tensors)
    return meant


def write_mixed(path: Path, tensors: Mapping[str, Storable]) -> Path:
    """Write tensors of any dtypes as a safetensors file."""
    header, data, position = {}, b"", 0
    for name, tensor in tensors.items():
        match tensor:
            case Bfloat(values):
                dtype, stored = "BF16", (values.view(np.uint32) >> 16).astype("<u2")
            case Float8(codes):
                dtype, stored = "F8_E4M3", codes
            case _:
                dtype, stored = _DTYPES[tensor.dtype.str[1:]], tensor
        raw = np.ascontiguousarray(stored).tobytes()
        offsets = [position, position + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(stored.shape), "data_offsets": offsets}
        data, position = data + raw, position + len(raw)
    return write_raw_safetensors(path, header, data)


def pack(codes: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Words of codes (n, m), packed along the second axis. Nibble i holds code order[i]."""
    per_word = 32 // bits
    words = np.zeros((len(codes), -(-codes.shape[1] // per_word)), np.uint32)
    for nibble, source in enumerate(order or range(per_word)):
        some = codes[:, source::per_word].astype(np.uint32)
        words[:, : some.shape[1]] |= some << np.uint32(bits * nibble)
    return words.view(np.int32)


def quantised(
    matrix: np.ndarray, bits: int, group: int, symmetric: bool, dtype: str = "f2"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (rows, columns), zero points and scales (rows, groups)."""
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, columns // group, group)
    top = (1 << bits) - 1
    if symmetric:
        scale = np.abs(groups).max(2) / (top // 2)
        zero = np.full(scale.shape, (top + 1) // 2)
    else:
        low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
        scale = (high - low) / top
        zero = np.rint(-low / scale).astype(int)
    scale = scale.astype(dtype)
    if dtype == "bf16":
        scale = (scale.view(np.uint32) & 0xFFFF0000).view(np.float32)
    codes = np.clip(np.rint(groups / scale[..., None].astype(np.float32)) + zero[..., None], 0, top)
    return codes.reshape(rows, columns).astype(int), zero, scale


def values_of(codes: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The values (rows, columns), float32."""
    group = codes.shape[1] // scale.shape[1]
    zeros, scales = np.repeat(zero, group, 1), np.repeat(scale.astype(np.float32), group, 1)
    return ((codes - zeros).astype(np.float32) * scales).astype(np.float32)


def as_gptq(
    matrix: np.ndarray, bits: int, group: int, *, symmetric: bool, less_one: bool, scatter: bool
) -> tuple[Arrays, np.ndarray]:
    """GPTQ. With `scatter`, the columns of a group are not neighbours."""
    columns = matrix.shape[1]
    order = np.random.RandomState(3).permutation(columns) if scatter else np.arange(columns)
    codes, zero, scale = quantised(matrix[:, order], bits, group, symmetric)
    values, stored = np.empty_like(matrix), np.empty_like(codes)
    values[:, order], stored[:, order] = values_of(codes, zero, scale), codes
    of_column = np.empty(columns, np.int32)
    of_column[order] = np.arange(columns) // group
    tensors = {
        "qweight": np.ascontiguousarray(pack(stored, bits).T),
        "qzeros": pack((zero.T - less_one) & ((1 << bits) - 1), bits),
        "scales": np.ascontiguousarray(scale.T),
        "g_idx": of_column,
    }
    return tensors, values


def as_awq(matrix: np.ndarray, group: int) -> tuple[Arrays, np.ndarray]:
    """AWQ for its kernel `gemm`."""
    codes, zero, scale = quantised(matrix, 4, group, symmetric=False)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        "qweight": pack(codes.T, 4, order),
        "qzeros": pack(zero.T, 4, order),
        "scales": np.ascontiguousarray(scale.T),
    }
    return tensors, values_of(codes, zero, scale)


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """The nearest codes."""
    finite = [code for code in range(256) if code & 127 != 127]
    distance = np.abs(values[..., None] - E4M3[finite])
    return np.array(finite, np.uint8)[distance.argmin(-1)]


def as_fp8(matrix: np.ndarray, *, by_row: bool = False) -> Packed:
    """FP8 with one scale, or one for each row."""
    scale = np.abs(matrix).max(1, keepdims=True) / 448
    scale = scale if by_row else scale.max(keepdims=True).reshape(1)
    spread = np.broadcast_to(scale, matrix.shape)
    codes = to_e4m3(matrix / spread)
    return {"weight": Float8(codes), "weight_scale": scale}, E4M3[codes] * spread


def as_fp8_in_blocks(matrix: np.ndarray, height: int, width: int) -> Packed:
    """FP8 with a scale for each block of rows and columns. The last blocks may be smaller."""
    rows, columns = matrix.shape
    scale = np.random.RandomState(1).rand(-(-rows // height), -(-columns // width)) + 0.5
    scale = scale.astype(np.float32) / 100
    spread = np.repeat(np.repeat(scale, height, 0)[:rows], width, 1)[:, :columns]
    codes = to_e4m3(matrix / spread)
    return {"weight": Float8(codes), "weight_scale_inv": scale}, E4M3[codes] * spread
