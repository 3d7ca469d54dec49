"""Vectors that folders of RWKV-7 store in other shapes: shares of the token before, and bonuses.

flash-linear-attention stores the six vectors of shares alone, (1, 1, width) each, and in older
folders together, as `x_x`.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.extensions.rwkv.mixes import SHIFTS
from heddle.weights.huggingface.made import MadeTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import Raw, Stored

_BONUS = re.compile(r"((?:.+\.)?layers\.(\d{1,9})\.attn\.)r_k")


def make(tensors: Mapping[str, Stored], _: Config) -> dict[str, MadeTensor]:
    """The vectors of each layer.

    Raises:
        ModelFileError: a vector of shares is missing, or has another dtype than the first.
    """
    found = {}
    for label in tensors:
        match = _BONUS.fullmatch(label)
        if match is None:
            continue
        prefix, layer = match[1], match[2]
        shares = [f"{prefix}x_x"]
        if shares[0] not in tensors:
            shares = [f"{prefix}x_{one}" for one in SHIFTS]
        found[f"layers.{layer}.time.shares.weight"] = _joined(tensors, shares)
        found[f"layers.{layer}.time.bonus.weight"] = _joined(tensors, [label])
    return found


def _joined(tensors: Mapping[str, Stored], labels: list[str]) -> MadeTensor:
    """The elements of these tensors as one vector."""
    for label in labels:
        if label not in tensors:
            raise ModelFileError(f"tensor {label} is missing; fetch the whole folder", field=label)
        if tensors[label].dtype != tensors[labels[0]].dtype:
            raise ModelFileError(
                f"tensor {label} has dtype {tensors[label].dtype}, and {labels[0]} has"
                f" {tensors[labels[0]].dtype}; the file is damaged, fetch it again",
                field=label,
            )
    size = sum(prod(tensors[label].shape) for label in labels)
    return MadeTensor(tensors[labels[0]].dtype, (size,), tuple(labels), _concatenate)


def _concatenate(parts: list[Raw]) -> Raw:
    return np.concatenate(parts)
