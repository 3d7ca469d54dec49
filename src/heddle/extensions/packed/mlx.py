"""MLX: codes in words, scales, and for integers offsets, which MLX calls biases.

A module has `weight` (codes of 2 to 8 bits that run on from word to word), `scales` and `biases`
(rows, groups). Its value is scale * code + bias. The modes mxfp4, mxfp8 and nvfp4 have floats for
codes, a byte for a scale, and no biases. `mlx/ops.cpp` has the definitions (`affine_dequantize`,
`fp_dequantize`), and `mlx_lm/utils.py` says which module has which settings.

MLX rounds values to the type of the scales. Here they have float32's precision, as MLX computes
them from scales in float32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.packed.matrix import FLOATS, PackedMatrix, require, spread, stems
from heddle.extensions.packed.values import are_halves, unpack_bits
from heddle.weights.huggingface.quantised import refuse
from heddle.weights.quants import E2M1_DOUBLED, e4m3, halved_e8m0
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from heddle.extensions.packed.matrix import Decoded, DecodeRows
    from heddle.extensions.packed.values import Codes, Floats
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.quantised import Read, Stored

_AFFINE = {
    **dict.fromkeys((2, 3, 4), TensorType.Q4_1),
    **{5: TensorType.Q5_1, 6: TensorType.F32, 8: TensorType.F32},
}
"""The type for codes of so many bits, if 16 bits hold the scales and biases."""

_GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class _Mode:
    """A way to store values.

    Attributes:
        bits: bits of a code.
        group: columns that share a scale.
        kind: the type as which a matrix is read.
        is_affine: whether codes are integers, with scales and biases.
    """

    bits: int
    group: int
    kind: TensorType
    is_affine: bool = False


_FLOATS = {
    "mxfp4": _Mode(4, 32, TensorType.MXFP4),
    "mxfp8": _Mode(8, 32, TensorType.F32),
    "nvfp4": _Mode(4, 16, TensorType.NVFP4),
}

_STACKED = re.compile(
    r"(?P<before>.+\.(?:mlp|block_sparse_moe))\.switch_mlp\.(?P<part>gate|up|down)_proj"
)
"""The experts of a layer, which MLX keeps in one tensor for each part."""
_MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}


def mlx(settings: Config, tensors: Stored, read: Read) -> list[PackedMatrix]:
    """Folders that `mlx_lm.convert` has written."""
    _mode_of(settings)
    _check_layout(tensors)
    return [
        matrix
        for stem in stems(tensors, ".scales")
        for matrix in _matrices(_Module(stem, _mode_of(_own(settings, stem), stem)), tensors, read)
    ]


def _own(settings: Config, stem: str) -> Config:
    """The settings of one module. Its entry replaces those of the folder."""
    own = settings.get(stem)
    return own if isinstance(own, dict) else settings


def _mode_of(settings: Config, stem: str = "") -> _Mode:
    """The mode that settings name. `stem` is the module that they are of; empty: of the folder."""
    key = f"{stem}." if stem else ""
    name, bits, group = (settings.get(one) for one in ("mode", "bits", "group_size"))
    name = "affine" if name is None else name
    if name == "affine":
        if type(bits) is not int or bits not in _AFFINE:
            raise refuse(f"{key}bits", bits, f"supported: {', '.join(map(str, _AFFINE))}")
        if type(group) is not int or group not in _GROUPS:
            raise refuse(f"{key}group_size", group, f"supported: {', '.join(map(str, _GROUPS))}")
        return _Mode(bits, group, _AFFINE[bits], is_affine=True)
    if not isinstance(name, str) or name not in _FLOATS:
        raise refuse(f"{key}mode", name, f"supported: affine, {', '.join(_FLOATS)}")
    mode = _FLOATS[name]
    for label, value, only in (("bits", bits, mode.bits), ("group_size", group, mode.group)):
        if value not in (None, only):
            raise refuse(f"{key}{label}", value, f"supported with mode {name}: {only}")
    return mode


def _check_layout(tensors: Stored) -> None:
    """Refuse folders in which MLX has changed more than the matrices."""
    for label, stored in tensors.items():
        if label.endswith(("conv1d.weight", "conv.conv.weight")) and stored.shape[-1:] == (1,):
            raise UnsupportedModelError(
                f"tensor {label}: MLX has changed the order of its axes, and norms of some of these"
                " models; use another form of this model",
                param=label,
            )


@dataclass(frozen=True, slots=True)
class _Module:
    """A module: the first part of its tensors' names, and how it stores values.

    Attributes:
        expert: the number of an expert of a stack; None: the module is one matrix.
    """

    stem: str
    mode: _Mode
    expert: int | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The stored tensors."""
        names = ("weight", "scales", "biases")
        return tuple(f"{self.stem}.{name}" for name in names[: 3 if self.mode.is_affine else 2])

    @property
    def label(self) -> str:
        """The name of the matrix in a folder of `transformers`."""
        match = _STACKED.fullmatch(self.stem)
        if self.expert is None or match is None:
            return f"{self.stem}.weight"
        is_mixtral = match["before"].endswith(".block_sparse_moe")
        part = _MIXTRAL[match["part"]] if is_mixtral else f"{match['part']}_proj"
        return f"{match['before']}.experts.{self.expert}.{part}.weight"

    def stored(self, read: Read, part: int, rows: slice) -> NDArray[Any]:
        """Rows of one of the parts."""
        if self.expert is None:
            return read(self.parts[part], rows)
        expert = read(self.parts[part], slice(self.expert, self.expert + 1))
        return expert[0, rows]

    def open(self, read: Read) -> DecodeRows:
        """Nothing is read before rows are decoded."""
        kind = self.mode.kind

        def decode(rows: slice) -> Decoded:
            codes = unpack_bits(self.stored(read, 0, rows), self.mode.bits)
            columns, scales = codes.shape[1], self.stored(read, 1, rows)
            if self.mode.is_affine:
                biases = self.stored(read, 2, rows).astype(np.float32)
                spread_scales = spread(scales.astype(np.float32), kind, columns)
                return codes, spread_scales, spread(biases, kind, columns)
            if kind is not TensorType.F32:
                return codes, scales, None
            return *self._floats(codes, scales), None

        return decode

    def _floats(self, codes: Codes, scales: Codes) -> tuple[Floats, Floats]:
        """Values and scales of float codes. Those of E2M1 are doubled, and then scales halved."""
        if self.mode.bits == 8:
            factors = 2 * halved_e8m0(scales)
            return e4m3(codes), np.repeat(factors, self.mode.group, axis=1)
        factors = e4m3(scales) / np.float32(2)
        return E2M1_DOUBLED[codes], np.repeat(factors, self.mode.group, axis=1)


