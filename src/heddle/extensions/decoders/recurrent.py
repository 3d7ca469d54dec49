"""Which layers have a recurrence in place of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_flags

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def read_recurrent(hyperparameters: Hyperparameters, layers: int, period: int) -> list[bool]:
    """Whether each layer has a recurrence in place of attention.

    The checkpoint lists the layers, or says that every so many layers one has attention; else
    `period` is that number.

    Raises:
        ModelFileError: the list has not an entry for each layer.
    """
    listed = read_flags(hyperparameters, "recurrent_layers", layers)
    if listed is not None:
        return listed
    period = hyperparameters.integer("attention_period", period)
    return [(layer + 1) % period > 0 for layer in range(layers)]
