"""BitNet: matrices of -1, 0 and 1 times one scale, packed or still to be rounded.

With `quantization_mode` offline (and with `linear_class` bitlinear) a module has `weight` and
`weight_scale`, one number. The bytes of `weight` hold four rows each: bits 2i and 2i + 1 are those
of the i-th quarter of the rows, plus 1. Values are multiplied by the scale, and those of bitlinear
divided by it. With mode online a module has the weights that were trained, and a model rounds them:
to the nearest of -1, 0 and 1 times the mean of their magnitudes, and that to their dtype.
`integrations/bitnet.py` of `transformers` has the definitions.

There, activations are rounded to 8 bits too, with a scale for each token. Heddle's native matmuls
round them with a scale for each 32 columns of a token, as for every type of integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.extensions.packed.matrix import FLOATS, PackedMatrix, require, stems
from heddle.extensions.packed.values import are_halves, rounded
from heddle.weights.huggingface.quantised import refuse
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.extensions.packed.matrix import Decoded, DecodeRows
    from heddle.extensions.packed.values import Codes, Floats
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.quantised import Read, Stored

_DTYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}
_LEAST_MEAN = np.float32(1e-5)
_E4M3 = np.array([0xB8, 0x00, 0x38], np.uint8)
"""-1, 0 and 1."""


def bitnet(settings: Config, tensors: Stored, read: Read) -> list[PackedMatrix]:
    """BitNet b1.58 (Ma et al. 2024, arXiv:2402.17764)."""
    linear = settings.get("linear_class", "bitlinear")
    mode = settings.get("quantization_mode", "offline")
    if linear not in ("bitlinear", "autobitlinear"):
        raise refuse("linear_class", linear, "supported: bitlinear, autobitlinear")
    if mode not in ("offline", "online"):
        raise refuse("quantization_mode", mode, "supported: offline, online")
    if settings.get("use_rms_norm"):
        raise refuse("use_rms_norm", settings["use_rms_norm"], "supported: false")
    is_plain = linear == "bitlinear"
    if mode == "online" and not is_plain:
        return _trained(settings, tensors)
    scaled = stems(tensors, ".weight_scale")
    return [_packed(stem, tensors, read, divides=is_plain) for stem in scaled]


def _packed(stem: str, tensors: Stored, read: Read, *, divides: bool) -> PackedMatrix:
    parts = (f"{stem}.weight", f"{stem}.weight_scale")
    quarter, columns = require(tensors, parts[0], ("U8",), None, None).shape
    require(tensors, parts[1], FLOATS, *([] if tensors[parts[1]].shape == () else [1]))
    scale = read(parts[1]).astype(np.float32).reshape(1, 1)
    if divides:
        with np.errstate(divide="ignore"):
            scale = np.reciprocal(scale)
    kind = _type_of(columns, halves=are_halves(scale))

    def open_parts(read: Read) -> DecodeRows:
        stored = read(parts[0])
        codes = np.concatenate([stored >> shift & 3 for shift in range(0, 8, 2)])
        if codes.max() > 2:
            raise ModelFileError(
                f"tensor {parts[0]} has a code of 3, which stands for no value; the file is"
                " damaged, fetch it again",
                field=parts[0],
            )
        return _decoder(codes, scale, kind)

    return PackedMatrix(parts[0], kind, (4 * quarter, columns), parts, open_parts)


def _trained(settings: Config, tensors: Stored) -> list[PackedMatrix]:
    """The matrices of layers, but those of modules that the settings name."""
    named = settings.get("modules_to_not_convert") or []
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        raise refuse("modules_to_not_convert", named, "supported: a list of names")
    kept = tuple(named)
    return [
        _rounded(stem, tensors)
        for stem in stems(tensors, "_proj.weight")
        if ".layers." in stem and not f"{stem}_proj".endswith(kept) and not stem.startswith(kept)
    ]


def _rounded(stem: str, tensors: Stored) -> PackedMatrix:
    label = f"{stem}_proj.weight"
    stored = require(tensors, label, tuple(_DTYPES), None, None)
    dtype = _DTYPES[stored.dtype]
    kind = _type_of(stored.shape[1], halves=dtype is not TensorType.F32)

    def open_parts(read: Read) -> DecodeRows:
        weights: Floats = read(label).astype(np.float32, copy=False)
        mean = np.float32(np.abs(weights).mean(dtype=np.float64))
        factor = np.float32(1) / max(mean, _LEAST_MEAN)
        codes = np.rint(weights * factor).clip(-1, 1) + 1
        scale = np.reshape(np.float32(1) / factor, (1, 1))
        raw = rounded(dtype, scale).view(np.uint8).reshape(-1)
        return _decoder(codes.astype(np.uint8), dequantize(raw, dtype, (1, 1)), kind)

    return PackedMatrix(label, kind, (stored.shape[0], stored.shape[1]), (label,), open_parts)


def _type_of(columns: int, *, halves: bool) -> TensorType:
    """The smallest type for ternary values. `halves`: 16 bits hold the scale."""
    if halves and columns % TensorType.TQ2_0.block_elements == 0:
        return TensorType.TQ2_0
    whole = columns % TensorType.F8_E4M3.block_elements == 0
    return TensorType.F8_E4M3 if whole else TensorType.F32


def _decoder(codes: Codes, scale: Floats, kind: TensorType) -> DecodeRows:
    """Rows of codes 0 to 2, which stand for -1 to 1, and their scale."""
    rows, columns = codes.shape
    scales: NDArray[np.float32] = np.broadcast_to(scale, (rows, columns // kind.block_elements))

    def decode(part: slice) -> Decoded:
        if kind is TensorType.TQ2_0:
            return codes[part], scales[part], None
        if kind is TensorType.F8_E4M3:
            return _E4M3[codes[part]], scales[part], None
        return codes[part].astype(np.float32) - 1, scales[part], None

    return decode
