"""Which layers of a model have rotary positions, for families in which some have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_flags

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def read_rotated(hyperparameters: Hyperparameters, layers: int, period: int = 0) -> list[bool]:
    """Whether each layer has rotary positions.

    The checkpoint lists the layers, or says that every so many layers one has none; else `period`
    is that number, and 0 means that all layers have positions.

    Raises:
        ModelFileError: the list has not an entry for each layer.
    """
    read = hyperparameters
    listed = read_flags(read, "rope.layers", layers)
    if listed is not None:
        return listed
    if read.get("rope.layer_period") is not None:
        period = read.integer("rope.layer_period")
    return [not period or (layer + 1) % period > 0 for layer in range(layers)]
