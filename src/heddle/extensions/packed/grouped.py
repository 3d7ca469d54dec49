"""GPTQ and AWQ: codes, zero points and scales of groups, columns first.

A module has `qweight` (codes, 8 or 4 in a word), `scales` (groups, rows), `qzeros` (zero points,
packed along the rows), and GPTQ's `g_idx` (the group of each column). A value is
scale * (code - zero point). GPTQ packs codes along the columns, AWQ along the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
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
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.extensions.packed.matrix import Decoded, DecodeRows
    from heddle.extensions.packed.values import Integers
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.quantised import Read, Stored

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of eight neighbouring rows (AutoAWQ, `packing_utils.py`)."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How a folder stores its modules.

    Attributes:
        bits: bits of a code.
        packs_rows: whether a word of `qweight` holds neighbouring rows; else columns.
        places: the place in a word of each neighbour; empty: ascending.
        zero_shift: number to add to stored zero points.
        zero_points: whether zero points differ from half of the range.
        scattered: whether the columns of a group need not be neighbours.
    """

    bits: int
    packs_rows: bool
    places: tuple[int, ...]
    zero_shift: int
    zero_points: bool
    scattered: bool


def gptq(settings: Config, tensors: Stored, _read: Read) -> list[PackedMatrix]:
    """Frantar et al. 2022, arXiv:2210.17323, as AutoGPTQ and GPTQModel store it.

    The first version of the format stores zero points less 1.
    """
    version, bits = settings.get("checkpoint_format", "gptq"), settings.get("bits")
    if version not in ("gptq", "gptq_v2"):
        raise refuse("checkpoint_format", version, "supported: gptq, gptq_v2")
    if bits not in (4, 8):
        raise refuse("bits", bits, "supported: 4, 8")
    form = _Form(
        bits=4 if bits == 4 else 8,
        packs_rows=False,
        places=(),
        zero_shift=1 if version == "gptq" else 0,
        zero_points=settings.get("sym") is not True,
        scattered=settings.get("desc_act") is True and settings.get("static_groups") is not True,
    )
    return [_matrix(stem, form, tensors) for stem in stems(tensors, ".qweight")]


def awq(settings: Config, tensors: Stored, _read: Read) -> list[PackedMatrix]:
    """Lin et al. 2023, arXiv:2306.00978, as AutoAWQ stores it for its kernel `gemm`."""
    version, bits = settings.get("version", "gemm"), settings.get("bits", settings.get("w_bit"))
    if not isinstance(version, str) or version.lower() != "gemm":
        raise refuse("version", version, "supported: gemm")
    if bits != 4:
        raise refuse("bits", bits, "supported: 4")
    form = _Form(4, True, _AWQ_PLACES, zero_shift=0, zero_points=True, scattered=False)
    return [_matrix(stem, form, tensors) for stem in stems(tensors, ".qweight")]


def _matrix(stem: str, form: _Form, tensors: Stored) -> PackedMatrix:
    stored = require(tensors, f"{stem}.qweight", WORDS, None, None)
    per_word = 32 // form.bits
    columns, rows = stored.shape
    if form.packs_rows:
        rows *= per_word
    else:
        columns *= per_word
    scales = require(tensors, f"{stem}.scales", FLOATS, None, rows)
    groups = scales.shape[0]
    require(tensors, f"{stem}.qzeros", WORDS, groups, -(-rows // per_word))
    group = group_size(f"{stem}.scales", columns, groups)
    parts = [f"{stem}.qweight", f"{stem}.qzeros", f"{stem}.scales"]
    if f"{stem}.g_idx" in tensors:
        require(tensors, f"{stem}.g_idx", INTEGERS, columns)
        parts.append(f"{stem}.g_idx")
    kind = block_type(form.bits, group, scales.dtype, zero_points=form.zero_points)
    if form.scattered:
        require(tensors, f"{stem}.g_idx", INTEGERS, columns)
        kind = TensorType.F32
    source = _Source(stem, form, kind, columns)
    return PackedMatrix(f"{stem}.weight", kind, (rows, columns), tuple(parts), source.open)


@dataclass(frozen=True, slots=True)
class _Source:
    stem: str
    form: _Form
    kind: TensorType
    columns: int

    def open(self, read: Read) -> DecodeRows:
        """Read the stored tensors."""
        form, columns = self.form, self.columns
        words, scales = read(f"{self.stem}.qweight"), read(f"{self.stem}.scales")
        scales = scales.astype(np.float32)
        zeros = unpack(read(f"{self.stem}.qzeros"), form.bits, 1, form.places)
        # A stored 15 is a zero point of 0, from which the first version of GPTQ took 1.
        zeros = (zeros + form.zero_shift) & ((1 << form.bits) - 1)
        scattered = self._groups_of_columns(read, len(scales)) if form.scattered else None

        def decode(rows: slice) -> Decoded:
            codes = self._codes(words, rows)
            zero, scale = zeros[:, rows].T, scales[:, rows].T
            if scattered is not None:
                return codes - zero[:, scattered], scale[:, scattered], None
            zero = np.repeat(zero, columns // zero.shape[1], axis=1)
            return codes - zero, spread(scale, self.kind, columns), None

        return decode

    def _groups_of_columns(self, read: Read, groups: int) -> NDArray[np.int64]:
        """The group of each column."""
        label = f"{self.stem}.g_idx"
        found = read(label).astype(np.int64)
        wrong = found[(found < 0) | (found >= groups)]
        if wrong.size:
            raise ModelFileError(
                f"tensor {label} names group {wrong[0]}, and there are {groups} groups; the file is"
                " damaged, fetch it again",
                field=label,
            )
        return found

    def _codes(self, words: NDArray[np.int32], rows: slice) -> Integers:
        """Codes (n, columns) of some rows."""
        form = self.form
        if not form.packs_rows:
            return unpack(words[:, rows], form.bits, 0, form.places).T
        per_word = 32 // form.bits
        first = rows.start // per_word
        some = unpack(words[:, first : -(-rows.stop // per_word)], form.bits, 1, form.places)
        return some.T[rows.start - first * per_word : rows.stop - first * per_word]
