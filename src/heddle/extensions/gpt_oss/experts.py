"""Experts in folders of GPT-OSS, as stacked tensors.

Gate and up of all experts are one tensor with alternating rows: gate, up, gate. Weights are MXFP4
in two tensors, blocks and scales, or floats in transposed matrices. The canonical tensors are made
from them without a change of a value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.extensions.decoders.transposed import rows_of
from heddle.weights.huggingface.made import MXFP4, MadeTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import Stored

    Raw = NDArray[np.uint8]

_EXPERTS = re.compile(
    r"model\.layers\.(?P<layer>\d{1,9})\.mlp\.experts\."
    r"(?P<pair>gate_up|down)_proj(?P<kind>|_blocks|_bias)"
)
_BLOCK = 32
_DIMENSIONS = {"": 3, "_blocks": 4, "_bias": 2}


def made_tensors(tensors: Mapping[str, Stored], _: Config) -> dict[str, MadeTensor]:
    """The experts' canonical tensors, by canonical name.

    Raises:
        ModelFileError: scales are missing, or a tensor has not the shape that it needs.
    """
    found = {}
    for label, stored in tensors.items():
        match = _EXPERTS.fullmatch(label)
        if match is None:
            continue
        kind = "bias" if match["kind"] == "_bias" else "weight"
        if len(stored.shape) != _DIMENSIONS[match["kind"]]:
            raise ModelFileError(f"tensor {label} has shape {stored.shape}", field=label)
        for part, rows in _matrices_in(match["pair"]):
            name = f"layers.{match['layer']}.mlp.experts.{part}.{kind}"
            if match["kind"] == "_blocks":
                found[name] = _packed(label, tensors, rows)
            else:
                found[name] = rows_of(label, stored, rows, transposed=not match["kind"])
    return found


def _matrices_in(pair: str) -> Iterator[tuple[str, slice]]:
    """The matrices in a stored tensor, and the rows of each."""
    if pair == "down":
        yield "down", slice(None)
    else:
        yield "gate", slice(0, None, 2)
        yield "up", slice(1, None, 2)


def _packed(label: str, tensors: Mapping[str, Stored], rows: slice) -> MadeTensor:
    """MXFP4: stored blocks (experts, rows, blocks, 16) and scales (experts, rows, blocks)."""
    blocks, other = tensors[label], label.removesuffix("_blocks") + "_scales"
    scales = tensors.get(other)
    if scales is None:
        raise ModelFileError(f"tensor {other} is missing", field=other)
    is_sound = blocks.dtype == scales.dtype == "U8" and blocks.shape[:-1] == scales.shape
    if not is_sound or blocks.shape[-1] != _BLOCK // 2:
        raise ModelFileError(
            f"tensor {label} is {blocks.dtype} of shape {blocks.shape} and {other} is"
            f" {scales.dtype} of shape {scales.shape}; they must be U8, of shapes"
            " (..., 16) and (...)",
            field=label,
        )

    def make(raw: list[Raw]) -> Raw:
        codes = raw[0].reshape(blocks.shape)[:, rows]
        exponents = raw[1].reshape(scales.shape)[:, rows]
        return mxfp4_blocks(codes, exponents)

    experts, _, columns = scales.shape
    count = len(range(scales.shape[1])[rows])
    return MadeTensor(MXFP4, (experts, count, columns * _BLOCK), (label, other), make)


def mxfp4_blocks(codes: Raw, exponents: Raw) -> Raw:
    """Blocks as GGUF has them, from codes (..., 16) and exponents (...).

    A stored byte holds two neighbours, the first in its low half. In GGUF byte i holds elements i
    and i + 16, after the block's exponent.
    """
    neighbours = np.stack([codes & 15, codes >> 4], axis=-1)
    elements = neighbours.reshape(*codes.shape[:-1], _BLOCK)
    made = np.empty((*exponents.shape, _BLOCK // 2 + 1), np.uint8)
    made[..., 0] = exponents
    made[..., 1:] = elements[..., : _BLOCK // 2] | elements[..., _BLOCK // 2 :] << 4
    return made.ravel()
