"""Gemma 4's eyes: patches of any grid, with the vector of a row plus that of a column."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.extensions.vision.kinds.kind import Kind
from heddle.extensions.vision.kinds.read import Read
from heddle.extensions.vision.positions import sums
from heddle.extensions.vision.projections import Standardised
from heddle.extensions.vision.scenes import Cutter
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.extensions.vision.tower import Limits

_MATRICES = (
    *(f"attention.{part}" for part in ("q", "k", "v", "output")),
    *(f"mlp.{part}" for part in ("gate", "up", "down")),
)
"""Matrices of a layer that may have limits."""


def gemma4(eyes: EyesCheckpoint) -> Kind:
    """Gemma 4."""
    read = Read.of(eyes)
    table = read.values("positions.weight")
    if table.ndim != 2 or len(table) % 2 or table.shape[1] != read.width:
        label = eyes.label("positions.weight")
        raise ModelFileError(
            f"{eyes.path}: tensor {label} must have {read.width} columns, and as many rows for"
            " places from the left as for places from the top",
            field=label,
        )
    tower = replace(
        read.tower(Standardised(read.width, read.fold, read.row_width, read.eps)),
        has_positions=True,
        rope=read.rope(columns_first=True),
        norms_heads=True,
        limits=_limits(read),
    )
    return Kind(tower, Cutter(read.patch, read.merge, sums(table)))


def _limits(read: Read) -> dict[str, tuple[Limits | None, Limits | None]]:
    """The limits of what matrices read and make, of those that have any."""
    names = (f"layers.{i}.{part}" for i in range(read.layers) for part in _MATRICES)
    found = {name: (_limit(read, name, "input"), _limit(read, name, "output")) for name in names}
    return {name: limits for name, limits in found.items() if limits != (None, None)}


def _limit(read: Read, name: str, side: str) -> Limits | None:
    """The least and the most of one side of a matrix; None: there are no limits."""
    if not (read.has(f"{name}.{side}_min") and read.has(f"{name}.{side}_max")):
        return None
    least, most = (_number(read.eyes, f"{name}.{side}_{end}.weight") for end in ("min", "max"))
    if (least, most) == (-inf, inf):
        return None
    if not -inf < least < most < inf:
        label = read.eyes.label(f"{name}.{side}_min.weight")
        raise ModelFileError(
            f"{read.eyes.path}: tensor {label} is {least}; it must be less than {most}, and both"
            " finite",
            field=label,
        )
    return least, most


def _number(eyes: EyesCheckpoint, name: str) -> float:
    tensor = eyes.tensors[name]
    return float(np.ravel(dequantize(eyes.read(name), tensor.type, tensor.shape))[0])
