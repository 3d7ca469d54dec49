"""Pixtral's eyes: patches of any grid, with rotations and no other positions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.extensions.vision.kinds.kind import Kind
from heddle.extensions.vision.kinds.read import Read
from heddle.extensions.vision.projections import TwoLayers
from heddle.extensions.vision.scenes import Cutter

if TYPE_CHECKING:
    from heddle.extensions.vision.eyes import EyesCheckpoint


def pixtral(eyes: EyesCheckpoint) -> Kind:
    """Pixtral, and Mistral Small 3.1 and later, which merges squares of patches."""
    read = Read.of(eyes)
    merges = eyes.architecture == "mistral3"
    features = read.features("feature_layers")
    if merges and features:
        label = eyes.hyperparameters.label("feature_layers")
        raise UnsupportedModelError(
            f"{label} {list(features)} is not supported; supported: one layer", param=label
        )
    projection = TwoLayers(
        max(len(features), 1) * read.width,
        *(read.fold, read.rows("projection.up"), read.row_width),
        activation=read.activation("projection_activation"),
        norms="patch" if merges else "",
        norm_eps=eyes.hyperparameters.number("projection_norm_eps", 1e-5),
        merges=merges,
    )
    tower = replace(
        read.tower(projection), rope=read.rope(alternating=True), features=features[:-1]
    )
    return Kind(tower, Cutter(read.patch, read.merge))
