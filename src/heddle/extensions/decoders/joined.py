"""Matrices that folders store joined or transposed: GPT-2, GPT-NeoX, BLOOM, Falcon, InternLM 2.

GPT-2 has its matrices (columns, rows). The others have queries, keys and values of one group of
heads after those of another, as `transformers` splits them.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.weights.huggingface.made import MadeTensor
from heddle.weights.huggingface.safetensors import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from heddle.weights.huggingface.made import Raw, Stored

    Cut = Callable[[NDArray[Any]], NDArray[Any]]


def made_of(
    tensors: Mapping[str, Stored],
    layers: str,
    cuts: Mapping[str, Mapping[str, Cut]],
    kinds: Sequence[str] = (".weight", ".bias"),
) -> dict[str, MadeTensor]:
    """Tensors of layers that are made from stored ones, by canonical name.

    Args:
        tensors: the stored tensors.
        layers: the prefix of the layers, which others may come before.
        cuts: for each part of a layer, as stored, how its canonical parts are cut from it.
        kinds: ends of names of which both stored and canonical ones have the same.

    Raises:
        ModelFileError: a tensor has not the shape that a cut needs.
        UnsupportedModelError: a tensor is quantised.
    """
    ends = "|".join(map(re.escape, kinds))
    place = re.compile(rf"(?:.+\.)?{re.escape(layers)}(\d{{1,9}})\.(.+?)({ends})")
    found = {}
    for label, stored in tensors.items():
        match = place.fullmatch(label)
        for part, cut in (cuts.get(match[2], {}) if match else {}).items():
            assert match is not None, "a part was found"
            found[f"layers.{match[1]}.{part}{match[3]}"] = _made(label, stored, cut)
    return found


def _made(label: str, stored: Stored, cut: Cut) -> MadeTensor:
    if stored.dtype not in DTYPE_BITS:
        raise UnsupportedModelError(
            f"tensor {label} of type {stored.dtype} is not supported: the matrices of this"
            " architecture must be floats. Use the original model, or a GGUF file of it",
            param=label,
        )
    bits = np.dtype(f"u{DTYPE_BITS[stored.dtype] // 8}")
    try:
        shape = cut(np.broadcast_to(np.uint8(0), stored.shape)).shape
    except ValueError:
        raise ModelFileError(
            f"tensor {label} has shape {stored.shape}, which the heads of config.json do not"
            " divide",
            field=label,
        ) from None

    def make(raw: list[Raw]) -> Raw:
        values = cut(raw[0].view(bits).reshape(stored.shape))
        return np.ascontiguousarray(values).view(np.uint8).ravel()

    return MadeTensor(stored.dtype, shape, (label,), make)


def transposed(values: NDArray[Any]) -> NDArray[Any]:
    """A matrix (columns, rows) as (rows, columns). A bias stays as it is."""
    return values.T


def flat(values: NDArray[Any]) -> NDArray[Any]:
    """A matrix of one row as a vector."""
    return values.reshape(-1)


def thirds() -> dict[str, Cut]:
    """Queries, keys and values of a matrix (columns, rows) that has them side by side."""

    def cut(values: NDArray[Any], part: int) -> NDArray[Any]:
        return np.split(values.T, 3)[part]

    return {f"attention.{name}": partial(cut, part=part) for part, name in enumerate("qkv")}


def of_groups(heads: int, groups: int) -> dict[str, Cut]:
    """Queries, keys and values of rows in groups: each has the rows of its queries, key, value."""

    def cut(values: NDArray[Any], of_group: slice) -> NDArray[Any]:
        split = values.reshape(groups, heads // groups + 2, -1, *values.shape[1:])
        return split[:, of_group].reshape(-1, *values.shape[1:])

    slices = {"q": slice(-2), "k": slice(-2, -1), "v": slice(-1, None)}
    return {f"attention.{name}": partial(cut, of_group=one) for name, one in slices.items()}