def _matrices(module: _Module, tensors: Stored, read: Read) -> Iterator[PackedMatrix]:
    """The matrix of a module, or those of its experts."""
    words = tensors.get(module.parts[0])
    experts = words.shape[0] if words is not None and len(words.shape) == 3 else None
    if experts is not None and _STACKED.fullmatch(module.stem) is None:
        raise UnsupportedModelError(
            f"tensor {module.parts[0]} has three axes, and is no known stack of experts; use"
            " another form of this model",
            param=module.parts[0],
        )
    stack = () if experts is None else (experts,)
    weight = require(tensors, module.parts[0], ("U32",), *stack, None, None)
    rows = weight.shape[-2]
    columns = weight.shape[-1] * 32 // module.mode.bits
    groups, rest = divmod(columns, module.mode.group)
    if rest or weight.shape[-1] * 32 % module.mode.bits or not groups:
        raise ModelFileError(
            f"tensor {module.parts[0]} has shape {weight.shape}; its rows are no whole groups of"
            f" {module.mode.group} codes of {module.mode.bits} bits",
            field=module.parts[0],
        )
    dtypes = FLOATS if module.mode.is_affine else ("U8",)
    for part in module.parts[1:]:
        require(tensors, part, dtypes, *stack, rows, groups)
    module = replace(module, mode=replace(module.mode, kind=_kind(module, columns, read)))
    for expert in [None] if experts is None else range(experts):
        one = replace(module, expert=expert)
        yield PackedMatrix(
            one.label, one.mode.kind, (rows, columns), one.parts, one.open, by_rows=True
        )


def _kind(module: _Module, columns: int, read: Read) -> TensorType:
    """The type of the module's matrices. It depends on their scales."""
    kind = module.mode.kind
    if kind is TensorType.F32 or columns % kind.block_elements:
        return TensorType.F32
    if module.mode.is_affine:
        parts = (read(part).astype(np.float32) for part in module.parts[1:])
        return kind if all(map(are_halves, parts)) else TensorType.F32
    # GGUF's scales of NVFP4 have no sign, and no NaN.
    if kind is TensorType.NVFP4 and (read(module.parts[1]) > 0x7E).any():
        return TensorType.F32
    return kind
