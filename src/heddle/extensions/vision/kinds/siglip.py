"""Eyes that are SigLIP or CLIP: Idefics 3, Gemma 3, LFM2-VL, LLaVA and LLaVA-NeXT."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.extensions.vision.kinds.kind import Kind
from heddle.extensions.vision.kinds.read import Read
from heddle.extensions.vision.positions import as_stored, bucketed, fitted, smoothed
from heddle.extensions.vision.projections import Matrix, Mean, TwoLayers
from heddle.extensions.vision.scenes import Cutter

if TYPE_CHECKING:
    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.extensions.vision.positions import Along
    from heddle.extensions.vision.tower import Projection


def _siglip(read: Read, projection: Projection, along: Along) -> Kind:
    """SigLIP, whose positions are fitted to the patches of a tile by `along`."""
    tower = replace(read.tower(projection), has_positions=True)
    return Kind(tower, Cutter(read.patch, read.merge, fitted(*read.positions(), along)))


def idefics3(eyes: EyesCheckpoint) -> Kind:
    """Idefics 3 and SmolVLM."""
    read = Read.of(eyes)
    return _siglip(read, Matrix(read.width, read.fold, read.row_width), bucketed)


def gemma3(eyes: EyesCheckpoint) -> Kind:
    """Gemma 3."""
    read = Read.of(eyes)
    return _siglip(read, Mean(read.width, read.fold, read.row_width, read.eps), as_stored)


def lfm2_vl(eyes: EyesCheckpoint) -> Kind:
    """LFM2-VL. The projection has a norm if the files have one."""
    read = Read.of(eyes)
    projection = TwoLayers(
        *(read.width, read.fold, read.rows("projection.up"), read.row_width),
        activation=read.activation("projection_activation"),
        norms="square" if read.has("projection.norm") else "",
        norm_eps=1e-5,  # as torch has it
    )
    return _siglip(read, projection, smoothed)


def llava(eyes: EyesCheckpoint) -> Kind:
    """LLaVA. With CLIP, there is a token before the patches."""
    read = Read.of(eyes)
    features = read.features("feature_layers")
    beside = 1 if read.has("first") else 0
    table, side = read.positions(beside=beside)
    projection = TwoLayers(
        *(max(len(features), 1) * read.width, 1, read.rows("projection.up"), read.row_width),
        activation=read.activation("projection_activation"),
    )
    tower = replace(read.tower(projection), has_positions=True, features=features[:-1])
    first = read.vector("first.weight", read.width) + table[0] if beside else None
    cutter = Cutter(read.patch, 1, fitted(table[beside:], side, as_stored), first)
    return Kind(tower, cutter, keeps_first=bool(eyes.hyperparameters.get("keeps_first", False)))


def llava_next(eyes: EyesCheckpoint) -> Kind:
    """LLaVA-NeXT and Granite Vision: as LLaVA, but each line of rows has an end."""
    kind = llava(eyes)
    if kind.keeps_first:
        label = eyes.hyperparameters.label("keeps_first")
        raise UnsupportedModelError(
            f"{label} is not supported where tiles form a field: the row of the token before the"
            " patches has no place in it",
            param=label,
        )
    read = Read.of(eyes)
    return replace(kind, row_break=read.vector("row_break.weight", read.row_width))
