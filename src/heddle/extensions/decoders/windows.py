"""Windows and positions of models in which layers with a window alone have positions.

Cohere 2 and EXAONE 4 are such models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_windows
from heddle.models.positions import rope

if TYPE_CHECKING:
    from heddle.executor import ModelShape
    from heddle.models.ops import RopeSpec
    from heddle.weights.hyperparameters import Hyperparameters

PERIOD = 4
"""Number of layers after which one sees all positions, if the checkpoint does not say."""


def windows_and_positions(
    hyperparameters: Hyperparameters, shape: ModelShape, context: int
) -> list[tuple[int, RopeSpec | None]]:
    """The window of each layer, and its rotation. Without any window, all layers rotate.

    Raises:
        ModelFileError: a hyperparameter is missing or makes no sense.
        UnsupportedModelError: the scaling of positions is not known.
    """
    positions = rope(hyperparameters, shape.head_dim, context)
    if hyperparameters.get("window") is None:
        return [(0, positions)] * shape.layers
    windows = read_windows(hyperparameters, shape.layers, PERIOD)
    return [(window, positions if window else None) for window in windows]
