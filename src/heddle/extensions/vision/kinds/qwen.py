"""Eyes of Qwen2-VL and what follows it, and of GLM-4V: patches of any grid, with rotations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.extensions.vision.kinds.kind import Kind
from heddle.extensions.vision.kinds.read import Read
from heddle.extensions.vision.positions import cubic, fitted, to_corners
from heddle.extensions.vision.projections import GatedMerger, Levels, TwoLayers
from heddle.extensions.vision.scenes import Cutter
from heddle.extensions.vision.tower import WHOLE, WINDOW

if TYPE_CHECKING:
    from heddle.extensions.vision.eyes import EyesCheckpoint


def _merger(read: Read, name: str, norms: str) -> TwoLayers:
    return TwoLayers(
        *(read.width, read.fold, read.rows(f"{name}.up"), read.row_width),
        activation=read.activation("projection_activation", "gelu_erf"),
        norms=norms,
    )


def qwen2_vl(eyes: EyesCheckpoint) -> Kind:
    """Qwen2-VL, and Qwen2.5-VL, of which most layers see windows."""
    read = Read.of(eyes)
    full = eyes.hyperparameters.get("full_layers")
    windows = 0
    tower = replace(read.tower(_merger(read, "projection", "patch")), rope=read.rope())
    if full is not None:
        assert isinstance(full, list), "`EyesHyperparameters` has checked it"
        windows = eyes.hyperparameters.integer("window") // read.merge
        runs = tuple(WHOLE if i in full else WINDOW for i in range(read.layers))
        tower = replace(tower, runs=runs)
    return Kind(tower, Cutter(read.patch, read.merge, window=windows))


def qwen3_vl(eyes: EyesCheckpoint) -> Kind:
    """Qwen3-VL and Qwen3.5."""
    read = Read.of(eyes)
    deeper = read.features("deepstack_layers", begin=0)
    projection = Levels(
        _merger(read, "projection", "patch"),
        tuple(_merger(read, f"deepstack.{i}", "square") for i in range(len(deeper))),
    )
    tower = replace(
        read.tower(projection, read.row_width * (1 + len(deeper))),
        rope=read.rope(),
        has_positions=True,
        features=deeper,
    )
    return Kind(tower, Cutter(read.patch, read.merge, fitted(*read.positions(), to_corners)))


def glm4v(eyes: EyesCheckpoint) -> Kind:
    """GLM-4.1V and what follows it."""
    read = Read.of(eyes)
    projection = GatedMerger(
        *(read.width, read.fold, read.rows("projection.up"), read.row_width),
        activation=read.activation("activation"),
    )
    tower = replace(read.tower(projection), rope=read.rope(), has_positions=True, norm_first=True)
    return Kind(tower, Cutter(read.patch, read.merge, fitted(*read.positions(), cubic)))
