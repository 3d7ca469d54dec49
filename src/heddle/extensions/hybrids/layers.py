"""Layers of models in which some, or all, have a recurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.executor import ModelShape
from heddle.models.blocks import Layer
from heddle.models.decoder import Decoder
from heddle.state import NO_SHAPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.models.blocks import FeedForward, Mixer
    from heddle.weights.hyperparameters import Hyperparameters


def hybrid_layers(
    recurrent: Iterable[bool],
    recurrence: Mixer,
    attention: Mixer,
    mlps: Iterable[FeedForward],
    norm_eps: float,
) -> tuple[Layer, ...]:
    """Layers with a recurrence where `recurrent` is true, and the others with attention."""
    return tuple(
        Layer(recurrence if is_recurrent else attention, mlp, norm_eps)
        for is_recurrent, mlp in zip(recurrent, mlps, strict=True)
    )


def recurrent_decoder(read: Hyperparameters, recurrence: Mixer) -> Decoder:
    """The decoder of layers that have a recurrence, and neither attention nor a feed-forward part.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    shape = ModelShape(
        layers=read.integer("layers"),
        kv_heads=NO_SHAPE.heads,
        head_dim=NO_SHAPE.dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=recurrence.width,
    )
    eps = read.number("norm_eps")
    return Decoder(shape, (Layer(recurrence, None, eps),) * shape.layers, eps)
