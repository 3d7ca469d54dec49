"""Eyes that see tiles of one size, with a token beside the patches: InternVL and Llama 4."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.extensions.vision.kinds.kind import Kind
from heddle.extensions.vision.kinds.read import Read
from heddle.extensions.vision.positions import as_stored, cubic, fitted
from heddle.extensions.vision.projections import Adapter, TwoLayers
from heddle.extensions.vision.scenes import Cutter

if TYPE_CHECKING:
    from heddle.extensions.vision.eyes import EyesCheckpoint


def internvl(eyes: EyesCheckpoint) -> Kind:
    """InternVL."""
    read = Read.of(eyes)
    table, side = read.positions(beside=1)
    projection = TwoLayers(
        *(read.width, read.fold, read.rows("projection.up"), read.row_width),
        activation=read.activation("projection_activation"),
        norms="square",
        norm_eps=1e-5,  # as torch has it
    )
    first = read.vector("first.weight", read.width) + table[0]
    if "patches.bias" in eyes.tensors:  # the tower adds it to all
        first -= read.vector("patches.bias", read.width)
    cutter = Cutter(read.patch, read.merge, fitted(table[1:], side, cubic), first)
    return Kind(replace(read.tower(projection), has_positions=True), cutter)


def llama4(eyes: EyesCheckpoint) -> Kind:
    """Llama 4, where the token after the patches has the place 0, and the first patch 1."""
    read = Read.of(eyes)
    table, side = read.positions(beside=1)
    inner = read.rows("adapter.up"), read.rows("adapter.down")
    projection = Adapter(read.width, read.fold, inner, read.row_width)
    tower = replace(
        read.tower(projection),
        has_positions=True,
        rope=read.rope(interleaved=True, columns_first=True),
        activation="gelu_erf",  # whatever the files say
    )
    first = read.vector("first.weight", read.width) + table[-1]
    cutter = Cutter(read.patch, read.merge, fitted(table[:-1], side, as_stored), first, begin=1)
    return Kind(tower, cutter)
