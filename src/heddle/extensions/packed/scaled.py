"""compressed-tensors, FP8 and modelopt: codes (rows, columns) and scales (rows, groups).

A module has `weight_packed` (codes in words) or `weight` (one byte each), and `weight_scale`. FP8
with scales of 128 by 128 values calls them `weight_scale_inv`, and multiplies by them; in files of
DeepSeek's own, `scale`. There scales are powers of 2 (E8M0), and experts may be MXFP4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.packed import float4
from heddle.extensions.packed.matrix import (
    FLOATS,
    INTEGERS,
    WORDS,
    PackedMatrix,
    block_type,
    group_size,
    require,
    spread,
    stems,
)
from heddle.extensions.packed.values import unpack
from heddle.weights.huggingface.quantised import refuse
from heddle.weights.quants import e4m3
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.extensions.packed.matrix import Decoded, DecodeRows
    from heddle.extensions.packed.values import Floats, Integers
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.quantised import Read, Stored
    from heddle.weights.huggingface.safetensors import StoredTensor

_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized"),
)


def compressed_tensors(settings: Config, tensors: Stored, _read: Read) -> list[PackedMatrix]:
    """The integers and FP8 of the compressed-tensors package."""
    form, transform = settings.get("format"), settings.get("transform_config")
    if isinstance(transform, dict) and transform.get("config_groups"):
        raise refuse("transform_config", transform, "supported: none, as it changes activations")
    if form not in _FORMATS:
        raise refuse("format", form, f"supported: {', '.join(_FORMATS)}")
    codes = "weight_packed"
    if form == "nvfp4-pack-quantized":
        return [
            float4.nvfp4(stem, codes, "weight_global_scale", tensors, divides=True)
            for stem in stems(tensors, f".{codes}")
        ]
    if form == "mxfp4-pack-quantized":
        return [float4.mxfp4(stem, codes, tensors) for stem in stems(tensors, f".{codes}")]
    bits = _bits(settings)
    packed = [_packed(stem, bits, tensors) for stem in stems(tensors, ".weight_packed")]
    return packed + [
        _scaled(f"{stem}.weight", f"{stem}.weight_scale", tensors)
        for stem in stems(tensors, ".weight_scale")
        if f"{stem}.weight" in tensors
    ]


def fp8(settings: Config, tensors: Stored, _read: Read) -> list[PackedMatrix]:
    """FP8 E4M3 with a scale for each matrix, or for each block of it."""
    blocks = settings.get("weight_block_size")
    if blocks is None:
        return [
            _scaled(f"{stem}.weight", f"{stem}.weight_scale", tensors)
            for stem in stems(tensors, ".weight_scale")
        ]
    are_sizes = isinstance(blocks, list) and [type(size) for size in blocks] == [int, int]
    if not isinstance(blocks, list) or not are_sizes or min(blocks) < 1:
        raise refuse("weight_block_size", blocks, "supported: two positive whole numbers")
    found = [
        matrix
        for stem in stems(tensors, ".weight_scale_inv")
        for matrix in _in_blocks(stem, tensors, (blocks[0], blocks[1]))
    ]
    for stem in stems(tensors, ".scale"):
        weight = tensors.get(f"{stem}.weight")
        if weight is not None and weight.dtype == "I8":
            found.append(float4.mxfp4(stem, "weight", tensors, scales="scale"))
        else:
            found.append(_scaled(f"{stem}.weight", f"{stem}.scale", tensors, tuple(blocks)))
    return found


def modelopt(settings: Config, tensors: Stored, _read: Read) -> list[PackedMatrix]:
    """The FP8 and NVFP4 of TensorRT Model Optimizer. Scales of activations are not used.

    A folder of MIXED_PRECISION has both; the dtype of a matrix tells them apart.
    """
    known, algorithm = ("FP8", "NVFP4", "MIXED_PRECISION"), settings.get("quant_algo")
    if algorithm not in known:
        raise refuse("quant_algo", algorithm, f"supported: {', '.join(known)}")
    scaled_input = next((name for name in tensors if name.endswith(".pre_quant_scale")), None)
    if scaled_input is not None:
        raise UnsupportedModelError(
            f"tensor {scaled_input}: scales of inputs (AWQ) are not supported; use another form of"
            " this model",
            param=scaled_input,
        )
    found = []
    for stem in stems(tensors, ".weight_scale"):
        weight, scale = f"{stem}.weight", f"{stem}.weight_scale"
        if weight in tensors and tensors[weight].dtype == "U8":
            found.append(float4.nvfp4(stem, "weight", "weight_scale_2", tensors, divides=False))
        else:
            found.append(_scaled(weight, scale, tensors))
    return found


def _bits(settings: Config) -> int:
    """Bits of a code, which must be the same in all groups of modules."""
    groups, found = settings.get("config_groups"), list[object]()
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            found.append(weights.get("num_bits"))
    bits = next((one for one in (4, 8) if found and all(each == one for each in found)), None)
    if bits is None:
        raise refuse("config_groups", groups, "supported: groups that all have num_bits 4, or 8")
    return bits


def _packed(stem: str, bits: int, tensors: Stored) -> PackedMatrix:
    """Codes in words. They are stored plus half of their range, and so are zero points."""
    if f"{stem}.weight_g_idx" in tensors:
        raise UnsupportedModelError(
            f"tensor {stem}.weight_g_idx: groups of scattered columns are not supported; use a"
            " model that was quantised without activation order",
            param="quantization_config",
        )
    words = require(tensors, f"{stem}.weight_packed", WORDS, None, None)
    rows, columns = words.shape[0], words.shape[1] * 32 // bits
    scales = require(tensors, f"{stem}.weight_scale", FLOATS, rows, None)
    require(tensors, f"{stem}.weight_shape", INTEGERS, 2)
    groups = scales.shape[1]
    group = group_size(f"{stem}.weight_scale", columns, groups)
    parts = [f"{stem}.{name}" for name in ("weight_packed", "weight_scale", "weight_shape")]
    zero_label = f"{stem}.weight_zero_point"
    if zero_label in tensors:
        require(tensors, zero_label, WORDS, -(-rows * bits // 32), groups)
        parts.append(zero_label)
    kind = block_type(bits, group, scales.dtype, zero_points=zero_label in tensors)

    def open_parts(read: Read) -> DecodeRows:
        codes, scale = read(parts[0]), read(parts[1])
        # A stored matrix may have more columns than the model: words are always full.
        if read(parts[2]).tolist() != [rows, columns]:
            raise ModelFileError(
                f"tensor {parts[2]} differs from the shape {(rows, columns)} of the codes;"
                " the file is damaged, or its rows do not fill words",
                field=parts[2],
            )
        zeros = unpack(read(zero_label), bits, 0)[:rows] if zero_label in tensors else None

        def decode(part: slice) -> Decoded:
            zero: int | Integers = 1 << (bits - 1)
            if zeros is not None:
                zero = np.repeat(zeros[part], group, axis=1)
            spread_scale = spread(scale[part].astype(np.float32), kind, columns)
            return unpack(codes[part], bits, 1) - zero, spread_scale, None

        return decode

    return PackedMatrix(f"{stem}.weight", kind, (rows, columns), tuple(parts), open_parts)


def _scaled(label: str, scale: str, tensors: Stored, blocks: tuple[int, ...] = ()) -> PackedMatrix:
    """A matrix of int8 or FP8. `blocks` are the rows and columns that share a scale."""
    stored = require(tensors, label, ("I8", "F8_E4M3"), None, None)
    rows, columns = stored.shape
    scales = require(tensors, scale, (*FLOATS, "F8_E8M0"), *tensors[scale].shape)
    if blocks:
        require(tensors, scale, (scales.dtype,), -(-rows // blocks[0]), -(-columns // blocks[1]))
    else:
        _check_one_or_by_row(scale, scales, rows)
    zero_label = label + "_zero_point"
    zero_points = zero_label in tensors
    if zero_points:
        zeros = require(tensors, zero_label, ("I8",), *tensors[zero_label].shape)
        _check_one_or_by_row(zero_label, zeros, rows)
    if stored.dtype == "F8_E4M3":
        kind = TensorType.F32 if zero_points else _float8_type(columns, blocks)
    elif blocks:
        kind = TensorType.F32
    else:
        kind = block_type(8, columns, scales.dtype, zero_points=zero_points)
    parts = (label, scale, *([zero_label] if zero_points else []))
    source = _Bytes(parts, kind, (rows, columns), blocks)
    return PackedMatrix(label, kind, (rows, columns), parts, source.open, by_rows=True)


def _in_blocks(stem: str, tensors: Stored, blocks: tuple[int, int]) -> list[PackedMatrix]:
    """A matrix, or those of a stack of experts. The latter have names as if stored one by one."""
    label, scale = f"{stem}.weight", f"{stem}.weight_scale_inv"
    stack = tensors[label].shape[:-2] if label in tensors else ()
    if len(stack) != 1:
        return [_scaled(label, scale, tensors, blocks)]
    *_, rows, columns = require(tensors, label, ("F8_E4M3",), *stack, None, None).shape
    require(tensors, scale, FLOATS, *stack, -(-rows // blocks[0]), -(-columns // blocks[1]))
    kind, (before, _, part) = _float8_type(columns, blocks), stem.rpartition(".")
    found = []
    for expert in range(*stack):
        source = _Bytes((label, scale), kind, (rows, columns), blocks, expert)
        name = f"{before}.experts.{expert}.{part}.weight"
        found.append(PackedMatrix(name, kind, source.shape, source.parts, source.open))
    return found


def _check_one_or_by_row(label: str, tensor: StoredTensor, rows: int) -> None:
    if tensor.shape not in ((), (1,), (1, 1), (rows,), (rows, 1)):
        raise UnsupportedModelError(
            f"tensor {label} has shape {tensor.shape}; supported: one value, or one for each of"
            f" {rows} rows",
            param="quantization_config",
        )


def _float8_type(columns: int, blocks: tuple[int, ...]) -> TensorType:
    """F8_E4M3 if each of its blocks has one scale, else F32."""
    run = TensorType.F8_E4M3.block_elements
    whole = columns % run == 0 and (not blocks or blocks[1] % run == 0)
    return TensorType.F8_E4M3 if whole else TensorType.F32


@dataclass(frozen=True, slots=True)
class _Bytes:
    """One byte a value. `parts` are the values, the scales and, for some, the zero points.

    `expert` is the number of an expert of a stack; None: the parts are those of one matrix.
    """

    parts: tuple[str, ...]
    kind: TensorType
    shape: tuple[int, int]
    blocks: tuple[int, ...]
    expert: int | None = None

    def open(self, read: Read) -> DecodeRows:
        """Read the scales and zero points. The values are read when they are decoded.

        Those of an expert are read at once.
        """
        rows, _columns = self.shape
        own = None if self.expert is None else slice(self.expert, self.expert + 1)
        whole = None if own is None else read(self.parts[0], own)[0]
        scales = read(self.parts[1], own)
        if scales.dtype == np.uint8:
            scales = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
        scales = scales.astype(np.float32)
        scales = scales if own is None else scales[0]
        zeros = [read(label).astype(np.int16).reshape(-1, 1) for label in self.parts[2:]]

        def decode(part: slice) -> Decoded:
            raw = read(self.parts[0], part) if whole is None else whole[part]
            if self.kind is TensorType.F8_E4M3:
                return raw, self._scales(scales, part), None
            values = e4m3(raw) if raw.dtype == np.uint8 else raw.astype(np.int16)
            for zero in zeros:
                values = values - np.broadcast_to(zero, (rows, 1))[part]
            return values, self._scales(scales, part), None

        return decode

    def _scales(self, scales: Floats, part: slice) -> Floats:
        rows, columns = self.shape
        if self.blocks:
            of_rows: NDArray[np.int64] = np.arange(part.start, part.stop) // self.blocks[0]
            size = self.kind.block_elements
            spread_out = np.repeat(scales[of_rows], self.blocks[1] // size, axis=1)
            return spread_out[:, : columns // size]
        return spread(np.broadcast_to(scales.reshape(-1, 1), (rows, 1))[part], self.kind, columns)
